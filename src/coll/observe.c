/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.c - what is counted of the operations of groups: by the group's name and the kind of operation, for
 * weft_metrics_write; and a span of each for the trace. Numbers of a group stay when it is closed, because counters may
 * only grow.
 */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/text/exposition.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 256 /* names counted separately; later ones count for OTHER */
#define OTHER "(other)"

typedef struct kind_numbers {
    uint64_t ok, failed, bytes;
    wfi_histogram seconds;
} kind_numbers;

struct wfi_group_metrics {
    wfi_group_metrics *next;
    char name[WFI_GROUP_NAME_MAX + 1];
    kind_numbers kinds[WFI_OPERATION_KINDS];
};

/* Labels have no spaces. */
static const char *const labels[WFI_OPERATION_KINDS] = {
    [WFI_BARRIER] = "barrier",
    [WFI_ALLREDUCE] = "allreduce",
    [WFI_REDUCE] = "reduce",
    [WFI_BROADCAST] = "broadcast",
    [WFI_ALLGATHER] = "allgather",
    [WFI_REDUCE_SCATTER] = "reduce_scatter",
    [WFI_GATHER] = "gather",
    [WFI_SCATTER] = "scatter",
    [WFI_ALL_TO_ALL] = "all_to_all",
    [WFI_SENDRECV] = "sendrecv",
    [WFI_GATHER_VALUES] = "allgather_values",
};

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* The numbers of that name; NULL: no memory. [agent lock] */
static wfi_group_metrics *metrics_of(wfi_groups *groups, const char *name)
{
    for (wfi_group_metrics *each = groups->metrics; each; each = each->next)
        if (!strcmp(each->name, name))
            return each;
    if (groups->metric_count == NAMES_MAX && strcmp(name, OTHER) != 0)
        return metrics_of(groups, OTHER);
    wfi_group_metrics *made = wfi_calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    snprintf(made->name, sizeof(made->name), "%s", name);
    for (int kind = 0; kind < WFI_OPERATION_KINDS; kind++)
        wfi_histogram_init(&made->kinds[kind].seconds);
    made->next = groups->metrics;
    groups->metrics = made;
    groups->metric_count += strcmp(name, OTHER) != 0;
    return made;
}

static void count(const wfi_operation *operation, bool failed, uint64_t ns)
{
    weft_group *group = operation->group;
    weft_agent *agent = group->agent;
    if (!group->metrics)
        group->metrics = metrics_of(wfi_groups_of(agent), group->name);
    wfi_group_metrics *metrics = group->metrics;
    if (!metrics)
        return; /* out of memory: it is not counted */
    kind_numbers *numbers = &metrics->kinds[operation->collective.kind];
    ++*(failed ? &numbers->failed : &numbers->ok);
    numbers->bytes += failed ? 0 : wfi_part_bytes(&operation->collective);
    wfi_histogram_record(&numbers->seconds, ns);
}

void wfi_operation_count(const wfi_operation *operation, bool failed)
{
    uint64_t now = wfi_net_now(operation->group->agent->net), begun = operation->span.begun_ns;
    count(operation, failed, now > begun ? now - begun : 0);
}

void wfi_operation_count_quick(const wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    uint64_t begun = operation->span.begun_ns;
    uint64_t ns = begun ? wfi_net_now(operation->group->agent->net) - begun : share->usual_ns;
    if (begun && !operation->share.waited && wfi_part_bytes(&operation->collective) <= WFI_SLOTS_LINE_BYTES)
        share->usual_ns = ns;
    count(operation, false, ns);
}

void wfi_group_metrics_free(wfi_groups *groups)
{
    for (wfi_group_metrics *each = groups->metrics, *next; each; each = next) {
        next = each->next;
        for (int kind = 0; kind < WFI_OPERATION_KINDS; kind++)
            wfi_histogram_fini(&each->kinds[kind].seconds);
        free(each);
    }
    groups->metrics = NULL;
}

/* ---- Traces ------------------------------------------------------------------------------------------------------ */

void wfi_operation_observe_begin(wfi_operation *operation)
{
    wfi_observe_span_begin(operation->group->agent, WFI_TRACE_GROUPS, &operation->span);
}

void wfi_operation_observe_end(wfi_operation *operation, weft_status status)
{
    char what[WFI_FUNCTION_NAME_MAX + 1];
    weft_agent *agent = operation->group->agent;
    if (!wfi_observe_has_trace(agent))
        return;
    wfi_trace_record record = {.side = WFI_TRACE_GROUPS,
                               .peer = -1,
                               .call_id = operation->number,
                               .context = wfi_part_bytes(&operation->collective),
                               .span = operation->span,
                               .end_ns = wfi_now(wfi_net_clock(agent->net)),
                               .status = status};
    operation->span.track = 0;
    snprintf(what, sizeof(what), "%s: %s", labels[operation->collective.kind], operation->group->name);
    wfi_observe_span_end(agent, &record, what);
}

/* ---- Prometheus text --------------------------------------------------------------------------------------------- */

typedef struct row {
    kind_numbers numbers;
    char labels[WFI_LABELS_MAX]; /* without the closing brace */
} row;

/* One row for each kind of operation of each name that was called. [agent lock] */
static weft_status copy_rows(const wfi_groups *groups, const char *who, row **out, size_t *count)
{
    row *rows = wfi_calloc((groups->metric_count + 1) * WFI_OPERATION_KINDS + 1, sizeof(*rows));
    weft_status status = rows ? WEFT_OK : WEFT_ERR_MEMORY;
    size_t used = 0;
    for (const wfi_group_metrics *each = groups->metrics; each && !status; each = each->next) {
        for (int kind = 0; kind < WFI_OPERATION_KINDS && !status; kind++) {
            const kind_numbers *from = &each->kinds[kind];
            row *to = &rows[used];
            if (!from->seconds.count)
                continue;
            used++;
            to->numbers = (kind_numbers){.ok = from->ok, .failed = from->failed, .bytes = from->bytes};
            wfi_histogram_init(&to->numbers.seconds);
            status = wfi_histogram_merge(&to->numbers.seconds, &from->seconds);
            /* A group's name has no characters that need escaping. */
            snprintf(to->labels, sizeof(to->labels), "{%s,group=\"%s\",operation=\"%s\"", who, each->name,
                     labels[kind]);
        }
    }
    *out = rows;
    *count = used;
    return status;
}

static void write_rows(FILE *to, const row *rows, size_t count)
{
    fputs("# HELP weft_group_operations_total Operations of groups that are over here, by how they ended.\n"
          "# TYPE weft_group_operations_total counter\n",
          to);
    for (size_t i = 0; i < count; i++)
        fprintf(to,
                "weft_group_operations_total%s,outcome=\"ok\"} %" PRIu64 "\n"
                "weft_group_operations_total%s,outcome=\"failed\"} %" PRIu64 "\n",
                rows[i].labels, rows[i].numbers.ok, rows[i].labels, rows[i].numbers.failed);
    fputs("# HELP weft_group_bytes_total Bytes of this member's part of the data of operations that succeeded.\n"
          "# TYPE weft_group_bytes_total counter\n",
          to);
    for (size_t i = 0; i < count; i++)
        fprintf(to, "weft_group_bytes_total%s} %" PRIu64 "\n", rows[i].labels, rows[i].numbers.bytes);
    fputs("# HELP weft_group_operation_seconds From the call of an operation to its end here.\n"
          "# TYPE weft_group_operation_seconds histogram\n",
          to);
    for (size_t i = 0; i < count; i++)
        wfi_exposition_seconds(to, "weft_group_operation_seconds", &rows[i].numbers.seconds, rows[i].labels);
}

weft_status wfi_groups_write_metrics(weft_agent *agent, FILE *to, const char *who)
{
    row *rows = NULL;
    size_t count = 0;
    wfi_net_lock(agent->net);
    weft_status status = copy_rows(wfi_groups_of(agent), who, &rows, &count);
    wfi_net_unlock(agent->net);
    if (!status && count)
        write_rows(to, rows, count);
    for (size_t i = 0; i < count; i++)
        wfi_histogram_fini(&rows[i].numbers.seconds);
    free(rows);
    return status;
}
