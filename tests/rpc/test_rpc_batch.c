/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch.c - handlers of many calls at once: rows land where they belong without a copy, results come back
 * by rows, and batches close by size, by time, and when all who are expected are in.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <stdatomic.h>
#include <string.h>

#define CALLERS 4
#define ROUNDS 20

static struct shared {
    world *w;
    int64_t columns;
    atomic_int batches, finished;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 60000};

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* [n, columns] float32 and a number each: row i times the number of call i, and the sum of the row. */
static weft_status run_scale(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    int64_t n = (int64_t)weft_batch_count(batch);
    weft_tensor *x = weft_batch_tensor(batch, 0);
    atomic_fetch_add(&shared.batches, 1);
    MUST(!weft_batch_tensor(batch, 1) && !weft_batch_tensor(batch, 2));
    MUST(weft_tensor_size(x, 0) == n && weft_tensor_is_contiguous(x));
    weft_tensor *factors = weft_tape_take(t, tensor_empty(WEFT_SHAPE(n, 1), WEFT_DTYPE_FLOAT32));
    for (int64_t i = 0; i < n; i++)
        ((float *)weft_tensor_data(factors))[i] = (float)weft_call_f64(weft_batch_call(batch, (size_t)i), 1);
    weft_batch_give(batch, 0, weft_mul(t, x, factors));
    weft_batch_give(batch, 1, weft_sum_dim(t, x, 1, false));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "by size",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .run_batch = run_scale,
     .batch = {.size = CALLERS, .wait_us = WEFT_FOREVER}},
    {.name = "by time",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .run_batch = run_scale,
     .batch = {.size = 100, .wait_us = 2000}},
    {.name = "by callers",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
     .run_batch = run_scale,
     .batch = {.size = 100, .wait_us = WEFT_FOREVER, .callers = (const int[]){1, 2, 3, 4}, .caller_count = CALLERS}},
};

/* ---- Callers -------------------------------------------------------------------------------------------------- */

static void call_once(weft_agent *agent, const char *function, weft_tensor *x, int round)
{
    double factor = weft_agent_rank(agent) * 10 + round, sum, wanted = 0;
    float *elements = weft_tensor_data(x);
    for (int64_t i = 0; i < shared.columns; i++)
        wanted += elements[i] = (float)((i + round) % 7);
    weft_values *values;
    weft_tensor *scaled;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_tensor(x), weft_of_f64(factor)),
                          &patient, &values));
    MUST_OK(weft_values_get_tensor(values, 0, &scaled));
    MUST_OK(weft_values_get_f64(values, 1, &sum));
    MUST(sum == wanted && weft_tensor_ndim(scaled) == 1 && weft_tensor_size(scaled, 0) == shared.columns);
    for (int64_t i = 0; i < shared.columns; i += 1 + shared.columns / 50)
        MUST(weft_tensor_get_f64(scaled, i) == (double)elements[i] * factor);
    weft_values_unref(values);
}

/* A text that `write` makes about the agent has the line. */
static void must_have(weft_agent *agent, weft_status (*write)(const weft_agent *, FILE *), const char *line)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(write(agent, to));
    MUST(fclose(to) == 0);
    if (!strstr(text, line))
        fprintf(stderr, "%s\nlacks %s\n", text, line);
    MUST(strstr(text, line));
    free(text);
}

static void must_be_in_the_texts(weft_agent *agent, const char *function, const weft_batch_stats *stats)
{
    char line[256], labels[128];
    snprintf(labels, sizeof(labels), "{rank=\"0\",worker=\"worker0\",function=\"%s\"", function);
    snprintf(line, sizeof(line), "\nweft_batches_total%s} %llu\n", labels, (unsigned long long)stats->batches);
    must_have(agent, weft_metrics_write, line);
    snprintf(line, sizeof(line), "\nweft_batch_closed_total%s,by=\"size\"} %llu\n", labels,
             (unsigned long long)stats->by_size);
    must_have(agent, weft_metrics_write, line);
    snprintf(line, sizeof(line), "\nweft_batch_size_sum%s} %llu\n", labels, (unsigned long long)stats->calls);
    must_have(agent, weft_metrics_write, line);
    snprintf(line, sizeof(line), "\nweft_batch_wait_seconds_count%s} %llu\n", labels, (unsigned long long)stats->calls);
    must_have(agent, weft_metrics_write, line);
    snprintf(line, sizeof(line), "{\"function\": \"%s\", \"waiting\": 0, \"running\": 0, \"batches\": %llu", function,
             (unsigned long long)stats->batches);
    must_have(agent, weft_debug_dump, line);
}

static void count_batches(weft_agent *agent, const char *function, bool exactly)
{
    weft_batch_stats stats;
    weft_stats all;
    while (atomic_load(&shared.finished) < CALLERS)
        world_sleep_ms(shared.w, 1);
    do { /* the last answer is out before its batch is over */
        world_sleep_ms(shared.w, 1);
        MUST_OK(weft_batch_stats_read(agent, function, &stats));
    } while (stats.running);
    weft_agent_stats(agent, &all);
    MUST(!shared.w->sim || stats.late_calls == 0);
    exactly = exactly && stats.late_calls == 0; /* a slow machine may take more than 10 ms for a row */
    MUST(stats.calls == (uint64_t)CALLERS * ROUNDS && stats.waiting == 0);
    MUST(stats.batches == (uint64_t)atomic_load(&shared.batches));
    MUST(!exactly || stats.batches == ROUNDS);
    MUST(stats.by_size + stats.by_time + stats.by_callers == stats.batches);
    MUST(stats.size_max <= CALLERS && stats.left_out == 0 && stats.refused == 0);
    must_be_in_the_texts(agent, function, &stats);
    MUST(!exactly || (stats.copied_bytes == 0 && all.bytes_copied == 0));
}

static void play(weft_agent *agent, void *arg)
{
    const char *function = arg;
    if (weft_agent_rank(agent) == 0) {
        count_batches(agent, function, strcmp(function, "by time") != 0);
        return;
    }
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(shared.columns), WEFT_DTYPE_FLOAT32);
    for (int round = 0; round < ROUNDS; round++)
        call_once(agent, function, x, round);
    weft_tensor_unref(x);
    atomic_fetch_add(&shared.finished, 1);
}

static void run(const char *function, int64_t columns)
{
    for (world_fabric fabric = 0; fabric < WORLD_FABRICS; fabric++) {
        world w = {.fabric = fabric,
                   .size = CALLERS + 1,
                   .seed = 5,
                   WORLD_FUNCTIONS(functions),
                   .program = play,
                   .arg = (void *)function};
        shared = (struct shared){.w = &w, .columns = columns};
        world_run(&w);
    }
}

static void closes_by_size(void **state)
{
    run("by size", 8);
}

static void large_rows_are_pulled_into_place(void **state)
{
    run("by size", 300000);
}

static void closes_by_time(void **state)
{
    run("by time", 8);
}

static void closes_when_all_are_in(void **state)
{
    run("by callers", 8);
}

UNIT_MAIN(closes_by_size, large_rows_are_pulled_into_place, closes_by_time, closes_when_all_are_in)
