/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_passes.c - items 71 to 74, 77 and 79: passes that fail, that
 * are ended, and that are looked at. */
#include "conformance/contexts.h"
#include "make.h"
#include "tensors.h"

#include <weft/hooks.h>
#include <weft/ops.h>

/* (x) -> 3 x, whose gradient is doubled where the function runs */
static weft_status serve_doubled(weft_call *call, void *user);

static const weft_function functions[] = {
    CONTEXT_FUNCTIONS,
    {.name = "doubled", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_doubled},
};

/* How many contexts, or passes, `rank` has. */
static int64_t has_there(weft_agent *agent, int rank, size_t what)
{
    weft_values *results = NULL;
    int64_t count = -1;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "here", WEFT_NO_VALUES, NULL, &results));
    MUST_OK(weft_values_get_i64(results, what, &count));
    weft_values_unref(results);
    return count;
}

enum { CONTEXTS, PASSES };

static void await_none(weft_agent *agent, int rank, size_t what)
{
    for (int ms = 0; ms < ITEM_PATIENCE_MS && has_there(agent, rank, what); ms++)
        item_sleep_ms(1);
    MUST(has_there(agent, rank, what) == 0);
}

/* ---- 71
 * ----------------------------------------------------------------------------------------------------------
 */

/* An operator fails at the end of a long way through all workers: the error
 * names it and its worker, and nobody is left waiting. */
static void errors_name_their_worker(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        atomic_store(&broken, true);
        for (int where = 0; where < WORKERS; where++) {
            step s;
            step_open(&s, agent);
            weft_tensor *y = step_call(&s, where, "broken", WEFT_VALUES(weft_of_tensor(x)));
            y = step_call(&s, 1, "relay", WEFT_VALUES(weft_of_tensor(y), weft_of_i64(2), weft_of_i64(2 * WORKERS)));
            weft_error *error = step_backward_fails(&s, weft_sum(s.tape, y), NULL, WEFT_ERR_SYSTEM);
            if (weft_error_worker(error) != where)
                weft_error_print(error, stderr);
            MUST(says(error, "broken_pipe") && weft_error_worker(error) == where);
            weft_error_unref(error);
            MUST(!weft_context_ref_grad(s.context, x));
            for (int rank = 0; rank < WORKERS; rank++) { /* and the context is still there */
                await_none(agent, rank, PASSES);
                await_there(&s, rank, 0, 0);
            }
            step_close(&s);
        }
        atomic_store(&broken, false);
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_71_errors_name_their_worker, .program = errors_name_their_worker, ITEM_FUNCTIONS(functions))

/* ---- 72
 * ----------------------------------------------------------------------------------------------------------
 */

enum { VICTIM = WORKERS - 1 };
static atomic_int ready_for_death, saw_death;

/* Nothing may be left of a context although its victim never said so. */
static void await_no_context(weft_agent *agent)
{
    for (int ms = 0; ms < ITEM_PATIENCE_MS && weft_agent_contexts(agent, NULL); ms++)
        item_sleep_ms(1);
    MUST(weft_agent_contexts(agent, NULL) == 0);
}

/* Of three losses one needs the victim, one needs it at the end of a chain of
 * others, and one has only called it. */
static void survive(weft_agent *agent)
{
    int me = weft_agent_rank(agent), next = (me + 1) % VICTIM;
    weft_status why = item_sim() ? WEFT_ERR_PEER_DEAD : WEFT_ERR_PEER_LEFT;
    const weft_pass_options retain = {.retain = true};
    weft_tensor *x = leaf_of(3, 4);
    step s;
    step_open(&s, agent);
    weft_tensor *there = step_call(&s, VICTIM, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *behind =
        step_call(&s, next, "relay", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(VICTIM), weft_of_i64(1)));
    weft_tensor *without = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *losses[] = {weft_sum(s.tape, there), weft_sum(s.tape, behind), weft_sum(s.tape, without)};
    atomic_fetch_add(&ready_for_death, 1);
    for (int ms = 0; ms < ITEM_PATIENCE_MS && weft_agent_alive(agent, VICTIM); ms++)
        item_sleep_ms(1);
    for (int i = 0; i < 2; i++) {
        weft_error *error = step_backward_fails(&s, losses[i], &retain, why);
        MUST(weft_error_worker(error) == VICTIM);
        weft_error_unref(error);
        MUST(!weft_context_ref_grad(s.context, x));
    }
    step_backward(&s, losses[2], NULL);
    must_have(&s, x, parameter_at(next, 0), parameter_at(next, 1));
    step_close(&s);
    weft_tensor_unref(x);
    atomic_fetch_add(&saw_death, 1);
    item_await(&saw_death, VICTIM);
    await_no_context(agent);
}

static void a_worker_goes(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    if (rank != VICTIM) {
        survive(agent);
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
        return;
    }
    item_await(&ready_for_death, VICTIM);
    if (item_sim())
        weft_sim_kill(item_sim(), VICTIM); /* does not return */
    weft_agent_stop(agent);
}

static void all_saw_it(void)
{
    assert_int_equal(atomic_exchange(&saw_death, 0), VICTIM);
    atomic_store(&ready_for_death, 0);
}

CONTEXT_ITEM(item_72_a_worker_goes_before_the_pass, .body = a_worker_goes, .after = all_saw_it,
             ITEM_FUNCTIONS(functions))

/* ---- 73
 * ----------------------------------------------------------------------------------------------------------
 */

static void refused(step *s, weft_tensor *root, const weft_pass_options *options, weft_status status, const char *text)
{
    weft_error *error = step_backward_fails(s, root, options, status);
    MUST(says(error, text));
    weft_error_unref(error);
}

static void wrong_roots(weft_agent *agent, weft_tensor *x)
{
    step s;
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, next_rank(agent), "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(s.tape, y), *plain = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    weft_tensor *flat = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32);
    weft_tensor *two[] = {flat, flat};
    weft_future *pass = NULL;
    refused(&s, NULL, NULL, WEFT_ERR_INVALID, "root 0 is NULL");
    refused(&s, plain, NULL, WEFT_ERR_INVALID, "depends on nothing that wants a gradient");
    refused(&s, x, NULL, WEFT_ERR_INVALID, "root 0 was not recorded under this context");
    refused(&s, y, NULL, WEFT_ERR_SHAPE, "root 0 has 2 elements, not one");
    refused(&s, y, &(weft_pass_options){.gradients = {two, 1}}, WEFT_ERR_SHAPE, "not of its shape and dtype");
    refused(&s, y, &(weft_pass_options){.gradients = {two, 2}}, WEFT_ERR_INVALID, "2 gradients for 1 roots");
    refused(&s, loss, &(weft_pass_options){.timeout_ms = -2}, WEFT_ERR_INVALID, "timeout_ms is -2");
    MUST_BE(weft_context_backward(s.context, (weft_tensors){0}, NULL, &pass), WEFT_ERR_INVALID);
    MUST_BE(weft_context_backward(NULL, (weft_tensors){&loss, 1}, NULL, &pass), WEFT_ERR_INVALID);
    MUST_BE(weft_context_backward(s.context, (weft_tensors){&loss, 1}, NULL, NULL), WEFT_ERR_INVALID);
    step_backward(&s, loss, NULL); /* none of it did harm */
    must_have(&s, x, parameter_at(next_rank(agent), 0), parameter_at(next_rank(agent), 1));
    step_close(&s);
    weft_tensor_unref(plain);
    weft_tensor_unref(flat);
}

static void tape_failed(weft_tape *t, weft_status status, const char *text)
{
    MUST_BE(weft_tape_status(t), status);
    MUST(says(weft_tape_error(t), text));
    weft_tape_close(t);
}

static void wrong_contexts(weft_agent *agent, weft_tensor *x)
{
    weft_context *c = NULL, *over = NULL;
    /* Without a context. */
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_dist_backward(t, weft_sum(t, x), NULL);
    tape_failed(t, WEFT_ERR_STATE, "no distributed context");
    /* The function of local tapes, under a context. */
    MUST_OK(weft_context_open(agent, &c, NULL));
    t = weft_context_tape(c, NULL);
    weft_backward(t, weft_sum(t, x));
    tape_failed(t, WEFT_ERR_STATE, "weft_dist_backward");
    /* Without a call: as on one tape, and the gradients are in the context. */
    t = weft_context_tape(c, NULL);
    weft_dist_backward(t, weft_sum(t, weft_scale(t, x, 5)), NULL);
    MUST_OK(weft_tape_status(t));
    weft_tensor *gradient = weft_context_ref_grad(c, x);
    must_be(gradient, 5, 5);
    weft_tensor_unref(gradient);
    weft_tape_close(t);
    /* A context that is over. */
    MUST_OK(weft_context_open(agent, &over, NULL));
    t = weft_context_tape(over, NULL);
    weft_tensor *loss = weft_sum(t, x);
    weft_context_close(over, NULL);
    weft_dist_backward(t, loss, NULL);
    tape_failed(t, WEFT_ERR_STATE, "over");
    weft_context_close(c, NULL);
}

static void wrong_arguments(weft_agent *agent, void *arg)
{
    weft_tensor *x = leaf_of(3, 4);
    wrong_roots(agent, x);
    wrong_contexts(agent, x);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_73_wrong_arguments, .program = wrong_arguments, ITEM_FUNCTIONS(functions))

/* ---- 74
 * ----------------------------------------------------------------------------------------------------------
 */

static weft_future *begin_pass(step *s, weft_tensor *loss)
{
    weft_future *pass = NULL;
    must_have_none(s, weft_agent_rank(s->agent)); /* a call that names the tape: what
                                                it recorded is visible now */
    MUST_OK(weft_context_backward(s->context, (weft_tensors){&loss, 1}, NULL, &pass));
    return pass;
}

/* The context ends while another worker computes a gradient. */
static void closed_in_the_middle(weft_agent *agent, weft_tensor *x)
{
    step s;
    atomic_store(&hold_open, false);
    step_open(&s, agent);
    weft_tensor *y = step_call(&s, 1, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *z = step_call(&s, 2, "held", WEFT_VALUES(weft_of_tensor(y)));
    weft_future *pass = begin_pass(&s, weft_sum(s.tape, step_call(&s, 3, "times", WEFT_VALUES(weft_of_tensor(z)))));
    item_await(&holding, 1);
    step_close(&s);
    must_end(pass, WEFT_ERR_CANCELLED);
    atomic_store(&hold_open, true);
}

/* Whatever the moment: the pass ends, well or cancelled. */
static void closed_at_any_moment(weft_agent *agent, weft_tensor *x)
{
    for (int round = 0; round < 20; round++) {
        step s;
        step_open(&s, agent);
        weft_tensor *y = step_call(&s, next_rank(agent), "relay",
                                   WEFT_VALUES(weft_of_tensor(x), weft_of_i64(weft_agent_rank(agent)), weft_of_i64(7)));
        weft_future *pass = begin_pass(&s, weft_sum(s.tape, y));
        step_close(&s);
        weft_status status = weft_future_wait(pass, ITEM_PATIENCE_MS);
        MUST(status == WEFT_OK || status == WEFT_ERR_CANCELLED);
        weft_future_unref(pass);
    }
}

static void contexts_close_in_passes(weft_agent *agent, void *arg)
{
    weft_tensor *x = leaf_of(3, 4);
    if (weft_agent_rank(agent) == 0)
        closed_in_the_middle(agent, x);
    closed_at_any_moment(agent, x);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_74_contexts_close_in_the_middle_of_passes, .program = contexts_close_in_passes,
             ITEM_FUNCTIONS(functions))

/* ---- 77
 * ----------------------------------------------------------------------------------------------------------
 */

typedef struct hook_calls {
    int shares, sums;
} hook_calls;

static weft_tensor *doubled(weft_tensor *gradient)
{
    weft_tensor *twice = tensor_clone(gradient);
    for (int64_t i = 0; i < weft_tensor_numel(twice); i++)
        ((float *)weft_tensor_data(twice))[i] *= 2;
    return twice;
}

static weft_tensor *double_share(weft_tensor *gradient, void *arg)
{
    if (arg)
        ((hook_calls *)arg)->shares++;
    return doubled(gradient);
}

static weft_status add_one(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg)
{
    (void)leaf, (void)wait;
    ((hook_calls *)arg)->sums++;
    for (int64_t i = 0; i < weft_tensor_numel(sum); i++)
        ((float *)weft_tensor_data(sum))[i] += 1;
    return WEFT_OK;
}

static weft_status serve_doubled(weft_call *call, void *user)
{
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_on_gradient(t, weft_scale(t, weft_call_tensor(call, 0), 3), double_share, NULL, NULL);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

/* Hooks on a leaf, before its shares are added and after, at the root; hooks in
 * the middle, at any worker. */
static void hooks_are_called(weft_agent *agent, void *arg)
{
    int next = next_rank(agent), after = (next + 1) % WORKERS;
    float p = parameter_at(next, 0), q = parameter_at(next, 1), u = parameter_at(after, 0), v = parameter_at(after, 1);
    hook_calls calls = {0};
    weft_tensor *x = leaf_of(3, 4);
    weft_hooks *hooks = hooks_create();
    MUST_OK(weft_hooks_add(hooks, x, &(weft_leaf_hook){.pre = double_share, .arg = &calls}));
    MUST_OK(weft_hooks_add(hooks, x, &(weft_leaf_hook){.post = add_one, .arg = &calls}));
    step s;
    step_open(&s, agent);
    weft_tape_set_hooks(s.tape, hooks);
    weft_tensor *y = step_call(&s, next, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *z = step_call(&s, after, "times", WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *loss = weft_sum(s.tape, weft_add(s.tape, y, z));
    step_backward(&s, loss, &(weft_pass_options){.retain = true});
    MUST(calls.shares == 2 && calls.sums == 1);
    must_have(&s, x, 2 * p + 2 * u + 1, 2 * q + 2 * v + 1);
    must_have_there(&s, next, 3, 4); /* of its own leaf, which has none */
    step_backward(&s, loss, NULL);
    MUST(calls.shares == 4 && calls.sums == 2);
    must_have(&s, x, 4 * p + 4 * u + 2, 4 * q + 4 * v + 2);
    step_close(&s);
    weft_hooks_unref(hooks);
    step_open(&s, agent); /* without hooks on the leaf, and one elsewhere */
    step_backward(&s, weft_sum(s.tape, step_call(&s, next, "doubled", WEFT_VALUES(weft_of_tensor(x)))), NULL);
    must_have(&s, x, 6, 6);
    MUST(calls.shares == 4 && calls.sums == 2);
    step_close(&s);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_77_hooks_are_called, .program = hooks_are_called, ITEM_FUNCTIONS(functions))

/* ---- 79
 * ----------------------------------------------------------------------------------------------------------
 */

/* What is there before, in, and after a pass, on the workers that have a part
 * in it and on one that has none. */
static void counts_of_passes(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *x = leaf_of(3, 4);
        size_t passes = 1;
        step s;
        atomic_store(&hold_open, false);
        MUST(weft_agent_contexts(NULL, &passes) == 0 && passes == 0);
        step_open(&s, agent);
        weft_tensor *y = step_call(&s, 1, "held", WEFT_VALUES(weft_of_tensor(x)));
        weft_future *pass = begin_pass(&s, weft_sum(s.tape, y));
        item_await(&holding, 1);
        for (int rank = 0; rank < WORKERS; rank++) {
            MUST(has_there(agent, rank, CONTEXTS) == (rank < 2));
            MUST(has_there(agent, rank, PASSES) == (rank < 2));
        }
        atomic_store(&hold_open, true);
        must_end(pass, WEFT_OK);
        for (int rank = 0; rank < WORKERS; rank++) {
            await_none(agent, rank, PASSES);
            MUST(has_there(agent, rank, CONTEXTS) == (rank < 2));
        }
        must_have(&s, x, 1, 1);
        step_close(&s);
        weft_tensor_unref(x);
    }
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_79_counts_of_contexts_and_passes, .program = counts_of_passes, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_71_errors_name_their_worker, item_72_a_worker_goes_before_the_pass, item_73_wrong_arguments,
          item_74_contexts_close_in_the_middle_of_passes, item_77_hooks_are_called,
          item_79_counts_of_contexts_and_passes)
