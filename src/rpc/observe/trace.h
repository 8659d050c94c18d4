/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - spans of calls and passes, written as trace events (the JSON array form that Chrome's and Perfetto's viewers read).
 *
 * One file a worker. Times are the agent's clock, CLOCK_MONOTONIC, which all processes of a host share; the first event
 * carries an anchor (the same moment by CLOCK_REALTIME), by which tools/trace-merge aligns files of several hosts.
 * Calls overlap, and the slices of one track of the picture may not. So each call takes a track that is free from the
 * call's beginning on. A call and the serving of it are joined by a flow whose id is the caller's span. What is within what is told by
 * ids: the calls of a pass are within this worker's part of it, and that, but for the root's, within the call by which this worker joined.
 *
 * THREADS. Any thread may call wfi_trace_add. It copies the record, under a lock of the trace's own; if the buffer is
 * full the record is dropped, and the log says how many were. The trace has a thread that writes. Without one
 * (`threaded` is false): when wfi_trace_add returns true, call wfi_trace_flush. wfi_trace_take_track and
 * wfi_trace_free_track are called with the agent's lock held.
 */
#ifndef WFI_TRACE_H
#define WFI_TRACE_H

#include "base/clock.h"
#include "rpc/agent/agent.h"
#include "value/wire.h"

#include <weft/metrics.h>

typedef struct wfi_trace wfi_trace;

/* Whose tracks. */
typedef enum wfi_trace_side {
    WFI_TRACE_CALLS = WEFT_METRIC_CALLS,
    WFI_TRACE_SERVED = WEFT_METRIC_SERVED,
    WFI_TRACE_PASSES, /* this worker's parts in backward passes */
    WFI_TRACE_GROUPS, /* operations of groups */
    WFI_TRACE_SIDES,
} wfi_trace_side;

typedef struct wfi_trace_record {
    wfi_trace_side side;
    int peer;         /* of a pass: its root's rank */
    uint64_t call_id; /* of a pass, or an operation: its number */
    uint64_t context; /* of a pass: its context's number, and who opened that; of an operation: its bytes */
    int opener;
    wfi_span span;
    uint64_t end_ns;
    weft_status status, remote_status;
    char function[WFI_FUNCTION_NAME_MAX + 1]; /* of an operation: its group's name, after a colon */
} wfi_trace_record;

typedef struct wfi_trace_who {
    int rank, world_size;
    const char *name, *interface; /* borrowed for the call */
} wfi_trace_who;

/* The anchor is taken here. WEFT_ERR_MEMORY. */
weft_status wfi_trace_create(const wfi_clock *clock, bool threaded, wfi_trace **out);
/* Opens the file (`path` with "%r" for the rank, which is added if it is not there and there are others) and starts the
 * thread. WEFT_ERR_IO, WEFT_ERR_SYSTEM, WEFT_ERR_INVALID. */
weft_status wfi_trace_begin(wfi_trace *trace, const char *path, const wfi_trace_who *who, weft_error **error);
void wfi_trace_destroy(wfi_trace *trace); /* writes what is left, and the end. NULL is a no-op */

bool wfi_trace_add(wfi_trace *trace, const wfi_trace_record *record); /* true: it is time for wfi_trace_flush */
void wfi_trace_flush(wfi_trace *trace);
uint64_t wfi_trace_dropped(wfi_trace *trace);
int64_t wfi_trace_anchor_ns(const wfi_trace *trace); /* CLOCK_REALTIME less the agent's clock */

/* A track for a span that began then: 1 and up; 0: too many at once. And back. */
uint32_t wfi_trace_take_track(wfi_trace *trace, wfi_trace_side side, uint64_t begun_ns);
void wfi_trace_free_track(wfi_trace *trace, wfi_trace_side side, uint32_t track, uint64_t end_ns);

#endif
