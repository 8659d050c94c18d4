/* SPDX-License-Identifier: Apache-2.0 */
/* sealed.c - see sealed.h. */
#include "base/sealed.h"

#include "base/nosignal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The limit of file sizes (ulimit -f) counts for memory, too. It may cut a write short, and so may a lack of memory:
 * the next write then has the errno. */
static bool fill(int fd, const void *bytes, size_t size)
{
    wfi_nosignal saved;
    size_t done = 0;
    ssize_t put = 1;
    wfi_nosignal_begin(&saved);
    while (done < size && put > 0) {
        put = pwrite(fd, (const char *)bytes + done, size - done, (off_t)done);
        done += put > 0 ? (size_t)put : 0;
    }
    wfi_nosignal_end(&saved);
    return done == size;
}

int wfi_sealed_file(const char *name, const void *bytes, size_t size)
{
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = made < 0 ? -1 : fcntl(made, F_DUPFD_CLOEXEC, 3); /* 0 to 2 become a child's standard streams */
    int errnum = errno;
    if (made >= 0)
        close(made);
    if (fd >= 0 && fill(fd, bytes, size) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    if (fd >= 0) {
        errnum = errno;
        close(fd);
    }
    errno = errnum;
    return -1;
}
