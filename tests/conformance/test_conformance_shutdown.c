/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_shutdown.c - items 24 to 27: closing while others work, with trouble, at once, and opening
 * meanwhile. */
#include "conformance/conformance.h"

#include "unit.h"

static atomic_int closing, served, done;

static weft_status serve_slowly(weft_call *call, void *user)
{
    item_sleep_ms(3);
    atomic_fetch_add(&served, 1);
    return WEFT_OK;
}

/* Answers at once, and has work of its own to do elsewhere. */
static weft_status serve_follow_up(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_future *future = NULL;
    weft_status status = weft_rpc_async(agent, weft_to_rank(next_rank(agent)), "slowly", WEFT_NO_VALUES, NULL, &future);
    MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT); /* in item 25 */
    if (!status)
        weft_future_unref(future);
    return WEFT_OK;
}

/* A whole other job, of one worker, opened and closed in a handler while its caller waits. */
static weft_status serve_open_another(weft_call *call, void *user)
{
    weft_agent *agent = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .rank = 0,
                                  .world_size = 1,
                                  .fabric = "tcp",
                                  .functions = user,
                                  .function_count = 1,
                                  .master_port = world_free_port(),
                                  .rendezvous_timeout_ms = ITEM_PATIENCE_MS};
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(ask(agent, weft_to_rank(0), "rank", WEFT_NO_VALUES))));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return WEFT_OK;
}

static const weft_function rank_function = {.name = "rank", .gives = {WEFT_TYPE_I64}, .run = serve_rank};
static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "slowly", .run = serve_slowly},
    {.name = "follow up", .run = serve_follow_up},
    {.name = "open another", .gives = {WEFT_TYPE_I64}, .run = serve_open_another, .user = (void *)&rank_function},
};

static void reset(void)
{
    atomic_store(&closing, 0);
    atomic_store(&served, 0);
    atomic_store(&done, 0);
}

/* ---- 24: the idle wait for the busy --------------------------------------------------------------------------- */

/* Three have nothing to do and close at once. The fourth goes on calling them, and they each other. */
static void uneven_work(weft_agent *agent, void *arg)
{
    atomic_fetch_add(&closing, 1);
    if (weft_agent_rank(agent) != 0)
        return;
    item_await(&closing, WORKERS);
    item_sleep_ms(20); /* long enough for the others to be waiting in their close */
    for (int i = 0; i < 10; i++)
        for (int to = 0; to < WORKERS; to++)
            tell(agent, weft_to_rank(to), "follow up", WEFT_NO_VALUES);
}

static void all_work_was_done(void)
{
    assert_int_equal(atomic_load(&served), 10 * WORKERS);
    reset();
}

ITEM(item_24_graceful_with_uneven_work, .program = uneven_work, .after = all_work_was_done, ITEM_FUNCTIONS(functions))

/* ---- 25: closing late, twice as densely, and with trouble ----------------------------------------------------- */

/*
 * One is late: the others' close waits for it, without a limit of its own. All call all meanwhile, from their last
 * moment on. One does not close at all but stops: the others still come to an end, and without an error.
 */
static void late_and_dense(int rank)
{
    enum { DENSE = 50 };
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_future *futures[DENSE];
    MUST_OK(item_open(rank, NULL, &agent, &error));
    if (rank == 0)
        item_sleep_ms(100); /* late */
    for (int i = 0; i < DENSE; i++)
        futures[i] = start(agent, weft_to_rank(i % (WORKERS - 1)), "follow up", WEFT_NO_VALUES);
    if (rank == WORKERS - 1) { /* in the middle of its own calls, and of those of others to it */
        weft_agent_stop(agent);
        for (int i = 0; i < DENSE; i++) {
            weft_status status = weft_future_wait(futures[i], 0);
            MUST(status == WEFT_OK || status == WEFT_ERR_CLOSED);
        }
    } else {
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* waits for the calls */
        for (int i = 0; i < DENSE; i++)
            MUST_OK(weft_future_wait(futures[i], 0));
    }
    for (int i = 0; i < DENSE; i++)
        weft_future_unref(futures[i]);
}

ITEM(item_25_close_with_a_late_and_a_failing_worker, .body = late_and_dense, .after = reset, ITEM_FUNCTIONS(functions))

/* ---- 26: at once ---------------------------------------------------------------------------------------------- */

/* Nobody closes gracefully: stopping asks nobody, waits for nobody, and fails what is outstanding. */
static void local_shutdown(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    int next = next_rank(agent);
    MUST(ask(agent, weft_to_rank(next), "rank", WEFT_NO_VALUES) == next);
    weft_future *outstanding = start_for(agent, weft_to_rank(next), "hold", WEFT_NO_VALUES, WEFT_FOREVER);
    item_await(&held_count, WORKERS); /* all are served, none is answered */
    if (rank % 2) {
        item_sleep_ms(20); /* the others go first: their callers and callees hear of it */
        weft_status status = weft_future_wait(outstanding, ITEM_PATIENCE_MS);
        MUST_BE(status, WEFT_ERR_PEER_LEFT);
    }
    weft_agent_stop(agent);
    MUST(weft_future_done(outstanding));
    if (rank % 2 == 0)
        MUST_BE(weft_future_wait(outstanding, 0), WEFT_ERR_CLOSED);
    weft_future_unref(outstanding);
}

static void release_all(void)
{
    assert_int_equal(release_held(0), WORKERS);
    reset();
}

ITEM(item_26_local_shutdown, .body = local_shutdown, .after = release_all, ITEM_FUNCTIONS(functions))

/* ---- 27: waiting for a call keeps nobody from opening --------------------------------------------------------- */

static void one_worker(weft_agent_options *options)
{
    options->threads = 1;
}

static void open_while_waiting(weft_agent *agent, void *arg)
{
    weft_future *waiting = start(agent, weft_to_rank(next_rank(agent)), "hold", WEFT_NO_VALUES);
    MUST(ask(agent, weft_to_rank(next_rank(agent)), "open another", WEFT_NO_VALUES) == 0);
    atomic_fetch_add(&done, 1);
    item_await(&done, WORKERS);
    while (!weft_future_done(waiting)) {
        release_held(3);
        item_sleep_ms(1);
    }
    MUST(future_i64(waiting) == 3);
}

ITEM(item_27_waiting_does_not_block_opening, .program = open_while_waiting, .adjust = one_worker, .after = reset,
     .only_tcp = true, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_24_graceful_with_uneven_work, item_25_close_with_a_late_and_a_failing_worker, item_26_local_shutdown,
          item_27_waiting_does_not_block_opening)
