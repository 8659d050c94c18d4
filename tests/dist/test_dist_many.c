/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_many.c - more pairs between two workers than one message has tensors (WEFT_MAX_CALL_TENSORS): a pass says
 * them in several messages.
 */
#include "dist/parameters.h"

/* (list of x) -> (list of parameter * x) */
static weft_status serve_times_each(weft_call *call, void *user)
{
    (void)user;
    weft_tensors x = weft_call_tensors(call, 0);
    weft_tensor **y = calloc(x.count + 1, sizeof(*y));
    for (size_t i = 0; i < x.count; i++)
        y[i] = weft_mul(weft_call_tape(call), parameter_here(call), x.items[i]);
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){y, x.count})));
    free(y);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "times_each", .takes = {WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSORS}, .run = serve_times_each},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
};

#define AT_ONCE 33000 /* tensors of one call; there are two calls */

static weft_status add_many(weft_tape *t, weft_agent *agent, weft_tensor *x, weft_values *held[2], weft_tensor **sum)
{
    weft_tensor **list = calloc(AT_ONCE, sizeof(*list));
    weft_status status = WEFT_OK;
    *sum = NULL;
    for (int i = 0; i < AT_ONCE; i++)
        list[i] = x;
    for (int call = 0; call < 2 && !status; call++) {
        weft_tensors y = {0};
        status = weft_rpc_sync(agent, weft_to_rank(1), "times_each",
                               WEFT_VALUES(weft_of_tensors((weft_tensors){list, AT_ONCE})),
                               &(weft_rpc_options){.tape = t}, &held[call]);
        if (!status)
            MUST_OK(weft_values_get_tensors(held[call], 0, &y));
        for (size_t i = 0; i < y.count; i++)
            *sum = *sum ? weft_add(t, *sum, y.items[i]) : y.items[i];
    }
    free(list);
    return status;
}

static bool pass_is_over;

static void break_links(weft_sim *sim, int rank, void *arg)
{
    (void)arg;
    for (; !pass_is_over; weft_sim_sleep(sim, 700000))
        weft_sim_reset_link(sim, rank, 1);
}

static void kill_soon(weft_sim *sim, int rank, void *arg)
{
    const world *w = arg;
    (void)rank;
    weft_sim_sleep(sim, w->seed * 300000);
    weft_sim_kill(sim, 1);
}

/* What happens to rank 1, or to the link, while the pass runs; NULL: nothing. The pass's status. */
static weft_status pass_over_many(weft_agent *agent, world *w, weft_sim_program trouble)
{
    weft_context *c;
    weft_values *held[2] = {NULL, NULL};
    weft_tensor *x = leaf_of(5, 7), *sum;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    MUST_OK(add_many(t, agent, x, held, &sum));
    pass_is_over = false;
    if (trouble && w->sim)
        MUST_OK(weft_sim_spawn(w->sim, 0, trouble, w));
    weft_dist_backward(t, weft_sum(t, sum), NULL);
    weft_status status = weft_tape_status(t);
    pass_is_over = true;
    if (!status) { /* all sums are exact */
        must_have_gradient(c, x, 2 * AT_ONCE * 3, 2 * AT_ONCE * -2);
        weft_gradient none = {0};
        MUST_OK(weft_context_ref_gradients(c, (weft_tensors){&parameters[2], 1}, &none));
        MUST(!none.values);
    }
    if (!status && trouble != kill_soon)
        must_have_there(t, agent, 1, (float[]){2 * AT_ONCE * 5, 2 * AT_ONCE * 7});
    for (int i = 0; i < 2; i++)
        weft_values_unref(held[i]);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
    return status;
}

static void many_pairs(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        MUST_OK(pass_over_many(agent, arg, NULL));
}
DIST_TEST(many_pairs, 1, 1)

static void many_pairs_over_links_that_break(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        MUST_OK(pass_over_many(agent, arg, break_links));
}
DIST_TEST(many_pairs_over_links_that_break, 1, 0)

static void many_pairs_and_a_death(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_status status = pass_over_many(agent, arg, kill_soon);
    MUST(!status || status == WEFT_ERR_PEER_DEAD);
}
WORLD_TEST(many_pairs_and_a_death, 2, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = make_parameters,
           .end = drop_parameters, .close_may_fail = true)

UNIT_MAIN(test_many_pairs, test_many_pairs_over_links_that_break, test_many_pairs_and_a_death)
