/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_tape.c - weft_dist_tape_open: a context with one tape, which end together on all workers; and what a tape
 * says if it could not be opened.
 */
#include "dist/parameters.h"

#define SOON_MS 1000

static weft_agent *agents[WORKERS];

/* () -> the number of the call's context, 0: none */
static weft_status serve_number(weft_call *call, void *user)
{
    (void)user;
    weft_context_id id = weft_context_get_id(weft_tape_context(weft_call_tape(call)));
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)id.number)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "pass_on", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_pass_on},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
    {.name = "number", .gives = {WEFT_TYPE_I64}, .run = serve_number},
};

/* Nothing is left of any context on workers 0 .. WORKERS - 1, except `dead`. */
static void nothing_is_left(world *w, int dead)
{
    for (int rank = 0; rank < WORKERS; rank++)
        for (int ms = 0; rank != dead && weft_agent_contexts(agents[rank], NULL); ms++) {
            MUST(ms < SOON_MS);
            world_sleep_ms(w, 1);
        }
}

/* One forward and backward pass over all three workers. */
static void a_step(weft_agent *agent, void *arg)
{
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = leaf_of(5, 7);
    for (int step = 0; step < 3; step++) {
        weft_tape *t = weft_dist_tape_open(agent, NULL);
        weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = t});
        weft_context *c = weft_tape_context(t);
        MUST(c && weft_tape_context(child) == c);
        weft_tape_close(child);
        weft_values *y = call_on(t, agent, 1, "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(1)));
        weft_tensor *kept = weft_tensor_ref(weft_sum(t, result(y, 0)));
        weft_dist_backward(t, kept, NULL);
        MUST_OK(weft_tape_status(t));
        must_have_gradient(c, x, 3 * 4, -2 * -1);
        weft_values *there = call_on(t, agent, 2, "gradient", WEFT_NO_VALUES);
        MUST(weft_tensor_get_f64(result(there, 0), 0) == 3 * 5);
        MUST(weft_agent_contexts(agents[1], NULL) == 1 && weft_agent_contexts(agents[2], NULL) == 1);
        weft_values_unref(there);
        weft_values_unref(y);
        weft_tape_close(t);
        nothing_is_left(arg, -1);
        MUST(weft_tensor_get_f64(kept, 0) == 5 * 3 * 4 + 7 * -2 * -1); /* a constant now */
        weft_tensor_unref(kept);
    }
    weft_tensor_unref(x);
}
WORLD_TEST(a_step, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameters, .end = drop_parameters)

/* A handler finds the context of its caller by the tape of its call. */
static void in_a_handler(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int under = 0; under < 2; under++) {
        weft_tape *t = under ? weft_dist_tape_open(agent, NULL) : NULL;
        weft_values *answer = call_on(t, agent, 1, "number", WEFT_NO_VALUES);
        int64_t number;
        MUST_OK(weft_values_get_i64(answer, 0, &number));
        MUST((uint64_t)number == weft_context_get_id(weft_tape_context(t)).number && (number > 0) == under);
        weft_values_unref(answer);
        weft_tape_close(t);
    }
}
DIST_TEST(in_a_handler, 2, 1)

static void wrong_arguments(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tape *plain = weft_tape_open(&(weft_tape_options){.record = true});
    MUST(!weft_tape_context(NULL) && !weft_tape_context(plain));
    weft_tape *t = weft_dist_tape_open(NULL, NULL);
    MUST_BE(weft_tape_status(t), WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(weft_tape_error(t)), "the agent is NULL") && !weft_tape_context(t));
    weft_tape_close(t);
    t = weft_dist_tape_open(agent, &(weft_tape_options){.parent = plain});
    MUST_BE(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    t = weft_dist_tape_open(agent, NULL);
    weft_tensor *x = leaf_of(5, 7);
    weft_backward(t, weft_sum(t, x));
    MUST_BE(weft_tape_status(t), WEFT_ERR_STATE);
    weft_tape_close(t);
    weft_tape_close(plain);
    weft_tensor_unref(x);
    MUST(weft_agent_contexts(agent, NULL) == 0);
}
DIST_TEST(wrong_arguments, 1, 1)

/* Worker 1 dies between forward and backward: the step fails, and the workers that live keep nothing of it. */
static void a_death(weft_agent *agent, void *arg)
{
    world *w = arg;
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = leaf_of(5, 7);
    weft_tape *t = weft_dist_tape_open(agent, NULL);
    weft_values *y = call_on(t, agent, 1, "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(1)));
    weft_sim_kill(w->sim, 1);
    weft_dist_backward(t, weft_sum(t, result(y, 0)), NULL);
    MUST_BE(weft_tape_status(t), WEFT_ERR_PEER_DEAD);
    weft_values_unref(y);
    weft_tape_close(t);
    nothing_is_left(w, 1);
    weft_tensor_unref(x);
}
WORLD_TEST(a_death, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameters,
           .end = drop_parameters, .close_may_fail = true)

/* Rank 0, with the store, has died: the tape has failed from the start, and so have its operators. */
static void after_the_job(weft_agent *agent, void *arg)
{
    const world *w = arg;
    if (weft_agent_rank(agent) != 1)
        return;
    weft_sim_kill(w->sim, 0);
    weft_sim_sleep(w->sim, UINT64_C(60000000000));
    weft_tape *t = weft_dist_tape_open(agent, NULL);
    MUST_BE(weft_tape_status(t), WEFT_ERR_STORE_LOST);
    MUST(!weft_scale(t, parameters[1], 2) && !weft_tape_context(t));
    weft_tape_close(t);
}
WORLD_TEST(after_the_job, 3, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameters,
           .end = drop_parameters, .close_may_fail = true)

UNIT_MAIN(test_a_step, test_in_a_handler, test_wrong_arguments, test_a_death, test_after_the_job)
