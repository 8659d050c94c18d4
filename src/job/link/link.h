/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - the internals of a worker's link to the store, for the files of this folder. Others include rendezvous.h.
 *
 * A link is a state machine without sockets: session.c, post.c and events.c. The code that moves its bytes is called
 * a shell: socket.c over TCP, sim/link.c in the simulation. A shell's struct begins with a wfi_rendezvous, and its
 * functions are the table wfi_link_shell. The shell reports the events of its connections, and the time
 * (wfi_link_tick), from one thread at a time: below, "the link's own thread".
 *
 * TWO CONNECTIONS (wires). The current one carries the messages. The next one is being opened: to join, or to resume
 * when the current one broke or the store was silent on it. On each, the worker greets the store, checks the store's
 * proof, and sends `join` or `resume`. When the store answers, the next connection becomes the current one.
 *
 * RESUMING (the store's side: job/store/store.h). A worker that sends heartbeats and hears nothing for a quarter of
 * the death bound opens the next connection, and repeats that until the store answers. A worker whose current
 * connection broke does so at once. The current connection is kept until the store has answered on the next, because
 * the store takes the end of the current connection for the end of the process. Messages sent on the current
 * connection after `resume` are sent again on the next; the store skips those that it has.
 *
 * LOSING THE STORE. If the store's host refuses connections, the store's process is gone: the store is lost at once.
 * Otherwise nothing is certain. The network may be cut, and the store may have declared this worker dead, which the
 * worker learns when the network heals; or the store's process is stopped, and may continue. The worker waits for
 * three death bounds; then the store is lost. Rank 0 runs the store itself and never loses it.
 *
 * LOCKING. `lock` guards the fields under "Under the lock", `state`, the seals of both connections, and the shell's
 * output. With the lock held, only the shell's functions that say so are called. So the lock may be taken while the
 * agent's lock is held: by suspect, interest, closing, report and sync. Upcalls are made without it. All other fields
 * belong to the link's own thread. The members and the key that wfi_rendezvous_open
 * returned never change.
 *
 * LIFETIME. wfi_rendezvous_open makes a link and wfi_rendezvous_close ends it; the table of members is freed earlier,
 * by wfi_rendezvous_drop_members.
 */
#ifndef WFI_LINK_H
#define WFI_LINK_H

#include "base/error.h"
#include "base/mutex.h"
#include "job/link/rendezvous.h"
#include "job/protocol/outbox.h"
#include "job/protocol/protocol.h"

typedef enum wfi_link_state {
    WFI_LINK_JOINING,
    WFI_LINK_MEMBER,
    WFI_LINK_OUT, /* closed, evicted, or the store is lost: nothing is sent, and no upcall follows */
} wfi_link_state;

typedef enum wfi_which { WFI_CURRENT, WFI_NEXT } wfi_which;

typedef enum wfi_wire_stage {
    WFI_WIRE_NONE,
    WFI_WIRE_DIALLING,  /* the shell connects */
    WFI_WIRE_GREETING,  /* hello has been sent */
    WFI_WIRE_PRESENTED, /* join or resume has been sent; sealed from here on */
    WFI_WIRE_LIVE,
} wfi_wire_stage;

typedef struct wfi_wire {
    wfi_wire_stage stage;
    uint64_t since_ns; /* when this stage began */
    wfi_greeting greeting;
    wfi_seal seal;
} wfi_wire;

typedef struct wfi_link_shell {
    void (*send)(wfi_rendezvous *link, wfi_which which, const uint8_t *frame,
                 size_t size); /* never blocks; lock held */
    /* Connects the next wire. Later, or before this returns, wfi_link_dialled or wfi_link_wire_lost is called. */
    void (*dial)(wfi_rendezvous *link);
    void (*hang_up)(wfi_rendezvous *link, wfi_which which); /* no-op if there is none */
    void (*adopt)(wfi_rendezvous *link);                    /* the next wire replaces the current one; lock held */
    void (*wake)(wfi_rendezvous *link);                     /* the link's own thread ticks soon; lock held */
    void (*random)(wfi_rendezvous *link, void *out, size_t size);
    void (*close)(wfi_rendezvous *link); /* says goodbye, ends and frees */
    int (*pump)(wfi_rendezvous *link, uint64_t *due_ns);
    void (*count)(const wfi_rendezvous *link, wfi_store_counts *out);
} wfi_link_shell;

struct wfi_rendezvous {
    const wfi_link_shell *shell;
    const wfi_clock *clock;
    wfi_rendezvous_events events;
    uint8_t *secret; /* guarded */
    size_t secret_size;
    uint8_t *job_key; /* guarded; not in `world` */
    wfi_mutex lock;
    wfi_link_state state;
    wfi_wire *wires; /* two; guarded, for their keys */
    wfi_store_world world;
    int rank, world_size;
    uint32_t incarnation; /* of this worker */

    /* Joining. */
    wfi_store_message join;
    uint64_t patience_ns; /* when it ends */
    bool answered;        /* joined, or refused */
    bool joined;
    bool greeted;        /* a store has answered at least once */
    unsigned unanswered; /* number of hellos that were not answered in time */
    bool store_is_here;  /* the store is on this machine: no network between them can lose a message */
    weft_status refusal; /* with refusal_text */
    char refusal_text[WFI_STORE_TEXT_MAX];

    /* Under the lock. */
    wfi_outbox outbox; /* messages that the store has not acknowledged */
    wfi_outbox_reserve reserve;
    bool outbox_is_full;    /* the next tick ends the link */
    uint32_t *incarnations; /* by rank: as the store has told; 0: no member */
    uint8_t *interests;     /* bit set of the ranks in which this worker has an interest */
    int interest_count;
    bool closing;
    uint64_t serving; /* the number of its weft_agent_serve; 0: it does not serve */

    /* Used by the link's own thread. */
    bool heartbeats_wanted, was_beating;
    uint64_t received, acked; /* kept messages that came from the store, and how many of them were acknowledged */
    uint64_t skip;            /* number of the next kept messages to skip: they already came on the former connection */
    uint64_t received_ns, beat_ns, ticked_ns, dial_ns;
    char broken[64]; /* why the current wire was lost */
};

weft_status wfi_link_check(const wfi_rendezvous_options *options, weft_error **error); /* before anything is opened */
/* WEFT_ERR_MEMORY: the caller must not finish the link. */
weft_status wfi_link_init(wfi_rendezvous *link, const wfi_rendezvous_options *options, const wfi_link_shell *shell);
void wfi_link_fini(wfi_rendezvous *link);

/* The shell's reports. While joining they set `answered` and make no upcalls; for a member they make upcalls. */
void wfi_link_dialled(wfi_rendezvous *link);
void wfi_link_received(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size);
/* `refused`: no process listens at the store's address, so the store's process is gone. */
void wfi_link_wire_lost(wfi_rendezvous *link, wfi_which which, bool refused, const char *why);
void wfi_link_protocol_error(wfi_rendezvous *link, wfi_which which); /* malformed bytes */
uint64_t wfi_link_tick(wfi_rendezvous *link); /* does what is due; returns when it must be called next */

/* The store refused the join: sets *error to the reason and returns its code. */
weft_status wfi_link_refused(const wfi_rendezvous *link, weft_error **error);
int64_t wfi_link_patience_ms(const wfi_rendezvous *link); /* the time left for joining; -1: no limit */
/* How long the link waits for an answer while joining. A store that has answered the greeting gets grace_ms more. */
uint64_t wfi_link_answer_by_ns(const wfi_rendezvous *link, int64_t grace_ms);

/* Sends the goodbye; after that the link is out. Returns true if it was a member with a connection. */
bool wfi_link_send_goodbye(wfi_rendezvous *link);
bool wfi_link_is_out(wfi_rendezvous *link);
/* It has a current wire and opens no other. Only for the link's own thread. */
bool wfi_link_is_steady(const wfi_rendezvous *link);
/* How long rank 0's store keeps serving the others: the bound, or 2 s if that is switched off. */
int64_t wfi_link_grace_ms(const wfi_rendezvous *link);

/* events.c: upcalls. */
void wfi_link_lost(wfi_rendezvous *link, const char *why); /* no-op if the link is out already */
void wfi_link_evicted(wfi_rendezvous *link, const char *why);
void wfi_link_dispatch(wfi_rendezvous *link, const wfi_store_message *message);
bool wfi_link_flip_interest(wfi_rendezvous *link, int rank, bool on); /* lock held; false: no change */

/* post.c */
void wfi_link_post(wfi_rendezvous *link, const wfi_store_message *message);
/* lock held; false: there is no memory to keep the message */
bool wfi_link_post_locked(wfi_rendezvous *link, const wfi_store_message *message);
void wfi_link_send_heartbeat(wfi_rendezvous *link);
/* Sends on the given wire; the message is not kept. */
void wfi_link_send_on(wfi_rendezvous *link, wfi_which which, const wfi_store_message *message);
void wfi_link_send_frame(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size); /* lock held */

weft_status wfi_link_open_socket(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error);

#endif
