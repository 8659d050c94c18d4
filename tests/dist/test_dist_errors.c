/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_errors.c - however a pass, or a call under a context, ends badly: the error names the worker, by rank
 * and name, and the operator, at the root and at every other worker that had a part.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <weft/remote_module.h>

#define WORKERS 3
#define PATIENCE_MS 20000

static world *present;                /* for handlers and operators */
static atomic_bool entered, released; /* slow_pipe's backward function runs; it may return */
static atomic_bool doomed;            /* rank 2 is to die */

static void begin(world *w)
{
    present = w;
    atomic_store(&entered, false);
    atomic_store(&released, false);
    atomic_store(&doomed, false);
}

static void await(atomic_bool *flag)
{
    for (int ms = 0; !atomic_load(flag); ms++) {
        MUST(ms < PATIENCE_MS);
        world_sleep_ms(present, 1);
    }
}

/* So long a pass or call may take that will not end by itself: time enough to get where it stays. */
static int64_t limit_ms(void)
{
    return present->fabric == WORLD_SIM ? 50 : 3000;
}

/* ---- What every worker serves ------------------------------------------------------------------------------------ */

static weft_tensor *leaf_of(float a, float b)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    memcpy(weft_tensor_data(x), (float[]){a, b}, 2 * sizeof(float));
    weft_tensor_set_requires_grad(x, true);
    return x;
}

static weft_status broken_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
                                   weft_tensor **dx)
{
    (void)state, (void)saved, (void)dy, (void)wanted, (void)dx;
    return WEFT_ERR_SYSTEM;
}

static weft_status slow_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)state, (void)saved, (void)wanted;
    atomic_store(&entered, true);
    await(&released);
    dx[0] = weft_tensor_ref(dy.items[0]);
    return WEFT_OK;
}

static weft_agent *root; /* of out_of_time_here */

/* Returns after the pass has run out of time: the call begins later than the pass, and has the same time limit. */
static weft_status dawdle_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
                                   weft_tensor **dx)
{
    (void)state, (void)saved, (void)wanted;
    MUST_BE(weft_rpc_sync(root, weft_to_rank(1), "late", WEFT_VALUES(weft_of_tensor(dy.items[0])),
                          &(weft_rpc_options){.timeout_ms = limit_ms() + 1}, NULL),
            WEFT_ERR_TIMEOUT);
    dx[0] = weft_tensor_ref(dy.items[0]);
    return WEFT_OK;
}

static const weft_operator dawdle = {.name = "dawdle", .backward = dawdle_backward};
static const weft_operator broken_pipe = {.name = "broken_pipe", .backward = broken_backward};
static const weft_operator slow_pipe = {.name = "slow_pipe", .backward = slow_backward};

static weft_tensor *record(weft_tape *t, const weft_operator *op, weft_tensor *x)
{
    weft_tensor *y = tensor_clone(x), *out = NULL;
    weft_tape_record(t, op, (weft_tensors){&x, 1}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1}, &out);
    weft_tensor_unref(y);
    return out;
}

/* (x) -> x, through the operator `user` */
static weft_status serve_operator(weft_call *call, void *user)
{
    weft_tensor *y = record(weft_call_tape(call), user, weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

/* (x) -> x, when it is released; a call to oneself ends with its handler only: that returns when its time limit has
 * ended it */
static weft_status serve_late(weft_call *call, void *user)
{
    (void)user;
    if (weft_call_from(call) == weft_agent_rank(weft_call_agent(call))) {
        weft_future *ended = weft_call_cancellation(call);
        MUST_BE(weft_future_wait(ended, PATIENCE_MS), WEFT_ERR_TIMEOUT);
        weft_future_unref(ended);
    } else {
        await(&released);
    }
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

/* (x, function) -> what that function of rank 2 makes of 2 * x, times 3 */
static weft_status serve_relay(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *y = weft_scale(t, weft_call_tensor(call, 0), 2), *z = NULL;
    weft_values *results = NULL;
    weft_status status =
        weft_rpc_sync(weft_call_agent(call), weft_to_rank(2), weft_call_string(call, 1), WEFT_VALUES(weft_of_tensor(y)),
                      &(weft_rpc_options){.tape = t, .parent = call}, &results);
    if (!status)
        status = weft_values_get_tensor(results, 0, &z);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_scale(t, z, 3))));
    weft_values_unref(results);
    return status;
}

/* () -> what weft_debug_dump says of contexts here */
static weft_status serve_dump(weft_call *call, void *user)
{
    (void)user;
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    MUST_OK(weft_debug_dump(weft_call_agent(call), to));
    fclose(to);
    const char *contexts = strstr(text, "\"contexts\": [");
    MUST(contexts);
    weft_call_give(call, WEFT_VALUES(weft_of_string(contexts)));
    free(text);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "relay", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_STRING}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_relay},
    {.name = "broken",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_operator,
     .user = (void *)&broken_pipe},
    {.name = "slow",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_operator,
     .user = (void *)&slow_pipe},
    {.name = "late", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_late},
    {.name = "dump", .gives = {WEFT_TYPE_STRING}, .run = serve_dump},
};

#define SCENE .size = WORKERS, WORLD_FUNCTIONS(functions), .begin = begin

/* ---- What is expected -------------------------------------------------------------------------------------------- */

typedef struct step {
    weft_agent *agent;
    weft_context *context;
    weft_tape *tape;
    weft_tensor *x;
    weft_values *results;
} step;

/* By way of rank 1 to that function of rank 2, and through `op`, if it is given; the sum of what comes. */
static weft_tensor *record_under(step *s, weft_agent *agent, const char *function, const weft_operator *op)
{
    weft_tensor *y;
    *s = (step){.agent = agent, .x = leaf_of(5, 7)};
    MUST_OK(weft_context_open(agent, &s->context, NULL));
    s->tape = weft_context_tape(s->context, NULL);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "relay", WEFT_VALUES(weft_of_tensor(s->x), weft_of_string(function)),
                          &(weft_rpc_options){.tape = s->tape}, &s->results));
    MUST_OK(weft_values_get_tensor(s->results, 0, &y));
    return weft_sum(s->tape, op ? record(s->tape, op, y) : y);
}

static weft_tensor *open_step(step *s, weft_agent *agent, const char *function)
{
    return record_under(s, agent, function, NULL);
}

static void close_step(step *s)
{
    weft_future *gone;
    weft_values_unref(s->results);
    weft_tape_close(s->tape);
    weft_context_close(s->context, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
    weft_tensor_unref(s->x);
}

/* That it is of that status and worker, and says all of `words`, which ends with NULL. */
static void must_say(const weft_error *error, weft_status status, int worker, const char *const *words)
{
    bool whole = error && weft_error_code(error) == status && weft_error_worker(error) == worker;
    for (size_t i = 0; whole && words[i]; i++)
        whole = strstr(weft_error_message(error), words[i]);
    if (!whole)
        weft_error_print(error, stderr);
    MUST(whole);
}

/* At `rank` a pass fails in the end with an error that says all of `words`. */
static void await_there(step *s, int rank, const char *const *words)
{
    bool whole = false;
    for (int ms = 0; !whole; ms++) {
        weft_values *dump = NULL;
        const char *text;
        MUST(ms < PATIENCE_MS);
        MUST_OK(weft_rpc_sync(s->agent, weft_to_rank(rank), "dump", WEFT_NO_VALUES, NULL, &dump));
        MUST_OK(weft_values_get_string(dump, 0, &text));
        const char *error = strstr(text, "\"state\": \"failed\", \"error\": \"");
        whole = error;
        for (size_t i = 0; whole && words[i]; i++)
            whole = strstr(error, words[i]);
        weft_values_unref(dump);
        world_sleep_ms(present, 1);
    }
}

#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- Ended from outside ------------------------------------------------------------------------------------------ */

#define ROOT_STANDS "on rank 0 (worker0), behind operator sum: "
#define ROOT_AWAITS "; rank 1 (worker1) owes the gradient of a leaf"

/* All workers have the root's error, and add where they stood. Rank 2's operator returns when it has heard: else it
 * might be done before. */
static void all_have(step *s, const char *what)
{
    await_there(s, 2, SAYS(ROOT_STANDS, what));
    atomic_store(&released, true);
    await_there(s, 0, SAYS(ROOT_STANDS, what, ROOT_AWAITS));
    await_there(s, 1, SAYS(ROOT_STANDS, what, ROOT_AWAITS "; here, on rank 1 (worker1), behind operator scale"));
    await_there(s, 2, SAYS(ROOT_STANDS, what, ROOT_AWAITS "; here, on rank 2 (worker2), behind operator slow_pipe"));
}

static weft_future *begin_pass(step *s, weft_tensor *loss)
{
    weft_future *pass;
    MUST_OK(weft_context_backward(s->context, (weft_tensors){&loss, 1}, NULL, &pass));
    await(&entered);
    return pass;
}

static void cancelled(weft_agent *agent, void *arg)
{
    step s;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_future *pass = begin_pass(&s, open_step(&s, agent, "slow"));
    MUST_OK(weft_future_cancel(pass));
    (void)!weft_future_wait(pass, WEFT_FOREVER);
    must_say(weft_future_error(pass), WEFT_ERR_CANCELLED, 0, SAYS(ROOT_STANDS "the pass was cancelled" ROOT_AWAITS));
    all_have(&s, "the pass was cancelled");
    weft_future_unref(pass);
    close_step(&s);
}
WORLD_TEST(cancelled, 5, 2, SCENE)

/* Of what is closed nothing is left to look at elsewhere. */
static void closed(weft_agent *agent, void *arg)
{
    step s;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_future *pass = begin_pass(&s, open_step(&s, agent, "slow"));
    weft_values_unref(s.results);
    weft_tape_close(s.tape);
    weft_context_close(s.context, NULL);
    (void)!weft_future_wait(pass, WEFT_FOREVER);
    atomic_store(&released, true);
    must_say(weft_future_error(pass), WEFT_ERR_CANCELLED, 0,
             SAYS(ROOT_STANDS "its context was closed; the context is of rank 0 (worker0)" ROOT_AWAITS));
    weft_future_unref(pass);
    weft_tensor_unref(s.x);
}
WORLD_TEST(closed, 5, 2, SCENE)

static void out_of_time(weft_agent *agent, void *arg)
{
    step s;
    char what[80];
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *loss = open_step(&s, agent, "slow");
    weft_dist_backward(s.tape, loss, &(weft_pass_options){.timeout_ms = limit_ms()});
    snprintf(what, sizeof(what), "the pass did not end within its time limit, %d ms", (int)limit_ms());
    must_say(weft_tape_error(s.tape), WEFT_ERR_TIMEOUT, 1, SAYS(ROOT_STANDS, what, ROOT_AWAITS));
    all_have(&s, what);
    close_step(&s);
}
WORLD_TEST(out_of_time, 5, 1, SCENE)

/* The time is spent here. Nobody has been asked for anything yet, so that it is nobody else's fault. */
static void out_of_time_here(weft_agent *agent, void *arg)
{
    step s;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    root = agent;
    weft_tensor *loss = record_under(&s, agent, "slow", &dawdle);
    weft_dist_backward(s.tape, loss, &(weft_pass_options){.timeout_ms = limit_ms()});
    atomic_store(&released, true);
    must_say(weft_tape_error(s.tape), WEFT_ERR_TIMEOUT, 0,
             SAYS("on rank 0 (worker0), behind operator dawdle: the pass did not end within its time limit, "));
    MUST(!strstr(weft_error_message(weft_tape_error(s.tape)), "owes"));
    close_step(&s);
}
WORLD_TEST(out_of_time_here, 5, 2, SCENE)

/* A forward call: the worker that did not answer, in the function that was called. */
static void late_call(weft_agent *agent, void *arg)
{
    weft_context *c;
    weft_error *error = NULL;
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    for (int rank = 0; rank < 2; rank++) {
        static const char *const words[] = {"no answer from rank 0 (worker0) within the call's time limit",
                                            "no answer from rank 1 (worker1) within the call's time limit"};
        const weft_rpc_options how = {.tape = t, .timeout_ms = limit_ms(), .error = &error};
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), "late", WEFT_VALUES(weft_of_tensor(x)), &how, NULL),
                WEFT_ERR_TIMEOUT);
        must_say(error, WEFT_ERR_TIMEOUT, rank, SAYS(words[rank]));
        MUST(strcmp(weft_error_function(error), "late") == 0);
        weft_error_unref(error);
    }
    atomic_store(&released, true);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}
WORLD_TEST(late_call, 5, 2, SCENE)

static weft_tensor *patient_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    (void)t, (void)self;
    await(&released);
    return x;
}

static weft_module *make_patient(int64_t argument)
{
    static const weft_module_type type = {.name = "Patient", .forward = patient_forward};
    return module_create(&type, NULL, NULL);
}

/* A forward pass of a module that lives elsewhere: the tape has the error. */
static void late_forward(weft_agent *agent, void *arg)
{
    weft_context *c;
    weft_rref *module;
    (void)arg;
    if (weft_agent_rank(agent) == 1) {
        world_serve_module(agent, "patient", make_patient);
        atomic_store(&entered, true);
    }
    if (weft_agent_rank(agent) != 0)
        return;
    await(&entered);
    weft_tensor *x = leaf_of(5, 7);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "patient", WEFT_NO_VALUES, NULL, &module));
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *y = weft_remote_forward(t, module, x, &(weft_forward_options){.timeout_ms = limit_ms()});
    atomic_store(&released, true);
    MUST(!y);
    must_say(weft_tape_error(t), WEFT_ERR_TIMEOUT, 1,
             SAYS("no answer from rank 1 (worker1) within the call's time limit"));
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_rref_unref(module);
    weft_tensor_unref(x);
}
WORLD_TEST(late_forward, 5, 2, SCENE)

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void broken_there(weft_agent *agent, void *arg)
{
    step s;
    static const char *const what = "on rank 2 (worker2): backward: broken_pipe: ";
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *loss = open_step(&s, agent, "broken");
    weft_dist_backward(s.tape, loss, NULL);
    must_say(weft_tape_error(s.tape), WEFT_ERR_SYSTEM, 2, SAYS(what));
    await_there(&s, 0, SAYS(what));
    await_there(&s, 1, SAYS(what, "; here, on rank 1 (worker1), behind operator scale"));
    await_there(&s, 2, SAYS(what));
    close_step(&s);
}
WORLD_TEST(broken_there, 5, 2, SCENE)

static void broken_here(weft_agent *agent, void *arg)
{
    step s;
    static const char *const what = "on rank 0 (worker0): backward: broken_pipe: ";
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *loss = record_under(&s, agent, "broken", &broken_pipe);
    weft_dist_backward(s.tape, loss, NULL);
    must_say(weft_tape_error(s.tape), WEFT_ERR_SYSTEM, 0, SAYS(what));
    await_there(&s, 0, SAYS(what));
    close_step(&s);
}
WORLD_TEST(broken_here, 5, 2, SCENE)

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

/* Rank 2 dies with what it owes rank 1, which tells the root. */
static void a_worker_dies(weft_agent *agent, void *arg)
{
    step s;
    static const char *const what[] = {"on rank 1 (worker1), behind operator scale: rank 2 (worker2) is dead: ",
                                       "; rank 2 (worker2) owes the gradient of what operator scale made", NULL};
    (void)arg;
    if (weft_agent_rank(agent) == 2) {
        await(&doomed);
        weft_sim_kill(present->sim, 2); /* does not return */
    }
    if (weft_agent_rank(agent) != 0)
        return;
    weft_future *pass = begin_pass(&s, open_step(&s, agent, "slow"));
    atomic_store(&doomed, true);
    MUST_BE(weft_future_wait(pass, WEFT_FOREVER), WEFT_ERR_PEER_DEAD);
    must_say(weft_future_error(pass), WEFT_ERR_PEER_DEAD, 2, what);
    await_there(&s, 0, what);
    await_there(&s, 1, what);
    weft_future_unref(pass);
    weft_values_unref(s.results);
    weft_tape_close(s.tape);
    weft_context_close(s.context, NULL);
    weft_tensor_unref(s.x);
}
WORLD_TEST(a_worker_dies, 5, 0, SCENE)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancelled),     cmocka_unit_test(test_closed),
        cmocka_unit_test(test_out_of_time),   cmocka_unit_test(test_out_of_time_here),
        cmocka_unit_test(test_late_call),     cmocka_unit_test(test_late_forward),
        cmocka_unit_test(test_broken_there),  cmocka_unit_test(test_broken_here),
        cmocka_unit_test(test_a_worker_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
