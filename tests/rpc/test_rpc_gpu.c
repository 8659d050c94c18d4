/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_gpu.c - calls whose tensors are in the memory of GPUs: arguments, results, items, landing places, batches
 * and references, in all mixtures of devices.
 */
#include "gpu/gpu.h"
#include "make.h"
#include "rpc/world.h"
#include "tensors.h"

static const weft_device cpu = {WEFT_DEVICE_CPU, 0}, gpu = {WEFT_DEVICE_CUDA, 0};
/* On a machine with one GPU the last one is cuda:0 too. */
static weft_device all[] = {{WEFT_DEVICE_CPU, 0}, {WEFT_DEVICE_CUDA, 0}, {WEFT_DEVICE_CUDA, 1}};
/* in the metadata, behind them, and pulled; with rows that are no multiple of 64 bytes */
static const int64_t counts[] = {0, 1, 3, 100, 700, 5001, 300007};
enum { COUNTS = sizeof(counts) / sizeof(*counts), DEVICES = 3 };

static bool has_two(void)
{
    return all[2].index == 1;
}

/* [count]: salt, salt + 1, ... */
static weft_tensor *make_on(weft_device device, int64_t count, int salt)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32), *there;
    for (int64_t i = 0; i < count; i++)
        ((float *)weft_tensor_data(x))[i] = (float)(i + salt);
    if (device.kind == WEFT_DEVICE_CPU)
        return x;
    there = tensor_to_device(x, device);
    weft_tensor_unref(x);
    return there;
}

static bool holds(weft_tensor *tensor, int64_t count, int salt)
{
    weft_tensor *here = gpu_is_on(tensor, cpu) ? weft_tensor_ref(tensor) : tensor_to_device(tensor, cpu);
    bool same = weft_tensor_numel(here) == count;
    for (int64_t i = 0; i < count && same; i++)
        same = ((float *)weft_tensor_data(here))[i] == (float)(i + salt);
    weft_tensor_unref(here);
    return same;
}

static weft_tensor *tensor_of(weft_values *values, size_t index)
{
    weft_tensor *tensor;
    MUST_OK(weft_values_get_tensor(values, index, &tensor));
    return tensor;
}

/* On the simulation, or otherwise on tcp or TEST_FABRIC. */
static void play(const world *like, uint64_t seeds)
{
    world_play(like, gpu_is_polled() ? seeds : 0, gpu_is_polled() ? 0 : 1);
}
#define ON_GPU(name, seeds, ...)                                                                                       \
    static void test_##name(void **cmocka)                                                                             \
    {                                                                                                                  \
        play(&(world){.program = name, __VA_ARGS__}, seeds);                                                           \
    }

/* ---- Echo: to each device and back ------------------------------------------------------------------------------- */

/* Gives the devices of the tensors, and the tensors. */
static weft_status run_where(weft_call *call, void *user)
{
    weft_tensors tensors = weft_call_tensors(call, 0);
    weft_value values[16];
    MUST(tensors.count < 15);
    for (size_t i = 0; i < tensors.count; i++) {
        weft_device device = weft_tensor_device(tensors.items[i]);
        values[i] = weft_of_i64(device.kind == WEFT_DEVICE_CPU ? -1 : device.index);
    }
    weft_call_give(call, WEFT_VALUES(weft_of_list((weft_args){values, tensors.count}), weft_of_tensors(tensors)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "where", .takes = {WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_LIST, WEFT_TYPE_TENSORS}, .run = run_where},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

static void echo_alone(weft_agent *agent, void *arg)
{
    for (size_t d = 0; d < DEVICES && weft_agent_rank(agent) == 0; d++) {
        for (size_t i = 0; i < COUNTS; i++) {
            weft_tensor *x = make_on(all[d], counts[i], (int)i);
            weft_values *got;
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &got));
            MUST(gpu_is_on(tensor_of(got, 0), all[d]) && tensor_of(got, 0) != x);
            MUST(holds(tensor_of(got, 0), counts[i], (int)i));
            weft_values_unref(got);
            weft_tensor_unref(x);
        }
    }
}

ON_GPU(echo_alone, 20, .size = 2, WORLD_FUNCTIONS(functions))

/* ---- Mixtures, with maps ----------------------------------------------------------------------------------------- */

/* Where worker 0's devices go at worker 1: by number -1, 0, 1. */
static const struct mapping {
    const char *maps;
    int there[DEVICES];
} mappings[] = {
    {NULL, {-1, 0, 1}},
    {"*/cuda:0=cuda:1;*/cuda:1=cuda:0", {-1, 1, 0}},
    {"worker1/cuda:0=cpu;worker1/cpu=cuda:0", {0, -1, 1}},
    {"*/cuda:0=cpu;*/cuda:1=cuda:0;*/cpu=cuda:1", {1, -1, 0}},
};

/* One list with tensors of all devices and sizes goes there and comes back to where it was. */
static void mix(weft_agent *agent, void *arg)
{
    const struct mapping *mapping = arg;
    weft_tensor *sent[DEVICES * 3];
    weft_tensors list = {sent, DEVICES * 3};
    weft_values *got;
    if (weft_agent_rank(agent))
        return;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < DEVICES * 3; i++)
            sent[i] = make_on(all[i % DEVICES], counts[(i / DEVICES + round * 2) % COUNTS], i);
        weft_error *error = NULL;
        weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "where", WEFT_VALUES(weft_of_tensors(list)),
                                           &(weft_rpc_options){.error = &error}, &got);
        weft_error_print(error, stderr);
        weft_error_unref(error);
        MUST_OK(status);
        weft_tensors back;
        MUST_OK(weft_values_get_tensors(got, 1, &back));
        for (int i = 0; i < DEVICES * 3; i++) {
            int there = has_two() ? mapping->there[i % DEVICES] : i % DEVICES ? 0 : -1;
            MUST(weft_values_args(got).items[0].as.list.items[i].as.i64 == there);
            MUST(gpu_is_on(back.items[i], all[i % DEVICES]));
            MUST(holds(back.items[i], weft_tensor_numel(sent[i]), i));
        }
        weft_values_unref(got);
        for (int i = 0; i < DEVICES * 3; i++)
            weft_tensor_unref(sent[i]);
    }
}

static void test_mix(void **state)
{
    for (size_t i = 0; i < sizeof(mappings) / sizeof(*mappings) && (i == 0 || has_two()); i++) {
        if (mappings[i].maps)
            setenv("WEFT_DEVICE_MAPS", mappings[i].maps, 1);
        play(&(world){.program = mix, .arg = (void *)&mappings[i], .size = 2, WORLD_FUNCTIONS(functions)}, 10);
        unsetenv("WEFT_DEVICE_MAPS");
    }
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

/* The caller changes a tensor on its device as soon as the call was started: the callee gets what it was. */
static void change_at_once(weft_agent *agent, void *arg)
{
    weft_future *futures[8];
    weft_values *got;
    if (weft_agent_rank(agent))
        return;
    weft_stream *stream;
    MUST_OK(weft_stream_create(gpu, &stream, NULL));
    for (int i = 0; i < COUNTS; i++) {
        weft_tensor *x = make_on(gpu, counts[i], i);
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = i % 2 ? stream : NULL});
        weft_tensor *y = weft_add(t, x, x); /* the work before is on the tape's stream */
        MUST_OK(weft_tape_status(t));
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(y)), NULL, &futures[i]));
        weft_tensor_fill(y, -1);
        weft_tape_close(t);
        weft_tensor_unref(x);
    }
    for (int i = 0; i < COUNTS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        got = (weft_values *)weft_future_values(futures[i]);
        weft_tensor *here = tensor_to_device(tensor_of(got, 0), cpu);
        for (int64_t k = 0; k < counts[i]; k++)
            MUST(((float *)weft_tensor_data(here))[k] == (float)(2 * (k + i)));
        weft_tensor_unref(here);
        weft_future_unref(futures[i]);
    }
    weft_stream_unref(stream);
}

ON_GPU(change_at_once, 20, .size = 2, WORLD_FUNCTIONS(functions))

/* ---- Landing places ---------------------------------------------------------------------------------------------- */

static void land_results(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent))
        return;
    for (size_t i = 0; i < COUNTS; i++) {
        for (size_t d = 0; d < DEVICES * DEVICES; d++) {
            weft_tensor *x = make_on(all[d / DEVICES], counts[i], 7), *place = make_on(all[d % DEVICES], counts[i], 0);
            weft_values *got;
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)),
                                  &(weft_rpc_options){.land = {&place, 1}}, &got));
            MUST(tensor_of(got, 0) == place && holds(place, counts[i], 7));
            weft_values_unref(got);
            weft_tensor_unref(x);
            weft_tensor_unref(place);
        }
    }
}

ON_GPU(land_results, 4, .size = 2, WORLD_FUNCTIONS(functions))

static weft_tensor *place_there;

static weft_tensor *land_there(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return weft_tensor_ref(place_there);
}

static weft_status run_took(weft_call *call, void *user)
{
    return weft_call_tensor(call, 0) == place_there ? WEFT_OK : WEFT_ERR_STATE;
}

static const weft_function landing[] = {
    {.name = "take", .takes = {WEFT_TYPE_TENSOR}, .run = run_took, .land = land_there},
    {.name = "add", .takes = {WEFT_TYPE_TENSOR}, .run = run_took, .land = land_there, .flags = WEFT_FUNCTION_LAND_ADD},
};

static void land_arguments(weft_agent *agent, void *arg)
{
    for (int rank = 0; rank < 2 && weft_agent_rank(agent) == 1; rank++) { /* to itself as well */
        for (size_t i = 0; i < COUNTS; i++) {
            for (size_t d = 0; d < DEVICES * DEVICES; d++) {
                weft_tensor *x = make_on(all[d / DEVICES], counts[i], 7);
                weft_args args = WEFT_VALUES(weft_of_tensor(x));
                place_there = make_on(all[d % DEVICES], counts[i], 0);
                MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "take", args, NULL, NULL));
                MUST(holds(place_there, counts[i], 7));
                weft_tensor_fill(place_there, 0);
                MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "add", args, NULL, NULL));
                MUST(holds(place_there, counts[i], 7));
                weft_tensor_unref(x);
                weft_tensor_unref(place_there);
            }
        }
    }
}

ON_GPU(land_arguments, 2, .size = 2, WORLD_FUNCTIONS(landing))

/* ---- Items, batches, references, multicast ----------------------------------------------------------------------- */

enum { ITEMS = 40 };

static weft_status run_stream(weft_call *call, void *user)
{
    weft_future *unwanted = weft_call_cancellation(call);
    for (int i = 0; i < ITEMS;) {
        weft_tensor *x = make_on(all[i % DEVICES], counts[i % COUNTS], i);
        weft_status status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(i), weft_of_tensor(x)));
        weft_tensor_unref(x);
        if (status == WEFT_ERR_AGAIN) {
            status = weft_future_wait(unwanted, 1); /* for room */
            continue;
        }
        MUST_OK(status);
        i++;
    }
    weft_future_unref(unwanted);
    return WEFT_OK;
}

static void take_item(const weft_values *item, void *arg)
{
    int *next = arg;
    int64_t number;
    weft_tensor *x;
    MUST_OK(weft_values_get_i64(item, 0, &number));
    MUST_OK(weft_values_get_tensor(item, 1, &x));
    MUST(number == *next && gpu_is_on(x, all[number % DEVICES]) && holds(x, counts[number % COUNTS], (int)number));
    (*next)++;
}

/* Doubles its rows, on their device. */
static weft_status run_double(weft_batch *batch, void *user)
{
    weft_tensor *rows = weft_batch_tensor(batch, 0);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = weft_tensor_device(rows)});
    weft_batch_give(batch, 0, weft_add(t, rows, rows));
    MUST_OK(weft_tape_status(t));
    weft_tape_close(t);
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_tensor *x = make_on(gpu, 5001, 3);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_sum(weft_call *call, void *user)
{
    weft_values *value;
    MUST_OK(weft_rref_to_here(weft_call_rref(call, 0), WEFT_FOREVER, &value, NULL));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor_of(value, 0))));
    weft_values_unref(value);
    return WEFT_OK;
}

static const weft_function many[] = {
    {.name = "stream", .run = run_stream},
    {.name = "double",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run_batch = run_double,
     .batch = {.size = 6, .wait_us = 2000}},
    {.name = "make", .gives = {WEFT_TYPE_TENSOR}, .run = run_make},
    {.name = "sum", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = run_sum},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

static void stream_items(weft_agent *agent, void *arg)
{
    int next = 0;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "stream", WEFT_NO_VALUES,
                          &(weft_rpc_options){.on_item = take_item, .item_arg = &next}, NULL));
    MUST(next == ITEMS);
}

ON_GPU(stream_items, 10, .size = 2, WORLD_FUNCTIONS(many))

static void batch_rows(weft_agent *agent, void *arg)
{
    enum { CALLS = 24 };
    weft_future *futures[CALLS];
    int rank = weft_agent_rank(agent);
    if (rank == 0)
        return;
    for (int i = 0; i < CALLS; i++) { /* of one device, of several */
        weft_tensor *x = make_on(all[i < CALLS / 2 ? 1 : i % DEVICES], counts[i / 6 + 1], i * rank);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "double", WEFT_VALUES(weft_of_tensor(x)), NULL, &futures[i]));
        weft_tensor_unref(x);
    }
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_tensor *y = tensor_of((weft_values *)weft_future_values(futures[i]), 0);
        MUST(gpu_is_on(y, all[i < CALLS / 2 ? 1 : i % DEVICES]));
        weft_tensor *here = tensor_to_device(y, cpu);
        for (int64_t k = 0; k < counts[i / 6 + 1]; k++)
            MUST(((float *)weft_tensor_data(here))[k] == (float)(2 * (k + i * rank)));
        weft_tensor_unref(here);
        weft_future_unref(futures[i]);
    }
}

ON_GPU(batch_rows, 10, .size = 3, WORLD_FUNCTIONS(many))

static void references(weft_agent *agent, void *arg)
{
    weft_rref *made, *own;
    weft_values *got;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, NULL, &made));
    MUST_OK(weft_rref_to_here(made, WEFT_FOREVER, &got, NULL));
    MUST(gpu_is_on(tensor_of(got, 0), gpu) && holds(tensor_of(got, 0), 5001, 3));
    weft_values_unref(got);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "sum", WEFT_VALUES(weft_of_rref(made)), NULL, &got));
    MUST(gpu_is_on(tensor_of(got, 0), gpu) && holds(tensor_of(got, 0), 5001, 3));
    weft_values_unref(got);
    weft_tensor *x = make_on(all[2], 700, 9);
    MUST_OK(weft_rref_create(agent, weft_of_tensor(x), &own, NULL));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "sum", WEFT_VALUES(weft_of_rref(own)), NULL, &got));
    MUST(gpu_is_on(tensor_of(got, 0), all[2]) && holds(tensor_of(got, 0), 700, 9));
    weft_values_unref(got);
    weft_rref *kept;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &kept));
    MUST_OK(weft_rref_to_here(kept, WEFT_FOREVER, &got, NULL));
    MUST(gpu_is_on(tensor_of(got, 0), all[2]) && holds(tensor_of(got, 0), 700, 9));
    weft_values_unref(got);
    weft_tensor_unref(x);
    weft_rref_unref(kept);
    weft_rref_unref(own);
    weft_rref_unref(made);
}

ON_GPU(references, 10, .size = 3, WORLD_FUNCTIONS(many))

/* One copy for all workers, each of which has its own map. */
static void to_many(weft_agent *agent, void *arg)
{
    const weft_target to[] = {weft_to_rank(1), weft_to_rank(2), weft_to_rank(0), weft_to_rank(1)};
    weft_future *future;
    if (weft_agent_rank(agent))
        return;
    for (size_t i = 0; i < COUNTS; i++) {
        weft_tensor *x = make_on(gpu, counts[i], 4);
        MUST_OK(weft_rpc_multicast(agent, to, 4, "where", WEFT_VALUES(weft_of_tensors((weft_tensors){&x, 1})), NULL,
                                   &future));
        MUST_OK(weft_future_wait(future, WEFT_FOREVER));
        weft_future **each = weft_future_payload(future);
        for (size_t k = 0; k < 4; k++) {
            weft_args values = weft_values_args(weft_future_values(each[k]));
            MUST(values.items[0].as.list.items[0].as.i64 == (k == 1 ? 1 : 0));
            MUST(gpu_is_on(values.items[1].as.tensors.items[0], gpu));
            MUST(holds(values.items[1].as.tensors.items[0], counts[i], 4));
        }
        weft_future_unref(future);
        weft_tensor_unref(x);
    }
}

static void test_to_many(void **state)
{
    if (!has_two())
        return;
    setenv("WEFT_DEVICE_MAPS", "worker2/cuda:0=cuda:1", 1);
    play(&(world){.program = to_many, .size = 3, WORLD_FUNCTIONS(functions)}, 10);
    unsetenv("WEFT_DEVICE_MAPS");
}

/* ---- Devices that are not there ---------------------------------------------------------------------------------- */

static void fails_with(weft_agent *agent, const char *function, weft_tensor *x, weft_status status, const char *text)
{
    weft_error *error = NULL;
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), function, WEFT_VALUES(weft_of_tensor(x)),
                          &(weft_rpc_options){.error = &error}, NULL),
            status);
    if (!strstr(weft_error_message(error), text))
        fail_msg("%s: \"%s\" has no \"%s\"", function, weft_error_message(error), text);
    weft_error_unref(error);
}

static void no_such_device(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent))
        return;
    for (size_t i = 0; i < COUNTS; i++) {
        weft_tensor *x = make_on(gpu, counts[i], 0), *y = make_on(cpu, counts[i], 0);
        fails_with(agent, "echo", x, WEFT_ERR_INVALID, "cuda:0 of \"worker0\" goes to cuda:40 of \"worker1\"");
        weft_values *got; /* the entry for a device that is not here does not count */
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(y)), NULL, &got));
        MUST(gpu_is_on(tensor_of(got, 0), cpu) && holds(tensor_of(got, 0), counts[i], 0));
        weft_values_unref(got);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
}

static void test_no_such_device(void **state)
{
    setenv("WEFT_DEVICE_MAPS", "*/cuda:0=cuda:40;*/cuda:41=cpu", 1);
    play(&(world){.program = no_such_device, .size = 2, WORLD_FUNCTIONS(functions)}, 10);
    unsetenv("WEFT_DEVICE_MAPS");
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* They take tensors of the CPU only, also in lists; and go on. */
static void groups_refuse(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_values *got = NULL;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    for (size_t i = 0; i < COUNTS; i++) {
        weft_tensor *x = make_on(gpu, counts[i], 1);
        weft_args list = WEFT_VALUES(weft_of_i64(1), weft_of_list(WEFT_VALUES(weft_of_tensor(x))));
        MUST_BE(weft_group_allreduce(group, x, WEFT_OP_SUM, 0), WEFT_ERR_UNSUPPORTED);
        MUST_BE(weft_group_allgather_values(group, list, 0, &got), WEFT_ERR_UNSUPPORTED);
        MUST(!got);
        MUST_OK(weft_group_barrier(group, 0));
        weft_tensor_unref(x);
    }
    weft_group_close(group);
}

ON_GPU(groups_refuse, 3, .size = 2, WORLD_FUNCTIONS(functions))

static int find_devices(void **state)
{
    if (!gpu_is_here())
        exit(GPU_SKIPPED);
    if (weft_device_check(all[2], NULL))
        all[2] = gpu;
    return 0;
}

UNIT_MAIN_WITH(find_devices, NULL, test_echo_alone, test_mix, test_change_at_once, test_land_results,
               test_land_arguments, test_stream_items, test_batch_rows, test_references, test_to_many,
               test_no_such_device, test_groups_refuse)
