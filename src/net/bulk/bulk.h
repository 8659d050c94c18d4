/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bulk.h - large payloads: remote reads and writes, on peers' bulk channels.
 *
 * wfi_peer_expose lets one peer read or write memory of this worker for a while. wfi_peer_transfer reads or writes such
 * memory of a peer: segments, cut into chunks. If the connection breaks, only its chunks are lost. The transfer
 * continues with the missing chunks after the peer has answered that the memory is still exposed (revalidate.c).
 *
 * LASTING KEYS. Over a fabric whose registrations last (limits->keys_per_transfer is false) a key stays valid after its
 * exposure has ended: only the closed connection keeps the peer away. A later connection would let it in again. So a
 * transfer over such a connection asks first, unless the peer exposed the memory when it already had this connection:
 * if it has withdrawn the memory since, it has closed the connection.
 *
 * ENDS. wfi_peer_withdraw ends an exposure: after it has returned, the peer neither reads nor writes the memory. A
 * transfer has ended when local memory is no longer accessed and will not be. Its owner is called before the lock is
 * released (wfi_done), after the owners of messages.
 *
 * REGISTERING. Registering memory takes long on such a fabric: the kernel pins every page. So no memory is registered
 * with its cache while the lock is held (prepare.c). wfi_peer_expose only finds regions, which its caller has prepared.
 * A transfer whose memory is not registered waits while another thread registers it.
 *
 * LOCK. All functions are [locked], by the lock of wfi_progress, except those that say otherwise.
 *
 * LIFETIME. A peer and its wfi_bulk are in one struct (wfi_whole_peer). A transfer and its segments belong to their
 * owner, which keeps them until `done`. An exposed storage is referenced until it is withdrawn.
 */
#ifndef WFI_BULK_H
#define WFI_BULK_H

#include "base/codec.h"
#include "net/message/message.h"

/* ---- Exposures: expose.c --------------------------------------------------------------------------------------- */

/* A range that one peer may read or write for a while. The peer is sent `remote` and the size. */
typedef struct wfi_exposure {
    wfi_rma_address remote; /* what the peer is told */
    uint64_t size;
    void *region;         /* for net */
    wfi_storage *storage; /* referenced and, for reading, read-pinned while exposed */
} wfi_exposure;

/* `data` is in `storage`. `access`: WFI_REMOTE_READ or WFI_REMOTE_WRITE. WEFT_ERR_MEMORY also if the memory must be
 * registered, and the caller has not prepared it. */
weft_status wfi_peer_expose(wfi_peer *peer, wfi_storage *storage, void *data, size_t size, unsigned access,
                            wfi_exposure *out);
/*
 * Ends `count` exposures. `quiet`: the peer has said that it has finished using them. Otherwise the bulk connection is
 * closed first, so that nothing is read or written after this returns; its other transfers continue on the next one.
 */
void wfi_peer_withdraw(wfi_peer *peer, wfi_exposure *exposures, size_t count, bool quiet);

/* ---- Registering without the lock: prepare.c --------------------------------------------------------------------- */

typedef struct wfi_prepared_region wfi_prepared_region;
/* Storages, and their registrations, which stay in use until wfi_prepared_put: meanwhile wfi_peer_expose finds them. */
typedef struct wfi_prepared {
    wfi_net_fabric *fabrics[WFI_FABRICS_MAX]; /* to register with: each storage with the first one that does not fail */
    size_t fabric_count;                      /* 0: nothing has to be registered */
    bool is_optional; /* further fabrics of the peer need no registration, so a failure is none of the caller's */
    wfi_prepared_region *regions;
    size_t count, room;
} wfi_prepared;

/* For the fabric that the peer will probably read on, and those that wfi_peer_expose takes if it fails. Writes to a
 * zeroed *out. */
void wfi_prepared_begin(wfi_prepared *out, const wfi_peer *peer);
/* Adds a storage, of which it keeps a reference. If memory is out, the storage will not be registered. Any thread. */
void wfi_prepared_want(wfi_prepared *prepared, wfi_storage *storage, unsigned access);
/* Takes regions that exist already. Returns whether nothing else has to be registered. Any thread. */
bool wfi_prepared_take(wfi_prepared *prepared);
/* Registers what was added, except regions that are there already. Returns the failure, if wfi_peer_expose would fail
 * too. Must be called without the lock, while the net cannot be closed. */
weft_status wfi_prepared_open(wfi_prepared *prepared);
bool wfi_prepared_has(const wfi_prepared *prepared, const wfi_storage *storage); /* it was added */
void wfi_prepared_put(wfi_prepared *prepared); /* ends the use of the regions. With or without the lock */
/* Drops the storages. The lock must not be held, unless others have references of them too. After wfi_prepared_put; the
 * net may be closed. */
void wfi_prepared_fini(wfi_prepared *prepared);

/* Registers on another thread. */
typedef struct wfi_registration {
    wfi_prepared prepared;
    /* [locked] It has ended. Until this returns, the regions are in use; what is not registered then could not be. */
    void (*done)(struct wfi_registration *registration);
    void *owner;        /* for `done`; NULL: nobody waits any more, so `done` will not be called */
    weft_status status; /* for `done`: of wfi_prepared_open */
    wfi_transport *transport;
    wfi_task task;
    bool is_counted; /* in transport->registering */
} wfi_registration;

/* Takes over *prepared, which becomes zero. It frees itself. NULL: memory is out, *prepared is unchanged. */
wfi_registration *wfi_registration_start(wfi_transport *transport, wfi_prepared *prepared,
                                         void (*done)(wfi_registration *registration), void *owner);
void wfi_registration_forget(wfi_registration **registration); /* its owner ends; no-op for NULL; sets it to NULL */
/* Waits until none is in progress. The peers have failed, so that none begins. Not locked. */
void wfi_registrations_await(wfi_transport *transport);

/* ---- Transfers: transfer.c ------------------------------------------------------------------------------------- */

/* WFI_PUSH only if wfi_peer_can_push; otherwise the transfer ends with WEFT_ERR_UNSUPPORTED. */
typedef enum wfi_transfer_kind { WFI_PULL, WFI_PUSH } wfi_transfer_kind;
/* Whether all fabrics that this worker and the peer share can write. If not, the bytes have to be pulled. [locked] */
bool wfi_peer_can_push(const wfi_peer *peer);
typedef struct wfi_transfer wfi_transfer;

typedef struct wfi_transfer_ops { /* [locked] */
    /* `size` bytes at `offset` of that segment have arrived. Called in the middle of net's work, so it may only record
     * this, and defer tasks. */
    void (*chunk)(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size);
    /* Called exactly once, when local memory is no longer accessed and will not be: WEFT_OK (of a push: all bytes are
     * in the peer's memory), WEFT_ERR_CANCELLED, WEFT_ERR_PEER_DEAD, WEFT_ERR_UNREACHABLE, WEFT_ERR_PROTOCOL (the peer
     * says that the memory is no longer exposed), WEFT_ERR_CLOSED, WEFT_ERR_SYSTEM and WEFT_ERR_MEMORY (this worker has
     * no descriptors or no memory for a connection). */
    void (*done)(wfi_transfer *transfer, weft_status status);
} wfi_transfer_ops;

void wfi_transfer_chunk_unheard(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size); /* a `chunk` */

/*
 * A transfer of segments to or from one peer; embedded in its owner. It is cut into chunks, of which a limited number
 * is in flight at a time. The transfers of a peer take turns.
 */
struct wfi_transfer {
    wfi_transfer_kind kind;
    wfi_segment *segments; /* the owner's array, until done */
    size_t segment_count;
    uint32_t told; /* wfi_peer_bulk_told when the peer's message named the memory */
    const wfi_transfer_ops *ops;
    void *net; /* for net */
};

/*
 * The generation of the bulk connection, if the peer is known to have had it when it sent the message that is being
 * received; otherwise 0.
 */
uint32_t wfi_peer_bulk_told(const wfi_peer *peer);
/* On failure (WEFT_ERR_MEMORY or the peer's status) `done` is not called. */
weft_status wfi_peer_transfer(wfi_peer *peer, wfi_transfer *transfer);
void wfi_transfer_cancel(wfi_transfer *transfer); /* `done` is called, at once or soon */

/* ---- The bulk channel: bulk.c ---------------------------------------------------------------------------------- */

/* Net's state of an active transfer. */
typedef struct wfi_transfer_state {
    wfi_list link; /* in wfi_bulk.transfers */
    wfi_transfer *owner;
    struct wfi_bulk *bulk;
    void **regions;                 /* for each segment, if `region_fabric` needs local regions; otherwise NULL */
    wfi_net_fabric *region_fabric;  /* whose regions these are; NULL: none yet */
    wfi_registration *registration; /* registers them; meanwhile no chunk is posted. NULL: none is in progress */
    size_t refused;                 /* the fabric refused to register memory of this size, which is to be handled; 0 */
    weft_status lack;               /* and why */
    uint64_t *first;  /* for each segment the number of its first chunk; the last entry is the count of chunks */
    uint64_t *taken;  /* bitmap of chunks in flight or done */
    uint64_t next;    /* no chunk below it is free */
    uint64_t done;    /* number of chunks done */
    size_t under_way; /* number of chunks in flight */
    wfi_done ended;
    bool ending;      /* posts no more chunks; ends with `status` when none is in flight */
    bool interrupted; /* it had chunks in flight when the last connection broke */
    bool unvalidated; /* after such an interruption, or if keys last: one chunk at a time, until one is done */
    bool validated;   /* the peer has answered that the memory of the first free chunk is still exposed */
    weft_status status;
} wfi_transfer_state;

typedef struct wfi_chunk {
    wfi_flight flight;
    wfi_transfer_state *state; /* NULL after its connection was closed */
    uint64_t index;
    size_t size;
} wfi_chunk;

typedef struct wfi_exposed_region {
    wfi_region *region;     /* NULL: none on this fabric */
    wfi_rma_address remote; /* as sent to the peer */
    bool cached;            /* the region belongs to the cache */
} wfi_exposed_region;

typedef struct wfi_exposed {
    wfi_list link;
    void *data;
    uint64_t size;
    unsigned access;
    wfi_exposed_region
        on[WFI_FABRICS_MAX]; /* on the fabric that the peer was told of, and on those that it asked for */
    bool open;               /* false: closed with the peer */
    bool pinned;
    wfi_storage *storage;
    wfi_task task; /* drops the reference without the lock */
} wfi_exposed;

typedef struct wfi_query { /* a question whether a range is still exposed */
    uint64_t number, size;
    wfi_rma_address remote; /* as the peer was told */
    uint8_t access;
    uint8_t fabric; /* the number of the fabric of the peer's bulk connection */
} wfi_query;

/* Answers to a query. WFI_NOT_YET is not sent: the memory is being registered. */
enum { WFI_GONE = 0, WFI_STILL_EXPOSED = 1, WFI_NOT_ON_THIS_FABRIC = 2, WFI_NOT_YET = 255 };

typedef struct wfi_bulk {
    wfi_channel channel;
    wfi_list transfers;                          /* wfi_transfer_state.link */
    wfi_list exposed;                            /* wfi_exposed.link */
    wfi_control_message revalidate, revalidated; /* question and answer whether memory is still exposed */
    wfi_control_message dial;                    /* asks the peer to connect the bulk channel */
    wfi_transfer_state *asked;      /* the transfer of the last question; NULL: no transfer waits for an answer */
    size_t asked_segment;           /* the segment of that question, */
    uint64_t asked_offset;          /* and where its range begins */
    uint64_t questions;             /* number of the last question */
    uint32_t settled;               /* generation of the connection that the peer had when it answered last; 0: none */
    wfi_query query;                /* the peer's newest question */
    bool answer_due;                /* to `query`, when the previous answer has arrived, or `registration` has ended */
    wfi_registration *registration; /* of the memory that `query` is about; NULL: none is in progress */
    uint64_t ended_by_peer;         /* connections that the peer closed on purpose, by its last hello */
    /* Since when transfers wait for a connection, if there is none. Later than that if the peer did not answer pings:
     * such time is not counted. A connection whose fabric refused memory does not end the wait. */
    uint64_t stuck_ns;
} wfi_bulk;

typedef struct wfi_window { /* the chunks in flight on one connection: wfi_conn_own */
    size_t chunk_bytes, chunk_count;
    uint64_t moved_ns;        /* when a chunk was done, or posted while none was in flight */
    uint64_t frames_received; /* by this worker, when the last chunk was posted */
    unsigned narrow;          /* so many chunks are posted within the narrow window */
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

extern const wfi_upcalls
    wfi_bulk_upcalls; /* for its client, which receives WFI_CONTROL_REVALIDATE to WFI_CONTROL_DIAL */
void wfi_bulk_init(wfi_bulk *bulk, wfi_peer *peer);
void wfi_bulk_fail(wfi_bulk *bulk,
                   weft_status why); /* fails all transfers, ends all exposures; its channel has ended */

/* state.c */
weft_status wfi_transfer_state_create(wfi_bulk *bulk, wfi_transfer *transfer, wfi_transfer_state **out);
void wfi_transfer_state_destroy(wfi_transfer_state *state);
uint64_t wfi_transfer_state_chunks(const wfi_transfer_state *state); /* their number */
/* Sees to it that local memory is registered with the fabric. WEFT_ERR_AGAIN: it is being registered, then
 * wfi_channel_ops.retry is called. *refused: 0, or the size of memory that the fabric refused to register. If the result
 * is WEFT_OK nevertheless, the fabric copies that memory through its own buffers. */
weft_status wfi_transfer_state_register(wfi_transfer_state *state, wfi_net_fabric *fabric, size_t *refused);
void wfi_transfer_state_end(wfi_transfer_state *state, weft_status why);
/* Ends the transfer if no chunk is in flight and none will be posted. */
void wfi_transfer_state_finish(wfi_transfer_state *state);
bool wfi_transfer_state_has_free(
    wfi_transfer_state *state); /* moves `next` to the first free chunk; false if there is none */
/* The segment of chunk `index`, its offset there, and its size. *at (may be NULL) gets the number of the segment. */
wfi_segment *wfi_transfer_state_place(const wfi_transfer_state *state, uint64_t index, uint64_t *offset, uint64_t *size,
                                      size_t *at);
/* Whether the memory of its first free chunk has an address on the connection's fabric. */
bool wfi_transfer_state_fits(const wfi_transfer_state *state, const wfi_conn *conn);
/* transfer.c */
bool wfi_bulk_is_stuck(const wfi_bulk *bulk); /* transfers wait, and there is no connection */
void wfi_transfers_pump(wfi_bulk *bulk);
void wfi_transfers_fail(wfi_bulk *bulk, weft_status why);
void wfi_chunks_free_spares(wfi_transport *transport);

/* revalidate.c */
void wfi_transfers_invalidate(
    wfi_bulk *bulk);                    /* a new connection is up: interrupted transfers ask before they continue */
void wfi_transfers_ask(wfi_bulk *bulk); /* sends the next question, if there is one */
void wfi_bulk_answer(wfi_bulk *bulk);   /* answers the peer's newest question, when the previous answer has arrived */
void wfi_bulk_take_revalidate(wfi_bulk *bulk, wfi_reader *reader);
void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader);

/* expose.c */
void wfi_exposed_end_all(wfi_bulk *bulk); /* closes the regions; their owners still withdraw the records */
/* Whether the range of the query is exposed to the peer, for the query's access. If it is, *on gets the range on the
 * query's fabric, where it is registered if need be. Returns WFI_GONE, ... If WFI_NOT_YET, `registered` is called with
 * `bulk` as owner, and calls this again with that registration as `ended`; otherwise `ended` is NULL. */
uint8_t wfi_exposed_find(wfi_bulk *bulk, const wfi_query *query, const wfi_registration *ended,
                         void (*registered)(wfi_registration *registration), wfi_rma_address *on);

#endif
