/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_strangers_test.c - callers on the listening port that are no peers: silent, half a header, garbage. */
#include "lanes.h"
#include "tcp/tcp_leaks.h"
#include "ofi/ofi_node.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BOUND_MS 20 /* what a stranger may cost */

typedef struct scene {
    ofi_node a, b;
} scene;

static scene *scene_open(void)
{
    static scene s;
    ofi_node_open(&s.a);
    ofi_node_open(&s.b);
    return &s;
}

static void scene_close(scene *s)
{
    ofi_node_close(&s->a);
    ofi_node_close(&s->b);
}

static bool is_hung_up(int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0;
}

static bool all_are_held(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (is_hung_up(fds[i]))
            return false;
    return true;
}

/*
 * A connection beside `count` strangers who have said `bytes`, ten times. The fastest counts, in which the machine's
 * other work hides least of what they cost. Who has said nothing is hung up on after a while; while that was not
 * done, nobody who is through has waited for it. libfabric hangs up itself on those who have said something.
 */
static void connect_beside(const void *bytes, size_t size, int count)
{
    scene *s = scene_open();
    uint64_t fastest_ms = UINT64_MAX;
    bool held = false;
    for (int round = 0; round < 10; round++) {
        int fds[8];
        ofi_link link;
        for (int i = 0; i < count; i++)
            fds[i] = ofi_call(&s->b, bytes, size);
        uint64_t start = ofi_now_ms();
        ofi_join(&s->a, &s->b, &link);
        uint64_t took_ms = ofi_now_ms() - start;
        if (took_ms < fastest_ms) {
            fastest_ms = took_ms;
            held = all_are_held(fds, count);
        }
        ofi_hang_up(&link);
        for (int i = 0; i < count; i++)
            close(fds[i]);
    }
    assert_true(held || size > 0);
    assert_in_range(fastest_ms, 0, (uint64_t)(BOUND_MS * count));
    scene_close(s);
}

/* libfabric's header of a connection request, which is 32 bytes: version 3, type 0, and 40 bytes to follow. */
static const uint8_t promise[72] = {3, 0, 0, 40};
#define HEADER_BYTES 32

static void a_silent_stranger_delays_nobody(void **state)
{
    connect_beside(NULL, 0, 4);
}

static void half_a_header_delays_nobody(void **state)
{
    connect_beside(promise, 7, 1);
}

static void a_promise_unkept_delays_little(void **state)
{
    connect_beside(promise, HEADER_BYTES, 1);
    connect_beside(promise, HEADER_BYTES + 8, 1);
    connect_beside(promise, HEADER_BYTES, 3);
}

static void garbage_delays_nobody(void **state)
{
    uint8_t bytes[512];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    connect_beside(bytes, sizeof(bytes), 1);
    connect_beside("GET / HTTP/1.0\r\n\r\n", 18, 4);
}

static void a_stranger_who_stays_silent_is_hung_up_on(void **state)
{
    scene *s = scene_open();
    ofi_link link;
    int silent[3];
    ofi_join(&s->a, &s->b, &link);
    for (int i = 0; i < 3; i++)
        silent[i] = ofi_call(&s->b, NULL, 0);
    ofi_until(&s->a, &s->b, is_hung_up(silent[0]) && is_hung_up(silent[1]) && is_hung_up(silent[2]));
    uint64_t later = ofi_now_ms() + 100; /* what becomes of the link would be heard by then */
    ofi_until(&s->a, &s->b, ofi_now_ms() >= later);
    assert_int_equal(link.closed, 0);
    assert_int_equal(s->b.accepted[0].closed, 0);
    for (int i = 0; i < 3; i++)
        close(silent[i]);
    ofi_hang_up(&link);
    scene_close(s);
}

/* Whose looks come late, for want of a processor, hangs up late: who calls may have got none either. But in the end
 * it does. */
static void who_looks_late_hangs_up_late(void **state)
{
    scene *s = scene_open();
    int silent = ofi_call(&s->b, NULL, 0), looks = 0;
    for (; !is_hung_up(silent) && looks < 20; looks++) {
        ofi_step(&s->b, NULL);
        usleep(1300000);
    }
    assert_in_range(looks, 5, 19);
    close(silent);
    scene_close(s);
}

static void a_request_that_waits_is_no_stranger(void **state)
{
    scene *s = scene_open();
    ofi_link link;
    s->b.passive = true;
    ofi_dial(&s->a, &s->b, &link, NULL, 0);
    ofi_until(&s->a, &s->b, s->b.waiting);
    int silent = ofi_call(&s->b, NULL, 0);
    ofi_until(&s->a, &s->b, is_hung_up(silent));
    assert_int_equal(link.closed, 0);
    close(silent);
    ofi_hang_up(&link);
    scene_close(s);
}

static void events_end_at_their_time_beside_a_stranger_who_left(void **state)
{
    scene *s = scene_open();
    wfi_event event;
    close(ofi_call(&s->b, promise, 7));
    close(ofi_call(&s->b, NULL, 0));
    uint64_t start = ofi_now_ms(), fastest_ms = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t before = ofi_now_ms();
        assert_int_equal(lanes_await_event(s->b.fabric, &event, 20, -1), 0);
        uint64_t took_ms = ofi_now_ms() - before;
        fastest_ms = took_ms < fastest_ms ? took_ms : fastest_ms;
    }
    assert_true(ofi_now_ms() - start >= 95);
    assert_in_range(fastest_ms, 0, 80);
    scene_close(s);
}

static void a_wake_ends_the_wait_for_events(void **state)
{
    scene *s = scene_open();
    int fds[2];
    wfi_event event;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    uint64_t start = ofi_now_ms();
    assert_int_equal(lanes_await_event(s->b.fabric, &event, 20000, fds[0]), 0);
    assert_true(ofi_now_ms() - start < 20000);
    close(fds[0]);
    close(fds[1]);
    scene_close(s);
}

UNIT_MAIN(a_silent_stranger_delays_nobody, half_a_header_delays_nobody, a_promise_unkept_delays_little,
          garbage_delays_nobody, a_stranger_who_stays_silent_is_hung_up_on, who_looks_late_hangs_up_late,
          a_request_that_waits_is_no_stranger, events_end_at_their_time_beside_a_stranger_who_left,
          a_wake_ends_the_wait_for_events)
