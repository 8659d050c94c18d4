/* SPDX-License-Identifier: Apache-2.0 */
/*
 * no_memory.h - memory that one worker of several in this process is refused, by count. The linker puts these
 * functions in the place of malloc and its like for all of weft and the test (-Wl,--wrap), so the library needs no
 * hooks. In the simulation a worker is the fibers of its group; else it is the thread that said so and all that weft
 * starts from there.
 */
#ifndef TESTS_FAULTS_NO_MEMORY_H
#define TESTS_FAULTS_NO_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

void no_memory_is_worker(int rank); /* this thread, and those that it will start */
/* Of the requests of worker `rank` from now on the nth is refused, and with `again` each nth after it. */
void no_memory_refuse(int rank, uint64_t nth, bool again);
uint64_t no_memory_end(void); /* no more; how many were refused */

#endif
