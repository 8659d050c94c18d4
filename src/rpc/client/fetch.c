/* SPDX-License-Identifier: Apache-2.0 */
/* client/fetch.c - the two questions that an owner answers about a value: what it is ("weft:fetch"), and whether it is there
 * ("weft:made"). */
#include "rpc/refs/refs.h"
#include "rpc/refs/internal.h"

#include "base/error.h"
#include "rpc/server/server.h"

weft_error *wfi_object_stays(const wfi_object *object, int owner)
{
    wfi_error_detail detail = {.code = WEFT_ERR_TYPE, .worker = owner};
    return wfi_error_create(&detail, "the reference names an object of its owner's own%s%s, which stays there",
                            object->type ? " type, " : "", object->type ? object->type->name : "");
}

weft_value wfi_value_made(const weft_future *value)
{
    weft_args args = weft_values_args(weft_future_values(value));
    return args.count ? args.items[0] : weft_of_null();
}

static void give_value(weft_call *call, weft_future *value)
{
    const wfi_object *object = wfi_object_of(value);
    if (object)
        call->error = wfi_object_stays(object, wfi_agent_rank(call->agent));
    else
        weft_call_give(call, WEFT_VALUES(wfi_value_made(value)));
}

/* `arg` is the call. */
static void answer(weft_future *value, void *arg, bool with_value)
{
    weft_call *call = arg;
    const weft_error *error = weft_future_error(value);
    if (error) /* as it was: the one who asks shall see why the value could not be made */
        call->error = wfi_error_with_hop(error, wfi_agent_rank(call->agent));
    else if (with_value)
        give_value(call, value);
    else
        weft_call_give(call, WEFT_NO_VALUES);
    weft_call_finish(call, WEFT_OK);
}

static void answer_fetch(weft_future *value, void *arg)
{
    answer(value, arg, true);
}

static void answer_made(weft_future *value, void *arg)
{
    answer(value, arg, false);
}

static weft_status await_value(weft_call *call, weft_done_fn then)
{
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    wfi_rref_name name = wfi_read_rref_name(&reader);
    if (reader.failed)
        return WEFT_ERR_PROTOCOL;
    wfi_net_lock(agent->net);
    wfi_owned *owned = wfi_owned_find(agent, &name);
    weft_future *value = owned ? weft_future_ref(owned->value) : NULL;
    wfi_net_unlock(agent->net);
    if (!value)
        return WEFT_ERR_NOT_FOUND;
    weft_call_defer(call);
    if (weft_future_add_done_callback(value, then, call, NULL)) {
        weft_call_fail(call, WEFT_ERR_MEMORY, "no memory to wait for the value");
        weft_call_finish(call, WEFT_ERR_MEMORY);
    }
    weft_future_unref(value);
    return WEFT_DEFERRED;
}

static weft_status run_fetch(weft_call *call, void *user)
{
    (void)user;
    return await_value(call, answer_fetch);
}

static weft_status run_made(weft_call *call, void *user)
{
    (void)user;
    return await_value(call, answer_made);
}

const weft_function wfi_fetch_function = {
    .name = "weft:fetch", .takes = {WEFT_BYTES}, .gives = {WEFT_ANY}, .run = run_fetch, .flags = WEFT_INLINE};
const weft_function wfi_made_function = {
    .name = "weft:made", .takes = {WEFT_BYTES}, .run = run_made, .flags = WEFT_INLINE};
