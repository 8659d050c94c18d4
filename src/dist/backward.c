/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward.c - starts a backward pass at its root: on this worker, or on the worker of a handle by these functions.
 *
 *   weft:backward  handle of the root; bytes (context: rank u32, incarnation u32, number u64; flags u8);
 *                  bytes (names of optimizers that step); tensors (gradients of the roots, or none)
 *   weft:recorded  handle. Gives the value, fetched as part of a context
 */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/text/sized.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"
#include "rpc/refs/refs.h"
#include "tensor/copy.h"
#include "value/walk.h"

#include <weft/rref.h>

#include <stdlib.h>

#define ROOT_HEAD_BYTES (2 * sizeof(uint32_t) + sizeof(uint64_t) + 1)

/* The names of the optimizers that step at the end of a pass, as they travel: see wfi_pass_step_fn. Borrowed. */
typedef struct step_names {
    const void *bytes;
    size_t size;
} step_names;

static weft_error *refuse(weft_status code, const char *format, ...) WEFT_PRINTF(2, 3);
static weft_error *refuse(weft_status code, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .function = "dist_backward", .worker = -1};
    va_list args;
    va_start(args, format);
    weft_error *error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

/* The initial gradient of a root: one reference, contiguous. NULL: *error says why. */
static weft_tensor *initial_gradient(const weft_tensor *root, size_t index, weft_tensor *given, weft_error **error)
{
    if (!given && root->numel != 1) {
        *error = refuse(WEFT_ERR_SHAPE, "root %zu has %lld elements, not one: give its gradient", index,
                        (long long)root->numel);
        return NULL;
    }
    if (given && (given->dtype != root->dtype || !wfi_shape_equal(&given->shape, &root->shape))) {
        *error = refuse(WEFT_ERR_SHAPE, "the gradient of root %zu is not of its shape and dtype", index);
        return NULL;
    }
    weft_device device = weft_tensor_device(root), have = given ? weft_tensor_device(given) : device;
    if (!wfi_device_equal(have, device)) {
        char there[WFI_DEVICE_TEXT], here[WFI_DEVICE_TEXT];
        *error = refuse(WEFT_ERR_UNSUPPORTED, "the gradient of root %zu is on %s, the root on %s", index,
                        wfi_device_text(have, there), wfi_device_text(device, here));
        return NULL;
    }
    weft_tensor *gradient =
        given ? wfi_tensor_contiguous(given, NULL) : wfi_tensor_full_like(root, root->shape, root->dtype, 1);
    if (!gradient)
        *error = refuse(WEFT_ERR_MEMORY, "out of memory");
    return gradient;
}

static weft_error *add_roots(wfi_pass *pass, weft_tensors roots, weft_tensors gradients)
{
    weft_error *error = NULL;
    if (!roots.count)
        return refuse(WEFT_ERR_INVALID, "no roots are given");
    if (!roots.items || (gradients.count && !gradients.items))
        return refuse(WEFT_ERR_INVALID, "the list of %s is NULL", roots.items ? "gradients" : "roots");
    if (gradients.count && gradients.count != roots.count)
        return refuse(WEFT_ERR_INVALID, "%zu gradients for %zu roots", gradients.count, roots.count);
    for (size_t i = 0; i < roots.count && !error; i++) {
        weft_tensor *root = roots.items[i];
        if (!root)
            return refuse(WEFT_ERR_INVALID, "root %zu is NULL", i);
        if (!wfi_graph_made(pass->context->graph, root))
            return refuse(WEFT_ERR_INVALID, "root %zu was not recorded under this context: it %s", i,
                          root->grad_node                   ? "was under another one, or on a local tape"
                          : weft_tensor_requires_grad(root) ? "is a leaf, not what was computed from one"
                                                            : "depends on nothing that wants a gradient");
        weft_tensor *gradient = initial_gradient(root, i, gradients.count ? gradients.items[i] : NULL, &error);
        if (gradient)
            wfi_engine_root(&pass->engine, root->grad_node, root->grad_result, gradient);
    }
    return error;
}

/* ---- The root's end by others ------------------------------------------------------------------------------------ */

static void time_is_up(wfi_timer *timer)
{
    wfi_pass *pass = wfi_container_of(timer, wfi_pass, timer);
    wfi_pass_post_failure(
        pass, WFI_PASS_EVENT_END, 0,
        refuse(WEFT_ERR_TIMEOUT, "the pass did not end within its time limit, %lld ms", (long long)pass->limit_ms),
        WFI_RUN_LOCKED);
}

static void hold_pass(void *owner)
{
    wfi_pass_ref(owner);
}

static void cancel_pass(void *owner, uint64_t id)
{
    wfi_pass *pass = owner;
    (void)id;
    if (wfi_agent_enter(pass->agent)) {
        wfi_error_detail detail = {
            .code = WEFT_ERR_CANCELLED, .function = "dist_backward", .worker = wfi_agent_rank(pass->agent)};
        wfi_pass_post_failure(pass, WFI_PASS_EVENT_END, 0, wfi_error_create(&detail, "the pass was cancelled"),
                              WFI_RUN_LATER);
        wfi_agent_leave(pass->agent);
    }
    wfi_pass_unref(pass);
}

static const wfi_canceller canceller = {.hold = hold_pass, .cancel = cancel_pass};

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

static weft_status set_timer(wfi_pass *pass, int64_t timeout_ms)
{
    weft_agent *agent = pass->agent;
    wfi_net_lock(agent->net);
    int64_t limit = timeout_ms ? timeout_ms : agent->call_timeout_ms;
    weft_status status = WEFT_OK;
    pass->timer.fire = time_is_up;
    pass->limit_ms = limit;
    if (limit != WEFT_FOREVER)
        status = wfi_net_timer_set(agent->net, &pass->timer, wfi_deadline(wfi_net_clock(agent->net), limit));
    wfi_net_unlock(agent->net);
    return status;
}

/*
 * Writes the names of the parts of `optimizer`. WEFT_ERR_INVALID: it belongs to another agent; or the failure of
 * worker *owner.
 */
static weft_status write_parts(const weft_agent *agent, const weft_dist_optimizer *optimizer, wfi_writer *names,
                               int *owner)
{
    *owner = -1;
    if (optimizer->agent != agent)
        return WEFT_ERR_INVALID;
    for (size_t i = 0; i < optimizer->count; i++) {
        wfi_rref_name name;
        weft_status status = wfi_rref_pass(optimizer->parts[i], &name);
        *owner = weft_rref_owner(optimizer->parts[i]);
        if (status)
            return status;
        wfi_reference_write_name(names, &name);
    }
    return names->failed ? WEFT_ERR_MEMORY : WEFT_OK;
}

static weft_error *write_optimizer(const weft_agent *agent, const weft_dist_optimizer *optimizer, wfi_writer *names)
{
    int owner = -1;
    weft_status status = optimizer ? write_parts(agent, optimizer, names, &owner) : WEFT_OK;
    if (!status)
        return NULL;
    wfi_error_detail detail = {.code = status, .function = "dist_backward", .worker = owner};
    const char *what =
        status == WEFT_ERR_INVALID && owner < 0 ? "it was made by another agent" : weft_status_text(status);
    return owner < 0 ? wfi_error_create(&detail, "the optimizer that is to step: %s", what)
                     : wfi_error_create(&detail, "the optimizer that is to step: its part at rank %d: %s", owner, what);
}

/* Makes a pass whose first round has not run, with `running` set; NULL: *error. */
static wfi_pass *begin_pass(weft_context *context, weft_tensors roots, weft_hooks *hooks,
                            const weft_pass_options *options, step_names steps, weft_error **error)
{
    weft_agent *agent = context->agent;
    unsigned flags = (options->retain ? WFI_PASS_RETAINS : 0) | (options->unordered ? WFI_PASS_UNORDERED : 0);
    if (options->timeout_ms < WEFT_FOREVER) {
        *error =
            refuse(WEFT_ERR_INVALID, "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)options->timeout_ms);
        return NULL;
    }
    wfi_pass *pass = wfi_pass_create(context, flags);
    if (pass)
        pass->future = wfi_agent_future(agent);
    if (!pass || !pass->future) {
        *error = refuse(WEFT_ERR_MEMORY, "out of memory");
        wfi_pass_discard(pass);
        return NULL;
    }
    pass->engine.hooks = weft_hooks_ref(hooks);
    pass->running = true;
    wfi_future_set_canceller(pass->future, &canceller, pass, 0);
    *error = add_roots(pass, roots, options->gradients);
    weft_status status = *error ? WEFT_OK : wfi_pass_copy_step_names(pass, steps.bytes, steps.size);
    if (!*error && !status) {
        wfi_mutex_lock(&context->lock);
        status = context->over ? WEFT_ERR_STATE : WEFT_OK;
        if (!status)
            wfi_pass_enlist(pass, wfi_agent_rank(agent), ++context->last_pass);
        wfi_mutex_unlock(&context->lock);
    }
    if (!*error && !status)
        status = set_timer(pass, options->timeout_ms);
    if (status)
        *error = refuse(status, "%s", status == WEFT_ERR_STATE ? "the context is over" : weft_status_text(status));
    if (!*error)
        return pass;
    wfi_pass_discard(pass);
    return NULL;
}

/*
 * Starts a pass here, as weft_context_backward does, for the served call `within` or NULL. The optimizers of `steps`
 * step; options->step is ignored. Returns its future; NULL: *error.
 */
static weft_future *start_pass(weft_context *context, weft_tensors roots, const weft_pass_options *options,
                               step_names steps, const weft_call *within, weft_error **error)
{
    weft_agent *agent = context->agent;
    wfi_pass *pass = begin_pass(context, roots, NULL, options, steps, error);
    if (!pass)
        return NULL;
    pass->for_peer = within != NULL;
    if (within)
        wfi_pass_observe_within(pass, within);
    weft_future *future = weft_future_ref(pass->future);
    wfi_net_lock(agent->net);
    wfi_net_defer(agent->net, &pass->task, WFI_DEFER_WORKER); /* takes over this function's reference */
    wfi_net_unlock(agent->net);
    return future;
}

weft_status weft_context_backward_sized(weft_context *context, weft_tensors roots, const weft_pass_options *options,
                                        size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(context);
    if (!context || !out)
        return wfi_refuse_null("weft_context_backward", context ? "out" : "the context");
    weft_agent *agent = context->agent;
    weft_pass_options own;
    const weft_pass_options *how = WFI_SIZED(options, size, &own);
    if (!how)
        return wfi_refuse_newer(NULL, "weft_context_backward", "weft_pass_options");
    wfi_writer names;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    wfi_writer_init_growing(&names);
    weft_error *error = write_optimizer(agent, how->step, &names);
    if (!error)
        *out = start_pass(context, roots, how, (step_names){names.data, names.size}, NULL, &error);
    wfi_writer_fini(&names);
    weft_status status = weft_error_code(error);
    if (status)
        wfi_rpc_give_error(agent, NULL, error);
    wfi_agent_leave(agent);
    return status;
}

/* Runs the pass to its end. False: none was started, and the tape has failed. */
static bool run_pass(weft_tape *tape, weft_context *context, weft_tensor *loss, const weft_pass_options *how)
{
    weft_agent *agent = context->agent;
    weft_error *error = NULL;
    wfi_writer names;
    wfi_writer_init_growing(&names);
    weft_status may = wfi_rpc_may_wait(agent, "dist_backward", &(weft_rpc_options){.error = &error});
    wfi_tape_commit(tape);
    if (!may)
        error = write_optimizer(agent, how->step, &names);
    wfi_pass *pass = error ? NULL
                           : begin_pass(context, (weft_tensors){&loss, 1}, tape->hooks, how,
                                        (step_names){names.data, names.size}, &error);
    wfi_writer_fini(&names);
    bool begun = pass != NULL;
    if (begun) {
        weft_future *future = weft_future_ref(pass->future);
        pass->waiter_runs = true;
        wfi_pass_run(pass);
        wfi_pass_wait_for_calls(pass);
        weft_status status = wfi_future_wait(future, WEFT_FOREVER);
        if (status)
            error = weft_error_ref((weft_error *)weft_future_error(future));
        weft_future_unref(future);
        wfi_pass_unref(pass);
    }
    if (error && !tape->error)
        tape->error = weft_error_ref(error);
    weft_error_unref(error);
    return begun;
}

/* No pass was started: ends the hooks that it would have had, the tape's or the context's, with the reason. */
static void decline_hooks(const weft_tape *tape)
{
    weft_context *context = wfi_tape_owner(tape);
    weft_hooks *hooks = weft_hooks_ref(tape->hooks);
    if (!hooks && context) {
        wfi_mutex_lock(&context->lock);
        hooks = weft_hooks_ref(context->hooks);
        wfi_mutex_unlock(&context->lock);
    }
    wfi_engine_decline(hooks, tape->error);
    weft_hooks_unref(hooks);
}

void weft_dist_backward_sized(weft_tape *tape, weft_tensor *loss, const weft_pass_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, loss);
    if (!tape)
        return;
    weft_pass_options own;
    options = WFI_SIZED(options, size, &own);
    if (!options)
        weft_tape_fail(tape, WEFT_ERR_INVALID, "dist_backward: " WFI_NEWER, "weft_pass_options");
    weft_context *context = wfi_tape_ready(tape) ? wfi_tape_owner(tape) : NULL;
    bool begun = false;
    if (wfi_tape_ready(tape) && !context)
        weft_tape_fail(tape, WEFT_ERR_STATE,
                       "dist_backward: the tape records into no distributed context: use weft_backward");
    if (context && wfi_agent_enter(context->agent)) {
        begun = run_pass(tape, context, loss, options);
        wfi_agent_leave(context->agent);
    } else if (context) {
        weft_tape_fail(tape, WEFT_ERR_CLOSED, "dist_backward: this worker closed its agent");
    }
    if (!begun)
        decline_hooks(tape);
}

/* ---- A root on another worker ------------------------------------------------------------------------------------ */

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
    weft_status status = cancellation
                             ? weft_future_add_done_callback(cancellation, cancel, weft_future_ref(pass), unref_future)
                             : WEFT_ERR_MEMORY;
    weft_future_unref(cancellation);
    weft_call *kept = weft_call_defer_keeping(call);
    if (!status)
        status = weft_future_add_done_callback(pass, answer, kept, NULL);
    if (status) {
        (void)!weft_future_cancel(pass);
        weft_call_finish(kept, status);
    }
}

/* "weft:backward": the caller's pass, with its root on this worker. Answered when the pass ends. */
static weft_status run_backward(weft_call *call, void *user)
{
    (void)user;
    size_t size, step_size;
    wfi_reader head;
    weft_value value;
    const void *bytes = weft_call_bytes(call, 1, &size), *steps = weft_call_bytes(call, 2, &step_size);
    wfi_reader_init(&head, bytes, size);
    weft_context_id id = {.rank = wfi_read_u32(&head), .incarnation = wfi_read_u32(&head)};
    id.number = wfi_read_u64(&head);
    uint8_t flags = wfi_read_u8(&head);
    if (head.failed || wfi_reader_left(&head))
        return WEFT_ERR_PROTOCOL;
    weft_status status = weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &value);
    if (status)
        return status;
    weft_tensors roots = wfi_value_tensors(&value);
    weft_context *context = wfi_contexts_find_ref(call->agent, &id);
    if (!roots.count || !context) {
        wfi_context_unref(context);
        weft_call_fail(call, WEFT_ERR_INVALID,
                       roots.count ? "this worker has no part in the context" : "the root is not a tensor");
        return WEFT_ERR_INVALID;
    }
    weft_error *error = NULL;
    weft_future *pass = start_pass(context, roots,
                                   &(weft_pass_options){.gradients = weft_call_tensors(call, 3),
                                                        .retain = flags & WFI_PASS_RETAINS,
                                                        .unordered = flags & WFI_PASS_UNORDERED,
                                                        .timeout_ms = WEFT_FOREVER},
                                   (step_names){steps, step_size}, call, &error);
    wfi_context_unref(context);
    if (pass) {
        follow(call, pass);
        weft_future_unref(pass);
        return WEFT_DEFERRED;
    }
    status = weft_error_code(error);
    weft_call_fail_with(call, error);
    weft_error_unref(error);
    return status;
}

static weft_status run_fetch(weft_call *call, void *user)
{
    (void)user;
    weft_value value;
    weft_status status = weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &value);
    if (!status)
        weft_call_give(call, (weft_args){&value, 1});
    return status;
}

weft_status wfi_backward_register(weft_agent *agent)
{
    static const weft_function functions[] = {
        {.name = "weft:backward",
         .takes = {WEFT_TYPE_RREF, WEFT_TYPE_BYTES, WEFT_TYPE_BYTES, WEFT_TYPE_TENSORS},
         .run = run_backward},
        {.name = "weft:recorded", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_REST}, .run = run_fetch},
    };
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions) && !status; i++)
        status = wfi_function_register(agent, &functions[i], NULL);
    return status;
}

weft_status weft_rref_backward_sized(weft_rref *root, weft_context *context, const weft_pass_options *options,
                                     size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(root, context);
    weft_pass_options own;
    const weft_pass_options *how = WFI_SIZED(options, size, &own);
    if (!root || !context || !out)
        return wfi_refuse_null("weft_rref_backward", !root ? "the root" : context ? "out" : "the context");
    if (!how)
        return wfi_refuse_newer(NULL, "weft_rref_backward", "weft_pass_options");
    uint8_t room[ROOT_HEAD_BYTES];
    wfi_writer head, names;
    wfi_writer_init(&head, room, sizeof(room));
    wfi_write_u32(&head, context->id.rank);
    wfi_write_u32(&head, context->id.incarnation);
    wfi_write_u64(&head, context->id.number);
    wfi_write_u8(&head, (uint8_t)((how->retain ? WFI_PASS_RETAINS : 0) | (how->unordered ? WFI_PASS_UNORDERED : 0)));
    wfi_writer_init_growing(&names);
    int owner;
    weft_status status = how->step ? write_parts(context->agent, how->step, &names, &owner) : WEFT_OK;
    weft_error *error = NULL;
    const wfi_reserved_call call = {.function = "weft:backward",
                                    .arguments = WEFT_VALUES(weft_of_bytes(room, head.size),
                                                             weft_of_bytes(names.data, names.size),
                                                             weft_of_tensors(how->gradients)),
                                    .timeout_ms = how->timeout_ms};
    if (!status)
        status = wfi_rref_start_reserved(root, &call, out, &error);
    if (error)
        wfi_rpc_give_error(context->agent, NULL, error);
    wfi_writer_fini(&names);
    return status;
}

weft_status weft_rref_fetch_sized(weft_rref *rref, const weft_rpc_options *options, size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(rref);
    if (!rref || !out)
        return wfi_refuse_null("weft_rref_fetch", rref ? "out" : "the handle");
    return weft_rref_rpc_async_sized(rref, "weft:recorded", WEFT_NO_VALUES, options, size, out);
}
