/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sodium.h - the part of libsodium that src/base names, for machines where it is not installed (WEFT_GPU_ONLY).
 *
 * Tables with a hash key belong to workers that talk to others. There are none in such a tree, so none is hashed.
 */
#ifndef WEFT_GPU_SODIUM_H
#define WEFT_GPU_SODIUM_H

#include <stdlib.h>
#include <string.h>

enum { crypto_shorthash_BYTES = 8, crypto_shorthash_KEYBYTES = 16 };

static inline void sodium_memzero(void *memory, size_t size)
{
    explicit_bzero(memory, size);
}

static inline int crypto_shorthash(unsigned char *out, const void *data, unsigned long long size, const void *key)
{
    (void)out, (void)data, (void)size, (void)key;
    abort();
}

#endif
