/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.h - the functions that each worker of weft-perf serves, and the loops that both sides share.
 *
 * "inline" and "executor" do nothing. "take" gets a tensor, and "echo" gives it back. "stream" calls a function of
 * another worker for some time. "collect" takes part in operations of a group. "leave" ends a worker of this host.
 */
#ifndef WEFT_PERF_SERVICE_H
#define WEFT_PERF_SERVICE_H

#include "common/measure.h"

#include <weft/group.h>
#include <weft/rpc.h>

extern const weft_function service_functions[];
extern const size_t service_function_count;

/* The main function of a worker that weft-perf started on this host: serves until "leave". Returns the exit code. */
int service_serve(void);

#define SERVICE_WINDOW_MAX 256
#define SERVICE_CALL_MS 20000 /* timeout of a call; far longer than any call takes */

/* Calls of one function, `window` in flight, for some time. */
typedef struct service_stream {
    weft_agent *agent;
    int to;
    const char *function;
    weft_tensor *tensor; /* the argument; NULL: none */
    unsigned window;
    double us;             /* time after which no further call starts, in microseconds */
    double calls, took_us; /* number of completed calls, and the time they took */
    weft_status status;
    weft_error *error; /* detail of a failure; the caller releases it */
} service_stream;
void service_stream_run(service_stream *s);

/* Operations of groups. */
enum {
    BARRIER,
    ALLREDUCE,
    BROADCAST,
    ALLGATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    REDUCE,
    GATHER,
    SCATTER,
    COLLECTIVES_COUNT
};
extern const char *const service_collective_names[COLLECTIVES_COUNT];

/*
 * Runs a barrier, one operation that is not timed, and then `count` timed operations, one after another, in a group.
 * The group has the ranks 0 to world - 1; if the measuring worker `by` is not rank 0, the ranks 0 and `by`. `bytes` is
 * the size of the longer tensor of a member. `out` receives each one's microseconds; NULL: none.
 */
weft_status service_collect(weft_agent *agent, int operation, size_t bytes, int64_t count, int world, int by,
                            series *out);

#endif
