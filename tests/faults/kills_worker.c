/* SPDX-License-Identifier: Apache-2.0 */
/* kills_worker.c - what the workers of the job serve, and what those that are not rank 0 do. See kills.h. */
#include "faults/kills.h"
#include "mem/slab.h"
#include "net/net_measure.h"
#include "tensors.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define KEPT_MAX 64
#define PARTS 1000
#define LOOKS 50

kill_counters counters;

/* ---- What they serve ------------------------------------------------------------------------------------------- */

static weft_status run_add(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

/* Tensor of LARGE equal numbers; says whether they are. */
static weft_status run_check(weft_call *call, void *user)
{
    const weft_tensor *tensor = weft_call_tensor(call, 0);
    const float *data = weft_tensor_data(tensor);
    bool equal = true;
    for (size_t i = 0; i < LARGE; i++)
        equal = equal && data[i] == data[0];
    weft_call_give(call, WEFT_VALUES(weft_of_bool(equal && data[0] > 0)));
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_tensor *tensor = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_FLOAT32, (double)weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor)));
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

static void let_go(weft_future *gone, void *arg)
{
    weft_call_finish(arg, WEFT_ERR_CANCELLED);
    atomic_fetch_sub(&counters.held, 1);
}

/* Held until nobody wants the answer. */
static weft_status run_hold(weft_call *call, void *user)
{
    weft_call *held = weft_call_defer_keeping(call);
    weft_future *gone = weft_call_cancellation(held);
    MUST(gone);
    atomic_fetch_add(&counters.held, 1);
    MUST_OK(weft_future_add_done_callback(gone, let_go, held, NULL));
    weft_future_unref(gone);
    return WEFT_DEFERRED;
}

static void await_room(weft_call *call)
{
    weft_future *gone = weft_call_cancellation(call);
    MUST(gone);
    weft_status ended = weft_future_wait(gone, 1);
    (void)ended;
    weft_future_unref(gone);
}

static weft_status run_stream(weft_call *call, void *user)
{
    for (int64_t i = 0; i < PARTS && !weft_call_cancelled(call);) {
        weft_status status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(i)));
        if (status == WEFT_ERR_AGAIN)
            await_room(call);
        else if (status)
            return status;
        else
            i++;
    }
    return WEFT_OK;
}

static void drop_object(void *object)
{
    free(object);
    atomic_fetch_sub(&counters.objects, 1);
}
static const weft_object_type thing = {.name = "thing", .drop = drop_object};

static weft_status run_create(weft_call *call, void *user)
{
    atomic_fetch_add(&counters.objects, 1);
    weft_call_give_object(call, &thing, malloc(100));
    return WEFT_OK;
}

static struct {
    pthread_mutex_t lock;
    weft_rref *items[KEPT_MAX];
    int count;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static weft_status run_keep(weft_call *call, void *user)
{
    pthread_mutex_lock(&kept.lock);
    if (kept.count < KEPT_MAX)
        kept.items[kept.count++] = weft_rref_ref(weft_call_rref(call, 0));
    pthread_mutex_unlock(&kept.lock);
    return WEFT_OK;
}

static void give_up_kept(void)
{
    pthread_mutex_lock(&kept.lock);
    while (kept.count)
        weft_rref_unref(kept.items[--kept.count]);
    pthread_mutex_unlock(&kept.lock);
}

static weft_status run_report(weft_call *call, void *user)
{
    weft_call_give(call,
                   WEFT_VALUES(weft_of_i64(atomic_load(&counters.right)), weft_of_i64(atomic_load(&counters.objects)),
                               weft_of_i64(atomic_load(&counters.held))));
    return WEFT_OK;
}

static weft_status run_weigh(weft_call *call, void *user)
{
    kill_footprint f = kill_footprint_of(weft_call_agent(call));
    weft_call_give(call, WEFT_VALUES(weft_of_bytes(&f, sizeof(f))));
    return WEFT_OK;
}

static weft_status run_dump(weft_call *call, void *user)
{
    return weft_debug_dump(weft_call_agent(call), stderr);
}

static weft_status run_quit(weft_call *call, void *user)
{
    atomic_store(&counters.quit, true);
    return WEFT_OK;
}

const weft_function kill_functions[] = {
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "check", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_BOOL}, .run = run_check},
    {.name = "make", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_make},
    {.name = "pattern", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .run = kill_run_pattern},
    {.name = "keep_pattern", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = kill_run_keep_pattern},
    {.name = "verify", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .run = kill_run_verify},
    {.name = "hold", .takes = {WEFT_TYPE_REST}, .run = run_hold},
    {.name = "stream", .run = run_stream},
    {.name = "create", .gives = {WEFT_TYPE_ANY}, .run = run_create},
    {.name = "keep", .takes = {WEFT_TYPE_RREF}, .run = run_keep},
    {.name = "report", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = run_report},
    {.name = "weigh", .gives = {WEFT_TYPE_BYTES}, .run = run_weigh},
    {.name = "dump", .run = run_dump},
    {.name = "quit", .run = run_quit},
};
const size_t kill_function_count = sizeof(kill_functions) / sizeof(*kill_functions);

/* ---- What all of them need --------------------------------------------------------------------------------------- */

double kill_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool kill_await(atomic_int *counter, int value)
{
    for (double until = kill_now_ms() + END_MS; atomic_load(counter) != value; usleep(500))
        if (kill_now_ms() > until)
            return false;
    return true;
}

void kill_count_member(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    bool is_victim = weft_agent_rank(agent) >= FIRST_VICTIM;
    if ((event == WEFT_MEMBER_STORE_LOST && !is_victim) || (event == WEFT_MEMBER_DEAD && rank < FIRST_VICTIM)) {
        fprintf(stderr, "a survivor is lost (event %d of rank %d): %s\n", (int)event, rank, why);
        abort();
    }
    if (event == WEFT_MEMBER_DEAD)
        atomic_fetch_add(&counters.dead, 1);
    if (event == WEFT_MEMBER_JOINED)
        atomic_fetch_add(&counters.joined, 1);
    if (event == WEFT_MEMBER_SELF_EVICTED || event == WEFT_MEMBER_STORE_LOST)
        atomic_fetch_add(&counters.evicted, 1);
}

weft_agent *kill_open(int rank, const kill_options *how)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_agent_options options = {.functions = kill_functions,
                                  .function_count = kill_function_count,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = SEATS,
                                  .elastic = how->elastic,
                                  .master_port = how->port,
                                  .no_binding = true,
                                  .death_timeout_ms = how->bound_ms,
                                  .rendezvous_timeout_ms = 60000,
                                  .on_membership = kill_count_member};
    weft_status status = weft_agent_open(&options, &agent, &error);
    if (status == WEFT_ERR_EVICTED && rank >= FIRST_VICTIM) {
        weft_error_unref(error);
        return NULL;
    }
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

static size_t least_in_use(void)
{
    size_t least = SIZE_MAX;
    for (int i = 0; i < LOOKS; i++, usleep(2000)) {
        struct mallinfo2 now = mallinfo2();
        size_t in_use = now.uordblks + now.hblkhd;
        least = in_use < least ? in_use : least;
    }
    return least;
}

kill_footprint kill_footprint_of(weft_agent *agent)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_debug_dump(agent, to));
    fclose(to);
    free(text);
    wfi_slab_trim(0); /* recycled tensors */
    malloc_trim(0);
    return (kill_footprint){.in_use = least_in_use(),
                            .private_dirty_kb = measure_private_dirty_kb(),
                            .descriptors = measure_descriptors(),
                            .threads = measure_threads(),
                            .dump_bytes = size};
}

/* ---- The survivor beside rank 0 ------------------------------------------------------------------------------- */

/* A call to a victim may find it dead, or gone at the end; else every answer must come, and be right. */
static void call_one(weft_agent *agent, int rank, int64_t number)
{
    weft_values *values = NULL;
    int64_t sum = 0;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(rank), "add", WEFT_VALUES(weft_of_i64(number)), NULL, &values);
    if (status == WEFT_OK) {
        MUST_OK(weft_values_get_i64(values, 0, &sum));
        MUST(sum == number + 1);
        atomic_fetch_add(&counters.right, 1);
    } else if (rank < FIRST_VICTIM ||
               (status != WEFT_ERR_PEER_DEAD && status != WEFT_ERR_PEER_LEFT && status != WEFT_ERR_NOT_FOUND)) {
        fprintf(stderr, "a call of the bystander to rank %d: %s\n", rank, weft_status_name(status));
        abort();
    }
    weft_values_unref(values);
}

static void stand_by(weft_agent *agent)
{
    for (int64_t number = 0; !atomic_load(&counters.quit); number++) {
        for (int rank = 0; rank < SEATS; rank++)
            call_one(agent, rank, number);
        usleep(2000);
    }
}

/* ---- Those that are killed ------------------------------------------------------------------------------------ */

/* Survivors do not answer these. What ends one while we live is a fault, and is said: the driver misses it. */
static void say_why(weft_future *hold, void *arg)
{
    weft_status status = weft_error_code(weft_future_error(hold));
    if (status != WEFT_ERR_CLOSED && status != WEFT_ERR_EVICTED && status != WEFT_ERR_STORE_LOST &&
        status != WEFT_ERR_PEER_LEFT) {
        fprintf(stderr, "a call that is held has ended: ");
        weft_error_print(weft_future_error(hold), stderr);
    }
}

/* Two calls to each survivor, which hold them until we are gone, with arguments that take their time. */
static void depend_on_survivors(weft_agent *agent)
{
    weft_tensor *tensor = tensor_full(WEFT_SHAPE(LARGE), WEFT_DTYPE_FLOAT32, 1);
    /* On a busy machine a survivor may turn one away, all of its workers being in waits. */
    const weft_rpc_options forever = {.timeout_ms = WEFT_FOREVER, .retry = {.attempts = 1000, .pause_ms = 20}};
    for (int i = 0; i < 4; i++) {
        weft_future *future;
        weft_status status = weft_rpc_async(agent, weft_to_rank(i % FIRST_VICTIM), "hold",
                                            WEFT_VALUES(weft_of_tensor(tensor)), &forever, &future);
        if (status == WEFT_ERR_EVICTED || status == WEFT_ERR_STORE_LOST)
            break;
        MUST_OK(status);
        MUST_OK(weft_future_add_done_callback(future, say_why, NULL, NULL));
        weft_future_unref(future);
    }
    weft_tensor_unref(tensor);
}

static bool wait_for_an_end(void)
{
    while (!atomic_load(&counters.quit) && !atomic_load(&counters.evicted))
        usleep(1000);
    return atomic_load(&counters.evicted);
}

/* Until it is told to quit; when it is declared dead, it comes again. */
static void be_victim(int rank, const kill_options *options)
{
    for (;;) {
        weft_agent *agent = kill_open(rank, options);
        if (!agent)
            continue;
        depend_on_survivors(agent);
        bool evicted = wait_for_an_end();
        give_up_kept();
        if (!evicted) {
            weft_agent_stop(agent); /* its calls are held for good */
            return;
        }
        weft_status why = weft_agent_status(agent);
        MUST(why == WEFT_ERR_EVICTED || why == WEFT_ERR_STORE_LOST);
        MUST(kill_await(&counters.held, 0)); /* their callers are gone, for us */
        MUST_BE(weft_agent_close(agent, WEFT_FOREVER), why);
        atomic_store(&counters.evicted, 0);
    }
}

int kill_serve(int rank, const kill_options *options)
{
    if (rank >= FIRST_VICTIM) {
        be_victim(rank, options);
        return 0;
    }
    weft_agent *agent = kill_open(rank, options);
    stand_by(agent);
    MUST(kill_await(&counters.held, 0));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    MUST(!atomic_load(&counters.objects));
    return 0;
}
