/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - the internals of the store's state machine, for its own files: store, session, join, interest, death,
 * termination.
 *
 * `wfi_store` has one slot for each rank and one link for each connection. A link belongs to a slot once a worker has
 * joined or resumed on it. Nothing is locked, because one thread drives the store (store.h); other threads may read
 * only the two atomic counters. Links and their keys are allocated as guarded memory (base/guarded.h) and wiped when
 * they are freed.
 */
#ifndef WFI_STORE_STATE_H
#define WFI_STORE_STATE_H

#include "base/clock.h"
#include "base/map.h"
#include "job/protocol/outbox.h"
#include "job/store/store.h"

typedef enum wfi_store_stage {
    WFI_STORE_CONNECTED, /* the peer has sent nothing */
    WFI_STORE_GREETED,   /* the peer has been challenged */
    WFI_STORE_PROVEN,    /* the peer has proved that it knows the secret; frames are sealed both ways */
} wfi_store_stage;

/* One connection, in guarded memory because it contains keys. */
typedef struct wfi_store_link {
    uint64_t id;
    int rank; /* rank of the worker that joined or resumed on it; -1: none yet */
    wfi_store_stage stage;
    bool is_pending;     /* it was opened or challenged since the last tick */
    uint64_t pending_ns; /* the time of the last tick that saw `is_pending` */
    /* A member resumed on it and has sent nothing since: if it ends, it may only have been an attempt. */
    bool unconfirmed;
    uint64_t joined_ns; /* when the worker became a member on it; 0: it resumed on it, or is no member */
    wfi_greeting greeting;
    wfi_seal seal;
} wfi_store_link;

typedef enum wfi_store_slot_state {
    WFI_SLOT_EMPTY,
    WFI_SLOT_WAITING, /* has joined; the table is not complete */
    WFI_SLOT_ALIVE,
    WFI_SLOT_DEAD,
    WFI_SLOT_LEFT,
} wfi_store_slot_state;

/* The store's record of one rank. */
typedef struct wfi_store_slot {
    wfi_store_slot_state state;
    wfi_store_link *link; /* while waiting or alive; NULL: alive, but its connection is lost */
    uint64_t lost_ns; /* when the member is declared dead because the connection is lost; WFI_NEVER: it is connected */
    uint8_t token[WFI_STORE_TOKEN_BYTES];
    uint8_t asked_with[WFI_STORE_TOKEN_BYTES]; /* the token of its JOIN */
    wfi_outbox outbox;                         /* messages that the member has not acknowledged */
    uint64_t received;                         /* number of kept messages received from it */
    uint64_t acked;                            /* number of those that were acknowledged to it */
    bool overflowed;                           /* its outbox overflowed: the next tick declares it dead */
    int64_t patience_ms;                       /* while it waits to join: how long it said that it would wait */
    uint64_t patience_ns;                      /* while it waits to join: when patience_ms ends */
    uint64_t received_ns;
    uint64_t suspected_ns; /* when its heartbeat is due; WFI_NEVER: it is not suspected */
    int suspected_by;
    uint64_t asks_ns; /* the time from which `asks` counts */
    int asks;         /* number of workers that were asked to connect to this one */
    char words[160];  /* why it is suspected, or was declared dead */
    uint32_t fate;    /* the incarnation that was declared dead for the reason in `words` */
    bool beats; /* it was told to send heartbeats, because a member has an interest in it: silence means its death */
    int interested;     /* number of members that have an interest in it */
    uint8_t *interests; /* bit set of the ranks in which it has an interest; NULL: it never had one */
    bool closing;
    uint64_t serving;                      /* the number of its weft_agent_serve; 0: it does not serve */
    bool ending;                           /* it closes or serves */
    bool follows;                          /* it is told which members close or serve */
    bool leaving;                          /* it has announced that it leaves this elastic job */
    bool answered;                         /* it has answered the current wave */
    wfi_idle_report report, report_before; /* in the current wave, and in the one before */
} wfi_store_slot;

typedef enum wfi_store_phase { WFI_STORE_GATHERING, WFI_STORE_RUNNING, WFI_STORE_FAILED } wfi_store_phase;

struct wfi_store {
    wfi_store_options options;
    wfi_store_phase phase;
    wfi_map links;              /* wfi_store_link, by the shell's number of the connection */
    wfi_store_slot *slots;      /* by rank */
    wfi_member *members;        /* by rank */
    int waiting, alive;         /* number of slots in these states */
    uint32_t incarnations;      /* number of incarnations given out */
    wfi_outbox_reserve reserve; /* memory to tell all members of at least one death when memory is exhausted */
    uint64_t now_ns;            /* the time of the input being processed */
    uint64_t due_ns, ticked_ns; /* when the next tick is due, and when the last one was */
    uint64_t late_ns;           /* delay of the current tick */
    bool ticking;               /* the last tick asked for the next one within a quarter of the bound */
    uint64_t pending_ns;        /* when a peer that has not joined last connected or was challenged; 0: there is none */
    uint64_t unproven;          /* number of connections that ended before they proved anything */
    uint64_t drain_ns;          /* the deadline of wfi_store_drain; WFI_NEVER: none */
    bool draining;
    bool out_of_resources;              /* a connection was refused for lack of descriptors or memory */
    char failure[WFI_STORE_TEXT_MAX];   /* the reason, in phase FAILED and with `ended` */
    int not_joined;                     /* workers, if the store was created with a failure */
    uint64_t name_awaited_ns;           /* when the log next names the missing ranks; WFI_NEVER: no worker waits */
    uint64_t name_awaited_pause_ns;     /* from one such line to the next */
    uint64_t challenges;                /* number of challenges so far: the counter of the greeting */
    _Atomic uint64_t refused, messages; /* wfi_store_counts; any thread may read them */
    int enders;                         /* members that close or serve */

    /* The end of the job: waves of probes. */
    uint64_t wave;       /* number of the last wave that began */
    int unanswered;      /* members that have not answered the current wave; 0: there is none */
    bool has_before;     /* report_before holds a complete wave of the same members */
    bool terminated;     /* all were told that the job has ended */
    bool ended;          /* rank 0 ended the job early, for the reason `failure`, and all were told */
    uint64_t wave_at_ns; /* when the next wave begins; WFI_NEVER: none is scheduled */
};

/* session.c */
void wfi_store_due_by(wfi_store *store, uint64_t when_ns); /* the next tick is due then, or earlier */
void wfi_store_send_frame(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size);
void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message);
/* Sends to a member, connected or not: a kept message is sent again when it resumes. */
void wfi_store_send_to(wfi_store *store, int rank, const wfi_store_message *message);
/* Returns false if there is no memory for the answer; then nothing was sent. */
bool wfi_store_answer_sync(wfi_store *store, int rank, const wfi_store_message *sync);
void wfi_store_send_to_others(wfi_store *store, int but, const wfi_store_message *message);
void wfi_store_send_to_all(wfi_store *store, const wfi_store_message *message);
void wfi_store_count_message(wfi_store *store, const uint8_t *frame);
/*
 * Decrypts a frame of at most WFI_STORE_SMALL_MAX bytes to `plain`. WEFT_ERR_PROTOCOL: it is not the next frame of
 * the other side.
 */
weft_status wfi_store_open_frame(wfi_store_link *link, const uint8_t *frame, size_t size,
                                 uint8_t plain[WFI_STORE_SMALL_MAX], size_t *plain_size);
void wfi_store_greet(wfi_store *store, wfi_store_link *link, const wfi_store_message *hello);
void wfi_store_handle_resume(wfi_store *store, wfi_store_link *link, const wfi_store_message *resume, uint64_t now_ns);
/* The member continues on `link`; its previous connection, if any, is closed. */
void wfi_store_relink(wfi_store *store, int rank, wfi_store_link *link, uint64_t now_ns);
/* The member's connection is lost; if it does not resume within grace_ms, it is declared dead. */
void wfi_store_unlink(wfi_store *store, int rank, uint64_t now_ns, int64_t grace_ms);
/* The death bound; 2 s if silence is no sign of death. */
int64_t wfi_store_bound_ms(const wfi_store *store);
uint64_t wfi_store_bound_ns(const wfi_store *store);
/* Closes the connection after the last message and frees the link. */
void wfi_store_hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms);
void wfi_store_refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
    WEFT_PRINTF(4, 5);

/* join.c */
void wfi_store_handle_join(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns);
void wfi_store_free_slot(wfi_store *store, int rank);             /* of a worker that waits to join */
void wfi_store_fail_gathering(wfi_store *store, const char *why); /* tells all that wait, and those that join later */
void wfi_store_tick_gathering(wfi_store *store, uint64_t now_ns);

/* death.c */
void wfi_store_declare_dead(wfi_store *store, int rank, const char *why);
void wfi_store_lost_connection(wfi_store *store, int rank, wfi_store_loss how, bool unconfirmed, uint64_t now_ns);
void wfi_store_give_up_lost(wfi_store *store, int rank);
void wfi_store_handle_goodbye(wfi_store *store, wfi_store_link *link);
void wfi_store_handle_leaving(wfi_store *store, int rank);
void wfi_store_handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                              uint64_t now_ns);
/* no-op if it is suspected already */
void wfi_store_suspect(wfi_store *store, int rank, int by, const char *why, uint64_t now_ns);
void wfi_store_excuse_own_absence(wfi_store *store, uint64_t now_ns);
void wfi_store_tick_running(wfi_store *store, uint64_t now_ns);

/* interest.c */
/* Returns false if there is no memory for it; then nothing has changed. */
bool wfi_store_handle_interest(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns);
/* While a member closes or serves it has an interest in all others. */
void wfi_store_interest_ending(wfi_store *store, int rank, bool ending, uint64_t now_ns);
void wfi_store_interest_gone(wfi_store *store, int rank); /* ends its interests, and all interests in it */
/* Tells it to start or stop sending heartbeats. */
void wfi_store_interest_review(wfi_store *store, int rank, uint64_t now_ns);

/* termination.c */
void wfi_store_end_closing(wfi_store *store, int rank, uint64_t now_ns);
/* `number` is that of its weft_agent_serve; 0: that has ended. */
void wfi_store_end_serving(wfi_store *store, int rank, uint64_t number, uint64_t now_ns);
void wfi_store_end_follow(wfi_store *store, int rank); /* from now on it is told which members close or serve */
void wfi_store_end_report(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns);
void wfi_store_end_members_changed(wfi_store *store); /* makes the current wave and the one before void */
void wfi_store_end_tick(wfi_store *store, uint64_t now_ns);
void wfi_store_end_job(wfi_store *store, const char *why); /* for rank 0; no-op if the job has ended already */
/* For the log of a worker that closes: which members have not closed, or have not answered the last probe. */
void wfi_store_end_awaits(const wfi_store *store, char *out, size_t room);

#endif
