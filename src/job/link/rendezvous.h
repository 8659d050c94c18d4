/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - a worker's link to the store: joining the job, the table of its members, deaths, and the end of the
 * job.
 *
 *     wfi_rendezvous_open(&options, &link, &error);           joins; blocks until the store answers
 *     const wfi_member *members = wfi_rendezvous_members(link);
 *     wfi_rendezvous_interest(link, rank, incarnation, true);     from now on `died` reports that worker's death
 *     wfi_rendezvous_close(link);
 *
 * The store is a state machine that rank 0 runs (job/store/store.h). Only the store numbers incarnations and declares
 * deaths. It declares a death when a worker's connection ends without a goodbye; when a worker on which another
 * depends is silent for death_timeout_ms; and when peers suspect a worker that then does not answer.
 *
 * A link survives its connections: a cut that is shorter than the bound has no effect. A worker that was declared
 * dead learns that when it next sends something: `evicted`. `store_lost` is called when the store's process is
 * certainly gone, or after three bounds of silence.
 *
 * THREADS. Any thread may call. Upcalls come from the link's own thread (in the simulation: from its loop), one at a
 * time, without any lock of the link. No upcall comes before wfi_rendezvous_open has returned or after
 * wfi_rendezvous_close has returned.
 */
#ifndef WFI_RENDEZVOUS_H
#define WFI_RENDEZVOUS_H

#include "base/clock.h"
#include "job/store/store.h"

#include <weft/sim.h>

typedef struct wfi_rendezvous_events {
    /*
     * A worker took a rank after this one joined. The end of the rank's former incarnation, if any, was reported
     * before. Borrowed.
     */
    void (*joined)(void *arg, const wfi_member *member);
    void (*died)(void *arg, int rank, uint32_t incarnation, const char *why);
    void (*leaving)(void *arg, int rank, uint32_t incarnation); /* it has announced that it will leave */
    void (*left)(void *arg, int rank, uint32_t incarnation);
    /* that worker suspects this one: it may be unable to connect to this worker */
    void (*dial)(void *arg, int rank, uint32_t incarnation);
    void (*evicted)(void *arg, const char *why);    /* this worker was declared dead; the link is closed */
    void (*store_lost)(void *arg, const char *why); /* the link is closed */
    void (*probe)(void *arg, uint64_t wave);        /* answer with wfi_rendezvous_report, now or when idle */
    /* Member `rank` closes or serves, or (`on` false) no longer does; NULL: not needed. */
    void (*ending)(void *arg, int rank, uint32_t incarnation, bool on);
    void (*served)(void *arg, uint64_t number);    /* the end of wfi_rendezvous_serving; NULL: not needed */
    void (*synced)(void *arg, uint64_t number);    /* the answer to wfi_rendezvous_sync; NULL: not needed */
    void (*terminated)(void *arg);                 /* all workers close, and nothing is outstanding anywhere */
    void (*job_ended)(void *arg, const char *why); /* rank 0 ended the job; the link continues */
    void (*awaited)(void *arg, const char *whom);  /* the answer to wfi_rendezvous_await; NULL: not needed */
    void *arg;
} wfi_rendezvous_events;

typedef struct wfi_rendezvous_options {
    int rank, world_size; /* elastic: rank -1 takes the lowest free one; world_size is the number of slots */
    bool elastic;
    const uint8_t *secret; /* NULL: none; the store and all workers must have the same one, or none */
    size_t secret_size;
    const char *name;         /* if rank is -1 it may be NULL: the name is then worker<rank> */
    uint64_t machine;         /* as in wfi_member */
    const uint8_t *addresses; /* as in wfi_member; at most WFI_STORE_ADDRESSES_MAX bytes */
    size_t addresses_size;
    uint8_t cuda_devices;      /* as in wfi_member */
    const uint8_t *public_key; /* WFI_PUBLIC_KEY_BYTES; NULL: all zero, which is none */
    const char *master_addr;
    int master_port;
    int port_count; /* how many ports the store may have: master_port and those above; 0 is 1 */
    /*
     * Rank 0: the other workers' processes. If one of them ends before the job begins, the job fails. NULL: not known.
     * Used until wfi_rendezvous_open or wfi_rendezvous_refuse returns.
     */
    struct wfi_processes *processes;
    bool is_spawned; /* rank 0 listened before it started this process: a refused connection is final */
    int store_fd;    /* rank 0: a listening socket to serve the store on, or -1 to bind master_addr:master_port */
    weft_sim *sim;   /* not NULL: over the simulation's channels */
    bool no_threads; /* pumped by wfi_rendezvous_pump (rank 0's store keeps its thread) */
    int64_t join_timeout_ms;
    int64_t death_timeout_ms; /* rank 0: the job's bound; < 0: silence is no sign of death */
    const wfi_clock *clock;
    const wfi_rendezvous_events *events; /* copied */
} wfi_rendezvous_options;

typedef struct wfi_rendezvous wfi_rendezvous;

/*
 * Joins. Blocks (in the simulation: parks) until the table is complete; in an elastic job, or for the slot of a dead
 * worker, until the store has answered. members: an array of world_size, by rank, as it was at the join (incarnation
 * 0: an empty, dead or left slot), owned by the link until it closes. job_key: the job's random key, the same for all
 * workers. With a secret, key and table come only after both sides have proved that they have it. Errors as in
 * weft_agent_open.
 */
weft_status wfi_rendezvous_open(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error);
/*
 * For a rank 0 that cannot join: refuses every worker that connects, with the text `why`, until all have connected, all
 * `processes` have ended, or two seconds have passed. Uses world_size, elastic, the secret, processes and store_fd,
 * which it closes.
 */
void wfi_rendezvous_refuse(const wfi_rendezvous_options *options, const char *why);
const wfi_member *wfi_rendezvous_members(const wfi_rendezvous *link);
void wfi_rendezvous_drop_members(wfi_rendezvous *link); /* frees the table; the caller has made a copy */
const uint8_t *wfi_rendezvous_job_key(const wfi_rendezvous *link);
/* the store's, which is the same for the whole job */
int64_t wfi_rendezvous_death_timeout_ms(const wfi_rendezvous *link);
int wfi_rendezvous_rank(const wfi_rendezvous *link); /* as given, or as assigned by the store */

/*
 * Starts (`on`) or ends this worker's interest in that worker. (net counts the reasons: outstanding or deferred
 * calls, references, watches.) The store makes both workers send heartbeats; an idle job sends none. Cheap,
 * idempotent, does not block. Returns false if there is no memory to send it now; the caller must call again.
 */
bool wfi_rendezvous_interest(wfi_rendezvous *link, int rank, uint32_t incarnation, bool on);

/* A peer does not answer or its connection is refused: evidence for the store. */
void wfi_rendezvous_suspect(wfi_rendezvous *link, int rank, uint32_t incarnation, const char *why);
/*
 * Sends a query to the store, which answers with the upcall `synced` of the same number. All events that the store
 * knew when the query reached it are reported first. Does not block. The link keeps each query until the store has
 * acknowledged it, so a caller must have at most a few unanswered ones.
 */
void wfi_rendezvous_sync(wfi_rendezvous *link, uint64_t number);
/* This worker closes: from now on the store may probe it. */
void wfi_rendezvous_closing(wfi_rendezvous *link);
/* This worker serves until the upcall `served` of the same number; 0: it no longer does. */
void wfi_rendezvous_serving(wfi_rendezvous *link, uint64_t number);
/* From now on the upcall `ending` tells which members close or serve: first of those that do so now. */
void wfi_rendezvous_follow(wfi_rendezvous *link);
/* This worker leaves an elastic job and takes no more calls: the others are told. */
void wfi_rendezvous_leaving(wfi_rendezvous *link);
/* Rank 0 ends the job: all are told, including rank 0. */
void wfi_rendezvous_end_job(wfi_rendezvous *link, const char *why);
/*
 * Asks the store which members the end of the job waits for. The answer is the upcall `awaited`; there is none if a
 * connection breaks.
 */
void wfi_rendezvous_await(wfi_rendezvous *link);
void wfi_rendezvous_report(wfi_rendezvous *link, uint64_t wave, const wfi_idle_report *report);
/*
 * Says goodbye (the others are told that this worker left) and ends. No upcall comes after it returns. Rank 0's store
 * serves until the others have left, at most death_timeout_ms.
 */
void wfi_rendezvous_close(wfi_rendezvous *link);

/*
 * With no_threads: processes input and sends what is due. Returns the descriptor to poll; *due is the time of the
 * next heartbeat.
 */
int wfi_rendezvous_pump(wfi_rendezvous *link, uint64_t *due_ns);

/* The counts of rank 0's store, on rank 0; zeros elsewhere. Any thread, until the link closes. */
void wfi_rendezvous_count(const wfi_rendezvous *link, wfi_store_counts *out);

#endif
