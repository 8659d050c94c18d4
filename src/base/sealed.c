/* SPDX-License-Identifier: Apache-2.0 */
/* sealed.c - see sealed.h. */
#include "base/sealed.h"

#include "base/quiet.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The limit of file sizes (ulimit -f) counts for memory, too. It may cut a write short. */
static bool fill(int fd, const void *bytes, size_t size)
{
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    ssize_t put = pwrite(fd, bytes, size, 0);
    wfi_quiet_end(&quiet);
    if (put >= 0 && put < (ssize_t)size)
        errno = EFBIG;
    return put == (ssize_t)size;
}

int wfi_sealed_file(const char *name, const void *bytes, size_t size)
{
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = made < 0 ? -1 : fcntl(made, F_DUPFD_CLOEXEC, 3); /* 0 to 2 become a child's standard streams */
    int trouble = errno;
    if (made >= 0)
        close(made);
    if (fd >= 0 && fill(fd, bytes, size) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    if (fd >= 0) {
        trouble = errno;
        close(fd);
    }
    errno = trouble;
    return -1;
}
