/* SPDX-License-Identifier: Apache-2.0 */
/* test_dist_hooks.c - hooks on leaves of any worker in a pass over several, and what they begin that does not end. */
#include "dist/parameters.h"
#include "make.h"

#include <weft/hooks.h>

#include <sched.h>

static weft_agent *hooked;           /* where the hook below is; the simulation has no other threads than its agents' */
static _Atomic(weft_future *) begun; /* by that hook, where it waits */

enum { DOUBLES, FAILS, WAITS };

/* Doubles the sum; or fails; or begins what somebody else is to end. */
static weft_status post(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg)
{
    (void)leaf;
    int what = *(const int *)arg;
    for (int64_t i = 0; i < weft_tensor_numel(sum); i++)
        ((float *)weft_tensor_data(sum))[i] *= 2;
    if (what == WAITS) {
        weft_future *future = weft_future_create(hooked);
        *wait = weft_future_ref(future);
        begun = future;
    }
    return what == FAILS ? WEFT_ERR_SYSTEM : WEFT_OK;
}

static weft_hooks *hooks_of(weft_tensor *leaf, const int *what)
{
    weft_hooks *hooks = hooks_create();
    MUST_OK(weft_hooks_add(hooks, leaf, &(weft_leaf_hook){.post = post, .arg = (void *)what}));
    return hooks;
}

static const int kinds[] = {DOUBLES, FAILS, WAITS};

/* (x, what) -> parameter * x, where the parameter has a hook of that kind */
static weft_status serve_hooked(weft_call *call, void *user)
{
    (void)user;
    hooked = weft_call_agent(call);
    weft_hooks *hooks = hooks_of(parameter_here(call), &kinds[weft_call_i64(call, 1)]);
    weft_context_set_hooks(weft_tape_context(weft_call_tape(call)), hooks);
    weft_hooks_unref(hooks);
    weft_tensor *y = weft_mul(weft_call_tape(call), parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hooked", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_hooked},
    {.name = "gradient", .gives = {WEFT_TYPE_ANY}, .run = serve_gradient},
};

typedef struct run {
    weft_context *context;
    weft_tape *tape;
    weft_tensor *x, *loss;
    weft_values *results;
} run;

static run record(weft_agent *agent, int what)
{
    run r = {.x = leaf_of(5, 7)};
    MUST_OK(weft_context_open(agent, &r.context, NULL));
    r.tape = weft_context_tape(r.context, NULL);
    r.results = call_on(r.tape, agent, 1, "hooked", WEFT_VALUES(weft_of_tensor(r.x), weft_of_i64(what)));
    r.loss = weft_sum(r.tape, result(r.results, 0));
    return r;
}

static void drop(run *r, weft_agent *agent)
{
    weft_values_unref(r->results);
    weft_tape_close(r->tape);
    close_and_look(r->context, agent);
    weft_tensor_unref(r->x);
}

/* At a worker that is called, and at the root of a pass that has no tape. */
static void hooks_at_every_worker(weft_agent *agent, void *arg)
{
    (void)arg;
    static const int doubles = DOUBLES;
    if (weft_agent_rank(agent) != 0)
        return;
    run r = record(agent, DOUBLES);
    weft_dist_backward(r.tape, r.loss, &(weft_pass_options){.retain = true});
    MUST_OK(weft_tape_status(r.tape));
    must_have_gradient(r.context, r.x, 3, -2);
    must_have_there(r.tape, agent, 1, (float[]){10, 14});
    weft_hooks *hooks = hooks_of(r.x, &doubles);
    weft_future *pass;
    weft_context_set_hooks(r.context, hooks);
    weft_context_set_hooks(NULL, hooks);
    weft_hooks_unref(hooks);
    MUST_OK(weft_context_backward(r.context, (weft_tensors){&r.loss, 1}, NULL, &pass));
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    must_have_gradient(r.context, r.x, 3 + 6, -2 - 4);
    must_have_there(r.tape, agent, 1, (float[]){20, 28});
    drop(&r, agent);
}
DIST_TEST(hooks_at_every_worker, 5, 2)

static void a_hook_that_fails(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    run r = record(agent, FAILS);
    weft_dist_backward(r.tape, r.loss, NULL);
    const weft_error *error = weft_tape_error(r.tape);
    MUST(weft_tape_status(r.tape) == WEFT_ERR_SYSTEM && weft_error_worker(error) == 1);
    MUST(!weft_context_ref_grad(r.context, r.x));
    drop(&r, agent);
}
DIST_TEST(a_hook_that_fails, 5, 2)

/* What a hook elsewhere began is part of the pass; a limit ends the pass before it. */
static void what_a_hook_begins(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) != 0)
        return;
    int64_t limit_ms = 50;
    for (int ends = 0; ends < 3; ends++) { /* not in time; well; badly */
        run r = record(agent, WAITS);
        weft_future *pass;
        begun = NULL;
        MUST_OK(weft_context_backward(r.context, (weft_tensors){&r.loss, 1},
                                      &(weft_pass_options){.timeout_ms = ends ? WEFT_FOREVER : limit_ms}, &pass));
        if (!ends)
            MUST(weft_future_wait(pass, WEFT_FOREVER) == WEFT_ERR_TIMEOUT);
        for (int i = 0; !ends && !begun && i < 500; i++)
            world_sleep_ms(w, 1);
        if (!ends && !begun) { /* on a busy machine: the limit passed before the hook ran */
            limit_ms *= 4;
            ends--;
            weft_future_unref(pass);
            drop(&r, agent);
            continue;
        }
        while (!begun)
            world_sleep_ms(w, 1);
        MUST(weft_future_done(pass) == !ends);
        weft_error *why = weft_error_create(WEFT_ERR_SYSTEM, "no luck");
        MUST_OK(ends < 2 ? weft_future_complete(begun, NULL, NULL) : weft_future_fail(begun, why));
        weft_error_unref(why);
        MUST(weft_future_wait(pass, WEFT_FOREVER) == (ends == 0   ? WEFT_ERR_TIMEOUT
                                                      : ends == 1 ? WEFT_OK
                                                                  : WEFT_ERR_SYSTEM));
        if (ends == 1)
            must_have_there(r.tape, agent, 1, (float[]){10, 14});
        weft_future_unref(begun);
        weft_future_unref(pass);
        drop(&r, agent);
    }
}
DIST_TEST(what_a_hook_begins, 5, 2)

static _Atomic(weft_future *) ending; /* the pass whose last hook runs */

static weft_status cancel_at_the_end(const weft_error *why, weft_future **wait, void *arg)
{
    while (!ending)
        sched_yield();
    weft_status status = weft_future_cancel(ending);
    MUST(why || status == WEFT_OK || status == WEFT_ERR_COMPLETED);
    return WEFT_OK;
}

/* A cancel that comes while the pass ends: the future and the gradients agree on how it ended. */
static void a_cancel_at_the_end(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    run r = record(agent, DOUBLES);
    weft_hooks *hooks = hooks_create();
    weft_hooks_set_end(hooks, cancel_at_the_end, NULL);
    weft_context_set_hooks(r.context, hooks);
    weft_hooks_unref(hooks);
    must_have_there(r.tape, agent, 1, NULL); /* a call makes visible what the tape has recorded */
    weft_future *pass;
    ending = NULL;
    MUST_OK(weft_context_backward(r.context, (weft_tensors){&r.loss, 1}, NULL, &pass));
    ending = pass;
    weft_status status = weft_future_wait(pass, WEFT_FOREVER);
    weft_tensor *gradient = weft_context_ref_grad(r.context, r.x);
    MUST_BE(status, WEFT_ERR_CANCELLED);
    MUST(!gradient);
    weft_future_unref(pass);
    drop(&r, agent);
}
DIST_TEST(a_cancel_at_the_end, 5, 2)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_at_every_worker),
        cmocka_unit_test(test_a_hook_that_fails),
        cmocka_unit_test(test_what_a_hook_begins),
        cmocka_unit_test(test_a_cancel_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
