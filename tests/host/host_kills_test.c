/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kills_test.c - the other process is killed at any moment: while it writes messages, rings the doorbell, reads
 * memory, and is read. The survivor learns of it, gets every operation back with right bytes, and nothing is left.
 */
#include "host/host.h"
#include "net/net_measure.h"
#include "ofi/ofi_child.h"
#include "prng.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KILLS 100
#define NOTICE_MS 2000 /* far more than it takes; this machine may be busy */

static const ofi_child busy = {.bytes = OFI_TRAFFIC_BYTES, .access = WFI_REMOTE_READ, .is_busy = true};

static void step(ofi_node *node)
{
    for (int i = 0; i < 8; i++)
        ofi_step(node, NULL);
}

static child meet_a_process(ofi_node *node, ofi_link *link, ofi_notice *n)
{
    child peer = ofi_child_start(&busy, n);
    ofi_node_open(node);
    ofi_child_meet(node, n, link);
    return peer;
}

/* Unix sockets of weft's names in this network namespace. */
static int names_left(const char *name)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, name) != NULL;
    fclose(file);
    return count;
}

static uint64_t kill_once(unsigned after_us)
{
    ofi_notice n;
    ofi_node survivor;
    ofi_link link = {0};
    char name[64];
    child peer = meet_a_process(&survivor, &link, &n);
    ofi_traffic *t = ofi_traffic_new(true);
    uint64_t until = ofi_now_ms() + 1 + after_us / 1000;
    while (ofi_now_ms() < until && ofi_traffic_go_on(t, link.lane, &n))
        ofi_step(&survivor, NULL);
    usleep(after_us % 1000);
    child_signal(&peer, SIGKILL);
    uint64_t start = ofi_now_ms();
    while (!link.closed && ofi_now_ms() - start < NOTICE_MS * ofi_slow()) {
        (void)ofi_traffic_go_on(t, link.lane, &n);
        ofi_step(&survivor, NULL);
    }
    uint64_t took = ofi_now_ms() - start;
    assert_int_equal(link.closed, 1);
    assert_int_equal(link.why, WEFT_ERR_FABRIC);
    ofi_hang_up(&link);
    ofi_until(&survivor, NULL, ofi_traffic_is_over(t));
    step(&survivor);
    assert_true(ofi_ops()->may_sleep(survivor.fabric));
    child_kill(&peer);
    ofi_ops()->address_text(n.address, n.address_size, name, sizeof(name));
    assert_int_equal(names_left(name + 1), 0);
    ofi_node_close(&survivor);
    ofi_traffic_free(t);
    return took;
}

static void a_kill_at_any_moment_is_noticed(void **state)
{
    uint64_t most = 0, random = 11;
    size_t before = measure_descriptors();
    for (int i = 0; i < KILLS; i++) {
        uint64_t took = kill_once((unsigned)prng_below(&random, 3000));
        most = took > most ? took : most;
    }
    assert_int_equal(measure_descriptors(), before);
    printf("%d kills: the slowest was noticed after %llu ms\n", KILLS, (unsigned long long)most);
}

/* A peer that is stopped just after it has set the lane's bit must not keep the messages of others from waking this
 * one. */
static void a_peer_that_is_stopped_delays_no_other(void **state)
{
    ofi_notice n;
    ofi_node survivor, other;
    ofi_link link = {0}, second;
    ofi_job send, receive;
    uint64_t random = 5;
    uint8_t byte = 0;
    child peer = meet_a_process(&survivor, &link, &n);
    ofi_node_open(&other);
    ofi_link *accepted = ofi_join(&other, &survivor, &second);
    ofi_traffic *t = ofi_traffic_new(true);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 200 && ofi_traffic_go_on(t, link.lane, &n); i++)
            ofi_step(&survivor, NULL);
        usleep((useconds_t)prng_below(&random, 300));
        child_signal(&peer, SIGSTOP);
        ofi_job_init(&send);
        ofi_job_init(&receive);
        assert_int_equal(
            ofi_ops()->post_recv(accepted->lane, &receive.op, &(wfi_receive_buffer){.data = &byte, .size = 1}, 1),
            WEFT_OK);
        while (!ofi_ops()->may_sleep(survivor.fabric)) {
            (void)ofi_traffic_go_on(t, link.lane, &n);
            ofi_step(&survivor, NULL);
        }
        struct pollfd fd = {.fd = ofi_ops()->wait_fd(survivor.fabric), .events = POLLIN};
        assert_int_equal(ofi_ops()->send(second.lane, &send.op, &(wfi_iov){.data = "x", .size = 1}, 1), WEFT_OK);
        assert_int_equal(poll(&fd, 1, 0), 1); /* send has written it */
        ofi_until(&survivor, &other, receive.reports && send.reports);
        child_signal(&peer, SIGCONT);
    }
    child_kill(&peer);
    ofi_hang_up(&link);
    ofi_hang_up(&second);
    ofi_until(&survivor, &other, ofi_traffic_is_over(t));
    ofi_node_close(&other);
    ofi_node_close(&survivor);
    ofi_traffic_free(t);
}

UNIT_MAIN(a_kill_at_any_moment_is_noticed, a_peer_that_is_stopped_delays_no_other)
