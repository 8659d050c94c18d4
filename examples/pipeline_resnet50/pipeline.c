/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c - the stages and the images, and the same computation in one process. */
#include "pipeline.h"

#include "common/random_stream.h"

#include <weft/weft.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

weft_module *pipeline_stage(int64_t stage, uint64_t seed)
{
    return stage == 0 ? weft_resnet50_stage_create(WEFT_RESNET_STEM, WEFT_RESNET_LAYER3, PIPELINE_CLASSES, seed, NULL)
                      : weft_resnet50_stage_create(WEFT_RESNET_LAYER3, WEFT_RESNET_PARTS, PIPELINE_CLASSES, seed, NULL);
}

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

/* Computes the gradients of the batch, which the tape then has. */
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
        stages[s] = pipeline_stage(s, model_seed);
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
