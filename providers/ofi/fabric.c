/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.c - opening and closing: the provider's info, the fabric, its domain and queues, then the listening side. */
#include "base/alloc.h"
#include "objects.h"

#include "base/text/log.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CQ_MAX ((size_t)1 << 18) /* completions */
#define CQ_SPARE 1024            /* for the lanes that replace others */

static void set_limits(wfofi_fabric *fabric)
{
    const struct fi_info *info = fabric->info;
    fabric->limits = (wfi_fabric_limits){
        .message_max = info->ep_attr->max_msg_size,
        .rma_max = info->ep_attr->max_msg_size,
        .inject_max = fabric->provider->injects ? WFOFI_INJECT_MAX : 0,
        .copied_max = fabric->bounces.size,
        .keys_per_transfer = fabric->provider->keys_per_transfer,
        .needs_local_regions = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0,
        .open_blocks = fabric->provider->open_blocks,
        .long_pays = fabric->provider->long_pays,
        .target_must_progress = fabric->provider->progress_at_target,
        .writes = fabric->base.ops->write,
    };
}

static weft_status open_domain(wfofi_fabric *fabric, weft_error **error)
{
    int ret = fi_fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
    if (ret != 0)
        return wfofi_fail(error, ret, "fi_fabric of provider '%s'", fabric->provider->name);
    ret = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
    if (ret != 0)
        return wfofi_fail(error, ret, "fi_domain of provider '%s'", fabric->provider->name);
    return WEFT_OK;
}

/* If lanes reserve entries, the queue has room for two lanes to each peer and for CQ_SPARE, at most CQ_MAX. The size is
 * halved until the device accepts it. Otherwise the provider chooses the size. */
static int open_cq(wfofi_fabric *fabric, int peers)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    if (!fabric->provider->reserves_queues)
        return fi_cq_open(fabric->domain, &attr, &fabric->cq, NULL);
    size_t lane = fabric->lane_sends + fabric->lane_receives, lanes = peers > 0 ? 2 * (size_t)peers : 0;
    size_t size = lanes < CQ_MAX / lane ? lanes * lane + CQ_SPARE : CQ_MAX;
    int ret = -FI_EINVAL;
    for (size_t wanted = size > CQ_MAX ? CQ_MAX : size; ret != 0 && wanted >= lane; wanted /= 2) {
        attr.size = fabric->cq_size = fabric->cq_room = wanted;
        ret = fi_cq_open(fabric->domain, &attr, &fabric->cq, NULL);
    }
    return ret;
}

/* A descriptor that is readable for completions, and after wfofi_wake. */
static int open_wake(wfofi_fabric *fabric)
{
    struct epoll_event event = {.events = EPOLLIN};
    fabric->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fabric->wait_fd = fabric->wake_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    bool ok = fabric->wait_fd >= 0 && epoll_ctl(fabric->wait_fd, EPOLL_CTL_ADD, fabric->wake_fd, &event) == 0 &&
              epoll_ctl(fabric->wait_fd, EPOLL_CTL_ADD, fabric->cq_fd, &event) == 0;
    return ok ? 0 : -errno;
}

static weft_status open_queues(wfofi_fabric *fabric, int peers, weft_error **error)
{
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_FD, .flags = fabric->provider->events_outlive ? FI_WRITE : 0};
    int ret = fi_eq_open(fabric->fabric, &eq_attr, &fabric->eq, NULL);
    if (ret == 0)
        ret = fi_control(&fabric->eq->fid, FI_GETWAIT, &fabric->eq_fd);
    if (ret != 0)
        return wfofi_fail(error, ret, "event queue of provider '%s'", fabric->provider->name);
    ret = open_cq(fabric, peers);
    if (ret == 0)
        ret = fi_control(&fabric->cq->fid, FI_GETWAIT, &fabric->cq_fd);
    fabric->wait_fd = fabric->cq_fd;
    if (ret == 0 && !fabric->provider->signal_wakes)
        ret = open_wake(fabric);
    if (ret != 0)
        return wfofi_fail(error, ret, "completion queue of provider '%s'", fabric->provider->name);
    return WEFT_OK;
}

static void close_fid(const wfofi_fabric *fabric, struct fid *fid, const char *what)
{
    int ret = fi_close(fid);
    if (ret != 0)
        wfofi_log(fabric, WEFT_LOG_WARN, "closing the %s: %s", what, fi_strerror(-ret));
}

/* Frees the parts that exist: open may have failed at any point. */
static void take_apart(wfofi_fabric *fabric)
{
    if (fabric->pep)
        close_fid(fabric, &fabric->pep->fid, "listening endpoint");
    wfofi_bounces_close(fabric);
    if (fabric->wake_fd >= 0)
        close(fabric->wake_fd);
    if (fabric->wait_fd >= 0 && fabric->wait_fd != fabric->cq_fd)
        close(fabric->wait_fd);
    if (fabric->cq)
        close_fid(fabric, &fabric->cq->fid, "completion queue");
    if (fabric->eq)
        close_fid(fabric, &fabric->eq->fid, "event queue");
    if (fabric->domain)
        close_fid(fabric, &fabric->domain->fid, "domain");
    if (fabric->fabric)
        close_fid(fabric, &fabric->fabric->fid, "fabric");
    fi_freeinfo(fabric->info);
    wfofi_events_fini(fabric);
    wfi_mutex_fini(&fabric->events_lock);
    wfi_mutex_fini(&fabric->cq_lock);
    free(fabric->state);
    free(fabric);
}

static wfofi_fabric *create(const wfofi_provider *provider, const wfi_fabric_options *options)
{
    static const wfofi_hooks none;
    wfofi_fabric *fabric = wfi_calloc(1, sizeof(*fabric));
    if (!fabric)
        return NULL;
    fabric->hooks = provider->hooks ? provider->hooks : &none;
    fabric->state = wfi_calloc(1, fabric->hooks->state_bytes + 1);
    if (!fabric->state) {
        free(fabric);
        return NULL;
    }
    fabric->base.ops = provider->ops;
    fabric->provider = provider;
    fabric->rank = options->rank;
    fabric->wake_fd = fabric->wait_fd = fabric->cq_fd = -1;
    fabric->own_iface = options->iface && options->iface[0];
    wfi_mutex_init(&fabric->cq_lock);
    wfi_mutex_init(&fabric->events_lock);
    wfi_list_init(&fabric->completed);
    wfi_list_init(&fabric->lanes);
    wfi_list_init(&fabric->requests);
    wfi_list_init(&fabric->ahead);
    wfi_list_init(&fabric->bounces.free);
    wfi_list_init(&fabric->bounces.stalled);
    if (fabric->hooks->created)
        fabric->hooks->created(fabric);
    return fabric;
}

weft_status wfofi_open(const wfofi_provider *provider, const wfi_fabric_options *options, wfi_fabric **out,
                       weft_error **error)
{
    wfofi_fabric *fabric = sodium_init() < 0 ? NULL : create(provider, options);
    if (!fabric)
        return wfofi_fail(error, -FI_ENOMEM, "opening fabric '%s'", provider->name);
    wfofi_tune();
    weft_status status = wfofi_choose(fabric, options, error);
    if (status == WEFT_OK)
        status = open_domain(fabric, error);
    if (status == WEFT_OK)
        status = open_queues(fabric, options->peers, error);
    if (status == WEFT_OK)
        status = wfofi_bounces_open(fabric, error);
    if (status == WEFT_OK)
        status = wfofi_listen(fabric, options, error);
    if (status != WEFT_OK) {
        take_apart(fabric);
        return status;
    }
    set_limits(fabric);
    wfofi_address_iface(&fabric->local, fabric->iface);
    fabric->scope = wfofi_address_scope(&fabric->local, fabric->iface);
    *out = &fabric->base;
    return WEFT_OK;
}

/* Never frees the fabric, because libfabric still has operations in flight. No thread calls this fabric again. */
static void keep(wfofi_fabric *fabric)
{
    static _Atomic(wfofi_fabric *) kept; /* the fabrics that stay in memory: leak checkers find them here */
    close_fid(fabric, &fabric->pep->fid, "listening endpoint");
    fabric->kept_before = atomic_exchange(&kept, fabric);
}

void wfofi_close(wfi_fabric *base)
{
    wfofi_fabric *fabric = wfofi_of(base);
    while (!wfi_list_empty(&fabric->lanes)) {
        wfofi_log(fabric, WEFT_LOG_ERROR, "fabric '%s' closed with a lane open", fabric->provider->name);
        wfofi_lane_close(wfi_container_of(fabric->lanes.next, wfi_lane, link));
    }
    wfofi_requests_drop(fabric);
    if (!fabric->hooks->closing || fabric->hooks->closing(fabric))
        take_apart(fabric);
    else
        keep(fabric);
}

const wfi_fabric_limits *wfofi_limits(const wfi_fabric *fabric)
{
    return &wfofi_of(fabric)->limits;
}

const char *wfofi_iface(const wfi_fabric *fabric)
{
    return wfofi_of(fabric)->iface;
}

void wfofi_peer_text(const uint8_t *address, size_t size, char *out, size_t room)
{
    char text[WFOFI_ADDRESS_TEXT] = "an address that makes no sense";
    wfofi_sockaddr peer;
    if (wfofi_address_decode(address, size, &peer) == WEFT_OK)
        wfofi_address_text(&peer, text);
    snprintf(out, room, "%s", text);
}

size_t wfofi_address(const wfi_fabric *fabric, uint8_t *out)
{
    return wfofi_address_encode(&wfofi_of(fabric)->local, out);
}
