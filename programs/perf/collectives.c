/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives.c - operations of groups of 2, 4, 8 ... workers, up to all workers of the job: the time of each operation
 * at the measuring worker. `bytes` is the size of the longer tensor of a member. They have no floor.
 */
#include "perf/bench.h"

#include <math.h>

static const size_t usual[] = {4096, 65536, 1 << 20, 16 << 20};

/* The same operations on all members; ours are timed. Two are tried first. Their time says how many fill a slice. */
static bool collect(probe *p, double us, series *out)
{
    bench *b = p->b;
    weft_future *others[WORKERS_MAX] = {0};
    const char *name = service_collective_names[p->other];
    int self = weft_agent_rank(b->agent), first = b->job ? 1 : 0, world = (int)p->threads;
    int64_t count = p->one_us > 0 ? (int64_t)fmin(fmax(us / p->one_us, 1), 100000) : 2;
    series taken = {0};
    bool ok = true;
    for (int i = 0; i < world - 1 && ok; i++) {
        weft_error *error = NULL;
        weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .error = &error};
        weft_args arguments =
            WEFT_VALUES(weft_of_i64(p->other), weft_of_i64((int64_t)p->bytes), weft_of_i64(count), weft_of_i64(world));
        weft_status status =
            weft_rpc_async(b->agent, weft_to_rank(first + i), "collect", arguments, &options, &others[i]);
        ok = !status || bench_fail(b, "collect", first + i, status, error);
    }
    weft_status status = ok ? service_collect(b->agent, p->other, p->bytes, count, world, self, &taken) : WEFT_OK;
    if (status)
        ok = task_fail(b->to, "%s of %zu bytes over %d workers on %s: %s (%s)", name, p->bytes, world, b->fabric,
                       weft_status_text(status), weft_status_name(status));
    for (int i = 0; i < world - 1; i++)
        if (others[i])
            ok = bench_wait(b, "collect", first + i, others[i], NULL) && ok;
    for (size_t i = 0; i < taken.count; i++)
        series_add(out, taken.values[i]);
    p->one_us = series_summary(&taken).min;
    series_fini(&taken);
    return ok;
}

static bool measure(bench *b, int operation, size_t bytes, int world)
{
    probe p = {.b = b, .bytes = bytes, .other = operation, .threads = (unsigned)world, .ours = collect};
    result r = result_of("collectives", service_collective_names[operation], "us", false);
    r.workers = world;
    return bench_measure(&p, &r);
}

bool measure_collectives(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof(usual) / sizeof(*usual), sizes);
    bool ok = true;
    for (int world = 2; ok && world <= b->world; world *= 2) {
        ok = measure(b, BARRIER, 0, world);
        for (int operation = ALLREDUCE; ok && operation < COLLECTIVES_COUNT; operation++)
            for (size_t i = 0; ok && i < count; i++)
                ok = measure(b, operation, sizes[i], world);
    }
    return ok;
}
