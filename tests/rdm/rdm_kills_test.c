/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdm_kills_test.c - the other process is killed at any moment: while it sends, is sent to, reads and is read. The
 * survivor gets every operation back with right bytes, and goes on with others. On shm it learns of the death by
 * itself. Elsewhere the owner, whom the store tells, closes the lane.
 */
#include "net/net_measure.h"
#include "ofi/ofi_child.h"
#include "prng.h"

#include <rdma/fabric.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KILLS_SHM 60
#define KILLS_OTHER 12 /* an endpoint of rxm takes a second to open on a busy machine */
#define NOTICE_MS 2000 /* far more than it takes; this machine may be busy */

static child meet_a_process(ofi_node *survivor, ofi_link *link, ofi_notice *n)
{
    static const ofi_child busy = {.bytes = OFI_TRAFFIC_BYTES, .access = WFI_REMOTE_READ, .is_busy = true};
    child peer = ofi_child_start(&busy, n);
    ofi_child_meet(survivor, n, link);
    return peer;
}

/* One survivor outlives them all: its fabric must not suffer from any of the deaths. Exception: libfabric's shm from
 * 1.18 on may become deaf, which is announced at all lanes. */
static uint64_t kill_once(ofi_node *survivor, unsigned after_us)
{
    ofi_notice n;
    ofi_link link;
    child peer = meet_a_process(survivor, &link, &n);
    ofi_traffic *t = ofi_traffic_new(ofi_reads(survivor));
    uint64_t until = ofi_now_ms() + 1 + after_us / 1000;
    while (ofi_now_ms() < until && ofi_traffic_go_on(t, link.lane, &n))
        ofi_step(survivor, NULL);
    usleep(after_us % 1000);
    child_signal(&peer, SIGKILL);
    uint64_t start = ofi_now_ms(), limit = (ofi_tells_death() ? NOTICE_MS : 100) * ofi_slow();
    while (!link.closed && ofi_now_ms() - start < limit) {
        (void)ofi_traffic_go_on(t, link.lane, &n);
        ofi_step(survivor, NULL);
    }
    uint64_t took = ofi_now_ms() - start;
    assert_true(link.closed == 1 || !ofi_tells_death());
    assert_true(!link.closed || link.why == WEFT_ERR_FABRIC);
    ofi_hang_up(&link);
    ofi_until(survivor, NULL, ofi_traffic_is_over(t));
    child_kill(&peer);
    ofi_bury(n.address, n.address_size);
    ofi_traffic_free(t);
    return took;
}

static bool is_deaf(const ofi_link *link)
{
    return ofi_ops() == &wfi_fabric_shm && fi_version() >= FI_VERSION(1, 18) && link->closed && link->text &&
           strstr(link->text, "receives nothing any more");
}

static void a_kill_at_any_moment_is_survived(void **state)
{
    static ofi_node survivor, friend;
    ofi_link link;
    uint64_t most = 0, random = 11;
    if (ofi_ops() == &wfi_fabric_shm && fi_version() < FI_VERSION(1, 18))
        skip(); /* a killed process may keep libfabric's lock: the survivor then hangs in libfabric */
    unsigned deaf = 0, kills = ofi_ops() == &wfi_fabric_shm ? KILLS_SHM : KILLS_OTHER;
    ofi_node_open(&survivor);
    ofi_node_open(&friend);
    ofi_link *other = ofi_join(&friend, &survivor, &link);
    for (unsigned i = 0; i < kills; i++) {
        uint64_t took = kill_once(&survivor, (unsigned)prng_below(&random, 3000));
        most = took > most ? took : most;
        ofi_job send, receive;
        uint8_t byte = 0;
        ofi_job_init(&send);
        ofi_job_init(&receive);
        assert_int_equal(ofi_ops()->post_recv(other->lane, &receive.op, &(wfi_receive_buffer){&byte, 1, NULL}, 1),
                         WEFT_OK);
        assert_int_equal(ofi_ops()->send(link.lane, &send.op, &(wfi_iov){"x", 1, NULL}, 1), WEFT_OK);
        ofi_until(&survivor, &friend, receive.reports && send.reports);
        assert_true(byte == 'x' || is_deaf(other));
        if (byte == 'x')
            continue;
        deaf++;
        ofi_hang_up(&link);
        ofi_node_close(&friend);
        ofi_node_close(&survivor);
        ofi_node_open(&survivor);
        ofi_node_open(&friend);
        other = ofi_join(&friend, &survivor, &link);
    }
    ofi_hang_up(&link);
    ofi_node_close(&friend);
    ofi_node_close(&survivor);
    printf("%u kills: the slowest was noticed after %llu ms; %u made shm deaf\n", kills, (unsigned long long)most,
           deaf);
}

/* A stopped peer holds up no other: its frames wait in a list of their own. */
static void a_stopped_peer_delays_no_other(void **state)
{
    static ofi_node survivor, friend;
    ofi_notice n;
    ofi_link link, second;
    ofi_node_open(&survivor);
    ofi_node_open(&friend);
    if (!ofi_reads(&survivor)) { /* shm 1.17: a process that is stopped inside libfabric stops all that send to it */
        ofi_node_close(&friend);
        ofi_node_close(&survivor);
        skip();
    }
    ofi_link *other = ofi_join(&friend, &survivor, &second);
    child peer = meet_a_process(&survivor, &link, &n);
    child_signal(&peer, SIGSTOP);
    static ofi_job flood[64];
    static uint8_t data[64][65536];
    for (int i = 0; i < 64; i++) {
        ofi_job_init(&flood[i]);
        assert_int_equal(ofi_ops()->send(link.lane, &flood[i].op, &(wfi_iov){data[i], sizeof(data[i]), NULL}, 1),
                         WEFT_OK);
    }
    for (int i = 0; i < 50; i++) {
        ofi_job send, receive;
        uint8_t byte = 0;
        ofi_job_init(&send);
        ofi_job_init(&receive);
        assert_int_equal(ofi_ops()->post_recv(other->lane, &receive.op, &(wfi_receive_buffer){&byte, 1, NULL}, 1),
                         WEFT_OK);
        assert_int_equal(ofi_ops()->send(second.lane, &send.op, &(wfi_iov){"x", 1, NULL}, 1), WEFT_OK);
        ofi_until(&survivor, &friend, receive.reports && send.reports);
    }
    int waits = 0;
    for (int i = 0; i < 64; i++)
        waits += !flood[i].reports;
    assert_true(waits > 0); /* 4 MiB is more than a lane's window */
    ofi_hang_up(&link);
    ofi_until(&survivor, &friend, flood[63].reports);
    for (int i = 0; i < 64; i++)
        assert_int_equal(flood[i].reports, 1);
    child_kill(&peer);
    ofi_bury(n.address, n.address_size);
    ofi_hang_up(&second);
    ofi_node_close(&friend);
    ofi_node_close(&survivor);
}

UNIT_MAIN(a_kill_at_any_moment_is_survived, a_stopped_peer_delays_no_other)
