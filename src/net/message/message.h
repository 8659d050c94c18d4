/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - messages to peers, on their control channels: in order, each once, across connections that break.
 *
 * wfi_peer_send sends a message (wfi_message). Its owner embeds it, and may reuse it when `done` is called. A received
 * message is passed to the client (wfi_net_client) of its type. wfi_control_message is for net's own messages to the
 * peer's net.
 *
 * LONG MESSAGES. A message of up to WFI_LONG_MESSAGE_MAX bytes, or a large one of up to WFI_LARGE_MESSAGE_MAX, is sent
 * in a frame of its own, if the peer has posted receives that are long enough. A peer that is asked to
 * (wfi_peer_ask_long) does so; large receives are given back when no large message was sent for a while (long.c). So
 * workers that need no long messages allocate no memory for them.
 *
 * FLOW CONTROL. A frame uses a credit, which is returned when the peer's net has consumed the frame. Several messages
 * for one peer share a frame when the queue is busy. Urgent ones (replies, cancels, acknowledgements) are sent before
 * the others and have a credit reserved for them (send.c).
 *
 * NEW CONNECTIONS. A message gets its sequence number when it is first sent, and is kept until the peer has
 * acknowledged it. The hello of each connection says which messages were received; the other side sends the later ones
 * again.
 *
 * LOCK. All functions are [locked], by the lock of wfi_progress. receive.c makes the upcall for a received message in
 * the middle of its work, and checks its connection afterwards. Owners of sent messages are called at the end, before
 * the lock is released (wfi_done).
 *
 * LIFETIME. A peer and its wfi_control are in one struct (wfi_whole_peer). A frame (wfi_tx) belongs to the fabric from
 * post to completion; then it is kept for reuse.
 */
#ifndef WFI_MESSAGE_H
#define WFI_MESSAGE_H

#include "net/channel/channel.h"

#define WFI_FRAME_BYTES 4096
#define WFI_FRAME_OTHER 128                                 /* bytes of a frame that are not for its longest message */
#define WFI_MESSAGE_MAX (WFI_FRAME_BYTES - WFI_FRAME_OTHER) /* head and parts of one message */
#define WFI_LONG_MESSAGE_MAX (33u << 10)
#define WFI_LARGE_MESSAGE_MAX (129u << 10)
#define WFI_LARGE_KEPT_NS UINT64_C(5000000000) /* after the last large message, large receives are given back */
#define WFI_LONG_HASHED 512 /* bytes of a frame of over WFI_FRAME_BYTES that its MAC covers; the rest is a payload */
#define WFI_LONG_COVERED (WFI_LONG_HASHED - 64) /* the first bytes of such a message, which that MAC covers */

#define WFI_RECEIVE_DEPTH WFI_LANE_RECEIVES /* receives posted on a control connection */
#define WFI_RECEIVE_HEAD 640 /* bytes of a frame that are stored with the heads of other frames: see receive.c */

/* How long the frames are that a receive takes: long.c. */
typedef enum wfi_length { WFI_SHORT, WFI_LONG, WFI_LARGE, WFI_LENGTHS } wfi_length;

static inline size_t wfi_length_max(wfi_length length) /* bytes of a message */
{
    return length == WFI_SHORT ? WFI_MESSAGE_MAX : length == WFI_LONG ? WFI_LONG_MESSAGE_MAX : WFI_LARGE_MESSAGE_MAX;
}

/* A message to send; embedded in its owner. `head` and `parts` must stay valid and unchanged until `done`. `done` is
 * called exactly once, [locked]. WEFT_OK: the peer's net has the message. Any other status is the reason why it will
 * never have it. WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY: several times in a row this worker had no descriptors or no memory
 * for a connection.
 */
typedef struct wfi_message {
    wfi_list link;
    uint8_t type; /* of the layers above: < 0xF0 */
    bool urgent;
    bool exempt;     /* queued even if the queue is full, like an urgent one, but sent in its turn */
    bool persistent; /* never fails for lack of memory or descriptors: it waits, because others depend on it */
    const void *head;
    size_t head_size;
    struct {
        const void *data;
        size_t size;
    } parts[2]; /* sent after the head */
    int part_count;
    struct wfi_tx *frame; /* wfi_frame_create made the memory of `head`, and there are no parts; NULL: it did not */
    size_t keeps;         /* other bytes that its owner holds for it: they count in the queue like head and parts */
    void (*done)(struct wfi_message *message, weft_status status);
    struct { /* for net */
        uint64_t sequence;
        weft_status status;
        wfi_done ended;
    } net;
} wfi_message;

/* Sends a message. WEFT_ERR_TOO_LARGE; WEFT_ERR_AGAIN if wfi_peer_kept_bytes has reached queue_limit_bytes (the last
 * message may exceed the limit; urgent and exempt messages are always accepted, and their senders limit them); or the
 * peer's status. After an error `done` is not called. */
weft_status wfi_peer_send(wfi_peer *peer, wfi_message *message);
/*
 * Memory for a message of `size` bytes, within a frame. If the message is sent alone, the frame is posted as it is;
 * otherwise the message is copied. wfi_frame_unref releases the memory, not before `done`. Then it is freed when the
 * fabric has sent it, whatever the peer claims to have received. NULL: no memory. Both functions need no lock.
 */
struct wfi_tx *wfi_frame_create(size_t size);
uint8_t *wfi_frame_bytes(struct wfi_tx *frame);
void wfi_frame_unref(struct wfi_tx *frame); /* NULL is a no-op */
/* The largest size of a message to the peer at present: WFI_MESSAGE_MAX, WFI_LONG_MESSAGE_MAX, or up to
 * WFI_LARGE_MESSAGE_MAX, less the large messages that the peer has not acknowledged. Urgent ones have at most
 * WFI_MESSAGE_MAX bytes. */
size_t wfi_peer_message_max(const wfi_peer *peer);
/* Asks the peer to accept messages of `size` bytes. No-op if it was asked before, or if the present connection moves as
 * many bytes faster by a read (wfi_fabric_limits.long_pays). */
void wfi_peer_ask_long(wfi_peer *peer, size_t size);
/* Takes back a message that was not sent. True: `done` will not be called. */
bool wfi_peer_unsend(wfi_peer *peer, wfi_message *message);
/* Bytes of all messages, including urgent ones, that are queued or kept until the peer acknowledges them, and those
 * added by wfi_peer_depend. */
size_t wfi_peer_kept_bytes(const wfi_peer *peer);

/*
 * Waits until a peer's queue has room; embedded in its owner. `woken` is called when there may be room, or the peer is
 * gone; by the time it runs the queue may be full again. One waiter is woken at a time. After it has tried (or given
 * up) it calls wfi_room_leave, which wakes the next one if there is still room. All [locked].
 */
typedef struct wfi_room_waiter {
    wfi_done woken; /* its `run` is the owner's */
    wfi_peer *peer; /* held from wfi_room_await to wfi_room_leave; otherwise NULL */
} wfi_room_waiter;

bool wfi_peer_has_room(const wfi_peer *peer);
void wfi_room_await(wfi_room_waiter *waiter, wfi_peer *peer); /* if it waits already, leaves first */
void wfi_room_leave(wfi_room_waiter *waiter); /* `woken` is not called afterwards; no-op if it does not wait */

/* ---- Control messages: control_message.c ------------------------------------------------------------------------ */

enum {
    WFI_CONTROL_PING = 0xF0,
    WFI_CONTROL_REVALIDATE,
    WFI_CONTROL_REVALIDATED,
    WFI_CONTROL_DIAL,
    WFI_CONTROL_LONG,
    WFI_CONTROL_LONG_READY,
    WFI_NET_MESSAGES_END
};
#define WFI_CLIENT_TYPES_END WFI_CONTROL_PING /* lower types are for the layers above */

/* A message of net to a peer's net. Embedded in wfi_whole_peer; at most one of a type is in flight. */
typedef struct wfi_control_message {
    wfi_message message;
    wfi_peer *peer;
    bool out; /* sent, and not acknowledged */
    uint8_t bytes[40];
    void (*acknowledged)(struct wfi_control_message *own);
} wfi_control_message;

void wfi_control_message_init(wfi_control_message *own, wfi_peer *peer, void (*acknowledged)(wfi_control_message *own));
void wfi_control_message_send(wfi_control_message *own, uint8_t type, size_t size); /* own->bytes; must not be `out` */

/* ---- The control channel --------------------------------------------------------------------------------------- */

typedef struct wfi_control {
    wfi_channel channel;
    /* Sending. A message gets its sequence number when it is first sent. */
    wfi_list urgent, queued; /* wfi_message.link */
    wfi_list sent;           /* not acknowledged, by sequence number */
    wfi_list *resend;        /* in `sent`: the first message that must be sent again; &sent: none */
    uint64_t sequence;       /* of the last message that was sent */
    uint64_t acknowledged;
    size_t kept_bytes;   /* bytes of messages in urgent, queued and sent, and those added by wfi_peer_depend */
    wfi_list waiters;    /* wfi_room_waiter.woken.link: not woken yet */
    uint64_t waiting_ns; /* since when `sent` is not empty; or when the peer's silence last broke the connection */

    /* Receiving. */
    uint64_t received;
    bool owes_ack; /* messages were received that are not acknowledged yet */
    uint64_t owed_since_ns;
    wfi_timer ack;

    /* Long and large messages: long.c. Valid for all connections of the channel. Sending. */
    wfi_length wants;           /* what this worker wants the peer's receives to be */
    wfi_length sends;           /* what all of them are at least */
    uint32_t asked, asked_sent; /* number of this worker's last LONG; of the last that was sent */
    bool returns;               /* LONG is repeated until the peer has answered: the peer gets its memory back */
    unsigned repeats;           /* of that LONG */
    unsigned slow;              /* connections that broke by silence when large messages could be on their way */
    size_t large_bytes;         /* of large messages that are queued or not acknowledged */
    uint64_t large_ns;          /* when the last one was queued, or asked for */
    wfi_timer large_end;        /* set while large receives are wanted */
    wfi_control_message long_asked;
    /* Receiving. */
    wfi_length takes;            /* what every receive is that is posted from now on */
    wfi_length announced;        /* the length of all of them that the peer was told last */
    uint32_t question, answered; /* numbers of the peer's last LONG, and of the last that was answered */
    bool has_large;              /* it is counted in wfi_transport.large_peers, until its large receives are gone */
    wfi_control_message long_ready;
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
    wfi_io io;
    uint8_t *head; /* WFI_RECEIVE_HEAD bytes */
    uint8_t *rest; /* the other bytes; if it is not short, they follow `head` */
    wfi_length length;
    size_t size; /* received bytes, while it waits in `early` */
} wfi_rx;

typedef struct wfi_long_room { /* memory of the receives of one length */
    size_t receives;           /* that are in it */
    uint8_t *data;             /* NULL: none is */
    wfi_region *region;
} wfi_long_room;

typedef struct wfi_frames {       /* of one connection: wfi_conn_own */
    uint32_t sent, returned;      /* frames sent; frames that the peer has consumed, by its last frame */
    uint32_t consumed, announced; /* frames consumed here; those of them that the last frame to the peer announced */
    wfi_list early;               /* received frames that arrived before the answer to this worker's request */
    wfi_rx *receives;             /* WFI_RECEIVE_DEPTH of them */
    uint8_t *receive_data;
    wfi_region *receive_region;
    wfi_long_room rooms[WFI_LENGTHS]; /* of receives that are not short: long.c */
} wfi_frames;

static inline wfi_frames *wfi_conn_frames(const wfi_conn *conn)
{
    return wfi_conn_own(conn);
}

typedef struct wfi_tx {
    wfi_io io;
    wfi_region *region; /* of `data`, if the fabric needs one */
    unsigned count;     /* number of messages; 0: a bare acknowledgement */
    size_t used;        /* bytes of `data` in use */
    size_t room;        /* size of `data` */
    atomic_uint refs;   /* of the fabric or the spares; of the owner of a message */
    uint8_t data[];
} wfi_tx;

/* control.c */
void wfi_control_init(wfi_control *control, wfi_peer *peer);

/* queue.c */
bool wfi_peer_has_to_send(const wfi_peer *peer);
size_t wfi_message_size(const wfi_message *message);          /* head and parts */
void wfi_control_release(wfi_control *control, size_t bytes); /* lowers kept_bytes, and wakes a waiter if possible */
void wfi_control_use_large(wfi_control *control); /* large receives stay wanted from now on for WFI_LARGE_KEPT_NS */
void wfi_control_keep(wfi_control *control, const wfi_message *message);   /* it was queued: counts its bytes */
void wfi_control_let_go(wfi_control *control, const wfi_message *message); /* the reverse: may wake a waiter */
void wfi_control_acknowledge(wfi_control *control, uint64_t position);
/* Fails all its messages, and wakes all waiters; its channel has ended. */
void wfi_control_fail(wfi_control *control, weft_status why);
void wfi_control_fail_queued(wfi_control *control, weft_status why); /* fails queued messages that are not persistent */

/* send.c */
void wfi_peer_flush(wfi_peer *peer);
void wfi_peer_send_ack(wfi_peer *peer);
void wfi_frames_free_spares(wfi_transport *transport);
void wfi_frames_unregister_spares(wfi_net_fabric *fabric); /* they are copied by the fabric from then on */

/* receive.c */
weft_status wfi_receives_make(wfi_conn *conn);
weft_status wfi_receives_post(wfi_conn *conn);
void wfi_receives_free(wfi_conn *conn);
void wfi_frames_early(wfi_conn *conn); /* the connection has its keys: handles frames that arrived before */
void wfi_control_ack_due(wfi_timer *timer);

/* long.c */
extern const wfi_upcalls
    wfi_long_upcalls; /* for its client, which receives WFI_CONTROL_LONG and WFI_CONTROL_LONG_READY */
void wfi_long_init(wfi_control *control, wfi_peer *peer);
void wfi_long_free(wfi_conn *conn);
/* Called before a receive is posted: gives it the length that the peer has asked for. WEFT_ERR_MEMORY. */
weft_status wfi_long_receive(wfi_rx *rx);
void wfi_long_posted(wfi_conn *conn); /* tells the peer when all receives have that length */

/* ---- The format of frames: frame.c ----------------------------------------------------------------------------- */

#define WFI_FRAME_HEAD 40
#define WFI_MESSAGE_HEAD 4
typedef struct wfi_frame {
    unsigned count;
    uint32_t number, consumed, size;
    uint64_t first, ack;
} wfi_frame;
/* Writes the head of a frame of frame->size bytes, which already contains its messages. `key` has
 * crypto_shorthash_KEYBYTES bytes; NULL: the connection is private, and the frame has no MAC. */
void wfi_frame_write(const wfi_frame *frame, const uint8_t *key, uint8_t *out);
/* Reads the head, and checks the MAC. False: the size, magic, version or MAC is wrong. */
bool wfi_frame_read(const uint8_t *data, size_t size, const uint8_t *key, wfi_frame *out);
void wfi_frame_message(uint8_t out[WFI_MESSAGE_HEAD], uint8_t type, size_t size);
/* Reads the message at *at, and advances *at. False if it exceeds the frame. */
bool wfi_frame_next(const uint8_t *data, size_t size, size_t *at, uint8_t *type, const uint8_t **bytes, size_t *length);

#endif
