/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_training_same_numbers.c - one update by N trainers through real calls equals one step of a single process on
 * the joined batch, with momentum, over several steps: on sim and on tcp, with the model landing in the trainers'
 * own parameters. The model's largest tensors are over the inline limit, its smallest under it.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <math.h>
#include <pthread.h>

enum { TRAINERS = 3, ROWS = 4, INPUTS = 40, HIDDEN = 30, CLASSES = 5, STEPS = 6 };

static const weft_optimizer_spec sgd_options = {.type = &weft_sgd_type,
                                                .lr = 0.05,
                                                .average = true,
                                                .sgd = {.momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}};

static weft_module *make_model(weft_dtype dtype)
{
    weft_module *parts[] = {linear_create(INPUTS, HIDDEN, false, 11, NULL), relu_create(),
                            linear_create(HIDDEN, CLASSES, false, 12, NULL)};
    weft_module *model = sequential_create(parts, 3, NULL);
    MUST(model);
    MUST_OK(weft_module_to(model, dtype));
    return model;
}

/* Rows [first, first + count) of step's joined batch. */
static weft_tensor *inputs_of(int step, int first, int count, weft_dtype dtype)
{
    double values[TRAINERS * ROWS * INPUTS];
    for (int i = 0; i < count * INPUTS; i++)
        values[i] = sin(0.37 * (step * 1000 + first * INPUTS + i));
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(count, INPUTS), WEFT_DTYPE_FLOAT64, values);
    weft_tensor *cast = tensor_to(x, dtype);
    weft_tensor_unref(x);
    return cast;
}

static weft_tensor *targets_of(int step, int first, int count)
{
    int64_t values[TRAINERS * ROWS];
    for (int i = 0; i < count; i++)
        values[i] = (step * 7 + (first + i) * 3) % CLASSES;
    return tensor_copy_of(WEFT_SHAPE(count), WEFT_DTYPE_INT64, values);
}

/* Gradients of the mean loss over these rows; they live as long as the tape. */
static weft_tensors gradients_of(weft_tape *t, weft_module *model, int step, int first, int count, weft_dtype dtype)
{
    weft_tensor *x = weft_tape_take(t, inputs_of(step, first, count, dtype));
    weft_tensor *y = weft_tape_take(t, targets_of(step, first, count));
    weft_backward(t, weft_cross_entropy(t, weft_module_forward(t, model, x), y));
    MUST_OK(weft_tape_status(t));
    return weft_tape_grads(t, weft_module_parameters(model));
}

/* ---- The job --------------------------------------------------------------------------------------------------- */

typedef struct job {
    weft_dtype dtype;
    pthread_mutex_t lock;
    weft_module *model; /* the server's */
    weft_optimizer *sgd;
    weft_call *waiting[TRAINERS];
    int arrived;
} job;

static weft_status update_and_fetch(weft_call *call, void *user)
{
    job *j = user;
    pthread_mutex_lock(&j->lock);
    weft_status status = weft_optimizer_accumulate(j->sgd, weft_call_tensors(call, 0));
    if (!status)
        j->waiting[j->arrived++] = weft_call_defer(call);
    if (!status && j->arrived == TRAINERS) {
        status = weft_optimizer_step(j->sgd);
        for (int i = 0; i < TRAINERS; i++) {
            weft_call_give(j->waiting[i], WEFT_VALUES(weft_of_tensors(weft_module_parameters(j->model))));
            weft_call_finish(j->waiting[i], status);
        }
        j->arrived = 0;
        status = WEFT_OK;
    }
    pthread_mutex_unlock(&j->lock);
    return status ? status : WEFT_DEFERRED;
}

static void train(weft_agent *agent, void *arg)
{
    job *j = arg;
    int rank = weft_agent_rank(agent);
    if (rank == 0)
        return;
    weft_module *model = make_model(j->dtype);
    weft_rpc_options land = {.land = weft_module_parameters(model)};
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensors gradients = gradients_of(t, model, step, (rank - 1) * ROWS, ROWS, j->dtype);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "update_and_fetch", WEFT_VALUES(weft_of_tensors(gradients)),
                              &land, NULL));
        weft_tape_close(t);
    }
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    MUST(stats.bytes_packed == 0 && stats.bytes_copied <= stats.bytes_sent + stats.bytes_received); /* once at most */
    weft_module_unref(model);
}

/* ---- The same in one process ----------------------------------------------------------------------------------- */

static weft_module *train_alone(weft_dtype dtype)
{
    weft_module *model = make_model(dtype);
    weft_optimizer *sgd = optimizer_create(weft_module_parameters(model), &sgd_options, NULL);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensors gradients = gradients_of(t, model, step, 0, TRAINERS * ROWS, dtype);
        MUST_OK(weft_optimizer_accumulate(sgd, gradients));
        MUST_OK(weft_optimizer_step(sgd));
        weft_tape_close(t);
    }
    weft_optimizer_unref(sgd);
    return model;
}

/* The largest difference, relative to the largest element of its tensor. */
static double distance(const weft_module *a, const weft_module *b)
{
    weft_tensors x = weft_module_parameters(a), y = weft_module_parameters(b);
    double worst = 0;
    assert_int_equal(x.count, y.count);
    for (size_t i = 0; i < x.count; i++) {
        double scale = 0, apart = 0;
        for (int64_t k = 0; k < weft_tensor_numel(x.items[i]); k++) {
            double u = weft_tensor_get_f64(x.items[i], k), v = weft_tensor_get_f64(y.items[i], k);
            scale = fmax(scale, fabs(u));
            apart = fmax(apart, fabs(u - v));
        }
        worst = fmax(worst, apart / scale);
    }
    return worst;
}

static void compare(world_fabric fabric, weft_dtype dtype, double bound)
{
    job j = {.dtype = dtype, .lock = PTHREAD_MUTEX_INITIALIZER, .model = make_model(dtype)};
    j.sgd = optimizer_create(weft_module_parameters(j.model), &sgd_options, NULL);
    weft_function table[] = {{.name = "update_and_fetch",
                              .takes = {WEFT_TYPE_TENSORS},
                              .gives = {WEFT_TYPE_TENSORS},
                              .run = update_and_fetch,
                              .user = &j}};
    weft_module *before = make_model(dtype), *alone = train_alone(dtype);
    world_run(&(world){
        .fabric = fabric, .seed = 3, .size = TRAINERS + 1, WORLD_FUNCTIONS(table), .program = train, .arg = &j});
    assert_true(distance(alone, before) > 0.01); /* it did train */
    double apart = distance(alone, j.model);
    print_message("relative difference after %d steps: %g\n", STEPS, apart);
    assert_true(apart <= bound);
    weft_module_unref(before);
    weft_module_unref(alone);
    weft_optimizer_unref(j.sgd);
    weft_module_unref(j.model);
}

static void training_is_the_same_on_sim(void **state)
{
    compare(WORLD_SIM, WEFT_DTYPE_FLOAT32, 1e-5);
    compare(WORLD_SIM, WEFT_DTYPE_FLOAT64, 1e-12);
}

static void training_is_the_same_on_tcp(void **state)
{
    compare(WORLD_TCP, WEFT_DTYPE_FLOAT32, 1e-5);
    compare(WORLD_TCP, WEFT_DTYPE_FLOAT64, 1e-12);
}

UNIT_MAIN(training_is_the_same_on_sim, training_is_the_same_on_tcp)
