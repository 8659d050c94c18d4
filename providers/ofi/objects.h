/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - the structs of the libfabric providers (fabric, lane, operation, region), and the functions that the
 * files of this folder share.
 *
 * LOCKING. libfabric is opened with FI_THREAD_SAFE and locks for itself. These locks guard weft's own data:
 *   1. events_lock: the lists of open lanes and of requests that wait for an answer; events that were read ahead; and
 *      the step "read one event, find its lane". An endpoint is closed under it. fi_close drops the events that are
 *      queued for that endpoint, or wfofi_events_closed does. So an event that is read later names an open lane.
 *   2. cq_lock: the step "read completions, complete their operations", and the list `completed`. After fi_close,
 *      closing a lane reads the completion queue under it until that is empty. Operations that are still in the lane's
 *      list then were dropped by libfabric; no entry of the queue names them.
 *   3. lane->lock: that lane's list of operations, its counters and its state.
 * Order: cq_lock or events_lock first, then lane->lock. events_lock and cq_lock are never held together. No lock is
 * held while a thread waits on a descriptor, nor during a post, which may write megabytes to a socket.
 *
 * LIFETIME. wfofi_open makes a fabric and wfofi_close ends it; lanes and regions are closed before. A lane ends with
 * lane_close, or later if the provider has to keep it (wfofi_hooks.lane_drain). Posting on a lane while another thread
 * closes it is the caller's error, like the use of freed memory.
 */
#ifndef WFOFI_OBJECTS_H
#define WFOFI_OBJECTS_H

#include "ofi.h"

#include "base/error.h"
#include "base/list.h"
#include "base/mutex.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>

#define WFOFI_API FI_VERSION(1, 17)
#define WFOFI_INJECT_MAX 192
#define WFOFI_LANE_SENDS 64 /* where queues are reserved, unless the owner of the fabric says how many it needs */
#define WFOFI_LANE_RECEIVES 64
#define WFOFI_BOUNCES 4
#define WFOFI_BOUNCE_MIN ((size_t)4096) /* bytes of a bounce buffer, at least */

typedef enum wfofi_op_kind { WFOFI_RECEIVE, WFOFI_SEND, WFOFI_READ, WFOFI_WRITE, WFOFI_PIECE } wfofi_op_kind;

/* The content of wfi_fabric_op.reserved; its address is the operation's context for libfabric. */
typedef struct wfofi_op {
    union {
        struct fi_context2 context; /* the provider's, while it is posted */
        struct {
            weft_status status;
            size_t size;
        } done; /* valid once it is completed */
    };
    wfi_list link; /* in lane->ops, then in fabric->completed */
    wfi_lane *lane;
    uintptr_t kind;
} wfofi_op;

_Static_assert(sizeof(wfofi_op) <= sizeof(((wfi_fabric_op *)0)->reserved), "wfi_fabric_op has too little room");

/* bounce.c: a buffer, and the operation that goes through it. */
typedef struct wfofi_bounce {
    wfofi_op piece; /* what libfabric has; its lane is the operation's */
    wfi_list link;  /* in wfofi_bounces.free or stalled; in none while libfabric has the piece */
    wfofi_op *op;   /* the caller's; NULL: free */
    uint8_t *data;
    size_t size;          /* of the piece */
    uint8_t *local;       /* of a read or write: the caller's memory of this piece */
    size_t left;          /* bytes that are not transferred yet, with this piece */
    uint64_t remote, key; /* of a read or write: the peer's memory of this piece */
} wfofi_bounce;

typedef struct wfofi_bounces {
    uint8_t *memory;
    struct fid_mr *mr;
    size_t size;            /* of one buffer; 0: there are none, because memory need not be registered */
    wfi_list free, stalled; /* stalled: libfabric did not take the next piece */
    wfofi_bounce all[WFOFI_BOUNCES];
} wfofi_bounces;

typedef struct wfofi_ahead wfofi_ahead;

typedef struct wfofi_fabric {
    wfi_fabric base;
    const wfofi_provider *provider;
    const wfofi_hooks *hooks; /* the provider's, or ones that are all NULL */
    void *state;              /* the hooks' own */
    int rank;                 /* for logs; -1: not known when it opened */
    bool own_iface;           /* an interface was given: connections start from it too */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_pep *pep;
    int eq_fd, cq_fd;
    int wait_fd; /* a poller sleeps on it: cq_fd; or, if fi_cq_signal wakes nobody, an epoll of cq_fd and wake_fd */
    int wake_fd; /* an eventfd that wakes the poller; -1: fi_cq_signal does that */
    size_t lane_sends, lane_receives; /* reserved for each lane */
    size_t cq_size;                   /* 0: lanes reserve nothing */
    wfofi_sockaddr local;             /* the address that it listens on */
    char iface[IF_NAMESIZE];
    unsigned scope;            /* scope of others' link-local addresses */
    const char *connect_error; /* why the last connect failed; NULL after lane_open. For the thread that calls both */
    wfi_fabric_limits limits;

    wfi_mutex cq_lock;
    wfi_list completed; /* operations that poll has not reported yet */
    wfofi_bounces bounces;

    wfi_mutex events_lock;
    wfi_list lanes, requests;
    wfi_list ahead;                   /* events that were read and not reported yet (eq.c) */
    wfofi_ahead *ahead_spare;         /* for the next one; NULL: none */
    const struct fid *closed;         /* during wfofi_events_closed: events of this endpoint are dropped */
    size_t cq_room;                   /* of cq_size: not reserved by a lane */
    struct wfofi_fabric *kept_before; /* closed, with operations under way: fabric.c */

    _Atomic uint64_t exhausted_logged_ns; /* when "no descriptors" was last logged, by any thread; 0: never */
} wfofi_fabric;

typedef enum wfofi_lane_state {
    WFOFI_CONNECTING, /* receives may be posted */
    WFOFI_CONNECTED,
    WFOFI_BROKEN,  /* reported, or about to be */
    WFOFI_CLOSING, /* by lane_close: what fails from now on was cancelled */
} wfofi_lane_state;

struct wfi_lane {
    wfi_list link; /* in fabric->lanes, or in a list of the provider's */
    wfofi_fabric *fabric;
    struct fid_ep *ep;
    void *user;
    wfofi_sockaddr peer;          /* of an accepted lane, so that its socket is not taken for a silent connection */
    wfofi_sockaddr to;            /* of the others: where connect goes */
    wfi_connect_request *request; /* that connect is to accept; NULL: none, or accepted */

    wfi_mutex lock;
    wfofi_lane_state state;
    wfi_list ops;
    unsigned receives, sends, reads; /* outstanding; `sends` includes reads and writes */
    uint8_t *injected;       /* the last WFI_INJECT_AHEAD messages, WFOFI_INJECT_MAX bytes each; NULL: none yet */
    unsigned injected_count; /* guarded by the caller, which sends one at a time on a lane */
};

struct wfi_connect_request {
    wfi_list link; /* in fabric->requests */
    struct fi_info *info;
};

typedef struct wfofi_region {
    wfi_region base;
    struct fid_mr *mr;
} wfofi_region;

/*
 * Functions that a provider runs at certain points, because its part of libfabric needs them. Each is optional. No lock
 * is held, except as said.
 */
struct wfofi_hooks {
    size_t state_bytes;                    /* of wfofi_fabric.state, which is zeroed */
    void (*created)(wfofi_fabric *fabric); /* the struct exists, and nothing is open */
    void (*listening)(wfofi_fabric *fabric);
    /* Called before and after each call of libfabric that may accept a connection. accept_end gets the result of
     * accept_begin. On the event thread, or the thread that closes the fabric. */
    int (*accept_begin)(wfofi_fabric *fabric);
    void (*accept_end)(wfofi_fabric *fabric, int begun);
    /* Called after events were read. Adds the provider's own events, and returns their number. Event thread. */
    size_t (*events_after)(wfofi_fabric *fabric, wfi_event *out, size_t room);
    /* Like wfi_fabric_ops.events_arm: false if the provider has events of its own. Event thread. */
    bool (*events_arm)(wfofi_fabric *fabric, uint64_t *due_ns);
    /* Whether the thread may wait on the event queue's descriptor. Event thread. */
    bool (*events_watch)(const wfofi_fabric *fabric);
    /* Before a lane's endpoint is closed. False: the provider calls wfofi_lane_end later. */
    bool (*lane_drain)(wfi_lane *lane);
    void (*polled)(wfofi_fabric *fabric); /* at the end of each poll */
    /* Before the fabric is closed. False: it has to stay in memory. */
    bool (*closing)(wfofi_fabric *fabric);
};

static inline wfofi_fabric *wfofi_of(const wfi_fabric *fabric)
{
    return (wfofi_fabric *)(uintptr_t)fabric;
}

/* choose.c: chooses the info and the address to listen on. set_sizes: the sizes of a lane's queues, in its info. */
weft_status wfofi_choose(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error);
void wfofi_set_sizes(const wfofi_fabric *fabric, struct fi_info *info);

/* completion.c. complete: poll reports `op`, which is in its lane's list; cq_lock held. wake: the thread that waits for
 * completions. */
void wfofi_complete(wfofi_fabric *fabric, wfofi_op *op, weft_status status, size_t size);
void wfofi_wake(wfofi_fabric *fabric);

/* mr.c. Returns 0 or libfabric's error. */
int wfofi_register(wfofi_fabric *fabric, void *data, size_t size, uint64_t access, struct fid_mr **out);

/*
 * bounce.c. wfofi_bounce_send and _rma post an operation that is in its lane's list; they return 0 or libfabric's
 * error, -FI_EAGAIN if no buffer is free. A send has at most bounces.size bytes. step: libfabric has reported a piece.
 * forget: the endpoint is closed. The last three need cq_lock.
 */
weft_status wfofi_bounces_open(wfofi_fabric *fabric, weft_error **error);
void wfofi_bounces_close(wfofi_fabric *fabric);
ssize_t wfofi_bounce_send(wfofi_fabric *fabric, wfofi_op *op, const wfi_iov *iov, size_t count);
ssize_t wfofi_bounce_rma(wfofi_fabric *fabric, wfofi_op *op, void *local, size_t size, uint64_t remote, uint64_t key);
void wfofi_bounce_step(wfofi_fabric *fabric, wfofi_op *piece, weft_status status);
void wfofi_bounces_retry(wfofi_fabric *fabric);
void wfofi_bounces_forget(wfofi_fabric *fabric, const wfi_lane *lane);

/* listen.c */
weft_status wfofi_listen(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error);

/*
 * log.c. Logs that `doing` failed with this libfabric return value. If descriptors have run out, logs only that, once
 * a minute.
 */
void wfofi_log_failed(wfofi_fabric *fabric, const char *doing, int ret);
void wfofi_log_exhausted(wfofi_fabric *fabric);

/* connection.c. For closing: reads all events, and rejects the requests that wait for an answer. */
void wfofi_requests_drop(wfofi_fabric *fabric);

/* eq.c. Reads all events of libfabric. */
void wfofi_events_drop(wfofi_fabric *fabric);
/* Discards the events of this lane that were read ahead. None follow, because the lane's state is WFOFI_CLOSING. */
void wfofi_events_forget(const wfi_lane *lane);
/*
 * Call it after an endpoint was closed, with events_lock held. Drops the endpoint's events that libfabric still has,
 * and reads other events ahead.
 *
 * libfabric's verbs keeps a list of events. It has events that were peeked at. Since 1.18.1 it also has each
 * FI_SHUTDOWN that follows a failed operation. fi_close should remove the endpoint's events from this list. It does
 * not: vrb_eq_match_event (1.11 to 2.6) compares a field of the endpoint instead of the entry's. Such an event names
 * freed memory, or the lane that is next allocated there.
 */
void wfofi_events_closed(wfofi_fabric *fabric, const struct fid *closed);
void wfofi_events_fini(wfofi_fabric *fabric);

/* cq.c */
void wfofi_cq_progress(wfofi_fabric *fabric); /* reads one batch; cq_lock held */
void wfofi_cq_drain(wfofi_fabric *fabric);    /* reads until there is nothing; cq_lock held */

/* lane.c */
weft_status wfofi_lane_create(wfofi_fabric *fabric, struct fi_info *info, void *user, wfi_lane **out);
/* Closes the lane's endpoint, reports its operations, frees it. No read may be in progress. */
void wfofi_lane_end(wfi_lane *lane);

/* Logs a line with the rank. */
#define wfofi_log(fabric_, level, ...)                                                                                 \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (fabric_)->rank}, (level), __VA_ARGS__);                             \
    } while (0)

#endif
