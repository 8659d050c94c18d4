/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_internal.h - what the files of src/net share: the net, its peers, lines, connections and operations.
 *
 * LOCKING. The lock of wfi_progress guards every field here that does not say otherwise. Fields marked (constant) are written only
 * while opening.
 *
 * OBJECTS. A peer has two lines, control and bulk. A line is what lasts; a connection (wfi_conn) is what carries it for a
 * while. A connection lives until the fabric has reported its last operation, so a closed one may outlast its line's
 * next. An operation (wfi_flight) belongs to its connection from the moment the fabric accepted it until it is reported.
 *
 * CALLS OUT. No function of net calls the owner of a message or a transfer from the middle of its work: what is done goes
 * to a list (wfi_progress_end), and the calls are made before the lock is let go. Upcalls for arriving messages are the
 * exception: they come from the receiving function, which looks at its connection again afterwards.
 */
#ifndef WFI_NET_INTERNAL_H
#define WFI_NET_INTERNAL_H

#include "base/clock.h"
#include "base/codec.h"
#include "base/text/log.h"
#include "base/map.h"
#include "base/parker.h"
#include "fabric.h"
#include "net/net.h"

#include <sodium.h>

#define WFI_RECEIVE_DEPTH 6              /* frames posted on a control lane */
#define WFI_RECEIVE_HEAD 640             /* bytes of a frame that lie with the others' heads: see connection.c */
#define WFI_CREDIT_RESERVE 2             /* of them: one for urgent messages, one for a bare acknowledgement */
#define WFI_ACK_AFTER_FRAMES 3           /* half of the window: acknowledge at once */
#define WFI_ACK_DELAY_NS 2000000         /* else this long after the first frame that nothing answered */
#define WFI_BULK_WINDOW_BYTES (4u << 20) /* under way on one bulk lane: bounds what one progress call can drain */
#define WFI_BULK_WINDOW_CHUNKS 64
#define WFI_CONNECT_LIMIT_NS UINT64_C(1000000000) /* the first; later ones are longer */
#define WFI_CONNECT_DOUBLINGS 3
#define WFI_ATTEMPTS_MAX 8   /* of ours under way at a time */
#define WFI_ATTEMPTS_AGAIN 4 /* where one that failed before may begin */
#define WFI_BACKOFF_FIRST_NS UINT64_C(2000000)
#define WFI_BACKOFF_LAST_NS UINT64_C(500000000)
#define WFI_BULK_IDLE_NS UINT64_C(5000000000)
#define WFI_WANTED_NS UINT64_C(2000000000) /* a peer that asks us to open a bulk lane asks again within */
#define WFI_NONSENSE_MAX 3                 /* lanes closed for nonsense, until the store is told */
#define WFI_SPARE_FRAMES 16                /* kept for reuse; each about 4 KiB */
#define WFI_BATCH 32                       /* completions read at once */

typedef enum wfi_lane_kind { WFI_CONTROL = 0, WFI_BULK = 1, WFI_LANE_KINDS = 2 } wfi_lane_kind;
typedef struct wfi_conn wfi_conn;

/* ---- Operations ------------------------------------------------------------------------------------------------ */

typedef enum wfi_flight_kind { WFI_FLIGHT_RECEIVE, WFI_FLIGHT_FRAME, WFI_FLIGHT_CHUNK } wfi_flight_kind;

typedef struct wfi_flight {
    wfi_op op;
    wfi_list link; /* chunks: in wfi_conn.flights; receives: in wfi_conn.early; chunks and frames: the net's spares */
    wfi_conn *conn;
    wfi_flight_kind kind;
} wfi_flight;

typedef struct wfi_rx {
    wfi_flight flight;
    uint8_t *head; /* WFI_RECEIVE_HEAD bytes */
    uint8_t *rest; /* WFI_FRAME_BYTES - WFI_RECEIVE_HEAD */
    size_t size;   /* what came, while it waits in `early` */
} wfi_rx;

typedef struct wfi_tx {
    wfi_flight flight;
    wfi_region *region; /* of data, where the fabric wants one */
    unsigned count;     /* messages; 0: a bare acknowledgement */
    size_t used;        /* bytes of data */
    uint8_t data[WFI_FRAME_BYTES];
} wfi_tx;

/* A transfer while net has it. */
typedef struct wfi_work {
    wfi_list link; /* in wfi_peer.works, taking turns */
    wfi_transfer *owner;
    wfi_peer *peer;
    void **regions;   /* per segment, where the fabric wants local ones; else NULL */
    uint64_t *first;  /* per segment the number of its first chunk; one more entry: the count of chunks */
    uint64_t *taken;  /* bitmap: under way or done */
    uint64_t next;    /* no chunk below it is free */
    uint64_t done;    /* chunks done */
    size_t under_way; /* chunks */
    wfi_done ended;
    bool ending;      /* takes no more chunks; ends with status when none is under way */
    bool interrupted; /* had chunks under way when the last lane went */
    bool doubted;     /* such a lane has a successor: one chunk at a time, until one is through */
    bool vouched;     /* the peer says that the first free chunk is still on offer */
    weft_status status;
} wfi_work;

typedef struct wfi_chunk {
    wfi_flight flight;
    wfi_work *work; /* NULL once the lane closed under it */
    uint64_t index;
    size_t size;
} wfi_chunk;

/* ---- Connections and peers ------------------------------------------------------------------------------------- */

typedef struct wfi_line {
    wfi_peer *peer;
    wfi_lane_kind kind;
    wfi_conn *conn;      /* connecting or up; NULL */
    uint32_t generation; /* highest number of any attempt, ours or accepted: orders attempts that cross */
    uint32_t asked;      /* highest number that the peer has asked with: one that is no newer is a replay */
    unsigned failures;   /* connections in a row that carried nothing */
    const char *why;     /* the last attempt failed; NULL: none since it was up */
    bool ask;            /* bulk: we may be unable to open it, so the peer is asked to try as well */
    uint64_t wanted_ns;  /* until when the peer wants us to open it, as it cannot itself */
    bool lost;           /* broke, and was not up again since */
    uint64_t used_ns;    /* bulk: when something last moved */
    wfi_list turn;       /* in wfi_net.turns or turns_again */
    wfi_timer timer;     /* connecting: its limit; down: the next attempt; bulk and up: the idle check */
} wfi_line;

typedef struct wfi_conn_keys { /* of the frames that we send, and of those that come */
    uint8_t out[crypto_shorthash_KEYBYTES], in[crypto_shorthash_KEYBYTES];
} wfi_conn_keys;

struct wfi_conn {
    uint64_t id; /* what the fabric knows it by: events may come late, pointers would dangle */
    wfi_net *net;
    wfi_peer *peer; /* held: the line lies in it */
    wfi_line *line;
    wfi_lane *lane; /* NULL once closed */
    uint32_t generation;
    bool ours;    /* we asked for it */
    bool attempt; /* counted in wfi_net.attempts */
    bool up, useful, closed;
    bool keyed; /* both nonces are known, and so the keys of its frames */
    uint64_t nonce, peer_nonce;
    wfi_conn_keys *keys;                   /* guarded */
    uint32_t frames_sent, frames_returned; /* returned: consumed by the peer, as it told us */
    uint32_t frames_consumed, frames_told; /* by us, and what of it the peer knows */
    size_t outstanding;                    /* operations that the fabric has still to report */
    size_t chunk_bytes, chunk_count;       /* under way; bulk only */
    wfi_list flights;                      /* chunks, oldest first */
    wfi_list early;                        /* frames that came before the answer to our request */
    wfi_rx *receives;                      /* WFI_RECEIVE_DEPTH; control only */
    uint8_t *receive_data;
    wfi_region *receive_region;
};

/* A message of net's own, to a peer's net: embedded in the peer, one of a kind under way at a time (control.c). */
typedef struct wfi_note {
    wfi_message message;
    wfi_peer *peer;
    bool out; /* until it is acknowledged */
    uint8_t bytes[40];
} wfi_note;

typedef struct wfi_query { /* may I still do that? */
    uint64_t number, address, key, size;
    uint8_t access;
} wfi_query;

struct wfi_peer {
    wfi_list link; /* in wfi_net.known */
    wfi_net *net;
    unsigned holds;    /* the table's, while it sits there; connections'; the upper layer's */
    wfi_member member; /* (constant) who it is; what wfi_net_member gives */
    int rank;
    uint8_t *pair_key;           /* guarded; NULL: not needed yet. See pair.c */
    uint32_t left[WFI_LEFT_MAX]; /* (constant) incarnations of the rank that left before it came, latest first */
    weft_status status;
    int leaning;        /* how much above depends on it */
    bool needed;        /* as the store was told */
    wfi_list lean_link; /* in wfi_net.leaners: the store may have to be told otherwise */
    wfi_line lines[WFI_LANE_KINDS];

    /* Sending. Sequences are given when a message first leaves. */
    wfi_list urgent, queued; /* wfi_message.link */
    wfi_list sent;           /* not acknowledged, by sequence */
    wfi_list *resend;        /* in `sent`: what must leave again first; &sent: nothing */
    uint64_t sequence;       /* of the last message that left */
    uint64_t acknowledged;
    size_t kept_bytes;   /* of messages in urgent, queued and sent, and what wfi_peer_keep added */
    uint64_t waiting_ns; /* when `sent` was last empty no more, or its silence last answered by a new lane */

    /* Reaching it: detector.c. */
    int awaited;           /* so many wait for an answer of its */
    uint64_t needed_ns;    /* since when somebody needs it; or when those who did were last failed */
    uint64_t suspected_ns; /* when the store was last asked to look */
    bool unreachable;      /* and nothing was heard since */
    wfi_timer silence;
    wfi_note ping;
    uint64_t pinged_ns;
    /* Since when transfers wait for a bulk lane, if there is none: time in which the peer answers otherwise. */
    uint64_t stuck_ns;

    /* Receiving. */
    uint64_t received;
    uint64_t heard_ns;
    bool owes_ack; /* a frame with messages came and nothing has told the peer */
    uint64_t owed_since_ns;
    wfi_timer ack;
    unsigned nonsense;

    /* Bulk. */
    wfi_list works;
    wfi_list exposed;          /* wfi_exposed.link */
    wfi_note question, answer; /* whether memory is still on offer */
    wfi_note dial;             /* please open the bulk lane */
    wfi_work *asked;           /* the work that the question is about; NULL: none waits for the answer */
    uint64_t questions;        /* asked so far: the number of the last one */
    wfi_query query;           /* the peer's newest question */
    bool answer_due;           /* to it, once the answer before it has arrived */
    /* Bulk lanes that one side closed on purpose, told in each hello: no lane was lost by that. */
    uint64_t ended, ended_by_peer;
    bool excused; /* either side did since a lane was last up */
};

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

/* ---- The net --------------------------------------------------------------------------------------------------- */

typedef struct wfi_net_keys {
    uint8_t job[WFI_JOB_KEY_BYTES];
    uint8_t private_key[WFI_PUBLIC_KEY_BYTES], public_key[WFI_PUBLIC_KEY_BYTES];
} wfi_net_keys;

struct wfi_net {
    wfi_progress progress;
    wfi_source source;                     /* of progress: the fabric */
    wfi_source link_source;                /* of progress: the store's link, where there are no threads */
    int link_fd;                           /* what its news can be read from; -1: nothing */
    wfi_completion completions[WFI_BATCH]; /* [token] that came and are not handed out yet */
    size_t completion_count;
    wfi_fabric *fabric;              /* (constant) */
    const wfi_fabric_ops *ops;       /* (constant) */
    const wfi_fabric_limits *limits; /* (constant) */
    wfi_rendezvous *rendezvous; /* (constant) once `open`; not used once `closing`: it goes before the threads do */
    wfi_member self;            /* (constant) once `open` */
    wfi_net_keys *keys;         /* guarded; (constant) once `open` */
    wfi_upcalls upcalls;        /* (constant) */
    void *arg;                  /* (constant) */
    wfi_reg_cache *cache;       /* (constant) NULL on fabrics whose keys live for one transfer */
    weft_sim *sim;              /* (constant) or NULL */
    int rank, world_size;       /* (constant) once `open` */
    int64_t death_timeout_ms;   /* (constant) once `open`: the store's */
    size_t queue_limit_bytes;   /* (constant) */

    bool open;           /* the table is here; upcalls may go up */
    bool closing;        /* nothing new */
    weft_status gone;    /* why we are out ourselves; WEFT_OK */
    weft_status verdict; /* about ourselves, told while opening */
    wfi_list early;      /* what the store told while we were opening */
    wfi_peer **peers;    /* by rank: who sits there now, or did last; NULL: nobody ever did */
    wfi_list known;      /* every peer there is: those in the table, and former ones that somebody holds */
    wfi_list leaners;    /* peers about which the store may have to be told, when lean_timer fires */
    wfi_timer lean_timer;
    wfi_timer starved_timer;     /* something waits for memory */
    unsigned attempts;           /* connections that we have asked for, and that are not up */
    wfi_list turns, turns_again; /* lines that wait until there are fewer, first and further attempts */
    wfi_timer turn_timer;
    unsigned starved; /* how often in a row it found none */
    bool starving;    /* in the present attempt */
    wfi_map conns;    /* by id */
    uint64_t next_id;
    size_t zombies;                       /* closed connections with operations still to be reported */
    uint64_t silent;                      /* callers that were hung up on, and are not counted as refused yet */
    wfi_timer silent_timer;               /* when they are */
    uint64_t refused_ns;                  /* when the second began in which refusals were last said aloud */
    unsigned refused_aloud;               /* in it so far */
    bool untaken;                         /* the message that was just handed up */
    uint8_t whole_frame[WFI_FRAME_BYTES]; /* the one at hand, if it came in two pieces */
    wfi_list spare_frames, spare_chunks;
    size_t spare_frame_count;
    weft_stats stats;
    wfi_store_counts store_counts; /* as last asked, if the store is ours */

    bool stuck;   /* a post was refused for want of room: try after the next round */
    bool stopped; /* wfi_net_stop is through */
};

/* peer.c, membership.c; all [locked] */
#define WFI_PEER_TIMERS 4 /* two lines', acknowledgement, silence */
weft_status wfi_peers_create(wfi_net *net);
/* A new incarnation takes its seat, and the one before it, which has ended, is out of the table. */
weft_status wfi_peer_create(wfi_net *net, const wfi_member *member, wfi_peer **out);
void wfi_peers_destroy(wfi_net *net);
void wfi_peer_fail(wfi_peer *peer, weft_status why);        /* closes lanes, fails what is outstanding */
void wfi_peer_fail_queued(wfi_peer *peer, weft_status why); /* what has not left, but for what lasts */
void wfi_peer_fail_messages(wfi_peer *peer, weft_status why);
void wfi_peer_acknowledge(wfi_peer *peer, uint64_t position);
void wfi_peer_nonsense(wfi_conn *conn, const char *what);
void wfi_peer_suspect(wfi_peer *peer, const char *why);
void wfi_lean_due(wfi_timer *timer);

/* detector.c; all [locked] */
uint64_t wfi_reach_bound_ns(const wfi_net *net);
void wfi_reach_watch(wfi_peer *peer); /* somebody needs it */
void wfi_reach_stuck(wfi_peer *peer); /* the same; and a transfer may wait for a lane */
void wfi_peer_silence(wfi_timer *timer);
void wfi_reach_regained(wfi_peer *peer); /* a lane is up */
void wfi_reach_pinged(wfi_peer *peer);   /* it has answered a ping */

/* control.c; all [locked] */
#define WFI_NET_MESSAGES 0xF0     /* types from here on are net's own */
enum { WFI_NOTE_PING = WFI_NET_MESSAGES, WFI_NOTE_QUESTION, WFI_NOTE_ANSWER, WFI_NOTE_DIAL, WFI_NET_MESSAGES_END };
void wfi_notes_init(wfi_peer *peer);
void wfi_note_send(wfi_note *note, uint8_t type, size_t size); /* of note->bytes; none of that kind is out */
void wfi_note_ping(wfi_peer *peer);
void wfi_note_dial(wfi_peer *peer); /* asks it to open the bulk lane */
void wfi_notes_take(wfi_conn *conn, uint8_t type, const uint8_t *bytes, size_t size); /* one that came */

/* reject.c; [locked] Counts one who was refused, and says it aloud a few times a second: it may go on for ever. */
void wfi_net_refused(wfi_net *net, const char *format, ...) WEFT_PRINTF(2, 3);
/*
 * So many callers said nothing, and were hung up on. A member that was stopped, or got no processor, between connecting and asking is
 * one as well: it asks again, and its number tells how often it did before. So they are counted after WFI_SILENT_NS,
 * less those that came back (wfi_silent_excuse).
 */
#define WFI_SILENT_NS UINT64_C(2000000000)
void wfi_silent_came(wfi_net *net, size_t count);
void wfi_silent_excuse(wfi_net *net, uint64_t attempts);
void wfi_silent_due(wfi_timer *timer);

/* connection.c; all [locked] */
wfi_conn *wfi_conn_create(wfi_line *line, bool ours, uint32_t generation);
weft_status wfi_conn_make_receives(wfi_conn *conn);
void wfi_conn_close(wfi_conn *conn); /* nothing of it touches memory any more; freed with its last operation */
void wfi_conn_reported(wfi_conn *conn);
weft_status wfi_conn_post_receives(wfi_conn *conn);
/* The receive once more. wfi_rx_frame: the `size` bytes that came, in one piece; valid until the next. */
weft_status wfi_rx_post(wfi_rx *rx);
const uint8_t *wfi_rx_frame(wfi_rx *rx, size_t size);

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
size_t wfi_hello_write(const wfi_net_keys *keys, const uint8_t *pair_key, const wfi_hello *hello, const wfi_member *to,
                       uint8_t out[WFI_CONNECT_DATA_MAX]);
/* What some member says; who it is, that does not prove. False: no member made it. */
bool wfi_hello_read(const wfi_net *net, const uint8_t *data, size_t size, uint64_t asked, wfi_hello *out);
/* One that could be read: whoever has this key has made it, for `to`. */
bool wfi_hello_is_proven(const uint8_t *pair_key, const wfi_member *to, const uint8_t *data, uint64_t asked);

/* channel.c; all [locked] */
void wfi_attempt_over(wfi_conn *conn); /* it is up, or has ended */
void wfi_attempt_failed(wfi_conn *conn, const char *why);
uint64_t wfi_line_limit(const wfi_line *line);
void wfi_line_hello(const wfi_line *line, const wfi_conn *conn, wfi_hello *out);
/* `lack`: what we ourselves lacked, WEFT_ERR_SYSTEM or _MEMORY; else the peer's or the network's doing. `why` lasts for ever. */
void wfi_line_failed(wfi_line *line, weft_status lack, const char *why);
void wfi_line_is_up(wfi_line *line);
void wfi_turns_due(wfi_timer *timer);
void wfi_line_want(wfi_line *line);   /* there is something to do: connect if nothing is under way */
void wfi_line_broken(wfi_conn *conn); /* close it, and try again if there is need */
void wfi_line_end(wfi_line *line);    /* close it on purpose; the peer will know that it was */
void wfi_line_ask(wfi_line *line);    /* asks the peer to open it */
void wfi_line_wanted(wfi_line *line); /* the peer asks us to open it */
void wfi_line_timer(wfi_timer *timer);
void wfi_net_event(wfi_net *net, const wfi_event *event); /* accept.c */

/* pair.c */
#define WFI_PAIR_KEY_BYTES 32
#define WFI_STACK_WIPED 2048 /* bytes below a function that makes a key: libsodium leaves what it returns there */
void wfi_net_keys_make(wfi_net_keys *keys, weft_sim *sim); /* all but the job's key */
/* The key of `us`, whose private key is in `keys`, and `them`. False: their public key is none. */
bool wfi_pair_derive(const wfi_net_keys *keys, const wfi_member *us, const wfi_member *them,
                     uint8_t out[WFI_PAIR_KEY_BYTES]);
/* Ours and that peer's; made at first use. NULL: no memory. [locked] */
const uint8_t *wfi_peer_pair_key(wfi_peer *peer);

/* frame.c */
#define WFI_FRAME_HEAD 40
#define WFI_MESSAGE_HEAD 4
typedef struct wfi_frame {
    unsigned count;
    uint32_t number, consumed, size;
    uint64_t first, ack;
} wfi_frame;
/* The head, over frame->size bytes of which the messages are there already. */
void wfi_frame_write(const wfi_frame *frame, const uint8_t key[crypto_shorthash_KEYBYTES], uint8_t *out);
bool wfi_frame_read(const uint8_t *data, size_t size, const uint8_t key[crypto_shorthash_KEYBYTES], wfi_frame *out);
void wfi_frame_message(uint8_t out[WFI_MESSAGE_HEAD], uint8_t type, size_t size);
/* The message at *at; false if it runs over. Moves *at. */
bool wfi_frame_next(const uint8_t *data, size_t size, size_t *at, uint8_t *type, const uint8_t **bytes, size_t *length);

/* send.c; all [locked] */
void wfi_peer_flush(wfi_peer *peer);
void wfi_peer_send_ack(wfi_peer *peer);
bool wfi_peer_has_to_send(const wfi_peer *peer);
size_t wfi_message_size(const wfi_message *message);   /* head and parts */
size_t wfi_message_weight(const wfi_message *message); /* what it counts in kept_bytes */
void wfi_frame_sent(wfi_tx *tx, weft_status status);
void wfi_tx_recycle(wfi_net *net, wfi_tx *tx);

/* receive.c; all [locked] */
void wfi_frames_early(wfi_conn *conn); /* it has its keys now */
void wfi_frame_received(wfi_rx *rx, const wfi_completion *completion);
void wfi_peer_ack_due(wfi_timer *timer);

/* transfer.c; all [locked] */
void wfi_works_pump(wfi_peer *peer);
void wfi_chunk_reported(wfi_chunk *chunk, const wfi_completion *completion);
void wfi_chunk_detach(wfi_chunk *chunk); /* its lane closed */
void wfi_works_doubt(wfi_peer *peer); /* a new lane is up: those that the last one took along ask before they go on */
void wfi_works_ask(wfi_peer *peer);   /* the next question, if there is one */
void wfi_works_told(wfi_peer *peer, bool offered); /* the answer to the last one */
void wfi_works_fail(wfi_peer *peer, weft_status why);
wfi_work *wfi_work_at(wfi_list *node);
void wfi_work_end(wfi_work *work, weft_status why);
bool wfi_work_has_free(wfi_work *work); /* moves `next` to the first free chunk; false if there is none */
/* Where chunk `index` lies: its segment, whose number goes to *at (NULL: nowhere). */
const wfi_segment *wfi_work_place(const wfi_work *work, uint64_t index, uint64_t *remote, uint64_t *size, size_t *at);

/* revalidate.c; all [locked] */
void wfi_note_answer(wfi_peer *peer);
void wfi_works_question(wfi_peer *peer, wfi_reader *reader);
void wfi_works_answer(wfi_peer *peer, wfi_reader *reader);

/* transport.c */
extern const wfi_source_ops wfi_transport_source;
weft_status wfi_transport_open(wfi_net *net, const wfi_net_options *options, weft_error **error);
weft_status wfi_cache_create(wfi_net *net);
void *wfi_local_region(wfi_net *net, wfi_storage *storage, weft_status *status);
void wfi_local_region_put(wfi_net *net, wfi_storage *storage);
void wfi_net_starve(
    wfi_net *net); /* [locked] no memory to post something: it is tried again, and given up after a while */
void wfi_starved_due(wfi_timer *timer);

/* expose.c */
void wfi_exposed_end_all(wfi_peer *peer); /* [locked] closes the regions; the records stay with their owners */
/* Whether that range is exposed to the peer, for that access. [locked] */
bool wfi_exposed_covers(const wfi_peer *peer, uint64_t address, uint64_t key, uint64_t size, unsigned access);

/* membership.c */
const wfi_rendezvous_events *wfi_member_events(void);
void wfi_member_catch_up(wfi_net *net); /* [locked] what was told while opening */
void wfi_member_forget(wfi_net *net);   /* what was told, if opening failed */

/* A line of the log with our rank. */
#define wfi_log_net(net_, level, ...)                                                                                  \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (net_)->rank, .clock = (net_)->progress.clock}, (level),             \
                       __VA_ARGS__);                                                                                   \
    } while (0)

static inline wfi_conn *wfi_line_up(const wfi_line *line)
{
    return line->conn && line->conn->up ? line->conn : NULL;
}

#endif
