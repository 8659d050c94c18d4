/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid.c - the model and the batches of ddp_rpc_hybrid, and the same training in one process. */
#include "hybrid.h"

#include "common/random_stream.h"

#include <weft/ops.h>
#include <weft/optim.h>

enum { FOR_EMBEDDING, FOR_DENSE, FOR_BATCHES }; /* random streams of a seed */
enum { LEAST_ROWS = 20, MOST_ROWS = 50, MOST_IN_BAG = 10 };

/* ---- The model -------------------------------------------------------------------------------------------------- */

typedef double (*draw_fn)(random_stream *random);

static double draw_normal(random_stream *random)
{
    return random_normal(random);
}

static double draw_quarter(random_stream *random) /* 1 / sqrt(HYBRID_WIDTH) */
{
    return random_between(random, -0.25, 0.25);
}

/* Draws the parameters of a module in order. Takes the module and returns it; NULL: no memory. */
static weft_module *drawn(weft_module *module, uint64_t seed, draw_fn draw)
{
    random_stream random = {seed};
    weft_tensors all = weft_module_parameters(module);
    weft_status st = module && all.count ? weft_module_status(module) : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < all.count && !st; i++) {
        weft_tensor *values = weft_tensor_empty(weft_tensor_shape(all.items[i]), WEFT_DTYPE_FLOAT32);
        for (int64_t k = 0; values && k < weft_tensor_numel(values); k++)
            ((float *)weft_tensor_data(values))[k] = (float)draw(&random);
        st = values ? weft_tensor_assign(all.items[i], values) : WEFT_ERR_MEMORY;
        weft_tensor_unref(values);
    }
    if (!st)
        return module;
    weft_module_unref(module);
    return NULL;
}

weft_module *hybrid_embedding(uint64_t seed)
{
    const weft_embedding_bag_layer layer = {.rows = HYBRID_ROWS, .width = HYBRID_WIDTH, .how.mode = WEFT_BAG_SUM};
    return drawn(weft_embedding_bag_create(&layer, NULL), random_key(seed, FOR_EMBEDDING), draw_normal);
}

weft_module *hybrid_dense(uint64_t seed, int64_t trainer)
{
    uint64_t own = random_key(random_key(seed, FOR_DENSE), (uint64_t)trainer);
    return drawn(weft_linear_create(HYBRID_WIDTH, HYBRID_CLASSES, false, 0, NULL), own, draw_quarter);
}

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

static weft_tensor *whole_numbers(weft_tape *t, const int64_t *values, int64_t count)
{
    return weft_tape_take(t, weft_tensor_copy_of(WEFT_SHAPE(count), WEFT_DTYPE_INT64, values));
}

hybrid_batch hybrid_draw(weft_tape *t, uint64_t seed, int64_t trainer, int64_t number)
{
    uint64_t own = random_key(random_key(seed, FOR_BATCHES), (uint64_t)trainer);
    random_stream random = {random_key(own, (uint64_t)number)};
    int64_t index[MOST_ROWS], offsets[MOST_ROWS], target[MOST_ROWS];
    int64_t rows = LEAST_ROWS + random_below(&random, MOST_ROWS - LEAST_ROWS + 1), bags = 0;
    for (int64_t i = 0; i < rows; i++)
        index[i] = random_below(&random, HYBRID_ROWS);
    for (int64_t at = 0; at < rows; at += 1 + random_below(&random, MOST_IN_BAG))
        offsets[bags++] = at;
    for (int64_t i = 0; i < bags; i++)
        target[i] = random_below(&random, HYBRID_CLASSES);
    return (hybrid_batch){.index = whole_numbers(t, index, rows),
                          .offsets = whole_numbers(t, offsets, bags),
                          .target = whole_numbers(t, target, bags),
                          .bags = bags};
}

/* ---- In one process --------------------------------------------------------------------------------------------- */

typedef struct alone {
    const hybrid_run *run;
    weft_module *embedding, *dense;
    weft_optimizer *sum, *mean; /* add the gradients of the embedding; average those of the dense part */
    weft_error **error;
} alone;

/* Adds the gradients of one trainer's batch. */
static weft_status add_gradients(alone *a, int64_t trainer, int64_t number, double *loss)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    hybrid_batch batch = hybrid_draw(t, a->run->seed, trainer, number);
    weft_args in = WEFT_VALUES(weft_of_tensor(batch.index), weft_of_tensor(batch.offsets));
    weft_tensor *x = weft_args_tensor(weft_module_call(t, a->embedding, in), 0);
    weft_tensor *found = weft_cross_entropy(t, weft_module_forward(t, a->dense, x), batch.target);
    weft_backward(t, found);
    weft_status st = weft_tape_status(t);
    if (st && a->error)
        *a->error = weft_error_ref(weft_tape_error(t));
    if (!st)
        st = weft_optimizer_accumulate(a->sum, weft_tape_grads(t, weft_module_parameters(a->embedding)));
    if (!st)
        st = weft_optimizer_accumulate(a->mean, weft_tape_grads(t, weft_module_parameters(a->dense)));
    if (!st)
        *loss += weft_tensor_get_f64(found, 0) / (double)a->run->batches;
    weft_tape_close(t);
    return st;
}

static weft_status train_alone(alone *a, double *losses)
{
    weft_status st = WEFT_OK;
    for (int64_t i = 0; i < a->run->epochs * a->run->batches && !st; i++) {
        for (int64_t k = 0; k < a->run->trainers && !st; k++)
            st = add_gradients(a, k, i, &losses[k * a->run->epochs + i / a->run->batches]);
        if (!st)
            st = weft_optimizer_step(a->sum);
        if (!st)
            st = weft_optimizer_step(a->mean);
    }
    return st;
}

weft_status hybrid_alone(const hybrid_run *run, double *losses, weft_error **error)
{
    alone a = {.run = run,
               .embedding = hybrid_embedding(run->seed),
               .dense = hybrid_dense(run->seed, 0), /* all trainers begin with the dense part of trainer 0 */
               .error = error};
    if (a.embedding && a.dense) {
        a.sum = weft_sgd_create(weft_module_parameters(a.embedding), &(weft_optimizer_spec){.lr = run->lr}, NULL);
        a.mean = weft_sgd_create(weft_module_parameters(a.dense),
                                 &(weft_optimizer_spec){.lr = run->lr, .average = true}, NULL);
    }
    for (int64_t i = 0; i < run->trainers * run->epochs; i++)
        losses[i] = 0;
    weft_status st = a.sum && a.mean ? train_alone(&a, losses) : WEFT_ERR_MEMORY;
    weft_optimizer_unref(a.mean);
    weft_optimizer_unref(a.sum);
    weft_module_unref(a.dense);
    weft_module_unref(a.embedding);
    return st;
}
