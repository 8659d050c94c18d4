/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - time as something that is given: the machine's monotonic clock, or a simulation's. */
#ifndef WFI_CLOCK_H
#define WFI_CLOCK_H

#include <stdint.h>

typedef struct wfi_clock {
    uint64_t (*now_ns)(const struct wfi_clock *clock);
} wfi_clock;

extern const wfi_clock wfi_clock_real; /* CLOCK_MONOTONIC */

#define WFI_NEVER UINT64_MAX /* a deadline that does not come */

static inline uint64_t wfi_now(const wfi_clock *clock)
{
    return clock->now_ns(clock);
}

/* now + timeout; WFI_NEVER for negative timeouts and on overflow. */
uint64_t wfi_deadline(const wfi_clock *clock, int64_t timeout_ms);

#endif
