/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_parts.c - results that stream: order, bounds, references, and what happens when either side stops
 * half-way. */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>

enum { SEEDS = 20, CALLEE = 1, WINDOW = 16, PATIENCE_MS = 100000 };

static struct shared {
    world *w;
    _Atomic(weft_call *) held;
    atomic_int sent;         /* by the handler */
    atomic_int refused;      /* what the last send_part that failed said */
    atomic_bool open;        /* lets a slow on_item go on */
    atomic_bool handler_out; /* the handler has returned */
    int64_t size;            /* elements of each part's tensor */
} shared;

/* What the caller saw. */
typedef struct seen {
    atomic_int count, inside;
    atomic_bool over; /* the future is complete: no more may come */
    bool slow;
    weft_rref *rref;
} seen;

static weft_status send_one(weft_call *call, int64_t number)
{
    weft_tensor *x = tensor_arange(shared.size, WEFT_DTYPE_FLOAT32);
    weft_future *unwanted = weft_call_cancellation(call);
    weft_status status;
    while ((status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(number), weft_of_tensor(x)))) ==
           WEFT_ERR_AGAIN) {
        weft_status waited = weft_future_wait(unwanted, 1);
        (void)waited; /* whatever it is, the next attempt tells */
    }
    weft_future_unref(unwanted);
    weft_tensor_unref(x);
    if (status)
        atomic_store(&shared.refused, status);
    else
        atomic_fetch_add(&shared.sent, 1);
    return status;
}

static weft_status run_stream(weft_call *call, void *user)
{
    int64_t count = weft_call_i64(call, 0);
    for (int64_t i = 0; i < count; i++)
        MUST_OK(send_one(call, i));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(count)));
    return weft_call_bool(call, 1) ? WEFT_ERR_IO : WEFT_OK;
}

/* Sends until somebody says no. */
static weft_status run_endless(weft_call *call, void *user)
{
    for (int64_t i = 0; send_one(call, i) == WEFT_OK; i++)
        world_sleep_ms(shared.w, 1);
    atomic_store(&shared.handler_out, true);
    return WEFT_OK;
}

/* Fills the window, and returns with it full. */
static weft_status run_fill(weft_call *call, void *user)
{
    weft_tensor *x = tensor_arange(shared.size, WEFT_DTYPE_FLOAT32);
    int64_t number = 0;
    weft_status status;
    while (!(status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(number), weft_of_tensor(x)))))
        number++;
    atomic_store(&shared.refused, status);
    atomic_store(&shared.sent, (int)number);
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_try(weft_call *call, void *user)
{
    weft_values *deep = NULL;
    MUST_OK(weft_values_create(WEFT_NO_VALUES, &deep, NULL));
    weft_status bad = weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(NULL)));
    weft_status status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(0)));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(bad), weft_of_i64(status)));
    weft_values_unref(deep);
    return WEFT_OK;
}

static weft_status run_send_wrong(weft_call *call, void *user)
{
    return weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(NULL)));
}

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_store(&shared.held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static weft_status run_send_rref(weft_call *call, void *user)
{
    weft_rref *rref;
    MUST_OK(weft_rref_create(weft_call_agent(call), weft_of_i64(77), &rref, NULL));
    MUST_OK(weft_call_send_item(call, WEFT_VALUES(weft_of_i64(0), weft_of_rref(rref))));
    weft_rref_unref(rref); /* the caller's own keeps the value */
    MUST_OK(send_one(call, 1));
    return WEFT_OK;
}

/* A part; and, when it has come, a result that would have to be pulled. */
static weft_status run_part_and_result(weft_call *call, void *user)
{
    weft_tensor *x = tensor_arange(1000000, WEFT_DTYPE_FLOAT32);
    MUST_OK(send_one(call, 0));
    world_sleep_ms(shared.w, 2);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    atomic_store(&shared.handler_out, true);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "stream", .takes = {WEFT_TYPE_I64, WEFT_TYPE_BOOL}, .gives = {WEFT_TYPE_I64}, .run = run_stream},
    {.name = "endless", .run = run_endless},
    {.name = "fill", .run = run_fill},
    {.name = "try", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = run_try},
    {.name = "send wrong", .run = run_send_wrong},
    {.name = "hold", .run = run_hold},
    {.name = "send_rref", .run = run_send_rref},
    {.name = "part and result", .gives = {WEFT_TYPE_TENSOR}, .run = run_part_and_result},
};

static void on_item(const weft_values *part, void *arg)
{
    seen *s = arg;
    int64_t number;
    weft_tensor *x;
    weft_rref *rref;
    MUST(atomic_fetch_add(&s->inside, 1) == 0 && !atomic_load(&s->over)); /* one at a time, none too late */
    MUST_OK(weft_values_get_i64(part, 0, &number));
    MUST(number == atomic_load(&s->count)); /* in order */
    if (weft_values_get_rref(part, 1, &rref) == WEFT_OK) {
        s->rref = weft_rref_ref(rref);
    } else {
        MUST_OK(weft_values_get_tensor(part, 1, &x));
        MUST(weft_tensor_numel(x) == shared.size);
        MUST(!shared.size || weft_tensor_get_f64(x, shared.size - 1) == (double)(shared.size - 1));
    }
    while (s->slow && !atomic_load(&shared.open))
        world_sleep_ms(shared.w, 1);
    atomic_fetch_add(&s->count, 1);
    MUST(atomic_fetch_sub(&s->inside, 1) == 1);
}

static weft_future *call_with_parts(weft_agent *agent, int rank, const char *function, weft_args args, seen *s,
                                    int64_t timeout_ms)
{
    weft_future *future;
    weft_rpc_options options = {.on_item = on_item, .item_arg = s, .timeout_ms = timeout_ms};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), function, args, &options, &future));
    return future;
}

/* Waits for the end and marks it at once: parts that come later are caught. */
static weft_status end_of(weft_future *future, seen *s)
{
    weft_status status = weft_future_wait(future, PATIENCE_MS);
    MUST(weft_future_done(future));
    atomic_store(&s->over, true);
    weft_future_unref(future);
    return status;
}

static void await_nothing_held(weft_agent *agent)
{
    weft_stats stats;
    for (int i = 0; i < PATIENCE_MS; i++) {
        weft_agent_stats(agent, &stats);
        if (!stats.bytes_held)
            return;
        world_sleep_ms(shared.w, 1);
    }
    MUST(!"what was kept is given back");
}

static void await_true(atomic_bool *flag)
{
    for (int i = 0; i < PATIENCE_MS && !atomic_load(flag); i++)
        world_sleep_ms(shared.w, 1);
    MUST(atomic_load(flag));
}

/* ---- All goes well ----------------------------------------------------------------------------------------------- */

static void streams(weft_agent *agent, void *arg)
{
    static const int64_t sizes[] = {0, 1, 60, 3000, 300000}, counts[] = {0, 1, 5, 40};
    for (int k = 0; weft_agent_rank(agent) == 0 && k < 5 * 4 * 4; k++) {
        seen s = {0};
        int64_t count = counts[k / 5 % 4];
        int rank = k / 20 % 2;
        bool fails = k / 40;
        shared.size = sizes[k % 5];
        weft_future *future = call_with_parts(agent, rank, "stream",
                                              WEFT_VALUES(weft_of_i64(count), weft_of_bool(fails)), &s, WEFT_FOREVER);
        MUST_BE(end_of(future, &s), fails ? WEFT_ERR_REMOTE : WEFT_OK);
        MUST(atomic_load(&s.count) == count); /* the last one before the future */
    }
    if (weft_agent_rank(agent) == CALLEE)
        await_nothing_held(agent);
}

static void many_callers(weft_agent *agent, void *arg)
{
    enum { CALLS = 8 };
    seen s[CALLS];
    weft_future *futures[CALLS];
    for (int i = 0; i < CALLS; i++) {
        s[i] = (seen){0};
        futures[i] = call_with_parts(agent, (weft_agent_rank(agent) + 1 + i) % 3, "stream",
                                     WEFT_VALUES(weft_of_i64(30), weft_of_bool(false)), &s[i], 0);
    }
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(end_of(futures[i], &s[i]));
        MUST(atomic_load(&s[i].count) == 30);
    }
}

static void fill_the_window(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {.slow = true};
        weft_stats stats;
        atomic_store(&shared.open, false);
        atomic_store(&shared.refused, 0);
        weft_future *future = call_with_parts(agent, rank, "fill", WEFT_NO_VALUES, &s, 0);
        while (!atomic_load(&shared.refused))
            world_sleep_ms(shared.w, 1);
        MUST_BE((weft_status)atomic_load(&shared.refused), WEFT_ERR_AGAIN);
        MUST(atomic_load(&shared.sent) == WINDOW);
        world_sleep_ms(shared.w, 20);
        MUST(!weft_future_done(future)); /* the handler has finished; its parts are not through */
        MUST(atomic_load(&s.count) == 0);
        atomic_store(&shared.open, true);
        MUST_OK(end_of(future, &s));
        MUST(atomic_load(&s.count) == WINDOW);
        weft_agent_stats(agent, &stats);
        MUST(stats.bytes_held == 0);
    }
    if (weft_agent_rank(agent) == CALLEE)
        await_nothing_held(agent);
}

static void refusals(weft_agent *agent, void *arg)
{
    weft_values *got;
    int64_t bad, status;
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "try", WEFT_NO_VALUES, NULL, &got)); /* takes no parts */
        MUST(!weft_values_get_i64(got, 0, &bad) && !weft_values_get_i64(got, 1, &status));
        MUST(bad == WEFT_ERR_STATE && status == WEFT_ERR_STATE);
        weft_values_unref(got);
    }
}

static void must_say(const weft_error *error, weft_status code, const char *words)
{
    MUST_BE(weft_error_code(error), WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), code);
    MUST(strstr(weft_error_message(error), words));
}

/* A handler returns the status of a part that was refused: the caller learns why. */
static void refusals_are_explained(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {0};
        weft_error *error = NULL;
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), "send wrong", WEFT_NO_VALUES,
                              &(weft_rpc_options){.error = &error}, NULL),
                WEFT_ERR_REMOTE);
        must_say(error, WEFT_ERR_STATE, "the caller accepts no items");
        weft_error_unref(error);
        weft_future *future = call_with_parts(agent, rank, "send wrong", WEFT_NO_VALUES, &s, 0);
        MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_REMOTE);
        must_say(weft_future_error(future), WEFT_ERR_INVALID, "value 0 is a NULL tensor");
        weft_future_unref(future);
    }
}

/* A part that cannot be packed is refused, and leaves no gap in the numbers. */
static void bad_parts(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {0};
        weft_future *future = call_with_parts(agent, rank, "hold", WEFT_NO_VALUES, &s, 0);
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        weft_call *call = atomic_exchange(&shared.held, NULL);
        MUST_BE(weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(NULL))), WEFT_ERR_INVALID);
        MUST_OK(send_one(call, 0));
        weft_value many[WEFT_MAX_VALUES + 1];
        for (int i = 0; i <= WEFT_MAX_VALUES; i++)
            many[i] = weft_of_null();
        MUST_BE(weft_call_send_item(call, (weft_args){many, WEFT_MAX_VALUES + 1}), WEFT_ERR_TOO_LARGE);
        MUST_OK(send_one(call, 1));
        weft_call_finish(call, WEFT_OK);
        MUST_OK(end_of(future, &s));
        MUST(atomic_load(&s.count) == 2);
    }
}

static void *send_elsewhere(void *arg)
{
    weft_call *call = arg;
    for (int i = 0; i < 50; i++)
        MUST_OK(send_one(call, i));
    weft_call_finish(call, WEFT_OK);
    return NULL;
}

/* The deferred call is in the hands of another thread; on the simulation, of the caller's own fiber. */
static void another_thread_sends(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {0};
        pthread_t thread;
        weft_future *future = call_with_parts(agent, rank, "hold", WEFT_NO_VALUES, &s, 0);
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        weft_call *call = atomic_exchange(&shared.held, NULL);
        if (shared.w->fabric == WORLD_SIM)
            send_elsewhere(call);
        else
            MUST(!pthread_create(&thread, NULL, send_elsewhere, call));
        MUST_OK(end_of(future, &s));
        MUST(atomic_load(&s.count) == 50);
        if (shared.w->fabric != WORLD_SIM)
            pthread_join(thread, NULL);
    }
}

static void references_in_parts(weft_agent *agent, void *arg)
{
    weft_values *value;
    int64_t number;
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {0};
        MUST_OK(end_of(call_with_parts(agent, rank, "send_rref", WEFT_NO_VALUES, &s, 0), &s));
        MUST(atomic_load(&s.count) == 2 && s.rref && weft_rref_owner(s.rref) == rank);
        MUST_OK(weft_rref_to_here(s.rref, 5000, &value, NULL));
        MUST(!weft_values_get_i64(value, 0, &number) && number == 77);
        weft_values_unref(value);
        weft_rref_unref(s.rref);
    }
}

/* ---- Half-way ---------------------------------------------------------------------------------------------------- */

static void cancel_it(weft_agent *agent, int rank)
{
    seen s = {0};
    weft_future *future = call_with_parts(agent, rank, "endless", WEFT_NO_VALUES, &s, WEFT_FOREVER);
    while (atomic_load(&s.count) < 5)
        world_sleep_ms(shared.w, 1);
    MUST_OK(weft_future_cancel(future));
    MUST_BE(end_of(future, &s), WEFT_ERR_CANCELLED);
}

/* On a busy machine the time may be over before the handler's turn comes: then it does not run, and more time is
 * given. */
static void let_time_run_out(weft_agent *agent, int rank)
{
    seen s = {0};
    for (int64_t limit_ms = 60; !atomic_load(&s.count); limit_ms *= 4) {
        MUST(limit_ms < PATIENCE_MS);
        s = (seen){0};
        weft_status status = end_of(call_with_parts(agent, rank, "endless", WEFT_NO_VALUES, &s, limit_ms), &s);
        if (status) /* the callee may see the time run out first, and its handler's answer be the faster */
            MUST_BE(status, WEFT_ERR_TIMEOUT);
    }
}

static void caller_stops(weft_agent *agent, void *arg)
{
    for (int k = 0; weft_agent_rank(agent) == 0 && k < 4; k++) {
        atomic_store(&shared.handler_out, false);
        if (k % 2)
            cancel_it(agent, k / 2);
        else
            let_time_run_out(agent, k / 2);
        await_true(&shared.handler_out);
        MUST_BE((weft_status)atomic_load(&shared.refused), WEFT_ERR_CANCELLED);
    }
    if (weft_agent_rank(agent) == CALLEE)
        await_nothing_held(agent);
}

/* The end waits for the on_item that runs, and for no other. */
static void cancel_under_on_part(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen s = {.slow = true};
        atomic_store(&shared.open, false);
        atomic_store(&shared.refused, 0);
        weft_future *future = call_with_parts(agent, rank, "fill", WEFT_NO_VALUES, &s, WEFT_FOREVER);
        while (!atomic_load(&shared.refused) || !atomic_load(&s.inside))
            world_sleep_ms(shared.w, 1);
        MUST_OK(weft_future_cancel(future));
        world_sleep_ms(shared.w, 5);
        MUST(!weft_future_done(future));
        atomic_store(&shared.open, true);
        MUST_BE(end_of(future, &s), WEFT_ERR_CANCELLED);
        MUST(atomic_load(&s.count) == 1);
    }
    if (weft_agent_rank(agent) == CALLEE)
        await_nothing_held(agent);
}

/* An answer that crosses the caller's CANCEL, and finds it waiting for an on_item: nothing of it is taken. */
typedef struct crossing {
    weft_agent *agent;
    weft_future *future;
} crossing;

static void cancel_as_it_is_answered(const weft_values *part, void *arg)
{
    crossing *c = arg;
    while (!atomic_load(&shared.handler_out))
        weft_sim_sleep(shared.w->sim, 500);
    MUST_OK(weft_future_cancel(c->future));
    world_sleep_ms(shared.w, 1); /* it has come */
    MUST(inside_given_up(c->agent));
}

static void cancel_under_answer(weft_agent *agent, void *arg)
{
    crossing c = {.agent = agent};
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLEE), "part and result", WEFT_NO_VALUES,
                               &(weft_rpc_options){.on_item = cancel_as_it_is_answered, .item_arg = &c}, &c.future));
        MUST_BE(weft_future_wait(c.future, PATIENCE_MS), WEFT_ERR_CANCELLED);
        weft_future_unref(c.future);
    }
    if (weft_agent_rank(agent) == CALLEE) {
        await_true(&shared.handler_out);
        await_nothing_held(agent);
    }
}

/* The only worker is in another call's on_item: who gives up does not wait for it. */
static void no_worker_free(weft_agent *agent, void *arg)
{
    for (int rank = 0; weft_agent_rank(agent) == 0 && rank < 2; rank++) {
        seen first = {.slow = true}, second = {0};
        atomic_store(&shared.open, false);
        weft_future *held = call_with_parts(agent, rank, "hold", WEFT_NO_VALUES, &second, WEFT_FOREVER);
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        weft_future *busy = call_with_parts(agent, CALLEE, "endless", WEFT_NO_VALUES, &first, WEFT_FOREVER);
        while (!atomic_load(&first.inside))
            world_sleep_ms(shared.w, 1);
        MUST_OK(send_one(atomic_load(&shared.held), 0));
        world_sleep_ms(shared.w, 10); /* it has come, and waits for a worker */
        MUST_OK(weft_future_cancel(held));
        MUST_BE(weft_future_wait(held, 10), WEFT_ERR_CANCELLED);
        MUST_BE(end_of(held, &second), WEFT_ERR_CANCELLED);
        MUST_OK(weft_future_cancel(busy));
        atomic_store(&shared.open, true);
        MUST_BE(end_of(busy, &first), WEFT_ERR_CANCELLED);
        weft_call_finish(atomic_exchange(&shared.held, NULL), WEFT_OK);
        MUST(atomic_load(&first.count) == 1 && atomic_load(&second.count) == 0);
    }
    if (weft_agent_rank(agent) == CALLEE)
        await_nothing_held(agent);
}

/* Rank 0, which has the store, kills the caller, 2, or the callee. */
static seen dying;

static void one_dies(weft_agent *agent, void *arg)
{
    int victim = *(int *)arg;
    if (weft_agent_rank(agent) == 0) {
        while (atomic_load(&dying.count) < 3)
            world_sleep_ms(shared.w, 1);
        weft_sim_kill(shared.w->sim, victim);
    }
    if (weft_agent_rank(agent) == 2) {
        weft_future *future = call_with_parts(agent, CALLEE, "endless", WEFT_NO_VALUES, &dying, WEFT_FOREVER);
        MUST_BE(end_of(future, &dying), WEFT_ERR_PEER_DEAD);
    }
    if (weft_agent_rank(agent) == CALLEE) {
        await_true(&shared.handler_out);
        MUST_BE((weft_status)atomic_load(&shared.refused), WEFT_ERR_CANCELLED);
        await_nothing_held(agent);
    }
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static void begin(world *w)
{
    shared = (struct shared){.w = w, .size = 3000};
    dying = (seen){0};
}

#define SCENE WORLD_FUNCTIONS(functions), .begin = begin
WORLD_TEST(streams, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(many_callers, SEEDS, 1, SCENE, .size = 3)
WORLD_TEST(fill_the_window, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(refusals, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(refusals_are_explained, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(bad_parts, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(another_thread_sends, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(references_in_parts, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(caller_stops, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(cancel_under_on_part, SEEDS, 1, SCENE, .size = 2)
WORLD_TEST(cancel_under_answer, SEEDS, 0, SCENE, .size = 2)
WORLD_TEST(no_worker_free, SEEDS, 0, SCENE, .size = 2, .adjust = world_one_worker)

static void test_one_dies(void **state)
{
    for (int victim = 1; victim <= 2; victim++)
        world_play(&(world){SCENE, .size = 3, .program = one_dies, .arg = &victim, .close_may_fail = true}, SEEDS, 0);
}

UNIT_MAIN(test_streams, test_many_callers, test_fill_the_window, test_refusals, test_refusals_are_explained,
          test_bad_parts, test_another_thread_sends, test_references_in_parts, test_caller_stops,
          test_cancel_under_on_part, test_cancel_under_answer, test_no_worker_free, test_one_dies)
