/* SPDX-License-Identifier: Apache-2.0 */
/* host_rings_test.c - a peer that writes nonsense into the shared memory of a lane loses the lane, and nothing else. */
#include "host/host.h"
#include "ofi/ofi_node.h"
#include "prng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVES 8

typedef struct wire { /* two nodes and two lanes between them; a is the one that misbehaves, on the first */
    ofi_node a, b;
    ofi_link bad, good;
    ofi_link *bad_at_b, *good_at_b;
    ofi_job receives[RECEIVES], send, receive;
    uint8_t in[RECEIVES][64], other[64];
} wire;

static wire *wire_up(void)
{
    static wire w;
    memset(&w, 0, sizeof(w));
    ofi_node_open(&w.a);
    ofi_node_open(&w.b);
    w.bad_at_b = ofi_join(&w.a, &w.b, &w.bad);
    w.good_at_b = ofi_join(&w.a, &w.b, &w.good);
    for (int i = 0; i < RECEIVES; i++) {
        ofi_job_init(&w.receives[i]);
        assert_int_equal(ofi_ops()->post_recv(w.bad_at_b->lane, &w.receives[i].op,
                                              &(wfi_receive_buffer){.data = w.in[i], .size = sizeof(w.in[i])}, 1),
                         WEFT_OK);
    }
    return &w;
}

/* The other lane still carries messages. */
static void the_good_lane_works(wire *w)
{
    ofi_job_init(&w->receive);
    ofi_job_init(&w->send);
    assert_int_equal(ofi_ops()->post_recv(w->good_at_b->lane, &w->receive.op,
                                          &(wfi_receive_buffer){.data = w->other, .size = sizeof(w->other)}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->send(w->good.lane, &w->send.op, &(wfi_iov){.data = "good", .size = 5}, 1), WEFT_OK);
    ofi_until(&w->a, &w->b, w->receive.reports && w->send.reports);
    assert_string_equal((char *)w->other, "good");
}

static void wire_down(wire *w)
{
    the_good_lane_works(w);
    ofi_hang_up(&w->bad);
    ofi_hang_up(&w->good);
    ofi_node_close(&w->a);
    ofi_node_close(&w->b);
}

static wfi_host_segment *segment_of(const ofi_link *link)
{
    return link->lane->segment;
}

static void signal_b(const wire *w)
{
    wfi_host_doorbell_signal(&w->bad.lane->peer.doorbell, w->bad.lane->peer.slot);
}

static void b_loses_the_lane(wire *w)
{
    signal_b(w);
    ofi_until(&w->a, &w->b, w->bad_at_b->closed && w->bad.closed);
    assert_int_equal(w->bad_at_b->why, WEFT_ERR_FABRIC);
    for (int i = 0; i < RECEIVES; i++)
        ofi_until(&w->a, &w->b, w->receives[i].reports);
    assert_int_equal(w->receives[RECEIVES - 1].status, WEFT_ERR_UNREACHABLE);
    assert_int_equal(ofi_ops()->send(w->bad_at_b->lane, &w->send.op, &(wfi_iov){.data = "x", .size = 1}, 1),
                     WEFT_ERR_UNREACHABLE);
    wire_down(w);
}

static void a_tail_that_is_too_far_closes_the_lane(void **state)
{
    wire *w = wire_up();
    atomic_store(&segment_of(&w->bad)->rings[0].tail, WFI_HOST_RING_BYTES + WFI_HOST_ALIGN);
    b_loses_the_lane(w);
}

static void a_tail_before_the_head_closes_the_lane(void **state)
{
    wire *w = wire_up();
    atomic_store(&segment_of(&w->bad)->rings[0].tail, -WFI_HOST_ALIGN);
    b_loses_the_lane(w);
}

static void a_tail_within_a_word_closes_the_lane(void **state)
{
    wire *w = wire_up();
    atomic_store(&segment_of(&w->bad)->rings[0].tail, 13);
    b_loses_the_lane(w);
}

static void a_message_of_an_impossible_size_closes_the_lane(void **state)
{
    static const uint64_t sizes[] = {WFI_HOST_MESSAGE_MAX + 1, UINT32_MAX, UINT64_C(1) << 32, UINT64_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        wire *w = wire_up();
        memcpy(segment_of(&w->bad)->data[0], &sizes[i], sizeof(sizes[i]));
        atomic_store(&segment_of(&w->bad)->rings[0].tail, 64);
        b_loses_the_lane(w);
    }
}

static void a_head_that_is_impossible_closes_the_lane(void **state)
{
    static const uint32_t heads[] = {8, 4, WFI_HOST_RING_BYTES, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        wire *w = wire_up();
        ofi_job_init(&w->send);
        atomic_store(&segment_of(&w->bad)->rings[1].head, heads[i]); /* of the ring in which b writes */
        assert_int_equal(ofi_ops()->send(w->bad_at_b->lane, &w->send.op, &(wfi_iov){.data = "x", .size = 1}, 1),
                         WEFT_OK);
        ofi_until(&w->a, &w->b, w->send.reports && w->bad_at_b->closed);
        assert_int_equal(w->send.status, WEFT_ERR_UNREACHABLE);
        wire_down(w);
    }
}

/* A message whose rest never comes: the receive waits, and is reported when the lane is closed. */
static void half_a_message_waits_until_the_lane_is_closed(void **state)
{
    wire *w = wire_up();
    const uint64_t size = 40;
    memcpy(segment_of(&w->bad)->data[0], &size, sizeof(size));
    atomic_store(&segment_of(&w->bad)->rings[0].tail, 16);
    signal_b(w);
    for (int i = 0; i < 50; i++)
        ofi_step(&w->a, &w->b);
    assert_int_equal(w->receives[0].reports, 0);
    ofi_hang_up(&w->bad);
    ofi_until(&w->a, &w->b, w->bad_at_b->closed && w->receives[0].reports);
    assert_int_equal(w->receives[0].status, WEFT_ERR_UNREACHABLE);
    wire_down(w);
}

static void bits_of_lanes_that_do_not_exist_are_ignored(void **state)
{
    wire *w = wire_up();
    const wfi_host_doorbell *doorbell = &w->bad.lane->peer.doorbell;
    for (int round = 0; round < 20; round++) {
        for (uint32_t slot = 0; slot < WFI_HOST_LANES_MAX; slot++)
            wfi_host_doorbell_signal(doorbell, slot);
        atomic_store(&doorbell->page->armed, (uint32_t)prng_mix((uint64_t)round));
        ofi_step(&w->a, &w->b);
    }
    assert_int_equal(w->bad.closed + w->bad_at_b->closed, 0);
    wire_down(w);
}

static bool is_readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1;
}

/* a makes its descriptors blocking and sends more than b's bell takes. Neither ringing nor sleeping blocks, at b or at
 * others, and b drains the bell. A call that blocks would end in SIGALRM. */
static void a_peer_that_fills_the_bell_holds_nobody_up(void **state)
{
    wire *w = wire_up();
    int ring = w->bad.lane->peer.doorbell.fd, bell = ofi_ops()->wait_fd(w->b.fabric), sent = 0;
    const int fds[] = {ring, bell, w->good.lane->peer.doorbell.fd, ofi_ops()->wait_fd(w->a.fabric)};
    alarm((unsigned)(20 * ofi_slow()));
    for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
        assert_int_equal(fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) & ~O_NONBLOCK), 0);
    (void)ofi_ops()->may_sleep(w->b.fabric); /* nothing in the bell */
    while (send(ring, "", 1, MSG_DONTWAIT) == 1)
        sent++;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(atomic_load(&w->bad.lane->peer.doorbell.page->armed) & 1, 1);
    wfi_host_doorbell_signal(&w->good.lane->peer.doorbell, w->good.lane->peer.slot); /* by a peer that does no wrong */
    assert_int_equal(atomic_load(&w->good.lane->peer.doorbell.page->armed) & 1, 0);
    assert_true(is_readable(bell)); /* so b does not sleep */
    for (int calls = 0; is_readable(bell); calls++) {
        assert_true(calls <= sent / 64);
        (void)ofi_ops()->may_sleep(w->b.fabric);
    }
    alarm(0);
    wire_down(w);
}

/* Random words of the segment are overwritten beside messages in both directions. b's other lane is not affected. */
static void random_damage_never_reaches_beyond_the_lane(void **state)
{
    enum { ROUNDS = 300 };
    wire *w = wire_up();
    uint64_t random = 7;
    for (int round = 0; round < ROUNDS; round++) {
        static ofi_job jobs[16];
        static uint8_t in[8][4096], out[4096];
        ofi_link link;
        ofi_link *other = ofi_join(&w->a, &w->b, &link);
        for (int i = 0; i < 8; i++) {
            ofi_job_init(&jobs[i]);
            wfi_receive_buffer buffers[2] = {{.data = in[i], .size = 100}, {.data = in[i] + 100, .size = 3996}};
            assert_int_equal(ofi_ops()->post_recv(other->lane, &jobs[i].op, buffers, 2), WEFT_OK);
        }
        for (int step = 0; step < 20; step++) {
            uint32_t *words = (uint32_t *)(void *)segment_of(&link);
            size_t head = sizeof(wfi_host_ring) * 2 / 4,
                   at = (size_t)prng_below(&random, step % 2 ? head : head + 8192);
            __atomic_store_n(&words[at], (uint32_t)(step % 3 ? prng_below(&random, 40000) : prng_next(&random)),
                             __ATOMIC_RELAXED);
            wfi_host_doorbell_signal(&link.lane->peer.doorbell, link.lane->peer.slot);
            (void)!ofi_ops()->inject(link.lane, out, (size_t)prng_below(&random, 200) + 1);
            (void)!ofi_ops()->inject(other->lane, out, (size_t)prng_below(&random, 200) + 1);
            ofi_step(&w->a, &w->b);
        }
        ofi_hang_up(&link);
        ofi_hang_up(other);
        for (int i = 0; i < 8; i++)
            ofi_until(&w->a, &w->b, jobs[i].reports);
        w->b.accepted_count--;
    }
    wire_down(w);
}

UNIT_MAIN(a_tail_that_is_too_far_closes_the_lane, a_tail_before_the_head_closes_the_lane,
          a_tail_within_a_word_closes_the_lane, a_message_of_an_impossible_size_closes_the_lane,
          a_head_that_is_impossible_closes_the_lane, half_a_message_waits_until_the_lane_is_closed,
          bits_of_lanes_that_do_not_exist_are_ignored, a_peer_that_fills_the_bell_holds_nobody_up,
          random_damage_never_reaches_beyond_the_lane)
