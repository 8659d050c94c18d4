/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_bench.c - the kernels that memory bounds, against a memcpy that moves as many bytes, in the same run.
 *
 * "bytes" is the least that a kernel must read and write; the floor is the time of a memcpy whose source and
 * destination together have that size. Sizes are those of ResNet-50 at 64x64, batch 20, and of the MNIST network,
 * batch 64.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/optim/optim.h"
#include "tensor/parallel.h"
#include "tensor/random.h"
#include "../tensors.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TENSORS 6

typedef struct setting {
    weft_tensor *t[TENSORS]; /* of the shape of the case */
    weft_tensor *c[4];       /* one value a channel */
    weft_tensor *pooled, *indices, *dpooled;
    weft_tensor *target, *loss;
    wfi_pool2d pool;
} setting;

static weft_status add(setting *s)
{
    return wfi_binary(WFI_ADD, s->t[0], s->t[1], s->t[2]);
}

static wfi_update update_of(const setting *s)
{
    return (wfi_update){.from = s->t[0], .to = s->t[0], .gradient = s->t[1], .factor = 1, .step = 10};
}

static weft_status adam(setting *s)
{
    wfi_adam how = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    wfi_update update = update_of(s);
    update.slots[0] = s->t[2];
    update.slots[1] = s->t[3];
    return wfi_adam_step(&update, &how);
}

static weft_status add_into(setting *s)
{
    return wfi_add_into(s->t[0], s->t[1]);
}

static weft_status relu(setting *s)
{
    return wfi_relu(s->t[0], s->t[1]);
}

static weft_status relu_backward(setting *s)
{
    return wfi_relu_backward(s->t[0], s->t[1], s->t[2]);
}

static weft_status norm(setting *s)
{
    return wfi_batchnorm_train(s->t[0], NULL, NULL, 1e-5, s->t[1], s->c[0], s->c[1], NULL);
}

static weft_status norm_backward(setting *s)
{
    return wfi_batchnorm_backward(s->t[1], s->t[0], NULL, s->c[0], s->c[1], true, s->t[2], s->c[2], s->c[3]);
}

static weft_status max_pool(setting *s)
{
    return wfi_max_pool2d(s->t[0], &s->pool, s->pooled, s->indices);
}

static weft_status max_pool_backward(setting *s)
{
    return wfi_max_pool2d_backward(s->dpooled, s->indices, s->t[1]);
}

static weft_status average_pool(setting *s)
{
    return wfi_adaptive_avg_pool2d(s->t[0], s->pooled);
}

static weft_status sgd(setting *s)
{
    wfi_sgd how = {.lr = 1e-4};
    wfi_update update = update_of(s);
    return wfi_sgd_step(&update, &how);
}

static weft_status sgd_momentum(setting *s)
{
    wfi_sgd how = {.lr = 1e-4, .momentum = 0.9, .weight_decay = 1e-4};
    wfi_update update = update_of(s);
    update.slots[0] = s->t[2];
    return wfi_sgd_step(&update, &how);
}

static weft_status log_softmax(setting *s)
{
    return wfi_logsoftmax(s->t[0], 1, s->t[1]);
}

static weft_status log_softmax_backward(setting *s)
{
    return wfi_logsoftmax_backward(s->t[0], s->t[1], 1, s->t[2]);
}

static weft_status nll(setting *s)
{
    return wfi_nll_loss(s->t[0], s->target, WFI_REDUCE_MEAN, s->loss);
}

static weft_status mse(setting *s)
{
    return wfi_mse_loss(s->t[0], s->t[1], WFI_REDUCE_MEAN, s->loss);
}

static weft_status sum(setting *s)
{
    return wfi_sum(s->t[0], WFI_ALL_DIMS, s->loss);
}

static weft_status sum_rows(setting *s)
{
    return wfi_sum(s->t[0], 1u << 0, s->c[0]);
}

/* `sweeps`: how often the bytes of one tensor go by; a pooled tensor counts by its share. */
typedef struct kernel_case {
    const char *name;
    weft_shape shape;
    weft_status (*run)(setting *s);
    double sweeps;
    wfi_pool2d pool;
} kernel_case;

#define STEM                                                                                                           \
    {                                                                                                                  \
        4,                                                                                                             \
        {                                                                                                              \
            20, 64, 32, 32                                                                                             \
        }                                                                                                              \
    }
#define DEEP                                                                                                           \
    {                                                                                                                  \
        4,                                                                                                             \
        {                                                                                                              \
            20, 2048, 2, 2                                                                                             \
        }                                                                                                              \
    }
#define DIGITS                                                                                                         \
    {                                                                                                                  \
        4,                                                                                                             \
        {                                                                                                              \
            64, 64, 24, 24                                                                                             \
        }                                                                                                              \
    }
#define WEIGHT                                                                                                         \
    {                                                                                                                  \
        4,                                                                                                             \
        {                                                                                                              \
            512, 512, 3, 3                                                                                             \
        }                                                                                                              \
    }

static const kernel_case cases[] = {
    {"add", {4, {20, 256, 16, 16}}, add, 3, {{0}, {0}, {0}}},
    {"relu", STEM, relu, 2, {{0}, {0}, {0}}},
    {"relu, in the digits", DIGITS, relu, 2, {{0}, {0}, {0}}},
    {"relu backward", STEM, relu_backward, 3, {{0}, {0}, {0}}},
    {"batch norm", STEM, norm, 2, {{0}, {0}, {0}}},
    {"batch norm, deep", DEEP, norm, 2, {{0}, {0}, {0}}},
    {"batch norm backward", STEM, norm_backward, 3, {{0}, {0}, {0}}},
    {"batch norm backward, deep", DEEP, norm_backward, 3, {{0}, {0}, {0}}},
    {"max pool 3x3", STEM, max_pool, 1.5, {{3, 3}, {2, 2}, {1, 1}}},
    {"max pool 3x3 backward", STEM, max_pool_backward, 1.5, {{3, 3}, {2, 2}, {1, 1}}},
    {"max pool 2x2", DIGITS, max_pool, 1.5, {{2, 2}, {2, 2}, {0, 0}}},
    {"max pool 2x2 backward", DIGITS, max_pool_backward, 1.5, {{2, 2}, {2, 2}, {0, 0}}},
    {"average pool", DEEP, average_pool, 1.25, {{2, 2}, {1, 1}, {0, 0}}},
    {"sum", STEM, sum, 1, {{0}, {0}, {0}}},
    {"sum over rows", {2, {64, 9216}}, sum_rows, 1, {{0}, {0}, {0}}},
    {"log softmax", {2, {64, 10}}, log_softmax, 2, {{0}, {0}, {0}}},
    {"log softmax backward", {2, {64, 10}}, log_softmax_backward, 3, {{0}, {0}, {0}}},
    {"nll", {2, {64, 10}}, nll, 1, {{0}, {0}, {0}}},
    {"mse", STEM, mse, 2, {{0}, {0}, {0}}},
    {"sgd", WEIGHT, sgd, 3, {{0}, {0}, {0}}},
    {"sgd with momentum", WEIGHT, sgd_momentum, 5, {{0}, {0}, {0}}},
    {"adam", WEIGHT, adam, 7, {{0}, {0}, {0}}},
    {"add into", WEIGHT, add_into, 3, {{0}, {0}, {0}}},
    {"add into, whole model", {1, {23569502}}, add_into, 3, {{0}, {0}, {0}}},
    {"sgd with momentum, whole model", {1, {23569502}}, sgd_momentum, 5, {{0}, {0}, {0}}},
};

static weft_tensor *made(weft_shape shape, weft_dtype dtype, uint64_t stream)
{
    weft_tensor *tensor = tensor_zeros(shape, dtype);
    if (!tensor) {
        fputs("kernels: out of memory\n", stderr);
        exit(1);
    }
    if (dtype == WEFT_DTYPE_FLOAT32)
        (void)wfi_random_normal(tensor, (wfi_random){1, stream}, 0, 1);
    return tensor;
}

static void setting_make(setting *s, const kernel_case *how)
{
    memset(s, 0, sizeof(*s));
    weft_shape channels = WEFT_SHAPE(how->shape.ndim > 1 ? how->shape.dims[1] : 1);
    for (int i = 0; i < 3; i++)
        s->t[i] = made(how->shape, WEFT_DTYPE_FLOAT32, (uint64_t)i);
    if (how->run == adam)
        s->t[3] = tensor_full(how->shape, WEFT_DTYPE_FLOAT32, 1);
    for (int i = 0; i < 4; i++)
        s->c[i] = made(channels, WEFT_DTYPE_FLOAT32, 8);
    s->loss = made(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 9);
    s->target = made(WEFT_SHAPE(how->shape.dims[0]), WEFT_DTYPE_INT64, 10);
    s->pool = how->pool;
    if (how->pool.kernel[0] == 0)
        return;
    weft_shape pooled;
    (void)wfi_pool2d_shape(&how->shape, &how->pool, &pooled);
    s->pooled = made(pooled, WEFT_DTYPE_FLOAT32, 11);
    s->dpooled = made(pooled, WEFT_DTYPE_FLOAT32, 12);
    s->indices = made(pooled, WEFT_DTYPE_INT32, 13);
    (void)wfi_max_pool2d(s->t[0], &s->pool, s->pooled, s->indices);
}

static void setting_drop(setting *s)
{
    weft_tensor *all[] = {s->t[0], s->t[1],   s->t[2],    s->t[3],    s->c[0],   s->c[1], s->c[2],
                          s->c[3], s->pooled, s->dpooled, s->indices, s->target, s->loss};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one memcpy that reads and writes `bytes` together. */
static double copy_once(char *room, size_t bytes, size_t repeats)
{
    double began = now();
    for (size_t i = 0; i < repeats; i++) {
        memcpy(room, room + bytes / 2, bytes / 2);
        __asm__ volatile("" : : "r"(room) : "memory"); /* or the compiler drops all but one */
    }
    return (now() - began) / (double)repeats;
}

static double kernel_once(const kernel_case *how, setting *s, size_t repeats)
{
    double began = now();
    for (size_t i = 0; i < repeats; i++) {
        weft_status status = how->run(s);
        if (status != WEFT_OK) {
            fprintf(stderr, "kernels: %s: %s\n", how->name, weft_status_text(status));
            exit(1);
        }
    }
    return (now() - began) / (double)repeats;
}

static double quicker(double a, double b)
{
    return a < b ? a : b;
}

/* Kernel and floor take turns, the best of each counts: the machine may be busy with other things. */
static void measure(const kernel_case *how, int rounds)
{
    setting s;
    int64_t numel = 1;
    for (int d = 0; d < how->shape.ndim; d++)
        numel *= how->shape.dims[d];
    size_t bytes = (size_t)((double)numel * how->sweeps * sizeof(float));
    size_t repeats = ((size_t)64 << 20) / bytes + 1;
    char *room = malloc(bytes);
    if (!room)
        exit(1);
    memset(room, 1, bytes);
    setting_make(&s, how);
    double copy = 1e9, kernel = 1e9;
    for (int i = 0; i < rounds; i++) {
        copy = quicker(copy, copy_once(room, bytes, repeats));
        kernel = quicker(kernel, kernel_once(how, &s, repeats));
    }
    printf("%-32s %8.2f %11.1f %11.1f %8.2f\n", how->name, (double)bytes * 1e-6, kernel * 1e6, copy * 1e6,
           copy / kernel);
    fflush(stdout);
    setting_drop(&s);
    free(room);
}

static void usage(FILE *to)
{
    fprintf(to, "usage: kernels [--threads N] [--rounds N] [--only TEXT]\n"
                "Times the kernels that memory bounds, and a memcpy of as many bytes beside each.\n"
                "  --threads N   threads of the kernels (1); the memcpy has one\n"
                "  --rounds N    how often both are timed; the best counts (10)\n"
                "  --only TEXT   the kernels whose name contains TEXT\n");
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"threads", required_argument, NULL, 't'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int option, threads = 1, rounds = 10;
    const char *only = "";
    while ((option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (option == 'h') {
            usage(stdout);
            return 0;
        }
        if (option == 't')
            threads = atoi(optarg);
        else if (option == 'r')
            rounds = atoi(optarg);
        else if (option == 'o')
            only = optarg;
        else
            rounds = 0;
    }
    if (optind < argc || threads < 1 || rounds < 1) {
        usage(stderr);
        return 2;
    }
    wfi_cpu_threads_set(threads);
    printf("%-32s %8s %11s %11s %8s\n", "kernel", "MB", "us", "memcpy us", "of floor");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strstr(cases[i].name, only))
            measure(&cases[i], rounds);
    }
    return 0;
}
