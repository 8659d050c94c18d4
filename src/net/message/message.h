/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - messages to peers, on their control channels: in order, each once, across connections that break.
 *
 * WHAT IT OFFERS. wfi_peer_send sends a message (wfi_message), which its owner embeds and gets back when `done` is
 * called. A message that arrives goes to the client (wfi_net_client) of its type. wfi_control_message is for net's own
 * messages to the peer's net.
 *
 * LONG MESSAGES. A message of up to WFI_LONG_MESSAGE_MAX bytes travels in a frame of its own, once the peer has posted
 * receives that are long enough: it does so when it is asked to (wfi_peer_ask_long), for good (long.c). So those who
 * need no such messages pay nothing for them.
 *
 * FLOW. A frame takes a credit, which comes back when the peer's net has consumed the frame. Several messages for one
 * peer share a frame when the queue is busy. Urgent ones (replies, cancels, acknowledgements) go ahead of the others
 * and have a credit reserved for them (send.c).
 *
 * ACROSS CONNECTIONS. A message gets its sequence number when it first leaves, and is kept until the peer has
 * acknowledged it. The hello of each connection says what was received; the other side sends what comes after that.
 *
 * LOCKING. All of it [locked], the lock of wfi_progress. receive.c makes the upcall for an arriving message in the
 * middle of its work, and looks at its connection again afterwards. Owners of sent messages are told at the end, before
 * the lock is released (wfi_done).
 *
 * LIFETIME. A peer's wfi_control lies beside the peer. A frame (wfi_tx) is the fabric's from post to completion; then
 * it is kept for reuse.
 */
#ifndef WFI_MESSAGE_H
#define WFI_MESSAGE_H

#include "net/channel/channel.h"

#define WFI_FRAME_BYTES 4096
#define WFI_MESSAGE_MAX 3968 /* head and parts of one message */
#define WFI_LONG_MESSAGE_MAX (33u << 10)
#define WFI_LONG_FRAME_BYTES (WFI_LONG_MESSAGE_MAX + 128)
#define WFI_LONG_HASHED 256 /* bytes of a long frame that its hash covers: what lies behind is a payload */

#define WFI_RECEIVE_DEPTH 6  /* receives posted on a control connection */
#define WFI_RECEIVE_HEAD 640 /* bytes of a frame that lie with the others' heads: see receive.c */

/* A message to send; embedded in its owner. head and parts stay valid and unchanged until `done`, which is called
 * exactly once, [locked]: with WEFT_OK when the peer's net has it, else with the reason why it never will
 * (WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY: several times in a row this worker had no descriptors or no memory for a
 * connection).
 */
typedef struct wfi_message {
    wfi_list link;
    uint8_t type; /* the upper layer's, < 0xF0 */
    bool urgent;
    bool exempt;     /* queued even if the queue is full, as an urgent one, but sent in its turn */
    bool persistent; /* if memory or descriptors are out it waits for some, however long: others depend on it */
    const void *head;
    size_t head_size;
    struct {
        const void *data;
        size_t size;
    } parts[2]; /* gathered behind the head without a copy */
    int part_count;
    size_t keeps; /* what its owner holds in memory for it besides head and parts: it counts as these do */
    void (*done)(struct wfi_message *message, weft_status status);
    struct { /* net's own */
        uint64_t sequence;
        weft_status status;
        wfi_done ended;
    } net;
} wfi_message;

/* Sends a message. WEFT_ERR_TOO_LARGE; WEFT_ERR_AGAIN (wfi_peer_kept_bytes has reached queue_limit_bytes; one message
 * may exceed the limit; never for urgent or exempt ones, which their senders bound); or the peer's status. After an
 * error `done` is not called. */
weft_status wfi_peer_send(wfi_peer *peer, wfi_message *message);
/* The most bytes of a message to the peer, now; urgent ones are never longer than WFI_MESSAGE_MAX. */
size_t wfi_peer_message_max(const wfi_peer *peer);
/* Asks the peer to take long messages. No-op if it was asked before. */
void wfi_peer_ask_long(wfi_peer *peer);
/* Takes back one that has not left; true: done will not be called. */
bool wfi_peer_unsend(wfi_peer *peer, wfi_message *message);
/* Bytes of messages, urgent ones too, that wait or are kept until the peer acknowledges them, and of what is kept for
 * longer (wfi_peer_depend). */
size_t wfi_peer_kept_bytes(const wfi_peer *peer);

/*
 * Waiting until a peer's queue has room: embedded in whoever waits. `woken` is called once there may be room, or the
 * peer is gone; it may be too late for that again. One waiter is woken at a time: after it has tried (or given up) it
 * calls wfi_room_leave, which wakes the next one if there is room yet. All [locked].
 */
typedef struct wfi_room_waiter {
    wfi_done woken; /* its `run` is the owner's */
    wfi_peer *peer; /* held from wfi_room_await to wfi_room_leave; else NULL */
} wfi_room_waiter;

bool wfi_peer_has_room(const wfi_peer *peer);
void wfi_room_await(wfi_room_waiter *waiter, wfi_peer *peer); /* after leaving, if it waited before */
void wfi_room_leave(wfi_room_waiter *waiter); /* no-op if it did not wait; woken is not called any more */

/* ---- Control messages: control_message.c ------------------------------------------------------------------------------- */

enum {
    WFI_CONTROL_PING = 0xF0,
    WFI_CONTROL_REVALIDATE,
    WFI_CONTROL_REVALIDATED,
    WFI_CONTROL_DIAL,
    WFI_CONTROL_LONG,
    WFI_CONTROL_LONG_READY,
    WFI_NET_MESSAGES_END
};
#define WFI_CLIENT_TYPES_END WFI_CONTROL_PING /* the layers above have what is below */

/* A message of net's own, to a peer's net: embedded beside the peer, one of a kind under way at a time. */
typedef struct wfi_control_message {
    wfi_message message;
    wfi_peer *peer;
    bool out; /* until it is acknowledged */
    uint8_t bytes[40];
    void (*acknowledged)(struct wfi_control_message *own);
} wfi_control_message;

void wfi_control_message_init(wfi_control_message *own, wfi_peer *peer, void (*acknowledged)(wfi_control_message *own));
void wfi_control_message_send(wfi_control_message *own, uint8_t type, size_t size); /* of own->bytes; it is not out */

/* ---- The control channel --------------------------------------------------------------------------------------- */

typedef struct wfi_control {
    wfi_channel channel;
    /* Sending. Sequences are given when a message first leaves. */
    wfi_list urgent, queued; /* wfi_message.link */
    wfi_list sent;           /* not acknowledged, by sequence */
    wfi_list *resend;        /* in `sent`: what must leave again first; &sent: nothing */
    uint64_t sequence;       /* of the last message that left */
    uint64_t acknowledged;
    size_t kept_bytes;   /* of messages in urgent, queued and sent, and what wfi_peer_depend added */
    wfi_list waiters;    /* wfi_room_waiter.woken.link: not woken yet */
    uint64_t waiting_ns; /* since when `sent` is not empty; or when the peer's silence last broke the connection */

    /* Receiving. */
    uint64_t received;
    bool owes_ack; /* a frame with messages came and nothing has told the peer */
    uint64_t owed_since_ns;
    wfi_timer ack;

    /* Long messages: long.c. Across connections. */
    bool asks_long;  /* we have asked the peer for them */
    bool sends_long; /* it has long receives */
    bool takes_long; /* it has asked us: every receive that is posted from then on is long */
    bool told_long;  /* and was told that all are */
    wfi_control_message long_asked, long_ready;
} wfi_control;

static inline wfi_control *wfi_control_of(const wfi_channel *channel)
{
    return wfi_container_of(channel, wfi_control, channel);
}

static inline wfi_control *wfi_peer_control(const wfi_peer *peer)
{
    return wfi_control_of(peer->channels[WFI_CONTROL]);
}

typedef struct wfi_rx {
    wfi_flight flight;
    uint8_t *head; /* WFI_RECEIVE_HEAD bytes */
    uint8_t *rest; /* WFI_FRAME_BYTES - WFI_RECEIVE_HEAD */
    bool is_long;  /* head and rest are one piece of WFI_LONG_FRAME_BYTES */
    size_t size;   /* what came, while it waits in `early` */
} wfi_rx;

typedef struct wfi_frames {  /* of one connection: wfi_conn_own */
    uint32_t sent, returned; /* returned: consumed by the peer, as it told us */
    uint32_t consumed, told; /* by us, and what of it the peer knows */
    wfi_list early;          /* receives that came before the answer to our request */
    wfi_rx *receives;        /* WFI_RECEIVE_DEPTH */
    uint8_t *receive_data;
    wfi_region *receive_region;
    size_t long_receives; /* how many of them are long */
    uint8_t *long_data;   /* theirs; NULL: there are none */
    wfi_region *long_region;
} wfi_frames;

static inline wfi_frames *wfi_conn_frames(const wfi_conn *conn)
{
    return wfi_conn_own(conn);
}

typedef struct wfi_tx {
    wfi_flight flight;
    wfi_region *region; /* of data, where the fabric wants one */
    unsigned count;     /* messages; 0: a bare acknowledgement */
    size_t used;        /* bytes of data */
    size_t room;        /* of data: WFI_FRAME_BYTES, or of a long one WFI_LONG_FRAME_BYTES */
    uint8_t data[];
} wfi_tx;

/* control.c */
void wfi_control_init(wfi_control *control, wfi_peer *peer);

/* queue.c */
bool wfi_peer_has_to_send(const wfi_peer *peer);
size_t wfi_message_size(const wfi_message *message);          /* head and parts */
size_t wfi_message_weight(const wfi_message *message);        /* what it counts in kept_bytes */
void wfi_control_release(wfi_control *control, size_t bytes); /* less is kept: somebody may wait for that */
void wfi_control_acknowledge(wfi_control *control, uint64_t position);
/* All its messages, and what it owes; its channel has ended. */
void wfi_control_fail(wfi_control *control, weft_status why);
void wfi_control_fail_queued(wfi_control *control, weft_status why); /* what has not left, but for what is persistent */

/* send.c */
void wfi_peer_flush(wfi_peer *peer);
void wfi_peer_send_ack(wfi_peer *peer);
void wfi_frames_free_spares(wfi_transport *transport);

/* receive.c */
weft_status wfi_receives_make(wfi_conn *conn);
weft_status wfi_receives_post(wfi_conn *conn);
void wfi_receives_free(wfi_conn *conn);
void wfi_frames_early(wfi_conn *conn); /* it has its keys now */
void wfi_control_ack_due(wfi_timer *timer);

/* long.c */
extern const wfi_upcalls wfi_long_upcalls; /* of its client: takes WFI_CONTROL_LONG and WFI_CONTROL_LONG_READY */
void wfi_long_init(wfi_control *control, wfi_peer *peer);
void wfi_long_free(wfi_conn *conn);
/* The receive is about to be posted: it becomes a long one if the peer has asked for that. WEFT_ERR_MEMORY. */
weft_status wfi_long_receive(wfi_rx *rx);
void wfi_long_posted(wfi_conn *conn); /* the peer is told once all are long */

/* ---- The form of frames: frame.c ------------------------------------------------------------------------------- */

#define WFI_FRAME_HEAD 40
#define WFI_MESSAGE_HEAD 4
typedef struct wfi_frame {
    unsigned count;
    uint32_t number, consumed, size;
    uint64_t first, ack;
} wfi_frame;
/* Writes the head of a frame of frame->size bytes, in which the messages stand already. */
void wfi_frame_write(const wfi_frame *frame, const uint8_t key[crypto_shorthash_KEYBYTES], uint8_t *out);
/* Reads the head, and checks the hash. False: the size, magic, version or hash is wrong. */
bool wfi_frame_read(const uint8_t *data, size_t size, const uint8_t key[crypto_shorthash_KEYBYTES], wfi_frame *out);
void wfi_frame_message(uint8_t out[WFI_MESSAGE_HEAD], uint8_t type, size_t size);
/* The message at *at; false if it runs over. Moves *at. */
bool wfi_frame_next(const uint8_t *data, size_t size, size_t *at, uint8_t *type, const uint8_t **bytes, size_t *length);

#endif
