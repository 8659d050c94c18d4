/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kills.h - a job whose workers are killed in the middle of everything, one after the other (kills.c says how).
 *
 * Rank 0 drives and survives. Rank 1 survives as well: it calls everybody without pause and checks what it gets.
 * Ranks 2 and 3 are killed, or stopped for longer than the bound, and come again.
 *
 * Or nobody is killed: while all are stopped for less than the bound, or run under a processor quota, rank 0 sends
 * large tensors to and fro, and cancels many of the calls.
 */
#ifndef TESTS_FAULTS_KILLS_H
#define TESTS_FAULTS_KILLS_H

#include "children.h"
#include "rpc/must.h"

#include <weft/weft.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SEATS 4
#define FIRST_VICTIM 2
#define LARGE 262144 /* elements of a tensor that is under way when a worker dies: 1 MiB */

/* What every worker serves, and what has become of it. */
extern const weft_function kill_functions[];
extern const size_t kill_function_count;

typedef struct kill_counters {
    atomic_int held;    /* calls taken, whose callers are alive */
    atomic_int objects; /* made for others, and not dropped */
    atomic_int dead, joined, evicted;
    atomic_llong right; /* calls of the bystander that were answered well */
    atomic_bool quit;
} kill_counters;
extern kill_counters counters;

void kill_count_member(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);
/* The same for every worker. The bound is that of deaths by silence: the survivors share a busy machine. */
typedef struct kill_options {
    int port, bound_ms;
    bool elastic;
} kill_options;

/* NULL: it was declared dead before it was open, which only victims may be. */
weft_agent *kill_open(int rank, const kill_options *options);

/* What a worker costs, as it says itself when it has nothing to do. */
typedef struct kill_footprint {
    size_t in_use; /* bytes of malloc, in all arenas: the least of a few looks, as calls come and go */
    size_t private_dirty_kb, descriptors, threads;
    size_t dump_bytes; /* of weft_debug_dump: what stands in its tables */
} kill_footprint;
kill_footprint kill_footprint_of(weft_agent *agent);
/* The other ranks' programs. */
int kill_serve(int rank, const kill_options *options);

/* Everything that can be under way with a worker when it dies. */
typedef struct kill_mess kill_mess;
kill_mess *kill_mess_begin(weft_agent *agent, int victim, unsigned shape);
/* After the death: waits for the end of all, each of a kind that fits; returns the milliseconds that it took. */
double kill_mess_end(kill_mess *mess);

/* Calls with large arguments and results of rank 0's, on threads of their own, checked; many are cancelled. */
typedef struct kill_pulls kill_pulls;
kill_pulls *kill_pulls_begin(weft_agent *agent, uint64_t seed);
int kill_pulls_ended(kill_pulls *pulls); /* calls so far */
void kill_pulls_end(kill_pulls *pulls);
weft_status kill_run_pattern(weft_call *call, void *user);
weft_status kill_run_keep_pattern(weft_call *call, void *user);
weft_status kill_run_verify(weft_call *call, void *user);

/* So many stops of one process at a time, half of them of rank 0, by a child that exits with 0 then. */
typedef struct kill_stops {
    uint64_t seed;
    int count, low_ms, high_ms;
} kill_stops;
child kill_stops_begin(const kill_stops *stops, const child workers[SEATS]);

/* Every process may run for so much of each second. */
typedef struct kill_quota {
    int ms_a_second;
    char root[40], folders[SEATS][80];
    int made; /* control groups */
    child imitator;
} kill_quota;
const char *kill_quota_begin(kill_quota *quota, const child workers[SEATS]); /* says by what means */
void kill_quota_end(kill_quota *quota, const child workers[SEATS]);

double kill_now_ms(void);
#define END_MS 60000 /* for anything to end: far more than the bound, as the machine may be busy */
/* Waits until it has the value; false after END_MS. */
bool kill_await(atomic_int *counter, int value);

#endif
