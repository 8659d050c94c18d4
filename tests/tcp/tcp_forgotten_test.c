/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_forgotten_test.c - whoever says half a request costs no descriptor for good, however the connection then ends;
 * and no lane pays for it. libfabric 2.1 forgets such sockets.
 */
#include "net/net_measure.h"
#include "tcp/tcp_leaks.h"
#include "ofi/ofi_node.h"

#include <sys/socket.h>
#include <unistd.h>

#define CALLERS 100 /* more than are closed in one go */

typedef enum ending { STAYS, LEAVES, RESETS, ENDINGS } ending;

/* libfabric's header of a connection request: version 3, type 0, and 40 bytes to follow, which never come. */
static const uint8_t promise[32] = {3, 0, 0, 40};

static void hang_up(int fd, ending how)
{
    if (how == RESETS)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    close(fd);
}

/* Half of them say half a header. Some stay for good: their own ends are the only ones that are left. */
static void callers_come(ofi_node *a, ofi_node *b, int fds[CALLERS], size_t before)
{
    for (int i = 0; i < CALLERS; i++)
        fds[i] = ofi_call(b, promise, i % 2 ? sizeof(promise) : 7);
    for (int i = 0; i < CALLERS; i++) {
        ofi_step(a, b);
        if (i % ENDINGS != STAYS)
            hang_up(fds[i], (ending)(i % ENDINGS));
    }
    size_t staying = (CALLERS + ENDINGS - 1) / ENDINGS;
    ofi_until(a, b, measure_descriptors() <= before + staying);
    for (int i = 0; i < CALLERS; i += ENDINGS)
        close(fds[i]);
    assert_int_equal(measure_descriptors(), before);
}

static void say(ofi_node *a, ofi_node *b, ofi_link *from, ofi_link *to)
{
    ofi_job receive, send;
    uint8_t byte = 0;
    ofi_job_init(&receive);
    ofi_job_init(&send);
    assert_int_equal(ofi_ops()->post_recv(to->lane, &receive.op, &(wfi_receive_buffer){&byte, 1, NULL}, 1), WEFT_OK);
    assert_int_equal(ofi_ops()->send(from->lane, &send.op, &(wfi_iov){.data = "x", .size = 1}, 1), WEFT_OK);
    ofi_until(a, b, receive.reports && send.reports);
    assert_int_equal(byte, 'x');
}

static void half_requests_cost_no_descriptor_for_good(void **state)
{
    static ofi_node a, b;
    ofi_link link;
    int fds[CALLERS];
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_link *other = ofi_join(&a, &b, &link);
    say(&a, &b, &link, other);
    callers_come(&a, &b, fds, measure_descriptors());
    say(&a, &b, &link, other);
    say(&a, &b, other, &link);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

/* While a lane is dead and not closed yet, a dead socket may be its own. */
static void a_dead_lane_keeps_its_descriptor(void **state)
{
    static ofi_node a, b;
    ofi_link link, second;
    int fds[CALLERS];
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_link *dead = ofi_join(&a, &b, &link), *other = ofi_join(&a, &b, &second);
    size_t before = measure_descriptors();
    ofi_hang_up(&link);
    ofi_until(&a, &b, dead->closed);
    for (int i = 0; i < CALLERS; i++)
        hang_up(fds[i] = ofi_call(&b, promise, sizeof(promise)), RESETS);
    uint64_t until = ofi_now_ms() + 2200; /* two looks */
    while (ofi_now_ms() < until)
        ofi_step(&a, &b);
    assert_true(measure_descriptors() >= before - 1); /* the other end's is gone, its own is not */
    ofi_hang_up(dead);
    ofi_until(&a, &b, measure_descriptors() <= before - 2);
    say(&a, &b, &second, other);
    ofi_hang_up(&second);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

static void closing_the_fabric_leaves_none(void **state)
{
    static ofi_node a, b;
    int fds[CALLERS];
    size_t before = measure_descriptors();
    ofi_node_open(&a);
    ofi_node_open(&b);
    for (int i = 0; i < CALLERS; i++)
        fds[i] = ofi_call(&b, promise, i % 2 ? sizeof(promise) : 7);
    for (int i = 0; i < CALLERS; i++)
        ofi_step(&a, &b);
    for (int i = 0; i < CALLERS; i++)
        if (i % ENDINGS != STAYS)
            hang_up(fds[i], (ending)(i % ENDINGS));
    ofi_node_close(&a);
    ofi_node_close(&b);
    for (int i = 0; i < CALLERS; i += ENDINGS)
        close(fds[i]);
    assert_int_equal(measure_descriptors(), before);
}

UNIT_MAIN(half_requests_cost_no_descriptor_for_good, a_dead_lane_keeps_its_descriptor, closing_the_fabric_leaves_none)
