/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_ordered.c - WEFT_FUNCTION_ORDERED: handlers begin in the order of each caller's calls. */
#include "rpc/world.h"
#include "tensors.h"

#define CALLERS 3 /* ranks 0 to 2; rank 0 serves all, itself too */
#define CALLS 40

static world *scene;

static struct {
    atomic_int running, last, ran;
    atomic_bool has_run[CALLS];
} callers[CALLERS];
static atomic_int overlaps, finished;

static uint32_t mix(uint32_t x) /* a number that depends on the seed and on x alone */
{
    x = (x + (uint32_t)scene->seed * 2654435761u) * 2246822519u;
    x ^= x >> 15;
    return x * 3266489917u >> 8;
}

static void begin(world *w)
{
    scene = w;
    memset(callers, 0, sizeof(callers));
    for (int i = 0; i < CALLERS; i++)
        atomic_store(&callers[i].last, -1);
    atomic_store(&overlaps, 0);
    atomic_store(&finished, 0);
}

static void note_begin(int from, int number)
{
    MUST(atomic_fetch_add(&callers[from].running, 1) == 0); /* one at a time */
    int last = atomic_exchange(&callers[from].last, number);
    if (number <= last)
        fprintf(stderr, "seed %llu: call %d of rank %d begins after call %d\n", (unsigned long long)scene->seed, number,
                from, last);
    MUST(number > last);
    atomic_store(&callers[from].has_run[number], true);
    atomic_fetch_add(&callers[from].ran, 1);
    for (int other = 0; other < CALLERS; other++)
        if (other != from && atomic_load(&callers[other].running))
            atomic_fetch_add(&overlaps, 1);
}

static void finish_later(weft_future *future, void *arg)
{
    (void)future;
    weft_call_finish(arg, WEFT_OK);
}

/* Takes some time, or defers: what defers lets the next begin. Its first argument is the number of the call. */
static weft_status run_ordered(weft_call *call, void *user)
{
    int from = weft_call_from(call), number = (int)weft_call_i64(call, 0);
    weft_tensor *x = weft_call_tensor(call, 1);
    note_begin(from, number);
    for (int64_t i = 0; i < weft_tensor_numel(x); i += 997)
        MUST(weft_tensor_get_f64(x, i) == number);
    if (!user && mix((uint32_t)(number * 5 + from)) % 3 == 0)
        world_sleep_ms(scene, 1 + (int)(mix((uint32_t)number) % 3));
    atomic_fetch_sub(&callers[from].running, 1);
    if (user || number % 5)
        return WEFT_OK;
    weft_future *pause;
    weft_call_defer(call);
    MUST_OK(weft_rpc_async(weft_call_agent(call), weft_to_rank(1), "rest", WEFT_NO_VALUES, NULL, &pause));
    MUST_OK(weft_future_add_done_callback(pause, finish_later, call, NULL));
    weft_future_unref(pause);
    return WEFT_DEFERRED;
}

static weft_status run_rest(weft_call *call, void *user)
{
    (void)call;
    (void)user;
    world_sleep_ms(scene, 2);
    return WEFT_OK;
}

static int is_inline = 1;
static const weft_function functions[] = {
    {.name = "ordered", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .run = run_ordered, .flags = WEFT_FUNCTION_ORDERED},
    {.name = "ordered inline",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run = run_ordered,
     .flags = WEFT_FUNCTION_ORDERED | WEFT_FUNCTION_INLINE,
     .user = &is_inline},
    {.name = "rest", .run = run_rest},
};

/* Sizes of all kinds: in the message, and pulled. */
static weft_future *call_one(weft_agent *agent, const char *function, int number, const weft_rpc_options *options)
{
    static const int64_t sizes[] = {1, 100000, 3, 40000, 700, 5000};
    weft_future *future;
    weft_tensor *x = tensor_full(WEFT_SHAPE(sizes[mix((uint32_t)number * 3) % 6]), WEFT_DTYPE_FLOAT32, number);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_i64(number), weft_of_tensor(x)),
                           options, &future));
    weft_tensor_unref(x);
    return future;
}

static void call_all(weft_agent *agent, const char *function)
{
    weft_future *futures[CALLS];
    for (int i = 0; i < CALLS; i++)
        futures[i] = call_one(agent, function, i, NULL);
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    MUST(atomic_load(&callers[weft_agent_rank(agent)].ran) == CALLS);
}

static void in_order(weft_agent *agent, void *arg)
{
    call_all(agent, "ordered");
}

WORLD_TEST(in_order, 40, 5, WORLD_FUNCTIONS(functions), .size = CALLERS, .begin = begin)

static void in_order_inline(weft_agent *agent, void *arg)
{
    call_all(agent, "ordered inline");
}

WORLD_TEST(in_order_inline, 20, 2, WORLD_FUNCTIONS(functions), .size = CALLERS, .begin = begin)

static void in_order_without_threads(weft_agent *agent, void *arg)
{
    call_all(agent, "ordered inline");
}

WORLD_TEST(in_order_without_threads, 0, 2, WORLD_FUNCTIONS(functions), .size = CALLERS, .begin = begin,
           .adjust = world_no_threads)

/* ---- Links that break -------------------------------------------------------------------------------------------- */

static void under_breaks(weft_agent *agent, void *arg)
{
    weft_future *futures[CALLS];
    int me = weft_agent_rank(agent);
    for (int i = 0; i < CALLS; i++) {
        futures[i] = call_one(agent, "ordered", i, NULL);
        if (me && mix((uint32_t)(i * 7 + me)) % 4 == 0) {
            weft_sim_reset_link(scene->sim, 0, me);
            weft_sim_sleep(scene->sim, 300000u * (mix((uint32_t)i) % 8));
        }
    }
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    MUST(atomic_load(&callers[me].ran) == CALLS);
}

WORLD_TEST(under_breaks, 60, 0, WORLD_FUNCTIONS(functions), .size = CALLERS, .begin = begin)

/* ---- Calls that end before they begin ---------------------------------------------------------------------------- */

/* Every third call is cancelled soon, and every seventh has little time. The others all run, in their order. */
static void some_are_cancelled(weft_agent *agent, void *arg)
{
    weft_future *futures[CALLS];
    int me = weft_agent_rank(agent);
    for (int i = 0; i < CALLS; i++) {
        weft_rpc_options options = {.timeout_ms = i % 7 == 3 ? 2 : 0};
        futures[i] = call_one(agent, "ordered", i, &options);
        if (i >= 5 && (i - 5) % 3 == 0) {
            weft_status status = weft_future_cancel(futures[i - 5]);
            MUST(!status || status == WEFT_ERR_COMPLETED);
        }
        if (mix((uint32_t)(i * 11 + me)) % 5 == 0)
            world_sleep_ms(scene, 1);
    }
    for (int i = 0; i < CALLS; i++) {
        weft_status status = weft_future_wait(futures[i], WEFT_FOREVER);
        weft_status ended = weft_error_code(weft_future_error(futures[i]));
        MUST(!status || (ended == WEFT_ERR_CANCELLED && i % 3 == 0) || (ended == WEFT_ERR_TIMEOUT && i % 7 == 3));
        if (!status)
            MUST(atomic_load(&callers[me].has_run[i]));
        else if (weft_error_ran(weft_future_error(futures[i])) == WEFT_RAN_NO)
            MUST(!atomic_load(&callers[me].has_run[i]));
        weft_future_unref(futures[i]);
    }
}

WORLD_TEST(some_are_cancelled, 60, 5, WORLD_FUNCTIONS(functions), .size = CALLERS, .begin = begin)

/* ---- A caller that is gone, and its successor ----------------------------------------------------------------- */

static atomic_int blocked, released;

static weft_status run_blocked(weft_call *call, void *user)
{
    atomic_fetch_add(&blocked, 1);
    while (weft_call_i64(call, 0) == 0 && !atomic_load(&released))
        world_sleep_ms(scene, 1);
    return WEFT_OK;
}

static const weft_function blocking[] = {
    {.name = "blocked", .takes = {WEFT_TYPE_I64}, .run = run_blocked, .flags = WEFT_FUNCTION_ORDERED}};

static uint64_t held_bytes(const weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.bytes_held;
}

/* Rank 1 stops with one call running and others that wait for it: none of these runs, and what they hold is freed.
 * Rank 2 is not held up by them. */
static void caller_stops(weft_agent *agent, void *arg)
{
    int me = weft_agent_rank(agent);
    weft_future *futures[8];
    if (me == 0) {
        atomic_store(&blocked, 0);
        atomic_store(&released, 0);
        uint64_t most = 0;
        atomic_fetch_add(&finished, 1);
        while (weft_agent_alive(agent, 1)) {
            most = most > held_bytes(agent) ? most : held_bytes(agent);
            world_sleep_ms(scene, 1);
        }
        while (held_bytes(agent) > most / 2)
            world_sleep_ms(scene, 1);
        while (atomic_load(&finished) < 2)
            world_sleep_ms(scene, 1);
        MUST(atomic_load(&blocked) == 2); /* rank 1's first, and rank 2's */
        atomic_store(&released, 1);
        world_sleep_ms(scene, 50);
        MUST(atomic_load(&blocked) == 2);
        return;
    }
    while (!atomic_load(&finished))
        world_sleep_ms(scene, 1);
    if (me == 2) {
        while (atomic_load(&blocked) < 1)
            world_sleep_ms(scene, 1);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "blocked", WEFT_VALUES(weft_of_i64(1)), NULL, NULL));
        atomic_fetch_add(&finished, 1);
        return;
    }
    for (int i = 0; i < 8; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "blocked", WEFT_VALUES(weft_of_i64(i)), NULL, &futures[i]));
    while (atomic_load(&blocked) < 1)
        world_sleep_ms(scene, 1);
    world_sleep_ms(scene, 20); /* all have arrived */
    for (int i = 0; i < 8; i++)
        weft_future_unref(futures[i]);
}

WORLD_TEST(caller_stops, 10, 2, WORLD_FUNCTIONS(blocking), .size = 3, .begin = begin, .stop = true)

/* An agent stops with calls to itself that wait for their turn. */
static void stops_with_its_own(weft_agent *agent, void *arg)
{
    weft_future *futures[8];
    atomic_store(&blocked, 0);
    atomic_store(&released, 0);
    for (int i = 0; i < 8; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "blocked", WEFT_VALUES(weft_of_i64(i)), NULL, &futures[i]));
    while (atomic_load(&blocked) < 1)
        world_sleep_ms(scene, 1);
    MUST_OK(weft_future_cancel(futures[3])); /* it has not begun: ends at once */
    MUST_BE(weft_future_wait(futures[3], 1000), WEFT_ERR_CANCELLED);
    MUST(atomic_load(&blocked) == 1);
    atomic_store(&released, 1);
    for (int i = 0; i < 8; i++)
        weft_future_unref(futures[i]);
}

WORLD_TEST(stops_with_its_own, 10, 2, WORLD_FUNCTIONS(blocking), .size = 1, .begin = begin, .stop = true)

/* ---- A call to oneself that waits for a reference ------------------------------------------------------------- */

static atomic_int drops;

static weft_status run_make(weft_call *call, void *user)
{
    while (!atomic_load(&released))
        world_sleep_ms(scene, 1);
    return WEFT_OK;
}

static weft_status run_with_reference(weft_call *call, void *user)
{
    atomic_fetch_add(&blocked, 1);
    return WEFT_OK;
}

static const weft_function referring[] = {
    {.name = "make", .run = run_make},
    {.name = "with reference", .takes = {WEFT_TYPE_REST}, .run = run_with_reference, .flags = WEFT_FUNCTION_ORDERED}};

static void count_drop(void *data)
{
    atomic_fetch_add(&drops, 1);
}

/* Two calls wait for a reference that is not made: one is cancelled, one is late. Both free their arguments and leave
 * their places, so the third one runs. */
static void leaves_its_place(weft_agent *agent, void *arg)
{
    static float data[4];
    weft_rref *rref;
    weft_future *waiting[2];
    const weft_rpc_options options[] = {{.timeout_ms = WEFT_FOREVER}, {.timeout_ms = 5}};
    if (weft_agent_rank(agent) != 0)
        return;
    atomic_store(&blocked, 0);
    atomic_store(&released, 0);
    atomic_store(&drops, 0);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, NULL, &rref));
    for (int i = 0; i < 2; i++) {
        weft_tensor *x = tensor_wrap(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, data, NULL, count_drop, data);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "with reference",
                               WEFT_VALUES(weft_of_rref(rref), weft_of_tensor(x)), &options[i], &waiting[i]));
        weft_tensor_unref(x);
    }
    MUST_OK(weft_future_cancel(waiting[0]));
    MUST_BE(weft_future_wait(waiting[0], WEFT_FOREVER), WEFT_ERR_CANCELLED);
    MUST_BE(weft_future_wait(waiting[1], WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "with reference", WEFT_NO_VALUES, NULL, NULL));
    for (int i = 0; i < 2; i++)
        weft_future_unref(waiting[i]);
    while (atomic_load(&drops) < 2)
        world_sleep_ms(scene, 1);
    atomic_store(&released, 1);
    weft_future *made = weft_rref_created(rref);
    MUST_OK(weft_future_wait(made, WEFT_FOREVER));
    weft_future_unref(made);
    weft_rref_unref(rref);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "with reference", WEFT_NO_VALUES, NULL, NULL));
    MUST(atomic_load(&blocked) == 2);
}

WORLD_TEST(leaves_its_place, 20, 3, WORLD_FUNCTIONS(referring), .size = 2, .begin = begin)

/* The agent stops while a call waits for a reference. */
static void stops_while_waiting(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_future *future;
    atomic_store(&released, 0);
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "make", WEFT_NO_VALUES, NULL, &rref));
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(0), "with reference", WEFT_VALUES(weft_of_rref(rref)), NULL, &future));
        world_sleep_ms(scene, 5);
        weft_future_unref(future);
        weft_rref_unref(rref);
        atomic_fetch_add(&finished, 1);
    }
    while (!atomic_load(&finished))
        world_sleep_ms(scene, 1);
    atomic_store(&released, 1);
}

WORLD_TEST(stops_while_waiting, 20, 3, WORLD_FUNCTIONS(referring), .size = 2, .begin = begin, .stop = true)

/* ---- What cannot be ---------------------------------------------------------------------------------------------- */

static weft_status run_batch(weft_batch *batch, void *user)
{
    (void)batch;
    (void)user;
    return WEFT_OK;
}

static void not_in_batches(weft_agent *agent, void *arg)
{
    weft_function f = {.name = "b", .run_batch = run_batch, .flags = WEFT_FUNCTION_ORDERED};
    MUST_BE(weft_agent_register(agent, &f), WEFT_ERR_INVALID);
}

WORLD_TEST(not_in_batches, 1, 0, WORLD_FUNCTIONS(functions), .size = 1, .begin = begin)

UNIT_MAIN(test_in_order, test_in_order_inline, test_in_order_without_threads, test_under_breaks,
          test_some_are_cancelled, test_caller_stops, test_stops_with_its_own, test_leaves_its_place,
          test_stops_while_waiting, test_not_in_batches)
