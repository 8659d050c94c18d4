/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - starts a backward pass at its root. */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"
#include "tensor/copy.h"

#include <stdlib.h>

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
static weft_tensor *gradient_of_root(const weft_tensor *root, size_t index, weft_tensor *given, weft_error **error)
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
    weft_tensor *gradient =
        given ? weft_tensor_contiguous(given) : wfi_tensor_full_like(root, root->shape, root->dtype, 1);
    if (!gradient)
        *error = refuse(WEFT_ERR_MEMORY, "out of memory");
    return gradient;
}

static weft_error *add_roots(wfi_dist_pass *pass, weft_tensors roots, weft_tensors gradients)
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
        weft_tensor *gradient = gradient_of_root(root, i, gradients.count ? gradients.items[i] : NULL, &error);
        if (gradient)
            wfi_engine_root(&pass->engine, root->grad_node, root->grad_result, gradient);
    }
    return error;
}

/* ---- The root's end by others ------------------------------------------------------------------------------------ */

static void time_is_up(wfi_timer *timer)
{
    wfi_dist_pass *pass = wfi_container_of(timer, wfi_dist_pass, timer);
    wfi_pass_post_failure(
        pass, WFI_EVENT_END, 0,
        refuse(WEFT_ERR_TIMEOUT, "the pass did not end within its time limit, %lld ms", (long long)pass->limit_ms),
        WFI_RUN_LOCKED);
}

static void hold_pass(void *owner)
{
    wfi_dist_pass_ref(owner);
}

static void cancel_pass(void *owner, uint64_t id)
{
    wfi_dist_pass *pass = owner;
    (void)id;
    if (wfi_agent_enter(pass->agent)) {
        wfi_error_detail detail = {
            .code = WEFT_ERR_CANCELLED, .function = "dist_backward", .worker = wfi_agent_rank(pass->agent)};
        wfi_pass_post_failure(pass, WFI_EVENT_END, 0, wfi_error_create(&detail, "the pass was cancelled"),
                              WFI_RUN_LATER);
        wfi_agent_leave(pass->agent);
    }
    wfi_dist_pass_unref(pass);
}

static const wfi_canceller canceller = {.hold = hold_pass, .cancel = cancel_pass};

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/* Adds it to the context's list, with the next number. */
static weft_status enlist(weft_context *context, wfi_dist_pass *pass)
{
    wfi_mutex_lock(&context->lock);
    weft_status st = context->over ? WEFT_ERR_STATE : WEFT_OK;
    if (!st)
        wfi_dist_pass_enlist(pass, wfi_agent_rank(context->agent), ++context->last_pass);
    wfi_mutex_unlock(&context->lock);
    return st;
}

static weft_status set_timer(wfi_dist_pass *pass, int64_t timeout_ms)
{
    weft_agent *agent = pass->agent;
    wfi_net_lock(agent->net);
    int64_t limit = timeout_ms ? timeout_ms : agent->call_timeout_ms;
    weft_status st = WEFT_OK;
    pass->timer.fire = time_is_up;
    pass->limit_ms = limit;
    if (limit != WEFT_FOREVER)
        st = wfi_net_timer_set(agent->net, &pass->timer, wfi_deadline(wfi_net_clock(agent->net), limit));
    wfi_net_unlock(agent->net);
    return st;
}

static weft_error *write_optimizer(const weft_agent *agent, const weft_dist_optimizer *optimizer, wfi_writer *names)
{
    int owner = -1;
    weft_status st = optimizer ? wfi_pass_write_optimizer(agent, optimizer, names, &owner) : WEFT_OK;
    if (!st)
        return NULL;
    wfi_error_detail detail = {.code = st, .function = "dist_backward", .worker = owner};
    const char *what = st == WEFT_ERR_INVALID && owner < 0 ? "it was made by another agent" : weft_status_text(st);
    return owner < 0 ? wfi_error_create(&detail, "the optimizer that is to step: %s", what)
                     : wfi_error_create(&detail, "the optimizer that is to step: its part at rank %d: %s", owner, what);
}

/* Makes a pass whose first round has not run, with `running` set; NULL: *error. */
static wfi_dist_pass *begin_pass(weft_context *context, weft_tensors roots, weft_hooks *hooks,
                                 const weft_pass_options *options, wfi_pass_names steps, weft_error **error)
{
    weft_agent *agent = context->agent;
    unsigned flags = (options->retain ? WFI_PASS_RETAINS : 0) | (options->unordered ? WFI_PASS_UNORDERED : 0);
    if (options->timeout_ms < WEFT_FOREVER) {
        *error =
            refuse(WEFT_ERR_INVALID, "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)options->timeout_ms);
        return NULL;
    }
    wfi_dist_pass *pass = wfi_dist_pass_create(context, flags);
    if (pass)
        pass->future = wfi_agent_future(agent);
    if (!pass || !pass->future) {
        *error = refuse(WEFT_ERR_MEMORY, "out of memory");
        wfi_dist_pass_discard(pass);
        return NULL;
    }
    pass->engine.hooks = weft_hooks_ref(hooks);
    pass->running = true;
    wfi_future_set_canceller(pass->future, &canceller, pass, 0);
    *error = add_roots(pass, roots, options->gradients);
    weft_status st = *error ? WEFT_OK : wfi_pass_copy_step_names(pass, steps.bytes, steps.size);
    if (!*error && !st)
        st = enlist(context, pass);
    if (!*error && !st)
        st = set_timer(pass, options->timeout_ms);
    if (st)
        *error = refuse(st, "%s", st == WEFT_ERR_STATE ? "the context is over" : weft_status_text(st));
    if (!*error)
        return pass;
    wfi_dist_pass_discard(pass);
    return NULL;
}

static const weft_pass_options defaults;

weft_future *wfi_context_backward(weft_context *context, weft_tensors roots, const weft_pass_options *options,
                                  wfi_pass_names steps, const weft_call *within, weft_error **error)
{
    weft_agent *agent = context->agent;
    wfi_dist_pass *pass = begin_pass(context, roots, NULL, options, steps, error);
    if (!pass)
        return NULL;
    pass->is_of_others = within != NULL;
    if (within)
        wfi_pass_observe_within(pass, within);
    weft_future *future = weft_future_ref(pass->future);
    wfi_net_lock(agent->net);
    wfi_net_defer(agent->net, &pass->task, WFI_DEFER_WORKER); /* takes over this function's reference */
    wfi_net_unlock(agent->net);
    return future;
}

weft_status weft_context_backward(weft_context *context, weft_tensors roots, const weft_pass_options *options,
                                  weft_future **out)
{
    WFI_LIVE(context);
    if (!context || !out)
        return wfi_refuse_null("weft_context_backward", context ? "out" : "the context");
    weft_agent *agent = context->agent;
    const weft_pass_options *how = options ? options : &defaults;
    wfi_writer names;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    wfi_writer_init_growing(&names);
    weft_error *error = write_optimizer(agent, how->step, &names);
    if (!error)
        *out = wfi_context_backward(context, roots, how, (wfi_pass_names){names.data, names.size}, NULL, &error);
    wfi_writer_fini(&names);
    weft_status st = weft_error_code(error);
    if (st)
        wfi_rpc_give_error(agent, NULL, error);
    wfi_agent_leave(agent);
    return st;
}

/* The context of a tape; NULL: the tape fails. */
static weft_context *context_of(weft_tape *tape)
{
    weft_context *context = wfi_tape_owner(tape);
    if (!context)
        weft_tape_fail(tape, WEFT_ERR_STATE,
                       "dist_backward: the tape records into no distributed context: use weft_backward");
    return context;
}

static void keep_error(weft_tape *tape, const weft_error *error)
{
    if (error && !tape->error)
        tape->error = weft_error_ref((weft_error *)error);
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
    wfi_dist_pass *pass = error ? NULL
                                : begin_pass(context, (weft_tensors){&loss, 1}, tape->hooks, how,
                                             (wfi_pass_names){names.data, names.size}, &error);
    wfi_writer_fini(&names);
    bool begun = pass != NULL;
    if (begun) {
        weft_future *future = weft_future_ref(pass->future);
        pass->waiter_runs = true;
        wfi_dist_pass_run(pass);
        wfi_pass_wait_for_calls(pass);
        weft_status st = wfi_future_wait(future, WEFT_FOREVER);
        if (st)
            error = weft_error_ref((weft_error *)weft_future_error(future));
        weft_future_unref(future);
        wfi_dist_pass_unref(pass);
    }
    keep_error(tape, error);
    weft_error_unref(error);
    return begun;
}

/* No pass was started: the hooks that it would have had, the tape's or the context's, are told why. */
static void tell_hooks(const weft_tape *tape)
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

void weft_dist_backward(weft_tape *tape, weft_tensor *loss, const weft_pass_options *options)
{
    WFI_LIVE(tape, loss);
    if (!tape)
        return;
    weft_context *context = wfi_tape_ready(tape) ? context_of(tape) : NULL;
    bool begun = false;
    if (context && wfi_agent_enter(context->agent)) {
        begun = run_pass(tape, context, loss, options ? options : &defaults);
        wfi_agent_leave(context->agent);
    } else if (context) {
        weft_tape_fail(tape, WEFT_ERR_CLOSED, "dist_backward: this worker closed its agent");
    }
    if (!begun)
        tell_hooks(tape);
}
