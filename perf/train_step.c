/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_step.c - time of one training step (forward, backward, optimizer) without any network; and of what it consists of: many
 * small operators recorded and run backward ("nodes"), one large product of matrices ("product").
 *
 * With --compare a second model is stepped in place, in turn with one that is stepped by default.
 *
 * With --serve it reads numbers of steps, one a line, and answers each with the seconds that they took: so that perf/run can
 * let it and peers/torch_train_step.py work in turn.
 */
#include "common/measure.h"

#include <weft/weft.h>

#include "cli.h"

#include <stdlib.h>

typedef enum model_kind { MODEL_CONVNET = 0, MODEL_RESNET50 = 1, MODEL_NODES = 2, MODEL_PRODUCT = 3 } model_kind;

#define NODES 10000       /* additions of one element, one after the other */
#define PRODUCT_SIZE 1024 /* rows and columns of square matrices */

typedef struct bench {
    model_kind kind;
    weft_module *model;
    weft_optimizer *optimizer;
    weft_tensor *x, *target; /* convnet: classes; ResNet-50: one-hot rows, as in the tutorial; nodes, product: none */
    uint64_t steps;
} bench;

static weft_tensor *random_images(weft_shape shape)
{
    weft_tensor *x = weft_tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    float *data = x ? weft_tensor_data(x) : NULL;
    srand(1);
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

static weft_tensor *labels(model_kind kind, int64_t batch)
{
    if (kind == MODEL_CONVNET) {
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

static bool bench_open(bench *b, model_kind kind, int64_t batch, weft_update update)
{
    *b = (bench){.kind = kind};
    if (kind == MODEL_NODES || kind == MODEL_PRODUCT) {
        b->x = random_images(kind == MODEL_NODES ? WEFT_SHAPE(1) : WEFT_SHAPE(PRODUCT_SIZE, PRODUCT_SIZE));
        if (b->x)
            weft_tensor_set_requires_grad(b->x, kind == MODEL_NODES);
        return b->x != NULL;
    }
    b->model = kind == MODEL_CONVNET ? weft_mnist_convnet_create(1) : weft_resnet50_create(30, 1, NULL);
    b->x = random_images(kind == MODEL_CONVNET ? WEFT_SHAPE(batch, 1, 28, 28) : WEFT_SHAPE(batch, 3, 64, 64));
    b->target = labels(kind, batch);
    weft_optimizer_spec sgd = {.lr = 0.001, .update = update, .sgd.momentum = 0.9};
    if (b->model)
        b->optimizer = weft_sgd_create(weft_module_parameters(b->model), &sgd, NULL);
    if (b->optimizer && b->x && b->target)
        return true;
    fprintf(stderr, "train_step: could not make the model\n");
    return false;
}

static void bench_close(bench *b)
{
    weft_optimizer_unref(b->optimizer);
    weft_tensor_unref(b->x);
    weft_tensor_unref(b->target);
    weft_module_unref(b->model);
}

static weft_tensor *loss_of(bench *b, weft_tape *tape)
{
    weft_tensor *out = b->kind == MODEL_NODES ? b->x : weft_module_forward(tape, b->model, b->x);
    switch (b->kind) {
    case MODEL_CONVNET:
        return weft_nll_loss(tape, out, b->target);
    case MODEL_RESNET50:
        return weft_mse_loss(tape, out, b->target);
    default:
        for (int i = 0; i < NODES; i++)
            out = weft_add(tape, out, b->x);
        return out;
    }
}

static bool step(bench *b)
{
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = b->kind != MODEL_PRODUCT, .seed = b->steps++});
    if (b->kind == MODEL_PRODUCT)
        weft_matmul(tape, b->x, b->x);
    else
        weft_backward(tape, loss_of(b, tape));
    weft_status status = weft_tape_status(tape);
    if (status != WEFT_OK)
        weft_error_print(weft_tape_error(tape), stderr);
    else if (b->optimizer)
        status = weft_optimizer_apply(b->optimizer, weft_tape_gradients(tape, weft_module_parameters(b->model)));
    weft_tape_close(tape);
    return status == WEFT_OK;
}

static bool steps(bench *b, long count, double *seconds)
{
    double start = measure_now_us();
    for (long i = 0; i < count; i++) {
        if (!step(b))
            return false;
    }
    *seconds = (measure_now_us() - start) / 1e6;
    return true;
}

static bool serve(bench *b)
{
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        double seconds;
        if (!steps(b, strtol(line, NULL, 10), &seconds))
            return false;
        printf("%.6f\n", seconds);
        fflush(stdout);
    }
    return true;
}

static bool show(bench *b, int64_t batch, int64_t count)
{
    double seconds;
    if (!steps(b, 2, &seconds) || !steps(b, (long)count, &seconds))
        return false;
    double step_ns = 1e9 * seconds / (double)count;
    if (b->kind == MODEL_NODES)
        printf("%.0f ns a node, recorded and run backward\n", step_ns / NODES);
    else if (b->kind == MODEL_PRODUCT)
        printf("%.1f GFLOP/s\n", 2.0 * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE / step_ns);
    else
        printf("%.1f images/s, %.2f ms a step\n", (double)(batch * count) / seconds, step_ns / 1e6);
    return true;
}

/* Single steps of both models in turn, each first as often as the other. */
static bool compare(bench *usual, model_kind kind, int64_t batch, int64_t count)
{
    bench in_place;
    series times[2] = {{0}};
    bool ok = bench_open(&in_place, kind, batch, WEFT_UPDATE_IN_PLACE);
    for (int64_t i = -2; i < count && ok; i++)
        for (int k = 0; k < 2 && ok; k++) {
            double seconds;
            int which = (k + (int)(i & 1)) % 2;
            ok = steps(which ? usual : &in_place, 1, &seconds);
            if (ok && i >= 0)
                series_add(&times[which], seconds * 1e3);
        }
    if (ok) {
        summary place = series_summary(&times[0]), side = series_summary(&times[1]);
        printf("ms a step, best and median: in place %.2f %.2f, by default %.2f %.2f; ratios %.3f %.3f\n", place.min,
               place.p50, side.min, side.p50, side.min / place.min, side.p50 / place.p50);
    }
    series_fini(&times[0]);
    series_fini(&times[1]);
    bench_close(&in_place);
    return ok;
}

int main(int argc, char **argv)
{
    static const char *const models[] = {"convnet", "resnet50", "nodes", "product", NULL};
    int kind = MODEL_CONVNET;
    int64_t batch = 0, count = 10;
    bool serves = false, compares = false;
    const cli_option options[] = {
        {"model", CLI_CHOICE, &kind, 0, 0, models, NULL, "what is trained", "convnet"},
        {"batch-size", CLI_INT, &batch, 1, 4096, NULL, "N", "images in a step", "32; resnet50: 20"},
        {"steps", CLI_INT, &count, 1, 100000, NULL, "N", "steps that are timed", "10"},
        {"compare", CLI_FLAG, &compares, 0, 0, NULL, NULL, "compare steps by default with steps in place", NULL},
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
        batch = kind == MODEL_CONVNET ? 32 : 20;
    bench b;
    bool ok = bench_open(&b, (model_kind)kind, batch, WEFT_UPDATE_DEFAULT) &&
              (serves     ? serve(&b)
               : compares ? compare(&b, (model_kind)kind, batch, count)
                          : show(&b, batch, count));
    bench_close(&b);
    return ok ? 0 : 1;
}
