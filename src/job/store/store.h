/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the store: who is in the job, who has died, when all is done. A pure state machine.
 *
 * It is fed with what happens to its connections, and with the time; it answers through two outputs. It has no socket, no
 * thread and no clock, so the same code serves over TCP (server.c) and inside the simulation (sim.c).
 * Not thread-safe: its shell calls it from one flow of control. Outputs are called from within the inputs and must not
 * call back; a shell that cannot send reports the connection as closed later.
 *
 * JOINING. A static job: joins are collected until world_size are there; then each is answered once, with the whole table.
 * Until then a worker that goes away frees its place. When the patience of the first one ends, all who wait are told who is
 * missing. After that the seat of a dead worker may be taken again; that of one who left may not. An elastic job begins
 * when rank 0 has joined; others join at any time, at a rank of their choice that nobody holds, or the lowest such one.
 * Who joins late gets the table as it is (no entry for those who are gone), the others its entry (`joined`), and from then
 * on it hears of everything, in the same order as they. Every join gets a new incarnation, one more than the last. Rank 0's
 * seat is never taken again. Nobody joins a job whose end was told, or whose rank 0 has closed.
 * PROOF. Nothing is believed and nothing told before both sides have proved the secret (job/protocol/proof.h). One side without
 * a secret is a refusal that says which.
 * CONNECTIONS COME AND GO; a member is a member until it leaves or is declared dead. When it hears nothing it opens another
 * connection and resumes there: it shows the token that only it was given, and both say how many kept messages they have
 * received, so that none is lost or doubled (outbox.h). The newest connection is the one that counts.
 * DEATHS. (1) A connection that the other host ended without a goodbye: at once, as a process that dies ends all of its own;
 * a worker never ends one that counts, but after it has resumed on another. (2) One that was reset: after RESET_MS without a
 * resume, as it may have been somebody between the hosts. (3) One that the network gave up, or one just resumed on which
 * nothing came yet: after the bound. (4) Silence for the bound of one that was told to beat. (5) One that was suspected and
 * does not answer. All others are told; the dead one is, too, whenever it speaks. The bound is the store's (rank 0's
 * option), for all. Time in which the store itself did not run (its ticks came late) is nobody's silence; after half a bound of it
 * everybody gets a new one. Its workers wait for three bounds (job/link/link.h).
 * Who is at the door, and has not proved anything yet, is heard before silence is judged, for a quarter of the bound at most.
 * HEARTBEATS come from those on whom somebody depends (NEED; who closes depends on all others), and from those who wait for
 * the job to begin. An idle job is silent.
 * THE END. See termination.c.
 */
#ifndef WFI_STORE_H
#define WFI_STORE_H

#include "job/protocol/protocol.h"

/* How long a connection to an evicted worker is kept, in case it is only stopped and reads its mail later. */
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
    uint64_t now_ns;
    wfi_store_outputs outputs;
} wfi_store_options;

typedef struct wfi_store_counts {
    uint64_t refused;  /* strangers: wrong proofs, nonsense */
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

/* Has this connection joined? Those that have not are strangers, whose number and time the shell bounds. */
bool wfi_store_has_joined(const wfi_store *store, uint64_t connection);
void wfi_store_count(const wfi_store *store, wfi_store_counts *out); /* from any thread */
void wfi_store_turned_away(wfi_store *store); /* for want of descriptors or memory here somebody could not be let in */
void wfi_store_count_refusal(wfi_store *store, const char *why); /* of one that the shell met */
int wfi_store_alive(const wfi_store *store);                     /* members neither dead nor gone, and those who wait */

/* Rank 0 is going: from now on the store is finished when nobody is left, or at the deadline. */
void wfi_store_drain(wfi_store *store, uint64_t now_ns, uint64_t deadline_ns);
bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns);

#endif
