/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.h - the agent's struct and its functions for src/rpc.
 *
 * LOCK. The fields of weft_agent below the line "agent lock" are guarded by the one lock of the agent, net's
 * (net/net.h). The fields above it are set while opening, and constant afterwards unless their comments say otherwise.
 * User code never runs with the lock held.
 *
 * LIFETIME. An agent is reference-counted: by the user's pointer, each served call and each remote reference. So
 * weft_call_finish and weft_rref_unref may be called after the agent was closed. They then find `closed` set
 * (wfi_agent_enter), and use neither net nor executor.
 */
#ifndef WFI_AGENT_H
#define WFI_AGENT_H

#include "base/handle.h"
#include "base/map.h"
#include "base/text/refuse.h"
#include "net/net.h"
#include "rpc/agent/component.h"
#include "rpc/agent/devices.h"
#include "rpc/agent/options.h"
#include "value/wire.h"
#include "topo/topo.h"

#include <weft/log.h>
#include <weft/rpc.h>
#include <weft/rref.h>

typedef struct wfi_request wfi_request;
typedef struct wfi_call_observer wfi_call_observer; /* rpc/observe/observe.h */

/*
 * A flag of weft's own functions that neither block nor run user code. The thread that received the call runs them at
 * once, so that a full executor does not delay them.
 */
#define WFI_AT_ONCE (1u << 16)
/*
 * Flags of weft's own functions whose calls are accepted even if the memory budget is used up, because these calls free
 * memory, or say which worker holds it. Their arguments are charged too.
 *
 *   function        flag                 limit
 *   weft:pass       WFI_RESERVED         dist/pass_calls.c, wfi_pass_admit: context, membership, numbers and shapes
 *                                        are checked before a gradient is pulled; then wfi_budget_admit_reserved
 *   weft:abort      WFI_LET_IN           arguments that fit one message; a pass that it announces is charged
 *   weft:final      WFI_LET_IN           the same
 *   weft:close      WFI_LET_IN           the same; numbers: dist/release.c, CLOSE_NUMBERS_MAX, CLOSED_MAX
 *   weft:joined     WFI_LET_IN           the same; at most one rank for each worker of the job
 *   all others      none                 the budget, like functions of the program: weft:backward, weft:recorded,
 *                                        weft:fetch, weft:made, weft:forward, weft:parameters, weft:optimizer,
 *                                        weft:tensors, weft:norm, weft:step. None of them frees memory that it does not
 *                                        itself hold.
 *
 * The call's own structs (WFI_SERVE_BYTES) are charged for every function. When more than 5/4 of the budget is held
 * besides gradients, every call is refused, including these (server/refuse.c). Then weft:abort, weft:close and
 * weft:joined are sent again until they are accepted; a pass whose weft:pass is refused fails.
 */
#define WFI_RESERVED (1u << 17) /* wfi_recording_ops.admit decides whether its arguments are accepted */
#define WFI_LET_IN (1u << 18)   /* arguments that fit one message are refused only beyond 5/4 of the budget */

/* The data that rpc keeps for each worker; of this one only `serving` is used. */
typedef struct wfi_rpc_peer {
    wfi_map serving;  /* served calls of that worker, by its ids */
    uint32_t watched; /* the incarnation that `watches` counts for: agent/workers.c */
    size_t watches;
    weft_member_event unreported[2]; /* events of this rank that wait for memory, in order: agent/membership.c */
    int unreported_count;
    size_t kept_count; /* replies and results that are being sent to it, or kept for it: agent/budget.c */
    uint64_t kept_bytes;
    struct {
        uint64_t first, last; /* range of its refused calls for the next REFUSED; 0: none */
        bool no_memory;       /* memory was out for at least one of them */
        bool in_flight;       /* a REFUSED for earlier calls is in flight */
        uint64_t searched;    /* the highest id of this worker's calls that it has refused: client/refused.c */
    } refused;                /* server/refuse.c */
    size_t answers;           /* this worker's answers that it has not acknowledged: agent/notify.c */
} wfi_rpc_peer;

/* A registered function; never removed while the agent lives. */
typedef struct wfi_registered {
    weft_function function;      /* its name is owned */
    wfi_runner *runner;          /* NULL: its calls are served one by one */
    const wfi_component *runs;   /* the component that made `runner` */
    pthread_mutex_t adding;      /* held while adding to places of its `land`; a leaf (server/accumulate.c) */
    wfi_map lines;               /* of its callers, with WEFT_FUNCTION_ORDERED: server/order.c. [agent lock] */
    struct wfi_registered *next; /* others with the same hash */
} wfi_registered;

/* Membership events wait here for the executor. One task reports all, so that the user sees them one at a time. */
typedef struct wfi_membership {
    wfi_list events;
    wfi_task task;
    bool running;
    size_t unreported; /* sum of wfi_rpc_peer.unreported_count */
} wfi_membership;

struct weft_agent {
    wfi_handle handle; /* ended when it is closed; its memory may live longer */
    atomic_int refs;
    wfi_options options;
    wfi_devices devices;
    wfi_net *net;
    wfi_executor *executor;
    wfi_cores *cores;                       /* near the chosen interface; NULL: any cores */
    pthread_mutex_t function_lock;          /* guards only `functions`; a leaf: registering needs no net */
    wfi_map functions;                      /* by hash of the name */
    _Atomic(struct wfi_batcher *) batchers; /* all, newest first; only grows: batch/batch.h */
    wfi_hash_key hash_key;                  /* of all tables whose keys others choose; constant */
    wfi_rpc_peer *peers;                    /* by rank; guarded by the agent lock */
    atomic_int inbound_elsewhere;           /* tasks on the process's executor: payload/inbound.c */
    atomic_int late_users;                  /* threads between wfi_agent_enter and _leave; closing waits for them */
    atomic_bool closed;                     /* net and executor are gone, or are being closed */
    wfi_list open_link;                     /* agent/forks.c; of an ended agent: agent.c */
    bool forked;                            /* this process is a child of fork(2), and the agent is its parent's */

    void *state[WFI_STATES]; /* the components' data: their headers say what guards them */

    /* ---- agent lock ---- */
    wfi_map calls;               /* outstanding calls of this worker, by id */
    wfi_list retries;            /* calls of this worker with retries: client/retry.c */
    size_t waiting_bytes;        /* bytes that retries hold in their pauses, and while arguments are staged */
    _Atomic size_t staged_bytes; /* page-locked, for tensors of devices in calls and answers: payload/staging.c */
    wfi_list room_waiters;       /* wfi_parker.link: threads that wait until less is staged */
    uint64_t next_call_id;
    size_t serving; /* served calls, of others and of this worker, that have not been finished */
    int64_t call_timeout_ms;
    weft_status gone; /* why this worker is out of the job */
    bool closing, stopped;
    bool has_ender;        /* a thread is in weft_agent_close or weft_agent_stop */
    atomic_bool stops;     /* weft_agent_stop was called while another thread was in weft_agent_close */
    uint64_t serve_number; /* of the weft_agent_serve in progress; 0: there is none */
    uint64_t serves;       /* number of calls of weft_agent_serve */
    weft_future *served;   /* ends the weft_agent_serve in progress, whose thread owns it */
    bool probed;
    uint64_t probe_wave;
    wfi_timer probe_timer;
    wfi_timer await_timer;     /* logs what weft_agent_close waits for: agent/awaited.c */
    uint64_t closing_ns;       /* when closing began */
    uint64_t awaits_logged_ns; /* when the wait was last logged; 0: not yet */
    uint64_t awaits_ask_ns;    /* when to query the store, before the time limit passes; 0: not needed */
    bool awaits_answer;        /* the store's answer is to be logged */
    char awaited[256];         /* the last answer of the store; "": none yet */
    wfi_list stagings;         /* copies between devices and page-locked memory: payload/staging.c */
    wfi_timer ask_timer;       /* the same: when to ask the devices */
    bool asks_devices;         /* ask_timer is set, or ask_task is queued */
    wfi_task ask_task;
    wfi_timer overload_timer; /* agent/overload.c */
    uint64_t overload_taken;  /* number of tasks that the executor had taken when overload_timer last fired */
    bool overload_seen;       /* all threads waited at that time */
    uint64_t serves_until_ns; /* while leaving an elastic job: when it begins to refuse new calls */
    bool refuses_calls;
    weft_future *terminated;
    wfi_map found_names; /* rank + 1 where weft_agent_find last found a name, by the name's hash: agent/workers.c */
    wfi_map given_names; /* names that weft_agent_name has returned, by hash */
    wfi_call_observer *observer;
    struct wfi_metrics_files *metrics_files; /* rpc/files.c; NULL: none were asked for */
    size_t held_bytes;                       /* charged against options.memory_budget_bytes: agent/budget.c */
    size_t reserved_bytes;                   /* of held_bytes, those accepted by wfi_budget_admit_reserved */
    size_t work_bytes;                       /* of held_bytes, those accepted by wfi_budget_admit_work */
    wfi_membership membership;
    size_t notifications; /* small messages (agent/notify.c) that their receivers have not acknowledged */
    wfi_list spare_notifications;
    size_t spare_notification_count, promised_notifications;
    uint64_t answered; /* calls that were answered here, including those whose handlers never ran */
    weft_stats stats;
};

weft_agent *wfi_agent_ref(weft_agent *agent);
void wfi_agent_unref(weft_agent *agent);
static inline int wfi_agent_rank(const weft_agent *agent)
{
    return agent->options.values.rank;
}

/* For functions that users may call after the agent was closed (finish a call, drop a reference). True: the agent is
 * open, and does not close before wfi_agent_leave. */
bool wfi_agent_enter(weft_agent *agent);
void wfi_agent_leave(weft_agent *agent);
/* The same, with the agent lock held between the two calls. */
bool wfi_agent_enter_locked(weft_agent *agent);
void wfi_agent_leave_locked(weft_agent *agent);

/* Of a rank of which this worker knows no worker: none has joined, or it ended before this worker joined. Takes the
 * agent's name. */
#define WFI_UNKNOWN_RANK_TEXT "%s has not heard of a worker with that rank"
/* The error text of calls that are refused in a child of fork(2). */
#define WFI_FORKED_TEXT "this is a child of fork(), and the agent its parent's"
/* Called when net has opened, and before it closes. Between the two, a child of fork(2) marks the agent (forks.c). */
void wfi_forks_watch(weft_agent *agent);
void wfi_forks_forget(weft_agent *agent);

/* Cores for weft's own threads; NULL: any cores (agent/binding.c). */
wfi_cores *wfi_binding_of(const weft_agent_options *options);

/* Like weft_agent_progress, but not ended by weft_agent_wake. */
size_t wfi_agent_progress(weft_agent *agent, int64_t timeout_ms);

/* Whether this worker closes or serves: its program makes no further calls, unless it stops serving. [agent lock] */
static inline bool wfi_agent_is_ending(const weft_agent *agent)
{
    return agent->closing || agent->serve_number;
}
/* WEFT_OK, or why no call may start now. [agent lock] */
weft_status wfi_agent_usable(const weft_agent *agent);
bool wfi_agent_knows_alive(const weft_agent *agent, int rank); /* [agent lock] */
/* Whether the program is told that the rank is alive: it is, and it has not announced that it leaves. [agent lock] */
bool wfi_agent_lists(const weft_agent *agent, int rank);
/* The rank of the living worker with that name; -1: none. Workers that are leaving are found only if leaving_too is
 * set; they keep their names until they are gone. Not locked. */
int wfi_agent_find(weft_agent *agent, const char *name, bool leaving_too);
/* The status of another rank: WEFT_OK while it is alive, otherwise WEFT_ERR_PEER_LEFT or WEFT_ERR_PEER_DEAD. If
 * this worker has not heard of a worker with that rank: WEFT_ERR_PEER_DEAD. [agent lock] */
weft_status wfi_agent_peer_status(const weft_agent *agent, int rank);
/* Writes a log line of this agent (may be NULL) about the call with this id (0: none). Any thread. */
void wfi_agent_log(const weft_agent *agent, weft_log_level level, uint64_t call_id, const char *format, ...)
    WEFT_PRINTF(4, 5);
/* A future that only weft completes, with this agent's executor and way of waiting (`agent` NULL: of a closed agent).
 * NULL if memory is out. */
weft_future *wfi_agent_future(weft_agent *agent);
weft_future *wfi_failed_future(weft_agent *agent, const weft_error *error); /* the same, completed with `error` */
/* Completes the future with `error`, or with `values` (borrowed; may be NULL). No-op if it is complete, because its
 * user cancelled it. */
void wfi_complete_future(weft_future *future, const weft_values *values, const weft_error *error);

/* Register a function, like weft_agent_register. *error (may be NULL) names the faulty field; it is not set if memory
 * is out. Only wfi_function_register allows weft's own names ("weft:..."). Any thread. */
weft_status wfi_function_register(weft_agent *agent, const weft_function *function, weft_error **error);
weft_status wfi_function_register_user(weft_agent *agent, const weft_function *function, weft_error **error);
/* The function of that name; NULL if there is none. It stays valid until the agent is freed. Any thread. */
const weft_function *wfi_function_find(weft_agent *agent, const char *name);
/* The error for a call of a function that is not registered here, with the most similar name if there is one. NULL: no
 * memory. The caller owns the error. Any thread. */
weft_error *wfi_function_unknown(weft_agent *agent, const char *name);
/* The runner of a registered function; NULL if its calls are served one by one, or `function` is NULL. */
static inline wfi_runner *wfi_runner_of(const weft_function *function)
{
    return function ? wfi_container_of(function, wfi_registered, function)->runner : NULL;
}
void wfi_functions_fini(weft_agent *agent);

void wfi_names_fini(weft_agent *agent); /* agent/workers.c */

/* Reports an event to the user's callback, in order, on the executor. [agent lock] */
void wfi_membership_notify(weft_agent *agent, weft_member_event event, int rank, const char *why);
void wfi_membership_fini(weft_agent *agent);

/* Net's upcalls, each in the file of its subject. [agent lock] */
void wfi_on_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);
void wfi_on_peer_gone(void *arg, wfi_peer *peer, weft_status why, const char *text);
void wfi_on_peer_unreachable(void *arg, wfi_peer *peer, const char *text);
void wfi_on_peer_joined(void *arg, wfi_peer *peer);
void wfi_on_peer_leaving(void *arg, wfi_peer *peer);
void wfi_on_peer_ending(void *arg, wfi_peer *peer);
void wfi_on_passed(void *arg, wfi_peer *from, int fd, const uint8_t *data, size_t size);
void wfi_on_synced(void *arg);
void wfi_on_self_gone(void *arg, weft_status why, const char *text);
void wfi_on_probe(void *arg, uint64_t wave);
void wfi_on_served(void *arg, uint64_t number);
void wfi_on_terminated(void *arg);
void wfi_on_awaited(void *arg, const char *whom);
/* agent/awaited.c: logs what weft_agent_close waits for. [agent lock] */
void wfi_awaited_watch(weft_agent *agent, uint64_t until_ns); /* a wait until `until_ns` begins */
void wfi_awaited_log(weft_agent *agent);                      /* the time limit passed before the agent could close */

/* Called for each call that arrives: detects queued calls that no thread can take (agent/overload.c).
 * [agent lock] */
void wfi_overload_watch(weft_agent *agent);

/* Whether the caller is a handler or continuation of this agent. Not locked. */
bool wfi_agent_is_inside(weft_agent *agent);
/* Waits until this agent may close (agent/closing.c). Returns false if the limit passed before; then another thread may
 * end the agent. Not locked. */
bool wfi_agent_await_end(weft_agent *agent, int64_t timeout_ms);

#endif
