/* SPDX-License-Identifier: Apache-2.0 */
/* service.c - see service.h. */
#include "perf/service.h"

#include <pthread.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

const char *const service_collective_names[COLLECTIVES_COUNT] = {
    "barrier",    "allreduce",       "broadcast, barrier", "allgather",       "reduce_scatter",
    "all_to_all", "reduce, barrier", "gather, barrier",    "scatter, barrier"};

/* ---- Calls of one worker to another ----------------------------------------------------------------------------- */

static weft_status start_call(service_stream *s, weft_future **slot)
{
    weft_rpc_options options = {.wait_for_room = true, .timeout_ms = SERVICE_CALL_MS, .error = &s->error};
    weft_args none = WEFT_NO_VALUES, one = WEFT_VALUES(weft_of_tensor(s->tensor));
    return weft_rpc_async(s->agent, weft_to_rank(s->to), s->function, s->tensor ? one : none, &options, slot);
}

void service_stream_run(service_stream *s)
{
    weft_future *flying[SERVICE_WINDOW_MAX] = {0};
    unsigned long started = 0, ended = 0;
    double start = measure_now_us(), end = start + s->us;
    for (s->status = WEFT_OK; !s->status && started < s->window; started += !s->status)
        s->status = start_call(s, &flying[started]);
    while (ended < started) { /* the oldest first */
        weft_future **slot = &flying[ended++ % s->window];
        weft_status status = weft_future_wait(*slot, WEFT_FOREVER);
        if (status && !s->status) {
            s->status = status;
            s->error = weft_error_ref(weft_future_error(*slot));
        }
        weft_future_unref(*slot);
        if (s->status || measure_now_us() >= end)
            continue;
        s->status = start_call(s, slot);
        started += !s->status;
    }
    s->calls = (double)ended;
    s->took_us = measure_now_us() - start;
}

/* ---- Operations of groups --------------------------------------------------------------------------------------- */

typedef struct tensors { /* of one member */
    weft_tensor *whole, *part;
    weft_tensor *other; /* as large as `whole` */
} tensors;

static weft_status operate_once(weft_group *group, int operation, const tensors *t)
{
    switch (operation) {
    case BARRIER:
        return weft_group_barrier(group, SERVICE_CALL_MS);
    case ALLREDUCE:
        return weft_group_allreduce(group, t->whole, WEFT_OP_SUM, SERVICE_CALL_MS);
    case BROADCAST:
        return weft_group_broadcast(group, t->whole, 0, SERVICE_CALL_MS);
    case ALLGATHER:
        return weft_group_allgather(group, t->part, t->whole, SERVICE_CALL_MS);
    case REDUCE_SCATTER:
        return weft_group_reduce_scatter(group, t->whole, t->part, WEFT_OP_SUM, SERVICE_CALL_MS);
    case ALL_TO_ALL:
        return weft_group_all_to_all(group, t->whole, t->other, SERVICE_CALL_MS);
    case REDUCE:
        return weft_group_reduce(group, t->whole, WEFT_OP_SUM, 0, SERVICE_CALL_MS);
    case GATHER:
        return weft_group_gather(group, t->part, t->whole, 0, SERVICE_CALL_MS);
    case SCATTER:
        return weft_group_scatter(group, t->whole, t->part, 0, SERVICE_CALL_MS);
    default:
        return WEFT_ERR_INVALID;
    }
}

/* An operation with a root ends on some members before the others have their data. So a barrier follows, and is timed
 * too. */
static weft_status operate(weft_group *group, int operation, const tensors *t)
{
    bool has_root = operation == BROADCAST || operation == REDUCE || operation == GATHER || operation == SCATTER;
    weft_status status = operate_once(group, operation, t);
    return status || !has_root ? status : weft_group_barrier(group, SERVICE_CALL_MS);
}

static weft_status open_group(weft_agent *agent, int world, int by, weft_group **out)
{
    int ranks[256];
    if (world < 2 || world > (int)COUNT(ranks) || (by != 0 && world != 2))
        return WEFT_ERR_INVALID;
    for (int i = 0; i < world; i++)
        ranks[i] = by != 0 && i == 1 ? by : i;
    return weft_group_open(agent, "weft-perf", ranks, (size_t)world, 0, out, NULL);
}

static weft_status time_operations(weft_group *group, int operation, const tensors *t, int64_t count, series *out)
{
    weft_status status = weft_group_barrier(group, SERVICE_CALL_MS);
    if (!status)
        status = operate(group, operation, t); /* connections and memory are there */
    for (int64_t i = 0; i < count && !status; i++) {
        double start = measure_now_us();
        status = operate(group, operation, t);
        if (out && !status)
            series_add(out, measure_now_us() - start);
    }
    return status;
}

weft_status service_collect(weft_agent *agent, int operation, size_t bytes, int64_t count, int world, int by,
                            series *out)
{
    weft_group *group = NULL;
    int64_t part = (int64_t)(bytes / 4) / world;
    bool is_whole = operation == ALLREDUCE || operation == BROADCAST || operation == REDUCE;
    int64_t all = is_whole ? (int64_t)(bytes / 4) : part * world;
    tensors t = {NULL};
    weft_status status = weft_tensor_zeros(WEFT_SHAPE(all), WEFT_DTYPE_FLOAT32, &t.whole, NULL);
    if (!status)
        status = weft_tensor_zeros(WEFT_SHAPE(part), WEFT_DTYPE_FLOAT32, &t.part, NULL);
    if (!status)
        status = weft_tensor_zeros(WEFT_SHAPE(all), WEFT_DTYPE_FLOAT32, &t.other, NULL);
    if (!status)
        status = open_group(agent, world, by, &group);
    if (!status)
        status = time_operations(group, operation, &t, count, out);
    weft_group_close(group);
    weft_tensor_unref(t.whole);
    weft_tensor_unref(t.part);
    weft_tensor_unref(t.other);
    return status;
}

/* ---- What is served --------------------------------------------------------------------------------------------- */

static weft_status do_nothing(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    return WEFT_OK;
}

static weft_status echo(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

/* Rank, bytes of the tensor (0: calls without arguments), window, microseconds. Gives calls and microseconds. */
static weft_status stream(weft_call *call, void *user)
{
    (void)user;
    int64_t bytes = weft_call_i64(call, 1), window = weft_call_i64(call, 2);
    if (bytes < 0 || window < 1 || window > SERVICE_WINDOW_MAX)
        return WEFT_ERR_INVALID;
    service_stream s = {.agent = weft_call_agent(call),
                        .to = (int)weft_call_i64(call, 0),
                        .function = bytes ? "take" : "inline",
                        .window = (unsigned)window,
                        .us = weft_call_f64(call, 3)};
    weft_status made = bytes ? weft_tensor_full(WEFT_SHAPE(bytes), WEFT_DTYPE_UINT8, 1, &s.tensor, NULL) : WEFT_OK;
    if (made)
        return made;
    service_stream_run(&s);
    if (!s.status)
        weft_call_give(call, WEFT_VALUES(weft_of_f64(s.calls), weft_of_f64(s.took_us)));
    weft_error_unref(s.error);
    weft_tensor_unref(s.tensor);
    return s.status;
}

/* Operation, bytes, count, world. */
static weft_status collect(weft_call *call, void *user)
{
    (void)user;
    return service_collect(weft_call_agent(call), (int)weft_call_i64(call, 0), (size_t)weft_call_i64(call, 1),
                           weft_call_i64(call, 2), (int)weft_call_i64(call, 3), weft_call_from(call), NULL);
}

/* A worker that weft-perf started leaves when it is told to, or when the job is lost. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_over;
} own_end = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void end_serving(void)
{
    pthread_mutex_lock(&own_end.lock);
    own_end.is_over = true;
    pthread_cond_signal(&own_end.changed);
    pthread_mutex_unlock(&own_end.lock);
}

static weft_status leave(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    end_serving();
    return WEFT_OK;
}

const weft_function service_functions[] = {
    {.name = "inline", .run = do_nothing, .flags = WEFT_FUNCTION_INLINE},
    {.name = "executor", .run = do_nothing},
    {.name = "take", .takes = {WEFT_TYPE_TENSOR}, .run = do_nothing},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = echo},
    {.name = "stream",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_F64, WEFT_TYPE_F64},
     .run = stream},
    {.name = "collect", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = collect},
    {.name = "leave", .run = leave},
};
const size_t service_function_count = COUNT(service_functions);

static void on_member(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent;
    (void)why;
    (void)arg;
    bool is_lost = event == WEFT_MEMBER_STORE_LOST || event == WEFT_MEMBER_SELF_EVICTED;
    if (is_lost || (rank == 0 && (event == WEFT_MEMBER_LEFT || event == WEFT_MEMBER_DEAD)))
        end_serving();
}

int service_serve(void)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_agent_options options = {
        .functions = service_functions, .function_count = service_function_count, .on_membership = on_member};
    weft_status status = weft_agent_open(&options, &agent, &error);
    if (status) {
        fprintf(stderr, "weft-perf: a worker: %s\n", error ? weft_error_message(error) : weft_status_text(status));
        weft_error_unref(error);
        return 1;
    }
    pthread_mutex_lock(&own_end.lock);
    while (!own_end.is_over)
        pthread_cond_wait(&own_end.changed, &own_end.lock);
    pthread_mutex_unlock(&own_end.lock);
    status = weft_agent_close(agent, WEFT_FOREVER);
    return status ? 1 : 0; /* the job was lost: the measuring worker says why */
}
