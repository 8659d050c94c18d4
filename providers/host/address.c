/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - addresses: 8 bytes that identify the machine (wfi_machine), and 16 random ones that name the socket.
 *
 * The name is abstract: it exists in the network namespace, not in a file system, and ends with its socket.
 */
#include "host/host.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static void write_hex(const uint8_t *bytes, size_t count, char *out)
{
    for (size_t i = 0; i < count; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

socklen_t wfi_host_socket_name(const uint8_t name[WFI_HOST_NAME_BYTES], struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, "\0weft-", 6);
    write_hex(name, WFI_HOST_NAME_BYTES, out->sun_path + 6);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 6 + (size_t)2 * WFI_HOST_NAME_BYTES);
}

size_t wfi_host_address(const wfi_fabric *base, uint8_t *out)
{
    const wfi_host *host = wfi_host_of(base);
    memcpy(out, &host->machine, sizeof(host->machine));
    memcpy(out + sizeof(host->machine), host->name, sizeof(host->name));
    return WFI_HOST_ADDRESS_BYTES;
}

bool wfi_host_reaches(const wfi_fabric *base, const uint8_t *address, size_t size)
{
    const wfi_host *host = wfi_host_of(base);
    return size == WFI_HOST_ADDRESS_BYTES && memcmp(address, &host->machine, sizeof(host->machine)) == 0;
}

void wfi_host_address_text(const uint8_t *address, size_t size, char *out, size_t room)
{
    char name[2 * WFI_HOST_NAME_BYTES + 1];
    if (size == WFI_HOST_ADDRESS_BYTES) {
        write_hex(address + 8, WFI_HOST_NAME_BYTES, name);
        snprintf(out, room, "@weft-%s", name);
    } else {
        snprintf(out, room, "an address that makes no sense");
    }
}
