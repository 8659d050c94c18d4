/* SPDX-License-Identifier: Apache-2.0 */
/* random_chance.c - chance that replays, and time. */
#include "rpc/random.h"
#include "prng.h"

int below(uint64_t *state, int limit)
{
    return (int)prng_below(state, (uint64_t)limit);
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
