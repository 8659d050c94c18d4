/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_step.c - time of one training step without any network, in turns with peers/torch_train_step.py, which has the
 * same cases and numbers. It reads numbers of steps, one a line, and answers each with the seconds that they took.
 *
 * A step of a model is forward, backward, optimizer. The other cases are parts of a step: a recurrent layer, forward
 * and backward; many small operators, recorded and run backward; an optimizer on the parameters of ResNet-50. "product"
 * and "copy" are floors: one large product of matrices, and one copy of these parameters.
 */
#include "common/measure.h"

#include <weft/weft.h>

#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { CONVNET, RESNET50, LSTM, NODES, SGD, ADAM, PRODUCT, COPY };

#define NODE_COUNT 10000  /* additions of one element, one after the other */
#define PRODUCT_SIZE 1024 /* rows and columns of square matrices */
enum {
    STEPS = 35,
    BATCH = 20,
    WIDTH = 200,
    LAYERS = 2
}; /* of the LSTM: the word language model of PyTorch's examples */

typedef struct bench {
    int kind;
    weft_module *model; /* whose parameters are trained or copied; NULL: there are none */
    weft_optimizer *optimizer;
    weft_tensor *x, *target; /* convnet: classes; ResNet-50: one-hot rows, as in the tutorial */
    weft_tensors parameters; /* of `model`, or the weights of the LSTM */
    weft_tensor *weights[4 * LAYERS];
    weft_tensor *gradient; /* of the LSTM's result */
    weft_tensor **copies;  /* of the parameters, and gradients for SGD and Adam */
    uint64_t steps;
} bench;

static weft_tensor *uniform(weft_shape shape, double width, bool is_wanted)
{
    weft_tensor *x = NULL;
    if (weft_tensor_empty(shape, WEFT_DTYPE_FLOAT32, &x, NULL))
        return NULL;
    float *data = weft_tensor_data(x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        data[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * (float)width;
    weft_tensor_set_requires_grad(x, is_wanted);
    return x;
}

static weft_tensor *labels(int kind, int64_t batch)
{
    weft_tensor *t = NULL;
    if (kind == CONVNET) {
        bool made = !weft_tensor_zeros(WEFT_SHAPE(batch), WEFT_DTYPE_INT64, &t, NULL);
        for (int64_t i = 0; made && i < batch; i++)
            ((int64_t *)weft_tensor_data(t))[i] = i % 10;
        return t;
    }
    bool made = !weft_tensor_zeros(WEFT_SHAPE(batch, 30), WEFT_DTYPE_FLOAT32, &t, NULL);
    for (int64_t i = 0; made && i < batch; i++)
        ((float *)weft_tensor_data(t))[i * 30 + i % 30] = 1;
    return t;
}

/* False: no memory. */
static bool open_model(bench *b)
{
    int64_t batch = b->kind == CONVNET ? 32 : 20;
    weft_optimizer_spec how = {.type = &weft_sgd_type, .lr = 0.001, .sgd.momentum = 0.9};
    if (b->kind == CONVNET ? weft_mnist_convnet_create(1, &b->model, NULL)
                           : weft_resnet50_create(30, 1, &b->model, NULL))
        return false;
    b->parameters = weft_module_parameters(b->model);
    if (b->kind == ADAM)
        how = (weft_optimizer_spec){.type = &weft_adam_type, .lr = 0.001};
    if (b->kind != COPY && weft_optimizer_create(b->parameters, &how, &b->optimizer, NULL))
        return false;
    if (b->kind == CONVNET || b->kind == RESNET50) {
        b->x = uniform(b->kind == CONVNET ? WEFT_SHAPE(batch, 1, 28, 28) : WEFT_SHAPE(batch, 3, 64, 64), 1, false);
        b->target = labels(b->kind, batch);
        return b->optimizer && b->x && b->target;
    }
    b->copies = calloc(b->parameters.count, sizeof(weft_tensor *));
    for (size_t i = 0; b->copies && i < b->parameters.count; i++)
        if (weft_tensor_clone(b->parameters.items[i], &b->copies[i], NULL))
            return false;
    return b->copies && (b->optimizer || b->kind == COPY);
}

static bool open_lstm(bench *b)
{
    b->x = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), 0.1, true);
    b->gradient = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), 0.1, false);
    b->parameters.items = b->weights;
    bool is_made = b->x && b->gradient;
    for (size_t i = 0; i < 4 * LAYERS; i++, b->parameters.count++) {
        b->weights[i] = uniform(i % 4 < 2 ? WEFT_SHAPE(4 * WIDTH, WIDTH) : WEFT_SHAPE(4 * WIDTH), 0.1, true);
        is_made = is_made && b->weights[i];
    }
    return is_made;
}

static bool bench_open(bench *b, int kind)
{
    *b = (bench){.kind = kind};
    srand(1);
    if (kind == LSTM)
        return open_lstm(b);
    if (kind != NODES && kind != PRODUCT)
        return open_model(b);
    b->x = uniform(kind == NODES ? WEFT_SHAPE(1) : WEFT_SHAPE(PRODUCT_SIZE, PRODUCT_SIZE), 1, kind == NODES);
    return b->x;
}

static void bench_close(bench *b)
{
    for (size_t i = 0; b->copies && i < b->parameters.count; i++)
        weft_tensor_unref(b->copies[i]);
    free(b->copies);
    weft_optimizer_unref(b->optimizer);
    weft_tensor_unref(b->x);
    weft_tensor_unref(b->target);
    weft_tensor_unref(b->gradient);
    for (size_t i = 0; i < 4 * LAYERS; i++)
        weft_tensor_unref(b->weights[i]);
    weft_module_unref(b->model);
}

static void run(weft_tape *tape, bench *b)
{
    weft_tensor *y = b->x;
    switch (b->kind) {
    case CONVNET:
        weft_backward(tape, weft_nll_loss(tape, weft_module_forward(tape, b->model, b->x), b->target));
        return;
    case RESNET50:
        weft_backward(tape, weft_mse_loss(tape, weft_module_forward(tape, b->model, b->x), b->target));
        return;
    case LSTM:
        y = weft_lstm(tape, b->x, NULL, NULL, b->parameters, NULL, NULL, NULL);
        weft_backward_with(tape, (weft_tensors){&y, 1}, (weft_tensors){&b->gradient, 1}, NULL);
        return;
    case NODES:
        for (int i = 0; i < NODE_COUNT; i++)
            y = weft_add(tape, y, b->x);
        weft_backward(tape, y);
        return;
    default:
        weft_matmul(tape, b->x, b->x);
    }
}

static weft_status step(bench *b)
{
    weft_gradient lent[200]; /* ResNet-50 has 161 */
    for (size_t i = 0; b->copies && i < b->parameters.count; i++) {
        if (b->kind == COPY)
            memcpy(weft_tensor_data(b->copies[i]), weft_tensor_data(b->parameters.items[i]),
                   weft_tensor_nbytes(b->copies[i]));
        lent[i] = (weft_gradient){.values = b->copies[i]};
    }
    if (b->copies)
        return b->optimizer ? weft_optimizer_apply(b->optimizer, (weft_gradients){lent, b->parameters.count}) : WEFT_OK;
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = b->kind != PRODUCT, .seed = b->steps++});
    run(tape, b);
    weft_status status = weft_tape_status(tape);
    if (status != WEFT_OK)
        weft_error_print(weft_tape_error(tape), stderr);
    else if (b->optimizer)
        status = weft_optimizer_apply(b->optimizer, weft_tape_gradients(tape, b->parameters));
    weft_tape_close(tape);
    return status;
}

static weft_status serve(bench *b)
{
    char line[32];
    weft_status status = WEFT_OK;
    while (!status && fgets(line, sizeof(line), stdin)) {
        double start = measure_now_us();
        for (int64_t i = strtoll(line, NULL, 10); i > 0 && !status; i--)
            status = step(b);
        printf("%.6f\n", (measure_now_us() - start) / 1e6);
        fflush(stdout);
    }
    return status;
}

int main(int argc, char **argv)
{
    static const char *const models[] = {"convnet", "resnet50", "lstm", "nodes", "sgd",
                                         "adam",    "product",  "copy", NULL};
    int kind = CONVNET;
    const cli_option options[] = {
        {"model", CLI_CHOICE, &kind, 0, 0, models, NULL, "what is measured", "convnet"},
    };
    const cli program = {
        .program = "train_step",
        .purpose = "time of training steps on this machine's processor: reads numbers of steps, answers with seconds",
        .example = "echo 10 | OMP_NUM_THREADS=1 train_step --model resnet50",
        .options = options,
        .count = sizeof(options) / sizeof(*options),
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    bench b;
    weft_status status = bench_open(&b, kind) ? serve(&b) : WEFT_ERR_MEMORY;
    bench_close(&b);
    return status ? weft_report(status) | 1 : 0;
}
