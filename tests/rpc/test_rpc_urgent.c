/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_urgent.c - urgent and lazy functions: in which order the one worker of a callee starts them. */
#include "rpc/world.h"

enum { EACH = 20, ALL = 3 * EACH, KINDS = 3 };

static struct shared {
    world *w;
    atomic_int begun, open;
    atomic_int order[ALL], count; /* which kind ran when */
} shared;

static weft_status run_block(weft_call *call, void *user)
{
    atomic_store(&shared.begun, 1);
    while (!atomic_load(&shared.open))
        world_sleep_ms(shared.w, 1);
    return WEFT_OK;
}

static weft_status run_note(weft_call *call, void *user)
{
    atomic_store(&shared.order[atomic_fetch_add(&shared.count, 1)], *(const int *)user);
    return WEFT_OK;
}

static int lazy = 0, plain = 1, urgent = 2;
static const weft_function functions[] = {
    {.name = "block", .run = run_block},
    {.name = "lazy", .run = run_note, .flags = WEFT_FUNCTION_LAZY, .user = &lazy},
    {.name = "plain", .run = run_note, .user = &plain},
    {.name = "urgent", .run = run_note, .flags = WEFT_FUNCTION_URGENT, .user = &urgent},
    {.name = "arrived", .run = world_run_nothing, .flags = WEFT_FUNCTION_INLINE}, /* answered ahead of the executor */
};

/* How many of `kind` started before the last one of `other`. */
static int before_last(int kind, int other)
{
    int last = 0, count = 0;
    for (int i = 0; i < ALL; i++)
        if (atomic_load(&shared.order[i]) == other)
            last = i;
    for (int i = 0; i < last; i++)
        count += atomic_load(&shared.order[i]) == kind;
    return count;
}

static void fill_the_queue(weft_agent *agent, void *arg)
{
    static const char *const names[] = {"lazy", "plain", "urgent"};
    weft_future *futures[ALL], *blocker;
    if (weft_agent_rank(agent) == 0)
        return;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "block", WEFT_NO_VALUES, NULL, &blocker));
    while (!atomic_load(&shared.begun))
        world_sleep_ms(shared.w, 1);
    for (int i = 0; i < ALL; i++) /* those that may wait come first */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), names[i / EACH], WEFT_NO_VALUES, NULL, &futures[i]));
    /* Calls arrive in order, but an inline one is answered before those that came with it are queued: those before
     * the first have been when the second is. */
    for (int i = 0; i < 2; i++)
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "arrived", WEFT_NO_VALUES, NULL, NULL));
    atomic_store(&shared.open, 1);
    for (int i = 0; i < ALL; i++) {
        MUST_OK(weft_future_wait(futures[i], 20000));
        weft_future_unref(futures[i]);
    }
    MUST_OK(weft_future_wait(blocker, 20000));
    weft_future_unref(blocker);
    /* Of 20 urgent ones, and of 40 before the lazy: one start in 16 is the oldest's, which is lazy. */
    MUST(before_last(plain, urgent) == 0 && before_last(lazy, urgent) >= 1 && before_last(lazy, urgent) <= 2);
    MUST(before_last(lazy, plain) >= 2 && before_last(lazy, plain) <= 4);
}

static void begin(world *w)
{
    shared = (struct shared){.w = w};
}

WORLD_TEST(fill_the_queue, 20, 3, .size = 2, WORLD_FUNCTIONS(functions), .adjust = world_one_worker, .begin = begin)

static void expect_refused(weft_agent *agent, weft_function function)
{
    function.name = "refused";
    function.run = world_run_nothing;
    MUST_BE(weft_agent_register(agent, &function), WEFT_ERR_INVALID);
}

static weft_tensor *land_nowhere(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return NULL;
}

static void register_bad(weft_agent *agent, void *arg)
{
    expect_refused(agent, (weft_function){.flags = WEFT_FUNCTION_URGENT | WEFT_FUNCTION_LAZY});
    expect_refused(agent, (weft_function){.flags = 1u << 30});
    expect_refused(agent, (weft_function){.flags = WEFT_FUNCTION_LAND_ADD}); /* where? */
    expect_refused(agent,
                   (weft_function){.flags = WEFT_FUNCTION_LAND_ADD | WEFT_FUNCTION_INLINE, .land = land_nowhere});
}

WORLD_TEST(register_bad, 1, 0, .size = 1, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_fill_the_queue, test_register_bad)
