/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_remote_again.c - results that stay with their owner, made by calls that its memory budget refuses again
 * and again: each name is made exactly once, whoever waits for it meanwhile gets that, and one that is given up says
 * why.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

enum { OWNER = 0, READER = 1, SIZE = 4, EACH = 5, FLOATS = 100000 };

static struct shared {
    world *w;
    atomic_int made[SIZE][EACH], done;
    atomic_int read, shown;
    _Atomic(weft_call *) held;
    _Atomic(weft_rref *) lost;
} shared;

static weft_status run_make(weft_call *call, void *user)
{
    int from = weft_call_from(call);
    int64_t which = weft_call_i64(call, 0);
    atomic_fetch_add(&shared.made[from][which], 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(from * 100 + which)));
    return WEFT_OK;
}

static weft_status run_read(weft_call *call, void *user)
{
    weft_values *out;
    weft_status status = weft_rref_to_here(weft_call_rref(call, 0), 30000, &out, NULL);
    if (status)
        return status;
    MUST(weft_values_args(out).items[0].as.i64 == weft_call_i64(call, 1));
    atomic_fetch_add(&shared.read, 1);
    weft_values_unref(out);
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_store(&shared.held, weft_call_defer_keeping(call));
    return WEFT_DEFERRED;
}

/* Gives a reference that the caller of the test has: both are one process. */
static weft_status run_show(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_rref(atomic_load(&shared.lost))));
    return WEFT_OK;
}

static weft_status run_show_item(weft_call *call, void *user)
{
    return weft_call_send_item(call, WEFT_VALUES(weft_of_rref(atomic_load(&shared.lost))));
}

static const weft_function functions[] = {
    {.name = "make", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = run_make},
    {.name = "read", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .run = run_read},
    {.name = "hold", .takes = {WEFT_TYPE_TENSOR}, .run = run_hold},
    {.name = "show", .gives = {WEFT_TYPE_RREF}, .run = run_show},
    {.name = "show item", .run = run_show_item},
};

static void adjust(weft_agent_options *options, void *arg)
{
    options->leaks_fail = true;
    options->memory_budget_bytes = options->rank == OWNER ? FLOATS * 4 * 3 / 2 : 0; /* room for one at a time */
}

static void wait_for_all(weft_agent *agent)
{
    atomic_fetch_add(&shared.done, 1);
    while (atomic_load(&shared.done) < SIZE)
        world_sleep_ms(shared.w, 1);
    weft_stats stats;
    for (int i = 0; i < 10000; i++, world_sleep_ms(shared.w, 1)) {
        weft_agent_stats(agent, &stats);
        if (!stats.bytes_held)
            break;
    }
    MUST(stats.bytes_held == 0);
}

/* Two workers make five values each at once; every name is shown to a third one while it is being made. */
static void made_once(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    weft_rref *made[EACH];
    weft_future *reads[EACH];
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    weft_rpc_options options = {.retry = {.attempts = 100000, .pause_ms = 1, .pause_most_ms = 5}, .timeout_ms = 30000};
    for (int i = 0; i < EACH && rank > READER; i++) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(OWNER), "make", WEFT_VALUES(weft_of_i64(i), weft_of_tensor(x)),
                                &options, &made[i]));
        MUST_OK(weft_rpc_async(agent, weft_to_rank(READER), "read",
                               WEFT_VALUES(weft_of_rref(made[i]), weft_of_i64(rank * 100 + i)),
                               &(weft_rpc_options){.timeout_ms = 30000}, &reads[i]));
    }
    for (int i = 0; i < EACH && rank > READER; i++) {
        weft_values *out;
        MUST_OK(weft_rref_to_here(made[i], 30000, &out, NULL));
        MUST(weft_values_args(out).items[0].as.i64 == rank * 100 + i);
        MUST_OK(weft_future_wait(reads[i], WEFT_FOREVER));
        MUST(atomic_load(&shared.made[rank][i]) == 1);
        weft_values_unref(out);
        weft_future_unref(reads[i]);
        weft_rref_unref(made[i]);
    }
    weft_tensor_unref(x);
    wait_for_all(agent);
}

static void must_not_be_found(weft_error *error, weft_ran ran, const char *text)
{
    MUST_BE(weft_error_code(error), WEFT_ERR_NOT_FOUND);
    MUST(weft_error_ran(error) == ran);
    if (!strstr(weft_error_message(error), text))
        fprintf(stderr, "\"%s\" is not in: %s\n", text, weft_error_message(error));
    MUST(strstr(weft_error_message(error), text));
    weft_error_unref(error);
}

/* It was refused with WEFT_ERR_BUSY, which says that what was refused did not run, and may be tried again: neither
 * holds for calls that take it along. */
static void pass_on(weft_agent *agent, weft_rref *lost)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.error = &error, .retry.attempts = 3};
    weft_args args = WEFT_VALUES(weft_of_rref(lost), weft_of_i64(0));
    MUST(weft_rpc_sync(agent, weft_to_rank(READER), "read", args, &options, NULL));
    must_not_be_found(error, WEFT_RAN_NO, "argument 0 is a reference to a value that was not made");
    MUST(weft_rpc_sync(agent, weft_to_rank(2), "read", args, &options, NULL)); /* ourselves */
    must_not_be_found(error, WEFT_RAN_NO, "memory budget");
    atomic_store(&shared.lost, lost);
    atomic_store(&shared.shown, 1);
    while (atomic_load(&shared.shown) == 1)
        world_sleep_ms(shared.w, 1);
}

static void never_comes(const weft_values *item, void *arg)
{
    MUST(false);
}

static void ask_for_it(weft_agent *agent)
{
    weft_error *error = NULL;
    while (!atomic_load(&shared.shown))
        world_sleep_ms(shared.w, 1);
    MUST(weft_rpc_sync(agent, weft_to_rank(2), "show", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL));
    must_not_be_found(error, WEFT_RAN_MAYBE, "result 0 is a reference to a value that was not made");
    weft_rpc_options takes_items = {.error = &error, .on_item = never_comes};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "show item", WEFT_NO_VALUES, &takes_items, NULL), WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_NOT_FOUND);
    MUST(strstr(weft_error_message(error), "value 0 is a reference to a value that was not made"));
    weft_error_unref(error);
    atomic_store(&shared.shown, 2);
}

/* The owner has no room until the attempts are used up: whoever waited for the value hears why there is none. */
static void given_up(weft_agent *agent, void *arg)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    weft_rpc_options options = {.retry = {.attempts = 4, .pause_ms = 1, .pause_most_ms = 2}, .timeout_ms = 30000};
    if (weft_agent_rank(agent) == 2) {
        weft_future *holds, *read;
        weft_rref *made;
        weft_values *out;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(OWNER), "hold", WEFT_VALUES(weft_of_tensor(x)), NULL, &holds));
        while (!atomic_load(&shared.held))
            world_sleep_ms(shared.w, 1);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(OWNER), "make", WEFT_VALUES(weft_of_i64(0), weft_of_tensor(x)),
                                &options, &made));
        weft_status status = weft_rpc_async(agent, weft_to_rank(READER), "read",
                                            WEFT_VALUES(weft_of_rref(made), weft_of_i64(0)), NULL, &read);
        MUST_OK(status);
        MUST_BE(weft_rref_to_here(made, 30000, &out, NULL), WEFT_ERR_BUSY);
        MUST(weft_future_wait(read, 30000) && atomic_load(&shared.read) == 0);
        MUST(atomic_load(&shared.made[2][0]) == 0);
        pass_on(agent, made);
        weft_call_finish(atomic_exchange(&shared.held, NULL), WEFT_OK);
        MUST_OK(weft_future_wait(holds, WEFT_FOREVER));
        weft_future_unref(holds);
        weft_future_unref(read);
        weft_rref_unref(made);
    }
    if (weft_agent_rank(agent) == READER)
        ask_for_it(agent);
    weft_tensor_unref(x);
    wait_for_all(agent);
}

static void run(void (*program)(weft_agent *, void *), uint64_t seeds)
{
    for (int fabric = WORLD_SIM; fabric <= WORLD_TCP; fabric++)
        for (uint64_t seed = 1; seed <= (fabric == WORLD_SIM ? world_seeds(seeds) : 2); seed++) {
            world w = {.fabric = (world_fabric)fabric,
                       .size = SIZE,
                       .seed = seed,
                       WORLD_FUNCTIONS(functions),
                       .program = program,
                       .adjust = adjust};
            shared = (struct shared){.w = &w};
            world_run(&w);
        }
}

static void test_made_once(void **s)
{
    run(made_once, 100);
}

static void test_given_up(void **s)
{
    run(given_up, 100);
}

UNIT_MAIN(test_made_once, test_given_up)
