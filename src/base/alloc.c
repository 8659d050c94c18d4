/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.c - zeroed memory; see alloc.h. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/*
 * glibc's calloc does not take from the thread's cache, into which free() puts small blocks: it takes the arena's lock and walks
 * through its bins for each of the dozens of objects that a remote call lives in. So what fits that cache comes from malloc and
 * is cleared here. Larger blocks stay calloc's: it knows which memory is fresh from the system, and does not touch it.
 */
#define CACHED_BYTES_MAX 1032

void *wfi_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    if (bytes > CACHED_BYTES_MAX)
        return calloc(1, bytes);
    void *block = malloc(bytes);
    __asm__("" : "+r"(block)); /* or the compiler makes a calloc of malloc and memset */
    return block != NULL ? memset(block, 0, bytes) : NULL;
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
