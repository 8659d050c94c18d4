/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inbound.h - a body that arrives (arguments or results), until it is whole: metadata that outgrew the frame is pulled,
 * values are unpacked, payload is pulled straight into its place, references are made known to their owners.
 *
 * Part of a call; one use each. ready is called exactly once, with the agent's lock held, perhaps before start
 * returns. Then `values` holds the whole, or `problem` says what was wrong.
 */
#ifndef WFI_INTAKE_H
#define WFI_INTAKE_H

#include "rpc/agent/agent.h"
#include "value/decode.h"

typedef struct wfi_intake {
    /* Set by the owner before start. */
    weft_agent *agent;
    wfi_peer *peer;
    wfi_unpack_options options;
    bool user_places; /* options.place is user code: called with no lock held */
    bool free_places; /* options.place may be called with the lock or without; neither set: with it */
    /* Whether `bytes` more may be taken, asked before they are: WEFT_OK, or the failure with `problem` written. NULL: always.
     * [agent lock] */
    weft_status (*admit)(struct wfi_intake *intake, uint64_t bytes);
    void (*ready)(struct wfi_intake *intake, weft_status status);
    void *owner; /* of one that is no member of it */

    /* For the owner, once ready. */
    weft_values *values;
    wfi_landing *landing; /* the caller's landing places */
    size_t landing_count;
    uint64_t landed_bytes; /* pushed by the peer into our places */
    char problem[256];

    /* Own. */
    wfi_storage *meta; /* pulled metadata, or a copy of the body where it must outlive its frame */
    size_t meta_size, tail_at, tail_size;
    wfi_unpack unpack;
    wfi_segment meta_segment;
    wfi_transfer transfer;
    wfi_task task;
    bool elsewhere;      /* which the agent counts */
    bool task_queued;    /* of references that are imported some at a time: the next */
    size_t imported;     /* so many references */
    size_t unconfirmed;  /* references whose owners have not answered */
    weft_status unknown; /* what one of them answered, for the task */
    weft_status unpacked;
    enum { WFI_INTAKE_NEW, WFI_INTAKE_PULLING, WFI_INTAKE_PLACING, WFI_INTAKE_CONFIRMING, WFI_INTAKE_READY } state;
    bool cancelled;
} wfi_intake;

/* `body` stands at the body; its bytes need not outlive the call. [agent lock] */
void wfi_intake_start(wfi_intake *intake, wfi_reader *body);
/* ready follows with WEFT_ERR_CANCELLED unless it has been called; nothing of the peer's is touched after it. [lock] */
void wfi_intake_cancel(wfi_intake *intake);
/* A reference's owner has confirmed it, or never will. [agent lock] */
void wfi_intake_confirmed(wfi_intake *intake, weft_status status);
/* The agent stops, and all intakes were cancelled: waits for what is decoded outside its own executor. Not locked. */
void wfi_intakes_await(weft_agent *agent);
/* Whether an intake has been started and not become ready. */
bool wfi_intake_busy(const wfi_intake *intake);
/* Lets go of what it holds. Not with the agent's lock: references may go. */
void wfi_intake_fini(wfi_intake *intake);

#endif
