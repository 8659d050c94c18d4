/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside.c - small calls to a worker: alone, and while an echo of a large tensor to the same worker is always in
 * flight. The third result is the ratio of the two 99th percentiles.
 */
#include "perf/bench.h"

#include <math.h>

#define LARGE ((size_t)64 << 20)

typedef struct large {
    weft_tensor *there, *back;
    weft_future *echoed; /* the echo under way; NULL: none */
} large;

static bool finish(bench *b, large *l)
{
    weft_future *echoed = l->echoed;
    l->echoed = NULL;
    return !echoed || bench_wait(b, "echo", b->peer, echoed, NULL);
}

/* Keeps an echo under way. */
static bool keep(bench *b, large *l)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.land = {&l->back, 1}, .timeout_ms = SERVICE_CALL_MS, .error = &error};
    if (l->echoed && !weft_future_done(l->echoed))
        return true;
    if (!finish(b, l))
        return false;
    weft_status status = weft_rpc_async(b->agent, weft_to_rank(b->peer), "echo", WEFT_VALUES(weft_of_tensor(l->there)),
                                        &options, &l->echoed);
    return !status || bench_fail(b, "echo", b->peer, status, error);
}

/* Makes small calls until the time is over. `l` NULL: alone; otherwise beside echoes, at least until one has ended. */
static bool call_small(bench *b, large *l, series *out)
{
    double end = measure_now_us() + b->o->seconds * 1e6;
    do {
        if (l && !keep(b, l))
            return false;
        double start = measure_now_us();
        if (!bench_call(b, b->peer, "executor", WEFT_NO_VALUES, NULL))
            return false;
        series_add(out, measure_now_us() - start);
    } while (measure_now_us() < end);
    return !l || finish(b, l);
}

static void put(bench *b, const char *measure, const char *what, size_t bytes, series *samples)
{
    result r = result_of(measure, what, "us", false);
    result_fill(&r, samples, (double)NAN, "");
    r.workers = 2;
    r.bytes = (int64_t)bytes;
    bench_put(b, &r);
}

bool beside_run(bench *b, const char *measure, weft_tensor *there, weft_tensor *back)
{
    size_t bytes = weft_tensor_nbytes(there);
    large l = {.there = there, .back = back};
    series warm = {0}, alone = {0}, beside = {0};
    bool ok = keep(b, &l) && finish(b, &l) && call_small(b, NULL, &warm) && call_small(b, NULL, &alone) &&
              call_small(b, &l, &beside);
    if (l.echoed) { /* after a failure */
        (void)!weft_future_wait(l.echoed, SERVICE_CALL_MS);
        weft_future_unref(l.echoed);
    }
    if (ok) {
        put(b, measure, "small calls alone", 0, &alone);
        put(b, measure, "small calls beside", bytes, &beside);
        series ratio = {0};
        series_add(&ratio, series_summary(&beside).p99 / series_summary(&alone).p99);
        result r = result_of(measure, "p99, of alone", "times", false);
        result_fill(&r, &ratio, (double)NAN, "");
        r.workers = 2;
        r.bytes = (int64_t)bytes;
        bench_put(b, &r);
        series_fini(&ratio);
    }
    series_fini(&warm);
    series_fini(&alone);
    series_fini(&beside);
    return ok;
}

bool measure_beside(bench *b)
{
    size_t bytes = b->o->size_count ? b->o->sizes[b->o->size_count - 1] : LARGE;
    weft_tensor *there = NULL, *back = NULL;
    bool made = !weft_tensor_full(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, 1, &there, NULL) &&
                !weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, &back, NULL);
    bool ok = made ? beside_run(b, "beside", there, back) : task_fail(b->to, "no memory for %zu bytes", bytes);
    weft_tensor_unref(there);
    weft_tensor_unref(back);
    return ok;
}
