/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nn_memory.c - out of memory at every single allocation of a training step: an error, no crash, no leak (the
 * address sanitizer's build looks for those), and the next step works. The linker sends the library's allocations
 * through here.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static long until_failure; /* 0: none is planned */

static bool fails_now(void)
{
    return until_failure > 0 && --until_failure == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails_now() ? NULL : __real_realloc(old, size);
}

static weft_module *make_net(void)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = 4, .kernel = {3, 3}, .seed = 1}, NULL),
        batch_norm2d_create(4, 0, 0, NULL),
        relu_create(),
        max_pool2d_create(&(weft_max_pool2d_options){.kernel = {2, 2}}, NULL),
        adaptive_avg_pool2d_create(1, 2, NULL),
        dropout2d_create(0.5, NULL),
        flatten_create(1),
        linear_create(8, 3, false, 2, NULL),
        log_softmax_create(1),
    };
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}

static weft_status train(weft_module *net, weft_optimizer *sgd, weft_tensor *x, weft_tensor *target)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = t});
    weft_tensor *y = weft_module_forward(child, net, x);
    if (!y)
        weft_tape_fail(t, WEFT_ERR_MEMORY, "forward");
    else
        weft_tensor_ref(y);
    weft_tape_close(child);
    weft_tensor *loss = weft_nll_loss(t, y, target);
    loss = weft_mul(t, weft_add(t, loss, weft_mean(t, weft_tape_take(t, y))), loss);
    weft_backward(t, loss);
    weft_tensors grads = weft_tape_grads(t, weft_module_parameters(net));
    weft_status status = weft_tape_status(t);
    if (status == WEFT_OK)
        status = weft_optimizer_accumulate(sgd, grads);
    if (status == WEFT_OK)
        status = weft_optimizer_step(sgd);
    weft_tape_close(t);
    return status;
}

static weft_status build_and_train(void)
{
    weft_status status = WEFT_ERR_MEMORY;
    weft_module *net = make_net();
    weft_optimizer *sgd = NULL;
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 1, 8, 8), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *target = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT64);
    if (net)
        sgd = optimizer_create(weft_module_parameters(net),
                               &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1, .sgd.momentum = 0.9}, NULL);
    if (sgd && x && target)
        status = train(net, sgd, x, target);
    weft_tensor_unref(target);
    weft_tensor_unref(x);
    weft_optimizer_unref(sgd);
    weft_module_unref(net);
    return status;
}

/* A step of policy gradients: draw, pick the log-probabilities, join them, and let Adam step. */
static weft_status learn(weft_module *net, weft_optimizer *adam, weft_tensor *x)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 2});
    weft_tensor *steps[5];
    for (int i = 0; i < 5; i++) {
        weft_tensor *p = weft_module_forward(t, net, x), *action = weft_categorical(t, p);
        if (action)
            action = weft_reshape(t, action, WEFT_SHAPE(2, 1));
        steps[i] = !action ? NULL : weft_log(t, weft_take_along_dim(t, p, 1, action));
    }
    weft_tensor *all = weft_stack(t, (weft_tensors){steps, 5}, 0);
    weft_tensor *both = weft_concat(t, (weft_tensors){(weft_tensor *[]){all, all, all, all}, 4}, 1);
    weft_backward(t, !both ? NULL : weft_mean(t, both));
    weft_tensors grads = weft_tape_grads(t, weft_module_parameters(net));
    weft_status status = weft_tape_status(t);
    if (status == WEFT_OK)
        status = weft_optimizer_accumulate(adam, grads);
    if (status == WEFT_OK)
        status = weft_optimizer_step(adam);
    weft_tape_close(t);
    return status;
}

static weft_status build_and_learn(void)
{
    weft_status status = WEFT_ERR_MEMORY;
    weft_module *parts[] = {linear_create(4, 3, false, 1, NULL), dropout_create(0.5, NULL), relu_create(),
                            softmax_create(1)};
    weft_module *net = sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32, 1);
    weft_optimizer *adam = NULL;
    if (net)
        adam = optimizer_create(weft_module_parameters(net),
                                &(weft_optimizer_spec){.type = &weft_adam_type, .adam.amsgrad = true}, NULL);
    if (adam && x)
        status = learn(net, adam, x);
    weft_optimizer_unref(adam);
    weft_tensor_unref(x);
    weft_module_unref(net);
    return status;
}

typedef struct reader {
    weft_module *embedding, *lstm, *bag;
    weft_tensor *parameters[10];
    size_t count;
} reader;

/* False: out of memory. */
static bool take_parameters(reader *r, weft_module *module)
{
    weft_tensors all = !module ? (weft_tensors){NULL, 0} : weft_module_parameters(module);
    for (size_t i = 0; i < all.count; i++)
        r->parameters[r->count++] = all.items[i];
    return all.count > 0;
}

/* Gradients dense and by rows, those of two uses joined, and made dense. */
static weft_status read_numbers(const reader *r, weft_optimizer *sgd, weft_tensor *index)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 2});
    weft_tensors parameters = {(weft_tensor **)r->parameters, r->count};
    weft_tensor *x =
        weft_add(t, weft_module_forward(t, r->embedding, index), weft_module_forward(t, r->embedding, index));
    weft_tensor *y = weft_module_forward(t, r->lstm, x), *sums = weft_module_forward(t, r->bag, index);
    weft_backward(t, weft_add(t, weft_mean(t, y), weft_mean(t, sums)));
    weft_gradients gradients = weft_tape_gradients(t, parameters);
    weft_status status = weft_tape_status(t);
    if (status == WEFT_OK)
        status = weft_optimizer_apply(sgd, gradients);
    if (status == WEFT_OK && weft_tape_grads(t, parameters).count == 0)
        status = weft_tape_status(t);
    weft_tape_close(t);
    return status;
}

static weft_status build_and_read(void)
{
    weft_status status = WEFT_ERR_MEMORY;
    weft_embedding_layer table = {.rows = 7, .width = 4, .how = {.padding = true, .sparse = true}};
    reader r = {.embedding = embedding_create(&table, NULL),
                .lstm = lstm_create(
                    &(weft_lstm_layer){.in_features = 4, .hidden_features = 3, .layers = 2, .dropout = 0.5}, NULL),
                .bag = embedding_bag_create(&(weft_embedding_bag_layer){.rows = 7, .width = 4}, NULL)};
    weft_tensor *index = tensor_zeros(WEFT_SHAPE(3, 2), WEFT_DTYPE_INT64);
    weft_optimizer *sgd = NULL;
    if (take_parameters(&r, r.embedding) && take_parameters(&r, r.lstm) && take_parameters(&r, r.bag))
        sgd = optimizer_create((weft_tensors){r.parameters, r.count},
                               &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, NULL);
    if (index)
        formula_fill_below(index, 4, 7);
    if (sgd && index)
        status = read_numbers(&r, sgd, index);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(index);
    weft_module_unref(r.embedding);
    weft_module_unref(r.lstm);
    weft_module_unref(r.bag);
    return status;
}

static void fail_each_allocation(weft_status (*run)(void))
{
    assert_int_equal(run(), WEFT_OK);
    long failures = 0, which = 0;
    for (bool reached = true; reached;) {
        until_failure = ++which;
        weft_status status = run();
        reached = until_failure == 0;
        until_failure = 0;
        failures += status != WEFT_OK;
        if (status != WEFT_OK)
            assert_int_equal(status, WEFT_ERR_MEMORY);
    }
    assert_true(failures > 100);
    assert_int_equal(run(), WEFT_OK);
}

static void training_survives_a_failure_of_any_allocation(void **state)
{
    fail_each_allocation(build_and_train);
}

static void policy_gradients_survive_a_failure_of_any_allocation(void **state)
{
    fail_each_allocation(build_and_learn);
}

static void sequences_survive_a_failure_of_any_allocation(void **state)
{
    fail_each_allocation(build_and_read);
}

UNIT_MAIN(training_survives_a_failure_of_any_allocation, sequences_survive_a_failure_of_any_allocation,
          policy_gradients_survive_a_failure_of_any_allocation)
