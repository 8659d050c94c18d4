/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - the counters and histograms by side, peer and function.
 *
 * Entries are made at the first use, and never removed; there are at most WFI_METRICS_MAX. The names are those of
 * registered functions or of calls that this worker made itself, so a peer cannot fill the table.
 */
#include "base/alloc.h"
#include "rpc/observe/observe.h"

#include <stdlib.h>
#include <string.h>

static wfi_metric *make_metric(weft_metric_side side, int rank, const char *function)
{
    size_t size = strlen(function) + 1;
    wfi_metric *metric = wfi_calloc(1, sizeof(*metric) + size);
    if (!metric)
        return NULL;
    metric->rank = rank;
    metric->side = side;
    wfi_histogram_init(&metric->latency);
    memcpy(metric->function, function, size);
    return metric;
}

static void free_metric(wfi_metric *metric)
{
    if (metric)
        wfi_histogram_fini(&metric->latency);
    free(metric);
}

weft_status wfi_metrics_init(wfi_metrics *metrics)
{
    wfi_map_init(&metrics->by_hash);
    for (int side = 0; side < 2; side++) {
        metrics->others[side] = make_metric((weft_metric_side)side, -1, "other");
        if (!metrics->others[side])
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

void wfi_metrics_fini(wfi_metrics *metrics)
{
    for (size_t i = 0; i < metrics->count; i++)
        free_metric(metrics->all[i]);
    free(metrics->all);
    wfi_map_fini(&metrics->by_hash);
    for (int side = 0; side < 2; side++)
        free_metric(metrics->others[side]);
}

static bool is_metric(const wfi_metric *metric, weft_metric_side side, int rank, const char *function)
{
    return metric->rank == rank && metric->side == side && strcmp(metric->function, function) == 0;
}

static bool make_metric_room(wfi_metrics *metrics)
{
    if (metrics->count < metrics->capacity)
        return true;
    if (metrics->count == WFI_METRICS_MAX)
        return false;
    size_t capacity = metrics->capacity ? metrics->capacity * 2 : 16;
    wfi_metric **all = realloc(metrics->all, capacity * sizeof(*all));
    if (!all)
        return false;
    metrics->all = all;
    metrics->capacity = capacity;
    return true;
}

static wfi_metric *add_metric(wfi_metrics *metrics, uint64_t hash, weft_metric_side side, int rank,
                              const char *function)
{
    wfi_metric *first = wfi_map_get(&metrics->by_hash, hash);
    wfi_metric *metric = make_metric_room(metrics) ? make_metric(side, rank, function) : NULL;
    if (!metric)
        return metrics->others[side];
    if (first) {
        metric->next = first->next;
        first->next = metric;
    } else if (wfi_map_put(&metrics->by_hash, hash, metric)) {
        free_metric(metric);
        return metrics->others[side];
    }
    metrics->all[metrics->count++] = metric;
    return metric;
}

static wfi_outcome outcome_of(weft_status status)
{
    switch (status) {
    case WEFT_OK:
        return WFI_OUTCOME_OK;
    case WEFT_ERR_REMOTE:
        return WFI_OUTCOME_REMOTE;
    case WEFT_ERR_TIMEOUT:
        return WFI_OUTCOME_TIMEOUT;
    case WEFT_ERR_CANCELLED:
        return WFI_OUTCOME_CANCELLED;
    case WEFT_ERR_NOT_FOUND:
    case WEFT_ERR_TYPE:
    case WEFT_ERR_BUSY:
        return WFI_OUTCOME_REFUSED;
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_UNKNOWN:
        return WFI_OUTCOME_PEER;
    default:
        return WFI_OUTCOME_ERROR;
    }
}

void wfi_metrics_record(wfi_metrics *metrics, weft_metric_side side, int rank, const char *function, uint64_t ns,
                        weft_status status)
{
    wfi_metric **recent = &metrics->recent[side][(unsigned)rank % WFI_METRICS_RECENT], *metric = *recent;
    if (!metric || !is_metric(metric, side, rank, function)) {
        uint64_t hash = wfi_hash_bytes(function, strlen(function)) ^ ((uint64_t)side << 63) ^ (uint64_t)rank << 32;
        metric = wfi_map_get(&metrics->by_hash, hash);
        while (metric && !is_metric(metric, side, rank, function))
            metric = metric->next;
        *recent = metric = metric ? metric : add_metric(metrics, hash, side, rank, function);
    }
    metric->outcomes[outcome_of(status)]++;
    wfi_histogram_record(&metric->latency, ns);
}

uint64_t wfi_metric_failed(const wfi_metric *metric)
{
    return metric->latency.count - metric->outcomes[WFI_OUTCOME_OK];
}
