/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - the functions of weft/metrics.h: one row of the table, sums of rows, everything as Prometheus text.
 *
 * Rows are copied one at a time under the agent's lock and processed without it, so that a scrape of thousands of rows
 * does not delay calls. So each row is consistent, but different rows are of different moments.
 */
#include "base/nosignal.h"
#include "base/text/sized.h"
#include "rpc/observe/observe.h"
#include "tensor/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Copies the list of rows, which exist until the agent closes. The two rows of "other" are last. */
static weft_status list_rows(const weft_agent *agent, wfi_metric ***out, size_t *count)
{
    wfi_metrics *metrics = &agent->observer->metrics;
    wfi_metric **rows = NULL;
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_net_lock(agent->net);
    *count = metrics->count + 2;
    rows = malloc(*count * sizeof(*rows));
    if (rows) {
        if (metrics->count)
            memcpy(rows, metrics->all, metrics->count * sizeof(*rows));
        memcpy(rows + metrics->count, metrics->others, sizeof(metrics->others));
    }
    wfi_net_unlock(agent->net);
    *out = rows;
    return rows ? WEFT_OK : WEFT_ERR_MEMORY;
}

/* The copy has no function name; the caller must free its histogram. */
static weft_status copy_metric(const weft_agent *agent, const wfi_metric *row, wfi_metric *copy)
{
    *copy = (wfi_metric){.rank = row->rank, .side = row->side};
    wfi_net_lock(agent->net);
    memcpy(copy->outcomes, row->outcomes, sizeof(copy->outcomes));
    weft_status status = wfi_histogram_merge(&copy->latency, &row->latency);
    wfi_net_unlock(agent->net);
    return status;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static weft_status add_row(const weft_agent *agent, const wfi_metric *row, wfi_histogram *sum, uint64_t *failed)
{
    wfi_metric copy;
    weft_status status = copy_metric(agent, row, &copy);
    if (!status)
        status = wfi_histogram_merge(sum, &copy.latency);
    if (!status)
        *failed += wfi_metric_failed(&copy);
    wfi_histogram_fini(&copy.latency);
    return status;
}

static bool is_wanted(const wfi_metric *row, weft_metric_side side, int rank, const char *function)
{
    return row->side == side && (rank < 0 || row->rank == rank) && (!function || strcmp(row->function, function) == 0);
}

weft_status weft_metrics_read_sized(const weft_agent *agent, weft_metric_side side, int rank, const char *function,
                                    weft_call_metrics *out, size_t size)
{
    WFI_CHECK_HANDLE(agent);
    wfi_metric **rows = NULL;
    wfi_histogram sum;
    uint64_t failed = 0;
    size_t count = 0;
    if (!out)
        return wfi_refuse_null("weft_metrics_read", "out");
    memset(out, 0, size);
    if (!agent)
        return wfi_refuse_null("weft_metrics_read", "the agent");
    if (side != WEFT_METRIC_CALLS && side != WEFT_METRIC_SERVED)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_metrics_read: side is %d: WEFT_METRIC_CALLS or WEFT_METRIC_SERVED",
                          (int)side);
    wfi_histogram_init(&sum);
    weft_status status = list_rows(agent, &rows, &count);
    for (size_t i = 0; i < count && !status; i++)
        if (is_wanted(rows[i], side, rank, function))
            status = add_row(agent, rows[i], &sum, &failed);
    if (!status && sum.count) {
        weft_call_metrics m = {.count = sum.count,
                               .failed = failed,
                               .min_ns = sum.min,
                               .max_ns = sum.max,
                               .mean_ns = wfi_histogram_mean(&sum),
                               .p50_ns = wfi_histogram_quantile(&sum, 0.5),
                               .p90_ns = wfi_histogram_quantile(&sum, 0.9),
                               .p99_ns = wfi_histogram_quantile(&sum, 0.99),
                               .p999_ns = wfi_histogram_quantile(&sum, 0.999)};
        wfi_sized_give(out, size, &m, sizeof(m));
    }
    wfi_histogram_fini(&sum);
    free(rows);
    return status;
}

/* ---- Prometheus text --------------------------------------------------------------------------------------------- */

static const char *const outcome_names[WFI_OUTCOMES] = {"ok",      "remote", "timeout", "cancelled",
                                                        "refused", "peer",   "error"};

typedef struct text {
    FILE *to;
    const weft_agent *agent;
    char who[192]; /* rank and worker, the labels of every line */
    wfi_metric **rows;
    size_t count;
} text;

/* Writes the opening brace and the labels for all lines of a row. */
static void write_labels(const text *t, const wfi_metric *row, const char *function, char out[WFI_LABELS_MAX])
{
    const char *side = row->side == WEFT_METRIC_CALLS ? "caller" : "callee";
    char peer[16] = "other";
    if (row->rank >= 0)
        snprintf(peer, sizeof(peer), "%d", row->rank);
    int at = snprintf(out, WFI_LABELS_MAX, "{%s,side=\"%s\",peer=\"%s\",function=\"", t->who, side, peer);
    size_t length = (size_t)at + wfi_exposition_escape(function, out + at, WFI_LABELS_MAX - 2 - (size_t)at);
    memcpy(out + length, "\"", 2);
}

static void write_calls(FILE *to, const wfi_metric *row, const char *labels)
{
    for (int outcome = 0; outcome < WFI_OUTCOMES; outcome++)
        if (row->outcomes[outcome] || outcome == WFI_OUTCOME_OK)
            fprintf(to, "weft_calls_total%s,outcome=\"%s\"} %" PRIu64 "\n", labels, outcome_names[outcome],
                    row->outcomes[outcome]);
}

static void write_latency(FILE *to, const wfi_metric *row, const char *labels)
{
    wfi_exposition_seconds(to, "weft_call_seconds", &row->latency, labels);
}

/* The format requires that all lines of a family are together. */
static weft_status write_family(const text *t, void (*write)(FILE *, const wfi_metric *, const char *))
{
    char labels[WFI_LABELS_MAX];
    for (size_t i = 0; i < t->count; i++) {
        wfi_metric copy;
        weft_status status = copy_metric(t->agent, t->rows[i], &copy);
        if (!status && copy.latency.count) {
            write_labels(t, &copy, t->rows[i]->function, labels);
            write(t->to, &copy, labels);
        }
        wfi_histogram_fini(&copy.latency);
        if (status)
            return status;
    }
    return WEFT_OK;
}

static void write_one(const text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    fprintf(t->to, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %" PRIu64 "\n", name, help, name, type, name, t->who, value);
}

static void write_stats(const text *t)
{
    weft_stats s;
    weft_agent_stats(t->agent, &s);
    const struct {
        const char *name, *help;
        uint64_t value;
    } counters[] = {
        {"weft_calls_started_total", "Calls that this worker started.", s.calls_started},
        {"weft_calls_finished_total", "Of those, completed, well or not.", s.calls_finished},
        {"weft_calls_failed_total", "Of those, with an error.", s.calls_failed},
        {"weft_calls_served_total", "Calls whose handler ran here and is finished.", s.calls_served},
        {"weft_calls_cancelled_total", "Served here, whose callers gave up before the answer.", s.calls_cancelled},
        {"weft_calls_refused_total",
         "Calls of others refused: memory budget, full queue of a batch, or all handler threads waiting.",
         s.calls_refused},
        {"weft_calls_retried_total", "Attempts of this worker's calls after the first.", s.calls_retried},
        {"weft_sent_bytes_total", "Payload of tensors and values that left.", s.bytes_sent},
        {"weft_received_bytes_total", "Payload of tensors and values that came.", s.bytes_received},
        {"weft_copied_bytes_total", "Payload over the inline limit that weft copied.", s.bytes_copied},
        {"weft_packed_bytes_total", "Of non-contiguous tensors, packed before sending.", s.bytes_packed},
        {"weft_frames_sent_total", "Frames that left on control channels.", s.frames_sent},
        {"weft_frames_received_total", "Frames that came on control channels.", s.frames_received},
        {"weft_connections_lost_total", "Connections that broke and were opened again.", s.connections_lost},
        {"weft_unauthenticated_refused_total", "Connections or messages refused as unauthenticated or malformed.",
         s.unauthenticated_refused},
        {"weft_rendezvous_messages_total", "Rank 0: messages that its store took and sent, heartbeats aside.",
         s.rendezvous_messages},
    };
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++)
        write_one(t, counters[i].name, "counter", counters[i].help, counters[i].value);
    write_one(t, "weft_held_bytes", "gauge", "What counts against the memory budget now.", s.bytes_held);
    write_one(t, "weft_memory_budget_bytes", "gauge", "The memory budget: chosen, or this worker's share.",
              t->agent->options.values.memory_budget_bytes);
    write_one(t, "weft_compute_threads", "gauge", "Threads that an operator may use: chosen, or this worker's share.",
              (uint64_t)wfi_cpu_threads());
    if (t->agent->observer->trace)
        write_one(t, "weft_trace_dropped_total", "counter", "Spans that found the trace's buffer full.",
                  wfi_trace_dropped(t->agent->observer->trace));
}

static void write_lanes(const text *t)
{
    static const char *const names[] = {[WFI_CONTROL] = "control", [WFI_BULK] = "bulk"};
    const wfi_transport *transport = &t->agent->net->transport;
    fputs("# HELP weft_lanes Connections to other workers that are up, by fabric.\n# TYPE weft_lanes gauge\n", t->to);
    wfi_net_lock(t->agent->net);
    for (size_t i = 0; i < transport->fabric_count; i++)
        for (int kind = 0; kind < WFI_LANE_KINDS; kind++)
            fprintf(t->to, "weft_lanes{%s,fabric=\"%s\",lane=\"%s\"} %zu\n", t->who, transport->fabrics[i].ops->name,
                    names[kind], wfi_net_fabric_lanes(&transport->fabrics[i], (wfi_lane_kind)kind));
    wfi_net_unlock(t->agent->net);
}

static int by_label(const void *a, const void *b)
{
    const wfi_metric *x = *(wfi_metric *const *)a, *y = *(wfi_metric *const *)b;
    int order = (int)x->side - (int)y->side;
    order = order ? order : strcmp(x->function, y->function);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static weft_status write_all(const weft_agent *agent, FILE *to)
{
    text t = {.to = to, .agent = agent};
    /* A worker's name has no characters that need escaping. */
    snprintf(t.who, sizeof(t.who), "rank=\"%d\",worker=\"%s\"", weft_agent_rank(agent), agent->options.values.name);
    weft_status status = list_rows(agent, &t.rows, &t.count);
    if (status)
        return status;
    qsort(t.rows, t.count, sizeof(*t.rows), by_label);
    write_stats(&t);
    write_lanes(&t);
    fputs("# HELP weft_calls_total Calls completed, by how they ended.\n# TYPE weft_calls_total counter\n", to);
    status = write_family(&t, write_calls);
    fputs("# HELP weft_call_seconds Latency: at the caller from start to completion, at the callee from whole "
          "arguments to the finish.\n# TYPE weft_call_seconds histogram\n",
          to);
    if (!status)
        status = write_family(&t, write_latency);
    WFI_FOR_COMPONENTS (component, metrics)
        if (!status)
            status = component->metrics((weft_agent *)agent, to, t.who); /* changes only its locks */
    free(t.rows);
    return status;
}

/* Formats into memory first, because the text is made under locks, and a thread must not hold a lock while it waits
 * for the reader of a pipe. */
weft_status weft_metrics_write(const weft_agent *agent, FILE *to)
{
    WFI_CHECK_HANDLE(agent);
    char *written = NULL;
    size_t size = 0;
    if (!agent || !to)
        return wfi_refuse_null("weft_metrics_write", agent ? "to" : "the agent");
    FILE *memory = open_memstream(&written, &size);
    if (!memory)
        return WEFT_ERR_MEMORY;
    weft_status status = write_all(agent, memory);
    bool full = ferror(memory) != 0;
    if ((fclose(memory) || full) && !status)
        status = WEFT_ERR_MEMORY;
    if (!status && !(wfi_nosignal_write(to, written, size) && wfi_nosignal_flush(to)))
        status = WEFT_ERR_IO;
    free(written);
    return status;
}
