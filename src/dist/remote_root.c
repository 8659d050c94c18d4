/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_root.c - calls on the object of a handle: passes whose root is a value of another worker, and values that
 * are fetched as part of a context.
 *
 *   weft:backward  handle of the root; bytes (context: rank u32, incarnation u32, number u64; flags u8);
 *                  bytes (names of optimizers that step); tensors (gradients of the roots, or none)
 *   weft:recorded  handle. Gives the value
 */
#include "base/error.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"
#include "value/walk.h"

#include <weft/rref.h>

#define HEAD_BYTES (2 * sizeof(uint32_t) + sizeof(uint64_t) + 1)

/* ---- Where the root is ------------------------------------------------------------------------------------------- */

static void answer(weft_future *future, void *arg)
{
    weft_call *call = arg;
    if (weft_future_error(future))
        weft_call_fail_with(call, weft_future_error(future));
    weft_call_finish(call, WEFT_OK);
}

static void cancel(weft_future *cancellation, void *arg)
{
    if (weft_future_error(cancellation))
        (void)!weft_future_cancel(arg); /* it may have ended already */
}

static void unref_future(void *arg)
{
    weft_future_unref(arg);
}

/* The call is deferred, and answered when the pass ends; the pass ends if the answer is not wanted any longer. */
static void follow(weft_call *call, weft_future *pass)
{
    weft_future *cancellation = weft_call_cancellation(call);
    weft_status st = cancellation
                         ? weft_future_add_done_callback(cancellation, cancel, weft_future_ref(pass), unref_future)
                         : WEFT_ERR_MEMORY;
    weft_future_unref(cancellation);
    weft_call *kept = weft_call_defer_keeping(call);
    if (!st)
        st = weft_future_add_done_callback(pass, answer, kept, NULL);
    if (st) {
        (void)!weft_future_cancel(pass);
        weft_call_finish(kept, st);
    }
}

static weft_status run_backward(weft_call *call, void *user)
{
    (void)user;
    size_t size, step_size;
    wfi_reader head;
    weft_value value;
    const void *bytes = weft_call_bytes(call, 1, &size), *step_names = weft_call_bytes(call, 2, &step_size);
    wfi_reader_init(&head, bytes, size);
    weft_context_id id = {.rank = wfi_read_u32(&head), .incarnation = wfi_read_u32(&head)};
    id.number = wfi_read_u64(&head);
    uint8_t flags = wfi_read_u8(&head);
    if (head.failed || wfi_reader_left(&head))
        return WEFT_ERR_PROTOCOL;
    weft_status st = weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &value);
    if (st)
        return st;
    weft_tensors roots = wfi_tensors_in(&value);
    weft_context *context = wfi_contexts_find_ref(call->agent, &id);
    if (!roots.count || !context) {
        wfi_context_unref(context);
        weft_call_fail(call, WEFT_ERR_INVALID,
                       roots.count ? "this worker has nothing of the context" : "the root is no tensor");
        return WEFT_ERR_INVALID;
    }
    weft_error *error = NULL;
    weft_future *pass = wfi_context_backward(context, roots,
                                             &(weft_pass_options){.gradients = weft_call_tensors(call, 3),
                                                                  .retain = flags & WFI_PASS_RETAINS,
                                                                  .unordered = flags & WFI_PASS_UNORDERED,
                                                                  .timeout_ms = WEFT_FOREVER},
                                             (wfi_pass_names){step_names, step_size}, call, &error);
    wfi_context_unref(context);
    if (pass) {
        follow(call, pass);
        weft_future_unref(pass);
        return WEFT_DEFERRED;
    }
    st = weft_error_code(error);
    weft_call_fail_with(call, error);
    weft_error_unref(error);
    return st;
}

static weft_status run_fetch(weft_call *call, void *user)
{
    (void)user;
    weft_value value;
    weft_status st = weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &value);
    if (!st)
        weft_call_give(call, (weft_args){&value, 1});
    return st;
}

weft_status wfi_remote_roots_register(weft_agent *agent)
{
    static const weft_function functions[] = {
        {.name = "weft:backward",
         .takes = {WEFT_TYPE_RREF, WEFT_TYPE_BYTES, WEFT_TYPE_BYTES, WEFT_TYPE_TENSORS},
         .run = run_backward},
        {.name = "weft:recorded", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_REST}, .run = run_fetch},
    };
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && !st; i++)
        st = wfi_function_register(agent, &functions[i], NULL);
    return st;
}

/* ---- Who asks ---------------------------------------------------------------------------------------------------- */

weft_status weft_rref_backward(weft_rref *root, weft_context *context, const weft_pass_options *options,
                               weft_future **out)
{
    WFI_LIVE(root, context);
    static const weft_pass_options defaults;
    const weft_pass_options *how = options ? options : &defaults;
    if (!root || !context || !out)
        return wfi_refuse_null("weft_rref_backward", !root ? "the root" : context ? "out" : "the context");
    uint8_t room[HEAD_BYTES];
    wfi_writer head, names;
    wfi_writer_init(&head, room, sizeof room);
    wfi_write_u32(&head, context->id.rank);
    wfi_write_u32(&head, context->id.incarnation);
    wfi_write_u64(&head, context->id.number);
    wfi_write_u8(&head, (uint8_t)((how->retain ? WFI_PASS_RETAINS : 0) | (how->unordered ? WFI_PASS_UNORDERED : 0)));
    wfi_writer_init_growing(&names);
    int owner;
    weft_status st = how->step ? wfi_pass_write_optimizer(context->agent, how->step, &names, &owner) : WEFT_OK;
    weft_error *error = NULL;
    const wfi_reserved_call call = {.function = "weft:backward",
                                    .arguments = WEFT_VALUES(weft_of_bytes(room, head.size),
                                                             weft_of_bytes(names.data, names.size),
                                                             weft_of_tensors(how->gradients)),
                                    .timeout_ms = how->timeout_ms};
    if (!st)
        st = wfi_rref_start_reserved(root, &call, out, &error);
    if (error)
        wfi_rpc_give_error(context->agent, NULL, error);
    wfi_writer_fini(&names);
    return st;
}

weft_status weft_rref_fetch(weft_rref *rref, const weft_rpc_options *options, weft_future **out)
{
    WFI_LIVE(rref);
    if (!rref || !out)
        return wfi_refuse_null("weft_rref_fetch", rref ? "out" : "the handle");
    return weft_rref_rpc_async(rref, "weft:recorded", WEFT_NO_VALUES, options, out);
}
