/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incast.c - all other workers call the measuring one at once: calls without arguments, 16 in flight each, and tensors,
 * 4 in flight each. The sum is what arrives.
 */
#include "perf/bench.h"

#include <string.h>

#define CALLS 16
#define TENSORS 4

static const size_t usual[] = {65536, 1 << 20};

static bool receive(probe *p, double us, series *out)
{
    bench *b = p->b;
    weft_future *senders[WORKERS_MAX] = {0};
    double sum = 0;
    bool ok = true;
    for (int rank = 1; rank < b->world && ok; rank++) {
        weft_error *error = NULL;
        weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .error = &error};
        weft_args arguments =
            WEFT_VALUES(weft_of_i64(0), weft_of_i64((int64_t)p->bytes), weft_of_i64(p->window), weft_of_f64(us));
        weft_status status =
            weft_rpc_async(b->agent, weft_to_rank(rank), "stream", arguments, &options, &senders[rank]);
        ok = !status || bench_fail(b, "stream", rank, status, error);
    }
    for (int rank = 1; rank < b->world; rank++) {
        double got[2] = {0, 1};
        if (senders[rank])
            ok = bench_wait(b, "stream", rank, senders[rank], got) && ok;
        sum += got[0] / got[1];
    }
    if (ok)
        series_add(out, p->bytes ? sum * (double)p->bytes / 1e3 : sum * 1e6);
    return ok;
}

static bool measure(bench *b, size_t bytes)
{
    probe p = {.b = b, .bytes = bytes, .window = bytes ? TENSORS : CALLS, .ours = receive};
    result r = result_of("incast", bytes ? "tensors" : "no-op inline", bytes ? "GB/s" : "calls/s", true);
    r.workers = b->world;
    return bench_measure(&p, &r);
}

bool measure_incast(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof(usual) / sizeof(*usual), sizes);
    if (b->world < 3) {
        task_note(b->to, "incast needs two senders: three workers on this host (--workers 3)");
        return true;
    }
    bool ok = measure(b, 0);
    for (size_t i = 0; ok && i < count; i++)
        ok = measure(b, sizes[i]);
    return ok;
}
