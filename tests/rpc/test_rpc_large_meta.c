/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_large_meta.c - calls and results of very many small values and references: they are decoded where nobody
 * else has to wait for it, whole, and may be given up meanwhile. The linker puts wfi_calloc below in the place of
 * the library's.
 */
#include "rpc/inside.h"
#include "rpc/rref_counts.h"

void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

enum {
    CALLER = 0,
    SERVER = 1,
    OWNER = 2,
    SIZE = 3,
    PER_LIST = 997, /* nobody else has lists of that length */
    LISTS = 100,
    NULLS = LISTS * PER_LIST,
    REFERENCES = 5 * PER_LIST
};

static world *scene;
static _Atomic(weft_agent *) server;
static atomic_int decoded, decoded_locked, dropped;

/* Each list of the arguments takes an array: whether the server's lock is free then, at least now and then. */
void *__wrap_wfi_calloc(size_t count, size_t size)
{
    weft_agent *agent = count == PER_LIST ? atomic_load(&server) : NULL;
    if (agent) {
        bool is_free = inside_try_lock(agent);
        if (is_free)
            inside_unlock(agent);
        atomic_fetch_add(&decoded, 1);
        atomic_fetch_add(&decoded_locked, !is_free);
    }
    return __real_wfi_calloc(count, size);
}

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static int64_t count_values(weft_args values, weft_type type)
{
    int64_t count = 0;
    for (size_t i = 0; i < values.count; i++)
        count += values.items[i].type == WEFT_TYPE_LIST ? count_values(values.items[i].as.list, type)
                                                        : values.items[i].type == type;
    return count;
}

static weft_status run_count(weft_call *call, void *user)
{
    int64_t nulls = count_values(weft_call_list(call, 0), WEFT_TYPE_NULL);
    weft_call_give(call,
                   WEFT_VALUES(weft_of_i64(nulls), weft_of_i64(count_values(weft_call_list(call, 0), WEFT_TYPE_RREF))));
    return WEFT_OK;
}

static weft_status run_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_list(weft_call_list(call, 0))));
    return WEFT_OK;
}

static void drop(void *object)
{
    atomic_fetch_add(&dropped, 1);
}

static weft_status run_offer(weft_call *call, void *user)
{
    weft_rref *rref;
    MUST_OK(weft_rref_create_object(weft_call_agent(call), &dropped, drop, &rref, NULL));
    weft_call_give(call, WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "count", .takes = {WEFT_TYPE_LIST}, .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = run_count},
    {.name = "echo", .takes = {WEFT_TYPE_LIST}, .gives = {WEFT_TYPE_LIST}, .run = run_echo},
    {.name = "offer", .gives = {WEFT_TYPE_RREF}, .run = run_offer},
};

static void begin(world *w)
{
    scene = w;
    decoded = decoded_locked = dropped = 0;
}

#define SCENE .size = SIZE, WORLD_FUNCTIONS(functions), .adjust = world_leaks_fail, .begin = begin

/* `count` of them in lists of PER_LIST. */
typedef struct heap {
    weft_value one[PER_LIST];
    weft_value lists[LISTS];
} heap;

static weft_value pile(heap *h, weft_value value, size_t lists)
{
    for (int i = 0; i < PER_LIST; i++)
        h->one[i] = value;
    for (size_t i = 0; i < lists; i++)
        h->lists[i] = weft_of_list((weft_args){h->one, PER_LIST});
    return weft_of_list((weft_args){h->lists, lists});
}

/* ---- Nulls ---------------------------------------------------------------------------------------------------- */

static void nulls(weft_agent *agent, void *arg)
{
    heap *h = calloc(1, sizeof(*h));
    weft_value all = pile(h, weft_of_null(), LISTS);
    weft_values *got;
    weft_args list;
    int64_t count;
    if (weft_agent_rank(agent) == SERVER && scene->fabric == WORLD_TCP)
        atomic_store(&server, agent);
    if (weft_agent_rank(agent) == CALLER) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(SERVER), "count", (weft_args){&all, 1}, NULL, &got));
        atomic_store(&server, NULL);
        MUST_OK(weft_values_get_i64(got, 0, &count));
        MUST(count == NULLS);
        weft_values_unref(got);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(SERVER), "echo", (weft_args){&all, 1}, NULL, &got));
        MUST_OK(weft_values_get_list(got, 0, &list));
        MUST(count_values(list, WEFT_TYPE_NULL) == NULLS);
        weft_values_unref(got);
    }
    free(h);
}

static void test_nulls(void **state)
{
    world_play(&(world){SCENE, .program = nulls}, 1, 1);
    assert_true(decoded_locked < decoded); /* under the lock it would be all */
}

/* ---- References ----------------------------------------------------------------------------------------------- */

static weft_rref *get_offer(weft_agent *agent)
{
    weft_values *got;
    weft_rref *rref;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(OWNER), "offer", WEFT_NO_VALUES, NULL, &got));
    MUST_OK(weft_values_get_rref(got, 0, &rref));
    rref = weft_rref_ref(rref);
    weft_values_unref(got);
    return rref;
}

static void references(weft_agent *agent, void *arg)
{
    weft_values *got;
    weft_args list;
    int64_t count;
    if (weft_agent_rank(agent) != CALLER)
        return;
    heap *h = calloc(1, sizeof(*h));
    weft_rref *rref = get_offer(agent);
    weft_value all = pile(h, weft_of_rref(rref), REFERENCES / PER_LIST);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(SERVER), "count", (weft_args){&all, 1}, NULL, &got));
    MUST_OK(weft_values_get_i64(got, 1, &count));
    MUST(count == REFERENCES);
    weft_values_unref(got);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(SERVER), "echo", (weft_args){&all, 1}, NULL, &got));
    MUST_OK(weft_values_get_list(got, 0, &list));
    MUST(count_values(list, WEFT_TYPE_RREF) == REFERENCES);
    weft_values_unref(got);
    weft_rref_unref(rref);
    free(h);
}

static void one_was_dropped(world *w)
{
    assert_int_equal(dropped, 1); /* and nothing has leaked: closing would say so */
}

WORLD_TEST(references, 1, 1, SCENE, .end = one_was_dropped)

/* ---- Given up ------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 12 };

/* Cancelled after a little more each time. */
static void give_up(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != CALLER)
        return;
    heap *h = calloc(1, sizeof(*h));
    weft_rref *rref = get_offer(agent);
    for (int i = 0; i < ROUNDS; i++) {
        bool with_references = i % 2;
        weft_value all = pile(h, with_references ? weft_of_rref(rref) : weft_of_null(), with_references ? 3 : LISTS);
        weft_future *future;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), "echo", (weft_args){&all, 1}, NULL, &future));
        world_sleep_ms(scene, i / 2);
        weft_status cancelled = weft_future_cancel(future);
        weft_status status = weft_future_wait(future, WEFT_FOREVER);
        MUST(status == WEFT_ERR_CANCELLED || (!status && (cancelled == WEFT_ERR_COMPLETED || !cancelled)));
        weft_future_unref(future);
    }
    weft_rref_unref(rref);
    free(h);
}

WORLD_TEST(give_up, 4, 1, SCENE)

/* All stop while such calls are under way. */
static void stop_amid(weft_agent *agent, void *arg)
{
    heap *h = calloc(1, sizeof(*h));
    weft_value all = pile(h, weft_of_null(), LISTS);
    for (int i = 0; i < 4; i++) {
        weft_status status = weft_rpc_async(agent, weft_to_rank((weft_agent_rank(agent) + 1) % SIZE), "echo",
                                            (weft_args){&all, 1}, NULL, NULL);
        MUST(!status || weft_agent_status(agent) || status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
    }
    world_sleep_ms(scene, 2);
    free(h);
}

WORLD_TEST(stop_amid, 5, 5, SCENE, .stop = true)

UNIT_MAIN(test_nulls, test_references, test_give_up, test_stop_amid)
