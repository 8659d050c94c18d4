/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_batch_calls.c - what a batched handler gives and does wrong: failures of single calls and of all, results
 * of the wrong shape, type and number, batches that are deferred. Batches close with SIZE calls, so that each test
 * knows who is in them.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "tensors.h"

#include <stdatomic.h>
#include <string.h>

enum { SIZE = 4 };

typedef struct turn {
    void (*program)(weft_agent *agent, void *arg);
    int from; /* the rank that runs it */
} turn;

static struct shared {
    world *w;
    atomic_bool finished, may_be_made;
    atomic_int batches;
} shared;

static const weft_rpc_options patient = {.timeout_ms = 60000};

/* ---- Handlers ------------------------------------------------------------------------------------------------- */

static weft_tensor *numbers(weft_batch *batch, size_t rows, weft_dtype dtype, double first)
{
    weft_tape *t = weft_batch_tape(batch);
    weft_tensor *to = weft_tape_take(t, tensor_empty(WEFT_SHAPE((int64_t)rows), dtype));
    for (size_t i = 0; i < rows; i++)
        MUST_OK(weft_tensor_assign(weft_tape_take(t, tensor_select(to, 0, (int64_t)i)),
                                   weft_tape_take(t, tensor_full(WEFT_SCALAR, dtype, first + (double)i))));
    return to;
}

/* What each batch is to do stands in its first call: takes {I64}, gives {I64}. */
enum how {
    FAIL_ODD,     /* calls with odd numbers fail alone */
    FAIL_ALL,     /* by status */
    FAIL_KEPT,    /* by weft_batch_fail twice, and one alone before */
    FAIL_AND_OK,  /* by weft_batch_fail, and return WEFT_OK */
    NO_STATUS,    /* returns what is no status */
    NOT_DEFERRED, /* returns WEFT_DEFERRED without having deferred */
    GIVE_NULL,
    GIVE_FEW,    /* a row too few */
    GIVE_SCALAR, /* no rows at all */
    GIVE_FLOAT,  /* where int64 is due */
    GIVE_BOOL,   /* likewise */
    GIVE_PAIRS,  /* rows of two */
    GIVE_SECOND, /* a result that there is not */
    GIVE_NOTHING,
    GIVE_TWICE,    /* the last one counts */
    GIVE_EACH_ODD, /* odd ones by weft_call_give, before and after */
    FAIL_OPERATOR, /* an operator on the tape fails */
    GIVE_EACH_BAD, /* odd ones by weft_call_give, of a wrong type */
};

static weft_status fail_somehow(weft_batch *batch, int64_t how)
{
    weft_batch_give(batch, 0, numbers(batch, weft_batch_count(batch), WEFT_DTYPE_INT64, 0));
    for (size_t i = 0; i < weft_batch_count(batch) && how == FAIL_ODD; i++)
        if (i % 2)
            weft_call_fail(weft_batch_call(batch, i), WEFT_ERR_SHAPE, "call %zu is odd", i);
    if (how == FAIL_ALL)
        return WEFT_ERR_IO;
    if (how == FAIL_KEPT) {
        weft_call_fail(weft_batch_call(batch, 2), WEFT_ERR_TYPE, "alone");
        weft_batch_fail(batch, WEFT_ERR_SHAPE, "the %s", "first");
        weft_batch_fail(batch, WEFT_ERR_IO, "the second");
        return WEFT_ERR_MEMORY;
    }
    if (how == FAIL_AND_OK)
        weft_batch_fail(batch, WEFT_ERR_SHAPE, "failed and fine");
    if (how == FAIL_OPERATOR)
        MUST(!weft_mul(weft_batch_tape(batch), numbers(batch, 2, WEFT_DTYPE_FLOAT32, 0),
                       numbers(batch, 3, WEFT_DTYPE_FLOAT32, 0)));
    if (how == NOT_DEFERRED)
        return WEFT_DEFERRED;
    return how == NO_STATUS ? (weft_status)5 : WEFT_OK;
}

static void give_each(weft_batch *batch, size_t from, size_t step, weft_value value)
{
    for (size_t i = from; i < weft_batch_count(batch); i += step)
        weft_call_give(weft_batch_call(batch, i), (weft_args){&value, 1});
}

static weft_status run_how(weft_batch *batch, void *user)
{
    size_t n = weft_batch_count(batch);
    weft_tape *t = weft_batch_tape(batch);
    int64_t how = weft_call_i64(weft_batch_call(batch, 0), 0);
    MUST(n == SIZE && t && weft_batch_tape(batch) == t);
    MUST(!weft_batch_call(batch, n) && !weft_batch_tensor(batch, 0));
    MUST(weft_agent_rank(weft_batch_agent(batch)) == 0);
    atomic_fetch_add(&shared.batches, 1);
    if (how == GIVE_NULL)
        weft_batch_give(batch, 0, NULL);
    else if (how == GIVE_FEW)
        weft_batch_give(batch, 0, numbers(batch, n - 1, WEFT_DTYPE_INT64, 0));
    else if (how == GIVE_SCALAR)
        weft_batch_give(batch, 0, weft_tape_take(t, tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_INT64)));
    else if (how == GIVE_FLOAT)
        weft_batch_give(batch, 0, numbers(batch, n, WEFT_DTYPE_FLOAT32, 0));
    else if (how == GIVE_BOOL)
        weft_batch_give(batch, 0, weft_tape_take(t, tensor_zeros(WEFT_SHAPE((int64_t)n), WEFT_DTYPE_BOOL)));
    else if (how == GIVE_PAIRS)
        weft_batch_give(batch, 0, weft_tape_take(t, tensor_zeros(WEFT_SHAPE((int64_t)n, 2), WEFT_DTYPE_INT64)));
    else if (how == GIVE_SECOND)
        weft_batch_give(batch, 1, numbers(batch, n, WEFT_DTYPE_INT64, 0));
    else if (how == GIVE_TWICE || how == GIVE_EACH_ODD) {
        give_each(batch, 1, 4, weft_of_i64(1000));
        weft_batch_give(batch, 0, numbers(batch, n, WEFT_DTYPE_INT64, 50));
        if (how == GIVE_TWICE)
            weft_batch_give(batch, 0, numbers(batch, n, WEFT_DTYPE_INT32, 100));
        give_each(batch, 3, 4, weft_of_i64(1000));
    } else if (how == GIVE_EACH_BAD) {
        weft_batch_give(batch, 0, numbers(batch, n, WEFT_DTYPE_INT64, 0));
        give_each(batch, 1, 2, weft_of_f64(1));
    } else if (how != GIVE_NOTHING)
        return fail_somehow(batch, how);
    return WEFT_OK;
}

#define OF_FOUR                                                                                                        \
    {                                                                                                                  \
        .size = SIZE, .wait_us = WEFT_FOREVER                                                                          \
    }

/* Gives how many they are. */
static weft_status run_count(weft_batch *batch, void *user)
{
    atomic_fetch_add(&shared.batches, 1);
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        weft_call *call = weft_batch_call(batch, i);
        MUST(weft_rref_confirmed(weft_call_rref(call, 0)));
        weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)weft_batch_count(batch))));
    }
    return WEFT_OK;
}

/* Not before it is told to. */
static weft_status run_make(weft_call *call, void *user)
{
    while (!atomic_load(&shared.may_be_made))
        world_sleep_ms(shared.w, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(3)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "make", .gives = {WEFT_TYPE_I64}, .run = run_make},
    {.name = "with reference",
     .takes = {WEFT_TYPE_RREF},
     .gives = {WEFT_TYPE_I64},
     .run_batch = run_count,
     .batch = {.size = SIZE, .wait_us = WEFT_FOREVER}},
    {.name = "how", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run_batch = run_how, .batch = OF_FOUR},
    {.name = "two",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64},
     .run_batch = run_how,
     .batch = OF_FOUR},
};

/* ---- Failures ------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    weft_status remote; /* WEFT_OK: the call succeeds */
    const char *text;
    int64_t value;
} outcome;

static void check_outcome(weft_future *future, const outcome *wanted)
{
    int64_t value;
    if (!wanted->remote) {
        MUST_OK(weft_future_wait(future, 60000));
        MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &value));
        MUST(value == wanted->value);
        return;
    }
    MUST_BE(weft_future_wait(future, 60000), WEFT_ERR_REMOTE);
    const weft_error *error = weft_future_error(future);
    if (weft_error_handler_code(error) != wanted->remote || !strstr(weft_error_message(error), wanted->text))
        weft_error_print(error, stderr);
    MUST_BE(weft_error_handler_code(error), wanted->remote);
    MUST(strstr(weft_error_message(error), wanted->text) && weft_error_worker(error) == 0);
}

static void expect(weft_agent *agent, const char *function, enum how how, const outcome wanted[SIZE])
{
    weft_future *futures[SIZE];
    for (int i = 0; i < SIZE; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_i64(how)), &patient, &futures[i]));
    for (int i = 0; i < SIZE; i++) {
        check_outcome(futures[i], &wanted[i]);
        weft_future_unref(futures[i]);
    }
}

static void expect_all(weft_agent *agent, enum how how, weft_status remote, const char *text)
{
    outcome all[SIZE];
    for (int i = 0; i < SIZE; i++)
        all[i] = (outcome){remote, text, 0};
    expect(agent, "how", how, all);
}

static void failures(weft_agent *agent, void *arg)
{
    const outcome odd[SIZE] = {
        {.value = 0}, {WEFT_ERR_SHAPE, "call 1 is odd", 0}, {.value = 2}, {WEFT_ERR_SHAPE, "3", 0}};
    const outcome kept[SIZE] = {{WEFT_ERR_SHAPE, "the first", 0},
                                {WEFT_ERR_SHAPE, "the first", 0},
                                {WEFT_ERR_TYPE, "alone", 0},
                                {WEFT_ERR_SHAPE, "the first", 0}};
    const outcome bad[SIZE] = {
        {.value = 0}, {WEFT_ERR_TYPE, "signature", 0}, {.value = 2}, {WEFT_ERR_TYPE, "value", 0}};
    expect(agent, "how", FAIL_ODD, odd);
    expect(agent, "how", FAIL_KEPT, kept);
    expect(agent, "how", GIVE_EACH_BAD, bad);
    expect_all(agent, FAIL_ALL, WEFT_ERR_IO, weft_status_text(WEFT_ERR_IO));
    expect_all(agent, FAIL_AND_OK, WEFT_ERR_SHAPE, "failed and fine");
    expect_all(agent, FAIL_OPERATOR, WEFT_ERR_SHAPE, "mul");
    expect_all(agent, NO_STATUS, WEFT_ERR_INVALID, "no status");
    expect_all(agent, NOT_DEFERRED, WEFT_ERR_STATE, "weft_batch_defer");
    expect_all(agent, GIVE_NULL, WEFT_ERR_INVALID, "result 0 of a batch of 4 is NULL");
    expect_all(agent, GIVE_FEW, WEFT_ERR_SHAPE, "has not a row for each call");
    expect_all(agent, GIVE_SCALAR, WEFT_ERR_SHAPE, "has not a row for each call");
    expect_all(agent, GIVE_FLOAT, WEFT_ERR_SHAPE, "float32");
    expect_all(agent, GIVE_BOOL, WEFT_ERR_SHAPE, "dtype");
    expect_all(agent, GIVE_PAIRS, WEFT_ERR_SHAPE, "more than one element");
    expect_all(agent, GIVE_SECOND, WEFT_ERR_SHAPE, "result 1 of a batch of 4");
    expect_all(agent, GIVE_NOTHING, WEFT_ERR_STATE, "no results");
}

static void single_gives(weft_agent *agent, void *arg)
{
    const outcome last[SIZE] = {{.value = 100}, {.value = 1000}, {.value = 102}, {.value = 1000}};
    const outcome mine[SIZE] = {{.value = 50}, {.value = 1000}, {.value = 52}, {.value = 1000}};
    const outcome half[SIZE] = {{WEFT_ERR_TYPE, "1 values", 0},
                                {WEFT_ERR_TYPE, "1 values", 0},
                                {WEFT_ERR_TYPE, "1 values", 0},
                                {WEFT_ERR_TYPE, "1 values", 0}};
    outcome second[SIZE];
    for (int i = 0; i < SIZE; i++)
        second[i] = (outcome){WEFT_ERR_STATE, "gave result 1 and no result 0", 0};
    expect(agent, "how", GIVE_TWICE, last);
    expect(agent, "how", GIVE_EACH_ODD, mine);
    expect(agent, "two", GIVE_EACH_ODD, half); /* one result of two, whoever gave it */
    expect(agent, "two", GIVE_SECOND, second); /* and not the first */
}

/* ---- References ----------------------------------------------------------------------------------------------- */

static weft_future *count_with(weft_agent *agent, weft_rref *rref)
{
    weft_future *future;
    MUST_OK(
        weft_rpc_async(agent, weft_to_rank(0), "with reference", WEFT_VALUES(weft_of_rref(rref)), &patient, &future));
    return future;
}

/* One that is given up while the reference is not made yet is in no batch afterwards. */
static void unmade(weft_agent *agent, void *arg)
{
    weft_future *futures[SIZE], *gone;
    weft_rref *rref;
    const outcome all = {.value = SIZE};
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, &patient, &rref));
    gone = count_with(agent, rref);
    world_sleep_ms(shared.w, 5);
    MUST_OK(weft_future_cancel(gone));
    MUST_BE(weft_future_wait(gone, 60000), WEFT_ERR_CANCELLED);
    weft_future_unref(gone);
    for (int i = 0; i < SIZE - 1; i++)
        futures[i] = count_with(agent, rref);
    atomic_store(&shared.may_be_made, true);
    gone = weft_rref_created(rref);
    MUST_OK(weft_future_wait(gone, 60000));
    weft_future_unref(gone);
    world_sleep_ms(shared.w, 20);
    MUST(atomic_load(&shared.batches) == 0); /* it does not count among them */
    futures[SIZE - 1] = count_with(agent, rref);
    for (int i = 0; i < SIZE; i++) {
        check_outcome(futures[i], &all);
        weft_future_unref(futures[i]);
    }
    MUST(atomic_load(&shared.batches) == 1);
    weft_rref_unref(rref);
}

/* ---- Worlds --------------------------------------------------------------------------------------------------- */

/* One calls; the other waits until it is done, as a worker that closes lets no batch fill. */
static void play(weft_agent *agent, void *arg)
{
    const turn *t = arg;
    if (weft_agent_rank(agent) == t->from) {
        t->program(agent, NULL);
        atomic_store(&shared.finished, true);
    }
    while (!atomic_load(&shared.finished))
        world_sleep_ms(shared.w, 1);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

/* From another worker, and from the worker to itself. */
static void run(void (*program)(weft_agent *, void *), uint64_t seeds)
{
    for (int from = 0; from < 2; from++)
        world_play(&(world){WORLD_FUNCTIONS(functions), .size = 2, .program = play, .begin = begin,
                            .arg = &(turn){program, from}},
                   seeds, 1);
}

#define BOTH_WAYS(program, seeds)                                                                                      \
    static void test_##program(void **cmocka)                                                                          \
    {                                                                                                                  \
        run(program, seeds);                                                                                           \
    }

BOTH_WAYS(failures, 10)
BOTH_WAYS(single_gives, 10)
BOTH_WAYS(unmade, 10)

UNIT_MAIN(test_failures, test_single_gives, test_unmade)
