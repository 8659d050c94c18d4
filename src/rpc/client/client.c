/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - the caller's component of the agent: its messages, and failing calls when a worker is gone. */
#include "rpc/client/client.h"

#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "rpc/client/stream.h"

#include <stdlib.h>

static weft_status open_client(weft_agent *agent, weft_error **error)
{
    weft_status status = wfi_function_register(agent, &wfi_fetch_function, error);
    return status ? status : wfi_function_register(agent, &wfi_made_function, error);
}

static void on_client_message(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader)
{
    if (type == WFI_RPC_REPLY)
        wfi_call_on_reply(agent, from, reader);
    else if (type == WFI_RPC_ITEM)
        wfi_items_in_on_item(agent, from, reader);
    else
        wfi_calls_on_refused(agent, from, reader);
}

/* ---- Failing calls ----------------------------------------------------------------------------------------------- */

/* The next call that can fail, to this peer or (NULL) to any. */
static wfi_request *next_going_on(weft_agent *agent, const wfi_peer *peer, size_t *cursor)
{
    uint64_t id;
    wfi_request *call;
    while ((call = wfi_map_next(&agent->calls, cursor, &id)) &&
           (call->failure || call->landing || (peer && call->peer != peer)))
        continue;
    return call;
}

/* Fails the calls to this peer; `peer` NULL: the calls to all. */
static void fail_calls(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    size_t cursor = 0, count = 0;
    if (!peer)
        wfi_retries_fail_all(agent, why, text); /* first, so that none begins again */
    wfi_request *call, **list = malloc((agent->calls.count + 1) * sizeof(*list));
    while (list && (call = next_going_on(agent, peer, &cursor)))
        list[count++] = call;
    for (size_t i = 0; i < count; i++)
        wfi_call_fail(list[i], why, text);
    /* Without memory for the list, searches again after each call: failing a call changes the table. */
    while (!list && (cursor = 0, call = next_going_on(agent, peer, &cursor)))
        wfi_call_fail(call, why, text);
    free(list);
}

static void on_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    const char *with_rank = wfi_peer_gone_text(peer);
    fail_calls(agent, peer, why, with_rank ? with_rank : text);
}

static void on_peer_unreachable(weft_agent *agent, wfi_peer *peer, const char *text)
{
    fail_calls(agent, peer, WEFT_ERR_UNREACHABLE, text);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static bool has_calls(weft_agent *agent)
{
    return agent->calls.count > 0 || !wfi_list_empty(&agent->retries);
}

static void awaited_calls(weft_agent *agent, wfi_awaits *out)
{
    size_t cursor = 0;
    const wfi_request *first = NULL;
    for (const wfi_request *call; (call = wfi_map_next(&agent->calls, &cursor, NULL));)
        if (!first || call->id < first->id)
            first = call;
    if (first)
        wfi_awaits_add(out, "calls of this worker: %zu, the oldest \"%s\" to rank %d (%s) for %.1f s",
                       agent->calls.count, first->function, wfi_call_rank(first),
                       first->peer ? wfi_peer_name(first->peer) : "this worker",
                       (double)(out->now_ns - first->span.begun_ns) / 1e9);
    else if (!wfi_list_empty(&agent->retries))
        wfi_awaits_add(out, "calls that pause before their next attempt");
}

static void fail_calls_of_all(weft_agent *agent, weft_status why, const char *text)
{
    fail_calls(agent, NULL, why, text);
    wfi_local_complete_returned(agent);
}

static void free_client(weft_agent *agent)
{
    wfi_map_fini(&agent->calls);
}

const wfi_component wfi_client_component = {
    .messages = WFI_TAKES(WFI_RPC_REPLY) | WFI_TAKES(WFI_RPC_ITEM) | WFI_TAKES(WFI_RPC_REFUSED),
    .open = open_client,
    .message = on_client_message,
    .peer_gone = on_peer_gone,
    .unreachable = on_peer_unreachable,
    .self_gone = fail_calls_of_all,
    .closing = wfi_local_complete_returned,
    .busy = has_calls,
    .awaits = awaited_calls,
    .fail = fail_calls_of_all,
    .free = free_client,
};
