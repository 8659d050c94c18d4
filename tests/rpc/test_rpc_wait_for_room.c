/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_wait_for_room.c - calls without a time limit wait for room in the queue to rank 1, which stands still:
 * some block a handler, others rest between two attempts. Whatever ends the wait wakes every one of them: a missed
 * wake-up would hang the test.
 */
#include "rpc/world.h"

#include <stdint.h>

#define QUEUE_BYTES 32768
#define PIECE 900
#define CALLS_MAX 4096
#define WAITERS 6 /* of each kind */

enum { EVENT_ROOM, EVENT_DEATH, EVENT_CANCEL, EVENT_STOP };

static world *scene;
static atomic_int refusals;            /* of the first attempts, at rank 1 */
static atomic_int waiting, ended[256]; /* handlers that wait; ends of waits by -status */
static char piece[PIECE + 1];
static weft_future *blocked[WAITERS], *resting[WAITERS], *queued[CALLS_MAX];

static weft_status run_take(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    return WEFT_OK;
}

static weft_status run_refuse_once(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    return atomic_fetch_add(&refusals, 1) < WAITERS ? WEFT_ERR_BUSY : WEFT_OK;
}

/* Waits for room at rank 1, for the sake of this call; every other one with retries, whose first attempt waits as
 * well. */
static weft_status run_forward(weft_call *call, void *user)
{
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .wait_for_room = true, .parent = call};
    weft_future *future = NULL;
    (void)user;
    options.retry.attempts = atomic_fetch_add(&waiting, 1) % 2 ? 3 : 0;
    weft_status status = weft_rpc_async(weft_call_agent(call), weft_to_rank(1), "take",
                                        WEFT_VALUES(weft_of_string(piece)), &options, &future);
    if (!status)
        status = weft_future_wait(future, WEFT_FOREVER);
    weft_future_unref(future);
    atomic_fetch_add(&ended[-status], 1);
    return status;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TYPE_STRING}, .run = run_take},
    {.name = "refuse once", .takes = {WEFT_TYPE_STRING}, .run = run_refuse_once},
    {.name = "forward", .run = run_forward},
};

static void adjust(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->queue_limit_bytes = QUEUE_BYTES;
    options->death_timeout_ms = WEFT_FOREVER; /* rank 1 stands still, and is not dead */
    options->call_timeout_ms = WEFT_FOREVER;
}

static void begin(world *w)
{
    scene = w;
    atomic_store(&refusals, 0);
    atomic_store(&waiting, 0);
    memset(ended, 0, sizeof(ended));
    memset(piece, 'x', PIECE);
}

/* All wait, and go on waiting. Returns how many calls fill the queue. */
static int make_all_wait(weft_agent *agent)
{
    weft_args args = WEFT_VALUES(weft_of_string(piece));
    weft_rpc_options again = {.wait_for_room = true, .retry = {.attempts = 2, .pause_ms = 50}};
    for (int i = 0; i < WAITERS; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "refuse once", args, &again, &resting[i]));
    while (atomic_load(&refusals) < WAITERS)
        world_sleep_ms(scene, 1);
    world_sleep_ms(scene, 10); /* the refusals are here; the pauses last on */
    weft_sim_pause(scene->sim, 1);
    int count = 0;
    weft_status status = WEFT_OK;
    while (!status && count < CALLS_MAX) {
        status = weft_rpc_async(agent, weft_to_rank(1), "take", args, NULL, &queued[count]);
        count += !status;
    }
    MUST_BE(status, WEFT_ERR_AGAIN);
    for (int i = 0; i < WAITERS; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "forward", WEFT_NO_VALUES, NULL, &blocked[i]));
    world_sleep_ms(scene, 200);
    MUST(atomic_load(&waiting) == WAITERS);
    for (int i = 0; i < WAITERS; i++)
        MUST(!weft_future_done(blocked[i]) && !weft_future_done(resting[i]));
    return count;
}

static void drop(weft_future **futures, int count, weft_status wanted)
{
    for (int i = 0; i < count; i++) {
        MUST_BE(weft_future_wait(futures[i], WEFT_FOREVER), wanted);
        weft_future_unref(futures[i]);
    }
}

static void await_ends(weft_status wanted)
{
    while (atomic_load(&ended[-wanted]) < WAITERS)
        world_sleep_ms(scene, 1);
}

static void resume_later(weft_sim *sim, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    weft_sim_sleep(sim, 500 * UINT64_C(1000000));
    weft_sim_resume(sim, 1);
}

static void one_event(weft_agent *agent, void *arg)
{
    int event = (int)(intptr_t)arg;
    if (weft_agent_rank(agent) == 1 && event == EVENT_DEATH)
        world_sleep_ms(scene, 3600 * 1000); /* it will not live so long */
    if (weft_agent_rank(agent) == 1 && event == EVENT_STOP)
        world_sleep_ms(scene, 5000); /* it is there until rank 0 has stopped */
    if (weft_agent_rank(agent) != 0)
        return;
    int count = make_all_wait(agent);
    weft_status others = event == EVENT_DEATH ? WEFT_ERR_PEER_DEAD : WEFT_OK;
    if (event == EVENT_STOP) {
        MUST_OK(weft_sim_spawn(scene->sim, 0, resume_later, NULL));
        return; /* the world stops the agent, and end_of_stop looks */
    }
    if (event == EVENT_DEATH)
        weft_sim_kill(scene->sim, 1);
    for (int i = 0; event == EVENT_CANCEL && i < WAITERS; i++) {
        MUST_OK(weft_future_cancel(blocked[i]));
        MUST_OK(weft_future_cancel(resting[i]));
    }
    if (event == EVENT_CANCEL)
        await_ends(WEFT_ERR_CANCELLED); /* while rank 1 still stands still */
    if (event != EVENT_DEATH)
        weft_sim_resume(scene->sim, 1);
    drop(queued, count, others);
    if (event == EVENT_DEATH) {
        await_ends(WEFT_ERR_PEER_DEAD);
        drop(resting, WAITERS, WEFT_ERR_PEER_DEAD);
        drop(blocked, WAITERS, WEFT_ERR_REMOTE);
    } else {
        drop(resting, WAITERS, event == EVENT_CANCEL ? WEFT_ERR_CANCELLED : WEFT_OK);
        drop(blocked, WAITERS, event == EVENT_CANCEL ? WEFT_ERR_CANCELLED : WEFT_OK);
    }
}

static void end_of_stop(world *w)
{
    (void)w;
    MUST(atomic_load(&ended[-WEFT_ERR_CLOSED]) + atomic_load(&ended[-WEFT_ERR_CANCELLED]) == WAITERS);
    for (int i = 0; i < CALLS_MAX && queued[i]; i++) {
        weft_future_unref(queued[i]);
        queued[i] = NULL;
    }
    drop(resting, WAITERS, WEFT_ERR_CLOSED);
    drop(blocked, WAITERS, WEFT_ERR_CLOSED);
}

#define SCENE WORLD_FUNCTIONS(functions), .adjust = adjust, .begin = begin, .size = 2

static void play(int event, void (*end)(world *w))
{
    world w = {.program = one_event, SCENE, .arg = (void *)(intptr_t)event, .stop = event == EVENT_STOP, .end = end};
    w.close_may_fail = event == EVENT_DEATH;
    world_play(&w, 20, 0);
}

static void test_room_comes(void **state)
{
    (void)state;
    play(EVENT_ROOM, NULL);
}

static void test_the_peer_dies(void **state)
{
    (void)state;
    play(EVENT_DEATH, NULL);
}

static void test_the_callers_cancel(void **state)
{
    (void)state;
    play(EVENT_CANCEL, NULL);
}

static void test_the_agent_stops(void **state)
{
    (void)state;
    play(EVENT_STOP, end_of_stop);
}

UNIT_MAIN(test_room_comes, test_the_peer_dies, test_the_callers_cancel, test_the_agent_stops)
