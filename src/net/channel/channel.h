/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.h - the open fabrics, the peers that are reached through them, and the connections to them.
 *
 * TYPES.
 *   - wfi_transport: this worker's identity, the table of peers, and the open fabrics.
 *   - wfi_net_fabric: an open fabric (net_fabric.c). Each connection belongs to one.
 *   - wfi_peer: one incarnation of a rank.
 *   - wfi_channel: the control or the bulk channel of a peer. It is connected when it is first needed, and connected
 *     again when a connection breaks. It calls its owner (wfi_channel_ops: message/ and bulk/).
 *   - wfi_io: a send, receive, read or write that was posted on a connection.
 *
 * LIFETIME. A channel exists as long as its peer, and uses one connection (wfi_conn) after another. A connection exists
 * until the fabric has reported its last operation, so a closed one may still exist when its successor is up. An
 * operation belongs to its connection from the moment when the fabric accepted it until it is reported. A peer exists
 * while it is the last one of its rank, or is held (wfi_peer_ref).
 *
 * LOCK. The lock of wfi_progress guards every field here whose comment does not say otherwise. Every function here is
 * called with that lock held, except wfi_transport_init, _open and _fini, and those of pair.c and handshake.c that
 * take keys. Fields marked (constant) are written only while opening, those marked [token] only by the holder of the
 * token. A function that posts, or breaks a connection, may close the connection: its caller must check `closed`
 * afterwards.
 */
#ifndef WFI_CHANNEL_H
#define WFI_CHANNEL_H

#include "base/text/log.h"
#include "base/map.h"
#include "fabric.h"
#include "job/protocol/protocol.h"
#include "mem/mem.h"
#include "progress/progress.h"

#include <sodium.h>
#include <weft/agent.h>

typedef struct wfi_transport wfi_transport;
typedef struct wfi_net_fabric wfi_net_fabric;
typedef struct wfi_peer wfi_peer;
typedef struct wfi_channel wfi_channel;
typedef struct wfi_conn wfi_conn;
typedef struct wfi_io wfi_io;

#define WFI_CONNECT_LIMIT_NS UINT64_C(1000000000) /* time limit of the first attempt; later ones have longer limits */
#define WFI_IDLE_NS UINT64_C(5000000000)          /* an unused bulk connection is closed after this time */
#define WFI_LEFT_MAX 4
#define WFI_CHUNK_BYTES (256u << 10)
#define WFI_FABRICS_MAX 4      /* open fabrics of one agent */
#define WFI_FAILURES_BEFORE 2  /* failures in a row after which a channel avoids a fabric */
#define WFI_LANE_SENDS 64      /* sends, reads and writes in flight on a connection, at most */
#define WFI_LANE_RECEIVES 6    /* receives posted on a connection, at most */
#define WFI_TRANSPORT_TIMERS 3 /* timers of a wfi_transport: turn_timer, starved_timer, silent_timer */
#define WFI_PEER_TIMERS 5      /* timers of a peer: of each channel, acknowledgements, silence, large messages */

/* ---- Operations ------------------------------------------------------------------------------------------------ */

typedef struct wfi_io_ops { /* none is NULL; [locked] */
    /* The operation was reported. Its connection may be closed. */
    void (*completed)(wfi_io *io, const wfi_completion *completion);
    /* Called for each operation in conn->ios when the connection is closed. The fabric reports it later. */
    void (*dropped)(wfi_io *io);
} wfi_io_ops;

struct wfi_io {
    wfi_fabric_op op;
    wfi_list link; /* in conn->ios, or for its owner's use */
    wfi_conn *conn;
    const wfi_io_ops *ops;
};

/* ---- Channels and connections ---------------------------------------------------------------------------------- */

typedef enum wfi_lane_kind { WFI_CONTROL = 0, WFI_BULK = 1, WFI_LANE_KINDS = 2 } wfi_lane_kind;

typedef struct wfi_channel_ops { /* none is NULL; [locked] */
    size_t conn_bytes;           /* zeroed bytes after each connection for the owner's data (wfi_conn_own) */
    /* A connection is about to be requested or accepted: allocates the owner's data. */
    weft_status (*prepare)(wfi_conn *conn);
    /* The connection has a lane: posts receives on it. */
    weft_status (*attach)(wfi_conn *conn);
    /* All its operations were reported: frees the memory that `prepare` allocated. */
    void (*release)(wfi_conn *conn);
    /* Whether there is something to send. */
    bool (*needed)(const wfi_channel *channel);
    /* Whether the channel is unused, and may be closed after WFI_IDLE_NS. */
    bool (*idle)(const wfi_channel *channel);
    /* Asks the peer to connect, because this worker may be unable to. */
    void (*ask)(wfi_channel *channel);
    /* `up`: a connection is up. `down`: one was closed; conn->up says whether it had been up. */
    void (*up)(wfi_channel *channel);
    void (*down)(wfi_channel *channel, wfi_conn *conn);
    /* A post failed earlier because a queue was full or memory was out: tries again. */
    void (*retry)(wfi_channel *channel);
    /* This worker lacks descriptors or memory for a connection: fails operations that have not begun, with `lack`. */
    void (*starved)(wfi_channel *channel, weft_status lack);
    /* The position for this worker's hello (handshake.c). take_position handles the one in the peer's hello; false if
     * it is impossible. */
    uint64_t (*position)(const wfi_channel *channel);
    bool (*take_position)(wfi_channel *channel, uint64_t theirs);
} wfi_channel_ops;

typedef struct wfi_avoided { /* a channel's record of failures of one fabric: choice.c */
    uint64_t until_ns;       /* the fabric is avoided until then; 0: it is not avoided */
    uint64_t failed_ns;      /* time of the last failure since it carried data; 0: none */
    uint8_t failures;        /* in a row */
    uint8_t times;           /* number of times that it was avoided since it last carried data */
    uint8_t lacks;           /* attempts in a row that failed because this worker lacked descriptors or memory */
    const char *why;         /* the last failure; NULL: none */
    const char *unreadable;  /* why this channel never uses it: reads do not work on it; NULL: it does */
} wfi_avoided;

struct wfi_channel {
    wfi_peer *peer;
    wfi_lane_kind kind;
    const wfi_channel_ops *ops;
    wfi_conn *conn; /* connecting or up; NULL: none */
    /* A connection that the peer requested on another fabric while `conn` is an unanswered attempt of this worker. The
     * first of the two that is up stays. NULL: none */
    wfi_conn *crossing;
    uint32_t generation;         /* highest number of an attempt, own or accepted: orders crossing attempts */
    uint32_t highest_request;    /* highest generation of the peer's requests */
    uint64_t replay_window;      /* bit n: the request with generation highest_request - n has arrived */
    unsigned failures;           /* failed attempts, and connections that carried no data, in a row */
    const char *why;             /* why the last attempt failed; NULL: none failed since the last connection */
    const wfi_net_fabric *tried; /* the fabric of the last attempt; NULL: none yet */
    wfi_avoided avoided[WFI_FABRICS_MAX];
    bool ask;           /* this worker may be unable to connect, so it asks the peer to connect (DIAL) */
    uint64_t wanted_ns; /* until this time the peer asks this worker to connect */
    bool lost;          /* its connection broke, and no other was up since */
    uint64_t used_ns;   /* when data was last transferred */
    wfi_list turn;      /* in wfi_transport.turns or turns_again */
    wfi_timer timer;    /* connecting: time limit; down: the next attempt; up: the idle check, if the owner set it */
    uint64_t ended;     /* number of connections that this worker closed on purpose */
    unsigned starved;   /* bitmap of the fabrics on which posts failed for lack of memory since one succeeded */
    bool excused;       /* one side closed the last connection on purpose, so it is not counted as lost */
};

typedef struct wfi_conn_keys { /* of the frames that are sent, and of those that are received */
    uint8_t out[crypto_shorthash_KEYBYTES], in[crypto_shorthash_KEYBYTES];
} wfi_conn_keys;

struct wfi_conn {
    uint64_t id; /* identifies the connection in events of the fabric; a pointer in a late event would dangle */
    wfi_transport *transport;
    wfi_net_fabric *fabric; /* whose lane it has */
    wfi_peer *peer;         /* held: it contains the channel */
    wfi_channel *channel;
    wfi_lane *lane; /* NULL after closing */
    uint32_t generation;
    bool ours;     /* this worker requested it */
    bool attempt;  /* counted in wfi_transport.attempts */
    wfi_list dial; /* in fabric->dials: waits until the event thread opens its lane */
    bool up, useful, closed;
    bool refused;     /* closed because its fabric refused to register memory */
    bool starving;    /* a post failed because memory was out, and was not repeated yet */
    unsigned starved; /* repetitions in a row that failed because memory was out */
    bool keyed;       /* both nonces are known, so the keys of its frames are too */
    uint64_t nonce, peer_nonce;
    wfi_conn_keys *keys; /* guarded memory */
    size_t outstanding;  /* operations that the fabric has not reported yet */
    wfi_list ios;        /* wfi_io.link: operations that must be dropped when it closes, oldest first */
};

static inline void *wfi_conn_own(const wfi_conn *conn) /* the data of the channel's owner: conn_bytes */
{
    return (void *)(conn + 1);
}

/* Whether frames on this connection have no MAC, because only the peer can write to it. Call it only once the
 * connection is up or a frame has arrived. */
bool wfi_conn_is_private(const wfi_conn *conn);

static inline wfi_conn *wfi_channel_up(const wfi_channel *channel)
{
    return channel->conn && channel->conn->up ? channel->conn : NULL;
}

/* channel.c */
void wfi_channel_init(wfi_channel *channel, wfi_peer *peer, wfi_lane_kind kind, const wfi_channel_ops *ops);
void wfi_channel_fini(wfi_channel *channel);   /* closes it; no attempt follows */
void wfi_channel_close(wfi_channel *channel);  /* closes its connections and attempt */
void wfi_channel_prefer(wfi_conn *crossing);   /* the peer uses it: closes this worker's own attempt */
void wfi_channel_want(wfi_channel *channel);   /* connects it if it is needed and no attempt is in progress */
void wfi_channel_broken(wfi_conn *conn);       /* closes the connection, and connects again if the channel is needed */
void wfi_channel_end(wfi_channel *channel);    /* closes the connection on purpose; the peer learns that */
void wfi_channel_ask(wfi_channel *channel);    /* asks the peer to connect it */
void wfi_channel_wanted(wfi_channel *channel); /* the peer asks this worker to connect it */
/* Malformed data (`reason`) arrived: closes the connection; from the third time on also suspects the peer. */
void wfi_channel_protocol_error(wfi_conn *conn, const char *reason);
void wfi_channel_turns_due(wfi_timer *timer);
/* Data was received over this connection, or acknowledged. */
void wfi_channel_moved(wfi_conn *conn);
/* An attempt failed. `lack`: WEFT_ERR_SYSTEM or WEFT_ERR_MEMORY if this worker had no descriptors or memory; with any
 * other code the peer or the network is the cause. `why` is a constant text. */
void wfi_channel_failed(wfi_channel *channel, weft_status lack, const char *why);
void wfi_attempt_failed(wfi_conn *conn, const char *why);
/*
 * `status`: of lane_open or lane_take. If it is WEFT_OK, posts the receives, then connects with these private data. On
 * failure the connection is closed.
 */
weft_status wfi_channel_attach(wfi_conn *conn, weft_status status, const void *data, size_t size);
/* The connection's fabric failed to register memory: `bytes` bytes at this worker (`why`: the status), or memory of the
 * peer if `bytes` is 0. Returns true if the connection was closed, because the next one can be on another fabric. */
bool wfi_channel_turn(wfi_conn *conn, size_t bytes, weft_status why);
/* The connection came up, but reads do not work on it: closes it. The next one is on another fabric. */
void wfi_channel_unreadable(wfi_conn *conn, const char *why);
void wfi_channel_dialled(wfi_conn *conn, weft_status status); /* lane_open has returned this status */
void wfi_channel_is_up(wfi_channel *channel);
/* The address of its last attempt, for errors and logs. */
void wfi_channel_address_text(const wfi_channel *channel, char *out, size_t room);

/* choice.c. choose: returns the fabric for the channel's next connection; NULL: the peer and this worker have none in
 * common. count_failure: counts a failure of an attempt or connection on this fabric. avoid: avoids the fabric for a
 * minute. clear_failures: resets the record of failures, because the fabric carried data. refused: the fabric failed
 * to register `bytes` of memory with the status `why`. Bulk channels then avoid it for a minute. */
wfi_net_fabric *wfi_channel_choose(const wfi_channel *channel);
bool wfi_peer_has_bulk(const wfi_peer *peer);   /* whether choose returns one for its bulk channel */
bool wfi_peer_has_fabric(const wfi_peer *peer); /* whether choose returns one for its control channel */
#define WFI_NO_FABRIC "it and this worker have no fabric in common (WEFT_FABRIC)" /* why it chose none */
/* The fabric to expose memory on: that of the connection, or of the next one if there is none, or if the fabric of the
 * connection has just failed to register memory. NULL as above. */
wfi_net_fabric *wfi_channel_exposes_on(const wfi_channel *channel);
/* Whether each fabric of the peer has failed since that time, or is being tried. True if there is only one. */
bool wfi_channel_has_tried(const wfi_channel *channel, uint64_t since_ns);
void wfi_channel_count_failure(wfi_channel *channel, const wfi_net_fabric *fabric, const char *why);
/* The peer did not answer on the connection for a bound: the next failure of its fabric is enough to avoid it. */
void wfi_channel_silent(const wfi_conn *conn);
void wfi_channel_avoid(wfi_channel *channel, const wfi_net_fabric *fabric, const char *why);
void wfi_channel_clear_failures(wfi_channel *channel, const wfi_net_fabric *fabric);
/* count: records whether the last attempt on this fabric failed because this worker lacked descriptors or memory.
 * lacks: whether the last few attempts on every fabric of the peer failed for that. */
void wfi_channel_count_lack(wfi_channel *channel, const wfi_net_fabric *fabric, bool is_lack);
bool wfi_channel_lacks(const wfi_channel *channel);
void wfi_net_fabric_refused(wfi_net_fabric *fabric, size_t bytes, weft_status why);
/* The bulk channel never uses this fabric again, because reads do not work on it. */
void wfi_channel_exclude(wfi_channel *channel, wfi_net_fabric *fabric, const char *why);
/* The name of the fabric of the channel's connection, or of its next one. `reason`: why no preferred fabric is used; ""
 * if it is the first of the list. */
const char *wfi_channel_fabric(const wfi_channel *channel, char *reason, size_t room);
/* Both as one text: "tcp (verbs: no address of worker 3)". */
void wfi_peer_fabric_text(const wfi_peer *peer, wfi_lane_kind kind, char *out, size_t room);
/* The name of the fabric of the connection that is up; NULL: none is. */
const char *wfi_peer_fabric_name(const wfi_peer *peer, wfi_lane_kind kind);
/* The number of connections of one kind that are up on the fabric. */
size_t wfi_net_fabric_lanes(const wfi_net_fabric *fabric, wfi_lane_kind kind);

/* connection.c */
void wfi_io_ignore_drop(wfi_io *io); /* a `dropped` for operations that are never in conn->ios */
wfi_conn *wfi_conn_create(wfi_channel *channel, wfi_net_fabric *fabric, bool ours, uint32_t generation);
/* After this the fabric no longer accesses the connection's memory. The connection is freed with its last operation. If
 * it was the channel's connection, the crossing one takes its place. */
void wfi_conn_close(wfi_conn *conn);
void wfi_conn_reported(wfi_conn *conn);
void wfi_conn_attempt_ended(wfi_conn *conn); /* the attempt has succeeded, or was closed */

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

typedef struct wfi_peer_address {
    const uint8_t *bytes; /* in `member`; NULL: the peer has no address of this fabric that can be reached from here */
    size_t size;
    bool is_elsewhere; /* it has one, but that cannot be reached from here (wfi_fabric_ops.reaches) */
} wfi_peer_address;

struct wfi_peer {  /* first member of wfi_whole_peer (net.h) */
    wfi_list link; /* in wfi_transport.known */
    wfi_transport *transport;
    unsigned holds;                              /* of the table, of connections, and of the layers above */
    wfi_member member;                           /* (constant) its record in the job; wfi_net_member gives it */
    wfi_peer_address addresses[WFI_FABRICS_MAX]; /* (constant) for each fabric that is open here */
    int rank;
    uint8_t *pair_key;           /* in guarded memory; NULL: not needed yet. See pair.c */
    uint32_t left[WFI_LEFT_MAX]; /* (constant) former incarnations of the rank that left, latest first */
    weft_status status;
    char *gone_text; /* with a status: which rank has ended and why; NULL: not known, or memory was out */
    bool ending;     /* the store has told that it closes or serves */
    bool leaving;    /* it has announced that it leaves the job: it is alive, but takes no more calls of programs */
    wfi_channel *channels[WFI_LANE_KINDS];
    unsigned protocol_errors; /* connections that were closed because of malformed data */

    uint64_t received_ns;
    uint64_t needed_ns; /* since when it is needed; or when it was last given up */
    bool unreachable;   /* it was given up, and nothing was heard since */
    wfi_timer silence;  /* checks a needed peer (failure_detector.c) */
};

/* peer.c. A wfi_peer is one incarnation of a rank; a later incarnation is a new wfi_peer. The last one of each rank
 * exists until the net closes, a former one while it is held. Code that keeps a pointer to a peer after its peer_gone
 * must hold it. */
wfi_peer *wfi_peer_ref(wfi_peer *peer);
void wfi_peer_unref(wfi_peer *peer); /* NULL is a no-op */
static inline int wfi_peer_rank(const wfi_peer *peer)
{
    return peer->rank;
}

static inline uint32_t wfi_peer_incarnation(const wfi_peer *peer)
{
    return peer->member.incarnation;
}

static inline const char *wfi_peer_name(const wfi_peer *peer) /* owned by the peer */
{
    return peer->member.name;
}

static inline weft_status wfi_peer_status(const wfi_peer *peer) /* WEFT_OK, WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT */
{
    return peer->status;
}

static inline bool wfi_peer_is_ending(const wfi_peer *peer) /* it closes or serves */
{
    return peer->ending || peer->leaving;
}
static inline bool wfi_peer_is_leaving(const wfi_peer *peer) /* or has left */
{
    return peer->leaving;
}

static inline bool wfi_peer_is_unreachable(const wfi_peer *peer) /* it was given up, and not heard since */
{
    return peer->unreachable;
}

/* The rank's present or last peer; NULL for this worker's rank, an invalid rank, or a rank that no worker has had. */
wfi_peer *wfi_peer_at(const wfi_transport *transport, int rank);
/* How a former incarnation of the rank ended: WEFT_ERR_PEER_LEFT or WEFT_ERR_PEER_DEAD. WEFT_ERR_PEER_DEAD if that is
 * unknown: it ended before this worker joined, or WFI_LEFT_MAX later incarnations have left since. */
weft_status wfi_peer_former_status(const wfi_transport *transport, int rank, uint32_t incarnation);
void wfi_peers_destroy(wfi_transport *transport);
void wfi_peer_watch(wfi_peer *peer);                        /* it is needed: begins to check it for silence */
void wfi_peer_check_within(wfi_peer *peer, uint64_t after); /* checks it after `after` ns, or earlier */

/*
 * pass.c. pass: see wfi_fabric_ops. WEFT_ERR_UNREACHABLE: the control channel is not up on a fabric that can pass. A
 * descriptor is lost if the connection breaks before the peer has it. passed: calls the upcall.
 * wake: ends the sleep of the peer's polling thread. False: the control channel is not up on a fabric that can wake
 * (can_wake), so the caller sends a message instead.
 */
weft_status wfi_peer_pass(wfi_peer *peer, int fd, const void *data, size_t size);
void wfi_peer_passed(wfi_peer *peer, int fd, const uint8_t *data, size_t size);
bool wfi_peer_can_wake(const wfi_peer *peer);
bool wfi_peer_wake(wfi_peer *peer);

/* addresses.c. add: false if there is no room. find: NULL if the member has none of this fabric. */
bool wfi_addresses_add(wfi_member *member, uint8_t number, const uint8_t *address, size_t size);
const uint8_t *wfi_addresses_find(const wfi_member *member, uint8_t number, size_t *size);
/* Whether the member has an address of a fabric that passes descriptors between workers of one machine. */
bool wfi_addresses_pass(const wfi_member *member);
/* The member's address on a fabric that is open here. */
wfi_peer_address wfi_addresses_on(const wfi_member *member, const wfi_net_fabric *fabric);

/* ---- The transport --------------------------------------------------------------------------------------------- */

typedef struct wfi_net_keys {
    uint8_t job[WFI_JOB_KEY_BYTES];
    uint8_t private_key[WFI_PUBLIC_KEY_BYTES], public_key[WFI_PUBLIC_KEY_BYTES];
} wfi_net_keys;

/* Upcalls are [locked], except `joined`. All members except `message` may be NULL. */
typedef struct wfi_upcalls {
    /* One message; `bytes` are valid during the call. */
    void (*message)(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);
    /* Called after all its messages, transfers and exposures have been failed or withdrawn. */
    void (*peer_gone)(void *arg, wfi_peer *peer, weft_status why, const char *text);
    /* The peer is alive, as far as the store knows, but was silent here for WFI_REACH_BOUNDS bounds. Operations that
     * wait for it must fail, and may be tried again. Its transfers have failed; messages stay queued until it can be
     * reached. Called again after the same time, while the peer is needed. */
    void (*peer_unreachable)(void *arg, wfi_peer *peer, const char *text);
    /* A worker joined the running job: a new wfi_peer. peer_gone was called for a former one of its rank. */
    void (*peer_joined)(void *arg, wfi_peer *peer);
    void (*peer_leaving)(void *arg, wfi_peer *peer); /* it has announced that it leaves the elastic job */
    void (*peer_ending)(void *arg, wfi_peer *peer);  /* wfi_peer_is_ending has changed (wfi_net_follow_ending) */
    /* This worker was evicted, the store is lost, or rank 0 ended the job. Called after peer_gone of all peers. */
    void (*self_gone)(void *arg, weft_status why, const char *text);
    /* The peer has passed a descriptor (wfi_peer_pass), which is closed when this returns. */
    void (*passed)(void *arg, wfi_peer *from, int fd, const uint8_t *data, size_t size);
    void (*synced)(void *arg); /* a sync was answered (wfi_net_sync); all earlier events have been reported */
    void (*probe)(void *arg, uint64_t round);
    void (*served)(void *arg, uint64_t number); /* all serve or close, and nothing is outstanding (wfi_net_serve) */
    void (*terminated)(void *arg);
    void (*awaited)(void *arg, const char *whom); /* answers wfi_net_await: the workers that the job's end waits for */
    /* This worker's rank is known. Called before any other upcall and its tasks. Not locked. */
    void (*joined)(void *arg);
} wfi_upcalls;

typedef struct wfi_net_client { /* receives the messages of a range of types */
    uint8_t first_type, last_type;
    const wfi_upcalls *upcalls;
    void *arg;
} wfi_net_client;

#define WFI_CLIENTS 4
#define WFI_POLL_MAX 32 /* completions read at once */

/* An open fabric, and what net keeps for it. */
struct wfi_net_fabric {
    wfi_source source; /* of progress */
    wfi_transport *transport;
    const wfi_fabric_ops *ops;                /* (constant) */
    wfi_fabric *fabric;                       /* (constant) */
    const wfi_fabric_limits *limits;          /* (constant) */
    wfi_reg_cache *cache;                     /* (constant) NULL if keys_per_transfer, without needs_local_regions */
    wfi_completion completions[WFI_POLL_MAX]; /* [token] polled, and not yet passed to their wfi_io */
    size_t completion_count;
    bool stuck;                /* a post failed because a queue was full: try again after the next round */
    size_t zombies;            /* closed connections with operations in flight */
    _Atomic size_t conns;      /* (atomic) all connections, zombies too: polling reads it without the lock */
    _Atomic size_t posted;     /* (atomic) sends, reads and writes in flight: polling reads it without the lock */
    wfi_list dials;            /* wfi_conn.dial: connections whose lanes the event thread opens (limits->open_blocks) */
    atomic_bool dials_due;     /* (atomic) `dials` may have an entry: the event thread reads it without the lock */
    uint64_t refused_until_ns; /* it failed to register memory: bulk channels avoid it until then */
    bool has_logged_unreadable; /* wfi_channel_exclude has logged a line */
    wfi_list spares;            /* frames of control channels, registered with this fabric, kept for reuse */
    size_t spare_count;         /* their number */
};

/* A region of the storage from the fabric's cache, with at least this access (WFI_REMOTE_READ, ...). The caller returns
 * it with wfi_reg_cache_put. Must be called without the lock: registering takes long. net_fabric.c */
weft_status wfi_net_fabric_register(wfi_net_fabric *fabric, wfi_storage *storage, unsigned access, void **region);
/* The same, if the storage is registered already; otherwise false. With or without the lock. net_fabric.c */
bool wfi_net_fabric_find(const wfi_net_fabric *fabric, wfi_storage *storage, unsigned access, void **region);

/* Adds to fabric->conns or fabric->posted. [locked] */
static inline void wfi_net_fabric_count(_Atomic size_t *count, size_t by)
{
    size_t value = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, value + by, memory_order_relaxed);
}

typedef struct wfi_unopened {
    const char *name;
    char why[320];
} wfi_unopened;

struct wfi_transport {
    wfi_progress *progress;
    weft_sim *sim;                           /* (constant) or NULL */
    wfi_net_fabric fabrics[WFI_FABRICS_MAX]; /* (constant) in the order of preference */
    size_t fabric_count;
    wfi_unopened unopened[WFI_FABRICS_MAX]; /* (constant) fabrics of the list that did not open */
    size_t unopened_count;
    uint64_t chunk_bytes; /* (constant) size of a transfer's chunk: the least of WFI_CHUNK_BYTES and each rma_max */
    size_t message_max;   /* (constant) the smallest of the fabrics' */

    /* This worker's identity: (constant) after opening. */
    int rank, world_size;
    wfi_member self;
    wfi_net_keys *keys; /* in guarded memory */
    int64_t death_timeout_ms;
    size_t queue_limit_bytes;
    wfi_net_client clients[WFI_CLIENTS];
    size_t client_count;
    void (*suspect)(wfi_peer *peer, const char *why); /* sends a suspicion to the store */

    bool closing;     /* nothing new may start */
    wfi_peer **peers; /* by rank: the present or last peer; NULL: there was none */
    wfi_list known;   /* all peers: those in the table, and former ones that are held */

    wfi_map conns; /* by id */
    uint64_t next_id;
    unsigned attempts;           /* connections that this worker has requested, and that are not up */
    wfi_list turns, turns_again; /* channels that wait for fewer attempts: for their first, for further ones */
    wfi_timer turn_timer;
    size_t large_peers;    /* that have large receives of this worker: message/long.c */
    wfi_list spare_chunks; /* kept for reuse by bulk/ */
    /* (atomic) number of registrations on the process's executor, which do not always hold the lock (bulk/prepare.c) */
    atomic_size_t registering;

    bool untaken; /* wfi_net_untake was called for the current message */
    wfi_timer starved_timer;

    uint64_t silent;        /* silent connections that were closed, and are not counted as refused yet */
    wfi_timer silent_timer; /* counts them */
    uint64_t refused_ns;    /* beginning of the second for which refused_aloud counts */
    unsigned refused_aloud; /* refusals that were logged as warnings in that second */
    weft_stats stats;
};

/* Iterates over the clients whose `upcall` is not NULL, in the order of the array. */
#define WFI_FOR_CLIENTS(client, transport, upcall)                                                                     \
    for (const wfi_net_client *client = (transport)->clients;                                                          \
         client < (transport)->clients + (transport)->client_count; client++)                                          \
        if (client->upcalls->upcall)

/* transport.c. Only wfi_transport_begin_closing is [locked]. open: opens the fabrics of the list, and makes the
 * table of peers. begin_closing: sets `closing`; no connection or timer starts after it. fini: closes the fabrics
 * and frees the peers. */
void wfi_transport_init(wfi_transport *transport, wfi_progress *progress, const weft_agent_options *agent,
                        weft_sim *sim);
weft_status wfi_transport_open(wfi_transport *transport, const weft_agent_options *agent, weft_error **error);

typedef struct wfi_fabric_list { /* the fabrics that WEFT_FABRIC names, in the order of preference */
    const wfi_fabric_ops *ops[WFI_FABRICS_MAX];
    size_t count;
    bool automatic; /* it is "auto" */
} wfi_fabric_list;
/* Writes to a zeroed *out. WEFT_ERR_INVALID: it names none, too many, one twice, or one that this build lacks. */
weft_status wfi_net_fabric_list_read(const char *text, wfi_fabric_list *out, weft_error **error);
void wfi_transport_begin_closing(wfi_transport *transport);
void wfi_transport_fini(wfi_transport *transport);
static inline uint64_t wfi_transport_bound_ns(const wfi_transport *transport) /* deaths are detected within this time */
{
    return wfi_ns_of_ms(transport->death_timeout_ms);
}

/* again.c */
/* A post failed because memory was out: it is tried again. After repeated failures wfi_channel_ops.starved is
 * called. */
void wfi_conn_starve(wfi_conn *conn);
void wfi_transport_starved_due(wfi_timer *timer);
/* Repeats posts that failed because a queue was full or memory was out. */
void wfi_transport_post_again(wfi_transport *transport);

/* net_fabric.c. Not [locked]. `how`: as in fabric.h. If open fails, the fabric is closed again. Before close, all its
 * connections must be closed and their operations reported. */
weft_status wfi_net_fabric_open(wfi_net_fabric *fabric, wfi_transport *transport, const wfi_fabric_ops *ops,
                                const wfi_fabric_options *how, weft_error **error);
void wfi_net_fabric_close(wfi_net_fabric *fabric);

/* Its place in transport->fabrics, and in a peer's addresses. */
static inline size_t wfi_net_fabric_index(const wfi_net_fabric *fabric)
{
    return (size_t)(fabric - fabric->transport->fabrics);
}

/* Whether the fabric with this index can carry the channel, even if it is avoided for a while. */
static inline bool wfi_channel_may_use(const wfi_channel *channel, size_t index)
{
    bool is_readable =
        !channel->peer->transport->fabrics[index].limits->no_reads && !channel->avoided[index].unreadable;
    return channel->peer->addresses[index].bytes && (channel->kind != WFI_BULK || is_readable);
}

/* accept.c */
void wfi_transport_event(wfi_net_fabric *fabric, const wfi_event *event);

/* reject.c. Counts a refused connection or message, and logs it. At most a few a second are logged as warnings. */
void wfi_transport_refused(wfi_transport *transport, const char *format, ...) WEFT_PRINTF(2, 3);
/*
 * `count` connections sent no request, and were closed. Some may be of members that were stopped or had no CPU time
 * before they sent their request. When such a member connects, its generation tells how many earlier attempts it made.
 * wfi_silent_excuse subtracts these. The rest is counted as refused after WFI_SILENT_NS. The log line about them is no
 * warning: a member that takes longer, or that ended, cannot be told from a stranger.
 */
#define WFI_SILENT_NS UINT64_C(2000000000)
void wfi_silent_came(wfi_transport *transport, size_t count);
void wfi_silent_excuse(wfi_transport *transport, uint64_t attempts);
void wfi_silent_due(wfi_timer *timer);

/* ---- Keys ------------------------------------------------------------------------------------------------------- */

/* pair.c */
/* Random bytes of the system or, if `sim` is not NULL, from its seed, so that a run can be repeated. */
void wfi_net_random_bytes(weft_sim *sim, void *out, size_t size);
#define WFI_PAIR_KEY_BYTES 32
#define WFI_STACK_WIPED 2048 /* bytes of stack below a function that makes a key: libsodium leaves copies there */
void wfi_net_keys_make(wfi_net_keys *keys, weft_sim *sim); /* makes all keys except the job's */
/* The key of `us`, whose private key is in `keys`, and `them`. False if their public key is invalid. */
bool wfi_pair_derive(const wfi_net_keys *keys, const wfi_member *us, const wfi_member *them,
                     uint8_t out[WFI_PAIR_KEY_BYTES]);
/* The key of this worker and the peer; made at the first use. NULL: no memory. */
const uint8_t *wfi_peer_pair_key(wfi_peer *peer);

/* handshake.c: the private data of a connection */
typedef struct wfi_hello {
    wfi_lane_kind kind;
    bool answer;
    int rank;
    uint32_t incarnation, generation;
    uint64_t position, nonce;
    uint64_t asked; /* in an answer: the nonce of the request; otherwise 0 */
} wfi_hello;
void wfi_conn_make_keys(wfi_conn *conn);
size_t wfi_conn_hello(const wfi_conn *conn, uint8_t out[WFI_CONNECT_DATA_MAX]); /* writes this worker's hello */
size_t wfi_hello_write(const wfi_net_keys *keys, const uint8_t *pair_key, const wfi_hello *hello, const wfi_member *to,
                       uint8_t out[WFI_CONNECT_DATA_MAX]);
/* Reads a hello, and checks its sign (MAC with the job key). True: some member of the job wrote it. */
bool wfi_hello_read(const wfi_transport *transport, const uint8_t *data, size_t size, uint64_t asked, wfi_hello *out);
/* Checks the proof (MAC with the pair key) of a hello that wfi_hello_read has accepted. True: a holder of the pair key
 * wrote it for `to`. */
bool wfi_hello_is_proven(const uint8_t *pair_key, const wfi_member *to, const uint8_t *data, uint64_t asked);

/* A log line with this worker's rank. */
#define wfi_log_net(transport, level, ...)                                                                             \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (transport)->rank, .clock = (transport)->progress->clock}, (level),  \
                       __VA_ARGS__);                                                                                   \
    } while (0)

#endif
