/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the time since the machine started, in milliseconds. */
#ifndef WEFT_RUN_CLOCK_H
#define WEFT_RUN_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Milliseconds until then, for poll; 0: it is past. */
static inline int clock_left(int64_t until_ms)
{
    int64_t left_ms = until_ms - clock_ms();
    return left_ms < 0 ? 0 : left_ms < INT_MAX ? (int)left_ms : INT_MAX;
}

#endif
