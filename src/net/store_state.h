/* SPDX-License-Identifier: Apache-2.0 */
/* store_state.h - the store's inside, shared by store*.c of the state machine only. */
#ifndef WFI_STORE_STATE_H
#define WFI_STORE_STATE_H

#include "base/map.h"
#include "net/store.h"

typedef struct wfi_store_link { /* a connection */
    uint64_t id;
    int rank; /* whose it is; -1: a stranger's */
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
    wfi_store_link *link; /* while waiting or alive */
    int64_t patience_ms;  /* waiting: how long it said it would */
    uint64_t patience_ns; /* waiting: when that ends */
    uint64_t heard_ns;
    uint64_t suspected_ns; /* when the answer to a suspicion is due; WFI_NEVER: it is not suspected */
    int suspected_by;
    char suspicion[96];
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
    uint64_t due_ns, ticked_ns;
    uint64_t drain_ns; /* WFI_NEVER: not draining */
    bool draining;
    char failure[WFI_STORE_TEXT_MAX]; /* why gathering failed */

    /* The end: waves of probes. */
    uint64_t round;      /* of the last wave that began */
    int unanswered;      /* in the wave under way; 0: none is */
    bool has_before;     /* report_before holds a complete wave of the same members */
    bool terminated;     /* has been told */
    uint64_t wave_at_ns; /* a wave to begin later; WFI_NEVER */
};

/* store.c */
void wfi_store_send_frame(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size);
void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message);
void wfi_store_send_all(wfi_store *store, const wfi_store_message *message);
void wfi_store_send_others(wfi_store *store, int but, const wfi_store_message *message);
void wfi_store_due_by(wfi_store *store, uint64_t when_ns);
void wfi_store_hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms); /* the last word: forgets the link */
void wfi_store_refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
    WEFT_PRINTF(4, 5);

/* store_join.c */
void wfi_store_handle_join(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns);
void wfi_store_free_seat(wfi_store *store, int rank);             /* of one that waits */
void wfi_store_fail_gathering(wfi_store *store, const char *why); /* who waits is told, and so is who comes later */
void wfi_store_tick_gathering(wfi_store *store, uint64_t now_ns);

/* store_death.c */
/* `link_is_lost`: nobody can be told at the other end. */
void wfi_store_declare_dead(wfi_store *store, int rank, const char *why, bool link_is_lost);
void wfi_store_handle_goodbye(wfi_store *store, wfi_store_link *link);
void wfi_store_handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                              uint64_t now_ns);
void wfi_store_tick_running(wfi_store *store, uint64_t now_ns);

/* store_end.c */

void wfi_store_end_closing(wfi_store *store, int rank);
void wfi_store_end_report(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns);
void wfi_store_end_members_changed(wfi_store *store); /* whatever wave there was is void */
void wfi_store_end_tick(wfi_store *store, uint64_t now_ns);

#endif
