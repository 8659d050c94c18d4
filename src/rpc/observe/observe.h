/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - the component of the agent for metrics and traces.
 *
 * Its hooks (rpc/agent/hooks.h) record calls in histograms (weft/metrics.h) and, if the user has asked for one, in a
 * trace. Most times are those of the round of progress (wfi_net_now). The clock is read when a handler's answer is sent
 * and, for a trace, when a handler begins.
 *
 * Shared by its files: the table of metrics (table.c), the trace (trace.h), the files of metrics (files.c).
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include "base/histogram.h"
#include "base/text/exposition.h"
#include "rpc/observe/trace.h"
#include "rpc/server/server.h"

#define WFI_METRICS_MAX 4096 /* most separate metrics; further ones are counted as "other" */

/* How calls end, for the counters. */
typedef enum wfi_outcome {
    WFI_OUTCOME_OK,
    WFI_OUTCOME_REMOTE, /* the handler failed */
    WFI_OUTCOME_TIMEOUT,
    WFI_OUTCOME_CANCELLED,
    WFI_OUTCOME_REFUSED, /* no such function, wrong types, no room */
    WFI_OUTCOME_PEER,    /* the peer is gone or cannot be reached */
    WFI_OUTCOME_ERROR,   /* anything else */
    WFI_OUTCOMES,
} wfi_outcome;

/* The metrics of one side's calls of one function, with one peer. Exists as long as the observer. */
typedef struct wfi_metric {
    struct wfi_metric *next; /* others with the same hash */
    int rank;                /* -1: "other" */
    weft_metric_side side;
    uint64_t outcomes[WFI_OUTCOMES];
    wfi_histogram latency;
    char function[];
} wfi_metric;

#define WFI_METRICS_RECENT 8

/* All [agent lock]. */
typedef struct wfi_metrics {
    wfi_map by_hash;
    wfi_metric **all;
    size_t count, capacity;
    wfi_metric *others[2];                     /* by side */
    wfi_metric *recent[2][WFI_METRICS_RECENT]; /* a cache by side and rank: most calls are of the last function */
} wfi_metrics;

struct wfi_call_observer {
    weft_agent *agent;
    wfi_metrics metrics;
    wfi_trace *trace;                /* NULL: no trace was asked for */
    wfi_task flush_task;             /* of a trace without a thread */
    atomic_bool flushing;            /* flush_task is queued */
    uint32_t incarnation;            /* of this worker */
    uint64_t last_id;                /* of spans and traces */
    struct wfi_metrics_files *files; /* NULL: none were asked for */
};

weft_status wfi_dump(weft_agent *agent, FILE *to); /* weft_debug_dump for an entered agent */

weft_status wfi_metrics_init(wfi_metrics *metrics);
void wfi_metrics_fini(wfi_metrics *metrics);
void wfi_metrics_record(wfi_metrics *metrics, weft_metric_side side, int rank, const char *function, uint64_t ns,
                        weft_status status);
uint64_t wfi_metric_failed(const wfi_metric *metric);

/* ---- For components above rpc (observe.c) ------------------------------------------------------------------------ */

/*
 * A span that is not of a call. Before `begin` set its `trace` and `parent` to those of the enclosing served call, or
 * 0. It begins now, and ends with a record that contains a copy of it. Not locked; the lock is taken only if there is a
 * trace.
 */
void wfi_observe_begin(weft_agent *agent, wfi_trace_side side, wfi_span *span);
void wfi_observe_end(weft_agent *agent, wfi_trace_record *record, const char *what);

/* ---- Files of metrics (files.c) ---------------------------------------------------------------------------------- */

typedef struct wfi_metrics_files wfi_metrics_files;
/* Writes both files once, and starts the thread. WEFT_ERR_IO, WEFT_ERR_INVALID, WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY. */
weft_status wfi_metrics_files_open(weft_agent *agent, const wfi_trace_who *who, wfi_metrics_files **out,
                                   weft_error **error);
void wfi_metrics_files_close(wfi_metrics_files *files); /* ends the thread, removes the files; NULL is a no-op */

/*
 * Begins when this worker has its rank. NULL in the options means off. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO
 * (a file cannot be written), WEFT_ERR_SYSTEM.
 */
extern const wfi_component wfi_observe_component;

#endif
