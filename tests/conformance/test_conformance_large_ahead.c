/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_large_ahead.c - a message of 64 MiB ahead of small calls to the same peer. In the reference
 * everything between two workers goes through one pipe, in order: what is small waits until what is large has
 * passed.
 */
#include "conformance/conformance.h"

#include <stdlib.h>

#include "tensors.h"
#include "unit.h"

enum { LARGE = 64 << 20, CALLS = 200 };

static weft_status serve_swallow(weft_call *call, void *user)
{
    MUST(weft_tensor_nbytes(weft_call_tensor(call, 0)) == LARGE);
    return WEFT_OK;
}

/* A result as large. */
static weft_status serve_give_large(weft_call *call, void *user)
{
    weft_tensor *large = tensor_empty(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(large)));
    weft_tensor_unref(large);
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "swallow", .takes = {WEFT_TYPE_TENSOR}, .run = serve_swallow},
    {.name = "give large", .gives = {WEFT_TYPE_TENSOR}, .run = serve_give_large},
};

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static uint64_t one_small_call(weft_agent *agent)
{
    uint64_t begun = weft_agent_now_ns(agent);
    tell(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES);
    return weft_agent_now_ns(agent) - begun;
}

static uint64_t median(uint64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof(*times), by_size);
    return times[count / 2];
}

/* Small calls as long as the large one is under way, again and again until there are enough; how long the median
 * took. */
static uint64_t beside(weft_agent *agent, const char *function, weft_args args, uint64_t *large_ns, double *per_large)
{
    uint64_t times[CALLS], spent = 0;
    int count = 0, rounds = 0;
    for (; count < CALLS && rounds < 20; rounds++) {
        uint64_t begun = weft_agent_now_ns(agent);
        weft_future *large = start_for(agent, weft_to_rank(1), function, args, WEFT_FOREVER);
        while (count < CALLS && !weft_future_done(large))
            times[count++] = one_small_call(agent);
        MUST_OK(weft_future_wait(large, WEFT_FOREVER));
        spent += weft_agent_now_ns(agent) - begun;
        weft_future_unref(large);
    }
    *large_ns = spent / (uint64_t)rounds;
    *per_large = (double)count / rounds;
    return median(times, count);
}

/* Neither the one nor the other waits for the other's end: many small calls pass while a large one does, and each
 * takes but a part of its time. The bounds are wide: here as many threads as there are processors work at the large
 * one. */
static void compare(weft_agent *agent, const char *function, weft_args args)
{
    uint64_t alone[CALLS], large_ns = 0;
    double per_large = 0;
    for (int i = 0; i < CALLS; i++)
        alone[i] = one_small_call(agent);
    uint64_t without = median(alone, CALLS), with = beside(agent, function, args, &large_ns, &per_large);
    printf("         %s, %s: a small call takes %.1f us alone, %.1f us beside a large one of %.1f ms; %.0f pass it\n",
           world_fabric_name(item_fabric()), function, (double)without / 1e3, (double)with / 1e3,
           (double)large_ns / 1e6, per_large);
    MUST(per_large >= 4);
    if (item_sim())
        MUST(with < 3 * without); /* on a real machine it depends on who else wants the processors */
    MUST(with < large_ns / 3);
}

static void large_ahead(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(LARGE), WEFT_DTYPE_UINT8);
    compare(agent, "swallow", WEFT_VALUES(weft_of_tensor(large)));
    compare(agent, "give large", WEFT_NO_VALUES);
    weft_tensor_unref(large);
}

static void case_large_message_ahead_of_small_calls(void **state)
{
    const item what = {.program = large_ahead, .size = 2, ITEM_FUNCTIONS(functions)};
    for (int fabric = 0; fabric < WORLD_FABRICS; fabric++)
        item_run_on(&what, (world_fabric)fabric, 1);
}

UNIT_MAIN(case_large_message_ahead_of_small_calls)
