/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/sim.h - a simulated job in one thread: virtual time, seeded delays, deaths and partitions.
 *
 * Programs run as fibers of one thread, one or more a worker; a call that waits gives way to the others. Nothing depends
 * on the wall clock or on the machine's scheduler, so a seed replays exactly. Open agents inside programs with
 * weft_agent_options.fabric = "sim" and .sim = the world.
 * One thread at a time may use a world and everything in it.
 */
#ifndef WEFT_SIM_H
#define WEFT_SIM_H

#include <weft/status.h>

WEFT_BEGIN_C

typedef struct weft_sim_options {
    uint64_t seed;
    uint64_t latency_min_ns;   /* of one message; default 2,000 */
    uint64_t latency_max_ns;   /* default 20,000 */
    uint64_t bytes_per_second; /* of one lane; default 10 GB/s */
    size_t stack_bytes;        /* of a fiber; default 256 KiB */
} weft_sim_options;

WEFT_API weft_sim *weft_sim_create(const weft_sim_options *options);
/* All programs must have ended or been killed. NULL is a no-op. */
WEFT_API void weft_sim_destroy(weft_sim *sim);

/* Starts a program of worker `rank`; it begins to run inside weft_sim_run. */
typedef void (*weft_sim_program)(weft_sim *sim, int rank, void *arg);
WEFT_API WEFT_NODISCARD weft_status weft_sim_spawn(weft_sim *sim, int rank, weft_sim_program program, void *arg);

/*
 * Runs until every program has ended; what agents do in the background keeps no world running. WEFT_ERR_DEADLOCK if some
 * still wait and nothing is left that could happen; WEFT_ERR_TIMEOUT when virtual time, counted from the start of the
 * world, passes limit_ms (WEFT_FOREVER: no limit). Open agents have heartbeats, so with them something can always happen:
 * give a limit, and a hang shows as WEFT_ERR_TIMEOUT. WEFT_ERR_STATE from inside a program; WEFT_ERR_MEMORY if the world
 * ran out of it. After any failure the world may be helped (healed, resumed) and run again.
 */
WEFT_API WEFT_NODISCARD weft_status weft_sim_run(weft_sim *sim, int64_t limit_ms);

/* For programs: virtual nanoseconds since the start; give way for so long. */
WEFT_API uint64_t weft_sim_now(const weft_sim *sim);
WEFT_API void weft_sim_sleep(weft_sim *sim, uint64_t ns);

/*
 * The worker stops as by SIGKILL: its fibers never run again, its connections close, and what its programs had allocated
 * stays allocated (leak checkers count it as reachable). A program that kills its own worker does not return from here.
 * weft_sim_spawn may give the rank another life.
 */
WEFT_API void weft_sim_kill(weft_sim *sim, int rank);
/* As by SIGSTOP and SIGCONT: silence, connections stay. */
WEFT_API void weft_sim_pause(weft_sim *sim, int rank);
WEFT_API void weft_sim_resume(weft_sim *sim, int rank);
/* Cuts or heals the link between two workers, both ways; what was under way arrives after the healing. */
WEFT_API void weft_sim_cut(weft_sim *sim, int a, int b);
WEFT_API void weft_sim_heal(weft_sim *sim, int a, int b);
/* Breaks every lane between two workers, as a reset would; they may connect again. Links to the store stay: losing one of
 * these is evidence of a death. */
WEFT_API void weft_sim_reset_link(weft_sim *sim, int a, int b);

/* A fingerprint of everything that has happened: equal seeds and programs give equal ones. */
WEFT_API uint64_t weft_sim_trace_hash(const weft_sim *sim);

WEFT_END_C
#endif
