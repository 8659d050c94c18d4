/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_full_queue.c - a worker stands still, and what is sent to it fills its queue: who calls it is told so at
 * once, or waits no longer than its time limit; everybody else goes on; and what was taken is done when it goes on.
 * On the simulation, and with processes on tcp, where this program is its own child.
 */
#include "children.h"
#include "rpc/world.h"
#include "tensors.h"

#include <signal.h>

#define QUEUE_BYTES 65536
#define PIECE 900       /* bytes of a call: it travels in the frame */
#define CALL_BYTES 8192 /* what one call holds at its caller is less */
#define CALLS_MAX 4096
#define LIMIT_MS 300
#define SLACK_MS 20000 /* where time is real: a busy machine */

static world *scene; /* of the simulation; NULL: a process of its own */
static atomic_bool over;
static atomic_int refusals;

static weft_status run_length(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)strlen(weft_call_string(call, 0)))));
    return WEFT_OK;
}

static weft_status run_over(weft_call *call, void *user)
{
    atomic_store(&over, true);
    return WEFT_OK;
}

/* The first time. */
static weft_status run_refuse(weft_call *call, void *user)
{
    return atomic_fetch_add(&refusals, 1) == 0 ? WEFT_ERR_BUSY : WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "length", .takes = {WEFT_TYPE_STRING}, .gives = {WEFT_TYPE_I64}, .run = run_length},
    {.name = "over", .run = run_over},
    {.name = "refuse", .run = run_refuse},
};

static void adjust(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = QUEUE_BYTES;
    options->death_timeout_ms = WEFT_FOREVER; /* it is not dead, and nobody shall think so */
}

static void stop_rank_1(void)
{
    if (scene) {
        weft_sim_pause(scene->sim, 1);
        return;
    }
    child_say('s');
    child_await_order('s');
}

static void continue_rank_1(void)
{
    if (scene) {
        weft_sim_resume(scene->sim, 1);
        return;
    }
    child_say('c');
    child_await_order('c');
}

static int64_t ms_since(weft_agent *agent, uint64_t began)
{
    return (int64_t)((weft_agent_now_ns(agent) - began) / 1000000);
}

/* It ends after its limit and, in virtual time, soon after that. */
static void must_be_bounded(weft_agent *agent, uint64_t began, int64_t limit_ms)
{
    int64_t took = ms_since(agent, began);
    MUST(took >= limit_ms && took <= limit_ms + (scene ? 50 : SLACK_MS));
}

static char piece[PIECE + 1];

static weft_status call_length(weft_agent *agent, int rank, weft_rpc_options options, weft_future **out)
{
    return weft_rpc_async(agent, weft_to_rank(rank), "length", WEFT_VALUES(weft_of_string(piece)), &options, out);
}

static void must_work(weft_agent *agent, int rank)
{
    weft_future *future;
    int64_t length;
    MUST_OK(call_length(agent, rank, (weft_rpc_options){.timeout_ms = SLACK_MS, .wait_for_room = true}, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &length));
    MUST(length == PIECE);
    weft_future_unref(future);
}

/* Until there is no room: which is soon. Every other one has a limit. */
static int fill(weft_agent *agent, weft_future **futures)
{
    int count = 0;
    weft_status status = WEFT_OK;
    while (!status && count < CALLS_MAX) {
        weft_rpc_options options = {.timeout_ms = count % 2 ? LIMIT_MS : WEFT_FOREVER};
        status = call_length(agent, 1, options, &futures[count]);
        count += !status;
    }
    MUST_BE(status, WEFT_ERR_AGAIN);
    return count;
}

/* The first attempt waits here for room until its own limit, the next one behind the future until that of the call. */
static void be_late(weft_agent *agent, int64_t attempt_ms)
{
    weft_future *future;
    uint64_t began = weft_agent_now_ns(agent);
    weft_rpc_options options = {.timeout_ms = LIMIT_MS / 6, .wait_for_room = true};
    options.retry = (weft_retry){.attempts = 100, .pause_ms = 5, .attempt_ms = attempt_ms};
    MUST_OK(call_length(agent, 1, options, &future));
    must_be_bounded(agent, began, attempt_ms);
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    must_be_bounded(agent, began, attempt_ms); /* sooner than its limit if no pause fits in */
    weft_future_unref(future);
}

/* What needs room there, and has none. */
static void be_refused(weft_agent *agent)
{
    weft_future *future;
    weft_rref *rref;
    uint64_t began = weft_agent_now_ns(agent);
    MUST_BE(call_length(agent, 1, (weft_rpc_options){0}, &future), WEFT_ERR_AGAIN);
    weft_args args = WEFT_VALUES(weft_of_string(piece));
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "length", args, NULL, NULL), WEFT_ERR_AGAIN);
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(1), "length", args, NULL, &rref), WEFT_ERR_AGAIN);
    must_be_bounded(agent, began, 0);
    began = weft_agent_now_ns(agent);
    weft_rpc_options waits = {.timeout_ms = LIMIT_MS / 3, .wait_for_room = true};
    MUST_BE(call_length(agent, 1, waits, &future), WEFT_ERR_TIMEOUT);
    must_be_bounded(agent, began, LIMIT_MS / 3);
    began = weft_agent_now_ns(agent);
    weft_rpc_options retries = {.timeout_ms = LIMIT_MS / 3, .retry = {.attempts = 3, .pause_ms = 5}};
    weft_status status = call_length(agent, 1, retries, &future);
    if (!status) {
        status = weft_future_wait(future, WEFT_FOREVER);
        weft_future_unref(future);
    }
    MUST(status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_AGAIN);
    must_be_bounded(agent, began, 0);
    for (int64_t attempt_ms = LIMIT_MS / 18; attempt_ms <= LIMIT_MS / 6; attempt_ms *= 3)
        be_late(agent, attempt_ms);
}

static void rank_0(weft_agent *agent)
{
    static weft_future *futures[CALLS_MAX];
    must_work(agent, 1);
    stop_rank_1();
    uint64_t began = weft_agent_now_ns(agent);
    int count = fill(agent, futures);
    MUST(count >= QUEUE_BYTES / CALL_BYTES && count <= QUEUE_BYTES / PIECE);
    be_refused(agent);
    must_work(agent, 2); /* the others are there as ever */
    must_work(agent, 0);
    for (int i = 1; i < count; i += 2)
        MUST_BE(weft_future_wait(futures[i], WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    must_be_bounded(agent, began, LIMIT_MS);
    for (int i = 0; i < count; i += 2)
        MUST(!weft_future_done(futures[i]));
    continue_rank_1();
    for (int i = 0; i < count; i++) {
        if (i % 2 == 0)
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    must_work(agent, 1);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "over", WEFT_NO_VALUES, NULL, NULL));
}

/* Rank 2 calls rank 0 all the while, which answers in time. */
static void rank_2(weft_agent *agent)
{
    while (!atomic_load(&over)) {
        uint64_t began = weft_agent_now_ns(agent);
        must_work(agent, 0);
        must_be_bounded(agent, began, 0);
        if (scene)
            world_sleep_ms(scene, 1);
    }
}

static void one_stands_still(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        rank_0(agent);
    else if (weft_agent_rank(agent) == 2)
        rank_2(agent);
}

static void begin(world *w)
{
    scene = w;
    atomic_store(&over, false);
}

#define SCENE WORLD_FUNCTIONS(functions), .adjust = adjust, .begin = begin
WORLD_TEST(one_stands_still, 10, 0, SCENE, .size = 3)

/* ---- Trying again --------------------------------------------------------------------------------------------- */

/* An attempt that finds no room waits for it until the call's limit, and is not counted. */
static void try_again(weft_agent *agent, bool in_time)
{
    static weft_future *futures[CALLS_MAX];
    weft_future *future;
    weft_stats before, after;
    weft_rpc_options options = {
        .timeout_ms = LIMIT_MS, .wait_for_room = true, .retry = {.attempts = 2, .pause_ms = 50}};
    uint64_t began = weft_agent_now_ns(agent);
    atomic_store(&refusals, 0);
    weft_agent_stats(agent, &before);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "refuse", WEFT_NO_VALUES, &options, &future));
    while (!atomic_load(&refusals))
        world_sleep_ms(scene, 1);
    world_sleep_ms(scene, 10); /* the answer is here; the pause lasts on */
    stop_rank_1();
    int count = fill(agent, futures);
    MUST_BE(weft_future_wait(future, LIMIT_MS - 50), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(future));
    if (in_time)
        continue_rank_1();
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), in_time ? WEFT_OK : WEFT_ERR_TIMEOUT);
    weft_agent_stats(agent, &after);
    MUST(!in_time || after.calls_retried == before.calls_retried + 1);
    if (!in_time) {
        must_be_bounded(agent, began, LIMIT_MS);
        MUST(strstr(weft_error_message(weft_future_error(future)), "no room in the queue to rank 1"));
        continue_rank_1();
    }
    weft_future_unref(future);
    for (int i = 0; i < count; i++) {
        if (i % 2 == 0)
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
}

static void tries_again(weft_agent *agent, void *arg)
{
    for (int i = 0; weft_agent_rank(agent) == 0 && i < 2; i++)
        try_again(agent, i == 0);
}

WORLD_TEST(tries_again, 10, 0, SCENE, .size = 2)

/* ---- Processes ------------------------------------------------------------------------------------------------ */

static int child_works(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .rendezvous_timeout_ms = 20000,
                                  .no_binding = true};
    adjust(&options, NULL);
    weft_status status = weft_agent_open(&options, &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    one_stands_still(agent, NULL);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* The number of calls. */
static weft_status run_meet(weft_batch *batch, void *user)
{
    for (size_t i = 0; i < weft_batch_count(batch); i++)
        weft_call_give(weft_batch_call(batch, i), WEFT_VALUES(weft_of_i64((int64_t)weft_batch_count(batch))));
    return WEFT_OK;
}

static const weft_function meeting[] = {
    {.name = "meet",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run_batch = run_meet,
     .batch = {.size = 2, .wait_us = 20000, .callers = (const int[]){1, 2}, .caller_count = 2, .one_per_caller = true}},
    {.name = "over", .run = run_over},
};

static weft_status meet(weft_agent *agent, weft_tensor *x)
{
    return weft_rpc_sync(agent, weft_to_rank(0), "meet", WEFT_VALUES(weft_of_tensor(x)),
                         &(weft_rpc_options){.timeout_ms = 2 * SLACK_MS}, NULL);
}

/* Rank 2 stands still, perhaps while its tensor is pulled: rank 1's batches begin without it. */
static int child_meets(void)
{
    weft_agent *agent;
    weft_agent_options options = {
        .functions = meeting, .function_count = 2, .rendezvous_timeout_ms = 20000, .no_binding = true};
    adjust(&options, NULL);
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    int rank = weft_agent_rank(agent);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(rank, 1 << 20), WEFT_DTYPE_FLOAT32);
    for (int i = 0; rank == 1 && i < 40; i++) {
        if (i == 20)
            stop_rank_1(); /* the parent stops rank 2 */
        MUST_OK(meet(agent, x));
    }
    if (rank == 1) {
        continue_rank_1();
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "over", WEFT_NO_VALUES, NULL, NULL));
    }
    while (rank == 2 && !atomic_load(&over))
        MUST_OK(meet(agent, x));
    weft_tensor_unref(x);
    MUST_OK(weft_agent_serve(agent, WEFT_FOREVER));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

static const child_role roles[] = {{"works", child_works}, {"meets", child_meets}};

/* Stops and continues a child when another one says so. */
static void stop_one(const char *role, int who, int stopped)
{
    child children[3];
    child_start_three(children, world_free_port(), role, role, role);
    child_hear(&children[who], 's');
    child_signal(&children[stopped], SIGSTOP);
    child_order(&children[who], 's');
    child_hear(&children[who], 'c');
    child_signal(&children[stopped], SIGCONT);
    child_order(&children[who], 'c');
    child_must_end_well(children, 3);
}

static void test_on_tcp(void **state)
{
    stop_one("works", 0, 1);
}

static void test_batches(void **state)
{
    stop_one("meets", 1, 2);
}

int main(int argc, char **argv)
{
    memset(piece, 'x', PIECE);
    int played = child_play(argc, argv, roles, 2);
    if (played >= 0)
        return played;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stands_still),
        cmocka_unit_test(test_tries_again),
        cmocka_unit_test(test_on_tcp),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
