/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - zeroed memory; free() takes it back. */
#ifndef WFI_ALLOC_H
#define WFI_ALLOC_H

#include <stddef.h>

/* calloc(), and quick where it is small. NULL: no memory, or the product overflows. */
void *wfi_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2), warn_unused_result));

#endif
