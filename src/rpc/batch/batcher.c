/* SPDX-License-Identifier: Apache-2.0 */
/* batcher.c - creates and frees the batcher of a function, and serves the function's calls; see batch.h. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "base/text/sized.h"
#include "rpc/batch/batch.h"

#include "value/value.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_SIZE 64
#define DEFAULT_QUEUE 1024

/* ---- Creating and freeing ---------------------------------------------------------------------------------------- */

static size_t count_types(const weft_type *types, weft_type wanted)
{
    size_t count = 0;
    for (size_t i = 0; types[i] != WEFT_TYPE_NONE; i++)
        count += types[i] == wanted;
    return count;
}

static weft_status check_callers(const weft_agent *agent, const int *ranks, size_t count, weft_error **error)
{
    int world_size = agent->options.values.world_size; /* of an elastic job: the number of ranks */
    if (count && !ranks)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "%zu callers at NULL", count);
    if (count > (size_t)world_size)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "%zu callers: the world size is %d", count, world_size);
    for (size_t i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= world_size)
            return wfi_error_fail(error, WEFT_ERR_INVALID, "caller %zu has rank %d: 0 to %d, as the world size is %d",
                                  i, ranks[i], world_size - 1, world_size);
        for (size_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return wfi_error_fail(error, WEFT_ERR_INVALID, "callers %zu and %zu have the same rank, %d", k, i,
                                      ranks[i]);
    }
    return WEFT_OK;
}

static weft_status check_numbers(const weft_batch_options *o, weft_error **error)
{
    const weft_status bad = WEFT_ERR_INVALID;
    const int size = o->size ? o->size : DEFAULT_SIZE;
    if (o->size < 0 || o->size > WEFT_MAX_BATCH)
        return wfi_error_fail(error, bad, "batch.size is %d: 1 to %d, or 0 for %d", o->size, WEFT_MAX_BATCH,
                              DEFAULT_SIZE);
    if (o->wait_us < WEFT_FOREVER)
        return wfi_error_fail(error, bad, "batch.wait_us is %lld: 0, more, or WEFT_FOREVER", (long long)o->wait_us);
    if (o->in_flight < 0)
        return wfi_error_fail(error, bad, "batch.in_flight is %d: 1 or more, or 0 for 1", o->in_flight);
    if (o->queue < 0)
        return wfi_error_fail(error, bad, "batch.queue is %d: 1 or more, or 0 for the default", o->queue);
    const int needed = o->one_per_caller ? size : 2 * size; /* so that one caller can fill a batch: client.c */
    if (o->wait_us == WEFT_FOREVER && o->queue && o->queue < needed)
        return wfi_error_fail(
            error, bad, "batch.queue is %d, below %d: with wait_us WEFT_FOREVER no batch of %d calls might be full",
            o->queue, needed, size);
    return WEFT_OK;
}

/* The first option that is set, or NULL. */
static const char *option_set(const weft_batch_options *o)
{
    const struct {
        bool is_set;
        const char *name;
    } options[] = {{o->size, "size"},
                   {o->wait_us, "wait_us"},
                   {o->caller_count, "caller_count"},
                   {o->in_flight, "in_flight"},
                   {o->one_per_caller, "one_per_caller"},
                   {o->queue, "queue"}};
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        if (options[i].is_set)
            return options[i].name;
    return NULL;
}

static weft_status check_batched(const weft_agent *agent, const weft_function *function, weft_error **error)
{
    const weft_status bad = WEFT_ERR_INVALID;
    if (!WFI_ROOM_IS_ZERO(&function->batch))
        return wfi_error_fail(error, bad, WFI_NEWER, "weft_batch_options");
    if (!function->run_batch) {
        const char *option = option_set(&function->batch);
        return option ? wfi_error_fail(error, bad, "batch.%s is set without run_batch", option) : WEFT_OK;
    }
    if (function->run)
        return wfi_error_fail(error, bad, "run and run_batch are both set");
    if (function->land)
        return wfi_error_fail(error, bad, "land is set: no batched function has one");
    for (size_t i = 0; function->takes[i] != WEFT_TYPE_NONE; i++) {
        weft_type type = function->takes[i];
        if (type == WEFT_TYPE_TENSORS || type == WEFT_TYPE_LIST || type == WEFT_TYPE_ANY || type == WEFT_TYPE_REST)
            return wfi_error_fail(error, bad, "takes[%zu] is %s, which no batched function can take", i,
                                  weft_type_name(type));
    }
    weft_status status = check_numbers(&function->batch, error);
    return status ? status : check_callers(agent, function->batch.callers, function->batch.caller_count, error);
}

static weft_status copy_ranks(const int *ranks, size_t count, const int **out)
{
    int *copy = count ? malloc(count * sizeof(*copy)) : NULL;
    if (count && !copy)
        return WEFT_ERR_MEMORY;
    if (count)
        memcpy(copy, ranks, count * sizeof(*copy));
    *out = copy;
    return WEFT_OK;
}

static void take_defaults(weft_batch_options *o)
{
    o->size = o->size ? o->size : DEFAULT_SIZE;
    o->in_flight = o->in_flight ? o->in_flight : 1;
    int many = o->size < DEFAULT_QUEUE / 4 ? DEFAULT_QUEUE : 4 * o->size;
    o->queue = o->queue ? o->queue : many;
}

static const wfi_runner_ops runner_ops;

static weft_status create_batcher(weft_agent *agent, const weft_function *function, wfi_runner **out)
{
    if (!function->run_batch)
        return WEFT_OK;
    wfi_batcher *batcher = wfi_calloc(1, sizeof(*batcher));
    weft_status status = batcher ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status) {
        batcher->options = function->batch;
        status = copy_ranks(function->batch.callers, function->batch.caller_count, &batcher->options.callers);
    }
    if (status) {
        free(batcher);
        return status;
    }
    take_defaults(&batcher->options);
    batcher->agent = agent;
    batcher->function = function;
    batcher->tensor_count = count_types(function->takes, WEFT_TYPE_TENSOR);
    batcher->run = wfi_batch_task;
    batcher->timer.fire = wfi_batch_timer;
    batcher->scan_ns = WFI_NEVER;
    wfi_list_init(&batcher->open);
    wfi_map_init(&batcher->class_by_hash);
    wfi_map_init(&batcher->clients);
    wfi_histogram_init(&batcher->sizes);
    wfi_histogram_init(&batcher->waits);
    batcher->runner.ops = &runner_ops;
    *out = &batcher->runner;
    return WEFT_OK;
}

/* From then on wfi_batchers_pump finds it. */
static void announce_batcher(wfi_runner *runner)
{
    wfi_batcher *batcher = wfi_container_of(runner, wfi_batcher, runner);
    batcher->next = atomic_load(&batcher->agent->batchers);
    while (!atomic_compare_exchange_weak(&batcher->agent->batchers, &batcher->next, batcher)) {}
}

static void destroy_batcher(wfi_runner *runner)
{
    wfi_batcher *batcher = wfi_container_of(runner, wfi_batcher, runner);
    size_t cursor = 0;
    for (wfi_batch_client *client; (client = wfi_map_next(&batcher->clients, &cursor, NULL));)
        free(client);
    wfi_map_fini(&batcher->clients);
    wfi_map_fini(&batcher->class_by_hash);
    wfi_histogram_fini(&batcher->sizes);
    wfi_histogram_fini(&batcher->waits);
    free((int *)batcher->options.callers);
    free(batcher);
}

weft_status weft_agent_expect_callers(weft_agent *agent, const char *function, const int *ranks, size_t count)
{
    WFI_CHECK_HANDLE(agent);
    const int *copy = NULL;
    weft_error *error = NULL;
    if (!agent || !function)
        return wfi_refuse_null("weft_agent_expect_callers", agent ? "the function's name" : "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    if (check_callers(agent, ranks, count, &error)) {
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "weft_agent_expect_callers: \"%.*s\": %s", wfi_utf8_fit(function, 140),
                      function, weft_error_message(error));
        weft_error_unref(error);
        return WEFT_ERR_INVALID;
    }
    wfi_batcher *batcher = wfi_batcher_of(wfi_function_find(agent, function));
    if (!batcher)
        return wfi_refuse(WEFT_ERR_NOT_FOUND,
                          "weft_agent_expect_callers: \"%.*s\" is no registered function with run_batch",
                          wfi_utf8_fit(function, 140), function);
    weft_status status = copy_ranks(ranks, count, &copy);
    if (status)
        return status;
    wfi_net_lock(agent->net);
    const int *before = batcher->options.callers;
    batcher->options.callers = copy;
    batcher->options.caller_count = count;
    wfi_batcher_pump(batcher);
    wfi_net_unlock(agent->net);
    free((int *)before);
    return WEFT_OK;
}

/* ---- Calls that join and leave ----------------------------------------------------------------------------------- */

static wfi_tensor_types types_of(weft_tensor *const *tensors, size_t count)
{
    wfi_tensor_types types = {.count = count};
    for (size_t i = 0; i < count; i++)
        types.items[i] = (wfi_tensor_type){.dtype = tensors[i]->dtype,
                                           .shape = tensors[i]->shape,
                                           .to = wfi_device_code(weft_tensor_device(tensors[i]))};
    return types;
}

static weft_error *cannot_be_a_row(const weft_call *call, const wfi_tensor_types *types)
{
    for (size_t i = 0; i < types->count; i++)
        if (types->items[i].shape.ndim == WEFT_MAX_DIMS)
            return wfi_call_error(call, WEFT_ERR_SHAPE, "tensor %zu has %d dimensions, a row of a batch %d at most", i,
                                  WEFT_MAX_DIMS, WEFT_MAX_DIMS - 1);
    return NULL;
}

static void leave_batcher(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    batcher->stats.left_out += atomic_load(&call->cancel_reason) != WEFT_OK;
    wfi_batch_unqueue(call);
    wfi_batch_leave_row(call);
    wfi_batcher_pump(batcher); /* a batch that waited only for this call may begin */
}

static void refuse_batched(weft_call *call, weft_error *error)
{
    leave_batcher(call);
    wfi_serve_refuse(call, error);
}

static void join(weft_call *call)
{
    weft_tensor *tensors[WEFT_MAX_SIGNATURE];
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    wfi_tensor_types types =
        types_of(tensors, wfi_values_tensors(weft_values_args(call->args), tensors, WEFT_MAX_SIGNATURE));
    weft_error *error = cannot_be_a_row(call, &types);
    if (!error && atomic_load(&call->cancel_reason)) /* of this worker, cancelled while it waited for references */
        error = wfi_call_error(call, (weft_status)atomic_load(&call->cancel_reason), "its answer is no longer needed");
    if (!error && !call->queued) /* a call of this worker to itself */
        error = wfi_batch_admit(call);
    if (!error && call->batch && !call->batch->open) { /* its batch began without it: its tensors stay where they are */
        batcher->stats.late_calls++;
        call->batch->rows[call->row].placed = 0; /* it stays charged for its tensors */
        wfi_batch_leave_row(call);
    }
    if (!error && !wfi_batch_make_ready(call, &types))
        error = wfi_call_error(call, WEFT_ERR_MEMORY, "no memory for a batch");
    if (error) {
        refuse_batched(call, error);
        return;
    }
    call->stage = WFI_SERVE_SERVING;
    call->span.ready_ns = wfi_net_now(call->agent->net);
    call->holds += 2; /* the user's, until weft_call_finish, and the batch's */
    wfi_serve_watch_deadline(call);
    wfi_batch_arrived(call, call->span.ready_ns);
}

static weft_error *admit(weft_call *call)
{
    call->arguments->options =
        (wfi_decode_options){.place = wfi_batch_place, .place_arg = call, .expect = wfi_batch_expect};
    return wfi_batch_admit(call);
}

static const wfi_runner_ops runner_ops = {.admit = admit, .ready = join, .leave = leave_batcher};

/* ---- A component of the agent ------------------------------------------------------------------------------------ */

static void pump_without(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    (void)peer;
    (void)why;
    (void)text;
    wfi_batchers_pump(agent);
}

const wfi_component wfi_batch_component = {
    .check = check_batched,
    .runner = create_batcher,
    .registered = announce_batcher,
    .free_runner = destroy_batcher,
    .peer_gone = pump_without,
    .refuse_queued = wfi_batches_refuse_queued,
    .closing = wfi_batchers_pump,
    .peer_ending = wfi_batchers_pump,
    .metrics = wfi_batches_write_metrics,
};
