/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_director.c - what is done to the actors while they play: connections that break, silences short and long,
 * cuts, deaths and new lives, and the loss of the store. The book says whom it makes suspect.
 */
#include "rpc/random.h"

#define ACTS_MAX 6

static void make_suspect(int actor)
{
    job *j = now_playing;
    for (int i = 0; i < j->life_count; i++)
        if (j->lives[i]->actor == actor && !j->lives[i]->over)
            j->lives[i]->suspect = true;
    j->store_at_risk |= actor == 0;
}

/* It will not be heard for so long. Short silences that follow each other closely may add up to the bound. */
static void disturb(int actor, uint64_t us)
{
    role *a = &now_playing->cast[actor];
    uint64_t end_ns = now_ns() + us * 1000, quiet_ns = 2 * (uint64_t)DEATH_MS * NS_PER_MS;
    bool once_more = a->disturbed_until_ns && a->disturbed_until_ns + quiet_ns > now_ns();
    now_playing->shaken = true;
    a->disturbed_until_ns = end_ns > a->disturbed_until_ns ? end_ns : a->disturbed_until_ns;
    if (us > BRIEF_MS * 1000 || once_more) {
        a->ill = true;
        make_suspect(actor);
    }
}

static void pause_for(int actor, uint64_t us)
{
    job *j = now_playing;
    disturb(actor, us);
    for (int i = 0; i < j->life_count; i++)
        if (j->lives[i]->actor == actor && !j->lives[i]->over)
            j->lives[i]->paused_ns += us * 1000;
    weft_sim_pause(j->sim, actor);
    sleep_us(us);
    weft_sim_resume(j->sim, actor);
    j->cast[actor].ill = false;
}

/* Who is cut off from rank 0 is cut off from the store; of two others either may be taken for dead. */
static void cut_for(int a, int b, uint64_t us)
{
    if (a)
        disturb(a, us);
    if (b)
        disturb(b, us);
    weft_sim_cut(now_playing->sim, a, b);
    sleep_us(us);
    weft_sim_heal(now_playing->sim, a, b);
    now_playing->cast[a].ill = now_playing->cast[b].ill = false;
}

static void kill_actor(int actor)
{
    job *j = now_playing;
    role *a = &j->cast[actor];
    const life *victim =
        a->now && a->now->agent && !is_excused(a->now) ? a->now : NULL; /* nobody takes it for dead yet */
    j->shaken = true;
    make_suspect(actor);
    for (int i = 0; i < j->life_count; i++)
        if (j->lives[i]->actor == actor && !j->lives[i]->over)
            j->lives[i]->killed = true;
    j->kills++;
    a->state = ACTOR_NONE;
    if (victim)
        expect_news_of(victim);
    weft_sim_kill(j->sim, actor);
}

/* A new life of a dead one's actor; busy from now on, so that nobody takes the job for settled. */
static void give_life(int actor)
{
    role *a = &now_playing->cast[actor];
    if (a->state != ACTOR_NONE || now_playing->store_at_risk)
        return;
    a->state = ACTOR_BUSY;
    MUST_OK(weft_sim_spawn(now_playing->sim, actor, run_actor, NULL));
}

static void lose_store(uint64_t *state)
{
    if (once_in(state, 2))
        kill_actor(0);
    else
        pause_for(0, (uint64_t)(DEATH_MS + below(state, 2000)) * 1000);
}

/* Each time that a connection breaks before it carried anything the pause before the next attempt doubles: so a
 * pause is no longer than what went before, back to a time when connections held. */
static void note_break(void)
{
    uint64_t *breaks = now_playing->breaks_ns, lasted = breaks[1] - breaks[0];
    if (now_ns() - breaks[1] > lasted + (uint64_t)TOLD_SOON_MS * NS_PER_MS)
        breaks[0] = now_ns();
    breaks[1] = now_ns();
}

/* One after the other, in the middle of what they carry. */
static void break_connections(uint64_t *state)
{
    for (int i = below(state, 12); i >= 0; i--) {
        int a = below(state, now_playing->actors), b = below(state, now_playing->actors - 1);
        note_break();
        weft_sim_reset_link(now_playing->sim, a, b < a ? b : b + 1);
        sleep_us((uint64_t)below(state, 4000));
    }
}

static void break_something(uint64_t *state, int a, int b)
{
    int other = 1 + below(state, now_playing->actors - 1);
    uint64_t long_us = (uint64_t)below(state, 4 * DEATH_MS * 1000);
    switch (below(state, 4)) {
    case 0:
    case 1:
        kill_actor(other);
        if (!once_in(state, 3)) {
            sleep_us((uint64_t)below(state, 2 * DEATH_MS * 1000));
            give_life(other);
        }
        break;
    case 2:
        pause_for(other, long_us);
        break;
    default:
        cut_for(a, b, long_us);
    }
}

static void shake_something(uint64_t *state, int a, int b)
{
    uint64_t us = (uint64_t)below(state, BRIEF_MS * 1000);
    if (once_in(state, 2))
        pause_for(1 + below(state, now_playing->actors - 1), us);
    else
        cut_for(a, b, us);
}

void run_director(weft_sim *sim, int rank, void *arg)
{
    job *j = now_playing;
    uint64_t state = j->seed ^ UINT64_C(0xfa7e);
    for (int i = below(&state, ACTS_MAX); i >= 0; i--) {
        int a = below(&state, j->actors), b = (a + 1 + below(&state, j->actors - 1)) % j->actors;
        sleep_us((uint64_t)below(&state, 60000) + 500);
        if (j->mood == CALM || once_in(&state, 3)) {
            break_connections(&state);
        } else if (j->mood == SHAKEN || once_in(&state, 3)) {
            shake_something(&state, a, b);
            if (j->mood == SHAKEN)
                sleep_us(2 * DEATH_MS * 1000);
        } else if (j->mood == LOST && once_in(&state, 3)) {
            lose_store(&state);
        } else {
            break_something(&state, a, b);
        }
    }
    j->directed = true;
}
