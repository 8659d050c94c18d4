/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_drain_test.c - a lane is closed in the middle of its reads while this process stands still, or libfabric does
 * not see the end of the lane's socket. libfabric before 1.18.
 *
 * libfabric calls the recv, shutdown and getpeername of this file, which behave as `fault` says for the socket that the
 * provider shut down last. The provider's own recv asks for MSG_TRUNC and is left alone.
 */
#include "net/net_measure.h"
#include "ofi/ofi_node.h"

#include <weft/log.h>

#include <rdma/fabric.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STALL_MS 300 /* the bound that the drain once had was 200 */
#define SHORT 1000   /* bytes of a recv after the stall: the first one never ends a read */
#define SHORT_RECVS 50
#define BULK ((size_t)8 << 20)
#define CHUNK ((size_t)1 << 20)
#define CHUNKS (BULK / CHUNK)
#define GUARD 4096 /* bytes of canary on either side */
#define CANARY 0xA5

static const wfi_fabric_ops *const tcp = &wfi_fabric_tcp;

typedef enum fault { NONE, STALL, JAM, LOST } fault;

static struct {
    _Atomic fault fault;
    atomic_int fd;     /* that was shut down while there was a fault */
    atomic_int recvs;  /* on it since */
    atomic_int names;  /* times that getpeername was called while there was a fault */
    atomic_int errors; /* logged since the test began */
    atomic_bool quit;
} world = {.fd = -1};

static void count_errors(weft_log_level level, const char *line, void *arg)
{
    fprintf(stderr, "%s\n", line);
    if (level == WEFT_LOG_ERROR)
        atomic_fetch_add(&world.errors, 1);
}

static void arm(fault which)
{
    atomic_store(&world.fd, -1);
    atomic_store(&world.recvs, 0);
    atomic_store(&world.names, 0);
    atomic_store(&world.fault, which);
}

__attribute__((visibility("default"))) int shutdown(int fd, int how)
{
    if (atomic_load(&world.fault) != NONE && atomic_load(&world.fd) < 0)
        atomic_store(&world.fd, fd);
    return (int)syscall(SYS_shutdown, fd, how);
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
    fault now = fd == atomic_load(&world.fd) && !(flags & MSG_TRUNC) ? atomic_load(&world.fault) : NONE;
    int count = now == NONE ? 0 : atomic_fetch_add(&world.recvs, 1);
    if (now == JAM) {
        errno = EAGAIN;
        return -1;
    }
    if (now == STALL && count == 0)
        usleep(STALL_MS * 1000);
    if (now == STALL && count < SHORT_RECVS && size > SHORT)
        size = SHORT;
    return syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);
}

/* The first call in a fault is libfabric's, which asks where the lane leads. */
__attribute__((visibility("default"))) int getpeername(int fd, struct sockaddr *out, socklen_t *size)
{
    if (atomic_load(&world.fault) == LOST && atomic_fetch_add(&world.names, 1) > 0) {
        errno = ENOTCONN;
        return -1;
    }
    return (int)syscall(SYS_getpeername, fd, out, size);
}

/* ---- Two nodes, a lane between them, and memory that reads land in ---------------------------------------------- */

typedef struct pull {
    uint8_t *landing, *seen; /* GUARD bytes before and behind; seen: as it was when the lane had been closed */
    ofi_job jobs[CHUNKS];
} pull;

typedef struct wire {
    ofi_node a, b;
    ofi_link link;
    uint8_t *theirs;
    wfi_region *region;
    pull first, second; /* second: on another lane, while the first may still be unreported */
} wire;

static void pull_init(pull *p)
{
    p->landing = malloc(BULK + 2 * GUARD);
    p->seen = malloc(BULK + 2 * GUARD);
    assert_true(p->landing && p->seen);
}

static int wire_up(void **state)
{
    atomic_store(&world.errors, 0);
    wire *w = calloc(1, sizeof(*w));
    ofi_node_open(&w->a);
    ofi_node_open(&w->b);
    ofi_join(&w->a, &w->b, &w->link);
    pull_init(&w->first);
    pull_init(&w->second);
    w->theirs = malloc(BULK);
    for (size_t i = 0; i < BULK; i++)
        w->theirs[i] = (uint8_t)((i * 2654435761u + 1) >> 13);
    assert_int_equal(tcp->region_open(w->b.fabric, &WFI_HOST_MEMORY(w->theirs, BULK), WFI_REMOTE_READ, &w->region),
                     WEFT_OK);
    *state = w;
    return 0;
}

static int wire_down(void **state)
{
    wire *w = *state;
    arm(NONE);
    tcp->region_close(w->b.fabric, w->region);
    ofi_hang_up(&w->link);
    ofi_node_close(&w->a);
    ofi_node_close(&w->b);
    free(w->theirs);
    for (int i = 0; i < 2; i++) {
        free((i ? &w->first : &w->second)->landing);
        free((i ? &w->first : &w->second)->seen);
    }
    free(w);
    return 0;
}

static void post_reads(wire *w, pull *p, wfi_lane *lane)
{
    memset(p->landing, CANARY, BULK + 2 * GUARD);
    for (size_t i = 0; i < CHUNKS; i++) {
        ofi_job_init(&p->jobs[i]);
        assert_int_equal(tcp->read(lane, &p->jobs[i].op, p->landing + GUARD + i * CHUNK, CHUNK, NULL,
                                   w->region->base + i * CHUNK, w->region->key),
                         WEFT_OK);
    }
}

/* The first answer has begun to come in, and its rest and the others wait: the other side is not stepped any more. */
static void read_until_the_middle(wire *w)
{
    post_reads(w, &w->first, w->link.lane);
    ofi_until(&w->a, &w->b, memcmp(w->first.landing + GUARD, w->theirs, 2 * SHORT) == 0);
    assert_int_equal(w->first.jobs[CHUNKS - 1].reports, 0);
}

static void remember(wire *w)
{
    memcpy(w->first.seen, w->first.landing, BULK + 2 * GUARD);
}

static void guards_are_whole(const pull *p)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(p->landing[i], CANARY);
        assert_int_equal(p->landing[GUARD + BULK + i], CANARY);
    }
}

static void nothing_was_written_since(const wire *w)
{
    assert_memory_equal(w->first.landing, w->first.seen, BULK + 2 * GUARD);
    guards_are_whole(&w->first);
}

static size_t reported(const pull *p)
{
    size_t count = 0;
    for (size_t i = 0; i < CHUNKS; i++)
        count += p->jobs[i].reports > 0;
    return count;
}

/* What was read well is right; the rest failed with `failed`. */
static void each_was_reported_once(const wire *w, const pull *p, weft_status failed)
{
    for (size_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(p->jobs[i].reports, 1);
        if (p->jobs[i].status == WEFT_OK)
            assert_memory_equal(p->landing + GUARD + i * CHUNK, w->theirs + i * CHUNK, CHUNK);
        else
            assert_int_equal(p->jobs[i].status, failed);
    }
}

/* All reads at once on a new lane: two that shared a record would end wrong, or never. */
static void another_lane_is_whole(wire *w)
{
    ofi_link second;
    ofi_link *other = ofi_join(&w->a, &w->b, &second);
    post_reads(w, &w->second, second.lane);
    ofi_until(&w->a, &w->b, reported(&w->second) == CHUNKS);
    each_was_reported_once(w, &w->second, WEFT_OK);
    guards_are_whole(&w->second);
    ofi_hang_up(&second);
    ofi_hang_up(other);
}

static void settle(wire *w)
{
    for (int i = 0; i < 100; i++)
        ofi_step(&w->a, &w->b);
}

/* ---- The facts --------------------------------------------------------------------------------------------------- */

static void standing_still_while_a_lane_is_closed_harms_nothing(void **state)
{
    wire *w = *state;
    read_until_the_middle(w);
    arm(STALL);
    ofi_hang_up(&w->link);
    remember(w);
    assert_true(atomic_load(&world.recvs) > 0);
    arm(NONE);
    ofi_until(&w->a, &w->b, reported(&w->first) == CHUNKS);
    settle(w);
    nothing_was_written_since(w);
    each_was_reported_once(w, &w->first, WEFT_ERR_CANCELLED);
    another_lane_is_whole(w);
}

/* A message for which nobody has posted a receive stands before the answers. */
static void a_message_in_front_of_the_answers_does_not_hold_up_the_close(void **state)
{
    wire *w = *state;
    ofi_job message;
    ofi_job_init(&message);
    assert_int_equal(tcp->send(w->b.accepted[0].lane, &message.op, &(wfi_iov){.data = "hello", .size = 5}, 1), WEFT_OK);
    post_reads(w, &w->first, w->link.lane);
    settle(w);
    assert_int_equal(reported(&w->first), 0);
    ofi_hang_up(&w->link);
    remember(w);
    settle(w);
    each_was_reported_once(w, &w->first, WEFT_ERR_CANCELLED);
    assert_int_equal(w->first.jobs[0].status, WEFT_ERR_CANCELLED);
    nothing_was_written_since(w);
    assert_int_equal(atomic_load(&world.errors), 0);
    another_lane_is_whole(w);
}

/* libfabric never gets to the end of the socket, until it does. */
static void a_lane_that_cannot_be_drained_is_kept_until_its_reads_have_ended(void **state)
{
    wire *w = *state;
    read_until_the_middle(w);
    size_t before = measure_descriptors();
    arm(JAM);
    ofi_hang_up(&w->link);
    remember(w);
    settle(w);
    assert_int_equal(reported(&w->first), 0);
    assert_int_equal(atomic_load(&world.errors), 1);
    another_lane_is_whole(w);
    assert_int_equal(measure_descriptors(), before);

    arm(NONE);
    ofi_until(&w->a, &w->b, reported(&w->first) == CHUNKS);
    settle(w);
    nothing_was_written_since(w);
    each_was_reported_once(w, &w->first, WEFT_ERR_CANCELLED);
    assert_int_equal(measure_descriptors(), before - 1);
    another_lane_is_whole(w);
}

static void a_fabric_can_be_closed_with_a_lane_that_is_kept(void **state)
{
    wire *w = *state;
    read_until_the_middle(w);
    arm(JAM);
    ofi_hang_up(&w->link);
    remember(w);
    ofi_node_close(&w->a);
    assert_int_equal(atomic_load(&world.errors), 2);
    arm(NONE);
    for (int i = 0; i < 100; i++)
        ofi_step(&w->b, NULL);
    nothing_was_written_since(w);
    ofi_node_open(&w->a);
    another_lane_is_whole(w);
}

static void *step_the_other(void *arg)
{
    wire *w = arg;
    while (!atomic_load(&world.errors)) /* until it was said that there is nothing but to wait */
        usleep(100);
    while (!atomic_load(&world.quit))
        ofi_step(&w->b, NULL);
    return NULL;
}

/* A socket that is not found cannot be shut down: the close waits for the answers, which come. */
static void a_lane_whose_socket_is_not_found_is_closed_after_its_reads(void **state)
{
    wire *w = *state;
    pthread_t other;
    read_until_the_middle(w);
    arm(LOST);
    atomic_store(&world.quit, false);
    assert_int_equal(pthread_create(&other, NULL, step_the_other, w), 0);
    ofi_hang_up(&w->link);
    remember(w);
    atomic_store(&world.quit, true);
    assert_int_equal(pthread_join(other, NULL), 0);
    arm(NONE);
    settle(w);
    each_was_reported_once(w, &w->first, WEFT_OK);
    nothing_was_written_since(w);
    another_lane_is_whole(w);
}

#define wired(test) cmocka_unit_test_setup_teardown(test, wire_up, wire_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        wired(standing_still_while_a_lane_is_closed_harms_nothing),
        wired(a_message_in_front_of_the_answers_does_not_hold_up_the_close),
        wired(a_lane_that_cannot_be_drained_is_kept_until_its_reads_have_ended),
        wired(a_fabric_can_be_closed_with_a_lane_that_is_kept),
        wired(a_lane_whose_socket_is_not_found_is_closed_after_its_reads),
    };
    if (fi_version() >= FI_VERSION(1, 18)) {
        printf("libfabric %u.%u closes endpoints in the middle of reads correctly: nothing is drained\n",
               FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
        return 0;
    }
    weft_logging_set_sink(count_errors, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
