/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - reads of a peer's memory with process_vm_readv(2).
 *
 * The peer takes no part in a read, so it cannot stop one that is in progress. Instead, each call also copies the
 * region's record, after the data. The owner overwrites the record before it may change the memory. So data that were
 * copied too late come with a record that is no longer valid, and are not reported as read. The same happens if the
 * process has executed another program, or if its process id belongs to another process now. After each call this side
 * also checks whether the peer has closed the lane (`has_ended` of the segment).
 *
 * x86 does not reorder loads, so one call copies both in order. Elsewhere a second call copies the record.
 *
 * The kernel may forbid such reads: Yama (ptrace_scope), user namespaces, seccomp filters, a process that is not
 * dumpable. Both sides try one when they connect, because capabilities can make it work in one direction only.
 */
#include "host/host.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#if defined(__x86_64__) || defined(__i386__)
#define LOADS_ARE_ORDERED 1
#else
#define LOADS_ARE_ORDERED 0
#endif

typedef struct record_copy {
    uint64_t key, start, end, access;
} record_copy;

_Static_assert(sizeof(record_copy) == sizeof(wfi_host_record), "a copy of a record");

static struct iovec remote_iov(uint64_t address, size_t size)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)address, .iov_len = size};
}

/* Copies data, then the record. Returns 0 or an errno value. */
static int copy(const wfi_host_peer *peer, void *local, size_t size, uint64_t remote, uint32_t index, record_copy *out)
{
    struct iovec to[2] = {{.iov_base = local, .iov_len = size}, {.iov_base = out, .iov_len = sizeof(*out)}};
    struct iovec from[2] = {remote_iov(remote, size), remote_iov(peer->table + index * sizeof(*out), sizeof(*out))};
    size_t first = !LOADS_ARE_ORDERED || size == 0 ? 1 : 2;
    ssize_t want = (ssize_t)(size + (first == 2 ? sizeof(*out) : 0));
    if (!peer->pid)
        return ESRCH;
    if (want) {
        ssize_t got = process_vm_readv(peer->pid, to, first, from, first, 0);
        if (got != want)
            return got < 0 ? errno : EFAULT;
    }
    if (first == 2)
        return 0;
    atomic_thread_fence(memory_order_seq_cst);
    ssize_t got = process_vm_readv(peer->pid, &to[1], 1, &from[1], 1, 0);
    return got == (ssize_t)sizeof(*out) ? 0 : got < 0 ? errno : EFAULT;
}

int wfi_host_probe(const wfi_host_peer *peer)
{
    record_copy record;
    int errnum = copy(peer, NULL, 0, 0, 0, &record);
    return errnum ? errnum : record.key == peer->token ? 0 : ESRCH;
}

const char *wfi_host_refusal_text(int refusal)
{
    switch (refusal) {
    case 0:
        return NULL;
    case EPERM:
    case EACCES:
        return "process_vm_readv is not permitted between the two workers (ptrace_scope of Yama, a container, a user "
               "namespace, or seccomp)";
    case ENOSYS:
        return "process_vm_readv does not exist here (the kernel, or a seccomp filter)";
    case ESRCH:
        return "process_vm_readv cannot find the other worker (another pid namespace)";
    default:
        return "process_vm_readv fails between the two workers";
    }
}

/* ---- Operations ------------------------------------------------------------------------------------------------ */

weft_status wfi_host_read(wfi_lane *lane, wfi_fabric_op *user_op, void *local, size_t size, wfi_region *region,
                          uint64_t remote, uint64_t key)
{
    (void)region;
    if (size == 0)
        return WEFT_ERR_INVALID;
    if (size > WFI_HOST_RMA_MAX)
        return WEFT_ERR_TOO_LARGE;
    wfi_host_op *op = (wfi_host_op *)user_op;
    wfi_mutex_lock(&lane->lock);
    weft_status status = lane->state < WFI_HOST_CONNECTED                           ? WEFT_ERR_STATE
                         : lane->state > WFI_HOST_CONNECTED                         ? WEFT_ERR_UNREACHABLE
                         : lane->send_count + lane->read_count >= WFI_HOST_LANE_OPS ? WEFT_ERR_AGAIN
                                                                                    : WEFT_OK;
    if (status == WEFT_OK) {
        *op = (wfi_host_op){.kind = WFI_HOST_READ, .size = size, .read = {local, remote, key}};
        wfi_list_push_back(&lane->reads, &op->link);
        if (lane->read_count++ == 0)
            wfi_host_doorbell_signal(&lane->host->doorbell, lane->slot);
    }
    wfi_mutex_unlock(&lane->lock);
    return status;
}

static bool permits(const record_copy *record, const wfi_host_op *op)
{
    return record->key == op->read.key && record->access == WFI_REMOTE_READ && op->read.remote >= record->start &&
           op->read.remote <= record->end && op->size <= record->end - op->read.remote;
}

/*
 * Reads `size` bytes more of the operation. WEFT_ERR_INVALID: memory that the peer still offers, or the local memory,
 * cannot be accessed. WEFT_ERR_UNREACHABLE: the read is not possible, or not permitted.
 */
static weft_status read_part(wfi_lane *lane, wfi_host_op *op, size_t size)
{
    record_copy record;
    uint32_t index = (uint32_t)op->read.key & ((1u << WFI_HOST_REGIONS_BITS) - 1);
    int errnum = copy(&lane->peer, op->read.local + op->done, size, op->read.remote + op->done, index, &record);
    bool is_spoilt = errnum == EFAULT && !copy(&lane->peer, NULL, 0, 0, index, &record);
    if (errnum && !is_spoilt) {
        wfi_host_log(lane->host, WEFT_LOG_DEBUG, "host: reading the memory of process %d: %s", (int)lane->peer.pid,
                     strerrordesc_np(errnum));
        return WEFT_ERR_UNREACHABLE;
    }
    if (!permits(&record, op) || atomic_load(&lane->segment->has_ended[lane->is_dialler]))
        return WEFT_ERR_UNREACHABLE;
    return is_spoilt ? WEFT_ERR_INVALID : WEFT_OK;
}

void wfi_host_read_some(wfi_lane *lane, size_t *budget)
{
    wfi_assert_held(&lane->lock);
    while (*budget && !wfi_list_empty(&lane->reads)) {
        wfi_host_op *op = wfi_container_of(lane->reads.next, wfi_host_op, link);
        size_t left = op->size - op->done, size = left < *budget ? left : *budget;
        weft_status status = read_part(lane, op, size);
        if (status == WEFT_ERR_UNREACHABLE) {
            wfi_host_lane_break(lane);
            return;
        }
        op->done += size;
        *budget -= size;
        if (!status && op->done < op->size)
            break;
        wfi_list_remove(&op->link);
        lane->read_count--;
        wfi_host_complete(lane->host, op, status, op->size);
    }
    if (!wfi_list_empty(&lane->reads))
        wfi_host_doorbell_signal(&lane->host->doorbell, lane->slot);
}
