/* SPDX-License-Identifier: Apache-2.0 */
/* random_chance.c - chance that replays, and time. */
#include "rpc/random.h"

uint64_t next_random(uint64_t *state) /* splitmix64 (S. Vigna, public domain) */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int below(uint64_t *state, int limit)
{
    return (int)(next_random(state) % (uint64_t)limit);
}

bool once_in(uint64_t *state, int times)
{
    return below(state, times) == 0;
}

uint64_t now_ns(void)
{
    return weft_sim_now(now_playing->sim);
}

void sleep_us(uint64_t us)
{
    weft_sim_sleep(now_playing->sim, us * 1000);
}
