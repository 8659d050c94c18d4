/* SPDX-License-Identifier: Apache-2.0 */
/* test_dist_ends.c - contexts end everywhere, also where the opener never heard of a holder. */
#include "dist/parameters.h"

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
    weft_status st = weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), "times",
                                   WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))),
                                   &(weft_rpc_options){.tape = weft_call_tape(call)}, &results);
    if (st)
        return st;
    weft_call_give(call, weft_values_args(results));
    weft_values_unref(results);
    weft_sim_cut(now->sim, 0, 1);
    return WEFT_OK;
}

static weft_status serve_times(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *y = weft_mul(weft_call_tape(call), parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "cut off", .takes = {WEFT_TENSOR}, .gives = {WEFT_TENSOR}, .run = serve_cut_off},
    {.name = "times", .takes = {WEFT_TENSOR}, .gives = {WEFT_TENSOR}, .run = serve_times},
};

/* Rank 1 names rank 2 in an answer that comes when its call has run out of time: nobody else tells the opener of rank 2. */
static void news_in_a_late_answer(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    if (me == 0) {
        weft_context *c;
        weft_tensor *x = leaf_of(5, 7);
        MUST_OK(weft_context_open(agent, &c));
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
        MUST_OK(weft_context_open(agent, &c));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_news_in_a_late_answer),
        cmocka_unit_test(test_a_context_that_stays_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
