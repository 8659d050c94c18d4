/* SPDX-License-Identifier: Apache-2.0 */
/* patience.h - waiting for what has to come: if it does not, an assertion says where, before CTest's time limit ends the test. */
#ifndef WEFT_TESTS_FUTURE_PATIENCE_H
#define WEFT_TESTS_FUTURE_PATIENCE_H

#include "base/clock.h"

#include <sched.h>

#define PATIENCE_MS 25000 /* so long that no busy machine needs it */

/* Needs cmocka.h. */
#define assert_comes(condition)                                                                                        \
    do {                                                                                                               \
        uint64_t patience_ends = wfi_deadline(&wfi_clock_real, PATIENCE_MS);                                           \
        while (!(condition)) {                                                                                         \
            assert_true(wfi_now(&wfi_clock_real) < patience_ends);                                                     \
            sched_yield();                                                                                             \
        }                                                                                                              \
    } while (0)

#endif
