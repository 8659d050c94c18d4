/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_tcp.c - nets over tcp in one process: messages, transfers, waiting threads. */
#include "children.h"
#include "net/net_bulk.h"
#include "lanes.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 2000

static void send_paced(net_host *host, int to, int count)
{
    for (int i = 0; i < count; i++) {
        size_t size = (size_t)(i * 37) % (i % 10 ? 200 : WFI_MESSAGE_MAX - 8);
        while (host_send_free(host, to, (uint64_t)i, size) == WEFT_ERR_AGAIN)
            host_pause(host, 100000);
    }
}

static void body_exchange(net_host *host)
{
    send_paced(host, 1 - host->rank, MANY);
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    host_meet(host, &host->world->finished);
}

NET_TEST(messages_arrive_once_and_in_order, body_exchange, 2, 0, true, .on_message = host_check_order)

NET_TEST(messages_arrive_without_threads, body_exchange, 2, 0, true, .on_message = host_check_order, .no_threads = true)

/* ---- Transfers ------------------------------------------------------------------------------------------------- */

#define MIB ((size_t)1 << 20)

static const size_t sizes[] = {0, 1, 4096, 3 * MIB - 7, 12, 20 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void payloads_are_pulled_and_pushed(void **state)
{
    const char *instead = getenv("TEST_FABRIC");
    char first[32];
    snprintf(first, sizeof(first), "%.*s", (int)strcspn(instead ? instead : "tcp", ","), instead ? instead : "tcp");
    bool has_writes = wfi_fabric_find(first)->write;
    for (int kind = WFI_PULL; kind <= (has_writes ? WFI_PUSH : WFI_PULL); kind++) {
        bulk_stage s = {.kind = (wfi_transfer_kind)kind, .sizes = sizes, .count = SIZES};
        net_world world = {.user = &s};
        world_tcp(&world, 2, bulk_stage_body);
    }
}

/* ---- Waiting threads ------------------------------------------------------------------------------------------- */

#define CALLS 300
#define CALLERS 3

typedef struct caller {
    net_host *host;
    weft_future *futures[CALLS];
} caller;

/* Rank 1 answers with the number that came; rank 0 completes the future of that number. */
static void echo(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    uint64_t number;
    assert(size == sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    if (host->rank == 1) {
        weft_status status = host_send(host, wfi_peer_rank(from), number, 0, true);
        assert(!status);
        (void)status;
        return;
    }
    caller *callers = host->user;
    weft_future *future = callers[number / CALLS].futures[number % CALLS];
    weft_status status = weft_future_complete(future, NULL, NULL);
    assert(!status);
    (void)status;
    weft_future_unref(future);
}

static void *call_many(void *arg)
{
    caller *me = arg;
    const caller *all = me->host->user;
    for (int i = 0; i < CALLS; i++) {
        if (host_send_free(me->host, 1, (uint64_t)((me - all) * CALLS + i), 0))
            abort();
        if (weft_future_wait(me->futures[i], 10000))
            abort();
        weft_future_unref(me->futures[i]);
    }
    return NULL;
}

static void body_callers(net_host *host)
{
    static caller callers[CALLERS];
    pthread_t threads[CALLERS];
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        host->user = callers;
        wfi_net_unlock(host->net);
        for (int c = 0; c < CALLERS; c++) {
            callers[c].host = host;
            for (int i = 0; i < CALLS; i++) /* one reference for who waits, one for who completes */
                callers[c].futures[i] = weft_future_ref(wfi_future_create(host->executor, wfi_net_driver(host->net)));
            assert_int_equal(pthread_create(&threads[c], NULL, call_many, &callers[c]), 0);
        }
        for (int c = 0; c < CALLERS; c++)
            pthread_join(threads[c], NULL);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(waiting_threads_make_progress, body_callers, 2, 0, true, .on_message = echo)

/* ---- Executor -------------------------------------------------------------------------------------------------- */

typedef struct job {
    wfi_task task;
    net_host *host;
    uint64_t number;
} job;

static void answer_job(wfi_task *task)
{
    job *work = wfi_container_of(task, job, task);
    weft_status status;
    wfi_net_lock(work->host->net);
    status = host_send(work->host, 0, work->number, 0, true);
    wfi_net_unlock(work->host->net);
    if (status)
        abort();
    free(work);
}

static void serve(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    if (host->rank == 0) {
        echo(host, from, type, bytes, size);
        return;
    }
    job *work = calloc(1, sizeof(*work));
    work->task.run = answer_job;
    work->host = host;
    memcpy(&work->number, bytes, sizeof(work->number));
    wfi_net_defer(host->net, &work->task, work->number % 5 ? WFI_DEFER_WORKER : WFI_DEFER_INLINE);
}

NET_TEST(workers_lead_and_follow, body_callers, 2, 0, true, .on_message = serve)

/* A wait inside an inline handler could never end, and says so. */
static void wait_inline(wfi_task *task)
{
    job *work = wfi_container_of(task, job, task);
    weft_future *future = wfi_future_create(work->host->executor, wfi_net_driver(work->host->net));
    atomic_store(&work->host->why, weft_future_wait(future, 5000));
    weft_future_unref(future);
    atomic_store(&work->host->done_ok, 1);
    free(work);
}

static void defer_wait(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    job *work = calloc(1, sizeof(*work));
    work->task.run = wait_inline;
    work->host = host;
    wfi_net_defer(host->net, &work->task, WFI_DEFER_INLINE);
}

static void body_deadlock(net_host *host)
{
    if (host->rank == 0) {
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
        host_until(host, &host->done_ok, 1);
    } else {
        host_until(host, &host->done_ok, 1);
        assert_int_equal(host->why, WEFT_ERR_DEADLOCK);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_wait_in_an_inline_handler_is_refused, body_deadlock, 2, 0, true, .on_message = defer_wait)

/* ---- Strangers ------------------------------------------------------------------------------------------------- */

/* Knocks at rank 1 with a well-formed connection request that proves nothing. */
static void knock(net_host *host)
{
    const wfi_member there = host_member(host, 1);
    const char *comma =
        strrchr(host->world->fabric, ','); /* a list ends with tcp, whose address inside_address finds */
    const wfi_fabric_ops *ops = wfi_fabric_find(comma ? comma + 1 : host->world->fabric);
    wfi_fabric_options options = {.towards = "127.0.0.1"};
    wfi_fabric *fabric;
    wfi_lane *lane;
    wfi_event event;
    uint8_t lie[40] = "HW\x01";
    size_t size;
    const uint8_t *address = inside_address(&there, &size);
    assert_int_equal(ops->open(&options, &fabric, NULL), WEFT_OK);
    assert_int_equal(lanes_connect(fabric, address, size, lie, sizeof(lie), NULL, &lane), WEFT_OK);
    int tries = 0;
    while (!lanes_await_event(fabric, &event, 100, -1) && tries < 50)
        tries++;
    assert_int_equal(event.kind, WFI_EVENT_CLOSED);
    ops->lane_close(lane);
    ops->close(fabric);
}

static void body_stranger(net_host *host)
{
    weft_stats stats = {0};
    if (host->rank == 0) {
        knock(host);
        for (uint64_t i = 0; i < 10; i++)
            assert_int_equal(host_send_free(host, 1, i, 100), WEFT_OK);
        host_until(host, &host->done_ok, 10);
    } else {
        host_until(host, &host->arrived, 10);
        wfi_net_lock(host->net);
        wfi_net_stats(host->net, &stats);
        wfi_net_unlock(host->net);
        assert_int_equal(stats.unauthenticated_refused, 1);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_stranger_is_refused_and_counted, body_stranger, 2, 0, true, .on_message = host_check_order)

/* ---- Death ----------------------------------------------------------------------------------------------------- */

#define DEATH_MS 2000

/* Joins as rank 1 and waits to be killed; by itself it ends after a while. */
static void doomed(net_world *world)
{
    host_open(&world->hosts[1]);
    for (;;)
        pause();
}

static uint64_t now_ms(void)
{
    return wfi_now(&wfi_clock_real) / 1000000;
}

static void a_killed_process_is_noticed(void **state)
{
    net_world world = {.death_timeout_ms = DEATH_MS};
    net_host *host = &world.hosts[0];
    world_init(&world, "tcp", 2, NULL);
    world.store_fd = listen_anywhere(&world.port);
    child one = child_fork("doomed");
    if (!one.pid) {
        close(world.store_fd);
        doomed(&world);
    }
    host_open(host);
    assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_OK);
    host_until(host, &host->done_ok, 1);
    child_signal(&one, SIGKILL);
    uint64_t killed_ms = now_ms();
    weft_status taken = host_send_free(host, 1, 1, 8);
    assert_true(taken == WEFT_OK || taken == WEFT_ERR_PEER_DEAD); /* the death may be known already */
    host_until(host, &host->gone, 1);
    assert_true(now_ms() - killed_ms < DEATH_MS);
    assert_int_equal(host->why, WEFT_ERR_PEER_DEAD);
    assert_int_equal(host->done_failed, taken == WEFT_OK);
    child_kill(&one);
    host_close(host);
}

UNIT_MAIN(messages_arrive_once_and_in_order, messages_arrive_without_threads, payloads_are_pulled_and_pushed,
          waiting_threads_make_progress, workers_lead_and_follow, a_wait_in_an_inline_handler_is_refused,
          a_killed_process_is_noticed, a_stranger_is_refused_and_counted)
