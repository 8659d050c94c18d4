/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - one life: joins the job, lets the program run until the driver says that the job ends, or until it is
 * declared dead, and ends with nothing left.
 */
#include "faults/faults.h"

#include "mem/slab.h"
#include "rpc/must.h"
#include "prng.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BEAT_MS 10
#define LEFT_MS 25000 /* of quiet time */
#define THREADS_MOST 8

faults_self self;
static _Thread_local uint64_t chance;
static const faults_program *program;

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
        chance = board->seed * 1000003 + self.life * UINT64_C(8191) + atomic_fetch_add(&threads, 1) + 1;
    return prng_below(&chance, below);
}

bool once_in(unsigned times)
{
    return chance_below(times) == 0;
}

bool goes_on(void)
{
    if (weft_agent_status(self.agent)) { /* what this worker does from now on may disturb others */
        atomic_store(&board->lives[self.life].over, true);
        return false;
    }
    return !atomic_load(&self.over) && atomic_load(&board->phase) == PHASE_ON;
}

static void *beat(void *arg)
{
    for (;; sleep_ms(BEAT_MS))
        atomic_fetch_add(&self.seat->beats, 1);
    return arg;
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static weft_status try_to_open(weft_agent **out)
{
    static const char secret[] = "it rains, and it pours";
    weft_error *error = NULL;
    weft_agent_options options = {.functions = program->functions,
                                  .function_count = program->function_count ? *program->function_count : 0,
                                  .has_rank = true,
                                  .rank = self.rank,
                                  .world_size = board->size,
                                  .elastic = true,
                                  .leaks_fail = true,
                                  .master_addr = board->master,
                                  .master_port = board->port,
                                  .secret = secret,
                                  .secret_size = sizeof(secret),
                                  .no_binding = true,
                                  .call_timeout_ms = DEFAULT_MS,
                                  .death_timeout_ms = board->bound_ms,
                                  .memory_budget_bytes = board->small_budget ? program->budget_bytes : 0};
    if (program->adjust)
        program->adjust(&options);
    weft_status status = weft_agent_open(&options, out, &error);
    weft_error_print(error, stderr);
    weft_error_unref(error);
    return status;
}

/* The seat may not be free yet, because the worker that had it is not declared dead. NULL: there is no job any more. */
static weft_agent *open_agent(void)
{
    weft_agent *agent;
    for (;; sleep_ms(20)) {
        weft_status status = try_to_open(&agent);
        if (!status)
            return agent;
        if (status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_RENDEZVOUS)
            return NULL;
        if (status != WEFT_ERR_EXISTS)
            fault(FAULT_WRONG, "the agent does not open: %s", weft_status_name(status));
        if (status != WEFT_ERR_EXISTS || atomic_load(&board->phase) != PHASE_ON)
            return NULL;
    }
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void reach(faults_stage stage)
{
    atomic_store(&self.seat->stage, stage);
}

static struct {
    pthread_mutex_t lock;
    bool closing; /* the agent may be gone */
} dumps = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Prints what the agent holds each time that the driver asks for it, also while the main thread waits for something. */
static void *dump_when_asked(void *arg)
{
    for (int dumped = atomic_load(&board->dump);; sleep_ms(50)) {
        int wanted = atomic_load(&board->dump);
        pthread_mutex_lock(&dumps.lock);
        if (wanted != dumped && !dumps.closing) {
            fprintf(stderr, "%d operations under way here:\n", atomic_load(&self.seat->under_way));
            (void)!weft_debug_dump(self.agent, stderr);
        }
        pthread_mutex_unlock(&dumps.lock);
        dumped = wanted;
    }
    return arg;
}

/* Until the driver lets all go on, or this worker is out of the job, or is to leave it. */
static void await_phase(faults_phase phase)
{
    while (atomic_load(&board->phase) < (int)phase && !weft_agent_status(self.agent) && !atomic_load(&self.seat->leave))
        sleep_ms(2);
}

static void weigh(void)
{
    weft_stats stats;
    weft_agent_stats(self.agent, &stats);
    wfi_slab_trim(0); /* recycled tensors */
    struct mallinfo2 now = mallinfo2();
    unsigned long in_use = now.uordblks + now.hblkhd, most = atomic_load(&board->most_in_use);
    while (in_use > most && !atomic_compare_exchange_weak(&board->most_in_use, &most, in_use))
        continue;
    atomic_fetch_add(&board->refused, stats.unauthenticated_refused);
}

static int close_agent(void)
{
    if (atomic_load(&self.seat->leave) && once_in(2)) { /* without waiting for anybody */
        weft_agent_stop(self.agent);
        return 0;
    }
    weft_status before = weft_agent_status(self.agent), status = weft_agent_close(self.agent, WEFT_FOREVER);
    if (status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST)
        return EXIT_OUT;
    if (status)
        fault(FAULT_LEAK, "the agent closed with %s", weft_status_name(status));
    return before ? EXIT_OUT : 0;
}

/*
 * Reports contexts, passes, calls and memory that the agent still holds some time after the whole job has nothing under
 * way.
 */
static void check_left(void)
{
    for (unsigned from = atomic_load(&board->quiet);; sleep_ms(5)) {
        weft_stats stats;
        size_t passes, contexts = weft_agent_contexts(self.agent, &passes);
        weft_agent_stats(self.agent, &stats);
        uint64_t calls = stats.calls_started - stats.calls_finished;
        if ((!contexts && !passes && !calls && !stats.bytes_held) || weft_agent_status(self.agent))
            return;
        if ((atomic_load(&board->quiet) - from) * TICK_MS < LEFT_MS)
            continue;
        fault(FAULT_LEAK, "when nothing was under way: %zu contexts, %zu passes, %llu calls, %llu bytes of the budget",
              contexts, passes, (unsigned long long)calls, (unsigned long long)stats.bytes_held);
        (void)!weft_debug_dump(self.agent, stderr);
        return;
    }
}

static void call(void (*function)(void))
{
    if (function)
        function();
}

static void *run_thread(void *arg)
{
    program->run((int)(intptr_t)arg);
    return arg;
}

static int live(void)
{
    pthread_t dumping, threads[THREADS_MOST];
    MUST(program->threads <= THREADS_MOST);
    MUST(pthread_create(&dumping, NULL, dump_when_asked, NULL) == 0);
    call(program->begin);
    for (int i = 0; i < program->threads; i++)
        MUST(pthread_create(&threads[i], NULL, run_thread, (void *)(intptr_t)i) == 0);
    atomic_store(&board->lives[self.life].incarnation, weft_agent_worker(self.agent, self.rank).incarnation);
    reach(STAGE_ON);
    await_phase(PHASE_DRAIN);
    atomic_store(&board->lives[self.life].over, true);
    atomic_store(&self.over, true);
    for (int i = 0; i < program->threads; i++)
        pthread_join(threads[i], NULL);
    call(program->end);
    reach(STAGE_DRAINED);
    await_phase(PHASE_DROP);
    call(program->drop);
    reach(STAGE_DROPPED);
    await_phase(PHASE_CLOSE);
    if (!weft_agent_status(self.agent) && !atomic_load(&self.seat->leave)) {
        check_left();
        call(program->check);
    }
    weigh();
    reach(STAGE_CLOSING);
    pthread_mutex_lock(&dumps.lock);
    dumps.closing = true;
    pthread_mutex_unlock(&dumps.lock);
    int code = close_agent();
    call(program->closed);
    return code;
}

int work_in_seat(const faults_program *p, int rank, uint32_t life)
{
    pthread_t beating;
    program = p;
    board_begin(p->book_bytes);
    self = (faults_self){.rank = rank, .life = life, .seat = &board->seats[rank]};
    atomic_store(&self.seat->under_way, 0);
    atomic_store(&self.seat->leave, false);
    memset(self.seat->waits, 0, sizeof(self.seat->waits)); /* those of the life before */
    atomic_store(&self.seat->life, life);
    reach(STAGE_OPENING);
    MUST(pthread_create(&beating, NULL, beat, NULL) == 0);
    self.agent = open_agent();
    int code = self.agent ? live() : EXIT_OUT;
    atomic_store(&board->lives[self.life].over, true);
    return code;
}
