/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_bench.c - what a reduction does to each chunk (src/tensor/combine.h), in place, in this processor's cache
 * and in memory: GB/s, and as a share of what a plain loop moves in the same run, y += x of floats, compiled as
 * these kernels are.
 *
 * Of `bytes` an operand both read two and write one: three times as much moves. An average's division reads and
 * writes one. Every element is 1, so that nothing slows down that depends on values.
 */
#include "cli.h"
#include "common/measure.h"
#include "tensor/clones.h"
#include "tensor/combine.h"
#include "tensor/dtype.h"
#include "../tensors.h"

#include <stdlib.h>

#define SLICE_BYTES ((size_t)96 << 20) /* of an operand: what a slice works through, in some milliseconds */

typedef struct pair {
    weft_tensor *x, *y;
} pair;

static bool pair_open(pair *p, weft_dtype dtype, size_t bytes)
{
    weft_shape shape = WEFT_SHAPE((int64_t)(bytes / weft_dtype_size(dtype)));
    *p = (pair){tensor_full(shape, dtype, 1), tensor_full(shape, dtype, 1)};
    return p->x && p->y;
}

static void pair_close(pair *p)
{
    weft_tensor_unref(p->x);
    weft_tensor_unref(p->y);
}

WFI_CLONES static void add(float *y, const float *x, size_t count)
{
    WFI_NO_STEP_NEEDS_ANOTHER
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

typedef enum contender { PLAIN, SUM, MIN, MAX, PROD, QUOTIENT, CONTENDERS } contender;
static const weft_op kinds[CONTENDERS] = {
    [SUM] = WEFT_OP_SUM, [MIN] = WEFT_OP_MIN, [MAX] = WEFT_OP_MAX, [PROD] = WEFT_OP_PROD, [QUOTIENT] = WEFT_OP_AVG};

static void turn(const pair *p, contender who)
{
    void *y = weft_tensor_data(p->y);
    const void *x = weft_tensor_data(p->x);
    size_t count = (size_t)weft_tensor_numel(p->x);
    weft_dtype dtype = weft_tensor_dtype(p->x);
    if (who == PLAIN)
        add(y, x, count);
    else if (who == QUOTIENT)
        wfi_combine_divide(dtype, y, count, 1);
    else
        wfi_combine(dtype, kinds[who], y, y, x, count);
    __asm__ volatile("" : : "r"(y) : "memory"); /* or the compiler might do only the last of several turns */
}

static double slice(const pair *p, contender who) /* GB/s */
{
    size_t bytes = weft_tensor_nbytes(p->x), turns = SLICE_BYTES / bytes;
    double start = measure_now_us();
    for (size_t i = 0; i < turns; i++)
        turn(p, who);
    return (double)(bytes * turns) * (who == QUOTIENT ? 2 : 3) / (measure_now_us() - start) / 1e3;
}

typedef struct rates {
    series loss[CONTENDERS];  /* -GB/s: the least is the best */
    series share[CONTENDERS]; /* of the plain loop's slice just before */
} rates;

/* Slices in turn: a neighbour on the machine slows all. The first round warms up. */
static bool measure(weft_dtype dtype, size_t bytes, int64_t rounds, rates *r)
{
    pair ours = {0}, floats = {0};
    bool made = pair_open(&ours, dtype, bytes) && pair_open(&floats, WEFT_DTYPE_FLOAT32, bytes);
    for (int64_t round = 0; round <= rounds && made; round++) {
        for (contender who = SUM; who < CONTENDERS; who++) {
            if (!wfi_can_combine(dtype, kinds[who]))
                continue;
            double floor = slice(&floats, PLAIN), rate = slice(&ours, who);
            if (round == 0)
                continue;
            series_add(&r->loss[PLAIN], -floor);
            series_add(&r->loss[who], -rate);
            series_add(&r->share[who], rate / floor);
        }
    }
    pair_close(&ours);
    pair_close(&floats);
    return made;
}

static void show(weft_dtype dtype, rates *r)
{
    const char *name = weft_dtype_name(dtype);
    double floor = -series_summary(&r->loss[PLAIN]).min;
    printf("| %s | %.1f | %.1f |", name, floor, -series_summary(&r->loss[SUM]).min);
    for (contender who = SUM; who < CONTENDERS; who++) {
        double best = -series_summary(&r->loss[who]).min / floor, median = series_summary(&r->share[who]).p50;
        if (r->share[who].count == 0) {
            printf(" |");
            continue;
        }
        printf(" %.2f (%.2f) |", best, median);
    }
    printf("\n");
    fflush(stdout);
}

static bool measure_size(size_t bytes, int64_t rounds)
{
    char text[32];
    printf("Operands of %s. Sum, least, largest, product, quotient as shares of the plain loop: of the best (of slices "
           "next to "
           "each other, the median).\n\n"
           "| | plain, GB/s | sum, GB/s | sum | min | max | prod | quotient |\n|---|---|---|---|---|---|---|---|\n",
           measure_bytes_name(bytes, text));
    bool done = true;
    for (int d = 0; d < WFI_DTYPES && done; d++) {
        rates r = {0};
        done = measure((weft_dtype)d, bytes, rounds, &r);
        if (done)
            show((weft_dtype)d, &r);
        for (contender who = PLAIN; who < CONTENDERS; who++) {
            series_fini(&r.loss[who]);
            series_fini(&r.share[who]);
        }
    }
    printf("\n");
    return done;
}

int main(int argc, char **argv)
{
    int64_t rounds = 10;
    bool quick = false;
    const cli_option options[] = {
        {"rounds", CLI_INT, &rounds, 1, 10000, NULL, "N", "slices of each that are timed", "10"},
        {"quick", CLI_FLAG, &quick, 0, 0, NULL, NULL, "3 rounds", NULL},
    };
    const cli program = {
        .program = "combine_bench",
        .purpose = "rates of the kernels that reductions use, against a plain loop",
        .example = "combine_bench --rounds 30",
        .options = options,
        .count = sizeof(options) / sizeof(*options),
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    rounds = quick ? 3 : rounds;
    bool done = measure_size((size_t)64 << 10, rounds) && measure_size((size_t)64 << 20, rounds);
    if (!done)
        fprintf(stderr, "combine_bench: out of memory\n");
    return done ? 0 : 1;
}
