/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_leaks.c - items 49 to 52 and 55: references left over, in circles, used too late, counted to the
 * last one; and functions called on them. */
#include "conformance/conformance.h"

#include <stdlib.h>

#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static _Atomic(weft_rref *) kept[WORKERS];
static atomic_int drops;

/* Keeps its argument: in "keep" until "let go", in "hold on" for ever, as an object of its own that is dropped with
 * it. */
static weft_status serve_keep(weft_call *call, void *user)
{
    int rank = weft_agent_rank(weft_call_agent(call));
    MUST(!atomic_exchange(&kept[rank], weft_rref_ref(weft_call_rref(call, 0))));
    return WEFT_OK;
}

static weft_status serve_let_go(weft_call *call, void *user)
{
    weft_rref_unref(atomic_exchange(&kept[weft_agent_rank(weft_call_agent(call))], NULL));
    return WEFT_OK;
}

/* An object that holds a reference: of such things circles are made. */
typedef struct holder {
    weft_rref *holds;
    int64_t count;
} holder;

static void drop_holder(void *object)
{
    holder *dropped = object;
    weft_rref_unref(dropped->holds);
    free(dropped);
    atomic_fetch_add(&drops, 1);
}
static const weft_object_type holder_type = {.name = "holder", .drop = drop_holder};

static weft_status serve_new_holder(weft_call *call, void *user)
{
    holder *made = calloc(1, sizeof(*made));
    MUST(made);
    weft_call_give_object(call, &holder_type, made);
    return WEFT_OK;
}

/* (self, rref) */
static weft_status serve_hold_on(weft_call *call, void *user)
{
    holder *self = NULL;
    MUST_OK(weft_rref_local_typed(weft_call_rref(call, 0), &holder_type, ITEM_PATIENCE_MS, (void **)&self));
    weft_rref_unref(self->holds);
    self->holds = weft_rref_ref(weft_call_rref(call, 1));
    return WEFT_OK;
}

/* (self, i64): its count so far */
static weft_status serve_increment(weft_call *call, void *user)
{
    holder *self = NULL;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &holder_type, ITEM_PATIENCE_MS, (void **)&self);
    if (status)
        return status;
    self->count += weft_call_i64(call, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(self->count)));
    return WEFT_OK;
}

/* (self): when somebody lets it. */
static weft_status serve_hold_self(weft_call *call, void *user)
{
    return serve_hold(call, user);
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "keep", .takes = {WEFT_TYPE_RREF}, .run = serve_keep},
    {.name = "let go", .run = serve_let_go},
    {.name = "new holder", .gives = {WEFT_TYPE_ANY}, .run = serve_new_holder},
    {.name = "hold on", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .run = serve_hold_on},
    {.name = "increment", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_increment},
    {.name = "wait", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = serve_hold_self},
};

/* ---- The log -------------------------------------------------------------------------------------------------- */

static atomic_int leak_lines;

static void count_leak_lines(weft_log_level level, const char *line, void *arg)
{
    if (strstr(line, "references were left"))
        atomic_fetch_add(&leak_lines, 1);
}

static void listen_for_leaks(void)
{
    atomic_store(&leak_lines, 0);
    weft_logging_set_sink(count_leak_lines, NULL);
}

/* ---- 49 ------------------------------------------------------------------------------------------------------- */

static weft_rref *leaked[WORKERS];
static bool leaks_fatal;

static void let_leaks_fail(weft_agent_options *options)
{
    options->leaks_fail = leaks_fatal;
}

/* Only worker 0 leaks: a handle to a value of worker 1. Both are told so at the end, the one that holds and the one
 * that keeps; those who have nothing to do with it are not. */
static void leak_one(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    if (rank == 0) {
        leaked[0] = make(agent, weft_to_rank(1), "rank", WEFT_NO_VALUES);
        MUST(read_i64(leaked[0]) == 1);
    }
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), rank < 2 && leaks_fatal ? WEFT_ERR_BUSY : WEFT_OK);
    if (rank == 0) {
        weft_rref_unref(leaked[0]); /* after the end: allowed */
        leaked[0] = NULL;
    }
}

static void two_lines(void)
{
    assert_int_equal(atomic_exchange(&leak_lines, 0), 2);
}

static void item_49_rref_leaks(void **state)
{
    listen_for_leaks();
    for (int fatal = 0; fatal < 2; fatal++) {
        leaks_fatal = fatal;
        item_run(&(item){
            .body = leak_one, .adjust = let_leaks_fail, .after = two_lines, .leaks = true, ITEM_FUNCTIONS(functions)});
    }
    weft_logging_set_sink(NULL, NULL);
}

/* ---- 50 ------------------------------------------------------------------------------------------------------- */

/*
 * Two objects on two workers hold a reference to each other: nobody will ever let go of them. In this process: a
 * handle is kept till after the end. The end does not wait for either; it reports them, and what was held is dropped
 * with the agents.
 */
static void circle(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    if (rank == 0) {
        weft_rref *a = make(agent, weft_to_rank(1), "new holder", WEFT_NO_VALUES),
                  *b = make(agent, weft_to_rank(2), "new holder", WEFT_NO_VALUES);
        weft_values *got = NULL;
        MUST_OK(weft_rref_rpc_sync(a, "hold on", WEFT_VALUES(weft_of_rref(b)), NULL, &got));
        weft_values_unref(got);
        MUST_OK(weft_rref_rpc_sync(b, "hold on", WEFT_VALUES(weft_of_rref(a)), NULL, &got));
        weft_values_unref(got);
        weft_rref_unref(a);
        weft_rref_unref(b);
        leaked[0] = make(agent, weft_to_rank(3), "rank", WEFT_NO_VALUES);
    }
    weft_status status = weft_agent_close(agent, WEFT_FOREVER);
    MUST_BE(status, WEFT_ERR_BUSY); /* each of the four has a part in one of the two */
    if (rank == 0)
        weft_rref_unref(leaked[0]);
}

static void circle_was_dropped(void)
{
    assert_int_equal(atomic_exchange(&drops, 0), 2);
    assert_int_equal(atomic_exchange(&leak_lines, 0), WORKERS);
}

static void item_50_circles_of_references(void **state)
{
    leaks_fatal = true;
    listen_for_leaks();
    item_run(&(item){.body = circle,
                     .adjust = let_leaks_fail,
                     .after = circle_was_dropped,
                     .leaks = true,
                     ITEM_FUNCTIONS(functions)});
    weft_logging_set_sink(NULL, NULL);
}

/* ---- 51 ------------------------------------------------------------------------------------------------------- */

/* The reference's two messages: reading it, and passing it on. Here: the same code for both, and also in a job that
 * came afterwards, to which it does not belong. */
static void use_after_shutdown(int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_values *values = NULL;
    MUST_OK(item_open(rank, NULL, &agent, &error));
    weft_rref *theirs = make(agent, weft_to_rank(next_rank(agent)), "rank", WEFT_NO_VALUES), *mine = NULL;
    MUST(read_i64(theirs) == next_rank(agent));
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &mine, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* it reports what is left, and does not mind */
    MUST_BE(weft_rref_to_here(theirs, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_CLOSED);
    MUST(!weft_rref_confirmed(theirs));
    MUST_OK(weft_rref_to_here(mine, ITEM_PATIENCE_MS, &values, NULL)); /* which is here anyway */
    weft_values_unref(values);
    MUST_OK(item_open(rank, NULL, &agent, &error));
    weft_target next = weft_to_rank(next_rank(agent));
    weft_future *future = NULL;
    for (int i = 0; i < 2; i++) {
        weft_status status = weft_rpc_async(agent, i ? next : weft_to_rank(rank), "keep",
                                            WEFT_VALUES(weft_of_rref(i ? theirs : mine)), NULL, &future);
        MUST_BE(status, WEFT_ERR_INVALID);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    weft_rref_unref(theirs);
    weft_rref_unref(mine);
}

static void item_51_use_after_shutdown(void **state)
{
    listen_for_leaks(); /* two handles a worker: told, and not the point here */
    item_run(&(item){.body = use_after_shutdown, .leaks = true, ITEM_FUNCTIONS(functions)});
    weft_logging_set_sink(NULL, NULL);
}

/* ---- 52 ------------------------------------------------------------------------------------------------------- */

static int64_t counted(weft_agent *agent, const char *what)
{
    char *text = NULL, key[64];
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_debug_dump(agent, to));
    fclose(to);
    snprintf(key, sizeof(key), "\"%s\": ", what);
    const char *at = strstr(text, key);
    MUST(at);
    int64_t n = strtoll(at + strlen(key), NULL, 10);
    free(text);
    return n;
}

static void must_count(weft_agent *agent, const char *what, int64_t wanted)
{
    int64_t n = -1;
    for (int ms = 0; ms < ITEM_PATIENCE_MS && (n = counted(agent, what)) != wanted; ms++)
        item_sleep_ms(1); /* what was let go of may still be on its way */
    if (n != wanted)
        fprintf(stderr, "%s: %lld, not %lld\n", what, (long long)n, (long long)wanted);
    MUST(n == wanted);
}

static void must_hold(weft_agent *agent, int values, int forks, int references)
{
    must_count(agent, "value_count", values);
    must_count(agent, "fork_count", forks);
    must_count(agent, "reference_count", references);
    must_count(agent, "awaiting_confirmation", 0);
    must_count(agent, "unconfirmed_count", 0);
}

static atomic_int steps;

static void step(int number)
{
    atomic_fetch_add(&steps, 1);
    item_await(&steps, number * WORKERS);
}

/* All count the same at every step: each does the same to its neighbours. */
static void exact_counts(weft_agent *agent, void *arg)
{
    weft_target next = weft_to_rank(next_rank(agent));
    must_hold(agent, 0, 0, 0);
    step(1);
    weft_rref *mine = NULL, *theirs[3];
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &mine, NULL)); /* known to nobody: a value, no fork */
    must_hold(agent, 1, 0, 0);
    step(2);
    for (int i = 0; i < 3; i++) {
        theirs[i] = make(agent, next, "rank", WEFT_NO_VALUES);
        (void)read_i64(theirs[i]);
    }
    step(3);
    must_hold(agent, 1 + 3, 3, 3); /* three of ours there, three of others here */
    step(4);
    tell(agent, next, "keep", WEFT_VALUES(weft_of_rref(mine)));
    step(5);
    must_hold(agent, 1 + 3, 3 + 1, 3 + 1); /* a fork for the neighbour, and the other neighbour's reference here */
    step(6);
    weft_rref_unref(mine);
    must_hold(agent, 1 + 3, 3 + 1, 3 + 1); /* the neighbour still has it */
    step(7);
    tell(agent, next, "let go", WEFT_NO_VALUES);
    for (int i = 0; i < 3; i++)
        weft_rref_unref(theirs[i]);
    step(8);
    must_hold(agent, 0, 0, 0);
    must_count(agent, "call_count", 0);
    step(9);
    weft_future *waiting = start(agent, next, "hold", WEFT_NO_VALUES);
    item_await(&held_count, WORKERS);
    must_count(agent, "call_count", 1);
    must_count(agent, "serving_count", 1);
    step(10);
    release_held(1);
    MUST(future_i64(waiting) == 1);
    must_count(agent, "serving_count", 0);
}

static void reset_steps(void)
{
    atomic_store(&steps, 0);
}

ITEM(item_52_exact_counts, .program = exact_counts, .after = reset_steps, ITEM_FUNCTIONS(functions))

/* ---- 55 ------------------------------------------------------------------------------------------------------- */

static int64_t first_i64(const weft_values *values)
{
    int64_t n = -1;
    MUST_OK(weft_values_get_i64(values, 0, &n));
    return n;
}

static int64_t increment(weft_rref *object)
{
    weft_values *got = NULL;
    MUST_OK(weft_rref_rpc_sync(object, "increment", WEFT_VALUES(weft_of_i64(1)), NULL, &got));
    int64_t n = first_i64(got);
    weft_values_unref(got);
    return n;
}

static void helper_errors(weft_rref *object)
{
    weft_values *got = NULL;
    weft_rref *made = NULL;
    weft_error *error = NULL;
    weft_rpc_options options = {.error = &error}, brief = {.timeout_ms = 10};
    MUST_BE(weft_rref_rpc_sync(object, "no such method", WEFT_NO_VALUES, &options, &got), WEFT_ERR_NOT_FOUND);
    MUST(says(error, "no such method") && weft_error_worker(error) == weft_rref_owner(object));
    weft_error_unref(error);
    MUST_BE(weft_rref_rpc_sync(object, "increment", WEFT_NO_VALUES, NULL, &got), WEFT_ERR_TYPE);
    MUST_OK(weft_rref_rpc_remote(object, "no such method", WEFT_NO_VALUES, NULL, &made));
    MUST_BE(weft_rref_to_here(made, ITEM_PATIENCE_MS, &got, NULL), WEFT_ERR_NOT_FOUND);
    weft_rref_unref(made);
    MUST_BE(weft_rref_rpc_sync(object, "wait", WEFT_NO_VALUES, &brief, &got), WEFT_ERR_TIMEOUT);
}

static void reference_helpers(weft_agent *agent, void *arg)
{
    for (int to = 0; to < WORKERS; to++) {
        weft_rref *object = make(agent, weft_to_rank(to), "new holder", WEFT_NO_VALUES), *made = NULL;
        weft_future *created = weft_rref_created(object), *future = NULL;
        MUST_OK(weft_future_wait(created, ITEM_PATIENCE_MS)); /* without a copy: objects do not travel */
        weft_future_unref(created);
        MUST(increment(object) == 1 && increment(object) == 2); /* used again and again */
        MUST_OK(weft_rref_rpc_async(object, "increment", WEFT_VALUES(weft_of_i64(5)), NULL, &future));
        MUST(future_i64(future) == 7);
        MUST_OK(weft_rref_rpc_remote(object, "increment", WEFT_VALUES(weft_of_i64(3)), NULL, &made));
        MUST(weft_rref_owner(made) == to && read_i64(made) == 10);
        weft_rref_unref(made);
        helper_errors(object);
        weft_rref_unref(object);
    }
}

static void release_waiting(void)
{
    release_held(0);
    atomic_store(&drops, 0);
}

ITEM(item_55_functions_on_references, .program = reference_helpers, .after = release_waiting, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_49_rref_leaks, item_50_circles_of_references, item_51_use_after_shutdown, item_52_exact_counts,
          item_55_functions_on_references)
