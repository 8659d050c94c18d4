/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizers.c - one step of each optimizer on the parameters of ResNet-50 (24 million, in 161 tensors), from borrowed gradients, against
 * the bandwidth that plain loops over as many bytes reach in the same run: a copy, and an addition in place (y += a x).
 *
 * The bytes of a step are those that it cannot do without: parameter and gradient read, parameter written, and what it keeps read and
 * written. A loop in place loads each line that it writes for its own sake, so what is counted is what moves; a copy by vector stores moves
 * the line written once more than is counted. The better of the two loops is the bandwidth.
 */
#include "cli.h"
#include "common/measure.h"

#include <weft/weft.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 64

/* --- the plain loops --- */
typedef struct part {
    float *y;
    const float *x;
    size_t count;
    bool add;
} part;

static void *run_part(void *arg)
{
    const part *p = arg;
    if (!p->add) {
        memcpy(p->y, p->x, p->count * sizeof(float));
        return NULL;
    }
    float *restrict y = p->y;
    const float *restrict x = p->x;
    for (size_t i = 0; i < p->count; i++)
        y[i] += 1e-6f * x[i];
    return NULL;
}

typedef struct loops {
    float *x, *y;
    size_t count;
    int threads;
} loops;

static void run_loop(const loops *l, bool add)
{
    pthread_t thread[THREADS_MAX];
    part parts[THREADS_MAX];
    size_t each = (l->count / (size_t)l->threads + 15) & ~(size_t)15, begin = 0;
    int started = 0;
    for (int i = 0; i < l->threads; i++, begin += each) {
        size_t left = begin < l->count ? l->count - begin : 0;
        parts[i] = (part){l->y + begin, l->x + begin, left < each ? left : each, add};
    }
    for (int i = 1; i < l->threads; i++, started++)
        if (pthread_create(&thread[i], NULL, run_part, &parts[i]) != 0)
            break;
    run_part(&parts[0]);
    for (int i = 1; i < l->threads; i++)
        if (i <= started)
            pthread_join(thread[i], NULL);
        else
            run_part(&parts[i]);
}

static bool loops_open(loops *l, size_t count, int threads)
{
    *l = (loops){malloc(count * sizeof(float)), malloc(count * sizeof(float)), count, threads};
    for (size_t i = 0; l->x && l->y && i < count; i++)
        l->x[i] = l->y[i] = 1;
    return l->x && l->y;
}

/* --- the optimizers --- */
typedef struct contender {
    const char *name, *key;
    double bytes; /* for each element of a step */
    weft_optimizer_spec spec;
    bool accumulates; /* adds up one gradient first */
} contender;

static const contender contenders[] = {
    {"SGD", "sgd", 12, {.type = &weft_sgd_type, .lr = 1e-3}, false},
    {"SGD, momentum", "sgd_momentum", 20, {.type = &weft_sgd_type, .lr = 1e-3, .sgd.momentum = 0.9}, false},
    {"SGD, momentum, accumulated",
     "sgd_accumulated",
     28,
     {.type = &weft_sgd_type, .lr = 1e-3, .sgd.momentum = 0.9},
     true},
    {"SGD, momentum, clipped",
     "sgd_clipped",
     24,
     {.type = &weft_sgd_type, .lr = 1e-3, .max_norm = 1, .sgd.momentum = 0.9},
     false},
    {"Adam", "adam", 28, {.type = &weft_adam_type, .lr = 1e-3}, false},
    {"Adam, AMSGrad", "adam_amsgrad", 36, {.type = &weft_adam_type, .lr = 1e-3, .adam.amsgrad = true}, false},
    {"AdamW", "adamw", 28, {.type = &weft_adamw_type, .lr = 1e-3, .adam.weight_decay = 0.01}, false},
    {"Adagrad", "adagrad", 20, {.type = &weft_adagrad_type, .lr = 1e-3}, false},
    {"RMSprop", "rmsprop", 20, {.type = &weft_rmsprop_type}, false},
    {"Rprop", "rprop", 28, {.type = &weft_rprop_type, .lr = 1e-3}, false},
    {"Adadelta", "adadelta", 28, {.type = &weft_adadelta_type}, false},
    {"Adamax", "adamax", 28, {.type = &weft_adamax_type}, false},
};
#define CONTENDERS (sizeof contenders / sizeof contenders[0])

typedef struct bench {
    weft_module *model; /* whose parameters are stepped */
    weft_tensor **gradients;
    weft_gradient *lent;
    weft_optimizer *optimizer; /* the present one: each keeps up to three tensors a parameter */
    size_t count, elements;
    loops plain;
    series copy, add, steps[CONTENDERS]; /* milliseconds */
    series ratios[CONTENDERS];           /* of a step's rate to that of the better loop just before it */
} bench;

static bool bench_open(bench *b, int threads)
{
    *b = (bench){.model = weft_resnet50_create(30, 1, NULL)};
    if (!b->model)
        return false;
    weft_tensors parameters = weft_module_parameters(b->model);
    b->count = parameters.count;
    b->gradients = calloc(b->count, sizeof *b->gradients);
    b->lent = calloc(b->count, sizeof *b->lent);
    for (size_t i = 0; b->gradients && b->lent && i < b->count; i++) {
        const weft_tensor *p = parameters.items[i];
        b->gradients[i] = weft_tensor_full(weft_tensor_shape(p), weft_tensor_dtype(p), 1e-3);
        b->lent[i].values = b->gradients[i];
        b->elements += (size_t)weft_tensor_numel(p);
        if (!b->gradients[i])
            return false;
    }
    return b->gradients && b->lent && loops_open(&b->plain, b->elements, threads);
}

static void bench_close(bench *b)
{
    for (size_t k = 0; k < CONTENDERS; k++) {
        series_fini(&b->steps[k]);
        series_fini(&b->ratios[k]);
    }
    for (size_t i = 0; b->gradients && i < b->count; i++)
        weft_tensor_unref(b->gradients[i]);
    free(b->gradients);
    free(b->lent);
    free(b->plain.x);
    free(b->plain.y);
    series_fini(&b->copy);
    series_fini(&b->add);
    weft_module_unref(b->model);
}

static weft_status step(bench *b, size_t k)
{
    if (!contenders[k].accumulates)
        return weft_optimizer_apply(b->optimizer, (weft_gradients){b->lent, b->count});
    weft_status status = weft_optimizer_accumulate(b->optimizer, (weft_tensors){b->gradients, b->count});
    return status ? status : weft_optimizer_step(b->optimizer);
}

static double rate(const bench *b, double bytes, double ms)
{
    return bytes * (double)b->elements / ms / 1e6; /* GB/s */
}

static double time_loop(bench *b, series *times, bool add)
{
    double start = measure_now_us();
    run_loop(&b->plain, add);
    double ms = (measure_now_us() - start) / 1e3;
    series_add(times, ms);
    return rate(b, add ? 12 : 8, ms);
}

static weft_status time_step(bench *b, size_t k)
{
    double copied = time_loop(b, &b->copy, false), added = time_loop(b, &b->add, true), start = measure_now_us();
    weft_status status = step(b, k);
    double ms = (measure_now_us() - start) / 1e3;
    series_add(&b->steps[k], ms);
    series_add(&b->ratios[k], rate(b, contenders[k].bytes, ms) / (added > copied ? added : copied));
    return status;
}

/* Slices in turn: neighbours on the machine slow all of them alike. The first round warms up. */
static weft_status measure_one(bench *b, size_t k, int64_t rounds)
{
    b->optimizer = weft_optimizer_create(weft_module_parameters(b->model), &contenders[k].spec, NULL);
    weft_status status = b->optimizer ? time_step(b, k) : WEFT_ERR_MEMORY;
    b->steps[k].count = b->ratios[k].count = 0;
    if (k == 0)
        b->copy.count = b->add.count = 0;
    for (int64_t round = 0; round < rounds && status == WEFT_OK; round++)
        status = time_step(b, k);
    weft_optimizer_unref(b->optimizer);
    return status;
}

static weft_status measure(bench *b, int64_t rounds)
{
    weft_status status = WEFT_OK;
    for (size_t k = 0; k < CONTENDERS && status == WEFT_OK; k++)
        status = measure_one(b, k, rounds);
    return status;
}

static void print_plain(const bench *b, const char *name, double bytes, summary s, double best)
{
    double here = rate(b, bytes, s.min);
    printf("| %s | %.2f | %.1f | %.1f | %.2f | |\n", name, s.p50, here, rate(b, bytes, s.p50), here / best);
}

static void show(bench *b)
{
    summary copy = series_summary(&b->copy), add = series_summary(&b->add);
    double best = rate(b, 8, copy.min), of_add = rate(b, 12, add.min);
    best = of_add > best ? of_add : best;
    printf("%zu parameters in %zu tensors, float32, %d thread%s. The ratios are those to the better of the plain "
           "loops: the best of\n"
           "each, and the median of a step's to the loops just before it.\n\n",
           b->elements, b->count, b->plain.threads, b->plain.threads == 1 ? "" : "s");
    printf(
        "| | ms a step | GB/s, best | GB/s, median | ratio of the best | median ratio |\n|---|---|---|---|---|---|\n");
    print_plain(b, "plain copy", 8, copy, best);
    print_plain(b, "plain y += a x", 12, add, best);
    for (size_t k = 0; k < CONTENDERS; k++) {
        summary s = series_summary(&b->steps[k]), ratio = series_summary(&b->ratios[k]);
        double here = rate(b, contenders[k].bytes, s.min);
        printf("| %s | %.2f | %.1f | %.1f | %.2f | %.2f |\n", contenders[k].name, s.p50, here,
               rate(b, contenders[k].bytes, s.p50), here / best, ratio.p50);
    }
}

int main(int argc, char **argv)
{
    int64_t rounds = 20, threads = 1;
    bool quick = false;
    char text[16];
    const cli_option options[] = {
        {"rounds", CLI_INT, &rounds, 1, 10000, NULL, "N", "steps of each that are timed", "20"},
        {"threads", CLI_INT, &threads, 1, THREADS_MAX, NULL, "N", "threads of a step and of a plain loop", "1"},
        {"quick", CLI_FLAG, &quick, 0, 0, NULL, NULL, "5 rounds", NULL},
    };
    const cli program = {
        .program = "optimizers",
        .purpose = "time of one step of each optimizer, against the memory's bandwidth",
        .example = "optimizers --threads 2",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    snprintf(text, sizeof text, "%d", (int)threads);
    setenv("WEFT_CPU_THREADS", text, 1); /* before the first kernel runs */
    bench b;
    weft_status status = bench_open(&b, (int)threads) ? measure(&b, quick ? 5 : rounds) : WEFT_ERR_MEMORY;
    if (status == WEFT_OK)
        show(&b);
    bench_close(&b);
    return status == WEFT_OK ? 0 : weft_report(status) | 1;
}
