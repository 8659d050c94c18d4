/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bulk.h - large payloads: remote reads and writes, on peers' bulk channels.
 *
 * wfi_peer_expose lets one peer read or write memory of this worker for a while. wfi_peer_transfer reads or writes such
 * memory of a peer: segments, cut into chunks. If the connection breaks, only its chunks are lost. The transfer
 * continues with the missing chunks after the peer has answered that the memory is still exposed (revalidate.c).
 *
 * LASTING KEYS. On a fabric whose registrations last (limits->keys_per_transfer is false), a key (rkey) stays valid
 * after its exposure has ended. Closing the connection ends the peer's access, but a later connection would restore it.
 * So a transfer first asks the peer (REVALIDATE). It may skip the question if the peer named the memory while the
 * present connection was already open there: a peer that withdraws memory early closes this connection.
 *
 * ENDS. wfi_peer_withdraw ends an exposure: after it has returned, the peer neither reads nor writes the memory. A
 * transfer has ended when local memory is no longer accessed, and no access will follow. Its owner is called before the
 * lock is released (wfi_done), after the owners of messages.
 *
 * REGISTERING. Registering memory takes long on such a fabric, because the kernel pins every page. So it is never done
 * while the lock is held (prepare.c). The caller of wfi_peer_expose registers the memory before, and wfi_peer_expose
 * finds the region in the cache. A transfer whose memory is not registered waits while another thread registers it.
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
    wfi_rma_address remote; /* as sent to the peer */
    void *region;           /* for net */
} wfi_exposure;

/* `data` is in `storage`. `access`: WFI_REMOTE_READ or WFI_REMOTE_WRITE. WEFT_ERR_MEMORY: memory is out, or `storage`
 * must be registered and its caller has not prepared it (wfi_prepared). */
weft_status wfi_peer_expose(wfi_peer *peer, wfi_storage *storage, void *data, size_t size, unsigned access,
                            wfi_exposure *out);
/*
 * Ends `count` exposures. `peer_done`: the peer has reported that it no longer uses them. Otherwise the bulk
 * connection is closed first, so that nothing is read or written after this returns. Its other transfers continue on
 * the next one.
 */
void wfi_peer_withdraw(wfi_peer *peer, wfi_exposure *exposures, size_t count, bool peer_done);

/* ---- Registering without the lock: prepare.c --------------------------------------------------------------------- */

typedef struct wfi_prepared_region wfi_prepared_region;
/* Storages that are about to be exposed or transferred, and their regions. The regions stay in use until
 * wfi_prepared_put, so wfi_peer_expose finds them in the cache. */
typedef struct wfi_prepared {
    wfi_net_fabric *fabrics[WFI_FABRICS_MAX]; /* each storage is registered with the first one that does not fail */
    size_t fabric_count;                      /* 0: nothing has to be registered */
    bool is_optional; /* the peer has a fabric without a cache, which wfi_peer_expose takes if registering fails */
    wfi_prepared_region *regions;
    size_t count, room;
} wfi_prepared;

/* Chooses the fabrics: the one that the peer will probably use, and those that wfi_peer_expose tries if that one fails.
 * Writes to a zeroed *out. */
void wfi_prepared_begin(wfi_prepared *out, const wfi_peer *peer);
/* Adds a storage, and takes a reference of it. If memory is out, the storage will not be registered. Any thread. */
void wfi_prepared_want(wfi_prepared *prepared, wfi_storage *storage, unsigned access);
/* Takes the regions that are in the cache of the first fabric. True: it takes all, so none must be registered. Any
 * thread. */
bool wfi_prepared_take(wfi_prepared *prepared);
/* Registers the added storages that have no region yet. Returns the first failure, or WEFT_OK if is_optional. Must be
 * called without the lock, while the net cannot be closed. */
weft_status wfi_prepared_open(wfi_prepared *prepared);
/* Whether it was added, for this access or more. */
bool wfi_prepared_has(const wfi_prepared *prepared, const wfi_storage *storage, unsigned access);
void wfi_prepared_put(wfi_prepared *prepared); /* returns the regions to the cache. With or without the lock */
/* Drops the references of the storages. Call it after wfi_prepared_put; the net may be closed. The lock may be held
 * only if the storages have other references. */
void wfi_prepared_fini(wfi_prepared *prepared);

/* A registration on another thread. */
typedef struct wfi_registration {
    wfi_prepared prepared;
    /* [locked] Called when it has ended. The regions stay in use until this returns. A storage without a region could
     * not be registered. */
    void (*done)(struct wfi_registration *registration);
    void *owner;        /* for `done`; NULL: the owner has ended, so `done` is not called */
    weft_status status; /* the result of wfi_prepared_open, for `done` */
    wfi_transport *transport;
    wfi_task task;
    bool is_counted; /* counted in transport->registering */
} wfi_registration;

/* Takes over *prepared, which becomes zero. The result frees itself. NULL: memory is out, *prepared is unchanged. */
wfi_registration *wfi_registration_start(wfi_transport *transport, wfi_prepared *prepared,
                                         void (*done)(wfi_registration *registration), void *owner);
void wfi_registration_forget(wfi_registration **registration); /* its owner ends; sets *registration to NULL */
/* Waits until no registration is in progress. All peers have failed, so no new one begins. Not locked. */
void wfi_registrations_await(wfi_transport *transport);

/* ---- Transfers: transfer.c ------------------------------------------------------------------------------------- */

/* WFI_PUSH only if wfi_peer_can_push; otherwise the transfer ends with WEFT_ERR_UNSUPPORTED. */
typedef enum wfi_transfer_kind { WFI_PULL, WFI_PUSH } wfi_transfer_kind;
/* Whether all fabrics that this worker and the peer share have remote writes. If not, use WFI_PULL. [locked] */
bool wfi_peer_can_push(const wfi_peer *peer);
/* Whether the fabric of transfers to the peer reports memory that cannot be accessed. If not, call
 * wfi_memory_is_accessible before memory is exposed or pushed. [locked] */
bool wfi_peer_reports_memory(const wfi_peer *peer);
typedef struct wfi_transfer wfi_transfer;

typedef struct wfi_transfer_ops { /* [locked] */
    /* `size` bytes at `offset` of that segment have arrived. Called in the middle of net's work, so it may only record
     * this, and defer tasks. */
    void (*chunk)(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size);
    /* Called exactly once, when local memory is no longer accessed, and no access will follow. WEFT_OK: all bytes were
     * transferred, by a push into the peer's memory. WEFT_ERR_PROTOCOL: the memory is no longer exposed at the peer.
     * WEFT_ERR_INVALID with is_spoilt: memory of bad_segment cannot be read or written.
     * WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY: this worker has no descriptors or memory for a connection.
     * WEFT_ERR_UNSUPPORTED: a push, and the fabric has no writes. Also WEFT_ERR_CANCELLED, WEFT_ERR_PEER_DEAD,
     * WEFT_ERR_UNREACHABLE, WEFT_ERR_CLOSED, and the status with which registering memory failed. */
    void (*done)(wfi_transfer *transfer, weft_status status);
} wfi_transfer_ops;

/* A `chunk` that does nothing. */
void wfi_transfer_ignore_chunk(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size);

/*
 * A transfer of segments to or from one peer; embedded in its owner. It is cut into chunks, of which a limited number
 * is in flight at a time. The transfers of a peer take turns.
 */
struct wfi_transfer {
    wfi_transfer_kind kind;
    wfi_segment *segments; /* the owner's array, until done */
    size_t segment_count;
    uint32_t bulk_generation; /* by wfi_peer_bulk_generation, for the message in which the peer named the memory */
    const wfi_transfer_ops *ops;
    void *net; /* for net */
    /* It ended because memory of bad_segment cannot be accessed. is_bad_here: the local memory, not the peer's. */
    bool is_spoilt, is_bad_here;
    size_t bad_segment;
};

/*
 * Call it while a message of the peer is handled. Returns the generation of the bulk connection, if the peer had this
 * connection when it sent the message. Returns 0 if that is unknown.
 */
uint32_t wfi_peer_bulk_generation(const wfi_peer *peer);
/* On failure (WEFT_ERR_MEMORY or the peer's status) `done` is not called. */
weft_status wfi_peer_transfer(wfi_peer *peer, wfi_transfer *transfer);
void wfi_transfer_cancel(wfi_transfer *transfer); /* `done` is called before this returns or later */

/* ---- The bulk channel: bulk.c ---------------------------------------------------------------------------------- */

/* Net's state of an active transfer. */
typedef struct wfi_transfer_state {
    wfi_list link; /* in wfi_bulk.transfers */
    wfi_transfer *owner;
    struct wfi_bulk *bulk;
    void **regions;                 /* one per segment, if region_fabric needs local regions; otherwise NULL */
    wfi_net_fabric *region_fabric;  /* the fabric of `regions`; NULL: none yet */
    wfi_registration *registration; /* registers memory for `regions`, and no chunk is posted; NULL: none */
    size_t refused;                 /* bytes that could not be registered, if that was not handled yet; or 0 */
    weft_status lack;               /* the status of that registration */
    uint64_t *first;  /* for each segment the number of its first chunk; the last entry is the count of chunks */
    uint64_t *taken;  /* bitmap of chunks in flight or done */
    uint64_t next;    /* no chunk below it is free */
    uint64_t done;    /* number of chunks done */
    size_t under_way; /* number of chunks in flight */
    wfi_done ended;
    bool ending;      /* posts no more chunks; ends with `status` when none is in flight */
    bool interrupted; /* it had chunks in flight when the last connection broke */
    bool unvalidated; /* the peer must confirm the memory first; then one chunk is transferred alone */
    bool validated;   /* the peer has confirmed the memory of the first free chunk */
    weft_status status;
} wfi_transfer_state;

typedef struct wfi_chunk {
    wfi_io io;
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
    /* For each fabric: registered on the one that was named to the peer, and on those that it asked for. */
    wfi_exposed_region on[WFI_FABRICS_MAX];
    bool open; /* false: closed with the peer */
    bool pinned;
    wfi_storage *storage;
    wfi_task task; /* drops the reference without the lock */
} wfi_exposed;

typedef struct wfi_query { /* a question whether a range is still exposed */
    uint64_t number, size;
    wfi_rma_address remote; /* as sent to the peer */
    uint8_t access;
    uint8_t fabric; /* the number of the fabric of the peer's bulk connection */
} wfi_query;

/* Answers to a query. WFI_NOT_YET is not sent: the memory is being registered. */
enum { WFI_GONE = 0, WFI_STILL_EXPOSED = 1, WFI_NOT_ON_THIS_FABRIC = 2, WFI_NOT_ACCESSIBLE = 3, WFI_NOT_YET = 255 };

typedef struct wfi_bulk {
    wfi_channel channel;
    wfi_list transfers;                          /* wfi_transfer_state.link */
    wfi_list exposed;                            /* wfi_exposed.link */
    wfi_control_message revalidate, revalidated; /* question and answer whether memory is still exposed */
    wfi_control_message dial;                    /* asks the peer to open a bulk connection */
    wfi_transfer_state *asked;    /* the transfer of the last question; NULL: no transfer waits for an answer */
    size_t asked_segment;         /* the segment of the last question */
    uint64_t asked_offset;        /* the offset of its range in that segment */
    uint64_t questions;           /* number of the last question */
    uint32_t answered_generation; /* generation of the connection that the peer named in its last answer; 0: none */
    wfi_query query;              /* the peer's newest question */
    bool answer_due; /* `query` is answered when the previous answer has arrived and `registration` has ended */
    wfi_registration *registration; /* of the memory of a query; NULL: none is in progress */
    uint64_t ended_by_peer;         /* connections that the peer closed on purpose, by its last hello */
    /* The time since which transfers wait for a connection, if there is none. Time in which the peer did not answer
     * pings is not counted. A connection that was closed because its fabric could not register memory does not
     * count. */
    uint64_t stuck_ns;
} wfi_bulk;

typedef struct wfi_window { /* the chunks in flight on one connection: wfi_conn_own */
    size_t chunk_bytes, chunk_count;
    uint64_t moved_ns;        /* time when a chunk was last done, or posted while none was in flight */
    uint64_t frames_received; /* stats.frames_received when the window was last checked */
    unsigned narrow;          /* number of chunks that are still posted within the narrow window */
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

/* For the client that receives WFI_CONTROL_REVALIDATE to WFI_CONTROL_DIAL. */
extern const wfi_upcalls wfi_bulk_upcalls;
void wfi_bulk_init(wfi_bulk *bulk, wfi_peer *peer);
/* Fails all transfers, and ends all exposures. The channel has ended. */
void wfi_bulk_fail(wfi_bulk *bulk, weft_status why);

/* state.c */
weft_status wfi_transfer_state_create(wfi_bulk *bulk, wfi_transfer *transfer, wfi_transfer_state **out);
void wfi_transfer_state_destroy(wfi_transfer_state *state);
uint64_t wfi_transfer_state_chunks(const wfi_transfer_state *state); /* their number */
/* Registers the local memory with the fabric, if the fabric needs that. WEFT_ERR_AGAIN: another thread registers it;
 * wfi_channel_ops.retry is called afterwards. *refused: 0, or the size of memory that could not be registered. If the
 * result is WEFT_OK nevertheless, the fabric copies that memory through its own buffers. */
weft_status wfi_transfer_state_register(wfi_transfer_state *state, wfi_net_fabric *fabric, size_t *refused);
void wfi_transfer_state_end(wfi_transfer_state *state, weft_status why);
/* Ends it with WEFT_ERR_INVALID: memory of that segment cannot be accessed. `here`: its local memory. */
void wfi_transfer_state_spoilt(wfi_transfer_state *state, size_t segment, bool here);
/* Whether the local memory of the chunk can be written, or for a push read. */
bool wfi_transfer_state_has_local(const wfi_transfer_state *state, uint64_t chunk);
/* Ends the transfer if no chunk is in flight and none will be posted. */
void wfi_transfer_state_finish(wfi_transfer_state *state);
/* Moves `next` to the first free chunk. False: there is none. */
bool wfi_transfer_state_has_free(wfi_transfer_state *state);
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
/* A new connection is up: interrupted transfers, and all if keys last, ask before they continue. */
void wfi_transfers_invalidate(wfi_bulk *bulk);
void wfi_transfers_ask(wfi_bulk *bulk); /* sends the next question, if there is one */
/* No chunk of the connection has moved for long, and the peer answers. Checks the local memory of a chunk in flight,
 * and asks about the peer's. */
void wfi_transfers_doubt(wfi_conn *conn);
void wfi_bulk_answer(wfi_bulk *bulk); /* answers the peer's newest question, when the previous answer has arrived */
void wfi_bulk_take_revalidate(wfi_bulk *bulk, wfi_reader *reader);
void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader);

/* expose.c */
void wfi_exposed_end_all(wfi_bulk *bulk); /* closes the regions; their owners still withdraw the records */
/* The answer to a peer's query whether memory is still exposed to it (revalidate.c): WFI_GONE, ... If it is, registers
 * it with the query's fabric, and writes the range's address there to *remote. WFI_NOT_YET: another thread registers
 * it, and then calls `registered`, whose registration has `bulk` as owner. `registered` calls this function again, with
 * that registration as `ended`; in other calls `ended` is NULL. */
uint8_t wfi_exposed_answer(wfi_bulk *bulk, const wfi_query *query, const wfi_registration *ended,
                           void (*registered)(wfi_registration *registration), wfi_rma_address *remote);

#endif
