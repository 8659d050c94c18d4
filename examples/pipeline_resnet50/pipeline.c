/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c - stages, images, and the same in one process. */
#include "pipeline.h"

#include "common/random_stream.h"

#include <weft/weft.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tutorial's cut: behind layer2. With one seed the stages have the parameters of the whole network. */
static weft_module *make(int64_t stage, uint64_t seed)
{
    return stage == 0 ? weft_resnet50_stage_create(WEFT_RESNET_STEM, WEFT_RESNET_LAYER3, PIPELINE_CLASSES, seed, NULL)
                      : weft_resnet50_stage_create(WEFT_RESNET_LAYER3, WEFT_RESNET_PARTS, PIPELINE_CLASSES, seed, NULL);
}

/* ---- What a stage's worker serves ------------------------------------------------------------------------------- */

static void drop_stage(void *module)
{
    weft_module_unref(module);
}
static const weft_object_type stage_type = {"stage of ResNet-50", drop_stage};

static weft_status make_stage(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *module = make(weft_call_i64(call, 0), (uint64_t)weft_call_i64(call, 1));
    weft_status st = module ? weft_module_status(module) : WEFT_ERR_MEMORY;
    if (st)
        weft_module_unref(module);
    else
        weft_call_give_object(call, &stage_type, module);
    return st;
}

/* The stage that argument 0 names; NULL: the call has failed. */
static weft_module *stage_of(weft_call *call)
{
    void *module = NULL;
    weft_status st = weft_rref_local_typed(weft_call_rref(call, 0), &stage_type, WEFT_FOREVER, &module);
    if (st)
        weft_call_fail(call, st, "the first argument is no stage that is here");
    return module;
}

static weft_status parameters(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *stage = stage_of(call);
    if (stage)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors(weft_module_parameters(stage))));
    return WEFT_OK;
}

static weft_status gradients(weft_call *call, void *arg)
{
    (void)arg;
    weft_module *stage = stage_of(call);
    if (!stage)
        return WEFT_OK;
    weft_tensors all = weft_module_parameters(stage);
    weft_tensor **found = calloc(all.count, sizeof *found);
    bool whole = found != NULL;
    for (size_t i = 0; i < all.count && whole; i++) {
        found[i] = weft_context_ref_grad(weft_call_context(call), all.items[i]);
        whole = found[i] != NULL;
    }
    if (whole)
        weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){found, all.count})));
    for (size_t i = 0; found && i < all.count; i++)
        weft_tensor_unref(found[i]);
    free(found);
    if (!whole)
        weft_call_fail(call, WEFT_ERR_STATE, "not all parameters of this stage have gradients");
    return WEFT_OK;
}

/* The images are here. */
static void compute(weft_future *fetched, void *arg)
{
    weft_call *call = arg;
    weft_module *stage = stage_of(call);
    const weft_error *error = weft_future_error(fetched);
    if (error)
        weft_call_fail_with(call, error);
    else if (stage) {
        weft_tensor *x = weft_future_tensor(fetched, 0);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_module_forward(weft_call_tape(call), stage, x))));
    }
    weft_call_finish(call, WEFT_OK);
}

/* No thread waits here: meanwhile the worker computes what it has. */
static weft_status forward(weft_call *call, void *arg)
{
    weft_future *fetched = NULL;
    (void)arg;
    if (!stage_of(call))
        return WEFT_OK;
    const weft_rpc_options how = {.tape = weft_call_tape(call), .parent = call};
    weft_status st = weft_rref_fetch(weft_call_rref(call, 1), &how, &fetched);
    if (st)
        return st;
    weft_call *kept = weft_call_defer_keeping(call);
    st = weft_future_add_done_callback(fetched, compute, kept, NULL);
    weft_future_unref(fetched);
    if (st)
        weft_call_finish(kept, st);
    return WEFT_DEFERRED;
}

const weft_function pipeline_functions[PIPELINE_FUNCTIONS] = {
    {.name = "make_stage", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = make_stage},
    {.name = "parameters", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSORS}, .run = parameters},
    {.name = "forward", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSOR}, .run = forward},
    {.name = "gradients", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_TENSORS}, .run = gradients},
};

/* ---- Images ----------------------------------------------------------------------------------------------------- */

int64_t pipeline_pieces(const pipeline_batch *batch)
{
    return (batch->count + batch->piece - 1) / batch->piece;
}

int64_t pipeline_piece(const pipeline_batch *batch, int64_t k)
{
    int64_t left = batch->count - k * batch->piece;
    return left < batch->piece ? left : batch->piece;
}

weft_tensor *pipeline_images(const pipeline_batch *batch, int64_t k)
{
    int64_t count = pipeline_piece(batch, k), image = 3 * batch->size * batch->size;
    weft_tensor *x = weft_tensor_empty(WEFT_SHAPE(count, 3, batch->size, batch->size), WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; x && i < count; i++) {
        float *pixels = (float *)weft_tensor_data(x) + i * image;
        random_stream random = {random_key(batch->seed, (uint64_t)(k * batch->piece + i))};
        for (int64_t p = 0; p < image; p++)
            pixels[p] = (float)random_between(&random, -sqrt(3), sqrt(3)); /* mean 0, variance 1 */
    }
    return x;
}

weft_tensor *pipeline_loss(weft_tape *tape, const pipeline_batch *batch, int64_t k, weft_tensor *scores)
{
    int64_t count = pipeline_piece(batch, k);
    weft_tensor *target =
        weft_tape_take(tape, weft_tensor_full(WEFT_SHAPE(count, PIPELINE_CLASSES), WEFT_DTYPE_FLOAT32, 0));
    for (int64_t i = 0; target && i < count; i++) {
        random_stream random = {random_key(batch->seed + 1, (uint64_t)(k * batch->piece + i))};
        ((float *)weft_tensor_data(target))[i * PIPELINE_CLASSES + random_below(&random, PIPELINE_CLASSES)] = 1;
    }
    return weft_scale(tape, weft_mse_loss(tape, scores, target), (double)count / (double)batch->count);
}

/* ---- In one process --------------------------------------------------------------------------------------------- */

/* Leaves the batch's gradients on the tape. */
static void train_alone(weft_tape *tape, const pipeline_batch *batch, weft_module *const *stages)
{
    for (int64_t k = 0; k < pipeline_pieces(batch); k++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .parent = tape});
        weft_tensor *x = weft_tape_take(t, pipeline_images(batch, k));
        for (int s = 0; s < PIPELINE_STAGES; s++)
            x = weft_module_forward(t, stages[s], x);
        weft_tensor *loss = weft_tensor_ref(pipeline_loss(t, batch, k, x));
        weft_tape_close(t);
        if (!loss)
            weft_tape_fail(tape, WEFT_ERR_MEMORY, "micro-batch %lld could not be computed", (long long)k);
        weft_backward(tape, loss);
        weft_tensor_unref(loss);
    }
}

/* |found - alone| / |alone| */
static double difference_of(const weft_tensor *found, const weft_tensor *alone)
{
    const float *a = weft_tensor_data(found), *b = weft_tensor_data(alone);
    double between = 0, norm = 0;
    for (int64_t i = 0; i < weft_tensor_numel(alone); i++) {
        between += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(between / norm) : sqrt(between);
}

weft_status pipeline_compare(const pipeline_batch *batch, uint64_t model_seed,
                             const weft_tensors found[PIPELINE_STAGES], double *difference, weft_error **error)
{
    weft_module *stages[PIPELINE_STAGES];
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = true});
    for (int s = 0; s < PIPELINE_STAGES; s++)
        stages[s] = make(s, model_seed);
    *difference = 0;
    train_alone(tape, batch, stages);
    for (int s = 0; s < PIPELINE_STAGES && !weft_tape_status(tape); s++) {
        weft_tensors alone = weft_tape_grads(tape, weft_module_parameters(stages[s]));
        if (alone.count != found[s].count)
            weft_tape_fail(tape, WEFT_ERR_STATE, "stage %d has %zu gradients, and in one process %zu", s,
                           found[s].count, alone.count);
        for (size_t i = 0; i < alone.count && i < found[s].count; i++)
            *difference = fmax(*difference, difference_of(found[s].items[i], alone.items[i]));
    }
    weft_status st = weft_tape_status(tape);
    if (st && error)
        *error = weft_error_ref(weft_tape_error(tape));
    weft_tape_close(tape);
    for (int s = 0; s < PIPELINE_STAGES; s++)
        weft_module_unref(stages[s]);
    return st;
}
