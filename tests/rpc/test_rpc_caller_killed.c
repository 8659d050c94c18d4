/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_caller_killed.c - a caller is killed, on tcp, as a process, while we hold a deferred call of its, stream
 * parts to it, and have calls within its calls under way: its handlers are told, what they started is cancelled, and
 * nothing stays. Then somebody takes its name, and the call that is tried again finds that one. This program is its
 * own child, told by argv[1].
 */
#include "children.h"
#include "rpc/world.h"
#include "tensors.h"

#include <unistd.h>

enum { SERVER = 0, VICTIM = 1, FRIEND = 2, SIZE = 3 };

static weft_call *held[16];
static atomic_int held_count, told_count, streamed, stream_ended, nests_ended;

static void note_told(weft_future *future, void *arg)
{
    if (weft_future_error(future))
        atomic_fetch_add(&told_count, 1);
}

static weft_status run_hold(weft_call *call, void *user)
{
    weft_future *cancellation = weft_call_cancellation(call);
    MUST(cancellation);
    MUST_OK(weft_future_add_done_callback(cancellation, note_told, NULL, NULL));
    weft_future_unref(cancellation);
    weft_call_defer_keeping(call);
    held[atomic_fetch_add(&held_count, 1)] = call;
    return WEFT_DEFERRED;
}

/* Parts without end, until nobody wants them. */
static weft_status run_stream(weft_call *call, void *user)
{
    weft_status status = WEFT_OK;
    weft_tensor *part = tensor_zeros(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32);
    while (!status || status == WEFT_ERR_AGAIN) {
        status = weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(part)));
        atomic_fetch_add(&streamed, !status);
        if (status == WEFT_ERR_AGAIN)
            usleep(500);
    }
    MUST_BE(status, WEFT_ERR_CANCELLED);
    MUST(weft_call_cancelled(call));
    weft_tensor_unref(part);
    atomic_store(&stream_ended, 1);
    return WEFT_OK;
}

/* Waits for a call within this one: of a function of the friend's, or on a value of the friend's. */
static weft_status run_nest(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_rpc_options options = {.parent = call, .timeout_ms = WEFT_FOREVER};
    weft_future *inner;
    weft_rref *made = NULL;
    if (user) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(FRIEND), "count", WEFT_NO_VALUES, &options, &made));
        MUST_OK(weft_rref_rpc_async(made, "hold", WEFT_NO_VALUES, &options, &inner));
    } else {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(FRIEND), "hold", WEFT_NO_VALUES, &options, &inner));
    }
    weft_status status = weft_future_wait(inner, WEFT_FOREVER);
    MUST(status == WEFT_ERR_CANCELLED || status == WEFT_ERR_PEER_DEAD);
    MUST(weft_call_cancelled(call));
    weft_future_unref(inner);
    weft_rref_unref(made);
    atomic_fetch_add(&nests_ended, 1);
    return status;
}

static weft_status run_count(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(atomic_load(&held_count)), weft_of_i64(atomic_load(&told_count))));
    return WEFT_OK;
}

static weft_status run_finish(weft_call *call, void *user)
{
    for (int i = 0; i < atomic_load(&held_count); i++)
        weft_call_finish(held[i], WEFT_OK);
    return WEFT_OK;
}

static const weft_function functions[] = {{.name = "hold", .takes = {WEFT_TYPE_REST}, .run = run_hold},
                                          {.name = "stream", .run = run_stream},
                                          {.name = "nest", .run = run_nest},
                                          {.name = "nest on a value", .run = run_nest, .user = &held_count},
                                          {.name = "count", .gives = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .run = run_count},
                                          {.name = "finish", .run = run_finish}};

static weft_agent *open_rank(int rank, int port)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = functions,
                                                               .function_count = sizeof(functions) / sizeof(*functions),
                                                               .has_rank = true,
                                                               .rank = rank,
                                                               .world_size = SIZE,
                                                               .master_addr = "127.0.0.1",
                                                               .master_port = port,
                                                               .rendezvous_timeout_ms = 20000,
                                                               .no_binding = true,
                                                               .threads = 6},
                                         &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

/* ---- Children ---------------------------------------------------------------------------------------------------- */

static void ignore_part(const weft_values *part, void *arg) {}

static int victim(void)
{
    weft_agent *agent = open_rank(VICTIM, atoi(getenv("MASTER_PORT")));
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32);
    weft_future *futures[4];
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .on_item = ignore_part};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), "stream", WEFT_NO_VALUES, &options, &futures[0]));
    options.on_item = NULL;
    MUST_OK(
        weft_rpc_async(agent, weft_to_rank(SERVER), "hold", WEFT_VALUES(weft_of_tensor(large)), &options, &futures[1]));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), "nest", WEFT_NO_VALUES, &options, &futures[2]));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), "nest on a value", WEFT_NO_VALUES, &options, &futures[3]));
    for (;;)
        pause(); /* until it is killed */
}

static int serves(void)
{
    weft_agent *agent = open_rank(atoi(getenv("RANK")), atoi(getenv("MASTER_PORT")));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

static const child_role roles[] = {{"victim", victim}, {"serves", serves}};

/* ---- The one that is called -------------------------------------------------------------------------------------- */

static int64_t ask_friend(weft_agent *agent, size_t what)
{
    weft_values *out;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(FRIEND), "count", WEFT_NO_VALUES, NULL, &out));
    int64_t count = weft_values_args(out).items[what].as.i64;
    weft_values_unref(out);
    return count;
}

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        for (int waited_ = 0; !(condition) && waited_ < 10000; waited_++)                                              \
            usleep(1000);                                                                                              \
        MUST(condition);                                                                                               \
    } while (0)

static void nothing_stays(weft_agent *agent)
{
    char *text = NULL;
    size_t size = 0;
    AWAIT(world_stats(agent).bytes_held == 0);
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_debug_dump(agent, to));
    fclose(to);
    MUST(strstr(text, "\"serving_count\": 0"));
    free(text);
}

static void the_victim_dies(weft_agent *agent, child *dies)
{
    weft_target to[2] = {weft_to_rank(VICTIM), weft_to_rank(FRIEND)};
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    weft_future *both;
    AWAIT(atomic_load(&held_count) == 1 && atomic_load(&streamed) > 0);
    AWAIT(ask_friend(agent, 0) == 2);
    MUST_OK(weft_rpc_multicast(agent, to, 2, "hold", WEFT_NO_VALUES, &options, &both));
    AWAIT(ask_friend(agent, 0) == 3);
    MUST(!weft_call_cancelled(held[0]) && world_stats(agent).bytes_held > 400000);
    child_kill(dies);
    AWAIT(weft_call_cancelled(held[0]) && atomic_load(&told_count) == 1);
    AWAIT(atomic_load(&stream_ended) && atomic_load(&nests_ended) == 2);
    AWAIT(ask_friend(agent, 1) == 2); /* the two calls within; not the third, which is ours */
    weft_call_finish(held[0], WEFT_OK);
    MUST_BE(weft_future_wait(both, 0), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(FRIEND), "finish", WEFT_NO_VALUES, NULL, NULL));
    MUST_OK(weft_future_wait(both, 10000));
    weft_future **each = weft_future_payload(both);
    MUST_BE(weft_error_code(weft_future_error(each[0])), WEFT_ERR_PEER_DEAD);
    MUST(!weft_future_error(each[1]));
    weft_future_unref(both);
    nothing_stays(agent);
}

static void test_caller_killed(void **state)
{
    int port = world_free_port();
    child dies = child_start(VICTIM, SIZE, port, "victim"), friend = child_start(FRIEND, SIZE, port, "serves");
    weft_agent *agent = open_rank(SERVER, port);
    weft_future *by_name;
    weft_rpc_options options = {.retry = {.attempts = 100000, .pause_ms = 5, .pause_most_ms = 50},
                                .timeout_ms = WEFT_FOREVER};
    MUST_OK(weft_rpc_async(agent, weft_to_name("worker1"), "hold", WEFT_NO_VALUES, &options, &by_name));
    the_victim_dies(agent, &dies);
    /* Somebody takes the name, and with it the call that is tried again since. */
    weft_worker former = weft_agent_worker(agent, VICTIM);
    MUST(!weft_future_done(by_name) && weft_agent_find(agent, "worker1") == -1);
    child next = child_start(VICTIM, SIZE, port, "serves");
    AWAIT(weft_agent_find(agent, "worker1") == VICTIM);
    for (int64_t holds = 0; holds < 1;) {
        weft_values *out;
        MUST_OK(weft_rpc_sync(agent, weft_to_name("worker1"), "count", WEFT_NO_VALUES, NULL, &out));
        holds = weft_values_args(out).items[0].as.i64;
        weft_values_unref(out);
        usleep(1000);
    }
    MUST_OK(weft_rpc_sync(agent, weft_to_name("worker1"), "finish", WEFT_NO_VALUES, NULL, NULL));
    MUST_OK(weft_future_wait(by_name, 10000));
    weft_future_unref(by_name);
    MUST_BE(weft_rpc_sync(agent, weft_to_worker(former), "count", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_PEER_DEAD);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    child_must_end_well(&friend, 1);
    child_must_end_well(&next, 1);
}

int main(int argc, char **argv)
{
    int played = child_play(argc, argv, roles, 2);
    if (played >= 0)
        return played;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_caller_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
