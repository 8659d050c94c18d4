/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - observation as a component of the agent: what happens to calls (rpc/agent/hooks.h) goes to histograms
 * (weft/metrics.h) and, if the user asked for one, to a trace. Most times are those of the round of progress
 * (wfi_net_now); the clock is read when a handler's answer leaves and, for a trace, when a handler begins.
 *
 * What its files share: the table of metrics (table.c), the trace (trace.h), the server (server.c).
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include "base/histogram.h"
#include "base/text/exposition.h"
#include "rpc/observe/trace.h"
#include "rpc/server/server.h"

#define WFI_METRICS_MAX 4096 /* kept apart; what comes later counts for "other" */

/* How calls end, as far as counters tell it. */
typedef enum wfi_outcome {
    WFI_OUTCOME_OK,
    WFI_OUTCOME_REMOTE, /* the handler failed */
    WFI_OUTCOME_TIMEOUT,
    WFI_OUTCOME_CANCELLED,
    WFI_OUTCOME_REFUSED, /* no such function, other types, no room */
    WFI_OUTCOME_PEER,    /* the peer is gone or cannot be reached */
    WFI_OUTCOME_ERROR,   /* anything else */
    WFI_OUTCOMES,
} wfi_outcome;

/* Calls of one side, with one peer, of one function. Lives as long as the observer. */
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
    wfi_metric *recent[2][WFI_METRICS_RECENT]; /* by side and rank: most calls are to the same function as the last */
} wfi_metrics;

struct wfi_call_observer {
    weft_agent *agent;
    wfi_metrics metrics;
    wfi_trace *trace;                    /* NULL: none was asked for */
    wfi_task flush_task;                 /* of a trace that has no thread */
    atomic_bool flushing;                /* it is queued */
    uint32_t incarnation;                /* ours */
    uint64_t last_id;                    /* of spans and traces */
    struct wfi_listener *_Atomic server; /* NULL: none was asked for, or its port was taken */
};

weft_status wfi_dump(weft_agent *agent, FILE *to); /* weft_debug_dump, of an agent that was entered */

weft_status wfi_metrics_init(wfi_metrics *metrics);
void wfi_metrics_fini(wfi_metrics *metrics);
void wfi_metrics_record(wfi_metrics *metrics, weft_metric_side side, int rank, const char *function, uint64_t ns,
                        weft_status status);
uint64_t wfi_metric_failed(const wfi_metric *metric);

/* ---- Of components above rpc (observe.c) ------------------------------------------------------------------------- */

/*
 * A span of what is no call. Before its beginning `trace` and `parent` are those of the served call that it is within, or 0. It begins
 * now, and ends with a record that has a copy of it. Not locked; the lock is taken only where there is a trace.
 */
void wfi_observe_begin(weft_agent *agent, wfi_trace_side side, wfi_span *span);
void wfi_observe_end(weft_agent *agent, wfi_trace_record *record, const char *what);

/* ---- The server (observe/server.c) ------------------------------------------------------------------------------- */

typedef struct wfi_listener wfi_listener;
weft_status wfi_listener_open(int port, wfi_listener **out, weft_error **error); /* port -1: any */
weft_status wfi_listener_begin(wfi_listener *listener, weft_agent *agent);       /* starts its thread */
void wfi_listener_close(wfi_listener *listener);                                 /* ends it; NULL is a no-op */
int wfi_listener_port(const wfi_listener *listener);

/*
 * Opens before net, so that a port in use or a file that cannot be written keeps the agent from joining; begins when
 * this worker has its rank. NULL or 0 in the options mean off. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO (trace
 * file), WEFT_ERR_EXISTS (port taken), WEFT_ERR_SYSTEM.
 */
extern const wfi_component wfi_observe_component;

#endif
