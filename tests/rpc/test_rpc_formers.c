/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_formers.c - hundreds of incarnations take one seat, each with calls, references, groups and a watch, and
 * each dies: nothing of them is left. The store's word for it is the test's.
 */
#include "rpc/inside.h"
#include "rpc/world.h"

#define FORMERS 300

static void take_seat(weft_agent *agent, uint32_t incarnation)
{
    char name[16];
    snprintf(name, sizeof(name), "guest%u", incarnation % 3);
    inside_joined(agent, 1, incarnation, name);
    MUST(weft_agent_worker(agent, 1).incarnation == incarnation);
}

static void lead_a_life(weft_agent *agent, uint32_t incarnation)
{
    weft_future *call;
    weft_rref *theirs;
    weft_group *group;
    weft_error *error = NULL;
    weft_values *none;
    take_seat(agent, incarnation);
    const char *name = weft_agent_name(agent, 1);
    MUST_OK(weft_agent_watch(agent, 1));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, &call));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, &theirs));
    MUST_BE(weft_group_open(agent, "all", NULL, 0, 1, &group, &error), WEFT_ERR_TIMEOUT);
    MUST(weft_error_worker(error) == 1);
    inside_died(agent, 1, incarnation);
    MUST_BE(weft_future_wait(call, 10000), WEFT_ERR_PEER_DEAD);
    MUST_BE(weft_rref_to_here(theirs, 10000, &none, NULL), WEFT_ERR_PEER_DEAD);
    MUST_BE(weft_agent_unwatch(agent, 1), WEFT_ERR_PEER_DEAD);
    MUST(strncmp(name, "guest", 5) == 0 && weft_agent_name(agent, 1) == name);
    weft_error_unref(error);
    weft_rref_unref(theirs);
    weft_future_unref(call);
}

/* Who holds a reference to a value of one who is gone holds that one, and learns the same of it as before. */
static void hold_one(weft_agent *agent, uint32_t incarnation)
{
    weft_rref *theirs;
    weft_values *none;
    take_seat(agent, incarnation);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, &theirs));
    take_seat(agent, incarnation + 1);
    MUST_BE(weft_rref_to_here(theirs, 10000, &none, NULL), WEFT_ERR_PEER_DEAD);
    MUST(weft_rref_owner(theirs) == 1);
    weft_rref_unref(theirs);
}

/* Attempts to connect to those who are gone end when the event thread closes their lanes. */
static inside_tally count_settled(weft_agent *agent, world *w)
{
    inside_tally t = inside_count(agent);
    for (int i = 0; i < 300 && t.peers > 1; i++) {
        world_sleep_ms(w, 100);
        t = inside_count(agent);
    }
    return t;
}

static void see_them_come_and_go(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    uint32_t first = weft_agent_worker(agent, 1).incarnation + 1000;
    for (uint32_t i = 0; i < 10; i++)
        lead_a_life(agent, first + i);
    inside_tally before = count_settled(agent, arg);
    for (uint32_t i = 10; i < FORMERS; i++)
        lead_a_life(agent, first + i);
    hold_one(agent, first + FORMERS);
    inside_tally after = count_settled(agent, arg);
    MUST(before.references + before.calls + before.unconfirmed + after.references + after.calls + after.unconfirmed ==
         0);
    MUST(after.peers <= before.peers && after.timers <= before.timers && after.names == before.names);
}

static void those_who_are_gone_leave_nothing(void **state)
{
    for (world_fabric fabric = 0; fabric < WORLD_FABRICS; fabric++) {
        world w = {.fabric = fabric, .size = 2, .seed = 4, .program = see_them_come_and_go, .arg = &w, .stop = true};
        world_run(&w);
    }
}

UNIT_MAIN(those_who_are_gone_leave_nothing)
