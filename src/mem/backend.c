/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c - host memory by mmap; passes the CUDA kinds to cuda_memory.c. */
#include "mem/backend.h"
#include "mem/cuda.h"

#include "base/text/log.h"
#include "topo/memory.h"

#include <string.h>
#include <sys/mman.h>

/* Maps more than `size` and unmaps both ends: a mapping needs to start at a huge page to consist of huge pages. */
static void *map_aligned(size_t size)
{
    size_t whole = size + WFI_HUGE_PAGE_BYTES;
    char *base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t head = (WFI_HUGE_PAGE_BYTES - (uintptr_t)base % WFI_HUGE_PAGE_BYTES) % WFI_HUGE_PAGE_BYTES;
    if (head > 0)
        munmap(base, head);
    if (whole - head > size)
        munmap(base + head + size, whole - head - size);
    /* The kernel may have no huge pages. Not for the end: using a part of it would allocate a whole huge page. */
    (void)madvise(base + head, size - size % WFI_HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    return base + head;
}

static weft_status map_host(size_t size, void **data)
{
    void *base;
    if (size >= WFI_HUGE_PAGE_BYTES) {
        base = map_aligned(size);
    } else {
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            base = NULL;
    }
    if (!base)
        return WEFT_ERR_MEMORY;
    wfi_numa_place(base, size);
    *data = base;
    return WEFT_OK;
}

weft_status wfi_memory_check_cuda(int device, weft_error **error)
{
    return wfi_cuda_check(device, error);
}

weft_status wfi_backend_map(wfi_memory_kind kind, int device, size_t size, void **data)
{
    return kind == WFI_MEMORY_HOST ? map_host(size, data) : wfi_cuda_map(kind, device, size, data);
}

void wfi_backend_unmap(wfi_memory_kind kind, int device, void *data, size_t size)
{
    if (kind == WFI_MEMORY_HOST)
        munmap(data, size);
    else
        wfi_cuda_unmap(kind, device, data);
}
