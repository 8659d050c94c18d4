/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - the structs of the libfabric providers (fabric, lane, operation, region), and the functions that the
 * files of this folder share.
 *
 * LOCKING. libfabric is opened with FI_THREAD_SAFE and locks for itself. These locks guard weft's own data:
 *   1. events_lock: the lists of open lanes, of parked lanes and of requests that wait for an answer; and the step
 *      "read one event, find its lane". An endpoint is closed under it: fi_close drops the events that are queued for
 *      that endpoint, so an event that is read later can only name an open lane.
 *   2. cq_lock: the step "read completions, settle their operations", and the list `ready`. After fi_close, closing a
 *      lane reads the completion queue under it until that is empty. Operations that are still in the lane's list then
 *      were dropped by libfabric; no entry of the queue names them.
 *   3. lane->lock: that lane's list of operations, its counters and its state.
 * Order: cq_lock or events_lock first, then lane->lock. events_lock and cq_lock are never held together. No lock is
 * held while a thread waits on a descriptor, nor during a post, which may write megabytes to a socket.
 *
 * LIFETIME. wfofi_open makes a fabric and wfofi_close ends it; lanes and regions are closed before. A lane ends with
 * lane_close, or, if it has to be parked, once its reads have ended (drain.c). Posting on a lane while another thread
 * closes it is the caller's error, like the use of freed memory.
 */
#ifndef WFOFI_OBJECTS_H
#define WFOFI_OBJECTS_H

#include "ofi.h"
#include "ofi/sockets/sockets.h"

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
#define WFOFI_SILENT_MAX 256            /* connections watched at a time */

typedef enum wfofi_op_kind { WFOFI_RECEIVE, WFOFI_SEND, WFOFI_READ, WFOFI_WRITE, WFOFI_PIECE } wfofi_op_kind;

/* The content of wfi_fabric_op.reserved; its address is the operation's context for libfabric. */
typedef struct wfofi_op {
    union {
        struct fi_context2 context; /* the provider's, while it is posted */
        struct {
            weft_status status;
            size_t size;
        } done; /* valid once it is settled */
    };
    wfi_list link; /* in lane->ops, then in fabric->ready */
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
    size_t size;    /* of the piece */
    uint8_t *local; /* reads and writes: the caller's memory, the peer's, and the bytes that are left, with the piece */
    size_t left;
    uint64_t remote, key;
} wfofi_bounce;

typedef struct wfofi_bounces {
    uint8_t *memory;
    struct fid_mr *mr;
    size_t size;            /* of one buffer; 0: there are none, because memory need not be registered */
    wfi_list free, stalled; /* stalled: libfabric did not take the next piece */
    wfofi_bounce all[WFOFI_BOUNCES];
} wfofi_bounces;

typedef struct wfofi_fabric {
    wfi_fabric base;
    const wfofi_provider *provider;
    int rank;       /* for logs; -1: not known when it opened */
    bool own_iface; /* an interface was given: connections start from it too */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_pep *pep;
    int eq_fd, cq_fd;
    int wake_fd, wait_fd; /* if fi_cq_signal does not wake: an eventfd, and an epoll of it and cq_fd; else -1, cq_fd */
    size_t lane_sends, lane_receives; /* reserved for each lane */
    size_t cq_size;                   /* 0: lanes reserve nothing */
    int listen_fd;                    /* libfabric's descriptor; -1: not found */
    wfofi_sockaddr local;             /* the address that it listens on */
    char iface[IF_NAMESIZE];
    unsigned scope;            /* scope of others' link-local addresses */
    const char *connect_error; /* for the thread that calls connect: why its last call failed */
    wfi_fabric_limits limits;

    wfi_mutex cq_lock;
    wfi_list ready; /* operations that are settled and not yet reported */
    wfofi_bounces bounces;

    wfi_mutex events_lock;
    wfi_list lanes, requests;
    size_t cq_room;  /* of cq_size: not reserved by a lane */
    wfi_list parked; /* lanes that their owners closed, but whose reads have not ended: drain.c */
    atomic_size_t parked_count;
    struct wfofi_fabric *kept_before; /* closed with parked lanes: fabric.c */

    _Atomic uint64_t exhausted_said_ns; /* when "no descriptors" was last logged, by any thread; 0: never */

    /* Used only by the event thread: accept.c, silent.c. */
    bool exhausted; /* no connection can be accepted, because descriptors have run out */
    bool silent_suspected;
    uint64_t silent_due_ns;
    uint64_t silent[WFOFI_SILENT_MAX]; /* hashes of the silent connections that the last look found */
    size_t silent_count;
    unsigned silent_late; /* looks in a row that were late and so were discarded */
    size_t silent_ended;  /* connections closed and not yet reported by poll_events */
} wfofi_fabric;

typedef enum wfofi_lane_state {
    WFOFI_CONNECTING, /* receives may be posted */
    WFOFI_CONNECTED,
    WFOFI_BROKEN,  /* reported, or about to be */
    WFOFI_CLOSING, /* by lane_close: what fails from now on was cancelled */
} wfofi_lane_state;

struct wfi_lane {
    wfi_list link; /* in fabric->lanes, or parked */
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

static inline wfofi_fabric *wfofi_of(const wfi_fabric *fabric)
{
    return (wfofi_fabric *)(uintptr_t)fabric;
}

/* choose.c: chooses the info and the address to listen on. set_sizes: the sizes of a lane's queues, in its info. */
weft_status wfofi_choose(wfofi_fabric *fabric, const wfi_fabric_options *options, weft_error **error);
void wfofi_set_sizes(const wfofi_fabric *fabric, struct fi_info *info);

/* settle.c. Reports `op`, which is in its lane's list; cq_lock held. wake: the thread that waits for completions. */
void wfofi_settle(wfofi_fabric *fabric, wfofi_op *op, weft_status status, size_t size);
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
 * accept.c. Logs that `doing` failed with this libfabric return value. If descriptors have run out, logs only that,
 * once a minute.
 */
void wfofi_say_failed(wfofi_fabric *fabric, const char *doing, int ret);
/* Called before and after each call in which libfabric may accept a connection. */
int wfofi_accept_before(wfofi_fabric *fabric);
void wfofi_accept_after(wfofi_fabric *fabric, int next);

/* silent.c */
void wfofi_silent_look(wfofi_fabric *fabric);
size_t wfofi_silent_hang_up(wfofi_fabric *fabric); /* for closing: shuts all down; returns how many */

/* forgotten.c. Whether an accepted lane or a request that waits for its answer has this other end. events_lock held. */
bool wfofi_is_known(const wfofi_fabric *fabric, const wfofi_sockaddr *peer);
/*
 * Closes the accepted sockets that libfabric has lost. False: there may be some, but that is not certain yet.
 * `all_were_read`: no connection is accepted any longer, and libfabric has read from every socket since it ended.
 */
bool wfofi_lost_close(wfofi_fabric *fabric, bool all_were_read);

/* eq.c. For closing: accepts no more connections, and rejects the requests that wait for an answer. */
void wfofi_events_end(wfofi_fabric *fabric);

/* cq.c */
void wfofi_cq_progress(wfofi_fabric *fabric); /* reads one batch; cq_lock held */
void wfofi_cq_drain(wfofi_fabric *fabric);    /* reads until there is nothing; cq_lock held */

/* lane.c */
weft_status wfofi_lane_create(wfofi_fabric *fabric, struct fi_info *info, void *user, wfi_lane **out);
/* Closes the lane's endpoint, reports its operations, frees it. No read may be in progress. */
void wfofi_lane_end(wfi_lane *lane);

/* drain.c */
void wfofi_parked_look(wfofi_fabric *fabric); /* ends the parked lanes whose reads have ended */
bool wfofi_parked_end(wfofi_fabric *fabric);  /* for closing; false: some are left */

/* tuning.c */
void wfofi_tune(void); /* before the first call of libfabric */

/* status.c */
weft_status wfofi_status(int ret); /* for a negative libfabric return value */
weft_status wfofi_fail(weft_error **error, int ret, const char *format, ...) WEFT_PRINTF(3, 4);

/* Logs a line with the rank. */
#define wfofi_log(fabric_, level, ...)                                                                                 \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_in(&(wfi_log_context){.rank = (fabric_)->rank}, (level), __VA_ARGS__);                             \
    } while (0)

#endif
