/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_futures.c - items 29 to 34: completion once, continuations, done callbacks, waiting for many. */
#include "conformance/conformance.h"

#include <pthread.h>

#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status serve_fail(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "it would not");
    return WEFT_ERR_SHAPE;
}

static weft_status add_one(weft_future *parent, weft_future *child, void *arg);

/* A continuation in a handler: it asks the caller, and gives one more than the answer. */
static weft_status serve_one_more(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_future *asked = start(agent, weft_to_rank(weft_call_from(call)), "add",
                               WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0)), weft_of_i64(0)));
    weft_future *more = weft_future_then(asked, add_one, NULL, NULL);
    MUST_OK(weft_future_wait(more, WEFT_FOREVER));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(*(int64_t *)weft_future_payload(more))));
    weft_future_unref(more);
    weft_future_unref(asked);
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "fail", .gives = {WEFT_TYPE_I64}, .run = serve_fail},
    {.name = "one more", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_one_more},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static atomic_int drops, runs;

static void reset(void)
{
    atomic_store(&drops, 0);
    atomic_store(&runs, 0);
}

static void count_drop(void *arg)
{
    atomic_fetch_add(&drops, 1);
}

static void count_run(weft_future *future, void *arg)
{
    atomic_fetch_add(&runs, 1);
}

/* Numbers that futures of our own hold. */
static int64_t numbers[64]; /* 0, 1, 2 ... */

static int64_t *number(int64_t n)
{
    MUST(n >= 0 && n < 64);
    return &numbers[n];
}

/* What a future holds: the number of our own, or an RPC's result. */
static int64_t value_of(weft_future *future)
{
    int64_t n = -1;
    const weft_values *values = weft_future_values(future);
    if (!values)
        return *(int64_t *)weft_future_payload(future);
    MUST_OK(weft_values_get_i64(values, 0, &n));
    return n;
}

static weft_status add_one(weft_future *parent, weft_future *child, void *arg)
{
    MUST(weft_future_done(parent) && !weft_future_error(parent));
    return weft_future_complete(child, number(value_of(parent) + 1), NULL);
}

static weft_error *an_error(void)
{
    return weft_error_create(WEFT_ERR_IO, "made to fail");
}

/* ---- 29: once ------------------------------------------------------------------------------------------------- */

static void wait_twice(weft_agent *agent)
{
    weft_future *good = start(agent, weft_to_rank(next_rank(agent)), "rank", WEFT_NO_VALUES),
                *bad = start(agent, weft_to_rank(next_rank(agent)), "fail", WEFT_NO_VALUES);
    for (int i = 0; i < 2; i++) {
        MUST_BE(weft_future_wait(good, WEFT_FOREVER), WEFT_OK);
        MUST_BE(weft_future_wait(bad, WEFT_FOREVER), WEFT_ERR_REMOTE);
        MUST(value_of(good) == next_rank(agent) && says(weft_future_error(bad), "it would not"));
        MUST(weft_future_done(good) && weft_future_done(bad) && !weft_future_error(good));
        MUST(!weft_future_values(bad) && !weft_future_payload(bad));
    }
    MUST_BE(weft_future_complete(good, NULL, NULL), WEFT_ERR_COMPLETED); /* an RPC's own, too */
    weft_future_unref(good);
    weft_future_unref(bad);
}

static void complete_once(weft_agent *agent, void *arg)
{
    weft_error *error = an_error();
    weft_future *good = weft_future_create(agent), *bad = weft_future_create(agent);
    MUST(!weft_future_done(good) && !weft_future_payload(good) && !weft_future_error(good));
    MUST_BE(weft_future_wait(good, 0), WEFT_ERR_TIMEOUT);
    MUST(!weft_future_done(good));
    MUST_OK(weft_future_complete(good, number(5), count_drop));
    MUST_BE(weft_future_complete(good, number(6), count_drop), WEFT_ERR_COMPLETED); /* 6 is dropped */
    MUST_BE(weft_future_fail(good, error), WEFT_ERR_COMPLETED);
    MUST(weft_future_done(good) && value_of(good) == 5 && !weft_future_error(good));
    MUST_OK(weft_future_fail(bad, error));
    MUST_BE(weft_future_fail(bad, error), WEFT_ERR_COMPLETED);
    MUST_BE(weft_future_complete(bad, number(7), count_drop), WEFT_ERR_COMPLETED);
    MUST(weft_future_done(bad) && !weft_future_payload(bad));
    MUST_BE(weft_future_wait(bad, 0), WEFT_ERR_IO);
    weft_error_unref(error);
    weft_future_unref(good);
    weft_future_unref(bad);
    wait_twice(agent);
}

static void all_payloads_were_dropped(void)
{
    assert_int_equal(atomic_load(&drops), 3 * WORKERS);
    reset();
}

ITEM(item_29_futures_complete_once, .program = complete_once, .after = all_payloads_were_dropped,
     ITEM_FUNCTIONS(functions))

/* ---- 30: continuations ---------------------------------------------------------------------------------------- */

typedef struct registering {
    pthread_t thread;
    atomic_bool under_way; /* the call that registers has not returned */
} registering;

/* Never inside the call that registered it, though the parent is complete: unlike the reference's. */
static weft_status not_inside(weft_future *parent, weft_future *child, void *arg)
{
    registering *who = arg;
    MUST(weft_future_done(parent));
    if (item_sim())
        MUST(!atomic_load(&who->under_way));
    else
        MUST(!pthread_equal(who->thread, pthread_self()));
    return weft_future_complete(child, number(1), NULL);
}

static void on_a_complete_one(weft_agent *agent)
{
    registering who = {.thread = pthread_self()};
    weft_future *done = start(agent, weft_to_rank(next_rank(agent)), "nothing", WEFT_NO_VALUES); /* without a result */
    MUST_OK(weft_future_wait(done, WEFT_FOREVER));
    atomic_store(&who.under_way, true);
    weft_future *child = weft_future_then(done, not_inside, &who, count_drop);
    atomic_store(&who.under_way, false);
    MUST_OK(weft_future_wait(child, WEFT_FOREVER));
    MUST(value_of(child) == 1);
    weft_future_unref(child);
    weft_future_unref(done);
}

/* A continuation may call, wait, and register another. */
static weft_status ask_again(weft_future *parent, weft_future *child, void *arg)
{
    weft_agent *agent = arg;
    int64_t n =
        ask(agent, weft_to_rank(next_rank(agent)), "add", WEFT_VALUES(weft_of_i64(value_of(parent)), weft_of_i64(10)));
    weft_future *inner = weft_future_create(agent), *later = weft_future_then(inner, add_one, NULL, NULL);
    MUST_OK(weft_future_complete(inner, number(n), NULL));
    MUST_OK(weft_future_wait(later, WEFT_FOREVER));
    weft_status status = weft_future_complete(child, number(value_of(later)), NULL);
    weft_future_unref(inner);
    weft_future_unref(later);
    return status;
}

static void continuations(weft_agent *agent, void *arg)
{
    enum { MANY = 10 };
    weft_future *children[MANY];
    weft_target next = weft_to_rank(next_rank(agent));
    /* Several on one, and one on another in a chain. */
    weft_future *first = start(agent, next, "add", WEFT_VALUES(weft_of_i64(2), weft_of_i64(3)));
    for (int i = 0; i < MANY; i++)
        children[i] = weft_future_then(first, add_one, NULL, NULL);
    for (int i = 0; i < MANY; i++) {
        MUST_OK(weft_future_wait(children[i], WEFT_FOREVER));
        MUST(value_of(children[i]) == 6);
        weft_future_unref(children[i]);
    }
    for (int i = 0; i < MANY; i++) {
        weft_future *link = weft_future_then(first, add_one, NULL, NULL);
        weft_future_unref(first); /* the chain goes on without us */
        first = link;
    }
    MUST_OK(weft_future_wait(first, WEFT_FOREVER));
    MUST(value_of(first) == 5 + MANY);
    weft_future *nested = weft_future_then(first, ask_again, agent, NULL);
    MUST_OK(weft_future_wait(nested, WEFT_FOREVER));
    MUST(value_of(nested) == 5 + MANY + 11);
    weft_future_unref(nested);
    weft_future_unref(first);
    on_a_complete_one(agent);
    MUST(ask(agent, next, "one more", WEFT_VALUES(weft_of_i64(30))) == 31);
}

static void one_drop_each(void)
{
    assert_int_equal(atomic_load(&drops), WORKERS);
    reset();
}

ITEM(item_30_continuations, .program = continuations, .after = one_drop_each, ITEM_FUNCTIONS(functions))

/* ---- 31: continuations that fail ------------------------------------------------------------------------------ */

static weft_status fail_by_return(weft_future *parent, weft_future *child, void *arg)
{
    return WEFT_ERR_FORMAT;
}

static weft_status fail_with_words(weft_future *parent, weft_future *child, void *arg)
{
    MUST(!weft_future_error(parent));
    weft_error *error = weft_error_create(WEFT_ERR_TYPE, "another failure");
    weft_status status = weft_future_fail(child, error);
    weft_error_unref(error);
    return status;
}

/* It sees the parent's error, and need not fail itself. */
static weft_status recover(weft_future *parent, weft_future *child, void *arg)
{
    MUST_BE(weft_error_code(weft_future_error(parent)), WEFT_ERR_REMOTE);
    return weft_future_complete(child, number(9), NULL);
}

static void failing_continuations(weft_agent *agent, void *arg)
{
    weft_target next = weft_to_rank(next_rank(agent));
    weft_future *good = start(agent, next, "rank", WEFT_NO_VALUES), *bad = start(agent, next, "fail", WEFT_NO_VALUES);
    weft_future *by_return = weft_future_then(good, fail_by_return, NULL, NULL),
                *with_words = weft_future_then(good, fail_with_words, NULL, NULL),
                *recovered = weft_future_then(bad, recover, NULL, NULL);
    MUST_BE(weft_future_wait(with_words, WEFT_FOREVER), WEFT_ERR_TYPE);
    MUST(says(weft_future_error(with_words), "another failure"));
    must_end(with_words, WEFT_ERR_TYPE);
    must_end(by_return, WEFT_ERR_FORMAT);
    MUST_OK(weft_future_wait(good, WEFT_FOREVER)); /* the parents are what they were */
    MUST(value_of(good) == next_rank(agent));
    MUST_OK(weft_future_wait(recovered, WEFT_FOREVER));
    MUST(value_of(recovered) == 9);
    must_end(bad, WEFT_ERR_REMOTE);
    weft_future_unref(recovered);
    weft_future_unref(good);
}

ITEM(item_31_continuations_that_fail, .program = failing_continuations, ITEM_FUNCTIONS(functions))

/* ---- 32: done callbacks --------------------------------------------------------------------------------------- */

static void done_callbacks(weft_agent *agent, void *arg)
{
    enum { MANY = 20 };
    weft_target next = weft_to_rank(next_rank(agent));
    weft_future *never = weft_future_create(agent);
    weft_future *both[] = {start(agent, next, "rank", WEFT_NO_VALUES), start(agent, next, "fail", WEFT_NO_VALUES)};
    for (int i = 0; i < MANY; i++) { /* before, during and after completion, good or bad */
        if (i == MANY / 2)
            (void)!weft_future_wait(both[0], WEFT_FOREVER);
        MUST_OK(weft_future_add_done_callback(both[i % 2], count_run, NULL, count_drop));
    }
    MUST_OK(weft_future_add_done_callback(never, count_run, NULL, count_drop));
    weft_future_unref(never); /* never complete: it does not run, and is dropped */
    weft_future_unref(both[0]);
    weft_future_unref(both[1]);
}

static void each_ran_once(void)
{
    assert_int_equal(atomic_load(&runs), 20 * WORKERS);
    assert_int_equal(atomic_load(&drops), 21 * WORKERS);
    reset();
}

ITEM(item_32_done_callbacks, .program = done_callbacks, .after = each_ran_once, ITEM_FUNCTIONS(functions))

/* ---- 33: waiting for all -------------------------------------------------------------------------------------- */

static void wait_for_all(weft_agent *agent, void *arg)
{
    enum { MANY = 8 };
    weft_future *all[MANY];
    weft_target next = weft_to_rank(next_rank(agent));
    for (int i = 0; i < MANY; i++)
        all[i] = start(agent, next, "add", WEFT_VALUES(weft_of_i64(i), weft_of_i64(i)));
    MUST_OK(weft_future_wait_all(all, MANY, WEFT_FOREVER));
    for (int i = 0; i < MANY; i++) {
        MUST(weft_future_done(all[i]) && value_of(all[i]) == 2 * i);
        weft_future_unref(all[i]);
    }
    /* The first failure ends it, though the others never would. */
    weft_error *error = an_error();
    weft_future *some[] = {weft_future_create(agent), weft_future_create(agent), weft_future_create(agent)};
    MUST_BE(weft_future_wait_all(some, 3, 5), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_future_fail(some[1], error));
    MUST_BE(weft_future_wait_all(some, 3, WEFT_FOREVER), WEFT_ERR_IO);
    MUST(!weft_future_done(some[0]) && !weft_future_done(some[2]));
    MUST_OK(weft_future_complete(some[0], NULL, NULL));
    MUST_BE(weft_future_wait_all(some, 3, WEFT_FOREVER), WEFT_ERR_IO); /* partially complete */
    MUST_OK(weft_future_complete(some[2], NULL, NULL));
    MUST_BE(weft_future_wait_all(some, 3, WEFT_FOREVER), WEFT_ERR_IO);
    MUST_OK(weft_future_wait_all(some, 1, 0));
    MUST_OK(weft_future_wait_all(some, 0, 0));
    for (int i = 0; i < 3; i++)
        weft_future_unref(some[i]);
    weft_error_unref(error);
}

ITEM(item_33_wait_all_ends_with_the_first_failure, .program = wait_for_all, ITEM_FUNCTIONS(functions))

/* ---- 34: collecting ------------------------------------------------------------------------------------------- */

/* The reference collects the futures of a thread behind its back; here they are named. Nothing is left over of a
 * failure. */
static void collect(weft_agent *agent, void *arg)
{
    weft_target next = weft_to_rank(next_rank(agent));
    weft_future *parts[] = {start(agent, next, "rank", WEFT_NO_VALUES), start(agent, next, "fail", WEFT_NO_VALUES),
                            start_for(agent, next, "hold", WEFT_NO_VALUES, 20)};
    weft_future *all = weft_future_when_all(parts, 3);
    for (int i = 0; i < 3; i++)
        weft_future_unref(parts[i]);              /* it holds them */
    MUST_OK(weft_future_wait(all, WEFT_FOREVER)); /* whatever became of the parts */
    weft_future **got = weft_future_payload(all);
    MUST(value_of(got[0]) == next_rank(agent));
    MUST_BE(weft_future_wait(got[1], 0), WEFT_ERR_REMOTE);
    MUST_BE(weft_future_wait(got[2], 0), WEFT_ERR_TIMEOUT);
    MUST(weft_future_done(got[2]));
    weft_future_unref(all);
    weft_future *none = weft_future_when_all(NULL, 0);
    MUST_OK(weft_future_wait(none, 0));
    weft_future_unref(none);
}

static void release_late(void)
{
    release_held(0);
}

ITEM(item_34_collect_all_keeps_every_outcome, .program = collect, .after = release_late, ITEM_FUNCTIONS(functions))

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(item_29_futures_complete_once),
        cmocka_unit_test(item_30_continuations),
        cmocka_unit_test(item_31_continuations_that_fail),
        cmocka_unit_test(item_32_done_callbacks),
        cmocka_unit_test(item_33_wait_all_ends_with_the_first_failure),
        cmocka_unit_test(item_34_collect_all_keeps_every_outcome),
    };
    for (int i = 0; i < 64; i++)
        numbers[i] = i;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one item, as "item_14*" */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
