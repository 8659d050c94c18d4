/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prng.h - pseudorandom numbers for tests: the same seed gives the same numbers.
 * Source: SplitMix64, G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
 */
#ifndef TESTS_PRNG_H
#define TESTS_PRNG_H

#include <stdint.h>

/* The first number of seed `x`. */
static inline uint64_t prng_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t prng_next(uint64_t *state)
{
    uint64_t number = prng_mix(*state);
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return number;
}

static inline uint64_t prng_below(uint64_t *state, uint64_t limit)
{
    return prng_next(state) % limit;
}

#endif
