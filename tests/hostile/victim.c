/* SPDX-License-Identifier: Apache-2.0 */
/*
 * victim.c - a worker of the attacked job. Each calls the other two without end, with small arguments, with tensors
 * that go by the bulk lane, and over a control lane that it has just closed itself, so that a new one must be asked
 * for. Rank 0 starts the others by weft_job_open, as programs do.
 */
#include "board.h"
#include "children.h"
#include "tensors.h"

#include <weft/metrics.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NUMEL 8192
#define PAUSE_NS 1500000
#define TIMEOUT_MS 20000

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + weft_call_i64(call, 1))));
    return WEFT_OK;
}

static weft_status run_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

/* What strangers of the job may call with anything. */
static weft_status run_any(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64((int64_t)weft_call_count(call))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_echo},
    {.name = "any", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_I64}, .run = run_any},
};

typedef struct worker {
    board *at;
    victim *me;
    weft_agent *agent;
    int rank;
    weft_tensor *x;
    weft_rref *rref; /* to a value of another's: others would like to drop it */
} worker;

static void complain(worker *w, const char *what, weft_status status, weft_error *error)
{
    if (atomic_fetch_add(&w->me->wrong, 1) == 0)
        snprintf(w->me->trouble, sizeof(w->me->trouble), "rank %d: %s: %s: %s", w->rank, what, weft_status_name(status),
                 error ? weft_error_message(error) : "");
    weft_error_unref(error);
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

static void call_add(worker *w, int to, int64_t n)
{
    weft_error *error = NULL;
    weft_values *out = NULL;
    int64_t sum = 0;
    weft_status status =
        weft_rpc_sync(w->agent, weft_to_rank(to), "add", WEFT_VALUES(weft_of_i64(n), weft_of_i64(w->rank)),
                      &(weft_rpc_options){.timeout_ms = TIMEOUT_MS, .error = &error}, &out);
    if (!status)
        status = weft_values_get_i64(out, 0, &sum);
    if (status || sum != n + w->rank)
        complain(w, "add", status, error);
    weft_values_unref(out);
}

static void call_echo(worker *w, int to)
{
    weft_error *error = NULL;
    weft_values *out = NULL;
    weft_tensor *y = NULL;
    weft_status status = weft_rpc_sync(w->agent, weft_to_rank(to), "echo", WEFT_VALUES(weft_of_tensor(w->x)),
                                       &(weft_rpc_options){.timeout_ms = TIMEOUT_MS, .error = &error}, &out);
    if (!status)
        status = weft_values_get_tensor(out, 0, &y);
    if (status || weft_tensor_nbytes(y) != weft_tensor_nbytes(w->x) ||
        memcmp(weft_tensor_data(y), weft_tensor_data(w->x), weft_tensor_nbytes(y)) != 0)
        complain(w, "echo", status, error);
    weft_values_unref(out);
}

static void call_fetch(worker *w)
{
    weft_values *out = NULL;
    int64_t value = 0;
    weft_status status = weft_rref_to_here(w->rref, TIMEOUT_MS, &out, NULL);
    if (!status)
        status = weft_values_get_i64(out, 0, &value);
    if (status || value != 40 + w->rank)
        complain(w, "fetch", status, NULL);
    weft_values_unref(out);
}

/* Our lane to the next worker goes; what we say next opens another. */
static void sever(worker *w, int to)
{
    wfi_net *net = inside_net(w->agent);
    wfi_net_lock(net);
    wfi_conn *conn = inside_up(net, to, WFI_CONTROL);
    if (conn)
        wfi_conn_close(conn);
    wfi_net_unlock(net);
}

static void record(worker *w, unsigned at, sample_kind kind, uint64_t ns)
{
    window *win = &w->me->windows[at % WINDOWS][kind];
    unsigned n = atomic_fetch_add(&win->count, 1);
    if (n < SAMPLES)
        win->us[n] = (uint32_t)(ns / 1000);
}

static void one_call(worker *w, int64_t n)
{
    sample_kind kind = n % 6 == 5 ? REACH : CALL;
    int to = kind == REACH ? (w->rank + 1) % VICTIMS : (w->rank + 1 + (int)(n % 2)) % VICTIMS;
    if (kind == REACH)
        sever(w, to);
    unsigned at = atomic_load(&w->at->now);
    atomic_store(&w->me->seen, at);
    uint64_t began = wfi_now(&wfi_clock_real);
    if (n % 6 == 2)
        call_echo(w, to);
    else if (n % 6 == 4)
        call_fetch(w);
    else
        call_add(w, to, n);
    record(w, at, kind, wfi_now(&wfi_clock_real) - began);
    atomic_fetch_add(&w->me->calls, 1);
}

/* ---- What the board tells ------------------------------------------------------------------------------------- */

static void publish(worker *w)
{
    weft_stats stats;
    weft_agent_stats(w->agent, &stats);
    atomic_store(&w->me->refused, stats.unauthenticated_refused);
    atomic_store(&w->me->held_bytes, stats.bytes_held);
}

/* The very bytes with which rank 0 asked for its lane to rank 1, once. */
static void record_request(worker *w)
{
    wfi_net *net = inside_net(w->agent);
    wfi_hello hello;
    if (w->rank != 0 || atomic_load(&w->at->recorded_size))
        return;
    wfi_net_lock(net);
    const wfi_conn *conn = inside_up(net, 1, WFI_CONTROL);
    if (conn && inside_hello_of(conn, &hello))
        atomic_store(&w->at->recorded_size,
                     (int)inside_write_hello(net, &hello, NULL, wfi_net_member(net, 1), w->at->recorded));
    wfi_net_unlock(net);
}

static void introduce(worker *w)
{
    wfi_net *net = inside_net(w->agent);
    w->me->member = *wfi_net_member(net, w->rank);
    w->me->keys = *inside_net_keys(net);
    if (w->rank == 0)
        memcpy(w->at->job_key, w->me->keys.job, sizeof(w->at->job_key));
    atomic_store(&w->me->ready, (int)getpid());
}

static bool all_are_here(const worker *w)
{
    for (int rank = 0; rank < VICTIMS; rank++)
        if (!weft_agent_alive(w->agent, rank))
            return false;
    return true;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

static void work(worker *w)
{
    while (!all_are_here(w) && !atomic_load(&w->at->stop))
        nap();
    w->x = tensor_arange(NUMEL, WEFT_DTYPE_FLOAT32);
    weft_status status = weft_rpc_remote(w->agent, weft_to_rank((w->rank + 1) % VICTIMS), "add",
                                         WEFT_VALUES(weft_of_i64(40), weft_of_i64(w->rank)), NULL, &w->rref);
    if (status)
        complain(w, "remote", status, NULL);
    introduce(w);
    for (int64_t n = 0; !atomic_load(&w->at->stop) && !status; n++) {
        one_call(w, n);
        record_request(w);
        if (n % 16 == 0)
            publish(w);
        nap();
    }
    publish(w);
    weft_rref_unref(w->rref);
    weft_tensor_unref(w->x);
}

/* ---- Life ----------------------------------------------------------------------------------------------------- */

static int open_and_work(board *at, weft_job *job)
{
    worker w = {.at = at};
    weft_error *error = NULL;
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .job = job,
                                  .elastic = true,
                                  .no_binding = true,
                                  .threads = 2,
                                  .death_timeout_ms = 30000,
                                  .memory_budget_bytes = (size_t)64 << 20};
    if (weft_agent_open(&options, &w.agent, &error)) {
        fprintf(stderr, "victim: %s\n", weft_error_message(error));
        return 3;
    }
    w.rank = weft_agent_rank(w.agent);
    w.me = &at->victims[w.rank];
    work(&w);
    weft_status status = weft_agent_close(w.agent, WEFT_FOREVER);
    if (status)
        fprintf(stderr, "victim %d: close: %s\n", w.rank, weft_status_name(status));
    return status ? 4 : 0;
}

int be_victim(void)
{
    board *at = child_memory(sizeof(*at));
    const char *rank = getenv("RANK");
    const char *argv[] = {"hostile", "victim", NULL};
    weft_job_options spawn = {.count = SEATS - 1, .argv = argv};
    weft_job *job = NULL;
    if (rank)
        return atoi(rank) < VICTIMS ? open_and_work(at, NULL) : 0; /* the other seats stay free */
    if (weft_job_open(&spawn, &job, NULL))
        return 5;
    at->port = wfi_job_port(job);
    at->secret = *wfi_job_secret(job);
    int code = open_and_work(at, job), worst = 0;
    weft_status status = weft_job_close(job, 20000, &worst);
    return code ? code : status ? 6 : worst;
}
