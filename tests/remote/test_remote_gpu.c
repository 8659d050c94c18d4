/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_gpu.c - modules on other workers, whose parameters are on GPUs, and optimizers of them. A tape of the CPU
 * or of any GPU calls them, with and without device maps, and trains as one tape of the CPU does.
 */
#include "gpu/gpu.h"
#include "make.h"
#include "rpc/world.h"
#include "tensors.h"

#include "emulated/emulated.h"

#include <math.h>

enum { WORKERS = 3, STEPS = 3, BATCH = 8, VOCABULARY = 11, WIDE = 6, CLASSES = 4, DEVICES = 3 };
#define TOLERANCE 1e-5

static const weft_device cpu = {WEFT_DEVICE_CPU, 0};
static weft_device all[DEVICES] = {{WEFT_DEVICE_CPU, 0}, {WEFT_DEVICE_CUDA, 0}, {WEFT_DEVICE_CUDA, 1}};

/* How a module is on its device. */
enum { MOVED, WRAPPED, PARTLY_WRAPPED, KINDS };

/* Where the caller, the model on worker 1 and the table on worker 2 compute. */
typedef struct scene {
    int at[WORKERS];
    int kind;  /* of the model */
    bool maps; /* of the caller, to the devices of the modules */
    double max_norm;
} scene;

static const scene *now;

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

/* ---- The modules ------------------------------------------------------------------------------------------------- */

static weft_module *hidden_part(void)
{
    weft_module *parts[] = {linear_create(WIDE, 16, false, 1, NULL), relu_create(), dropout_create(0.25, NULL)};
    return sequential_create(parts, 3, NULL);
}

static weft_module *last_part(void)
{
    return linear_create(16, CLASSES, false, 2, NULL);
}

static weft_module *make_model(int64_t argument)
{
    weft_device device = all[argument % DEVICES];
    bool wraps_part = argument / DEVICES == PARTLY_WRAPPED;
    weft_module *hidden = wraps_part ? on_device_create(hidden_part(), device, NULL) : hidden_part();
    weft_module *model = sequential_create((weft_module *[]){hidden, last_part()}, 2, NULL);
    if (argument / DEVICES == WRAPPED)
        return on_device_create(model, device, NULL);
    if (!wraps_part)
        MUST_OK(weft_module_to_device(model, device));
    return model;
}

static weft_module *make_table(int64_t argument)
{
    weft_module *table = embedding_create(
        &(weft_embedding_layer){.rows = VOCABULARY, .width = WIDE, .how.sparse = true, .seed = 3}, NULL);
    MUST_OK(weft_module_to_device(table, all[argument]));
    return table;
}

static weft_module *make_relu(int64_t argument)
{
    return relu_create();
}

static weft_tensor *make_factors(weft_device device)
{
    weft_tensor *factors = tensor_empty(WEFT_SHAPE(BATCH, WIDE), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < BATCH * WIDE; i++)
        ((float *)weft_tensor_data(factors))[i] = (float)(i % 5 + 1) / 4;
    factors = move(factors, device);
    weft_tensor_set_requires_grad(factors, true);
    return factors;
}

static weft_tensor *integers(weft_device device, int step, int end)
{
    weft_tensor *y = tensor_empty(WEFT_SHAPE(BATCH), WEFT_DTYPE_INT64);
    for (int i = 0; i < BATCH; i++)
        ((int64_t *)weft_tensor_data(y))[i] = (i * 3 + step) % end;
    return move(y, device);
}

static uint64_t seed_of(int step)
{
    return (uint64_t)step + 100;
}

/* ---- On one tape of the CPU -------------------------------------------------------------------------------------- */

typedef struct run {
    double losses[STEPS], factors[BATCH * WIDE], table[VOCABULARY * WIDE];
} run;

static void copy(weft_tensor *tensor, double *out)
{
    for (int64_t i = 0; i < weft_tensor_numel(tensor); i++)
        out[i] = weft_tensor_get_f64(tensor, i);
}

static void train_here(run *out)
{
    weft_module *model = make_model(0), *table = make_table(0);
    weft_tensors of_model = weft_module_parameters(model);
    weft_tensor *factors = make_factors(cpu);
    weft_tensor *parameters[] = {weft_module_parameters(table).items[0],
                                 of_model.items[0],
                                 of_model.items[1],
                                 of_model.items[2],
                                 of_model.items[3],
                                 factors};
    weft_tensors list = {parameters, 6};
    weft_optimizer *sgd = optimizer_create(
        list, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.5, .max_norm = now->max_norm}, NULL);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .mode = WEFT_MODE_TRAIN});
        weft_tensor *index = integers(cpu, step, VOCABULARY), *target = integers(cpu, step, CLASSES);
        weft_tensor *x = weft_mul(t, weft_module_forward(t, table, index), factors);
        weft_tape_set_seed(t, seed_of(step));
        weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, model, x), target);
        weft_backward(t, loss);
        MUST_OK(weft_tape_status(t));
        out->losses[step] = weft_tensor_get_f64(loss, 0);
        MUST_OK(weft_optimizer_apply(sgd, weft_tape_gradients(t, list)));
        weft_tape_close(t);
        weft_tensor_unref(index);
        weft_tensor_unref(target);
    }
    copy(factors, out->factors);
    copy(parameters[0], out->table);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(factors);
    weft_module_unref(model);
    weft_module_unref(table);
}

/* ---- Split ------------------------------------------------------------------------------------------------------- */

static void must_be_near(const double *got, const double *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= TOLERANCE)) {
            fprintf(stderr, "number %zu is %.9g, not %.9g; caller %d, model %d (%d), table %d, maps %d\n", i, got[i],
                    want[i], now->at[0], now->at[1], now->kind, now->at[2], now->maps);
            MUST(fabs(got[i] - want[i]) <= TOLERANCE);
        }
}

static weft_tensor *fetch_first(weft_rref *module)
{
    weft_values *handles, *values;
    weft_rref *first;
    weft_tensor *tensor;
    MUST_OK(weft_remote_parameters(module, &handles, NULL));
    MUST_OK(weft_values_get_rref(handles, 0, &first));
    MUST_OK(weft_rref_to_here(first, 0, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &tensor));
    weft_tensor_ref(tensor);
    weft_values_unref(values);
    weft_values_unref(handles);
    return tensor;
}

static double one_step(weft_agent *agent, int step, weft_rref *model, weft_rref *table, weft_tensor *factors,
                       weft_dist_optimizer *sgd)
{
    weft_device device = all[now->at[0]];
    weft_tensor *index = integers(device, step, VOCABULARY), *target = integers(device, step, CLASSES);
    uint64_t waited = waits();
    weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.mode = WEFT_MODE_TRAIN, .device = device});
    weft_tensor *x = weft_mul(t, weft_remote_forward(t, table, index, NULL), factors);
    weft_tensor *scores =
        weft_remote_forward(t, model, x, &(weft_forward_options){.has_seed = true, .seed = seed_of(step)});
    weft_tensor *loss = weft_cross_entropy(t, scores, target);
    weft_dist_backward(t, loss, &(weft_pass_options){.step = now->max_norm > 0 ? NULL : sgd});
    weft_error_print(weft_tape_error(t), stderr);
    MUST_OK(weft_tape_status(t));
    MUST(waits() == waited || !now->maps || now->kind == PARTLY_WRAPPED); /* then nothing is copied */
    weft_context *c = weft_tape_context(t);
    if (now->max_norm > 0)
        MUST_OK(weft_dist_optimizer_step(sgd, &c, 1, &(weft_dist_step_options){.max_norm = now->max_norm}));
    double value = weft_tensor_get_f64(loss, 0);
    weft_tape_close(t);
    weft_tensor_unref(index);
    weft_tensor_unref(target);
    return value;
}

static void train_split(weft_agent *agent, void *arg)
{
    run want, got;
    weft_rref *model, *table;
    weft_dist_optimizer *sgd;
    if (weft_agent_rank(agent))
        return;
    train_here(&want);
    weft_tensor *factors = make_factors(all[now->at[0]]);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "model", WEFT_VALUES(weft_of_i64(now->at[1] + DEVICES * now->kind)),
                            NULL, &model));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "table", WEFT_VALUES(weft_of_i64(now->at[2])), NULL, &table));
    MUST_OK(weft_dist_optimizer_create(
        agent, WEFT_VALUES(weft_of_rref(table), weft_of_rref(model), weft_of_tensors((weft_tensors){&factors, 1})),
        &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.5}, &sgd, NULL));
    for (int step = 0; step < STEPS; step++)
        got.losses[step] = one_step(agent, step, model, table, factors, sgd);
    must_be_near(got.losses, want.losses, STEPS);
    copy(factors, got.factors);
    must_be_near(got.factors, want.factors, BATCH * WIDE);
    weft_tensor *first = fetch_first(table);
    copy(first, got.table);
    must_be_near(got.table, want.table, VOCABULARY * WIDE);
    weft_tensor_unref(first);
    weft_dist_optimizer_unref(sgd);
    weft_rref_unref(model);
    weft_rref_unref(table);
    weft_tensor_unref(factors);
}

static weft_status run_make(weft_call *call, void *user)
{
    world_make_fn make = (world_make_fn)user;
    weft_call_give_object(call, &weft_module_object, make(weft_call_count(call) ? weft_call_i64(call, 0) : 0));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "model", .takes = {WEFT_TYPE_REST}, .run = run_make, .user = (void *)make_model},
    {.name = "table", .takes = {WEFT_TYPE_REST}, .run = run_make, .user = (void *)make_table},
    {.name = "relu", .takes = {WEFT_TYPE_REST}, .run = run_make, .user = (void *)make_relu},
};

/* The caller's device goes to those of the modules. */
static void map_devices(weft_agent_options *options, void *arg)
{
    static weft_device_map maps[2];
    if (!now->maps || options->rank)
        return;
    for (int i = 0; i < 2; i++)
        maps[i] = (weft_device_map){
            .worker = i ? "worker2" : "worker1", .here = all[now->at[0]], .there = all[now->at[i + 1]]};
    options->device_maps = maps;
    options->device_map_count = 2;
}

static void play(void (*program)(weft_agent *agent, void *arg), const scene *s, uint64_t seeds, int on_tcp)
{
    now = s;
    world_play(&(world){.program = program, .size = WORKERS, WORLD_FUNCTIONS(functions), .adjust = map_devices},
               gpu_is_polled() ? seeds : 0, gpu_is_polled() ? 0 : on_tcp);
}

static void test_training(void **state)
{
    for (int i = 0; i < DEVICES * DEVICES; i++)
        for (int maps = 0; maps < 2; maps++)
            play(train_split, &(scene){.at = {i % 3, i / 3, (i + i / 3) % 3}, .maps = maps}, 4, 1);
}

static void test_wrapped(void **state)
{
    for (int i = 0; i < DEVICES * DEVICES; i++)
        for (int kind = WRAPPED; kind < KINDS; kind++)
            play(train_split, &(scene){.at = {i % 3, i / 3, 1}, .kind = kind, .maps = i % 2}, 3, i % 3 == 0);
}

static void test_clipped(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        play(train_split, &(scene){.at = {i, 1, 2}, .max_norm = 0.125}, 5, 1);
}

/* ---- A module without parameters, and the state of an optimizer -------------------------------------------------- */

static void without_parameters(weft_agent *agent, void *arg)
{
    weft_rref *relu;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "relu", WEFT_NO_VALUES, NULL, &relu));
    weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.device = all[now->at[0]]});
    weft_tensor *x = make_factors(all[now->at[0]]);
    weft_dist_backward(t, weft_sum(t, weft_remote_forward(t, relu, x, NULL)), NULL);
    MUST_OK(weft_tape_status(t));
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(t), x);
    MUST(gpu_is_on(gradient, all[now->at[0]]) && weft_tensor_get_f64(gradient, 5) == 1);
    weft_tensor_unref(gradient);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_rref_unref(relu);
}

static void test_without_parameters(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        play(without_parameters, &(scene){.at = {i, 0, 0}}, 5, 1);
}

/* The state of a GPU's parameters comes as tensors of the CPU, and can be set again. */
static void with_state(weft_agent *agent, void *arg)
{
    weft_rref *model;
    weft_dist_optimizer *adam;
    weft_optimizer_states states = {0}, again = {0};
    if (weft_agent_rank(agent))
        return;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "model", WEFT_VALUES(weft_of_i64(now->at[1])), NULL, &model));
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(model)),
                                       &(weft_optimizer_spec){.type = &weft_adam_type}, &adam, NULL));
    for (int step = 0; step < 2; step++) {
        weft_tape *t = weft_dist_tape_open(agent, NULL);
        weft_tensor *x = make_factors(cpu);
        weft_dist_backward(t, weft_sum(t, weft_remote_forward(t, model, x, NULL)), &(weft_pass_options){.step = adam});
        MUST_OK(weft_tape_status(t));
        weft_tape_close(t);
        weft_tensor_unref(x);
    }
    MUST_OK(weft_dist_optimizer_ref_state(adam, 0, &states, NULL));
    MUST_OK(weft_dist_optimizer_set_state(adam, states.items, states.count, 0, NULL));
    MUST_OK(weft_dist_optimizer_ref_state(adam, 0, &again, NULL));
    MUST(states.count > 4 && again.count == states.count);
    for (size_t i = 0; i < states.count; i++) {
        weft_tensor *a = states.items[i].tensor, *b = again.items[i].tensor;
        MUST(gpu_is_on(a, cpu) && gpu_is_on(b, cpu) && weft_tensor_nbytes(a) == weft_tensor_nbytes(b));
        MUST(memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0);
    }
    weft_optimizer_states_drop(&states);
    weft_optimizer_states_drop(&again);
    weft_dist_optimizer_unref(adam);
    weft_rref_unref(model);
}

static void test_state(void **state)
{
    for (int i = 0; i < DEVICES; i++)
        play(with_state, &(scene){.at = {0, i, 0}}, 3, 1);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_training), cmocka_unit_test(test_wrapped),
                                       cmocka_unit_test(test_clipped), cmocka_unit_test(test_without_parameters),
                                       cmocka_unit_test(test_state)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return gpu_is_here() ? cmocka_run_group_tests(tests, begin, NULL) : GPU_SKIPPED;
}
