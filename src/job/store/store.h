/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store: who is in the job, who has died, and when the whole job is done. A state machine without socket,
 * thread and clock.
 *
 *     wfi_store_create(&(wfi_store_options){.world_size = 4, .outputs = {send, close, random, shell}, ...}, &store);
 *     wfi_store_opened(store, 17);                           somebody has connected; 17 is the shell's number for that
 *     wfi_store_received(store, 17, now_ns, frame, size);    calls outputs.send(shell, 17, answer, ...)
 *     wfi_store_tick(store, now_ns);                         when wfi_store_due says so
 *
 * A shell feeds it with what happens on its connections, and with the time; the store answers through its outputs. So
 * the same code serves over TCP (server.c) and in the simulation (sim.c).
 *
 * LOCKING. None: the shell calls from one thread. Outputs are called from within the inputs, and must not call the
 * store. A shell that cannot send reports later that the connection was closed. LIFETIME. wfi_store_destroy frees it
 * and sends nothing.
 *
 * JOINING. In a static job the store collects joins until world_size workers are there, then answers each with the
 * whole table. A worker that goes away before that frees its place. When the one who came first has waited as long as
 * it wants to, all who wait are told who is missing. After the beginning, the slot of a dead worker may be taken again;
 * that of a worker that left may not. An elastic job begins when rank 0 has joined. Others join at any time, at a rank
 * of their choice that nobody holds, or at the lowest such. Who joins late gets the table as it is (a worker that is
 * gone has no entry), and the others get its entry (`joined`). From then on it hears of everything in the same order as
 * they do. Each join gets a new incarnation, one more than the last. Rank 0's slot is never taken again. Nobody can
 * join after the end of the job was told, or after rank 0 has closed.
 *
 * PROOF. Neither side believes or tells anything before both have proved that they know the secret
 * (job/protocol/proof.h). If only one side has a secret, the refusal says which.
 *
 * CONNECTIONS come and go; a member stays a member until it leaves or is declared dead. A member that hears nothing
 * opens another connection and resumes there: it shows a token that only it was given, and both sides say how many kept
 * messages they have received. So none is lost and none is taken twice (job/protocol/outbox.h). The newest connection
 * is the one that counts.
 *
 * DEATHS. The store declares a member dead
 *   1. at once, if the member's host closed the connection without a goodbye: a process that dies closes all of its
 *      own, and a living worker never closes the connection that counts before it has resumed on another; within
 *      5 ms of its joining it counts as in 2, as it may have given that connection up, and joins again;
 *   2. after RESET_MS without a resume, if the connection was reset, as something between the hosts may have done that;
 *   3. after the death bound, if the network gave the connection up, or if the member had just resumed on it and
 *      nothing came yet;
 *   4. after the bound, if the member was told to send heartbeats and is silent;
 *   5. if a peer suspects it and it does not answer.
 * All others are told. The dead one is told as well, whenever it speaks. The bound is that of rank 0's options, for
 * all. Time during which the store itself did not run (its ticks came late) counts as nobody's silence, and after half
 * a bound of that every member gets a new bound. Its workers wait for the store for three bounds (job/link/link.h).
 * Before the store judges anybody's silence it hears who is connecting and has not proved anything yet, for at most a
 * quarter of the bound: it may be the silent one.
 *
 * LEAVING. A member of an elastic job may announce that it will leave. The store tells each other member once, and each
 * worker that joins before the member is gone. Nothing else changes for the member: it may still die.
 *
 * HEARTBEATS are sent by members on whom somebody depends (WFI_STORE_NEED; a member that closes depends on all others),
 * and by those who wait for the job to begin. An idle job sends none.
 *
 * THE END of the job: termination.c. Rank 0 may end it before its time: all members are told, and nobody may join any
 * more.
 */
#ifndef WFI_STORE_H
#define WFI_STORE_H

#include "job/protocol/protocol.h"

/* How long a connection to an evicted worker is kept, in case it is only stopped and reads later what it was sent. */
#define WFI_STORE_LINGER_MS 60000

typedef struct wfi_store_outputs {
    void (*send)(void *arg, uint64_t connection, const uint8_t *data, size_t size);
    /* Closes once what was sent has left; reads nothing more. keep_ms > 0: keeps it open for so long. */
    void (*close)(void *arg, uint64_t connection, int64_t keep_ms);
    void (*random)(void *arg, void *out, size_t size); /* nonces and tokens */
    void *arg;
} wfi_store_outputs;

typedef struct wfi_store_options {
    int world_size;
    bool elastic;
    int64_t death_timeout_ms; /* < 0: nobody dies of silence */
    const uint8_t *secret;    /* copied; NULL: none */
    size_t secret_size;
    const uint8_t *job_key; /* WFI_JOB_KEY_BYTES; copied, as the secret is */
    const char *failure;    /* copied; every worker that joins is refused with it. NULL: the store gathers the job */
    uint64_t now_ns;
    wfi_store_outputs outputs;
} wfi_store_options;

typedef struct wfi_store_counts {
    uint64_t refused;  /* unauthenticated peers: wrong proofs, nonsense */
    uint64_t messages; /* that came and that left; without heartbeats */
} wfi_store_counts;

typedef struct wfi_store wfi_store;

weft_status wfi_store_create(const wfi_store_options *options, wfi_store **out); /* WEFT_ERR_INVALID, WEFT_ERR_MEMORY */
void wfi_store_destroy(wfi_store *store);                                        /* sends nothing */

/* `connection` is the shell's number for it, used once. WEFT_ERR_MEMORY: the shell closes it. */
weft_status wfi_store_opened(wfi_store *store, uint64_t connection);

/* How a connection ended. */
typedef enum wfi_store_loss {
    WFI_STORE_ENDED, /* the other host says that it was closed: its process did that, or is gone */
    WFI_STORE_RESET, /* likewise, or somebody between the hosts did it */
    WFI_STORE_CUT,   /* the network gave up, or we did: it says nothing about the process */
} wfi_store_loss;
/* By the other side, or it broke. Never after the close output. */
void wfi_store_closed(wfi_store *store, uint64_t connection, wfi_store_loss how, uint64_t now_ns);
/* One whole frame. */
void wfi_store_received(wfi_store *store, uint64_t connection, uint64_t now_ns, const uint8_t *frame, size_t size);
/* When the next tick is due; inputs may make it earlier. */
uint64_t wfi_store_due(const wfi_store *store);
void wfi_store_tick(wfi_store *store, uint64_t now_ns);

/* Has this connection joined? Those that have not are unauthenticated: the shell bounds their number and time. */
bool wfi_store_has_joined(const wfi_store *store, uint64_t connection);
void wfi_store_count(const wfi_store *store, wfi_store_counts *out); /* NULL: zeros. Any thread */
void wfi_store_turned_away(wfi_store *store); /* for want of descriptors or memory here somebody could not be let in */
void wfi_store_count_refusal(wfi_store *store, const char *why); /* of one that the shell met */
int wfi_store_alive(const wfi_store *store);                     /* members neither dead nor gone, and those who wait */

/* Rank 0 is going: from now on the store is finished when nobody is left, or at the deadline. */
void wfi_store_drain(wfi_store *store, uint64_t now_ns, uint64_t deadline_ns);
bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns);

#endif
