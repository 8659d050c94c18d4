/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm_worker.c - one life: joins the job, calls until the driver says that it is over, or until it is declared dead, and ends
 * with nothing left: no call, no reference, no object.
 */
#include "storm/storm.h"

#include "mem/slab.h"
#include "rpc/must.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define CALLERS 2
#define UNDER_WAY_MOST 40 /* calls of one worker */
#define PAUSE_MS 8        /* between two of one thread, at most */
#define BEAT_MS 10

storm_self self;
static _Thread_local uint64_t chance;

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void sleep_ms(uint64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

uint64_t chance_below(uint64_t below)
{
    static atomic_uint threads;
    if (!chance)
        chance = book->seed * 1000003 + self.life * UINT64_C(8191) + atomic_fetch_add(&threads, 1) + 1;
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (chance >> 11) % below;
}

bool once_in(unsigned times)
{
    return chance_below(times) == 0;
}

bool goes_on(void)
{
    return !atomic_load(&self.over) && atomic_load(&book->phase) == PHASE_ON && !weft_agent_status(self.agent);
}

/* ---- Threads --------------------------------------------------------------------------------------------------------- */

static void *beat(void *arg)
{
    for (;; sleep_ms(BEAT_MS))
        atomic_fetch_add(&self.seat->beats, 1);
    return arg;
}

static void *call_until_over(void *arg)
{
    while (goes_on()) {
        sleep_ms(chance_below(PAUSE_MS));
        if (calls_under_way() >= UNDER_WAY_MOST)
            continue;
        if (atomic_exchange(&self.seat->hauls, false) || once_in(600))
            step_haul();
        else if (once_in(5))
            step_thing();
        else
            step_call();
    }
    return arg;
}

static void *meet_thread(void *arg)
{
    meet_until_over();
    return arg;
}

/* ---- Joining --------------------------------------------------------------------------------------------------------- */

static weft_status try_to_open(weft_agent **out)
{
    static const char secret[] = "it rains, and it pours";
    weft_error *error = NULL;
    weft_agent_options options = {.functions = storm_functions,
                                  .function_count = storm_function_count,
                                  .has_rank = true,
                                  .rank = self.rank,
                                  .world_size = SEATS,
                                  .elastic = true,
                                  .leaks_fail = true,
                                  .master_addr = book->master,
                                  .master_port = book->port,
                                  .secret = secret,
                                  .secret_size = sizeof secret,
                                  .no_binding = true,
                                  .call_timeout_ms = DEFAULT_MS,
                                  .death_timeout_ms = book->bound_ms,
                                  .error = &error};
    weft_status st = weft_agent_open(&options, out);
    weft_error_print(error, stderr);
    weft_error_unref(error);
    return st;
}

/* Its seat may not be free yet, since whoever had it is not declared dead. NULL: there is no job any more. */
static weft_agent *open_agent(void)
{
    weft_agent *agent;
    for (;; sleep_ms(20)) {
        weft_status st = try_to_open(&agent);
        if (!st)
            return agent;
        if (st == WEFT_ERR_EVICTED || st == WEFT_ERR_STORE_LOST || st == WEFT_ERR_RENDEZVOUS)
            return NULL;
        if (st != WEFT_ERR_EXISTS)
            violation(-1, "the agent does not open: %s", weft_status_name(st));
        if (st != WEFT_ERR_EXISTS || atomic_load(&book->phase) != PHASE_ON)
            return NULL;
    }
}

/* ---- Ending ---------------------------------------------------------------------------------------------------------- */

static void reach(storm_stage stage)
{
    atomic_store(&self.seat->stage, stage);
}

static void dump_if_asked(void)
{
    static int dumped;
    int wanted = atomic_load(&book->dump);
    if (wanted == dumped)
        return;
    dumped = wanted;
    fprintf(stderr, "%d calls under way here:\n", calls_under_way());
    (void)!weft_debug_dump(self.agent, stderr);
}

/* Until the driver lets all go on, or this worker is out. */
static void await_phase(storm_phase phase)
{
    while (atomic_load(&book->phase) < (int)phase && !weft_agent_status(self.agent)) {
        dump_if_asked();
        sleep_ms(2);
    }
}

/* The driver sees that this ends. */
static void await_own_calls(void)
{
    while (calls_under_way()) {
        dump_if_asked();
        sleep_ms(2);
    }
}

static void await_own_objects(void)
{
    const storm_life *life = &book->lives[self.life];
    while (atomic_load(&life->dropped) < atomic_load(&life->made) && !weft_agent_status(self.agent)) {
        dump_if_asked();
        sleep_ms(2);
    }
}

static void weigh(void)
{
    weft_stats stats;
    weft_agent_stats(self.agent, &stats);
    wfi_slab_trim(0); /* recycled tensors */
    struct mallinfo2 now = mallinfo2();
    unsigned long in_use = now.uordblks + now.hblkhd, most = atomic_load(&book->most_in_use);
    while (in_use > most && !atomic_compare_exchange_weak(&book->most_in_use, &most, in_use))
        continue;
    atomic_fetch_add(&book->refused, stats.unauthenticated_refused);
}

static int close_agent(void)
{
    weft_status before = weft_agent_status(self.agent), st = weft_agent_close(self.agent);
    if (st == WEFT_ERR_EVICTED || st == WEFT_ERR_STORE_LOST)
        return EXIT_OUT;
    if (st)
        violation(-1, "the agent closed with %s", weft_status_name(st));
    return before ? EXIT_OUT : 0;
}

static int live(void)
{
    pthread_t callers[CALLERS], meeting;
    functions_begin();
    for (int i = 0; i < CALLERS; i++)
        MUST(pthread_create(&callers[i], NULL, call_until_over, NULL) == 0);
    MUST(pthread_create(&meeting, NULL, meet_thread, NULL) == 0);
    reach(STAGE_ON);
    await_phase(PHASE_DRAIN);
    atomic_store(&self.over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    pthread_join(meeting, NULL);
    await_own_calls();
    reach(STAGE_DRAINED);
    await_phase(PHASE_DROP);
    drop_things();
    await_own_objects();
    reach(STAGE_DROPPED);
    await_phase(PHASE_CLOSE);
    weigh();
    reach(STAGE_CLOSING);
    int code = close_agent();
    functions_end();
    rooms_end();
    return code;
}

int work_in_seat(int rank, uint32_t life)
{
    pthread_t beating;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    book = book_find();
    self = (storm_self){.rank = rank, .life = life, .seat = &book->seats[rank]};
    atomic_store(&self.seat->under_way, 0);
    atomic_store(&self.seat->life, life);
    reach(STAGE_OPENING);
    MUST(pthread_create(&beating, NULL, beat, NULL) == 0);
    self.agent = open_agent();
    return self.agent ? live() : EXIT_OUT;
}
