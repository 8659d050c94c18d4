/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c - the machine's monotonic clock, and deadlines on any clock. */
#include "base/clock.h"

#include <stdbool.h>
#include <time.h> /* clock_gettime */

static uint64_t real_now(const wfi_clock *clock)
{
    struct timespec now;
    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const wfi_clock wfi_clock_real = {.now_ns = real_now};

static uint64_t ns_of(int64_t count, uint64_t unit_ns)
{
    bool fits = count >= 0 && (uint64_t)count < WFI_LONGEST_NS / unit_ns;
    return fits ? (uint64_t)count * unit_ns : WFI_LONGEST_NS;
}

uint64_t wfi_ns_of_ms(int64_t ms)
{
    return ns_of(ms, 1000000);
}

uint64_t wfi_ns_of_us(int64_t us)
{
    return ns_of(us, 1000);
}

uint64_t wfi_deadline_after(uint64_t now_ns, int64_t timeout_ms)
{
    uint64_t ns = wfi_ns_of_ms(timeout_ms), deadline_ns;
    bool never = ns == WFI_LONGEST_NS || __builtin_add_overflow(now_ns, ns, &deadline_ns);
    return never ? WFI_NEVER : deadline_ns;
}

uint64_t wfi_deadline(const wfi_clock *clock, int64_t timeout_ms)
{
    return timeout_ms < 0 ? WFI_NEVER : wfi_deadline_after(wfi_now(clock), timeout_ms);
}
