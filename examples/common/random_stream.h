/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_stream.h - small streams of random numbers for examples: number k of a stream depends only on its seed and k.
 *
 * SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). Streams of different
 * keys are independent. So image i or step i has the same numbers on every worker and in every order.
 */
#ifndef EXAMPLES_RANDOM_STREAM_H
#define EXAMPLES_RANDOM_STREAM_H

#include <math.h>   /* log, cos, sqrt */
#include <stdint.h> /* uint64_t */

typedef struct random_stream {
    uint64_t state;
} random_stream;

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A separate seed for each pair (seed, key). */
static inline uint64_t random_key(uint64_t seed, uint64_t key)
{
    return random_mix(random_mix(seed + 0x9e3779b97f4a7c15u) ^ (key * 0xd1342543de82ef95u + 0x9e3779b97f4a7c15u));
}

static inline uint64_t random_u64(random_stream *stream)
{
    return random_mix(stream->state += 0x9e3779b97f4a7c15u);
}

/* Uniform in [0, 1). */
static inline double random_unit(random_stream *stream)
{
    return (double)(random_u64(stream) >> 11) * 0x1p-53;
}

/* Uniform in [low, high). */
static inline double random_between(random_stream *stream, double low, double high)
{
    return low + (high - low) * random_unit(stream);
}

/* Uniform in 0..bound-1, for bound >= 1 and far below 2^32; the bias is below bound / 2^32. */
static inline uint32_t random_below(random_stream *stream, uint32_t bound)
{
    return (uint32_t)(((random_u64(stream) >> 32) * bound) >> 32);
}

/* Standard normal (Box and Muller 1958; the second number of the pair is discarded). */
static inline double random_normal(random_stream *stream)
{
    double u = 1.0 - random_unit(stream), v = random_unit(stream);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
