/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_devices.c - item 58: tensors of devices in calls and references. The comments name PyTorch's tests,
 * of which docs/conformance.md has a list. Where one of them has a few pairs of devices, all mixtures of the CPU,
 * cuda:0 and cuda:1 are run.
 */
#include "gpu/gpu.h"
#include "make.h"
#include "rpc/world.h"
#include "tensors.h"

enum { ALL = 3, ORDERS = 6 };

static const weft_device cpu = {WEFT_DEVICE_CPU, 0};
static const weft_device all[ALL] = {{WEFT_DEVICE_CPU, 0}, {WEFT_DEVICE_CUDA, 0}, {WEFT_DEVICE_CUDA, 1}};
/* Where each goes, by its number in `all`, so that no two go to one. With one GPU the first two are run. */
static const int orders[ORDERS][ALL] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}};
static int devices = ALL; /* how many of `all` are here */

static int order_count(void)
{
    return devices == ALL ? ORDERS : 2;
}

/* The number in `all` whose tensors go to `there`. */
static int reverse(const int order[ALL], int there)
{
    int here = 0;
    while (order[here] != there)
        here++;
    return here;
}

static int device_of(const weft_tensor *tensor)
{
    int device = 0;
    while (!gpu_is_on(tensor, all[device]))
        device++;
    return device;
}

static weft_tensor *full_on(int device, int64_t count, double value)
{
    weft_tensor *x = tensor_empty_on(all[device], WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32);
    MUST(x);
    weft_tensor_fill(x, value);
    return x;
}

/* A tensor of that device, all of whose elements have this value. */
static bool is_full(weft_tensor *tensor, int device, double value)
{
    weft_tensor *here = gpu_is_on(tensor, cpu) ? weft_tensor_ref(tensor) : tensor_to_device(tensor, cpu);
    bool same = gpu_is_on(tensor, all[device]);
    for (int64_t i = 0; i < weft_tensor_numel(here) && same; i++)
        same = ((const float *)weft_tensor_data(here))[i] == (float)value;
    weft_tensor_unref(here);
    return same;
}

static weft_tensor *result(const weft_values *values, size_t index)
{
    weft_tensor *tensor;
    MUST_OK(weft_values_get_tensor(values, index, &tensor));
    return tensor;
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* x + y on a stream that is new. The sum has been queued when this returns, and no more. */
static weft_tensor *sum_on_stream(weft_tensor *x, weft_tensor *y)
{
    weft_device device = weft_tensor_device(x);
    weft_stream *stream = NULL;
    if (device.kind != WEFT_DEVICE_CPU)
        MUST_OK(weft_stream_create(device, &stream, NULL));
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = device, .stream = stream});
    weft_tensor *sum = weft_tensor_ref(weft_add(t, x, y));
    MUST_OK(weft_tape_status(t));
    weft_tape_close(t);
    weft_stream_unref(stream);
    return sum;
}

static weft_status give(weft_call *call, weft_tensor *tensor)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor)));
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

/* (x, y, x_to, y_to, z_to): refuses operands of other devices; gives x + y on the device z_to. */
static weft_status run_add(weft_call *call, void *user)
{
    weft_tensor *x = weft_call_tensor(call, 0), *y = weft_call_tensor(call, 1);
    int to = (int)weft_call_i64(call, 4);
    if (!gpu_is_on(x, all[weft_call_i64(call, 2)]) || !gpu_is_on(y, all[weft_call_i64(call, 3)]))
        return WEFT_ERR_TYPE;
    weft_tensor *a = tensor_to_device(x, all[to]), *b = tensor_to_device(y, all[to]), *sum = sum_on_stream(a, b);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    return give(call, sum);
}

/* (x, y): gives x + y on the device of y, and x - y on that of x. */
static weft_status run_both(weft_call *call, void *user)
{
    weft_tensor *x = weft_call_tensor(call, 0), *y = weft_call_tensor(call, 1);
    weft_tensor *x_at_y = tensor_to_device(x, weft_tensor_device(y)), *sum = sum_on_stream(x_at_y, y);
    weft_tensor *y_at_x = tensor_to_device(y, weft_tensor_device(x));
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = weft_tensor_device(x)});
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum), weft_of_tensor(weft_sub(t, x, y_at_x))));
    MUST_OK(weft_tape_status(t));
    weft_tape_close(t);
    weft_tensor_unref(x_at_y);
    weft_tensor_unref(y_at_x);
    weft_tensor_unref(sum);
    return WEFT_OK;
}

/* (value): tensors with it on all devices. */
static weft_status run_on_all(weft_call *call, void *user)
{
    weft_tensor *made[ALL];
    for (int i = 0; i < devices; i++)
        made[i] = full_on(i, 5001, weft_call_f64(call, 0) + i);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){made, (size_t)devices})));
    for (int i = 0; i < devices; i++)
        weft_tensor_unref(made[i]);
    return WEFT_OK;
}

static weft_status run_sum(weft_call *call, void *user)
{
    return give(call, sum_on_stream(weft_call_tensor(call, 0), weft_call_tensor(call, 1)));
}

/* (further, x, y, z): x + y as another worker computes it, plus z. */
static weft_status run_nested(weft_call *call, void *user)
{
    weft_values *got;
    weft_tensor *x = weft_call_tensor(call, 1), *y = weft_call_tensor(call, 2);
    MUST_OK(weft_rpc_sync(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)), "sum",
                          WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y)), NULL, &got));
    weft_tensor *sum = sum_on_stream(result(got, 0), weft_call_tensor(call, 3));
    weft_values_unref(got);
    return give(call, sum);
}

/* Operands of two devices. */
static weft_status run_mismatch(weft_call *call, void *user)
{
    weft_tensor *x = weft_call_tensor(call, 0), *here = tensor_to_device(x, cpu);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = weft_tensor_device(x)});
    (void)weft_add(t, x, here);
    weft_status status = weft_tape_status(t);
    const weft_error *error = weft_tape_error(t);
    weft_call_fail(call, status, "%s", error ? weft_error_message(error) : "no error");
    weft_tape_close(t);
    weft_tensor_unref(here);
    return status;
}

/* A model: twice its input, plus 1. */
static weft_tensor *forward(weft_tensor *x)
{
    weft_tensor *twice = sum_on_stream(x, x), *ones = full_on(device_of(x), weft_tensor_size(x, 0), 1);
    weft_tensor *y = sum_on_stream(twice, ones);
    weft_tensor_unref(twice);
    weft_tensor_unref(ones);
    return y;
}

static weft_status run_forward(weft_call *call, void *user)
{
    return give(call, forward(weft_call_tensor(call, 0)));
}

/* The value of a reference of any worker, as it comes here. */
static weft_tensor *read_here(weft_rref *rref)
{
    weft_values *got;
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &got, NULL));
    weft_tensor *tensor = weft_tensor_ref(result(got, 0));
    weft_values_unref(got);
    return tensor;
}

static weft_status run_forward_of(weft_call *call, void *user)
{
    weft_tensor *x = read_here(weft_call_rref(call, 0));
    weft_status status = give(call, forward(x));
    weft_tensor_unref(x);
    return status;
}

static weft_status run_relay(weft_call *call, void *user)
{
    return give(call, read_here(weft_call_rref(call, 0)));
}

/* (value): the first rows of a larger tensor, which is being computed. */
static weft_status run_view(weft_call *call, void *user)
{
    weft_tensor *x = full_on(1, 100000, weft_call_f64(call, 0)), *sum = sum_on_stream(x, x);
    weft_tensor *view = tensor_narrow(sum, 0, 0, 10000);
    weft_tensor_unref(x);
    weft_tensor_unref(sum);
    return give(call, view);
}

static weft_status keep_call(weft_future *parent, weft_future *child, void *arg)
{
    weft_call *call = arg;
    weft_tensor *x = weft_future_tensor(parent, 0), *sum = sum_on_stream(x, x);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    weft_tensor_unref(sum);
    weft_call_finish(call, WEFT_OK);
    return weft_future_complete(child, NULL, NULL);
}

/* (further, x, y): answers later, with twice the sum that another worker computes. */
static weft_status run_async(weft_call *call, void *user)
{
    weft_future *sum;
    weft_args args = WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 1)), weft_of_tensor(weft_call_tensor(call, 2)));
    MUST_OK(weft_rpc_async(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)), "sum", args, NULL, &sum));
    weft_future *then = weft_future_then(sum, keep_call, weft_call_defer(call), NULL);
    MUST(then);
    weft_future_unref(then);
    weft_future_unref(sum);
    return WEFT_DEFERRED;
}

/* (rref, value): adds to a tensor that is kept here, in place; or its first element. */
static weft_status run_increase(weft_call *call, void *user)
{
    weft_value kept;
    MUST_OK(weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &kept));
    weft_tensor *more = sum_on_stream(kept.as.tensor, weft_call_tensor(call, 1));
    MUST_OK(weft_tensor_assign(kept.as.tensor, more));
    weft_tensor_unref(more);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "add",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_add},
    {.name = "both",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .run = run_both},
    {.name = "on all", .takes = {WEFT_TYPE_F64}, .gives = {WEFT_TYPE_TENSORS}, .run = run_on_all},
    {.name = "sum", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_sum},
    {.name = "nested",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_nested},
    {.name = "mismatch", .takes = {WEFT_TYPE_TENSOR}, .run = run_mismatch},
    {.name = "forward", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_forward},
    {.name = "forward of", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = run_forward_of},
    {.name = "relay", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = run_relay},
    {.name = "view", .takes = {WEFT_TYPE_F64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_view},
    {.name = "async",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_async},
    {.name = "increase", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_TENSOR}, .run = run_increase},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

/* ---- Worlds ------------------------------------------------------------------------------------------------------ */

/* Of the world that is running: of rank 0's device maps for all workers; or, with `pair`, the maps between worker 0's
 * device pair[0] and those that are pair[1] at worker 1. */
static const int *order, *pair;

static void map_devices(weft_agent_options *options, void *arg)
{
    static weft_device_map maps[3][ALL]; /* the agents of all ranks read them when they open */
    weft_device_map *mine = maps[options->rank];
    options->device_maps = mine;
    if (pair) { /* as forward_synchronization has them */
        bool is_model = options->rank == 1;
        mine[0] = (weft_device_map){
            .worker = is_model ? "worker0" : "worker1", .here = all[pair[is_model]], .there = all[pair[!is_model]]};
        mine[1] = (weft_device_map){
            .worker = options->rank ? "worker0" : "worker2", .here = all[pair[0]], .there = all[pair[0]]};
        options->device_map_count = is_model ? 1 : 2;
    } else if (order && options->rank == 0) {
        for (int i = 0; i < ALL; i++)
            mine[i] = (weft_device_map){.here = all[i], .there = all[order[i]]};
        options->device_map_count = (size_t)devices;
    }
    if (!options->device_map_count)
        options->device_maps = NULL;
}

/* As in test_rpc_gpu.c: on the simulation where nothing is copied before an agent asks, otherwise on tcp, or
 * TEST_FABRIC. */
static void play(void (*program)(weft_agent *agent, void *arg), uint64_t seeds)
{
    world_play(&(world){.program = program, .size = 3, .adjust = map_devices, WORLD_FUNCTIONS(functions)},
               gpu_is_polled() ? seeds : 0, gpu_is_polled() ? 0 : 1);
}

static void play_orders(void (*program)(weft_agent *agent, void *arg), uint64_t seeds)
{
    for (int i = 0; i < order_count(); i++) {
        order = orders[i];
        play(program, seeds);
    }
    order = NULL;
}

/* ---- Maps -------------------------------------------------------------------------------------------------------- */

static void refuses(weft_device_map *maps, size_t count)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {.world_size = 1, .has_rank = true, .device_maps = maps, .device_map_count = count};
    MUST_BE(weft_agent_open(&options, &agent, &error), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "device_maps"));
    weft_error_unref(error);
}

static void fails(weft_agent *agent, const char *function, weft_args args, weft_status status, const char *text)
{
    weft_error *error = NULL;
    weft_rref *rref = NULL;
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), function, args, &(weft_rpc_options){.error = &error}, NULL), status);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\" has no \"%s\"", weft_error_message(error), text);
    weft_error_unref(error);
    error = NULL;
    status = weft_rpc_remote(agent, weft_to_rank(1), function, args, &(weft_rpc_options){.error = &error}, &rref);
    if (!status) { /* it fails where it is read */
        weft_values *got = NULL;
        status = weft_rref_to_here(rref, WEFT_FOREVER, &got, &error);
    }
    if (!status || !strstr(weft_error_message(error), text))
        fail_msg("%s: \"%s\" has no \"%s\"", weft_status_name(status), weft_error_message(error), text);
    weft_error_unref(error);
    weft_rref_unref(rref);
}

/* Again and again, for a device that worker 1 does not have; calls for others go on. */
static void call_missing(weft_agent *agent, void *arg)
{
    weft_tensor *x = full_on(1, 2, 1), *y = full_on(0, 2, 1);
    weft_values *got;
    for (int i = 0; i < 10 && weft_agent_rank(agent) == 0; i++) {
        fails(agent, "echo", WEFT_VALUES(weft_of_tensor(x)), WEFT_ERR_INVALID, "goes to cuda:40 of \"worker1\"");
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(y)), NULL, &got));
        MUST(is_full(result(got, 0), 0, 1));
        weft_values_unref(got);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

/* The entry for a device that is not here does not count. */
static void answer_missing(weft_agent *agent, void *arg)
{
    weft_tensor *x = full_on(0, 2, 1);
    weft_values *got;
    for (int i = 0; i < 10 && weft_agent_rank(agent) == 0; i++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "view", WEFT_VALUES(weft_of_f64(1)), NULL, &got));
        weft_device device = weft_tensor_device(result(got, 0));
        MUST(device.kind == WEFT_DEVICE_CUDA && device.index == 0);
        weft_values_unref(got);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
        weft_values_unref(got);
    }
    weft_tensor_unref(x);
}

static void call_many_to_one(weft_agent *agent, void *arg)
{
    weft_tensor *x = full_on(1, 2, 1);
    if (weft_agent_rank(agent) == 0)
        fails(agent, "echo", WEFT_VALUES(weft_of_tensor(x)), WEFT_ERR_INVALID, "both go to");
    weft_tensor_unref(x);
}

static void play_with(const char *maps, void (*program)(weft_agent *agent, void *arg))
{
    setenv("WEFT_DEVICE_MAPS", maps, 1);
    play(program, 2);
    unsetenv("WEFT_DEVICE_MAPS");
}

/* device_maps_one_to_many, invalid_min_device; invalid_max_local_device, invalid_max_remote_device, missing_config,
 * missing_config_not_timeout, _loop, _remote, _response, _response_loop, _remote_response; many_to_one */
static void item_58_device_maps_are_checked(void **state)
{
    const weft_device negative = {WEFT_DEVICE_CUDA, -1};
    refuses((weft_device_map[]){{.worker = "worker1", .here = all[1], .there = all[2]},
                                {.worker = "worker1", .here = all[1], .there = all[1]}},
            2);
    refuses(&(weft_device_map){.worker = "worker1", .here = negative, .there = all[1]}, 1);
    refuses(&(weft_device_map){.worker = "worker1", .here = all[1], .there = negative}, 1);
    play_with("worker1/cuda:0=cuda:40", call_missing);
    play_with("worker1/cuda:40=cuda:0", answer_missing);
    play_with("worker1/cuda:0=cuda:0;worker1/cuda:1=cuda:0", call_many_to_one);
}

/* ---- Mixtures ---------------------------------------------------------------------------------------------------- */

static void mix(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {2, 700, 30001};
    for (int i = 0; i < devices * devices * devices * 2 && weft_agent_rank(agent) == 0; i++) {
        int x_from = i % devices, y_from = i / devices % devices, to = i / devices / devices % devices, rank = i & 1;
        int at_x = rank ? order[x_from] : x_from, at_y = rank ? order[y_from] : y_from; /* a self call maps nothing */
        weft_tensor *x = full_on(x_from, counts[i % 3], 0), *y = full_on(y_from, counts[i % 3], 1);
        weft_values *got;
        weft_args args =
            WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y), weft_of_i64(at_x), weft_of_i64(at_y), weft_of_i64(to));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "add", args, NULL, &got));
        MUST(is_full(result(got, 0), rank ? reverse(order, to) : to, 1));
        weft_values_unref(got);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
}

/* device_map_cpu, cpu_to_gpu_*, gpu_to_cpu_*, gpu_default, gpu_non_default, gpu_default_to_non_default and back,
 * gpu_mixed_1 to 8, gpu_mixed_self_1 to 8; device_maps_gpu */
static void item_58_all_mixtures_of_devices(void **state)
{
    play_orders(mix, 1);
}

static void come_back(weft_agent *agent, void *arg)
{
    weft_values *got;
    weft_tensors back;
    for (int i = 0; i < devices * devices && weft_agent_rank(agent) == 0; i++) {
        int at_x = i % devices, at_y = i / devices;
        weft_tensor *x = full_on(at_x, 2, 0), *y = full_on(at_y, 2, 1);
        for (int rank = 0; rank < 2; rank++) {
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "both", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(y)),
                                  NULL, &got));
            MUST(is_full(result(got, 0), at_y, 1) && is_full(result(got, 1), at_x, -1));
            weft_values_unref(got);
        }
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    for (int rank = 0; rank < 2 && weft_agent_rank(agent) == 0; rank++) {
        weft_rref *made;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "on all", WEFT_VALUES(weft_of_f64(7)), NULL, &made));
        MUST_OK(weft_rref_to_here(made, WEFT_FOREVER, &got, NULL));
        MUST_OK(weft_values_get_tensors(got, 0, &back));
        for (int i = 0; i < devices; i++)
            MUST(is_full(back.items[i], rank ? reverse(order, i) : i, 7 + i));
        weft_values_unref(got);
        weft_rref_unref(made);
    }
}

/* device_maps_multi_gpu, multi_gpu_self, in_options, return_to_gpu, return_to_gpu_self, remote */
static void item_58_results_come_back(void **state)
{
    play_orders(come_back, 1);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static void use_streams(weft_agent *agent, void *arg)
{
    enum { CALLS = 20 };
    weft_future *sums[CALLS], *nested[CALLS];
    if (weft_agent_rank(agent))
        return;
    for (int i = 0; i < CALLS; i++) {
        int device = i % (devices - 1) + 1;
        weft_tensor *x = full_on(device, 4 + 5000 * (i % 2), i), *y = sum_on_stream(x, x);
        weft_value twice = weft_of_tensor(y), once = weft_of_tensor(x);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "sum", WEFT_VALUES(twice, once), NULL, &sums[i]));
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "nested", WEFT_VALUES(weft_of_i64(2), twice, twice, once), NULL,
                               &nested[i]));
        weft_tensor_fill(y, -1); /* later than the calls */
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(weft_future_wait(sums[i], WEFT_FOREVER));
        MUST_OK(weft_future_wait(nested[i], WEFT_FOREVER));
        weft_tensor *y = sum_on_stream(weft_future_tensor(sums[i], 0), weft_future_tensor(nested[i], 0));
        MUST(is_full(y, i % (devices - 1) + 1, 8 * i));
        weft_tensor_unref(y);
        weft_future_unref(sums[i]);
        weft_future_unref(nested[i]);
    }
}

/* custom_stream, custom_stream_multi, custom_stream_nested, custom_stream_nested_multi */
static void item_58_streams_of_handlers(void **state)
{
    play_orders(use_streams, 1);
}

static void mismatch(weft_agent *agent, void *arg)
{
    weft_tensor *x = full_on(1, 2, 0);
    if (weft_agent_rank(agent) == 0)
        fails(agent, "mismatch", WEFT_VALUES(weft_of_tensor(x)), WEFT_ERR_REMOTE, "cuda:0");
    weft_tensor_unref(x);
}

/* device_mismatch */
static void item_58_operands_of_two_devices(void **state)
{
    play(mismatch, 2);
}

static void send_views(weft_agent *agent, void *arg)
{
    weft_future *futures[5];
    for (int i = 0; i < 5 && weft_agent_rank(agent) == 0; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "view", WEFT_VALUES(weft_of_f64(i)), NULL, &futures[i]));
    for (int i = 0; i < 5 && weft_agent_rank(agent) == 0; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_tensor *view = weft_future_tensor(futures[i], 0);
        MUST(weft_tensor_numel(view) == 10000 && is_full(view, 1, 2 * i));
        weft_future_unref(futures[i]);
    }
}

/* tensor_view_as_return_value */
static void item_58_views_as_results(void **state)
{
    play(send_views, 5);
}

/* ---- References -------------------------------------------------------------------------------------------------- */

/* A model at worker 1, on pair[1]; its input and the results on pair[0]. */
static void read_references(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 6 && weft_agent_rank(agent) == 0; i++) {
        weft_rref *made, *input, *relayed;
        weft_tensor *seed = full_on(pair[0], 5 + 5000 * (i % 2), i), *x = sum_on_stream(seed, seed);
        double expected = 4 * i + 1;
        weft_values *got;
        /* rref_to_here_synchronization */
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "forward", WEFT_VALUES(weft_of_tensor(x)), NULL, &made));
        weft_tensor *y = read_here(made);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "forward", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
        MUST(is_full(y, pair[0], expected) && is_full(result(got, 0), pair[0], expected));
        weft_values_unref(got);
        weft_tensor_unref(y);
        weft_rref_unref(made);
        /* rref_as_arg_synchronization */
        MUST_OK(weft_rref_create(agent, weft_of_tensor(x), &input, NULL));
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "forward of", WEFT_VALUES(weft_of_rref(input)), NULL, &made));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "forward of", WEFT_VALUES(weft_of_rref(input)), NULL, &got));
        MUST(is_full(result(got, 0), pair[0], expected));
        weft_values_unref(got);
        /* rref_forward_synchronization */
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "relay", WEFT_VALUES(weft_of_rref(made)), NULL, &relayed));
        y = read_here(relayed);
        MUST(is_full(y, pair[0], expected));
        weft_tensor_unref(y);
        weft_rref_unref(relayed);
        weft_rref_unref(made);
        /* owner_rref_forward_synchronization */
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), "forward of", WEFT_VALUES(weft_of_rref(input)), NULL, &made));
        y = read_here(made);
        MUST(is_full(y, pair[0], expected));
        weft_tensor_unref(y);
        weft_rref_unref(made);
        weft_rref_unref(input);
        weft_tensor_unref(seed);
        weft_tensor_unref(x);
    }
}

/* rref_to_here_synchronization1 to 4, rref_as_arg_synchronization1 to 5, rref_forward_synchronization1 to 4,
 * owner_rref_forward_synchronization1 to 4 */
static void item_58_references_are_in_order(void **state)
{
    for (int i = 0; i < devices * devices; i++) {
        const int now[2] = {i % devices, i / devices};
        pair = now;
        play(read_references, 1);
    }
    pair = NULL;
}

static void change_kept(weft_agent *agent, void *arg)
{
    weft_tensor *zeros = full_on(1, 42, 0), *ones = full_on(1, 42, 1), *y;
    weft_rref *kept;
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(zeros)), NULL, &kept));
        for (int i = 0; i < 3; i++)
            MUST_OK(weft_rref_rpc_sync(kept, "increase", WEFT_VALUES(weft_of_tensor(ones)), NULL, NULL));
        y = read_here(kept);
        MUST(is_full(y, 1, 3) && is_full(zeros, 1, 0));
        weft_tensor_unref(y);
        weft_rref_unref(kept);
    }
    weft_tensor_unref(zeros);
    weft_tensor_unref(ones);
}

/* rref_with_unpickleable_attributes */
static void item_58_a_value_changes_where_it_is(void **state)
{
    play(change_kept, 3);
}

/* ---- Futures ----------------------------------------------------------------------------------------------------- */

static void answer_later(weft_agent *agent, void *arg)
{
    weft_future *futures[8];
    if (weft_agent_rank(agent))
        return;
    for (int i = 0; i < 8; i++) {
        weft_tensor *x = full_on(1, 100, i), *y = full_on(1, 100, 1);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "async",
                               WEFT_VALUES(weft_of_i64(i % 3), weft_of_tensor(x), weft_of_tensor(y)), NULL,
                               &futures[i]));
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    for (int i = 0; i < 8; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        MUST(is_full(weft_future_tensor(futures[i], 0), 1, 2 * (i + 1)));
        weft_future_unref(futures[i]);
    }
}

/* async_execution_with_cuda_future, async_execution_nested_with_cuda_future */
static void item_58_functions_that_answer_later(void **state)
{
    play(answer_later, 5);
}

static void drop_tensor(void *tensor)
{
    weft_tensor_unref(tensor);
}

/* Copies the parent's tensor to another device, where it exists. */
static weft_status change_device(weft_future *parent, weft_future *child, void *arg)
{
    weft_tensor *there = tensor_to_device(weft_future_payload(parent), all[devices - 1]);
    return weft_future_complete(child, there, drop_tensor);
}

/* cuda_future_can_extract_cuda_tensor, _list_with_cuda_tensor, _custom_class_with_cuda_tensor,
 * callback_changes_devices, modify_tensor_inplace, replace_tensor: what a future holds is in order by itself, because
 * each tensor knows the streams that use it. */
static void item_58_tensors_in_futures(void **state)
{
    weft_future *parent = weft_future_create(NULL);
    weft_future *child = weft_future_then(parent, change_device, NULL, NULL);
    weft_tensor *x = full_on(1, 100, 1), *sum = sum_on_stream(x, x);
    assert_true(parent && child);
    MUST_OK(weft_future_complete(parent, weft_tensor_ref(sum), drop_tensor));
    MUST_OK(weft_future_wait(child, WEFT_FOREVER));
    weft_tensor_fill(sum, 5); /* the child has a copy of what it was */
    assert_true(devices < ALL || is_full(weft_future_payload(child), devices - 1, 2));
    assert_true(is_full(weft_future_payload(parent), 1, 5));
    weft_tensor_unref(x);
    weft_tensor_unref(sum);
    weft_future_unref(child);
    weft_future_unref(parent);
}

static int find_devices(void **state)
{
    if (!gpu_is_here())
        exit(GPU_SKIPPED);
    if (weft_device_check(all[2], NULL))
        devices = 2;
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(item_58_device_maps_are_checked),     cmocka_unit_test(item_58_all_mixtures_of_devices),
        cmocka_unit_test(item_58_results_come_back),           cmocka_unit_test(item_58_streams_of_handlers),
        cmocka_unit_test(item_58_operands_of_two_devices),     cmocka_unit_test(item_58_views_as_results),
        cmocka_unit_test(item_58_references_are_in_order),     cmocka_unit_test(item_58_a_value_changes_where_it_is),
        cmocka_unit_test(item_58_functions_that_answer_later), cmocka_unit_test(item_58_tensors_in_futures),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, find_devices, NULL);
}
