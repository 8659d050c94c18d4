/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - sealed memory that processes share.
 *
 * A file that can shrink causes a SIGBUS in a process that has mapped it. So the receiver maps a memfd only if its
 * seals forbid every change of its size. Its pages are allocated when it is made: if memory is out, that fails, and no
 * later access.
 */
#include "mem/shared.h"

#include "base/nosignal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Kernels before 6.3 do not know MFD_NOEXEC_SEAL; later ones warn without it, or refuse. */
static int make_file(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

static int map(int fd, size_t size, void **out)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return errno;
    if (madvise(memory, size, MADV_DONTFORK) != 0) { /* a child of fork(2) has no part in what is shared */
        int failed = errno;
        munmap(memory, size);
        return failed;
    }
    *out = memory;
    return 0;
}

/* The limit of file sizes (ulimit -f) counts for memory, too. Returns 0 or an errno value. */
static int set_size(int fd, size_t size)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    int failed = ftruncate(fd, (off_t)size) != 0 ? errno : posix_fallocate(fd, 0, (off_t)size);
    wfi_nosignal_end(&saved);
    return failed;
}

int wfi_shm_make(const char *name, size_t size, int *fd, void **out)
{
    int made = make_file(name);
    if (made < 0)
        return errno;
    int failed = set_size(made, size);
    if (!failed && fcntl(made, F_ADD_SEALS, SEALS) != 0)
        failed = errno;
    if (!failed)
        failed = map(made, size, out);
    if (failed) {
        close(made);
        return failed;
    }
    *fd = made;
    return 0;
}

int wfi_shm_map(int fd, size_t size, void **out)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 || file.st_size != (off_t)size)
        return EPROTO;
    return map(fd, size, out);
}
