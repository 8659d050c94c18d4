/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - clocks: the machine's monotonic clock, or a simulation's. */
#ifndef WFI_CLOCK_H
#define WFI_CLOCK_H

#include <stdint.h>

typedef struct wfi_clock {
    uint64_t (*now_ns)(const struct wfi_clock *clock);
} wfi_clock;

extern const wfi_clock wfi_clock_real; /* CLOCK_MONOTONIC */

#define WFI_NEVER UINT64_MAX /* no deadline */

static inline uint64_t wfi_now(const wfi_clock *clock)
{
    return clock->now_ns(clock);
}

/*
 * LIMITS come from users and from the wire and may be as large as INT64_MAX. The functions below make every conversion
 * of a limit to nanoseconds. A duration is at most WFI_LONGEST_NS, 36 years, so that a clock and several durations add
 * up without overflow.
 */
#define WFI_LONGEST_NS (UINT64_C(1) << 60)

/* A duration in nanoseconds. Negative durations, which mean "no limit", and too long ones become WFI_LONGEST_NS. */
uint64_t wfi_ns_of_ms(int64_t ms);
uint64_t wfi_ns_of_us(int64_t us);

/* now_ns + timeout_ms. Returns WFI_NEVER if timeout_ms is negative or at least WFI_LONGEST_NS long. */
uint64_t wfi_deadline_after(uint64_t now_ns, int64_t timeout_ms);
uint64_t wfi_deadline(const wfi_clock *clock, int64_t timeout_ms);

#endif
