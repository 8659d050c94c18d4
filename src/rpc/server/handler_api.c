/* SPDX-License-Identifier: Apache-2.0 */
/* server/handler_api.c - the handler's functions: arguments, results, failure, deferring, finishing. */
#include "rpc/server/server.h"

#include "base/error.h"
#include "base/text/sized.h"
#include "rpc/payload/explain.h"
#include "value/value.h"

#include <assert.h>

/* ---- Arguments: checked against the signature before the handler ran; a wrong index is a bug of the program ----- */

static const weft_value *argument(const weft_call *call, size_t index, weft_type type)
{
    static const weft_value none = {.type = WEFT_TYPE_NULL};
    weft_args args = call ? weft_values_args(call->args) : WEFT_NO_VALUES;
    bool fits = index < args.count && args.items[index].type == type;
    assert(fits && "no such argument, or of another type");
    return fits ? &args.items[index] : &none;
}

size_t weft_call_count(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    return call ? weft_values_count(call->args) : 0;
}

weft_type weft_call_type(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return call ? weft_values_type(call->args, index) : WEFT_TYPE_NONE;
}

bool weft_call_bool(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_BOOL)->as.boolean;
}

int64_t weft_call_i64(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_I64)->as.i64;
}

double weft_call_f64(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_F64)->as.f64;
}

const char *weft_call_string(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    const weft_value *value = argument(call, index, WEFT_TYPE_STRING);
    return value->as.bytes.data ? value->as.bytes.data : "";
}

const void *weft_call_bytes(const weft_call *call, size_t index, size_t *size)
{
    WFI_CHECK_HANDLE(call);
    const weft_value *value = argument(call, index, WEFT_TYPE_BYTES);
    if (size)
        *size = value->as.bytes.size;
    return value->as.bytes.data;
}

weft_tensor *weft_call_tensor(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_TENSOR)->as.tensor;
}

weft_tensors weft_call_tensors(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_TENSORS)->as.tensors;
}

weft_rref *weft_call_rref(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_RREF)->as.rref;
}

weft_args weft_call_list(const weft_call *call, size_t index)
{
    WFI_CHECK_HANDLE(call);
    return argument(call, index, WEFT_TYPE_LIST)->as.list;
}

weft_agent *weft_call_agent(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    return call ? call->agent : NULL;
}

int weft_call_from(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    return call ? call->from : -1;
}

int64_t weft_call_time_left(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return 0;
    if (call->deadline_ns == WFI_NEVER)
        return WEFT_FOREVER;
    if (!wfi_agent_enter(call->agent))
        return 0;
    uint64_t now = wfi_now(wfi_net_clock(call->agent->net));
    wfi_agent_leave(call->agent);
    return now >= call->deadline_ns ? 0 : (int64_t)((call->deadline_ns - now) / 1000000u);
}

/* ---- Results and failure ----------------------------------------------------------------------------------------- */

void weft_call_fail(weft_call *call, weft_status code, const char *format, ...)
{
    WFI_CHECK_HANDLE(call);
    if (!call || call->error)
        return;
    wfi_error_detail detail = {.code = WEFT_ERR_REMOTE,
                               .remote_code = code < 0 ? code : WEFT_ERR_INVALID,
                               .function = call->function->name,
                               .worker = wfi_agent_rank(call->agent)};
    va_list args;
    va_start(args, format);
    call->error = wfi_error_create_v(&detail, format, args);
    va_end(args);
}

void weft_call_fail_with(weft_call *call, const weft_error *error)
{
    WFI_CHECK_HANDLE(call, error);
    if (!call || call->error || !error)
        return;
    weft_status code = weft_error_code(error);
    int rank = wfi_agent_rank(call->agent), origin = weft_error_worker(error);
    weft_error *here =
        wfi_error_recoded(error, WEFT_ERR_REMOTE, code == WEFT_ERR_REMOTE ? wfi_error_remote_code(error) : code, rank);
    weft_error *named = wfi_error_naming(here, call->function->name); /* an error that the handler made names none */
    call->error = origin < 0 || origin == rank ? weft_error_ref(named) : wfi_error_with_hop(named, rank);
    weft_error_unref(named);
    weft_error_unref(here);
}

/* If a reference among the arguments failed with the status that the handler returned, the call fails with the
 * reference's error. The arguments of a deferred call are not used: another thread may free them. */
static void pass_handle_on(weft_call *call, weft_status status)
{
    weft_args args = call->deferred && !call->keep_arguments ? WEFT_NO_VALUES : weft_values_args(call->args);
    for (size_t i = 0; i < args.count && !call->error; i++) {
        const weft_error *failure =
            args.items[i].type == WEFT_TYPE_RREF ? wfi_rref_failure(args.items[i].as.rref) : NULL;
        if (failure && weft_error_code(failure) == status)
            weft_call_fail_with(call, failure);
    }
}

/* If a child failed with the status that the handler returned, the call fails with the child's error. */
static void pass_inner_on(weft_call *call, weft_status status)
{
    wfi_net_lock(call->agent->net);
    weft_error *inner = weft_error_ref(call->inner);
    wfi_net_unlock(call->agent->net);
    if (weft_error_code(inner) == status)
        weft_call_fail_with(call, inner);
    weft_error_unref(inner);
}

static bool has_null_tensor(weft_args values)
{
    for (size_t i = 0; i < values.count; i++)
        if (values.items[i].type == WEFT_TYPE_TENSOR && !values.items[i].as.tensor)
            return true;
    return false;
}

/* Fails the call with an error that names the faulty result. */
static void refuse_results(weft_call *call, weft_status status, weft_args results)
{
    char fault[256] = "";
    if (wfi_agent_enter(call->agent)) {
        wfi_results_fault(call->agent, results, status, fault, sizeof(fault));
        wfi_agent_leave(call->agent);
    }
    weft_call_fail(call, status, "the results: %s", fault[0] ? fault : weft_status_text(status));
}

void weft_call_give(weft_call *call, weft_args results)
{
    WFI_CHECK_HANDLE(call);
    char problem[128];
    if (!call)
        return;
    bool too_many = results.count > WEFT_MAX_VALUES;
    if (too_many || !wfi_args_are_readable(results)) {
        refuse_results(call, too_many ? WEFT_ERR_TOO_LARGE : WEFT_ERR_INVALID, results);
        return;
    }
    if (has_null_tensor(results)) {
        /* Usually an operator failed before: its error says more. */
        if (!weft_call_status(call))
            refuse_results(call, WEFT_ERR_INVALID, results);
        return;
    }
    if (!wfi_serve_signature_fits(call->function->gives, results, problem, sizeof(problem))) {
        weft_call_fail(call, WEFT_ERR_TYPE, "the results: %s", problem);
        return;
    }
    if (!wfi_rrefs_are_of(call->agent, results)) {
        weft_call_fail(call, WEFT_ERR_INVALID, "the results: a reference of another agent, or of one that is closed");
        return;
    }
    weft_values *values;
    weft_status status = wfi_values_create(results, &values);
    if (status) {
        refuse_results(call, status, results);
        return;
    }
    wfi_results_unpin(call);
    weft_values_unref(call->results);
    call->results = values;
    wfi_results_pin(call);
    wfi_object_drop(call->object); /* the last results count */
    call->object = NULL;
}

void weft_call_give_object_sized(weft_call *call, const weft_object_type *type, size_t size, void *object)
{
    WFI_CHECK_HANDLE(call);
    weft_object_type own;
    const weft_object_type *known = type ? WFI_SIZED(type, size, &own) : NULL;
    weft_drop_fn drop = known ? known->drop : type ? type->drop : NULL;
    if (!call || !known) {
        if (drop)
            drop(object);
        if (type)
            weft_call_fail(call, WEFT_ERR_INVALID, "the result: " WFI_NEWER, "weft_object_type");
        else
            weft_call_fail(call, WEFT_ERR_INVALID, "the result: the type of the object is NULL");
        return;
    }
    if (!object) {
        weft_call_fail(call, WEFT_ERR_INVALID, "the result: the object is NULL: the %s could not be made", type->name);
        return;
    }
    if (!call->owned) {
        if (drop)
            drop(object);
        weft_call_fail(call, WEFT_ERR_TYPE,
                       "an object of type %s cannot leave its worker: call the function with weft_rpc_remote",
                       type->name);
        return;
    }
    wfi_object *wrapped = wfi_object_create(type, object, drop);
    if (!wrapped) {
        weft_call_fail(call, WEFT_ERR_MEMORY, "no memory for an object of type %s", type->name);
        return;
    }
    wfi_object_drop(call->object); /* the last results count */
    call->object = wrapped;
    wfi_results_unpin(call);
    weft_values_unref(call->results);
    call->results = NULL;
}

weft_status weft_call_status(const weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return wfi_refuse_null("weft_call_status", "the call");
    if (call->error)
        return wfi_error_remote_code(call->error);
    weft_error *kept = call->slot.error ? call->slot.error(call->slot.value) : NULL;
    weft_status status = weft_error_code(kept);
    weft_error_unref(kept);
    return status;
}

/* A failure that a tape recorded becomes the call's error. */
static void take_slot_error(weft_call *call)
{
    weft_error *kept = call->slot.error && !call->error ? call->slot.error(call->slot.value) : NULL;
    if (!kept)
        return;
    const char *operator_name = weft_error_function(kept);
    weft_call_fail(call, weft_error_code(kept), "%s%s%s", operator_name, operator_name[0] ? ": " : "",
                   weft_error_message(kept));
    weft_error_unref(kept);
}

/* ---- Deferring and finishing ------------------------------------------------------------------------------------- */

weft_call *weft_call_defer(weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (call)
        atomic_store_explicit(&call->deferred, true, memory_order_relaxed);
    return call;
}

weft_call *weft_call_defer_keeping(weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (call)
        call->keep_arguments = true;
    return weft_call_defer(call);
}

/* Gives the call either results or an error. */
static void set_outcome(weft_call *call, weft_status status)
{
    take_slot_error(call);
    if (status > 0) {
        weft_call_fail(call, WEFT_ERR_INVALID, "the handler ended with %d, which is no status", (int)status);
        return;
    }
    if (status < 0 && !call->error)
        pass_inner_on(call, status);
    if (status < 0 && !call->error)
        pass_handle_on(call, status);
    if (status < 0 && !wfi_status_is_known(status))
        weft_call_fail(call, status, "the handler ended with %d, %s", (int)status, weft_status_text(status));
    else if (status < 0)
        weft_call_fail(call, status, "%s", weft_status_text(status));
    if (call->error || call->results || call->object)
        return;
    if (call->function->gives[0] == WEFT_TYPE_NONE || call->function->gives[0] == WEFT_TYPE_REST)
        weft_call_give(call, WEFT_NO_VALUES);
    else
        weft_call_fail(call, WEFT_ERR_STATE, "the handler gave no results");
}

void wfi_call_finish(weft_call *call, weft_status status)
{
    assert(call->stage == WFI_SERVE_SERVING);
    weft_agent *agent = call->agent;
    if (!wfi_agent_enter(agent)) {
        WFI_HANDLE_END(call);
        wfi_serve_finish_late(call);
        return;
    }
    set_outcome(call, status);
    WFI_HANDLE_END(call);
    call->responder->respond(call);
    wfi_agent_leave(agent);
}

void weft_call_finish(weft_call *call, weft_status status)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return;
    if (!call->deferred)
        wfi_handle_refuse(
            call, __func__,
            "a call that was not deferred: the return of its handler finishes it; to finish it later, call "
            "weft_call_defer in the handler and return WEFT_DEFERRED");
    wfi_call_finish(call, status);
}
