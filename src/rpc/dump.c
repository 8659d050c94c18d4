/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump.c - weft_debug_dump: the state of an agent as one JSON object. The text is made in memory under the agent's
 * lock, so that it is consistent, and printed without the lock.
 */
#include "base/nosignal.h"
#include "base/text/json_writer.h"
#include "base/text/refuse.h"
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"

#include <stdlib.h>

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static const char *worker_state(weft_agent *agent, int rank)
{
    if (rank == wfi_agent_rank(agent))
        return agent->gone == WEFT_ERR_JOB_ENDED ? "job ended"
               : agent->gone                     ? "evicted"
               : agent->closing                  ? "closing"
               : agent->serve_number             ? "serving"
                                                 : "self";
    wfi_peer *peer = wfi_net_peer(agent->net, rank);
    switch (peer ? wfi_peer_status(peer) : WEFT_ERR_NOT_FOUND) {
    case WEFT_OK:
        return wfi_peer_is_leaving(peer) ? "leaving" : "alive";
    case WEFT_ERR_PEER_LEFT:
        return "left";
    case WEFT_ERR_NOT_FOUND:
        return "empty";
    default:
        return "dead";
    }
}

/* Of the two lanes to another worker, with the reason for the choice. */
static void put_fabrics(wfi_json *j, weft_agent *agent, int rank)
{
    static const char *const names[] = {[WFI_CONTROL] = "control", [WFI_BULK] = "bulk"};
    const wfi_peer *peer = rank == wfi_agent_rank(agent) ? NULL : wfi_net_peer(agent->net, rank);
    for (int kind = 0; peer && kind < WFI_LANE_KINDS; kind++) {
        char text[512];
        wfi_peer_fabric_text(peer, (wfi_lane_kind)kind, text, sizeof(text));
        wfi_json_put_text(j, names[kind], text);
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
        put_fabrics(j, agent, rank);
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

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
        wfi_json_put_number(j, "worker", (uint64_t)wfi_call_rank(call));
        wfi_json_put_ms(j, "age_ms", call->span.begun_ns, now, call->span.begun_ns != 0);
        wfi_json_put_ms(j, "time_left_ms", now, call->timer.deadline_ns, call->timer.heap_index != 0);
        wfi_json_put_text(j, "state", request_state(call));
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "call_count", agent->calls.count);
    wfi_json_put_number(j, "staged_bytes", atomic_load(&agent->staged_bytes));
}

static const char *stage_name(const weft_call *call)
{
    static const char *const names[] = {
        [WFI_SERVE_TAKING] = "taking arguments", [WFI_SERVE_SERVING] = "running", [WFI_SERVE_ANSWERING] = "answering"};
    if (call->queued && call->stage == WFI_SERVE_SERVING)
        return "waiting for its batch";
    if (call->in_line && call->stage == WFI_SERVE_SERVING)
        return "waiting for its turn";
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
        wfi_json_put_number(j, "callers", batcher->clients.count);
        wfi_json_close(j, '}');
    }
    wfi_json_close(j, ']');
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

weft_status weft_debug_dump(const weft_agent *agent, FILE *to)
{
    WFI_CHECK_HANDLE(agent);
    weft_agent *self = (weft_agent *)agent; /* changes only its lock */
    char *text = NULL;
    size_t size = 0;
    if (!agent || !to)
        return wfi_refuse_null("weft_debug_dump", agent ? "the file" : "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_json j = {.to = open_memstream(&text, &size), .separated = true};
    if (!j.to)
        return WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    uint64_t now = wfi_now(wfi_net_clock(agent->net));
    wfi_json_open(&j, NULL, '{');
    wfi_json_put_number(&j, "rank", (uint64_t)wfi_agent_rank(agent));
    put_workers(&j, self);
    weft_status status = wfi_refs_dump(self, &j);
    put_requests(&j, self, now);
    put_serving(&j, self, now);
    put_batches(&j, self);
    WFI_FOR_COMPONENTS (component, dump)
        component->dump(self, &j);
    wfi_json_put_number(&j, "held_bytes", agent->held_bytes);
    wfi_json_put_number(&j, "notifications", agent->notifications);
    wfi_json_close(&j, '}');
    fputc('\n', j.to);
    wfi_net_unlock(agent->net);
    bool full = ferror(j.to) != 0;
    if (fclose(j.to) || full)
        status = WEFT_ERR_MEMORY;
    if (!status && !(wfi_nosignal_write(to, text, size) && wfi_nosignal_flush(to)))
        status = WEFT_ERR_IO;
    free(text);
    return status;
}
