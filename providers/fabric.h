/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric.h - the interface of a fabric: connections (lanes), messages, remote reads and writes, registration of
 * memory. Each provider is a table of these functions (wfi_fabric_ops). docs/tour.md lists the files to change for a
 * new fabric. All functions of the table are required, with five exceptions: `reaches` may be NULL, `inject` may be
 * NULL if limits.inject_max is 0, and `write` is NULL if and only if limits.writes is false. The functions `pass` and
 * `wake` are NULL if the fabric does not connect workers of one machine.
 *
 *     const wfi_fabric_ops *ops = wfi_fabric_find("tcp");
 *     ops->open(&options, &fabric, &error);                 listens
 *     ops->lane_open(fabric, address, size, user, &lane);
 *     ops->connect(lane, data, data_size);                  an event tells when it is connected
 *     ops->send(lane, &op, iov, count);                     poll reports &op
 *
 * An agent opens one or more fabrics. A lane is one connection. Messages on it arrive whole and in order, or the
 * lane closes. Remote reads and writes have no promised order, neither among themselves nor relative to messages.
 *
 * THREADS. Any thread may call any function except open and close at any time, and several threads may do so at once.
 * There are exceptions. One thread at a time calls connect or connect_error of a fabric, or inject of a lane. Only the
 * thread that holds the progress token calls poll and may_sleep. One thread at a time calls poll_events, events_arm or
 * events_fd. This is usually the event thread, because libfabric's tcp can block there while a connecting peer has sent
 * only part of its request. No thread calls a function of a lane during or after its lane_close. The only callback into
 * weft is options->ready. One thread at a time uses a simulated world.
 *
 * OPERATIONS. The caller embeds a wfi_fabric_op in its own struct, and keeps the struct and the memory that the
 * operation names until poll has reported it. Each accepted operation is reported exactly once. Once lane_close has
 * returned, the lane's operations touch no local memory, and the peer's operations on this worker's memory through
 * that lane have ended. Exception: where a peer reads without the owner (host), a read may still copy bytes that the
 * owner changes, but is then reported as failed. The same holds after region_close.
 *
 * Outstanding operations are reported by later polls, with WEFT_ERR_CANCELLED, or with their true result if it was
 * known before. libfabric may report such an operation much later. Closing the fabric discards operations that have not
 * been reported.
 *
 * BROKEN LANES. A lane that breaks is announced once by WFI_EVENT_CLOSED, or shows by an operation that fails. The
 * owner then calls lane_close. Operations may still be posted to a broken lane: they are refused with
 * WEFT_ERR_UNREACHABLE, or reported as failed. A read or write breaks its lane if its key is wrong, if it is outside
 * the region, or if the region does not permit that use. With libfabric, a message that does not fit its receive also
 * breaks the lane.
 *
 * SIZES. A message has at most message_max bytes, in one or two pieces. A read or write has 1 to rma_max bytes. A
 * region has at least one byte and one use. The caller keeps these limits. If it does not, libfabric's providers refuse
 * the call with WEFT_ERR_INVALID or WEFT_ERR_TOO_LARGE. The simulation refuses what is too large, and accepts empty
 * reads, writes and regions.
 */
#ifndef WFI_FABRIC_H
#define WFI_FABRIC_H

#include "mem/mem.h"

#include <weft/status.h>

#define WFI_CONNECT_DATA_MAX 48 /* bytes of private data of a connection: the size that verbs offers */
#define WFI_ADDRESS_MAX 64      /* bytes of a fabric address */

typedef struct wfi_fabric wfi_fabric; /* each provider's own struct starts with a `const wfi_fabric_ops *ops` */
typedef struct wfi_lane wfi_lane;
typedef struct wfi_region wfi_region;
typedef struct wfi_connect_request wfi_connect_request;

/* An operation in flight. The provider uses `reserved`. */
typedef struct wfi_fabric_op {
    void *reserved[12];
} wfi_fabric_op;

typedef struct wfi_completion {
    wfi_fabric_op *op;
    /* WEFT_OK; WEFT_ERR_TOO_LARGE: the message did not fit the receive; WEFT_ERR_CANCELLED: the lane was closed;
     * WEFT_ERR_UNREACHABLE: the lane broke (on verbs perhaps because a message did not fit). WEFT_ERR_INVALID: memory
     * of a read or write, here or at the peer, cannot be accessed; the lane continues. Only fabrics with
     * limits.reports_memory (host) detect that. On others the lane breaks, wrong bytes arrive (tcp), or the process
     * gets SIGSEGV. Any other error: the operation failed, and the lane is to be closed. */
    weft_status status;
    size_t size; /* of a receive with status WEFT_OK: bytes that arrived */
} wfi_completion;

typedef enum wfi_event_kind {
    WFI_EVENT_REQUEST = 1,   /* a peer wants to connect: lane_take or reject */
    WFI_EVENT_CONNECTED = 2, /* a lane is connected; data: what the acceptor sent; why: NULL, or reads do not work */
    WFI_EVENT_CLOSED = 3,    /* refused, or broken; status says which. The owner still has to close the lane */
    WFI_EVENT_SILENT = 4,    /* connections without a request were closed; count: how many */
    WFI_EVENT_PASSED = 5,    /* the peer has passed `fd`, with data; the caller of poll_events closes `fd` */
} wfi_event_kind;

typedef struct wfi_event {
    wfi_event_kind kind;
    wfi_lane *lane;               /* CONNECTED, CLOSED, PASSED */
    void *lane_user;              /* the `user` that lane_open or lane_take got */
    wfi_connect_request *request; /* REQUEST */
    weft_status status;           /* CLOSED: WEFT_ERR_UNREACHABLE (refused), WEFT_ERR_FABRIC (broken) */
    /* CLOSED: the system's error text; NULL: none. CONNECTED: why reads on this lane do not work, in one direction or
     * both; NULL: they work. Both ends get such a text, and use the lane for messages only. Valid forever. */
    const char *why;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t data_size;
    size_t count; /* SILENT */
    int fd;       /* PASSED */
} wfi_event;

/* A registered range. Peers address it by base + offset and key. */
struct wfi_region {
    uint64_t base;    /* the remote address of offset 0: 0 or the local address */
    uint64_t key;     /* random if the fabric allows a choice */
    void *descriptor; /* for local use; NULL if none is needed */
};

/* The uses of a region. A region permits only the uses that it was opened with. So memory that must not be written gets
 * a region without the two WRITE bits. */
enum {
    WFI_REMOTE_READ = 1, /* by peers */
    WFI_REMOTE_WRITE = 2,
    WFI_LOCAL_READ = 4,  /* by this worker: sends and writes come from it */
    WFI_LOCAL_WRITE = 8, /* receives and reads go to it */
    WFI_LOCAL = WFI_LOCAL_READ | WFI_LOCAL_WRITE,
};

typedef struct wfi_fabric_limits {
    size_t message_max;     /* bytes of one message */
    size_t rma_max;         /* bytes of one read or write */
    size_t inject_max;      /* bytes of one injected send; 0: not supported */
    size_t copied_max;      /* if needs_local_regions: bytes of one send without a region; see there */
    bool keys_per_transfer; /* registering is cheap: each exposure of memory gets a region, and a key, of its own */
    /*
     * Every receive, and every send, read or write of at least one byte, needs a region that permits the local use. If
     * copied_max is not 0, only receives need one: the fabric copies sends of up to copied_max bytes, and reads and
     * writes of any size, through a few small buffers of its own. An operation without the region that it needs is
     * refused with WEFT_ERR_INVALID.
     */
    bool needs_local_regions;
    bool open_blocks;          /* lane_open may take seconds: it is called without locks */
    bool long_pays;            /* 128 KiB take less time in a message than by a read */
    bool target_must_progress; /* peers' reads and writes proceed only while this worker polls */
    bool reports_memory;       /* see wfi_completion.status */
    bool writes;               /* peers of this fabric can write to each other's memory: `write` is not NULL */
    /* Why reads do not work on any lane (lanes carry messages only, and `read` returns WEFT_ERR_UNSUPPORTED); NULL:
     * they work. Valid forever. */
    const char *no_reads;
} wfi_fabric_limits;

typedef struct wfi_fabric_options {
    int rank;                /* for logs; the simulation's address */
    const char *iface;       /* interface name or address; NULL: the fabric chooses one */
    const char *towards;     /* an address of the job (master_addr); tcp uses the interface with the route to it */
    int port_low, port_high; /* 0, 0: any */
    int port_spared;         /* the store's port: taken from the range only if no other is free. 0: none */
    int peers;               /* largest number of peers that have lanes at one time; 0: unknown */
    int lane_sends;          /* largest number of sends, reads and writes in flight on one lane; 0: unknown */
    int lane_receives;       /* largest number of posted receives of one lane; 0: unknown */
    weft_sim *sim;
    /*
     * The fabric calls it when completions can be polled and wait_fd does not become readable for them. It may be
     * called by any thread, with any lock held. It is not for events: a fabric without a descriptor for events lowers
     * *due_ns in events_arm. Only in the simulation, where one fiber reads both, is it called for events too.
     */
    void (*ready)(void *arg);
    void *ready_arg;
} wfi_fabric_options;

/* A piece of a message to send; region NULL: none, see wfi_fabric_limits.needs_local_regions. */
typedef struct wfi_iov {
    const void *data;
    size_t size;
    wfi_region *region;
} wfi_iov;

/* A piece of the memory that a receive may fill; region NULL if none is needed. */
typedef struct wfi_receive_buffer {
    void *data;
    size_t size;
    wfi_region *region;
} wfi_receive_buffer;

#define WFI_RECEIVE_BUFFERS_MAX 2 /* of one receive */
#define WFI_INJECT_AHEAD 7

typedef struct wfi_fabric_ops {
    const char *name;
    /* Identifies it on the wire: unique, never changes. 1 tcp, 2 verbs, 3 host, 4 to 10 those of ofi_rdm, 64 to 67
     * simulated ones. */
    uint8_t number;

    /*
     * Listens. WEFT_ERR_FABRIC, WEFT_ERR_UNREACHABLE (no route to `towards`), WEFT_ERR_INVALID (iface, port range),
     * WEFT_ERR_SYSTEM (descriptors), WEFT_ERR_MEMORY; *error gets the detail.
     */
    weft_status (*open)(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error);
    /* Close all lanes and regions first, and stop the threads that poll this fabric: close does not wake them. */
    void (*close)(wfi_fabric *fabric);
    const wfi_fabric_limits *(*limits)(const wfi_fabric *fabric);
    /* Writes this worker's address to out[WFI_ADDRESS_MAX]; returns its size. */
    size_t (*address)(const wfi_fabric *fabric, uint8_t *out);
    /* Optional; NULL: true. Whether a worker with this address can be reached from here at all. Needs no system call,
     * and has the same result each time. lane_open refuses an address for which it is false (WEFT_ERR_INVALID). */
    bool (*reaches)(const wfi_fabric *fabric, const uint8_t *address, size_t size);
    /* A peer's address for logs and errors; at most `room` bytes with the NUL. */
    void (*address_text)(const uint8_t *address, size_t size, char *out, size_t room);

    /* The network interface in use, for logs and errors; "" if it is not known. Lives as long as the fabric. */
    const char *(*iface)(const wfi_fabric *fabric);

    /*
     * Makes a lane to this address, which `connect` then connects. Post receives before connect: on verbs, a message
     * that finds no posted receive (receiver not ready, RNR) is repeated only after most of a second.
     * WEFT_ERR_INVALID (address), WEFT_ERR_FABRIC, WEFT_ERR_SYSTEM (descriptors), WEFT_ERR_MEMORY.
     */
    weft_status (*lane_open)(wfi_fabric *fabric, const uint8_t *address, size_t address_size, void *lane_user,
                             wfi_lane **out);
    /* Makes a lane to the peer that sent this request. Consumes the request in every case: if lane_take fails, the
     * request is refused. WEFT_ERR_FABRIC, WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY. */
    weft_status (*lane_take)(wfi_fabric *fabric, wfi_connect_request *request, void *lane_user, wfi_lane **out);
    /*
     * Connects a lane of lane_open, or accepts the request of a lane of lane_take; once for each lane. Never blocks; an
     * event follows. `data` at most WFI_CONNECT_DATA_MAX bytes. After WEFT_ERR_INVALID, _FABRIC or _MEMORY no event
     * follows, and the lane can only be closed. Closing a lane whose request was not accepted refuses the request.
     */
    weft_status (*connect)(wfi_lane *lane, const void *data, size_t data_size);
    /*
     * The system's error text if the last connect failed at once, valid forever; NULL: none. Only for the thread that
     * calls connect.
     */
    const char *(*connect_error)(const wfi_fabric *fabric);
    void (*reject)(wfi_fabric *fabric, wfi_connect_request *request); /* refuses the request, and consumes it */
    /* See OPERATIONS above. Frees the lane; its ops may still be reported later. */
    void (*lane_close)(wfi_lane *lane);
    /* Whether only the two ends of this connected lane, and processes that may change their memory, can write to it.
     * Both ends get the same answer. NULL: never. */
    bool (*is_private)(const wfi_lane *lane);

    /*
     * Errors of the next five functions. An operation that was refused is not reported.
     *   WEFT_ERR_AGAIN: as many operations are in flight as the lane or the fabric can hold: call again after a poll.
     *   WEFT_ERR_UNREACHABLE: the lane is broken.
     *   WEFT_ERR_STATE: send, inject, read, write: the lane is not connected yet. In the simulation, where connect was
     *     not called, WEFT_ERR_UNREACHABLE.
     *   WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE: see SIZES above; and a region that is missing (needs_local_regions).
     *   WEFT_ERR_MEMORY, WEFT_ERR_FABRIC: the system refused the operation.
     */
    /* The message fills one buffer after another; 1 to WFI_RECEIVE_BUFFERS_MAX of them. */
    weft_status (*post_recv)(wfi_lane *lane, wfi_fabric_op *op, const wfi_receive_buffer *buffers, size_t count);
    /* One piece, or two. */
    weft_status (*send)(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count);
    /*
     * Optional (limits.inject_max). Like send, but the data are copied and the operation is not reported, because a
     * completion costs more than a few bytes. 1 to inject_max bytes, without a region. When inject is called, the peer
     * must have received all messages of the lane (sent or injected) except at most WFI_INJECT_AHEAD - 1. If the
     * message is lost, the lane is reported as broken. WEFT_ERR_MEMORY: no room for the copy; send needs none.
     */
    weft_status (*inject)(wfi_lane *lane, const void *data, size_t size);
    weft_status (*read)(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region,
                        uint64_t remote, uint64_t key);
    /* Optional (limits.writes). Completes when the data are in the target's memory (acknowledged), not when they have
     * been sent. */
    weft_status (*write)(wfi_lane *lane, wfi_fabric_op *op, const void *local, size_t size, wfi_region *region,
                         uint64_t remote, uint64_t key);

    /*
     * Optional, like `wake`. Passes a descriptor of a file to the peer, with at most WFI_CONNECT_DATA_MAX bytes of
     * data. The caller keeps its own descriptor. The peer gets WFI_EVENT_PASSED, unless the lane ends before that.
     * Never blocks. WEFT_ERR_AGAIN: too many descriptors are in flight. WEFT_ERR_UNREACHABLE: the lane is not
     * connected.
     */
    weft_status (*pass)(wfi_lane *lane, int fd, const void *data, size_t size);
    /*
     * Ends the sleep of the peer's polling thread, if it sleeps: the caller has written to memory that the peer looks
     * at before it sleeps (after may_sleep). A thread that polls is not disturbed.
     */
    void (*wake)(wfi_lane *lane);

    /* WEFT_ERR_UNSUPPORTED: the kind of memory (all except WFI_MEMORY_HOST). WEFT_ERR_INVALID: no bytes, or no use; see
     * SIZES. WEFT_ERR_MEMORY: memory is out, or the process may lock no more of it (ulimit -l). Any other
     * error: the device refused. */
    weft_status (*region_open)(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out);
    void (*region_close)(wfi_fabric *fabric, wfi_region *region); /* NULL does nothing */

    /* Returns up to `room` completions; never blocks. */
    size_t (*poll)(wfi_fabric *fabric, wfi_completion *out, size_t room);
    /* Returns up to `room` events; never waits. */
    size_t (*poll_events)(wfi_fabric *fabric, wfi_event *out, size_t room);
    /*
     * Before sleeping until an event arrives, weft calls events_arm, then events_fd. events_arm returns false if there
     * may be events already: then poll_events is called instead of sleeping. It lowers *due_ns to the time
     * (CLOCK_MONOTONIC) when poll_events must be called even if the descriptor is not readable.
     */
    bool (*events_arm)(wfi_fabric *fabric, uint64_t *due_ns);
    /* A descriptor that is readable while events may be pending. -1: do not wait for a descriptor now (tcp while the
     * process is out of descriptors), or never. Then only *due_ns ends the sleep. */
    int (*events_fd)(wfi_fabric *fabric);
    /* A descriptor that is readable when there are completions. -1: this fabric never has one; while it has lanes, weft
     * polls it about every millisecond or more often, and when the fabric calls options->ready. */
    int (*wait_fd)(wfi_fabric *fabric);
    /* Called by the poller before a sleep. False if there may be completions already: poll again instead. Otherwise the
     * next completion makes wait_fd readable, or options->ready is called. */
    bool (*may_sleep)(wfi_fabric *fabric);
} wfi_fabric_ops;

struct wfi_fabric {
    const wfi_fabric_ops *ops;
};

extern const wfi_fabric_ops wfi_fabric_tcp;
extern const wfi_fabric_ops wfi_fabric_verbs;
extern const wfi_fabric_ops wfi_fabric_host;
extern const wfi_fabric_ops wfi_fabric_shm, wfi_fabric_rxm;
extern const wfi_fabric_ops wfi_fabric_efa, wfi_fabric_cxi, wfi_fabric_psm3, wfi_fabric_opx;

/* Finds a fabric by name ("tcp", "sim"); NULL: this build has no fabric of that name, or name is NULL. fabric.c. */
const wfi_fabric_ops *wfi_fabric_find(const char *name);
const wfi_fabric_ops *wfi_fabric_numbered(uint8_t number); /* NULL: this build has none */
/* The names of this build's fabrics, for errors: "tcp", "verbs" and others, with the quotes. */
const char *wfi_fabric_names(void);

#endif
