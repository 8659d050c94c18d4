/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - the inside of the store's state machine, for its files alone: store, session, join, interest, death,
 * termination.
 *
 * `wfi_store` has one seat for each rank and one link for each connection. A link belongs to a seat once it has joined
 * or resumed. Nothing is locked, as the store is driven from one thread (store.h); only the two counters that are
 * atomic may be read by others. Links and the keys in them are allocated as guarded memory (base/guarded.h) and wiped
 * when they go.
 */
#ifndef WFI_STORE_STATE_H
#define WFI_STORE_STATE_H

#include "base/clock.h"
#include "base/map.h"
#include "job/protocol/outbox.h"
#include "job/store/store.h"

typedef enum wfi_store_stage {
    WFI_STORE_CONNECTED, /* has said nothing */
    WFI_STORE_GREETED,   /* has been challenged */
    WFI_STORE_PROVEN,    /* its frames are sealed, and so are ours */
} wfi_store_stage;

typedef struct wfi_store_link { /* a connection; guarded, for its keys */
    uint64_t id;
    int rank; /* whose it is; -1: nobody has joined on it */
    wfi_store_stage stage;
    bool knocks;         /* before it joins: opened or challenged since the last tick */
    uint64_t knocked_ns; /* when a tick last saw that */
    bool unconfirmed;    /* resumed, and nothing heard since: its end may be the end of a mere attempt */
    wfi_greeting greeting;
    wfi_seal seal;
} wfi_store_link;

typedef enum wfi_seat_state {
    WFI_SEAT_EMPTY,
    WFI_SEAT_WAITING, /* has joined; the table is not complete */
    WFI_SEAT_ALIVE,
    WFI_SEAT_DEAD,
    WFI_SEAT_LEFT,
} wfi_seat_state;

typedef struct wfi_seat { /* a rank's place */
    wfi_seat_state state;
    wfi_store_link *link; /* while waiting or alive; NULL: alive, but its connection is lost */
    uint64_t lost_ns;     /* when that becomes its death; WFI_NEVER: it is connected */
    uint8_t token[WFI_STORE_TOKEN_BYTES];
    uint8_t asked_with[WFI_STORE_TOKEN_BYTES]; /* its JOIN's token */
    wfi_outbox outbox;                         /* what it was told and has not acknowledged */
    uint64_t received;                         /* kept messages from it; */
    uint64_t acked;                            /* of those, acknowledged */
    bool hopeless;                             /* its outbox overflowed: the next tick declares it dead */
    int64_t patience_ms;                       /* waiting: how long it said it would */
    uint64_t patience_ns;                      /* waiting: when that ends */
    uint64_t heard_ns;
    uint64_t suspected_ns; /* when the answer to a suspicion is due; WFI_NEVER: it is not suspected */
    int suspected_by;
    uint64_t asks_ns; /* since when `asks` counts */
    int asks;         /* so many workers were asked to dial this one */
    char words[160];  /* why it is suspected; of a dead one: why it was declared so */
    uint32_t fate;    /* the incarnation that these words were about, once it is dead */
    bool beats;       /* has been told to: somebody depends on it, so silence is death */
    int interested;   /* so many members have an interest in it */
    uint8_t *interests; /* in whom it has an interest, a bit a rank; NULL: it never had one */
    bool closing;
    bool answered; /* in the wave under way */
    wfi_idle_report report, report_before;
} wfi_seat;

typedef enum wfi_store_phase { WFI_STORE_GATHERING, WFI_STORE_RUNNING, WFI_STORE_FAILED } wfi_store_phase;

struct wfi_store {
    wfi_store_options options;
    wfi_store_phase phase;
    wfi_map links;
    wfi_seat *seats;     /* by rank */
    wfi_member *members; /* by rank */
    int waiting, alive;  /* seats in these states */
    uint32_t incarnations;
    wfi_outbox_reserve reserve; /* so that one death, at least, can be told to all though memory is out */
    uint64_t now_ns;          /* of the input under way */
    uint64_t due_ns, ticked_ns;
    uint64_t late_ns;    /* so much later than it was due came the tick under way */
    bool ticking;        /* the last tick wanted another within a quarter of the bound */
    uint64_t knocked_ns; /* when one who is at the door last opened a connection or was challenged; 0: nobody is */
    uint64_t resumed_ns; /* when a member last did */
    uint64_t drain_ns;   /* WFI_NEVER: not draining */
    bool draining;
    bool turned_away;                 /* somebody could not be let in for want of descriptors or memory here */
    char failure[WFI_STORE_TEXT_MAX]; /* why gathering failed */
    uint64_t name_awaited_ns;         /* gathering: when those who have not come are named; WFI_NEVER: nobody waits */
    uint64_t name_awaited_pause_ns;
    uint64_t challenges;
    _Atomic uint64_t refused, messages; /* others may read them */
    int closers;                        /* members that close */

    /* The end: waves of probes. */
    uint64_t wave;       /* number of the last that began */
    int unanswered;      /* in the wave under way; 0: none is */
    bool has_before;     /* report_before holds a complete wave of the same members */
    bool terminated;     /* has been told */
    uint64_t wave_at_ns; /* a wave to begin later; WFI_NEVER */
};

/* session.c */
void wfi_store_due_by(wfi_store *store, uint64_t when_ns); /* the next tick */
void wfi_store_send_frame(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size);
void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message);
/* To a member, connected or not: what its type says is kept reaches it if it lives. */
void wfi_store_tell(wfi_store *store, int rank, const wfi_store_message *message);
void wfi_store_tell_others(wfi_store *store, int but, const wfi_store_message *message);
void wfi_store_tell_all(wfi_store *store, const wfi_store_message *message);
void wfi_store_count_message(wfi_store *store, const uint8_t *frame);
/* WEFT_OK: *plain is a frame in the clear, of *plain_size. */
weft_status wfi_store_open_frame(wfi_store_link *link, const uint8_t *frame, size_t size,
                                 uint8_t plain[WFI_STORE_SMALL_MAX], size_t *plain_size);
void wfi_store_greet(wfi_store *store, wfi_store_link *link, const wfi_store_message *hello);
void wfi_store_handle_resume(wfi_store *store, wfi_store_link *link, const wfi_store_message *resume, uint64_t now_ns);
/* The member goes on with this connection; the one before, if any, is closed. */
void wfi_store_relink(wfi_store *store, int rank, wfi_store_link *link, uint64_t now_ns);
/* The member's connection is no more; it may come back until then. */
void wfi_store_unlink(wfi_store *store, int rank, uint64_t now_ns, int64_t grace_ms);
int64_t wfi_store_bound_ms(const wfi_store *store); /* a time to wait, even where silence is no death */
void wfi_store_hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms); /* the last word: forgets the link */
void wfi_store_refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
    WEFT_PRINTF(4, 5);

/* join.c */
void wfi_store_handle_join(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns);
void wfi_store_free_seat(wfi_store *store, int rank);             /* of one that waits */
void wfi_store_fail_gathering(wfi_store *store, const char *why); /* who waits is told, and so is who comes later */
void wfi_store_tick_gathering(wfi_store *store, uint64_t now_ns);

/* death.c */
void wfi_store_declare_dead(wfi_store *store, int rank, const char *why);
void wfi_store_lost_connection(wfi_store *store, int rank, wfi_store_loss how, bool unconfirmed, uint64_t now_ns);
void wfi_store_give_up_lost(wfi_store *store, int rank);
void wfi_store_handle_goodbye(wfi_store *store, wfi_store_link *link);
void wfi_store_handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                              uint64_t now_ns);
void wfi_store_suspect(wfi_store *store, int rank, int by, const char *why, uint64_t now_ns); /* no-op if it is */
/* Somebody who is a member was not heard, or has just resumed: who comes to the door and goes may be that one. */
bool wfi_store_misses_somebody(const wfi_store *store, uint64_t now_ns);
void wfi_store_excuse_own_absence(wfi_store *store, uint64_t now_ns);
void wfi_store_tick_running(wfi_store *store, uint64_t now_ns);

/* interest.c */
/* False: there is no memory for it now. */
bool wfi_store_handle_interest(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns);
void wfi_store_interest_closing(wfi_store *store, int rank, bool closing,
                                uint64_t now_ns);         /* it has an interest in all others */
void wfi_store_interest_gone(wfi_store *store, int rank); /* its interests, and all interests in it, are over */
void wfi_store_interest_review(wfi_store *store, int rank, uint64_t now_ns); /* tells it to beat, or to stop */

/* termination.c */
void wfi_store_end_closing(wfi_store *store);
void wfi_store_end_report(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns);
void wfi_store_end_members_changed(wfi_store *store); /* whatever wave there was is void */
void wfi_store_end_tick(wfi_store *store, uint64_t now_ns);

#endif
