/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_rrefs.c - items 40 to 48: references made elsewhere, passed on, nested, failed, confirmed. */
#include "conformance/conformance.h"

#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_status serve_read(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(read_i64(weft_call_rref(call, 0)))));
    return WEFT_OK;
}

static weft_status serve_read_two(weft_call *call, void *user)
{
    weft_call_give(call,
                   WEFT_VALUES(weft_of_i64(read_i64(weft_call_rref(call, 0)) + read_i64(weft_call_rref(call, 1)))));
    return WEFT_OK;
}

/* A reference to a value of its own. */
static weft_status serve_offer(weft_call *call, void *user)
{
    weft_rref *rref = NULL;
    MUST_OK(weft_rref_create(weft_call_agent(call), weft_of_i64(weft_call_i64(call, 0)), &rref, NULL));
    weft_call_give(call, WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    return WEFT_OK;
}

/* (to, x, y): what it makes on a third worker: a reference to a sum there. */
static weft_status serve_nested(weft_call *call, void *user)
{
    weft_target to = weft_to_rank((int)weft_call_i64(call, 0));
    weft_rref *made = make(weft_call_agent(call), to, "add",
                           WEFT_VALUES(weft_of_i64(weft_call_i64(call, 1)), weft_of_i64(weft_call_i64(call, 2))));
    weft_call_give(call, WEFT_VALUES(weft_of_rref(made)));
    weft_rref_unref(made);
    return WEFT_OK;
}

/* (to, x): two references, to values made there, in a list. */
static weft_status serve_nested_list(weft_call *call, void *user)
{
    weft_target to = weft_to_rank((int)weft_call_i64(call, 0));
    weft_value x = weft_of_i64(weft_call_i64(call, 1));
    weft_rref *one = make(weft_call_agent(call), to, "add", WEFT_VALUES(x, weft_of_i64(1))),
              *two = make(weft_call_agent(call), to, "add", WEFT_VALUES(x, weft_of_i64(2)));
    weft_call_give(call, WEFT_VALUES(weft_of_list(WEFT_VALUES(weft_of_rref(one), weft_of_rref(two)))));
    weft_rref_unref(one);
    weft_rref_unref(two);
    return WEFT_OK;
}

/* (rref, ttl): on to the next worker until the time to live is over; the last one reads it. */
static weft_status serve_forward(weft_call *call, void *user)
{
    int64_t ttl = weft_call_i64(call, 1);
    weft_agent *agent = weft_call_agent(call);
    weft_rref *rref = weft_call_rref(call, 0);
    int64_t n = ttl == 0 ? read_i64(rref)
                         : ask(agent, weft_to_rank(next_rank(agent)), "forward",
                               WEFT_VALUES(weft_of_rref(rref), weft_of_i64(ttl - 1)));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(n)));
    return WEFT_OK;
}

/* Whether its argument was known to its owner before this ran: 1 or 0. */
static weft_status serve_is_confirmed(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_rref_confirmed(weft_call_rref(call, 0)))));
    return WEFT_OK;
}

static weft_status serve_throw(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "it would not be made");
    return WEFT_ERR_SHAPE;
}

static weft_status serve_slow(weft_call *call, void *user)
{
    item_sleep_ms(10);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(77)));
    return WEFT_OK;
}

/* (handle): a handler that needs the value, and returns what it met with. */
static weft_status serve_need(weft_call *call, void *user)
{
    weft_value value;
    return weft_rref_local_value(weft_call_rref(call, 0), ITEM_PATIENCE_MS, &value);
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "read", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = serve_read},
    {.name = "read two", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = serve_read_two},
    {.name = "offer", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_RREF}, .run = serve_offer},
    {.name = "nested",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_RREF},
     .run = serve_nested},
    {.name = "nested list",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_LIST},
     .run = serve_nested_list},
    {.name = "forward", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_forward},
    {.name = "is confirmed", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = serve_is_confirmed},
    {.name = "throw", .gives = {WEFT_TYPE_I64}, .run = serve_throw},
    {.name = "need", .takes = {WEFT_TYPE_RREF}, .run = serve_need},
    {.name = "slow", .gives = {WEFT_TYPE_I64}, .run = serve_slow},
};

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static weft_rref *make_sum(weft_agent *agent, int to, int64_t x, int64_t y)
{
    return make(agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(x), weft_of_i64(y)));
}

/* The value of a reference that is a reference itself. */
static weft_rref *read_rref(weft_rref *outer)
{
    weft_values *values = NULL;
    weft_rref *inner = NULL;
    MUST_OK(weft_rref_to_here(outer, ITEM_PATIENCE_MS, &values, NULL));
    MUST_OK(weft_values_get_rref(values, 0, &inner));
    weft_rref_ref(inner);
    weft_values_unref(values);
    return inner;
}

static weft_rref *ask_rref(weft_agent *agent, int to, const char *function, weft_args args)
{
    weft_values *values = NULL;
    weft_rref *got = NULL;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), function, args, NULL, &values));
    MUST_OK(weft_values_get_rref(values, 0, &got));
    weft_rref_ref(got);
    weft_values_unref(values);
    return got;
}

static int64_t read_on(weft_agent *agent, int to, weft_rref *rref)
{
    return ask(agent, weft_to_rank(to), "read", WEFT_VALUES(weft_of_rref(rref)));
}

/* ---- 40 ------------------------------------------------------------------------------------------------------- */

static void remote_results(weft_agent *agent, void *arg)
{
    enum { MANY = 50 };
    weft_rref *made[MANY];
    for (int to = 0; to < WORKERS; to++) {
        weft_rref *rref = make_sum(agent, to, 1, to);
        MUST(weft_rref_owner(rref) == to && weft_rref_is_owner(rref) == (to == weft_agent_rank(agent)));
        MUST(read_i64(rref) == 1 + to && read_i64(rref) == 1 + to); /* as often as one likes */
        MUST(weft_rref_confirmed(rref));
        weft_rref_unref(rref);
    }
    for (int i = 0; i < MANY; i++)
        made[i] = make_sum(agent, i % WORKERS, i, i);
    for (int i = MANY - 1; i >= 0; i--) {
        MUST(read_i64(made[i]) == 2 * i);
        weft_rref_unref(made[i]);
    }
    weft_rref *slow = make(agent, weft_to_rank(next_rank(agent)), "slow", WEFT_NO_VALUES);
    MUST(read_i64(slow) == 77); /* asked for before it was made */
    weft_rref_unref(slow);
    weft_rref *empty = make(agent, weft_to_rank(next_rank(agent)), "nothing", WEFT_NO_VALUES);
    weft_values *values = NULL;
    MUST_OK(weft_rref_to_here(empty, ITEM_PATIENCE_MS, &values, NULL)); /* of a function without a result: null */
    MUST(weft_values_count(values) == 1 && weft_values_type(values, 0) == WEFT_TYPE_NULL);
    weft_values_unref(values);
    weft_rref_unref(empty);
}

ITEM(item_40_remote_results, .program = remote_results, ITEM_FUNCTIONS(functions))

/* ---- 41 ------------------------------------------------------------------------------------------------------- */

/* Two references to one owner as arguments to it; and from a user to another user, who reads it at the owner. */
static void rref_arguments(weft_agent *agent, void *arg)
{
    int owner = next_rank(agent), user = (owner + 1) % WORKERS;
    weft_rref *a = make_sum(agent, owner, 1, 2), *b = make_sum(agent, owner, 3, 4), *slow;
    MUST(ask(agent, weft_to_rank(owner), "read two", WEFT_VALUES(weft_of_rref(a), weft_of_rref(b))) == 10);
    MUST(ask(agent, weft_to_rank(user), "read two", WEFT_VALUES(weft_of_rref(a), weft_of_rref(b))) == 10);
    MUST(ask(agent, weft_to_rank(user), "read two", WEFT_VALUES(weft_of_rref(a), weft_of_rref(a))) == 6); /* twice */
    /* Passed on before its owner has confirmed it, or made it; and let go while the call is under way. */
    slow = make(agent, weft_to_rank(owner), "slow", WEFT_NO_VALUES);
    weft_future *asked = start(agent, weft_to_rank(user), "read", WEFT_VALUES(weft_of_rref(slow)));
    weft_rref_unref(slow);
    MUST(future_i64(asked) == 77);
    weft_rref *there = make(agent, weft_to_rank(user), "read two", WEFT_VALUES(weft_of_rref(a), weft_of_rref(b)));
    weft_rref_unref(a);
    weft_rref_unref(b);
    MUST(read_i64(there) == 10);
    weft_rref_unref(there);
}

ITEM(item_41_rrefs_as_arguments, .program = rref_arguments, ITEM_FUNCTIONS(functions))

/* ---- 42 ------------------------------------------------------------------------------------------------------- */

static void nested_once(weft_agent *agent, int there, int further, int64_t n)
{
    weft_args args = WEFT_VALUES(weft_of_i64(further), weft_of_i64(n), weft_of_i64(1));
    weft_rref *outer = make(agent, weft_to_rank(there), "nested", args); /* a reference to a reference */
    weft_rref *inner = read_rref(outer);
    weft_rref_unref(outer);
    MUST(weft_rref_owner(inner) == further && read_i64(inner) == n + 1);
    weft_rref_unref(inner);
    outer = make(agent, weft_to_rank(there), "nested list", WEFT_VALUES(weft_of_i64(further), weft_of_i64(n)));
    weft_values *values = NULL;
    weft_args list;
    MUST_OK(weft_rref_to_here(outer, ITEM_PATIENCE_MS, &values, NULL));
    MUST_OK(weft_values_get_list(values, 0, &list));
    MUST(list.count == 2 && read_i64(list.items[0].as.rref) == n + 1 && read_i64(list.items[1].as.rref) == n + 2);
    weft_values_unref(values);
    weft_rref_unref(outer);
}

static void nested_rrefs(weft_agent *agent, void *arg)
{
    for (int i = 0; i < 20; i++) /* the last of each row is ourselves */
        nested_once(agent, (weft_agent_rank(agent) + 1 + i) % WORKERS, (weft_agent_rank(agent) + 2 + i) % WORKERS, i);
    nested_once(agent, next_rank(agent), next_rank(agent), 5);
    nested_once(agent, next_rank(agent), weft_agent_rank(agent), 6); /* ours comes home */
}

ITEM(item_42_nested_remote_and_nested_rrefs, .program = nested_rrefs, ITEM_FUNCTIONS(functions))

/* ---- 43 ------------------------------------------------------------------------------------------------------- */

static void returned_and_local(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        /* A reference of the callee's own, as a result, read by us, by its owner, by a third. */
        weft_rref *theirs = ask_rref(agent, to, "offer", WEFT_VALUES(weft_of_i64(30 + to)));
        MUST(weft_rref_owner(theirs) == to && weft_rref_confirmed(theirs) && read_i64(theirs) == 30 + to);
        MUST(read_on(agent, to, theirs) == 30 + to && read_on(agent, (to + 1) % WORKERS, theirs) == 30 + to);
        weft_rref_unref(theirs);
        /* One of our own, as an argument. */
        weft_rref *mine = NULL;
        MUST_OK(weft_rref_create(agent, weft_of_i64(5), &mine, NULL));
        MUST(read_on(agent, to, mine) == 5);
        weft_rref_unref(mine);
        /* To what the callee made on yet another. */
        weft_rref *third =
            ask_rref(agent, to, "nested", WEFT_VALUES(weft_of_i64((to + 1) % WORKERS), weft_of_i64(1), weft_of_i64(1)));
        MUST(weft_rref_owner(third) == (to + 1) % WORKERS && read_i64(third) == 2);
        weft_rref_unref(third);
    }
}

ITEM(item_43_rrefs_returned_and_local_rrefs_passed, .program = returned_and_local, ITEM_FUNCTIONS(functions))

/* ---- 44 ------------------------------------------------------------------------------------------------------- */

static void forward_chain(weft_agent *agent, void *arg)
{
    int owner = (weft_agent_rank(agent) + 2) % WORKERS;
    weft_rref *rref = make(agent, weft_to_rank(owner), "slow", WEFT_NO_VALUES);
    MUST(ask(agent, weft_to_rank(next_rank(agent)), "forward", WEFT_VALUES(weft_of_rref(rref), weft_of_i64(8))) == 77);
    weft_rref_unref(rref);
}

ITEM(item_44_rref_forward_chain, .program = forward_chain, ITEM_FUNCTIONS(functions))

/* ---- 45 ------------------------------------------------------------------------------------------------------- */

/* The owner gets references to its own values as arguments of what it makes. */
static void same_worker(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_rref *a = make_sum(agent, to, 1, 1), *b = make_sum(agent, to, 2, 2);
        weft_rref *c = make(agent, weft_to_rank(to), "read two", WEFT_VALUES(weft_of_rref(a), weft_of_rref(b)));
        MUST(read_i64(c) == 6 && weft_rref_owner(c) == to);
        weft_rref_unref(a);
        weft_rref_unref(b);
        weft_rref_unref(c);
    }
}

ITEM(item_45_remote_on_the_same_worker, .program = same_worker, ITEM_FUNCTIONS(functions))

/* ---- 46 ------------------------------------------------------------------------------------------------------- */

/* A reference that never leaves costs no message, and local_value is for owners. */
static void local_only(weft_agent *agent, void *arg)
{
    weft_value value;
    weft_stats before, after;
    weft_agent_stats(agent, &before);
    weft_rref *mine = NULL;
    MUST_OK(weft_rref_create(agent, weft_of_i64(35), &mine, NULL));
    MUST(weft_rref_is_owner(mine) && weft_rref_confirmed(mine));
    MUST_OK(weft_rref_local_value(mine, 0, &value));
    MUST(value.type == WEFT_TYPE_I64 && value.as.i64 == 35 && read_i64(mine) == 35);
    weft_agent_stats(agent, &after);
    MUST(after.calls_started == before.calls_started);
    weft_rref_unref(mine);
    weft_rref *theirs = make_sum(agent, next_rank(agent), 1, 1);
    MUST_BE(weft_rref_local_value(theirs, ITEM_PATIENCE_MS, &value), WEFT_ERR_STATE);
    MUST(read_i64(theirs) == 2);
    MUST_BE(weft_rref_local_value(theirs, ITEM_PATIENCE_MS, &value), WEFT_ERR_STATE); /* a copy makes no owner */
    weft_rref_unref(theirs);
}

ITEM(item_46_local_rrefs_and_local_value, .program = local_only, ITEM_FUNCTIONS(functions))

/* ---- 47 ------------------------------------------------------------------------------------------------------- */

static void must_have_thrown(weft_rref *rref, int worker)
{
    weft_future *future = NULL;
    MUST_OK(weft_rref_to_here_async(rref, ITEM_PATIENCE_MS, &future));
    MUST_BE(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_REMOTE);
    const weft_error *error = weft_future_error(future);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_SHAPE);
    MUST(says(error, "it would not be made") && weft_error_worker(error) == worker);
    weft_future_unref(future);
}

static void must_be_handed_on(weft_rref *rref, int worker)
{
    weft_error *error = NULL;
    MUST_BE(weft_rref_rpc_sync(rref, "need", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_SHAPE);
    MUST(says(error, "it would not be made") && weft_error_worker(error) == worker);
    weft_error_unref(error);
}

/* What goes wrong in the making is told to whoever asks, as often as it is asked; and to those it was passed to. */
static void remote_throws(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_rref *rref = make(agent, weft_to_rank(to), "throw", WEFT_NO_VALUES);
        must_have_thrown(rref, to);
        must_have_thrown(rref, to);
        must_be_handed_on(rref, to);
        weft_rref_unref(rref);
    }
    weft_rref *rref = make(agent, weft_to_rank(next_rank(agent)), "throw", WEFT_NO_VALUES), *never = NULL;
    weft_values *values = NULL;
    /* The reader would abort the test if it could read; it fails with the reason, or before it runs. */
    weft_error *error = NULL;
    MUST_BE(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, &error), WEFT_ERR_REMOTE);
    MUST(weft_error_worker(error) == next_rank(agent));
    weft_error_unref(error);
    weft_rref_unref(rref);
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(WORKERS), "add", WEFT_NO_VALUES, NULL, &never), WEFT_ERR_NOT_FOUND);
    rref = make(agent, weft_to_rank(next_rank(agent)), "add", WEFT_VALUES(weft_of_string("two")));
    MUST_BE(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_TYPE);
    weft_rref_unref(rref);
}

ITEM(item_47_remote_with_exception, .program = remote_throws, ITEM_FUNCTIONS(functions))

/* ---- 48 ------------------------------------------------------------------------------------------------------- */

/* Handlers see references that their owner knows of, whoever passed them on, however fresh they are. In a call to
 * oneself it is the caller's own handle, as confirmed as that is. */
static void confirmed_before_handlers(weft_agent *agent, void *arg)
{
    int owner = next_rank(agent);
    for (int i = 0; i < 20; i++) {
        weft_rref *fresh = make_sum(agent, owner, i, 1); /* it may not even have left */
        weft_target to = weft_to_rank((owner + i) % WORKERS);
        if (to.rank == weft_agent_rank(agent))
            (void)read_i64(fresh);
        MUST(ask(agent, to, "is confirmed", WEFT_VALUES(weft_of_rref(fresh))) == 1);
        weft_rref *there = make(agent, to, "is confirmed", WEFT_VALUES(weft_of_rref(fresh)));
        weft_rref_unref(fresh);
        MUST(read_i64(there) == 1);
        weft_rref_unref(there);
    }
}

ITEM(item_48_arguments_are_confirmed_before_handlers_run, .program = confirmed_before_handlers,
     ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_40_remote_results, item_41_rrefs_as_arguments, item_42_nested_remote_and_nested_rrefs,
          item_43_rrefs_returned_and_local_rrefs_passed, item_44_rref_forward_chain, item_45_remote_on_the_same_worker,
          item_46_local_rrefs_and_local_value, item_47_remote_with_exception,
          item_48_arguments_are_confirmed_before_handlers_run)
