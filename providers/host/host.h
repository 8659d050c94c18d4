/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the structs of the fabric "host" and the functions that its files share. Workers of one machine exchange
 * messages through shared memory, and read each other's memory with process_vm_readv(2).
 *
 * A LANE is a socket, a segment and two doorbells. The dialler makes the segment: a sealed memfd with a ring of
 * messages for each direction. The socket is a unix socket with an abstract name. It carries the handshake
 * (greeting.c) with the descriptors, and later the descriptors that the workers pass to each other (pass.c). The
 * socket ends when the peer closes the lane or dies. This folder does not know which of the two happened
 * (connect.c). Nothing has a name in a file system, so a killed process leaves nothing behind.
 *
 * DOORBELLS. Each fabric has one: a page of memory, which its peers get, and a bell. The page has a bit for
 * each lane (its slot). A peer that wrote to a lane's ring sets the lane's bit. If the owner sleeps (`armed`), the peer
 * also rings the bell: it sends a datagram to a unix socket with an abstract name, which the handshake tells. So an
 * empty poll reads one or a few words, and a message costs no system call while the owner polls (doorbell.c).
 *
 * TRUST. Peers run as the same user, which the kernel confirms (SO_PEERCRED). Such a process could also read and change
 * this one with ptrace(2). Nevertheless nothing in shared memory is trusted: a position or a size is read once and
 * checked, and the positions that this side owns are its private copies. A peer that writes malformed data loses its
 * lane. If both ends can read each other's memory, the lane is private (wfi_fabric_ops), and net's frames on it have no
 * MAC.
 *
 * LOCKING. The lock events_lock guards the lanes and requests, their notices and their sockets. The lock slots_lock
 * guards the table of lanes by slot. A lane's own lock guards its state, operations and rings. The lock regions_lock
 * guards the table of regions. Locks are taken in this order, and slots_lock is not taken while events_lock is held.
 * When poll visits a lane, it takes the lane's lock before it releases slots_lock. So the lane is not freed.
 */
#ifndef WFI_HOST_H
#define WFI_HOST_H

#include "fabric.h"

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/text/log.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>

#define WFI_HOST_RING_BYTES 16384u /* a power of two */
#define WFI_HOST_ALIGN 8u          /* messages begin at multiples of this */
#define WFI_HOST_MESSAGE_MAX ((size_t)1 << 30)
#define WFI_HOST_RMA_MAX ((size_t)1 << 30)
#define WFI_HOST_INJECT_MAX 256
#define WFI_HOST_LANE_OPS 256             /* receives posted on a lane, and sends and reads in flight, at most */
#define WFI_HOST_LANES_MAX 4096           /* slots of a doorbell */
#define WFI_HOST_ROUND_BYTES (256u << 10) /* read from peers' memory in one poll, at most */
#define WFI_HOST_NAME_BYTES 16
#define WFI_HOST_ADDRESS_BYTES (8 + WFI_HOST_NAME_BYTES)
#define WFI_HOST_REGIONS_BITS 20
#define WFI_HOST_HALF_OPEN_MAX 64
#define WFI_HOST_PAGE 4096
#define WFI_HOST_ID_LISTEN 1 /* in epoll: the listening socket, and host->wake_fd; larger numbers are sources */
#define WFI_HOST_ID_WAKE 2

typedef struct wfi_host wfi_host;

/* ---- Shared memory --------------------------------------------------------------------------------------------- */

/* One direction of a lane. Positions count bytes, modulo 2^32. The producer writes `tail`, the consumer `head`. */
typedef struct wfi_host_ring {
    _Alignas(64) _Atomic uint32_t tail;
    _Alignas(64) _Atomic uint32_t head;
    _Atomic uint32_t wants_room; /* set by the producer when the ring is full; cleared by the consumer */
} wfi_host_ring;

typedef struct wfi_host_segment {
    wfi_host_ring rings[2];        /* 0: the dialler produces */
    _Atomic uint32_t has_ended[2]; /* set by the dialler (0), the acceptor (1): it has closed the lane */
    _Alignas(WFI_HOST_PAGE) uint8_t data[2][WFI_HOST_RING_BYTES];
} wfi_host_segment;

typedef struct wfi_host_doorbell_page {
    _Alignas(64) _Atomic uint32_t armed; /* odd: the owner may sleep, so its bell must be rung */
    _Alignas(64) _Atomic uint64_t ready[WFI_HOST_LANES_MAX / 64];
    uint8_t rest[WFI_HOST_PAGE - 64 - WFI_HOST_LANES_MAX / 8];
} wfi_host_doorbell_page;

_Static_assert(sizeof(wfi_host_doorbell_page) == WFI_HOST_PAGE, "a doorbell is one page");

/* The owner's entry for a region, which readers copy together with the data (read.c). */
typedef struct wfi_host_record {
    _Atomic uint64_t key; /* 0: there is no such region */
    _Atomic uint64_t start, end;
    _Atomic uint64_t access; /* WFI_REMOTE_READ; in the list of free records: the next one */
} wfi_host_record;

/* ---- Private parts --------------------------------------------------------------------------------------------- */

typedef struct wfi_host_producer {
    wfi_host_ring *ring;
    uint8_t *data;
    uint32_t tail; /* the position behind what was written, perhaps not published yet */
} wfi_host_producer;

typedef struct wfi_host_consumer {
    wfi_host_ring *ring;
    const uint8_t *data;
    uint32_t head;
} wfi_host_consumer;

typedef struct wfi_host_doorbell {
    wfi_host_doorbell_page *page; /* NULL: none */
    int fd;                       /* a socket that is connected to the bell */
} wfi_host_doorbell;

typedef enum wfi_host_op_kind { WFI_HOST_RECEIVE, WFI_HOST_SEND, WFI_HOST_INJECT, WFI_HOST_READ } wfi_host_op_kind;

typedef struct wfi_host_part {
    uint8_t *data;
    size_t size;
} wfi_host_part;

/* The content of wfi_fabric_op.reserved, or the head of an injected message that waits for room. */
typedef struct wfi_host_op {
    union {
        wfi_list link;            /* in a list of the lane */
        struct wfi_host_op *next; /* in host->completed, then in host->to_report */
    };
    uint32_t kind;
    weft_status status; /* once it is completed; before: WEFT_ERR_AGAIN if the head of a message was written */
    size_t size;        /* of all parts; once it is completed: of the received message */
    size_t done;        /* bytes that were copied */
    union {
        wfi_host_part parts[WFI_RECEIVE_BUFFERS_MAX]; /* of a receive or send */
        struct {
            uint8_t *local;
            uint64_t remote, key;
        } read;
    };
} wfi_host_op;

_Static_assert(sizeof(wfi_host_op) <= sizeof(((wfi_fabric_op *)0)->reserved), "wfi_fabric_op has too little room");

/* A message of the handshake. */
typedef struct wfi_host_greeting {
    uint32_t magic;
    uint8_t kind; /* WFI_HOST_HELLO, ... */
    uint8_t data_size;
    uint16_t refusal; /* why the sender cannot read the receiver's memory: an errno value; 0: it can. Not in HELLO */
    uint32_t slot;    /* of this lane in the sender's doorbell */
    uint32_t unused;
    uint8_t bell[WFI_HOST_NAME_BYTES]; /* the name of the sender's bell */
    uint64_t table;                    /* the address of the sender's records; the first one has `token` as key */
    uint64_t token;
    uint8_t data[WFI_CONNECT_DATA_MAX];
} wfi_host_greeting;

enum { WFI_HOST_HELLO = 1, WFI_HOST_ANSWER = 2, WFI_HOST_READY = 3, WFI_HOST_PASS = 4 };
#define WFI_HOST_FDS_MAX 2
/* The descriptors of a HELLO are doorbell page, segment; of an ANSWER doorbell page. */
enum { WFI_HOST_FD_PAGE, WFI_HOST_FD_SEGMENT };

/* The other process, as the handshake told of it. */
typedef struct wfi_host_peer {
    wfi_host_doorbell doorbell;
    uint32_t slot;
    pid_t pid; /* 0: it is in another pid namespace */
    uint64_t table, token;
} wfi_host_peer;

typedef enum wfi_host_source_kind { WFI_HOST_OF_LANE, WFI_HOST_OF_REQUEST } wfi_host_source_kind;

/* An event that poll_events has to report; in the lane or request that it is about. events_lock. */
typedef struct wfi_host_notice {
    wfi_list link; /* in host->notices */
    wfi_event_kind kind;
} wfi_host_notice;

/* A socket whose events are read: of a lane, or of a request. All under events_lock. */
typedef struct wfi_host_source {
    uint64_t id; /* in host->sources and epoll; 0: it is not watched */
    wfi_host_source_kind kind;
    int fd; /* -1: none */
} wfi_host_source;

/* A descriptor that the peer of a lane has passed, until poll_events has reported it. events_lock. */
typedef struct wfi_host_passed {
    wfi_host_notice notice;
    wfi_list link; /* in lane->passed */
    wfi_lane *lane;
    int fd;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t size;
} wfi_host_passed;

struct wfi_connect_request {
    wfi_host_source source; /* first */
    wfi_list link;          /* in host->half_open or host->requests */
    wfi_host_notice asks;
    wfi_host *host;
    uint64_t due_ns; /* half-open: when it is closed */
    bool is_gone;    /* the dialler has closed it */
    wfi_host_peer peer;
    wfi_host_segment *segment;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t data_size;
};

typedef enum wfi_host_lane_state {
    WFI_HOST_OPENED, /* receives may be posted */
    WFI_HOST_CONNECTING,
    WFI_HOST_CONNECTED,
    WFI_HOST_BROKEN,
    WFI_HOST_CLOSING,
} wfi_host_lane_state;

struct wfi_lane {
    wfi_host_source source; /* first */
    wfi_list link;          /* in host->lanes; events_lock */
    wfi_host *host;
    void *user;
    bool is_dialler;
    uint32_t slot;                     /* in this worker's doorbell */
    uint8_t name[WFI_HOST_NAME_BYTES]; /* of the worker that it dials */
    wfi_connect_request *request;      /* to be answered; NULL: none, or answered */
    int segment_fd;                    /* until HELLO was sent; then -1 */

    wfi_host_notice up, down;
    weft_status why;                    /* of `down`; events_lock */
    const char *why_text;               /* of `down`, the same; NULL: none */
    bool was_announced;                 /* `down` was made */
    wfi_list passed;                    /* wfi_host_passed.link; events_lock */
    unsigned passed_count;              /* the same */
    uint8_t data[WFI_CONNECT_DATA_MAX]; /* of `up` */
    size_t data_size;

    wfi_mutex lock;
    wfi_host_lane_state state;
    wfi_host_segment *segment;
    wfi_host_producer out;
    wfi_host_consumer in;
    wfi_host_peer peer;
    int refusal; /* why reads do not work on it, in either direction: an errno value; 0: they work; EAGAIN: not known */
    wfi_list receives, sends, reads;
    unsigned receive_count, send_count, read_count;
    bool has_unexpected; /* a message in the ring waits until a receive is posted */
    bool is_in_message;  /* the first receive is being filled */
    uint32_t in_size;    /* of that message */
};

struct wfi_host {
    wfi_fabric base;
    int rank; /* for logs; -1: not known when it was opened */
    uint64_t machine;
    uint8_t name[WFI_HOST_NAME_BYTES];

    wfi_host_doorbell doorbell;
    uint8_t bell[WFI_HOST_NAME_BYTES]; /* its name */
    int bell_fd;                       /* receives the rings, also those of this worker itself */
    int doorbell_page_fd;              /* passed to peers */
    uint32_t generation;               /* of `armed`; [token] */
    uint32_t turn;                     /* the slot at which the next poll begins: reads take turns; [token] */

    wfi_mutex slots_lock;
    wfi_lane **slots;       /* WFI_HOST_LANES_MAX */
    _Atomic uint32_t words; /* of doorbell.page->ready, that have a used slot */

    _Atomic(wfi_host_op *)
        completed;          /* completed operations, the newest first: any thread adds one, the poll takes all */
    wfi_host_op *to_report; /* those that are to be reported, the oldest first; [token] */

    wfi_mutex events_lock;
    int listen_fd, epoll_fd, wake_fd; /* wake_fd: a notice was made by a thread that does not read events */
    wfi_map sources;                  /* wfi_host_source by id */
    uint64_t last_id;
    wfi_list lanes, requests, half_open, notices;
    size_t half_open_count, silent;
    bool accepts_none; /* no connection can be accepted, because descriptors have run out */
    uint64_t accepts_none_until_ns, logged_ns;

    wfi_mutex regions_lock;
    wfi_host_record *table; /* 2^WFI_HOST_REGIONS_BITS; memory is used only for the records that were in use */
    uint32_t table_used;    /* records below were in use */
    uint32_t table_free;    /* the first of the list of free ones; 0: none */
};

static inline wfi_host *wfi_host_of(const wfi_fabric *fabric)
{
    return (wfi_host *)(uintptr_t)fabric;
}

/* ---- doorbell.c --------------------------------------------------------------------------------------------- */

int wfi_host_doorbell_open(wfi_host *host); /* this worker's doorbell. Returns 0 or an errno value */
/* A peer's doorbell. Keeps neither page_fd nor bell. Returns 0 or an errno value. */
int wfi_host_doorbell_take(int page_fd, const uint8_t bell[WFI_HOST_NAME_BYTES], wfi_host_doorbell *out);
void wfi_host_doorbell_close(wfi_host_doorbell *doorbell); /* one that was not opened is ignored */
void wfi_host_doorbell_signal(const wfi_host_doorbell *doorbell,
                              uint32_t slot);                   /* the lane of this slot has something to do */
void wfi_host_doorbell_wake(const wfi_host_doorbell *doorbell); /* only ends the sleep of its owner */
void wfi_host_doorbell_drain(wfi_host *host);                   /* takes the rings so far off this worker's bell */

/* ---- ring.c ---------------------------------------------------------------------------------------------------- */

void wfi_host_rings_init(wfi_lane *lane); /* the lane has a segment */
/* The room in the ring, a multiple of WFI_HOST_ALIGN. False: the peer has written a position that is impossible. */
bool wfi_host_ring_room(const wfi_host_producer *producer, uint32_t *room);
void wfi_host_ring_put(wfi_host_producer *producer, const void *data, uint32_t size);
/* Ends a message: pads it to WFI_HOST_ALIGN, and shows the consumer all that was put. */
void wfi_host_ring_publish(wfi_host_producer *producer);
/* Asks the consumer to signal when there is room. Then look for room again before waiting. */
void wfi_host_ring_want_room(const wfi_host_producer *producer);
/* The bytes in the ring, a multiple of WFI_HOST_ALIGN. False as above. */
bool wfi_host_ring_filled(const wfi_host_consumer *consumer, uint32_t *filled);
uint64_t wfi_host_ring_head(wfi_host_consumer *consumer); /* takes the head of a message */
void wfi_host_ring_take(wfi_host_consumer *consumer, void *out, uint32_t size);
void wfi_host_ring_skip(wfi_host_consumer *consumer, uint32_t size);
/* Gives the room of what was taken back. True: the producer waits for it. */
bool wfi_host_ring_release(wfi_host_consumer *consumer);

/* ---- lane.c ---------------------------------------------------------------------------------------------------- */

weft_status wfi_host_lane_open(wfi_fabric *fabric, const uint8_t *address, size_t size, void *user, wfi_lane **out);
weft_status wfi_host_lane_take(wfi_fabric *fabric, wfi_connect_request *request, void *user, wfi_lane **out);
void wfi_host_lane_close(wfi_lane *lane);
bool wfi_host_lane_is_private(const wfi_lane *lane);

/* ---- completion.c ---------------------------------------------------------------------------------------------- */

weft_status wfi_host_status(int errnum); /* of an errno value */
/* The next functions need lane->lock. complete: poll reports the operation, which is in no list. flush: reports all
 * operations of the lane. break: reports them, and ends the lane's socket. */
void wfi_host_complete(wfi_host *host, wfi_host_op *op, weft_status status, size_t size);
void wfi_host_lane_flush(wfi_lane *lane, weft_status status);
void wfi_host_lane_break(wfi_lane *lane);

/* ---- message.c ------------------------------------------------------------------------------------------------- */

weft_status wfi_host_post_recv(wfi_lane *lane, wfi_fabric_op *op, const wfi_receive_buffer *buffers, size_t count);
weft_status wfi_host_send(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count);
weft_status wfi_host_inject(wfi_lane *lane, const void *data, size_t size);
void wfi_host_receive(wfi_lane *lane); /* takes messages from the ring; may break the lane; lane->lock */
void wfi_host_push(wfi_lane *lane);    /* writes the messages that wait for room; may break the lane; lane->lock */

/* ---- read.c ---------------------------------------------------------------------------------------------------- */

weft_status wfi_host_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region,
                          uint64_t remote, uint64_t key);
/* Reads up to *budget bytes for the lane's operations, and subtracts them. May break the lane; lane->lock. */
void wfi_host_read_some(wfi_lane *lane, size_t *budget);
/* Whether this process can read the peer's memory: 0 or an errno value. */
int wfi_host_probe(const wfi_host_peer *peer);
const char *wfi_host_refusal_text(int refusal); /* valid forever; NULL for 0 */

/* ---- region.c -------------------------------------------------------------------------------------------------- */

int wfi_host_regions_open(wfi_host *host); /* returns 0 or an errno value */
void wfi_host_regions_close(wfi_host *host);
weft_status wfi_host_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out);
void wfi_host_region_close(wfi_fabric *fabric, wfi_region *region);

/* ---- greeting.c ------------------------------------------------------------------------------------------------ */

/* Never block. send: 0 or an errno value. receive: closes nothing; 0, EAGAIN (nothing there), EPIPE (the other end has
 * closed the socket) or EPROTO (malformed). *fd_count descriptors, which the caller closes. */
int wfi_host_greeting_send(int fd, const wfi_host_greeting *greeting, const int *fds, size_t fd_count);
int wfi_host_greeting_receive(int fd, wfi_host_greeting *out, int fds[WFI_HOST_FDS_MAX], size_t *fd_count);

/* Whether the process at the other end of the socket has this process's user; *out says which process it is. */
bool wfi_host_is_ours(int fd, struct ucred *out);
void wfi_host_meet(wfi_host_peer *peer, const wfi_host_greeting *greeting); /* takes what the peer says of itself */

/* ---- watch.c; all need events_lock ----------------------------------------------------------------------------- */

/* Watches the source's socket. False: memory is out. unwatch: does not close it; one that is not watched is ignored. */
bool wfi_host_watch(wfi_host *host, wfi_host_source *source);
void wfi_host_unwatch(wfi_host *host, wfi_host_source *source);
void wfi_host_notify(wfi_host *host, wfi_host_notice *notice, wfi_event_kind kind);
void wfi_host_listen(wfi_host *host, bool does);
void wfi_host_say_exhausted(wfi_host *host); /* stops listening for a while; logs that at most once a minute */

/* ---- request.c -------------------------------------------------------------------------------------------------- */

void wfi_host_reject(wfi_fabric *fabric, wfi_connect_request *request);
/* The next functions need events_lock. request_event: its socket has something. */
void wfi_host_request_event(wfi_connect_request *request);
void wfi_host_request_free(wfi_connect_request *request);
void wfi_host_accept(wfi_host *host);

/* ---- connect.c: the handshake and the end of a lane ------------------------------------------------------------- */

weft_status wfi_host_connect(wfi_lane *lane, const void *data, size_t size);
void wfi_host_lane_event(wfi_lane *lane); /* its socket has something; events_lock */

/* ---- pass.c ---------------------------------------------------------------------------------------------------- */

weft_status wfi_host_pass(wfi_lane *lane, int fd, const void *data, size_t size);
void wfi_host_wake(wfi_lane *lane);
/* The next three need events_lock. take: keeps a descriptor that the peer has passed, and takes it over. False: the
 * lane has too many, or memory is out. report: moves it to *out. drop: closes those that were not reported. */
bool wfi_host_passed_take(wfi_lane *lane, const wfi_host_greeting *greeting, int fd);
void wfi_host_passed_report(wfi_host_passed *passed, wfi_event *out);
void wfi_host_passed_drop(wfi_lane *lane);

/* ---- events.c -------------------------------------------------------------------------------------------------- */

size_t wfi_host_poll_events(wfi_fabric *fabric, wfi_event *out, size_t room);
bool wfi_host_events_arm(wfi_fabric *fabric, uint64_t *due_ns);
int wfi_host_events_fd(wfi_fabric *fabric);

/* ---- poll.c ---------------------------------------------------------------------------------------------------- */

size_t wfi_host_poll(wfi_fabric *fabric, wfi_completion *out, size_t room);
int wfi_host_wait_fd(wfi_fabric *fabric);
bool wfi_host_may_sleep(wfi_fabric *fabric);

/* ---- address.c ------------------------------------------------------------------------------------------------- */

struct sockaddr_un;
socklen_t wfi_host_socket_name(const uint8_t name[WFI_HOST_NAME_BYTES], struct sockaddr_un *out);
size_t wfi_host_address(const wfi_fabric *fabric, uint8_t *out);
bool wfi_host_reaches(const wfi_fabric *fabric, const uint8_t *address, size_t size);
void wfi_host_address_text(const uint8_t *address, size_t size, char *out, size_t room);

/* Logs a line with the rank. */
#define wfi_host_log(host_, level, ...)                                                                                \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (host_)->rank}, (level), __VA_ARGS__);                               \
    } while (0)

#endif
