/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_no_memory.c - where memory is out for a moment: membership events are told all the same, no handler sees
 * a reference before its owner has confirmed it, and an owner without memory for a name says so. The linker puts
 * wfi_calloc below in the place of the library's.
 */
#include "rpc/inside.h"
#include "rpc/world.h"

#include <weft/sim.h>

void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

enum { SIZE = 4 };

static int until_failure = -1; /* allocations that still succeed; -1: all */
static bool goes_on;           /* all that follow fail too */
static bool failed;

void *__wrap_wfi_calloc(size_t count, size_t size)
{
    if (until_failure < 0 || (until_failure > 0 && until_failure--))
        return __real_wfi_calloc(count, size);
    if (!goes_on)
        until_failure = -1;
    failed = true;
    return NULL;
}

/* ---- Membership -------------------------------------------------------------------------------------------------- */

static struct heard {
    weft_member_event event;
    int rank;
} heard[16];
static int heard_count, seen, made;

static void on_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    MUST(why && *why);
    if (weft_agent_rank(agent) == 0)
        heard[heard_count++] = (struct heard){event, rank};
}

static void listen_to_members(weft_agent_options *options, void *arg)
{
    options->on_membership = on_membership;
}

static world *now_in;

static void news(weft_agent *agent, void *arg)
{
    static const struct heard wanted[] = {
        {WEFT_MEMBER_DEAD, 3}, {WEFT_MEMBER_DEAD, 1}, {WEFT_MEMBER_DEAD, 2}, {WEFT_MEMBER_JOINED, 2}};
    if (weft_agent_rank(agent) != 0)
        return;
    inside_lock(agent);
    until_failure = 0, goes_on = true;
    inside_tell_member(agent, WEFT_MEMBER_DEAD, 1, "by the test");
    inside_tell_member(agent, WEFT_MEMBER_JOINED, 1, "by the test");
    inside_tell_member(agent, WEFT_MEMBER_DEAD, 2, "by the test");
    until_failure = -1, goes_on = false;
    inside_tell_member(agent, WEFT_MEMBER_LEFT, 1, "by the test"); /* nobody knew that it had joined */
    inside_tell_member(agent, WEFT_MEMBER_JOINED, 2, "by the test");
    inside_tell_member(agent, WEFT_MEMBER_DEAD, 3, "by the test");
    inside_unlock(agent);
    while (heard_count < 4)
        world_sleep_ms(now_in, 1);
    world_sleep_ms(now_in, 100);
    MUST(heard_count == 4 && failed);
    for (int i = 0; i < 4; i++)
        MUST(heard[i].event == wanted[i].event && heard[i].rank == wanted[i].rank);
}

static void begin(world *w)
{
    now_in = w;
    heard_count = seen = made = 0;
    failed = false;
}

WORLD_TEST(news, 10, 0, .size = SIZE, .adjust = listen_to_members, .begin = begin)

/* ---- References -------------------------------------------------------------------------------------------------- */

static weft_status run_see(weft_call *call, void *user)
{
    MUST(weft_rref_confirmed(weft_call_rref(call, 0)));
    seen++;
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    made++;
    weft_call_give(call, WEFT_VALUES(weft_of_i64(7)));
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "see", .takes = {WEFT_TYPE_RREF}, .run = run_see},
                                          {.name = "make", .gives = {WEFT_TYPE_I64}, .run = run_make}};

static weft_status await_made(weft_rref *rref)
{
    weft_future *created = weft_rref_created(rref);
    weft_status status = created ? weft_future_wait(created, 10000) : WEFT_ERR_MEMORY;
    weft_future_unref(created);
    return status;
}

/* A reference that is being made elsewhere, as an argument to ourselves, with each allocation in turn failing. */
static void to_ourselves(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    int refused = 0, good = 0;
    for (int step = 0; step < 40; step++) {
        weft_rref *rref;
        weft_future *future = NULL;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, NULL, &rref));
        failed = false;
        until_failure = step;
        weft_status status =
            weft_rpc_async(agent, weft_to_rank(0), "see", WEFT_VALUES(weft_of_rref(rref)), NULL, &future);
        until_failure = -1;
        if (!status)
            status = weft_future_wait(future, WEFT_FOREVER);
        MUST(status == WEFT_OK || (failed && status == WEFT_ERR_MEMORY));
        refused += status && future;
        good += !status;
        weft_future_unref(future);
        MUST_OK(await_made(rref));
        weft_rref_unref(rref);
    }
    MUST(refused && good && seen == good && made == 40);
}

/* The owner's allocations fail one after the other, while the call is on its way: its error is the plain one. */
static void at_the_owner(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    int without = 0;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, NULL, NULL)); /* then it has been opened */
    for (int step = 0; step < 60; step++) {
        weft_rref *rref;
        weft_values *out = NULL;
        weft_rpc_options options = {.timeout_ms = 200};
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, &options, &rref));
        until_failure = step;
        weft_status status = await_made(rref);
        until_failure = -1;
        without += status == WEFT_ERR_MEMORY;
        MUST(status != WEFT_ERR_PROTOCOL);
        if (!status)
            MUST(weft_rref_to_here(rref, 2000, &out, NULL) != WEFT_ERR_PROTOCOL);
        weft_values_unref(out);
        weft_rref_unref(rref);
    }
    MUST(without);
}

WORLD_TEST(to_ourselves, 20, 0, .size = 2, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(at_the_owner, 20, 0, .size = 2, WORLD_FUNCTIONS(functions), .begin = begin)

UNIT_MAIN(test_news, test_to_ourselves, test_at_the_owner)
