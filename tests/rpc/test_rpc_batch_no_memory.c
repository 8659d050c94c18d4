/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_no_memory.c - batches where memory is out for a moment: calls fail, or come in a smaller batch, and
 * what comes next is served as ever. The linker puts the functions below in the place of the library's.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);

enum { CALLS = 6, STEPS = 160 };

static int until_failure = -1; /* allocations that still succeed; -1: all */
static int failures;           /* how many fail then */
static int failed;

static bool fails(void)
{
    if (until_failure < 0 || (until_failure > 0 && until_failure--))
        return false;
    if (--failures <= 0)
        until_failure = -1;
    failed++;
    return true;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

/* ---- The job -------------------------------------------------------------------------------------------------- */

static world *now_in;
static int64_t columns;
static int ended, short_of, good;

/* Twice the row, and the number. */
static weft_status run_double(weft_batch *batch, void *user)
{
    weft_tape *t = weft_batch_tape(batch);
    weft_tensor *x = weft_batch_tensor(batch, 0);
    weft_batch_give(batch, 0, weft_add(t, x, x));
    weft_batch_give(batch, 1, weft_sum_dim(t, x, 1, false));
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "double",
                                           .takes = {WEFT_TYPE_TENSOR},
                                           .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
                                           .run_batch = run_double,
                                           .batch = {.size = 4, .wait_us = 200}},
                                          {.name = "double well",
                                           .takes = {WEFT_TYPE_TENSOR},
                                           .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_F64},
                                           .run_batch = run_double,
                                           .batch = {.size = 4, .wait_us = 500, .in_flight = 2}}};

static void check(const weft_values *values, double number)
{
    weft_tensor *got;
    double sum;
    MUST_OK(weft_values_get_tensor(values, 0, &got));
    MUST_OK(weft_values_get_f64(values, 1, &sum));
    MUST(sum == number * (double)columns && weft_tensor_numel(got) == columns);
    MUST(weft_tensor_get_f64(got, 0) == 2 * number && weft_tensor_get_f64(got, columns - 1) == 2 * number);
}

/* Some calls at once; with failing allocations from the `step`th on, of which there are so many. */
static void volley(weft_agent *agent, const char *function, int step, int many)
{
    weft_future *futures[CALLS];
    weft_tensor *x[CALLS];
    for (int i = 0; i < CALLS; i++)
        x[i] = tensor_full(WEFT_SHAPE(columns), WEFT_DTYPE_FLOAT32, i + 1);
    failures = many;
    failed = 0;
    until_failure = step;
    for (int i = 0; i < CALLS; i++) {
        futures[i] = NULL;
        weft_status status = weft_rpc_async(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_tensor(x[i])),
                                            &(weft_rpc_options){.timeout_ms = 500}, &futures[i]);
        MUST(status == WEFT_OK || (status == WEFT_ERR_MEMORY && failed));
    }
    for (int i = 0; i < CALLS; i++) {
        weft_status status = futures[i] ? weft_future_wait(futures[i], WEFT_FOREVER) : WEFT_ERR_MEMORY;
        MUST(status == WEFT_OK || failed);
        MUST(status != WEFT_ERR_PROTOCOL && status != WEFT_ERR_SHAPE && status != WEFT_ERR_TYPE);
        if (!status)
            check(weft_future_values(futures[i]), i + 1);
        good += !status;
        short_of +=
            status == WEFT_ERR_MEMORY || weft_error_handler_code(weft_future_error(futures[i])) == WEFT_ERR_MEMORY;
        weft_future_unref(futures[i]);
        weft_tensor_unref(x[i]);
    }
    until_failure = -1;
}

static void program(weft_agent *agent, void *arg)
{
    const char *function = arg;
    weft_batch_stats stats;
    weft_stats all;
    if (weft_agent_rank(agent) == 0) {
        while (ended < 1)
            world_sleep_ms(now_in, 1);
        MUST_OK(weft_batch_stats_read(agent, function, &stats));
        MUST(stats.waiting == 0 && stats.running == 0 && stats.batches > STEPS);
        weft_agent_stats(agent, &all);
        for (int i = 0; i < 20000 && all.bytes_held; i++) {
            world_sleep_ms(now_in, 1);
            weft_agent_stats(agent, &all);
        }
        MUST(all.bytes_held == 0);
        return;
    }
    volley(agent, function, -1, 0);
    for (int step = 0; step < STEPS; step++)
        volley(agent, function, step, 1 + step % 7);
    int before = good;
    volley(agent, function, -1, 0);
    MUST(good == before + CALLS);
    ended++;
}

static void run(const char *function, int64_t wide)
{
    for (uint64_t seed = 1; seed <= world_seeds(4); seed++) {
        world w = {.fabric = WORLD_SIM,
                   .size = 2,
                   .seed = seed,
                   WORLD_FUNCTIONS(functions),
                   .program = program,
                   .arg = (void *)function};
        now_in = &w;
        columns = wide;
        ended = short_of = good = 0;
        world_run(&w);
        assert_true(short_of > 20 && good > STEPS);
    }
}

static void test_small_rows(void **state)
{
    run("double", 10);
    run("double well", 10);
}

static void test_large_rows(void **state)
{
    run("double", 50000);
    run("double well", 50000);
}

UNIT_MAIN(test_small_rows, test_large_rows)
