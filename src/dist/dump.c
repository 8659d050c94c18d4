/* SPDX-License-Identifier: Apache-2.0 */
/* dump.c - an agent's contexts and their passes, as JSON (weft_debug_dump). */
#include "base/text/json_writer.h"
#include "dist/contexts.h"

static void put_pass(wfi_json *j, const wfi_pass_record *pass)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "root", (uint64_t)pass->root);
    wfi_json_put_number(j, "number", pass->number);
    wfi_json_put_text(j, "state", pass->error ? "failed" : pass->ended_well ? "done here" : "running");
    if (pass->error)
        wfi_json_put_text(j, "error", weft_error_message(pass->error));
    wfi_json_close(j, '}');
}

static void put_context(wfi_json *j, weft_context *context)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "opener", context->id.rank);
    wfi_json_put_number(j, "number", context->id.number);
    wfi_mutex_lock(&context->lock);
    wfi_json_put_bool(j, "over", context->over);
    wfi_json_put_number(j, "sends", context->send_count);
    wfi_json_put_number(j, "receives", context->recv_count);
    wfi_json_open(j, "passes", '[');
    WFI_FOR_LIST (const wfi_pass_record, pass, &context->passes, link)
        put_pass(j, pass);
    wfi_json_close(j, ']');
    wfi_mutex_unlock(&context->lock);
    wfi_json_close(j, '}');
}

void wfi_contexts_dump(weft_agent *agent, wfi_json *j)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    size_t cursor = 0;
    wfi_json_open(j, "contexts", '[');
    for (weft_context *first; (first = wfi_map_next(&all->table, &cursor, NULL));)
        for (weft_context *context = first; context; context = context->next_same)
            put_context(j, context);
    wfi_json_close(j, ']');
}
