/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payload.h - moves values between this worker's memory and a peer's.
 *
 * Values travel in one of three ways. Up to WFI_INLINE_LIMIT bytes of payload are part of the metadata
 * (value/encode.c). Up to WFI_EAGER_LONG bytes, over tcp WFI_EAGER_LARGE, follow the metadata in a long or large
 * message, if the peer takes such messages and header and metadata fit into its authenticated part (outbound.c,
 * is_eager). A copy on each side takes less time than a read and the message that ends the exposure. Everything else is
 * exposed, and the receiver reads it into its final place.
 *
 * wfi_outbound     values that are sent (arguments or results): encoded, published to one peer, withdrawn
 * wfi_shared_body  arguments encoded once for several calls: the targets of a multicast, the attempts of one call
 * wfi_inbound      a body that is received: pulls metadata too long for the message, decodes the values, pulls the
 *                  payload straight into its place, announces the references to their owners
 * wfi_staging      copies of tensors between devices and page-locked memory, from and to which these two move bytes
 * explain.h        finds the value that cannot be sent, and says why
 *
 * LOCK. wfi_encode needs no lock: a call's arguments are encoded before other threads see the call. Functions marked
 * [agent lock] are called with it held. wfi_outbound_fini, wfi_inbound_fini and wfi_shared_body_unref must be called
 * without it: they may drop references, and so run destructors of the user's.
 *
 * LIFETIME. An outbound or inbound is embedded in the call or request that uses it, and used once. A published outbound
 * must be withdrawn before wfi_outbound_fini. A started inbound must have become ready before wfi_inbound_fini.
 */
#ifndef WFI_PAYLOAD_H
#define WFI_PAYLOAD_H

#include "fabric.h"
#include "rpc/agent/devices.h"
#include "rpc/agent/budget.h"
#include "rpc/payload/staging.h"
#include "rpc/refs/refs.h"
#include "value/decode.h"
#include "value/encode.h"

/* ---- Sent (outbound.c, shared.c) --------------------------------------------------------------------------------- */

typedef struct wfi_shared_body wfi_shared_body; /* counted */

typedef struct wfi_outbound {
    wfi_encoded body;
    /* If set, `body` is a view: its lists belong to `shared`. body.meta belongs to `shared` too, except if addresses
     * are written into it; then it is a copy. */
    wfi_shared_body *shared;
    /* Set if the metadata are exposed, or may grow too long for the message. Owns the bytes of body.meta, or references
     * `shared`, which owns them. */
    wfi_storage *meta_storage;
    wfi_staging *staging; /* copies its tensors of devices to page-locked memory, or has done so; NULL: it has none */
    struct wfi_tx *frame; /* set by wfi_outbound_publish: the header and everything behind it are in it; or NULL */
    bool meta_follows;    /* set by wfi_outbound_publish: the metadata follow the header as a part of the message */
    wfi_exposure *exposures;
    size_t exposure_count;
    /* bytes that the peer may read. Counted here because reads by a peer do not pass through net */
    uint64_t exposed_bytes;
    /* Set by wfi_outbound_publish: memory that the outbound holds in addition to the user's tensors. A view counts the
     * memory of `shared` as its own. */
    size_t small_bytes;  /* lists, exposures, and what metadata that fit the message occupy besides their bytes */
    size_t copied_bytes; /* copies that the peer reads: metadata, packed tensors */
} wfi_outbound;

/* Bytes of tensors that may follow the metadata in a message to the peer at present. */
size_t wfi_payload_eager(const wfi_peer *peer);
/* Whether publishing behind a header of `header_size` bytes will expose memory: tensors, or metadata too long for the
 * message. */
bool wfi_outbound_exposes(const wfi_outbound *outbound, const wfi_peer *peer, size_t header_size);
#define WFI_OUTBOUND_HEADER_MOST 1024 /* every header is shorter; see wfi_outbound_may_outgrow */
/* Whether publishing may expose metadata. `later`: bytes that will be added to them. */
static inline bool wfi_outbound_may_outgrow(const wfi_outbound *outbound, size_t later)
{
    return outbound->body.meta.size + later + WFI_OUTBOUND_HEADER_MOST + WFI_BODY_MARGIN > WFI_MESSAGE_MAX;
}

/* Whether publishing may expose memory that must be registered. */
static inline bool wfi_outbound_registers(const wfi_outbound *outbound, const wfi_net *net, size_t later)
{
    return (outbound->body.remote_count || wfi_outbound_may_outgrow(outbound, later)) && wfi_net_registers(net);
}

/*
 * Writes into the metadata where the tensors shall be at the worker: its devices, by the maps of this agent. `devices`
 * has a device's byte for each tensor of the values instead; NULL: none. WEFT_ERR_INVALID: `problem` names the
 * device and both workers. Not locked.
 */
weft_status wfi_outbound_address(wfi_outbound *outbound, weft_agent *agent, int rank, const uint8_t *devices,
                                 char *problem, size_t room);
/* Adds to *prepared the memory that wfi_outbound_publish will expose. After this call at most `later` bytes may be
 * added to the metadata. [agent lock] */
void wfi_outbound_prepare(wfi_outbound *outbound, size_t later, wfi_prepared *prepared);
/* Whether memory that the worker is to read or write must be checked first, because the fabric does not report memory
 * that cannot be accessed. Without the lock: the check touches each page. */
bool wfi_payload_needs_check(wfi_net *net, int rank);
/* WEFT_ERR_INVALID: memory of a tensor that the worker is to read cannot be read. Checks what must be checked. */
weft_status wfi_outbound_check(const wfi_outbound *outbound, wfi_net *net, int rank);
/*
 * Exposes the memory that the peer is to read. If the metadata fit the message, appends their size to `header`, and
 * wfi_outbound_fill adds the bytes. Otherwise appends the address to pull them from. If the tensors fit a long
 * message, and the peer takes such messages, they follow the metadata, and are not exposed; `header` is in
 * outbound->frame then. If the peer does not take long messages yet, wfi_outbound_publish asks it to, and exposes
 * the tensors this time. On failure nothing is exposed. If memory must be registered (wfi_net_registers), the caller
 * must have prepared it (wfi_outbound_prepare) and registered it. [agent lock]
 */
weft_status wfi_outbound_publish(wfi_outbound *outbound, wfi_peer *peer, wfi_writer *header);
/* Sets the contents of a message to the header and what follows it, after wfi_outbound_publish. */
void wfi_outbound_fill(const wfi_outbound *outbound, const wfi_writer *header, wfi_message *message);
/* Ends the exposures. `peer_done`: the peer is known to have finished reading. [agent lock] */
void wfi_outbound_withdraw(wfi_outbound *outbound, wfi_peer *peer, bool peer_done);
/* The segments to write into landing places: a malloc'ed array, NULL if none. `outbound` keeps the tensors. */
weft_status wfi_outbound_pushes(const wfi_outbound *outbound, const wfi_landing *landing, wfi_segment **segments,
                                size_t *count);
/* Bytes of the metadata, and of the tensors outside of the metadata. */
static inline uint64_t wfi_outbound_bytes(const wfi_outbound *outbound)
{
    return outbound->body.meta.size + outbound->body.remote_bytes;
}
void wfi_outbound_fini(wfi_outbound *outbound); /* not locked */

/* Encodes `values` once for several calls. None of them may have landing places. */
weft_status wfi_shared_body_create(weft_args values, const wfi_encode_options *how, wfi_shared_body **out);
wfi_shared_body *wfi_shared_body_ref(wfi_shared_body *shared);
void wfi_shared_body_unref(wfi_shared_body *shared); /* not locked. NULL is a no-op */
const wfi_encoded *wfi_shared_body_get(const wfi_shared_body *shared);
/* wfi_stage, for all its calls. wfi_shared_body_staging: NULL if it has no tensors of devices.
 * wfi_shared_body_copied: the copies have ended; the second call does nothing. [agent lock] */
weft_status wfi_shared_body_stage(wfi_shared_body *shared, weft_agent *agent); /* not locked, the agent entered */
wfi_staging *wfi_shared_body_staging(const wfi_shared_body *shared);
void wfi_shared_body_copied(wfi_shared_body *shared);
size_t wfi_shared_body_bytes(const wfi_shared_body *shared); /* its metadata and packed tensors; NULL: 0 */
weft_status wfi_outbound_share(wfi_outbound *outbound, wfi_shared_body *shared); /* WEFT_ERR_MEMORY */

/* ---- Received (inbound.c) ---------------------------------------------------------------------------------------- */

#define WFI_PIECES_MOST 16

/* Bytes of a large tensor that have arrived, and are not copied to its device yet. */
typedef struct wfi_piece {
    size_t segment;
    uint64_t offset, size;
} wfi_piece;

/* The copies of large tensors to devices while the payload is pulled. */
typedef struct wfi_pieces {
    struct wfi_inbound *inbound;
    struct wfi_staging *staging; /* NULL: no copy was queued. While is_copying: of the task alone */
    wfi_task task;
    wfi_piece arrived[WFI_PIECES_MOST];
    size_t count;       /* of `arrived` */
    uint64_t bytes;     /* of `arrived` */
    weft_status status; /* of the copies */
    bool is_copying;    /* the task is queued or runs */
    bool has_ended;     /* the pull has ended meanwhile */
} wfi_pieces;

/* `ready` is called exactly once, with the agent's lock held, perhaps before wfi_inbound_start returns. Then `values`
 * holds all values, or `problem` says what was wrong. */
typedef struct wfi_inbound {
    /* Set by the owner before start. */
    weft_agent *agent;
    wfi_peer *peer;
    wfi_decode_options options;
    bool user_places; /* options.place is user code: called without the lock */
    /* options.place may be called with or without the lock. Without user_places and free_places: with the lock */
    bool free_places;
    wfi_charge *charge; /* the budget that memory is charged to before it is allocated. NULL: not counted */
    /* set for requests that must not be rejected: arguments that fit a message are charged even over the budget
     * (WFI_LET_IN) */
    bool is_let_in;
    /* Called before memory is allocated. Accepts or rejects values of about `bytes` bytes, which `meta` describes. If
     * `meta` is NULL, `bytes` are metadata that are still to be pulled. On failure `problem` says why. If `admit` is
     * NULL, the budget decides. [agent lock] */
    weft_status (*admit)(struct wfi_inbound *inbound, const uint8_t *meta, size_t size, uint64_t bytes);
    void (*ready)(struct wfi_inbound *inbound, weft_status status);
    void *owner;      /* for `ready`, if the inbound is not embedded in its owner */
    uint64_t call_id; /* for the log */

    /* For the owner, once ready. */
    weft_values *values;
    wfi_landing *landing; /* the caller's landing places */
    size_t landing_count;
    uint64_t landed_bytes; /* pushed by the peer into places of this worker */
    union {
        char problem[336];
        struct {
            uint8_t header[48], meta[WFI_META_ROOM];
        } room; /* bytes of a message of the owner's; copy `problem` first */
    };

    /* Own. */
    wfi_ref_waiter waiter;
    wfi_storage *meta;           /* pulled metadata, or a copy of the body if it must outlive its frame */
    size_t meta_size, tail_size; /* the tail follows the metadata: the bytes of eager tensors */
    wfi_decoded decoded;
    wfi_segment meta_segment;
    uint32_t bulk_generation; /* wfi_peer_bulk_generation when the message came */
    wfi_transfer transfer;
    wfi_pieces *pieces; /* NULL: no large tensor goes to a device */
    wfi_task task;
    bool elsewhere;       /* `task` is on the process's executor: counted in agent->inbound_elsewhere */
    bool task_queued;     /* import_task is queued: it imports the next references */
    uint32_t imported;    /* references that were imported */
    uint32_t unconfirmed; /* references whose owners have not answered */
    weft_status unknown;  /* status that an owner returned for its reference; import_task reports it */
    weft_status decoding; /* how decoding ended */
    weft_status pulling;  /* how the pull of the payload ended */
    enum { WFI_INBOUND_NEW, WFI_INBOUND_PULLING, WFI_INBOUND_PLACING, WFI_INBOUND_CONFIRMING, WFI_INBOUND_READY } state;
    bool cancelled;
} wfi_inbound;

/* Starts to receive. `body` stands at the first byte of the body. The bytes are copied if they are needed after the
 * call. [agent lock] */
void wfi_inbound_start(wfi_inbound *inbound, wfi_reader *body);
/* Cancels the pull. `ready` is then called with WEFT_ERR_CANCELLED, if it has not been called yet. After `ready` no
 * memory of the peer is read. [agent lock] */
void wfi_inbound_cancel(wfi_inbound *inbound);
/* Waits for the agent's inbound tasks on the process's executor, and for its copies to and from devices. The agent is
 * stopping and has cancelled all its inbounds. Not locked. */
void wfi_inbound_await(weft_agent *agent);
/* Whether it has been started and has not become ready. */
bool wfi_inbound_busy(const wfi_inbound *inbound);
/* Call without the agent's lock: references may be dropped. */
void wfi_inbound_fini(wfi_inbound *inbound);

#endif
