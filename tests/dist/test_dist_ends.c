/* SPDX-License-Identifier: Apache-2.0 */
/* test_dist_ends.c - contexts end everywhere, also where the opener never heard of a holder. */
#include "dist/parameters.h"
#include "prng.h"

#define QUIET_MS 21000 /* after so long a holder has asked the opener */

static world *now; /* that plays */

static void begin(world *w)
{
    make_parameters(w);
    now = w;
}

/* (x) -> what rank 2 makes of x; the link to the caller is cut before the answer leaves */
static weft_status serve_cut_off(weft_call *call, void *user)
{
    (void)user;
    weft_values *results;
    weft_status status = weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), "times",
                                       WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))),
                                       &(weft_rpc_options){.tape = weft_call_tape(call)}, &results);
    if (status)
        return status;
    weft_call_give(call, weft_values_args(results));
    weft_values_unref(results);
    weft_sim_cut(now->sim, 0, 1);
    return WEFT_OK;
}

static weft_status of_call; /* to rank 2, by the handler below */

/* (x, ms before, ms after, dies) -> what rank 2 makes of x; so long it sleeps before and after it asks */
static weft_status serve_slowly(weft_call *call, void *user)
{
    (void)user;
    weft_values *results = NULL;
    world_sleep_ms(now, (int)weft_call_i64(call, 1));
    of_call = weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), "times",
                            WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))),
                            &(weft_rpc_options){.tape = weft_call_tape(call)}, &results);
    if (of_call)
        return of_call;
    world_sleep_ms(now, (int)weft_call_i64(call, 2));
    if (weft_call_bool(call, 3))
        weft_sim_kill(now->sim, weft_agent_rank(weft_call_agent(call)));
    weft_call_give(call, weft_values_args(results));
    weft_values_unref(results);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "slowly",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_BOOL},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_slowly},
    {.name = "cut off", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_cut_off},
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
};

/* Rank 1 names rank 2 in an answer that comes when its call has run out of time: nobody else tells the opener of
 * rank 2. */
static void news_in_a_late_answer(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    if (me == 0) {
        weft_context *c;
        weft_tensor *x = leaf_of(5, 7);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        MUST(weft_rpc_sync(agent, weft_to_rank(1), "cut off", WEFT_VALUES(weft_of_tensor(x)),
                           &(weft_rpc_options){.tape = t, .timeout_ms = 50}, NULL) == WEFT_ERR_TIMEOUT);
        weft_sim_heal(w->sim, 0, 1);
        world_sleep_ms(w, 50);
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_tensor_unref(x);
    } else {
        world_sleep_ms(w, 20);
        MUST(weft_agent_contexts(agent, NULL) == 1);
    }
    world_sleep_ms(w, QUIET_MS);
    MUST(weft_agent_contexts(agent, NULL) == 0);
}
WORLD_TEST(news_in_a_late_answer, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

/* However long nothing is called under it, an open context stays with whoever has something of it. */
static void a_context_that_stays_open(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_context *c = NULL;
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(5, 7);
        weft_values *results;
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "times", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.tape = t}, &results));
        world_sleep_ms(w, 3 * QUIET_MS);
        weft_dist_backward(t, weft_sum(t, result(results, 0)), NULL);
        MUST_OK(weft_tape_status(t));
        must_have_gradient(c, x, 4, -1);
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_values_unref(results);
        weft_tensor_unref(x);
    } else {
        world_sleep_ms(w, 2 * QUIET_MS);
        MUST(weft_agent_contexts(agent, NULL) == (weft_agent_rank(agent) == 2));
        world_sleep_ms(w, 2 * QUIET_MS);
        MUST(weft_agent_contexts(agent, NULL) == 0);
    }
}
WORLD_TEST(a_context_that_stays_open, 3, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

#define SOON_MS 9000 /* nobody has asked by then; deaths are known */

/* Calls rank 1, and closes the context before it answers. What became of the call. */
static weft_status close_early(weft_agent *agent, world *w, weft_args how, bool cut)
{
    weft_context *c;
    weft_future *answer;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    if (cut) { /* rank 2 is to hear of the end, and rank 1 not */
        weft_values *results;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "times", (weft_args){how.items, 1},
                              &(weft_rpc_options){.tape = t}, &results));
        weft_values_unref(results);
    }
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "slowly", how, &(weft_rpc_options){.tape = t}, &answer));
    world_sleep_ms(w, 20);
    if (cut)
        weft_sim_cut(w->sim, 0, 1);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    world_sleep_ms(w, 100);
    if (cut)
        weft_sim_heal(w->sim, 0, 1);
    weft_status status = weft_future_wait(answer, WEFT_FOREVER);
    weft_future_unref(answer);
    return status;
}

static void end_soon(weft_agent *agent, world *w)
{
    world_sleep_ms(w, SOON_MS);
    MUST(weft_agent_contexts(agent, NULL) == 0);
}

/* An answer names rank 2 when the context is over; its own result is not recorded any more. */
static void news_when_it_is_over(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(5, 7);
        MUST(close_early(agent, w, WEFT_VALUES(weft_of_tensor(x), weft_of_i64(0), weft_of_i64(50), weft_of_bool(false)),
                         false));
        weft_tensor_unref(x);
    }
    end_soon(agent, w);
}
WORLD_TEST(news_when_it_is_over, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

/* Rank 1, which has not heard of the end, calls rank 2, which has. */
static void a_call_that_comes_late(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(5, 7);
        of_call = WEFT_OK;
        MUST(close_early(agent, w, WEFT_VALUES(weft_of_tensor(x), weft_of_i64(60), weft_of_i64(0), weft_of_bool(false)),
                         true));
        MUST(of_call == WEFT_ERR_STATE);
        weft_tensor_unref(x);
    }
    end_soon(agent, w);
}
WORLD_TEST(a_call_that_comes_late, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

/* Nobody but rank 1, which dies, knows that rank 2 has a part. */
static void a_death_takes_news_along(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(5, 7);
        MUST(close_early(agent, w, WEFT_VALUES(weft_of_tensor(x), weft_of_i64(0), weft_of_i64(0), weft_of_bool(true)),
                         false));
        weft_tensor_unref(x);
    }
    end_soon(agent, w);
}
WORLD_TEST(a_death_takes_news_along, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters, .close_may_fail = true)

/* ---- The future of the end --------------------------------------------------------------------------------------- */

static weft_agent *agents[WORKERS];
static uint64_t draws; /* the state of `draw` */

static uint64_t draw(uint64_t below)
{
    return prng_below(&draws, below);
}

/* The others must be there when rank 0 looks at them. */
static void meet(weft_agent *agent, world *w)
{
    agents[weft_agent_rank(agent)] = agent;
    world_sleep_ms(w, 10);
}

/* When the future is complete, no worker has anything of a context. */
static void close_and_look_everywhere(weft_context *c, int dead)
{
    weft_future *gone;
    weft_context_close(c, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
    for (int rank = 0; rank < WORKERS; rank++)
        MUST(rank == dead || weft_agent_contexts(agents[rank], NULL) == 0);
}

/* Rank 0 closes while the handler on rank 1 works, which has called rank 2. The call was cancelled, has run out of
 * time, or is still under way. */
static void a_close_under_a_handler(weft_agent *agent, void *arg)
{
    world *w = arg;
    meet(agent, w);
    if (weft_agent_rank(agent) == 0) {
        for (int how = 0; how < 3; how++) {
            weft_context *c;
            weft_future *answer;
            weft_tensor *x = leaf_of(5, 7);
            MUST_OK(weft_context_open(agent, &c, NULL));
            weft_tape *t = weft_context_tape(c, NULL);
            MUST_OK(
                weft_rpc_async(agent, weft_to_rank(1), "slowly",
                               WEFT_VALUES(weft_of_tensor(x), weft_of_i64(0), weft_of_i64(3000), weft_of_bool(false)),
                               &(weft_rpc_options){.tape = t, .timeout_ms = how == 1 ? 50 : 0}, &answer));
            world_sleep_ms(w, 100);
            if (how == 0)
                MUST_OK(weft_future_cancel(answer));
            weft_tape_close(t);
            MUST(weft_agent_contexts(agents[2], NULL) == 1);
            uint64_t began = weft_agent_now_ns(agent);
            close_and_look_everywhere(c, -1);
            MUST(weft_agent_now_ns(agent) - began < 100000000); /* it does not wait for the handler */
            (void)!weft_future_wait(answer, WEFT_FOREVER);
            weft_future_unref(answer);
            weft_tensor_unref(x);
        }
        world_sleep_ms(w, 4000);
    } else {
        world_sleep_ms(w, 3 * SOON_MS);
    }
}
WORLD_TEST(a_close_under_a_handler, 20, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

/* (x, depth): sleeps now and then, and calls others without waiting for them, as deep as that. */
static weft_status serve_wander(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    int64_t depth = weft_call_i64(call, 1);
    if (draw(2))
        world_sleep_ms(now, (int)draw(8));
    for (uint64_t calls = depth ? draw(3) : 0; calls; calls--) {
        weft_future *answer;
        weft_rpc_options how = {
            .tape = t, .parent = draw(2) ? call : NULL, .timeout_ms = draw(3) ? 0 : 1 + (int64_t)draw(5)};
        if (!weft_rpc_async(weft_call_agent(call), weft_to_rank((int)draw(WORKERS)), "wander",
                            WEFT_VALUES(weft_of_tensor(y), weft_of_i64(depth - 1)), &how, &answer))
            weft_future_unref(answer);
    }
    if (draw(3) == 0)
        world_sleep_ms(now, (int)draw(4));
    return WEFT_OK;
}

static const weft_function wander = {.name = "wander", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .run = serve_wander};

/* Opens a context, calls under it, leaves some of the calls, and closes it at some moment. */
static void wander_and_close(weft_agent *agent, world *w, weft_tensor *x, int dead)
{
    weft_context *c;
    weft_future *answers[4];
    int count = 0;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    for (uint64_t calls = 1 + draw(4); calls; calls--) {
        weft_rpc_options how = {.tape = t, .timeout_ms = draw(2) ? 0 : 1 + (int64_t)draw(8)};
        count += !weft_rpc_async(agent, weft_to_rank((int)draw(WORKERS)), "wander",
                                 WEFT_VALUES(weft_of_tensor(x), weft_of_i64((int64_t)draw(4))), &how, &answers[count]);
    }
    for (int i = 0; i < count; i++)
        if (draw(3) == 0)
            (void)!weft_future_cancel(answers[i]);
        else if (draw(2))
            (void)!weft_future_wait(answers[i], (int64_t)draw(10));
    world_sleep_ms(w, (int)draw(8));
    weft_tape_close(t);
    close_and_look_everywhere(c, dead);
    for (int i = 0; i < count; i++)
        weft_future_unref(answers[i]);
}

static void closes_at_any_moment(weft_agent *agent, void *arg)
{
    world *w = arg;
    MUST_OK(weft_agent_register(agent, &wander));
    meet(agent, w);
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(5, 7);
        draws = w->seed;
        for (int i = 0; i < 10; i++)
            wander_and_close(agent, w, x, -1);
        weft_tensor_unref(x);
    }
    end_soon(agent, w);
}
WORLD_TEST(closes_at_any_moment, 200, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters)

/* Rank 1 dies, before the close or after it, and only rank 1 knows that rank 2 has a part. */
static void a_death_at_the_close(weft_agent *agent, void *arg)
{
    world *w = arg;
    meet(agent, w);
    if (weft_agent_rank(agent) == 0) {
        weft_context *c;
        weft_future *answer;
        weft_tensor *x = leaf_of(5, 7);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "slowly",
                               WEFT_VALUES(weft_of_tensor(x), weft_of_i64(0), weft_of_i64(10), weft_of_bool(true)),
                               &(weft_rpc_options){.tape = t}, &answer));
        if (w->seed % 4 == 0)
            MUST(weft_future_wait(answer, WEFT_FOREVER) == WEFT_ERR_PEER_DEAD);
        else
            world_sleep_ms(w, 5 + (int)(w->seed % 16));
        weft_tape_close(t);
        close_and_look_everywhere(c, 1);
        (void)!weft_future_wait(answer, WEFT_FOREVER);
        weft_future_unref(answer);
        weft_tensor_unref(x);
    }
    end_soon(agent, w);
}
WORLD_TEST(a_death_at_the_close, 60, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters, .close_may_fail = true)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_news_in_a_late_answer),    cmocka_unit_test(test_a_context_that_stays_open),
        cmocka_unit_test(test_news_when_it_is_over),     cmocka_unit_test(test_a_call_that_comes_late),
        cmocka_unit_test(test_a_death_takes_news_along), cmocka_unit_test(test_a_close_under_a_handler),
        cmocka_unit_test(test_closes_at_any_moment),     cmocka_unit_test(test_a_death_at_the_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
