/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - maps and unmaps memory of each kind. It has no pool (slab.h has) and no locks.
 */
#ifndef WFI_MEM_BACKEND_H
#define WFI_MEM_BACKEND_H

#include "mem/mem.h"

#define WFI_PAGE_BYTES 4096
#define WFI_HUGE_PAGE_BYTES ((size_t)2 << 20)

/* A fresh mapping of `size` bytes, page-aligned. WEFT_ERR_MEMORY (not logged), WEFT_ERR_UNSUPPORTED, WEFT_ERR_SYSTEM.
 */
weft_status wfi_backend_map(wfi_memory_kind kind, int device, size_t size, void **data);
void wfi_backend_unmap(wfi_memory_kind kind, int device, void *data, size_t size);

weft_status wfi_cuda_map(wfi_memory_kind kind, int device, size_t size, void **data);
/* The free and all bytes of a device; false: the driver does not tell. */
bool wfi_cuda_memory_info(int device, size_t *free, size_t *total);
void wfi_cuda_unmap(wfi_memory_kind kind, int device, void *data);

#endif
