/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/metrics.h - how calls have fared: counters and latency histograms by peer and function.
 *
 * Kept for every call since the agent opened. Histograms have HdrHistogram's form (Gil Tene, hdrhistogram.org): powers of two
 * cut in equal steps, so that every value from 1 ns to an hour is kept within 1/32 of itself; min, max and mean are exact.
 * Latencies are measured to a few microseconds. At most 4,096 rows of (side, peer, function) are kept apart; what comes later
 * is counted together, as "other" in the text and in what is read of all peers. Of a call that is tried again each attempt
 * counts.
 * Any thread.
 *
 * TRACES (weft_agent_options.trace_file) are JSON trace events, one file a worker, for Perfetto: per call a span with the
 * sending and the taking in of results (a call to oneself has neither); per served call one with arguments, queue, handler
 * and reply, joined to its caller's by a flow and to what was called `within` it by ids. Times are CLOCK_MONOTONIC: files of
 * one host fit together as they are, tools/trace-merge joins them with those of others. A file is good up to its last line if
 * the process dies. Calls are never held up for it: a span is lost if 131,072 wait to be written (about 40 MB), or if 16,384
 * calls of its side are under way. Then a line of the log says how many, at most one in ten seconds; and so do
 * weft_trace_dropped_total and the file's last event.
 */
#ifndef WEFT_METRICS_H
#define WEFT_METRICS_H

#include <weft/agent.h>

WEFT_BEGIN_C

typedef enum weft_metric_side {
    WEFT_METRIC_CALLS = 0,  /* calls of ours: from start to completion of the future */
    WEFT_METRIC_SERVED = 1, /* calls served here: from the whole arguments to the finish */
} weft_metric_side;

typedef struct weft_call_metrics {
    uint64_t count;  /* completed */
    uint64_t failed; /* of them, with an error */
    uint64_t min_ns, max_ns, mean_ns;
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns;
} weft_call_metrics;

/*
 * rank -1: all peers together; function NULL: all functions. Zeroed if there were none, and on failure.
 * WEFT_ERR_INVALID (agent or out is NULL, no such side), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_metrics_read(const weft_agent *agent, weft_metric_side side, int rank,
                                                      const char *function, weft_call_metrics *out);

/*
 * Everything, and weft_stats, as Prometheus text exposition, format 0.0.4. Each line has the labels rank and worker. In names
 * of functions a backslash is shown as two, bytes outside printable ASCII as \xNN. WEFT_ERR_INVALID (agent or to is NULL),
 * WEFT_ERR_IO, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_metrics_write(const weft_agent *agent, FILE *to);

/*
 * Where it is served: http://127.0.0.1:PORT/metrics, and weft_debug_dump at /debug. 0: nowhere, or agent is NULL. To whoever
 * is on this host: there is no proof of who asks.
 */
WEFT_API int weft_metrics_port(const weft_agent *agent);

WEFT_END_C
#endif
