/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bounce.c - sends, reads and writes of memory that is not registered, through a few registered buffers.
 *
 * The memory that a process may lock is limited (ulimit -l), so a registration can fail at any time. The operation then
 * goes through a buffer that was registered when the fabric was opened. It is cut into pieces, which are posted one at
 * a time. To libfabric a piece is an operation of its own; the caller's operation is completed with the last piece. If
 * no buffer is free, the caller posts again later.
 *
 * cq_lock guards everything here. A later piece is posted with lane->lock held too: lane_close changes the lane's state
 * under that lock before it closes the endpoint.
 */
#include "objects.h"

#include "base/alloc.h"
#include "base/text/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define TRIAL_BYTES ((size_t)128 << 10) /* less is of no use: the receives of a connection take 24 KiB */
#define BUFFER_MAX ((size_t)64 << 10)
#define SHARE 4 /* the buffers take at most this part of the memory that may be locked */

static weft_status fail(wfofi_fabric *fabric, int ret, size_t size, weft_error **error)
{
    struct rlimit limit = {0};
    char text[32] = "unlimited";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, sizeof(text), "%llu KiB", (unsigned long long)limit.rlim_cur >> 10);
    return wfi_error_fail(error, ret == -FI_ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_FABRIC,
                          "registering %zu KiB of memory with provider '%s': %s: this process may lock %s (ulimit -l); "
                          "raise that with \"ulimit -l unlimited\", LimitMEMLOCK=infinity for a service, --ulimit "
                          "memlock=-1 for a container",
                          size >> 10, fabric->provider->name, fi_strerror(-ret), text);
}

/* Returns BUFFER_MAX, halved until all buffers together take at most 1/SHARE of RLIMIT_MEMLOCK, or until the size is
 * WFOFI_BOUNCE_MIN. */
static size_t buffer_size(void)
{
    struct rlimit limit;
    size_t size = BUFFER_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return size;
    while (size > WFOFI_BOUNCE_MIN && size * WFOFI_BOUNCES > limit.rlim_cur / SHARE)
        size /= 2;
    return size;
}

/* Registers TRIAL_BYTES once, and closes the region again. A process that cannot do this cannot use the fabric. */
static weft_status try_registration(wfofi_fabric *fabric, weft_error **error)
{
    struct fid_mr *mr;
    void *memory = aligned_alloc(4096, TRIAL_BYTES);
    int ret = memory ? wfofi_register(fabric, memory, TRIAL_BYTES, FI_REMOTE_READ | FI_RECV, &mr) : -FI_ENOMEM;
    if (ret == 0)
        fi_close(&mr->fid);
    free(memory);
    return ret == 0 ? WEFT_OK : fail(fabric, ret, TRIAL_BYTES, error);
}

weft_status wfofi_bounces_open(wfofi_fabric *fabric, weft_error **error)
{
    wfofi_bounces *bounces = &fabric->bounces;
    if (!(fabric->info->domain_attr->mr_mode & FI_MR_LOCAL))
        return WEFT_OK;
    weft_status status = try_registration(fabric, error);
    if (status != WEFT_OK)
        return status;
    size_t size = buffer_size(), all = size * WFOFI_BOUNCES;
    bounces->memory = aligned_alloc(4096, all);
    int ret = bounces->memory
                  ? wfofi_register(fabric, bounces->memory, all, FI_SEND | FI_RECV | FI_READ | FI_WRITE, &bounces->mr)
                  : -FI_ENOMEM;
    if (ret != 0)
        return fail(fabric, ret, all, error);
    bounces->size = size;
    for (size_t i = 0; i < WFOFI_BOUNCES; i++) {
        wfofi_bounce *bounce = &bounces->all[i];
        bounce->piece.kind = WFOFI_PIECE;
        bounce->data = bounces->memory + i * size;
        wfi_list_init(&bounce->link);
        wfi_list_push_back(&bounces->free, &bounce->link);
    }
    return WEFT_OK;
}

void wfofi_bounces_close(wfofi_fabric *fabric)
{
    if (fabric->bounces.mr && fi_close(&fabric->bounces.mr->fid) != 0)
        wfofi_log(fabric, WEFT_LOG_ERROR, "closing the region of the bounce buffers failed");
    free(fabric->bounces.memory);
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static void give_back(wfofi_fabric *fabric, wfofi_bounce *bounce)
{
    bounce->op = NULL;
    bounce->piece.lane = NULL;
    wfi_list_remove(&bounce->link);
    wfi_list_push_front(&fabric->bounces.free, &bounce->link);
}

/* Posts the next piece. */
static ssize_t post(wfofi_fabric *fabric, wfofi_bounce *bounce)
{
    wfi_assert_held(&fabric->cq_lock);
    size_t size = bounce->left < fabric->bounces.size ? bounce->left : fabric->bounces.size;
    void *descriptor = fi_mr_desc(fabric->bounces.mr);
    struct iovec iov = {.iov_base = bounce->data, .iov_len = size};
    struct fi_rma_iov there = {.addr = bounce->remote, .len = size, .key = bounce->key};
    struct fid_ep *ep = bounce->piece.lane->ep;
    bounce->size = size;
    if (bounce->op->kind == WFOFI_SEND) {
        const struct fi_msg message = {.msg_iov = &iov, .desc = &descriptor, .iov_count = 1, .context = &bounce->piece};
        return fi_sendmsg(ep, &message, FI_COMPLETION);
    }
    const struct fi_msg_rma message = {.msg_iov = &iov,
                                       .desc = &descriptor,
                                       .iov_count = 1,
                                       .addr = FI_ADDR_UNSPEC,
                                       .rma_iov = &there,
                                       .rma_iov_count = 1,
                                       .context = &bounce->piece};
    if (bounce->op->kind == WFOFI_READ)
        return fi_readmsg(ep, &message, FI_COMPLETION);
    memcpy(bounce->data, bounce->local, size);
    return fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

static wfofi_bounce *take(wfofi_fabric *fabric, wfofi_op *op)
{
    wfi_list *link = wfi_list_pop_front(&fabric->bounces.free);
    if (!link)
        return NULL;
    wfofi_bounce *bounce = wfi_container_of(link, wfofi_bounce, link);
    bounce->op = op;
    bounce->piece.lane = op->lane;
    return bounce;
}

ssize_t wfofi_bounce_send(wfofi_fabric *fabric, wfofi_op *op, const wfi_iov *iov, size_t count)
{
    wfi_mutex_lock(&fabric->cq_lock);
    wfofi_bounce *bounce = take(fabric, op);
    ssize_t ret = bounce ? 0 : -FI_EAGAIN;
    if (bounce) {
        bounce->left = 0;
        for (size_t i = 0; i < count; i++) { /* the caller has checked the sum */
            if (iov[i].size)
                memcpy(bounce->data + bounce->left, iov[i].data, iov[i].size);
            bounce->left += iov[i].size;
        }
        ret = post(fabric, bounce);
    }
    if (bounce && ret != 0)
        give_back(fabric, bounce);
    wfi_mutex_unlock(&fabric->cq_lock);
    return ret;
}

ssize_t wfofi_bounce_rma(wfofi_fabric *fabric, wfofi_op *op, void *local, size_t size, uint64_t remote, uint64_t key)
{
    wfi_mutex_lock(&fabric->cq_lock);
    wfofi_bounce *bounce = take(fabric, op);
    ssize_t ret = bounce ? 0 : -FI_EAGAIN;
    if (bounce) {
        bounce->local = local;
        bounce->left = size;
        bounce->remote = remote;
        bounce->key = key;
        ret = post(fabric, bounce);
    }
    if (bounce && ret != 0)
        give_back(fabric, bounce);
    wfi_mutex_unlock(&fabric->cq_lock);
    return ret;
}

static void end(wfofi_fabric *fabric, wfofi_bounce *bounce, weft_status status)
{
    wfofi_op *op = bounce->op;
    give_back(fabric, bounce);
    wfofi_complete(fabric, op, status, 0);
}

/* Posts the next piece of an operation, unless its lane is broken or being closed. */
static void go_on(wfofi_fabric *fabric, wfofi_bounce *bounce)
{
    wfi_lane *lane = bounce->piece.lane;
    wfi_mutex_lock(&lane->lock);
    wfofi_lane_state state = lane->state;
    ssize_t ret = state == WFOFI_CONNECTED ? post(fabric, bounce) : 0;
    wfi_mutex_unlock(&lane->lock);
    if (state != WFOFI_CONNECTED)
        end(fabric, bounce, state == WFOFI_CLOSING ? WEFT_ERR_CANCELLED : WEFT_ERR_UNREACHABLE);
    else if (ret == -FI_EAGAIN)
        wfi_list_push_back(&fabric->bounces.stalled, &bounce->link);
    else if (ret != 0) /* not WEFT_ERR_INVALID, which means memory that cannot be accessed (fabric.h) */
        end(fabric, bounce, WEFT_ERR_FABRIC);
}

void wfofi_bounce_step(wfofi_fabric *fabric, wfofi_op *piece, weft_status status)
{
    wfofi_bounce *bounce = wfi_container_of(piece, wfofi_bounce, piece);
    wfi_assert_held(&fabric->cq_lock);
    if (!bounce->op)
        return;
    if (status == WEFT_OK && bounce->op->kind == WFOFI_READ)
        memcpy(bounce->local, bounce->data, bounce->size);
    bounce->left -= bounce->size;
    if (status != WEFT_OK || bounce->left == 0) {
        end(fabric, bounce, status);
        return;
    }
    bounce->local += bounce->size;
    bounce->remote += bounce->size;
    go_on(fabric, bounce);
}

void wfofi_bounces_retry(wfofi_fabric *fabric)
{
    wfi_assert_held(&fabric->cq_lock);
    wfi_list *link = wfi_list_pop_front(&fabric->bounces.stalled);
    if (link)
        go_on(fabric, wfi_container_of(link, wfofi_bounce, link));
}

void wfofi_bounces_forget(wfofi_fabric *fabric, const wfi_lane *lane)
{
    wfi_assert_held(&fabric->cq_lock);
    for (size_t i = 0; i < WFOFI_BOUNCES; i++)
        if (fabric->bounces.all[i].op && fabric->bounces.all[i].piece.lane == lane)
            give_back(fabric, &fabric->bounces.all[i]);
}
