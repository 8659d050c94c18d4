/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump.c - weft_debug_dump: what an agent holds, as one JSON object. The text is made under the agent's lock, in memory, so
 * that it is of one moment; it is printed without.
 */
#include "base/alloc.h"
#include "base/text/json.h"
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"
#include "rpc/refs/refs.h"
#include "rpc/refs/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

typedef struct json {
    FILE *to;       /* in memory */
    bool separated; /* no comma before the next item */
} json;

/* The place of the next item; key NULL in an array. */
static void next_item(json *j, const char *key)
{
    fputs(j->separated ? "" : ", ", j->to);
    j->separated = false;
    if (!key)
        return;
    wfi_json_write_string(j->to, key);
    fputs(": ", j->to);
}

static void open_with(json *j, const char *key, char bracket)
{
    next_item(j, key);
    fputc(bracket, j->to);
    j->separated = true;
}

static void close_with(json *j, char bracket)
{
    fputc(bracket, j->to);
    j->separated = false;
}

static void put_text(json *j, const char *key, const char *text)
{
    next_item(j, key);
    if (text)
        wfi_json_write_string(j->to, text);
    else
        fputs("null", j->to);
}

static void put_number(json *j, const char *key, uint64_t number)
{
    next_item(j, key);
    fprintf(j->to, "%" PRIu64, number);
}

static void put_bool(json *j, const char *key, bool value)
{
    next_item(j, key);
    fputs(value ? "true" : "false", j->to);
}

/* In milliseconds, or null for a moment that is not known, or never comes. */
static void put_ms(json *j, const char *key, uint64_t from_ns, uint64_t to_ns, bool known)
{
    next_item(j, key);
    if (known)
        fprintf(j->to, "%.3f", to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0.0);
    else
        fputs("null", j->to);
}

/* ---- Workers ------------------------------------------------------------------------------------------------------- */

static const char *worker_state(weft_agent *agent, int rank)
{
    if (rank == wfi_agent_rank(agent))
        return agent->gone ? "evicted" : agent->closing ? "closing" : "self";
    wfi_peer *peer = wfi_net_peer(agent->net, rank);
    switch (peer ? wfi_peer_status(peer) : WEFT_ERR_NOT_FOUND) {
    case WEFT_OK:
        return "alive";
    case WEFT_ERR_PEER_LEFT:
        return "left";
    case WEFT_ERR_NOT_FOUND:
        return "empty";
    default:
        return "dead";
    }
}

static void put_workers(json *j, weft_agent *agent)
{
    open_with(j, "workers", '[');
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        const wfi_member *member = wfi_net_member(agent->net, rank);
        open_with(j, NULL, '{');
        put_number(j, "rank", (uint64_t)rank);
        put_number(j, "incarnation", member ? member->incarnation : 0);
        put_text(j, "name", member ? member->name : NULL);
        put_text(j, "state", worker_state(agent, rank));
        close_with(j, '}');
    }
    close_with(j, ']');
}

/* ---- References ---------------------------------------------------------------------------------------------------- */

static void put_name(json *j, const wfi_rref_name *name)
{
    char text[80];
    snprintf(text, sizeof text, "%u.%u/%u.%u:%" PRIu64, name->owner, name->owner_incarnation, name->creator,
             name->creator_incarnation, name->number);
    put_text(j, "name", text);
}

static void put_value(json *j, const weft_future *value)
{
    const wfi_object *object = wfi_object_of(value);
    const weft_error *error = weft_future_error(value);
    const weft_values *values = weft_future_values(value);
    if (!weft_future_done(value))
        put_text(j, "what", "being made");
    else if (error)
        put_text(j, "what", "failed");
    else
        put_text(j, "what", object ? "object" : "value");
    if (error)
        put_text(j, "error", weft_status_name(weft_error_code(error)));
    if (object)
        put_text(j, "type", object->type ? object->type->name : NULL);
    else if (values)
        put_text(j, "type", weft_type_name(weft_values_count(values) ? weft_values_type(values, 0) : WEFT_NULL));
}

/* How many of its forks each worker has; `counts` has a place for every rank, all 0, and is so again afterwards. */
static size_t put_forks(json *j, const wfi_owned *owned, size_t *counts, int world_size)
{
    size_t total = 0;
    for (const wfi_list *link = owned->forks.next; link != &owned->forks; link = link->next, total++)
        counts[wfi_peer_rank(wfi_container_of(link, wfi_fork, of_value)->peer)]++;
    open_with(j, "forks", '[');
    for (int rank = 0; rank < world_size && total; rank++) {
        if (!counts[rank])
            continue;
        open_with(j, NULL, '{');
        put_number(j, "rank", (uint64_t)rank);
        put_number(j, "count", counts[rank]);
        close_with(j, '}');
        counts[rank] = 0;
    }
    close_with(j, ']');
    return total;
}

static weft_status put_owned(json *j, weft_agent *agent)
{
    size_t cursor = 0, forks = 0, handles = 0, count = 0;
    int world_size = agent->options.values.world_size;
    uint64_t hash;
    size_t *counts = wfi_calloc((size_t)world_size, sizeof *counts);
    if (!counts)
        return WEFT_ERR_MEMORY;
    open_with(j, "values", '[');
    for (wfi_owned *owned; (owned = wfi_map_next(&agent->rrefs, &cursor, &hash));)
        for (; owned; owned = owned->next, count++) {
            open_with(j, NULL, '{');
            put_name(j, &owned->name);
            put_value(j, owned->value);
            put_number(j, "handles", owned->handles);
            put_number(j, "makers", owned->makers);
            forks += put_forks(j, owned, counts, world_size);
            handles += owned->handles;
            close_with(j, '}');
        }
    close_with(j, ']');
    put_number(j, "value_count", count);
    put_number(j, "handle_count", handles);
    put_number(j, "fork_count", forks);
    free(counts);
    return WEFT_OK;
}

static void put_references(json *j, weft_agent *agent)
{
    size_t count = 0, unconfirmed = 0;
    open_with(j, "references", '[');
    for (wfi_list *link = agent->references.next; link != &agent->references; link = link->next, count++) {
        const weft_rref *rref = wfi_container_of(link, weft_rref, link);
        open_with(j, NULL, '{');
        put_name(j, &rref->name);
        put_number(j, "owner", rref->name.owner);
        put_number(j, "fork", rref->fork);
        put_bool(j, "confirmed", rref->confirmed);
        put_bool(j, "making", rref->making);
        if (rref->error)
            put_text(j, "error", weft_status_name(weft_error_code(rref->error)));
        close_with(j, '}');
        unconfirmed += !rref->confirmed && !rref->error;
    }
    close_with(j, ']');
    put_number(j, "reference_count", count);
    put_number(j, "unconfirmed_count", unconfirmed);
    put_number(j, "awaiting_confirmation", agent->forks.count);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------- */

static const char *outcall_state(const wfi_outcall *call)
{
    if (call->failure)
        return "ending";
    if (wfi_intake_busy(&call->results))
        return "taking results";
    return call->message_out && !call->message.net.sequence ? "queued" : "sent";
}

static void put_outcalls(json *j, weft_agent *agent, uint64_t now)
{
    size_t cursor = 0;
    uint64_t id;
    open_with(j, "calls", '[');
    for (wfi_outcall *call; (call = wfi_map_next(&agent->calls, &cursor, &id));) {
        open_with(j, NULL, '{');
        put_number(j, "id", id);
        put_text(j, "function", call->function);
        put_number(j, "worker", (uint64_t)wfi_peer_rank(call->peer));
        put_ms(j, "age_ms", call->span.begun_ns, now, call->span.begun_ns != 0);
        put_ms(j, "time_left_ms", now, call->timer.deadline_ns, call->timer.heap_index != 0);
        put_text(j, "state", outcall_state(call));
        close_with(j, '}');
    }
    close_with(j, ']');
    put_number(j, "call_count", agent->calls.count);
}

static const char *stage_name(const weft_call *call)
{
    static const char *const names[] = {
        [WFI_SERVE_TAKING] = "taking arguments", [WFI_SERVE_SERVING] = "running", [WFI_SERVE_ANSWERING] = "answering"};
    if (call->queued && call->stage == WFI_SERVE_SERVING)
        return "waiting for its batch";
    return call->stage == WFI_SERVE_SERVING && call->deferred ? "deferred" : names[call->stage];
}

static void put_served(json *j, const weft_call *call, uint64_t now)
{
    open_with(j, NULL, '{');
    put_number(j, "id", call->id);
    put_text(j, "function", call->function ? call->function->name : NULL);
    put_number(j, "caller", (uint64_t)call->from);
    put_text(j, "stage", stage_name(call));
    put_bool(j, "cancelled", call->cancelled);
    put_ms(j, "age_ms", call->span.begun_ns, now, call->span.begun_ns != 0);
    put_ms(j, "time_left_ms", now, call->deadline_ns, call->deadline_ns != WFI_NEVER);
    close_with(j, '}');
}

static void put_serving(json *j, weft_agent *agent, uint64_t now)
{
    size_t count = 0;
    open_with(j, "serving", '[');
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        size_t cursor = 0;
        uint64_t id;
        for (weft_call *call; (call = wfi_map_next(&agent->peers[rank].serving, &cursor, &id)); count++)
            put_served(j, call, now);
    }
    for (wfi_list *link = agent->local_calls.next; link != &agent->local_calls; link = link->next, count++)
        put_served(j, wfi_container_of(link, weft_call, local_link), now);
    close_with(j, ']');
    put_number(j, "serving_count", count);
}

static void put_batches(json *j, weft_agent *agent)
{
    open_with(j, "batchers", '[');
    for (const wfi_batcher *batcher = atomic_load(&agent->batchers); batcher; batcher = batcher->next) {
        open_with(j, NULL, '{');
        put_text(j, "function", batcher->function->name);
        put_number(j, "waiting", batcher->queued);
        put_number(j, "running", batcher->running);
        put_number(j, "batches", batcher->stats.batches);
        put_number(j, "callers", batcher->active);
        close_with(j, '}');
    }
    close_with(j, ']');
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

static weft_status put_all(json *j, weft_agent *agent)
{
    uint64_t now = wfi_now(wfi_net_clock(agent->net));
    j->separated = true;
    open_with(j, NULL, '{');
    put_number(j, "rank", (uint64_t)wfi_agent_rank(agent));
    put_workers(j, agent);
    weft_status st = put_owned(j, agent);
    put_references(j, agent);
    put_outcalls(j, agent, now);
    put_serving(j, agent, now);
    put_batches(j, agent);
    put_number(j, "held_bytes", agent->held_bytes);
    put_number(j, "letters", agent->letters);
    close_with(j, '}');
    return st;
}

weft_status weft_debug_dump(const weft_agent *const_agent, FILE *to)
{
    weft_agent *agent = (weft_agent *)const_agent; /* its lock is taken; nothing else of it changes */
    char *text = NULL;
    size_t size = 0;
    if (!agent || !to)
        return WEFT_ERR_INVALID;
    json j = {.to = open_memstream(&text, &size)};
    if (!j.to)
        return WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    weft_status st = put_all(&j, agent);
    wfi_net_unlock(agent->net);
    bool full = ferror(j.to) != 0;
    if (fclose(j.to) || full)
        st = WEFT_ERR_MEMORY;
    if (!st && (fwrite(text, 1, size, to) != size || fputc('\n', to) == EOF || fflush(to)))
        st = WEFT_ERR_IO;
    free(text);
    return st;
}
