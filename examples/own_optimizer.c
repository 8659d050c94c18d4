/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_optimizer.c - a custom optimizer (weft/optimizer_type.h) trains a small network on drawings of digits: Lion,
 * which weft does not have.
 *
 * An optimizer is a weft_optimizer_type: its options, its state, and a step. In Lion's step the new value of an element
 * depends on no other element. So the step is written as a function for consecutive elements (a span).
 * weft_optimizer_update_run calls this function until all elements are done, on several threads. This file is compiled
 * with -ffp-contract=off, as weft's own steps are: fused operations round differently.
 */
#include "cli.h"
#include "dataset.h"
#include "temporary.h"

#include <weft/weft.h>

/* ---- Lion (Chen et al., NeurIPS 2023): p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), m follows g --- */

enum { LION_BETA1, LION_BETA2, LION_DECAY };

static void lion_span(const void *arg, const weft_optimizer_span *s)
{
    const weft_optimizer_update *u = arg;
    const float *p = s->from, *g = s->gradient;
    float *to = s->to, *m = s->slots[0], factor = (float)u->factor, lr = (float)u->lr;
    float beta1 = (float)u->options[LION_BETA1], beta2 = (float)u->options[LION_BETA2];
    float decay = (float)u->options[LION_DECAY];
    for (int64_t i = 0; i < s->count; i++) {
        float d = factor * g[i], c = beta1 * m[i] + (1 - beta1) * d;
        to[i] = p[i] - lr * ((float)((c > 0) - (c < 0)) + decay * p[i]);
        m[i] = beta2 * m[i] + (1 - beta2) * d;
    }
}

static weft_status lion_step(const weft_optimizer_update *u)
{
    return weft_optimizer_update_run(u, lion_span, u);
}

static const weft_optimizer_type lion = {
    .name = "Lion",
    .lr = 3e-4,
    .options = {[LION_BETA1] = {"beta1", .otherwise = 0.9, .max = 1, .open = true},
                [LION_BETA2] = {"beta2", .otherwise = 0.99, .max = 1, .open = true},
                [LION_DECAY] = {"weight_decay", .max = 1}},
    .slots = {{"exp_avg"}},
    .step = lion_step,
};

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* Images from `from` on, as [count, 1, 28, 28] between -0.5 and 0.5, and their labels. The tape owns both. */
static weft_tensor *take_batch(weft_tape *t, const dataset *data, size_t from, int64_t count, weft_tensor **labels)
{
    weft_shape shape = WEFT_SHAPE(count, 1, DATASET_SIDE, DATASET_SIDE);
    weft_tensor *x = temporary_empty(t, shape, WEFT_DTYPE_FLOAT32);
    *labels = temporary_empty(t, WEFT_SHAPE(count), WEFT_DTYPE_INT64);
    for (int64_t i = 0; x && i < count * DATASET_PIXELS; i++)
        ((float *)weft_tensor_data(x))[i] = (float)data->images[from * DATASET_PIXELS + (size_t)i] / 255 - 0.5f;
    for (int64_t i = 0; *labels && i < count; i++)
        ((int64_t *)weft_tensor_data(*labels))[i] = data->labels[from + (size_t)i];
    return x;
}

static weft_status train_step(weft_module *net, weft_optimizer *optimizer, const dataset *data, int64_t step,
                              int64_t batch, double *loss)
{
    weft_tensor *labels;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = (uint64_t)step});
    weft_tensor *x = take_batch(t, data, (size_t)(step * batch), batch, &labels);
    weft_tensor *found = weft_nll_loss(t, weft_module_forward(t, net, x), labels);
    weft_backward(t, found);
    weft_status status = weft_tape_status(t);
    weft_error_print(weft_tape_error(t), stderr); /* prints nothing if there is no error */
    if (!status) {
        *loss = weft_tensor_get_f64(found, 0);
        status = weft_optimizer_apply(optimizer, weft_tape_gradients(t, weft_module_parameters(net)));
    }
    weft_tape_close(t);
    return status;
}

/* Counts the images that the network classifies correctly. */
static weft_status test(weft_module *net, const dataset *data, int64_t *right)
{
    weft_tensor *labels;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.mode = WEFT_MODE_EVAL});
    weft_tensor *x = take_batch(t, data, 0, (int64_t)data->count, &labels);
    weft_tensor *best = weft_argmax(t, weft_module_forward(t, net, x), 1);
    weft_status status = weft_tape_status(t);
    weft_error_print(weft_tape_error(t), stderr);
    for (int64_t i = 0; !status && i < weft_tensor_numel(labels); i++)
        *right += weft_tensor_get_i64(best, i) == weft_tensor_get_i64(labels, i);
    weft_tape_close(t);
    return status;
}

int main(int argc, char **argv)
{
    int64_t steps = 200, batch = 32, seed = 1, right = 0;
    double loss = 0;
    const cli_option options[] = {
        {"steps", CLI_INT, &steps, 1, 100000, NULL, "N", "training steps", "200"},
        {"batch-size", CLI_INT, &batch, 1, 4096, NULL, "N", "images in a step", "32"},
        {"seed", CLI_INT, &seed, 0, INT32_MAX, NULL, "N", "seed of the network and of the drawings", "1"},
    };
    const cli program = {.program = "own_optimizer",
                         .purpose = "a custom optimizer trains a network on drawings of digits",
                         .example = "own_optimizer --steps 100",
                         .options = options,
                         .count = sizeof(options) / sizeof(*options)};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    const weft_optimizer_spec spec = {.type = &lion, .own = {[LION_DECAY] = 0.01}};
    dataset data = {0}, held_out = {0};
    weft_error *error = NULL;
    weft_optimizer *optimizer = NULL;
    weft_module *net = NULL;
    weft_status status = weft_mnist_convnet_create((uint64_t)seed, &net, &error);
    if (!status)
        status = weft_optimizer_create(weft_module_parameters(net), &spec, &optimizer, &error);
    if (!status)
        status = dataset_draw((uint64_t)seed, DATASET_TRAIN, (size_t)(steps * batch), &data, &error);
    if (!status)
        status = dataset_draw((uint64_t)seed, DATASET_HELD_OUT, 500, &held_out, &error);
    for (int64_t i = 0; i < steps && !status; i++) {
        status = train_step(net, optimizer, &data, i, batch, &loss);
        if (!status && ((i + 1) % 50 == 0 || i + 1 == steps))
            (void)(printf("step %lld: loss %.4f\n", (long long)i + 1, loss) < 0 || fflush(stdout));
    }
    if (!status)
        status = test(net, &held_out, &right);
    if (!status)
        printf("%.1f %% of %zu other drawings are classified correctly\n", 100 * (double)right / (double)held_out.count,
               held_out.count);
    weft_error_print(error, stderr);
    weft_error_unref(error);
    weft_optimizer_unref(optimizer);
    weft_module_unref(net);
    dataset_fini(&held_out);
    dataset_fini(&data);
    return weft_report(status);
}
