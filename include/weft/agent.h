/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/agent.h - an agent: this worker's membership of a job, and everything that hangs off it.
 *
 * Several agents may live in one process and talk to each other over their real provider. Opening is collective: it
 * returns when all world_size workers have come together at the store, which rank 0 serves on master_addr:master_port.
 * Unless stated otherwise every function may be called from any thread.
 */
#ifndef WEFT_AGENT_H
#define WEFT_AGENT_H

#include <weft/status.h>

#include <stdio.h>

WEFT_BEGIN_C

typedef struct weft_function weft_function; /* weft/rpc.h */

/* What happened to a worker. */
typedef enum weft_member_event {
    WEFT_MEMBER_DEAD = 1,   /* the store declared it dead */
    WEFT_MEMBER_LEFT = 2,   /* it closed its agent */
    WEFT_SELF_EVICTED = 3,  /* this worker was declared dead: it is out of the job */
    WEFT_STORE_LOST = 4,    /* rank 0's store is gone: the job is over */
    WEFT_MEMBER_JOINED = 5, /* a worker took this rank, for the first time or again, while the job was running */
} weft_member_event;

#define WEFT_ANY_RANK (-1) /* elastic jobs: whichever rank is free */

/* `why` says how it was noticed; borrowed for the call. Runs on the agent's executor, one at a time, no lock held. */
typedef void (*weft_membership_fn)(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

/*
 * Everything has a default; a zeroed struct takes them all. Where an environment variable is named, it is read when the
 * field is zero (NULL, or -1 where it says so); the option wins.
 */
typedef struct weft_agent_options {
    const weft_function *functions; /* registered before anybody can call */
    size_t function_count;

    /* Who: ranks count from 0. Set has_rank to give rank and world_size here instead of RANK and WORLD_SIZE. */
    bool has_rank;
    int rank;
    int world_size;
    const char *name; /* unique, 1..127 of [A-Za-z0-9-_:]; WEFT_NAME; default "worker<rank>" */

    /*
     * An elastic job (WEFT_ELASTIC) runs from the moment rank 0 opens; others join and leave at any time. world_size is then
     * the number of seats. rank may be WEFT_ANY_RANK; so may RANK be missing, or -1; the default name then is that of the
     * rank found. Ranks and names of the dead and the departed are free again; rank 0 keeps the store and cannot be taken
     * again. All workers of a job agree on it. In any job the seat of a dead worker may be taken again, by a new
     * incarnation.
     */
    bool elastic;
    /*
     * weft_agent_close returns WEFT_ERR_STATE if remote references were left (they are always logged). That counts what others
     * still hold: a worker that leaves an elastic job before they have released its values gets it too, whatever it did itself.
     */
    bool leaks_fail;

    /* Where. */
    const char *master_addr; /* MASTER_ADDR; default 127.0.0.1 */
    int master_port;         /* MASTER_PORT; there is no default */
    weft_job *job;           /* from weft_spawn: gives rank 0, the world size and the store's socket; opening fails
                                at once where all its children have ended before the job began */
    const char *fabric;      /* "tcp" (default) or "sim"; WEFT_FABRIC */
    const char *iface;       /* network interface name or address; WEFT_IFACE; default: the one towards master_addr */
    const char *ports; /* "low-high", or one from 1024 on, for the fabric's listening port; WEFT_PORTS; default: any */
    weft_sim *sim;     /* the simulated world, with fabric "sim" */

    /*
     * Proof of membership (docs/security.md). The secret is WEFT_SECRET_FILE's content, or WEFT_SECRET (which is wiped from
     * the environment when read), or this; 16 to 4,096 bytes. Children of weft_spawn get theirs from the parent. Without one, whoever
     * reaches the ports may join, and a line of the log says so.
     */
    const void *secret;
    size_t secret_size;

    /* Threads. */
    bool no_threads; /* start none: the application calls weft_agent_progress. Handlers and continuations run
                           inside it, and inside waits for this agent's futures */
    int workers;     /* executor's workers; WEFT_WORKERS; default 4 */
    bool no_binding; /* leave threads unbound; WEFT_NO_BINDING */

    /* Time limits, in milliseconds; 0 takes the default, WEFT_FOREVER switches it off. */
    int64_t rendezvous_timeout_ms; /* 60,000: missing ranks are named in the error */
    int64_t call_timeout_ms;       /* 60,000: of calls that name none */
    int64_t death_timeout_ms; /* 2,000: silence after which the store declares a worker dead; WEFT_DEATH_MS. Rank 0's
                                      counts, for the whole job: the others take it from the store, whatever theirs is. 100
                                      at least, as a worker that waits for a core is not dead */

    /* Limits. */
    /* What this worker holds for calls to one peer, in bytes; 64 MiB. A call without arguments is about 2.5 kB, until the peer has it;
     * strings, bytes and packed tensors of more than a few kilobytes count until the call ends, tensors that are read where they
     * lie never. Once it is reached calls are WEFT_ERR_AGAIN (weft_rpc_options.wait_for_room, retry), so one call may exceed it.
     * Calls with retries that wait for room in their pauses may hold as much again, for all peers together. Calls to oneself
     * do not count. */
    size_t queue_limit_bytes;
    /* What others can make this worker hold, in bytes: arguments being taken in or served, results kept for callers, and what
     * batches add to these (weft/batch.h): rows made ahead, and copies, which may go over it as results do. Over it
     * calls are refused with WEFT_ERR_BUSY. Calls of a few kilobytes may go over it by an eighth, so that what is to free memory
     * gets in; one whose arguments are larger than all of it is WEFT_ERR_TOO_LARGE. Results exist already: they count and go, however
     * large they are, but where an answer waits for a caller, the next one for it that would go over is let go, and that call
     * ends with WEFT_ERR_UNKNOWN. WEFT_MEMORY_BUDGET ("512M": K, M, G, T); default: half of this
     * worker's share of the memory: what its control groups and the machine have, divided by the workers of the job on this machine. */
    size_t memory_budget_bytes;

    /* Observation (weft/metrics.h). */
    int metrics_port; /* serve Prometheus text at 127.0.0.1 there; WEFT_METRICS_PORT; 0: no; -1: any free port. Where it is
                               taken a warning says so, and there are none. Not without threads; nothing in the simulation */
    const char *trace_file; /* spans of every call, for Perfetto; WEFT_TRACE; "%r" becomes the rank, "%p" the
                               process: where workers are replaced, else the next one overwrites it. Without "%r", in a
                               job of more than one, the rank goes before the ending: "t.json" becomes "t.0.json" */

    weft_membership_fn on_membership;
    void *membership_arg;

    weft_error **error; /* if not NULL: receives the detail when opening fails; you release it. NULL: the log does */
} weft_agent_options;

/*
 * Joins the job. Errors: WEFT_ERR_INVALID (bad option or environment), WEFT_ERR_EXISTS (rank or name taken, MASTER_PORT
 * in use), WEFT_ERR_IO (trace_file), WEFT_ERR_RENDEZVOUS (time-out: names the missing ranks),
 * WEFT_ERR_FABRIC, WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_open(const weft_agent_options *options, weft_agent **out);

/*
 * Leaves gracefully. In a static job, and on rank 0 of any: waits until every worker of the job closes and none has calls
 * outstanding, follow-up calls of handlers included. Other workers of an elastic job wait for nobody else: each leaves when
 * its own calls are answered, those that it serves are finished, and what it owes others has arrived; if they keep it busy for
 * half a second, it refuses what comes new (WEFT_ERR_PEER_LEFT). After a death or the loss of the store it waits only for
 * those alive. Then threads and connections end, the agent is freed, and its seat is free.
 *
 * There is no time limit: while a worker that lives never closes, a handler never ends, or a deferred call that somebody waits
 * for is never finished, this waits. weft_debug_dump, from another thread, says for what. Whoever cannot wait any longer calls
 * weft_agent_stop instead of this one: not after it, nor beside it, since both free the agent.
 *
 * Returns the first trouble met: WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_STATE (leaks_fail); but from a handler or
 * continuation of this agent it is WEFT_ERR_DEADLOCK, in a child of fork() WEFT_ERR_STATE, and nothing happens. NULL is a no-op.
 *
 * FORK. An agent is its process's. In a child of fork() calls are WEFT_ERR_STATE, waiting is WEFT_ERR_DEADLOCK, handles act as after
 * closing, and weft_agent_stop does nothing; the parent's job goes on unharmed. The child's descriptors close on exec.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_close(weft_agent *agent);

/*
 * Leaves at once: outstanding calls fail with WEFT_ERR_CLOSED; peers are told WEFT_ERR_PEER_LEFT. Only what this worker, as the
 * first member of a group, owes the others of operations that are over (weft/group.h) goes before, within half a second: who
 * comes from a barrier may stop. Frees the agent. Not from a handler or continuation of this agent: there it logs an error and does nothing.
 */
WEFT_API void weft_agent_stop(weft_agent *agent);

WEFT_API int weft_agent_rank(const weft_agent *agent);
WEFT_API int weft_agent_world_size(const weft_agent *agent);
/* The name of whoever holds the rank, or held it last; borrowed from the agent, valid and unchanged while that lives. NULL if
 * there is no such rank, nobody ever took it, or memory is out. */
WEFT_API const char *weft_agent_name(const weft_agent *agent, int rank);
/* The rank of the living worker of that name; -1 if there is none. */
WEFT_API int weft_agent_find(const weft_agent *agent, const char *name);
WEFT_API bool weft_agent_alive(const weft_agent *agent, int rank);

/* One worker, for as long as it lives: an incarnation of a rank. A rank may be taken again; a handle never means another. */
typedef struct weft_worker {
    int rank;
    uint32_t incarnation; /* numbered by the store, > 0 */
} weft_worker;
/* The worker that holds this rank now, or held it last; incarnation 0 if there was none. */
WEFT_API weft_worker weft_agent_worker(const weft_agent *agent, int rank);
/* The living ones by rank, this worker included, at most `capacity` of them; returns how many there are. */
WEFT_API size_t weft_agent_workers(const weft_agent *agent, weft_worker *out, size_t capacity);

/*
 * From now on, or not any more: this worker needs to know within the death bound when `rank` dies, though it has neither
 * calls outstanding there nor references to it (those are watched by themselves). Watches count,
 * and are for one incarnation. WEFT_ERR_NOT_FOUND (nobody ever held it, or it is this worker), WEFT_ERR_PEER_DEAD,
 * WEFT_ERR_PEER_LEFT, WEFT_ERR_STATE (unwatch without watch), or why this worker is out.
 */
WEFT_API WEFT_NODISCARD weft_status weft_watch(weft_agent *agent, int rank);
WEFT_API WEFT_NODISCARD weft_status weft_unwatch(weft_agent *agent, int rank);

/* WEFT_OK, or why this worker is out: WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST. */
WEFT_API weft_status weft_agent_status(const weft_agent *agent);

/*
 * With no_threads: does what is ready, then waits up to timeout_ms for more. Returns the number of events handled.
 * Handlers and continuations run inside it, and inside the waits of that thread, for some milliseconds, then the network has its
 * turn: heartbeats, time limits and urgent calls wait for a long handler, but not for all that are queued. One that takes longer
 * than the bound of deaths by silence makes others take this worker for dead.
 */
WEFT_API size_t weft_agent_progress(weft_agent *agent, int64_t timeout_ms);

/* Changes the default time limit of calls made from now on; 0: 60,000. Below WEFT_FOREVER: WEFT_ERR_INVALID, and nothing changes. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_set_call_timeout(weft_agent *agent, int64_t timeout_ms);

/* The agent's clock, in nanoseconds: CLOCK_MONOTONIC, or virtual time in the simulation. */
WEFT_API uint64_t weft_agent_now_ns(const weft_agent *agent);

/*
 * Prints what the agent holds as one JSON object: workers, owned values with their forks by worker, references to others'
 * values, forks awaiting confirmation, calls of ours and calls being served. Allowed at any time. WEFT_ERR_IO, WEFT_ERR_MEMORY,
 * WEFT_ERR_INVALID (NULL).
 */
WEFT_API WEFT_NODISCARD weft_status weft_debug_dump(const weft_agent *agent, FILE *to);

/* Counters since the agent opened. */
typedef struct weft_stats {
    uint64_t calls_started;  /* by this worker */
    uint64_t calls_finished; /* of those, completed, well or not */
    uint64_t calls_failed;   /* of those, with an error */
    uint64_t calls_served;   /* handlers finished here, calls to oneself included */
    uint64_t bytes_sent;     /* payload of tensors and values that left, inline and bulk */
    uint64_t bytes_received;
    uint64_t
        bytes_copied; /* of payloads over the inline limit, copied by weft: 0 for tensors between workers; strings, bytes,
                              and what lands in a call to oneself are copied */
    uint64_t bytes_packed; /* of non-contiguous tensors, packed before sending */
    uint64_t frames_sent;  /* messages on control lanes */
    uint64_t frames_received;
    uint64_t lanes_lost; /* connections that broke and were opened again */
    uint64_t
        strangers_refused; /* connections or messages refused for want of proof or sense; rank 0: by the store, too */
    uint64_t calls_cancelled; /* served here, whose callers gave up before the answer */
    uint64_t calls_refused;   /* of others, with WEFT_ERR_BUSY, over the memory budget */
    uint64_t calls_retried;   /* attempts of ours after the first */
    uint64_t bytes_held;      /* now: what counts against the memory budget */
    uint64_t
        rendezvous_messages; /* rank 0: what its store took and sent, heartbeats aside; 4 for each worker that joins */
} weft_stats;
/* All 0 if agent is NULL. */
WEFT_API void weft_agent_stats(const weft_agent *agent, weft_stats *out);

WEFT_END_C
#endif
