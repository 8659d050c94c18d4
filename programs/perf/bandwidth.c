/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bandwidth.c - tensors with four calls in flight: one way, and both ways at once (the sum). The floor of one way is
 * the same bytes, moved one transfer after another. Both ways have no floor.
 */
#include "perf/bench.h"

#define WINDOW 4

static const size_t usual[] = {65536, 1 << 20, 16 << 20, 64 << 20};

static bool stream(probe *p, double us, series *out)
{
    bench *b = p->b;
    bool is_both = p->other;
    weft_future *back = NULL;
    weft_error *error = NULL;
    if (is_both) {
        weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .error = &error};
        weft_status status =
            weft_rpc_async(b->agent, weft_to_rank(b->peer), "stream",
                           WEFT_VALUES(weft_of_i64(weft_agent_rank(b->agent)), weft_of_i64((int64_t)p->bytes),
                                       weft_of_i64(WINDOW), weft_of_f64(us)),
                           &options, &back);
        if (status)
            return bench_fail(b, "stream", b->peer, status, error);
    }
    service_stream s = {.agent = b->agent, .to = b->peer, .function = "take", .tensor = p->there, .window = WINDOW};
    s.us = us;
    service_stream_run(&s);
    double theirs[2] = {0, 1};
    bool ok = !back || bench_wait(b, "stream", b->peer, back, theirs);
    ok = (!s.status || bench_fail(b, "take", b->peer, s.status, s.error)) && ok;
    if (ok)
        series_add(out, (double)p->bytes * (s.calls / s.took_us + theirs[0] / theirs[1]) / 1e3);
    return ok;
}

static bool measure(bench *b, size_t bytes, bool is_both)
{
    probe p = {.b = b, .bytes = bytes, .window = WINDOW, .other = is_both, .ours = stream};
    result r = result_of("bandwidth", is_both ? "both ways" : "one way", "GB/s", true);
    weft_status made = weft_tensor_full(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8, 1, &p.there, NULL);
    p.has_floor = !is_both;
    p.floor = FLOOR_READ;
    p.floor_bytes = bytes;
    bool ok = (!made || task_fail(b->to, "no memory for %zu bytes", bytes)) && bench_measure(&p, &r);
    weft_tensor_unref(p.there);
    return ok;
}

bool measure_bandwidth(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof(usual) / sizeof(*usual), sizes);
    bool ok = true;
    for (size_t i = 0; ok && i < 2 * count; i++)
        ok = measure(b, sizes[i % count], i >= count);
    return ok;
}
