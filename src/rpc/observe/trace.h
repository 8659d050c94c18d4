/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - spans of calls, passes and the program, written as trace events (the JSON array format of Chrome's and
 * Perfetto's viewers).
 *
 * Each worker writes one file. Times are of the agent's clock, CLOCK_MONOTONIC, which all processes of a host share.
 * The first event has an anchor (the same moment by CLOCK_REALTIME), with which weft-trace aligns the files of
 * several hosts. Calls overlap, but the slices of a track must not. So each call takes a track that is free when the
 * call begins. A flow, whose id is the caller's span, joins a call and its serving. Ids tell which span is within
 * which: the calls of a pass are within this worker's part of it. That part, except the root's, is within the call by
 * which this worker joined.
 *
 * THREADS. Any thread may call wfi_trace_add. It copies the record, under the trace's own lock. If the buffer is full
 * the record is dropped, and the log tells how many were. The trace has a thread that writes. Without one (`threaded`
 * is false) call wfi_trace_flush when wfi_trace_add returns true. wfi_trace_take_track and wfi_trace_free_track are
 * called with the agent's lock held.
 */
#ifndef WFI_TRACE_H
#define WFI_TRACE_H

#include "base/clock.h"
#include "rpc/agent/agent.h"
#include "value/wire.h"

#include <weft/metrics.h>

typedef struct wfi_trace wfi_trace;

/* The kinds of tracks. */
typedef enum wfi_trace_side {
    WFI_TRACE_CALLS = WEFT_METRIC_CALLS,
    WFI_TRACE_SERVED = WEFT_METRIC_SERVED,
    WFI_TRACE_PASSES,  /* this worker's parts in backward passes */
    WFI_TRACE_GROUPS,  /* operations of groups */
    WFI_TRACE_PROGRAM, /* spans of the program: weft_trace_begin */
    WFI_TRACE_SIDES,
} wfi_trace_side;

/* The times of a call's (or of a backward pass's) stages, and its place in a trace. Times are of the agent's clock; 0:
 * not yet. "Sent" is a call of this worker. */
typedef struct wfi_span {
    uint64_t trace, id, parent; /* 0: not traced. A call without a parent begins a trace */
    uint64_t begun_ns;          /* sent: started; served: first message arrived; pass: this worker's part began */
    uint64_t ready_ns;          /* sent: message passed to net; served: all arguments arrived */
    uint64_t run_ns;            /* sent: the reply came; served: the handler began; pass: its step began */
    uint64_t done_ns;           /* served: finished; pass: its step ended */
    uint64_t left_ns;           /* when the caller sent it. Sent: in the hosts' common time; served: by this clock */
    uint32_t track;             /* its track in the displayed trace; 0: none */
} wfi_span;

typedef struct wfi_trace_record {
    wfi_trace_side side;
    int peer;         /* of a pass: its root's rank */
    uint64_t call_id; /* of a pass, or an operation: its number */
    uint64_t context; /* of a pass: the number of its context, and the opener's rank; of an operation: its bytes */
    int opener;
    wfi_span span;
    uint64_t end_ns;
    weft_status status, remote_status;
    const char *fabrics[WFI_LANE_KINDS]; /* of a call to another worker: those of the lanes at its end; NULL: no lane */
    char function[WFI_FUNCTION_NAME_MAX + 1]; /* of an operation: its group's name, after a colon */
} wfi_trace_record;

typedef struct wfi_trace_who {
    int rank, world_size;
    const char *name, *interface; /* borrowed for the call */
} wfi_trace_who;

/* Also reads the anchor. WEFT_ERR_MEMORY. */
weft_status wfi_trace_create(const wfi_clock *clock, bool threaded, wfi_trace **out);
/* Opens the file and starts the thread. In `path` "%r" is replaced by the rank; the rank is added if "%r" is missing
 * and there are other workers. WEFT_ERR_IO, WEFT_ERR_SYSTEM, WEFT_ERR_INVALID. */
weft_status wfi_trace_begin(wfi_trace *trace, const char *path, const wfi_trace_who *who, weft_error **error);
/* The path of a file for one worker, as above. False: it does not fit `room`. */
bool wfi_trace_expand(const char *path, const wfi_trace_who *who, char *out, size_t room);
void wfi_trace_destroy(wfi_trace *trace); /* writes the remaining records, and the end. NULL is a no-op */

bool wfi_trace_add(wfi_trace *trace, const wfi_trace_record *record); /* true: wfi_trace_flush should be called */
void wfi_trace_flush(wfi_trace *trace);
uint64_t wfi_trace_dropped(wfi_trace *trace);
int64_t wfi_trace_realtime_offset_ns(const wfi_trace *trace); /* CLOCK_REALTIME minus the agent's clock */

/* A track for a span that began at begun_ns: 1 and up; 0: all are in use. wfi_trace_free_track returns it. */
uint32_t wfi_trace_take_track(wfi_trace *trace, wfi_trace_side side, uint64_t begun_ns);
void wfi_trace_free_track(wfi_trace *trace, wfi_trace_side side, uint32_t track, uint64_t end_ns);

#endif
