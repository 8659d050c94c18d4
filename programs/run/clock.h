/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the time since the machine started, in milliseconds. */
#ifndef WEFT_RUN_CLOCK_H
#define WEFT_RUN_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
