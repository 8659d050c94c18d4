/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accessible.c - whether memory can be read or written, without a signal if it cannot.
 *
 * madvise(MADV_POPULATE_READ or _WRITE) says for a whole range that each page can be accessed: 20 ns for a page of
 * 4 KiB. If madvise fails, there may be another reason: an old kernel, memory of a device, or no memory. Then the
 * kernel touches one word of each page in a system call that otherwise does nothing. It returns EFAULT where this
 * process would get SIGSEGV or SIGBUS. No byte changes, and no descriptor is needed.
 */
#include "mem/storage.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u      /* the smallest page of all systems */
#define SIGNAL_BYTES 8u /* of the kernel's signal set */

/* The kernel reads the set before it refuses the impossible first argument. */
static bool is_readable(uintptr_t word)
{
    return !syscall(SYS_rt_sigprocmask, -1, word, NULL, SIGNAL_BYTES) || errno != EFAULT;
}

/* The kernel adds 0 to the word, in one atomic step. No thread waits for `unused` or for the word. */
static bool is_writable(uintptr_t word)
{
    uint32_t unused = 0;
    return syscall(SYS_futex, &unused, FUTEX_WAKE_OP_PRIVATE, 0, 0, word,
                   FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)) >= 0 ||
           errno != EFAULT;
}

bool wfi_memory_is_accessible(const void *data, size_t size, bool for_writing)
{
    const uintptr_t begin = (uintptr_t)data & ~(uintptr_t)(PAGE - 1), end = (uintptr_t)data + size;
    if (!size || !madvise((void *)begin, end - begin, for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
        return true;
    for (uintptr_t at = (uintptr_t)data & ~(uintptr_t)(SIGNAL_BYTES - 1); at < end;
         at = (at & ~(uintptr_t)(PAGE - 1)) + PAGE) {
        if (!(for_writing ? is_writable(at) : is_readable(at)))
            return false;
    }
    return true;
}

bool wfi_storage_is_accessible(const wfi_storage *storage, const void *data, size_t size, bool for_writing)
{
    bool is_ours = storage->slab || storage->is_small || storage->kind != WFI_MEMORY_HOST;
    return is_ours || wfi_memory_is_accessible(data, size, for_writing);
}
