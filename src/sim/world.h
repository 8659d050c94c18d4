/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - the simulation's own structs; only the files of this folder include it.
 *
 * LOCKING: none. A world and everything in it is used by one thread at a time (weft/sim.h says so), and fibers yield
 * only where they wait; nothing here waits except weft_sim_sleep.
 *
 * TIME. One heap of events, ordered by (virtual time, sequence number). Everything that takes time is an event. An
 * event that goes from one worker to another can be held: at a cut link, or before a paused worker. Events that must
 * stay in order are numbered on their wire and wait for those before them.
 *
 * MEMORY. An event is embedded in its object. Events are never removed from the heap: an event whose end was closed
 * does nothing when it fires. Heap room for events is reserved before they are made (wfi_sim_reserve), so that
 * scheduling cannot fail. A connection (sim_pair) and a channel are one block for both ends, freed when both ends are
 * released and no event is in flight.
 */
#ifndef WFI_SIM_WORLD_H
#define WFI_SIM_WORLD_H

#include "base/handle.h"
#include "base/list.h"
#include "base/map.h"
#include "fabric.h"
#include "sim/fiber.h"
#include "sim/sim.h"

#define SIM_RANK_MAX (1 << 20) /* ranks are below this */
#define SIM_MESSAGE_MAX ((size_t)1 << 20)
#define SIM_RMA_MAX ((size_t)1 << 30)
#define SIM_IOV_MAX 4
#define WFI_SIM_ADDRESS_BYTES (sizeof(int) + 2 * sizeof(uint32_t)) /* sim_address */

/* The kinds of events that the fingerprint distinguishes. */
typedef enum sim_kind {
    SIM_REQUEST = 1,
    SIM_ANSWER,
    SIM_READY,
    SIM_BYE,
    SIM_DEPART,
    SIM_MESSAGE,
    SIM_READ,
    SIM_READ_DONE,
    SIM_WRITE,
    SIM_WRITE_DONE,
    SIM_CHANNEL_OPEN,
    SIM_CHANNEL_MESSAGE,
    SIM_CHANNEL_FLUSH,
    SIM_CHANNEL_BYE,
    SIM_POLL,
    SIM_POLL_EVENTS,
    SIM_TURNS,
    SIM_SPAWN,
    SIM_END,
    SIM_KILL,
    SIM_PAUSE,
    SIM_RESUME,
    SIM_CUT,
    SIM_HEAL,
    SIM_RESET,
    SIM_WALL,
    SIM_UNHEARD,
    SIM_FABRIC_FAIL,
    SIM_FABRIC_REPAIR,
    SIM_FABRIC_CUT,
    SIM_FABRIC_HEAL,
    SIM_FABRIC_REFUSE,
    SIM_PASS,
} sim_kind;

/* ---- The kinds of fabrics (fabric.c) ---------------------------------------------------------------------------- */

#define SIM_FORMS 4

/*
 * The behaviour of a kind of fabric. A fabric that is `quiet` announces no break: packets are lost, and an end that
 * sends into the loss learns of it after unheard_ns. An end that sends nothing learns nothing.
 */
typedef struct sim_form {
    const wfi_fabric_ops *ops;
    wfi_fabric_limits limits;
    uint32_t number;        /* its index in wfi_sim_forms; part of addresses */
    bool registers;         /* every local range that an operation names must be registered */
    size_t regions_max;     /* open at a time; 0: any number */
    uint64_t key_mask;      /* of the keys of regions */
    bool quiet;             /* announces no break */
    bool closes_quietly;    /* announces no closed lane, except to a peer that sends something to it */
    uint64_t unheard_ns;    /* quiet: how long a packet may stay unacknowledged */
    uint64_t read_delay_ns; /* the most by which a read is delayed at random; 0: not at all */
} sim_form;

extern const sim_form wfi_sim_forms[SIM_FORMS];

typedef struct sim_address {
    int rank;
    uint32_t fabric; /* the number of the fabric at its rank, like a port */
    uint32_t form;   /* its number */
} sim_address;

_Static_assert(sizeof(sim_address) == WFI_SIM_ADDRESS_BYTES, "an address has no padding");

const sim_form *wfi_sim_form_find(const char *name); /* NULL: no simulated fabric has this name */

/* ---- Time (event.c) ---------------------------------------------------------------------------------------------- */

/* One direction of a connection: its bandwidth, and the order of its ordered events. */
typedef struct sim_wire {
    uint64_t busy_until_ns;   /* when the last byte handed over has left */
    uint64_t last_arrival_ns; /* of ordered events */
    uint64_t sent, arrived;   /* ordered events so far */
    wfi_list waiting;         /* events that came before an older one, by ordinal */
} sim_wire;

typedef struct sim_event {
    uint64_t time_ns, sequence;
    void (*fire)(weft_sim *sim, struct sim_event *event);
    void (*drop)(weft_sim *sim, struct sim_event *event); /* called instead of fire when the world ends */
    sim_wire *wire;                                       /* NULL: no order */
    uint64_t ordinal;                                     /* on its wire */
    int from, to;                                         /* to -1: happens at `from`, is never held */
    sim_kind kind;
    uint64_t size;        /* bytes, for bandwidth and fingerprint */
    const sim_form *form; /* the kind of fabric that sends it; NULL: none, and a cut of a fabric does not hold it */
    wfi_list link;        /* while held or waiting */
} sim_event;

weft_status wfi_sim_reserve(weft_sim *sim, size_t events);
void wfi_sim_release(weft_sim *sim, size_t events);
void wfi_sim_schedule(weft_sim *sim, sim_event *event, uint64_t time_ns);
void wfi_sim_wire_init(sim_wire *wire);
/* Returns the time when `size` bytes that are sent now have left the sender. Occupies the wire until then. */
uint64_t wfi_sim_departure(weft_sim *sim, sim_wire *wire, uint64_t size);
/* Sends what leaves at departure_ns: draws a latency, and keeps the order if the event has a wire. */
void wfi_sim_travel(weft_sim *sim, sim_event *event, uint64_t departure_ns);
uint64_t wfi_sim_next_event(const weft_sim *sim); /* time of the next event; WFI_NEVER */
void wfi_sim_fire_due(weft_sim *sim);             /* fires all events up to now */
void wfi_sim_let_go(weft_sim *sim, wfi_list *held);
void wfi_sim_drop_events(weft_sim *sim);
void wfi_sim_trace(weft_sim *sim, sim_kind kind, int a, int b, uint64_t size);

/* ---- Randomness (random.c) --------------------------------------------------------------------------------------- */

typedef struct sim_random {
    uint64_t state[4];
} sim_random;

void wfi_sim_random_seed(sim_random *random, uint64_t seed);
uint64_t wfi_sim_random_next(sim_random *random);

/* ---- The world (world.c) and its faults (fault.c) ---------------------------------------------------------------- */

typedef struct sim_fabric sim_fabric;

typedef struct sim_rank {
    int rank;
    bool paused;
    wfi_list held;                  /* arrived while paused */
    sim_fabric *listens[SIM_FORMS]; /* the open fabrics, by form; NULL: not open */
    bool failed[SIM_FORMS];         /* weft_sim_fabric_fail */
    bool refuses_memory[SIM_FORMS]; /* weft_sim_fabric_refuse_memory */
    uint32_t fabrics;               /* opened so far: a number is part of the address, like a port */
    wfi_list channels;              /* open ends */
    void (*accepted)(void *arg, wfi_sim_channel *channel);
    void *accepted_arg;
} sim_rank;

typedef struct sim_program {
    wfi_list link;
    weft_sim *sim;
    int rank;
    weft_sim_program run;
    void *arg;
} sim_program;

struct weft_sim {
    wfi_handle handle;
    wfi_clock clock;
    weft_sim_options options;
    uint64_t now_ns, trace, sequence;
    uint64_t channel_messages; /* that were sent */
    sim_random random;
    wfi_fibers *fibers;
    sim_event **heap;
    size_t heap_count, heap_capacity, reserved;
    sim_rank **ranks; /* by rank; NULL if it was never used */
    size_t rank_capacity;
    wfi_map cuts;        /* lists of held events, by pair of ranks */
    wfi_map fabric_cuts; /* lists of held events, by form, sender and target */
    wfi_map walls;       /* by the worker that connects and its target */
    wfi_list programs;   /* that have not ended */
    wfi_list pairs, channels, fabrics;
    wfi_list stock; /* small channel messages for use when memory is exhausted */
    void *stock_room;
    wfi_list ready;     /* fabrics whose `ready` is to be called */
    weft_status broken; /* memory was exhausted where no error can be returned: weft_sim_run returns it */
    bool running;
};

void wfi_sim_let_all_go(weft_sim *sim);

/* ---- Workers (rank.c) -------------------------------------------------------------------------------------------- */

sim_rank *wfi_sim_rank(weft_sim *sim, int rank); /* made at first use; NULL: bad rank or out of memory */
sim_rank *wfi_sim_rank_seen(const weft_sim *sim, int rank);
void wfi_sim_ranks_free(weft_sim *sim);
wfi_list *wfi_sim_cut_between(const weft_sim *sim, int a, int b); /* the held events, or NULL */
uint64_t wfi_sim_link_key(int a, int b);                          /* in the world's cuts */
wfi_list *wfi_sim_fabric_cut(const weft_sim *sim, const sim_form *form, int from,
                             int to);                                    /* the held events, or NULL */
uint64_t wfi_sim_fabric_cut_key(const sim_form *form, int from, int to); /* in the world's fabric_cuts */
bool wfi_sim_is_walled(const weft_sim *sim, int from, int to);
uint64_t wfi_sim_wall_key(int from, int to); /* in the world's walls */

/* ---- The fabric: fabric.c, cq.c, lane.c, packet.c, transfer.c, region.c ------------------------------------------ */

struct sim_fabric {
    wfi_fabric base;
    weft_sim *sim;
    const sim_form *form;
    sim_rank *rank;
    uint32_t number;
    void (*ready)(void *arg);
    void *ready_arg;
    wfi_list link, ready_link;
    wfi_list ends;        /* of lanes and of requests that wait for an answer */
    wfi_list completions; /* sim_op, not polled yet */
    wfi_list notices;     /* sim_notice, not polled yet */
    wfi_map regions;      /* sim_region, by key */
    sim_fabric *next_grave;
};

typedef struct sim_region {
    wfi_region base;
    uint8_t *data;
    size_t size;
    unsigned access;
} sim_region;

typedef struct sim_notice {
    wfi_list link;
    wfi_event_kind kind;
    struct sim_end *end;
} sim_notice;

typedef enum sim_state {
    SIM_NONE,       /* before connect; the acceptor's end before the request arrived */
    SIM_REQUESTED,  /* the acceptor's end before connect */
    SIM_CONNECTING, /* connect was called */
    SIM_OPEN,
    SIM_BROKEN, /* a CLOSED event tells or told; its owner has not released it */
    SIM_CLOSED, /* released */
} sim_state;

/* One end of a connection: the target of wfi_lane. */
typedef struct sim_end {
    struct sim_pair *pair;
    sim_fabric *fabric; /* NULL once closed */
    int rank, index;
    sim_state state;
    void *user;
    weft_status why; /* BROKEN */
    bool said_bye;
    bool watched;                       /* `unheard_timer` is scheduled */
    size_t unheard;                     /* quiet fabrics: packets that were sent and not acknowledged */
    uint64_t heard, heard_at_timer;     /* packets that arrived so far; `heard` when `unheard_timer` was scheduled */
    uint8_t data[WFI_CONNECT_DATA_MAX]; /* sent by this end */
    size_t data_size;
    sim_wire wire; /* away from this end */
    sim_event bye, unheard_timer;
    sim_notice up, down; /* up: REQUEST, then CONNECTED */
    wfi_list link;       /* in the fabric */
    wfi_list receives;   /* sim_op, posted */
    wfi_list sending;    /* sim_op, under way */
    wfi_list arrived;    /* sim_packet, for which no receive was posted */
    wfi_list passed;     /* sim_passed.link, of which some have been reported */
} sim_end;

typedef struct sim_pair {
    wfi_list link;
    size_t references; /* ends that are owned, and events in flight */
    weft_sim *sim;
    const sim_form *form;
    uint32_t number; /* number of the fabric that the request goes to */
    bool severed;    /* nothing arrives, and no end learns of it */
    sim_event hello; /* the request, then the answer, then the third step */
    sim_end ends[2]; /* the connecting end, then the accepting end */
} sim_pair;

/* The provider's part of a wfi_fabric_op. */
typedef struct sim_op {
    wfi_list link;
    weft_status status;
    size_t size; /* of the first buffer; later the bytes transferred */
    uint8_t *data;
    size_t more_size; /* of the second buffer */
    uint8_t *more;
    struct sim_packet *packet;
} sim_op;

enum { SIM_PAIR_EVENTS = 5 }; /* hello, and of each end bye and unheard_timer */

/* A message, read or write in progress. */
typedef struct sim_packet {
    sim_event event;
    sim_pair *pair;
    sim_end *from, *to;
    sim_op *op; /* NULL: no operation waits for it */
    sim_kind kind;
    bool departed;
    bool unheard;     /* counted in from->unheard */
    uint8_t *local;   /* the initiator's memory; of a message: a copy, once it has left */
    uint8_t *copy;    /* freed with the packet */
    uint8_t *landing; /* the target's memory, of a write that has begun */
    uint64_t remote, key;
    size_t size;
    wfi_iov iov[SIM_IOV_MAX];
    size_t iov_count;
} sim_packet;

_Static_assert(sizeof(sim_op) <= sizeof(((wfi_fabric_op *)0)->reserved), "sim_op fits what an operation reserves");

/* A descriptor that is passed to the other end of a connection. */
typedef struct sim_passed {
    sim_event event;
    sim_pair *pair;
    sim_notice notice; /* of the end that gets it */
    wfi_list link;     /* in its `passed` */
    int fd;            /* -1: reported */
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t size;
} sim_passed;

static inline bool wfi_sim_end_is_live(const sim_end *end)
{
    return end->state == SIM_OPEN || end->state == SIM_CONNECTING;
}

static inline sim_packet *wfi_sim_packet_of(sim_event *event)
{
    return wfi_container_of(event, sim_packet, event);
}

/* packet.c */
void wfi_sim_pair_unref(sim_pair *pair);
void wfi_sim_packet_drop(weft_sim *sim, sim_event *event); /* it has ended; also used as sim_event.drop */
/*
 * Fails the end's operations in progress; packets that have left continue without touching its memory. Drops what it
 * did not receive.
 */
void wfi_sim_end_flush(sim_end *end, weft_status status);

void wfi_sim_fabric_kill(sim_fabric *fabric);
void wfi_sim_fabric_free(sim_fabric *fabric);
void wfi_sim_fabric_abandon(sim_fabric *fabric); /* the world ends, and its worker has not closed it */

/* cq.c */
void wfi_sim_fabric_wake(sim_fabric *fabric); /* something became pollable */
void wfi_sim_complete(sim_fabric *fabric, sim_op *op, weft_status status, size_t size);
size_t wfi_sim_poll(wfi_fabric *fabric, wfi_completion *out, size_t room);
size_t wfi_sim_poll_events(wfi_fabric *fabric, wfi_event *out, size_t room);
bool wfi_sim_events_arm(wfi_fabric *fabric, uint64_t *due_ns);
int wfi_sim_no_fd(wfi_fabric *fabric); /* wait_fd and events_fd */
bool wfi_sim_may_sleep(wfi_fabric *fabric);

weft_status wfi_sim_lane_open(wfi_fabric *fabric, const uint8_t *address, size_t address_size, void *lane_user,
                              wfi_lane **out);
weft_status wfi_sim_lane_take(wfi_fabric *fabric, wfi_connect_request *request, void *lane_user, wfi_lane **out);
weft_status wfi_sim_connect(wfi_lane *lane, const void *data, size_t data_size);
void wfi_sim_reject(wfi_fabric *fabric, wfi_connect_request *request);
void wfi_sim_lane_close(wfi_lane *lane);
void wfi_sim_end_break(sim_end *end, weft_status why); /* a live end learns that the connection has ended */
void wfi_sim_end_close(sim_end *end);                  /* the owner releases it */
void wfi_sim_end_bye(sim_end *end);                    /* tells the other end, once */

/* pass.c. drop: of an end that is closed or broken */
weft_status wfi_sim_pass(wfi_lane *lane, int fd, const void *data, size_t size);
void wfi_sim_wake(wfi_lane *lane);
void wfi_sim_passed_drop(sim_end *end);

/* unheard.c: for the ends of quiet fabrics; does nothing for the others */
void wfi_sim_packet_left(sim_packet *packet);
void wfi_sim_packet_heard(sim_packet *packet);
/* Whether the packet is lost, because its connection was severed or its target has closed its end. */
bool wfi_sim_packet_is_lost(sim_packet *packet);
void wfi_sim_fabric_sever(sim_fabric *fabric); /* all its connections */

weft_status wfi_sim_post_recv(wfi_lane *lane, wfi_fabric_op *op, const wfi_receive_buffer *buffers, size_t count);
weft_status wfi_sim_send(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count);
weft_status wfi_sim_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region,
                         uint64_t remote, uint64_t key);
weft_status wfi_sim_write(wfi_lane *lane, wfi_fabric_op *op, const void *local, size_t size, wfi_region *region,
                          uint64_t remote, uint64_t key);

weft_status wfi_sim_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out);
void wfi_sim_region_close(wfi_fabric *fabric, wfi_region *region);
/* The memory of a remote access, or NULL: no such key, out of bounds, or access not allowed. */
uint8_t *wfi_sim_region_find(const sim_fabric *fabric, uint64_t key, uint64_t remote, size_t size, unsigned access);
/* Whether a local operation may use that memory. `access`: WFI_LOCAL_READ or WFI_LOCAL_WRITE. */
bool wfi_sim_region_covers(const sim_fabric *fabric, const wfi_region *region, const void *data, size_t size,
                           unsigned access);
void wfi_sim_regions_free(sim_fabric *fabric);

/* ---- Channels (channel.c) ---------------------------------------------------------------------------------------- */

/* Like a kernel's socket buffers: room for some small messages, even if the process's memory is exhausted. */
weft_status wfi_sim_stock_init(weft_sim *sim);
void wfi_sim_stock_fini(weft_sim *sim);
void wfi_sim_channels_kill(sim_rank *rank); /* all ends of that worker */

#endif
