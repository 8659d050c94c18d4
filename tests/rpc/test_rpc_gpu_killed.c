/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_gpu_killed.c - workers are killed, as processes on tcp, while tensors of GPUs are on their way to and from
 * them: what this worker has started ends, and nothing of its page-locked or device memory stays in use. This program
 * is its own child, told by argv[1]. Each process has an emulated GPU of its own, or all share a real one.
 */
#include "children.h"
#include "gpu/gpu.h"
#include "make.h"
#include "mem/mem.h"
#include "rpc/world.h"
#include "tensors.h"

#include <unistd.h>

enum { KILLS = 20, CALLS = 12, SIZE = 2 };

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0};
static const int64_t counts[] = {3, 700, 5001, 300007, 2000003};
static atomic_int served;

static weft_tensor *make(int i)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(counts[i % 5]), WEFT_DTYPE_FLOAT32), *there = tensor_to_device(x, gpu);
    weft_tensor_unref(x);
    return there;
}

static weft_status run_echo(weft_call *call, void *user)
{
    atomic_fetch_add(&served, 1);
    return world_run_echo(call, user);
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = run_echo}};

static weft_agent *open_rank(int rank, int port)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = 1,
                                                               .has_rank = true,
                                                               .rank = rank,
                                                               .world_size = SIZE,
                                                               .elastic = true,
                                                               .master_addr = "127.0.0.1",
                                                               .master_port = port,
                                                               .rendezvous_timeout_ms = 20000,
                                                               .no_binding = true},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

/* Starts calls of all sizes to the other worker. */
static void begin(weft_agent *agent, int rank, weft_future *futures[CALLS])
{
    for (int i = 0; i < CALLS; i++) {
        weft_tensor *x = make(i);
        weft_status status =
            weft_rpc_async(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &futures[i]);
        MUST(!status || status == WEFT_ERR_PEER_DEAD);
        if (status)
            futures[i] = NULL;
        weft_tensor_unref(x);
    }
}

static int victim(void)
{
    weft_agent *agent = open_rank(1, atoi(getenv("MASTER_PORT")));
    child_say('j');
    for (;;) { /* until it is killed */
        weft_future *futures[CALLS];
        begin(agent, 0, futures);
        for (int i = 0; i < CALLS; i++) {
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
            weft_future_unref(futures[i]);
        }
    }
}

static const child_role roles[] = {{"victim", victim}};

static size_t bytes_live(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live;
}

static void test_killed(void **state)
{
    int port = world_free_port(), kills = getenv("WEFT_TEST_KILLS") ? atoi(getenv("WEFT_TEST_KILLS")) : KILLS;
    weft_agent *agent = open_rank(0, port);
    weft_tensor_unref(make(0));
    size_t usual = bytes_live(); /* the page-locked pieces of ordinary copies */
    for (int i = 0; i < kills; i++) {
        weft_future *futures[CALLS];
        int before = atomic_load(&served);
        child dies = child_start(1, SIZE, port, "victim");
        child_hear(&dies, 'j');
        while (weft_agent_find(agent, "worker1") != 1)
            usleep(1000);
        for (int round = 0; round < i % 3; round++) {
            begin(agent, 1, futures);
            for (int k = 0; k < CALLS; k++) {
                MUST_OK(weft_future_wait(futures[k], WEFT_FOREVER));
                weft_future_unref(futures[k]);
            }
        }
        while (atomic_load(&served) < before + i % CALLS)
            usleep(100);
        begin(agent, 1, futures);
        usleep((useconds_t)(i * 7919 % 20000));
        child_kill(&dies);
        for (int k = 0; k < CALLS; k++) {
            weft_status status = futures[k] ? weft_future_wait(futures[k], 20000) : WEFT_ERR_PEER_DEAD;
            MUST(!status || status == WEFT_ERR_PEER_DEAD);
            weft_future_unref(futures[k]);
        }
        while (weft_agent_find(agent, "worker1") != -1)
            usleep(1000);
        for (int waited = 0; bytes_live() != usual && waited < 10000; waited++)
            usleep(1000);
        assert_int_equal(bytes_live(), usual);
        assert_int_equal(world_stats(agent).bytes_held, 0);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

int main(int argc, char **argv)
{
    int code = child_play(argc, argv, roles, sizeof(roles) / sizeof(*roles));
    if (code >= 0)
        return code;
    if (!gpu_is_here())
        return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
