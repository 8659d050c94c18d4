/* SPDX-License-Identifier: Apache-2.0 */
/* workload.c - the training of the parameter servers: model, batches, loss, accuracy. */
#include "workload.h"

#include "common/dataset.h"
#include "common/random_stream.h"
#include "sampler.h"

#include <weft/ops.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PIXEL_MEAN 0.1307f /* of MNIST */
#define PIXEL_DEVIATION 0.3081f
#define TEST_BATCH 200

enum { FOR_WEIGHTS = 1, FOR_DRAWING, FOR_ORDER, FOR_IMAGES, FOR_TARGETS, FOR_DROPOUT }; /* streams of random numbers */

struct workload {
    const settings *settings;
    int64_t iterations;
    dataset data;     /* convnet, trainers: the training part */
    dataset held_out; /* convnet: the server's, or each trainer's */
    sampler sampler;  /* convnet, trainers */
    bool diverged;
};

static uint64_t stream_of(const workload *w, uint64_t use)
{
    return random_key((uint64_t)w->settings->seed, use);
}

/* ---- Digits ----------------------------------------------------------------------------------------------------- */

static weft_status load(const workload *w, dataset_part part, dataset *out, weft_error **error)
{
    const settings *s = w->settings;
    if (s->data)
        return dataset_read(s->data, part, out, error);
    int64_t count = part == DATASET_TRAIN ? s->digits : s->held_out;
    return dataset_draw(stream_of(w, FOR_DRAWING), part, (size_t)count, out, error);
}

/* In batch_parameter_server trainers share each epoch. In rpc_parameter_server each goes through all data. */
static weft_status open_sampler(workload *w, size_t count, weft_error **error)
{
    const settings *s = w->settings;
    size_t part = s->job.rank > 0 ? (size_t)s->job.rank - 1 : 0;
    bool shared = s->program == SETTINGS_BATCH;
    uint64_t order = stream_of(w, FOR_ORDER);
    return sampler_init(&w->sampler, shared ? order : random_key(order, part), count, (size_t)s->batch_size,
                        shared ? part : 0, shared ? (size_t)s->trainers : 1, error);
}

/* The server checks both parts too, so that a bad file is reported once, before training begins. */
static weft_status open_digits(workload *w, weft_error **error)
{
    const settings *s = w->settings;
    weft_status st = WEFT_OK;
    bool serves = s->job.rank == 0, tests = serves == (s->program == SETTINGS_BATCH);
    size_t count = (size_t)s->digits;
    if (s->data || !serves) {
        st = load(w, DATASET_TRAIN, &w->data, error);
        count = w->data.count;
    }
    if (!st)
        st = open_sampler(w, count, error);
    if (st)
        return st;
    if (!s->iterations)
        w->iterations = sampler_per_epoch(&w->sampler) * s->epochs;
    if (serves) {
        sampler_fini(&w->sampler);
        dataset_fini(&w->data);
    }
    if (tests || (s->data && serves))
        st = load(w, DATASET_HELD_OUT, &w->held_out, error);
    if (!st && !tests)
        dataset_fini(&w->held_out);
    return st;
}

static void put_image(const dataset *data, size_t index, float *pixels)
{
    const uint8_t *image = data->images + index * DATASET_PIXELS;
    for (int i = 0; i < DATASET_PIXELS; i++)
        pixels[i] = ((float)image[i] / 255.0f - PIXEL_MEAN) / PIXEL_DEVIATION;
}

/* The tensor on the tape's device; owned by the tape. */
static weft_tensor *moved(weft_tape *t, weft_tensor *x, weft_device device)
{
    weft_tensor *there = weft_tape_take(t, weft_tensor_to_device(x, device));
    if (!there)
        weft_tape_fail(t, WEFT_ERR_MEMORY, "a batch cannot be copied to the device");
    return there;
}

/*
 * Makes a batch of `count` images, those in `indices` or those from `first` on: x [count, 1, 28, 28], labels [count].
 * They are CPU tensors, in memory from which the copy to `device` is quick.
 */
static weft_tensor *digits_batch(const dataset *data, weft_tape *t, const uint32_t *indices, size_t first, size_t count,
                                 weft_device device, weft_tensor **labels)
{
    weft_shape shape = WEFT_SHAPE((int64_t)count, 1, DATASET_SIDE, DATASET_SIDE);
    weft_tensor *x = weft_tape_take(t, weft_tensor_empty_pinned(device, shape, WEFT_DTYPE_FLOAT32));
    *labels = weft_tape_take(t, weft_tensor_empty_pinned(device, WEFT_SHAPE((int64_t)count), WEFT_DTYPE_INT64));
    if (!x || !*labels) {
        weft_tape_fail(t, WEFT_ERR_MEMORY, "out of memory for a batch of %zu images", count);
        return NULL;
    }
    float *pixels = weft_tensor_data(x);
    int64_t *label = weft_tensor_data(*labels);
    for (size_t i = 0; i < count; i++) {
        size_t index = indices ? indices[i] : first + i;
        put_image(data, index, pixels + i * DATASET_PIXELS);
        label[i] = data->labels[index];
    }
    return x;
}

static weft_tensor *digits_loss(workload *w, weft_tape *t, weft_module *model, int64_t iteration, weft_device device)
{
    weft_tensor *labels;
    const uint32_t *indices = sampler_batch(&w->sampler, iteration);
    weft_tensor *x = digits_batch(&w->data, t, indices, 0, (size_t)w->settings->batch_size, device, &labels);
    return weft_nll_loss(t, weft_module_forward(t, model, moved(t, x, device)), moved(t, labels, device));
}

/* ---- Random images ---------------------------------------------------------------------------------------------- */

static weft_tensor *random_images(const workload *w, weft_tape *t, int64_t iteration)
{
    const settings *s = w->settings;
    weft_shape shape = WEFT_SHAPE(s->batch_size, 3, s->image_size, s->image_size);
    weft_tensor *x = weft_tape_take(t, weft_tensor_empty(shape, WEFT_DTYPE_FLOAT32));
    if (!x)
        return NULL;
    uint64_t seed = random_key(stream_of(w, FOR_IMAGES), (uint64_t)s->job.rank);
    random_stream random = {random_key(seed, (uint64_t)iteration)};
    float *pixels = weft_tensor_data(x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        pixels[i] = (float)random_normal(&random);
    return x;
}

static weft_tensor *random_targets(const workload *w, weft_tape *t)
{
    const settings *s = w->settings;
    weft_tensor *target =
        weft_tape_take(t, weft_tensor_zeros(WEFT_SHAPE(s->batch_size, s->classes), WEFT_DTYPE_FLOAT32));
    if (!target)
        return NULL;
    random_stream random = {random_key(stream_of(w, FOR_TARGETS), (uint64_t)s->job.rank)};
    float *row = weft_tensor_data(target);
    for (int64_t i = 0; i < s->batch_size; i++, row += s->classes)
        row[random_below(&random, (uint32_t)s->classes)] = 1;
    return target;
}

static weft_tensor *random_loss(const workload *w, weft_tape *t, weft_module *model, int64_t iteration,
                                weft_device device)
{
    weft_tensor *x = random_images(w, t, iteration), *target = random_targets(w, t);
    if (!x || !target)
        weft_tape_fail(t, WEFT_ERR_MEMORY, "out of memory for a batch of %d images", (int)w->settings->batch_size);
    return weft_mse_loss(t, weft_module_forward(t, model, moved(t, x, device)), moved(t, target, device));
}

/* ---- Both ------------------------------------------------------------------------------------------------------- */

weft_status workload_open(const settings *s, workload **out, weft_error **error)
{
    workload *w = calloc(1, sizeof *w);
    if (!w) {
        *error = weft_error_create(WEFT_ERR_MEMORY, "out of memory");
        return WEFT_ERR_MEMORY;
    }
    w->settings = s;
    w->iterations = s->iterations;
    weft_status st = s->model == MODEL_CONVNET ? open_digits(w, error) : WEFT_OK;
    if (st)
        workload_close(w);
    else
        *out = w;
    return st;
}

void workload_close(workload *w)
{
    if (!w)
        return;
    sampler_fini(&w->sampler);
    dataset_fini(&w->data);
    dataset_fini(&w->held_out);
    free(w);
}

int64_t workload_iterations(const workload *w)
{
    return w->iterations;
}

uint64_t workload_seed(const workload *w, int64_t iteration)
{
    return random_key(random_key(stream_of(w, FOR_DROPOUT), (uint64_t)w->settings->job.rank), (uint64_t)iteration);
}

weft_module *workload_model(const workload *w)
{
    uint64_t seed = stream_of(w, FOR_WEIGHTS);
    return w->settings->model == MODEL_CONVNET ? weft_mnist_convnet_create(seed)
                                               : weft_resnet50_create(w->settings->classes, seed, NULL);
}

/* Fails the tape if the loss is not finite, because training cannot continue. */
static void check_loss(workload *w, weft_tape *t, const weft_tensor *loss, int64_t iteration)
{
    const settings *s = w->settings;
    char epoch[40] = "";
    double value = weft_tensor_get_f64(loss, 0);
    if (isfinite(value))
        return;
    w->diverged = true;
    if (s->model == MODEL_CONVNET)
        snprintf(epoch, sizeof epoch, "epoch %lld, ", (long long)(1 + iteration / sampler_per_epoch(&w->sampler)));
    weft_tape_fail(t, WEFT_ERR_STATE,
                   "the loss of trainer %d is %s in %siteration %lld of %lld, with --lr %g: a smaller one, please",
                   (int)s->job.rank, isnan(value) ? "nan" : "infinite", epoch, (long long)iteration + 1,
                   (long long)w->iterations, s->lr);
}

weft_tensor *workload_loss(workload *w, weft_tape *t, weft_module *model, int64_t iteration, weft_device device)
{
    weft_tensor *loss = w->settings->model == MODEL_CONVNET ? digits_loss(w, t, model, iteration, device)
                                                            : random_loss(w, t, model, iteration, device);
    if (!weft_tape_status(t))
        check_loss(w, t, loss, iteration);
    return weft_tape_status(t) ? NULL : loss;
}

/* Fails the tape if scores are not finite: the last steps may have ruined the model, which no loss has shown. */
static void check_scores(workload *w, weft_tape *t, const weft_tensor *scores)
{
    for (int64_t i = 0; i < weft_tensor_numel(scores); i++) {
        if (isfinite(weft_tensor_get_f64(scores, i)))
            continue;
        w->diverged = true;
        weft_tape_fail(
            t, WEFT_ERR_STATE,
            "the trained model's scores of held-out images are not finite, with --lr %g: a smaller one, please",
            w->settings->lr);
        return;
    }
}

static weft_status count_right(workload *w, weft_module *model, size_t first, size_t count, size_t *right,
                               weft_error **error)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *labels;
    weft_tensor *x = digits_batch(&w->held_out, t, NULL, first, count, (weft_device){0}, &labels);
    weft_tensor *scores = weft_module_forward(t, model, x), *guess = weft_argmax(t, scores, 1);
    if (!weft_tape_status(t))
        check_scores(w, t, scores);
    weft_status st = weft_tape_status(t);
    for (size_t i = 0; i < count && !st; i++)
        *right += weft_tensor_get_i64(guess, (int64_t)i) == weft_tensor_get_i64(labels, (int64_t)i);
    if (st)
        *error = weft_error_ref(weft_tape_error(t));
    weft_tape_close(t);
    return st;
}

weft_status workload_accuracy(workload *w, weft_module *model, double *out, weft_error **error)
{
    size_t right = 0, all = w->held_out.count;
    weft_status st = WEFT_OK;
    weft_module_train(model, false);
    for (size_t at = 0; at < all && !st; at += TEST_BATCH)
        st = count_right(w, model, at, all - at < TEST_BATCH ? all - at : TEST_BATCH, &right, error);
    weft_module_train(model, true);
    if (!st)
        *out = all ? (double)right / (double)all : -1;
    return st;
}

bool workload_diverged(const workload *w)
{
    return w->diverged;
}
