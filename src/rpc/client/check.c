/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - checks a call spec before anything is started. If a call could not be started, names the faulty field or
 * value.
 */
#include "rpc/client/client.h"

#include "base/error.h"
#include "base/text/sized.h"
#include "rpc/payload/explain.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "value/value.h"
#include "value/walk.h"

#include <string.h>

static bool retry_is_good(const weft_retry *retry)
{
    return WFI_ROOM_IS_ZERO(retry) && retry->attempts >= 0 && retry->pause_ms >= 0 && retry->pause_most_ms >= 0 &&
           retry->attempt_ms >= 0;
}

weft_status wfi_spec_check(const weft_agent *agent, const wfi_call_spec *spec)
{
    const weft_rpc_options *options = spec->options;
    wfi_handle_check(options->parent, "weft_rpc_options.parent");
    size_t length = spec->function ? strlen(spec->function) : 0;
    bool good = length > 0 && length <= WFI_FUNCTION_NAME_MAX && options->timeout_ms >= WEFT_FOREVER &&
                retry_is_good(&options->retry) && (!options->land.count || options->land.items);
    good = good && !(spec->remote && options->land.count) && (!options->parent || options->parent->agent == agent) &&
           wfi_args_are_readable(spec->arguments);
    return good && wfi_rrefs_are_of(agent, spec->arguments) ? WEFT_OK : WEFT_ERR_INVALID;
}

/* ---- The faulty field or value ----------------------------------------------------------------------------------- */

static void check_options(const weft_agent *agent, const wfi_call_spec *spec, wfi_finding *out)
{
    const weft_rpc_options *options = spec->options;
    const weft_retry *retry = &options->retry;
    if (options->timeout_ms < WEFT_FOREVER)
        wfi_find(out, "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)options->timeout_ms);
    if (!WFI_ROOM_IS_ZERO(retry))
        wfi_find(out, WFI_NEWER, "weft_retry");
    else if (!retry_is_good(retry))
        wfi_find(out, "retry: attempts %d, pause_ms %lld, pause_most_ms %lld, attempt_ms %lld: none may be negative",
                 retry->attempts, (long long)retry->pause_ms, (long long)retry->pause_most_ms,
                 (long long)retry->attempt_ms);
    if (options->parent && options->parent->agent != agent)
        wfi_find(out, "parent is a call of another agent");
    if (spec->remote && options->land.count)
        wfi_find(out, "land: the result of weft_rpc_remote stays where it is made");
    wfi_find_in_tensors(options->land, "land", out);
    for (size_t i = 0; !out->text[0] && i < options->land.count; i++)
        if (!weft_tensor_is_contiguous(options->land.items[i]))
            wfi_find(out, "land: tensor %zu is not contiguous", i);
    wfi_find_inaccessible(options->land, "land", true, out);
}

static void check_queue(const weft_agent *agent, const wfi_call_spec *spec, weft_status why, int rank, wfi_finding *out)
{
    size_t kept = spec->kept_bytes, limit = agent->options.values.queue_limit_bytes;
    long long limit_ms = spec->options->timeout_ms ? spec->options->timeout_ms : agent->call_timeout_ms;
    if (why == WEFT_ERR_TIMEOUT)
        wfi_find(out,
                 "no room in the queue to rank %d within the time limit, %lld ms: %zu of queue_limit_bytes = %zu wait "
                 "there",
                 rank, limit_ms, kept, limit);
    else if (spec->options->wait_for_room)
        wfi_find(out, "no room in the queue to rank %d, and an inline handler cannot wait for it", rank);
    else
        wfi_find(out, "the queue to rank %d is full: %zu of queue_limit_bytes = %zu wait there; wait_for_room waits",
                 rank, kept, limit);
}

static void check_incarnation(weft_agent *agent, const wfi_call_spec *spec, int rank, wfi_finding *out)
{
    wfi_net_lock(agent->net);
    const wfi_member *member = wfi_net_member(agent->net, rank);
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    uint32_t asked = spec->to.incarnation, known = member ? member->incarnation : 0;
    uint32_t ours = wfi_net_member(agent->net, wfi_agent_rank(agent))->incarnation;
    bool has_fabric = !peer || wfi_peer_has_fabric(peer);
    wfi_net_unlock(agent->net);
    if (!known && asked && asked < ours)
        wfi_find(out, "incarnation %u of rank %d was gone before this worker joined", asked, rank);
    else if (asked > known)
        wfi_find(out, "incarnation %u of rank %d is unknown: the latest one known here is %u", asked, rank, known);
    else if (asked && asked < known)
        wfi_find(out, "incarnation %u of rank %d is gone: incarnation %u has the rank now", asked, rank, known);
    else if (!has_fabric)
        wfi_find(out, "rank %d cannot be reached: " WFI_NO_FABRIC, rank);
}

static void check_leaving(weft_agent *agent, int rank, wfi_finding *out)
{
    wfi_net_lock(agent->net);
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    if (peer && !wfi_peer_status(peer) && wfi_peer_is_leaving(peer))
        wfi_find(out, "rank %d (%s) is leaving the job", rank, wfi_peer_name(peer));
    wfi_net_unlock(agent->net);
}

/* Why the worker, or this one, is no longer in the job, or why no payload can be moved to it. */
static void check_end(weft_agent *agent, weft_status why, int rank, wfi_finding *out)
{
    char text[384] = "";
    wfi_net_lock(agent->net);
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    bool lacks_bulk = peer && why == WEFT_ERR_UNREACHABLE && !wfi_peer_status(peer) && wfi_peer_has_fabric(peer) &&
                      !wfi_peer_has_bulk(peer);
    if (peer && (wfi_peer_status(peer) == why || lacks_bulk))
        wfi_peer_bulk_problem(peer, text, sizeof(text));
    bool has_ended = peer && wfi_peer_status(peer);
    wfi_net_unlock(agent->net);
    if (text[0])
        wfi_find(out, "%s%s%s", has_ended ? "" : weft_status_text(why), has_ended ? "" : ": ", text);
}

/* Why an argument has no place on the devices of the worker. */
static void check_devices(weft_agent *agent, const wfi_call_spec *spec, int rank, char *problem, size_t room)
{
    wfi_walk walk;
    weft_status status = WEFT_OK;
    problem[0] = '\0';
    wfi_walk_begin(&walk, spec->arguments);
    wfi_net_lock(agent->net);
    for (const weft_value *value; !status && (value = wfi_walk_next(&walk));) {
        weft_tensors tensors = wfi_value_tensors(value);
        for (size_t i = 0; i < tensors.count && !status; i++) {
            uint8_t there;
            status = wfi_device_there(agent, rank, wfi_device_code(weft_tensor_device(tensors.items[i])), &there,
                                      problem, room);
        }
    }
    wfi_net_unlock(agent->net);
}

weft_error *wfi_spec_explain(weft_agent *agent, const wfi_call_spec *spec, weft_status why, int rank)
{
    wfi_error_detail nobody = {.code = why, .function = spec->function, .worker = -1};
    if (agent->forked) /* the agent's data must not be used */
        return wfi_error_create(&nobody, "the call could not be started: %s", WFI_FORKED_TEXT);
    bool ours = why == WEFT_ERR_INVALID || why == WEFT_ERR_TOO_LARGE,
         theirs = why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT;
    wfi_finding found = {.worker = ours ? -1 : rank};
    char device[WFI_DEVICE_PROBLEM] = "";
    size_t length = spec->function ? strlen(spec->function) : 0;
    if (ours && (length == 0 || length > WFI_FUNCTION_NAME_MAX))
        wfi_find(&found, "a function's name of %zu bytes: 1 to %d", length, WFI_FUNCTION_NAME_MAX);
    if (ours)
        check_options(agent, spec, &found);
    if (why == WEFT_ERR_NOT_FOUND && rank >= 0 && !weft_agent_worker(agent, rank).incarnation)
        wfi_find(&found, "rank %d: " WFI_UNKNOWN_RANK_TEXT, rank, agent->options.name);
    if (why == WEFT_ERR_PEER_LEFT && rank >= 0)
        check_leaving(agent, rank, &found);
    if (ours || (why == WEFT_ERR_NOT_FOUND && rank >= 0) || (theirs && weft_agent_alive(agent, rank)))
        wfi_find_in_values(agent, spec->arguments, "argument", &found);
    if (why == WEFT_ERR_INVALID && rank >= 0 && !found.text[0] && wfi_args_are_readable(spec->arguments))
        check_devices(agent, spec, rank, device, sizeof(device));
    /* Faults of the target or the time, not of options or arguments. */
    bool waited = spec->waited && (why == WEFT_ERR_TIMEOUT || why == WEFT_ERR_DEADLOCK);
    if (rank >= 0 && (why == WEFT_ERR_AGAIN || waited))
        check_queue(agent, spec, why, rank, &found);
    if (rank < 0 && why == WEFT_ERR_AGAIN)
        wfi_find(&found,
                 "page-locked memory for tensors of devices is at memory_budget_bytes = %zu: wait_for_room waits until "
                 "calls before have ended",
                 agent->options.values.memory_budget_bytes);
    if (why == WEFT_ERR_SYSTEM && wfi_args_are_readable(spec->arguments) && wfi_values_on_device(spec->arguments))
        wfi_find(&found, "its arguments could not be copied from a device: the log has the reason of its driver");
    if (why == WEFT_ERR_UNSUPPORTED && spec->options->tape)
        wfi_find(&found, "land: a call to oneself on a tape of a distributed context has no landing places");
    if (why == WEFT_ERR_STATE && spec->source) {
        wfi_find(&found, "its distributed context is over");
        found.worker = -1;
    }
    if (rank >= 0 && (theirs || why == WEFT_ERR_UNREACHABLE))
        check_incarnation(agent, spec, rank, &found);
    if (rank >= 0 && !spec->to.incarnation)
        check_end(agent, why, rank, &found);
    if (spec->options->parent && why == WEFT_ERR_TIMEOUT)
        wfi_find(&found, "the deadline of its parent call has passed");
    else if (spec->options->parent && why == WEFT_ERR_CANCELLED)
        wfi_find(&found, "its parent call was cancelled");
    wfi_error_detail detail = {.code = why, .function = spec->function, .worker = found.worker}; /* it did not run */
    return wfi_error_create(&detail, "the call could not be started: %s",
                            device[0]       ? device
                            : found.text[0] ? found.text
                                            : weft_status_text(why));
}
