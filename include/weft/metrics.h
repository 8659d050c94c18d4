/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/metrics.h - counters and latency histograms of calls, by peer and function; of operations of groups, by group.
 *
 * weft counts every call from the moment the agent opens. A program can read the numbers, write them as Prometheus
 * text, or let the agent write that text to a file (weft_agent_options.metrics_file). docs/metrics.md lists the
 * names, and describes traces: files of spans (weft_agent_options.trace_file). Any thread.
 *
 *     void print_latency(const weft_agent *agent)
 *     {
 *         weft_call_metrics m; // of all calls of this worker, to all peers
 *         if (!weft_metrics_read(agent, WEFT_METRIC_CALLS, -1, NULL, &m))
 *             printf("%llu calls, p99 %llu ns\n", (unsigned long long)m.count, (unsigned long long)m.p99_ns);
 *     }
 *
 * Each attempt of a retried call counts as a call. Latencies are measured to a few microseconds. Minimum, maximum and
 * mean are exact; percentiles are within 1/32 of the value, from 1 ns to an hour. The histograms have the form of
 * HdrHistogram (Gil Tene, hdrhistogram.org): powers of two divided into equal steps. weft keeps at most 4,096 separate
 * rows of (side, peer, function). Further rows are counted together: the text calls them "other", and weft_metrics_read
 * includes them when it reads all peers.
 */
#ifndef WEFT_METRICS_H
#define WEFT_METRICS_H

#include <weft/agent.h>

WEFT_BEGIN_C

/* The calls to read: those that this worker made, or those that it served. */
typedef enum weft_metric_side {
    WEFT_METRIC_CALLS = 0,  /* calls that this worker made: from the start until the future completes */
    WEFT_METRIC_SERVED = 1, /* calls that this worker served: from the arrival of all arguments until the end */
} weft_metric_side;

/* The numbers of calls, and their latencies. */
typedef struct weft_call_metrics {
    uint64_t count;  /* completed calls */
    uint64_t failed; /* completed calls with an error */
    uint64_t min_ns, max_ns, mean_ns;
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns;
} weft_call_metrics;

/*
 * Reads the numbers of the calls of one function to (or from) one rank. With rank -1: all peers together; function
 * NULL: all functions. If there were no such calls, and on failure, *out is zeroed. WEFT_ERR_INVALID (`agent` or `out`
 * is NULL, or no such side), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_metrics_read_sized(const weft_agent *agent, weft_metric_side side, int rank,
                                                            const char *function, weft_call_metrics *out, size_t size);
static inline WEFT_NODISCARD weft_status weft_metrics_read(const weft_agent *agent, weft_metric_side side, int rank,
                                                           const char *function, weft_call_metrics *out)
{
    return weft_metrics_read_sized(agent, side, rank, function, out, sizeof(*out));
}

/*
 * Writes all numbers, weft_stats included, as Prometheus text (format 0.0.4). Each line has the labels rank and worker.
 * In names of functions a backslash is doubled, a newline becomes \n, and other bytes that are not printable ASCII
 * become \xNN. WEFT_ERR_INVALID (`agent` or `to` is NULL), WEFT_ERR_IO (for example if the reader of a pipe is gone; no
 * SIGPIPE is raised), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_metrics_write(const weft_agent *agent, FILE *to);

#define WEFT_TRACE_NAME_MAX 127 /* longest name of a span, in bytes */

/* A span of the program that has begun and not ended. Its fields are weft's. */
typedef struct weft_trace_span {
    weft_agent *agent; /* NULL: not begun, or ended */
    uint64_t begun_ns; /* 0: `agent` writes no trace */
    char name[WEFT_TRACE_NAME_MAX + 1];
} weft_trace_span;

/*
 * Begins a span of the program, which the trace of `agent` shows among those of weft. Spans may nest and overlap. The
 * name is copied. If the agent writes no trace, both functions do almost nothing, and succeed.
 *
 *     weft_status traced_step(weft_agent *agent, weft_status (*step)(void))
 *     {
 *         weft_trace_span span;
 *         weft_trace_begin(agent, "step", &span);
 *         weft_status status = step();
 *         weft_trace_end(&span);
 *         return status;
 *     }
 *
 * After a failure weft_trace_end rejects *span. Any thread. WEFT_ERR_INVALID: an argument is NULL, or the name is empty
 * or longer than WEFT_TRACE_NAME_MAX bytes.
 */
WEFT_API weft_status weft_trace_begin(weft_agent *agent, const char *name, weft_trace_span *span);
/*
 * Ends a span, on any thread, before its agent is closed. The trace receives the span here. A span that never ends
 * is not shown. Like the spans of calls, a span may be lost (docs/metrics.md). WEFT_ERR_INVALID: `span` is
 * NULL, was ended before, or its beginning failed.
 */
WEFT_API weft_status weft_trace_end(weft_trace_span *span);

WEFT_END_C
#endif
