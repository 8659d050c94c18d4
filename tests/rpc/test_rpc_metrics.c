/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_metrics.c - what is counted and timed of calls, by API and as Prometheus text. */
#include "rpc/script.h"
#include "rpc/world.h"
#include "tensor/parallel.h"

#define ODD_NAME "odd \"name\"\\\n\x01 \xc3\xbc \xff{},="

static world *present; /* for handlers */

static void begin(world *w)
{
    present = w;
}

#define SCENE .size = 2, WORLD_FUNCTIONS(functions), .begin = begin

static weft_status run_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0))));
    return WEFT_OK;
}

static weft_status run_slow(weft_call *call, void *user)
{
    world_sleep_ms(present, 20);
    return WEFT_OK;
}

static atomic_bool has_timed_out; /* the call of rank 0 to rank 1 */

/* A call to oneself ends with its handler only: that returns when the time limit has ended the call. */
static weft_status run_late(weft_call *call, void *user)
{
    if (weft_call_from(call) == weft_agent_rank(weft_call_agent(call))) {
        weft_future *ended = weft_call_cancellation(call);
        MUST_BE(weft_future_wait(ended, 20000), WEFT_ERR_TIMEOUT);
        weft_future_unref(ended);
    } else {
        while (!atomic_load(&has_timed_out))
            world_sleep_ms(present, 1);
    }
    return WEFT_OK;
}

static weft_status run_fail(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "on purpose");
    return WEFT_ERR_SHAPE;
}

static weft_status run_served(weft_call *call, void *user)
{
    weft_call_metrics seen;
    MUST_OK(weft_metrics_read(weft_call_agent(call), WEFT_METRIC_SERVED, weft_call_from(call),
                              weft_call_string(call, 0), &seen));
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)seen.count), weft_of_i64((int64_t)seen.failed),
                                     weft_of_i64((int64_t)seen.p50_ns)));
    return WEFT_OK;
}

static weft_status run_served_in_all(weft_call *call, void *user)
{
    weft_stats stats;
    weft_agent_stats(weft_call_agent(call), &stats);
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)stats.calls_served)));
    return WEFT_OK;
}

static weft_status run_stream(weft_call *call, void *user)
{
    return weft_call_send_item(call, WEFT_NO_VALUES);
}

static const weft_function functions[] = {
    {.name = "echo", .run = run_echo, .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}},
    {.name = "slow", .run = run_slow},
    {.name = "late", .run = run_late},
    {.name = "stream", .run = run_stream},
    {.name = "served in all", .run = run_served_in_all, .gives = {WEFT_TYPE_I64}},
    {.name = "fail", .run = run_fail},
    {.name = ODD_NAME, .run = run_fail, .flags = WEFT_FUNCTION_INLINE},
    {.name = "served",
     .run = run_served,
     .takes = {WEFT_TYPE_STRING},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64}},
};

static void call_times(weft_agent *agent, int rank, const char *function, weft_args arguments, int times,
                       weft_status wanted)
{
    for (int i = 0; i < times; i++)
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), function, arguments, NULL, NULL), wanted);
}

static weft_call_metrics read_calls(weft_agent *agent, int rank, const char *function)
{
    weft_call_metrics seen;
    MUST_OK(weft_metrics_read(agent, WEFT_METRIC_CALLS, rank, function, &seen));
    return seen;
}

/* What the peer has counted of ours. */
static void served_there(weft_agent *agent, const char *function, int64_t *count, int64_t *failed, int64_t *p50_ns)
{
    weft_values *values = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "served", WEFT_VALUES(weft_of_string(function)), NULL, &values));
    MUST_OK(weft_values_get_i64(values, 0, count));
    MUST_OK(weft_values_get_i64(values, 1, failed));
    MUST_OK(weft_values_get_i64(values, 2, p50_ns));
    weft_values_unref(values);
}

static int64_t served_in_all(weft_agent *agent, int rank)
{
    weft_values *values = NULL;
    int64_t count;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "served in all", WEFT_NO_VALUES, NULL, &values));
    MUST_OK(weft_values_get_i64(values, 0, &count));
    weft_values_unref(values);
    return count;
}

static void count_both_sides(weft_agent *agent, void *arg)
{
    int64_t count, failed, p50_ns;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_call_metrics seen = read_calls(agent, 1, "echo");
    MUST(seen.count == 0 && seen.max_ns == 0);
    call_times(agent, 1, "echo", WEFT_VALUES(weft_of_i64(4)), 50, WEFT_OK);
    call_times(agent, 1, "fail", WEFT_NO_VALUES, 3, WEFT_ERR_REMOTE);
    call_times(agent, 1, "nobody has it", WEFT_NO_VALUES, 2, WEFT_ERR_NOT_FOUND);
    call_times(agent, 1, "slow", WEFT_NO_VALUES, 1, WEFT_OK);
    call_times(agent, 0, "echo", WEFT_VALUES(weft_of_i64(4)), 7, WEFT_OK);
    seen = read_calls(agent, 1, "echo");
    MUST(seen.count == 50 && seen.failed == 0);
    MUST(seen.min_ns > 0 && seen.min_ns <= seen.p50_ns && seen.p50_ns <= seen.p90_ns && seen.p90_ns <= seen.p99_ns);
    MUST(seen.p99_ns <= seen.p999_ns && seen.p999_ns <= seen.max_ns);
    MUST(seen.min_ns <= seen.mean_ns && seen.mean_ns <= seen.max_ns);
    seen = read_calls(agent, 1, "fail");
    MUST(seen.count == 3 && seen.failed == 3);
    seen = read_calls(agent, 1, "slow");
    MUST(seen.count == 1 && seen.min_ns >= 20000000u);
    MUST(read_calls(agent, 0, "echo").count == 7);
    MUST(read_calls(agent, -1, "echo").count == 57);
    MUST(read_calls(agent, 1, NULL).count == 56);
    seen = read_calls(agent, -1, NULL);
    MUST(seen.count == 63 && seen.failed == 5);
    MUST_OK(weft_metrics_read(agent, WEFT_METRIC_SERVED, 0, "echo", &seen));
    MUST(seen.count == 7 && seen.failed == 0); /* those to ourselves */
    served_there(agent, "echo", &count, &failed, &p50_ns);
    MUST(count == 50 && failed == 0);
    served_there(agent, "fail", &count, &failed, &p50_ns);
    MUST(count == 3 && failed == 3);
    served_there(agent, "slow", &count, &failed, &p50_ns);
    MUST(count == 1 && p50_ns >= 20000000 - 20000000 / 32);
    if (present->fabric == WORLD_SIM) /* there is nothing else in virtual time */
        MUST(p50_ns <= 20000000 + 20000000 / 32);
}

WORLD_TEST(count_both_sides, 1, 1, SCENE)

/* Only a call whose handler ran counts as served. */
static void refused_is_not_served(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    for (int rank = 0; rank < 2; rank++) {
        int64_t before = served_in_all(agent, rank);
        call_times(agent, rank, "nobody has it", WEFT_NO_VALUES, 2, WEFT_ERR_NOT_FOUND);
        call_times(agent, rank, "echo", WEFT_VALUES(weft_of_f64(4)), 3, WEFT_ERR_TYPE);
        MUST(served_in_all(agent, rank) == before + 1); /* the first question, which was not finished when it counted */
        call_times(agent, rank, "echo", WEFT_VALUES(weft_of_i64(4)), 1, WEFT_OK);
        call_times(agent, rank, "fail", WEFT_NO_VALUES, 1, WEFT_ERR_REMOTE);
        MUST(served_in_all(agent, rank) == before + 4);
    }
}

WORLD_TEST(refused_is_not_served, 1, 1, SCENE)

static void time_out(weft_agent *agent, void *arg)
{
    weft_rpc_options soon = {.timeout_ms = 1};
    if (weft_agent_rank(agent) != 0)
        return;
    atomic_store(&has_timed_out, false); /* the scene may have run before, on another fabric */
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "late", WEFT_NO_VALUES, &soon, NULL), WEFT_ERR_TIMEOUT);
    atomic_store(&has_timed_out, true);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "late", WEFT_NO_VALUES, &soon, NULL), WEFT_ERR_TIMEOUT);
    weft_call_metrics seen = read_calls(agent, -1, "late");
    MUST(seen.count == 2 && seen.failed == 2);
    /* In real time the call is begun after its limit was computed, on a busy machine perhaps a millisecond later. */
    MUST(seen.min_ns >= (present->fabric == WORLD_SIM ? 1000000 - 1000000 / 32 : 1));
}

WORLD_TEST(time_out, 1, 1, SCENE)

static void take_long(const weft_values *part, void *arg)
{
    world_sleep_ms(present, 20);
}

static void stream(weft_agent *agent, void *arg)
{
    weft_rpc_options slowly = {.on_item = take_long};
    if (weft_agent_rank(agent) != 0)
        return;
    for (int rank = 0; rank < 2; rank++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "stream", WEFT_NO_VALUES, &slowly, NULL));
        weft_call_metrics seen = read_calls(agent, rank, "stream");
        MUST(seen.count == 1 && seen.min_ns >= 20000000u);
    }
}

/* Also of a call to oneself, whose handler is long done then. */
WORLD_TEST(stream, 1, 1, SCENE)

/* ---- The text ------------------------------------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t size;
    char threads[128]; /* a sample of what was chosen */
} page;

static void write_page(weft_agent *agent, void *arg)
{
    page *out = arg;
    if (weft_agent_rank(agent) != 0)
        return;
    call_times(agent, 1, "echo", WEFT_VALUES(weft_of_i64(4)), 5, WEFT_OK);
    call_times(agent, 1, ODD_NAME, WEFT_NO_VALUES, 2, WEFT_ERR_REMOTE);
    call_times(agent, 1, "odd \"name\"\\\n\x01 \\xc3\xbc \xff{},=", WEFT_NO_VALUES, 1, WEFT_ERR_NOT_FOUND);
    call_times(agent, 0, "fail", WEFT_NO_VALUES, 1, WEFT_ERR_REMOTE);
    FILE *to = open_memstream(&out->text, &out->size);
    MUST_OK(weft_metrics_write(agent, to));
    fclose(to);
    snprintf(out->threads, sizeof(out->threads), "weft_compute_threads{rank=\"0\",worker=\"worker0\"} %d\n",
             wfi_cpu_threads());
}

static void must_contain(const char *samples, const char *line)
{
    if (!strstr(samples, line))
        fail_msg("no sample %s in:\n%s", line, samples);
}

static void give_budget(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = 123456789;
}

static void the_text_is_prometheus_own(world *w)
{
    page *out = w->arg;
    char *samples = script_run("prometheus_check.py", "", out->text, out->size);
    assert_non_null(samples);
    must_contain(samples, "weft_calls_total{function=\"echo\",outcome=\"ok\",peer=\"1\",rank=\"0\",side=\"caller\","
                          "worker=\"worker0\"} 5\n");
    must_contain(samples, "outcome=\"remote\",peer=\"0\",rank=\"0\",side=\"callee\",worker=\"worker0\"} 1\n");
    must_contain(samples, "weft_call_seconds_count{function=\"echo\",peer=\"1\",rank=\"0\",side=\"caller\","
                          "worker=\"worker0\"} 5\n");
    must_contain(samples,
                 "function=\"odd \\\"name\\\"\\\\\\\\\\n\\\\x01 \\\\xc3\\\\xbc \\\\xff{},=\",outcome=\"remote\"");
    must_contain(samples, "weft_calls_started_total{rank=\"0\",worker=\"worker0\"} 9\n");
    must_contain(samples, "weft_calls_failed_total{rank=\"0\",worker=\"worker0\"} 4\n");
    must_contain(samples, "weft_memory_budget_bytes{rank=\"0\",worker=\"worker0\"} 123456789\n");
    must_contain(samples, out->threads);
    free(samples);
    free(out->text);
}

static void test_write_page(void **state)
{
    page out;
    world_play(
        &(world){SCENE, .program = write_page, .adjust = give_budget, .arg = &out, .end = the_text_is_prometheus_own},
        1, 1);
}

static void read_nothing(weft_agent *agent, void *arg)
{
    weft_call_metrics seen = {.count = 1};
    MUST_BE(weft_metrics_read(agent, WEFT_METRIC_CALLS, -1, NULL, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_metrics_read(NULL, WEFT_METRIC_CALLS, -1, NULL, &seen), WEFT_ERR_INVALID);
    MUST(seen.count == 0);
    MUST_BE(weft_metrics_read(agent, (weft_metric_side)2, -1, NULL, &seen), WEFT_ERR_INVALID);
    MUST_BE(weft_metrics_write(agent, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_metrics_write(NULL, stdout), WEFT_ERR_INVALID);
}

WORLD_TEST(read_nothing, 1, 0, .size = 1, WORLD_FUNCTIONS(functions))

/* A full device: the failure is told. */
static void write_nowhere(weft_agent *agent, void *arg)
{
    FILE *full = fopen("/dev/full", "w");
    MUST(full);
    MUST_BE(weft_metrics_write(agent, full), WEFT_ERR_IO);
    fclose(full);
}

WORLD_TEST(write_nowhere, 1, 1, .size = 1, WORLD_FUNCTIONS(functions))

/* ---- The table ------------------------------------------------------------------------------------------------ */

enum { ROWS = 4096, MORE = 100 };

static void call_very_many(weft_agent *agent, void *arg)
{
    char *text, name[32], line[128];
    size_t size;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int i = 0; i < ROWS + MORE; i++) {
        snprintf(name, sizeof(name), "function %d", i);
        call_times(agent, 1, name, WEFT_NO_VALUES, 1, WEFT_ERR_NOT_FOUND);
    }
    call_times(agent, 1, "function 3", WEFT_NO_VALUES, 1, WEFT_ERR_NOT_FOUND); /* the old ones go on */
    for (int i = 0; i < ROWS + MORE; i++) {
        snprintf(name, sizeof(name), "function %d", i);
        weft_call_metrics seen = read_calls(agent, 1, name);
        MUST(seen.count == (i == 3 ? 2 : i < ROWS) && seen.failed == seen.count);
    }
    MUST(read_calls(agent, -1, NULL).count == ROWS + MORE + 1);
    FILE *to = open_memstream(&text, &size);
    MUST_OK(weft_metrics_write(agent, to));
    fclose(to);
    snprintf(line, sizeof(line), "peer=\"other\",function=\"other\"} %d\n", MORE);
    MUST(strstr(text, line));
    free(text);
}

WORLD_TEST(call_very_many, 1, 0, .size = 2)

UNIT_MAIN(test_count_both_sides, test_refused_is_not_served, test_time_out, test_write_page, test_stream,
          test_read_nothing, test_write_nowhere, test_call_very_many)
