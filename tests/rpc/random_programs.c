/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_programs.c - what one actor does: it opens an agent, takes steps at random, and ends: with the others when
 * all is settled, early, or at once. Who was evicted, or left an elastic job, may come again.
 */
#include "rpc/random.h"
#include "tensors.h"

#define PROGRAMS_MAX 4 /* of an actor, all its lives together */
#define OPENINGS_MAX 40
#define SETTLED_LATE_MS (3 * DEATH_MS) /* after disturbances: until all deaths are told, and what that frees is gone */
#define SETTLED_MS 100

/* ---- Opening -------------------------------------------------------------------------------------------------- */

static int choose_rank(life *l)
{
    if (!now_playing->elastic || l->actor == 0)
        return l->actor;
    return once_in(&l->state, 2) ? WEFT_ANY_RANK : 1 + below(&l->state, now_playing->actors - 1);
}

static weft_agent_options options_of(life *l)
{
    const job *j = now_playing;
    size_t count = give_functions(l);
    weft_agent_options options = {.functions = l->functions,
                                  .function_count = count,
                                  .has_rank = true,
                                  .rank = l->rank < 0 ? WEFT_ANY_RANK : l->rank,
                                  .world_size = j->actors,
                                  .name = name_of_actor(l->actor),
                                  .elastic = j->elastic,
                                  .leaks_fail = !l->leaves_early,
                                  .fabric = "sim",
                                  .sim = j->sim,
                                  .threads = 1 + below(&l->state, 3),
                                  .rendezvous_timeout_ms = 3000,
                                  .call_timeout_ms = DEFAULT_MS,
                                  .death_timeout_ms = DEATH_MS,
                                  .memory_budget_bytes = j->budget,
                                  .queue_limit_bytes = j->queue_limit,
                                  .on_membership = on_membership,
                                  .membership_arg = l};
    if (j->has_fabrics)
        spoiler_choose(&now_playing->spoiler, &options);
    return options;
}

/* Ranks and names may still be those of a life that is not known to be over; the others may not come. */
static bool opening_may_fail(weft_status status)
{
    const job *j = now_playing;
    if (status == WEFT_ERR_EXISTS)
        return j->elastic || j->mood >= BROKEN;
    return (status == WEFT_ERR_RENDEZVOUS || status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_EVICTED) &&
           j->mood >= BROKEN;
}

static bool try_to_open(life *l)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = options_of(l);
    weft_status status = weft_agent_open(&options, &agent, &error);
    if (status && !opening_may_fail(status)) {
        tell_where();
        weft_error_print(error, stderr);
        MUST_OK(status);
    }
    weft_error_unref(error);
    l->asked_again = times_asked_again(l) + (status && status != WEFT_ERR_EXISTS);
    l->moved |= l->suspect || (status && status != WEFT_ERR_EXISTS);
    l->late |= l->suspect;
    if (status)
        return false;
    l->agent = agent;
    l->rank = weft_agent_rank(agent);
    l->opened_ns = now_ns();
    return true;
}

static void make_places(life *l)
{
    for (int i = 0; i < PLACES_MAX; i++) {
        l->places[i] = tensor_zeros(WEFT_SHAPE(PLACE_COUNT), WEFT_DTYPE_INT32);
        MUST_IN_JOB(l->places[i]);
    }
    l->total = tensor_zeros(WEFT_SHAPE(PLACE_COUNT), WEFT_DTYPE_INT32);
    MUST_IN_JOB(l->total);
}

static void bury(life *l)
{
    for (int i = 0; i < PLACES_MAX; i++)
        weft_tensor_unref(l->places[i]);
    weft_tensor_unref(l->total);
    forget_entries(l);
    l->agent = NULL;
    l->over = true;
}

/* NULL: it could not be. */
static life *open_life(int actor)
{
    job *j = now_playing;
    life *l = life_begin(actor, -1);
    l->leaves_early = j->elastic && actor > 0 && once_in(&l->state, 2);
    bool may_stop = j->mood >= BROKEN ? actor > 0 || j->mood == LOST : j->elastic && actor > 0;
    l->stops_at = may_stop && once_in(&l->state, 6) ? below(&l->state, j->steps) : -1;
    make_places(l);
    for (int i = 0; i < OPENINGS_MAX && !j->store_at_risk; i++) {
        l->rank = choose_rank(l);
        l->tried_ns = now_ns();
        l->late = i > 0 || j->cast[actor].programs > 1;
        if (try_to_open(l))
            return l;
        sleep_us(20000);
    }
    bury(l);
    return NULL;
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static void step(life *l)
{
    static void (*const steps[])(life *) = {step_call,      step_call,   step_call,   step_call,   step_call,
                                            step_values,    step_gather, step_gather, step_tensor, step_tensor,
                                            step_multicast, step_cancel, step_cancel, step_thing,  step_thing,
                                            step_thing,     step_thing,  step_watch,  step_look,   step_wait_any};
    steps[below(&l->state, sizeof(steps) / sizeof(*steps))](l);
}

/* False: it stopped at once. */
static bool take_steps(life *l)
{
    const job *j = now_playing;
    for (int i = 0; i < j->steps && !weft_agent_status(l->agent); i++) {
        if (i == l->stops_at)
            return false;
        if (j->meetings && i % (j->steps / j->meetings) == 0)
            step_meeting(l);
        step(l);
        if (once_in(&l->state, 2))
            sleep_us((uint64_t)below(&l->state, 12000));
    }
    return true;
}

/* ---- The end -------------------------------------------------------------------------------------------------- */

static bool all_settled(void)
{
    bool settled = now_playing->directed && (!now_playing->has_fabrics || now_playing->spoiler.over);
    for (int i = 0; i < now_playing->actors; i++)
        settled &= now_playing->cast[i].state != ACTOR_BUSY;
    return settled;
}

/* All have done what they meant to do, and all deaths are known: nothing is left of it. */
static void rest(life *l)
{
    int beginnings;
    now_playing->cast[l->actor].state = ACTOR_RESTING;
    do { /* who finds out only now that it is out of the job may begin anew */
        while (!all_settled() && !weft_agent_status(l->agent))
            sleep_us(5000);
        beginnings = now_playing->beginnings;
        sleep_us((now_playing->shaken ? SETTLED_LATE_MS : SETTLED_MS) * 1000);
    } while (beginnings != now_playing->beginnings && !weft_agent_status(l->agent));
    if (!weft_agent_status(l->agent))
        check_quiet(l);
}

static void stop_life(life *l)
{
    l->leaving = l->finishing = true;
    if (l->actor == 0)
        now_playing->store_at_risk = now_playing->shaken = true;
    for (int i = 0; i < l->meeting_count; i++) {
        weft_future_unref(l->meetings[i].future);
        l->meetings[i].future = NULL;
    }
    weft_group_close(l->groups[0]);
    weft_group_close(l->groups[1]);
    weft_agent_stop(l->agent);
    release_all(l);
    drop_handles(l);
    bury(l);
}

static void close_life(life *l)
{
    l->finishing = true;
    release_all(l);
    while (l->groups[0] && l->meeting_count < now_playing->meetings)
        step_meeting(l);
    await_meetings(l);
    await_entries(l);
    forget_entries(l); /* results may hold references */
    drop_handles(l);
    if (!l->leaves_early)
        rest(l);
    l->leaving = true;
    now_playing->ending |= !l->leaves_early;
    weft_status status = weft_agent_close(l->agent, WEFT_FOREVER);
    if (status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST)
        MUST_IN_JOB(l->suspect || now_playing->store_at_risk);
    else if (status)
        tell_where();
    if (status != WEFT_ERR_EVICTED && status != WEFT_ERR_STORE_LOST)
        MUST_OK(status);
    bury(l);
}

void run_actor(weft_sim *sim, int rank, void *arg)
{
    job *j = now_playing;
    role *self = &j->cast[rank];
    bool again = true;
    while (again && self->programs < PROGRAMS_MAX) {
        self->state = ACTOR_BUSY;
        self->programs++;
        j->beginnings++;
        life *l = open_life(rank);
        if (!l)
            break;
        begin_meetings(l);
        if (take_steps(l)) {
            close_life(l);
            again = l->told_self == WEFT_MEMBER_SELF_EVICTED || l->leaves_early;
        } else {
            stop_life(l);
            again = rank > 0;
        }
        again &= !j->store_at_risk && !j->ending && once_in(&l->state, 2);
    }
    self->state = ACTOR_NONE;
}
