/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - one job on one fabric, as the measuring worker uses it, and helpers of all measurements: alternation with
 * the floor, calls with error messages, results with the names of the fabrics.
 *
 * Everything here runs in the process of a task (task.h). A function that returns false has called task_fail.
 */
#ifndef WEFT_PERF_BENCH_H
#define WEFT_PERF_BENCH_H

#include "perf/floors.h"
#include "perf/peers.h"
#include "perf/service.h"

#include <weft/job.h>

typedef struct bench {
    const settings *o;
    task_end *to;
    const char *list; /* the fabrics, as weft_agent_options.fabric has them */
    char fabric[32];  /* the same for people: "host+tcp" */
    weft_job *job;    /* NULL: the other side is another weft-perf, at rank 0 */
    weft_agent *agent;
    int peer;             /* the rank of the other side */
    int world;            /* workers of the job that can be measured: 2 if the other side is remote */
    floors *floors;       /* NULL: none, or it has failed */
    peers *peers;         /* NULL: none */
    double first_call_us; /* of the call that opened the connection */
    char absent[700];     /* why bench_open found no common fabric */
} bench;

/* Passes a large tensor to the peer. False: no fabric can carry it; `why` then has the reason. Other failures are not
 * reported here. `b` must be open. */
bool bench_try_bulk(bench *b, char *why, size_t room);
/* Opens the floors and peers (`has_helpers`) and a local job, or joins the job of --to; then makes the first call. On
 * false, *is_absent means that the two sides have no common fabric here, and no message was sent: b->absent is the
 * sentence. Otherwise task_fail was called. */
bool bench_open(bench *b, const settings *o, task_end *to, const char *list, int workers, bool has_helpers,
                bool *is_absent);
/* Ends the job, and returns whether all went well. If `ok` is false, a failure came before, and the job is ended at
 * once. */
bool bench_close(bench *b, bool ok);

/* One call, waited for. `land` is for its result, NULL: none. */
bool bench_call(bench *b, int rank, const char *function, weft_args arguments, weft_tensor *land);
/* task_fail with the text "calling take of worker 1 over tcp: ...". Releases `error`. Returns false. */
bool bench_fail(bench *b, const char *function, int rank, weft_status status, weft_error *error);
/* Waits for a started call, copies its two results to `out` (NULL: none), and releases `future`. */
bool bench_wait(bench *b, const char *function, int rank, weft_future *future, double out[2]);

/* One quantity, measured in slices that alternate with slices of its floor and of the peers. */
typedef struct probe {
    bench *b;
    size_t bytes;
    const char *function;
    unsigned window, threads;
    int other;     /* free for the measurement's own use */
    double one_us; /* the same; 0 at first */
    weft_tensor *there, *back;
    bool (*ours)(struct probe *p, double us, series *out);
    bool has_floor;
    floor_kind floor;
    size_t floor_bytes;
} probe;
/* Warms up, measures for the seconds of the settings, sends the result and those of the peers. */
bool bench_measure(probe *p, result *r);
/* Sends a result, with the fabrics of both lanes to the other side. */
void bench_put(bench *b, result *r);

/* The measurements, one a file. */
bool measure_latency(bench *b);
bool measure_bandwidth(bench *b);
bool measure_rate(bench *b);
bool measure_incast(bench *b);
bool measure_beside(bench *b);
bool measure_collectives(bench *b);
bool measure_device(bench *b);

/* Small calls alone, and beside echoes of `there` into `back`, as results of the measurement. */
bool beside_run(bench *b, const char *measure, weft_tensor *there, weft_tensor *back);

/* Memory of this process before the job opens (-1: unknown), and memory that libfabric alone takes (NaN: the fabric
 * does not use libfabric). memory_read_before forks. */
typedef struct memory_before {
    long kib;
    double libfabric_kib;
} memory_before;
memory_before memory_read_before(const char *list);
bool measure_memory(bench *b, const memory_before *before);

#endif
