/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_rref.c - remote references: made here and there, passed on, read, counted, and what deaths do to them. */
#include "rpc/rref_functions.h"

static weft_rref *make(weft_agent *agent, int rank, const char *function, weft_args args)
{
    weft_rref *rref;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), function, args, NULL, &rref));
    return rref;
}

static void tell(weft_agent *agent, int rank, const char *function, weft_args args)
{
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), function, args, NULL, NULL));
}

static int other(weft_agent *agent)
{
    return (weft_agent_rank(agent) + 1) % weft_agent_world_size(agent);
}

static void count_drop(void *object)
{
    atomic_fetch_add(&shared.drops, 1);
}

static void await_drops(int count)
{
    for (int i = 0; i < 2000 && atomic_load(&shared.drops) != count; i++)
        world_sleep_ms(shared.w, 1);
    MUST(atomic_load(&shared.drops) == count);
}

/* ---- At home --------------------------------------------------------------------------------------------------- */

static void values_at_home(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_value value;
    void *object;
    int64_t n;
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &rref, NULL));
    MUST(weft_rref_owner(rref) == weft_agent_rank(agent) && weft_rref_is_owner(rref) && weft_rref_confirmed(rref));
    MUST_OK(weft_rref_local_value(rref, 0, &value));
    MUST(value.type == WEFT_TYPE_I64 && value.as.i64 == 5);
    MUST_BE(weft_rref_local_object(rref, &object), WEFT_ERR_TYPE);
    MUST_OK(read_i64(rref, 0, &n));
    MUST(n == 5);
    weft_rref_unref(rref);
    rref = make(agent, 0, "double", WEFT_VALUES(weft_of_i64(21)));
    MUST_OK(weft_rref_local_value(rref, 1000, &value));
    MUST(value.as.i64 == 42);
    weft_rref_unref(rref);
    MUST_BE(weft_rref_create(agent, weft_of_tensor(NULL), &rref, NULL), WEFT_ERR_INVALID);
}

static void objects_drop_once(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_value value;
    weft_values *values;
    void *object;
    int thing;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create_object(agent, &thing, count_drop, &rref, NULL));
    MUST_OK(weft_rref_local_object(rref, &object));
    MUST(object == &thing);
    MUST_BE(weft_rref_local_value(rref, 0, &value), WEFT_ERR_TYPE);
    MUST_BE(weft_rref_to_here(rref, 0, &values, NULL), WEFT_ERR_TYPE);
    weft_rref_ref(rref);
    weft_rref_unref(rref);
    MUST(atomic_load(&shared.drops) == 0);
    weft_rref_unref(rref);
    await_drops(1);
}

/* ---- Elsewhere ------------------------------------------------------------------------------------------------- */

/* What says that a handle was dropped goes ahead of the calls that wait; the questions are behind them. */
static void dropped_while_asked(weft_agent *agent, void *arg)
{
    enum { MANY = 300 };
    weft_future *before[MANY], *asked, *made;
    int64_t n;
    weft_rref *rref = make(agent, other(agent), "double", WEFT_VALUES(weft_of_i64(21)));
    MUST_OK(read_i64(rref, 0, &n));
    for (int i = 0; i < MANY; i++)
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(other(agent)), "double", WEFT_VALUES(weft_of_i64(i)), NULL, &before[i]));
    MUST_OK(weft_rref_to_here_async(rref, 0, &asked));
    made = weft_rref_created(rref);
    weft_rref_unref(rref);
    MUST_OK(weft_future_wait(asked, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(asked), 0, &n));
    MUST(n == 42);
    MUST_OK(weft_future_wait(made, WEFT_FOREVER));
    weft_future_unref(asked);
    weft_future_unref(made);
    for (int i = 0; i < MANY; i++) {
        MUST_OK(weft_future_wait(before[i], WEFT_FOREVER));
        weft_future_unref(before[i]);
    }
}

/* A failed making is told to those who got the reference from its maker. */
static void failures_pass_on(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_rref *rref = make(agent, 1, "fail", WEFT_NO_VALUES);
    weft_status status = weft_rpc_sync(agent, weft_to_rank(2), "read", WEFT_VALUES(weft_of_rref(rref)),
                                       &(weft_rpc_options){.error = &error}, NULL);
    MUST_BE(status, WEFT_ERR_REMOTE);
    weft_status inside =
        weft_error_handler_code(error); /* the reader's failure; where time is real, perhaps the maker's */
    MUST(inside == WEFT_ERR_REMOTE || (inside == WEFT_ERR_SHAPE && shared.w->fabric == WORLD_TCP));
    weft_error_unref(error);
    weft_rref_unref(rref);
}

static void must_carry_on(weft_status status, weft_error **error)
{
    MUST_BE(status, WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(*error), WEFT_ERR_SHAPE);
    MUST(strcmp(weft_error_function(*error), "read") == 0 && weft_error_worker(*error) == 1);
    MUST(strstr(weft_error_message(*error), "argument 0 is a reference to a value that was not made"));
    MUST(strstr(weft_error_message(*error), "fail: it would not be made"));
    weft_error_unref(*error);
    *error = NULL;
}

/* Its maker knows that it failed: every call that takes the reference along fails with that, and no handler runs. */
static void failures_are_carried_on(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    weft_rref *none;
    weft_future *all;
    const weft_rpc_options told = {.error = &error};
    const weft_target others[] = {weft_to_rank(0), weft_to_rank(2)};
    int64_t n;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_rref *rref = make(agent, 1, "fail", WEFT_NO_VALUES);
    weft_args args = WEFT_VALUES(weft_of_rref(rref));
    MUST_BE(read_i64(rref, 5000, &n), WEFT_ERR_REMOTE);
    weft_future *made = weft_rref_created(rref);
    MUST_BE(weft_future_wait(made, 5000), WEFT_ERR_REMOTE);
    for (int rank = 0; rank < 3; rank++) {
        must_carry_on(weft_rpc_sync(agent, weft_to_rank(rank), "read", args, &told, NULL), &error);
        must_carry_on(weft_rpc_remote(agent, weft_to_rank(rank), "read", args, &told, &none), &error);
    }
    must_carry_on(weft_rref_rpc_sync(rref, "read", WEFT_NO_VALUES, &told, NULL), &error);
    must_carry_on(weft_rref_rpc_remote(rref, "read", WEFT_NO_VALUES, &told, &none), &error);
    MUST_OK(weft_rpc_multicast(agent, others, 2, "read", args, NULL, &all));
    MUST_OK(weft_future_wait(all, 5000));
    weft_future *const *each = weft_future_payload(all);
    for (int i = 0; i < 2; i++) {
        error = weft_error_ref(weft_future_error(each[i]));
        must_carry_on(weft_error_code(error), &error);
    }
    weft_future_unref(all);
    weft_future_unref(made);
    weft_rref_unref(rref);
}

static void finish_held(weft_call *call)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
    weft_call_finish(call, WEFT_OK);
}

static void time_limits(weft_agent *agent, void *arg)
{
    weft_call *held;
    int64_t n;
    weft_rref *rref;
    if (weft_agent_rank(agent) != 0)
        return;
    for (int rank = 1; rank >= 0; rank--) {
        rref = make(agent, rank, "hold", WEFT_NO_VALUES);
        MUST_BE(read_i64(rref, 50, &n), WEFT_ERR_TIMEOUT);
        while (!(held = atomic_exchange(&shared.waiting, NULL)))
            world_sleep_ms(shared.w, 1);
        finish_held(held);
        MUST_OK(read_i64(rref, 30000, &n));
        weft_rref_unref(rref);
    }
    /* The making itself times out: the handle says so, and what is made too late goes. Where time is real the limit
     * may end before the handler begins, which then never does. */
    MUST_OK(
        weft_rpc_remote(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 30}, &rref));
    world_sleep_ms(shared.w, 100);
    MUST_BE(read_i64(rref, 1000, &n), WEFT_ERR_TIMEOUT);
    weft_rref_unref(rref);
    world_sleep_ms(shared.w, 20);
    held = atomic_exchange(&shared.waiting, NULL);
    MUST(held || shared.w->fabric == WORLD_TCP);
    if (held)
        finish_held(held);
}

/* ---- Passed on ------------------------------------------------------------------------------------------------- */

/* The object goes exactly when its last holder, wherever, lets go. */
static void last_handle(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create_object(agent, &shared, count_drop, &rref, NULL));
    tell(agent, 1, "keep", WEFT_VALUES(weft_of_rref(rref)));
    tell(agent, 2, "keep", WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    world_sleep_ms(shared.w, 20);
    MUST(atomic_load(&shared.drops) == 0);
    tell(agent, 1, "let go", WEFT_NO_VALUES);
    world_sleep_ms(shared.w, 20);
    MUST(atomic_load(&shared.drops) == 0);
    tell(agent, 2, "let go", WEFT_NO_VALUES);
    await_drops(1);
}

/* ---- Running them ---------------------------------------------------------------------------------------------- */

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

#define SCENE WORLD_FUNCTIONS(rref_functions), .begin = begin

WORLD_TEST(values_at_home, 1, 1, SCENE, .size = 1)
WORLD_TEST(objects_drop_once, 2, 1, SCENE, .size = 1)
WORLD_TEST(dropped_while_asked, 5, 1, SCENE, .size = 3)
WORLD_TEST(failures_pass_on, 40, 1, SCENE, .size = 3)
WORLD_TEST(failures_are_carried_on, 5, 1, SCENE, .size = 3)
WORLD_TEST(time_limits, 5, 1, SCENE, .size = 2)
WORLD_TEST(last_handle, 40, 1, SCENE, .size = 3)

/* ---- Deaths ---------------------------------------------------------------------------------------------------- */

static void users_death(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    if (weft_agent_rank(agent) == 2)
        world_sleep_ms(shared.w, 3600 * 1000); /* killed before it wakes */
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create_object(agent, &shared, count_drop, &rref, NULL));
    tell(agent, 2, "keep", WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    world_sleep_ms(shared.w, 20);
    MUST(atomic_load(&shared.drops) == 0);
    weft_sim_kill(shared.w->sim, 2);
    await_drops(1);
}

/* The maker dies while its value is being made: whoever got the reference is not left waiting. */
static void makers_death(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    if (rank == 2) {
        weft_rref *rref = make(agent, 1, "hold", WEFT_NO_VALUES);
        tell(agent, 0, "keep", WEFT_VALUES(weft_of_rref(rref)));
        world_sleep_ms(shared.w, 3600 * 1000);
    }
    if (rank != 0)
        return;
    while (!shared.kept[0] || !shared.waiting)
        world_sleep_ms(shared.w, 1);
    weft_future *future;
    int64_t n;
    MUST_OK(weft_rref_to_here_async(shared.kept[0], WEFT_FOREVER, &future));
    weft_sim_kill(shared.w->sim, 2);
    world_sleep_ms(shared.w, 5000);
    weft_call_give(shared.waiting, WEFT_VALUES(weft_of_i64(9))); /* of a dead caller: the value is made all the same */
    weft_call_finish(shared.waiting, WEFT_OK);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &n));
    MUST(n == 9);
    weft_future_unref(future);
    weft_rref_unref(shared.kept[0]);
}

WORLD_TEST(users_death, 10, 0, SCENE, .size = 3)
WORLD_TEST(makers_death, 10, 0, SCENE, .size = 3)

/* ---- After the end --------------------------------------------------------------------------------------------- */

static void keep_for_later(weft_agent *agent, void *arg)
{
    weft_rref **late = arg;
    while (weft_agent_rank(agent) != 0 && !atomic_load(&shared.done))
        world_sleep_ms(shared.w, 1);
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create(agent, weft_of_string("still here"), &late[0], NULL));
    MUST_OK(weft_rref_create_object(agent, &shared, count_drop, &late[1], NULL));
    late[2] = make(agent, 1, "double", WEFT_VALUES(weft_of_i64(1)));
    late[3] = make(agent, 0, "hold", WEFT_NO_VALUES); /* never made */
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), "hold", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 1},
                            &late[4]));
    world_sleep_ms(shared.w, 20);
    atomic_store(&shared.done, true);
}

static void use_after_close(world *w)
{
    weft_rref **late = w->arg;
    weft_value value;
    weft_values *values;
    void *object;
    MUST_OK(weft_rref_local_value(late[0], 0, &value));
    MUST(strcmp(value.as.bytes.data, "still here") == 0);
    MUST(atomic_load(&shared.drops) == 0);
    MUST_OK(weft_rref_local_object(late[1], &object));
    MUST_BE(weft_rref_to_here(late[2], 0, &values, NULL), WEFT_ERR_CLOSED);
    MUST(!weft_rref_confirmed(late[2]) && weft_rref_owner(late[2]) == 1);
    MUST_BE(weft_rref_local_value(late[3], WEFT_FOREVER, &value), WEFT_ERR_CLOSED);
    for (int i = 0; i < 5; i++)
        weft_rref_unref(late[i]);
    MUST(atomic_load(&shared.drops) == 1);
    weft_call_finish(shared.waiting, WEFT_OK); /* after their agent has gone */
    weft_call_finish(shared.waiting_first, WEFT_OK);
}

static void test_use_after_close(void **s)
{
    weft_rref *late[5];
    world_play(&(world){SCENE, .size = 2, .program = keep_for_later, .arg = late, .stop = true, .end = use_after_close},
               1, 1);
}

UNIT_MAIN(test_values_at_home, test_objects_drop_once, test_dropped_while_asked, test_failures_pass_on,
          test_failures_are_carried_on, test_time_limits, test_last_handle, test_users_death, test_makers_death,
          test_use_after_close)
