/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_end_job.c - weft_agent_end_job: rank 0 ends an elastic job, and a static one, for all workers. */
#include "rpc/stage.h"

/* What every worker finds once the job was ended, rank 0 included. */
static void must_be_over(weft_agent *agent)
{
    weft_future *future;
    weft_group *group;
    int to = weft_agent_rank(agent) ? 0 : 1;
    MUST_BE(weft_agent_status(agent), WEFT_ERR_JOB_ENDED);
    MUST(!weft_agent_alive(agent, 0) && !weft_agent_alive(agent, 1) && weft_agent_workers(agent, NULL, 0) == 0);
    MUST_BE(weft_rpc_async(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, NULL, &future), WEFT_ERR_JOB_ENDED);
    MUST_BE(weft_rpc_async(agent, weft_to_name("worker1"), "hold", WEFT_NO_VALUES, NULL, &future), WEFT_ERR_JOB_ENDED);
    MUST_BE(weft_agent_watch(agent, to), WEFT_ERR_JOB_ENDED);
    MUST_BE(weft_group_open(agent, "late", NULL, 0, 0, &group, NULL), WEFT_ERR_JOB_ENDED);
}

static weft_future *call_forever(weft_agent *agent, int rank, const char *function)
{
    weft_future *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), function, WEFT_NO_VALUES,
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &future));
    return future;
}

static void must_have_ended(weft_future *future)
{
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_JOB_ENDED);
    MUST(weft_error_ran(weft_future_error(future)) == WEFT_RAN_MAYBE); /* it may have run */
    MUST(strstr(weft_error_message(weft_future_error(future)), "enough"));
    weft_future_unref(future);
}

/* Actor 1 waits for a call; 2 closes with one in flight; 3 comes when all is over, while rank 0 still serves the
 * store. */
static void elastic_job(stage *s, int actor)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    if (actor == 3) {
        weft_agent_options options = stage_options(s, 3, 3, NULL);
        stage_await_flag(s, 0, 1);
        MUST_BE(weft_agent_open(&options, &agent, &error), WEFT_ERR_JOB_ENDED);
        MUST(strstr(weft_error_message(error), "rank 0 ended the job: enough"));
        weft_error_unref(error);
        atomic_store(&s->flags[1], 1);
        return;
    }
    agent = stage_open(s, actor, actor, NULL);
    stage_await_workers(s, agent, 3);
    atomic_fetch_add(&s->flags[2], 1);
    stage_await_flag(s, 2, 3); /* all know all, before one leaves */
    if (actor == 0) {
        while (atomic_load(&s->held_count) < 2)
            stage_sleep_ms(s, 1);
        weft_future *own = call_forever(agent, 1, "hold");
        while (atomic_load(&s->held_count) < 3)
            stage_sleep_ms(s, 1);
        weft_future *to_itself = call_forever(agent, 0, "hold");
        while (atomic_load(&s->held_count) < 4)
            stage_sleep_ms(s, 1);
        MUST_OK(weft_agent_end_job(agent, "enough"));
        stage_await_news(s, 0, WEFT_MEMBER_JOB_ENDED, 0, 1);
        must_have_ended(own);
        must_have_ended(to_itself);
        must_be_over(agent);
        MUST(weft_call_cancelled(s->held[0]) && weft_call_cancelled(s->held[1]));
        MUST_OK(weft_agent_end_job(agent, NULL)); /* it is, already */
        atomic_store(&s->flags[0], 1);
        stage_await_flag(s, 1, 1);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        for (int i = 0; i < 4; i++)
            weft_call_finish(s->held[i], WEFT_OK);
        return;
    }
    weft_future *future = call_forever(agent, 0, "hold");
    if (actor == 1) {
        MUST_BE(weft_agent_end_job(agent, NULL), WEFT_ERR_STATE);
        must_have_ended(future);
        stage_await_news(s, 1, WEFT_MEMBER_JOB_ENDED, 0, 1);
        must_be_over(agent);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    must_have_ended(future);
    stage_await_news(s, 2, WEFT_MEMBER_JOB_ENDED, 0, 1);
}

STAGE_TEST(elastic_job, 4, 20, 3)

/* ---- Static jobs ------------------------------------------------------------------------------------------------- */

static world *scene;
static atomic_int told, began;
static weft_rref *_Atomic left_over;
static weft_group *_Atomic left_open;

static void count(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    MUST(event != WEFT_MEMBER_STORE_LOST && event != WEFT_MEMBER_SELF_EVICTED);
    if (event != WEFT_MEMBER_JOB_ENDED)
        return;
    MUST(rank == 0 && strcmp(why, "done") == 0);
    atomic_fetch_add(&told, 1);
}

static void listen(weft_agent_options *options, void *arg)
{
    options->on_membership = count;
    options->leaks_fail = true; /* which does not count once the job was ended */
}

static void begin(world *w)
{
    scene = w;
    atomic_store(&told, 0);
    atomic_store(&began, 0);
}

static void all_were_told(world *w)
{
    assert_int_equal(atomic_load(&told), w->size);
    weft_rref_unref(atomic_exchange(&left_over, NULL));
    weft_group_close(atomic_exchange(&left_open, NULL));
}

static weft_status run_seven(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(7)));
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "seven", .gives = {WEFT_TYPE_I64}, .run = run_seven}};

/* All but rank 0 wait in a group operation without a limit, or return and close; one has a reference left. */
static void static_job(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_group *group;
    weft_rref *rref;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    if (me == 1) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "seven", WEFT_NO_VALUES, NULL, &rref));
        atomic_store(&left_over, rref);
    }
    atomic_fetch_add(&began, 1);
    if (me == 0) {
        while (atomic_load(&began) < 4)
            world_sleep_ms(scene, 1);
        world_sleep_ms(scene, 20);
        MUST_OK(weft_agent_end_job(agent, "done"));
    } else if (me != 3) {
        MUST_BE(weft_group_barrier(group, WEFT_FOREVER), WEFT_ERR_JOB_ENDED);
    }
    if (me < 3)
        while (atomic_load(&told) < 3)
            world_sleep_ms(scene, 1);
    if (me == 3)
        atomic_store(&left_open, group); /* closing it would end the others' barrier */
    else
        weft_group_close(group);
}

WORLD_TEST(static_job, 20, 3, WORLD_FUNCTIONS(functions), .size = 4, .adjust = listen, .begin = begin,
           .end = all_were_told)

static void no_agent(void **state)
{
    assert_int_equal(weft_agent_end_job(NULL, "why"), WEFT_ERR_INVALID);
}

UNIT_MAIN(test_elastic_job, test_static_job, no_agent)
