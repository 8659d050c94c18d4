/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - zeroed memory, and arrays that grow; both are freed with free(). */
#ifndef WFI_ALLOC_H
#define WFI_ALLOC_H

#include <stddef.h>

/* wfi_calloc takes blocks of up to this size from the thread's cache of glibc's malloc. */
#define WFI_CACHED_BYTES 1032

/*
 * Like calloc(), but faster for up to WFI_CACHED_BYTES. NULL: no memory, or the product overflows. For a product of 0
 * it returns memory too, so a list that may be empty needs no further element. The whole library allocates its zeroed
 * memory here, so tests that replace it (the linker's --wrap=wfi_calloc) see every object.
 */
void *wfi_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2), warn_unused_result));

/*
 * Makes room for one more element of `size` bytes in an array from malloc that has `count` of *capacity elements.
 * Returns the array, which may have moved, and raises *capacity. NULL: no memory, and nothing has changed.
 */
void *wfi_grow(void *array, size_t count, size_t *capacity, size_t size) __attribute__((warn_unused_result));

#endif
