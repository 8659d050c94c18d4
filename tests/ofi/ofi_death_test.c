/* SPDX-License-Identifier: Apache-2.0 */
/* ofi_death_test.c - the process at the other end is killed: everything outstanding is reported, and the lane
 * announced. */
#include "ofi/ofi_child.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST ((size_t)64 << 20) /* bytes of an operation */
#define NOTICE_MS 5000          /* far from what TCP itself takes, minutes; a busy machine needs some of it */

/* Of one operation. */
static size_t bytes_of(const ofi_node *node)
{
    return ofi_child_bytes(node, MOST);
}

/* Starts a process that does nothing once it is connected, and connects to it. */
static child meet_a_process(ofi_node *node, ofi_link *link, ofi_notice *n)
{
    static const ofi_child idle = {.bytes = MOST, .access = WFI_REMOTE_READ | WFI_REMOTE_WRITE};
    child peer = ofi_child_start(&idle, n);
    ofi_node_open(node);
    ofi_child_meet(node, n, link);
    return peer;
}

/* Writes; or, if the fabric has no writes, reads that memory. */
static weft_status write_or_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region,
                                 uint64_t remote, uint64_t key)
{
    return ofi_writes() ? ofi_ops()->write(lane, op, local, size, region, remote, key)
                        : ofi_ops()->read(lane, op, local, size, region, remote, key);
}

/* A read, and a write or another read, into two halves of `local`. Without reads: nothing. */
static void post_two(const ofi_node *node, const ofi_link *link, const ofi_notice *n, ofi_job jobs[2],
                     wfi_region *region, uint8_t *local)
{
    size_t bytes = bytes_of(node);
    if (!ofi_reads(node))
        return;
    assert_int_equal(ofi_ops()->read(link->lane, &jobs[0].op, local, bytes, region, n->base, n->key), WEFT_OK);
    assert_int_equal(write_or_read(link->lane, &jobs[1].op, local + bytes, bytes, region, n->base, n->key), WEFT_OK);
}

static void a_killed_peer_is_noticed_at_once(void **state)
{
    ofi_notice n;
    static ofi_node survivor;
    ofi_link link = {0};
    enum { RECEIVE, SMALL, LARGE, READ, WRITE, JOBS };
    static ofi_job jobs[JOBS];
    child peer = meet_a_process(&survivor, &link, &n);
    for (int i = 0; i < JOBS; i++)
        ofi_job_init(&jobs[i]);
    size_t bytes = bytes_of(&survivor);
    uint8_t *local = calloc(2, bytes);
    wfi_region *region = ofi_local(&survivor, local, 2 * bytes);
    assert_int_equal(ofi_ops()->post_recv(link.lane, &jobs[RECEIVE].op, &(wfi_receive_buffer){local, 64, region}, 1),
                     WEFT_OK);
    assert_int_equal(ofi_ops()->send(link.lane, &jobs[SMALL].op, &(wfi_iov){.data = "x", .size = 1}, 1), WEFT_OK);
    post_two(&survivor, &link, &n, jobs + READ, region, local);
    assert_int_equal(ofi_ops()->send(link.lane, &jobs[LARGE].op,
                                     &(wfi_iov){.data = local + bytes, .size = bytes, .region = region}, 1),
                     WEFT_OK);
    for (int i = 0; i < 20; i++)
        ofi_step(&survivor, NULL);
    bool reads = ofi_reads(&survivor);
    assert_int_equal(jobs[READ].reports + jobs[WRITE].reports + jobs[RECEIVE].reports + link.closed, 0);

    child_signal(&peer, SIGKILL);
    uint64_t start = ofi_now_ms();
    ofi_until(&survivor, NULL, link.closed || (!ofi_tells_death() && ofi_now_ms() - start > 200));
    bool was_told = link.closed, is_broken = was_told && ofi_announces();
    if (!is_broken) /* the provider still tries: the owner, who knows now, closes the lane */
        ofi_hang_up(&link);
    ofi_until(&survivor, NULL,
              jobs[RECEIVE].reports && jobs[LARGE].reports && (!reads || (jobs[READ].reports && jobs[WRITE].reports)));
    assert_in_range(ofi_now_ms() - start, 0, NOTICE_MS);
    assert_int_equal(was_told ? link.why : WEFT_ERR_FABRIC, WEFT_ERR_FABRIC);
    assert_int_equal(jobs[SMALL].reports, 1);
    if (reads)
        assert_int_equal(jobs[READ].status, is_broken ? WEFT_ERR_UNREACHABLE : WEFT_ERR_CANCELLED);
    ofi_hang_up(&link);
    for (int i = 0; i < 50; i++)
        ofi_step(&survivor, NULL);
    assert_int_equal(link.closed, was_told);
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(jobs[i].reports, reads || (i != READ && i != WRITE));
    ofi_node_close(&survivor);
    child_kill(&peer);
    ofi_bury(n.address, n.address_size);
    free(local);
}

/* Nothing at all shows that a peer is stopped: the owner's deadline closes the lane, and must get everything back. */
static void a_stopped_peer_can_be_left(void **state)
{
    ofi_notice n;
    static ofi_node survivor;
    ofi_link link = {0};
    static ofi_job jobs[2], send;
    child peer = meet_a_process(&survivor, &link, &n);
    if (!ofi_reads(&survivor)) /* shm 1.17: a process that is stopped inside libfabric stops all that send to it */
        usleep(300000);        /* so it is stopped in its pause */
    child_signal(&peer, SIGSTOP);
    size_t bytes = bytes_of(&survivor);
    uint8_t *local = calloc(2, bytes);
    wfi_region *region = ofi_local(&survivor, local, 2 * bytes);
    bool reads = ofi_reads(&survivor);
    for (int i = 0; i < 2; i++)
        ofi_job_init(&jobs[i]);
    ofi_job_init(&send);
    post_two(&survivor, &link, &n, jobs, region, local);
    if (!reads)
        assert_int_equal(ofi_ops()->send(link.lane, &send.op, &(wfi_iov){.data = local, .size = bytes}, 1), WEFT_OK);
    for (int i = 0; i < 50; i++)
        ofi_step(&survivor, NULL);
    uint64_t start = ofi_now_ms();
    ofi_hang_up(&link);
    ofi_until(&survivor, NULL, reads ? jobs[0].reports && jobs[1].reports : send.reports);
    assert_in_range(ofi_now_ms() - start, 0, NOTICE_MS);
    /* where a device serves the target's memory, the process is not needed */
    bool may_end = !ofi_ops()->limits(survivor.fabric)->target_must_progress;
    for (int i = 0; i < 2 && reads; i++)
        assert_true(jobs[i].status == WEFT_ERR_CANCELLED || (may_end && jobs[i].status == WEFT_OK));
    if (!reads)
        assert_int_equal(send.status, WEFT_ERR_CANCELLED);
    ofi_node_close(&survivor);
    child_kill(&peer);
    ofi_bury(n.address, n.address_size);
    free(local);
}

UNIT_MAIN(a_killed_peer_is_noticed_at_once, a_stopped_peer_can_be_left)
