/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payload.h - moves values between this worker's memory and a peer's: what leaves is exposed, so that the peer can read
 * it; what arrives is read straight into its place.
 *
 * wfi_outbound     values on their way out (arguments or results): encoded, published to one peer, withdrawn
 * wfi_shared_body  arguments encoded once for several calls: the targets of a multicast, the attempts of one call
 * wfi_inbound      a body that arrives, until it is whole: metadata too long for the message is pulled, values are
 *                  decoded, payload is pulled straight into its place, references are made known to their owners
 * explain.h        which value cannot be sent, and why, in words
 *
 * LOCK. wfi_encode needs no lock: a call's arguments are encoded before other threads see the call. Functions marked
 * [agent lock] need it. wfi_outbound_fini, wfi_inbound_fini and wfi_shared_body_unref must not be called with it: they
 * may drop references, and so run destructors of the user's.
 *
 * LIFETIME. Each is embedded in what sends or takes it, and used once. What was published must be withdrawn before
 * wfi_outbound_fini; an inbound that was started must have become ready before wfi_inbound_fini.
 */
#ifndef WFI_PAYLOAD_H
#define WFI_PAYLOAD_H

#include "fabric.h"
#include "rpc/agent/budget.h"
#include "rpc/refs/refs.h"
#include "value/decode.h"
#include "value/encode.h"

/* ---- On their way out (outbound.c, shared.c) --------------------------------------------------------------------- */

typedef struct wfi_shared_body wfi_shared_body; /* counted */

typedef struct wfi_outbound {
    wfi_encoded body;
    /* The body is a view of this one: the lists belong to it, and so does meta, unless addresses have to be written
     * in. */
    wfi_shared_body *shared;
    wfi_storage *meta_storage; /* meta, to be exposed, if it is too long for the message */
    wfi_exposure *exposures;
    size_t exposure_count;
    uint64_t exposed_bytes; /* what the peer reads from us: net cannot count it */
    /* Once published: what it holds besides the user's memory. A view counts what is shared as its own. */
    size_t small_bytes;  /* small things, and metadata in the message */
    size_t copied_bytes; /* copies that the peer reads for itself: metadata, packed tensors */
} wfi_outbound;

/* Whether publishing behind a header of that size will expose something: metadata too long for the message, or
 * tensors. */
bool wfi_outbound_exposes(const wfi_outbound *outbound, size_t header_size);
/* Exposes what the peer is to read, and writes the body behind `header`: the metadata itself if it fits the message,
 * else where to pull it from. On failure nothing is exposed. [agent lock] */
weft_status wfi_outbound_publish(wfi_outbound *outbound, wfi_peer *peer, wfi_writer *header);
/* Ends what was exposed; quiet: the peer is known to be done with it. [agent lock] */
void wfi_outbound_withdraw(wfi_outbound *outbound, wfi_peer *peer, bool quiet);
/* The segments to write into landing places: a malloc'ed array, NULL if none. Tensors stay with `outbound`. */
weft_status wfi_outbound_pushes(const wfi_outbound *outbound, const wfi_landing *landing, wfi_segment **segments,
                                size_t *count);
/* What it keeps in memory: metadata, and tensors that do not ride in it. */
static inline uint64_t wfi_outbound_bytes(const wfi_outbound *outbound)
{
    return outbound->body.meta.size + outbound->body.remote_bytes;
}
void wfi_outbound_fini(wfi_outbound *outbound); /* not locked */

/* For calls without landing places. Counts what was packed and copied here, once; views count their own. */
weft_status wfi_shared_body_create(weft_args values, const wfi_encode_options *how, wfi_shared_body **out);
wfi_shared_body *wfi_shared_body_ref(wfi_shared_body *shared);
void wfi_shared_body_unref(wfi_shared_body *shared); /* not locked. NULL is a no-op */
const wfi_encoded *wfi_shared_body_get(const wfi_shared_body *shared);
size_t wfi_shared_body_bytes(const wfi_shared_body *shared); /* its metadata and packed tensors; NULL: 0 */
weft_status wfi_outbound_share(wfi_outbound *outbound, wfi_shared_body *shared); /* WEFT_ERR_MEMORY */

/* ---- On their way in (inbound.c) --------------------------------------------------------------------------------- */

/* `ready` is called exactly once, with the agent's lock held, perhaps before wfi_inbound_start returns. Then `values`
 * has all values, or `problem` says what was wrong. */
typedef struct wfi_inbound {
    /* Set by the owner before start. */
    weft_agent *agent;
    wfi_peer *peer;
    wfi_decode_options options;
    bool user_places;   /* options.place is user code: called without the lock */
    bool free_places;   /* options.place may be called with or without the lock; if neither is set: with it */
    wfi_charge *charge; /* memory is counted here before it is taken, or refused; NULL: it is not counted */
    bool is_let_in;     /* arguments that fit a message are counted, and refused only beyond 5/4 of the budget */
    /* Decides whether the values that `meta` describes, about `bytes`, are taken in, before memory is allocated for
     * them. If `meta` is NULL, `bytes` are metadata that are still to be pulled. On failure `problem` says why. If
     * `admit` is NULL, the budget decides. [agent lock] */
    weft_status (*admit)(struct wfi_inbound *inbound, const uint8_t *meta, size_t size, uint64_t bytes);
    void (*ready)(struct wfi_inbound *inbound, weft_status status);
    void *owner; /* for `ready`, if the inbound is not embedded in its owner */

    /* For the owner, once ready. */
    weft_values *values;
    wfi_landing *landing; /* the caller's landing places */
    size_t landing_count;
    uint64_t landed_bytes; /* pushed by the peer into our places */
    char problem[256];

    /* Own. */
    wfi_ref_waiter waiter;
    wfi_storage *meta;           /* pulled metadata, or a copy of the body where it must outlive its frame */
    size_t meta_size, tail_size; /* its tail, behind it: the bytes of eager tensors */
    wfi_decoded decoded;
    wfi_segment meta_segment;
    wfi_transfer transfer;
    wfi_task task;
    bool elsewhere;       /* it is decoded on the process's executor: counted in agent->inbound_elsewhere */
    bool task_queued;     /* references are imported some at a time: the task for the next ones is queued */
    size_t imported;      /* references that were imported */
    size_t unconfirmed;   /* references whose owners have not answered */
    weft_status unknown;  /* the failure that one of the owners answered, for the task */
    weft_status decoding; /* how decoding ended */
    enum { WFI_INBOUND_NEW, WFI_INBOUND_PULLING, WFI_INBOUND_PLACING, WFI_INBOUND_CONFIRMING, WFI_INBOUND_READY } state;
    bool cancelled;
} wfi_inbound;

/* `body` stands at the body; its bytes need not outlive the call. [agent lock] */
void wfi_inbound_start(wfi_inbound *inbound, wfi_reader *body);
/* `ready` follows with WEFT_ERR_CANCELLED, unless it has been called. After it nothing of the peer's memory is read.
 * [agent lock] */
void wfi_inbound_cancel(wfi_inbound *inbound);
/* The agent stops, and all of them were cancelled: waits for what is decoded outside its own executor. Not locked. */
void wfi_inbound_await(weft_agent *agent);
/* Whether it has been started and not become ready. */
bool wfi_inbound_busy(const wfi_inbound *inbound);
/* Frees what it holds. Not with the agent's lock, since references may be dropped. */
void wfi_inbound_fini(wfi_inbound *inbound);

#endif
