/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - zeroed memory, and arrays that grow; free() takes them back. */
#ifndef WFI_ALLOC_H
#define WFI_ALLOC_H

#include <stddef.h>

/*
 * calloc(), and quick where it is small. NULL: no memory, or the product overflows. All of the library takes its zeroed memory here,
 * so tests that put themselves in its place (the linker's --wrap=wfi_calloc) meet every object.
 */
void *wfi_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2), warn_unused_result));

/*
 * Room for one more element of `size` bytes in an array from malloc that holds `count` and has room for *capacity. The array, which may
 * have moved, with *capacity raised; NULL: no memory, and nothing has changed.
 */
void *wfi_grow(void *array, size_t count, size_t *capacity, size_t size) __attribute__((warn_unused_result));

#endif
