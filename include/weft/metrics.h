/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/metrics.h - how calls have fared: counters and latency histograms by peer and function, and traces.
 *
 * Histograms have HdrHistogram's form (Gil Tene, hdrhistogram.org): buckets of powers of two cut in equal steps, so that
 * every value from 1 ns to an hour is kept within 1/32 of itself. Any thread.
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

/* rank -1: all peers together; function NULL: all functions. Zeroed if there were none. */
WEFT_API void weft_metrics_read(const weft_agent *agent, weft_metric_side side, int rank, const char *function,
                                weft_call_metrics *out);

/* Everything as Prometheus text exposition, format 0.0.4. WEFT_ERR_IO, WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_metrics_write(const weft_agent *agent, FILE *to);

/* Where it is served (weft_agent_options.metrics_port); 0: nowhere. */
WEFT_API int weft_metrics_port(const weft_agent *agent);

WEFT_END_C
#endif
