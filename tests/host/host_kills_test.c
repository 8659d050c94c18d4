/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kills_test.c - the other process is killed at any moment: while it writes messages, rings the doorbell, reads
 * memory, and is read. The survivor learns of it, gets every operation back with right bytes, and nothing is left.
 */
#include "host/host.h"
#include "lanes.h"
#include "net/net_measure.h"
#include "ofi/ofi_node.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILLS 100
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

static uint8_t *make_memory(void)
{
    uint8_t *memory = malloc(BYTES);
    assert_non_null(memory);
    for (size_t i = 0; i < BYTES; i++)
        memory[i] = right(i);
    return memory;
}

typedef struct traffic { /* one end of the lane: messages of all lengths out, messages in, and reads */
    ofi_job send, receive, read;
    uint8_t out[8000], in[8000];
    uint8_t *into;
    uint64_t sent, received, reads;
} traffic;

static size_t length_of(uint64_t number)
{
    return 8 + number * 977 % 7900;
}

/* A job that was refused is not reported: it counts as reported, so that nobody waits for it. */
static weft_status posted(ofi_job *job, weft_status status)
{
    job->reports = status != WEFT_OK;
    job->status = status;
    return status;
}

/* Posts whatever has ended anew, after its bytes were checked. False: the lane is broken. */
static bool keep_busy(traffic *t, const ofi_node *node, wfi_lane *lane, uint64_t base, uint64_t key)
{
    weft_status status = WEFT_OK;
    (void)node;
    if (t->send.reports && t->send.status == WEFT_OK) {
        size_t size = length_of(t->sent);
        ofi_job_init(&t->send);
        memcpy(t->out, &t->sent, 8);
        memset(t->out + 8, (int)(t->sent++ & 255), size - 8);
        status = posted(&t->send, ofi_ops()->send(lane, &t->send.op, &(wfi_iov){.data = t->out, .size = size}, 1));
    }
    if (!status && t->receive.reports && t->receive.status == WEFT_OK) {
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
        status =
            ofi_ops()->post_recv(lane, &t->receive.op, &(wfi_receive_buffer){.data = t->in, .size = sizeof t->in}, 1);
    }
    if (!status && t->read.reports && t->read.status == WEFT_OK) {
        for (size_t i = 0; i < BYTES && t->reads; i += 509)
            assert_int_equal(t->into[i], right(i));
        memset(t->into, 0, BYTES);
        t->reads++;
        ofi_job_init(&t->read);
        status = posted(&t->read, ofi_ops()->read(lane, &t->read.op, t->into, BYTES, NULL, base, key));
    }
    return status == WEFT_OK;
}

static traffic *traffic_new(void)
{
    traffic *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->into = malloc(BYTES);
    t->send.reports = t->receive.reports = t->read.reports = 1;
    return t;
}

static void step(ofi_node *node)
{
    for (int i = 0; i < 8; i++)
        ofi_step(node, NULL);
}

static void serve(int to_parent)
{
    static ofi_node node;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ofi_node_open(&node);
    uint8_t *memory = make_memory();
    wfi_region *region;
    notice n = {0};
    assert_int_equal(ofi_ops()->region_open(node.fabric, &WFI_HOST_MEMORY(memory, BYTES), WFI_REMOTE_READ, &region),
                     WEFT_OK);
    memcpy(n.address, node.address, node.address_size);
    n.address_size = node.address_size;
    n.base = region->base;
    n.key = region->key;
    if (write(to_parent, &n, sizeof n) != sizeof n)
        _exit(1);
    while (node.accepted_count == 0 || !node.accepted[0].connected)
        ofi_step(&node, NULL);
    traffic *t = traffic_new();
    t->read.reports = 0; /* it reads nothing: its own memory is read */
    for (;;) {
        (void)keep_busy(t, &node, node.accepted[0].lane, 0, 0);
        ofi_step(&node, NULL);
    }
}

static pid_t meet_a_process(ofi_node *node, ofi_link *link, notice *n)
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
    ofi_node_open(node);
    assert_int_equal(lanes_connect(node->fabric, n->address, n->address_size, NULL, 0, link, &link->lane), WEFT_OK);
    ofi_until(node, NULL, link->connected);
    return child;
}

/* Unix sockets of weft's names in this network namespace. */
static int names_left(const char *name)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, name) != NULL;
    fclose(file);
    return count;
}

static uint64_t kill_once(unsigned after_us)
{
    notice n;
    ofi_node survivor;
    ofi_link link = {0};
    char name[64];
    pid_t child = meet_a_process(&survivor, &link, &n);
    traffic *t = traffic_new();
    uint64_t until = ofi_now_ms() + 1 + after_us / 1000;
    while (ofi_now_ms() < until && keep_busy(t, &survivor, link.lane, n.base, n.key))
        ofi_step(&survivor, NULL);
    usleep(after_us % 1000);
    kill(child, SIGKILL);
    uint64_t start = ofi_now_ms();
    while (!link.closed && ofi_now_ms() - start < NOTICE_MS * ofi_slow()) {
        (void)keep_busy(t, &survivor, link.lane, n.base, n.key);
        ofi_step(&survivor, NULL);
    }
    uint64_t took = ofi_now_ms() - start;
    assert_int_equal(link.closed, 1);
    assert_int_equal(link.why, WEFT_ERR_FABRIC);
    ofi_hang_up(&link);
    ofi_until(&survivor, NULL, t->send.reports && t->receive.reports && t->read.reports);
    step(&survivor);
    assert_true(ofi_ops()->may_sleep(survivor.fabric));
    assert_int_equal(waitpid(child, NULL, 0), child);
    ofi_ops()->address_text(n.address, n.address_size, name, sizeof name);
    assert_int_equal(names_left(name + 1), 0);
    ofi_node_close(&survivor);
    free(t->into);
    free(t);
    return took;
}

static void a_kill_at_any_moment_is_noticed(void **state)
{
    uint64_t most = 0;
    size_t before = measure_descriptors();
    srandom(11);
    for (int i = 0; i < KILLS; i++) {
        uint64_t took = kill_once((unsigned)random() % 3000);
        most = took > most ? took : most;
    }
    assert_int_equal(measure_descriptors(), before);
    printf("%d kills: the slowest was noticed after %llu ms\n", KILLS, (unsigned long long)most);
}

/* A peer that is stopped just after it has set the lane's bit must not keep the messages of others from waking this one. */
static void a_peer_that_is_stopped_delays_no_other(void **state)
{
    notice n;
    ofi_node survivor, other;
    ofi_link link = {0}, second;
    ofi_job send, receive;
    uint8_t byte = 0;
    pid_t child = meet_a_process(&survivor, &link, &n);
    ofi_node_open(&other);
    ofi_link *accepted = ofi_join(&other, &survivor, &second);
    traffic *t = traffic_new();
    srandom(5);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 200 && keep_busy(t, &survivor, link.lane, n.base, n.key); i++)
            ofi_step(&survivor, NULL);
        usleep((unsigned)random() % 300);
        kill(child, SIGSTOP);
        ofi_job_init(&send);
        ofi_job_init(&receive);
        assert_int_equal(
            ofi_ops()->post_recv(accepted->lane, &receive.op, &(wfi_receive_buffer){.data = &byte, .size = 1}, 1),
            WEFT_OK);
        while (!ofi_ops()->may_sleep(survivor.fabric)) {
            (void)keep_busy(t, &survivor, link.lane, n.base, n.key);
            ofi_step(&survivor, NULL);
        }
        struct pollfd fd = {.fd = ofi_ops()->wait_fd(survivor.fabric), .events = POLLIN};
        assert_int_equal(ofi_ops()->send(second.lane, &send.op, &(wfi_iov){.data = "x", .size = 1}, 1), WEFT_OK);
        assert_int_equal(poll(&fd, 1, 0), 1); /* send has written it */
        ofi_until(&survivor, &other, receive.reports && send.reports);
        kill(child, SIGCONT);
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    ofi_hang_up(&link);
    ofi_hang_up(&second);
    ofi_until(&survivor, &other, t->send.reports && t->receive.reports && t->read.reports);
    ofi_node_close(&other);
    ofi_node_close(&survivor);
    free(t->into);
    free(t);
}

UNIT_MAIN(a_kill_at_any_moment_is_noticed, a_peer_that_is_stopped_delays_no_other)
