/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_optimizer.c - custom optimizers (weft/optimizer_type.h) train a small network on drawings of digits.
 *
 * Lion, which weft does not have, is the default. The file also has an Adam with weft's formulas. With --check, this
 * Adam trains one network, and weft's own Adam trains a second one. All their losses must be the same, bit for bit.
 * --optimizer then has no effect.
 *
 * An optimizer is a weft_optimizer_type: its options, its state, and a step. In the steps of this file, the new value
 * of an element depends on no other element. So a step is written as a function for consecutive elements (a span).
 * weft_optimizer_update_run calls this function until all elements are done, on several threads. This file is compiled
 * with -ffp-contract=off, as weft's own steps are: fused operations round differently.
 */
#include "cli.h"
#include "dataset.h"

#include <weft/weft.h>

#include <math.h>
#include <string.h>

/* ---- Adam (Kingma, Ba, ICLR 2015): m and v are running means of g and g^2;  p -= lr m / (sqrt(v) + eps) ---------- */

enum { ADAM_BETA1, ADAM_BETA2, ADAM_EPS };

typedef struct adam_numbers { /* the same for all elements; rate and eps include the bias correction of the means */
    float factor, fresh1, beta2, fresh2, rate, eps;
} adam_numbers;

static void adam_span(const void *arg, const weft_optimizer_span *s)
{
    const adam_numbers *n = arg;
    const float *p = s->from, *g = s->gradient;
    float *to = s->to, *m = s->slots[0], *v = s->slots[1];
    for (int64_t i = 0; i < s->count; i++) {
        float d = n->factor * g[i];
        m[i] = m[i] + n->fresh1 * (d - m[i]);
        v[i] = n->beta2 * v[i] + n->fresh2 * d * d;
        to[i] = p[i] - n->rate * m[i] / (sqrtf(v[i]) + n->eps);
    }
}

static weft_status adam_step(const weft_optimizer_update *u)
{
    double beta1 = u->options[ADAM_BETA1], beta2 = u->options[ADAM_BETA2], step = (double)u->step;
    double scale = sqrt(1 - pow(beta2, step));
    adam_numbers n = {.factor = (float)u->factor,
                      .fresh1 = (float)(1 - beta1),
                      .beta2 = (float)beta2,
                      .fresh2 = (float)(1 - beta2),
                      .rate = (float)(u->lr * scale / (1 - pow(beta1, step))),
                      .eps = (float)(u->options[ADAM_EPS] * scale)};
    return weft_optimizer_update_run(u, adam_span, &n);
}

static const weft_optimizer_type own_adam = {
    .name = "OwnAdam",
    .lr = 1e-3,
    .options = {[ADAM_BETA1] = {"beta1", .otherwise = 0.9, .max = 1, .open = true},
                [ADAM_BETA2] = {"beta2", .otherwise = 0.999, .max = 1, .open = true},
                [ADAM_EPS] = {"eps", .otherwise = 1e-8, .max = 1}},
    .slots = {{"exp_avg"}, {"exp_avg_sq"}},
    .step = adam_step,
};

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

typedef struct trainee {
    weft_module *net;
    weft_optimizer *optimizer;
    float loss; /* of the last step */
} trainee;

static bool make(trainee *one, const weft_optimizer_spec *spec, uint64_t seed)
{
    weft_error *error = NULL;
    one->net = weft_mnist_convnet_create(seed);
    one->optimizer = one->net ? weft_optimizer_create(weft_module_parameters(one->net), spec, &error) : NULL;
    weft_error_print(error, stderr);
    weft_error_unref(error);
    return one->optimizer != NULL;
}

/* Images from `from` on, as [count, 1, 28, 28] between -0.5 and 0.5, and their labels. */
static bool take_batch(const dataset *data, size_t from, int64_t count, weft_tensor **x, weft_tensor **labels)
{
    *x = weft_tensor_empty(WEFT_SHAPE(count, 1, DATASET_SIDE, DATASET_SIDE), WEFT_DTYPE_FLOAT32);
    *labels = weft_tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64);
    for (int64_t i = 0; *x && i < count * DATASET_PIXELS; i++)
        ((float *)weft_tensor_data(*x))[i] = (float)data->images[from * DATASET_PIXELS + (size_t)i] / 255 - 0.5f;
    for (int64_t i = 0; *labels && i < count; i++)
        ((int64_t *)weft_tensor_data(*labels))[i] = data->labels[from + (size_t)i];
    return *x && *labels;
}

/* Trains one step. If `right` is not NULL, it does not train: it counts the images that the network classifies
 * correctly, and adds their number to *right. */
static weft_status run(trainee *one, weft_tensor *x, weft_tensor *labels, uint64_t seed, int64_t *right)
{
    weft_tape *t = weft_tape_open(
        &(weft_tape_options){.record = !right, .seed = seed, .mode = right ? WEFT_MODE_EVAL : WEFT_MODE_TRAIN});
    weft_tensor *scores = weft_module_forward(t, one->net, x), *loss = weft_nll_loss(t, scores, labels);
    if (!right)
        weft_backward(t, loss);
    weft_status st = weft_tape_status(t);
    weft_error_print(weft_tape_error(t), stderr); /* prints nothing if there is no error */
    for (int64_t i = 0; !st && right && i < weft_tensor_numel(labels); i++) {
        int64_t best = 0;
        for (int64_t c = 1; c < DATASET_CLASSES; c++)
            if (weft_tensor_get_f64(scores, i * DATASET_CLASSES + c) >
                weft_tensor_get_f64(scores, i * DATASET_CLASSES + best))
                best = c;
        *right += best == weft_tensor_get_i64(labels, i);
    }
    if (!st && !right) {
        one->loss = (float)weft_tensor_get_f64(loss, 0);
        st = weft_optimizer_apply(one->optimizer, weft_tape_gradients(t, weft_module_parameters(one->net)));
    }
    weft_tape_close(t);
    return st;
}

int main(int argc, char **argv)
{
    static const char *const optimizers[] = {"lion", "adam", NULL};
    static const weft_optimizer_spec own[] = {{.type = &lion, .own = {[LION_DECAY] = 0.01}}, {.type = &own_adam}};
    static const weft_optimizer_spec wefts = {.type = &weft_adam_type};
    int which = 0;
    int64_t steps = 200, batch = 32, seed = 1, right = 0, held_out = 500;
    bool check = false;
    const cli_option options[] = {
        {"optimizer", CLI_CHOICE, &which, 0, 0, optimizers, NULL, "the optimizer of this file that trains", "lion"},
        {"check", CLI_FLAG, &check, 0, 0, NULL, NULL, "compare the Adam of this file with weft's", NULL},
        {"steps", CLI_INT, &steps, 1, 100000, NULL, "N", "training steps", "200"},
        {"batch-size", CLI_INT, &batch, 1, 4096, NULL, "N", "images in a step", "32"},
        {"seed", CLI_INT, &seed, 0, INT32_MAX, NULL, "N", "seed of the network and of the drawings", "1"},
    };
    const cli program = {.program = "own_optimizer",
                         .purpose = "custom optimizers train a network on drawings of digits",
                         .example = "own_optimizer --check",
                         .options = options,
                         .count = sizeof options / sizeof *options};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    dataset data = {0}, test = {0};
    trainee mine = {0}, theirs = {0};
    weft_tensor *x = NULL, *labels = NULL;
    weft_status st = dataset_draw((uint64_t)seed, DATASET_TRAIN, (size_t)(steps * batch), &data, NULL);
    st = st ? st : dataset_draw((uint64_t)seed, DATASET_HELD_OUT, (size_t)held_out, &test, NULL);
    if (!st && (!make(&mine, &own[check ? 1 : which], (uint64_t)seed) || !make(&theirs, &wefts, (uint64_t)seed)))
        st = WEFT_ERR_MEMORY;
    for (int64_t i = 0; i < steps && !st; i++) {
        st = take_batch(&data, (size_t)(i * batch), batch, &x, &labels) ? WEFT_OK : WEFT_ERR_MEMORY;
        st = st ? st : run(&mine, x, labels, (uint64_t)i, NULL);
        if (!st && check)
            st = run(&theirs, x, labels, (uint64_t)i, NULL);
        weft_tensor_unref(x);
        weft_tensor_unref(labels);
        if (!st && ((i + 1) % 50 == 0 || i + 1 == steps))
            printf("step %lld: loss %.9g\n", (long long)i + 1, mine.loss);
        if (!st && check && memcmp(&mine.loss, &theirs.loss, sizeof mine.loss) != 0) {
            printf("step %lld: weft's Adam has loss %.9g, this one %.9g\n", (long long)i + 1, theirs.loss, mine.loss);
            st = WEFT_ERR_STATE;
        }
    }
    x = labels = NULL;
    if (!st && take_batch(&test, 0, held_out, &x, &labels))
        st = run(&mine, x, labels, 0, &right);
    if (!st)
        printf("%.1f %% of %lld other drawings are classified correctly\n", 100 * (double)right / (double)held_out,
               (long long)held_out);
    if (!st && check)
        printf("weft's Adam had the same losses, bit for bit, in all %lld steps\n", (long long)steps);
    weft_tensor_unref(x);
    weft_tensor_unref(labels);
    for (int i = 0; i < 2; i++) {
        weft_optimizer_unref(i ? theirs.optimizer : mine.optimizer);
        weft_module_unref(i ? theirs.net : mine.net);
    }
    dataset_fini(&data);
    dataset_fini(&test);
    return weft_report(st);
}
