/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_gpu.c - backward passes over workers that compute on the CPU and on GPUs, in all mixtures, with and without
 * device maps. All numbers are small integers, so every sum is exact: the gradients have the bits of one tape on the
 * CPU, whatever computed them.
 */
#include "gpu/gpu.h"
#include "make.h"
#include "rpc/world.h"
#include "tensors.h"

#define WORKERS 3
enum { ROWS = 5, WIDE = 40, DEVICES = 3, MIXTURES = DEVICES * DEVICES * DEVICES };

static const weft_device cpu = {WEFT_DEVICE_CPU, 0};
static const weft_device all[DEVICES] = {{WEFT_DEVICE_CPU, 0}, {WEFT_DEVICE_CUDA, 0}, {WEFT_DEVICE_CUDA, 1}};

static bool is_on(const weft_tensor *tensor, weft_device device)
{
    weft_device have = weft_tensor_device(tensor);
    return have.kind == device.kind && have.index == device.index;
}

static weft_tensor *move(weft_tensor *x, weft_device device)
{
    weft_tensor *there = is_on(x, device) ? weft_tensor_ref(x) : tensor_to_device(x, device);
    MUST(there);
    weft_tensor_unref(x);
    return there;
}

/* Integers from -3 to 3. */
static weft_tensor *numbers(weft_device device, weft_shape shape, int salt, bool requires_grad)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((float *)weft_tensor_data(x))[i] = (float)((i * 5 + salt * 3) % 7 - 3);
    x = move(x, device);
    weft_tensor_set_requires_grad(x, requires_grad);
    return x;
}

static bool is_equal(weft_tensor *x, weft_tensor *y)
{
    weft_tensor *a = x ? move(weft_tensor_ref(x), cpu) : NULL, *b = y ? move(weft_tensor_ref(y), cpu) : NULL;
    bool same = a && b && weft_tensor_nbytes(a) == weft_tensor_nbytes(b) &&
                memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0;
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    return same;
}

static weft_tensor *result(const weft_values *values, size_t index)
{
    weft_tensor *tensor = NULL;
    MUST_OK(weft_values_get_tensor(values, index, &tensor));
    return tensor;
}

/* ---- A chain of three workers ------------------------------------------------------------------------------------ */

/* One scenario. All agents of a world are in this process. */
typedef struct scene {
    const weft_device *at[WORKERS]; /* where each worker computes */
    bool maps;                      /* device maps lead there; otherwise the handlers copy */
    bool streams;                   /* handlers compute on streams of their own */
    int passes;                     /* over the same records */
    int64_t wide;
    weft_tensor *w[WORKERS];      /* their parameters */
    weft_tensor *wanted[WORKERS]; /* their gradients */
    weft_stream *stream[WORKERS]; /* NULL: on the CPU */
} scene;

static scene *now;

static int rank_of(weft_call *call)
{
    return weft_agent_rank(weft_call_agent(call));
}

/* A tape on which a handler computes. */
static weft_tape *open_here(weft_call *call)
{
    int rank = rank_of(call);
    return weft_tape_open(&(weft_tape_options){.record = true,
                                               .parent = weft_call_tape(call),
                                               .device = *now->at[rank],
                                               .stream = now->streams ? now->stream[rank] : NULL});
}

static weft_tensor *times(weft_tape *t, weft_tensor *x, int rank)
{
    return weft_relu(t, weft_add(t, weft_mul(t, x, now->w[rank]), x));
}

/* (x, x again) -> worker 2's function of what this one computes; and what was on this worker */
static weft_status run_front(weft_call *call, void *user)
{
    weft_values *results = NULL;
    weft_tensor *a = weft_call_tensor(call, 0), *b = weft_call_tensor(call, 1);
    MUST(is_on(a, *now->at[1]) && is_on(b, *now->at[1]));
    weft_tape *t = open_here(call);
    weft_tensor *y = weft_add(t, times(t, a, 1), b);
    weft_status status = weft_tape_status(t);
    if (!status)
        status = weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), "back", WEFT_VALUES(weft_of_tensor(y)),
                               &(weft_rpc_options){.tape = t, .parent = call}, &results);
    if (!status) {
        weft_tensor *z = weft_add(t, result(results, 0), result(results, 0));
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(z), weft_of_tensor(y)));
        status = weft_tape_status(t);
    }
    weft_values_unref(results);
    weft_tape_close(t);
    return status;
}

static weft_status run_back(weft_call *call, void *user)
{
    MUST(is_on(weft_call_tensor(call, 0), *now->at[2]));
    weft_tape *t = open_here(call);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(times(t, weft_call_tensor(call, 0), 2))));
    weft_status status = weft_tape_status(t);
    weft_tape_close(t);
    return status;
}

/* The gradient of this worker's parameter is on its device, and right. */
static weft_status run_check(weft_call *call, void *user)
{
    int rank = rank_of(call);
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), now->w[rank]);
    MUST(gradient && is_on(gradient, *now->at[rank]) && is_equal(gradient, now->wanted[rank]));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "check", .run = run_check},
    {.name = "front",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .run = run_front},
    {.name = "back", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_back},
};

/* Each worker's device goes to that of the worker that it calls. */
static void map_devices(weft_agent_options *options, void *arg)
{
    static weft_device_map maps[WORKERS];
    static const char *const names[] = {"worker0", "worker1", "worker2"};
    (void)arg;
    if (!now->maps || options->rank == 2)
        return;
    maps[options->rank] = (weft_device_map){
        .worker = names[options->rank + 1], .here = *now->at[options->rank], .there = *now->at[options->rank + 1]};
    options->device_maps = &maps[options->rank];
    options->device_map_count = 1;
}

static weft_tensor *loss_of(weft_tape *t, weft_tensor *h, weft_tensor *z, weft_tensor *y)
{
    return weft_sum(t, weft_add(t, weft_add(t, weft_mul(t, z, h), y), h));
}

/* The same on one tape of the CPU. Returns the gradient of x. */
static weft_tensor *compute_wanted(void)
{
    const weft_shape shape = WEFT_SHAPE(ROWS, now->wide);
    weft_tensor *there[WORKERS], *x = numbers(cpu, shape, 9, true);
    for (int i = 0; i < WORKERS; i++) {
        there[i] = now->w[i];
        now->w[i] = numbers(cpu, shape, i, true);
    }
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *h = times(t, x, 0), *y = weft_add(t, times(t, h, 1), h), *z = times(t, y, 2);
    weft_tensor *loss = loss_of(t, h, weft_add(t, z, z), y);
    for (int i = 0; i < now->passes; i++)
        weft_backward_with(t, (weft_tensors){&loss, 1}, (weft_tensors){0}, &(weft_backward_options){.retain = true});
    MUST_OK(weft_tape_status(t));
    for (int i = 0; i < WORKERS; i++) {
        now->wanted[i] = weft_tensor_ref(weft_tape_grad(t, now->w[i]));
        weft_tensor_unref(now->w[i]);
        now->w[i] = there[i];
    }
    weft_tensor *of_x = weft_tensor_ref(weft_tape_grad(t, x));
    weft_tape_close(t);
    weft_tensor_unref(x);
    return of_x;
}

/* Of the scene, before the world begins. */
static void make_scene(world *w)
{
    (void)w;
    for (int i = 0; i < WORKERS; i++) {
        now->w[i] = numbers(*now->at[i], WEFT_SHAPE(ROWS, now->wide), i, true);
        if (now->streams && now->at[i]->kind == WEFT_DEVICE_CUDA)
            MUST_OK(weft_stream_create(*now->at[i], &now->stream[i], NULL));
    }
}

static void drop_scene(world *w)
{
    (void)w;
    for (int i = 0; i < WORKERS; i++) {
        weft_tensor_unref(now->w[i]);
        weft_stream_unref(now->stream[i]);
        now->stream[i] = NULL;
    }
}

static void chain(weft_agent *agent, void *arg)
{
    weft_values *results = NULL;
    if (weft_agent_rank(agent))
        return;
    weft_tensor *of_x = compute_wanted(), *x = numbers(*now->at[0], WEFT_SHAPE(ROWS, now->wide), 9, true);
    weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.device = *now->at[0], .stream = now->stream[0]});
    weft_tensor *h = times(t, x, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_tensor(h), weft_of_tensor(h)),
                          &(weft_rpc_options){.tape = t}, &results));
    MUST(is_on(result(results, 0), *now->at[0]) && is_on(result(results, 1), *now->at[0]));
    weft_tensor *loss = loss_of(t, h, result(results, 0), result(results, 1));
    for (int i = 0; i < now->passes; i++)
        weft_dist_backward(t, loss, &(weft_pass_options){.retain = i + 1 < now->passes});
    weft_error_print(weft_tape_error(t), stderr);
    MUST_OK(weft_tape_status(t));
    for (int i = 1; i < WORKERS; i++)
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(i), "check", WEFT_NO_VALUES, &(weft_rpc_options){.tape = t}, NULL));
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(t), x);
    MUST(is_on(gradient, *now->at[0]) && is_equal(gradient, of_x));
    weft_tensor_unref(gradient);
    gradient = weft_context_ref_grad(weft_tape_context(t), now->w[0]);
    MUST(is_on(gradient, *now->at[0]) && is_equal(gradient, now->wanted[0]));
    weft_tensor_unref(gradient);
    weft_values_unref(results);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(of_x);
    for (int i = 0; i < WORKERS; i++)
        weft_tensor_unref(now->wanted[i]);
}

/* The simulation only with host functions that run in its own time: EMULATED_GPU_HOST=polled. */
static void play(const world *like, uint64_t seeds, int on_tcp)
{
    const char *how = getenv("EMULATED_GPU_HOST");
    bool is_polled = how && strcmp(how, "polled") == 0;
    world_play(like, is_polled ? seeds : 0, is_polled ? 0 : on_tcp);
}

static void play_chain(scene *s, uint64_t seeds, int on_tcp)
{
    now = s;
    play(&(world){.program = chain,
                  .size = WORKERS,
                  WORLD_FUNCTIONS(functions),
                  .adjust = map_devices,
                  .begin = make_scene,
                  .end = drop_scene},
         seeds, on_tcp);
}

/* Each worker on each device, with maps that lead there. */
static void test_mixtures(void **state)
{
    const int64_t widths[] = {40, 700, 20001};
    for (int i = 0; i < MIXTURES; i++) {
        scene s = {.at = {&all[i % 3], &all[i / 3 % 3], &all[i / 9]}, .maps = true, .passes = 1};
        for (int k = 0; k < 3; k++) {
            s.wide = widths[k];
            play_chain(&s, k == 2 ? 1 : 4, k == 0);
        }
    }
}

/* All on one device, without maps. */
static void test_without_maps(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        play_chain(&(scene){.at = {&all[i], &all[i], &all[i]}, .passes = 1, .wide = 300}, 20, 1);
}

static void test_second_pass(void **state)
{
    for (int i = 0; i < MIXTURES; i++)
        play_chain(&(scene){.at = {&all[i % 3], &all[i / 3 % 3], &all[i / 9]}, .maps = true, .passes = 3, .wide = 300},
                   3, i % 9 == 5);
}

static void test_streams(void **state)
{
    for (int i = 0; i < MIXTURES; i++)
        play_chain(&(scene){.at = {&all[i % 3], &all[i / 3 % 3], &all[i / 9]},
                            .maps = true,
                            .streams = true,
                            .passes = 2,
                            .wide = 1000},
                   4, i % 9 == 5);
}

UNIT_MAIN(test_mixtures, test_without_maps, test_second_pass, test_streams)
