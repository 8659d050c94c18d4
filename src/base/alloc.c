/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.c - zeroed memory; see alloc.h. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/*
 * glibc's calloc does not use the thread's cache, into which free() puts small blocks. It takes the arena's lock and
 * searches its bins, for each of the dozens of objects of a remote call. So blocks that fit the cache come from malloc,
 * and are cleared here. Larger blocks come from calloc, which does not clear memory that is new from the system.
 */
void *wfi_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    if (bytes == 0)
        bytes = 1; /* malloc(0) may return NULL */
    if (bytes > WFI_CACHED_BYTES)
        return calloc(1, bytes);
    void *block = malloc(bytes);
    __asm__("" : "+r"(block)); /* otherwise the compiler turns malloc and memset into calloc */
    return block ? memset(block, 0, bytes) : NULL;
}

void *wfi_grow(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    size_t larger = *capacity ? *capacity * 2 : 8, bytes;
    void *grown = __builtin_mul_overflow(larger, size, &bytes) ? NULL : realloc(array, bytes);
    if (grown)
        *capacity = larger;
    return grown;
}
