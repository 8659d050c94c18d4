/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/agent.h - an agent: this worker's membership of a job.
 *
 * A job is a number of workers with ranks from 0. Each worker opens an agent, makes and serves calls
 * (weft/rpc.h), and closes it. Opening is collective: it returns when all world_size workers have come together
 * at the store, a server inside rank 0 at master_addr:master_port. Closing is collective as well.
 *
 *     int run_worker(const weft_function *functions, size_t count) // RANK, WORLD_SIZE, MASTER_PORT: environment
 *     {
 *         weft_agent *agent;
 *         weft_agent_options options = {.functions = functions, .function_count = count};
 *         weft_status st = weft_agent_open(&options, &agent);
 *         if (st)
 *             return weft_report(st);
 *         printf("rank %d of %d\n", weft_agent_rank(agent), weft_agent_world_size(agent)); // calls are made here
 *         return weft_report(weft_agent_close(agent)); // serves the others until all are done
 *     }
 *
 * Several agents may live in one process; they talk to each other through the network like any others. Every
 * function may be called from any thread, unless it says otherwise.
 *
 * docs/failures.md says what happens when workers die and links break, docs/budget.md what calls cost in memory,
 * docs/security.md how workers prove that they belong to the job.
 */
#ifndef WEFT_AGENT_H
#define WEFT_AGENT_H

#include <weft/status.h>

#include <stdio.h>

WEFT_BEGIN_C

typedef struct weft_function weft_function; /* weft/rpc.h */

/* What happened to a worker. */
typedef enum weft_member_event {
    WEFT_MEMBER_DEAD = 1,   /* the store declared the worker dead */
    WEFT_MEMBER_LEFT = 2,   /* the worker closed its agent */
    WEFT_SELF_EVICTED = 3,  /* the store declared this worker dead: it is out of the job */
    WEFT_STORE_LOST = 4,    /* the store on rank 0 is gone: the job is over */
    WEFT_MEMBER_JOINED = 5, /* a worker took this rank, for the first time or again, while the job was running */
} weft_member_event;

#define WEFT_ANY_RANK (-1) /* in elastic jobs: any rank that is free */

/* Is told of an event. `why` says how it was noticed, and is borrowed until the function returns. Runs on the
 * agent's executor, one event at a time, with no lock of weft held. */
typedef void (*weft_membership_fn)(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

/*
 * Options of weft_agent_open. A zeroed struct takes all defaults. A field that names an environment variable
 * takes that variable's value if the field is zero or NULL; a field that is set wins. What the fields point at
 * is borrowed until weft_agent_open returns; but `sim`, `job` and membership_arg must live as long as the
 * agent.
 */
typedef struct weft_agent_options {
    /* The functions that others may call; they are registered before anybody can. Copied. */
    const weft_function *functions;
    size_t function_count;

    /* Who this worker is. Set has_rank to give rank and world_size here; else RANK and WORLD_SIZE have them. */
    bool has_rank;
    int rank; /* 0..world_size - 1, or WEFT_ANY_RANK */
    int world_size;
    const char *name; /* unique in the job; 1..127 bytes of [A-Za-z0-9-_:]; WEFT_NAME; default "worker<rank>" */

    /*
     * Makes the job elastic (WEFT_ELASTIC): it runs from the moment when rank 0 opens, and others join and
     * leave at any time. All workers of a job must agree on this. world_size is then the number of ranks that
     * there may be. `rank` may be WEFT_ANY_RANK (RANK may be missing, or -1): the worker takes a free rank, and
     * its default name is made of that. Ranks and names of workers that died or left are free again, but rank 0
     * is not, as it has the store. In any job, elastic or not, a new worker may take the rank of one that died.
     */
    bool elastic;
    /*
     * If remote references are left when the agent closes, they are logged. With leaks_fail weft_agent_close
     * then returns WEFT_ERR_STATE as well. References that others hold to this worker's values count: so a
     * worker that leaves an elastic job before the others have released them gets the error too.
     */
    bool leaks_fail;

    /* Where the job is. */
    const char *master_addr; /* the address of rank 0's store; MASTER_ADDR; default 127.0.0.1 */
    int master_port;         /* the port of rank 0's store; MASTER_PORT; no default */
    /* The job that weft_spawn started, of which this process is rank 0: it gives the world size and the store's
     * socket. Opening fails at once if all children end before the job begins. NULL: no such job. */
    weft_job *job;
    const char *fabric; /* "tcp" (default) or "sim"; WEFT_FABRIC */
    const char *iface;  /* name or address of the network interface; WEFT_IFACE; default: the one towards master_addr */
    const char *ports;  /* "low-high", or one port, from 1024 on, to listen on for peers; WEFT_PORTS; default: any */
    weft_sim *sim;      /* the simulated world, with fabric "sim" (weft/sim.h) */

    /*
     * The job's secret, of 16 to 4,096 bytes, by which workers prove that they belong to it (docs/security.md).
     * Else it is the content of the file that WEFT_SECRET_FILE names, or WEFT_SECRET, which is wiped from the
     * environment when it was read. Children of weft_spawn get theirs from the parent. Without a secret
     * everybody who reaches the ports may join, and a line of the log says so.
     */
    const void *secret;
    size_t secret_size;

    /* Threads. */
    /* Start no threads: the program calls weft_agent_progress. Handlers and continuations run inside that
     * function, and inside waits for this agent's futures. */
    bool no_threads;
    int workers;     /* threads that run handlers and continuations; WEFT_WORKERS; default 4 */
    bool no_binding; /* do not bind threads to cores; WEFT_NO_BINDING */

    /* Time limits, in milliseconds. 0 takes the default, WEFT_FOREVER switches the limit off. Every time limit of
     * weft may be as large as INT64_MAX. */
    int64_t rendezvous_timeout_ms; /* for opening; default 60,000. The error names the ranks that are missing */
    int64_t call_timeout_ms;       /* for calls that name no limit of their own; default 60,000 */
    /* After this silence the store declares a worker dead; default 2,000, at least 100, since a worker that
     * waits for a core is not dead; WEFT_DEATH_MS. Rank 0's value applies to all workers. */
    int64_t death_timeout_ms;

    /* Limits (docs/budget.md). */
    /* How much memory this worker may hold for calls to one peer; default 64 MiB. Once it is reached a further call
     * to that peer is WEFT_ERR_AGAIN, or waits (weft_rpc_options.wait_for_room). Tensors that lie contiguous, and
     * calls to this worker itself, do not count. Messages of backward passes, of distributed optimizers, of groups
     * and of the ends of contexts are queued even if the limit is reached (docs/budget.md). */
    size_t queue_limit_bytes;
    /* How much memory other workers may make this one hold for their calls: arguments, gradients, results that
     * wait for their callers, and what batches add. Over it a call is refused with WEFT_ERR_BUSY, and one whose
     * arguments alone are larger with WEFT_ERR_TOO_LARGE; an answer that its caller leaves unread may be given
     * up: that call ends with WEFT_ERR_UNKNOWN. WEFT_MEMORY_BUDGET ("512M": K, M, G or T); default: half of
     * this worker's share of the memory, which is what the machine and its control groups allow, divided by the
     * workers of the job here. */
    size_t memory_budget_bytes;

    /* Observation (docs/metrics.md). */
    /* Serve Prometheus text on this port of 127.0.0.1; WEFT_METRICS_PORT; 0: do not; -1: on any free port. If
     * the port is taken, a warning says so, and nothing is served. With no_threads opening fails with
     * WEFT_ERR_INVALID. In the simulation nothing is served. */
    int metrics_port;
    /* Write the spans of every call to this file, for Perfetto; WEFT_TRACE. "%r" in it becomes the rank, "%p"
     * the process id. Without "%r" the rank is put before the ending if the job has more than one worker:
     * "t.json" becomes "t.0.json". */
    const char *trace_file;

    weft_membership_fn on_membership; /* is told when workers join, leave or die, and when this one is out of the job */
    void *membership_arg;

    weft_error **error; /* receives the detail if opening fails; you release it. NULL: the log has it */
} weft_agent_options;

/*
 * Joins the job. WEFT_ERR_INVALID (a bad option or environment variable), WEFT_ERR_EXISTS (the rank, the name,
 * or the port of the store is taken), WEFT_ERR_IO (trace_file), WEFT_ERR_RENDEZVOUS (workers did not come in
 * time: the error names their ranks), WEFT_ERR_FABRIC, WEFT_ERR_UNREACHABLE (no route to master_addr),
 * WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_open(const weft_agent_options *options, weft_agent **out);

/*
 * Leaves the job in order, ends the agent's threads and connections, and frees the agent. It goes on serving
 * calls while it waits:
 *   - In a static job, and on rank 0 of an elastic one, it waits until every living worker closes, and no calls are
 *     outstanding, those included that handlers still make, nor operations of groups under way.
 *   - Another worker of an elastic job waits until its own calls are answered, its operations of groups have ended,
 *     the calls that it serves are finished, and their answers have arrived. If others keep it busy for half a
 *     second it refuses new calls with WEFT_ERR_PEER_LEFT.
 *
 * There is no time limit. It waits as long as a living worker does not close, a handler does not end, a deferred
 * call that somebody waits for is not finished, or an operation of a group lacks a member: one with WEFT_FOREVER waits
 * for ever, also for a member that closes too, unless weft_group_abort or weft_group_destroy ends it before.
 * weft_debug_dump, from another thread, shows what it waits for. If you cannot wait, call weft_agent_stop instead:
 * never both, since both free the agent.
 *
 * Returns WEFT_OK, or what went wrong first: WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST, WEFT_ERR_STATE
 * (leaks_fail). In a handler or continuation of this agent it does nothing and returns WEFT_ERR_DEADLOCK. NULL
 * does nothing.
 *
 * FORK. An agent belongs to the process that opened it. In a child of fork(), calls and this function return
 * WEFT_ERR_STATE, waits return WEFT_ERR_DEADLOCK, handles behave as after closing, weft_agent_find is -1,
 * weft_agent_name NULL, statistics are zeros, and weft_agent_stop does nothing. None of the parent's handlers and
 * continuations run there. The parent's agent is not disturbed. The descriptors that the child inherited close when it calls
 * exec.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_close(weft_agent *agent);

/*
 * Leaves the job at once and frees the agent. Outstanding calls fail with WEFT_ERR_CLOSED, calls of others with
 * WEFT_ERR_PEER_LEFT. It may be called right after a barrier of a group, and the other members still learn that the
 * barrier is over: it waits up to half a second until what this worker said to members of groups has arrived. On rank
 * 0 the store serves the other members on until all of them have left, so that those who end at the same time end in
 * order: it waits at most death_timeout_ms, and never more than 2 seconds. A member that goes on, or is stopped
 * (SIGSTOP), makes it wait that long. In a handler or continuation of this agent it logs an error and does nothing.
 */
WEFT_API void weft_agent_stop(weft_agent *agent);

WEFT_API int weft_agent_rank(const weft_agent *agent);
WEFT_API int weft_agent_world_size(const weft_agent *agent);
/* The name of the worker that holds this rank, or held it last. Borrowed from the agent; it stays valid and
 * unchanged until the agent is freed. NULL if there is no such rank, nobody ever held it, or memory is out. */
WEFT_API const char *weft_agent_name(const weft_agent *agent, int rank);
/* The rank of the living worker of that name; -1 if there is none. */
WEFT_API int weft_agent_find(const weft_agent *agent, const char *name);
WEFT_API bool weft_agent_alive(const weft_agent *agent, int rank);

/* One worker for as long as it lives. Another worker may take the rank later: it then has another incarnation. */
typedef struct weft_worker {
    int rank;
    uint32_t incarnation; /* numbered by the store, > 0 */
} weft_worker;
/* The worker that holds this rank now, or held it last; incarnation 0 if nobody ever held it. */
WEFT_API weft_worker weft_agent_worker(const weft_agent *agent, int rank);
/* Lists the living workers by rank, this one included: at most `capacity` of them. Returns how many there are. */
WEFT_API size_t weft_agent_workers(const weft_agent *agent, weft_worker *out, size_t capacity);

/*
 * weft_watch asks to be told within death_timeout_ms when the worker at `rank` dies; weft_unwatch ends that.
 * Workers to which this one has calls outstanding or holds references are watched without asking. Each watch
 * needs an unwatch of its own, and is for the worker that holds the rank now. WEFT_ERR_NOT_FOUND (nobody ever
 * held the rank, or it is this worker), WEFT_ERR_PEER_DEAD, WEFT_ERR_PEER_LEFT, WEFT_ERR_STATE (unwatch without
 * a watch), or the code of weft_agent_status.
 */
WEFT_API WEFT_NODISCARD weft_status weft_watch(weft_agent *agent, int rank);
WEFT_API WEFT_NODISCARD weft_status weft_unwatch(weft_agent *agent, int rank);

/* WEFT_OK, or why this worker is not part of the job any more: WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST. */
WEFT_API weft_status weft_agent_status(const weft_agent *agent);

/*
 * For agents with no_threads: does everything that is ready, then waits up to timeout_ms for more. Returns how
 * many events it handled. Handlers and continuations run inside it, and inside the waits of the thread that
 * calls it. Between two handlers it reads the network if some milliseconds have passed. So a long queue of
 * handlers does not delay heartbeats, time limits and urgent calls, but a long handler does: one that takes
 * longer than death_timeout_ms makes the others take this worker for dead.
 */
WEFT_API size_t weft_agent_progress(weft_agent *agent, int64_t timeout_ms);

/* Changes the time limit of calls that name none, for calls made from now on; 0: 60,000. WEFT_ERR_INVALID if it
 * is below WEFT_FOREVER; then nothing changes. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_set_call_timeout(weft_agent *agent, int64_t timeout_ms);

/* The agent's clock, in nanoseconds: CLOCK_MONOTONIC, or virtual time in the simulation. */
WEFT_API uint64_t weft_agent_now_ns(const weft_agent *agent);

/*
 * Prints what the agent holds as one JSON object: the workers, its own values and who holds handles to them,
 * its handles to values of others, handles that their owner has not confirmed yet, calls that it made, and
 * calls that it serves, contexts of distributed autograd and their passes. Allowed at any time. WEFT_ERR_IO, WEFT_ERR_MEMORY, WEFT_ERR_INVALID (NULL).
 */
WEFT_API WEFT_NODISCARD weft_status weft_debug_dump(const weft_agent *agent, FILE *to);

/* Counters since the agent opened. */
typedef struct weft_stats {
    uint64_t calls_started;  /* calls that this worker made */
    uint64_t calls_finished; /* of these, the ones that are complete, well or not */
    uint64_t calls_failed;   /* of these, the ones that completed with an error */
    /* Calls whose handler ran here and is finished, well or not; calls to this worker itself included. Those that were
     * refused (no such function, arguments that do not fit, no room) or given up before it began do not count. */
    uint64_t calls_served;
    uint64_t bytes_sent; /* payload of tensors and values that left, large and small */
    uint64_t bytes_received;
    /* What weft copied of payloads too large for a message. Tensors between workers are never copied; strings,
     * bytes, and what lands in a call to this worker itself are. */
    uint64_t bytes_copied;
    uint64_t bytes_packed; /* tensors that were not contiguous, and were copied before sending */
    uint64_t frames_sent;  /* frames for messages; one frame may hold several messages */
    uint64_t frames_received;
    uint64_t connections_lost; /* connections that broke and were opened again */
    /* Connections and messages refused, because who sent them did not prove that it belongs to the job, or
     * because they were malformed. On rank 0 those that the store refused count as well. */
    uint64_t unauthenticated_refused;
    uint64_t calls_cancelled; /* calls served here whose callers gave up before the answer */
    /* Calls of others refused because there was no room: in the memory budget (not those larger than all of it),
     * in the queue of a batched function, no memory, or all threads wait. */
    uint64_t calls_refused;
    uint64_t calls_retried; /* attempts of this worker's calls after the first */
    uint64_t bytes_held;    /* now: what counts against the memory budget */
    /* Rank 0: messages that its store received and sent, without heartbeats. Each worker that joins costs 4. */
    uint64_t rendezvous_messages;
} weft_stats;
/* Reads the counters; all 0 if `agent` is NULL. */
WEFT_API void weft_agent_stats(const weft_agent *agent, weft_stats *out);

WEFT_END_C
#endif
