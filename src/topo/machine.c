/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - see machine.h. */
#include "topo/machine.h"

#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t wfi_machine(void)
{
    struct {
        char boot[64];
        uint64_t device, network;
    } of;
    uint8_t hash[crypto_generichash_BYTES_MIN];
    uint64_t number;
    struct stat network;
    memset(&of, 0, sizeof(of));
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, of.boot, sizeof(of.boot));
    if (fd >= 0)
        close(fd);
    if (got <= 0 || stat("/proc/self/ns/net", &network) != 0)
        return 0;
    of.device = network.st_dev;
    of.network = network.st_ino;
    (void)crypto_generichash(hash, sizeof(hash), (const uint8_t *)&of, sizeof(of), NULL, 0);
    memcpy(&number, hash, sizeof(number));
    return number ? number : 1;
}
