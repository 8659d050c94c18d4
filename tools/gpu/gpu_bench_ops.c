/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_bench_ops.c - how fast operators, an optimizer and training steps are on a GPU; torch_bench.py measures the same
 * with PyTorch.
 *
 * gpu_bench_ops [--small]      a line for each case: "bench NAME SECONDS NUMBER UNIT"; --small: to try the program,
 * without resnet50
 *
 * A case runs in batches of about 0.1 s; its time is that of the best batch, divided by its runs. A batch ends when the
 * GPU has done all of its work. float32 without TF32. Exits 77 where no GPU is.
 */
#include <weft/weft.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SKIPPED = 77, BATCHES = 5, RUNS_MOST = 100000 };

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0};
static bool small;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The tensors and objects of a case. `run` computes once. At the end of a batch an element of `probe` is read, which
 * waits for the GPU. */
typedef struct bench {
    weft_tensor *x, *y, *z;
    weft_module *model;
    weft_optimizer *optimizer;
    weft_status (*run)(struct bench *b);
    weft_tensor *probe; /* on the GPU, changed by the last run */
} bench;

static weft_tensor *filled(weft_shape shape, weft_dtype dtype)
{
    weft_tensor *tensor = NULL;
    if (!weft_tensor_empty_on(gpu, shape, dtype, &tensor, NULL))
        weft_tensor_fill(tensor, 0.5);
    return tensor;
}

static double seconds_of(bench *b, int runs, weft_status *status)
{
    double began = now();
    for (int i = 0; i < runs && !*status; i++)
        *status = b->run(b);
    (void)weft_tensor_get_f64(b->probe, 0);
    return (now() - began) / runs;
}

static double best_of(bench *b, weft_status *status)
{
    for (int i = 0; i < 3; i++) /* warm up: kernels are loaded, memory is in the pool */
        (void)seconds_of(b, 1, status);
    double once = seconds_of(b, 1, status), wanted = small ? 0.001 : 0.1;
    int runs = once * RUNS_MOST < wanted ? RUNS_MOST : (int)(wanted / once) + 1;
    double best = once;
    for (int i = 0; i < (small ? 1 : BATCHES) && !*status; i++) {
        double seconds = seconds_of(b, runs, status);
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* Runs and releases a case. `amount` is what one run moves or computes; in `unit`s it is divided by the time. */
static weft_status measure(const char *name, bench b, double amount, const char *unit)
{
    weft_status status = b.run && b.probe ? WEFT_OK : WEFT_ERR_MEMORY;
    double seconds = status ? 0 : best_of(&b, &status);
    if (status)
        printf("bench-failed %s: %s\n", name, weft_status_text(status));
    else if (amount > 0)
        printf("bench %s %.9f %.2f %s\n", name, seconds, amount / seconds, unit);
    else
        printf("bench %s %.9f %.2f %s\n", name, seconds, 1 / seconds, unit);
    fflush(stdout);
    weft_tensor_unref(b.x);
    weft_tensor_unref(b.y);
    weft_tensor_unref(b.z);
    weft_optimizer_unref(b.optimizer);
    weft_module_unref(b.model);
    return status;
}

/* ---- Operators -------------------------------------------------------------------------------------------------- */

/* Keeps the newest result in z, so that a run does not free what it has just made before the next one needs memory. */
static weft_status keep(bench *b, weft_tape *t, weft_tensor *result)
{
    weft_status status = weft_tape_status(t);
    if (!status) {
        weft_tensor_unref(b->z);
        b->z = b->probe = weft_tensor_ref(result);
    }
    weft_tape_close(t);
    return status;
}

static weft_tape *tape(void)
{
    return weft_tape_open(&(weft_tape_options){.device = gpu});
}

static weft_status run_copy(bench *b)
{
    return weft_tensor_assign(b->y, b->x);
}
static weft_status run_add(bench *b)
{
    weft_tape *t = tape();
    return keep(b, t, weft_add(t, b->x, b->y));
}
static weft_status run_transpose(bench *b)
{
    weft_tensor *turned = NULL;
    weft_status status = weft_tensor_transpose(b->x, 0, 1, &turned, NULL);
    status = status ? status : weft_tensor_assign(b->y, turned);
    weft_tensor_unref(turned);
    return status;
}
static weft_status run_sum(bench *b)
{
    weft_tape *t = tape();
    return keep(b, t, weft_sum(t, b->x));
}
static weft_status run_softmax(bench *b)
{
    weft_tape *t = tape();
    return keep(b, t, weft_softmax(t, b->x, -1));
}
static weft_status run_matmul(bench *b)
{
    weft_tape *t = tape();
    return keep(b, t, weft_matmul(t, b->x, b->y));
}
/* The time of one operator in a chain, without that of opening a tape. */
enum { CHAIN = 100 };
static weft_status run_chain(bench *b)
{
    weft_tape *t = tape();
    weft_tensor *x = b->x;
    for (int i = 0; i < CHAIN; i++)
        x = weft_add(t, x, b->y);
    return keep(b, t, x);
}

static weft_status operators(void)
{
    const int64_t side = small ? 64 : 8192, row = small ? 128 : 1024, square = small ? 32 : 4096;
    const double bytes = 4.0 * (double)(side * side);
    const weft_shape plane = WEFT_SHAPE(side, side), lines = WEFT_SHAPE(side * side / row, row),
                     matrix = WEFT_SHAPE(square, square), few = WEFT_SHAPE(8);
    const weft_dtype f = WEFT_DTYPE_FLOAT32;
    weft_tensor *y = filled(plane, f);
    weft_status status =
        measure("copy", (bench){.x = filled(plane, f), .y = y, .probe = y, .run = run_copy}, 2e-9 * bytes, "GB/s");
    bench b = {.x = filled(plane, f), .y = filled(plane, f), .run = run_add};
    b.probe = b.x;
    status = status ? status : measure("add", b, 3e-9 * bytes, "GB/s");
    y = filled(plane, f);
    status = status ? status
                    : measure("transpose", (bench){.x = filled(plane, f), .y = y, .probe = y, .run = run_transpose},
                              2e-9 * bytes, "GB/s");
    b = (bench){.x = filled(plane, f), .run = run_sum};
    b.probe = b.x;
    status = status ? status : measure("sum", b, 1e-9 * bytes, "GB/s");
    b = (bench){.x = filled(lines, f), .run = run_softmax};
    b.probe = b.x;
    status = status ? status : measure("softmax", b, 2e-9 * bytes, "GB/s");
    b = (bench){.x = filled(matrix, f), .y = filled(matrix, f), .run = run_matmul};
    b.probe = b.x;
    status =
        status ? status : measure("matmul", b, 2e-12 * (double)square * (double)square * (double)square, "TFLOP/s");
    b = (bench){.x = filled(few, f), .y = filled(few, f), .run = run_chain};
    b.probe = b.x;
    return status ? status : measure("add_8_x100", b, CHAIN * 1e-6, "Mop/s");
}

/* ---- Training --------------------------------------------------------------------------------------------------- */

static weft_status run_step(bench *b)
{
    weft_tensors gradients = {&b->y, 1};
    weft_status status = weft_optimizer_accumulate(b->optimizer, gradients);
    return status ? status : weft_optimizer_step(b->optimizer);
}

static weft_status adam(void)
{
    const int64_t count = small ? 1000 : 25000000;
    weft_tensor *p = filled(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32), *g = filled(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32);
    weft_optimizer *made = NULL;
    weft_status status =
        weft_optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_adam_type}, &made, NULL);
    return measure("adam", (bench){.x = p, .y = g, .optimizer = made, .probe = p, .run = status ? NULL : run_step},
                   7 * 4e-9 * (double)count, "GB/s");
}

/* A step: forward, loss, backward, SGD. x is the images, y the targets. */
static weft_status run_training(bench *b)
{
    static uint64_t seed;
    weft_tape *t =
        weft_tape_open(&(weft_tape_options){.record = true, .mode = WEFT_MODE_TRAIN, .seed = ++seed, .device = gpu});
    weft_tensor *scores = weft_module_forward(t, b->model, b->x);
    bool is_log = strcmp(weft_module_type_name(b->model), "ResNet") != 0 && weft_tensor_size(scores, 1) == 10;
    weft_tensor *loss = is_log ? weft_nll_loss(t, scores, b->y) : weft_cross_entropy(t, scores, b->y);
    weft_backward(t, loss);
    weft_status status = weft_tape_status(t);
    if (!status)
        status = weft_optimizer_apply(b->optimizer, weft_tape_gradients(t, weft_optimizer_parameters(b->optimizer)));
    weft_tape_close(t);
    return status;
}

static weft_status training(const char *name, weft_module *model, weft_shape images)
{
    bench b = {.model = model, .run = run_training};
    if (!model || weft_module_to_device(model, gpu))
        return measure(name, (bench){.model = model}, 0, "");
    const weft_optimizer_spec how = {.type = &weft_sgd_type, .lr = 0.01, .sgd.momentum = 0.9};
    if (weft_optimizer_create(weft_module_parameters(model), &how, &b.optimizer, NULL))
        return WEFT_ERR_MEMORY;
    b.x = filled(images, WEFT_DTYPE_FLOAT32);
    b.y = filled(WEFT_SHAPE(images.dims[0]), WEFT_DTYPE_INT64); /* zeros */
    b.probe = weft_module_parameters(model).items[0];
    return measure(name, b, (double)images.dims[0], "images/s");
}

int main(int argc, char **argv)
{
    small = argc > 1 && strcmp(argv[1], "--small") == 0;
    weft_error *error = NULL;
    if (weft_device_check(gpu, &error)) {
        puts(weft_error_message(error));
        return SKIPPED;
    }
    const int64_t images = small ? 2 : 64;
    weft_status status = operators();
    status = status ? status : adam();
    weft_module *convnet = NULL, *resnet50 = NULL;
    status = status ? status : weft_mnist_convnet_create(1, &convnet, NULL);
    status = status ? status : training("convnet", convnet, WEFT_SHAPE(images, 1, 28, 28));
    if (!status && !small)
        status = weft_resnet50_create(1000, 1, &resnet50, NULL);
    if (resnet50)
        status = training("resnet50", resnet50, WEFT_SHAPE(32, 3, 224, 224));
    return status ? weft_report(status) : 0;
}
