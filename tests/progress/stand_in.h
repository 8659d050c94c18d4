/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stand_in.h - sources of progress that a test steers, and a wfi_progress that polls them.
 *
 * A stand-in has events and completions that the test gives it. It may lack either descriptor. It counts how often it
 * was called.
 */
#ifndef TESTS_PROGRESS_STAND_IN_H
#define TESTS_PROGRESS_STAND_IN_H

#include "progress/progress.h"

typedef struct stand_in {
    wfi_source source;
    int events_fd, wait_fd;         /* eventfds; -1: it has none */
    atomic_int events, completions; /* given, and not taken yet */
    atomic_int events_taken, completions_taken;
    atomic_int reads, polls, arms; /* calls of `events`, `poll` and events_arm */
    int polled;                    /* [token] by `poll`, for `take` */
    atomic_int expects;            /* a wfi_expects; at first WFI_EXPECTS_MESSAGES */
    uint64_t due_after_ns;         /* events_arm wants `events` called after this time; 0: never */
} stand_in;

#define STAND_INS 5

typedef struct stand {
    wfi_progress progress;
    wfi_executor *executor;
    stand_in sources[STAND_INS];
} stand;

void stand_open(stand *s, int sources, bool no_threads); /* the sources have all descriptors; not started */
void stand_start(stand *s);
void stand_close(stand *s);
void stand_lacks_wait_fd(stand_in *source);
void stand_lacks_events_fd(stand_in *source);
void stand_event(stand_in *source);             /* gives it an event, of which its descriptor tells if it has one */
void stand_completion(stand_in *source);        /* likewise */
void stand_await(atomic_int *count, int least); /* fails the test after 20 s */

#endif
