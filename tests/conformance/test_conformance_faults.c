/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_faults.c - items 53 and 54: references over a network that fails. The reference's harness makes
 * chosen types of messages fail their first sends, or holds them back. Here a program of calls and references runs
 * again and again, and at one moment of its course after the other a link is broken, several times, or held:
 * whatever message is under way then, of whichever type, is lost and sent again, or late.
 */
#include "conformance/conformance.h"

#include "unit.h"

/* ---- Functions ------------------------------------------------------------------------------------------------ */

/* (rref, x): its value and x. */
static weft_status serve_add_to(weft_call *call, void *user)
{
    weft_values *values = NULL;
    int64_t n = 0;
    weft_status status = weft_rref_to_here(weft_call_rref(call, 0), ITEM_PATIENCE_MS, &values, NULL);
    if (status)
        return status;
    MUST_OK(weft_values_get_i64(values, 0, &n));
    weft_values_unref(values);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(n + weft_call_i64(call, 1))));
    return WEFT_OK;
}

/* (to): a reference to something made there. */
static weft_status serve_made_elsewhere(weft_call *call, void *user)
{
    weft_rref *made = make(weft_call_agent(call), weft_to_rank((int)weft_call_i64(call, 0)), "add",
                           WEFT_VALUES(weft_of_i64(500), weft_of_i64(5)));
    weft_call_give(call, WEFT_VALUES(weft_of_rref(made)));
    weft_rref_unref(made);
    return WEFT_OK;
}

static atomic_int times_run;

static weft_status serve_once(weft_call *call, void *user)
{
    atomic_fetch_add(&times_run, 1);
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "add to", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_add_to},
    {.name = "made elsewhere", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_RREF}, .run = serve_made_elsewhere},
    {.name = "once", .run = serve_once},
};

/* ---- 53: time limits of references ---------------------------------------------------------------------------- */

static void must_have_timed_out(weft_rref *rref, weft_agent *agent, int other)
{
    weft_values *values = NULL;
    weft_future *created = weft_rref_created(rref);
    MUST_BE(weft_future_wait(created, ITEM_PATIENCE_MS), WEFT_ERR_TIMEOUT);
    MUST(weft_future_done(created));
    weft_future_unref(created);
    MUST_BE(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_TIMEOUT);
    MUST_BE(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL), WEFT_ERR_TIMEOUT);
    if (weft_rref_is_owner(rref))
        return; /* it may be made here yet, and others may wait for that */
    /* Nobody can be given it any more. */
    weft_error *error = NULL;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(other), "add to", WEFT_VALUES(weft_of_rref(rref), weft_of_i64(0)),
                      &(weft_rpc_options){.error = &error}, NULL);
    MUST_BE(status, WEFT_ERR_TIMEOUT);
    MUST(weft_error_ran(error) == WEFT_RAN_NO); /* it surely did not run */
    weft_error_unref(error);
}

/* The making takes too long, on another worker and on this one; then only the asking does. */
static void slow_making(weft_agent *agent, int to)
{
    weft_values *values = NULL;
    weft_rref *made = NULL;
    MUST_OK(
        weft_rpc_remote(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES, &(weft_rpc_options){.timeout_ms = 20}, &made));
    must_have_timed_out(made, agent, 2);
    weft_rref_unref(made);
    release_held(2); /* made too late, if it ran at all: it goes at once */
    made = make(agent, weft_to_rank(to), "hold", WEFT_NO_VALUES);
    MUST_BE(weft_rref_to_here(made, 10, &values, NULL), WEFT_ERR_TIMEOUT);
    weft_future *created = weft_rref_created(made);
    answer_held_until(created, 2);
    weft_future_unref(created);
    MUST(read_i64(made) == 2); /* the asking alone was too short */
    weft_rref_unref(made);
}

/* The link is dead when the call is to leave, and comes back to life when nobody waits any more: what was to be made
 * then comes to be, late, and must not stay. */
static void lost_making(weft_agent *agent, int to)
{
    weft_rref *made = NULL, *abandoned = NULL;
    weft_rpc_options brief = {.timeout_ms = 30};
    weft_args args = WEFT_VALUES(weft_of_i64(1), weft_of_i64(2));
    weft_sim_cut(item_sim(), weft_agent_rank(agent), to);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "add", args, &brief, &made));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(to), "add", args, &brief, &abandoned));
    weft_rref_unref(abandoned); /* its end is on its way before its beginning has arrived */
    must_have_timed_out(made, agent, 2);
    weft_rref_unref(made);
    weft_sim_heal(item_sim(), weft_agent_rank(agent), to);
    weft_rref *again = make(agent, weft_to_rank(to), "add", args);
    MUST(read_i64(again) == 3);
    weft_rref_unref(again);
}

static void rref_time_limits(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    slow_making(agent, 1);
    slow_making(agent, 0);
    if (item_sim())
        lost_making(agent, 1);
}

static void release_late(void)
{
    release_held(0);
}

ITEM(item_53_rref_timeouts_and_lost_creations, .program = rref_time_limits, .after = release_late,
     ITEM_FUNCTIONS(functions))

/* ---- 54: every message lost or late --------------------------------------------------------------------------- */

enum { PLACES = 3, MOMENTS = SEEDS > 1 ? 80 : 10 };

/* What goes wrong, and when: in nanoseconds of virtual time since the program began. */
typedef struct fault {
    int a, b;
    bool hold; /* late; else broken, three times */
    uint64_t at_ns;
} fault;
static const fault *this_fault;
static uint64_t span_ns; /* how long the program takes when nothing goes wrong */
static atomic_int connections_lost;

static void go_wrong(weft_sim *sim, int rank, void *arg)
{
    const fault *f = arg;
    weft_sim_sleep(sim, f->at_ns);
    if (f->hold) {
        weft_sim_cut(sim, f->a, f->b);
        weft_sim_sleep(sim, 20 * 1000000u); /* well within the time after which silence is a death */
        weft_sim_heal(sim, f->a, f->b);
        return;
    }
    for (int i = 0; i < 3; i++) {
        weft_sim_reset_link(sim, f->a, f->b);
        weft_sim_sleep(sim, 30 * 1000u); /* into the opening again, perhaps */
    }
}

/* Every road that a reference takes: made there, read, passed to its owner, from user to user, back as a result. */
static void all_roads(weft_agent *agent)
{
    weft_values *got = NULL;
    weft_rref *inner = NULL;
    weft_rref *made = make(agent, weft_to_rank(1), "add", WEFT_VALUES(weft_of_i64(1), weft_of_i64(2)));
    weft_rref *more = make(agent, weft_to_rank(1), "add to", WEFT_VALUES(weft_of_rref(made), weft_of_i64(10)));
    MUST(ask(agent, weft_to_rank(2), "add to", WEFT_VALUES(weft_of_rref(made), weft_of_i64(100))) == 103);
    weft_rref_unref(made);
    MUST(read_i64(more) == 13);
    weft_rref_unref(more);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(2), "made elsewhere", WEFT_VALUES(weft_of_i64(1)), NULL, &got));
    MUST_OK(weft_values_get_rref(got, 0, &inner));
    MUST(read_i64(inner) == 505);
    weft_values_unref(got);
    tell(agent, weft_to_rank(1), "once", WEFT_NO_VALUES);
    tell(agent, weft_to_rank(2), "once", WEFT_NO_VALUES);
}

static void unreliable(weft_agent *agent, void *arg)
{
    weft_stats stats;
    if (weft_agent_rank(agent) == 0) {
        uint64_t begun = weft_agent_now_ns(agent);
        if (this_fault)
            MUST_OK(weft_sim_spawn(item_sim(), PLACES, go_wrong, (void *)this_fault));
        all_roads(agent);
        if (!this_fault && item_sim())
            span_ns = weft_agent_now_ns(agent) - begun;
    }
    weft_agent_stats(agent, &stats);
    atomic_fetch_add(&connections_lost, (int)stats.connections_lost);
}

static void each_ran_once(void)
{
    assert_int_equal(atomic_exchange(&times_run, 0), 2);
}

static const item unreliable_item = {
    .program = unreliable, .size = PLACES, .after = each_ran_once, ITEM_FUNCTIONS(functions)};

static void item_54_every_message_lost_or_late(void **state)
{
    this_fault = NULL;
    item_run(&unreliable_item);
    atomic_store(&connections_lost, 0);
    for (int link = 0; link < PLACES; link++)
        for (int moment = 0; moment < MOMENTS; moment++)
            for (int hold = 0; hold < 2; hold++) {
                fault f = {.a = link, .b = (link + 1) % PLACES, .hold = hold};
                /* A little beyond the end: into the closing, and what is said about references then. */
                f.at_ns = span_ns * (uint64_t)moment / (MOMENTS * 9 / 10);
                this_fault = &f;
                item_run_on(&unreliable_item, WORLD_SIM, (uint64_t)(1 + moment + MOMENTS * link));
            }
    assert_true(atomic_load(&connections_lost) > MOMENTS); /* most of the breaks did hit something */
}

UNIT_MAIN(item_53_rref_timeouts_and_lost_creations, item_54_every_message_lost_or_late)
