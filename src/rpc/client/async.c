/* SPDX-License-Identifier: Apache-2.0 */
/*
 * async.c - weft_rpc_async and weft_rpc_sync.
 *
 * They make a call spec of their arguments, and start it once (request.c) or with retries (retry.c). multicast.c calls
 * many targets; remote.c makes calls whose result stays on the callee.
 */
#include "rpc/client/client.h"

#include "base/error.h"
#include "base/text/sized.h"
#include "rpc/refs/refs.h"
#include "value/value.h"

/* For wfi_parent_note: a handler may also pass on the error of a call that was not started. */
static void note_failure(const weft_rpc_options *options, const weft_error *error)
{
    if (!options->parent || options->parent->agent->forked)
        return;
    weft_call *parent = (weft_call *)options->parent;
    wfi_net_lock(parent->agent->net);
    wfi_parent_note(parent, error);
    wfi_net_unlock(parent->agent->net);
}

void wfi_rpc_give_error(const weft_agent *agent, const weft_rpc_options *options, weft_error *error)
{
    weft_status status = weft_error_code(error);
    bool is_mistake = status == WEFT_ERR_INVALID || status == WEFT_ERR_TYPE || status == WEFT_ERR_SHAPE ||
                      status == WEFT_ERR_DEADLOCK;
    if (is_mistake && agent && !(options && options->error)) {
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0, "a call of \"%s\" failed: %s", weft_error_function(error),
                      weft_error_message(error));
        wfi_status_logged(status);
    }
    wfi_error_give(options ? options->error : NULL, error);
}

weft_status wfi_rpc_refuse_null(const weft_rpc_options *options, const char *function, const char *argument)
{
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .function = function, .worker = -1};
    if (!options || !options->error) {
        wfi_agent_log(NULL, WEFT_LOG_ERROR, 0, "a call of \"%s\" could not be started: %s is NULL",
                      function ? function : "", argument);
        wfi_status_logged(WEFT_ERR_INVALID);
    }
    wfi_rpc_give_error(NULL, options, wfi_error_create(&detail, "the call could not be started: %s is NULL", argument));
    return WEFT_ERR_INVALID;
}

const weft_rpc_options *wfi_rpc_options(const weft_rpc_options *given, size_t size, const char *function,
                                        weft_rpc_options *own)
{
    const weft_rpc_options *options = WFI_SIZED(given, size, own);
    if (!options)
        (void)wfi_refuse_newer(given->error, function ? function : "a call", "weft_rpc_options");
    return options;
}

weft_status wfi_spec_find_source(weft_agent *agent, wfi_call_spec *spec, weft_error **error)
{
    char problem[256] = "the option tape: this program has no distributed contexts";
    const wfi_recording_ops *links = wfi_recording_ops_get();
    if (!spec->options->tape)
        return WEFT_OK;
    weft_status status = links ? links->from_tape(agent, spec->options->tape, &spec->source, problem, sizeof(problem))
                               : WEFT_ERR_UNSUPPORTED;
    wfi_error_detail detail = {.code = status, .function = spec->function, .worker = -1};
    if (status)
        *error = wfi_error_create(&detail, "the call could not be started: %s", problem);
    return status;
}

/* Whether the arguments must be copied from devices before they can be sent. If not, because a name is that of this
 * worker, the call goes to this worker, even if another one gets the name meanwhile. */
static bool leaves_device(weft_agent *agent, wfi_call_spec *spec)
{
    if (!wfi_storage_devices_used() || !wfi_values_on_device(spec->arguments))
        return false;
    weft_error *error = NULL;
    bool is_here = wfi_target_resolve(agent, spec->to, spec->function, &error) == wfi_agent_rank(agent);
    weft_error_unref(error); /* the attempt reports it */
    if (is_here && spec->to.name)
        spec->to = weft_to_rank(wfi_agent_rank(agent));
    return !is_here;
}

weft_status wfi_rpc_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    weft_status status = agent->forked ? WEFT_ERR_STATE : wfi_spec_check(agent, spec);
    if (status) {
        *error = wfi_spec_explain(agent, spec, status, -1);
        return status;
    }
    if (wfi_rrefs_are_among(spec->arguments)) { /* the call must not start if the value of one was not made */
        wfi_net_lock(agent->net);
        *error = wfi_rrefs_failed(spec->arguments, spec->function);
        wfi_net_unlock(agent->net);
        status = weft_error_code(*error);
    }
    bool finds_source = !status && !spec->source && spec->options->tape;
    if (finds_source)
        status = wfi_spec_find_source(agent, spec, error);
    if (!status && (spec->options->retry.attempts > 1 || leaves_device(agent, spec)))
        status = wfi_retry_start(agent, spec, out, error);
    else if (!status)
        status = wfi_call_begin(agent, spec, out, error);
    if (finds_source && spec->source) {
        wfi_recording_ops_get()->unref(spec->source);
        spec->source = NULL;
    }
    if (status)
        note_failure(spec->options, *error);
    return status;
}

weft_status wfi_rpc_start_reserved(weft_agent *agent, weft_target to, const wfi_reserved_call *call, weft_future **out,
                                   weft_error **error)
{
    const weft_rpc_options how = {.timeout_ms = call->timeout_ms};
    wfi_call_spec spec = {.to = to,
                          .function = call->function,
                          .arguments = call->arguments,
                          .options = &how,
                          .parent = &how.parent,
                          .within = call->within,
                          .exempt = true,
                          .devices = call->devices};
    return wfi_rpc_start(agent, &spec, out, error);
}

weft_status weft_rpc_async_sized(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                                 const weft_rpc_options *options, size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(agent);
    weft_rpc_options own;
    weft_future *future = NULL;
    weft_error *error = NULL;
    options = wfi_rpc_options(options, size, function, &own);
    if (!options)
        return WEFT_ERR_INVALID;
    if (!agent)
        return wfi_rpc_refuse_null(options, function, "the agent");
    wfi_call_spec spec = {
        .to = to, .function = function, .arguments = arguments, .options = options, .parent = &options->parent};
    weft_status status = wfi_rpc_start(agent, &spec, &future, &error);
    if (status)
        wfi_rpc_give_error(agent, options, error);
    if (!status && out)
        *out = future;
    else
        weft_future_unref(future); /* the call continues */
    return status;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

weft_status wfi_rpc_may_wait(weft_agent *agent, const char *function, const weft_rpc_options *options)
{
    if (!wfi_net_is_inline(agent->net))
        return WEFT_OK;
    wfi_error_detail detail = {.code = WEFT_ERR_DEADLOCK, .function = function, .worker = -1};
    weft_error *error =
        wfi_error_create(&detail, "nothing was started: an inline handler, a land or a destructor, on the "
                                  "thread that reads the network, cannot wait; call async, or register without "
                                  "WEFT_FUNCTION_INLINE");
    if (options)
        note_failure(options, error);
    wfi_rpc_give_error(agent, options, error);
    return WEFT_ERR_DEADLOCK;
}

weft_status wfi_rpc_await(const weft_agent *agent, weft_future *future, const weft_rpc_options *options,
                          weft_values **out)
{
    weft_status status = weft_future_wait(future, WEFT_FOREVER); /* the call has the time limit */
    if (status && !weft_future_done(future))
        (void)!weft_future_cancel(future); /* the call must not outlast this function */
    if (status) {
        const weft_error *error = weft_future_error(future);
        wfi_rpc_give_error(agent, options,
                           error ? weft_error_ref(error) : weft_error_create(status, "%s", weft_status_text(status)));
    } else if (out) {
        *out = weft_values_ref((weft_values *)weft_future_values(future));
    }
    weft_future_unref(future);
    return status;
}

weft_status weft_rpc_sync_sized(weft_agent *agent, weft_target to, const char *function, weft_args arguments,
                                const weft_rpc_options *options, size_t size, weft_values **out)
{
    WFI_CHECK_HANDLE(agent);
    weft_rpc_options own;
    weft_future *future;
    options = wfi_rpc_options(options, size, function, &own);
    if (!options)
        return WEFT_ERR_INVALID;
    weft_status status = agent ? wfi_rpc_may_wait(agent, function, options) : WEFT_OK; /* weft_rpc_async reports NULL */
    if (!status)
        status = weft_rpc_async(agent, to, function, arguments, options, &future);
    return status ? status : wfi_rpc_await(agent, future, options, out);
}
