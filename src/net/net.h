/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - combines channels, messages, transfers, membership, timers and progress for the layers above.
 *
 * PARTS. wfi_net_open joins the job and gives a wfi_net. It contains a progress (progress/progress.h: the lock, timers,
 * threads), a transport (net/channel/channel.h: the open fabrics, peers), and the link to the store. Messages are in
 * net/message/message.h, large payloads in net/bulk/bulk.h. This header has the membership (membership.c) and the
 * detection of unreachable peers (failure_detector.c).
 *
 * LOCK. One mutex, the agent's lock, guards everything in net and in rpc that several threads use. Functions marked
 * [locked] are called with it held, and so are upcalls. Code that holds it never blocks, runs no user code, and waits
 * for no memory of a peer. Work that must be done without it (handlers, freeing of user memory) is queued with
 * wfi_net_defer. wfi_net_unlock does that work after it has released the lock.
 *
 * PEERS. A peer has two channels: control (messages of at most WFI_MESSAGE_MAX) and bulk (remote reads and writes
 * only). Each is connected when it is first needed.
 *   - A broken connection is not a death: the channel opens another one. The hello of the new one says how many
 *     messages its sender has received, and the other side sends the later ones again. Transfers continue with the
 *     missing chunks.
 *   - If no connection can be opened, a suspicion is sent to the store (wfi_rendezvous_suspect). If the store declares
 *     the peer dead, everything outstanding there fails.
 *   - If the store still hears a peer that is silent here for WFI_REACH_BOUNDS times death_timeout_ms, the peer's
 *     transfers fail and peer_unreachable is called. Attempts to connect continue (failure_detector.c).
 *   - If only the bulk channel cannot be connected, from either side, its transfers fail after death_timeout_ms.
 * In the comments of this folder "the bound" is death_timeout_ms: the time within which a death is detected.
 */
#ifndef WFI_NET_H
#define WFI_NET_H

#include "job/link/rendezvous.h"
#include "net/bulk/bulk.h"

#define WFI_REACH_BOUNDS 3 /* a needed peer that is silent for this many bounds is unreachable */

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

typedef struct wfi_net_options {
    const weft_agent_options *agent; /* resolved: environment and defaults applied */
    const wfi_upcalls *upcalls;
    void *arg;
    wfi_executor *executor; /* gets the idle hook, in which one of its threads, the leader, polls the network */
    weft_sim *sim;
    int store_fd;
    int port_count;                  /* as in wfi_rendezvous_options */
    struct wfi_processes *processes; /* of a spawned job, watched while it opens; NULL: none */
    bool is_spawned;                 /* weft_job_open started this process (job/link/rendezvous.h) */
    const wfi_cores *cores;          /* for net's own threads; valid while net is open; NULL: any cores */
} wfi_net_options;

typedef struct wfi_net {
    wfi_progress progress;
    wfi_transport transport;
    wfi_rendezvous
        *rendezvous;        /* (constant) after opening; not used after `closing`: it is closed before the threads */
    wfi_source link_source; /* of progress: the link to the store, if there are no threads */
    int link_fd;            /* [token] becomes readable when the store sends; -1: none */
    uint64_t link_due_ns;   /* [token] when the link must be pumped again */
    wfi_store_counts store_counts; /* the last counts of the store, if it is in this process */

    bool open;                                      /* the table is complete; upcalls may be made */
    bool stopped;                                   /* wfi_net_stop has finished */
    weft_status gone;                               /* why this worker is out of the job; otherwise WEFT_OK */
    weft_status verdict;                            /* the same, if it was received while opening */
    wfi_list early;                                 /* events that the store sent while opening */
    bool follows_ending;                            /* the store tells which workers close or serve */
    uint64_t sync_wanted, sync_sent, sync_answered; /* numbers of the last syncs that were wanted, sent, answered */
    wfi_list interest_changed; /* peers about which the store may have to be told, when interest_timer fires */
    wfi_timer interest_timer;
} wfi_net;

/* Opens the fabrics, joins, starts the threads. *out is set before the first upcall. Errors as weft_agent_open's. */
weft_status wfi_net_open(const wfi_net_options *options, wfi_net **out, weft_error **error);
/*
 * Net ends in two steps, and the executor is destroyed between them: after stop net gives it no work, and before close
 * net still answers its idle hook. Neither is [locked].
 * stop: closes all connections (outstanding operations fail with WEFT_ERR_CLOSED), sends GOODBYE to the store, ends
 * net's threads. No upcall is made after it returns; locking, timers, defer and driver still work.
 * close: stops, if that was not done, and frees.
 */
void wfi_net_stop(wfi_net *net);
void wfi_net_close(wfi_net *net);
void wfi_net_forked(wfi_net *net); /* in a child of fork(2): makes reading, sending and waiting there impossible */

/* ---- Progress -------------------------------------------------------------------------------------------------- */

static inline void wfi_net_lock(wfi_net *net)
{
    wfi_progress_lock(&net->progress);
}

static inline void wfi_net_unlock(wfi_net *net) /* and does the deferred work */
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

static inline uint64_t wfi_net_now(wfi_net *net) /* [locked] */
{
    return wfi_progress_now(&net->progress);
}

static inline wfi_driver *wfi_net_driver(wfi_net *net) /* for futures: a waiting thread makes progress */
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

/* Whether all deferred releases have been done. A release may drop a remote reference, which sends a message.
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

/* weft_agent_wake, and weft_agent_clear_wake: returns whether a wake-up was pending. */
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

/* ---- Membership ------------------------------------------------------------------------------------------------ */

static inline int wfi_net_rank(const wfi_net *net) /* of this worker; known when open has returned */
{
    return net->transport.rank;
}

static inline int wfi_net_world_size(const wfi_net *net) /* of an elastic job: the number of ranks */
{
    return net->transport.world_size;
}

static inline int64_t wfi_net_death_timeout_ms(const wfi_net *net) /* the job's; < 0: no deaths are declared */
{
    return net->transport.death_timeout_ms;
}

/* The network interface of the preferred fabric, for traces; "" if it is not known. Any thread. */
static inline const char *wfi_net_interface(const wfi_net *net)
{
    return net->transport.fabrics[0].ops->iface(net->transport.fabrics[0].fabric);
}

/* Whether memory must be registered with one of the fabrics before it is exposed: wfi_prepared. Any thread. */
static inline bool wfi_net_registers(const wfi_net *net)
{
    for (size_t i = 0; i < net->transport.fabric_count; i++) {
        if (!net->transport.fabrics[i].limits->keys_per_transfer)
            return true;
    }
    return false;
}

/* Whether the present or last workers of two ranks are on one host, as far as is known (wfi_member.machine).
 * [locked] */
bool wfi_net_same_host(const wfi_net *net, int a, int b);
/* Whether workers of its host can pass descriptors to the rank's worker. All workers come to the same result, because
 * it follows from the addresses that the worker has published. [locked] */
bool wfi_net_can_pass(const wfi_net *net, int rank);
/* The number of living workers on this host, including this one, as far as is known. [locked] */
int wfi_net_members_here(const wfi_net *net);
/* The present or last worker of the rank; NULL if there was none. For other ranks [locked], and valid while the lock is
 * held. For this worker's own rank neither applies. */
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
/* Whether all messages to living, reachable peers have arrived, and no transfer with them is in flight. [locked] */
bool wfi_net_is_flushed(const wfi_net *net);
/* Called within the message upcall if there is no memory for the message. The message, and all later ones, will be
 * received again. [locked] */
void wfi_net_untake(wfi_net *net);

/* Starts a sync, a round trip to the store, and returns its number. When wfi_net_is_synced (the upcall `synced` reports
 * it), this worker knows all that the store knew when wfi_net_sync was called. At most one sync is in flight. Calls
 * made meanwhile share the next one, which is sent when that is answered. [locked] */
uint64_t wfi_net_sync(wfi_net *net);
static inline bool wfi_net_is_synced(const wfi_net *net, uint64_t number)
{
    return net->sync_answered >= number;
}

void wfi_net_leave(wfi_net *net); /* tells the others that this worker leaves the elastic job. [locked] */
void wfi_net_end_job(wfi_net *net, const char *why); /* only on rank 0: tells all that the job ends. [locked] */
/* Asks the store which workers the end of the job waits for. The upcall `awaited` gives the answer; it is lost if the
 * connection breaks. [locked] */
void wfi_net_await(wfi_net *net);
void wfi_net_begin_closing(wfi_net *net); /* [locked] */
/* This worker serves until the upcall `served` of the same number; 0: it no longer does. [locked] */
void wfi_net_serve(wfi_net *net, uint64_t number);
/* From now on wfi_peer_is_ending is known, and peer_ending is called when it changes. [locked] */
void wfi_net_follow_ending(wfi_net *net);
void wfi_net_report_idle(wfi_net *net, uint64_t wave, const wfi_idle_report *report); /* [locked] */

/* ---- Unreachable peers: failure_detector.c --------------------------------------------------------------------- */

/* `change` is +1 or -1. While the sum is above 0 this worker has interest in the peer, and learns of its death within
 * the bound. Cheap: the store is told of changes only a few times in a bound. [locked] */
void wfi_peer_interest(wfi_peer *peer, int change);
/* The same for a caller that also waits for an answer of the peer, for which `bytes` are kept (wfi_peer_kept_bytes).
 * While a caller waits and the peer is silent, the peer is pinged; if it stays silent, peer_unreachable is called.
 * [locked] */
void wfi_peer_depend(wfi_peer *peer, int change, size_t bytes);
/* Text for an error of a call that waited for the peer: "; the last attempt to connect to 10.0.0.2:4711: REASON" and
 * what to do; "" if the peer is connected. Cut off at `room`. [locked] */
void wfi_peer_control_problem(const wfi_peer *peer, char *out, size_t room);
/* Text for an error after a transfer has ended with WEFT_ERR_UNREACHABLE: the peer's address, and why the last attempt
 * to connect the bulk channel failed. Cut off at `room`. [locked] */
void wfi_peer_bulk_problem(const wfi_peer *peer, char *out, size_t room);
/* Rank and name of a peer that has ended, and why; NULL: memory was out. The peer owns it. [locked] */
const char *wfi_peer_gone_text(const wfi_peer *peer);
/* Why a transfer to or from the peer failed, for an error: about memory, the connection or descriptors. "" if the
 * status says it all. `transfer` is NULL if none was started. Cut off at `room`. [locked] */
void wfi_transfer_problem(const wfi_transfer *transfer, const wfi_peer *peer, weft_status status, char *out,
                          size_t room);

/* ---- For the files of this folder ------------------------------------------------------------------------------- */

/* A peer, with the data of each folder. */
typedef struct wfi_whole_peer {
    wfi_peer peer;
    wfi_control control;
    wfi_bulk bulk;
    /* failure_detector.c's */
    int interest;            /* sum of the changes of wfi_peer_interest */
    bool interest_announced; /* whether `interest` was above 0 when the store was last told */
    wfi_list interest_link;  /* in wfi_net.interest_changed */
    int awaited;             /* number of answers that callers of wfi_peer_depend wait for */
    uint64_t suspected_ns;   /* when a suspicion was last sent to the store */
    wfi_control_message ping;
    uint64_t pinged_ns;
} wfi_whole_peer;

static inline wfi_net *wfi_net_of(const wfi_peer *peer)
{
    return wfi_container_of(peer->transport, wfi_net, transport);
}

/* membership.c */
weft_status wfi_peer_create(wfi_net *net,
                            const wfi_member *member); /* replaces the former peer of the rank. [locked] */
extern const wfi_rendezvous_events wfi_member_events;  /* complete except `arg`, the wfi_net */
void wfi_member_catch_up(wfi_net *net);                /* handles the events received while opening. [locked] */
void wfi_member_sync(wfi_net *net);                    /* sends the wanted sync, if none is in flight. [locked] */
void wfi_member_forget(wfi_net *net);                  /* drops the events received while opening, if that failed */

/* peer_death.c; [locked] */
void wfi_peer_fail(wfi_peer *peer, weft_status why); /* closes its channels, fails outstanding operations */
void wfi_peer_gone(wfi_peer *peer, weft_status why, const char *text); /* also calls owners and upcalls; once */
void wfi_self_gone(wfi_net *net, weft_status why, const char *text);   /* the same for all peers */

/* failure_detector.c; [locked] */
extern const wfi_upcalls wfi_detector_upcalls; /* for its client, which receives WFI_CONTROL_PING */
void wfi_detector_init(wfi_whole_peer *whole);
void wfi_detector_fail(wfi_whole_peer *whole);
void wfi_peer_suspect(wfi_peer *peer, const char *why);
void wfi_peer_ping(wfi_peer *peer);
void wfi_interest_due(wfi_timer *timer);

#endif
