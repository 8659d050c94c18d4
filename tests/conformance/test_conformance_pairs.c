/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_pairs.c - the C code of docs/from-pytorch-rpc.md computes what the Python code beside it
 * computes: its functions run here on three workers, and the results are compared with those of one tape.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <math.h>

#include "pairs.inc" /* the page's code: its functions, and its program as pairs_main */

enum { IN = 3, HIDDEN = 4, CLASSES = 2, ROWS = 5 };

static weft_tensor *numbers(int64_t rows, int64_t columns, double first)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(rows, columns), WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < rows * columns; i++)
        ((float *)weft_tensor_data(x))[i] = (float)sin(first + (double)i);
    return x;
}

static weft_tensor *classes_of(int64_t rows)
{
    weft_tensor *target = tensor_zeros(WEFT_SHAPE(rows), WEFT_DTYPE_INT64);
    for (int64_t i = 0; i < rows; i++)
        ((int64_t *)weft_tensor_data(target))[i] = i % CLASSES;
    return target;
}

static weft_tensor *leaf(weft_tensor *x)
{
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static bool is_near(const weft_tensor *a, const weft_tensor *b)
{
    bool near = a && b && weft_tensor_numel(a) == weft_tensor_numel(b);
    for (int64_t i = 0; near && i < weft_tensor_numel(a); i++)
        near = fabs(weft_tensor_get_f64(a, i) - weft_tensor_get_f64(b, i)) <= 1e-6;
    return near;
}

/* "front" of worker 1, whose weight is `numbers(HIDDEN, IN, 9)`. */
static weft_status front(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *weight = weft_tape_take(t, numbers(HIDDEN, IN, 9));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_linear(t, weft_call_tensor(call, 0), weight, NULL))));
    return WEFT_OK;
}

static const weft_function served[] = {
    {.name = "scale", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64}, .gives = {WEFT_TYPE_TENSOR}, .run = scale},
    {.name = "scale_on",
     .takes = {WEFT_TYPE_STRING, WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_TENSOR},
     .run = scale_on},
    {.name = "front", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = front}};

static weft_module *make_net(int64_t argument)
{
    return linear_create(IN, CLASSES, false, 5, NULL);
}

/* ---- The pairs --------------------------------------------------------------------------------------------------- */

static void calls_of_pairs(weft_agent *agent)
{
    weft_tensor *x = tensor_arange(8, WEFT_DTYPE_FLOAT32), *y;
    weft_values *results;
    MUST_OK(print_twice_and_thrice(agent, x));
    MUST_OK(scale_there(agent, x, &results));
    MUST_OK(weft_values_get_tensor(results, 0, &y));
    for (int i = 0; i < 8; i++)
        MUST(weft_tensor_get_f64(y, i) == 2 * i);
    weft_values_unref(results);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "scale_on",
                          WEFT_VALUES(weft_of_string("worker0"), weft_of_tensor(x), weft_of_f64(3)), NULL, &results));
    MUST_OK(weft_values_get_tensor(results, 0, &y));
    for (int i = 0; i < 8; i++)
        MUST(weft_tensor_get_f64(y, i) == 3 * i);
    weft_values_unref(results);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "scale_on",
                          WEFT_VALUES(weft_of_string("nobody"), weft_of_tensor(x), weft_of_f64(3)), NULL, NULL),
            WEFT_ERR_REMOTE);
    weft_tensor_unref(x);
}

static void gradient_of_pairs(weft_agent *agent)
{
    weft_tensor *x = numbers(ROWS, IN, 1), *target = classes_of(ROWS), *back = leaf(numbers(CLASSES, HIDDEN, 2)),
                *bias = leaf(tensor_zeros(WEFT_SHAPE(CLASSES), WEFT_DTYPE_FLOAT32)), *gradient = NULL;
    MUST_OK(gradient_of(agent, x, target, back, bias, &gradient));
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *h = weft_linear(t, x, weft_tape_take(t, numbers(HIDDEN, IN, 9)), NULL);
    weft_backward(t, weft_cross_entropy(t, weft_linear(t, h, back, bias), target));
    MUST_OK(weft_tape_status(t));
    MUST(is_near(gradient, weft_tape_grad(t, back)));
    weft_tape_close(t);
    weft_tensor *used[] = {x, target, back, bias, gradient};
    for (size_t i = 0; i < sizeof(used) / sizeof(*used); i++)
        weft_tensor_unref(used[i]);
}

/* Three steps of the net on worker 2, and of the same net here. */
static void optimizer_of_pairs(weft_agent *agent)
{
    weft_rref *net;
    weft_dist_optimizer *sgd;
    weft_values *list, *values;
    weft_rref *first;
    weft_tensor *x = numbers(ROWS, IN, 3), *target = classes_of(ROWS), *weight;
    weft_module *same = make_net(0);
    weft_tensors parameters = weft_module_parameters(same);
    weft_optimizer *local =
        optimizer_create(parameters, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.05}, NULL);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "net", WEFT_NO_VALUES, NULL, &net));
    MUST_OK(make_optimizer(agent, net, &sgd));
    for (int step = 0; step < 3; step++) {
        MUST_OK(train_step(agent, net, sgd, x, target));
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_backward(t, weft_cross_entropy(t, weft_module_forward(t, same, x), target));
        MUST_OK(weft_optimizer_apply(local, weft_tape_gradients(t, parameters)));
        weft_tape_close(t);
    }
    MUST_OK(weft_remote_parameters(net, &list, NULL));
    MUST_OK(weft_values_get_rref(list, 0, &first));
    MUST_OK(weft_rref_to_here(first, 0, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &weight));
    MUST(is_near(weight, parameters.items[0]));
    weft_values_unref(values);
    weft_values_unref(list);
    weft_dist_optimizer_unref(sgd);
    weft_rref_unref(net);
    weft_optimizer_unref(local);
    weft_module_unref(same);
    weft_tensor_unref(x);
    weft_tensor_unref(target);
}

/* Each member trains with data of its own: afterwards all have the same model, and a lower loss. */
static void data_parallel_of_pairs(weft_agent *agent)
{
    weft_tensor *x = numbers(ROWS, IN, weft_agent_rank(agent)), *target = classes_of(ROWS), *mean;
    weft_module *model = linear_create(IN, CLASSES, false, (uint64_t)weft_agent_rank(agent), NULL);
    weft_tensors parameters = weft_module_parameters(model);
    weft_optimizer *sgd =
        optimizer_create(parameters, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.05}, NULL);
    MUST_OK(train(agent, model, sgd, x, target));
    weft_group *all;
    MUST_OK(weft_group_open(agent, "compare", NULL, 0, 0, &all, NULL));
    mean = tensor_clone(parameters.items[0]);
    MUST_OK(weft_group_broadcast(all, mean, 0, 0));
    MUST(!memcmp(weft_tensor_data(mean), weft_tensor_data(parameters.items[0]), sizeof(float) * IN * CLASSES));
    weft_group_close(all);
    weft_tensor_unref(mean);
    weft_optimizer_unref(sgd);
    weft_module_unref(model);
    weft_tensor_unref(x);
    weft_tensor_unref(target);
}

static void pairs(weft_agent *agent, void *arg)
{
    (void)arg;
    weft_group *all;
    world_serve_module(agent, "net", make_net);
    MUST_OK(weft_group_open(agent, "ready", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, 0));
    if (weft_agent_rank(agent) == 0) {
        calls_of_pairs(agent);
        gradient_of_pairs(agent);
        optimizer_of_pairs(agent);
    }
    data_parallel_of_pairs(agent);
    weft_group_close(all);
}

WORLD_TEST(pairs, 3, 1, .size = 3, WORLD_FUNCTIONS(served))

/* The program of the page's beginning, as its only worker: rank 0, which serves. */
static void test_the_program(void **state)
{
    (void)state;
    char port[16];
    snprintf(port, sizeof(port), "%d", world_free_port());
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("MASTER_PORT", port, 1);
    assert_int_equal(pairs_main(), 0);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_PORT");
}

UNIT_MAIN(test_pairs, test_the_program)
