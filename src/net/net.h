/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - peers, messages, transfers of large payloads, timers and progress, for the layers above.
 *
 * LOCKING. One mutex, the agent's lock, guards everything in net and in rpc that more than one thread can see. Functions
 * marked [locked] are called with it held; upcalls are made with it held. With it held nothing blocks, nothing runs user
 * code, nothing waits for memory of a peer. What must happen outside (handlers, freeing of user memory) is queued with
 * wfi_net_defer and done by wfi_net_unlock after it let go.
 *
 * PEERS. A peer has two lanes: control (messages of at most WFI_MESSAGE_MAX) and bulk (remote reads and writes only), both
 * connected at first need. A lost lane is not a death: it is opened again, messages that were not acknowledged are sent
 * again (each has a sequence number, the receiver drops what it had), transfers go on with the chunks that are missing. If
 * it cannot be opened the store is told (wfi_rendezvous_suspect), whose verdict fails what is outstanding. Where the store
 * goes on hearing of a peer that we do not reach, the link between the two is cut: after WFI_REACH_BOUNDS bounds transfers fail,
 * and peer_unreachable is told; attempts go on (detector.c). Where only the bulk lane cannot be opened, from either side, transfers
 * fail after one bound.
 *
 * FLOW. A message consumes a credit, returned when the peer's net layer consumed it. Urgent ones (replies, cancels,
 * acknowledgements) go ahead of the others and have reserved credits. Several messages for one peer share a frame when the
 * queue is busy.
 */
#ifndef WFI_NET_H
#define WFI_NET_H

#include "job/link/rendezvous.h"
#include "mem/mem.h"
#include "progress/progress.h"

#include <weft/agent.h>

#define WFI_FRAME_BYTES 4096
#define WFI_MESSAGE_MAX 3968 /* head and parts of one message */
#define WFI_CHUNK_BYTES (1u << 20)
#define WFI_REACH_BOUNDS 3 /* of detection, without a sign of a peer that somebody needs: it is unreachable */

typedef struct wfi_net wfi_net;
typedef struct wfi_peer wfi_peer;

/* ---- Life ------------------------------------------------------------------------------------------------------ */

typedef struct wfi_upcalls { /* all [locked]; arg is the one given to open */
    /* One whole message; `bytes` are valid during the call. */
    void (*message)(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);
    /* Every message, transfer and exposure of it has been failed or withdrawn before this. */
    void (*peer_gone)(void *arg, wfi_peer *peer, weft_status why, const char *text);
    /* Optional. It lives, as far as the store knows, but for long nothing was heard of it here: what waits for it has to end, and may
     * be tried again. Its transfers have been failed; messages stay, and go when it can be reached. It comes again, once
     * every WFI_REACH_BOUNDS bounds, while somebody needs the peer. */
    void (*peer_unreachable)(void *arg, wfi_peer *peer, const char *text);
    /* A worker took a rank while the job was running: a new wfi_peer; the rank's former one, if any, went before. */
    void (*peer_joined)(void *arg, wfi_peer *peer);
    void (*self_gone)(void *arg, weft_status why, const char *text); /* evicted or store lost; all peers went before */
    void (*probe)(void *arg, uint64_t round);
    void (*terminated)(void *arg);
    /* Optional. Our rank is known; before any other upcall, and before any task of theirs. Not locked. */
    void (*joined)(void *arg);
} wfi_upcalls;

typedef struct wfi_net_options {
    const weft_agent_options *agent; /* resolved: environment applied, nothing zero that has a default */
    const wfi_upcalls *upcalls;
    void *arg;
    wfi_executor *executor; /* gets the idle hook (leader and followers) */
    weft_sim *sim;
    int store_fd;
    struct wfi_children *children; /* of a spawned job, watched while it opens; NULL: none */
    const wfi_cores *cores;        /* for net's own threads, while it is open; NULL: anywhere */
} wfi_net_options;

/* Random bytes: the system's, or, where `sim` is not NULL, from its seed, so that a run replays. */
void wfi_net_random(weft_sim *sim, void *out, size_t size);

/* Opens the fabric, joins, starts the threads. *out is set before the first upcall. Errors as weft_agent_open's. */
weft_status wfi_net_open(const wfi_net_options *options, wfi_net **out, weft_error **error);
/*
 * The end comes in two steps, so that the executor can be destroyed between them: while net still answers its idle hook,
 * and after the last thing that could give it work. Neither is [locked].
 * stop: closes lanes (fails what is outstanding with WEFT_ERR_CLOSED), says goodbye to the store, ends net's threads; no
 * upcall after it returns; locking, timers, defer and driver still work. close: stops if that was not done, and frees.
 */
void wfi_net_stop(wfi_net *net);
void wfi_net_close(wfi_net *net);
void wfi_net_forked(wfi_net *net); /* in a child of fork(): nothing there may read or send, or wait for what comes */

/* The net's progress (progress/progress.h), for those who hold a net. */
void wfi_net_lock(wfi_net *net);
void wfi_net_unlock(wfi_net *net); /* and does what was deferred */
wfi_mutex *wfi_net_mutex(wfi_net *net);
const wfi_clock *wfi_net_clock(const wfi_net *net);
uint64_t wfi_net_now(const wfi_net *net); /* [locked] */
wfi_driver *wfi_net_driver(wfi_net *net); /* for futures: a waiting thread takes over progress */
bool wfi_net_is_inline(wfi_net *net);     /* any thread */
void wfi_net_defer(wfi_net *net, wfi_task *task, wfi_defer_kind kind); /* [locked] */
bool wfi_net_is_released(const wfi_net *net);                          /* [locked] */
size_t wfi_net_progress(wfi_net *net, int64_t timeout_ms);
weft_status wfi_net_timer_set(wfi_net *net, wfi_timer *timer, uint64_t deadline_ns); /* [locked] */
void wfi_net_timer_clear(wfi_net *net, wfi_timer *timer);                            /* [locked] */
void wfi_net_stats(wfi_net *net, weft_stats *out); /* fills the counters that net keeps; [locked] */
void wfi_net_begin_closing(wfi_net *net);          /* [locked] */
void wfi_net_report_idle(wfi_net *net, uint64_t round, const wfi_idle_report *report); /* [locked] */

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

/*
 * A wfi_peer is one incarnation of a rank; a rank that is taken again gets a new one. The last one of each rank lives until the
 * net closes, a former one while somebody holds it. Whoever keeps a pointer to a peer beyond its peer_gone holds it, and so
 * never means another.
 */
wfi_peer *wfi_peer_ref(wfi_peer *peer);               /* [locked] */
void wfi_peer_unref(wfi_peer *peer);                  /* NULL is a no-op; [locked] */
int wfi_net_rank(const wfi_net *net);                 /* ours, known when open has returned */
int64_t wfi_net_death_timeout_ms(const wfi_net *net); /* the job's; < 0: silence is no death */
int wfi_net_world_size(const wfi_net *net);           /* elastic: the number of seats */
/* Living ones on this host, ourselves included, as far as is known. [locked] */
int wfi_net_members_here(const wfi_net *net);
/* Who holds the rank now, or held it last; NULL if nobody ever did. Of others it is [locked], and valid while the lock is held; of
 * ourselves neither. */
const wfi_member *wfi_net_member(const wfi_net *net, int rank);
/* The rank's present or last one; NULL for ourselves, no such rank, or a seat never taken. [locked] */
wfi_peer *wfi_net_peer(wfi_net *net, int rank);
int wfi_peer_rank(const wfi_peer *peer);
uint32_t wfi_peer_incarnation(const wfi_peer *peer);
const char *wfi_peer_name(const wfi_peer *peer); /* of it */
/* change: +1 or -1. While the sum is above 0 this worker depends on the peer, and hears of its death within the bound. Cheap:
 * net looks at the sums a few times within the bound, and tells the store what changed. [locked] */
void wfi_peer_lean(wfi_peer *peer, int change);
/* change: +1 or -1. While the sum is above 0 somebody waits for an answer of the peer's: where nothing is heard it is asked for a
 * sign, and peer_unreachable comes if there is none. [locked] */
void wfi_peer_await(wfi_peer *peer, int change);
bool wfi_peer_is_unreachable(const wfi_peer *peer); /* and was not heard since; [locked] */
/* For people, once a transfer has ended with WEFT_ERR_UNREACHABLE: the peer's address, and how the last attempt at a bulk lane failed.
 * Cut off at `room`. [locked] */
void wfi_peer_bulk_trouble(const wfi_peer *peer, char *out, size_t room);
/* The network interface in use, for traces; "" if unknown. Any thread. */
const char *wfi_net_interface(const wfi_net *net);
/* Bytes of messages, urgent ones too, that wait or are kept until the peer acknowledges them, and what was added. [locked] */
size_t wfi_peer_kept_bytes(const wfi_peer *peer);
/* Adds what is kept for the peer longer than a message; or takes it away again. [locked] */
void wfi_peer_keep(wfi_peer *peer, int64_t bytes);
/* How an incarnation ended whose rank was taken again: WEFT_ERR_PEER_LEFT, or WEFT_ERR_PEER_DEAD, also if it went before this worker
 * came, or if WFI_LEFT_MAX others of its rank have left since. [locked] */
#define WFI_LEFT_MAX 4
weft_status wfi_net_former_status(const wfi_net *net, int rank, uint32_t incarnation);
weft_status wfi_peer_status(const wfi_peer *peer); /* WEFT_OK, WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT; [locked] */

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/*
 * A message to send; embedded in its owner. head and parts stay valid and unchanged until done, which is called exactly
 * once, [locked]: WEFT_OK when the peer's net layer has it, else why it never will (WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY: for want
 * of descriptors or memory on our side no connection could be made, several times in a row).
 */
typedef struct wfi_message {
    wfi_list link;
    uint8_t type; /* the upper layer's, < 0xF0 */
    bool urgent;
    bool owed;  /* not urgent, since it stays behind what waits, but like those not refused by a full queue */
    bool lasts; /* where memory or descriptors are out it waits for some, however long: others depend on it */
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

/* WEFT_ERR_TOO_LARGE, WEFT_ERR_AGAIN (wfi_peer_kept_bytes has reached queue_limit_bytes, which one message may exceed; never for
 * urgent or owed ones: whoever sends these bounds them), or the peer's status; then done is
 * not called. [locked] */
weft_status wfi_net_send(wfi_net *net, wfi_peer *peer, wfi_message *message);
/* From within the message upcall: there is no memory to take this message. It comes again, later, with all that follow it.
 * [locked] */
void wfi_net_untake(wfi_net *net);
/* Whether every message to a living peer has arrived there, and no transfer is under way. [locked] */
bool wfi_net_is_flushed(const wfi_net *net);
/* Takes back one that has not left; true: done will not be called. [locked] */
bool wfi_net_unsend(wfi_net *net, wfi_peer *peer, wfi_message *message);

/* ---- Large payloads -------------------------------------------------------------------------------------------- */

/* A range that one peer may read or write for a while. Goes on the wire as address, key, size. */
typedef struct wfi_exposure {
    uint64_t address, key, size;
    void *region;         /* net's own */
    wfi_storage *storage; /* referenced and, for reading, read-pinned while exposed */
} wfi_exposure;

/* `data` lies in `storage`. access: WFI_REMOTE_READ or WFI_REMOTE_WRITE. [locked] */
weft_status wfi_net_expose(wfi_net *net, wfi_peer *peer, wfi_storage *storage, void *data, size_t size, unsigned access,
                           wfi_exposure *out);
/*
 * Ends `count` exposures. `quiet`: the peer has said that it is done with them. Otherwise the bulk lane is closed first,
 * so that nothing is read or written any more once this returns; other transfers on it resume on the next. [locked]
 */
void wfi_net_withdraw(wfi_net *net, wfi_peer *peer, wfi_exposure *exposures, size_t count, bool quiet);

typedef enum wfi_transfer_kind { WFI_PULL, WFI_PUSH } wfi_transfer_kind;

/*
 * A transfer of segments to or from one peer; embedded in its owner. Cut in chunks, a bounded window of them under way,
 * turns taken with the peer's other transfers. done is called exactly once, [locked], when no byte of local memory is or
 * will be touched: WEFT_OK (a push: all is in the peer's memory), WEFT_ERR_CANCELLED, WEFT_ERR_PEER_DEAD,
 * WEFT_ERR_UNREACHABLE, WEFT_ERR_PROTOCOL (the peer says that it does not offer that memory any more), WEFT_ERR_CLOSED, WEFT_ERR_SYSTEM and
 * WEFT_ERR_MEMORY (no lane, for want of descriptors or memory here).
 */
typedef struct wfi_transfer {
    wfi_transfer_kind kind;
    wfi_segment *segments; /* the owner's array, until done */
    size_t segment_count;
    void (*done)(struct wfi_transfer *transfer, weft_status status);
    void *net; /* net's own */
} wfi_transfer;

/* WEFT_ERR_MEMORY or the peer's status; then done is not called. [locked] */
weft_status wfi_net_transfer(wfi_net *net, wfi_peer *peer, wfi_transfer *transfer);
/* done follows, at once or soon. [locked] */
void wfi_net_transfer_cancel(wfi_net *net, wfi_transfer *transfer);

#endif
