/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdm_kills_test.c - the other process is killed at any moment: while it sends, is sent to, reads and is read. The
 * survivor gets every operation back with right bytes, and goes on with others. On shm it learns of the death by
 * itself. Elsewhere the owner, whom the store tells, closes the lane.
 */
#include "lanes.h"
#include "net/net_measure.h"
#include "ofi/ofi_node.h"

#include <rdma/fabric.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILLS_SHM 60
#define KILLS_OTHER 12 /* an endpoint of rxm takes a second to open on a busy machine */
#define BYTES ((size_t)1 << 20)
#define NOTICE_MS 2000 /* far more than it takes; this machine may be busy */

typedef struct notice { /* what the child tells through a pipe */
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
    uint64_t base, key;
} notice;

static uint8_t right(size_t at)
{
    return (uint8_t)(at * 7 + (at >> 8));
}

static size_t length_of(uint64_t number)
{
    return 8 + number * 977 % 7900;
}

typedef struct traffic { /* one end of the lane: messages of all lengths out and in, and reads */
    ofi_job send, receive, read;
    uint8_t out[8000], in[8000];
    uint8_t *into;
    uint64_t sent, received, reads;
} traffic;

static traffic *traffic_new(bool reads)
{
    traffic *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->into = malloc(BYTES);
    assert_non_null(t->into);
    t->send.reports = t->receive.reports = 1;
    t->read.reports = reads;
    return t;
}

static void traffic_free(traffic *t)
{
    free(t->into);
    free(t);
}

/* A job that was refused is not reported: it counts as reported, so that nobody waits for it. */
static bool posted(ofi_job *job, weft_status status)
{
    job->reports = status != WEFT_OK;
    job->status = status;
    return status == WEFT_OK;
}

static bool send_next(traffic *t, wfi_lane *lane)
{
    size_t size = length_of(t->sent);
    ofi_job_init(&t->send);
    memcpy(t->out, &t->sent, 8);
    memset(t->out + 8, (int)(t->sent++ & 255), size - 8);
    return posted(&t->send, ofi_ops()->send(lane, &t->send.op, &(wfi_iov){.data = t->out, .size = size}, 1));
}

static bool receive_next(traffic *t, wfi_lane *lane)
{
    if (t->receive.size) { /* 0: the first */
        uint64_t number;
        memcpy(&number, t->in, 8);
        assert_int_equal(number, t->received);
        assert_int_equal(t->receive.size, length_of(t->received));
        for (size_t i = 8; i < t->receive.size; i++)
            assert_int_equal(t->in[i], t->received & 255);
        t->received++;
    }
    ofi_job_init(&t->receive);
    return posted(&t->receive,
                  ofi_ops()->post_recv(lane, &t->receive.op, &(wfi_receive_buffer){t->in, sizeof t->in, NULL}, 1));
}

static bool read_next(traffic *t, wfi_lane *lane, const notice *n)
{
    for (size_t i = 0; i < BYTES && t->reads; i += 509)
        assert_int_equal(t->into[i], right(i));
    memset(t->into, 0, BYTES);
    t->reads++;
    ofi_job_init(&t->read);
    return posted(&t->read, ofi_ops()->read(lane, &t->read.op, t->into, BYTES, NULL, n->base, n->key));
}

static bool is_done(const ofi_job *job)
{
    return job->reports && job->status == WEFT_OK;
}

/* Posts whatever has ended anew, after its bytes were checked. False: the lane is broken. */
static bool keep_busy(traffic *t, wfi_lane *lane, const notice *n)
{
    bool works = !is_done(&t->send) || send_next(t, lane);
    works = works && (!is_done(&t->receive) || receive_next(t, lane));
    return works && (!is_done(&t->read) || read_next(t, lane, n));
}

static void serve(int to_parent)
{
    static ofi_node node;
    static const notice nothing;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ofi_node_open(&node);
    uint8_t *memory = malloc(BYTES);
    wfi_region *region;
    notice n = {0};
    for (size_t i = 0; memory && i < BYTES; i++)
        memory[i] = right(i);
    if (!memory ||
        ofi_ops()->region_open(node.fabric, &WFI_HOST_MEMORY(memory, BYTES), WFI_REMOTE_READ, &region) != WEFT_OK)
        _exit(1);
    memcpy(n.address, node.address, node.address_size);
    n.address_size = node.address_size;
    n.base = region->base;
    n.key = region->key;
    if (write(to_parent, &n, sizeof n) != sizeof n)
        _exit(1);
    while (node.accepted_count == 0 || !node.accepted[0].connected)
        ofi_step(&node, NULL);
    traffic *t = traffic_new(false); /* its own memory is read */
    for (;;) {
        (void)keep_busy(t, node.accepted[0].lane, &nothing);
        ofi_step(&node, NULL);
    }
}

static pid_t meet_a_process(ofi_node *survivor, ofi_link *link, notice *n)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        serve(fds[1]);
    assert_int_equal(read(fds[0], n, sizeof *n), sizeof *n);
    close(fds[0]);
    close(fds[1]);
    memset(link, 0, sizeof *link);
    assert_int_equal(lanes_connect(survivor->fabric, n->address, n->address_size, NULL, 0, link, &link->lane), WEFT_OK);
    ofi_until(survivor, NULL, link->connected);
    return child;
}

/* One survivor outlives them all: its fabric must not suffer from any of the deaths. Exception: libfabric's shm from
 * 1.18 on may become deaf, which is announced at all lanes. */
static uint64_t kill_once(ofi_node *survivor, unsigned after_us)
{
    notice n;
    ofi_link link;
    pid_t child = meet_a_process(survivor, &link, &n);
    traffic *t = traffic_new(ofi_reads(survivor));
    uint64_t until = ofi_now_ms() + 1 + after_us / 1000;
    while (ofi_now_ms() < until && keep_busy(t, link.lane, &n))
        ofi_step(survivor, NULL);
    usleep(after_us % 1000);
    kill(child, SIGKILL);
    uint64_t start = ofi_now_ms(), limit = (ofi_tells_death() ? NOTICE_MS : 100) * ofi_slow();
    while (!link.closed && ofi_now_ms() - start < limit) {
        (void)keep_busy(t, link.lane, &n);
        ofi_step(survivor, NULL);
    }
    uint64_t took = ofi_now_ms() - start;
    assert_true(link.closed == 1 || !ofi_tells_death());
    assert_true(!link.closed || link.why == WEFT_ERR_FABRIC);
    ofi_hang_up(&link);
    ofi_until(survivor, NULL, t->send.reports && t->receive.reports && (t->read.reports || !t->reads));
    assert_int_equal(waitpid(child, NULL, 0), child);
    ofi_bury(n.address, n.address_size);
    traffic_free(t);
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
    uint64_t most = 0;
    unsigned deaf = 0, kills = ofi_ops() == &wfi_fabric_shm ? KILLS_SHM : KILLS_OTHER;
    ofi_node_open(&survivor);
    ofi_node_open(&friend);
    ofi_link *other = ofi_join(&friend, &survivor, &link);
    srandom(11);
    for (unsigned i = 0; i < kills; i++) {
        uint64_t took = kill_once(&survivor, (unsigned)random() % 3000);
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
    notice n;
    ofi_link link, second;
    ofi_node_open(&survivor);
    ofi_node_open(&friend);
    if (!ofi_reads(&survivor)) { /* shm 1.17: a process that is stopped inside libfabric stops all that send to it */
        ofi_node_close(&friend);
        ofi_node_close(&survivor);
        skip();
    }
    ofi_link *other = ofi_join(&friend, &survivor, &second);
    pid_t child = meet_a_process(&survivor, &link, &n);
    kill(child, SIGSTOP);
    static ofi_job flood[64];
    static uint8_t data[64][65536];
    for (int i = 0; i < 64; i++) {
        ofi_job_init(&flood[i]);
        assert_int_equal(ofi_ops()->send(link.lane, &flood[i].op, &(wfi_iov){data[i], sizeof data[i], NULL}, 1),
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
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    ofi_bury(n.address, n.address_size);
    ofi_hang_up(&second);
    ofi_node_close(&friend);
    ofi_node_close(&survivor);
}

UNIT_MAIN(a_kill_at_any_moment_is_survived, a_stopped_peer_delays_no_other)
