/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_misuse.c - what a program asks for that cannot be: to wait where nothing could come in, to complete what
 * is not its own, to read lists at NULL, to go over a limit, to answer with what is no status. Nothing is started,
 * nothing crashes, and the errors say what was wrong.
 */
#include "rpc/world.h"
#include "tensors.h"

#define TOO_MANY_BYTES ((size_t)WEFT_MAX_CALL_BYTES + 1)

static struct shared {
    world *w;
    weft_group *groups[2];
    atomic_int ran;  /* calls of "count" */
    atomic_int part; /* what sending a part at NULL returned */
    _Atomic(weft_future *) held;
    atomic_bool barrier_named; /* the log has which call an inline handler could not wait for */
    atomic_bool refused;       /* the inline handler has seen its waits refused */
    atomic_bool released;      /* "held" may return */
} shared;

static const weft_rpc_options none = {.timeout_ms = 20000};

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static weft_status run_count(weft_call *call, void *user)
{
    atomic_fetch_add(&shared.ran, 1);
    return WEFT_OK;
}

/* Until nobody wants it any more. */
static weft_status run_long(weft_call *call, void *user)
{
    weft_future *over = weft_call_cancellation(call);
    weft_status status = weft_future_wait(over, 20000);
    weft_future_unref(over);
    return status;
}

static weft_status run_held(weft_call *call, void *user)
{
    while (!atomic_load(&shared.released))
        world_sleep_ms(shared.w, 1);
    return WEFT_OK;
}

static void must_say(weft_error *error, weft_status code, const char *words)
{
    MUST(error);
    MUST_BE(weft_error_code(error), code);
    if (!strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\" lacks \"%s\"\n", weft_error_message(error), words);
    MUST(strstr(weft_error_message(error), words));
    weft_error_unref(error);
}

static void note_barrier(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_ERROR && strstr(line, "a call of \"weft_group_barrier\" failed: nothing was started"))
        atomic_store(&shared.barrier_named, true);
}

/* Inline, at rank 1: whatever would wait is refused. Argument 0 is a reference to a value of rank 0's. */
static weft_status run_wait_inline(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_rref *rref = weft_call_rref(call, 0), *own;
    weft_values *values = NULL;
    weft_error *error = NULL;
    weft_rpc_options options = {.error = &error};
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "count", WEFT_NO_VALUES, &options, &values), WEFT_ERR_DEADLOCK);
    must_say(error, WEFT_ERR_DEADLOCK, "inline handler");
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "count", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_DEADLOCK);
    error = NULL;
    MUST_BE(weft_rref_rpc_sync(rref, "count", WEFT_NO_VALUES, &options, &values), WEFT_ERR_DEADLOCK);
    must_say(error, WEFT_ERR_DEADLOCK, "nothing was started");
    error = NULL;
    MUST_BE(weft_rref_to_here(rref, 20000, &values, &error), WEFT_ERR_DEADLOCK);
    must_say(error, WEFT_ERR_DEADLOCK, "nothing was started");
    weft_logging_set_sink(note_barrier, NULL);
    MUST_BE(weft_group_barrier(shared.groups[1], 20000), WEFT_ERR_DEADLOCK);
    weft_logging_set_sink(NULL, NULL);
    MUST(atomic_exchange(&shared.barrier_named, false));
    MUST_BE(weft_group_allgather_values(shared.groups[1], WEFT_VALUES(weft_of_i64(9)), 20000, &values),
            WEFT_ERR_DEADLOCK);
    MUST(!values);
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &own, NULL)); /* what is there is not waited for */
    MUST_OK(weft_rref_to_here(own, 0, &values, NULL));
    weft_values_unref(values);
    weft_rref_unref(own);
    return WEFT_OK;
}

/* An inline handler that a thread called on its own worker runs on the executor. */
static weft_status run_wait_at_home(weft_call *call, void *user)
{
    return weft_rpc_sync(weft_call_agent(call), weft_to_rank(1), "count", WEFT_NO_VALUES, NULL, NULL);
}

static weft_status run_give_at_null(weft_call *call, void *user)
{
    weft_call_give(call, (weft_args){NULL, 3});
    return WEFT_OK;
}

static weft_status run_give_null(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1), weft_of_tensor(NULL)));
    return WEFT_OK;
}

static weft_status run_give_many(weft_call *call, void *user)
{
    static weft_value many[2000];
    for (size_t i = 0; i < 2000; i++)
        many[i] = weft_of_null();
    weft_call_give(call, (weft_args){many, 2000});
    return WEFT_OK;
}

/* One value, and a count of it that no memory could hold. */
static const weft_value one_value = {.type = WEFT_TYPE_I64, .as.i64 = 1};
static const weft_args endless = {&one_value, SIZE_MAX};

static weft_status run_give_endless(weft_call *call, void *user)
{
    weft_call_give(call, endless);
    return WEFT_OK;
}

static weft_status run_give_large(weft_call *call, void *user)
{
    void *bytes = calloc(1, TOO_MANY_BYTES);
    weft_call_give(call, WEFT_VALUES(weft_of_bytes(bytes, TOO_MANY_BYTES)));
    free(bytes);
    return WEFT_OK;
}

static weft_status run_part_at_null(weft_call *call, void *user)
{
    atomic_store(&shared.part, weft_call_send_item(call, (weft_args){NULL, 2}));
    return WEFT_OK;
}

static weft_status run_seven(weft_call *call, void *user)
{
    return (weft_status)7;
}

static weft_status run_wait_for_room(weft_call *call, void *user);
static weft_status run_make_room(weft_call *call, void *user);

static const weft_function functions[] = {
    {.name = "wait for room", .run = run_wait_for_room},
    {.name = "make room", .run = run_make_room},
    {.name = "count", .takes = {WEFT_TYPE_REST}, .run = run_count},
    {.name = "long", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_long},
    {.name = "held", .gives = {WEFT_TYPE_REST}, .run = run_held},
    {.name = "wait inline", .takes = {WEFT_TYPE_RREF}, .run = run_wait_inline, .flags = WEFT_FUNCTION_INLINE},
    {.name = "wait at home", .run = run_wait_at_home, .flags = WEFT_FUNCTION_INLINE},
    {.name = "give at null", .gives = {WEFT_TYPE_REST}, .run = run_give_at_null},
    {.name = "give null", .gives = {WEFT_TYPE_REST}, .run = run_give_null},
    {.name = "give many", .gives = {WEFT_TYPE_REST}, .run = run_give_many},
    {.name = "give endless", .gives = {WEFT_TYPE_I64, WEFT_TYPE_F64}, .run = run_give_endless},
    {.name = "give large", .gives = {WEFT_TYPE_REST}, .run = run_give_large},
    {.name = "part at null", .run = run_part_at_null},
    {.name = "seven", .run = run_seven},
};

/* ---- Waiting where it could never end ---------------------------------------------------------------------------- */

/* The refused operations took no part: those that follow match. Rank 1's thread sleeps meanwhile: one that waits in
 * weft may read the network itself, and hands inline handlers to the executor. */
static void inline_waits(weft_agent *agent)
{
    int rank = weft_agent_rank(agent);
    weft_group *group = shared.groups[rank];
    weft_values *all;
    weft_rref *rref;
    weft_args list;
    MUST_OK(weft_group_barrier(group, 20000));
    if (rank == 0) {
        MUST_OK(weft_rref_create(agent, weft_of_i64(1), &rref, NULL));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "wait inline", WEFT_VALUES(weft_of_rref(rref)), &none, NULL));
        weft_rref_unref(rref);
        MUST(atomic_load(&shared.ran) == 0);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "wait at home", WEFT_NO_VALUES, &none, NULL));
        MUST(atomic_load(&shared.ran) == 1);
        atomic_store(&shared.refused, true);
    }
    while (!atomic_load(&shared.refused))
        world_sleep_ms(shared.w, 1);
    MUST_OK(weft_group_barrier(group, 20000));
    MUST_OK(weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64(rank)), 20000, &all));
    for (size_t i = 0; i < 2; i++) {
        MUST_OK(weft_values_get_list(all, i, &list));
        MUST(list.count == 1 && list.items[0].as.i64 == (int64_t)i);
    }
    weft_values_unref(all);
}

/* ---- Completing what is not one's own ------------------------------------------------------------------------- */

static void count_drop(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void must_refuse(weft_future *future)
{
    atomic_int drops = 0;
    weft_error *error = weft_error_create(WEFT_ERR_SHAPE, "not theirs");
    MUST_BE(weft_future_complete(future, &drops, count_drop), WEFT_ERR_STATE);
    MUST(atomic_load(&drops) == 1);
    MUST_BE(weft_future_fail(future, error), WEFT_ERR_STATE);
    MUST(!weft_future_done(future));
    weft_error_unref(error);
}

/* Cancelling is what the user can do; then the future is as over as any. */
static void must_end(weft_future *future, weft_status how)
{
    MUST_OK(weft_future_cancel(future));
    MUST_BE(weft_future_wait(future, 20000), how);
    MUST_BE(weft_future_complete(future, NULL, NULL), WEFT_ERR_COMPLETED);
    weft_future_unref(future);
}

static void futures_of_weft(weft_agent *agent)
{
    weft_rpc_options again = {.timeout_ms = 20000, .retry = {.attempts = 3}};
    weft_target both[] = {weft_to_rank(0), weft_to_rank(1)};
    weft_future *future;
    weft_rref *rref;
    for (int rank = 0; rank < 2; rank++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "long", WEFT_NO_VALUES, &none, &future));
        must_refuse(future);
        must_end(future, WEFT_ERR_CANCELLED);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "long", WEFT_NO_VALUES, &again, &future));
        must_refuse(future);
        must_end(future, WEFT_ERR_CANCELLED);
    }
    MUST_OK(weft_rpc_multicast(agent, both, 2, "long", WEFT_NO_VALUES, &none, &future));
    must_refuse(future);
    must_end(future, WEFT_OK);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "held", WEFT_NO_VALUES, &none, &rref));
    future = weft_rref_created(rref);
    must_refuse(future);
    must_end(future, WEFT_ERR_CANCELLED);
    atomic_store(&shared.released, true);
    weft_rref_unref(rref);
}

/* ---- NULL ----------------------------------------------------------------------------------------------------- */

static void nobody_listens(weft_agent *agent)
{
    int before = atomic_load(&shared.ran);
    weft_target both[] = {weft_to_rank(0), weft_to_rank(1)};
    for (int rank = 0; rank < 2; rank++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "count", WEFT_NO_VALUES, &none, NULL));
    MUST_OK(weft_rpc_multicast(agent, both, 2, "count", WEFT_NO_VALUES, &none, NULL));
    while (atomic_load(&shared.ran) < before + 4) /* they run all the same */
        world_sleep_ms(shared.w, 1);
}

static void outs_at_null(weft_agent *agent)
{
    weft_error *error = NULL;
    weft_rref *rref;
    weft_values *values;
    weft_future *future;
    MUST_BE(
        weft_rpc_remote(agent, weft_to_rank(1), "count", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
        WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "out is NULL");
    MUST_BE(weft_rpc_async(NULL, weft_to_rank(1), "count", WEFT_NO_VALUES, NULL, &future), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_sync(NULL, weft_to_rank(1), "count", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_multicast(NULL, NULL, 0, "count", WEFT_NO_VALUES, NULL, &future), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_remote(NULL, weft_to_rank(1), "count", WEFT_NO_VALUES, NULL, &rref), WEFT_ERR_INVALID);
    MUST_OK(weft_rref_create(agent, weft_of_i64(1), &rref, NULL));
    MUST_BE(weft_rref_to_here(rref, 100, NULL, &error), WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "out is NULL");
    MUST_BE(weft_rref_to_here_async(rref, 100, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_rref_to_here(NULL, 100, &values, &error), WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "the handle is NULL");
    MUST_BE(weft_rref_rpc_sync(NULL, "count", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_INVALID);
    error = NULL;
    MUST_BE(weft_rref_rpc_sync(rref, "count", (weft_args){NULL, 3}, &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "3 values at NULL");
    weft_rref_unref(rref);
    weft_stats stats = {.calls_started = 1};
    weft_agent_stats(NULL, &stats);
    weft_agent_stats(agent, NULL);
    MUST(stats.calls_started == 0);
    MUST_BE(weft_debug_dump(NULL, stderr), WEFT_ERR_INVALID);
    MUST_BE(weft_debug_dump(agent, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_group_barrier(NULL, 100), WEFT_ERR_INVALID);
    MUST_BE(weft_group_barrier_async(shared.groups[0], 100, NULL), WEFT_ERR_INVALID);
}

static void lists_at_null(weft_agent *agent)
{
    weft_values *values = NULL, *good;
    weft_rref *rref;
    weft_value at_null = weft_of_list((weft_args){NULL, 3}), tensors = weft_of_tensors((weft_tensors){NULL, 2}),
               deep[WEFT_MAX_LIST_DEPTH + 1];
    deep[0] = tensors;
    for (size_t i = 1; i <= WEFT_MAX_LIST_DEPTH; i++)
        deep[i] = weft_of_list((weft_args){&deep[i - 1], 1});
    MUST_BE(weft_values_create((weft_args){NULL, 3}, &values, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_values_create(WEFT_VALUES(weft_of_null(), at_null), &values, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_values_create(WEFT_VALUES(tensors), &values, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_values_create(WEFT_VALUES(weft_of_tensor(NULL)), &values, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_values_create((weft_args){&deep[WEFT_MAX_LIST_DEPTH], 1}, &values, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_values_create(WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_INVALID);
    MUST(!values);
    MUST_OK(weft_values_create(WEFT_NO_VALUES, &good, NULL));
    MUST_BE(weft_values_add(good, at_null), WEFT_ERR_INVALID);
    MUST_BE(weft_values_add(good, tensors), WEFT_ERR_INVALID);
    MUST(weft_values_count(good) == 0);
    weft_values_unref(good);
    MUST_BE(weft_rref_create(agent, tensors, &rref, NULL), WEFT_ERR_INVALID);
    for (int rank = 0; rank < 2; rank++)
        MUST_BE(
            weft_rpc_sync(agent, weft_to_rank(rank), "count", (weft_args){&deep[WEFT_MAX_LIST_DEPTH], 1}, &none, NULL),
            WEFT_ERR_INVALID);
}

static void parts_unheard(const weft_values *part, void *arg)
{
    MUST(false); /* none can be sent */
}

static void parts_at_null(weft_agent *agent)
{
    for (int rank = 0; rank < 2; rank++) {
        weft_rpc_options options = {.timeout_ms = 20000, .on_item = parts_unheard};
        atomic_store(&shared.part, 0);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "part at null", WEFT_NO_VALUES, &options, NULL));
        MUST_BE((weft_status)atomic_load(&shared.part), WEFT_ERR_INVALID);
    }
}

/* On the first member and on another; then the next operation matches. */
static void gather_at_null(weft_agent *agent)
{
    weft_group *group = shared.groups[weft_agent_rank(agent)];
    weft_values *values;
    MUST_BE(weft_group_allgather_values(group, (weft_args){NULL, 2}, 20000, &values), WEFT_ERR_INVALID);
    MUST_BE(weft_group_allgather_values(group, endless, 20000, &values), WEFT_ERR_TOO_LARGE); /* at each member */
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
}

/* ---- What the errors say -------------------------------------------------------------------------------------- */

static void must_fail(weft_agent *agent, weft_target to, const char *function, weft_args arguments, weft_status code,
                      const char *words)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = 20000, .error = &error};
    MUST_BE(weft_rpc_sync(agent, to, function, arguments, &options, NULL), code);
    must_say(error, code, words);
}

static void results_at_fault(weft_agent *agent)
{
    for (int rank = 0; rank < 2; rank++) {
        weft_target to = weft_to_rank(rank);
        must_fail(agent, to, "give at null", WEFT_NO_VALUES, WEFT_ERR_REMOTE, "result: 3 values at NULL");
        must_fail(agent, to, "give null", WEFT_NO_VALUES, WEFT_ERR_REMOTE, "result 1 is a NULL tensor");
        must_fail(agent, to, "give many", WEFT_NO_VALUES, WEFT_ERR_REMOTE, "2000 values where a list may have 1024");
        must_fail(agent, to, "give endless", WEFT_NO_VALUES, WEFT_ERR_REMOTE,
                  "18446744073709551615 values where a list may have 1024");
    }
    must_fail(agent, weft_to_rank(1), "give large", WEFT_NO_VALUES, WEFT_ERR_TOO_LARGE,
              "where a call carries 67108864");
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "give large", WEFT_NO_VALUES, &none, NULL)); /* no message */
}

static void arguments_over_limits(weft_agent *agent)
{
    size_t count = WEFT_MAX_CALL_TENSORS / 2 + 1;
    weft_tensor *one = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_UINT8, 1), **many = malloc(count * sizeof(*many));
    void *bytes = calloc(1, TOO_MANY_BYTES);
    MUST(many && bytes);
    for (size_t i = 0; i < count; i++)
        many[i] = one;
    weft_value half = weft_of_tensors((weft_tensors){many, count});
    must_fail(agent, weft_to_rank(1), "count", WEFT_VALUES(half, half), WEFT_ERR_TOO_LARGE,
              "65538 tensors, where a call carries 65536");
    must_fail(agent, weft_to_rank(1), "count", WEFT_VALUES(weft_of_bytes(bytes, TOO_MANY_BYTES)), WEFT_ERR_TOO_LARGE,
              "bytes beside tensors");
    free(bytes);
    free(many);
    weft_tensor_unref(one);
}

/* Calls on the owner of a reference, with `count` arguments. */
static void must_fail_on_owner(weft_rref *rref, weft_args arguments, const char *words)
{
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = 20000, .error = &error};
    weft_future *future;
    weft_rref *made;
    MUST_BE(weft_rref_rpc_sync(rref, "count", arguments, &options, NULL), WEFT_ERR_TOO_LARGE);
    must_say(error, WEFT_ERR_TOO_LARGE, words);
    MUST_BE(weft_rref_rpc_async(rref, "count", arguments, &options, &future), WEFT_ERR_TOO_LARGE);
    must_say(error, WEFT_ERR_TOO_LARGE, words);
    MUST_BE(weft_rref_rpc_remote(rref, "count", arguments, &options, &made), WEFT_ERR_TOO_LARGE);
    must_say(error, WEFT_ERR_TOO_LARGE, words);
}

/* Counts are checked before anything is read or allocated by them. */
static void counts_over_all_memory(weft_agent *agent)
{
    static const char too_many[] = "18446744073709551615 values where a list may have 1024",
                      too_many_tensors[] = "18446744073709551615 tensors where a call may have 65536";
    weft_tensor *one = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_UINT8, 1);
    weft_value tensors = weft_of_tensors((weft_tensors){&one, SIZE_MAX}), full[WEFT_MAX_VALUES];
    weft_error *error = NULL;
    weft_future *future;
    weft_rref *rref;
    for (int rank = 0; rank < 2; rank++) {
        weft_target to = weft_to_rank(rank);
        weft_rpc_options options = {.timeout_ms = 20000, .error = &error, .land = {&one, SIZE_MAX}};
        must_fail(agent, to, "count", endless, WEFT_ERR_TOO_LARGE, too_many);
        must_fail(agent, to, "count", WEFT_VALUES(weft_of_list(endless)), WEFT_ERR_TOO_LARGE, too_many);
        must_fail(agent, to, "count", WEFT_VALUES(tensors, tensors), WEFT_ERR_TOO_LARGE, too_many_tensors);
        must_fail(agent, to, "count", WEFT_VALUES(weft_of_bytes("x", SIZE_MAX)), WEFT_ERR_TOO_LARGE,
                  "argument 0 has 18446744073709551615 bytes");
        MUST_BE(weft_rpc_async(agent, to, "count", WEFT_NO_VALUES, &options, &future), WEFT_ERR_TOO_LARGE);
        must_say(error, WEFT_ERR_TOO_LARGE, too_many_tensors);
    }
    weft_target to = weft_to_rank(1);
    weft_rpc_options again = {.timeout_ms = 20000, .retry.attempts = 2, .error = &error};
    MUST_BE(weft_rpc_async(agent, to, "count", endless, &again, &future), WEFT_ERR_TOO_LARGE);
    must_say(error, WEFT_ERR_TOO_LARGE, too_many);
    MUST_BE(weft_rpc_multicast(agent, &to, 1, "count", endless, &again, &future), WEFT_ERR_TOO_LARGE);
    must_say(error, WEFT_ERR_TOO_LARGE, too_many);
    MUST_BE(weft_rref_create(agent, tensors, &rref, NULL), WEFT_ERR_TOO_LARGE);
    MUST_BE(weft_rref_create(agent, weft_of_list(endless), &rref, NULL), WEFT_ERR_TOO_LARGE);
    MUST_OK(weft_rref_create(agent, weft_of_null(), &rref, NULL));
    for (size_t i = 0; i < WEFT_MAX_VALUES; i++)
        full[i] = weft_of_null();
    must_fail_on_owner(rref, endless, too_many);
    must_fail_on_owner(rref, (weft_args){full, SIZE_MAX / sizeof(*full)}, "values where a list may have 1024");
    must_fail_on_owner(rref, (weft_args){full, WEFT_MAX_VALUES}, "1025 values where a list may have 1024");
    weft_rref_unref(rref);
    weft_tensor_unref(one);
}

/* The array of futures is allocated by the caller's count. */
static void multicast_over_all_memory(weft_agent *agent)
{
    const weft_target to = weft_to_rank(1);
    for (size_t count = SIZE_MAX; count > SIZE_MAX - 3; count--) {
        weft_error *error = NULL;
        weft_future *future;
        weft_rpc_options options = {.error = &error};
        MUST_BE(weft_rpc_multicast(agent, &to, count, "count", WEFT_NO_VALUES, &options, &future), WEFT_ERR_MEMORY);
        must_say(error, WEFT_ERR_MEMORY, "out of memory");
    }
}

static void targets_at_fault(weft_agent *agent)
{
    weft_error *error = NULL;
    weft_future *future;
    MUST_BE(weft_rpc_multicast(agent, NULL, 3, "count", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, &future),
            WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "3 targets at NULL");
    for (int rank = 0; rank < 2; rank++)
        must_fail(agent, weft_to_worker((weft_worker){rank, 99}), "count", WEFT_NO_VALUES, WEFT_ERR_UNREACHABLE,
                  "incarnation 99 of rank");
}

/* Calls that cannot be started: the error says which field or value is at fault. */
static void calls_at_fault(weft_agent *agent)
{
    static weft_value many[WEFT_MAX_VALUES + 1]; /* nulls */
    static char long_name[200];
    weft_tensor *base = tensor_full(WEFT_SHAPE(3, 4), WEFT_DTYPE_FLOAT32, 1), *across = tensor_transpose(base, 0, 1),
                *nothing = NULL;
    weft_value strange = {.type = (weft_type)99};
    const struct {
        const char *function;
        weft_args arguments;
        weft_rpc_options options;
        weft_status status;
        const char *words;
    } bad[] = {
        {"count", WEFT_NO_VALUES, {.timeout_ms = -3}, WEFT_ERR_INVALID, "timeout_ms is -3"},
        {"count", WEFT_NO_VALUES, {.retry.attempts = -1}, WEFT_ERR_INVALID, "attempts -1"},
        {"count", WEFT_NO_VALUES, {.land = {NULL, 2}}, WEFT_ERR_INVALID, "2 tensors at NULL"},
        {"count", WEFT_NO_VALUES, {.land = {&across, 1}}, WEFT_ERR_INVALID, "not contiguous"},
        {"", WEFT_NO_VALUES, {0}, WEFT_ERR_INVALID, "0 bytes"},
        {long_name, WEFT_NO_VALUES, {0}, WEFT_ERR_INVALID, "199 bytes"},
        {"count", {NULL, 3}, {0}, WEFT_ERR_INVALID, "3 values at NULL"},
        {"count", {many, WEFT_MAX_VALUES + 1}, {0}, WEFT_ERR_TOO_LARGE, "1025 values"},
        {"count",
         WEFT_VALUES(weft_of_i64(1), weft_of_tensor(NULL)),
         {0},
         WEFT_ERR_INVALID,
         "argument 1 is a NULL tensor"},
        {"count",
         WEFT_VALUES(weft_of_list(WEFT_VALUES(weft_of_rref(NULL)))),
         {0},
         WEFT_ERR_INVALID,
         "argument 0.0 is a NULL reference"},
        {"count", WEFT_VALUES(weft_of_tensors((weft_tensors){&nothing, 1})), {0}, WEFT_ERR_INVALID, "tensor 0 is NULL"},
        {"count", {&strange, 1}, {0}, WEFT_ERR_INVALID, "type 99"},
    };
    weft_error *error = NULL;
    weft_future *future;
    weft_rref *rref;
    weft_stats before, after;
    memset(long_name, 'x', sizeof(long_name) - 1);
    for (size_t i = 0; i <= WEFT_MAX_VALUES; i++)
        many[i] = weft_of_null();
    weft_agent_stats(agent, &before);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        weft_rpc_options options = bad[i].options;
        options.error = &error;
        MUST_BE(weft_rpc_async(agent, weft_to_rank(1), bad[i].function, bad[i].arguments, &options, &future),
                bad[i].status);
        MUST(error && weft_error_worker(error) == -1);
        must_say(error, bad[i].status, bad[i].words);
    }
    weft_rpc_options lands = {.land = {&base, 1}, .error = &error};
    MUST_BE(weft_rpc_remote(agent, weft_to_rank(1), "count", WEFT_NO_VALUES, &lands, &rref), WEFT_ERR_INVALID);
    must_say(error, WEFT_ERR_INVALID, "land: the result of weft_rpc_remote");
    MUST_BE(weft_agent_set_call_timeout(agent, -7), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register(agent, &(weft_function){.name = "weft:mine", .run = run_count}), WEFT_ERR_INVALID);
    weft_agent_stats(agent, &after);
    MUST(after.calls_started == before.calls_started && after.bytes_held == before.bytes_held);
    weft_tensor_unref(across);
    weft_tensor_unref(base);
}

/* ---- What is no status ----------------------------------------------------------------------------------------- */

static weft_status continue_oddly(weft_future *parent, weft_future *child, void *arg)
{
    return (weft_status)5;
}

static void what_is_no_status(weft_agent *agent)
{
    weft_future *future;
    for (int rank = 0; rank < 2; rank++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(rank), "seven", WEFT_NO_VALUES, NULL, &future));
        MUST_BE(weft_future_wait(future, 10000), WEFT_ERR_REMOTE);
        MUST_BE(weft_error_handler_code(weft_future_error(future)), WEFT_ERR_INVALID);
        weft_future *child = weft_future_then(future, continue_oddly, NULL, NULL);
        MUST_BE(weft_future_wait(child, 10000), WEFT_ERR_INVALID);
        weft_future_unref(child);
        weft_future_unref(future);
    }
}

/* ---- Together ------------------------------------------------------------------------------------------------- */

static void what_cannot_be(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &shared.groups[rank], NULL));
    inline_waits(agent);
    if (rank == 0) {
        futures_of_weft(agent);
        nobody_listens(agent);
        outs_at_null(agent);
        lists_at_null(agent);
        parts_at_null(agent);
        results_at_fault(agent);
        arguments_over_limits(agent);
        counts_over_all_memory(agent);
        multicast_over_all_memory(agent);
        targets_at_fault(agent);
        calls_at_fault(agent);
        what_is_no_status(agent);
    }
    gather_at_null(agent);
    weft_group_close(shared.groups[rank]);
}

static void begin(world *w)
{
    shared = (struct shared){.w = w};
}

#define SCENE .size = 2, WORLD_FUNCTIONS(functions), .begin = begin
WORLD_TEST(what_cannot_be, 1, 1, SCENE)

/* ---- A queue without room ------------------------------------------------------------------------------------- */

static void small_queue(weft_agent_options *options, void *arg)
{
    if (options->rank == 0)
        options->queue_limit_bytes = 128;
}

static void find_no_room(weft_agent *agent, void *arg)
{
    static const char bytes[16384]; /* a copy is kept until the call ends */
    weft_args large = WEFT_VALUES(weft_of_bytes(bytes, sizeof(bytes)));
    weft_error *error = NULL;
    weft_future *first, *future;
    weft_rpc_options options = {.timeout_ms = 20, .error = &error};
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "long", large, &none, &first)); /* one may exceed the limit */
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), "count", large, &options, &future), WEFT_ERR_AGAIN);
    must_say(error, WEFT_ERR_AGAIN, "queue_limit_bytes = 128 wait there; wait_for_room waits");
    error = NULL;
    options.wait_for_room = true;
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), "count", large, &options, &future), WEFT_ERR_TIMEOUT);
    must_say(error, WEFT_ERR_TIMEOUT, "no room in the queue to rank 1 within the time limit");
    MUST(atomic_load(&shared.ran) == 0);
    must_end(first, WEFT_ERR_CANCELLED);
}

/* The only worker waits for room; whoever calls meanwhile is answered by another one in its place. */
static weft_status run_wait_for_room(weft_call *call, void *user)
{
    static const char bytes[16384];
    weft_args large = WEFT_VALUES(weft_of_bytes(bytes, sizeof(bytes)));
    weft_agent *agent = weft_call_agent(call);
    weft_rpc_options options = {.timeout_ms = 20000, .wait_for_room = true};
    weft_future *first, *future;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "long", large, &none, &first));
    atomic_store(&shared.held, first);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "count", large, &options, &future));
    MUST_OK(weft_future_wait(future, 20000));
    weft_future_unref(future);
    weft_future_unref(first);
    return WEFT_OK;
}

/* On rank 0, for rank 1: makes the room. */
static weft_status run_make_room(weft_call *call, void *user)
{
    return weft_future_cancel(atomic_load(&shared.held));
}

static void one_worker(weft_agent_options *options, void *arg)
{
    small_queue(options, arg);
    options->threads = 1;
}

static void wait_for_room(weft_agent *agent, void *arg)
{
    weft_future *future;
    if (weft_agent_rank(agent) != 1)
        return;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "wait for room", WEFT_NO_VALUES, &none, &future));
    while (!atomic_load(&shared.held))
        world_sleep_ms(shared.w, 1);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "make room", WEFT_NO_VALUES, &none, NULL));
    MUST_OK(weft_future_wait(future, 20000));
    weft_future_unref(future);
}

WORLD_TEST(wait_for_room, 1, 1, SCENE, .adjust = one_worker)

WORLD_TEST(find_no_room, 1, 1, SCENE, .adjust = small_queue)

UNIT_MAIN(test_what_cannot_be, test_find_no_room, test_wait_for_room)
