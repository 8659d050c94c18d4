/* SPDX-License-Identifier: Apache-2.0 */
/* patience.h - waiting for what has to come: if it does not, an assertion says where, before CTest's time limit ends
 * the test. */
#ifndef WEFT_TESTS_FUTURE_PATIENCE_H
#define WEFT_TESTS_FUTURE_PATIENCE_H

#include "base/clock.h"
#include "future/future.h"

#include <sched.h>
#include <stdatomic.h>

#define PATIENCE_MS 25000 /* so long that no busy machine needs it */

static _Atomic(int) patience_ms = PATIENCE_MS;

/* Who waited in vain once does not wait long again: else the tests that follow would run into CTest's time limit. */
static inline void lose_patience(void)
{
    atomic_store(&patience_ms, 1000);
}

static inline weft_status await_future(weft_future *future)
{
    weft_status status = weft_future_wait(future, atomic_load(&patience_ms));
    if (status == WEFT_ERR_TIMEOUT)
        lose_patience();
    return status;
}

/* Needs cmocka. */
#define assert_comes(condition)                                                                                        \
    do {                                                                                                               \
        uint64_t patience_ends = wfi_deadline(&wfi_clock_real, atomic_load(&patience_ms));                             \
        while (!(condition)) {                                                                                         \
            if (wfi_now(&wfi_clock_real) >= patience_ends) {                                                           \
                lose_patience();                                                                                       \
                fail_msg("did not come: %s", #condition);                                                              \
            }                                                                                                          \
            sched_yield();                                                                                             \
        }                                                                                                              \
    } while (0)

#endif
