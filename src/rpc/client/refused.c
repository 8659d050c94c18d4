/* SPDX-License-Identifier: Apache-2.0 */
/* refused.c - handles REFUSED (sent by server/refuse.c): fails this worker's calls whose ids are in its range. */
#include "rpc/client/client.h"

#include "base/error.h"
#include "rpc/server/server.h"
#include "rpc/client/stream.h"

#include <stdlib.h>

/*
 * A call of weft_rpc_remote fails with WEFT_ERR_MEMORY: WEFT_ERR_BUSY would mean that the owner knows the name of the
 * result and keeps it for another attempt.
 */
static void fail_refused(wfi_request *call, bool no_memory)
{
    wfi_error_detail detail = {.code = call->remote || no_memory ? WEFT_ERR_MEMORY : WEFT_ERR_BUSY,
                               .function = call->function,
                               .worker = wfi_peer_rank(call->peer)};
    weft_error *error = wfi_error_create(&detail, "that worker is %s: the call did not run",
                                         no_memory ? "out of memory" : "over its memory budget (WEFT_MEMORY_BUDGET)");
    wfi_observe_replied(call->agent, &call->span);
    if (call->items)
        (void)wfi_items_in_expect(call->items, 0);
    wfi_call_complete(call, NULL, error, !call->land_exposed); /* as after a REPLY with an error */
    weft_error_unref(error);
}

/* Whether the call may have been refused: it was sent to this peer, and is not answered. */
static bool is_open_to(const wfi_request *call, const wfi_peer *from)
{
    return call && call->peer == from && call->message.net.sequence && call->results.state == WFI_INBOUND_NEW &&
           !call->failure && !call->completed;
}

/* Lists the calls first, because failing a call changes the table. False: no memory for the list. */
static bool refuse_by_table(weft_agent *agent, const wfi_peer *from, uint64_t first, uint64_t last, bool no_memory)
{
    size_t cursor = 0, count = 0;
    uint64_t id;
    wfi_request *call, **list = malloc((agent->calls.count + 1) * sizeof(*list));
    while (list && (call = wfi_map_next(&agent->calls, &cursor, &id)))
        if (id >= first && id <= last && is_open_to(call, from))
            list[count++] = call;
    for (size_t i = 0; i < count; i++)
        fail_refused(list[i], no_memory);
    free(list);
    return list != NULL;
}

void wfi_calls_on_refused(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    uint64_t *searched = &agent->peers[wfi_peer_rank(from)].refused.searched;
    uint64_t first = wfi_read_u64(reader), last = wfi_read_u64(reader);
    bool no_memory = wfi_read_u8(reader);
    uint64_t none_below = agent->next_call_id >> 40 << 40; /* the first id of this incarnation */
    if (last > agent->next_call_id)
        last = agent->next_call_id;
    if (first < none_below)
        first = none_below;
    if (first <= *searched) /* each id is searched once, so that a peer cannot cause repeated searches */
        first = *searched + 1;
    if (reader->failed || first > last)
        return;
    *searched = last;
    if (last - first >= agent->calls.count && refuse_by_table(agent, from, first, last, no_memory))
        return;
    for (uint64_t id = first; id <= last; id++) {
        wfi_request *call = wfi_map_get(&agent->calls, id);
        if (is_open_to(call, from))
            fail_refused(call, no_memory);
    }
}
