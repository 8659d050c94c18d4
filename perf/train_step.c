/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_step.c - time of one training step without any network. Two models: forward, backward, optimizer. Layers of
 * sequences: forward and backward. The parts of a step: many small operators recorded and run backward ("nodes"), and
 * one large product of matrices ("product").
 *
 * With --serve it takes turns with peers/torch_train_step.py, which has the same models and numbers: it reads numbers of
 * steps, one a line, and answers each with the seconds that they took.
 */
#include "common/measure.h"

#include <weft/weft.h>

#include "cli.h"

#include <stdlib.h>

enum { CONVNET, RESNET50, LSTM, BAG, SPARSE_BAG, EMBEDDING, NODES, PRODUCT };

#define NODE_COUNT 10000  /* additions of one element, one after the other */
#define PRODUCT_SIZE 1024 /* rows and columns of square matrices */
/* The word language model of PyTorch's examples; a table of a recommender. */
enum { STEPS = 35, BATCH = 20, WIDTH = 200, LAYERS = 2 };
enum { ROWS = 100000, COLUMNS = 64, BAGS = 512, LENGTH = 20 };

typedef struct bench {
    int kind;
    weft_module *model; /* NULL: there is no optimizer either */
    weft_optimizer *optimizer;
    weft_tensor *x, *target;          /* convnet: classes; ResNet-50: one-hot rows, as in the tutorial */
    weft_tensor *weights[4 * LAYERS]; /* of layers of sequences */
    weft_tensor *gradient;            /* of their result */
    size_t count;                     /* weights */
    uint64_t steps;
} bench;

static weft_tensor *uniform(weft_shape shape, double width, bool is_wanted)
{
    weft_tensor *x = weft_tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    float *data = x ? weft_tensor_data(x) : NULL;
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        data[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * (float)width;
    if (x)
        weft_tensor_set_requires_grad(x, is_wanted);
    return x;
}

static weft_tensor *numbers(weft_shape shape, int64_t end)
{
    weft_tensor *x = weft_tensor_empty(shape, WEFT_DTYPE_INT64);
    int64_t *data = x ? weft_tensor_data(x) : NULL;
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        data[i] = rand() % end;
    return x;
}

static weft_tensor *labels(int kind, int64_t batch)
{
    if (kind == CONVNET) {
        weft_tensor *t = weft_tensor_zeros(WEFT_SHAPE(batch), WEFT_DTYPE_INT64);
        for (int64_t i = 0; t && i < batch; i++)
            ((int64_t *)weft_tensor_data(t))[i] = i % 10;
        return t;
    }
    weft_tensor *t = weft_tensor_zeros(WEFT_SHAPE(batch, 30), WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; t && i < batch; i++)
        ((float *)weft_tensor_data(t))[i * 30 + i % 30] = 1;
    return t;
}

static void open_sequence(bench *b)
{
    if (b->kind == LSTM) {
        b->x = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), 0.1, true);
        b->gradient = uniform(WEFT_SHAPE(STEPS, BATCH, WIDTH), 0.1, false);
        for (; b->count < 4 * LAYERS; b->count++)
            b->weights[b->count] =
                uniform(b->count % 4 < 2 ? WEFT_SHAPE(4 * WIDTH, WIDTH) : WEFT_SHAPE(4 * WIDTH), 0.1, true);
        return;
    }
    b->x = numbers(WEFT_SHAPE(BAGS, LENGTH), ROWS);
    b->gradient =
        uniform(b->kind == EMBEDDING ? WEFT_SHAPE(BAGS, LENGTH, COLUMNS) : WEFT_SHAPE(BAGS, COLUMNS), 0.1, false);
    b->weights[b->count++] = uniform(WEFT_SHAPE(ROWS, COLUMNS), 0.1, true);
}

static void open_model(bench *b, int64_t batch)
{
    weft_optimizer_spec sgd = {.type = &weft_sgd_type, .lr = 0.001, .sgd.momentum = 0.9};
    b->model = b->kind == CONVNET ? weft_mnist_convnet_create(1) : weft_resnet50_create(30, 1, NULL);
    b->x = uniform(b->kind == CONVNET ? WEFT_SHAPE(batch, 1, 28, 28) : WEFT_SHAPE(batch, 3, 64, 64), 1, false);
    b->target = labels(b->kind, batch);
    if (b->model)
        b->optimizer = weft_optimizer_create(weft_module_parameters(b->model), &sgd, NULL);
}

static bool bench_open(bench *b, int kind, int64_t batch)
{
    *b = (bench){.kind = kind};
    srand(1);
    if (kind == NODES || kind == PRODUCT)
        b->x = uniform(kind == NODES ? WEFT_SHAPE(1) : WEFT_SHAPE(PRODUCT_SIZE, PRODUCT_SIZE), 1, kind == NODES);
    else if (kind == CONVNET || kind == RESNET50)
        open_model(b, batch);
    else
        open_sequence(b);
    bool is_made = b->x && (b->optimizer ? b->target != NULL : b->gradient || kind == NODES || kind == PRODUCT);
    for (size_t i = 0; i < b->count; i++)
        is_made = is_made && b->weights[i];
    if (!is_made)
        fprintf(stderr, "train_step: no memory for the model\n");
    return is_made;
}

static void bench_close(bench *b)
{
    weft_optimizer_unref(b->optimizer);
    weft_tensor_unref(b->x);
    weft_tensor_unref(b->target);
    weft_tensor_unref(b->gradient);
    for (size_t i = 0; i < b->count; i++)
        weft_tensor_unref(b->weights[i]);
    weft_module_unref(b->model);
}

static weft_tensor *forward_sequence(weft_tape *tape, bench *b)
{
    weft_tensors weights = {b->weights, b->count};
    weft_embedding_bag_options how = {.mode = WEFT_BAG_SUM, .sparse = b->kind == SPARSE_BAG};
    if (b->kind == LSTM)
        return weft_lstm(tape, b->x, NULL, NULL, weights, NULL, NULL, NULL);
    if (b->kind == EMBEDDING)
        return weft_embedding(tape, b->weights[0], b->x, NULL);
    return weft_embedding_bag(tape, b->weights[0], b->x, NULL, NULL, &how);
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
    case PRODUCT:
        weft_matmul(tape, b->x, b->x);
        return;
    case NODES:
        for (int i = 0; i < NODE_COUNT; i++)
            y = weft_add(tape, y, b->x);
        weft_backward(tape, y);
        return;
    default:
        y = forward_sequence(tape, b);
        weft_backward_with(tape, (weft_tensors){&y, 1}, (weft_tensors){&b->gradient, 1}, NULL);
    }
}

static bool step(bench *b)
{
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = b->kind != PRODUCT, .seed = b->steps++});
    run(tape, b);
    weft_status status = weft_tape_status(tape);
    if (status != WEFT_OK)
        weft_error_print(weft_tape_error(tape), stderr);
    else if (b->optimizer)
        status = weft_optimizer_apply(b->optimizer, weft_tape_gradients(tape, weft_module_parameters(b->model)));
    weft_tape_close(tape);
    return status == WEFT_OK;
}

static bool time_steps(bench *b, int64_t count, double *seconds)
{
    double start = measure_now_us();
    for (int64_t i = 0; i < count; i++)
        if (!step(b))
            return false;
    *seconds = (measure_now_us() - start) / 1e6;
    return true;
}

static bool serve(bench *b)
{
    char line[32];
    double seconds;
    while (fgets(line, sizeof line, stdin)) {
        if (!time_steps(b, strtoll(line, NULL, 10), &seconds))
            return false;
        printf("%.6f\n", seconds);
        fflush(stdout);
    }
    return true;
}

static bool show(bench *b, int64_t batch, int64_t count)
{
    double seconds;
    if (!time_steps(b, 2, &seconds) || !time_steps(b, count, &seconds))
        return false;
    double step_ns = 1e9 * seconds / (double)count;
    if (b->kind == NODES)
        printf("%.0f ns a node, recorded and run backward\n", step_ns / NODE_COUNT);
    else if (b->kind == PRODUCT)
        printf("%.1f GFLOP/s\n", 2.0 * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE / step_ns);
    else if (b->model)
        printf("%.1f images/s, %.2f ms a step\n", (double)(batch * count) / seconds, step_ns / 1e6);
    else
        printf("%.3f ms a pass\n", step_ns / 1e6);
    return true;
}

int main(int argc, char **argv)
{
    static const char *const models[] = {"convnet",   "resnet50", "lstm",    "bag", "sparse_bag",
                                         "embedding", "nodes",    "product", NULL};
    int kind = CONVNET;
    int64_t batch = 0, count = 10;
    bool serves = false;
    const cli_option options[] = {
        {"model", CLI_CHOICE, &kind, 0, 0, models, NULL, "what is trained", "convnet"},
        {"batch-size", CLI_INT, &batch, 1, 4096, NULL, "N", "images in a step", "32; resnet50: 20"},
        {"steps", CLI_INT, &count, 1, 100000, NULL, "N", "steps that are timed", "10"},
        {"serve", CLI_FLAG, &serves, 0, 0, NULL, NULL, "read counts of steps, answer with seconds", NULL},
    };
    const cli program = {
        .program = "train_step",
        .purpose = "time of one training step on this machine's processor",
        .example = "OMP_NUM_THREADS=1 train_step --model resnet50",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (batch == 0)
        batch = kind == CONVNET ? 32 : 20;
    bench b;
    bool ok = bench_open(&b, kind, batch) && (serves ? serve(&b) : show(&b, batch, count));
    bench_close(&b);
    return ok ? 0 : 1;
}
