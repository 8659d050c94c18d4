/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - one call of a group function: checks its arguments, and makes an operation of it. */
#include "coll/request.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "coll/carrier.h"
#include "rpc/client/client.h"
#include "tensor/cell.h"
#include "tensor/combine.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

WEFT_PRINTF(3, 4)
static weft_status refuse(const weft_group *group, const wfi_group_request *request, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text, sizeof(text), format, args);
    va_end(args);
    wfi_agent_log(group->agent, WEFT_LOG_WARN, 0, "%s (\"%s\"): %s", request->name, group->name, text);
    if (wfi_log_wants(WEFT_LOG_WARN))
        wfi_status_logged(WEFT_ERR_INVALID);
    return WEFT_ERR_INVALID;
}

static weft_status check_tensor(const weft_group *group, const wfi_group_request *request, const weft_tensor *tensor,
                                const char *name)
{
    if (!tensor)
        return refuse(group, request, "%s is NULL", name);
    if (wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA) {
        (void)refuse(group, request, "%s is on a CUDA device: give a copy on the CPU (weft_tensor_to_device)", name);
        return WEFT_ERR_UNSUPPORTED;
    }
    return WEFT_OK;
}

/* Number of parts of one member in the input and in the output; 0: this member has none. */
static void parts_of(const weft_group *group, const wfi_group_request *request, size_t *input, size_t *output)
{
    bool at_root = (size_t)group->index == request->root;
    size_t all = group->size;
    *input = *output = 1;
    switch (request->kind) {
    case WFI_BARRIER:
        *input = *output = 0;
        break;
    case WFI_ALLGATHER:
        *output = all;
        break;
    case WFI_REDUCE_SCATTER:
        *input = all;
        break;
    case WFI_GATHER:
        *output = at_root ? all : 0;
        break;
    case WFI_SCATTER:
        *input = at_root ? all : 0;
        break;
    case WFI_ALL_TO_ALL:
        *input = *output = all;
        break;
    case WFI_SENDRECV:
        *input = request->sends;
        *output = !request->sends;
        break;
    default:
        break;
    }
}

/* The input has `inputs` parts, the output `outputs`: 0, 1, or one for each member. *count: elements of one part. */
static weft_status check_counts(const weft_group *group, const wfi_group_request *request, size_t inputs,
                                size_t outputs, size_t *count)
{
    const weft_tensor *tensor = inputs == 1 ? request->input : outputs == 1 ? request->output : request->input;
    size_t in = inputs ? (size_t)weft_tensor_numel(request->input) : 0;
    size_t out = outputs ? (size_t)weft_tensor_numel(request->output) : 0;
    size_t part = inputs == 1 ? in : outputs == 1 ? out : in / group->size;
    bool both_all = inputs > 1 && outputs > 1;
    if (inputs && in != inputs * part && both_all)
        return refuse(group, request, "input has %zu elements: not a multiple of %zu (the members)", in, group->size);
    if (inputs && in != inputs * part)
        return refuse(group, request, "input has %zu elements: not %zu (the members) times %zu (output's)", in, inputs,
                      part);
    if (outputs && out != outputs * part && both_all)
        return refuse(group, request, "output has %zu elements, input %zu", out, in);
    if (outputs && out != outputs * part)
        return refuse(group, request, "output has %zu elements: not %zu (the members) times %zu (input's)", out,
                      outputs, part);
    if (inputs && outputs && request->input->dtype != request->output->dtype)
        return refuse(group, request, "input is %s, output %s", weft_dtype_name(request->input->dtype),
                      weft_dtype_name(request->output->dtype));
    if (request->reduces && !wfi_can_combine(tensor->dtype, request->how)) {
        (void)refuse(group, request, "how is %d: there is no %s of %s", (int)request->how,
                     wfi_reduction_name((unsigned)request->how), weft_dtype_name(tensor->dtype));
        return WEFT_ERR_TYPE;
    }
    *count = part;
    return WEFT_OK;
}

static weft_status check_arguments(const weft_group *group, const wfi_group_request *request, size_t *count,
                                   weft_dtype *dtype)
{
    const char *root = request->kind != WFI_SENDRECV ? "root"
                       : request->sends              ? "to"
                                                     : "from"; /* the argument's name */
    size_t inputs, outputs;
    weft_status status = WEFT_OK;
    parts_of(group, request, &inputs, &outputs);
    if (request->timeout_ms < WEFT_FOREVER)
        return refuse(group, request, "timeout_ms is %lld: 0, more, or WEFT_FOREVER", (long long)request->timeout_ms);
    if (request->root >= group->size)
        return refuse(group, request, "%s is %zu: the group has %zu members", root, request->root, group->size);
    if (request->kind == WFI_SENDRECV && request->root == (size_t)group->index)
        return refuse(group, request, "%s is %zu, this member itself", root, request->root);
    if (inputs)
        status = check_tensor(group, request, request->input, request->input == request->output ? "tensor" : "input");
    if (!status && outputs && request->output != request->input)
        status = check_tensor(group, request, request->output, "output");
    if (status || !(inputs || outputs))
        return status;
    *dtype = (inputs ? request->input : request->output)->dtype;
    return check_counts(group, request, inputs, outputs, count);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* If the user's tensor is not plain memory, a copy of its values is used instead. */
static weft_tensor *plain(const weft_tensor *tensor)
{
    return wfi_tensor_contiguous((weft_tensor *)tensor, NULL);
}

static void set_memory(wfi_operation *operation, wfi_buffer which, const weft_tensor *tensor)
{
    operation->memory[which].data = wfi_tensor_address(tensor);
    operation->memory[which].storage = wfi_storage_ref(wfi_tensor_storage(tensor));
}

/* These have one tensor: the caller of wfi_request_start passes it as input and as output. */
static bool has_one_tensor(wfi_operation_kind kind)
{
    return kind == WFI_ALLREDUCE || kind == WFI_REDUCE || kind == WFI_BROADCAST;
}

/* If the results were received into a copy, copies them to the user's own tensor. */
static weft_status assign_output(wfi_operation *operation)
{
    return weft_tensor_assign(operation->tensors[1], operation->own);
}

static void drop_copy(void *copy)
{
    weft_tensor_unref(copy);
}

static weft_status take_output(wfi_operation *operation, weft_tensor *output, bool reads)
{
    operation->tensors[1] = weft_tensor_ref(output);
    if (!output->cell && weft_tensor_is_contiguous(output)) {
        set_memory(operation, WFI_OUTPUT, output);
        return WEFT_OK;
    }
    weft_tensor *copy =
        reads ? wfi_tensor_clone(output, NULL) : wfi_tensor_empty_like(output, output->shape, output->dtype);
    if (!copy)
        return WEFT_ERR_MEMORY;
    operation->own = copy;
    operation->free_own = drop_copy;
    operation->finish = assign_output;
    set_memory(operation, WFI_OUTPUT, copy);
    return WEFT_OK;
}

/* Takes the input, the output or both. In a reduction to a root and in a broadcast they are the same tensor. */
static weft_status take_memory(wfi_operation *operation, const wfi_group_request *request)
{
    weft_group *group = operation->group;
    size_t inputs, outputs;
    parts_of(group, request, &inputs, &outputs);
    bool at_root = (size_t)group->index == request->root;
    if (request->kind == WFI_REDUCE && !at_root)
        outputs = 0;
    bool is_one = has_one_tensor(request->kind);
    weft_status status = outputs ? take_output(operation, request->output, is_one) : WEFT_OK;
    if (status || !inputs)
        return status;
    if (outputs && is_one) {
        operation->memory[WFI_INPUT] = operation->memory[WFI_OUTPUT];
        (void)wfi_storage_ref(operation->memory[WFI_INPUT].storage);
        return WEFT_OK;
    }
    operation->tensors[0] = plain(request->input);
    if (!operation->tensors[0])
        return WEFT_ERR_MEMORY;
    set_memory(operation, WFI_INPUT, operation->tensors[0]);
    return WEFT_OK;
}

static bool is_in_place(const wfi_operation *operation)
{
    const wfi_collective *collective = &operation->collective;
    size_t bytes = wfi_part_bytes(collective);
    const uint8_t *in = operation->memory[WFI_INPUT].data, *out = operation->memory[WFI_OUTPUT].data;
    if (!in || !out)
        return false;
    if (collective->kind == WFI_ALLGATHER || collective->kind == WFI_GATHER)
        return in == out + collective->me * bytes;
    return collective->kind == WFI_SCATTER ? out == in + collective->root * bytes : in == out;
}

/* Checks memory that is used directly. Copies overlap nothing. */
static weft_status check_places(const wfi_operation *operation, const wfi_group_request *request)
{
    const weft_group *group = operation->group;
    const uint8_t *in = operation->memory[WFI_INPUT].data, *out = operation->memory[WFI_OUTPUT].data;
    size_t inputs, outputs, count = operation->collective.count, part = wfi_part_bytes(&operation->collective);
    parts_of(group, request, &inputs, &outputs);
    bool overlap = in && out && in < out + outputs * part && out < in + inputs * part;
    bool gathers = request->kind == WFI_ALLGATHER || request->kind == WFI_GATHER;
    size_t own = (size_t)group->index * count;
    if (!overlap || has_one_tensor(request->kind) ||
        ((gathers || request->kind == WFI_SCATTER) && is_in_place(operation)))
        return WEFT_OK;
    if (gathers)
        return refuse(group, request, "input overlaps output, and is not this member's part of it, from element %zu on",
                      own);
    if (request->kind == WFI_SCATTER)
        return refuse(group, request, "output overlaps input, and is not this member's part of it, from element %zu on",
                      own);
    return refuse(group, request, "input and output overlap: give each memory of its own");
}

/* The memory of the user's tensors. The other members must not wait for a member that lacks it, and weft computes with
 * it: without this check that would raise SIGSEGV. */
static weft_status check_memory(const wfi_operation *operation, const wfi_group_request *request)
{
    weft_group *group = operation->group;
    bool only_reads = request->kind == WFI_BROADCAST && (size_t)group->index == request->root;
    int me = wfi_agent_rank(group->agent);
    bool is_one = has_one_tensor(request->kind) && operation->memory[WFI_OUTPUT].storage;
    for (int i = is_one ? WFI_OUTPUT : WFI_INPUT; i <= WFI_OUTPUT; i++) {
        bool writes = i == WFI_OUTPUT && !only_reads;
        const wfi_storage *storage = operation->memory[i].storage;
        size_t size = storage ? weft_tensor_nbytes(i == WFI_INPUT ? request->input : request->output) : 0;
        if (!size || wfi_storage_is_accessible(storage, operation->memory[i].data, size, writes))
            continue;
        wfi_net_lock(group->agent->net);
        wfi_group_break_for(group, WEFT_ERR_INVALID, me,
                            "%s: the memory of the tensor of rank %d cannot be %s: " WFI_INACCESSIBLE,
                            wfi_operation_names[request->kind], me, writes ? "written" : "read");
        wfi_net_unlock(group->agent->net);
        return WEFT_ERR_INVALID;
    }
    return WEFT_OK;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static void set_collective(wfi_operation *operation, wfi_operation_kind kind)
{
    const weft_group *group = operation->group;
    operation->collective = (wfi_collective){.kind = kind,
                                             .members = group->size,
                                             .me = (size_t)group->index,
                                             .chunk = WFI_GROUP_CHUNK,
                                             .element = 1,
                                             .hosts = group->hosts,
                                             .spans_hosts = group->spans_hosts,
                                             .has_levels = group->has_levels,
                                             .hosts_may_share = group->hosts_may_share,
                                             .uses_memory = group->share.state == WFI_SHARE_YES};
}

wfi_operation *wfi_operation_create(weft_group *group, wfi_operation_kind kind, int64_t timeout_ms)
{
    wfi_operation *operation = wfi_calloc(1, sizeof(*operation));
    weft_future *future = operation ? wfi_agent_future(group->agent) : NULL;
    if (!future) {
        free(operation);
        return NULL;
    }
    operation->group = wfi_group_ref(group);
    operation->future = future;
    operation->timeout_ms = timeout_ms;
    set_collective(operation, kind);
    operation->dtype = WEFT_DTYPE_UINT8;
    wfi_list_init(&operation->link);
    wfi_list_init(&operation->share.link);
    return operation;
}

/* After this, rules and carrier do not change, so operations are built from them without the lock. */
static void use(weft_group *group)
{
    wfi_net_lock(group->agent->net);
    group->used = true;
    wfi_net_unlock(group->agent->net);
}

static weft_status create_operation(weft_group *group, const wfi_group_request *request, wfi_operation **out)
{
    size_t count = 0;
    weft_dtype dtype = WEFT_DTYPE_UINT8;
    weft_status status = check_arguments(group, request, &count, &dtype);
    if (status)
        return status;
    wfi_operation *operation = wfi_operation_create(group, request->kind, request->timeout_ms);
    if (!operation)
        return WEFT_ERR_MEMORY;
    operation->dtype = dtype;
    operation->how = request->how;
    operation->space = request->kind == WFI_SENDRECV ? WFI_SPACE_P2P : WFI_SPACE_COLLECTIVE;
    operation->sends = request->sends;
    operation->peer = operation->space == WFI_SPACE_P2P ? request->root : 0;
    operation->collective.root = operation->space == WFI_SPACE_P2P ? 0 : request->root;
    operation->collective.count = count;
    operation->collective.element = weft_dtype_size(dtype);
    operation->collective.divides = request->reduces && request->how == WEFT_OP_AVG;
    operation->collective.chunk = wfi_chunk_for(&operation->collective, wfi_part_bytes(&operation->collective));
    status = take_memory(operation, request);
    operation->collective.in_place = is_in_place(operation);
    if (!status)
        status = check_places(operation, request);
    if (!status)
        status = check_memory(operation, request);
    if (!status) {
        use(group);
        status = wfi_operation_build(operation);
    }
    if (status)
        wfi_operation_free(operation);
    else
        *out = operation;
    return status;
}

/* Whether the group can take an operation at all. Checked first, so that this error is not hidden by another. */
weft_status wfi_group_may_start(weft_group *group, const char *name)
{
    wfi_net_lock(group->agent->net);
    bool carries = wfi_carrier_is_caller(group->carrier); /* it would wait for itself */
    bool delivers = wfi_group_delivers(group);            /* then operation.c checks whether enough has arrived */
    weft_status status = carries ? WEFT_ERR_STATE : delivers ? WEFT_OK : wfi_agent_usable(group->agent);
    if (!status && group->over && !delivers)
        status = weft_error_code(group->over);
    else if (!status && !group->open)
        status = WEFT_ERR_CANCELLED; /* its user closed it, but another object still refers to it */
    wfi_net_unlock(group->agent->net);
    if (carries)
        wfi_agent_log(
            group->agent, WEFT_LOG_WARN, 0,
            "%s (\"%s\"): called by a function of this group's own carrier: call an operation of another group there",
            name, group->name);
    return status;
}

weft_status wfi_operation_run(wfi_operation *operation, weft_future **out)
{
    weft_future *future = weft_future_ref(operation->future);
    weft_status status = wfi_operation_start(operation);
    if (status)
        weft_future_unref(future);
    else
        *out = future;
    return status;
}

void wfi_group_lacks_memory(weft_group *group, wfi_operation_kind kind)
{
    int rank = wfi_agent_rank(group->agent);
    wfi_net_lock(group->agent->net);
    wfi_group_break_for(group, WEFT_ERR_MEMORY, rank, "rank %d has no memory for %s", rank, wfi_operation_names[kind]);
    wfi_net_unlock(group->agent->net);
}

weft_status wfi_request_start(weft_group *group, const wfi_group_request *request, weft_future **out)
{
    wfi_operation *operation;
    if (!group || !out)
        return wfi_refuse_null(request->name, group ? "out" : "group");
    if (!wfi_agent_enter(group->agent))
        return WEFT_ERR_CLOSED;
    weft_status status = wfi_group_may_start(group, request->name);
    if (!status)
        status = create_operation(group, request, &operation);
    if (!status)
        status = wfi_operation_run(operation, out);
    if (status == WEFT_ERR_MEMORY)
        wfi_group_lacks_memory(group, request->kind);
    wfi_agent_leave(group->agent);
    return status;
}

weft_status wfi_group_may_wait(weft_group *group, const char *name)
{
    weft_status status = WEFT_OK;
    if (group && wfi_agent_enter(group->agent)) {
        status = wfi_rpc_may_wait(group->agent, name, NULL);
        wfi_agent_leave(group->agent);
    }
    return status;
}

/* ---- Quick operations -------------------------------------------------------------------------------------------- */

/*
 * Makes an operation on the caller's stack, for which no memory is allocated. Sets only what a quick operation uses:
 * clearing all of it would take longer than the sum. Returns false for a request that the ordinary path must do or
 * refuse.
 */
static bool make_quick(weft_group *group, const wfi_group_request *request, wfi_operation *quick)
{
    const weft_tensor *tensor = request->output;
    bool reduces = request->kind == WFI_ALLREDUCE;
    if ((!reduces && request->kind != WFI_BARRIER) || request->timeout_ms < WEFT_FOREVER ||
        group->share.state != WFI_SHARE_YES || wfi_observe_has_trace(group->agent))
        return false;
    if (reduces && (!tensor || tensor->cell || !tensor->numel || wfi_tensor_kind(tensor) == WFI_MEMORY_CUDA ||
                    !weft_tensor_is_contiguous(tensor) || !wfi_can_combine(tensor->dtype, request->how)))
        return false;
    quick->group = group;
    quick->space = WFI_SPACE_COLLECTIVE;
    set_collective(quick, request->kind);
    quick->dtype = reduces ? tensor->dtype : WEFT_DTYPE_UINT8;
    quick->how = request->how;
    quick->share.at = 0;
    quick->timeout_ms = request->timeout_ms;
    quick->memory[WFI_INPUT].data = quick->memory[WFI_OUTPUT].data = NULL;
    if (!reduces)
        return true;
    quick->collective.count = (size_t)tensor->numel;
    quick->collective.element = weft_dtype_size(tensor->dtype);
    quick->collective.divides = request->how == WEFT_OP_AVG;
    quick->memory[WFI_OUTPUT].data = wfi_tensor_address(tensor);
    return wfi_storage_is_accessible(wfi_tensor_storage(tensor), quick->memory[WFI_OUTPUT].data,
                                     wfi_part_bytes(&quick->collective), true);
}

/* Continues a quick operation that takes long. */
static weft_status resume(weft_group *group, const wfi_group_request *request, weft_future **out)
{
    wfi_operation *operation = NULL;
    weft_status status = create_operation(group, request, &operation);
    if (!status) {
        *out = weft_future_ref(operation->future);
        wfi_future_has_spun(*out);
    } else if (status == WEFT_ERR_MEMORY) {
        wfi_group_lacks_memory(group, request->kind);
    }
    wfi_operation_resume(group, status ? NULL : operation);
    return status;
}

/* As wfi_request_start; but *out stays NULL if the operation has ended already, with success. */
static weft_status start_or_run(weft_group *group, const wfi_group_request *request, weft_future **out)
{
    wfi_operation quick;
    if (!make_quick(group, request, &quick) || !wfi_operation_begin_quick(&quick))
        return wfi_request_start(group, request, out);
    if (!wfi_share_run(&quick))
        return resume(group, request, out);
    wfi_operation_end_quick(&quick);
    if (request->output)
        wfi_storage_wrote(wfi_tensor_storage(request->output));
    return WEFT_OK;
}

/* The group may be closed during the wait: it is not touched once the operation has begun. */
weft_status wfi_request_wait(weft_group *group, const wfi_group_request *request)
{
    weft_future *future = NULL;
    weft_agent *agent = group ? group->agent : NULL;
    if (!group || !wfi_agent_enter(agent))
        return wfi_request_start(group, request, &future); /* which refuses it */
    weft_status status = wfi_rpc_may_wait(agent, request->name, NULL);
    if (!status)
        status = start_or_run(group, request, &future);
    wfi_agent_leave(agent);
    return status || !future ? status : wfi_rpc_await(NULL, future, NULL, NULL);
}
