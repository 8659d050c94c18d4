/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latency.c - the time of one call: the first one, which opens the connection; without arguments; with a tensor one
 * way; and with the tensor back into a landing tensor. Floors: a round trip of a message with as many bytes; over 4 KiB
 * the bytes moved one way, or there and back.
 */
#include "perf/bench.h"

#include <math.h>

#define NO_ARGUMENTS 64 /* bytes of the message that is the floor of a call without arguments */

static const size_t usual[] = {8, 64, 512, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

static bool call(probe *p, double us, series *out)
{
    weft_args none = WEFT_NO_VALUES, one = WEFT_VALUES(weft_of_tensor(p->there));
    double start = measure_now_us(), end = start + us;
    do {
        if (!bench_call(p->b, p->b->peer, p->function, p->there ? one : none, p->back))
            return false;
        double now = measure_now_us();
        series_add(out, now - start);
        start = now;
    } while (start < end);
    return true;
}

static bool measure(bench *b, const char *what, const char *function, size_t bytes, bool is_back)
{
    probe p = {.b = b, .bytes = bytes, .function = function, .ours = call, .has_floor = true};
    result r = result_of("latency", what, "us", false);
    p.floor = bytes <= FLOOR_TRIP_MOST ? FLOOR_TRIP : is_back ? FLOOR_ECHO : FLOOR_READ;
    p.floor_bytes = bytes ? bytes : NO_ARGUMENTS;
    bool ok = !bytes || !weft_tensor_full(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, 1, &p.there, NULL);
    if (ok && bytes && is_back)
        ok = !weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, &p.back, NULL);
    ok = ok || task_fail(b->to, "no memory for %zu bytes", bytes);
    ok = ok && bench_measure(&p, &r);
    weft_tensor_unref(p.there);
    weft_tensor_unref(p.back);
    return ok;
}

static void put_first_call(bench *b)
{
    result r = result_of("latency", "first call", "us", false);
    series one = {0};
    series_add(&one, b->first_call_us);
    result_fill(&r, &one, (double)NAN, "");
    r.workers = 2;
    bench_put(b, &r);
    series_fini(&one);
}

bool measure_latency(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof(usual) / sizeof(*usual), sizes);
    put_first_call(b);
    bool ok = measure(b, "no-op inline", "inline", 0, false) && measure(b, "no-op executor", "executor", 0, false);
    for (size_t i = 0; ok && i < count; i++)
        ok = measure(b, "one way", "take", sizes[i], false);
    for (size_t i = 0; ok && i < count; i++)
        ok = measure(b, "echo", "echo", sizes[i], true);
    return ok;
}
