/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - whether a call can be made as it was asked for; and when it could not be started, which field or value was at
 * fault, in words.
 */
#include "rpc/client/client.h"

#include "base/error.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "value/values.h"

#include <stdarg.h>
#include <string.h>

static bool retry_is_good(const weft_retry *retry)
{
    return retry->attempts >= 0 && retry->pause_ms >= 0 && retry->pause_most_ms >= 0 && retry->attempt_ms >= 0;
}

weft_status wfi_plan_check(const weft_agent *agent, const wfi_call_plan *plan)
{
    const weft_rpc_options *options = plan->options;
    size_t length = plan->function ? strlen(plan->function) : 0;
    bool good = length > 0 && length <= WFI_FUNCTION_NAME_MAX && options->timeout_ms >= WEFT_FOREVER &&
                retry_is_good(&options->retry) && (!options->land.count || options->land.items);
    good = good && !(plan->remote && options->land.count) && (!options->within || options->within->agent == agent) &&
           wfi_args_are_readable(plan->arguments);
    return good && wfi_rrefs_are_of(agent, plan->arguments) ? WEFT_OK : WEFT_ERR_INVALID;
}

/* ---- What was at fault ------------------------------------------------------------------------------------------- */

typedef struct finding {
    char text[200]; /* empty: nothing */
    int worker;     /* where the fault lies */
} finding;

WEFT_PRINTF(2, 3)
static void find(finding *out, const char *format, ...)
{
    va_list args;
    if (out->text[0])
        return; /* the first one counts */
    va_start(args, format);
    vsnprintf(out->text, sizeof out->text, format, args);
    va_end(args);
}

static void look_at_rref(const weft_agent *agent, const weft_rref *rref, const char *path, finding *out)
{
    const int owner = rref ? weft_rref_owner(rref) : -1;
    if (!rref) {
        find(out, "%s is a NULL reference", path);
    } else if (!wfi_rrefs_are_of(agent, WEFT_VALUES(weft_of_rref((weft_rref *)rref)))) {
        find(out, "%s is a reference of another agent", path);
    } else if (!weft_agent_alive(agent, owner) && !out->text[0]) {
        find(out, "%s is a reference to a value of rank %d, which is gone", path, owner);
        out->worker = owner;
    } else if (!out->text[0] && wfi_rref_passable(rref)) {
        find(out, "%s is a reference to a value that was not made", path);
    }
}

static void look_at_tensors(weft_tensors tensors, const char *path, finding *out)
{
    if (tensors.count && !tensors.items)
        find(out, "%s is a list of %zu tensors at NULL", path, tensors.count);
    for (size_t i = 0; tensors.items && i < tensors.count; i++)
        if (!tensors.items[i])
            find(out, "%s: tensor %zu is NULL", path, i);
}

static void look_at_list(const weft_agent *agent, weft_args values, const char *path, int depth, finding *out);

static void look_at(const weft_agent *agent, const weft_value *value, const char *path, int depth, finding *out)
{
    switch (value->type) {
    case WEFT_TENSOR:
        if (!value->as.tensor)
            find(out, "%s is a NULL tensor", path);
        break;
    case WEFT_TENSORS:
        look_at_tensors(value->as.tensors, path, out);
        break;
    case WEFT_STRING:
    case WEFT_BYTES:
        if (!value->as.bytes.data && (value->type == WEFT_STRING || value->as.bytes.size))
            find(out, "%s is a %s at NULL", path, weft_type_name(value->type));
        break;
    case WEFT_RREF:
        look_at_rref(agent, value->as.rref, path, out);
        break;
    case WEFT_LIST:
        look_at_list(agent, value->as.list, path, depth + 1, out);
        break;
    case WEFT_NULL:
    case WEFT_BOOL:
    case WEFT_I64:
    case WEFT_F64:
        break;
    default:
        find(out, "%s has type %d, which is no type of a value", path, (int)value->type);
    }
}

static void look_at_list(const weft_agent *agent, weft_args values, const char *path, int depth, finding *out)
{
    if (depth > WEFT_MAX_LIST_DEPTH)
        find(out, "%s: lists in lists, more than %d deep", path, WEFT_MAX_LIST_DEPTH);
    else if (values.count > WEFT_MAX_VALUES)
        find(out, "%s: %zu values where a list may have %d", path, values.count, WEFT_MAX_VALUES);
    else if (values.count && !values.items)
        find(out, "%s: %zu values at NULL", path, values.count);
    for (size_t i = 0; values.items && i < values.count && !out->text[0]; i++) {
        char below[64];
        snprintf(below, sizeof below, "%.40s%s%zu", path, depth ? "." : " ", i);
        look_at(agent, &values.items[i], below, depth, out);
    }
}

static void look_at_options(const weft_agent *agent, const wfi_call_plan *plan, finding *out)
{
    const weft_rpc_options *options = plan->options;
    const weft_retry *retry = &options->retry;
    if (options->timeout_ms < WEFT_FOREVER)
        find(out, "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)options->timeout_ms);
    if (!retry_is_good(retry))
        find(out, "retry: attempts %d, pause_ms %lld, pause_most_ms %lld, attempt_ms %lld: none may be negative",
             retry->attempts, (long long)retry->pause_ms, (long long)retry->pause_most_ms,
             (long long)retry->attempt_ms);
    if (options->within && options->within->agent != agent)
        find(out, "within is a call of another agent");
    if (plan->remote && options->land.count)
        find(out, "land: the result of weft_rpc_remote stays where it is made");
    look_at_tensors(options->land, "land", out);
    if (options->land.count > WEFT_MAX_CALL_TENSORS)
        find(out, "land: %zu tensors where a call may have %d", options->land.count, WEFT_MAX_CALL_TENSORS);
    for (size_t i = 0; !out->text[0] && i < options->land.count; i++)
        if (!weft_tensor_is_contiguous(options->land.items[i]))
            find(out, "land: tensor %zu is not contiguous", i);
}

/* What is wrong with the values, each or all together. */
static void look_at_values(const weft_agent *agent, weft_args values, const char *path, finding *out)
{
    look_at_list(agent, values, path, 0, out);
    if (!out->text[0] && wfi_args_are_readable(values) && !wfi_pack_fits(values, out->text, sizeof out->text))
        out->text[0] = '\0';
}

weft_error *wfi_values_explain(const weft_agent *agent, weft_args values, weft_status why)
{
    finding found = {.worker = -1};
    if (why == WEFT_ERR_INVALID || why == WEFT_ERR_TOO_LARGE)
        look_at_values(agent, values, "value", &found);
    wfi_error_detail detail = {.code = why, .worker = found.worker};
    return wfi_error_create(&detail, "%s", found.text[0] ? found.text : weft_status_text(why));
}

void wfi_args_fault(const weft_agent *agent, weft_args values, weft_status why, const char *what, char *text,
                    size_t room)
{
    finding found = {.worker = -1};
    if (why == WEFT_ERR_INVALID || why == WEFT_ERR_TOO_LARGE || why == WEFT_ERR_NOT_FOUND)
        look_at_values(agent, values, what, &found);
    snprintf(text, room, "%s", found.text);
}

static void look_at_queue(weft_agent *agent, const wfi_call_plan *plan, weft_status why, int rank, finding *out)
{
    wfi_net_lock(agent->net);
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    size_t kept = peer ? wfi_peer_kept_bytes(peer) : 0, limit = agent->options.values.queue_limit_bytes;
    wfi_net_unlock(agent->net);
    if (why == WEFT_ERR_TIMEOUT)
        find(out, "no room in the queue to rank %d within the time limit: %zu of queue_limit_bytes = %zu wait there",
             rank, kept, limit);
    else if (plan->options->wait_for_room)
        find(out, "no room in the queue to rank %d, and an inline handler cannot wait for it", rank);
    else
        find(out, "the queue to rank %d is full: %zu of queue_limit_bytes = %zu wait there; wait_for_room waits", rank,
             kept, limit);
}

static void look_at_incarnation(weft_agent *agent, const wfi_call_plan *plan, int rank, finding *out)
{
    wfi_net_lock(agent->net);
    const wfi_member *member = wfi_net_member(agent->net, rank);
    uint32_t asked = plan->to.incarnation, known = member ? member->incarnation : 0;
    wfi_net_unlock(agent->net);
    if (asked > known)
        find(out, "incarnation %u of rank %d was never heard of: the latest known here is %u", asked, rank, known);
    else if (asked && asked < known)
        find(out, "incarnation %u of rank %d is gone: the rank is incarnation %u's now", asked, rank, known);
}

static void look_at_parent(const weft_rpc_options *options, weft_status why, finding *out)
{
    if (options->within && why == WEFT_ERR_TIMEOUT)
        find(out, "the call that it is made within has run out of time");
    else if (options->within && why == WEFT_ERR_CANCELLED)
        find(out, "the call that it is made within was cancelled");
}

/* What is wrong with neither the options nor the arguments, but with where it was to go, or when. */
static void look_at_way(weft_agent *agent, const wfi_call_plan *plan, weft_status why, int rank, finding *out)
{
    bool waited = plan->waited && (why == WEFT_ERR_TIMEOUT || why == WEFT_ERR_DEADLOCK);
    if (rank >= 0 && (why == WEFT_ERR_AGAIN || waited))
        look_at_queue(agent, plan, why, rank, out);
    if (rank >= 0 && (why == WEFT_ERR_UNREACHABLE || why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT))
        look_at_incarnation(agent, plan, rank, out);
    look_at_parent(plan->options, why, out);
}

weft_error *wfi_plan_explain(weft_agent *agent, const wfi_call_plan *plan, weft_status why, int rank)
{
    bool ours = why == WEFT_ERR_INVALID || why == WEFT_ERR_TOO_LARGE,
         theirs = why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT;
    finding found = {.worker = ours ? -1 : rank};
    size_t length = plan->function ? strlen(plan->function) : 0;
    if (ours && (length == 0 || length > WFI_FUNCTION_NAME_MAX))
        find(&found, "a function's name of %zu bytes: 1 to %d", length, WFI_FUNCTION_NAME_MAX);
    if (ours)
        look_at_options(agent, plan, &found);
    if (ours || (why == WEFT_ERR_NOT_FOUND && rank >= 0) || (theirs && weft_agent_alive(agent, rank)))
        look_at_values(agent, plan->arguments, "argument", &found);
    look_at_way(agent, plan, why, rank, &found);
    wfi_error_detail detail = {.code = why, .function = plan->function, .worker = found.worker}; /* it did not run */
    return wfi_error_create(&detail, "the call could not be started: %s",
                            found.text[0] ? found.text : weft_status_text(why));
}
