/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c - the machine's monotonic clock, and deadlines on any clock. */
#include "base/clock.h"

#include <time.h> /* clock_gettime */

static uint64_t real_now(const wfi_clock *clock)
{
    struct timespec now;
    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const wfi_clock wfi_clock_real = {.now_ns = real_now};

uint64_t wfi_deadline(const wfi_clock *clock, int64_t timeout_ms)
{
    uint64_t ns, deadline;
    if (timeout_ms < 0 || __builtin_mul_overflow((uint64_t)timeout_ms, (uint64_t)1000000, &ns) ||
        __builtin_add_overflow(wfi_now(clock), ns, &deadline))
        return WFI_NEVER;
    return deadline;
}
