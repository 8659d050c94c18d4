/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.h - the open fabric, the peers that are reached through it, and the connections to them.
 *
 * WHAT IT OFFERS.
 *   - wfi_transport: a fabric that is open, who we are on it, and the table of peers.
 *   - wfi_peer: one incarnation of a rank.
 *   - wfi_channel: the control or the bulk channel of a peer. It is connected when it is first needed, connected again
 *     when a connection breaks, and tells its owner (wfi_channel_ops: message/ and bulk/).
 *   - wfi_flight: an operation of the fabric.
 *
 * LIFETIME. A channel lasts as long as its peer; a connection (wfi_conn) carries it for a while. A connection lives
 * until the fabric has reported its last operation, so a closed one may still be there when its successor is up. An
 * operation belongs to its connection from the moment when the fabric accepted it until it is reported. A peer lives
 * while it is the last one of its rank, or while somebody holds it (wfi_peer_ref).
 *
 * LOCKING. The lock of wfi_progress guards every field here that does not say otherwise. Every function here is called
 * with it held, but for wfi_transport_init, _open and _fini, and those of pair.c and handshake.c that take keys. Fields
 * marked (constant) are written only while opening; those marked [token] by whoever has the token. A function that
 * posts, or breaks a connection, may close it: whoever calls one looks at `closed` afterwards.
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
typedef struct wfi_peer wfi_peer;
typedef struct wfi_channel wfi_channel;
typedef struct wfi_conn wfi_conn;
typedef struct wfi_flight wfi_flight;

#define WFI_CONNECT_LIMIT_NS UINT64_C(1000000000) /* the first attempt's; later ones have longer */
#define WFI_IDLE_NS UINT64_C(5000000000)          /* so long a channel that is closed when idle stays up unused */
#define WFI_LEFT_MAX 4
#define WFI_TRANSPORT_TIMERS 3 /* turns, starved, silent */
#define WFI_PEER_TIMERS 4      /* two channels', acknowledgement, silence */

/* ---- Operations ------------------------------------------------------------------------------------------------ */

typedef struct wfi_flight_ops { /* no slot is NULL; [locked] */
    /* The operation was reported. Its connection may be closed. */
    void (*completed)(wfi_flight *flight, const wfi_completion *completion);
    /* Of those in conn->flights: it closed; the operation is still to be reported. */
    void (*dropped)(wfi_flight *flight);
} wfi_flight_ops;

struct wfi_flight {
    wfi_fabric_op op;
    wfi_list link; /* in conn->flights, or as its owner likes */
    wfi_conn *conn;
    const wfi_flight_ops *ops;
};

/* ---- Channels and connections ---------------------------------------------------------------------------------- */

typedef enum wfi_lane_kind { WFI_CONTROL = 0, WFI_BULK = 1, WFI_LANE_KINDS = 2 } wfi_lane_kind;

typedef struct wfi_channel_ops { /* no slot is NULL; [locked] */
    size_t conn_bytes;           /* its own, zeroed, behind each connection (wfi_conn_own) */
    /* A connection is about to be asked for: allocates what it needs. */
    weft_status (*prepare)(wfi_conn *conn);
    /* It has a lane now: posts receives on it. */
    weft_status (*attach)(wfi_conn *conn);
    /* All its operations were reported: frees what `prepare` allocated. */
    void (*release)(wfi_conn *conn);
    /* There is something to send. */
    bool (*needed)(const wfi_channel *channel);
    /* Nobody uses it: it may be closed after WFI_IDLE_NS. */
    bool (*idle)(const wfi_channel *channel);
    /* We may be unable to connect: asks the peer to do so. */
    void (*ask)(wfi_channel *channel);
    /* A connection is up; was closed (conn->up: it had been up). */
    void (*up)(wfi_channel *channel);
    void (*down)(wfi_channel *channel, wfi_conn *conn);
    /* A post was refused for want of room or memory: there may be some now. */
    void (*retry)(wfi_channel *channel);
    /* This worker has no descriptors or no memory for a connection: what has not begun fails with that. */
    void (*starved)(wfi_channel *channel, weft_status lack);
    /* The position that our hello tells (handshake.c); and takes the one in the peer's hello. False: that cannot be. */
    uint64_t (*position)(const wfi_channel *channel);
    bool (*take_position)(wfi_channel *channel, uint64_t theirs);
} wfi_channel_ops;

struct wfi_channel {
    wfi_peer *peer;
    wfi_lane_kind kind;
    const wfi_channel_ops *ops;
    wfi_conn *conn;      /* connecting or up; NULL */
    uint32_t generation; /* highest number of any attempt, ours or accepted: orders attempts that cross */
    uint32_t asked;      /* the highest generation of the peer's requests: one that is not above it is a replay */
    unsigned failures;   /* connections in a row that carried nothing */
    const char *why;     /* why the last attempt failed; NULL: none failed since it was up */
    bool ask;            /* we may be unable to open it, so the peer is asked to try as well */
    uint64_t wanted_ns;  /* until when the peer wants us to open it, as it cannot itself */
    bool lost;           /* broke, and was not up again since */
    uint64_t used_ns;    /* when something last moved */
    wfi_list turn;       /* in wfi_transport.turns or turns_again */
    wfi_timer timer;     /* connecting: its limit; down: the next attempt; up: the idle check, where the owner set it */
    uint64_t ended;      /* how many connections we closed on purpose */
    bool excused;        /* either side closed the last one on purpose, so it does not count as lost */
};

typedef struct wfi_conn_keys { /* of the frames that we send, and of those that come */
    uint8_t out[crypto_shorthash_KEYBYTES], in[crypto_shorthash_KEYBYTES];
} wfi_conn_keys;

struct wfi_conn {
    uint64_t id; /* what the fabric knows it by: events may come late, pointers would dangle */
    wfi_transport *transport;
    wfi_peer *peer; /* held: the channel lies in it */
    wfi_channel *channel;
    wfi_lane *lane; /* NULL once closed */
    uint32_t generation;
    bool ours;    /* we asked for it */
    bool attempt; /* counted in wfi_transport.attempts */
    bool up, useful, closed;
    bool keyed; /* both nonces are known, and so the keys of its frames */
    uint64_t nonce, peer_nonce;
    wfi_conn_keys *keys; /* guarded */
    size_t outstanding;  /* operations that the fabric has still to report */
    wfi_list flights;    /* those that must hear when it closes, oldest first */
};

static inline void *wfi_conn_own(const wfi_conn *conn) /* conn_bytes of the channel's owner */
{
    return (void *)(conn + 1);
}

static inline wfi_conn *wfi_channel_up(const wfi_channel *channel)
{
    return channel->conn && channel->conn->up ? channel->conn : NULL;
}

/* channel.c */
void wfi_channel_init(wfi_channel *channel, wfi_peer *peer, wfi_lane_kind kind, const wfi_channel_ops *ops);
void wfi_channel_fini(wfi_channel *channel);   /* closes it; no attempt follows */
void wfi_channel_want(wfi_channel *channel);   /* there is something to do: connect if nothing is under way */
void wfi_channel_broken(wfi_conn *conn);       /* close it, and try again if there is need */
void wfi_channel_end(wfi_channel *channel);    /* close it on purpose; the peer will know that it was */
void wfi_channel_ask(wfi_channel *channel);    /* asks the peer to connect it */
void wfi_channel_wanted(wfi_channel *channel); /* the peer asks us to connect it */
void wfi_channel_nonsense(wfi_conn *conn, const char *what); /* close it; the store is told if it goes on */
void wfi_channel_turns_due(wfi_timer *timer);
/* Something came over this connection, or was acknowledged. */
void wfi_channel_moved(wfi_conn *conn);
/* For accept.c: an attempt failed. lack: WEFT_ERR_SYSTEM or WEFT_ERR_MEMORY if this worker had no descriptors or
 * memory; any other code: the peer or the network is the cause. `why` is a constant text. */
void wfi_channel_failed(wfi_channel *channel, weft_status lack, const char *why);
void wfi_attempt_failed(wfi_conn *conn, const char *why);
/* After the fabric was asked to connect or to accept: `status` is its answer. Goes on from there, or closes the
 * connection. */
weft_status wfi_channel_attach(wfi_conn *conn, weft_status status);
void wfi_channel_is_up(wfi_channel *channel);

/* connection.c */
void wfi_flight_unheard(wfi_flight *flight); /* a `dropped` for flights that are never in conn->flights */
wfi_conn *wfi_conn_create(wfi_channel *channel, bool ours, uint32_t generation);
void wfi_conn_close(wfi_conn *conn); /* nothing of it touches memory any more; freed with its last operation */
void wfi_conn_reported(wfi_conn *conn);
void wfi_attempt_over(wfi_conn *conn); /* it is up, or has ended */

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

struct wfi_peer {  /* the first member of what membership.c makes */
    wfi_list link; /* in wfi_transport.known */
    wfi_transport *transport;
    unsigned holds;    /* of the table, while it is in it; of connections; of the layers above */
    wfi_member member; /* (constant) who it is; what wfi_net_member gives */
    int rank;
    uint8_t *pair_key;           /* guarded; NULL: not needed yet. See pair.c */
    uint32_t left[WFI_LEFT_MAX]; /* (constant) incarnations of the rank that left before it came, latest first */
    weft_status status;
    bool leaving; /* it has announced that it leaves the job: it lives, and takes no calls of programs any more */
    wfi_channel *channels[WFI_LANE_KINDS];
    unsigned nonsense;

    uint64_t heard_ns;
    uint64_t needed_ns; /* since when somebody needs it; or when what waited for it was last failed */
    bool unreachable;   /* and nothing was heard since */
    wfi_timer silence;  /* looks after one that is needed (detector.c) */
};

/* peer.c. A wfi_peer is one incarnation of a rank; when the rank is taken again there is a new one. The last one of
 * each rank lives until the net closes, a former one while somebody holds it. Whoever keeps a pointer to a peer after
 * its peer_gone must hold it. */
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

static inline const char *wfi_peer_name(const wfi_peer *peer) /* of it */
{
    return peer->member.name;
}

static inline weft_status wfi_peer_status(const wfi_peer *peer) /* WEFT_OK, WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT */
{
    return peer->status;
}

static inline bool wfi_peer_is_leaving(const wfi_peer *peer) /* or has left */
{
    return peer->leaving;
}

static inline bool wfi_peer_is_unreachable(const wfi_peer *peer) /* and was not heard since */
{
    return peer->unreachable;
}

/* The rank's present or last one; NULL for ourselves, no such rank, or a seat never taken. */
wfi_peer *wfi_peer_at(const wfi_transport *transport, int rank);
/* How an incarnation ended whose rank was taken again: WEFT_ERR_PEER_LEFT or WEFT_ERR_PEER_DEAD. The latter also if
 * that is not known any more: it ended before this worker joined, or WFI_LEFT_MAX others of its rank have left
 * since. */
weft_status wfi_peer_former_status(const wfi_transport *transport, int rank, uint32_t incarnation);
void wfi_peers_destroy(wfi_transport *transport);
void wfi_peer_watch(wfi_peer *peer);                       /* somebody needs it: silence will be looked at */
void wfi_peer_look_within(wfi_peer *peer, uint64_t after); /* after so long, if not sooner */

/* ---- The transport --------------------------------------------------------------------------------------------- */

typedef struct wfi_net_keys {
    uint8_t job[WFI_JOB_KEY_BYTES];
    uint8_t private_key[WFI_PUBLIC_KEY_BYTES], public_key[WFI_PUBLIC_KEY_BYTES];
} wfi_net_keys;

/* Upcalls are [locked], but for `joined`. Any but `message` may be NULL: bulk/ and the detector need messages alone. */
typedef struct wfi_upcalls {
    /* One whole message; `bytes` are valid during the call. */
    void (*message)(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);
    /* Every message, transfer and exposure of it has been failed or withdrawn before this. */
    void (*peer_gone)(void *arg, wfi_peer *peer, weft_status why, const char *text);
    /* The peer lives, as far as the store knows, but was silent here for WFI_REACH_BOUNDS bounds: what waits for it has
     * to end, and may be tried again. Its transfers have failed; messages stay, and leave when it can be reached.
     * Called again after as long, while somebody needs the peer. */
    void (*peer_unreachable)(void *arg, wfi_peer *peer, const char *text);
    /* A worker took a rank while the job was running: a new wfi_peer; the rank's former one, if any, went before. */
    void (*peer_joined)(void *arg, wfi_peer *peer);
    void (*peer_leaving)(void *arg, wfi_peer *peer); /* it lives, and has announced that it leaves the elastic job */
    /* Evicted, the store is lost, or rank 0 ended the job; all peers went before. */
    void (*self_gone)(void *arg, weft_status why, const char *text);
    void (*synced)(void *arg); /* a sync was answered (wfi_net_sync); all news before it have been handed up */
    void (*probe)(void *arg, uint64_t round);
    void (*terminated)(void *arg);
    void (*awaited)(void *arg, const char *whom); /* the answer to wfi_net_await: whom the end of the job waits for */
    /* Our rank is known; before any other upcall, and before any task of theirs. Not locked. */
    void (*joined)(void *arg);
} wfi_upcalls;

typedef struct wfi_net_client { /* who takes messages of which types */
    uint8_t first_type, last_type;
    const wfi_upcalls *upcalls;
    void *arg;
} wfi_net_client;

#define WFI_CLIENTS 4
#define WFI_POLL_MAX 32 /* completions read at once */

struct wfi_transport {
    wfi_source source; /* of progress */
    wfi_progress *progress;
    const wfi_fabric_ops *ops;       /* (constant) */
    wfi_fabric *fabric;              /* (constant) */
    const wfi_fabric_limits *limits; /* (constant) */
    wfi_reg_cache *cache;            /* (constant) NULL on fabrics whose keys live for one transfer */
    weft_sim *sim;                   /* (constant) or NULL */

    /* Who we are: (constant) once the table is here. */
    int rank, world_size;
    wfi_member self;
    wfi_net_keys *keys; /* guarded */
    int64_t death_timeout_ms;
    size_t queue_limit_bytes;
    wfi_net_client clients[WFI_CLIENTS];
    size_t client_count;
    void (*suspect)(wfi_peer *peer, const char *why); /* the store is asked to look */

    bool closing;     /* nothing new */
    wfi_peer **peers; /* by rank: who sits there now, or did last; NULL: nobody ever did */
    wfi_list known;   /* every peer there is: those in the table, and former ones that somebody holds */

    wfi_map conns; /* by id */
    uint64_t next_id;
    size_t zombies;              /* closed connections with operations still to be reported */
    unsigned attempts;           /* connections that we have asked for, and that are not up */
    wfi_list turns, turns_again; /* channels that wait until there are fewer, first and further attempts */
    wfi_timer turn_timer;
    wfi_list spares[WFI_LANE_KINDS]; /* flights kept for reuse, by those who own the channels of that kind */
    size_t spare_frames;             /* how many of them are the control lanes' */

    wfi_completion completions[WFI_POLL_MAX]; /* [token] that came and are not handed out yet */
    size_t completion_count;
    bool untaken;     /* the message that is being handed up */
    bool stuck;       /* a post was refused for want of room: try after the next round */
    bool starving;    /* one found no memory, in the present attempt */
    unsigned starved; /* how often in a row */
    wfi_timer starved_timer;

    uint64_t silent;        /* callers that were hung up on, and are not counted as refused yet */
    wfi_timer silent_timer; /* when they are */
    uint64_t refused_ns;    /* when the second began in which refusals were last said aloud */
    unsigned refused_aloud; /* in it so far */
    weft_stats stats;
};

/* Each client that has this upcall, in the order in which they are told. */
#define WFI_FOR_CLIENTS(client, transport, upcall)                                                                     \
    for (const wfi_net_client *client = (transport)->clients;                                                          \
         client < (transport)->clients + (transport)->client_count; client++)                                          \
        if (client->upcalls->upcall)

/* transport.c. Not [locked] but quiet. init: all but the fabric; open: that, and the table of peers; quiet: nothing new
 * from here on; fini also closes the fabric, and frees the peers. */
void wfi_transport_init(wfi_transport *transport, wfi_progress *progress, const weft_agent_options *agent,
                        weft_sim *sim);
weft_status wfi_transport_open(wfi_transport *transport, const weft_agent_options *agent, weft_error **error);
void wfi_transport_quiet(wfi_transport *transport);
void wfi_transport_fini(wfi_transport *transport);
/* There was no memory to post something: it is tried again. After several times in vain the channels are told
 * (wfi_channel_ops.starved). */
void wfi_transport_starve(wfi_transport *transport);
static inline uint64_t wfi_transport_bound_ns(const wfi_transport *transport) /* within which deaths are detected */
{
    return wfi_ns_of_ms(transport->death_timeout_ms);
}

/* accept.c */
void wfi_transport_event(wfi_transport *transport, const wfi_event *event);

/* reject.c. Counts a connection or message that was refused, and logs it; but only a few a second, as it may go on for
 * ever. */
void wfi_transport_refused(wfi_transport *transport, const char *format, ...) WEFT_PRINTF(2, 3);
/*
 * So many callers said nothing, and were hung up on. A member that was stopped, or got no processor, between connecting
 * and asking is one as well: it asks again, and its number tells how often it did before. So they are counted after
 * WFI_SILENT_NS, less those that came back (wfi_silent_excuse).
 */
#define WFI_SILENT_NS UINT64_C(2000000000)
void wfi_silent_came(wfi_transport *transport, size_t count);
void wfi_silent_excuse(wfi_transport *transport, uint64_t attempts);
void wfi_silent_due(wfi_timer *timer);

/* ---- Keys ------------------------------------------------------------------------------------------------------- */

/* pair.c */
/* The system's, or, where `sim` is not NULL, from its seed, so that a run replays. */
void wfi_random_bytes(weft_sim *sim, void *out, size_t size);
#define WFI_PAIR_KEY_BYTES 32
#define WFI_STACK_WIPED 2048 /* bytes below a function that makes a key: libsodium leaves what it returns there */
void wfi_net_keys_make(wfi_net_keys *keys, weft_sim *sim); /* all but the job's key */
/* The key of `us`, whose private key is in `keys`, and `them`. False: their public key is none. */
bool wfi_pair_derive(const wfi_net_keys *keys, const wfi_member *us, const wfi_member *them,
                     uint8_t out[WFI_PAIR_KEY_BYTES]);
/* Ours and that peer's; made at first use. NULL: no memory. */
const uint8_t *wfi_peer_pair_key(wfi_peer *peer);

/* handshake.c: the private data of a connection */
typedef struct wfi_hello {
    wfi_lane_kind kind;
    bool answer;
    int rank;
    uint32_t incarnation, generation;
    uint64_t position, nonce;
    uint64_t asked; /* an answer: the nonce of the request; else 0 */
} wfi_hello;
void wfi_conn_make_keys(wfi_conn *conn);
size_t wfi_conn_hello(const wfi_conn *conn, uint8_t out[WFI_CONNECT_DATA_MAX]); /* what we say in it */
size_t wfi_hello_write(const wfi_net_keys *keys, const uint8_t *pair_key, const wfi_hello *hello, const wfi_member *to,
                       uint8_t out[WFI_CONNECT_DATA_MAX]);
/* Reads a hello, and checks its sign: some member of the job wrote it, but it is not proved which. False: none did. */
bool wfi_hello_read(const wfi_transport *transport, const uint8_t *data, size_t size, uint64_t asked, wfi_hello *out);
/* Checks the proof of a hello that wfi_hello_read has accepted: whoever has this key wrote it, for `to`. */
bool wfi_hello_is_proven(const uint8_t *pair_key, const wfi_member *to, const uint8_t *data, uint64_t asked);

/* A line of the log with our rank. */
#define wfi_log_net(transport, level, ...)                                                                             \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (transport)->rank, .clock = (transport)->progress->clock}, (level),  \
                       __VA_ARGS__);                                                                                   \
    } while (0)

#endif
