/* SPDX-License-Identifier: Apache-2.0 */
/* ofi_threads_test.c - two threads post, one polls and sleeps, one reads events; lanes are closed beside them. */
#include "ofi/ofi_node.h"
#include "lanes.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { POSTERS = 2, ROUNDS = 2000, WINDOW = 16 };

typedef struct shop {
    wfi_fabric *fabric;
    atomic_bool stop;
    int wake[2];
    pthread_t poller, listener;
    pthread_mutex_t lock; /* the owner's own: over its lanes */
    wfi_lane *accepted;
    atomic_int connected, failed, reported;
} shop;

typedef struct ticket {
    wfi_fabric_op op; /* first member: a completion names it */
    atomic_bool free;
    atomic_int *reported;
} ticket;

static void *poll_all(void *arg)
{
    shop *s = arg;
    wfi_completion done[16];
    while (!atomic_load(&s->stop)) {
        size_t count = ofi_ops()->poll(s->fabric, done, 16);
        for (size_t i = 0; i < count; i++) {
            ticket *t = (ticket *)done[i].op;
            if (done[i].status != WEFT_OK)
                atomic_fetch_add(&s->failed, 1);
            atomic_fetch_add(&s->reported, 1);
            atomic_store(&t->free, true);
        }
        if (count == 0 && ofi_ops()->may_sleep(s->fabric))
            poll(&(struct pollfd){.fd = ofi_ops()->wait_fd(s->fabric), .events = POLLIN}, 1, 20);
    }
    return NULL;
}

static void *read_events(void *arg)
{
    shop *s = arg;
    wfi_event event;
    while (!atomic_load(&s->stop)) {
        if (lanes_await_event(s->fabric, &event, 1000, s->wake[0]) == 0)
            continue;
        if (event.kind == WFI_EVENT_CONNECTED)
            atomic_fetch_add(&s->connected, 1);
        if (event.kind != WFI_EVENT_REQUEST)
            continue;
        pthread_mutex_lock(&s->lock);
        wfi_lane *old = s->accepted;
        if (lanes_accept(s->fabric, event.request, NULL, 0, NULL, &s->accepted) != WEFT_OK)
            s->accepted = NULL;
        pthread_mutex_unlock(&s->lock);
        ofi_ops()->lane_close(old);
    }
    return NULL;
}

static void shop_open(shop *s)
{
    memset(s, 0, sizeof(*s));
    assert_int_equal(ofi_ops()->open(&(wfi_fabric_options){.towards = "127.0.0.1"}, &s->fabric, NULL), WEFT_OK);
    assert_int_equal(pipe(s->wake), 0);
    pthread_mutex_init(&s->lock, NULL);
    assert_int_equal(pthread_create(&s->poller, NULL, poll_all, s), 0);
    assert_int_equal(pthread_create(&s->listener, NULL, read_events, s), 0);
}

static void shop_close(shop *s)
{
    atomic_store(&s->stop, true);
    assert_int_equal(write(s->wake[1], "x", 1), 1);
    pthread_join(s->poller, NULL);
    pthread_join(s->listener, NULL);
    if (s->accepted)
        ofi_ops()->lane_close(s->accepted);
    ofi_ops()->close(s->fabric);
    close(s->wake[0]);
    close(s->wake[1]);
    pthread_mutex_destroy(&s->lock);
}

static void wait_for(atomic_int *count, int target)
{
    for (uint64_t limit = ofi_now_ms() + 20000; atomic_load(count) < target; usleep(100))
        if (ofi_now_ms() > limit)
            fail_msg("gave up at %d of %d", atomic_load(count), target);
}

typedef struct poster {
    wfi_lane *lane;
    uint64_t *local, base, key;
    wfi_region *region; /* of `local` */
    ticket tickets[WINDOW];
    pthread_t thread;
    bool write;
    int refused;
} poster;

static void *post_all(void *arg)
{
    poster *p = arg;
    for (int i = 0; i < ROUNDS; i++) {
        ticket *t = &p->tickets[i % WINDOW];
        while (!atomic_exchange(&t->free, false))
            sched_yield();
        size_t at = (size_t)(i % WINDOW);
        weft_status status =
            p->write ? ofi_ops()->write(p->lane, &t->op, p->local + at, 8, p->region, p->base + 8 * at, p->key)
                     : ofi_ops()->read(p->lane, &t->op, p->local + at, 8, p->region, p->base + 8 * at, p->key);
        p->refused += status != WEFT_OK;
    }
    return NULL;
}

static void two_posters_and_a_sleeping_poller_lose_nothing(void **state)
{
    static shop a, b;
    static poster posters[POSTERS];
    static uint64_t memory[POSTERS][WINDOW], local[POSTERS][WINDOW];
    wfi_region *region;
    wfi_lane *lane;
    uint8_t address[WFI_ADDRESS_MAX];
    shop_open(&a);
    shop_open(&b);
    if (ofi_ops()->limits(a.fabric)->no_reads) {
        shop_close(&a);
        shop_close(&b);
        skip();
    }
    assert_int_equal(ofi_ops()->region_open(b.fabric, &WFI_HOST_MEMORY(memory, sizeof(memory)),
                                            WFI_REMOTE_READ | WFI_REMOTE_WRITE, &region),
                     WEFT_OK);
    size_t size = ofi_ops()->address(b.fabric, address);
    assert_int_equal(lanes_connect(a.fabric, address, size, NULL, 0, NULL, &lane), WEFT_OK);
    wait_for(&a.connected, 1);
    wfi_region *local_region = ofi_region_open(a.fabric, local, sizeof(local));
    for (int i = 0; i < POSTERS; i++) {
        posters[i] = (poster){.lane = lane,
                              .local = local[i],
                              .region = local_region,
                              .base = region->base + (size_t)i * sizeof(memory[0]),
                              .key = region->key,
                              .write = i == 0 && ofi_writes()};
        for (int j = 0; j < WINDOW; j++) {
            atomic_init(&posters[i].tickets[j].free, true);
            local[i][j] = (uint64_t)j + 1;
        }
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(posters[i].thread, NULL);
        assert_int_equal(posters[i].refused, 0);
    }
    wait_for(&a.reported, POSTERS * ROUNDS);
    assert_int_equal(atomic_load(&a.failed), 0);
    ofi_ops()->lane_close(lane);
    if (local_region)
        ofi_ops()->region_close(a.fabric, local_region);
    shop_close(&a);
    ofi_ops()->region_close(b.fabric, region);
    shop_close(&b);
    assert_int_equal(atomic_load(&a.reported), POSTERS * ROUNDS);
}

/* A poller asleep is told of what lane_close cancelled: nothing shows on a socket. */
static void closing_wakes_the_sleeping_poller(void **state)
{
    static shop a, b;
    uint8_t address[WFI_ADDRESS_MAX], buffer[64];
    shop_open(&a);
    shop_open(&b);
    size_t size = ofi_ops()->address(b.fabric, address);
    wfi_region *into = ofi_region_open(a.fabric, buffer, sizeof(buffer));
    for (int i = 0; i < 100; i++) {
        ticket receive;
        wfi_lane *lane;
        atomic_init(&receive.free, false);
        assert_int_equal(lanes_connect(a.fabric, address, size, NULL, 0, NULL, &lane), WEFT_OK);
        assert_int_equal(
            ofi_ops()->post_recv(lane, &receive.op, &(wfi_receive_buffer){buffer, sizeof(buffer), into}, 1), WEFT_OK);
        ofi_ops()->lane_close(lane);
        wait_for(&a.reported, i + 1);
        for (uint64_t limit = ofi_now_ms() + 5000; !atomic_load(&receive.free) && ofi_now_ms() < limit;)
            sched_yield();
    }
    assert_int_equal(atomic_load(&a.failed), 100);
    if (into)
        ofi_ops()->region_close(a.fabric, into);
    shop_close(&a);
    shop_close(&b);
}

UNIT_MAIN(two_posters_and_a_sleeping_poller_lose_nothing, closing_wakes_the_sleeping_poller)
