/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_full_queue.c - passes, steps and the ends of contexts while the queue to a peer is full. They keep their
 * time limits, also if the peer stands still or the link to it is cut. Likewise while a peer refuses every call,
 * since it holds more than 5/4 of its memory budget.
 */
#include "dist/parameters.h"
#include "tensors.h"

#include <weft/dist_optim.h>

#define QUEUE_BYTES 65536
#define HELD_BYTES (256 << 10) /* of one call: more than the queue may hold */
#define PATIENCE_MS 20000

static world *now; /* that plays */
static weft_agent *agents[WORKERS];
static atomic_bool held; /* the calls that fill the queue go on */

static void begin(world *w)
{
    make_parameters(w);
    now = w;
    atomic_store(&held, false);
}

static void adjust(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->queue_limit_bytes = QUEUE_BYTES;
}

static void nobody_is_dead(weft_agent_options *options, void *arg)
{
    adjust(options, arg);
    options->death_timeout_ms = WEFT_FOREVER;
}

static weft_status serve_hold(weft_call *call, void *user)
{
    (void)call, (void)user;
    while (atomic_load(&held))
        world_sleep_ms(now, 1);
    return WEFT_OK;
}

/* (h, a batch that its caller had to copy): a pass from here, while the caller's queue to this worker is full */
static weft_status serve_train(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_dist_backward(t, weft_sum(t, weft_call_tensor(call, 0)), &(weft_pass_options){.timeout_ms = PATIENCE_MS});
    return weft_tape_status(t);
}

/* () -> a handle to this worker's parameter */
static weft_status serve_handle(weft_call *call, void *user)
{
    (void)user;
    weft_rref *rref;
    weft_status status = weft_rref_create(weft_call_agent(call), weft_of_tensor(parameter_here(call)), &rref, NULL);
    if (status)
        return status;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    return WEFT_OK;
}

/* (x) -> the sum of parameter * x */
static weft_status serve_loss(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_sum(t, y))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold", .takes = {WEFT_TYPE_STRING}, .run = serve_hold},
    {.name = "train", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .run = serve_train},
    {.name = "handle", .gives = {WEFT_TYPE_RREF}, .run = serve_handle},
    {.name = "loss", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_loss},
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
};

#define QUEUE_TEST(name, seeds, on_tcp, options)                                                                       \
    WORLD_TEST(name, seeds, on_tcp, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,                       \
               .end = drop_parameters, .adjust = options)

/* A call to rank 1 fills the queue until `held` is unset. */
static weft_future *fill(weft_agent *agent)
{
    static char text[HELD_BYTES];
    weft_future *filler;
    memset(text, 'x', sizeof(text) - 1);
    atomic_store(&held, true);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_VALUES(weft_of_string(text)),
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &filler));
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_VALUES(weft_of_string("")), NULL, NULL),
            WEFT_ERR_AGAIN);
    world_sleep_ms(now, 20); /* the handler runs there */
    return filler;
}

static void let_go(weft_future *filler)
{
    atomic_store(&held, false);
    MUST_OK(weft_future_wait(filler, PATIENCE_MS));
    weft_future_unref(filler);
}

/* A loss behind what rank 1 made of x. */
typedef struct recorded {
    weft_context *c;
    weft_tape *t;
    weft_tensor *x, *loss;
    weft_values *results;
} recorded;

static recorded record(weft_agent *agent)
{
    recorded r = {.x = leaf_of(5, 7)};
    MUST_OK(weft_context_open(agent, &r.c, NULL));
    r.t = weft_context_tape(r.c, NULL);
    r.results = call_on(r.t, agent, 1, "times", WEFT_VALUES(weft_of_tensor(r.x)));
    r.loss = weft_sum(r.t, result(r.results, 0));
    return r;
}

static void drop(recorded *r)
{
    weft_values_unref(r->results);
    weft_tape_close(r->t);
    weft_tensor_unref(r->x);
}

static int64_t ms_since(weft_agent *agent, uint64_t began)
{
    return (int64_t)((weft_agent_now_ns(agent) - began) / 1000000);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* The call that the handler serves fills the queue by which the pass has to come back. */
static void a_pass_within_the_call_that_fills_the_queue(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    recorded r = record(agent);
    weft_tensor *batch = tensor_zeros(WEFT_SHAPE(128, HELD_BYTES / 128 / sizeof(float)), WEFT_DTYPE_FLOAT32),
                *turned = tensor_transpose(batch, 0, 1), *h = weft_scale(r.t, result(r.results, 0), 3);
    weft_error *error = NULL;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(1), "train", WEFT_VALUES(weft_of_tensor(h), weft_of_tensor(turned)),
                      &(weft_rpc_options){.tape = r.t, .timeout_ms = WEFT_FOREVER, .error = &error}, NULL);
    if (status)
        fprintf(stderr, "%s\n", weft_error_message(error));
    MUST_OK(status);
    must_have_gradient(r.c, r.x, 9, -6);
    weft_tensor_unref(turned);
    weft_tensor_unref(batch);
    drop(&r);
    close_and_look(r.c, agent);
}
QUEUE_TEST(a_pass_within_the_call_that_fills_the_queue, 10, 1, adjust)

/* A pass, a pass whose root is there, a step, and the end of a context. */
static void all_of_an_iteration(weft_agent *agent, void *arg)
{
    (void)arg;
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_values *handle = NULL;
    weft_rref *parameter, *root;
    weft_dist_optimizer *sgd;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "handle", WEFT_NO_VALUES, NULL, &handle));
    MUST_OK(weft_values_get_rref(handle, 0, &parameter));
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(parameter)),
                                       &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, &sgd, NULL));
    recorded r = record(agent), remote = record(agent);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "loss", WEFT_VALUES(weft_of_tensor(remote.x)),
                            &(weft_rpc_options){.tape = remote.t}, &root));
    weft_future *made = weft_rref_created(root), *pass, *filler;
    MUST_OK(weft_future_wait(made, PATIENCE_MS));
    weft_future_unref(made);
    filler = fill(agent);
    weft_dist_backward(r.t, r.loss, &(weft_pass_options){.timeout_ms = PATIENCE_MS});
    MUST_OK(weft_tape_status(r.t));
    must_have_gradient(r.c, r.x, 3, -2);
    MUST_OK(weft_rref_backward(root, remote.c, &(weft_pass_options){.timeout_ms = PATIENCE_MS}, &pass));
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    must_have_gradient(remote.c, remote.x, 3, -2);
    MUST_OK(
        weft_dist_optimizer_step(sgd, &r.c, 1, &(weft_dist_step_options){.timeout_ms = PATIENCE_MS, .max_norm = 1e9}));
    drop(&r);
    drop(&remote);
    for (int i = 0; i < 2; i++) {
        weft_future *gone;
        MUST(weft_agent_contexts(agents[1], NULL) == (size_t)(2 - i));
        weft_context_close(i ? remote.c : r.c, &gone);
        MUST_OK(weft_future_wait(gone, PATIENCE_MS));
        weft_future_unref(gone);
        MUST(weft_agent_contexts(agents[1], NULL) == (size_t)(1 - i)); /* the queue is still full */
    }
    MUST(atomic_load(&held));
    let_go(filler);
    weft_rref_unref(root);
    weft_dist_optimizer_unref(sgd);
    weft_values_unref(handle);
}
QUEUE_TEST(all_of_an_iteration, 10, 1, adjust)

/* ---- A peer that stands still ------------------------------------------------------------------------------------ */

#define LIMIT_MS 50

static void must_end_at(weft_agent *agent, uint64_t began, int64_t ms)
{
    int64_t took = ms_since(agent, began);
    MUST(took >= ms && took <= ms + 5);
}

/* Rank 1 takes no messages. A pass ends at its limit, when it is cancelled, and with its context. */
static void a_peer_that_is_stopped(weft_agent *agent, void *arg)
{
    world *w = arg;
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    recorded limited = record(agent), cancelled = record(agent), closed = record(agent);
    weft_future *filler = fill(agent), *pass, *gone;
    weft_sim_pause(w->sim, 1);
    uint64_t began = weft_agent_now_ns(agent);
    weft_dist_backward(limited.t, limited.loss, &(weft_pass_options){.timeout_ms = LIMIT_MS});
    MUST_BE(weft_tape_status(limited.t), WEFT_ERR_TIMEOUT);
    must_end_at(agent, began, LIMIT_MS);

    began = weft_agent_now_ns(agent);
    MUST_OK(weft_context_backward(cancelled.c, (weft_tensors){&cancelled.loss, 1}, NULL, &pass));
    world_sleep_ms(w, LIMIT_MS);
    MUST_OK(weft_future_cancel(pass));
    MUST_BE(weft_future_wait(pass, PATIENCE_MS), WEFT_ERR_CANCELLED);
    must_end_at(agent, began, LIMIT_MS);
    weft_future_unref(pass);

    began = weft_agent_now_ns(agent);
    MUST_OK(weft_context_backward(closed.c, (weft_tensors){&closed.loss, 1}, NULL, &pass));
    world_sleep_ms(w, LIMIT_MS);
    drop(&closed);
    weft_context_close(closed.c, &gone);
    MUST_BE(weft_future_wait(pass, PATIENCE_MS), WEFT_ERR_CANCELLED);
    must_end_at(agent, began, LIMIT_MS);
    weft_future_unref(pass);
    MUST_BE(weft_future_wait(gone, LIMIT_MS), WEFT_ERR_TIMEOUT); /* rank 1 still has it */
    MUST(!weft_future_done(gone) && weft_agent_contexts(agents[1], NULL) == 3);

    weft_sim_resume(w->sim, 1);
    MUST_OK(weft_future_wait(gone, PATIENCE_MS));
    weft_future_unref(gone);
    MUST(weft_agent_contexts(agents[1], NULL) == 2);
    let_go(filler);
    drop(&limited);
    drop(&cancelled);
    weft_context_close(limited.c, NULL);
    close_and_look(cancelled.c, agent);
}
QUEUE_TEST(a_peer_that_is_stopped, 10, 0, nobody_is_dead)

/* ---- Ends of contexts -------------------------------------------------------------------------------------------- */

#define CALL_LIMIT_MS 100

static void answer_soon(weft_agent_options *options, void *arg)
{
    nobody_is_dead(options, arg);
    options->call_timeout_ms = CALL_LIMIT_MS;
}

/*
 * The link is cut, and the queue is full. The future of the end of a context fails at the time limit of calls. The
 * worker lets go of the context once it hears of the end.
 */
static void a_link_that_is_cut(weft_agent *agent, void *arg)
{
    world *w = arg;
    agents[weft_agent_rank(agent)] = agent;
    if (weft_agent_rank(agent) != 0)
        return;
    recorded r = record(agent);
    weft_future *filler = fill(agent), *gone;
    weft_sim_cut(w->sim, 0, 1);
    drop(&r);
    weft_context_close(r.c, &gone);
    MUST_BE(weft_future_wait(gone, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    MUST(weft_future_done(gone) && weft_error_worker(weft_future_error(gone)) == 1);
    weft_future_unref(gone);
    MUST(weft_agent_contexts(agents[1], NULL) == 1);
    weft_sim_heal(w->sim, 0, 1);
    for (int ms = 0; weft_agent_contexts(agents[1], NULL); ms++) {
        MUST(ms < PATIENCE_MS);
        world_sleep_ms(w, 1);
    }
    let_go(filler);
}
QUEUE_TEST(a_link_that_is_cut, 10, 0, answer_soon)

/* A worker that dies has let go. */
static void a_holder_that_dies(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) != 0)
        return;
    recorded r = record(agent);
    weft_future *filler = fill(agent), *gone;
    drop(&r);
    weft_sim_pause(w->sim, 1);
    weft_context_close(r.c, &gone);
    world_sleep_ms(w, LIMIT_MS);
    MUST(!weft_future_done(gone));
    weft_sim_kill(w->sim, 1);
    MUST_OK(weft_future_wait(gone, PATIENCE_MS));
    weft_future_unref(gone);
    atomic_store(&held, false);
    MUST_BE(weft_future_wait(filler, PATIENCE_MS), WEFT_ERR_PEER_DEAD);
    weft_future_unref(filler);
}
WORLD_TEST(a_holder_that_dies, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin,
           .end = drop_parameters, .adjust = adjust, .close_may_fail = true)

/* ---- A budget that is exhausted ---------------------------------------------------------------------------------- */

#define BUDGET 65536 /* bytes, of rank 1 */
#define MUCH (4 * BUDGET)
#define SOME_MS 100

static atomic_bool stuck; /* passes wait at rank 2 */
static atomic_bool asked; /* the call whose result exhausts the budget runs at rank 1 */

static void begin_exhausted(world *w)
{
    begin(w);
    atomic_store(&held, true);
    atomic_store(&stuck, true);
    atomic_store(&asked, false);
}

static void small_budget(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->death_timeout_ms = WEFT_FOREVER;
    options->memory_budget_bytes = options->rank == 1 ? BUDGET : 0;
}

/* () -> a result that is larger than the budget, once `held` is unset */
static weft_status serve_much(weft_call *call, void *user)
{
    (void)user;
    atomic_store(&asked, true);
    while (atomic_load(&held))
        world_sleep_ms(now, 1);
    weft_tensor *much = tensor_zeros(WEFT_SHAPE(MUCH), WEFT_DTYPE_INT8);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(much)));
    weft_tensor_unref(much);
    return WEFT_OK;
}

static weft_tensor *wait_while_stuck(weft_tensor *gradient, void *arg)
{
    (void)arg;
    while (atomic_load(&stuck))
        world_sleep_ms(now, 1);
    return weft_tensor_ref(gradient);
}

/* (x, 0) -> parameter * x; a pass waits in it */
static weft_status serve_slowly(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_mul(t, parameter_here(call), weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_on_gradient(t, y, wait_while_stuck, NULL, NULL))));
    return WEFT_OK;
}

static const weft_function functions_of_budget[] = {
    {.name = "much", .gives = {WEFT_TYPE_TENSOR}, .run = serve_much},
    {.name = "through", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_pass_on},
    {.name = "pass_on", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_slowly},
    {.name = "times", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_times},
};

#define BUDGET_TEST(name)                                                                                              \
    WORLD_TEST(name, 10, 0, .size = WORKERS, WORLD_FUNCTIONS(functions_of_budget), .begin = begin_exhausted,           \
               .end = drop_parameters, .adjust = small_budget)

/* Rank 2, which takes the result only when it goes on. */
static void ask_for_much(weft_agent *agent)
{
    weft_future *much;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "much", WEFT_NO_VALUES,
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &much));
    MUST_OK(weft_future_wait(much, WEFT_FOREVER));
    weft_future_unref(much);
}

static void await_question(world *w)
{
    while (!atomic_load(&asked))
        world_sleep_ms(w, 1);
}

/* Rank 1 refuses every call from now on, until rank 2 goes on. */
static void exhaust(weft_agent *agent, world *w)
{
    weft_tensor *x = leaf_of(1, 1);
    atomic_store(&held, false);
    world_sleep_ms(w, SOME_MS);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "times", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL), WEFT_ERR_BUSY);
    weft_tensor_unref(x);
}

/* The failure of a pass is told again and again, until rank 1 hears of it: its part of the pass ends. */
static void an_abort_that_is_refused(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    agents[me] = agent;
    if (me == 2)
        ask_for_much(agent);
    if (me != 0)
        return;
    size_t passes = 0;
    weft_context *c;
    weft_future *pass;
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 5);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "through", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(1)));
    weft_tensor *loss = weft_sum(t, result(y, 0));
    await_question(w);
    weft_sim_pause(w->sim, 2);
    MUST_OK(weft_context_backward(c, (weft_tensors){&loss, 1}, NULL, &pass));
    world_sleep_ms(w, SOME_MS);
    (void)weft_agent_contexts(agents[1], &passes);
    MUST(passes == 1); /* it waits for rank 2 */
    exhaust(agent, w);
    MUST_OK(weft_future_cancel(pass));
    world_sleep_ms(w, SOME_MS);
    (void)weft_agent_contexts(agents[1], &passes);
    MUST(passes == 1);
    weft_sim_resume(w->sim, 2);
    world_sleep_ms(w, SOME_MS);
    (void)weft_agent_contexts(agents[1], &passes);
    MUST(passes == 0);
    atomic_store(&stuck, false);
    weft_future_unref(pass);
    weft_values_unref(y);
    weft_tape_close(t);
    weft_tensor_unref(x);
    close_and_look(c, agent);
}
BUDGET_TEST(an_abort_that_is_refused)

/* So is the end of a context. */
static void a_close_that_is_refused(weft_agent *agent, void *arg)
{
    world *w = arg;
    int me = weft_agent_rank(agent);
    agents[me] = agent;
    if (me == 2)
        ask_for_much(agent);
    if (me != 0)
        return;
    weft_future *gone;
    recorded r = record(agent);
    await_question(w);
    weft_sim_pause(w->sim, 2);
    exhaust(agent, w);
    drop(&r);
    weft_context_close(r.c, &gone);
    world_sleep_ms(w, SOME_MS);
    MUST(!weft_future_done(gone) && weft_agent_contexts(agents[1], NULL) == 1);
    weft_sim_resume(w->sim, 2);
    MUST_OK(weft_future_wait(gone, SOME_MS));
    MUST(weft_agent_contexts(agents[1], NULL) == 0);
    weft_future_unref(gone);
}
BUDGET_TEST(a_close_that_is_refused)

UNIT_MAIN(test_a_pass_within_the_call_that_fills_the_queue, test_all_of_an_iteration, test_a_peer_that_is_stopped,
          test_a_link_that_is_cut, test_a_holder_that_dies, test_an_abort_that_is_refused, test_a_close_that_is_refused)
