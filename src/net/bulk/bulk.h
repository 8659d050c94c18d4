/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bulk.h - large payloads: remote reads and writes, on peers' bulk channels.
 *
 * WHAT IT OFFERS. wfi_peer_expose lets one peer read or write memory of ours for a while. wfi_peer_transfer reads or
 * writes such memory of a peer's: segments, cut into chunks. If the connection breaks, the chunks on it are lost and
 * the transfer is not: it goes on with the chunks that are missing, once the peer has said that the memory is still
 * exposed (revalidate.c).
 *
 * ENDS. An exposure ends with wfi_peer_withdraw: once that has returned, the peer neither reads nor writes the memory.
 * A transfer ends when no byte of local memory is or will be touched; its owner is told before the lock is released
 * (wfi_done), after the owners of messages.
 *
 * LOCKING. All of it [locked], the lock of wfi_progress.
 *
 * LIFETIME. A peer's wfi_bulk lies beside the peer. A transfer and its segments belong to their owner, who keeps them
 * until `done`. An exposed storage is referenced until it is withdrawn.
 */
#ifndef WFI_BULK_H
#define WFI_BULK_H

#include "base/codec.h"
#include "net/message/message.h"

#define WFI_CHUNK_BYTES (1u << 20)

/* ---- Exposures: expose.c --------------------------------------------------------------------------------------- */

/* A range that one peer may read or write for a while. Goes on the wire as address, key, size. */
typedef struct wfi_exposure {
    uint64_t address, key, size;
    void *region;         /* net's own */
    wfi_storage *storage; /* referenced and, for reading, read-pinned while exposed */
} wfi_exposure;

/* `data` lies in `storage`. access: WFI_REMOTE_READ or WFI_REMOTE_WRITE. */
weft_status wfi_peer_expose(wfi_peer *peer, wfi_storage *storage, void *data, size_t size, unsigned access,
                            wfi_exposure *out);
/*
 * Ends `count` exposures. `quiet`: the peer has said that it is done with them. Otherwise the bulk connection is closed
 * first, so that nothing is read or written any more once this returns; its other transfers go on over the next one.
 */
void wfi_peer_withdraw(wfi_peer *peer, wfi_exposure *exposures, size_t count, bool quiet);

/* ---- Transfers: transfer.c ------------------------------------------------------------------------------------- */

typedef enum wfi_transfer_kind { WFI_PULL, WFI_PUSH } wfi_transfer_kind;
typedef struct wfi_transfer wfi_transfer;

typedef struct wfi_transfer_ops { /* [locked] */
    /* `size` bytes at `offset` of that segment have arrived. It is called in the middle of net's work: so it may
     * only note that, and defer tasks. */
    void (*chunk)(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size);
    /* Exactly once, when no byte of local memory is or will be touched: WEFT_OK (a push: all is in the peer's memory),
     * WEFT_ERR_CANCELLED, WEFT_ERR_PEER_DEAD, WEFT_ERR_UNREACHABLE, WEFT_ERR_PROTOCOL (the peer says that the memory is
     * not exposed any more), WEFT_ERR_CLOSED, WEFT_ERR_SYSTEM and WEFT_ERR_MEMORY (this worker has no descriptors or no
     * memory for a connection). */
    void (*done)(wfi_transfer *transfer, weft_status status);
} wfi_transfer_ops;

void wfi_transfer_chunk_unheard(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size); /* a `chunk` */

/*
 * A transfer of segments to or from one peer; embedded in its owner. It is cut into chunks, of which a bounded number
 * is under way at a time, and takes turns with the peer's other transfers.
 */
struct wfi_transfer {
    wfi_transfer_kind kind;
    wfi_segment *segments; /* the owner's array, until done */
    size_t segment_count;
    const wfi_transfer_ops *ops;
    void *net; /* net's own */
};

/* WEFT_ERR_MEMORY or the peer's status; then done is not called. */
weft_status wfi_peer_transfer(wfi_peer *peer, wfi_transfer *transfer);
void wfi_transfer_cancel(wfi_transfer *transfer); /* done follows, at once or soon */

/* ---- The bulk channel: bulk.c ---------------------------------------------------------------------------------- */

/* A transfer while net has it. */
typedef struct wfi_transfer_state {
    wfi_list link; /* in wfi_bulk.transfers, taking turns */
    wfi_transfer *owner;
    struct wfi_bulk *bulk;
    void **regions;   /* per segment, where the fabric wants local ones; else NULL */
    uint64_t *first;  /* per segment the number of its first chunk; one more entry: the count of chunks */
    uint64_t *taken;  /* bitmap: under way or done */
    uint64_t next;    /* no chunk below it is free */
    uint64_t done;    /* chunks done */
    size_t under_way; /* chunks */
    wfi_done ended;
    bool ending;      /* takes no more chunks; ends with status when none is under way */
    bool interrupted; /* had chunks under way when the last connection broke */
    bool unvalidated; /* that connection has a successor: one chunk at a time, until one is through */
    bool validated;   /* the peer says that the memory of the first free chunk is still exposed */
    weft_status status;
} wfi_transfer_state;

typedef struct wfi_chunk {
    wfi_flight flight;
    wfi_transfer_state *state; /* NULL once the lane closed under it */
    uint64_t index;
    size_t size;
} wfi_chunk;

typedef struct wfi_exposed {
    wfi_list link;
    wfi_region *region;          /* NULL: empty, cached, or closed with the peer */
    uint64_t address, key, size; /* as the peer was told */
    unsigned access;
    bool cached; /* the region is the cache's */
    bool pinned;
    wfi_storage *storage;
    wfi_task task; /* drops the reference outside the lock */
} wfi_exposed;

typedef struct wfi_query { /* may I still do that? */
    uint64_t number, address, key, size;
    uint8_t access;
} wfi_query;

typedef struct wfi_bulk {
    wfi_channel channel;
    wfi_list transfers;                          /* wfi_transfer_state.link */
    wfi_list exposed;                            /* wfi_exposed.link */
    wfi_control_message revalidate, revalidated; /* whether memory is still on offer */
    wfi_control_message dial;                    /* asks the peer to connect the bulk channel */
    wfi_transfer_state *asked; /* the transfer that the question is about; NULL: none waits for the answer */
    uint64_t questions;        /* asked so far: the number of the last one */
    wfi_query query;           /* the peer's newest question */
    bool answer_due;           /* to it, once the answer before it has arrived */
    uint64_t ended_by_peer;    /* connections that it closed on purpose, as its last hello told */
    /* Since when transfers wait for a connection, if there is none; only time in which the peer answered pings
     * counts. */
    uint64_t stuck_ns;
} wfi_bulk;

typedef struct wfi_window { /* of one connection: wfi_conn_own. What is under way on it */
    size_t chunk_bytes, chunk_count;
} wfi_window;

static inline wfi_bulk *wfi_bulk_of(const wfi_channel *channel)
{
    return wfi_container_of(channel, wfi_bulk, channel);
}

static inline wfi_bulk *wfi_peer_bulk(const wfi_peer *peer)
{
    return wfi_bulk_of(peer->channels[WFI_BULK]);
}

static inline wfi_window *wfi_conn_window(const wfi_conn *conn)
{
    return wfi_conn_own(conn);
}

extern const wfi_upcalls wfi_bulk_upcalls; /* of its client: takes WFI_CONTROL_REVALIDATE to WFI_CONTROL_DIAL */
void wfi_bulk_init(wfi_bulk *bulk, wfi_peer *peer);
void wfi_bulk_fail(wfi_bulk *bulk, weft_status why); /* all transfers and exposures; its channel has ended */

/* transfer.c */
bool wfi_bulk_is_stuck(const wfi_bulk *bulk); /* transfers wait, and there is no connection */
void wfi_transfers_pump(wfi_bulk *bulk);
void wfi_transfers_fail(wfi_bulk *bulk, weft_status why);
void wfi_transfer_state_end(wfi_transfer_state *state, weft_status why);
bool wfi_transfer_state_has_free(
    wfi_transfer_state *state); /* moves `next` to the first free chunk; false if there is none */
/* Where chunk `index` lies: its segment, whose number goes to *at (NULL: nowhere). */
const wfi_segment *wfi_transfer_state_place(const wfi_transfer_state *state, uint64_t index, uint64_t *remote,
                                            uint64_t *size, size_t *at);
void wfi_chunks_free_spares(wfi_transport *transport);

/* revalidate.c */
void wfi_transfers_invalidate(
    wfi_bulk *bulk);                    /* a new lane is up: those that the last one took along ask before they go on */
void wfi_transfers_ask(wfi_bulk *bulk); /* the next question, if there is one */
void wfi_bulk_answer(wfi_bulk *bulk);   /* the peer's newest question, once the answer before has arrived */
void wfi_bulk_take_revalidate(wfi_bulk *bulk, wfi_reader *reader);
void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader);

/* expose.c */
void wfi_exposed_end_all(wfi_bulk *bulk); /* closes the regions; the records stay with their owners */
/* Whether that range is exposed to the peer, for that access. */
bool wfi_exposed_covers(const wfi_bulk *bulk, const wfi_query *query);

#endif
