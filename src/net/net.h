/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - a worker among its peers: messages and large payloads to them, who is there, timers and progress, for the
 * layers above.
 *
 * WHAT IT OFFERS. wfi_net_open joins the job and gives a wfi_net: a progress (progress/progress.h: the lock, timers,
 * threads), a transport (net/channel/channel.h: the open fabric, peers), and the link to the store. Messages are in
 * net/message/message.h, large payloads in net/bulk/bulk.h; this header has who is there (membership.c) and who can be
 * reached (detector.c).
 *
 * LOCKING. One mutex, the agent's lock, guards everything in net and in rpc that more than one thread can see.
 * Functions marked [locked] are called with it held; upcalls are made with it held. With it held nothing blocks,
 * nothing runs user code, nothing waits for memory of a peer. What must happen without it (handlers, freeing of user
 * memory) is queued with wfi_net_defer, and done by wfi_net_unlock after it has released the lock.
 *
 * PEERS. A peer has two channels: control (messages of at most WFI_MESSAGE_MAX) and bulk (remote reads and writes
 * only). Each is connected when it is first needed.
 *   - A connection that breaks is not a death: the channel opens another. The hello of the new one says how many
 *     messages its writer has received, and the other side sends again what comes after them. Transfers go on with
 *     the chunks that are missing.
 *   - If no connection can be opened the store is told (wfi_rendezvous_suspect). If it declares the peer dead,
 *     everything outstanding there fails.
 *   - If the store still hears a peer that is silent here for WFI_REACH_BOUNDS times death_timeout_ms, the peer's
 *     transfers fail and peer_unreachable is called. Attempts to connect go on (detector.c).
 *   - If only the bulk channel cannot be connected, from either side, its transfers fail after death_timeout_ms.
 * The bound, in the comments of this folder, is death_timeout_ms: the time within which a death is noticed.
 */
#ifndef WFI_NET_H
#define WFI_NET_H

#include "job/link/rendezvous.h"
#include "net/bulk/bulk.h"

#define WFI_REACH_BOUNDS 3 /* a peer that is needed and silent for so many bounds is unreachable */

/* ---- Life ------------------------------------------------------------------------------------------------------ */

typedef struct wfi_net_options {
    const weft_agent_options *agent; /* resolved: environment applied, nothing zero that has a default */
    const wfi_upcalls *upcalls;
    void *arg;
    wfi_executor *executor; /* gets the idle hook, in which one of its workers, the leader, reads the network */
    weft_sim *sim;
    int store_fd;
    struct wfi_processes *processes; /* of a spawned job, watched while it opens; NULL: none */
    const wfi_cores *cores;          /* for net's own threads, while it is open; NULL: anywhere */
} wfi_net_options;

typedef struct wfi_net {
    wfi_progress progress;
    wfi_transport transport;
    wfi_rendezvous *rendezvous;    /* (constant) once `open`; not used once `closing`: it goes before the threads do */
    wfi_source link_source;        /* of progress: the store's link, where there are no threads */
    int link_fd;                   /* [token] what its news can be read from; -1: nothing */
    wfi_store_counts store_counts; /* as last asked, if the store is ours */

    bool open;                                      /* the table is here; upcalls may go up */
    bool stopped;                                   /* wfi_net_stop is through */
    weft_status gone;                               /* why we are out ourselves; WEFT_OK */
    weft_status verdict;                            /* about ourselves, told while opening */
    wfi_list early;                                 /* what the store told while we were opening */
    uint64_t sync_wanted, sync_sent, sync_answered; /* numbers of syncs: the last one that somebody wants, ... */
    wfi_list interest_changed; /* peers about which the store may have to be told, when interest_timer fires */
    wfi_timer interest_timer;
} wfi_net;

/* Opens the fabric, joins, starts the threads. *out is set before the first upcall. Errors as weft_agent_open's. */
weft_status wfi_net_open(const wfi_net_options *options, wfi_net **out, weft_error **error);
/*
 * Net ends in two steps, and the executor is destroyed between them: after stop nothing gives it work any more, and
 * before close net still answers its idle hook. Neither is [locked].
 * stop: closes all connections (what is outstanding fails with WEFT_ERR_CLOSED), says goodbye to the store, ends net's
 * threads. No upcall is made after it returns; locking, timers, defer and driver still work.
 * close: stops, if that was not done, and frees.
 */
void wfi_net_stop(wfi_net *net);
void wfi_net_close(wfi_net *net);
void wfi_net_forked(wfi_net *net); /* in a child of fork(): nothing there may read or send, or wait for what comes */

/* ---- Its progress ---------------------------------------------------------------------------------------------- */

static inline void wfi_net_lock(wfi_net *net)
{
    wfi_progress_lock(&net->progress);
}

static inline void wfi_net_unlock(wfi_net *net) /* and does what was deferred */
{
    wfi_progress_unlock(&net->progress);
}

static inline wfi_mutex *wfi_net_mutex(wfi_net *net)
{
    return &net->progress.lock;
}

static inline const wfi_clock *wfi_net_clock(const wfi_net *net)
{
    return net->progress.clock;
}

static inline uint64_t wfi_net_now(const wfi_net *net) /* [locked] */
{
    return wfi_progress_now(&net->progress);
}

static inline wfi_driver *wfi_net_driver(wfi_net *net) /* for futures: a waiting thread takes over progress */
{
    return &net->progress.driver;
}

static inline bool wfi_net_is_inline(wfi_net *net) /* any thread */
{
    return wfi_progress_is_inline(&net->progress);
}

static inline void wfi_net_defer(wfi_net *net, wfi_task *task, wfi_defer_kind kind) /* [locked] */
{
    wfi_progress_defer(&net->progress, task, kind);
}

/* Whether every release that was deferred has been done. One may drop a remote reference, and that sends a message.
 * [locked] */
static inline bool wfi_net_is_released(const wfi_net *net)
{
    return wfi_progress_is_released(&net->progress);
}

static inline size_t wfi_net_progress(wfi_net *net, int64_t timeout_ms)
{
    return wfi_progress_run(&net->progress, timeout_ms);
}

/* The same for the program: it does not wait if weft_agent_wake was called. */
static inline size_t wfi_net_progress_of_program(wfi_net *net, int64_t timeout_ms)
{
    return wfi_progress_run_for(&net->progress, timeout_ms, true);
}

/* weft_agent_wake, and its end: returns whether there was an effect. */
static inline void wfi_net_call_program(wfi_net *net)
{
    wfi_progress_call_program(&net->progress);
}

static inline bool wfi_net_clear_call(wfi_net *net)
{
    return atomic_exchange(&net->progress.driver.woken, false);
}

static inline weft_status wfi_net_timer_set(wfi_net *net, wfi_timer *timer, uint64_t deadline_ns) /* [locked] */
{
    return wfi_timer_set(&net->progress, timer, deadline_ns);
}

static inline void wfi_net_timer_clear(wfi_net *net, wfi_timer *timer) /* [locked] */
{
    wfi_timer_clear(&net->progress, timer);
}

/* ---- Who is there ---------------------------------------------------------------------------------------------- */

static inline int wfi_net_rank(const wfi_net *net) /* ours, known when open has returned */
{
    return net->transport.rank;
}

static inline int wfi_net_world_size(const wfi_net *net) /* elastic: the number of seats */
{
    return net->transport.world_size;
}

static inline int64_t wfi_net_death_timeout_ms(const wfi_net *net) /* the job's; < 0: silence is no death */
{
    return net->transport.death_timeout_ms;
}

/* The network interface in use, for traces; "" if unknown. Any thread. */
static inline const char *wfi_net_interface(const wfi_net *net)
{
    return net->transport.ops->iface(net->transport.fabric);
}

/* Whether two ranks are held, or were held last, by processes of one host, as far as can be told. [locked] */
bool wfi_net_same_host(const wfi_net *net, int a, int b);
/* Living ones on this host, ourselves included, as far as is known. [locked] */
int wfi_net_members_here(const wfi_net *net);
/* Who holds the rank now, or held it last; NULL if nobody ever did. Of others it is [locked], and valid while the lock
 * is held; of ourselves neither. */
const wfi_member *wfi_net_member(const wfi_net *net, int rank);
/* wfi_peer_at, wfi_peer_former_status: [locked] */
static inline wfi_peer *wfi_net_peer(const wfi_net *net, int rank)
{
    return wfi_peer_at(&net->transport, rank);
}

static inline weft_status wfi_net_former_status(const wfi_net *net, int rank, uint32_t incarnation)
{
    return wfi_peer_former_status(&net->transport, rank, incarnation);
}

void wfi_net_stats(wfi_net *net, weft_stats *out); /* fills the counters that net keeps; [locked] */
/* Whether every message to a living peer has arrived there, and no transfer is under way. [locked] */
bool wfi_net_is_flushed(const wfi_net *net);
/* From within the message upcall: there is no memory to take this message. It comes again, later, with all that follow
 * it. [locked] */
void wfi_net_untake(wfi_net *net);

/* Starts a sync, a round trip to the store, and returns its number. Once wfi_net_is_synced, which the upcall `synced`
 * reports, this worker knows all that the store knew when wfi_net_sync was called. At most one sync is under way; the
 * next one is sent when that is answered, for all who ask until then. [locked] */
uint64_t wfi_net_sync(wfi_net *net);
static inline bool wfi_net_is_synced(const wfi_net *net, uint64_t number)
{
    return net->sync_answered >= number;
}

void wfi_net_leave(wfi_net *net); /* tells the others that this worker leaves the elastic job. [locked] */
void wfi_net_end_job(wfi_net *net, const char *why); /* we are rank 0: tells all that the job ends. [locked] */
/* Asks the store which workers the end of the job waits for. The upcall `awaited` follows, unless a connection breaks.
 * [locked] */
void wfi_net_await(wfi_net *net);
void wfi_net_begin_closing(wfi_net *net);                                             /* [locked] */
void wfi_net_report_idle(wfi_net *net, uint64_t wave, const wfi_idle_report *report); /* [locked] */

/* ---- Who can be reached: detector.c ---------------------------------------------------------------------------- */

/* change: +1 or -1. While the sum is above 0 this worker has interest in the peer, and hears of its death within the
 * bound. Cheap: net looks at the sums a few times within the bound, and tells the store what changed. [locked] */
void wfi_peer_interest(wfi_peer *peer, int change);
/* The same for a caller that also waits for an answer of the peer's, for which `bytes` are kept (wfi_peer_kept_bytes).
 * While somebody waits so and the peer is silent, it is pinged; peer_unreachable is called if that brings nothing.
 * [locked] */
void wfi_peer_depend(wfi_peer *peer, int change, size_t bytes);
/* For people, once a transfer has ended with WEFT_ERR_UNREACHABLE: the peer's address, and how the last attempt to
 * connect the bulk channel failed. Cut off at `room`. [locked] */
void wfi_peer_bulk_trouble(const wfi_peer *peer, char *out, size_t room);

/* ---- For the files of this folder ------------------------------------------------------------------------------- */

/* A peer, with what each folder keeps of it. */
typedef struct wfi_whole_peer {
    wfi_peer peer;
    wfi_control control;
    wfi_bulk bulk;
    /* detector.c's */
    int interest;           /* sum of the changes of wfi_peer_interest */
    bool interest_told;     /* what the store was told last: whether the sum is above 0 */
    wfi_list interest_link; /* in wfi_net.interest_changed: the store may have to be told otherwise */
    int awaited;            /* how many wait for an answer of the peer's */
    uint64_t suspected_ns;  /* when the store was last asked to look */
    wfi_control_message ping;
    uint64_t pinged_ns;
} wfi_whole_peer;

static inline wfi_net *wfi_net_of(const wfi_peer *peer)
{
    return wfi_container_of(peer->transport, wfi_net, transport);
}

/* membership.c */
weft_status wfi_peer_create(wfi_net *net,
                            const wfi_member *member); /* it takes its seat, from one that has ended. [locked] */
void wfi_peer_fail(wfi_peer *peer, weft_status why);   /* closes its channels, fails what is outstanding. [locked] */
extern const wfi_rendezvous_events wfi_member_events;  /* but for `arg`, the wfi_net */
void wfi_member_catch_up(wfi_net *net);                /* what was told while opening. [locked] */
void wfi_member_sync(wfi_net *net);   /* sends the sync that is wanted, if none is under way. [locked] */
void wfi_member_forget(wfi_net *net); /* what was told, if opening failed */

/* detector.c; [locked] */
extern const wfi_upcalls wfi_detector_upcalls; /* of its client: takes WFI_CONTROL_PING */
void wfi_detector_init(wfi_whole_peer *whole);
void wfi_detector_fail(wfi_whole_peer *whole);
void wfi_peer_suspect(wfi_peer *peer, const char *why);
void wfi_peer_ping(wfi_peer *peer);
void wfi_interest_due(wfi_timer *timer);

#endif
