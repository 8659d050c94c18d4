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

#include "emulated/emulated.h"

#define WORKERS 3
enum { ROWS = 5, WIDE = 40, DEVICES = 3, MIXTURES = DEVICES * DEVICES * DEVICES };

static const weft_device cpu = {WEFT_DEVICE_CPU, 0};
static weft_device all[DEVICES] = {{WEFT_DEVICE_CPU, 0}, {WEFT_DEVICE_CUDA, 0}, {WEFT_DEVICE_CUDA, 1}};

static void (*counts)(emulated_counts *out); /* of the emulated GPU; NULL on a real one */

/* How often a thread has waited for a GPU. With WEFT_SLAB_KEEP_MB=0 returning memory waits: 0. */
static uint64_t waits(void)
{
    emulated_counts out = {.live = 0};
    if (counts && !getenv("WEFT_SLAB_KEEP_MB"))
        counts(&out);
    return out.synchronisations;
}

static weft_tensor *move(weft_tensor *x, weft_device device)
{
    weft_tensor *there = gpu_is_on(x, device) ? weft_tensor_ref(x) : tensor_to_device(x, device);
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
    bool fails;                     /* at the root, when the others have ended their part */
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
    MUST(gpu_is_on(a, *now->at[1]) && gpu_is_on(b, *now->at[1]));
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
    MUST(gpu_is_on(weft_call_tensor(call, 0), *now->at[2]));
    weft_tape *t = open_here(call);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(times(t, weft_call_tensor(call, 0), 2))));
    weft_status status = weft_tape_status(t);
    weft_tape_close(t);
    return status;
}

/* The gradient of this worker's parameter is on its device, and right; of a pass that failed there is none. */
static weft_status run_check(weft_call *call, void *user)
{
    int rank = rank_of(call);
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), now->w[rank]);
    if (now->fails && gradient) {
        weft_tensor_unref(gradient);
        return WEFT_ERR_AGAIN; /* not known here yet */
    }
    if (now->fails)
        return WEFT_OK;
    MUST(gradient && gpu_is_on(gradient, *now->at[rank]) && is_equal(gradient, now->wanted[rank]));
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
    uint64_t waited = waits();
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_tensor(h), weft_of_tensor(h)),
                          &(weft_rpc_options){.tape = t}, &results));
    MUST(gpu_is_on(result(results, 0), *now->at[0]) && gpu_is_on(result(results, 1), *now->at[0]));
    weft_tensor *loss = loss_of(t, h, result(results, 0), result(results, 1));
    for (int i = 0; i < now->passes; i++)
        weft_dist_backward(t, loss, &(weft_pass_options){.retain = i + 1 < now->passes});
    weft_error_print(weft_tape_error(t), stderr);
    MUST_OK(weft_tape_status(t));
    MUST(waits() == waited);
    for (int i = 1; i < WORKERS; i++)
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(i), "check", WEFT_NO_VALUES, &(weft_rpc_options){.tape = t}, NULL));
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(t), x);
    MUST(gpu_is_on(gradient, *now->at[0]) && is_equal(gradient, of_x));
    weft_tensor_unref(gradient);
    gradient = weft_context_ref_grad(weft_tape_context(t), now->w[0]);
    MUST(gpu_is_on(gradient, *now->at[0]) && is_equal(gradient, now->wanted[0]));
    weft_tensor_unref(gradient);
    weft_values_unref(results);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(of_x);
    for (int i = 0; i < WORKERS; i++)
        weft_tensor_unref(now->wanted[i]);
}

static void play(const world *like, uint64_t seeds, int on_tcp)
{
    world_play(like, gpu_is_polled() ? seeds : 0, gpu_is_polled() ? 0 : on_tcp);
}

static weft_status fail_pass(const weft_error *why, weft_future **wait, void *arg)
{
    return why ? WEFT_OK : WEFT_ERR_SYSTEM;
}

/* What had ended well at the others is dropped there. */
static void undone(weft_agent *agent, void *arg)
{
    weft_values *results = NULL;
    weft_hooks *hooks = hooks_create();
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = numbers(*now->at[0], WEFT_SHAPE(ROWS, now->wide), 9, true);
        weft_context *c;
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, &(weft_tape_options){.device = *now->at[0]});
        weft_hooks_set_end(hooks, fail_pass, NULL);
        weft_tape_set_hooks(t, hooks);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(x)),
                              &(weft_rpc_options){.tape = t}, &results));
        weft_dist_backward(t, loss_of(t, x, result(results, 0), result(results, 1)), NULL);
        MUST(weft_tape_status(t) == WEFT_ERR_SYSTEM);
        weft_tape_close(t);
        MUST(!weft_context_ref_grad(c, x));
        t = weft_context_tape(c, NULL);
        for (int i = 1; i < WORKERS; i++)
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(i), "check", WEFT_NO_VALUES,
                                  &(weft_rpc_options){.tape = t, .retry = {.attempts = 100, .pause_ms = 10}}, NULL));
        weft_tape_close(t);
        weft_values_unref(results);
        weft_context_close(c, NULL);
        weft_tensor_unref(x);
    }
    weft_hooks_unref(hooks);
}

static void play_chain(scene *s, uint64_t seeds, int on_tcp)
{
    now = s;
    play(&(world){.program = s->fails ? undone : chain,
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
            play_chain(&s, k == 0 ? 2 : k == 1 || i % 4 == 1, k == 0);
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
                   1, i % 9 == 5);
}

static void test_streams(void **state)
{
    for (int i = 0; i < MIXTURES; i++)
        play_chain(&(scene){.at = {&all[i % 3], &all[i / 3 % 3], &all[i / 9]},
                            .maps = true,
                            .streams = true,
                            .passes = 2,
                            .wide = 1000},
                   2, i % 9 == 5);
}

static void test_undone(void **state)
{
    for (int i = 0; i < MIXTURES; i += 2)
        play_chain(
            &(scene){.at = {&all[i % 3], &all[i / 3 % 3], &all[i / 9]}, .maps = true, .fails = true, .wide = 20001}, 1,
            i % 9 == 4);
}

/* ---- Tensors of all devices in one call, without maps ------------------------------------------------------------ */

/* (x of each device) -> in items, and as results: x * x + x, computed on its device */
static weft_status run_squares(weft_call *call, void *user)
{
    weft_tensors xs = weft_call_tensors(call, 0);
    weft_tensor *ys[DEVICES];
    weft_tape *tapes[DEVICES];
    weft_status status = WEFT_OK;
    MUST(xs.count == DEVICES);
    for (int i = 0; i < DEVICES; i++) {
        MUST(gpu_is_on(xs.items[i], all[i]));
        tapes[i] =
            weft_tape_open(&(weft_tape_options){.record = true, .parent = weft_call_tape(call), .device = all[i]});
        ys[i] = weft_add(tapes[i], weft_mul(tapes[i], xs.items[i], xs.items[i]), xs.items[i]);
        status = status ? status : weft_tape_status(tapes[i]);
    }
    if (!status)
        status = weft_call_send_item(call, WEFT_VALUES(weft_of_tensors((weft_tensors){ys, DEVICES})));
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){ys, DEVICES})));
    for (int i = 0; i < DEVICES; i++)
        weft_tape_close(tapes[i]);
    return status;
}

/* (rank, context, number) -> the status of a message of a pass that gives the caller a gradient for its tensor of that
 * number, on a device where that tensor is not */
static weft_status run_lie(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_context_id id = weft_context_get_id(weft_tape_context(weft_call_tape(call)));
    uint8_t head[33] = {0};
    uint64_t number = 1;
    weft_error *error = NULL;
    weft_tensor *gradient = numbers(all[2], WEFT_SHAPE(ROWS, 3), 1, false);
    memcpy(head, &id.rank, 4);
    memcpy(head + 4, &id.incarnation, 4);
    memcpy(head + 8, &id.number, 8);
    head[16] = (uint8_t)weft_agent_rank(agent); /* the root of the pass */
    head[20] = 1;                               /* its number */
    weft_value none = weft_of_bytes("", 0);
    weft_status status = weft_rpc_sync(agent, weft_to_rank(weft_call_from(call)), "weft:pass",
                                       WEFT_VALUES(weft_of_bytes(head, 29), none, none, weft_of_bytes(&number, 8), none,
                                                   weft_of_tensors((weft_tensors){&gradient, 1})),
                                       &(weft_rpc_options){.error = &error}, NULL);
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(error);
    MUST(status == WEFT_ERR_UNSUPPORTED && strstr(weft_error_message(error), "the device"));
    weft_error_unref(error);
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static weft_tensor *taken[DEVICES];

static void take_item(const weft_values *item, void *arg)
{
    weft_tensors ys;
    MUST_OK(weft_values_get_tensors(item, 0, &ys));
    for (int i = 0; i < DEVICES; i++)
        taken[i] = weft_tensor_ref(ys.items[i]);
}

static const weft_function squares[] = {
    {.name = "squares", .takes = {WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSORS}, .run = run_squares},
    {.name = "lie", .run = run_lie},
};

/* The first x is a leaf; the others are results of operators. A root is on each device. */
static void all_devices(weft_agent *agent, void *arg)
{
    weft_context *c;
    weft_tensor *leaves[DEVICES], *xs[DEVICES], *roots[DEVICES], *gradients[DEVICES];
    weft_tape *tapes[DEVICES];
    weft_values *results;
    weft_tensors ys;
    weft_future *pass;
    const weft_shape shape = WEFT_SHAPE(ROWS, 3);
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    for (int i = 0; i < DEVICES; i++) {
        tapes[i] = weft_context_tape(c, &(weft_tape_options){.device = all[i]});
        leaves[i] = numbers(all[i], shape, i, true);
        xs[i] = weft_tensor_ref(i ? weft_add(tapes[i], leaves[i], leaves[i]) : leaves[i]);
        gradients[i] = numbers(all[i], shape, 7, false);
        if (i)
            weft_tape_close(tapes[i]);
    }
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "squares", WEFT_VALUES(weft_of_tensors((weft_tensors){xs, DEVICES})),
                          &(weft_rpc_options){.tape = tapes[0], .on_item = take_item}, &results));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "lie", WEFT_NO_VALUES, &(weft_rpc_options){.tape = tapes[0]}, NULL));
    MUST_OK(weft_values_get_tensors(results, 0, &ys));
    for (int i = 0; i < DEVICES; i++) {
        MUST(gpu_is_on(ys.items[i], all[i]) && gpu_is_on(taken[i], all[i]));
        weft_tape *t = weft_context_tape(c, &(weft_tape_options){.device = all[i]});
        roots[i] = weft_tensor_ref(weft_add(t, ys.items[i], taken[i]));
        MUST_OK(weft_tape_status(t));
        weft_tape_close(t);
    }
    weft_tape_close(tapes[0]);
    MUST_OK(weft_context_backward(c, (weft_tensors){roots, DEVICES},
                                  &(weft_pass_options){.gradients = {gradients, DEVICES}}, &pass));
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    for (int i = 0; i < DEVICES; i++) {
        weft_tensor *leaf = numbers(cpu, shape, i, true), *given = numbers(cpu, shape, 7, false);
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *x = i ? weft_add(t, leaf, leaf) : leaf, *y = weft_add(t, weft_mul(t, x, x), x);
        weft_tensor *root = weft_add(t, y, y);
        weft_backward_with(t, (weft_tensors){&root, 1}, (weft_tensors){&given, 1}, NULL);
        weft_tensor *gradient = weft_context_ref_grad(c, leaves[i]);
        MUST(gpu_is_on(gradient, all[i]) && is_equal(gradient, weft_tape_grad(t, leaf)));
        weft_tape_close(t);
        weft_tensor *const made[] = {leaf, given, gradient, roots[i], taken[i], gradients[i], xs[i], leaves[i]};
        for (size_t k = 0; k < sizeof(made) / sizeof(*made); k++)
            weft_tensor_unref(made[k]);
    }
    weft_values_unref(results);
    weft_context_close(c, NULL);
}

static void test_all_devices(void **state)
{
    play(&(world){.program = all_devices, .size = 2, WORLD_FUNCTIONS(squares)}, 40, 2);
}

/* ---- Roots that references name ---------------------------------------------------------------------------------- */

/* (x) -> x * x, on this worker's device */
static weft_status run_square(weft_call *call, void *user)
{
    weft_tape *t = open_here(call);
    weft_call_give(call,
                   WEFT_VALUES(weft_of_tensor(weft_mul(t, weft_call_tensor(call, 0), weft_call_tensor(call, 0)))));
    weft_status status = weft_tape_status(t);
    weft_tape_close(t);
    return status;
}

static const weft_function with_square[] = {
    {.name = "square", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_square}};

/* A pass begins at worker 1, with a gradient of this worker; another one goes through the value that was fetched. */
static void references(weft_agent *agent, void *arg)
{
    weft_device here = *now->at[0];
    const weft_shape shape = WEFT_SHAPE(ROWS, now->wide);
    weft_context *c;
    weft_rref *square;
    weft_future *future;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, &(weft_tape_options){.device = here});
    weft_tensor *x = numbers(here, shape, 2, true), *given = numbers(here, shape, 5, false);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "square", WEFT_VALUES(weft_of_tensor(x)),
                            &(weft_rpc_options){.tape = t}, &square));
    MUST_OK(weft_rref_fetch(square, &(weft_rpc_options){.tape = t}, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_tensor *fetched = result(weft_future_values(future), 0);
    MUST(gpu_is_on(fetched, here));
    weft_dist_backward(t, weft_sum(t, weft_mul(t, fetched, given)), &(weft_pass_options){.retain = true});
    MUST_OK(weft_tape_status(t));
    weft_future_unref(future);
    MUST_OK(weft_rref_backward(square, c, &(weft_pass_options){.gradients = {&given, 1}}, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    weft_tape_close(t);
    t = weft_tape_open(&(weft_tape_options){.device = here});
    weft_tensor *gradient = weft_context_ref_grad(c, x), *once = weft_mul(t, weft_add(t, x, x), given);
    MUST(gpu_is_on(gradient, here) && is_equal(gradient, weft_add(t, once, once)));
    weft_tape_close(t);
    weft_tensor_unref(gradient);
    weft_tensor_unref(given);
    weft_tensor_unref(x);
    weft_rref_unref(square);
    weft_context_close(c, NULL);
}

static void test_references(void **state)
{
    for (int i = 0; i < DEVICES * DEVICES; i++) {
        scene s = {.at = {&all[i % 3], &all[i / 3], &all[0]}, .maps = true, .wide = i % 2 ? 9001 : 7};
        now = &s;
        play(&(world){.program = references, .size = 2, WORLD_FUNCTIONS(with_square), .adjust = map_devices}, 3, 1);
    }
}

/* ---- A gradient on another device than its root ------------------------------------------------------------------ */

static void wrong_gradient(weft_agent *agent, void *arg)
{
    weft_future *pass = NULL;
    weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.device = all[1]});
    weft_tensor *x = numbers(all[1], WEFT_SHAPE(3), 1, true), *given = numbers(cpu, WEFT_SHAPE(3), 1, false);
    weft_tensor *root = weft_add(t, x, x);
    MUST(weft_context_backward(weft_tape_context(t), (weft_tensors){&root, 1},
                               &(weft_pass_options){.gradients = {&given, 1}}, &pass) == WEFT_ERR_UNSUPPORTED);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(given);
}

static void test_wrong_gradient(void **state)
{
    play(&(world){.program = wrong_gradient, .size = 1}, 1, 1);
}

/* ---- Gradients by rows ------------------------------------------------------------------------------------------- */

enum { TABLE = 9, WIDTH = 20, INDICES = 6 };
static weft_tensor *table; /* worker 1's */
static int table_at;

static weft_tensor *indices(weft_device device, int salt)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(INDICES), WEFT_DTYPE_INT64);
    for (int i = 0; i < INDICES; i++)
        ((int64_t *)weft_tensor_data(x))[i] = (i * i + salt) % TABLE;
    return move(x, device);
}

static weft_tensor *rows_of(weft_tape *t, weft_tensor *weight, weft_tensor *index)
{
    return weft_embedding(t, weight, index, &(weft_embedding_options){.sparse = true});
}

static weft_status run_rows(weft_call *call, void *user)
{
    weft_tape *t =
        weft_tape_open(&(weft_tape_options){.record = true, .parent = weft_call_tape(call), .device = all[table_at]});
    weft_tensor *index = move(weft_tensor_ref(weft_call_tensor(call, 0)), all[table_at]);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(rows_of(t, table, index))));
    weft_status status = weft_tape_status(t);
    weft_tape_close(t);
    weft_tensor_unref(index);
    return status;
}

/* The gradient of the table has rows on its device; as one tensor it is that of both passes on the CPU. */
static weft_status run_check_rows(weft_call *call, void *user)
{
    weft_gradient sum;
    weft_context *c = weft_tape_context(weft_call_tape(call));
    weft_tensor *here = numbers(cpu, WEFT_SHAPE(TABLE, WIDTH), 4, true);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    for (int pass = 0; pass < 2; pass++) {
        weft_tensor *index = indices(cpu, pass), *again = indices(cpu, pass + 5);
        weft_tensor *y = rows_of(t, here, index), *z = rows_of(t, here, again);
        weft_backward(t, weft_sum(t, weft_add(t, weft_mul(t, y, y), z)));
        weft_tensor_unref(index);
        weft_tensor_unref(again);
    }
    MUST_OK(weft_tape_status(t));
    MUST_OK(weft_context_ref_gradients(c, (weft_tensors){&table, 1}, &sum));
    MUST(sum.rows && gpu_is_on(sum.rows, all[table_at]) && gpu_is_on(sum.values, all[table_at]));
    weft_tensor *dense = weft_context_ref_grad(c, table);
    MUST(gpu_is_on(dense, all[table_at]) && is_equal(dense, weft_tape_grad(t, here)));
    weft_context_drop_gradients(&sum, 1);
    weft_tensor_unref(dense);
    weft_tape_close(t);
    weft_tensor_unref(here);
    return WEFT_OK;
}

static const weft_function with_rows[] = {
    {.name = "rows", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_rows},
    {.name = "check_rows", .run = run_check_rows},
};

static void map_rows(weft_agent_options *options, void *arg)
{
    static weft_device_map map;
    if (options->rank)
        return;
    map = (weft_device_map){.worker = "worker1", .here = *now->at[0], .there = all[table_at]};
    options->device_maps = &map;
    options->device_map_count = 1;
}

/* Two passes, each with two look-ups. */
static void sparse_rows(weft_agent *agent, void *arg)
{
    weft_device device = *now->at[0];
    if (weft_agent_rank(agent))
        return;
    weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.device = device});
    for (int pass = 0; pass < 2; pass++) {
        weft_values *results[2];
        for (int i = 0; i < 2; i++) {
            weft_tensor *index = indices(device, pass + 5 * i);
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "rows", WEFT_VALUES(weft_of_tensor(index)),
                                  &(weft_rpc_options){.tape = t}, &results[i]));
            weft_tensor_unref(index);
        }
        weft_tensor *y = result(results[0], 0);
        weft_dist_backward(t, weft_sum(t, weft_add(t, weft_mul(t, y, y), result(results[1], 0))), NULL);
        MUST_OK(weft_tape_status(t));
        weft_values_unref(results[0]);
        weft_values_unref(results[1]);
    }
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "check_rows", WEFT_NO_VALUES, &(weft_rpc_options){.tape = t}, NULL));
    weft_tape_close(t);
}

static void make_table(world *w)
{
    table = numbers(all[table_at], WEFT_SHAPE(TABLE, WIDTH), 4, true);
}

static void drop_table(world *w)
{
    weft_tensor_unref(table);
}

static void test_sparse_rows(void **state)
{
    for (int i = 0; i < DEVICES * DEVICES; i++) {
        scene s = {.at = {&all[i % 3]}};
        now = &s;
        table_at = i / 3;
        play(&(world){.program = sparse_rows,
                      .size = 2,
                      WORLD_FUNCTIONS(with_rows),
                      .adjust = map_rows,
                      .begin = make_table,
                      .end = drop_table},
             5, 1);
    }
}

/* On a machine with one GPU the second one is the first. */
static int begin(void **state)
{
    if (weft_device_check(all[2], NULL))
        all[2] = all[1];
    gpu_find("emulated_gpu_counts", &counts);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixtures),   cmocka_unit_test(test_without_maps),   cmocka_unit_test(test_second_pass),
        cmocka_unit_test(test_streams),    cmocka_unit_test(test_undone),         cmocka_unit_test(test_all_devices),
        cmocka_unit_test(test_references), cmocka_unit_test(test_wrong_gradient), cmocka_unit_test(test_sparse_rows)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return gpu_is_here() ? cmocka_run_group_tests(tests, begin, NULL) : GPU_SKIPPED;
}
