/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_sim.c - the rendezvous inside the simulation: joining, deaths, pauses, the end; and that it
 * replays. */
#include "make.h"
#include "unit.h"

#include "job/link/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define WORKERS_MAX 64

typedef struct sim_worker {
    struct sim_job *job;
    int rank;
    int died, left, evicted, store_lost, terminated;
    uint64_t noticed_ns; /* the last of these */
    uint64_t leaves_ns;  /* at that time of the world; 0: after the job's life_ms */
    uint32_t again;      /* the incarnation as which it joined again; 0: it did not */
    weft_status status;
    char error[256];
    wfi_rendezvous *link;
} sim_worker;

typedef struct sim_job {
    weft_sim *sim;
    int count;
    int64_t death_timeout_ms, join_timeout_ms;
    uint64_t life_ms; /* how long each stays a member, if it does not close by agreement */
    bool by_agreement;
    bool idle;    /* nobody depends on anybody */
    bool rejoins; /* who is out joins again */
    sim_worker workers[WORKERS_MAX];
} sim_job;

static void noticed(sim_worker *worker, int *count)
{
    (*count)++;
    worker->noticed_ns = weft_sim_now(worker->job->sim);
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    sim_worker *worker = arg;
    assert_true(rank >= 0 && incarnation > 0 && why);
    noticed(worker, &worker->died);
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    sim_worker *worker = arg;
    assert_true(rank >= 0 && incarnation > 0);
    worker->left++;
}

static void on_evicted(void *arg, const char *why)
{
    sim_worker *worker = arg;
    assert_non_null(why);
    noticed(worker, &worker->evicted);
}

static void on_store_lost(void *arg, const char *why)
{
    sim_worker *worker = arg;
    assert_non_null(why);
    noticed(worker, &worker->store_lost);
}

static void on_probe(void *arg, uint64_t wave)
{
    sim_worker *worker = arg;
    static const wfi_idle_report idle = {.idle = true};
    wfi_rendezvous_report(worker->link, wave, &idle);
}

static void on_terminated(void *arg)
{
    sim_worker *worker = arg;
    noticed(worker, &worker->terminated);
}

static void open_link(sim_worker *worker)
{
    char name[32];
    weft_error *error = NULL;
    snprintf(name, sizeof(name), "worker%d", worker->rank);
    wfi_rendezvous_events events = {.died = on_died,
                                    .left = on_left,
                                    .evicted = on_evicted,
                                    .store_lost = on_store_lost,
                                    .probe = on_probe,
                                    .terminated = on_terminated,
                                    .arg = worker};
    wfi_rendezvous_options options = {.rank = worker->rank,
                                      .world_size = worker->job->count,
                                      .name = name,
                                      .store_fd = -1,
                                      .sim = worker->job->sim,
                                      .join_timeout_ms = worker->job->join_timeout_ms,
                                      .death_timeout_ms = worker->job->death_timeout_ms,
                                      .events = &events};
    worker->status = wfi_rendezvous_open(&options, &worker->link, &error);
    snprintf(worker->error, sizeof(worker->error), "%s", weft_error_message(error));
    weft_error_unref(error);
}

static void join_again(sim_worker *worker)
{
    wfi_rendezvous_close(worker->link);
    worker->link = NULL;
    open_link(worker);
    if (!worker->status)
        worker->again = wfi_rendezvous_members(worker->link)[worker->rank].incarnation;
}

static void live(sim_worker *worker)
{
    sim_job *job = worker->job;
    uint64_t until_ns = worker->leaves_ns ? worker->leaves_ns : weft_sim_now(job->sim) + job->life_ms * MS, now_ns;
    while ((now_ns = weft_sim_now(job->sim)) < until_ns) {
        weft_sim_sleep(job->sim, until_ns - now_ns < MS ? until_ns - now_ns : MS);
        if (job->rejoins && worker->evicted + worker->store_lost > 0 && !worker->again)
            join_again(worker);
    }
}

static void program(weft_sim *sim, int rank, void *arg)
{
    sim_job *job = arg;
    sim_worker *worker = &job->workers[rank];
    open_link(worker);
    if (worker->status)
        return;
    for (int other = 0; other < job->count && !job->idle; other++)
        wfi_rendezvous_interest(worker->link, other, wfi_rendezvous_members(worker->link)[other].incarnation, true);
    if (job->by_agreement)
        wfi_rendezvous_closing(worker->link);
    else
        live(worker);
    while (job->by_agreement && !worker->terminated && !worker->store_lost && !worker->evicted)
        weft_sim_sleep(sim, MS);
    wfi_rendezvous *link = worker->link;
    worker->link = NULL;
    wfi_rendezvous_close(link);
}

static sim_job *plan(int count, uint64_t seed)
{
    sim_job *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    *job = (sim_job){.count = count, .death_timeout_ms = 2000, .join_timeout_ms = 60000, .life_ms = 10000};
    job->sim = sim_open(&(weft_sim_options){.seed = seed});
    assert_non_null(job->sim);
    for (int rank = 0; rank < count; rank++) {
        job->workers[rank].job = job;
        job->workers[rank].rank = rank;
    }
    return job;
}

static void start(sim_job *job, int rank)
{
    assert_int_equal(weft_sim_spawn(job->sim, rank, program, job), WEFT_OK);
}

static void start_all(sim_job *job)
{
    for (int rank = job->count - 1; rank >= 0; rank--) /* rank 0 last: the others have to try again */
        start(job, rank);
}

/* Links of killed ranks are freed here, off any fiber. */
static void finish(sim_job *job)
{
    for (int rank = 0; rank < job->count; rank++)
        if (job->workers[rank].link)
            wfi_rendezvous_close(job->workers[rank].link);
    weft_sim_close(job->sim);
    free(job);
}

typedef void (*mischief)(weft_sim *sim);
static mischief planned;

/* A bystander, of a rank outside the job, does something to the world at 3 s. */
static void bystander(weft_sim *sim, int rank, void *arg)
{
    weft_sim_sleep(sim, 3000 * MS);
    planned(sim);
}

static void run_with(sim_job *job, mischief what)
{
    planned = what;
    start_all(job);
    assert_int_equal(weft_sim_spawn(job->sim, 1000, bystander, NULL), WEFT_OK);
    assert_int_equal(weft_sim_run(job->sim, 120000), WEFT_OK);
}

static void kill_2(weft_sim *sim)
{
    weft_sim_kill(sim, 2);
}

static void kill_0(weft_sim *sim)
{
    weft_sim_kill(sim, 0);
}

static void pause_2_for_5_s(weft_sim *sim)
{
    weft_sim_pause(sim, 2);
    weft_sim_sleep(sim, 5000 * MS);
    weft_sim_resume(sim, 2);
}

static void pause_2_for_1_s(weft_sim *sim)
{
    weft_sim_pause(sim, 2);
    weft_sim_sleep(sim, 1000 * MS);
    weft_sim_resume(sim, 2);
}

static void cut_2_for_1_s(weft_sim *sim)
{
    weft_sim_cut(sim, 0, 2);
    weft_sim_sleep(sim, 1000 * MS);
    weft_sim_heal(sim, 0, 2);
}

static void all_join_though_rank_0_comes_last(void **state)
{
    sim_job *job = plan(WORKERS_MAX, 1);
    start_all(job);
    assert_int_equal(weft_sim_run(job->sim, 60000), WEFT_OK);
    for (int rank = 0; rank < job->count; rank++) {
        assert_int_equal(job->workers[rank].status, WEFT_OK);
        assert_int_equal(job->workers[rank].died + job->workers[rank].store_lost + job->workers[rank].evicted, 0);
    }
    finish(job);
}

static void closing_by_agreement_terminates(void **state)
{
    sim_job *job = plan(16, 2);
    job->by_agreement = true;
    start_all(job);
    assert_int_equal(weft_sim_run(job->sim, 60000), WEFT_OK);
    for (int rank = 0; rank < job->count; rank++)
        assert_int_equal(job->workers[rank].terminated, 1);
    assert_true(weft_sim_now(job->sim) < 1000 * MS);
    finish(job);
}

static void a_missing_rank_is_named(void **state)
{
    sim_job *job = plan(4, 3);
    for (int rank = 0; rank < 4; rank++)
        if (rank != 2)
            start(job, rank);
    assert_int_equal(weft_sim_run(job->sim, 120000), WEFT_OK);
    assert_int_equal(job->workers[0].status, WEFT_ERR_RENDEZVOUS);
    assert_string_equal(job->workers[3].error, "rank 2 did not come within 60 s");
    assert_string_equal(job->workers[0].error, "rank 2 did not come within 60 s");
    finish(job);
}

static void a_killed_rank_is_dead_at_once(void **state)
{
    sim_job *job = plan(4, 4);
    run_with(job, kill_2);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(job->workers[rank].died, rank != 2);
    assert_true(job->workers[1].noticed_ns < 3001 * MS);
    finish(job);
}

static void a_paused_rank_is_dead_within_the_bound_and_evicted_when_it_resumes(void **state)
{
    sim_job *job = plan(4, 5);
    run_with(job, pause_2_for_5_s);
    assert_int_equal(job->workers[1].died, 1);
    assert_true(job->workers[1].noticed_ns <= 5010 * MS);
    assert_int_equal(job->workers[2].evicted, 1);
    assert_int_equal(job->workers[2].store_lost, 0);
    finish(job);
}

static void a_pause_shorter_than_the_bound_goes_unnoticed(void **state)
{
    sim_job *job = plan(4, 6);
    run_with(job, pause_2_for_1_s);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(job->workers[rank].died + job->workers[rank].evicted + job->workers[rank].store_lost, 0);
    finish(job);
}

static void a_partition_shorter_than_the_bound_heals_unnoticed(void **state)
{
    sim_job *job = plan(4, 7);
    run_with(job, cut_2_for_1_s);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(job->workers[rank].died + job->workers[rank].evicted + job->workers[rank].store_lost, 0);
    finish(job);
}

static void pause_0_for_5_s(weft_sim *sim)
{
    weft_sim_pause(sim, 0);
    weft_sim_sleep(sim, 5000 * MS);
    weft_sim_resume(sim, 0);
}

/* The store stands still for two and a half bounds, and goes on: its own silence says nothing about the others. */
static void a_paused_store_that_goes_on_loses_nobody(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sim_job *job = plan(5, seed);
        run_with(job, pause_0_for_5_s);
        for (int rank = 0; rank < 5; rank++)
            assert_int_equal(job->workers[rank].died + job->workers[rank].evicted + job->workers[rank].store_lost, 0);
        finish(job);
    }
}

static uint64_t cut_ms;

static void cut_2(weft_sim *sim)
{
    weft_sim_cut(sim, 0, 2);
    weft_sim_sleep(sim, cut_ms * MS);
    weft_sim_heal(sim, 0, 2);
}

/* Up to three bounds it is told that it was declared dead, past them the store is lost to it; either way it joins
 * again. */
static void who_was_cut_off_for_long_joins_again_as_another(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        bool is_long = seed % 2;
        sim_job *job = plan(4, seed);
        job->rejoins = true;
        job->life_ms = 30000;
        cut_ms = is_long ? 6500 + 1000 * seed : 2500 + 300 * seed;
        run_with(job, cut_2);
        assert_int_equal(job->workers[2].evicted, !is_long);
        assert_int_equal(job->workers[2].store_lost, is_long);
        assert_int_equal(job->workers[2].again, 5);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(job->workers[rank].died, rank != 2);
        finish(job);
    }
}

/* It leaves at some moment while its link looks for another wire, or has just found one. */
static void a_goodbye_that_meets_a_resume_is_a_goodbye(void **state)
{
    cut_ms = 900;
    for (uint64_t at = 0; at < 100; at++) {
        sim_job *job = plan(3, at);
        job->workers[2].leaves_ns = 3900 * MS + at * 2000; /* the greeting takes some tens of microseconds */
        run_with(job, cut_2);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(job->workers[rank].died, 0);
            assert_true(job->workers[rank].left >= 1);
        }
        finish(job);
    }
}

static void a_killed_store_is_lost_to_all(void **state)
{
    sim_job *job = plan(4, 8);
    run_with(job, kill_0);
    for (int rank = 1; rank < 4; rank++) {
        assert_int_equal(job->workers[rank].store_lost, 1);
        assert_int_equal(job->workers[rank].died, 0);
    }
    finish(job);
}

static uint64_t fingerprint(uint64_t seed)
{
    sim_job *job = plan(8, seed);
    run_with(job, pause_2_for_5_s);
    uint64_t hash = weft_sim_trace_hash(job->sim);
    finish(job);
    return hash;
}

static void a_seed_replays(void **state)
{
    assert_int_equal(fingerprint(11), fingerprint(11));
    assert_int_not_equal(fingerprint(11), fingerprint(12));
}

UNIT_MAIN(all_join_though_rank_0_comes_last, closing_by_agreement_terminates, a_missing_rank_is_named,
          a_killed_rank_is_dead_at_once, a_paused_rank_is_dead_within_the_bound_and_evicted_when_it_resumes,
          a_pause_shorter_than_the_bound_goes_unnoticed, a_partition_shorter_than_the_bound_heals_unnoticed,
          a_paused_store_that_goes_on_loses_nobody, who_was_cut_off_for_long_joins_again_as_another,
          a_goodbye_that_meets_a_resume_is_a_goodbye, a_killed_store_is_lost_to_all, a_seed_replays)
