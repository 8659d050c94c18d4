/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store: who is in the job, who has died, and when the whole job is done.
 *
 * The store is a state machine without sockets, threads or a clock:
 *
 *     wfi_store_create(&(wfi_store_options){.world_size = 4, .outputs = {send, close, random, shell}, ...}, &store);
 *     wfi_store_opened(store, 17);                           a process has connected; 17 is the shell's number for it
 *     wfi_store_received(store, 17, now_ns, frame, size);    calls outputs.send(shell, 17, answer, ...)
 *     wfi_store_tick(store, now_ns);                         when wfi_store_due says so
 *
 * A shell passes the events of its connections and the time to the store; the store answers through its outputs. So
 * the same code serves over TCP (server.c) and in the simulation (sim/store.c).
 *
 * LOCKING. None: the shell calls from one thread. Outputs are called from within the inputs, and must not call the
 * store. A shell that cannot send reports later that the connection was closed. LIFETIME. wfi_store_destroy frees the
 * store and sends nothing.
 *
 * JOINING. In a static job the store collects joins until world_size workers have joined, then sends the whole table
 * to each. A worker that leaves before that frees its slot. When the patience of the worker that joined first ends,
 * all waiting workers are told which ranks are missing. After the beginning, the slot of a dead worker may be taken
 * again; the slot of a worker that left may not. An elastic job begins when rank 0 has joined. Others join at any
 * time, at a free rank of their choice or at the lowest free one. A worker that joins late gets the current table (a
 * worker that is gone has no entry), and the others get its entry (`joined`). From then on it receives every message
 * in the same order as they do. Each join gets a new incarnation, one more than the last. Rank 0's slot is never
 * taken again. Nobody can join after the end of the job was announced, or after rank 0 has closed.
 *
 * PROOF. Before both sides have proved that they know the secret (job/protocol/proof.h), neither trusts the other or
 * tells it anything about the job. If only one side has a secret, the refusal says which.
 *
 * CONNECTIONS may be replaced; a member stays a member until it leaves or is declared dead. A member that hears
 * nothing opens another connection and resumes there: it shows a token that only it was given, and both sides say how
 * many kept messages they have received. So no message is lost or processed twice (job/protocol/outbox.h). The newest
 * connection is the one that counts.
 *
 * DEATHS. The store declares a member dead
 *   1. at once, if the member's host closed the connection without a goodbye: a process that dies closes all of its
 *      connections, and a living worker closes its current connection only after it has resumed on another. If the
 *      connection ends within 5 ms of the join, rule 2 applies: the worker may have given it up and join again;
 *   2. after RESET_MS without a resume, or a quarter of the bound if that is shorter, if the connection was reset:
 *      something between the hosts may have done that;
 *   3. after the death bound, if the network gave the connection up, or if the member had just resumed on it and
 *      nothing came yet;
 *   4. after the bound, if the member was told to send heartbeats and is silent;
 *   5. if a peer suspects it and it does not answer.
 * All others are told. The dead member is told as well, whenever it sends something. The bound is the one of rank 0's
 * options, for all. Time during which the store itself did not run (its ticks came late) is not counted as silence.
 * After a delay of more than half a bound the silence of every member starts anew, and members that are suspected or
 * disconnected get half a bound. Workers wait for the store for three bounds (job/link/link.h). A death by silence is
 * delayed, by at most a quarter of the bound, while a connection that has proved nothing yet is open: it may belong
 * to the silent member.
 *
 * LEAVING. A member of an elastic job may announce that it will leave. The store tells each other member once, and
 * each worker that joins before the member is gone. Nothing else changes for the member: it may still die. A worker
 * that wants its rank or its name gets no answer, and tries again until both are free.
 *
 * HEARTBEATS are sent by members on which another member depends (WFI_STORE_NEED; a member that closes depends on all
 * others), and by workers that wait for the job to begin. An idle job sends none.
 *
 * THE END of the job: termination.c. Rank 0 may end it early: all members are told, and nobody can join after that.
 */
#ifndef WFI_STORE_H
#define WFI_STORE_H

#include "job/protocol/protocol.h"

/* How long a connection to an evicted worker is kept: the worker may only be stopped, and read the message later. */
#define WFI_STORE_LINGER_MS 60000

typedef struct wfi_store_outputs {
    void (*send)(void *arg, uint64_t connection, const uint8_t *data, size_t size);
    /*
     * Closes after everything sent has been written; reads nothing more. keep_ms > 0: keeps the connection open for
     * that time.
     */
    void (*close)(void *arg, uint64_t connection, int64_t keep_ms);
    void (*random)(void *arg, void *out, size_t size); /* nonces and tokens */
    void *arg;
} wfi_store_outputs;

typedef struct wfi_store wfi_store;

typedef struct wfi_store_options {
    int world_size;
    bool elastic;
    int64_t death_timeout_ms; /* < 0: silence is no sign of death */
    const uint8_t *secret;    /* copied; NULL: none */
    size_t secret_size;
    const uint8_t *job_key; /* WFI_JOB_KEY_BYTES; copied, like the secret */
    /* copied; the reason sent to every worker that joins, which is refused. NULL: the store collects joins */
    const char *failure;
    uint64_t now_ns;
    wfi_store_outputs outputs;
    /* Describes the processes of ranks that the store awaits (wfi_store_awaits), for a log line and an error: "" or
     * "; rank 2 is ...". NULL: they are not known. */
    void (*describe_awaited)(void *arg, const wfi_store *store, char *out, size_t room);
    void *describe_arg;
} wfi_store_options;

typedef struct wfi_store_counts {
    uint64_t refused;  /* unauthenticated peers: wrong proofs, malformed frames */
    uint64_t messages; /* received and sent, without heartbeats */
} wfi_store_counts;

weft_status wfi_store_create(const wfi_store_options *options, wfi_store **out); /* WEFT_ERR_INVALID, WEFT_ERR_MEMORY */
void wfi_store_destroy(wfi_store *store);                                        /* sends nothing */

/* `connection` is the shell's number for it, used once. WEFT_ERR_MEMORY: the shell closes it. */
weft_status wfi_store_opened(wfi_store *store, uint64_t connection);

/* How a connection ended. */
typedef enum wfi_store_loss {
    WFI_STORE_ENDED, /* the other host reports that its process closed the connection or has ended */
    WFI_STORE_RESET, /* the other host, or something between the hosts, reset the connection */
    WFI_STORE_CUT,   /* the network or this side gave the connection up: this says nothing about the process */
} wfi_store_loss;
/* The other side closed the connection, or it broke. Never called after the close output. */
void wfi_store_closed(wfi_store *store, uint64_t connection, wfi_store_loss how, uint64_t now_ns);
/* One whole frame. */
void wfi_store_received(wfi_store *store, uint64_t connection, uint64_t now_ns, const uint8_t *frame, size_t size);
/* When the next tick is due; inputs may make it earlier. */
uint64_t wfi_store_due(const wfi_store *store);
void wfi_store_tick(wfi_store *store, uint64_t now_ns);

/*
 * Whether a worker has joined on this connection. The others are unauthenticated: the shell bounds their number and
 * time.
 */
bool wfi_store_has_joined(const wfi_store *store, uint64_t connection);
void wfi_store_count(const wfi_store *store, wfi_store_counts *out); /* NULL: zeros. Any thread */
/* this process refused a connection because it lacks descriptors or memory */
void wfi_store_out_of_resources(wfi_store *store);
void wfi_store_count_refusal(wfi_store *store, const char *why); /* counts a refusal that the shell made */
int wfi_store_alive(const wfi_store *store);                     /* living members, and workers that wait to join */

bool wfi_store_is_gathering(const wfi_store *store);     /* a static job that has not begun, and may still begin */
bool wfi_store_has_failed(const wfi_store *store);       /* every worker that joins is refused */
bool wfi_store_awaits(const wfi_store *store, int rank); /* it is gathering, and this rank has not joined */
/* `missing` workers will never come: tells `why` to all others, to those that join later as well. */
void wfi_store_give_up(wfi_store *store, const char *why, int missing);

/* Rank 0 closes: from now on the store is finished when no member is left, or at the deadline. */
void wfi_store_drain(wfi_store *store, uint64_t now_ns, uint64_t deadline_ns);
bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns);

#endif
