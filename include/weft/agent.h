/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/agent.h - an agent: this worker's membership of a job.
 *
 * A job consists of workers with ranks from 0. Each worker opens an agent, makes and serves calls (weft/rpc.h), and
 * closes the agent. Workers join at the store, a server in the process of rank 0, at master_addr:master_port.
 *   Static job (default): weft_agent_open returns when all world_size workers have joined, and weft_agent_close returns
 *   when all living workers have called it.
 *   Elastic job: it begins when rank 0 opens its agent; other workers join and leave at any time.
 *
 *     int run_worker(const weft_function *functions, size_t count) // mpirun, srun or weft-run started this process
 *     {
 *         weft_agent *agent;
 *         weft_agent_options options = {.functions = functions, .function_count = count};
 *         weft_status status = weft_agent_open(&options, &agent, NULL);
 *         if (status)
 *             return weft_report(status);
 *         printf("rank %d of %d\n", weft_agent_rank(agent), weft_agent_world_size(agent)); // calls are made here
 *         status = weft_agent_serve(agent, WEFT_FOREVER); // serves the others until all are done
 *         weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
 *         return weft_report(status ? status : closed);
 *     }
 *
 * One process may have several agents. They communicate through the network, as agents of different processes do.
 *
 * THREADS. Any thread may call any function, unless its description says otherwise.
 *
 * docs/failures.md: workers that die, links that break. docs/budget.md: what calls cost in memory. docs/security.md:
 * how workers authenticate each other.
 */
#ifndef WEFT_AGENT_H
#define WEFT_AGENT_H

#include <weft/bootstrap.h>
#include <weft/function.h>
#include <weft/status.h>

#include <stdio.h>

WEFT_BEGIN_C

/* An event of a worker. */
typedef enum weft_member_event {
    WEFT_MEMBER_DEAD = 1,         /* the store declared the worker dead */
    WEFT_MEMBER_LEFT = 2,         /* the worker closed its agent */
    WEFT_MEMBER_SELF_EVICTED = 3, /* the store declared this worker dead: it no longer belongs to the job */
    WEFT_MEMBER_STORE_LOST = 4,   /* the store on rank 0 is gone: the job is over */
    WEFT_MEMBER_JOINED = 5,       /* a worker took this rank while the job was running */
    /* The worker called weft_agent_close in an elastic job, and accepts no further calls. WEFT_MEMBER_LEFT or
     * WEFT_MEMBER_DEAD follows. */
    WEFT_MEMBER_LEAVING = 6,
    WEFT_MEMBER_JOB_ENDED = 7, /* rank 0 ended the job (weft_agent_end_job); `why` is its reason */
} weft_member_event;

/* One of the two connections to each worker. Each is made on one fabric. */
typedef enum weft_lane {
    WEFT_LANE_CONTROL = 0, /* messages, with small tensors in them */
    WEFT_LANE_BULK = 1,    /* large tensors */
} weft_lane;

#define WEFT_ANY_RANK (-1) /* in elastic jobs: any rank that is free */
#define WEFT_ANY_PORT (-1) /* master_port of rank 0: any free port */

/* Receives a membership event. `why` says how the event was detected; it is borrowed until the function returns. Runs
 * on the agent's executor, one event at a time, with no lock of weft held. */
typedef void (*weft_membership_fn)(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

/* An entry of a device map: a tensor on the device `here` of this worker goes to the device `there` of that worker. */
typedef struct weft_device_map {
    const char *worker; /* its name; NULL: all workers without an entry of their own for `here` */
    weft_device here, there;
    uint64_t reserved[2]; /* 0: room for later fields */
} weft_device_map;

/*
 * Options of weft_agent_open. A zeroed struct takes all defaults. If a field's text names an environment variable, the
 * variable is used when the field is zero or NULL. All pointers are borrowed until weft_agent_open returns, except
 * `sim`, `job` and membership_arg: these must live as long as the agent.
 */
typedef struct weft_agent_options {
    /* The functions that other workers may call. They are copied, and registered before the first call can arrive. */
    const weft_function *functions;
    size_t function_count;

    /* True: the fields rank and world_size are used. False: both come from RANK and WORLD_SIZE, or the variables of
     * Open MPI, PMI (MPICH, Hydra) or Slurm, or PMIx (prterun). `job` overrides all of these. */
    bool has_rank;
    int rank;         /* 0..world_size - 1, or WEFT_ANY_RANK */
    int world_size;   /* 1..65,536 */
    const char *name; /* unique in the job; 1..127 bytes of [A-Za-z0-9-_:]; WEFT_NAME; default "worker<rank>" */

    /*
     * Makes the job elastic (WEFT_ELASTIC): it begins when rank 0 opens its agent, and others join and leave at any
     * time. All workers of a job must have the same setting. world_size is then the largest number of workers at one
     * time. `rank` may be WEFT_ANY_RANK (RANK may be missing, or -1): the worker takes a free rank, and its default
     * name contains that rank. The ranks and names of workers that died or left are free again. Rank 0 is never free,
     * because it runs the store. In any job, elastic or not, a new worker may take the rank of a worker that died.
     */
    bool elastic;
    /*
     * weft_agent_close returns WEFT_ERR_BUSY if remote references are left; without this option they are only logged.
     * This includes references that other workers hold to this worker's values, even when this worker leaves an elastic
     * job.
     */
    bool leaks_fail;

    /* Where the job is. */
    const char *master_addr; /* the address of rank 0's store; MASTER_ADDR; default 127.0.0.1 */
    /* The port of rank 0's store; MASTER_PORT. If neither is set, `bootstrap`, PMIx (mpirun, prterun, srun
     * --mpi=pmix), PMI 1 (mpiexec of MPICH) or Slurm (srun) tell the workers where rank 0 is. A job of one worker
     * takes a free port. On rank 0 WEFT_ANY_PORT takes a free port. In an elastic job the program can pass that port
     * (weft_agent_store_port) to the other workers. In a static job that is not possible: weft_agent_open on rank
     * 0 returns only when the others have joined. There use `bootstrap`. */
    int master_port;
    const weft_bootstrap *bootstrap; /* the program's way to find rank 0 (weft/bootstrap.h); NULL: none */
    /* The job that weft_job_open started; this process is its rank 0. It gives the rank, the world size, the store's
     * socket and the secret. Opening fails at once if all children end before the job begins. NULL: the process did not
     * call weft_job_open. */
    weft_job *job;
    /* Up to four fabrics in the order of preference, separated by commas, without spaces, each once: "host,tcp". There
     * are "host" (workers of one machine), "tcp", "verbs" (InfiniBand, RoCE), and libfabric's "shm", "rxm",
     * "efa", "cxi", "psm3" and "opx". "auto": the fabrics of "host,verbs,tcp" that open. WEFT_FABRIC; default "auto".
     * With `sim`: simulated fabrics (weft/sim.h), default "sim". docs/fabrics.md */
    const char *fabric;
    /* Name or address of the network interface; WEFT_IFACE. Default: tcp takes the interface on the route to
     * master_addr, verbs takes the nearest RDMA device that has an address. */
    const char *iface;
    /* Ports to listen on for peers: a range "low-high" within 1 to 65535, or one port, which must be 1024 or more.
     * Each rank of a host needs one port for each fabric that has ports. WEFT_PORTS; default: any. */
    const char *ports;
    weft_sim *sim; /* the simulated world (weft/sim.h); with simulated fabrics only */

    /*
     * The job's secret, 16 to 4,096 bytes, with which workers authenticate each other (docs/security.md). If the
     * field is NULL, the secret is the content of the file that WEFT_SECRET_FILE names, or the value of WEFT_SECRET,
     * which weft then removes from the environment. If there is none, `bootstrap`, PMIx and PMI 1 pass a random one.
     * With `job` the field must be NULL, because the job has a secret that the children of weft_job_open inherit.
     * Without a secret every process that reaches the ports may join, and the log has a warning.
     */
    const void *secret;
    size_t secret_size;

    /* Threads. */
    /* Start no threads. The program calls weft_agent_progress. Handlers and continuations run inside that function and
     * inside waits for this agent's futures. */
    bool no_threads;
    int threads;     /* threads that run handlers and continuations, 1..1,024; WEFT_THREADS; default 4 */
    bool no_binding; /* do not bind threads to cores; WEFT_NO_BINDING */

    /* Raise the process's soft limit of file descriptors to the hard limit, or to a million if that is less;
     * WEFT_RAISE_DESCRIPTOR_LIMIT. Without this option weft does not change the limit, and warns if it is too low for
     * world_size. */
    bool raise_descriptor_limit;

    /* Time limits, in milliseconds. 0 takes the default, WEFT_FOREVER disables the limit. Every time limit of weft may
     * be up to INT64_MAX. */
    int64_t rendezvous_timeout_ms; /* for opening; default 60,000. The error names the ranks that are missing */
    int64_t call_timeout_ms;       /* for calls without a limit of their own; default 60,000 */
    /* The store declares a worker dead after this silence. Default 2,000; at least 100, because a worker that waits for
     * CPU time is silent too; WEFT_DEATH_MS. Rank 0's value applies to all workers. */
    int64_t death_timeout_ms;

    /* Limits (docs/budget.md). */
    /* Memory that this worker may hold for calls to one peer; default 64 MiB. When the limit is reached, a further call
     * to that peer fails with WEFT_ERR_AGAIN, or waits (weft_rpc_options.wait_for_room). Contiguous tensors, and calls
     * to this worker itself, do not count. Messages of backward passes, distributed optimizers and groups, and those
     * that end contexts, are queued even if the limit is reached. */
    size_t queue_limit_bytes;
    /* Memory that calls of other workers may hold here: arguments, gradients, results that the caller has not received
     * yet, copies of batches. A call over the budget fails with WEFT_ERR_BUSY. A call whose arguments alone exceed the
     * budget fails with WEFT_ERR_TOO_LARGE. If results wait here because their caller does not receive them, results
     * of its next calls may be discarded; these calls end with WEFT_ERR_UNKNOWN. Page-locked memory for tensors of
     * GPUs may be as much again: a call of this worker that needs more fails with WEFT_ERR_AGAIN, or waits
     * (weft_rpc_options.wait_for_room). WEFT_MEMORY_BUDGET ("512M": K, M, G or T). Default: half of this worker's
     * share of the memory. The workers of the job on this machine share equally what the machine and its control
     * groups (cgroups) allow. */
    size_t memory_budget_bytes;

    /* Observation (docs/metrics.md). */
    /* Write the spans of every call to this file, for Perfetto; WEFT_TRACE. "%r" becomes the rank, "%p" the process id.
     * If the job has several workers and the name has no "%r", the rank is inserted before the ending: "t.json" becomes
     * "t.0.json". */
    const char *trace_file;
    /* Write the metrics as Prometheus text to this file every 5 seconds, and the output of weft_debug_dump to a second
     * one, with ".json" behind the name; WEFT_METRICS. "%r" and "%p" as in trace_file. Each file is written beside the
     * old one and renamed. Closing the agent removes both files. A killed worker leaves both, and perhaps one that
     * ends in ".tmp". Opening fails with WEFT_ERR_INVALID if the path exists and is no regular file, or if
     * no_threads is set. In the simulation nothing is written. */
    const char *metrics_file;

    weft_membership_fn on_membership; /* called for each weft_member_event */
    void *membership_arg;

    /*
     * To which devices of other workers the tensors of this worker's calls go (docs/cuda.md). The default is
     * WEFT_DEVICE_MAPS ("server/cuda:0=cpu;server/cuda:1=cuda:0"; * stands for all workers). Without an entry a tensor
     * goes to the device with the same number, from the CPU to the CPU. Results and items come back by the entry that
     * leads to their device, otherwise to the same number. Gradients go to the device where their tensor was. A call
     * fails with WEFT_ERR_INVALID if a worker lacks the device to which a tensor should go, or if two entries lead to
     * one device of one worker.
     */
    const weft_device_map *device_maps;
    size_t device_map_count;
} weft_agent_options;

/*
 * Opens an agent, with which this process joins the job as one of its workers. Rank 0 also starts the store. The other
 * workers find rank 0 (weft_agent_options) and connect to the store; they may start before rank 0 does.
 *   In a static job the function waits until all world_size workers have joined.
 *   In an elastic job it waits until the store has accepted this worker.
 *   A job of one worker begins at once.
 *
 * CUDA. If NVIDIA's driver is installed, opening starts it, to tell the others how many GPUs this process has. After
 * that, CUDA does not work in children of fork() that do not call exec.
 *
 * Finding rank 0 by `bootstrap` or PMIx, and joining, may each take rendezvous_timeout_ms. If that time passes, opening
 * fails, and the error names the ranks that have not joined. Calls of other workers may arrive before the function
 * returns, so a handler cannot rely on what the program does after it.
 *
 * *out receives the agent, on success only. End it with weft_agent_close, or weft_agent_stop. `options` may be NULL.
 * *error receives the detail of a failure; you release it. If `error` is NULL, the log has the detail.
 *
 * Returns WEFT_OK when the worker belongs to the job, or a negative status. After a failure *out is unchanged,
 * and only *error has to be released. Errors:
 *   WEFT_ERR_INVALID: a bad option or environment variable; or `elastic`, world_size or the secret differs from rank
 *   0's.
 *   WEFT_ERR_EXISTS: the rank, the name, the port of the store, all ports of a range, or the name of a function are
 *   taken already.
 *   WEFT_ERR_RENDEZVOUS: workers did not join in time; the error names their ranks.
 *   WEFT_ERR_PROTOCOL: the store has another version of the protocol.
 *   WEFT_ERR_JOB_ENDED: rank 0 has ended the job (weft_agent_end_job).
 *   WEFT_ERR_UNREACHABLE: there is no route to master_addr.
 *   WEFT_ERR_IO: trace_file or metrics_file cannot be written.
 *   WEFT_ERR_FABRIC, WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_open_sized(const weft_agent_options *options, size_t size,
                                                          size_t function_size, size_t bootstrap_size, weft_agent **out,
                                                          weft_error **error);
static inline WEFT_NODISCARD weft_status weft_agent_open(const weft_agent_options *options, weft_agent **out,
                                                         weft_error **error)
{
    return weft_agent_open_sized(options, sizeof(*options), sizeof(*options->functions), sizeof(*options->bootstrap),
                                 out, error);
}

/*
 * Serves calls of other workers until all of them are done, or until wait_ms has passed (WEFT_FOREVER: no limit).
 * Handlers run as at any other time; this function only waits. To find that all are done, the store asks every worker
 * twice. If wait_ms is too short for that, call the function again, with a longer one. With 0 the store is not asked.
 *   In a static job it returns when every other living worker closes its agent or is in weft_agent_serve too, and no
 *   call (including those of handlers) and no group operation is in flight. So workers that only serve do not wait
 *   for each other.
 *   In an elastic job it returns when rank 0 ends the job (weft_agent_end_job), however few workers there are.
 * The agent stays open: the program may read its statistics, make calls, serve again, and must close it.
 *
 * While this worker serves or closes, its batches do not wait for calls of workers that also serve or close
 * (weft/batch.h). Handlers of those workers may still call. A batch that shall wait for their calls needs
 * its option wait_us.
 *
 * Returns WEFT_OK in the two cases above, or
 *   WEFT_ERR_TIMEOUT: wait_ms has passed.
 *   WEFT_ERR_CANCELLED: weft_agent_wake.
 *   WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST: this worker no longer belongs to the job.
 *   WEFT_ERR_CLOSED: another thread has closed or stopped the agent. If the workers were done before, WEFT_OK.
 *   WEFT_ERR_STATE: another thread serves with this agent; or it is closing; or this is a child of fork().
 *   WEFT_ERR_DEADLOCK: the caller is a handler or continuation of this agent.
 *   WEFT_ERR_INVALID (NULL, wait_ms below WEFT_FOREVER), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_serve(weft_agent *agent, int64_t wait_ms);

/*
 * Leaves the job in order, ends the agent's threads and connections, and frees the agent. It serves calls while it
 * waits:
 *   In a static job, and on rank 0 of an elastic job, it waits until every living worker closes, and until no call
 *   (including those of handlers) and no group operation is in flight.
 *   Another worker of an elastic job announces at once that it is leaving (WEFT_MEMBER_LEAVING). Then it waits until
 *   its own calls are answered, its group operations have ended, the calls that it serves are finished, and their
 *   answers have arrived. New calls to it fail at their callers with WEFT_ERR_PEER_LEFT. For half a second this
 *   worker still serves two kinds of calls: those that were already sent, and those that a handler makes while it
 *   serves a call of this worker (option `parent`). After that these fail with WEFT_ERR_PEER_LEFT too.
 *   After weft_agent_end_job on rank 0 it waits for none of these, and returns WEFT_OK.
 *
 * It waits for timeout_ms at most. 0 and all negative values mean no limit, so do not pass a remaining time that may
 * be 0 or negative. When the time has passed, it logs what it still waited for, leaves as weft_agent_stop does (up
 * to 2 seconds on rank 0), and returns WEFT_ERR_TIMEOUT.
 *
 * It keeps waiting while a living worker does not close, a handler does not return, or a member has not called a
 * group operation. It also waits for deferred calls whose callers still wait. A group operation with WEFT_FOREVER
 * that a member never calls waits forever, even if that member closes its agent; weft_group_abort or
 * weft_group_close ends it. After 5 seconds (level info), and then every minute (level warn), the log names what it
 * waits for. weft_debug_dump, on another thread, shows all of it.
 *
 * RUNNING HANDLERS, continuations and membership events of this worker must return before the agent can be freed.
 * weft_agent_close and weft_agent_stop wait for them without a limit, also after timeout_ms. After a second the log
 * says so. Only the end of the process (_exit) ends a handler that never returns.
 *
 * THREE WAYS TO LEAVE. weft_agent_close waits until the job does not need this worker. weft_agent_stop leaves at once:
 * calls in flight fail. On rank 0, weft_agent_end_job tells all workers that the job is over; then weft_agent_close
 * does not wait for others. In an elastic job weft_agent_end_job also makes weft_agent_serve return on all workers.
 *
 * The agent is freed, whatever the function returns, with two exceptions: WEFT_ERR_DEADLOCK (the caller is a handler
 * or continuation of this agent) and WEFT_ERR_STATE (another thread ends the agent, or this is a child of fork). In
 * these two cases it has done nothing. It returns WEFT_OK, or the first failure: WEFT_ERR_TIMEOUT, WEFT_ERR_EVICTED,
 * WEFT_ERR_STORE_LOST, WEFT_ERR_BUSY (references are left: leaks_fail). NULL does nothing.
 *
 * ONE THREAD ends an agent. If another thread calls weft_agent_close meanwhile, that call does nothing and returns
 * WEFT_ERR_STATE. If another thread calls weft_agent_stop meanwhile, for example a watchdog, weft_agent_close waits no
 * longer: it ends the agent as weft_agent_stop does, and returns WEFT_ERR_CLOSED. The program must not pass the agent
 * to any function after it was freed.
 *
 * FORK. An agent belongs to the process that opened it. In a child of fork(), calls and weft_agent_close return
 * WEFT_ERR_STATE, waits return WEFT_ERR_DEADLOCK, and handles behave as after closing. weft_agent_find returns -1,
 * weft_agent_name returns NULL, statistics are 0, and weft_agent_stop does nothing. The parent's handlers and
 * continuations do not run in the child, and the parent's agent is not affected. Descriptors that the child inherited
 * close at exec.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_close(weft_agent *agent, int64_t timeout_ms);

/*
 * Ends the job, on rank 0 only, without waiting. Every worker, this one included, gets the event WEFT_MEMBER_JOB_ENDED
 * with the text `why` (NULL: none; up to 127 bytes are sent). When a worker has received the event:
 *   Calls that it made or serves, and its group operations, end with WEFT_ERR_JOB_ENDED. New ones fail with that
 *   code, which weft_agent_status then returns.
 *   Its weft_agent_close no longer waits for others, even if it was already waiting, and returns WEFT_OK. Remaining
 *   references are logged, but do not make it fail (leaks_fail).
 *   A worker that tries to join is rejected: weft_agent_open fails with WEFT_ERR_JOB_ENDED.
 * All workers must still close their agents. Rank 0's store then runs until the other workers have left, for at most
 * 2 seconds, or death_timeout_ms if that is shorter. A worker that cannot be reached in that time gets
 * WEFT_MEMBER_STORE_LOST.
 *
 * Returns WEFT_OK, even if the job was ended before; WEFT_ERR_STATE on any other rank, and in a child of fork();
 * WEFT_ERR_INVALID (NULL), WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST. Any thread, including those of handlers and
 * continuations.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_end_job(weft_agent *agent, const char *why);

/*
 * Leaves the job at once and frees the agent. If another thread is in weft_agent_close or weft_agent_stop, that thread
 * ends the agent, and this function returns at once. Outstanding calls fail with WEFT_ERR_CLOSED, calls of others with
 * WEFT_ERR_PEER_LEFT. In a handler or continuation of this agent the function logs an error and does nothing. Otherwise
 * it waits for handlers that run (weft_agent_close, RUNNING HANDLERS), and for two other things:
 *   At most half a second, until this worker's messages to members of groups have arrived. So a program may call it
 *   directly after a barrier: the other members still learn that the barrier is complete.
 *   On rank 0, until all other workers have left the job, at most 2 seconds, or death_timeout_ms if that is shorter. It
 *   waits that long if a worker does not leave or is stopped (SIGSTOP).
 */
WEFT_API void weft_agent_stop(weft_agent *agent);

/*
 * Interrupts waits. This is the only function of weft that a signal handler may call: it is async-signal-safe. Until
 * weft_agent_clear_wake is called, the functions below do not block: they return WEFT_ERR_CANCELLED, unless what
 * they wait for is complete. Threads that already wait in one of them return too.
 *   weft_future_wait, weft_future_wait_until, weft_future_wait_all, weft_future_wait_any of this agent's futures.
 *   weft_rpc_sync, weft_rref_rpc_sync, weft_rref_to_here: their call is cancelled. A handler of this worker may
 *   still read the arguments: keep the tensors of a call to this worker itself until the handler has returned.
 *   weft_rref_local_value, and the functions of a group that wait. A cancelled operation ends its group.
 *   weft_agent_serve.
 *   weft_agent_progress handles what is ready, and does not wait.
 * Not affected are: waits inside handlers, continuations, backward passes, data-parallel modules and optimizers; and
 * the functions that open, close or stop an agent, or open a group. A program can stop on SIGINT like this:
 *
 *     static weft_agent *the_agent; // set before the handler is installed
 *     static volatile int stops; // a volatile sig_atomic_t, see the C library's signal header
 *     static void on_sigint(int signal_number)
 *     {
 *         (void)signal_number;
 *         stops = 1;
 *         weft_agent_wake(the_agent);
 *     }
 *     static weft_status work(weft_future *result)
 *     {
 *         weft_status status = WEFT_OK;
 *         while (!stops && !weft_future_done(result))
 *             status = weft_future_wait(result, WEFT_FOREVER); // WEFT_ERR_CANCELLED after SIGINT
 *         return stops ? weft_agent_close(the_agent, WEFT_FOREVER) : status;
 *     }
 *
 * Block the signal, or restore its former handler, before the agent is freed. In the simulation only programs of the
 * simulation may call it, not signal handlers. NULL does nothing.
 */
WEFT_API void weft_agent_wake(weft_agent *agent);
/* Ends the effect of weft_agent_wake: later waits block again. Returns whether weft_agent_wake was in effect. Any
 * thread; not in a signal handler. */
WEFT_API bool weft_agent_clear_wake(weft_agent *agent);

/* ---- Workers. In these functions a living worker is one that has not left, is not leaving (WEFT_MEMBER_LEAVING) and
 * was not declared dead. A worker of an elastic job does not hear of workers that ended before it joined. ---- */

/* This worker's rank, and the number of ranks in the job. */
WEFT_API int weft_agent_rank(const weft_agent *agent);
WEFT_API int weft_agent_world_size(const weft_agent *agent);
/*
 * Writes which fabric a lane to the worker `rank` uses, or would use if it is not open: "tcp (verbs: no address of
 * worker 3)". In parentheses are reasons: first why some fabrics of weft_agent_options.fabric did not open here,
 * then why preferred ones that are open here are not used. A reason may contain parentheses. "none": the two workers
 * have no fabric in common. Writes at most `room` bytes with the NUL; a longer text is truncated. 600 bytes are
 * always enough. Errors:
 *   WEFT_ERR_INVALID: a NULL argument, this worker's own rank, an invalid rank or lane.
 *   WEFT_ERR_NOT_FOUND: this worker has not heard of a worker with that rank.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_fabric(const weft_agent *agent, int rank, weft_lane lane, char *out,
                                                      size_t room);
/*
 * Writes how a tensor on the device `from` of this worker would travel to the device `to` of the worker `rank`. The
 * reason why it does not travel in a faster way follows in parentheses: "staged through page-locked memory
 * (WEFT_GPU_TRANSPORT is staged)". Between CPUs it is "host memory", over the fabric that weft_agent_fabric names. To
 * this worker itself the tensor is passed on, or copied within the process. Writes at most `room` bytes with the NUL;
 * 200 are always enough. Errors:
 *   WEFT_ERR_INVALID: a NULL argument, an invalid rank, or a device that its worker does not have.
 *   WEFT_ERR_NOT_FOUND: this worker has not heard of a worker with that rank.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_transport(const weft_agent *agent, int rank, weft_device from,
                                                         weft_device to, char *out, size_t room);
/* The port of rank 0's store: the given one, or the free port that WEFT_ANY_PORT took. 0 in the simulation. */
WEFT_API int weft_agent_store_port(const weft_agent *agent);
/* The name of the worker that holds this rank, or held it last. Borrowed; valid and unchanged until the agent is freed.
 * NULL if the rank does not exist, if this worker has not heard of a worker with it, or if memory is out. */
WEFT_API const char *weft_agent_name(const weft_agent *agent, int rank);
/* The rank of the living worker with that name; -1 if there is none. */
WEFT_API int weft_agent_find(const weft_agent *agent, const char *name);
/* Whether the worker of a rank is living. */
WEFT_API bool weft_agent_alive(const weft_agent *agent, int rank);

/* Identifies a worker: its rank, and which of the successive holders of the rank it is. */
typedef struct weft_worker {
    int rank;
    uint32_t incarnation; /* numbered by the store, > 0 */
} weft_worker;
/* The worker that holds this rank, or held it last; incarnation 0 if this worker has not heard of one. */
WEFT_API void weft_agent_worker_sized(const weft_agent *agent, int rank, weft_worker *out, size_t size);
static inline weft_worker weft_agent_worker(const weft_agent *agent, int rank)
{
    weft_worker worker;
    weft_agent_worker_sized(agent, rank, &worker, sizeof(worker));
    return worker;
}
/* Lists at most `capacity` living workers by rank, this one included. Returns how many living workers there are. */
WEFT_API size_t weft_agent_workers_sized(const weft_agent *agent, weft_worker *out, size_t size, size_t capacity);
static inline size_t weft_agent_workers(const weft_agent *agent, weft_worker *out, size_t capacity)
{
    return weft_agent_workers_sized(agent, out, sizeof(*out), capacity);
}

/*
 * Begin and end a watch of the worker that now holds `rank`: weft detects its death within death_timeout_ms. Each watch
 * needs its own unwatch. Workers to which this worker has outstanding calls or handles are watched anyway. Errors:
 * WEFT_ERR_NOT_FOUND (this worker has not heard of a worker with that rank, or it is this worker), WEFT_ERR_PEER_DEAD,
 * WEFT_ERR_PEER_LEFT, WEFT_ERR_STATE (unwatch without a watch), or the code of weft_agent_status.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_watch(weft_agent *agent, int rank);
WEFT_API WEFT_NODISCARD weft_status weft_agent_unwatch(weft_agent *agent, int rank);

/* Why this worker no longer belongs to the job: WEFT_ERR_EVICTED, WEFT_ERR_STORE_LOST or
 * WEFT_ERR_JOB_ENDED. WEFT_OK if it still belongs to the job. */
WEFT_API weft_status weft_agent_status(const weft_agent *agent);

/* ---- Running and observing ---- */

/*
 * Handles everything that is ready, then waits up to wait_ms for more: for agents with no_threads. Returns the
 * number of events handled. Handlers and continuations run inside it, and inside waits of the calling thread. It reads
 * the network between two handlers if some milliseconds have passed, so that a long queue of handlers does not delay
 * heartbeats, time limits and urgent calls. A single handler must not run longer than death_timeout_ms, or the store
 * declares this worker dead.
 */
WEFT_API size_t weft_agent_progress(weft_agent *agent, int64_t wait_ms);

/* Sets the time limit of later calls without a limit of their own; 0: 60,000. WEFT_ERR_INVALID, with no change, if it
 * is below WEFT_FOREVER. */
WEFT_API WEFT_NODISCARD weft_status weft_agent_set_call_timeout(weft_agent *agent, int64_t timeout_ms);

/* The agent's clock in nanoseconds: CLOCK_MONOTONIC, or virtual time in the simulation. */
WEFT_API uint64_t weft_agent_now_ns(const weft_agent *agent);

/*
 * Prints what the agent holds as one JSON object. It has the workers, this worker's values with the workers that hold
 * handles to them, and its handles to values of others (confirmed or not). It also has the calls that this worker made
 * or serves, the groups with their operations, and contexts of distributed autograd and their passes.
 * Any thread, also in handlers. WEFT_ERR_IO, WEFT_ERR_MEMORY, WEFT_ERR_INVALID (NULL), WEFT_ERR_STATE (in a child of
 * fork).
 */
WEFT_API WEFT_NODISCARD weft_status weft_debug_dump(const weft_agent *agent, FILE *to);

/* Counters since the agent opened. */
typedef struct weft_stats {
    uint64_t calls_started;  /* calls that this worker made */
    uint64_t calls_finished; /* calls that this worker made and that are complete, with or without an error */
    uint64_t calls_failed;   /* calls that this worker made and that completed with an error */
    /* Calls whose handler ran here and has ended, with or without an error, including calls to this worker itself.
     * Calls that were rejected, or ended before their handler began, do not count. */
    uint64_t calls_served;
    uint64_t bytes_sent;     /* payload of tensors and values sent, large and small */
    uint64_t bytes_received; /* payload of tensors and values received */
    /* Payload that weft copied. Tensors of a call are copied into a message and out of it if together they have at
     * most 32 KiB (over tcp 128 KiB); these copies do not count. Other copies count: strings and bytes of more than
     * that, tensors copied to landing places in a call to this worker itself, and rows of batches (docs/batches.md). */
    uint64_t bytes_copied;
    uint64_t bytes_packed;     /* non-contiguous tensors, copied before sending */
    uint64_t frames_sent;      /* frames for messages; one frame may hold several messages */
    uint64_t frames_received;  /* the same, received */
    uint64_t connections_lost; /* connections that broke and were opened again */
    /* Connections and messages rejected because they were malformed or their sender could not authenticate itself.
     * Connections that sent no request within a second or two count too; in a large job some of them are of slow
     * members. On rank 0 those that the store rejected count as well. */
    uint64_t unauthenticated_refused;
    uint64_t calls_cancelled; /* calls served here whose callers gave up before the answer */
    /* Calls of others that were rejected because the memory budget was exhausted (not calls larger than the budget),
     * the queue of a batched function was full, memory was out, or all threads waited. */
    uint64_t calls_refused;
    uint64_t calls_retried; /* attempts of this worker's calls after the first */
    uint64_t bytes_held;    /* current: bytes that count against the memory budget */
    /* Rank 0: messages that its store received and sent, without heartbeats. A worker that joins takes 4 messages. */
    uint64_t rendezvous_messages;
} weft_stats;
/* Reads the counters; all 0 if `agent` is NULL. */
WEFT_API void weft_agent_stats_sized(const weft_agent *agent, weft_stats *out, size_t size);
static inline void weft_agent_stats(const weft_agent *agent, weft_stats *out)
{
    weft_agent_stats_sized(agent, out, sizeof(*out));
}

WEFT_END_C
#endif
