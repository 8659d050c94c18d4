/* SPDX-License-Identifier: Apache-2.0 */
/* batch/metrics.c - Prometheus text of the metrics of batched functions (weft_batch_stats): copies them, then
 * writes. */
#include "base/alloc.h"
#include "rpc/batch/batch.h"
#include "base/text/exposition.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LAST_SIZE_BOUND 16 /* 2^16 = WEFT_MAX_BATCH */

typedef struct row {
    weft_batch_stats stats;
    uint64_t waiting, running;
    wfi_histogram sizes, waits;
    char labels[WFI_LABELS_MAX]; /* without the closing brace */
} row;

static weft_status copy_batcher(weft_agent *agent, const wfi_batcher *batcher, const char *who, row *out)
{
    int at = snprintf(out->labels, sizeof(out->labels), "{%s,function=\"", who);
    size_t end = (size_t)at +
                 wfi_exposition_escape(batcher->function->name, out->labels + at, sizeof(out->labels) - 2 - (size_t)at);
    memcpy(out->labels + end, "\"", 2);
    wfi_histogram_init(&out->sizes);
    wfi_histogram_init(&out->waits);
    wfi_net_lock(agent->net);
    out->stats = batcher->stats;
    out->waiting = batcher->queued;
    out->running = batcher->running;
    weft_status status = wfi_histogram_merge(&out->sizes, &batcher->sizes);
    if (!status)
        status = wfi_histogram_merge(&out->waits, &batcher->waits);
    wfi_net_unlock(agent->net);
    return status;
}

static void begin_family(FILE *to, const char *name, const char *type, const char *help)
{
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_number(FILE *to, const char *name, const row *r, const char *more, uint64_t value)
{
    fprintf(to, "%s%s%s} %" PRIu64 "\n", name, r->labels, more, value);
}

/* Counters, with their offsets in `row`. */
static const struct counter {
    const char *name, *type, *help;
    size_t at;
} counters[] = {
    {"weft_batches_total", "counter", "Batches whose handler began.", offsetof(row, stats.batches)},
    {"weft_batch_calls_total", "counter", "Calls in these batches.", offsetof(row, stats.calls)},
    {"weft_batch_left_out_total", "counter", "Calls that had ended when their batch began.",
     offsetof(row, stats.left_out)},
    {"weft_batch_refused_total", "counter", "Calls refused because the queue was full.", offsetof(row, stats.refused)},
    {"weft_batch_late_calls_total", "counter", "Calls whose arguments had not arrived when their batch began.",
     offsetof(row, stats.late_calls)},
    {"weft_batch_copied_bytes_total", "counter", "Rows over the inline limit that were copied.",
     offsetof(row, stats.copied_bytes)},
    {"weft_batch_waiting", "gauge", "Calls that wait for their batch now.", offsetof(row, waiting)},
    {"weft_batch_running", "gauge", "Batches whose handlers run, or are deferred, now.", offsetof(row, running)},
};

static void write_counters(FILE *to, const row *rows, size_t count)
{
    for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++) {
        begin_family(to, counters[i].name, counters[i].type, counters[i].help);
        for (size_t r = 0; r < count; r++) {
            uint64_t value;
            memcpy(&value, (const char *)&rows[r] + counters[i].at, sizeof(value));
            write_number(to, counters[i].name, &rows[r], "", value);
        }
    }
    begin_family(to, "weft_batch_closed_total", "counter", "Batches by what closed them.");
    for (size_t r = 0; r < count; r++) {
        const weft_batch_stats *s = &rows[r].stats;
        write_number(to, "weft_batch_closed_total", &rows[r], ",by=\"size\"", s->by_size);
        write_number(to, "weft_batch_closed_total", &rows[r], ",by=\"time\"", s->by_time);
        write_number(to, "weft_batch_closed_total", &rows[r], ",by=\"callers\"", s->by_callers);
    }
}

/* The bounds are powers of two minus one, where the steps of the histogram end. */
static void write_sizes(FILE *to, const row *r)
{
    for (unsigned exponent = 4; exponent <= LAST_SIZE_BOUND; exponent++)
        fprintf(to, "weft_batch_size_bucket%s,le=\"%llu\"} %" PRIu64 "\n", r->labels, (1ull << exponent) - 1,
                wfi_histogram_below(&r->sizes, exponent));
    fprintf(to, "weft_batch_size_bucket%s,le=\"+Inf\"} %" PRIu64 "\n", r->labels, r->sizes.count);
    write_number(to, "weft_batch_size_sum", r, "", r->sizes.sum);
    write_number(to, "weft_batch_size_count", r, "", r->sizes.count);
}

static void write_rows(FILE *to, const row *rows, size_t count)
{
    write_counters(to, rows, count);
    begin_family(to, "weft_batch_size", "histogram", "Calls in a batch.");
    for (size_t i = 0; i < count; i++)
        write_sizes(to, &rows[i]);
    begin_family(to, "weft_batch_wait_seconds", "histogram",
                 "From the arrival of a call's arguments to the beginning of its batch.");
    for (size_t i = 0; i < count; i++)
        wfi_exposition_seconds(to, "weft_batch_wait_seconds", &rows[i].waits, rows[i].labels);
}

weft_status wfi_batches_write_metrics(weft_agent *agent, FILE *to, const char *who)
{
    const wfi_batcher *first = atomic_load(&agent->batchers);
    size_t count = 0;
    weft_status status = WEFT_OK;
    for (const wfi_batcher *batcher = first; batcher; batcher = batcher->next)
        count++;
    row *rows = wfi_calloc(count + 1, sizeof(*rows));
    if (!rows)
        return WEFT_ERR_MEMORY;
    size_t copied = 0;
    for (const wfi_batcher *batcher = first; batcher && !status; batcher = batcher->next)
        status = copy_batcher(agent, batcher, who, &rows[copied++]);
    if (!status && count)
        write_rows(to, rows, count);
    for (size_t i = 0; i < copied; i++) {
        wfi_histogram_fini(&rows[i].sizes);
        wfi_histogram_fini(&rows[i].waits);
    }
    free(rows);
    return status;
}
