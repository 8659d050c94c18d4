/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.c - the world's random numbers: xoshiro256** 1.0 by David Blackman and Sebastiano Vigna (2018), its state
 * filled by splitmix64, as its authors recommend (prng.di.unimi.it).
 */
#include "sim/world.h"

#include <string.h>

static uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void wfi_sim_random_seed(sim_random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        random->state[i] = splitmix(&seed);
}

uint64_t wfi_sim_random_next(sim_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t wfi_sim_random(weft_sim *sim)
{
    return wfi_sim_random_next(&sim->random);
}

void wfi_sim_random_bytes(weft_sim *sim, void *out, size_t size)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t random = wfi_sim_random(sim);
        memcpy((uint8_t *)out + at, &random, size - at < 8 ? size - at : 8);
    }
}
