/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric.c - opens the fabric, and closes it: sends the last frames, then frees the fabric. A fabric that an shm peer
 * has still to map is kept until the process ends.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/nosignal.h"
#include "base/socket.h"
#include "ofi_rdm/rdm.h"

#include <errno.h>
#include <rdma/fi_cm.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define CQ_ENTRIES 4096
#define LINGER_NS UINT64_C(500000000) /* closing sends what waits for at most this time */
#define LINGER_STEP_NS 50000

static wfrdm *create(const wfrdm_kind *kind, const wfi_fabric_options *options)
{
    wfrdm *rdm = wfi_calloc(1, sizeof(*rdm));
    if (!rdm)
        return NULL;
    rdm->base.ops = kind->ops;
    rdm->kind = kind;
    rdm->rank = options->rank;
    rdm->ready_fn = options->ready;
    rdm->ready_arg = options->ready_arg;
    rdm->events_fd = rdm->notice_fd = rdm->wait_fd = rdm->wake_fd = rdm->timer_fd = -1;
    rdm->dials_due_ns = UINT64_MAX;
    rdm->window = WFRDM_WINDOW_BYTES / (uint32_t)kind->frame_bytes;
    randombytes_buf(&rdm->hash_key, sizeof(rdm->hash_key));
    wfi_map_init_keyed(&rdm->by_id, &rdm->hash_key);
    wfi_map_init(&rdm->regions);
    wfi_mutex_init(&rdm->lock);
    wfi_list *const lists[] = {&rdm->completed, &rdm->lanes,   &rdm->work,   &rdm->requests, &rdm->notices,
                               &rdm->peers,     &rdm->stalled, &rdm->failed, &rdm->frames,   &rdm->local_link};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        wfi_list_init(lists[i]);
    return rdm;
}

static void close_fid(const wfrdm *rdm, struct fid *fid, const char *what)
{
    int ret = fid ? fi_close(fid) : 0;
    if (ret != 0)
        wfrdm_log(rdm, WEFT_LOG_WARN, "closing the %s: %s", what, fi_strerror(-ret));
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Frees the parts that exist: open may have failed at any point. */
static void take_apart(wfrdm *rdm)
{
    wfrdm_peers_close(rdm);
    close_fid(rdm, rdm->ep ? &rdm->ep->fid : NULL, "endpoint");
    wfrdm_buffers_close(rdm);
    close_if_open(rdm->wait_fd);
    close_fid(rdm, rdm->cq ? &rdm->cq->fid : NULL, "completion queue");
    close_fid(rdm, rdm->av ? &rdm->av->fid : NULL, "table of addresses");
    close_fid(rdm, rdm->domain ? &rdm->domain->fid : NULL, "domain");
    close_fid(rdm, rdm->fabric ? &rdm->fabric->fid : NULL, "fabric");
    fi_freeinfo(rdm->info);
    close_if_open(rdm->events_fd);
    close_if_open(rdm->notice_fd);
    close_if_open(rdm->wake_fd);
    close_if_open(rdm->timer_fd);
    wfi_map_fini(&rdm->by_id);
    wfi_map_fini(&rdm->regions);
    wfi_mutex_fini(&rdm->lock);
    free(rdm);
}

static bool watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Returns 0 or libfabric's error. */
static int open_descriptors(wfrdm *rdm)
{
    rdm->notice_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rdm->events_fd = rdm->notice_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (rdm->events_fd < 0 || !watch(rdm->events_fd, rdm->notice_fd))
        return -errno;
    if (!rdm->kind->waits)
        return 0;
    int cq_fd;
    int ret = fi_control(&rdm->cq->fid, FI_GETWAIT, &cq_fd);
    if (ret != 0)
        return ret;
    rdm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rdm->timer_fd = rdm->wake_fd < 0 ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    rdm->wait_fd = rdm->timer_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    bool works = rdm->wait_fd >= 0 && watch(rdm->wait_fd, cq_fd) && watch(rdm->wait_fd, rdm->wake_fd) &&
                 watch(rdm->wait_fd, rdm->timer_fd);
    return works ? 0 : -errno;
}

static int open_queues(wfrdm *rdm)
{
    struct fi_cq_attr cq_attr = {
        .size = CQ_ENTRIES, .format = FI_CQ_FORMAT_MSG, .wait_obj = rdm->kind->waits ? FI_WAIT_FD : FI_WAIT_NONE};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    int ret = fi_fabric(rdm->info->fabric_attr, &rdm->fabric, NULL);
    if (ret == 0)
        ret = fi_domain(rdm->fabric, rdm->info, &rdm->domain, NULL);
    if (ret == 0)
        ret = fi_cq_open(rdm->domain, &cq_attr, &rdm->cq, NULL);
    if (ret == 0)
        ret = fi_av_open(rdm->domain, &av_attr, &rdm->av, NULL);
    return ret ? ret : open_descriptors(rdm);
}

static void set_port(wfrdm *rdm, int port)
{
    wfofi_sockaddr address = {.size = (socklen_t)rdm->info->src_addrlen};
    memcpy(&address.storage, rdm->info->src_addr, rdm->info->src_addrlen);
    wfofi_address_set_port(&address, port);
    memcpy(rdm->info->src_addr, &address.storage, rdm->info->src_addrlen);
}

/* wfi_nosignal: libfabric's shm makes a file, and if that exceeds the process's limit of file sizes there is a
 * SIGXFSZ. */
static int open_endpoint(wfrdm *rdm, int port)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    if (rdm->kind->is_ip)
        set_port(rdm, port);
    int ret = fi_endpoint(rdm->domain, rdm->info, &rdm->ep, rdm);
    char name[WFRDM_NAME_BYTES];
    if (ret == 0 && rdm->kind->is_local) {
        wfrdm_local_name(name);
        ret = fi_setname(&rdm->ep->fid, name, strlen(name) + 1);
    }
    if (ret == 0)
        ret = fi_ep_bind(rdm->ep, &rdm->av->fid, 0);
    if (ret == 0)
        ret = fi_ep_bind(rdm->ep, &rdm->cq->fid, FI_TRANSMIT | FI_RECV);
    if (ret == 0)
        ret = fi_enable(rdm->ep);
    if (ret != 0 && rdm->ep) {
        fi_close(&rdm->ep->fid);
        rdm->ep = NULL;
    }
    wfi_nosignal_end(&saved);
    return ret;
}

static bool is_taken(int ret)
{
    return ret == -FI_EADDRINUSE || ret == -FI_EADDRNOTAVAIL || ret == -EACCES;
}

/* The endpoint, on a port of the range if there is one. */
static weft_status open_on_ports(wfrdm *rdm, const wfi_fabric_options *options, weft_error **error)
{
    int low = options->port_low, high = options->port_high, ret = -FI_EADDRINUSE;
    if (low < 0 || high > 65535 || low > high || (low == 0 && high != 0))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "ports %d to %d: the range must lie within 1 to 65535, low before high", low, high);
    for (int port = low; port <= high && is_taken(ret); port++)
        if (port == 0 || port != options->port_spared)
            ret = open_endpoint(rdm, port);
    if (ret == 0)
        return WEFT_OK;
    if (low > 0 && is_taken(ret))
        return wfofi_no_port(options, rdm->kind->provider, ret, error);
    if (ret == -EFBIG)
        return wfi_error_fail(error, WEFT_ERR_FABRIC, "the endpoint of provider '%s': its file in /dev/shm is %s",
                              rdm->kind->provider, wfi_nosignal_strerror(EFBIG));
    return wfofi_fail(error, ret, "the endpoint of provider '%s'", rdm->kind->provider);
}

static void set_limits(wfrdm *rdm)
{
    const wfrdm_kind *kind = rdm->kind;
    rdm->inject_max = rdm->info->tx_attr->inject_size;
    rdm->limits = (wfi_fabric_limits){
        .message_max = WFRDM_MESSAGE_MAX,
        .rma_max = WFRDM_RMA_MAX,
        .inject_max = WFRDM_INJECT_MAX,
        .keys_per_transfer = true,
        .target_must_progress = true,
        .no_reads = fi_version() < kind->reads_before ? kind->no_reads : NULL,
    };
}

/* libfabric accepts connections and messages of the network's providers before weft sees them (docs/security.md). Its
 * shm has a lock in shared memory before 1.18 (docs/libfabric.md). */
static void warn_of_dangers(const wfrdm *rdm)
{
    static atomic_bool is_told, is_told_shm;
    wfi_endpoint here = {.size = (socklen_t)rdm->info->src_addrlen};
    if (rdm->kind->is_local) {
        if (fi_version() < rdm->kind->reads_before && !atomic_exchange(&is_told_shm, true))
            wfrdm_log(
                rdm, WEFT_LOG_WARN,
                "fabric 'shm' with libfabric before 1.18: a worker that is killed can block the others: use host");
        return;
    }
    if (rdm->kind->is_ip) {
        memcpy(&here.address, rdm->info->src_addr, rdm->info->src_addrlen);
        if (wfi_endpoint_is_loopback(&here))
            return;
    }
    if (!atomic_exchange(&is_told, true))
        wfrdm_log(rdm, WEFT_LOG_WARN,
                  "fabric '%s' can be reached from other machines: a process without the job's secret can crash this "
                  "worker inside libfabric: use it on a private network only, or use tcp or verbs",
                  rdm->kind->ops->name);
}

weft_status wfrdm_open(const wfrdm_kind *kind, const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    wfrdm *rdm = sodium_init() < 0 ? NULL : create(kind, options);
    if (!rdm)
        return wfofi_fail(error, -FI_ENOMEM, "opening fabric '%s'", kind->ops->name);
    wfofi_tune();
    weft_status status = WEFT_OK;
    if (kind->is_local && !wfrdm_local_scope())
        status = wfi_error_fail(
            error, WEFT_ERR_FABRIC,
            "fabric '%s': /dev/shm, /proc/self and /proc/sys/kernel/random/boot_id must be readable", kind->ops->name);
    if (status == WEFT_OK)
        status = wfrdm_choose(rdm, options, error);
    int ret = status == WEFT_OK ? open_queues(rdm) : 0;
    if (ret != 0)
        status = wfofi_fail(error, ret, "queues of provider '%s'", kind->provider);
    if (status == WEFT_OK)
        status = open_on_ports(rdm, options, error);
    if (status == WEFT_OK)
        status = wfrdm_address_make(rdm, error);
    if (status == WEFT_OK && kind->is_local)
        status = wfrdm_local_reserve(rdm, (char *)rdm->address + WFRDM_ADDRESS_HEAD, error);
    ret = status == WEFT_OK ? wfrdm_buffers_open(rdm) : 0;
    if (ret != 0)
        status = wfofi_fail(error, ret, "buffers of provider '%s'", kind->provider);
    if (status != WEFT_OK) {
        take_apart(rdm);
        return status;
    }
    set_limits(rdm);
    if (kind->is_local)
        wfrdm_local_add(rdm);
    warn_of_dangers(rdm);
    *out = &rdm->base;
    return WEFT_OK;
}

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

/* Whether frames have to be sent still. */
static bool has_unsent(const wfrdm *rdm)
{
    WFI_FOR_LIST (wfrdm_peer, peer, &rdm->peers, link) {
        if (!peer->is_dead && (peer->frames || wfrdm_peer_is_unreached(rdm, peer)))
            return true;
    }
    return false;
}

static bool has_unmet(const wfrdm *rdm)
{
    WFI_FOR_LIST (wfrdm_peer, peer, &rdm->peers, link) {
        if (wfrdm_peer_is_unreached(rdm, peer))
            return true;
    }
    return false;
}

/* Sends what waits, mostly BYE. */
static void linger(wfrdm *rdm)
{
    const struct timespec step = {.tv_nsec = LINGER_STEP_NS};
    uint64_t until = wfi_now(&wfi_clock_real) + LINGER_NS;
    for (bool is_done = false; !is_done && wfi_now(&wfi_clock_real) < until;) {
        wfi_mutex_lock(&rdm->lock);
        wfrdm_progress(rdm);
        (void)wfrdm_local_check(rdm);
        is_done = !has_unsent(rdm);
        wfi_mutex_unlock(&rdm->lock);
        if (!is_done)
            nanosleep(&step, NULL);
    }
}

/*
 * Never frees the fabric. libfabric's shm introduces an endpoint to a peer by a command in the peer's memory, and this
 * peer has not read the command yet. If this endpoint's memory is gone by then, libfabric 1.17 crashes there. The file
 * of a kept endpoint stays in /dev/shm.
 */
static void keep(wfrdm *rdm)
{
    static _Atomic(wfrdm *) kept; /* leak checkers find the fabrics here */
    rdm->kept_before = atomic_exchange(&kept, rdm);
}

void wfrdm_close(wfi_fabric *base)
{
    wfrdm *rdm = wfrdm_of(base);
    while (!wfi_list_empty(&rdm->lanes)) {
        wfrdm_log(rdm, WEFT_LOG_ERROR, "fabric '%s' closed with a lane open", rdm->base.ops->name);
        wfrdm_lane_close(wfi_container_of(rdm->lanes.next, wfi_lane, link));
    }
    wfi_mutex_lock(&rdm->lock);
    rdm->is_closing = true;
    while (!wfi_list_empty(&rdm->requests))
        wfrdm_request_free(wfi_container_of(rdm->requests.next, wfi_connect_request, link));
    wfi_mutex_unlock(&rdm->lock);
    linger(rdm);
    if (rdm->kind->is_local)
        wfrdm_local_remove(rdm);
    if (has_unmet(rdm))
        keep(rdm);
    else
        take_apart(rdm);
}
