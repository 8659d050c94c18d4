/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_log.c - the log of two workers of one call that fails: each line says whose it is, and about which call. */
#include "rpc/world.h"

#include <pthread.h>

#define CALLS 3

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lines { /* those about "fail", by rank; under the lock */
    int count;
    unsigned long long ids[CALLS];
} seen[2];

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    int rank = -1;
    unsigned long long id = 0;
    if (!strstr(line, "\"fail\""))
        return;
    if (sscanf(line, "rank %d call %llu: ", &rank, &id) != 2 || rank < 0 || rank > 1)
        fprintf(stderr, "whose is \"%s\"?\n", line);
    MUST(rank == 0 || rank == 1);
    MUST(strstr(line, rank ? "served for rank 0" : "of rank 1 ended with REMOTE"));
    pthread_mutex_lock(&lock);
    MUST(seen[rank].count < CALLS);
    seen[rank].ids[seen[rank].count++] = id;
    pthread_mutex_unlock(&lock);
}

static weft_status run_fail(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "on purpose");
    return WEFT_ERR_SHAPE;
}

static const weft_function functions[] = {{.name = "fail", .run = run_fail}};

static void program(weft_agent *agent, void *arg)
{
    for (int i = 0; weft_agent_rank(agent) == 0 && i < CALLS; i++)
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "fail", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
}

static void run_on(world_fabric fabric)
{
    world w = {.fabric = fabric, .size = 2, .seed = 4, WORLD_FUNCTIONS(functions), .program = program};
    memset(seen, 0, sizeof(seen));
    weft_logging_set_level(WEFT_LOG_DEBUG);
    weft_logging_set_sink(keep_line, NULL);
    world_run(&w);
    weft_logging_set_sink(NULL, NULL);
    weft_logging_set_level(WEFT_LOG_WARN);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(seen[rank].count, CALLS);
    for (int i = 0; i < CALLS; i++) {
        assert_true(seen[0].ids[i] > 0);
        assert_int_equal(seen[0].ids[i], seen[1].ids[i]); /* the caller's number, on both sides */
        assert_true(i == 0 || seen[0].ids[i] > seen[0].ids[i - 1]);
    }
}

static void lines_say_rank_and_call(void **state)
{
    run_on(WORLD_SIM);
    run_on(WORLD_TCP);
}

/* ---- Errors that nobody takes --------------------------------------------------------------------------------- */

static char last_error[512];

static void keep_error(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_ERROR)
        snprintf(last_error, sizeof(last_error), "%s", line);
}

/* Whether the log has this; it is empty afterwards. */
static bool was_logged(const char *text)
{
    bool was = strstr(last_error, text) != NULL;
    last_error[0] = 0;
    return was;
}

static void sentences_that_nobody_takes_are_logged(void **state)
{
    weft_agent *agent;
    weft_job *job;
    weft_error *error = NULL;
    weft_logging_set_sink(keep_error, NULL);
    weft_agent_options options = {.has_rank = true, .rank = 3, .world_size = 2, .master_port = world_free_port()};
    assert_int_equal(weft_agent_open(&options, &agent, NULL), WEFT_ERR_INVALID);
    assert_true(was_logged("rank 3 of world size 2"));
    assert_int_equal(weft_job_open(&(weft_job_options){.count = -1}, &job, NULL), WEFT_ERR_INVALID);
    assert_true(was_logged("count is -1: 0 to 65535"));
    assert_int_equal(weft_agent_open(&options, &agent, &error), WEFT_ERR_INVALID);
    assert_false(was_logged("rank 3")); /* it went to its taker */
    weft_error_unref(error);

    options = (weft_agent_options){.has_rank = true, .world_size = 1, .master_port = options.master_port};
    assert_int_equal(weft_agent_open(&options, &agent, NULL), WEFT_OK);
    weft_rpc_options call = {.timeout_ms = -7};
    assert_int_equal(weft_rpc_sync(agent, weft_to_rank(0), "fail", WEFT_NO_VALUES, &call, NULL), WEFT_ERR_INVALID);
    assert_true(was_logged("-7"));
    assert_int_equal(weft_rpc_sync(agent, weft_to_rank(9), "fail", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
    assert_false(was_logged("9")); /* that may happen to any program */
    weft_agent_stop(agent);
    weft_logging_set_sink(NULL, NULL);
}

/* ---- Calls to oneself ----------------------------------------------------------------------------------------- */

static struct ends { /* ids, in the order of the lines; under the lock */
    int count;
    unsigned long long ids[CALLS];
} calling, serving;

static void keep_own_line(weft_log_level level, const char *line, void *arg)
{
    unsigned long long id = 0;
    if (!strstr(line, "\"fail\""))
        return;
    MUST(sscanf(line, "rank 0 call %llu: ", &id) == 1);
    bool serves = strstr(line, "served for rank 0, ended with REMOTE: on purpose") != NULL;
    MUST(serves || strstr(line, "of rank 0 ended with REMOTE"));
    pthread_mutex_lock(&lock);
    struct ends *end = serves ? &serving : &calling;
    MUST(end->count < CALLS);
    end->ids[end->count++] = id;
    pthread_mutex_unlock(&lock);
}

static void call_oneself(weft_agent *agent, void *arg)
{
    for (int i = 0; i < CALLS; i++)
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "fail", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
}

static void run_alone_on(world_fabric fabric)
{
    world w = {.fabric = fabric, .size = 1, .seed = 4, WORLD_FUNCTIONS(functions), .program = call_oneself};
    calling = serving = (struct ends){0};
    weft_logging_set_level(WEFT_LOG_DEBUG);
    weft_logging_set_sink(keep_own_line, NULL);
    world_run(&w);
    weft_logging_set_sink(NULL, NULL);
    weft_logging_set_level(WEFT_LOG_WARN);
    assert_int_equal(calling.count, CALLS);
    assert_int_equal(serving.count, CALLS);
    for (int i = 0; i < CALLS; i++) {
        assert_true(calling.ids[i] > (i ? calling.ids[i - 1] : 0));
        assert_int_equal(calling.ids[i], serving.ids[i]);
    }
}

static void lines_about_calls_to_oneself_say_which(void **state)
{
    run_alone_on(WORLD_SIM);
    run_alone_on(WORLD_TCP);
}

/* ---- What only a code says ------------------------------------------------------------------------------------- */

static char last_line[512];

static void keep_last(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_WARN)
        snprintf(last_line, sizeof(last_line), "%s", line);
}

static void must_have_said(weft_status status, weft_status wanted, const char *text)
{
    MUST_BE(status, wanted);
    if (!strstr(last_line, text) || !strstr(last_line, "rank 0"))
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", last_line, text);
    MUST(strstr(last_line, text) && strstr(last_line, "rank 0"));
    last_line[0] = '\0';
}

static void refusals(weft_agent *agent, void *arg)
{
    static const int twice[] = {0, 0}, far[] = {0, 9};
    weft_group *group;
    weft_function good = {.name = "mine", .run = run_fail}, bad = good;
    MUST_OK(weft_agent_register(agent, &good));
    must_have_said(weft_agent_register(agent, &good), WEFT_ERR_EXISTS, "\"mine\": name is taken");
    must_have_said(weft_agent_register(agent, NULL), WEFT_ERR_INVALID, "is NULL");
    bad.name = "weft:x";
    must_have_said(weft_agent_register(agent, &bad), WEFT_ERR_INVALID, "begins with \"weft:\"");
    bad = (weft_function){.name = "no run"};
    must_have_said(weft_agent_register(agent, &bad), WEFT_ERR_INVALID, "\"no run\": run is NULL");
    bad = (weft_function){.name = "rest", .run = run_fail, .takes = {WEFT_TYPE_REST, WEFT_TYPE_I64}};
    must_have_said(weft_agent_register(agent, &bad), WEFT_ERR_INVALID, "takes goes on after WEFT_TYPE_REST");
    bad = (weft_function){.name = "flags", .run = run_fail, .flags = WEFT_FUNCTION_URGENT | WEFT_FUNCTION_LAZY};
    must_have_said(weft_agent_register(agent, &bad), WEFT_ERR_INVALID,
                   "flags is WEFT_FUNCTION_URGENT and WEFT_FUNCTION_LAZY");
    must_have_said(weft_group_open(agent, "a b", NULL, 0, 0, &group, NULL), WEFT_ERR_INVALID, "name is \"a b\"");
    must_have_said(weft_group_open(agent, "g", twice, 2, 0, &group, NULL), WEFT_ERR_INVALID,
                   "ranks[1] of \"g\" is 0, for the second");
    must_have_said(weft_group_open(agent, "g", far, 2, 0, &group, NULL), WEFT_ERR_NOT_FOUND, "ranks[1] of \"g\" is 9");
    must_have_said(weft_group_open(agent, "g", twice, 0, 0, &group, NULL), WEFT_ERR_INVALID, "count is 0");
}

static void a_refusal_says_which_field(void **state)
{
    world w = {.fabric = WORLD_SIM, .size = 1, .seed = 4, .program = refusals};
    weft_logging_set_sink(keep_last, NULL);
    world_run(&w);
    weft_logging_set_sink(NULL, NULL);
}

UNIT_MAIN(sentences_that_nobody_takes_are_logged, lines_say_rank_and_call, lines_about_calls_to_oneself_say_which,
          a_refusal_says_which_field)
