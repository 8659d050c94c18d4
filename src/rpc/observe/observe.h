/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - the component of the agent for metrics and traces.
 *
 * Both sides of a call, and the layers above rpc, call these functions at each stage. They record calls in histograms
 * (weft/metrics.h) and, if the user has asked for one, in a trace. Most times are those of the round of progress
 * (wfi_net_now). The clock is read when a handler's answer is sent and, for a trace, when a handler begins.
 *
 * Shared by its files: the table of metrics (table.c), the trace (trace.h).
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include "base/histogram.h"
#include "base/text/exposition.h"
#include "rpc/observe/trace.h"

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
    wfi_trace *trace;     /* NULL: no trace was asked for */
    wfi_task flush_task;  /* of a trace without a thread */
    atomic_bool flushing; /* flush_task is queued */
    uint32_t incarnation; /* of this worker */
    uint64_t last_id;     /* of spans and traces */
};

weft_status wfi_metrics_init(wfi_metrics *metrics);
void wfi_metrics_fini(wfi_metrics *metrics);
void wfi_metrics_record(wfi_metrics *metrics, weft_metric_side side, int rank, const char *function, uint64_t ns,
                        weft_status status);
uint64_t wfi_metric_failed(const wfi_metric *metric);

/* ---- Stages of a call (observe.c). [agent lock], except wfi_observe_running ------------------------------------- */

/* A call, as metrics and traces name it. */
typedef struct wfi_observed {
    uint64_t id;
    int rank;             /* of the other worker; this worker's own for a call to itself */
    const wfi_peer *peer; /* of a call to another worker; NULL: a call to this worker itself, or a served call */
    const char *function;
    const weft_error *error; /* NULL: it succeeded */
} wfi_observed;

/* A call of this worker starts. `within`: the span of the served call that it is made for, or NULL. Sets trace, id,
 * parent and left_ns of `span`, which the header carries. */
void wfi_observe_started(weft_agent *agent, wfi_span *span, const wfi_span *within);
void wfi_observe_sent(weft_agent *agent, wfi_span *span);
void wfi_observe_replied(weft_agent *agent, wfi_span *span); /* results may still have to be pulled */
/* The future of a call of this worker completes. */
void wfi_observe_completed(weft_agent *agent, wfi_observed call, const wfi_span *span);

/* The header of a call was read: trace, parent and left_ns (of the caller's clock) are in its span. */
void wfi_observe_arrived(weft_agent *agent, wfi_span *span);
void wfi_observe_running(weft_agent *agent, wfi_span *span); /* by the thread that runs the handler, not locked */
void wfi_observe_answered(weft_agent *agent, wfi_observed call, wfi_span *span);
/* After wfi_observe_answered: the reply was sent, or never will be. */
void wfi_observe_ended(weft_agent *agent, wfi_observed call, wfi_span *span);

/* ---- For components above rpc (observe.c) ------------------------------------------------------------------------ */

/*
 * A span that is not of a call. Before `begin` set its `trace` and `parent` to those of the enclosing served call, or
 * 0. It begins now, and ends with a record that contains a copy of it. Not locked; the lock is taken only if there is a
 * trace.
 */
void wfi_observe_span_begin(weft_agent *agent, wfi_trace_side side, wfi_span *span);
bool wfi_observe_has_trace(const weft_agent *agent); /* does not change while the agent is open. Not locked */
void wfi_observe_span_end(weft_agent *agent, wfi_trace_record *record, const char *name);

/*
 * Begins when this worker has its rank. NULL in the options means off. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO
 * (a file cannot be written), WEFT_ERR_SYSTEM.
 */
extern const wfi_component wfi_observe_component;

#endif
