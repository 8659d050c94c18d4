/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - modules on other workers (weft/remote_module.h). The owner keeps the module as an object that a handle
 * names; "weft:forward" runs it on the tape of the call. Last, src/remote as a component of the agent.
 */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/text/sized.h"
#include "remote/remote.h"
#include "rpc/agent/devices.h"
#include "rpc/client/client.h"
#include "tensor/tensor.h"
#include "value/value.h"

#include <weft/operator.h>
#include <weft/remote_module.h>

#include <stdlib.h>
#include <string.h>

/* A program that links this links the component as well. */
__attribute__((used)) static const wfi_component *const linked = &wfi_remote_component;

/* ---- On the owner ------------------------------------------------------------------------------------------------ */

static void drop_module(void *module)
{
    weft_module_unref(module);
}

const weft_object_type weft_module_object = {.name = "module", .drop = drop_module};

static weft_status module_of(weft_call *call, weft_module **out)
{
    void *object;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &weft_module_object, WEFT_FOREVER, &object);
    *out = status ? NULL : object;
    return status;
}

/* The first tensor of `args`; NULL: there is none. */
static const weft_tensor *first_tensor(weft_args args)
{
    weft_tensor *first = NULL;
    (void)wfi_values_tensors(args, &first, 1);
    return first;
}

/* The device on which the module computes for these inputs: the one that has all its parameters. Otherwise the CPU:
 * then its children move their inputs (weft_on_device_create). A module without parameters computes where the inputs
 * are. */
static weft_device device_of(const weft_module *module, weft_args inputs)
{
    const weft_device cpu = {WEFT_DEVICE_CPU, 0};
    weft_tensors parameters = weft_module_parameters(module);
    const weft_tensor *first = parameters.count ? parameters.items[0] : first_tensor(inputs);
    weft_device device = first ? weft_tensor_device(first) : cpu;
    for (size_t i = 1; i < parameters.count; i++)
        if (!wfi_device_equal(weft_tensor_device(parameters.items[i]), device))
            return cpu;
    return device;
}

/* The backward function of a copy; `state` is the device from which it was made, as a byte. */
static weft_status move_back(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)saved, (void)wanted;
    dx[0] = wfi_tensor_to_device_pinned(dy.items[0], wfi_device_of_code((uint8_t)(uintptr_t)state));
    return dx[0] ? WEFT_OK : WEFT_ERR_MEMORY;
}

static const weft_operator move_operator = {.name = "to_device", .backward = move_back};

/* A recorded copy on `device`, with a reference; the tensor itself if it is there. NULL: the tape has failed. */
static weft_tensor *moved(weft_tape *t, weft_tensor *tensor, weft_device device)
{
    if (wfi_device_equal(weft_tensor_device(tensor), device))
        return weft_tensor_ref(tensor);
    weft_tensor *copy = wfi_tensor_to_device_pinned(tensor, device), *out = NULL;
    void *state = (void *)(uintptr_t)wfi_device_code(weft_tensor_device(tensor));
    if (copy)
        weft_tape_record(t, &move_operator, (weft_tensors){&tensor, 1}, (weft_tensors){0}, state,
                         (weft_tensors){&copy, 1}, &out);
    else
        wfi_tape_fail_memory(t, "remote_forward");
    weft_tensor_unref(copy);
    return weft_tensor_ref(out);
}

/* The values with all their tensors on `device`, which the tape lends. */
static weft_args move_all(weft_tape *t, weft_args args, weft_device device)
{
    weft_values *values = NULL;
    size_t count = wfi_values_tensors(args, NULL, 0), at = 0;
    weft_tensor **tensors = wfi_calloc(count, sizeof(*tensors));
    (void)wfi_values_tensors(args, tensors, tensors ? count : 0);
    while (tensors && at < count && wfi_device_equal(weft_tensor_device(tensors[at]), device))
        at++;
    if (at == count && tensors) {
        free(tensors);
        return args;
    }
    if (!tensors || wfi_values_create(args, &values)) {
        wfi_tape_fail_memory(t, "remote_forward");
        free(tensors);
        return WEFT_NO_VALUES;
    }
    at = 0;
    while (at < count && (tensors[at] = moved(t, tensors[at], device)))
        at++;
    if (at == count)
        wfi_values_replace_tensors(values, tensors);
    while (at > 0)
        weft_tensor_unref(tensors[--at]);
    free(tensors);
    return wfi_tape_take_values(t, values);
}

/* "weft:forward" (module, mode, has a seed, seed, inputs ...) -> the outputs, on the device of the first input */
static weft_status run_forward(weft_call *call, void *user)
{
    (void)user;
    enum { INPUTS = 4 };
    weft_module *module;
    weft_status status = module_of(call, &module);
    int64_t mode = weft_call_i64(call, 1);
    if (status || mode < WEFT_MODE_MODULE || mode > WEFT_MODE_EVAL)
        return status ? status : WEFT_ERR_INVALID;
    weft_args all = weft_values_args(call->args);
    weft_args inputs = {all.items + INPUTS, all.count - INPUTS}, outputs;
    weft_device device = device_of(module, inputs);
    weft_tape *outer = weft_call_tape(call), *t = outer;
    if (device.kind != WEFT_DEVICE_CPU)
        t = weft_tape_open(&(weft_tape_options){.record = weft_tape_records(outer), .parent = outer, .device = device});
    weft_tape_set_mode(t, (weft_mode)mode);
    if (weft_call_bool(call, 2))
        weft_tape_set_seed(t, (uint64_t)weft_call_i64(call, 3));
    outputs = weft_module_call(t, module, move_all(t, inputs, device));
    if (first_tensor(inputs))
        outputs = move_all(t, outputs, weft_tensor_device(first_tensor(inputs)));
    weft_call_give(call, outputs);
    if (t == outer)
        return WEFT_OK;
    wfi_tape_copy_error(t, outer);
    weft_tape_close(t);
    return WEFT_OK;
}

/* "weft:parameters" (module, number of the first one) -> the number of all, and handles to those of one page */
static weft_status run_parameters(weft_call *call, void *user)
{
    (void)user;
    weft_module *module;
    weft_status status = module_of(call, &module);
    int64_t from = weft_call_i64(call, 1);
    if (status)
        return status;
    weft_tensors all = weft_module_parameters(module);
    if (from < 0 || (uint64_t)from > all.count)
        return WEFT_ERR_INVALID;
    size_t count = all.count - (size_t)from < WFI_REMOTE_PAGE ? all.count - (size_t)from : WFI_REMOTE_PAGE, made = 0;
    weft_value *items = wfi_calloc(1 + count, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    items[0] = weft_of_i64((int64_t)all.count);
    for (; made < count && !status; made += !status) {
        weft_rref *rref;
        status = weft_rref_create(weft_call_agent(call), weft_of_tensor(all.items[(size_t)from + made]), &rref, NULL);
        if (!status)
            items[1 + made] = weft_of_rref(rref);
    }
    if (!status)
        weft_call_give(call, (weft_args){items, 1 + count});
    for (size_t i = 0; i < made; i++)
        weft_rref_unref(items[1 + i].as.rref);
    free(items);
    return status;
}

static weft_status register_functions(weft_agent *agent)
{
    static const weft_function forward = {
        .name = "weft:forward",
        .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64, WEFT_TYPE_BOOL, WEFT_TYPE_I64, WEFT_TYPE_REST},
        .gives = {WEFT_TYPE_REST},
        .run = run_forward};
    static const weft_function parameters = {.name = "weft:parameters",
                                             .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64},
                                             .gives = {WEFT_TYPE_I64, WEFT_TYPE_REST},
                                             .run = run_parameters};
    weft_status status = wfi_function_register(agent, &forward, NULL);
    return status ? status : wfi_function_register(agent, &parameters, NULL);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* The mode of a forward: that of the options, else of the tape, else train mode. */
static weft_mode mode_of(const weft_tape *tape, const weft_forward_options *options)
{
    if (options->mode != WEFT_MODE_MODULE)
        return options->mode;
    return tape && tape->mode != WEFT_MODE_MODULE ? tape->mode : WEFT_MODE_TRAIN;
}

weft_status weft_remote_call_async_sized(weft_tape *tape, weft_rref *module, weft_args inputs,
                                         const weft_forward_options *options, size_t size, weft_future **out)
{
    WFI_CHECK_HANDLE(tape, module);
    enum { FIRST_INPUT = 3 };
    weft_forward_options own;
    options = WFI_SIZED(options, size, &own);
    if (!options) {
        weft_tape_fail(tape, WEFT_ERR_INVALID, "remote_forward: " WFI_NEWER, "weft_forward_options");
        return WEFT_ERR_INVALID;
    }
    if (!module || !out || (inputs.count && !inputs.items))
        return wfi_refuse_null("weft_remote_call_async", !module ? "the module" : !out ? "out" : "the list of inputs");
    if (options->mode < WEFT_MODE_MODULE || options->mode > WEFT_MODE_EVAL) {
        weft_tape_fail(tape, WEFT_ERR_INVALID, "remote_forward: there is no mode %d", (int)options->mode);
        return WEFT_ERR_INVALID;
    }
    if (inputs.count > WEFT_MAX_VALUES - FIRST_INPUT) {
        weft_tape_fail(tape, WEFT_ERR_TOO_LARGE, "remote_forward: %zu inputs: at most %d", inputs.count,
                       WEFT_MAX_VALUES - FIRST_INPUT);
        return WEFT_ERR_TOO_LARGE;
    }
    weft_value *items = wfi_calloc(inputs.count + FIRST_INPUT, sizeof(*items));
    if (!items)
        return WEFT_ERR_MEMORY;
    items[0] = weft_of_i64(mode_of(tape, options));
    items[1] = weft_of_bool(options->has_seed);
    items[2] = weft_of_i64((int64_t)options->seed);
    if (inputs.count)
        memcpy(items + FIRST_INPUT, inputs.items, inputs.count * sizeof(*items));
    weft_error *error = NULL;
    const weft_rpc_options how = {
        .tape = tape && wfi_tape_owner(tape) ? tape : NULL, .timeout_ms = options->timeout_ms, .error = &error};
    weft_status status =
        weft_rref_rpc_async(module, "weft:forward", (weft_args){items, inputs.count + FIRST_INPUT}, &how, out);
    if (error && tape && !tape->error)
        tape->error = weft_error_ref(error); /* with the status where the module could not be made */
    weft_error_unref(error);
    free(items);
    return status;
}

weft_args weft_remote_call_sized(weft_tape *tape, weft_rref *module, weft_args inputs,
                                 const weft_forward_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, module);
    weft_future *future = NULL;
    weft_error *error = NULL;
    weft_values *values = NULL;
    if (!wfi_tape_ready(tape))
        return WEFT_NO_VALUES;
    if (!module)
        weft_tape_fail(tape, WEFT_ERR_INVALID, "remote_forward: the module is NULL");
    weft_status status = weft_remote_call_async_sized(tape, module, inputs, options, size, &future);
    if (!status)
        status = wfi_rpc_await(NULL, future, &(weft_rpc_options){.error = &error}, &values);
    if (error && !tape->error)
        tape->error = weft_error_ref(error); /* with the worker where it failed */
    else if (status)
        weft_tape_fail(tape, status, "remote_forward: %s", weft_status_text(status));
    weft_error_unref(error);
    return status ? WEFT_NO_VALUES : wfi_tape_take_values(tape, values);
}

weft_tensor *weft_remote_forward_sized(weft_tape *tape, weft_rref *module, weft_tensor *x,
                                       const weft_forward_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, module, x);
    weft_args results = weft_remote_call_sized(tape, module, WEFT_VALUES(weft_of_tensor(x)), options, size);
    weft_tensor *first = weft_args_tensor(results, 0);
    if (!first && wfi_tape_ready(tape))
        weft_tape_fail(tape, WEFT_ERR_TYPE, "remote_forward: the module's first result is no tensor");
    return first;
}

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

/* The handles that a module's owner has given so far. */
typedef struct handles {
    weft_value *items;
    size_t count, capacity, total;
} handles;

static void drop_handles(handles *all)
{
    for (size_t i = 0; i < all->count; i++)
        weft_rref_unref(all->items[i].as.rref);
    free(all->items);
}

/*
 * Adds the handles of one page. The owner says how many there are in all, but memory is taken only for those that
 * have arrived. All pages give the same number, because a module's list does not change once it was requested.
 */
static weft_status add_page(handles *all, const weft_values *page, bool is_first)
{
    int64_t total = 0;
    size_t count = weft_values_count(page) - 1;
    weft_status status = weft_values_get_i64(page, 0, &total);
    if (!status && is_first)
        all->total = (size_t)total;
    if (!status && (total < 0 || (size_t)total != all->total || count > all->total - all->count ||
                    (count == 0 && all->count < all->total)))
        status = WEFT_ERR_PROTOCOL;
    for (size_t i = 0; i < count && !status; i++) {
        weft_rref *rref;
        status = weft_values_get_rref(page, 1 + i, &rref);
        weft_value *items = status ? NULL : wfi_grow(all->items, all->count, &all->capacity, sizeof(*items));
        if (!status && !items)
            status = WEFT_ERR_MEMORY;
        if (items) {
            all->items = items;
            all->items[all->count++] = weft_of_rref(weft_rref_ref(rref));
        }
    }
    return status;
}

weft_status weft_remote_parameters(weft_rref *module, weft_values **out, weft_error **error)
{
    WFI_CHECK_HANDLE(module);
    handles all = {0};
    bool is_first = true;
    weft_status status = WEFT_OK;
    weft_error *why = NULL;
    if (!module || !out)
        return wfi_refuse_null_to(error, "weft_remote_parameters", module ? "out" : "the module");
    do {
        weft_values *page;
        status = weft_rref_rpc_sync(module, "weft:parameters", WEFT_VALUES(weft_of_i64((int64_t)all.count)),
                                    &(weft_rpc_options){.error = &why}, &page);
        if (status)
            break;
        status = add_page(&all, page, is_first);
        is_first = false;
        weft_values_unref(page);
    } while (!status && all.count < all.total);
    weft_values *values = status ? NULL : wfi_values_make(all.count); /* perhaps more than a list of a call may have */
    if (!values) {
        drop_handles(&all);
        status = status ? status : WEFT_ERR_MEMORY;
        if (!why)
            return wfi_refuse_to(error, status, "weft_remote_parameters: %s",
                                 status == WEFT_ERR_PROTOCOL ? "the owner's lists of handles contradict each other"
                                                             : weft_status_text(status));
        wfi_refuse_with(error, why);
        return status;
    }
    if (all.count)
        memcpy((weft_value *)weft_values_args(values).items, all.items, all.count * sizeof(*all.items));
    free(all.items);
    *out = values;
    return WEFT_OK;
}

/* ---- The component of src/remote --------------------------------------------------------------------------------- */

static weft_status open_remote(weft_agent *agent, weft_error **error)
{
    (void)error;
    weft_status status = register_functions(agent);
    return status ? status : wfi_remote_optimizers_register(agent);
}

const wfi_component wfi_remote_component = {.open = open_remote, .close = wfi_remote_optimizers_close};

__attribute__((constructor(WFI_JOIN_REMOTE))) static void join_agents(void)
{
    wfi_pass_register_step(wfi_remote_parts_step);
    wfi_component_add(&wfi_remote_component);
}
