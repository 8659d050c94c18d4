/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - a worker's link to the store: joining the job, the table of its members, deaths, and the end of the
 * job.
 *
 *     wfi_rendezvous_open(&options, &link, &error);           joins; blocks until the answer is there
 *     const wfi_member *members = wfi_rendezvous_members(link);
 *     wfi_rendezvous_interest(link, rank, incarnation, true);     from now on `died` tells of that worker's death
 *     wfi_rendezvous_close(link);
 *
 * The store is a state machine that rank 0 runs (job/store/store.h). It alone numbers incarnations and declares deaths.
 * It does so when a worker's connection ends without a goodbye; when a worker on whom somebody depends is silent for
 * death_timeout_ms; and when peers suspect a worker that then does not answer.
 *
 * A link survives its connections: a cut that is shorter than the bound has no effect. A worker that was declared dead
 * learns that when it speaks again: `evicted`. `store_lost` is called when the store's process is certainly gone, or
 * after three bounds of silence.
 *
 * THREADS. Any thread may call. Upcalls come from the link's own thread (in the simulation: from its loop), one at a
 * time, without any lock of the link. None comes before wfi_rendezvous_open has returned, nor after
 * wfi_rendezvous_close has.
 */
#ifndef WFI_RENDEZVOUS_H
#define WFI_RENDEZVOUS_H

#include "base/clock.h"
#include "job/store/store.h"

#include <weft/sim.h>

typedef struct wfi_rendezvous_events {
    /* Somebody took a rank after we joined; the rank's former incarnation, if any, was reported gone before. Borrowed. */
    void (*joined)(void *arg, const wfi_member *member);
    void (*died)(void *arg, int rank, uint32_t incarnation, const char *why);
    void (*leaving)(void *arg, int rank, uint32_t incarnation); /* it has announced that it will leave */
    void (*left)(void *arg, int rank, uint32_t incarnation);
    void (*dial)(void *arg, int rank, uint32_t incarnation); /* that worker suspects us: it may have no way to us */
    void (*evicted)(void *arg, const char *why);             /* we were declared dead; the link is closed */
    void (*store_lost)(void *arg, const char *why);          /* the link is closed */
    void (*probe)(void *arg, uint64_t wave);                 /* answer with wfi_rendezvous_report, now or when idle */
    void (*synced)(void *arg, uint64_t number);              /* the answer to wfi_rendezvous_sync; NULL: not needed */
    void (*terminated)(void *arg);                           /* everybody closes and nothing is outstanding anywhere */
    void (*job_ended)(void *arg, const char *why);           /* rank 0 ended the job; the link goes on */
    void (*awaited)(void *arg, const char *whom);            /* the answer to wfi_rendezvous_await; NULL: not needed */
    void *arg;
} wfi_rendezvous_events;

typedef struct wfi_rendezvous_options {
    int rank, world_size; /* elastic: rank may be -1, whichever is free; world_size is the number of slots */
    bool elastic;
    const uint8_t *secret; /* NULL: none; the store and all workers have the same, or nobody has one */
    size_t secret_size;
    const char *name;       /* rank -1: may be NULL, then it is worker<rank> */
    const uint8_t *address; /* the fabric's */
    size_t address_size;
    const uint8_t *public_key; /* WFI_PUBLIC_KEY_BYTES; NULL: all zero, which is none */
    const char *master_addr;
    int master_port;
    struct wfi_processes *processes; /* rank 0: who else joins; once all have ended nobody will. NULL: not known */
    int store_fd;    /* rank 0: a listening socket to serve the store on, or -1 to bind master_addr:master_port */
    weft_sim *sim;   /* not NULL: over the simulation's channels */
    bool no_threads; /* pumped by wfi_rendezvous_pump (rank 0's store keeps its thread) */
    int64_t join_timeout_ms;
    int64_t death_timeout_ms; /* rank 0: the job's; < 0: nobody is declared dead for silence */
    const wfi_clock *clock;
    const wfi_rendezvous_events *events; /* copied */
} wfi_rendezvous_options;

typedef struct wfi_rendezvous wfi_rendezvous;

/*
 * Joins; blocks until the table is complete (in the simulation: parks); in an elastic job, and for a slot that a dead worker
 * held, until the store has answered. members: an array of world_size, by rank, as it was when we joined (incarnation 0: an
 * empty, dead or left slot), owned by the link until it closes; job_key: the job's random key (all workers get the same).
 * With a secret, key and table come only after both sides have proved that they have it. Errors as weft_agent_open's.
 */
weft_status wfi_rendezvous_open(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error);
/*
 * For a rank 0 that cannot join: refuses every worker that connects, with the text `why`, until all have connected or
 * two seconds have passed. Uses world_size, elastic, the secret and store_fd, which it closes.
 */
void wfi_rendezvous_refuse(const wfi_rendezvous_options *options, const char *why);
const wfi_member *wfi_rendezvous_members(const wfi_rendezvous *link);
void wfi_rendezvous_drop_members(wfi_rendezvous *link); /* frees the table, of which the caller has made a copy */
const uint8_t *wfi_rendezvous_job_key(const wfi_rendezvous *link);
int64_t wfi_rendezvous_death_timeout_ms(const wfi_rendezvous *link); /* the store's, which all of the job have */
int wfi_rendezvous_rank(const wfi_rendezvous *link);                 /* ours, as given or as found free */

/*
 * We have an interest in that worker from now on, or not any more (net has counted: calls outstanding or deferred, references, watches).
 * The store has those in whom somebody has an interest, and those who have one, send heartbeats; an idle job is silent. Cheap,
 * idempotent, does not block. False: there is no memory to say it now; it has to be said again.
 */
bool wfi_rendezvous_interest(wfi_rendezvous *link, int rank, uint32_t incarnation, bool on);

/* A peer does not answer or its connection is refused: evidence for the store. */
void wfi_rendezvous_suspect(wfi_rendezvous *link, int rank, uint32_t incarnation, const char *why);
/* Sends a query to the store, whose answer is the upcall `synced` with the same number. Before it come the upcalls of
 * all news that the store had when the query reached it. Does not block. The link keeps each query until the store has
 * acknowledged it, so a caller has at most a few unanswered ones. */
void wfi_rendezvous_sync(wfi_rendezvous *link, uint64_t number);
/* We are closing: from now on the store may probe. */
void wfi_rendezvous_closing(wfi_rendezvous *link);
/* We leave an elastic job, and take no calls any more: the others are told. */
void wfi_rendezvous_leaving(wfi_rendezvous *link);
/* We are rank 0, and end the job: all are told, we ourselves too. */
void wfi_rendezvous_end_job(wfi_rendezvous *link, const char *why);
/* Asks the store which members the end of the job waits for: the upcall `awaited`, unless a connection breaks. */
void wfi_rendezvous_await(wfi_rendezvous *link);
void wfi_rendezvous_report(wfi_rendezvous *link, uint64_t wave, const wfi_idle_report *report);
/* Says goodbye (the others are told that we left) and ends; no upcall after it returns. Rank 0's store goes on serving
 * until the others have left, at most death_timeout_ms. */
void wfi_rendezvous_close(wfi_rendezvous *link);

/* With no_threads: handles what has come, sends what is due; returns the descriptor to sleep on, and in *due the time of
 * the next heartbeat. */
int wfi_rendezvous_pump(wfi_rendezvous *link, uint64_t *due_ns);

/* What the store counted, if it is ours: rank 0's; else zeros. Any thread, until it closes. */
void wfi_rendezvous_count(const wfi_rendezvous *link, wfi_store_counts *out);

#endif
