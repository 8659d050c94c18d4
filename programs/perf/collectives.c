/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives.c - operations of groups of 2, 4, 8 ... workers, up to all workers of the job: the time of each operation
 * at the measuring worker. `bytes` is the size of the longer tensor of a member.
 */
#include "perf/bench.h"

#include <math.h>

static const size_t usual[] = {4096, 65536, 1 << 20, 16 << 20};

/* The same operations on all members; ours are timed. */
static bool collect(bench *b, int operation, size_t bytes, int64_t count, int world, series *out)
{
    weft_future *others[WORKERS_MAX] = {0};
    const char *name = service_collective_names[operation];
    int self = weft_agent_rank(b->agent), first = b->job ? 1 : 0;
    bool ok = true;
    for (int i = 0; i < world - 1 && ok; i++) {
        weft_error *error = NULL;
        weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .error = &error};
        weft_args arguments =
            WEFT_VALUES(weft_of_i64(operation), weft_of_i64((int64_t)bytes), weft_of_i64(count), weft_of_i64(world));
        weft_status st = weft_rpc_async(b->agent, weft_to_rank(first + i), "collect", arguments, &options, &others[i]);
        ok = !st || bench_fail(b, "collect", first + i, st, error);
    }
    weft_status st = ok ? service_collect(b->agent, operation, bytes, count, world, self, out) : WEFT_OK;
    if (st)
        ok = task_fail(b->to, "%s of %zu bytes over %d workers on %s: %s (%s)", name, bytes, world, b->fabric,
                       weft_status_text(st), weft_status_name(st));
    for (int i = 0; i < world - 1; i++)
        if (others[i])
            ok = bench_wait(b, "collect", first + i, others[i], NULL) && ok;
    return ok;
}

/* Two operations are tried first. Their time says how many fill the time of a result. */
static bool measure(bench *b, int operation, size_t bytes, int world)
{
    series tried = {0}, taken = {0};
    bool ok = collect(b, operation, bytes, 2, world, &tried);
    if (ok) {
        double count = b->o->seconds * 1e6 / series_summary(&tried).min;
        ok = collect(b, operation, bytes, (int64_t)fmin(fmax(count, 1), 100000), world, &taken);
    }
    if (ok) {
        result r = result_of("collectives", service_collective_names[operation], "us", false);
        result_fill(&r, &taken, (double)NAN, "");
        r.bytes = (int64_t)bytes;
        r.workers = world;
        bench_put(b, &r);
    }
    series_fini(&tried);
    series_fini(&taken);
    return ok;
}

bool measure_collectives(bench *b)
{
    size_t sizes[SIZES_MAX], count = settings_sizes(b->o, usual, sizeof usual / sizeof *usual, sizes);
    bool ok = true;
    for (int world = 2; ok && world <= b->world; world *= 2) {
        ok = measure(b, BARRIER, 0, world);
        for (int operation = ALLREDUCE; ok && operation < COLLECTIVES_COUNT; operation++)
            for (size_t i = 0; ok && i < count; i++)
                ok = measure(b, operation, sizes[i], world);
    }
    return ok;
}
