/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump.c - weft_debug_dump: what an agent holds, as one JSON object. The text is made under the agent's lock, in memory, so
 * that it is of one moment; it is printed without.
 */
#include "base/alloc.h"
#include "base/text/json_writer.h"
#include "rpc/batch/batch.h"
#include "rpc/client/loopback.h"
#include "rpc/client/client.h"
#include "rpc/refs/internal.h"

#include <inttypes.h>
#include <stdlib.h>

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

static void put_workers(wfi_json *j, weft_agent *agent)
{
    wfi_json_open(j, "workers", '[');
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        const wfi_member *member = wfi_net_member(agent->net, rank);
        wfi_json_open(j, NULL, '{');
        wfi_json_put_number(j, "rank", (uint64_t)rank);
        wfi_json_put_number(j, "incarnation", member ? member->incarnation : 0);
        wfi_json_put_text(j, "name", member ? member->name : NULL);
        wfi_json_put_text(j, "state", worker_state(agent, rank));
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
}

/* ---- References ---------------------------------------------------------------------------------------------------- */

static void put_name(wfi_json *j, const wfi_rref_name *name)
{
    char text[80];
    snprintf(text, sizeof text, "%u.%u/%u.%u:%" PRIu64, name->owner, name->owner_incarnation, name->creator,
             name->creator_incarnation, name->number);
    wfi_json_put_text(j, "name", text);
}

static void put_value(wfi_json *j, const weft_future *value)
{
    const wfi_object *object = wfi_object_of(value);
    const weft_error *error = weft_future_error(value);
    const weft_values *values = weft_future_values(value);
    if (!weft_future_done(value))
        wfi_json_put_text(j, "what", "being made");
    else if (error)
        wfi_json_put_text(j, "what", "failed");
    else
        wfi_json_put_text(j, "what", object ? "object" : "value");
    if (error)
        wfi_json_put_text(j, "error", weft_status_name(weft_error_code(error)));
    if (object)
        wfi_json_put_text(j, "type", object->type ? object->type->name : NULL);
    else if (values)
        wfi_json_put_text(j, "type",
                          weft_type_name(weft_values_count(values) ? weft_values_type(values, 0) : WEFT_NULL));
}

/* How many of its forks each worker has; `counts` has a place for every rank, all 0, and is so again afterwards. */
static size_t put_forks(wfi_json *j, const wfi_owned *owned, size_t *counts, int world_size)
{
    size_t total = 0;
    WFI_FOR_LIST (const wfi_fork, fork, &owned->forks, of_value) {
        counts[wfi_peer_rank(fork->peer)]++;
        total++;
    }
    wfi_json_open(j, "forks", '[');
    for (int rank = 0; rank < world_size && total; rank++) {
        if (!counts[rank])
            continue;
        wfi_json_open(j, NULL, '{');
        wfi_json_put_number(j, "rank", (uint64_t)rank);
        wfi_json_put_number(j, "count", counts[rank]);
        wfi_json_close(j, '}');
        counts[rank] = 0;
    }
    wfi_json_close(j, ']');
    return total;
}

static weft_status put_owned(wfi_json *j, weft_agent *agent)
{
    size_t cursor = 0, forks = 0, handles = 0, count = 0;
    int world_size = agent->options.values.world_size;
    size_t *counts = wfi_calloc((size_t)world_size, sizeof *counts);
    if (!counts)
        return WEFT_ERR_MEMORY;
    wfi_json_open(j, "values", '[');
    for (wfi_owned *owned; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = owned->next, count++) {
            wfi_json_open(j, NULL, '{');
            put_name(j, &owned->name);
            put_value(j, owned->value);
            wfi_json_put_number(j, "handles", owned->handles);
            wfi_json_put_number(j, "makers", owned->makers);
            forks += put_forks(j, owned, counts, world_size);
            handles += owned->handles;
            wfi_json_close(j, '}');
        }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "value_count", count);
    wfi_json_put_number(j, "handle_count", handles);
    wfi_json_put_number(j, "fork_count", forks);
    free(counts);
    return WEFT_OK;
}

static void put_references(wfi_json *j, weft_agent *agent)
{
    size_t count = 0, unconfirmed = 0;
    wfi_json_open(j, "references", '[');
    WFI_FOR_LIST (const weft_rref, rref, &wfi_refs_of(agent)->references, link) {
        wfi_json_open(j, NULL, '{');
        put_name(j, &rref->name);
        wfi_json_put_number(j, "owner", rref->name.owner);
        wfi_json_put_number(j, "fork", rref->fork);
        wfi_json_put_bool(j, "confirmed", rref->confirmed);
        wfi_json_put_bool(j, "making", rref->making);
        if (rref->error)
            wfi_json_put_text(j, "error", weft_status_name(weft_error_code(rref->error)));
        wfi_json_close(j, '}');
        unconfirmed += !rref->confirmed && !rref->error;
        count++;
    }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "reference_count", count);
    wfi_json_put_number(j, "unconfirmed_count", unconfirmed);
    wfi_json_put_number(j, "awaiting_confirmation", wfi_refs_of(agent)->forks.count);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------- */

static const char *request_state(const wfi_request *call)
{
    if (call->failure)
        return "ending";
    if (wfi_inbound_busy(&call->results))
        return "taking results";
    return call->message_out && !call->message.net.sequence ? "queued" : "sent";
}

static void put_requests(wfi_json *j, weft_agent *agent, uint64_t now)
{
    size_t cursor = 0;
    uint64_t id;
    wfi_json_open(j, "calls", '[');
    for (wfi_request *call; (call = wfi_map_next(&agent->calls, &cursor, &id));) {
        wfi_json_open(j, NULL, '{');
        wfi_json_put_number(j, "id", id);
        wfi_json_put_text(j, "function", call->function);
        wfi_json_put_number(j, "worker", (uint64_t)wfi_peer_rank(call->peer));
        wfi_json_put_ms(j, "age_ms", call->span.begun_ns, now, call->span.begun_ns != 0);
        wfi_json_put_ms(j, "time_left_ms", now, call->timer.deadline_ns, call->timer.heap_index != 0);
        wfi_json_put_text(j, "state", request_state(call));
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "call_count", agent->calls.count);
}

static const char *stage_name(const weft_call *call)
{
    static const char *const names[] = {
        [WFI_SERVE_TAKING] = "taking arguments", [WFI_SERVE_SERVING] = "running", [WFI_SERVE_ANSWERING] = "answering"};
    if (call->queued && call->stage == WFI_SERVE_SERVING)
        return "waiting for its batch";
    return call->stage == WFI_SERVE_SERVING && call->deferred ? "deferred" : names[call->stage];
}

static void put_served(wfi_json *j, const weft_call *call, uint64_t now)
{
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "id", call->id);
    wfi_json_put_text(j, "function", call->function ? call->function->name : NULL);
    wfi_json_put_number(j, "caller", (uint64_t)call->from);
    wfi_json_put_text(j, "stage", stage_name(call));
    wfi_json_put_bool(j, "cancelled", call->cancelled);
    wfi_json_put_ms(j, "age_ms", call->span.begun_ns, now, call->span.begun_ns != 0);
    wfi_json_put_ms(j, "time_left_ms", now, call->deadline_ns, call->deadline_ns != WFI_NEVER);
    wfi_json_close(j, '}');
}

static void put_serving(wfi_json *j, weft_agent *agent, uint64_t now)
{
    size_t count = 0;
    wfi_json_open(j, "serving", '[');
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        size_t cursor = 0;
        for (weft_call *call; (call = wfi_map_next(&agent->peers[rank].serving, &cursor, NULL)); count++)
            put_served(j, call, now);
    }
    WFI_FOR_LIST (const wfi_loopback, loop, &agent->local_calls, link) {
        put_served(j, &loop->call, now);
        count++;
    }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "serving_count", count);
}

static void put_batches(wfi_json *j, weft_agent *agent)
{
    wfi_json_open(j, "batchers", '[');
    for (const wfi_batcher *batcher = atomic_load(&agent->batchers); batcher; batcher = batcher->next) {
        wfi_json_open(j, NULL, '{');
        wfi_json_put_text(j, "function", batcher->function->name);
        wfi_json_put_number(j, "waiting", batcher->queued);
        wfi_json_put_number(j, "running", batcher->running);
        wfi_json_put_number(j, "batches", batcher->stats.batches);
        wfi_json_put_number(j, "callers", batcher->active);
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
}

/* ---- All of it ----------------------------------------------------------------------------------------------------- */

static weft_status put_all(wfi_json *j, weft_agent *agent)
{
    uint64_t now = wfi_now(wfi_net_clock(agent->net));
    j->separated = true;
    wfi_json_open(j, NULL, '{');
    wfi_json_put_number(j, "rank", (uint64_t)wfi_agent_rank(agent));
    put_workers(j, agent);
    weft_status st = put_owned(j, agent);
    put_references(j, agent);
    put_requests(j, agent, now);
    put_serving(j, agent, now);
    put_batches(j, agent);
    wfi_json_put_number(j, "held_bytes", agent->held_bytes);
    wfi_json_put_number(j, "notifications", agent->notifications);
    wfi_json_close(j, '}');
    return st;
}

weft_status weft_debug_dump(const weft_agent *const_agent, FILE *to)
{
    weft_agent *agent = (weft_agent *)const_agent; /* its lock is taken; nothing else of it changes */
    char *text = NULL;
    size_t size = 0;
    if (!agent || !to)
        return WEFT_ERR_INVALID;
    wfi_json j = {.to = open_memstream(&text, &size)};
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
