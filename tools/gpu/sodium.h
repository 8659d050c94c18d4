/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sodium.h - the part of libsodium that src/base and src/topo name, for machines where it is not installed
 * (WEFT_GPU_ONLY).
 *
 * Tables with a hash key, and the name of the machine, belong to workers that talk to others. There are none in such a
 * tree, so nothing is hashed.
 */
#ifndef WEFT_GPU_SODIUM_H
#define WEFT_GPU_SODIUM_H

#include <stdlib.h>
#include <string.h>

enum { crypto_shorthash_BYTES = 8, crypto_shorthash_KEYBYTES = 16, crypto_generichash_BYTES_MIN = 16 };

static inline void sodium_memzero(void *memory, size_t size)
{
    explicit_bzero(memory, size);
}

static inline int crypto_shorthash(unsigned char *out, const void *data, unsigned long long size, const void *key)
{
    (void)out, (void)data, (void)size, (void)key;
    abort();
}

static inline int crypto_generichash(unsigned char *out, size_t size, const unsigned char *data,
                                     unsigned long long data_size, const unsigned char *key, size_t key_size)
{
    (void)out, (void)size, (void)data, (void)data_size, (void)key, (void)key_size;
    abort();
}

#endif
