/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - counts of contexts and passes, as Prometheus text, and the spans of passes: see observe.h. */
#include "dist/observe.h"

#include "base/text/exposition.h"
#include "dist/pass_impl.h"
#include "rpc/observe/observe.h"

#include <inttypes.h>

void wfi_dist_counts_init(wfi_dist_counts *counts)
{
    wfi_mutex_init(&counts->lock);
    for (int place = 0; place < WFI_PASS_PLACES; place++)
        wfi_histogram_init(&counts->seconds[place]);
}

void wfi_dist_counts_fini(wfi_dist_counts *counts)
{
    for (int place = 0; place < WFI_PASS_PLACES; place++)
        wfi_histogram_fini(&counts->seconds[place]);
    wfi_mutex_fini(&counts->lock);
}

/* ---- What happens ------------------------------------------------------------------------------------------------ */

static wfi_dist_counts *counts_of(const wfi_pass *pass)
{
    return &wfi_contexts_of(pass->agent)->counts;
}

static int place_of(const wfi_pass *pass)
{
    return pass->result.root == wfi_agent_rank(pass->agent) ? WFI_PASS_AT_ROOT : WFI_PASS_AT_OTHER;
}

uint64_t wfi_pass_observe_now(const wfi_pass *pass)
{
    return wfi_now(wfi_net_clock(pass->agent->net));
}

static void add(wfi_dist_counts *counts, uint64_t *number)
{
    wfi_mutex_lock(&counts->lock);
    ++*number;
    wfi_mutex_unlock(&counts->lock);
}

void wfi_pass_observe_within(wfi_pass *pass, const weft_call *call)
{
    pass->span.trace = call->span.trace;
    pass->span.parent = call->span.id;
}

void wfi_pass_observe_begin(wfi_pass *pass)
{
    wfi_dist_counts *counts = counts_of(pass);
    wfi_observe_span_begin(pass->agent, WFI_TRACE_PASSES, &pass->span);
    add(counts, &counts->numbers.started[place_of(pass)]);
}

void wfi_pass_observe_end(wfi_pass *pass, weft_status status)
{
    wfi_dist_counts *counts = counts_of(pass);
    int place = place_of(pass);
    if (!pass->begun)
        return;
    wfi_trace_record record = {.side = WFI_TRACE_PASSES,
                               .peer = pass->result.root,
                               .call_id = pass->result.number,
                               .context = pass->context_id.number,
                               .opener = (int)pass->context_id.rank,
                               .span = pass->span,
                               .end_ns = wfi_pass_observe_now(pass),
                               .status = status};
    wfi_mutex_lock(&counts->lock);
    ++*(status ? &counts->numbers.failed[place] : &counts->numbers.well[place]);
    wfi_histogram_record(&counts->seconds[place], record.end_ns - pass->span.begun_ns);
    wfi_mutex_unlock(&counts->lock);
    wfi_observe_span_end(pass->agent, &record, "backward");
}

void wfi_pass_observe_message(wfi_pass *pass, int way, weft_tensors gradients)
{
    wfi_dist_counts *counts = counts_of(pass);
    uint64_t bytes = 0;
    for (size_t i = 0; i < gradients.count; i++)
        bytes += (uint64_t)gradients.items[i]->numel * weft_dtype_size(gradients.items[i]->dtype);
    wfi_mutex_lock(&counts->lock);
    counts->numbers.messages[way]++;
    counts->numbers.gradients[way] += gradients.count;
    counts->numbers.bytes[way] += bytes;
    wfi_mutex_unlock(&counts->lock);
}

void wfi_pass_observe_steps(wfi_pass *pass, size_t count, uint64_t began_ns)
{
    wfi_dist_counts *counts = counts_of(pass);
    pass->span.run_ns = began_ns;
    pass->span.done_ns = wfi_pass_observe_now(pass);
    wfi_mutex_lock(&counts->lock);
    counts->numbers.steps += count;
    wfi_mutex_unlock(&counts->lock);
}

void wfi_pass_observe_undone(const wfi_pass *pass)
{
    wfi_dist_counts *counts = counts_of(pass);
    add(counts, &counts->numbers.undone);
}

/* ---- Prometheus text --------------------------------------------------------------------------------------------- */

static const char *const places[WFI_PASS_PLACES] = {"root", "other"};

static void begin_family(FILE *to, const char *name, const char *type, const char *help)
{
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_passes(FILE *to, const char *who, const wfi_dist_numbers *c, const wfi_histogram *seconds)
{
    begin_family(to, "weft_passes_started_total", "counter", "Backward passes in which this worker had a part.");
    for (int i = 0; i < WFI_PASS_PLACES; i++)
        fprintf(to, "weft_passes_started_total{%s,at=\"%s\"} %" PRIu64 "\n", who, places[i], c->started[i]);
    begin_family(to, "weft_passes_finished_total", "counter", "Of those, that are over here, by how they ended.");
    for (int i = 0; i < WFI_PASS_PLACES; i++)
        fprintf(to,
                "weft_passes_finished_total{%s,at=\"%s\",outcome=\"ok\"} %" PRIu64 "\n"
                "weft_passes_finished_total{%s,at=\"%s\",outcome=\"failed\"} %" PRIu64 "\n",
                who, places[i], c->well[i], who, places[i], c->failed[i]);
    begin_family(to, "weft_pass_seconds", "histogram", "How long this worker's part took, from its beginning here.");
    for (int i = 0; i < WFI_PASS_PLACES; i++) {
        char labels[WFI_LABELS_MAX];
        snprintf(labels, sizeof(labels), "{%s,at=\"%s\"", who, places[i]);
        wfi_exposition_seconds(to, "weft_pass_seconds", &seconds[i], labels);
    }
}

static void write_numbers(FILE *to, const char *who, const wfi_dist_numbers *c, uint64_t open, uint64_t opened,
                          uint64_t running)
{
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } numbers[] = {
        {"weft_contexts", "gauge", "Distributed contexts of which this worker has something now.", open},
        {"weft_contexts_opened_total", "counter", "Distributed contexts that this worker opened.", opened},
        {"weft_passes_running", "gauge", "Backward passes that run here now.", running},
        {"weft_passes_undone_total", "counter", "Passes that had ended well here, and failed elsewhere.", c->undone},
        {"weft_pass_steps_total", "counter", "Steps of optimizers that passes took along.", c->steps},
        {"weft_pass_messages_sent_total", "counter", "Messages of passes that left.", c->messages[WFI_PASS_SENT]},
        {"weft_pass_messages_received_total", "counter", "Messages of passes that came.",
         c->messages[WFI_PASS_RECEIVED]},
        {"weft_gradients_sent_total", "counter", "Gradients in those that left.", c->gradients[WFI_PASS_SENT]},
        {"weft_gradients_received_total", "counter", "Gradients in those that came.", c->gradients[WFI_PASS_RECEIVED]},
        {"weft_gradient_sent_bytes_total", "counter", "Bytes of the gradients that left.", c->bytes[WFI_PASS_SENT]},
        {"weft_gradient_received_bytes_total", "counter", "Bytes of the gradients that came.",
         c->bytes[WFI_PASS_RECEIVED]},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        begin_family(to, numbers[i].name, numbers[i].type, numbers[i].help);
        fprintf(to, "%s{%s} %" PRIu64 "\n", numbers[i].name, who, numbers[i].value);
    }
}

weft_status wfi_contexts_write_metrics(weft_agent *agent, FILE *to, const char *who)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    wfi_dist_counts *counts = &all->counts;
    wfi_histogram seconds[WFI_PASS_PLACES];
    weft_status status = WEFT_OK;
    wfi_net_lock(agent->net);
    uint64_t open = all->count, opened = all->last_number;
    wfi_net_unlock(agent->net);
    wfi_mutex_lock(&counts->lock);
    wfi_dist_numbers numbers = counts->numbers;
    for (int i = 0; i < WFI_PASS_PLACES; i++) {
        wfi_histogram_init(&seconds[i]);
        if (!status)
            status = wfi_histogram_merge(&seconds[i], &counts->seconds[i]);
    }
    wfi_mutex_unlock(&counts->lock);
    if (!status) {
        write_numbers(to, who, &numbers, open, opened, atomic_load(&all->passes));
        write_passes(to, who, &numbers, seconds);
    }
    for (int i = 0; i < WFI_PASS_PLACES; i++)
        wfi_histogram_fini(&seconds[i]);
    return status;
}
