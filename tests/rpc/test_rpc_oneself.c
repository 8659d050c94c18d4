/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_oneself.c - calls to oneself whose handler sees the caller's own memory: it is the caller's again when
 * the future completes, also of a call that is late or was cancelled, and is freed here at that moment.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

enum { COUNT = 5000, SCRIBBLE = 0x55 };

static world *the_world;
static atomic_int begun, inside, drops;
static _Atomic(weft_call *) held;
static weft_tensor *remembered;
static weft_tape *tape;
static weft_tensor *loss; /* of the tape's */

static void check_ones(const weft_tensor *x)
{
    const float *data = weft_tensor_data((weft_tensor *)x);
    for (int i = 0; i < COUNT; i++)
        MUST(data[i] == 1);
}

/* Reads its argument long after nobody wants the answer any more. */
static weft_status read_late(weft_call *call)
{
    weft_tensor *twos = tensor_full(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, 2);
    world_sleep_ms(the_world, 5);
    check_ones(weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(twos)));
    weft_tensor_unref(twos);
    MUST(atomic_fetch_sub(&inside, 1) == 1);
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    MUST(atomic_fetch_add(&inside, 1) == 0);
    weft_future *unwanted = weft_call_cancellation(call);
    atomic_fetch_add(&begun, 1);
    MUST(weft_future_wait(unwanted, WEFT_FOREVER) != WEFT_OK);
    weft_future_unref(unwanted);
    return read_late(call);
}

static weft_status run_read_inline(weft_call *call, void *user)
{
    MUST(atomic_fetch_add(&inside, 1) == 0);
    while (!weft_call_cancelled(call))
        world_sleep_ms(the_world, 1);
    return read_late(call);
}

/* Late twice, and right the third time. */
static weft_status run_third(weft_call *call, void *user)
{
    if (atomic_load(&begun) < 2)
        return run_read(call, user);
    MUST(atomic_load(&inside) == 0);
    check_ones(weft_call_tensor(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static weft_status run_keep(weft_call *call, void *user)
{
    atomic_store(&held, weft_call_defer_keeping(call));
    return WEFT_DEFERRED;
}

static weft_status run_let_go(weft_call *call, void *user)
{
    atomic_store(&held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

/* Hands its argument on to a call within this one. */
static weft_status run_nest(weft_call *call, void *user)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .parent = call};
    weft_status status = weft_rpc_sync(weft_call_agent(call), weft_to_rank(0), "read",
                                       WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))), &options, NULL);
    MUST_BE(status, WEFT_ERR_TIMEOUT);
    MUST(atomic_load(&inside) == 0);
    check_ones(weft_call_tensor(call, 0));
    return status;
}

/* Waits for a late call that nobody finishes. One that was late before its turn, on a busy machine, did not run:
 * more time is given. */
static weft_status run_wait(weft_call *call, void *user)
{
    weft_status status = WEFT_OK;
    for (int64_t limit = 20; !atomic_load(&held); limit *= 4) {
        MUST(limit < 100000);
        status = weft_rpc_sync(weft_call_agent(call), weft_to_rank(0), "keep",
                               WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))),
                               &(weft_rpc_options){.timeout_ms = limit}, NULL);
        MUST_BE(status, WEFT_ERR_TIMEOUT);
        check_ones(weft_call_tensor(call, 0));
    }
    return status;
}

static weft_status run_stream(weft_call *call, void *user)
{
    MUST_OK(weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0)))));
    return WEFT_OK;
}

static weft_status run_remember(weft_call *call, void *user)
{
    weft_tensor *x = weft_call_tensor(call, 0);
    remembered = weft_tensor_ref(x);
    loss = weft_sum(tape, weft_mul(tape, x, x));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "read", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_read},
    {.name = "read inline",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_read_inline,
     .flags = WEFT_FUNCTION_INLINE},
    {.name = "third", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_third},
    {.name = "keep", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_keep},
    {.name = "let go", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_let_go},
    {.name = "nest", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_nest},
    {.name = "wait", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_wait},
    {.name = "stream", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_REST}, .run = run_stream},
    {.name = "remember", .takes = {WEFT_TYPE_TENSOR}, .run = run_remember},
};

/* ---- The caller's memory -------------------------------------------------------------------------------------- */

typedef struct lent {
    float *sent, *place; /* place NULL: results land nowhere */
    weft_future *future;
} lent;

static float *make_ones(void)
{
    float *data = malloc(COUNT * sizeof(*data));
    MUST(data);
    for (int i = 0; i < COUNT; i++)
        data[i] = 1;
    return data;
}

static lent begin(weft_agent *agent, const char *function, weft_rpc_options how, bool lands)
{
    lent l = {.sent = make_ones(), .place = lands ? make_ones() : NULL};
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, l.sent, NULL, NULL, NULL), *land = NULL;
    if (lands) {
        land = tensor_wrap(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, l.place, NULL, NULL, NULL);
        how.land = (weft_tensors){&land, 1};
    }
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_tensor(x)), &how, &l.future));
    weft_tensor_unref(land);
    weft_tensor_unref(x);
    return l;
}

/* The call is over: what was lent is written to, and freed, and nobody minds. */
static void end(lent l, weft_status code, weft_ran ran)
{
    MUST_BE(weft_future_wait(l.future, WEFT_FOREVER), code);
    MUST(atomic_load(&inside) == 0);
    MUST(!code || weft_error_ran(weft_future_error(l.future)) == ran);
    memset(l.sent, SCRIBBLE, COUNT * sizeof(*l.sent));
    free(l.sent);
    if (l.place) {
        memset(l.place, SCRIBBLE, COUNT * sizeof(*l.place));
        world_sleep_ms(the_world, 10);
        for (size_t i = 0; i < COUNT * sizeof(*l.place); i++)
            MUST(((const uint8_t *)l.place)[i] == SCRIBBLE);
        free(l.place);
    }
    weft_future_unref(l.future);
}

static weft_call *take_held(void)
{
    weft_call *call;
    while (!(call = atomic_exchange(&held, NULL)))
        world_sleep_ms(the_world, 1);
    return call;
}

/* ---- Late, cancelled ------------------------------------------------------------------------------------------ */

/* A call whose time is over before its handler's turn, on a busy machine, does not run: more time is given. An
 * inline handler holds up the thread that sees to time limits, so it may be in time after all. */
static void late(weft_agent *agent, const char *function)
{
    bool is_inline = strcmp(function, "read inline") == 0;
    for (int64_t limit = 20;; limit *= 4) {
        lent l = begin(agent, function, (weft_rpc_options){.timeout_ms = limit}, true);
        weft_status status = weft_future_wait(l.future, WEFT_FOREVER);
        weft_ran ran = weft_error_ran(weft_future_error(l.future));
        MUST(status == WEFT_ERR_TIMEOUT || (is_inline && status == WEFT_OK));
        end(l, status, ran);
        if (ran == WEFT_RAN_MAYBE || !status)
            return;
        MUST(ran == WEFT_RAN_NO && limit < 100000);
    }
}

static void cancelled(weft_agent *agent)
{
    atomic_store(&begun, 0);
    lent l = begin(agent, "read", (weft_rpc_options){.timeout_ms = WEFT_FOREVER}, true);
    while (!atomic_load(&begun))
        world_sleep_ms(the_world, 1);
    MUST_OK(weft_future_cancel(l.future));
    end(l, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
}

static void cancelled_before_it_began(weft_agent *agent)
{
    atomic_store(&begun, 0);
    lent l = begin(agent, "read", (weft_rpc_options){.timeout_ms = WEFT_FOREVER}, true);
    MUST_OK(weft_future_cancel(l.future)); /* no other fiber has had its turn */
    MUST(weft_future_done(l.future));
    end(l, WEFT_ERR_CANCELLED, WEFT_RAN_NO);
    MUST(atomic_load(&begun) == 0);
}

static void tried_again(weft_agent *agent)
{
    atomic_store(&begun, 0);
    weft_retry retry = {.attempts = 100, .pause_ms = 1, .attempt_ms = 20};
    lent l = begin(agent, "third", (weft_rpc_options){.timeout_ms = WEFT_FOREVER, .retry = retry}, false);
    end(l, WEFT_OK, WEFT_RAN_NO);
}

/* ---- Deferred ------------------------------------------------------------------------------------------------- */

static void kept_until_finished(weft_agent *agent)
{
    lent l = begin(agent, "keep", (weft_rpc_options){.timeout_ms = WEFT_FOREVER}, false);
    weft_call *call = take_held();
    MUST_OK(weft_future_cancel(l.future));
    MUST(weft_call_cancelled(call));
    MUST_BE(weft_future_wait(l.future, 10), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(l.future));
    check_ones(weft_call_tensor(call, 0));
    weft_call_finish(call, WEFT_OK);
    end(l, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
}

/* Whoever finishes it has no arguments: it is not waited for. */
static void let_go_by_returning(weft_agent *agent)
{
    lent l = begin(agent, "let go", (weft_rpc_options){.timeout_ms = WEFT_FOREVER}, false);
    weft_call *call = take_held();
    MUST_OK(weft_future_cancel(l.future));
    end(l, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
    weft_call_finish(call, WEFT_OK);
}

/* ---- Items ---------------------------------------------------------------------------------------------------- */

static atomic_bool has_item, may_go_on;

static void take_slowly(const weft_values *item, void *arg)
{
    atomic_store(&has_item, true);
    while (!atomic_load(&may_go_on))
        world_sleep_ms(the_world, 1);
}

/* Cancelled when it has been answered, and its item is being taken: it has run. */
static void cancelled_after_it_ran(weft_agent *agent)
{
    uint64_t served = world_stats(agent).calls_served;
    lent l = begin(agent, "stream", (weft_rpc_options){.timeout_ms = WEFT_FOREVER, .on_item = take_slowly}, false);
    while (!atomic_load(&has_item) || world_stats(agent).calls_served == served)
        world_sleep_ms(the_world, 1);
    MUST_OK(weft_future_cancel(l.future));
    atomic_store(&may_go_on, true);
    end(l, WEFT_ERR_CANCELLED, WEFT_RAN_MAYBE);
    atomic_store(&may_go_on, false);
    atomic_store(&has_item, false);
}

/* ---- What the handler keeps ----------------------------------------------------------------------------------- */

static void count_drop(void *data)
{
    atomic_fetch_add(&drops, 1);
    free(data);
}

/* It shares the caller's storage: counted, changing under it, and guarded by the version. */
static void kept_by_the_handler(weft_agent *agent)
{
    float *data = make_ones();
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, data, NULL, count_drop, data);
    weft_tensor_set_requires_grad(x, true);
    tape = weft_tape_open(&(weft_tape_options){.record = true});
    atomic_store(&drops, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "remember", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL));
    weft_tensor_fill(x, 3);
    weft_tensor_unref(x);
    MUST(atomic_load(&drops) == 0 && weft_tensor_data(remembered) == data && data[COUNT - 1] == 3);
    weft_backward(tape, loss);
    MUST_BE(weft_tape_status(tape), WEFT_ERR_STATE);
    weft_tape_close(tape);
    weft_tensor_unref(remembered);
    for (int i = 0; i < 10000 && !atomic_load(&drops); i++) /* the call's own reference may be going yet */
        world_sleep_ms(the_world, 1);
    MUST(atomic_load(&drops) == 1);
}

/* ---- Together ------------------------------------------------------------------------------------------------- */

static lent unfinished;

static void play(weft_agent *agent, void *arg)
{
    late(agent, "read");
    late(agent, "read inline");
    late(agent, "nest");
    cancelled(agent);
    if (the_world->sim)
        cancelled_before_it_began(agent);
    tried_again(agent);
    kept_until_finished(agent);
    let_go_by_returning(agent);
    cancelled_after_it_ran(agent);
    kept_by_the_handler(agent);
    unfinished = begin(agent, "wait", (weft_rpc_options){.timeout_ms = WEFT_FOREVER}, false);
    while (!atomic_load(&held)) /* and then we close */
        world_sleep_ms(the_world, 1);
}

static void run(world w)
{
    w.size = 1;
    w.functions = functions;
    w.function_count = sizeof(functions) / sizeof(*functions);
    the_world = &w;
    world_run(&w);
}

static void test_from_start_to_close(void **s)
{
    for (int i = 0; i <= 10; i++) {
        run((world){.fabric = i ? WORLD_SIM : WORLD_TCP, .seed = (uint64_t)i, .program = play});
        assert_int_equal(weft_error_handler_code(weft_future_error(unfinished.future)), WEFT_ERR_TIMEOUT);
        check_ones(weft_call_tensor(atomic_load(&held), 0));
        weft_call_finish(atomic_exchange(&held, NULL), WEFT_OK);
        end(unfinished, WEFT_ERR_REMOTE, WEFT_RAN_YES);
    }
}

static void play_without_threads(weft_agent *agent, void *arg)
{
    late(agent, "read");
    late(agent, "read inline");
    late(agent, "nest");
    tried_again(agent);
    kept_by_the_handler(agent);
}

static void test_without_threads(void **s)
{
    run((world){.fabric = WORLD_TCP, .program = play_without_threads, .adjust = world_no_threads});
}

UNIT_MAIN(test_from_start_to_close, test_without_threads)
