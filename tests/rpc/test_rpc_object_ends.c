/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_object_ends.c - objects of the user's own types at the ends that are not graceful: their agent stops,
 * their creator dies before its call has arrived, the making is cancelled while the object is being given. Each
 * object is dropped, once.
 */
#include "rpc/rref_counts.h"

static world *now;
static atomic_int made, dropped, ready;
static _Atomic(weft_call *) held;
static _Atomic(weft_rref *) kept[2];

static void drop_thing(void *object)
{
    atomic_fetch_add(&dropped, 1);
    free(object);
}

static const weft_object_type thing_type = {.name = "thing", .drop = drop_thing};

static void *new_thing(void)
{
    atomic_fetch_add(&made, 1);
    void *thing = malloc(16);
    MUST(thing);
    return thing;
}

static weft_status run_new(weft_call *call, void *user)
{
    weft_call_give_object(call, &thing_type, new_thing());
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_store(&held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

/* Keeps the reference that it is given. */
static weft_status run_keep(weft_call *call, void *user)
{
    atomic_store(&kept[1], weft_rref_ref(weft_call_rref(call, 0)));
    return WEFT_OK;
}

/* Has an object made by its caller, for as long as it is wanted itself. */
static weft_status run_outer(weft_call *call, void *user)
{
    weft_rref *rref;
    weft_rpc_options options = {.parent = call, .timeout_ms = WEFT_FOREVER};
    weft_status status =
        weft_rpc_remote(weft_call_agent(call), weft_to_rank(0), "hold", WEFT_NO_VALUES, &options, &rref);
    if (status)
        return status;
    weft_future *there = weft_rref_created(rref);
    status = weft_future_wait(there, WEFT_FOREVER);
    weft_future_unref(there);
    weft_rref_unref(rref);
    return status;
}

static weft_status run_new_waiting(weft_call *call, void *user);

static weft_function functions[7] = {
    {.name = "new", .gives = {WEFT_TYPE_ANY}, .run = run_new},
    {.name = "hold", .gives = {WEFT_TYPE_ANY}, .run = run_hold},
    {.name = "keep", .takes = {WEFT_TYPE_RREF}, .run = run_keep},
    {.name = "outer", .run = run_outer},
    {.name = "new waiting", .gives = {WEFT_TYPE_ANY}, .run = run_new_waiting},
};

static _Atomic(weft_status) answer;

static void begin(world *w)
{
    now = w;
    atomic_store(&made, 0);
    atomic_store(&dropped, 0);
    atomic_store(&ready, 0);
    atomic_store(&answer, WEFT_OK);
}

#define SCENE .functions = functions, .function_count = 7, .begin = begin

static weft_call *await_held(void)
{
    for (int i = 0; i < 20000 && !atomic_load(&held); i++)
        world_sleep_ms(now, 1);
    MUST(atomic_load(&held));
    return atomic_exchange(&held, NULL);
}

static void await_all_dropped(void)
{
    for (int i = 0; i < 20000 && atomic_load(&dropped) != atomic_load(&made); i++)
        world_sleep_ms(now, 1);
    MUST(atomic_load(&dropped) == atomic_load(&made));
}

/* ---- The agent stops ------------------------------------------------------------------------------------------ */

/* Objects of rank 0's own and on rank 1, both known on the other side as well, and one that is being made there. */
static void stop_with_objects(weft_agent *agent, void *arg)
{
    weft_rref *mine, *theirs, *never;
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rref_create_typed(agent, &thing_type, new_thing(), &mine, NULL));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "keep", WEFT_VALUES(weft_of_rref(mine)), NULL, NULL));
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "new", WEFT_NO_VALUES, NULL, &theirs));
        weft_future *there = weft_rref_created(theirs);
        MUST_OK(weft_future_wait(there, 20000));
        weft_future_unref(there);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &never));
        while (!atomic_load(&held))
            world_sleep_ms(now, 1);
        weft_rref_unref(never);
        weft_rref_unref(mine);
        atomic_store(&kept[0], theirs);
        MUST(atomic_load(&dropped) == 0);
        atomic_store(&ready, 1);
    }
    while (!atomic_load(&ready))
        world_sleep_ms(now, 1);
}

static void finish_what_is_held(world *w)
{
    assert_int_equal(atomic_load(&made), 2);
    assert_int_equal(atomic_load(&dropped), 2); /* handles outlive the agents, objects do not */
    weft_call *late = atomic_exchange(&held, NULL);
    weft_call_give_object(late, &thing_type, new_thing());
    weft_call_finish(late, WEFT_OK);
    assert_int_equal(atomic_load(&dropped), 3);
    for (int i = 0; i < 2; i++)
        weft_rref_unref(atomic_exchange(&kept[i], NULL));
    assert_int_equal(atomic_load(&dropped), 3);
}

WORLD_TEST(stop_with_objects, 10, 1, SCENE, .size = 2, .stop = true, .end = finish_what_is_held)

/* ---- A destructor that uses the library, at the end ----------------------------------------------------------- */

static weft_agent *asked;

static void drop_and_ask(void *object)
{
    weft_stats stats;
    weft_future *future = NULL;
    weft_agent_stats(asked, &stats);
    atomic_store(&answer, weft_rpc_async(asked, weft_to_rank(1), "new", WEFT_NO_VALUES, NULL, &future));
    weft_future_unref(future);
    drop_thing(object);
}

/* Rank 1 never lets go: rank 0's agent ends with the object, while the destructor may still call it. */
static void close_with_an_object(weft_agent *agent, void *arg)
{
    weft_rref *mine;
    if (weft_agent_rank(agent) != 0)
        return;
    asked = agent;
    MUST_OK(weft_rref_create_object(agent, new_thing(), drop_and_ask, &mine, NULL));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "keep", WEFT_VALUES(weft_of_rref(mine)), NULL, NULL));
    weft_rref_unref(mine);
}

static void whoever_went_first(world *w)
{
    assert_int_equal(atomic_load(&dropped), 1);
    weft_status status = atomic_load(&answer);
    assert_true(status == WEFT_ERR_CLOSED || status == WEFT_ERR_PEER_LEFT);
    weft_rref_unref(atomic_exchange(&kept[1], NULL));
}

WORLD_TEST(close_with_an_object, 5, 1, SCENE, .size = 2, .end = whoever_went_first)

/* ---- A destructor that waits ---------------------------------------------------------------------------------- */

/* Rank 1 lets go: on rank 0 that is news from the network, and the thread that reads it has nobody to wait for. */
static void drop_and_wait(void *object)
{
    atomic_store(&answer, weft_rpc_sync(asked, weft_to_rank(1), "no such function", WEFT_NO_VALUES, NULL, NULL));
    drop_thing(object);
}

static const weft_object_type waiting_type = {.name = "waiting thing", .drop = drop_and_wait};

static weft_status run_new_waiting(weft_call *call, void *user)
{
    asked = weft_call_agent(call);
    weft_call_give_object(call, &waiting_type, new_thing());
    return WEFT_OK;
}

static void let_go(weft_agent *agent, void *arg)
{
    weft_rref *theirs;
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), "new waiting", WEFT_NO_VALUES, NULL, &theirs));
        weft_future *there = weft_rref_created(theirs);
        MUST_OK(weft_future_wait(there, 20000));
        weft_future_unref(there);
        weft_rref_unref(theirs);
    }
    while (!atomic_load(&made))
        world_sleep_ms(now, 1);
    await_all_dropped();
}

static void refused_or_answered(world *w) /* it does not hang */
{
    weft_status status = atomic_load(&answer);
    assert_true(status == WEFT_ERR_DEADLOCK || status == WEFT_ERR_NOT_FOUND);
}

WORLD_TEST(let_go, 5, 1, SCENE, .size = 2, .end = refused_or_answered)

/* ---- The creator dies before its call has arrived ------------------------------------------------------------- */

enum { USER, OWNER, CREATOR };

static void short_bound(weft_agent_options *options, void *arg)
{
    options->death_timeout_ms = 500;
}

/* It tells the user of an object whose making it has asked for, on a link that is cut; then it is killed. */
static void create_and_die(weft_agent *agent)
{
    weft_rref *rref;
    weft_future *future;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(USER), "number", WEFT_VALUES(weft_of_string("value_count")), NULL, NULL));
    weft_sim_cut(now->sim, OWNER, CREATOR);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(OWNER), "new", WEFT_NO_VALUES, NULL, &rref));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(USER), "keep", WEFT_VALUES(weft_of_rref(rref)), NULL, &future));
    world_sleep_ms(now, 50); /* the user has it, and has asked the owner */
    atomic_store(&ready, 1);
    weft_sim_kill(now->sim, CREATOR);
}

static void creator_dies(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == CREATOR)
        create_and_die(agent);
    while (weft_agent_alive(agent, CREATOR))
        world_sleep_ms(now, 1);
    weft_sim_heal(now->sim, OWNER, CREATOR);
    world_sleep_ms(now, 2000); /* what could still arrive has arrived */
    if (weft_agent_rank(agent) == USER) {
        weft_rref *orphan =
            atomic_exchange(&kept[1], NULL); /* the owner knows of it; that it will never be made as well */
        if (orphan) {
            weft_values *none;
            weft_status status = weft_rref_to_here(orphan, WEFT_FOREVER, &none, NULL);
            MUST(status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_REMOTE);
            weft_rref_unref(orphan);
        }
        static const char *const empty[] = {"value_count", "reference_count", "unconfirmed_count", "serving_count"};
        for (size_t i = 0; i < sizeof(empty) / sizeof(*empty); i++)
            await_number(now, agent, USER, empty[i], 0);
        await_number(now, agent, OWNER, "value_count", 0);
        weft_rref *rref; /* and such objects are made as ever */
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(OWNER), "new", WEFT_NO_VALUES, NULL, &rref));
        weft_rref_unref(rref);
        atomic_store(&ready, 2);
    }
    while (atomic_load(&ready) < 2)
        world_sleep_ms(now, 1);
    await_all_dropped();
}

static void one_was_made(world *w)
{
    assert_int_equal(atomic_load(&made), 1);
}

WORLD_TEST(creator_dies, 20, 0, SCENE, .size = 3, .adjust = short_bound, .end = one_was_made)

/* ---- Cancelled while the object is being given ---------------------------------------------------------------- */

/* The cancelling goes from rank 0 by rank 1 back to rank 0, where the object is given meanwhile: sooner each time,
 * then later. */
static void cancel_and_give(weft_agent *agent, void *arg)
{
    enum { ROUNDS = 60 };
    for (int i = 0; weft_agent_rank(agent) == 0 && i < ROUNDS; i++) {
        weft_future *future;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "outer", WEFT_NO_VALUES, NULL, &future));
        weft_call *call = await_held();
        if (i % 2)
            weft_call_give_object(call, &thing_type, new_thing());
        MUST_OK(weft_future_cancel(future));
        if (now->sim)
            weft_sim_sleep(now->sim, (uint64_t)i * 2000);
        else
            for (uint64_t until = weft_agent_now_ns(agent) + (uint64_t)i * 4000; weft_agent_now_ns(agent) < until;)
                continue;
        if (i % 2 == 0)
            weft_call_give_object(call, &thing_type, new_thing());
        weft_call_finish(call, WEFT_OK);
        MUST_BE(weft_future_wait(future, 20000), WEFT_ERR_CANCELLED);
        weft_future_unref(future);
        await_all_dropped();
        MUST(atomic_load(&made) == i + 1);
    }
    if (weft_agent_rank(agent) == 0)
        for (int rank = 0; rank < 2; rank++)
            await_number(now, agent, rank, "value_count", 0);
}

WORLD_TEST(cancel_and_give, 10, 1, SCENE, .size = 2)

int main(void)
{
    functions[5] = count_functions[0];
    functions[6] = count_functions[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_with_objects),
        cmocka_unit_test(test_close_with_an_object),
        cmocka_unit_test(test_let_go),
        cmocka_unit_test(test_creator_dies),
        cmocka_unit_test(test_cancel_and_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
