/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_gpu_ends.c - calls with tensors of GPUs that end early: cancelled, out of time, the worker dead, the agent
 * stopped, the device failed or without memory, while tensors are copied. On the simulation, where nothing is copied
 * before an agent asks the devices (EMULATED_GPU_HOST=polled), so that each of these comes during the copy.
 */
#include <stddef.h>
#include <stdint.h>

#include "emulated/emulated.h"
#include "gpu/gpu.h"
#include "make.h"
#include "mem/mem.h"
#include "rpc/world.h"
#include "tensors.h"

static void (*fail_some)(emulated_call call, uint64_t after, uint64_t times);
static void (*fail_device)(int device);
static void (*mend_device)(int device);
static void (*read_counts)(emulated_counts *out);

static const weft_device cpu = {WEFT_DEVICE_CPU, 0}, gpu = {WEFT_DEVICE_CUDA, 0};
/* In the metadata, behind them, pulled, and pulled and copied in pieces. */
static const int64_t counts[] = {3, 700, 5001, 300007, 700001};
enum { COUNTS = sizeof(counts) / sizeof(*counts) };

static size_t usual; /* the page-locked pieces of ordinary copies, which stay */

static size_t bytes_live(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live;
}

static weft_tensor *make_on(int device, int64_t count)
{
    weft_tensor *x = tensor_arange(count, WEFT_DTYPE_FLOAT32);
    weft_tensor *there = tensor_to_device(x, (weft_device){WEFT_DEVICE_CUDA, device});
    weft_tensor_unref(x);
    return there;
}
static weft_tensor *make(int64_t count)
{
    return make_on(0, count);
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_tensor *x = make(weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    weft_future *unwanted = weft_call_cancellation(call);
    weft_status status = weft_future_wait(unwanted, WEFT_FOREVER);
    weft_future_unref(unwanted);
    return status;
}

/* Its device fails after it has sent an item, which is not copied yet. */
static weft_status run_lose(weft_call *call, void *user)
{
    weft_tensor *x = make_on(1, weft_call_i64(call, 0));
    MUST_OK(weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(x))));
    fail_device(1);
    weft_tensor_unref(x);
    return WEFT_OK;
}

/* Ends when the agent stops: then it gives a tensor of a GPU, and starts a call with it. */
static weft_status run_late(weft_call *call, void *user)
{
    (void)run_hold(call, user);
    weft_tensor *x = make(5001);
    weft_status status =
        weft_rpc_async(weft_call_agent(call), weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL);
    (void)status; /* the agent may have ended */
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_take(weft_call *call, void *user)
{
    MUST(gpu_is_on(weft_call_tensor(call, 0), gpu));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TYPE_TENSOR}, .run = run_take},
    {.name = "late", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_late},
    {.name = "lose", .takes = {WEFT_TYPE_I64}, .run = run_lose},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "make", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_make},
    {.name = "hold", .takes = {WEFT_TYPE_TENSOR}, .run = run_hold},
};

/* The status of an echo of `count` elements, which must be right if it is WEFT_OK. */
static weft_status echo(weft_agent *agent, int64_t count, const weft_rpc_options *options)
{
    weft_tensor *x = make(count), *y;
    weft_values *got;
    weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), options, &got);
    weft_tensor_unref(x);
    if (status)
        return status;
    MUST_OK(weft_values_get_tensor(got, 0, &y));
    weft_tensor *here = tensor_to_device(y, cpu);
    MUST(weft_tensor_get_f64(here, count - 1) == (double)(count - 1));
    weft_tensor_unref(here);
    weft_values_unref(got);
    return WEFT_OK;
}

static void begin(weft_agent *agent, int64_t count, weft_future **future)
{
    weft_tensor *x = make(count);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, future));
    weft_tensor_unref(x);
    MUST(!weft_future_done(*future));
}

static void cancelled(weft_agent *agent, void *arg)
{
    weft_future *future;
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        begin(agent, counts[i], &future);
        MUST_OK(weft_future_cancel(future));
        MUST_BE(weft_future_wait(future, 0), WEFT_ERR_CANCELLED);
        MUST(weft_error_ran(weft_future_error(future)) == WEFT_RAN_NO);
        weft_future_unref(future);
        MUST_OK(echo(agent, counts[i], NULL));
    }
}

WORLD_TEST(cancelled, 20, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* The limit passes while arguments or results are copied. */
static void out_of_time(weft_agent *agent, void *arg)
{
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        weft_error *error = NULL;
        weft_status status = echo(agent, counts[i], &(weft_rpc_options){.timeout_ms = 20, .error = &error});
        bool is_early = error && strstr(weft_error_message(error), "copied from a device");
        MUST(i ? !status || status == WEFT_ERR_TIMEOUT : is_early); /* later the agent may ask the devices soon */
        MUST(!is_early || weft_error_ran(error) == WEFT_RAN_NO);
        weft_error_unref(error);
        status = weft_rpc_sync(agent, weft_to_rank(1), "make", WEFT_VALUES(weft_of_i64(counts[i])),
                               &(weft_rpc_options){.timeout_ms = 20}, NULL);
        MUST(!status || status == WEFT_ERR_TIMEOUT);
        MUST_OK(echo(agent, counts[i], NULL));
    }
}

WORLD_TEST(out_of_time, 20, 0, .size = 2, WORLD_FUNCTIONS(functions))

static void retried(weft_agent *agent, void *arg)
{
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        MUST_OK(echo(agent, counts[i], &(weft_rpc_options){.retry = {.attempts = 3}, .wait_for_room = true}));
        weft_tensor *x = make(counts[i]); /* each attempt runs out of time; the copy was made before */
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "hold", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.retry = {.attempts = 2, .attempt_ms = 200}}, NULL),
                WEFT_ERR_TIMEOUT);
        weft_tensor_unref(x);
    }
}

WORLD_TEST(retried, 10, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* Both agents stop while copies are out. */
static void stopped(weft_agent *agent, void *arg)
{
    for (int i = 0; i < COUNTS; i++) {
        weft_future *future;
        weft_tensor *x = make(counts[i]);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1 - weft_agent_rank(agent)), i % 2 ? "echo" : "make",
                               i % 2 ? WEFT_VALUES(weft_of_tensor(x)) : WEFT_VALUES(weft_of_i64(counts[i])), NULL,
                               &future));
        weft_tensor_unref(x);
        weft_future_unref(future);
    }
}

static void stopped_late(weft_agent *agent, void *arg)
{
    weft_future *future;
    for (int i = 0; i < 2; i++) { /* to itself, too */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(i), "late", WEFT_VALUES(weft_of_i64(0)), NULL, &future));
        weft_future_unref(future);
    }
    world_sleep_ms(arg, 50);
}

WORLD_TEST(stopped_late, 20, 0, .size = 2, .stop = true, WORLD_FUNCTIONS(functions))
WORLD_TEST(stopped, 40, 0, .size = 2, .stop = true, WORLD_FUNCTIONS(functions))
static void test_closed(void **state)
{
    world_play(&(world){.program = stopped, .size = 2, WORLD_FUNCTIONS(functions)}, 10, 0);
}

/* Worker 1 dies while arguments are copied to or for it, or results from it. */
static void worker_dies(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_future *futures[2 * COUNTS];
    if (weft_agent_rank(agent)) {
        world_sleep_ms(w, 100000); /* it is killed */
        return;
    }
    for (int i = 0; i < COUNTS; i++) {
        begin(agent, counts[i], &futures[2 * i]);
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "make", WEFT_VALUES(weft_of_i64(counts[i])), NULL,
                               &futures[2 * i + 1]));
    }
    world_sleep_ms(w, (int)(w->seed * 7 % 300));
    weft_sim_kill(w->sim, 1);
    for (int i = 0; i < 2 * COUNTS; i++) {
        weft_status status = weft_future_wait(futures[i], WEFT_FOREVER);
        MUST(!status || status == WEFT_ERR_PEER_DEAD);
        weft_future_unref(futures[i]);
    }
    MUST_BE(echo(agent, 3, NULL), WEFT_ERR_PEER_DEAD);
}

WORLD_TEST(worker_dies, 60, 0, .size = 2, .close_may_fail = true, WORLD_FUNCTIONS(functions))

/* ---- Many at once ------------------------------------------------------------------------------------------------ */

enum { FLOOD = 40, FLOOD_COUNT = 100000, LIMIT = 4 * FLOOD_COUNT * sizeof(float) };

static void adjust_limit(weft_agent_options *options, void *arg)
{
    if (options->rank == 0)
        options->memory_budget_bytes = LIMIT;
}

/* The page-locked memory of calls that have not ended is limited. */
static void flood(weft_agent *agent, void *arg)
{
    weft_future *futures[FLOOD];
    int refused = 0;
    if (weft_agent_rank(agent))
        return;
    weft_tensor *x = make(FLOOD_COUNT);
    weft_args args = WEFT_VALUES(weft_of_tensor(x));
    size_t before = bytes_live(), most = 0;
    for (int i = 0; i < FLOOD; i++) {
        weft_error *error = NULL;
        weft_status status =
            weft_rpc_async(agent, weft_to_rank(1), "echo", args, &(weft_rpc_options){.error = &error}, &futures[i]);
        MUST(!status || status == WEFT_ERR_AGAIN);
        MUST(!status || strstr(weft_error_message(error), "is at memory_budget_bytes = 1600000"));
        weft_error_unref(error);
        futures[i] = status ? NULL : futures[i];
        refused += status != WEFT_OK;
        most = bytes_live() > most ? bytes_live() : most;
    }
    MUST(refused == FLOOD - 4 && most - before < 6 * FLOOD_COUNT * sizeof(float));
    for (int i = 0; i < FLOOD; i++) {
        if (futures[i])
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    for (int i = 0; i < FLOOD; i++) { /* with room awaited, all go */
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "echo", args, &(weft_rpc_options){.wait_for_room = true},
                               &futures[i]));
        most = bytes_live() > most ? bytes_live() : most;
    }
    for (int i = 0; i < FLOOD; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    MUST_BE(weft_rpc_async(agent, weft_to_rank(1), "echo", args,
                           &(weft_rpc_options){.wait_for_room = true, .timeout_ms = WEFT_FOREVER}, NULL),
            WEFT_OK);
    weft_tensor_unref(x);
}

WORLD_TEST(flood, 10, 0, .size = 2, WORLD_FUNCTIONS(functions), .adjust = adjust_limit)

/* Small and large calls in turns: each large one alone holds the limit. */
static void flood_by_large(weft_agent *agent, void *arg)
{
    enum { CALLS = 16 };
    weft_future *futures[CALLS];
    if (weft_agent_rank(agent))
        return;
    weft_tensor *x[] = {make(LIMIT / sizeof(float)), make(5001)};
    for (int i = 0; i < CALLS; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x[i % 2])),
                               &(weft_rpc_options){.wait_for_room = true}, &futures[i]));
    for (int i = 0; i < CALLS; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
    }
    weft_tensor_unref(x[0]);
    weft_tensor_unref(x[1]);
}

WORLD_TEST(flood_by_large, 10, 0, .size = 2, WORLD_FUNCTIONS(functions), .adjust = adjust_limit)

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

enum { LARGE = 2000003 }; /* 7.6 MiB */

/* Each byte of a large tensor is copied once to the device that gets it, and its copy begins while the rest is pulled. */
static void in_pieces(weft_agent *agent, void *arg)
{
    emulated_counts before, after;
    if (weft_agent_rank(agent))
        return;
    MUST_OK(echo(agent, LARGE, NULL));
    weft_tensor *x = make(LARGE);
    read_counts(&before);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "take", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL));
    read_counts(&after);
    uint64_t copies = after.calls[EMULATED_COPY] - before.calls[EMULATED_COPY];
    MUST(copies >= 1 + 4 && copies <= 1 + 31); /* of the caller, and of a chunk or more each */
    weft_tensor_unref(x);
}

WORLD_TEST(in_pieces, 4, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* Copy number `after` fails: of the caller, or a piece at the callee, or of the answer. */
static void copies_fail(weft_agent *agent, void *arg)
{
    const world *w = arg;
    int failed = 0, went_well = 0;
    for (uint64_t after = w->seed % 3; after < 48 && weft_agent_rank(agent) == 0; after += 3) {
        weft_error *error = NULL;
        weft_tensor *x = make(LARGE);
        fail_some(EMULATED_COPY, after, 1);
        weft_status status = weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)),
                                           &(weft_rpc_options){.error = &error}, NULL);
        fail_some(EMULATED_COPY, 0, 0);
        weft_tensor_unref(x);
        MUST(!status || strstr(weft_error_message(error), "copied"));
        weft_error_unref(error);
        failed += status != WEFT_OK;
        went_well += status == WEFT_OK; /* there were fewer copies */
        MUST_OK(echo(agent, 5001, NULL));
    }
    MUST(weft_agent_rank(agent) || (failed >= 4 && went_well));
}

WORLD_TEST(copies_fail, 3, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* A large pull ends at some point between its pieces: cancelled, or with the worker that asked for it. */
static void pull_ends(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_future *future;
    if (weft_agent_rank(agent))
        return;
    for (int i = 0; i < 4; i++) {
        begin(agent, LARGE, &future);
        for (uint64_t step = 0; step < w->seed * 2 % 40 && !weft_future_done(future); step++)
            world_sleep_ms(w, 1);
        weft_status status = weft_future_cancel(future);
        MUST(!status || status == WEFT_ERR_COMPLETED);
        status = weft_future_wait(future, WEFT_FOREVER);
        MUST(!status || status == WEFT_ERR_CANCELLED);
        weft_future_unref(future);
    }
    MUST_OK(echo(agent, LARGE, NULL));
}

WORLD_TEST(pull_ends, 20, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/* Once no memory of a device, or none that is page-locked, can be had at some point: an error, and all goes on. */
static void out_of_memory(weft_agent *agent, void *arg)
{
    int failed = 0;
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        for (uint64_t after = 0; after < 12; after++) {
            weft_tensor *x = make(counts[i]);
            fail_some(EMULATED_ALLOCATION, after, 2); /* again when idle memory was freed */
            weft_status status =
                weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, NULL);
            fail_some(EMULATED_ALLOCATION, 0, 0);
            weft_tensor_unref(x);
            if (status && status != WEFT_ERR_MEMORY && status != WEFT_ERR_BUSY)
                fail_msg("allocation %d: %s", (int)after, weft_status_name(status));
            failed += status != WEFT_OK;
            MUST_OK(echo(agent, counts[i], NULL));
        }
    }
    MUST(weft_agent_rank(agent) || failed >= 3 * COUNTS); /* of the caller, the callee, the answer */
}

WORLD_TEST(out_of_memory, 4, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* The device of the caller fails before, or during, the copy; that of the callee before the arguments arrive. */
static void device_fails(weft_agent *agent, void *arg)
{
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        for (int which = 0; which < 2; which++) {
            weft_future *future;
            begin(agent, counts[i], &future);
            fail_device(which); /* 0: that of the caller; 1: that of the callee */
            weft_status status = weft_future_wait(future, WEFT_FOREVER);
            MUST(status != WEFT_OK);
            if (which == 0) {
                weft_tensor *x = NULL;
                MUST(status == WEFT_ERR_SYSTEM &&
                     weft_tensor_empty_on(gpu, WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, &x, NULL));
            }
            mend_device(which);
            weft_future_unref(future);
            MUST_OK(echo(agent, counts[i], NULL));
        }
    }
}

static void test_device_fails(void **state)
{
    setenv("WEFT_DEVICE_MAPS", "*/cuda:0=cuda:1", 1);
    world_play(&(world){.program = device_fails, .size = 2, WORLD_FUNCTIONS(functions)}, 10, 0);
    unsetenv("WEFT_DEVICE_MAPS");
}

static void take_none(const weft_values *item, void *arg)
{
    fail_msg("an item that was never copied has arrived");
}

/* An item cannot be sent, although the handler has ended well: the call fails. */
static void item_is_lost(weft_agent *agent, void *arg)
{
    for (int i = 0; i < COUNTS && weft_agent_rank(agent) == 0; i++) {
        weft_error *error = NULL;
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "lose", WEFT_VALUES(weft_of_i64(counts[i])),
                              &(weft_rpc_options){.on_item = take_none, .timeout_ms = 60000, .error = &error}, NULL),
                WEFT_ERR_SYSTEM);
        MUST(strstr(weft_error_message(error), "item 0 could not be sent"));
        weft_error_unref(error);
        mend_device(1);
        MUST_OK(echo(agent, counts[i], NULL));
    }
}

WORLD_TEST(item_is_lost, 10, 0, .size = 2, WORLD_FUNCTIONS(functions))

/* ---- What is left ------------------------------------------------------------------------------------------------ */

static int use_devices(void **state)
{
    for (int i = 0; i < 2; i++) {
        weft_tensor *x = tensor_arange(3, WEFT_DTYPE_FLOAT32);
        weft_tensor *there = tensor_to_device(x, (weft_device){WEFT_DEVICE_CUDA, i});
        weft_tensor_unref(there);
        weft_tensor_unref(x);
    }
    usual = bytes_live();
    return 0;
}

static int nothing_is_left(void **state)
{
    if (bytes_live() != usual)
        print_error("%zu bytes are in use, %zu before\n", bytes_live(), usual);
    return bytes_live() != usual;
}

int main(int argc, char **argv)
{
    gpu_find("emulated_gpu_fail", &fail_some);
    gpu_find("emulated_gpu_fail_device", &fail_device);
    gpu_find("emulated_gpu_mend_device", &mend_device);
    gpu_find("emulated_gpu_counts", &read_counts);
    if (!fail_some || !fail_device || !mend_device || !read_counts)
        return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_cancelled, nothing_is_left),
        cmocka_unit_test_teardown(test_out_of_time, nothing_is_left),
        cmocka_unit_test_teardown(test_retried, nothing_is_left),
        cmocka_unit_test_teardown(test_stopped, nothing_is_left),
        cmocka_unit_test_teardown(test_stopped_late, nothing_is_left),
        cmocka_unit_test_teardown(test_closed, nothing_is_left),
        cmocka_unit_test_teardown(test_flood, nothing_is_left),
        cmocka_unit_test_teardown(test_flood_by_large, nothing_is_left),
        cmocka_unit_test_teardown(test_in_pieces, nothing_is_left),
        cmocka_unit_test_teardown(test_copies_fail, nothing_is_left),
        cmocka_unit_test_teardown(test_pull_ends, nothing_is_left),
        cmocka_unit_test_teardown(test_out_of_memory, nothing_is_left),
        cmocka_unit_test_teardown(test_device_fails, nothing_is_left),
        cmocka_unit_test_teardown(test_item_is_lost, nothing_is_left),
        cmocka_unit_test(test_worker_dies), /* a killed worker of the simulation frees nothing */
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, use_devices, NULL);
}
