/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/sim.h - a simulated job in one thread: virtual time, seeded delays, deaths and partitions.
 *
 * A weft_sim is a world of workers. Each worker runs one or more programs as fibers of one thread: when a program
 * waits, others run. Nothing depends on the wall clock or on the machine's scheduler, so the same seed gives exactly
 * the same run. A program opens its agent with the options fabric = "sim" and sim = the world.
 *
 *     static void worker(weft_sim *sim, int rank, void *arg)
 *     {
 *         (void)arg;
 *         weft_agent *agent;
 *         if (!weft_agent_open(&(weft_agent_options){.fabric = "sim", .sim = sim, .has_rank = true, .rank = rank,
 *                                                    .world_size = 2, .master_port = 1},
 *                              &agent, NULL))
 *             (void)weft_report(weft_agent_close(agent, WEFT_FOREVER));
 *     }
 *     weft_status two_workers(uint64_t seed)
 *     {
 *         weft_sim *sim = NULL;
 *         weft_status status = weft_sim_open(&(weft_sim_options){.seed = seed}, &sim, NULL);
 *         if (!status)
 *             status = weft_sim_spawn(sim, 0, worker, NULL);
 *         if (!status)
 *             status = weft_sim_spawn(sim, 1, worker, NULL);
 *         if (!status)
 *             status = weft_sim_run(sim, 60000); // at most 60 virtual seconds
 *         weft_sim_close(sim);
 *         return status;
 *     }
 *
 * LINKING. libweft has no simulation. Link libweft_sim instead (-lweft_sim, weft::weft_sim in CMake, weft_sim for
 * pkg-config): it has the functions of this header, and all of libweft. If a library of yours links libweft, name
 * weft_sim before it: the first of the two libraries counts.
 *
 * FABRICS. Each worker can open one fabric of each kind:
 *
 *   "sim"        announces every broken and every closed connection.
 *   "sim-verbs"  needs registered memory. Breaks are not announced: a sender detects one after about 400 ms.
 *   "sim-reads"  offers remote reads, but no remote writes.
 *   "sim-rdm"    announces neither breaks nor closes: a sender detects a break after about 2 s. Reads complete in any
 *                order.
 *
 * THREADS. One thread at a time may use a world and everything in it.
 */
#ifndef WEFT_SIM_H
#define WEFT_SIM_H

#include <weft/status.h>

WEFT_BEGIN_C

/* Options of weft_sim_open. */
typedef struct weft_sim_options {
    uint64_t seed;
    uint64_t latency_min_ns;   /* the shortest latency of a message; default 2,000 */
    uint64_t latency_max_ns;   /* the longest latency of a message; default 20,000 */
    uint64_t bytes_per_second; /* the bandwidth of a connection; default 10 GB/s */
    size_t stack_bytes;        /* the stack of a fiber; default 256 KiB */
    int ranks_per_host;        /* how many consecutive ranks count as processes of one host; default 1 */
} weft_sim_options;

/* Creates a world. End it with weft_sim_close. `options` NULL: the defaults. WEFT_ERR_MEMORY. */
WEFT_API WEFT_NODISCARD weft_status weft_sim_open_sized(const weft_sim_options *options, size_t size, weft_sim **out,
                                                        weft_error **error);
static inline WEFT_NODISCARD weft_status weft_sim_open(const weft_sim_options *options, weft_sim **out,
                                                       weft_error **error)
{
    return weft_sim_open_sized(options, sizeof(*options), out, error);
}
/* Frees a world. All programs must have ended or been killed. NULL does nothing. */
WEFT_API void weft_sim_close(weft_sim *sim);

/* Adds a program to worker `rank`. It begins inside weft_sim_run. */
typedef void (*weft_sim_program)(weft_sim *sim, int rank, void *arg);
WEFT_API WEFT_NODISCARD weft_status weft_sim_spawn(weft_sim *sim, int rank, weft_sim_program program, void *arg);

/*
 * Runs the world until every program has ended, and then returns, even if agents still have work. limit_ms bounds the
 * virtual time, counted from the start of the world; WEFT_FOREVER: no limit. After a failure you may change the world
 * (weft_sim_heal, weft_sim_resume ...) and run it again. Errors:
 *   WEFT_ERR_TIMEOUT: virtual time passed limit_ms.
 *   WEFT_ERR_DEADLOCK: programs wait, and no event is left. Heartbeats of agents are events, but agents send them only
 *   while they need them. So pass a limit: a program that hangs then causes this error or WEFT_ERR_TIMEOUT.
 *   WEFT_ERR_STATE: called inside a program.
 *   WEFT_ERR_MEMORY: the world ran out of memory.
 */
WEFT_API WEFT_NODISCARD weft_status weft_sim_run(weft_sim *sim, int64_t limit_ms);

/* For programs: the virtual time since the start of the world, and a wait in virtual time. weft_sim_now returns
 * nanoseconds. weft_sim_sleep waits until `ns` nanoseconds have passed. */
WEFT_API uint64_t weft_sim_now(const weft_sim *sim);
WEFT_API void weft_sim_sleep(weft_sim *sim, uint64_t ns);

/* ---- Faults of workers and links. These functions do nothing if `sim` is NULL, if a rank is invalid, or if the state
 * is already the wanted one. If memory is out, weft_sim_run returns WEFT_ERR_MEMORY from then on. ---- */

/*
 * Stops a worker as SIGKILL does: its programs never run again, and its connections close. Memory that
 * its programs allocated stays allocated; a leak checker counts it as reachable. A program that kills its own worker
 * does not return from this function. weft_sim_spawn may then start a new program at this rank.
 */
WEFT_API void weft_sim_kill(weft_sim *sim, int rank);
/* Stop and continue a worker as SIGSTOP and SIGCONT do. A stopped worker sends nothing; its connections stay open. */
WEFT_API void weft_sim_pause(weft_sim *sim, int rank);
WEFT_API void weft_sim_resume(weft_sim *sim, int rank);
/* Cut the link between two workers in both directions, and heal it. Messages in flight arrive after the link is healed.
 * Exception: connections of "sim-verbs" and "sim-rdm" may break while the link is cut. A cut between a worker and rank
 * 0 also separates the worker from the store, which may then declare it dead (docs/failures.md). */
WEFT_API void weft_sim_cut(weft_sim *sim, int a, int b);
WEFT_API void weft_sim_heal(weft_sim *sim, int a, int b);
/* Breaks all connections between two workers, as a TCP reset does; the workers may connect again. On "sim-verbs" and
 * "sim-rdm", a worker detects the break only when it sends. Connections to the store are not affected, because the
 * store takes a lost connection as evidence of a death. */
WEFT_API void weft_sim_reset_link(weft_sim *sim, int a, int b);

/* ---- Faults of a fabric. Its kind is named as in weft_agent_options.fabric ("sim-verbs"). The worker's other fabrics,
 * its connection to the store and its programs continue. A call that repeats an earlier one does nothing. Errors:
 * WEFT_ERR_INVALID (NULL, no such rank or fabric, or `from` equal to `to`), WEFT_ERR_MEMORY. ---- */

/*
 * Make the fabric fail at a worker, and repair it. weft_sim_fabric_fail makes the fabric fail at this worker, as a
 * network adapter does. The fabric's connections break, and agents that are opened later cannot open the fabric.
 * weft_sim_fabric_repair makes the fabric work again; connections that broke stay broken, and new ones can be made.
 */
WEFT_API WEFT_NODISCARD weft_status weft_sim_fabric_fail(weft_sim *sim, int rank, const char *fabric);
WEFT_API WEFT_NODISCARD weft_status weft_sim_fabric_repair(weft_sim *sim, int rank, const char *fabric);
/* Cut the fabric from worker `from` to worker `to`, in this direction only, and heal it. Packets in flight arrive after
 * the fabric is healed. Exception: connections of "sim-verbs" and "sim-rdm" may break while the fabric is cut. */
WEFT_API WEFT_NODISCARD weft_status weft_sim_fabric_cut(weft_sim *sim, int from, int to, const char *fabric);
WEFT_API WEFT_NODISCARD weft_status weft_sim_fabric_heal(weft_sim *sim, int from, int to, const char *fabric);
/* Makes the fabric refuse to register memory at this worker while `refuse` is true, as if `ulimit -l` were exhausted. A
 * call with `refuse` false ends this. Connections and registrations that exist continue. */
WEFT_API WEFT_NODISCARD weft_status weft_sim_fabric_refuse_memory(weft_sim *sim, int rank, const char *fabric,
                                                                  bool refuse);

/* ---- Comparing runs ---- */

/* A hash of all events: the same seed and the same programs give the same hash. */
WEFT_API uint64_t weft_sim_trace_hash(const weft_sim *sim);

WEFT_END_C
#endif
