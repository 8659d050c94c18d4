/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scarce.h - memory that one worker of several in this process is refused, by count. The linker puts these functions in the
 * place of malloc and its like for all of weft and the test (-Wl,--wrap), so the library needs no hooks. In the simulation a
 * worker is the fibers of its group; else it is the thread that said so and all that weft starts from there.
 */
#ifndef TESTS_SCARCE_H
#define TESTS_SCARCE_H

#include <stdbool.h>
#include <stdint.h>

void scarce_is_worker(int rank); /* this thread, and those that it will start */
/* Of the requests of worker `rank` from now on the nth is refused, and with `again` each nth after it. */
void scarce_refuse(int rank, uint64_t nth, bool again);
uint64_t scarce_end(void); /* no more; how many were refused */

#endif
