/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c - handles in the arguments of calls: their names, whether their values exist, why one cannot be passed on. */
#include "rpc/refs/internal.h"

#include "base/error.h"
#include "value/walk.h"

/* The status of a call with a lost handle among its arguments. WEFT_ERR_AGAIN and WEFT_ERR_BUSY of the call that was to
 * make the value are replaced: they would mean that this call may be made again. [agent lock] */
static weft_status lost_status(const weft_rref *rref)
{
    weft_status why = weft_error_code(rref->error);
    return why == WEFT_ERR_AGAIN || why == WEFT_ERR_BUSY ? WEFT_ERR_NOT_FOUND : why;
}

weft_status wfi_rref_passable(const weft_rref *rref)
{
    if (!wfi_agent_enter_locked(rref->agent))
        return WEFT_ERR_CLOSED;
    weft_status status = rref->lost ? lost_status(rref) : WEFT_OK;
    wfi_agent_leave_locked(rref->agent);
    return status;
}

/* If its call was not sent yet (or waits for its next attempt), the handle gets the name that the call will have. The
 * owner may now learn the name from others, so it must be told if the call is given up (`needs_drop`). */
weft_status wfi_rref_pass(weft_rref *rref, wfi_rref_name *name)
{
    weft_agent *agent = rref->agent;
    if (!wfi_agent_enter_locked(agent))
        return WEFT_ERR_CLOSED;
    weft_status status = rref->lost ? lost_status(rref) : WEFT_OK;
    if (!status && !rref->home && !rref->launched && !rref->passed) {
        rref->name.number = ++wfi_refs_of(agent)->next_number;
        rref->passed = true;
        rref->needs_drop = true;
    }
    *name = rref->name;
    wfi_agent_leave_locked(agent);
    return status;
}

/* Why its value was not made, or is lost, as far as this worker knows; borrowed. NULL: no failure is known.
 * [agent lock] */
static const weft_error *known_failure(const weft_rref *rref)
{
    if (rref->lost || (rref->error && !rref->making))
        return rref->error;
    return rref->value && weft_future_done(rref->value) ? weft_future_error(rref->value) : NULL;
}

/* The error of a call with the handle among its arguments. That call did not run; the handler that was to make the
 * value may have run. */
static weft_error *failure_of_call(const weft_rref *rref, const weft_error *why, const char *function, const char *path)
{
    weft_status code = weft_error_code(why);
    bool owner_gone = code == WEFT_ERR_PEER_DEAD || code == WEFT_ERR_PEER_LEFT;
    bool no_room = code == WEFT_ERR_AGAIN || code == WEFT_ERR_BUSY; /* for that call; a retry of this one is no use */
    const char *maker = weft_error_function(why);
    wfi_error_detail detail = {.code = no_room ? WEFT_ERR_NOT_FOUND : code,
                               .remote_code = code == WEFT_ERR_REMOTE ? wfi_error_remote_code(why) : WEFT_OK,
                               .function = function,
                               .worker = weft_error_worker(why),
                               .did_not_run = true};
    if (owner_gone)
        return wfi_error_create(&detail, "argument %s is a reference to a value of rank %u, which is gone: %s", path,
                                rref->name.owner, weft_error_message(why));
    return wfi_error_create(&detail, "argument %s is a reference to a value that was not made: %s%s%s", path, maker,
                            maker[0] ? ": " : "", weft_error_message(why));
}

weft_error *wfi_rrefs_failed(weft_args values, const char *function)
{
    wfi_walk walk;
    weft_error *error = NULL;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; !error && (value = wfi_walk_next(&walk));) {
        weft_rref *rref = value->type == WEFT_TYPE_RREF ? value->as.rref : NULL;
        char path[WFI_WALK_PATH];
        if (!rref)
            continue;
        wfi_assert_held(wfi_net_mutex(rref->agent->net));
        const weft_error *why = known_failure(rref);
        if (why)
            error = failure_of_call(rref, why, function, wfi_walk_path(&walk, path));
    }
    return error;
}

bool wfi_rrefs_are_among(weft_args values)
{
    wfi_walk walk;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));)
        if (value->type == WEFT_TYPE_RREF)
            return true;
    return false;
}

size_t wfi_rrefs_await(weft_args values, weft_done_fn then, void *arg, bool *memory_out)
{
    wfi_walk walk;
    size_t count = 0;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));) {
        weft_rref *rref = value->type == WEFT_TYPE_RREF ? value->as.rref : NULL;
        if (!rref || rref->home || !rref->making)
            continue;
        if (!rref->made)
            rref->made = wfi_agent_future(rref->agent);
        if (rref->made && weft_future_add_done_callback(rref->made, then, arg, NULL) == WEFT_OK)
            count++;
        else
            *memory_out = true;
    }
    return count;
}

bool wfi_rrefs_are_of(const weft_agent *agent, weft_args values)
{
    wfi_walk walk;
    wfi_walk_begin(&walk, values);
    for (const weft_value *value; (value = wfi_walk_next(&walk));)
        if (value->type == WEFT_TYPE_RREF && value->as.rref && value->as.rref->agent != agent)
            return false;
    return true;
}
