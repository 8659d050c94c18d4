/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cell_read.c - what it costs that parameters of modules are cells (decision 045): one read, and training steps of a chain of linear
 * layers over the same values as plain tensors, as cells stepped in place, by default, and always beside; in turn.
 */
#include "cli.h"
#include "common/measure.h"

#include <weft/weft.h>

#include <stdlib.h>

#define LAYERS 8
#define BATCH 16
#define WARM_UP 3
#define READS 20000 /* in a sample */
#define READ_SAMPLES 20

typedef enum net_kind { PLAIN, CELLS, DEFAULT, BESIDE, KINDS } net_kind;

static const char *const kind_names[KINDS] = {"plain tensors, in place", "cells, in place", "cells, by default",
                                              "cells, always beside"};
static const char *const kind_keys[KINDS] = {"plain", "cells", "default", "beside"};

static const weft_update updates[KINDS] = {WEFT_UPDATE_IN_PLACE, WEFT_UPDATE_IN_PLACE, WEFT_UPDATE_DEFAULT,
                                           WEFT_UPDATE_BESIDE};

typedef struct net {
    weft_module *layers[LAYERS];      /* not of plain tensors */
    weft_tensor *tensors[2 * LAYERS]; /* weight, bias; referenced */
    weft_optimizer *optimizer;
} net;

typedef struct bench {
    int64_t width;
    weft_tensor *x;
    net nets[KINDS];
    series steps[KINDS]; /* microseconds */
} bench;

/* The parameters of a layer: the module's own, or copies of them. */
static bool take_layer(net *n, net_kind kind, int i, weft_module *layer)
{
    weft_tensors own = weft_module_parameters(layer);
    for (int k = 0; k < 2 && own.count == 2; k++) {
        weft_tensor *p = kind == PLAIN ? weft_tensor_clone(own.items[k]) : weft_tensor_ref(own.items[k]);
        weft_tensor_set_requires_grad(p, true);
        n->tensors[2 * i + k] = p;
    }
    if (kind == PLAIN)
        weft_module_unref(layer);
    else
        n->layers[i] = layer;
    return n->tensors[2 * i] != NULL && n->tensors[2 * i + 1] != NULL;
}

static bool net_open(net *n, net_kind kind, int64_t width)
{
    weft_optimizer_spec spec = {.type = &weft_sgd_type, .update = updates[kind], .lr = 1e-6, .sgd.momentum = 0.9};
    for (int i = 0; i < LAYERS; i++)
        if (!take_layer(n, kind, i, weft_linear_create(width, width, false, (uint64_t)i, NULL)))
            return false;
    n->optimizer =
        weft_optimizer_create((weft_tensors){n->tensors, sizeof n->tensors / sizeof *n->tensors}, &spec, NULL);
    return n->optimizer != NULL;
}

static void bench_close(bench *b)
{
    for (int k = 0; k < KINDS; k++) {
        weft_optimizer_unref(b->nets[k].optimizer);
        for (int i = 0; i < 2 * LAYERS; i++)
            weft_tensor_unref(b->nets[k].tensors[i]);
        for (int i = 0; i < LAYERS; i++)
            weft_module_unref(b->nets[k].layers[i]);
        series_fini(&b->steps[k]);
    }
    weft_tensor_unref(b->x);
}

static bool bench_open(bench *b, int64_t width)
{
    *b = (bench){.width = width, .x = weft_tensor_full(WEFT_SHAPE(BATCH, width), WEFT_DTYPE_FLOAT32, 0.5)};
    bool made = b->x != NULL;
    for (int k = 0; k < KINDS && made; k++)
        made = net_open(&b->nets[k], (net_kind)k, width);
    return made;
}

static weft_status train(const net *n, weft_tensor *x)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    for (int i = 0; i < LAYERS; i++)
        x = weft_relu(t, weft_linear(t, x, n->tensors[2 * i], n->tensors[2 * i + 1]));
    weft_backward(t, weft_sum(t, x));
    weft_status status = weft_tape_status(t);
    if (status == WEFT_OK)
        status = weft_optimizer_apply(n->optimizer, weft_tape_gradients(t, weft_optimizer_parameters(n->optimizer)));
    weft_tape_close(t);
    return status;
}

static double time_step(const bench *b, int kind)
{
    double start = measure_now_us();
    return train(&b->nets[kind], b->x) == WEFT_OK ? measure_now_us() - start : 0;
}

/* Single steps in turn, each kind first as often as the others: a neighbour on the machine slows all alike. The first turns warm up. */
static bool measure(bench *b, double seconds)
{
    double end = measure_now_us() + seconds * 1e6;
    for (int turn = 0; turn < WARM_UP + KINDS || measure_now_us() < end; turn++) {
        for (int i = 0; i < KINDS; i++) {
            int k = (i + turn) % KINDS;
            double took = time_step(b, k);
            if (took == 0)
                return false;
            if (turn >= WARM_UP)
                series_add(&b->steps[k], took);
        }
    }
    return true;
}

static double read_ns(weft_tensor *x)
{
    double start = measure_now_us();
    for (int i = 0; i < READS; i++)
        weft_tensor_unref(weft_tensor_contiguous(x));
    return (measure_now_us() - start) * 1e3 / READS;
}

static void show_reads(const bench *b, report *r)
{
    series reads[2] = {{0}, {0}};
    for (int i = 0; i < READ_SAMPLES; i++)
        for (int k = 0; k < 2; k++)
            series_add(&reads[k], read_ns(b->nets[k].tensors[0]));
    double plain = series_summary(&reads[PLAIN]).p50, cell = series_summary(&reads[CELLS]).p50;
    printf("A reference taken and dropped: %.1f ns; of a cell's value %.1f ns.\n\n", plain, cell);
    report_number(r, plain, "plain_read_ns");
    report_number(r, cell, "cell_read_ns");
    series_fini(&reads[PLAIN]);
    series_fini(&reads[CELLS]);
}

static void show(bench *b, report *r)
{
    summary plain = series_summary(&b->steps[PLAIN]);
    printf("Width %lld, batch %d, %d layers: %zu steps of each.\n\n", (long long)b->width, BATCH, LAYERS,
           b->steps[PLAIN].count);
    printf("| | us a step, best | median | of plain, best | median |\n|---|---|---|---|---|\n");
    for (int k = 0; k < KINDS; k++) {
        summary step = series_summary(&b->steps[k]);
        printf("| %s | %.1f | %.1f | %.3f | %.3f |\n", kind_names[k], step.min, step.p50, step.min / plain.min,
               step.p50 / plain.p50);
        report_number(r, step.p50, "%s_us_width_%lld", kind_keys[k], (long long)b->width);
        report_number(r, step.min / plain.min, "%s_ratio_of_bests_width_%lld", kind_keys[k], (long long)b->width);
        report_number(r, step.p50 / plain.p50, "%s_ratio_of_medians_width_%lld", kind_keys[k], (long long)b->width);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const int64_t widths[] = {16, 512}; /* operators of a microsecond; of some hundred */
    double seconds = 5;
    bool quick = false;
    const char *json = NULL;
    const cli_option options[] = {
        {"seconds", CLI_NUMBER, &seconds, 0.01, 1000, NULL, "S", "for each width", "5"},
        {"quick", CLI_FLAG, &quick, 0, 0, NULL, NULL, "0.3 seconds", NULL},
        {"json", CLI_TEXT, &json, 0, 0, NULL, "FILE", "write the numbers there too", NULL},
    };
    const cli program = {
        .program = "cell_read",
        .purpose = "what it costs that parameters of modules are cells",
        .example = "cell_read --seconds 20",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    report r;
    if (!report_open(&r, json))
        return 1;
    bool done = true;
    for (size_t i = 0; i < sizeof widths / sizeof *widths && done; i++) {
        bench b;
        done = bench_open(&b, widths[i]) && measure(&b, quick ? 0.3 : seconds);
        if (done)
            show(&b, &r);
        else
            fprintf(stderr, "cell_read: a step failed\n");
        if (done && i == 0)
            show_reads(&b, &r);
        bench_close(&b);
    }
    return report_close(&r) && done ? 0 : 1;
}
