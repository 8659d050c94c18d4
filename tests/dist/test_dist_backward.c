/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_backward.c - a backward pass over several workers: its gradients are those of the same computation on
 * one tape, whatever was called, used or not used; and nothing of a context is left when it is closed.
 */
#include "dist/parameters.h"
#include "tensors.h"

/* ---- What every worker serves ------------------------------------------------------------------------------------ */

/* (x) -> (parameter + x, parameter * x, a constant) */
static weft_status serve_three(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *x = weft_call_tensor(call, 0), *constant = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_add(t, parameter_here(call), x)),
                                     weft_of_tensor(weft_mul(t, parameter_here(call), x)), weft_of_tensor(constant)));
    weft_tensor_unref(constant);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
    {.name = "three",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR},
     .run = serve_three},
    {.name = "pass_on", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_pass_on},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
    {.name = "broken", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_broken},
};

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static void one_call(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    must_be(result(y, 0), 15, -14);
    weft_dist_backward(t, weft_sum(t, weft_scale(t, result(y, 0), 2)), NULL);
    MUST_OK(weft_tape_status(t));
    must_have_gradient(c, x, 6, -4); /* 2 * parameter */
    must_have_there(t, agent, 1, (float[]){10, 14});
    must_have_there(t, agent, 2, NULL);
    weft_values_unref(y);
    weft_tape_close(t);
    close_and_look(c, agent);
    weft_tensor_unref(x);
}
DIST_TEST(one_call, 20, 3)

/* Of what three workers gave, one part is used: the reference waits for the others for ever. */
static void results_that_are_not_used(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *all[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++)
        all[rank] = call_on(t, agent, rank, "three", WEFT_VALUES(weft_of_tensor(x)));
    weft_dist_backward(t, weft_sum(t, result(all[1], 1)), NULL);
    MUST_OK(weft_tape_status(t));
    must_have_gradient(c, x, 3, -2);
    must_have_there(t, agent, 0, NULL);
    must_have_there(t, agent, 1, (float[]){5, 7});
    must_have_there(t, agent, 2, NULL);
    for (int rank = 0; rank < WORKERS; rank++)
        weft_values_unref(all[rank]);
    weft_tape_close(t);
    close_and_look(c, agent);
    weft_tensor_unref(x);
}
DIST_TEST(results_that_are_not_used, 20, 3)

/* Through all workers, and each of them twice; begun on every worker at once. */
static void round_and_round(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    weft_context *c;
    weft_tensor *x = leaf_of(1, 1);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y =
        call_on(t, agent, (me + 1) % WORKERS, "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(2 * WORKERS - 1)));
    /* The square of (2 * 3 * 4) = 24 and of (-3 * -2 * -1) = -6. */
    must_be(result(y, 0), 576, 36);
    weft_dist_backward(t, weft_sum(t, result(y, 0)), NULL);
    MUST_OK(weft_tape_status(t));
    must_have_gradient(c, x, 576, 36);
    for (int rank = 0; rank < WORKERS; rank++) {
        float p = (float)rank + 2, q = (float)rank - 3;
        must_have_there(t, agent, rank, (float[]){2 * 576 / p, 2 * 36 / q});
    }
    weft_values_unref(y);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}
DIST_TEST(round_and_round, 20, 3)

/* Two passes over the same records: they add up; the second uses them up, so that a third fails. */
static void passes_that_retain(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(t, result(y, 0));
    weft_dist_backward(t, loss, &(weft_pass_options){.retain = true});
    weft_dist_backward(t, loss, NULL);
    MUST_OK(weft_tape_status(t));
    must_have_gradient(c, x, 6, -4);
    must_have_there(t, agent, 1, (float[]){10, 14});
    weft_dist_backward(t, loss, NULL);
    MUST(weft_tape_status(t) == WEFT_ERR_STATE);
    must_have_gradient(c, x, 6, -4); /* as before */
    weft_values_unref(y);
    weft_tape_close(t);
    close_and_look(c, agent);
    weft_tensor_unref(x);
}
DIST_TEST(passes_that_retain, 10, 2)

/* The failure of an operator elsewhere ends the pass here, and names worker and operator. */
static void an_operator_that_fails(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_values *z = call_on(t, agent, 2, "broken", WEFT_VALUES(weft_of_tensor(result(y, 0))));
    weft_dist_backward(t, weft_sum(t, result(z, 0)), NULL);
    const weft_error *error = weft_tape_error(t);
    MUST(weft_tape_status(t) == WEFT_ERR_SYSTEM);
    MUST(weft_error_worker(error) == 2 && strstr(weft_error_message(error), "broken_pipe"));
    MUST(!weft_context_ref_grad(c, x));
    weft_values_unref(y);
    weft_values_unref(z);
    weft_tape_close(t);
    close_and_look(c, agent);
    weft_tensor_unref(x);
}
DIST_TEST(an_operator_that_fails, 10, 2)

/* Step after step, as a trainer has them: the news of a context's end rides on the next call. */
static void many_contexts(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 2)
        return;
    for (int step = 0; step < 100; step++) {
        weft_context *c;
        weft_tensor *x = leaf_of(5, 7);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_values *y = call_on(t, agent, 2, "times", WEFT_VALUES(weft_of_tensor(x)));
        weft_dist_backward(t, weft_sum(t, result(y, 0)), NULL);
        MUST_OK(weft_tape_status(t));
        must_have_gradient(c, x, 4, -1);
        weft_values_unref(y);
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_tensor_unref(x);
    }
    while (weft_agent_contexts(agent, NULL))
        world_sleep_ms(w, 1);
}
DIST_TEST(many_contexts, 3, 2)

static weft_rref *remote_on(weft_tape *t, weft_agent *agent, int rank, weft_args args)
{
    weft_rref *rref;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "times", args, &(weft_rpc_options){.tape = t}, &rref));
    return rref;
}

static weft_status ended(weft_future *future)
{
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(weft_future_error(future));
    weft_future_unref(future);
    return status;
}

/* The root is a value that stays where it was made: on another worker, or on this one. */
static void remote_roots(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int owner = 0; owner < 2; owner++) {
        weft_context *c;
        weft_future *pass;
        weft_tensor *x = leaf_of(5, 7), *ones = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_values *first = call_on(t, agent, 2, "times", WEFT_VALUES(weft_of_tensor(x)));
        weft_rref *y = remote_on(t, agent, owner, WEFT_VALUES(weft_of_tensor(result(first, 0))));
        const weft_pass_options how = {.gradients = {&ones, 1}, .retain = true};
        MUST_OK(weft_rref_backward(y, c, NULL, &pass)); /* two elements, and no gradient is given */
        MUST(ended(pass) == WEFT_ERR_SHAPE);
        MUST_OK(weft_rref_backward(y, c, &how, &pass));
        MUST_OK(ended(pass));
        float p = (float)owner + 2, q = (float)owner - 3;
        must_have_gradient(c, x, 4 * p, -1 * q);
        must_have_there(t, agent, 2, (float[]){5 * p, 7 * q});
        must_have_there(t, agent, owner, (float[]){20, -7});
        weft_rref_unref(y);
        weft_values_unref(first);
        weft_tape_close(t);
        close_and_look(c, agent);
        weft_tensor_unref(x);
        weft_tensor_unref(ones);
    }
}
DIST_TEST(remote_roots, 20, 3)

/* What is fetched under a tape stays joined with what it was made of. */
static void fetched_values(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int owner = 0; owner < 2; owner++) {
        weft_context *c;
        weft_future *fetched;
        weft_tensor *x = leaf_of(5, 7), *y;
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_rref *handle = remote_on(t, agent, owner, WEFT_VALUES(weft_of_tensor(x)));
        MUST_OK(weft_rref_fetch(handle, &(weft_rpc_options){.tape = t}, &fetched));
        MUST_OK(weft_future_wait(fetched, WEFT_FOREVER));
        MUST_OK(weft_values_get_tensor(weft_future_values(fetched), 0, &y));
        float p = (float)owner + 2, q = (float)owner - 3;
        must_be(y, 5 * p, 7 * q);
        weft_dist_backward(t, weft_sum(t, weft_mul(t, y, y)), NULL);
        MUST_OK(weft_tape_status(t));
        must_have_gradient(c, x, 10 * p * p, 14 * q * q);
        must_have_there(t, agent, owner, (float[]){50 * p, 98 * q});
        weft_future_unref(fetched);
        weft_rref_unref(handle);
        weft_tape_close(t);
        close_and_look(c, agent);
        weft_tensor_unref(x);
    }
}
DIST_TEST(fetched_values, 20, 3)

static void remote_root_misuse(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c, *other;
    weft_future *pass;
    weft_rref *number;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    MUST_OK(weft_context_open(agent, &other, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_rref *y = remote_on(t, agent, 1, WEFT_VALUES(weft_of_tensor(x)));
    MUST(weft_rref_backward(NULL, c, NULL, &pass) == WEFT_ERR_INVALID);
    MUST(weft_rref_backward(y, NULL, NULL, &pass) == WEFT_ERR_INVALID);
    MUST(weft_rref_backward(y, c, NULL, NULL) == WEFT_ERR_INVALID);
    MUST(weft_rref_fetch(NULL, NULL, &pass) == WEFT_ERR_INVALID);
    MUST_OK(weft_rref_backward(y, other, NULL, &pass)); /* which rank 1 does not know */
    MUST(ended(pass) == WEFT_ERR_INVALID);
    MUST_OK(weft_rref_create(agent, weft_of_i64(3), &number, NULL));
    MUST_OK(weft_rref_backward(number, c, NULL, &pass)); /* no tensor */
    MUST(ended(pass) == WEFT_ERR_INVALID);
    weft_rref_unref(number);
    weft_rref_unref(y);
    weft_tape_close(t);
    weft_context_close(other, NULL);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}
DIST_TEST(remote_root_misuse, 3, 1)

/* What weft_debug_dump says of a context and of two passes, one of which fails. */
static void contexts_in_the_dump(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    char text[16384] = "";
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(t, result(y, 0));
    weft_dist_backward(t, loss, NULL);
    weft_dist_backward(t, loss, NULL);
    MUST(weft_tape_status(t) == WEFT_ERR_STATE);
    FILE *to = fmemopen(text, sizeof(text), "w");
    MUST_OK(weft_debug_dump(agent, to));
    fclose(to);
    MUST(strstr(
        text,
        "\"contexts\": [{\"opener\": 0, \"number\": 1, \"over\": false, \"sends\": 1, \"receives\": 1, \"passes\": ["));
    MUST(strstr(text, "{\"root\": 0, \"number\": 1, \"state\": \"done here\"}"));
    MUST(strstr(text, "\"number\": 2, \"state\": \"failed\", \"error\": \""));
    weft_values_unref(y);
    weft_tape_close(t);
    close_and_look(c, agent);
    to = fmemopen(text, sizeof(text), "w");
    MUST_OK(weft_debug_dump(agent, to));
    fclose(to);
    MUST(strstr(text, "\"contexts\": []"));
    weft_tensor_unref(x);
}
DIST_TEST(contexts_in_the_dump, 3, 1)

static void misuse(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_context *c;
    weft_tensor *x = leaf_of(5, 7);
    MUST(weft_context_open(NULL, &c, NULL) == WEFT_ERR_INVALID &&
         weft_context_open(agent, NULL, NULL) == WEFT_ERR_INVALID);
    MUST_OK(weft_context_open(agent, &c, NULL));
    MUST(weft_context_get_id(c).number > 0 && weft_context_get_id(NULL).number == 0);
    weft_tape *t = weft_context_tape(c, NULL), *other = weft_tape_open(&(weft_tape_options){.record = true});
    weft_error *error = NULL;
    /* A tape of no context. */
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "times", WEFT_VALUES(weft_of_tensor(x)),
                       &(weft_rpc_options){.tape = other, .error = &error}, NULL) == WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "distributed context"));
    weft_error_unref(error);
    error = NULL;
    weft_dist_backward(other, weft_sum(other, x), NULL);
    MUST(weft_tape_status(other) == WEFT_ERR_STATE);
    weft_tape_close(other);
    weft_backward(t, weft_sum(t, x)); /* the wrong function */
    MUST(weft_tape_status(t) == WEFT_ERR_STATE && strstr(weft_error_message(weft_tape_error(t)), "weft_dist_backward"));
    weft_tape_close(t);
    t = weft_context_tape(c, NULL);
    weft_dist_backward(t, x, NULL); /* not recorded */
    MUST(weft_tape_status(t) == WEFT_ERR_INVALID);
    weft_tape_close(t);
    t = weft_context_tape(c, NULL);
    weft_dist_backward(t, weft_scale(t, x, 2), NULL); /* two elements */
    MUST(weft_tape_status(t) == WEFT_ERR_SHAPE);
    weft_tape_close(t);
    t = weft_context_tape(c, NULL);
    weft_future *none;
    MUST(weft_context_backward(c, (weft_tensors){NULL, 1}, NULL, &none) == WEFT_ERR_INVALID);
    weft_dist_backward(t, weft_sum(t, x), &(weft_pass_options){.gradients = {NULL, 1}});
    MUST(strstr(weft_error_message(weft_tape_error(t)), "the list of gradients is NULL"));
    weft_tape_close(t);
    t = weft_context_tape(c, NULL);
    weft_context_close(c, NULL);
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "times", WEFT_VALUES(weft_of_tensor(x)),
                       &(weft_rpc_options){.tape = t, .error = &error}, NULL) == WEFT_ERR_STATE);
    MUST(strstr(weft_error_message(error), "its distributed context is over"));
    weft_error_unref(error);
    weft_dist_backward(t, weft_sum(t, x), NULL);
    MUST(weft_tape_status(t) == WEFT_ERR_STATE);
    weft_tape_close(t);
    weft_context_close(NULL, NULL);
    weft_tensor_unref(x);
}
DIST_TEST(misuse, 3, 1)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_results_that_are_not_used),
        cmocka_unit_test(test_round_and_round),
        cmocka_unit_test(test_passes_that_retain),
        cmocka_unit_test(test_an_operator_that_fails),
        cmocka_unit_test(test_remote_roots),
        cmocka_unit_test(test_fetched_values),
        cmocka_unit_test(test_remote_root_misuse),
        cmocka_unit_test(test_contexts_in_the_dump),
        cmocka_unit_test(test_many_contexts),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
