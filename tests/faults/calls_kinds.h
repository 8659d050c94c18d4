/* SPDX-License-Identifier: Apache-2.0 */
/* calls_kinds.h - a trip: one call of this worker's that is under way, with what was sent and where results are to
 * land. */
#ifndef TESTS_FAULTS_CALLS_KINDS_H
#define TESTS_FAULTS_CALLS_KINDS_H

#include "faults/calls.h"

#define TRIP_TENSORS 4
#define TRIPS_MAX 256

typedef struct trip {
    int64_t id;
    calls_kind kind;
    calls_plan plan;
    int64_t limit_ms, attempt_ms;
    uint64_t began_ms;
    int64_t more;   /* what its result depends on, beside the id */
    int64_t parts;  /* that came */
    bool cancelled; /* under the lock of the list of trips */
    bool over;
    calls_room *sent[TRIP_TENSORS], *land[TRIP_TENSORS];
    weft_tensor *land_tensors[TRIP_TENSORS];
    int sent_count, land_count;
    weft_future *future;
    weft_rref *rref; /* what it is called on */
} trip;

/* NULL: the book is full. */
trip *trip_begin(calls_kind kind, const calls_plan *plan, int count);
/* The next argument, filled; release it once the call has started. */
weft_tensor *trip_send(trip *t, size_t count);
void trip_start(trip *t, weft_args arguments, weft_item_fn on_item);
/* It was started otherwise: `future` is that of its end, and moves in. */
void trip_watch(trip *t, weft_future *future);
/* It has ended: checks everything, notes it in the book, and ends what was lent to it. */
void trip_over(trip *t, weft_status status, weft_status inner, const weft_values *values);
void trip_free(trip *t);
void check_bytes(trip *t, const weft_values *values);
void check_several(trip *t, const weft_values *values);

#endif
