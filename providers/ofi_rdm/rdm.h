/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdm.h - libfabric's providers with unconnected endpoints (FI_EP_RDM) as a wfi_fabric (fabric.h).
 *
 * A fabric has one endpoint. It uses messages only: no tags, no remote reads or writes, no keys of the provider. So
 * every provider behaves the same way here, and nothing that the provider does later touches memory of a caller: all
 * bytes pass through buffers of this folder. docs/decisions/063 has the reasons.
 *
 * LANES. A lane is a random number, its id, that both ends know. Each message of libfabric is a frame (frame.c) for one
 * lane.
 *
 *   HELLO, ANSWER, READY   connect a lane. The dialler sends the first and the last
 *   BYE                    refuses the lane, or ends it
 *   DATA                   has a part of a message
 *   CREDIT                 the number of consumed DATA frames (`consumed`). Each other frame has it too
 *   READ, BYTES            asks for memory of the peer; has a part of that memory
 *
 * TRUST. Any process that reaches the endpoint can send frames with any content. To send on a lane it must know the id
 * of the lane, which only the two ends know. The frames of a lane are numbered, so frames that are lost, repeated or
 * reordered close the lane. Sizes, counts and addresses are checked against what this worker has granted: a peer can
 * lose its own lanes, and cannot make this worker keep more than WFRDM_WINDOW_BYTES a lane.
 *
 * INSTANCES. Each opened fabric has a random number, the instance, which is part of its address. A HELLO contains the
 * instance that it is sent to. So a HELLO for a former process with the same libfabric address is refused.
 *
 * DEATH. Most providers do not report that a peer has died. The store reports the death to net, which closes the lanes.
 * An operation that libfabric reports as failed closes all lanes to that peer. On shm each peer's process is watched
 * (local.c), so its death is known at once.
 *
 * LOCKING. rdm->lock guards all fields, except those marked _Atomic and those set while the fabric opens. It is held
 * during each call of libfabric. No call waits, and each copies at most one frame. Lock order: registry_lock (local.c),
 * rdm->lock. A function needs rdm->lock, except if its comment says otherwise, if it is one of
 * wfi_fabric_ops, or if it opens or closes a part of the fabric.
 */
#ifndef WFRDM_RDM_H
#define WFRDM_RDM_H

#include "ofi/ofi.h"

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/text/log.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <sys/types.h>

#define WFRDM_API FI_VERSION(1, 17)
#define WFRDM_HEAD_BYTES 32
#define WFRDM_FRAME_MAX 16384
#define WFRDM_MESSAGE_MAX ((size_t)1 << 30)
#define WFRDM_RMA_MAX ((size_t)1 << 30)
#define WFRDM_INJECT_MAX 256
#define WFRDM_WINDOW_BYTES (256u << 10)    /* limit of the DATA bytes of a lane that the receiver has not consumed */
#define WFRDM_LANE_OPS 256                 /* receives posted on a lane; sends and reads in flight */
#define WFRDM_PIECE_BYTES (64u << 10)      /* asked for by one READ, at most */
#define WFRDM_PIECES 8                     /* READs of a lane that are not answered, at most */
#define WFRDM_ROUND_BYTES (256u << 10)     /* sent by one poll, at most */
#define WFRDM_TURN_BYTES (32u << 10)       /* bytes that one lane may send before the next lane sends */
#define WFRDM_PEER_FRAMES 32               /* limit of unsent frames to one peer; its lanes wait when it is reached */
#define WFRDM_REQUESTS_MAX 64              /* unanswered connect requests; further ones are refused */
#define WFRDM_DIAL_NS UINT64_C(5000000000) /* timeout of a HELLO */
#define WFRDM_PEERS_KEPT 128               /* peers without a lane that stay in libfabric's table of addresses */
#define WFRDM_RECEIVES 128                 /* buffers that are posted to libfabric */
#define WFRDM_ADDRESS_HEAD 16              /* bytes of an address before the address of libfabric: address.c */
#define WFRDM_PROVIDER_ADDRESS_MAX (WFI_ADDRESS_MAX - WFRDM_ADDRESS_HEAD)
#define WFRDM_NAME_BYTES (WFRDM_PROVIDER_ADDRESS_MAX + 1)

typedef struct wfrdm wfrdm;

/* A provider of libfabric, as this folder uses it. */
typedef struct wfrdm_kind {
    const wfi_fabric_ops *ops;
    const char *provider;  /* its name in libfabric */
    const char *advice;    /* what to do if libfabric does not offer it */
    size_t frame_bytes;    /* size of the largest frame, at most WFRDM_FRAME_MAX */
    bool is_local;         /* shm: connects processes of one machine. local.c names and watches its endpoints */
    bool is_ip;            /* addresses are IP addresses with ports: WEFT_IFACE and WEFT_PORTS apply */
    bool waits;            /* its completion queue can have a descriptor */
    uint32_t reads_before; /* first version of libfabric with which reads work; 0: all versions */
    const char *no_reads;  /* reason, for users, why reads do not work with older versions */
} wfrdm_kind;

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

typedef enum wfrdm_frame_kind {
    WFRDM_HELLO = 1,
    WFRDM_ANSWER,
    WFRDM_READY,
    WFRDM_BYE,
    WFRDM_DATA,
    WFRDM_CREDIT,
    WFRDM_READ,
    WFRDM_BYTES,
} wfrdm_frame_kind;

enum {
    WFRDM_FIRST = 1,   /* DATA: begins a message */
    WFRDM_NO_READS = 2 /* HELLO, ANSWER: the sender's libfabric cannot carry reads */
};

/* The head of a frame, in this order and in little-endian order, after a magic number of four bytes. */
typedef struct wfrdm_head {
    uint8_t kind, flags;
    uint16_t size;     /* bytes that follow the head */
    uint64_t to;       /* the lane's id; bit 0: the receiver is the acceptor */
    uint32_t sequence; /* number of this frame among the lane's frames in this direction; unused in BYE */
    uint32_t consumed; /* DATA frames of the other direction that the sender has consumed, modulo 2^32 */
    uint64_t total;    /* DATA, WFRDM_FIRST: bytes of the message. BYTES: bytes read on this lane before these */
} wfrdm_head;

typedef struct wfrdm_hello {
    uint64_t instance; /* instance of the fabric that the HELLO is sent to */
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t data_size;
} wfrdm_hello;

typedef struct wfrdm_range { /* the content of a READ */
    uint64_t remote, key, size;
} wfrdm_range;

/* frame.c. The writers return the size of the content, the readers false if it is malformed. No lock is needed. */
void wfrdm_head_write(const wfrdm_head *head, uint8_t out[WFRDM_HEAD_BYTES]);
bool wfrdm_head_read(const uint8_t *bytes, size_t size, wfrdm_head *out); /* `size`: of the whole frame */
size_t wfrdm_hello_write(const wfrdm_hello *hello, uint8_t *out, size_t room);
bool wfrdm_hello_read(const uint8_t *bytes, size_t size, wfrdm_hello *out);
size_t wfrdm_range_write(const wfrdm_range *range, uint8_t *out, size_t room);
bool wfrdm_range_read(const uint8_t *bytes, size_t size, wfrdm_range *out);

/* ---- Peers and buffers ------------------------------------------------------------------------------------------- */

/* An endpoint that this one sends to. */
typedef struct wfrdm_peer {
    wfi_list link; /* in rdm->peers */
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
    fi_addr_t to;
    unsigned users;     /* lanes and requests */
    unsigned frames;    /* number of frames to this peer that are not sent: in libfabric, or in `waiting` */
    wfi_list waiting;   /* frames that libfabric did not take yet, oldest first */
    wfi_list stalled;   /* in rdm->stalled while `waiting` is not empty */
    uint64_t waited_ns; /* since when libfabric has taken none of the waiting frames */
    bool is_dead;       /* nothing is sent to it */
    const char *why;    /* reason of is_dead */
    wfi_list failed;    /* in rdm->failed until its lanes are closed */
    bool was_tried;     /* libfabric was asked to send a frame to it */
    bool was_reached;   /* libfabric has taken a frame, so the peer knows this endpoint */
    pid_t pid;          /* shm: its process */
    int pid_fd;         /* pidfd of the peer's process: readable when the process has ended. -1: not watched */
} wfrdm_peer;

/* A buffer of libfabric: a posted receive, or a frame to send. The first member is libfabric's context. */
typedef struct wfrdm_buffer {
    struct fi_context2 context;
    wfi_list link; /* in rdm->frames, or in peer->waiting */
    bool is_receive;
    wfrdm_peer *peer; /* of a frame */
    uint8_t *bytes;
    size_t size; /* of the frame */
    void *descriptor;
} wfrdm_buffer;

typedef struct wfrdm_slab { /* some buffers */
    struct wfrdm_slab *next;
    struct fid_mr *mr; /* NULL: memory need not be registered */
    uint8_t *memory;
    size_t count;
    wfrdm_buffer buffers[];
} wfrdm_slab;

/* buffers.c. wfrdm_buffers_open also posts the receives. wfrdm_frame_take returns a free frame, or NULL if memory is
 * out. */
int wfrdm_buffers_open(wfrdm *rdm); /* returns 0 or libfabric's error */
void wfrdm_buffers_close(wfrdm *rdm);
wfrdm_buffer *wfrdm_frame_take(wfrdm *rdm);
void wfrdm_frame_give(wfrdm *rdm, wfrdm_buffer *frame);
int wfrdm_receive_post(wfrdm *rdm, wfrdm_buffer *buffer);

/* peer.c. use: finds or adds the peer of an address, and adds a user. leave: removes a user. tidy: removes unused peers
 * that are dead, or that exceed WFRDM_PEERS_KEPT. WEFT_ERR_INVALID (address), _FABRIC, _MEMORY. */
weft_status wfrdm_peer_use(wfrdm *rdm, const uint8_t *address, size_t size, wfrdm_peer **out);
void wfrdm_peer_leave(wfrdm *rdm, wfrdm_peer *peer);
void wfrdm_peers_tidy(wfrdm *rdm);
void wfrdm_peers_close(wfrdm *rdm);

/* transmit.c. transmit: sends the frame now or later, and takes it over. */
void wfrdm_transmit(wfrdm *rdm, wfrdm_peer *peer, wfrdm_buffer *frame, size_t size);
void wfrdm_transmit_done(wfrdm *rdm, wfrdm_buffer *frame); /* libfabric has reported it */
void wfrdm_transmit_again(wfrdm *rdm);                     /* the frames that wait */
void wfrdm_transmit_drop(wfrdm *rdm, wfrdm_peer *peer);    /* discards the frames that wait */

/* ---- Operations -------------------------------------------------------------------------------------------------- */

typedef enum wfrdm_op_kind { WFRDM_OP_RECEIVE, WFRDM_OP_SEND, WFRDM_OP_INJECT, WFRDM_OP_READ } wfrdm_op_kind;

typedef struct wfrdm_part {
    uint8_t *data;
    size_t size;
} wfrdm_part;

/* The content of wfi_fabric_op.reserved, or the head of an injected message that waits. */
typedef struct wfrdm_op {
    wfi_list link; /* in a list of the lane, then in rdm->completed */
    uint32_t kind;
    weft_status status; /* once it is completed */
    size_t size;        /* sum of the parts; once it is completed, the size of the received message */
    size_t done;        /* bytes copied so far; for a read, bytes that have come */
    union {
        wfrdm_part parts[WFI_RECEIVE_BUFFERS_MAX]; /* of a receive or send */
        struct {
            uint8_t *local;
            uint64_t remote, key;
            size_t asked; /* bytes that READ frames have asked for so far */
        } read;
    };
} wfrdm_op;

_Static_assert(sizeof(wfrdm_op) <= sizeof(((wfi_fabric_op *)0)->reserved), "wfi_fabric_op has too little room");

typedef struct wfrdm_injected { /* an injected message that waits */
    wfrdm_op op;
    uint8_t data[WFRDM_INJECT_MAX];
} wfrdm_injected;

/* A DATA frame that came before a receive was posted for it. */
typedef struct wfrdm_unexpected {
    wfi_list link;
    wfrdm_head head;
    uint8_t bytes[];
} wfrdm_unexpected;

typedef struct wfrdm_region {
    wfi_region base;
    const uint8_t *data;
    size_t size;
    unsigned access;
} wfrdm_region;

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

typedef struct wfrdm_notice { /* an event that poll_events has to report */
    wfi_list link;            /* in rdm->notices */
    wfi_event_kind kind;
} wfrdm_notice;

struct wfi_connect_request {
    wfi_list link; /* in rdm->requests */
    wfrdm_notice asks;
    wfrdm *rdm;
    wfrdm_peer *peer;
    uint64_t id;
    bool has_no_reads;
    bool is_gone; /* the dialler has closed the lane, or died */
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t data_size;
};

typedef enum wfrdm_lane_state {
    WFRDM_OPENED, /* receives may be posted */
    WFRDM_CONNECTING,
    WFRDM_CONNECTED,
    WFRDM_BROKEN,
} wfrdm_lane_state;

struct wfi_lane {
    wfi_list link; /* in rdm->lanes */
    wfi_list work; /* in rdm->work while it has something to send */
    wfrdm *rdm;
    wfrdm_peer *peer;
    void *user;
    uint64_t id; /* bit 0 is 0 */
    bool is_dialler;
    wfi_connect_request *request; /* to be answered; NULL: none, or answered */
    wfrdm_lane_state state;
    uint64_t dialled_ns; /* when HELLO was sent */
    bool has_greeted;    /* the peer knows the lane: a BYE has to end it */
    bool has_no_reads;

    wfrdm_notice up, down;
    weft_status why;                    /* of `down` */
    const char *why_text;               /* of `down`; NULL: none */
    uint8_t data[WFI_CONNECT_DATA_MAX]; /* of `up` */
    size_t data_size;

    uint32_t frames_out, frames_in;                 /* the next sequence numbers */
    uint32_t data_out, data_consumed_by_peer;       /* DATA frames: sent; sent and consumed by the peer */
    uint32_t data_in, data_consumed, data_reported; /* DATA frames: received; consumed; last count sent to the peer */

    wfi_list receives, sends, reads; /* `reads`: not all bytes have come */
    unsigned receive_count, send_count, read_count;
    wfi_list unexpected; /* wfrdm_unexpected */
    bool is_in_message;  /* the first receive is being filled */
    size_t in_size;      /* of that message */

    unsigned pieces;                  /* READs that are not answered completely */
    size_t piece_left[WFRDM_PIECES];  /* for each open READ, oldest first: bytes that have not come */
    uint64_t bytes_in, bytes_out;     /* in BYTES frames */
    wfrdm_range serves[WFRDM_PIECES]; /* READs of the peer, oldest first */
    unsigned serve_count;
};

struct wfrdm {
    wfi_fabric base;
    const wfrdm_kind *kind;
    int rank; /* for logs; -1: not known when it was opened */
    void (*ready_fn)(void *arg);
    void *ready_arg;

    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    uint64_t instance;
    uint8_t address[WFI_ADDRESS_MAX + 1]; /* a name ends with a NUL */
    size_t address_size;
    char iface[IF_NAMESIZE];
    wfi_fabric_limits limits;
    size_t inject_max; /* fi_inject sends frames of at most this size, and the buffer is free when it returns */
    uint32_t window;   /* DATA frames of a lane that are not consumed, at most */

    int events_fd; /* an epoll: of notice_fd and of the peers' processes */
    int notice_fd; /* an eventfd, written for each notice */
    int wait_fd;   /* an epoll: of the completion queue, wake_fd and timer_fd; -1: the provider has no descriptor */
    int wake_fd;   /* an eventfd: an operation was completed outside poll */
    int timer_fd;  /* runs while frames wait */

    wfi_mutex lock;
    bool is_polling;       /* poll runs, and reports what is completed */
    bool has_worked;       /* frames came or were sent since may_sleep was last called */
    bool was_polled;       /* `poll` was called since the event thread last looked */
    uint64_t checked_ns;   /* time when the event thread last read completions, or found was_polled set */
    uint64_t dials_due_ns; /* when the oldest unanswered HELLO fails; UINT64_MAX: none */
    bool is_closing;       /* every HELLO is refused */
    wfi_list completed;
    wfi_list lanes, work, requests, notices, peers, stalled, failed;
    bool is_untidy; /* a peer may have lost its last user or frame */
    size_t request_count, lane_count, peer_count;
    wfi_hash_key hash_key;
    wfi_map by_id;   /* lanes; key: the id, with bit 0 set for an acceptor */
    wfi_map regions; /* wfrdm_region by key */

    wfi_list frames; /* free */
    wfrdm_slab *slabs;
    wfi_list local_link;   /* local.c */
    wfrdm_peer *self;      /* stalled.c: the own endpoint; NULL: not used yet */
    uint64_t probe;        /* `to` of the frame to itself */
    uint64_t probe_due_ns; /* when it must have come; 0: none is under way */
    bool is_stalled;
    wfrdm *kept_before; /* fabric.c: closed, but not freed */
};

/* shm: whether libfabric has asked the peer to map this endpoint's memory, and the peer has not done so yet. */
static inline bool wfrdm_peer_is_unreached(const wfrdm *rdm, const wfrdm_peer *peer)
{
    return rdm->kind->is_local && peer->was_tried && !peer->was_reached && !peer->is_dead && peer != rdm->self;
}

static inline wfrdm *wfrdm_of(const wfi_fabric *fabric)
{
    return (wfrdm *)(uintptr_t)fabric;
}

/* choose.c */
weft_status wfrdm_choose(wfrdm *rdm, const wfi_fabric_options *options, weft_error **error);

/* fabric.c */
weft_status wfrdm_open(const wfrdm_kind *kind, const wfi_fabric_options *options, wfi_fabric **out, weft_error **error);
void wfrdm_close(wfi_fabric *fabric);

/* address.c. make: asks libfabric for the endpoint's address, and makes this fabric's address of it. */
size_t wfrdm_address(const wfi_fabric *fabric, uint8_t *out);
bool wfrdm_reaches(const wfi_fabric *fabric, const uint8_t *address, size_t size);
void wfrdm_address_text(const uint8_t *address, size_t size, char *out, size_t room);
weft_status wfrdm_address_make(wfrdm *rdm, weft_error **error);

/* completion.c. wfrdm_wake wakes the thread that waits for completions. After wfrdm_peer_fail nothing is sent to the
 * peer, and wfrdm_peers_lost closes its lanes with this text. */
void wfrdm_complete(wfrdm *rdm, wfrdm_op *op, weft_status status, size_t size);
void wfrdm_wake(const wfrdm *rdm);
void wfrdm_notify(wfrdm *rdm, wfrdm_notice *notice, wfi_event_kind kind);
void wfrdm_peer_fail(wfrdm *rdm, wfrdm_peer *peer, const char *why);

/* The rest of transmit.c. lane_send: sends a frame of the lane with this content behind the head. False: memory is out.
 * send_frame: completes the head, and sends the frame; its content is behind the head. */
bool wfrdm_lane_send(wfi_lane *lane, wfrdm_frame_kind kind, uint8_t flags, const void *content, size_t size);
void wfrdm_lane_send_frame(wfi_lane *lane, wfrdm_buffer *frame, wfrdm_head *head);
void wfrdm_send_bye(wfrdm *rdm, wfrdm_peer *peer, uint64_t to);

/* end.c. flush: completes the lane's operations. bye: tells the peer that the lane has ended. break: does both, and
 * reports the end as an event. request_free refuses the request, unless it is gone. */
void wfrdm_lane_flush(wfi_lane *lane, weft_status status);
void wfrdm_lane_send_bye(wfi_lane *lane);
void wfrdm_lane_break(wfi_lane *lane, weft_status why, const char *text);
void wfrdm_lane_send_or_break(wfi_lane *lane, wfrdm_frame_kind kind, uint8_t flags, const void *content, size_t size);
void wfrdm_request_free(wfi_connect_request *request);
void wfrdm_peers_lost(wfrdm *rdm);

/* lane.c */
weft_status wfrdm_lane_open(wfi_fabric *fabric, const uint8_t *address, size_t size, void *user, wfi_lane **out);
weft_status wfrdm_lane_take(wfi_fabric *fabric, wfi_connect_request *request, void *user, wfi_lane **out);
void wfrdm_lane_close(wfi_lane *lane);

/* push.c. wfrdm_lane_has_work: whether the lane has something to send. wfrdm_lane_push sends as much as budget and
 * window allow. */
bool wfrdm_lane_has_work(const wfi_lane *lane);
void wfrdm_lane_push(wfi_lane *lane, size_t *budget);

/* connect.c. on_frame: a frame came. dials_check: closes lanes whose HELLO is not answered. */
weft_status wfrdm_connect(wfi_lane *lane, const void *data, size_t size);
void wfrdm_reject(wfi_fabric *fabric, wfi_connect_request *request);
void wfrdm_on_frame(wfrdm *rdm, const uint8_t *bytes, size_t size);
void wfrdm_dials_check(wfrdm *rdm, uint64_t now);

/* post.c */
weft_status wfrdm_post_recv(wfi_lane *lane, wfi_fabric_op *op, const wfi_receive_buffer *buffers, size_t count);
weft_status wfrdm_send(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count);
weft_status wfrdm_inject(wfi_lane *lane, const void *data, size_t size);
weft_status wfrdm_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region, uint64_t remote,
                       uint64_t key);

/* message.c. consume_unexpected: a receive was posted. send_part: sends the next frame of the message; false: memory is
 * out. push_data: the same for the oldest message; false: nothing can be sent now. */
void wfrdm_on_data(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes);
void wfrdm_consume_unexpected(wfi_lane *lane);
bool wfrdm_has_credit(const wfi_lane *lane);
bool wfrdm_send_part(wfi_lane *lane, wfrdm_op *op);
bool wfrdm_push_data(wfi_lane *lane, size_t *budget);

/* read.c. push_reads: sends one READ or BYTES; false: none can be sent now. */
void wfrdm_on_read(wfi_lane *lane, const uint8_t *content, size_t size);
void wfrdm_on_bytes(wfi_lane *lane, const wfrdm_head *head, const uint8_t *bytes);
bool wfrdm_push_reads(wfi_lane *lane, size_t *budget);

/* region.c */
weft_status wfrdm_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out);
void wfrdm_region_close(wfi_fabric *fabric, wfi_region *region);
const uint8_t *wfrdm_region_find(wfrdm *rdm, const wfrdm_range *range); /* NULL: peers may not read that */

/* poll.c. progress reads completions, and sends what waits. */
void wfrdm_progress(wfrdm *rdm);
size_t wfrdm_poll(wfi_fabric *fabric, wfi_completion *out, size_t room);
int wfrdm_wait_fd(wfi_fabric *fabric);
bool wfrdm_may_sleep(wfi_fabric *fabric);

/* events.c */
size_t wfrdm_poll_events(wfi_fabric *fabric, wfi_event *out, size_t room);
bool wfrdm_events_arm(wfi_fabric *fabric, uint64_t *due_ns);
int wfrdm_events_fd(wfi_fabric *fabric);

/*
 * local.c: processes of this machine that share memory. The name of an endpoint has the pid namespace, the process and
 * its start time, so that a process that has ended is known.
 */
void wfrdm_local_name(char out[WFRDM_NAME_BYTES]);
uint64_t wfrdm_local_scope(void); /* equal in processes that can share memory; 0: unknown */
/* Allocates the memory of this endpoint, whose file has this name; fails if there is too little. */
weft_status wfrdm_local_reserve(const wfrdm *rdm, const char *name, weft_error **error);
/* Begins to watch the peer's process. False: the process has ended, or its endpoint is closed. */
bool wfrdm_local_watch(wfrdm *rdm, wfrdm_peer *peer);
void wfrdm_local_unwatch(wfrdm *rdm, wfrdm_peer *peer); /* ends the watch */
bool wfrdm_local_check(wfrdm *rdm); /* fails the peers whose process has ended. Returns whether there were any */
/* Add a fabric to, and remove it from, the local fabrics of this process. After remove the others send nothing to it.
 * Call both without rdm->lock. */
void wfrdm_local_add(wfrdm *rdm);
void wfrdm_local_remove(wfrdm *rdm);

/* stalled.c. ask: call it when a peer's process has ended; sends the probe. heard: whether a BYE is this endpoint's own
 * probe. text: why no lane can be connected, or NULL. */
void wfrdm_stalled_probe(wfrdm *rdm);
bool wfrdm_stalled_answered(wfrdm *rdm, const wfrdm_head *head);
const char *wfrdm_stalled_text(const wfrdm *rdm);
void wfrdm_stalled_check(wfrdm *rdm, uint64_t now);

/* Logs a line with the rank. */
#define wfrdm_log(rdm_, level, ...)                                                                                    \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (rdm_)->rank}, (level), __VA_ARGS__);                                \
    } while (0)

#endif
