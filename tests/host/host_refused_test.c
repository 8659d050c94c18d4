/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_refused_test.c - process_vm_readv is forbidden, in one direction or both: messages still use host, payloads take
 * the next fabric of the list. A seccomp filter forbids it, as a container does.
 */
#include "children.h"
#include "host/host.h"
#include "lanes.h"
#include "net/net_bulk.h"
#include "ofi/ofi_node.h"
#include "rpc/must.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* For this process from now on; there is no way back. */
static void forbid_reads(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(*code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(99);
}

/* Runs the function in a child of its own, so that its filter does not outlive the test. */
static void in_a_child(void (*run)(void))
{
    child one = child_fork("filtered");
    if (!one.pid) {
        run();
        _exit(0);
    }
    child_must_end_well(&one, 1);
}

/* ---- The event -------------------------------------------------------------------------------------------------- */

typedef struct notice {
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
} notice;

typedef struct outcome {
    bool has_reason, is_private;
} outcome;

/* The child accepts one lane, and tells what its event said. */
static void accept_one(bool is_forbidden)
{
    static ofi_node node;
    notice n = {0};
    if (is_forbidden)
        forbid_reads(EPERM);
    ofi_node_open(&node);
    memcpy(n.address, node.address, node.address_size);
    n.address_size = node.address_size;
    child_tell(&n, sizeof(n));
    while (node.accepted_count == 0 || !node.accepted[0].connected)
        ofi_step(&node, NULL);
    outcome theirs = {.has_reason = node.accepted[0].text != NULL,
                      .is_private = wfi_host_lane_is_private(node.accepted[0].lane)};
    child_tell(&theirs, sizeof(theirs));
    while (!node.accepted[0].closed)
        ofi_step(&node, NULL);
    _exit(0);
}

/* Whether this process has mapped the memory of a lane. */
static bool has_a_ring(void)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        found |= strstr(line, "/memfd:weft-lane") != NULL;
    MUST(maps && !fclose(maps));
    return found;
}

static void a_child_has_no_ring(void)
{
    child forked = child_fork("forked");
    if (!forked.pid)
        _exit(has_a_ring());
    MUST(has_a_ring());
    child_must_end_well(&forked, 1);
}

/* `here`, `there`: whether this process, the other one, may not read. Both ends learn that reads do not work, and that
 * the lane is not private. */
static void both_ends_learn(bool here, bool there)
{
    notice n;
    ofi_node node;
    ofi_link link = {0};
    outcome theirs;
    child other = child_fork("accepts");
    if (!other.pid)
        accept_one(there);
    child_receive(&other, &n, sizeof(n));
    if (here)
        forbid_reads(ENOSYS);
    ofi_node_open(&node);
    MUST(lanes_connect(node.fabric, n.address, n.address_size, NULL, 0, &link, &link.lane) == WEFT_OK);
    ofi_until(&node, NULL, link.connected);
    child_receive(&other, &theirs, sizeof(theirs));
    MUST((link.text != NULL) == (here || there));
    MUST(theirs.has_reason == (here || there));
    MUST(wfi_host_lane_is_private(link.lane) == !(here || there));
    MUST(theirs.is_private == !(here || there));
    a_child_has_no_ring();
    if (here)
        MUST(strstr(link.text, "does not exist here"));
    else if (there)
        MUST(strstr(link.text, "not permitted"));
    ofi_hang_up(&link);
    ofi_node_close(&node);
    child_must_end_well(&other, 1);
}

static void with_both(void)
{
    both_ends_learn(true, true);
}

static void with_this_one(void)
{
    both_ends_learn(true, false);
}

static void with_the_other(void)
{
    both_ends_learn(false, true);
}

static void with_none(void)
{
    both_ends_learn(false, false);
}

static void both_ends_learn_that_reads_do_not_work(void **state)
{
    in_a_child(with_none);
    in_a_child(with_both);
    in_a_child(with_this_one);
    in_a_child(with_the_other);
}

/* ---- Payloads ---------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {1, 4096, 3 * MIB - 7, 12};

static void body_pull(net_host *host)
{
    char control[600], bulk_text[600];
    bulk_stage_body(host);
    wfi_net_lock(host->net);
    wfi_peer *peer = host_peer(host, 1 - host->rank);
    wfi_peer_fabric_text(peer, WFI_CONTROL, control, sizeof(control));
    wfi_peer_fabric_text(peer, WFI_BULK, bulk_text, sizeof(bulk_text));
    wfi_net_unlock(host->net);
    MUST(strcmp(control, "host") == 0);
    MUST(strncmp(bulk_text, "tcp (host: process_vm_readv is not permitted", 44) == 0);
}

static void pull_over_tcp(void)
{
    unsetenv("TEST_FABRIC"); /* net_host.c would take it */
    forbid_reads(EPERM);
    for (int round = 0; round < 3; round++) {
        bulk_stage s = {.kind = WFI_PULL, .sizes = sizes, .count = sizeof(sizes) / sizeof(*sizes)};
        net_world world = {.user = &s, .fabrics = (const char *const[]){"host,tcp", "host,tcp"}};
        world_tcp(&world, 2, body_pull);
    }
}

static void payloads_take_the_next_fabric(void **state)
{
    in_a_child(pull_over_tcp);
}

/* Without another fabric the transfer fails, long before the peer would be given up; messages still arrive. */
static void body_fail(net_host *host)
{
    bulk_stage *s = host->world->user;
    char text[300] = "";
    bulk *mine = host->rank == 0 ? &s->source : &s->target;
    bulk_create(mine, host, 1 - host->rank, s->sizes, s->count);
    if (host->rank == 0) {
        bulk_expose(mine, WFI_REMOTE_READ);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->moved, 1);
        bulk_withdraw(mine, true);
    } else {
        host_until(host, &s->exposed, 1);
        uint64_t start = ofi_now_ms();
        MUST(bulk_begin(mine, &s->source, WFI_PULL) == WEFT_OK);
        MUST(bulk_await(mine) == WEFT_ERR_UNREACHABLE);
        MUST(ofi_now_ms() - start < 3000 * ofi_slow());
        wfi_net_lock(host->net);
        wfi_peer_bulk_problem(host_peer(host, 0), text, sizeof(text));
        MUST(wfi_peer_has_fabric(host_peer(host, 0)) && !wfi_peer_has_bulk(host_peer(host, 0)));
        wfi_net_unlock(host->net);
        MUST(strstr(text, "no bulk lane to worker 0; add tcp to WEFT_FABRIC: host: process_vm_readv is not permitted"));
        for (uint64_t i = 0; i < 10; i++)
            MUST(host_send_free(host, 0, i, 100) == WEFT_OK);
        host_until(host, &host->done_ok, 10);
        atomic_store(&s->moved, 1);
    }
    bulk_destroy(mine);
    host_meet(host, &host->world->finished);
}

static void fail_without_another(void)
{
    unsetenv("TEST_FABRIC");
    forbid_reads(EPERM);
    bulk_stage s = {.kind = WFI_PULL, .sizes = sizes, .count = sizeof(sizes) / sizeof(*sizes)};
    net_world world = {.user = &s,
                       .fabrics = (const char *const[]){"host", "host"},
                       .death_timeout_ms = 20000,
                       .on_message = host_check_order};
    world_tcp(&world, 2, body_fail);
}

static void without_another_fabric_payloads_fail_at_once(void **state)
{
    in_a_child(fail_without_another);
}

UNIT_MAIN(both_ends_learn_that_reads_do_not_work, payloads_take_the_next_fabric,
          without_another_fabric_payloads_fail_at_once)
