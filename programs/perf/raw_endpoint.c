/* SPDX-License-Identifier: Apache-2.0 */
/* raw_endpoint.c - see raw_endpoint.h. */
#include "perf/raw_endpoint.h"

#include "perf/helper.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 20000
#define SPINS 256 /* empty polls, 50 to 500 us of them, before a core of this side's own is offered to others */

/* Whether libfabric has done it. */
static bool check(const char *what, ssize_t ret)
{
    return ret == 0 || helper_say("libfabric: %s: %s", what, fi_strerror((int)-ret));
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

static bool open_info(raw_endpoint *e, const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return check("hints", -FI_ENOMEM);
    hints->caps = FI_MSG | FI_RMA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    int ret = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints, &e->info);
    fi_freeinfo(hints);
    return ret == 0 || helper_say("libfabric %u.%u offers no connected endpoints of '%s' on 127.0.0.1: %s",
                                  FI_MAJOR(fi_version()), FI_MINOR(fi_version()), provider, fi_strerror(-ret));
}

static bool open_queues(raw_endpoint *e)
{
    struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_attr cq = {.size = 4 * RAW_RECEIVES, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    int ret = fi_fabric(e->info->fabric_attr, &e->fabric, NULL);
    if (!ret)
        ret = fi_domain(e->fabric, e->info, &e->domain, NULL);
    if (!ret)
        ret = fi_eq_open(e->fabric, &eq, &e->eq, NULL);
    if (!ret)
        ret = fi_cq_open(e->domain, &cq, &e->cq, NULL);
    return check("opening the queues", ret);
}

static bool add_region(raw_endpoint *e, void *memory, size_t size, uint64_t key, struct fid_mr **out)
{
    uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    int ret = fi_mr_reg(e->domain, memory, size, all, 0, key, 0, out, NULL);
    return check("registering memory", ret);
}

static bool open_messages(raw_endpoint *e)
{
    e->out = calloc(2, RAW_MESSAGE_MAX);
    if (!e->out)
        return check("memory", -FI_ENOMEM);
    e->in = e->out + RAW_MESSAGE_MAX;
    return add_region(e, e->out, 2 * RAW_MESSAGE_MAX, 1, &e->message_region);
}

static bool open_bulk(raw_endpoint *e, size_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    e->bulk = aligned_alloc(4096, bytes);
    if (!e->bulk)
        return check("memory", -FI_ENOMEM);
    memset(e->bulk, 1, bytes);
    return add_region(e, e->bulk, bytes, 2, &e->bulk_region);
}

bool raw_endpoint_open(raw_endpoint *e, const char *provider, size_t bulk_bytes)
{
    *e = (raw_endpoint){0};
    return open_info(e, provider) && open_queues(e) && open_messages(e) && open_bulk(e, bulk_bytes);
}

/* ---- Connecting ------------------------------------------------------------------------------------------------ */

static bool wait_event(raw_endpoint *e, uint32_t expected, struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    ssize_t ret = fi_eq_sread(e->eq, &event, entry, sizeof(*entry), CONNECT_MS, 0);
    if (ret >= 0)
        return check("connecting", event == expected ? 0 : -FI_EOTHER);
    return check("connecting", ret == -FI_EAGAIN ? -FI_ETIMEDOUT : ret);
}

/* Receives are posted before the connection stands: some providers want it so. */
static bool open_connection(raw_endpoint *e, struct fi_info *info)
{
    int ret = fi_endpoint(e->domain, info, &e->ep, NULL);
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->eq->fid, 0);
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT);
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->cq->fid, FI_RECV);
    if (!ret)
        ret = fi_enable(e->ep);
    return check("endpoint", ret) && raw_endpoint_receive(e);
}

bool raw_endpoint_listen(raw_endpoint *e, raw_address *out)
{
    *out = (raw_address){.size = sizeof(out->address)};
    int ret = fi_passive_ep(e->fabric, e->info, &e->pep, NULL);
    if (!ret)
        ret = fi_pep_bind(e->pep, &e->eq->fid, 0);
    if (!ret)
        ret = fi_listen(e->pep);
    if (!ret)
        ret = fi_getname(&e->pep->fid, &out->address, &out->size);
    return check("listening", ret);
}

bool raw_endpoint_accept(raw_endpoint *e)
{
    struct fi_eq_cm_entry entry;
    if (!wait_event(e, FI_CONNREQ, &entry))
        return false;
    bool ok = open_connection(e, entry.info) && check("accepting", fi_accept(e->ep, NULL, 0));
    fi_freeinfo(entry.info);
    return ok && wait_event(e, FI_CONNECTED, &entry);
}

bool raw_endpoint_connect(raw_endpoint *e, const raw_address *to)
{
    struct fi_eq_cm_entry entry;
    free(e->info->dest_addr);
    e->info->dest_addr = malloc(to->size);
    if (!e->info->dest_addr)
        return check("memory", -FI_ENOMEM);
    memcpy(e->info->dest_addr, &to->address, to->size);
    e->info->dest_addrlen = to->size;
    return open_connection(e, e->info) && check("connecting", fi_connect(e->ep, &to->address, NULL, 0)) &&
           wait_event(e, FI_CONNECTED, &entry);
}

raw_memory raw_endpoint_memory(const raw_endpoint *e)
{
    bool virtual = e->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    return (raw_memory){.base = virtual ? (uintptr_t)e->bulk : 0, .key = fi_mr_key(e->bulk_region)};
}

/* ---- Posting and waiting --------------------------------------------------------------------------------------- */

bool raw_endpoint_receive(raw_endpoint *e)
{
    void *desc = fi_mr_desc(e->message_region);
    for (; e->posted - e->received < RAW_RECEIVES; e->posted++)
        if (!check("receive", fi_recv(e->ep, e->in, RAW_MESSAGE_MAX, desc, FI_ADDR_UNSPEC, e)))
            return false;
    return true;
}

bool raw_endpoint_send(raw_endpoint *e, size_t bytes)
{
    void *desc = fi_mr_desc(e->message_region);
    struct iovec iov = {e->out, bytes};
    struct fi_msg message = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = e};
    ssize_t ret = fi_sendmsg(e->ep, &message, FI_COMPLETION);
    e->asked += ret == 0;
    return check("send", ret);
}

bool raw_endpoint_rma(raw_endpoint *e, bool writes, size_t at, size_t bytes, const raw_memory *there)
{
    void *desc = fi_mr_desc(e->bulk_region);
    struct iovec iov = {e->bulk + at, bytes};
    struct fi_rma_iov to = {.addr = there->base + at, .len = bytes, .key = there->key};
    struct fi_msg_rma message = {
        .msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &to, .rma_iov_count = 1};
    message.context = e;
    ssize_t ret = writes ? fi_writemsg(e->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)
                         : fi_readmsg(e->ep, &message, FI_COMPLETION);
    e->asked += ret == 0;
    return check(writes ? "remote write" : "remote read", ret);
}

static bool complain_of_error(raw_endpoint *e)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t ret = fi_cq_readerr(e->cq, &entry, 0);
    return check("the other side is gone, or a transfer failed", ret == 1 ? -entry.err : ret);
}

static bool count_completions(raw_endpoint *e)
{
    struct fi_cq_msg_entry entries[16];
    ssize_t count = fi_cq_read(e->cq, entries, 16);
    for (ssize_t i = 0; i < count; i++) {
        if (entries[i].flags & FI_RECV)
            e->received++;
        else
            e->done++;
    }
    if (count >= 0 || count == -FI_EAGAIN)
        return true;
    return count == -FI_EAVAIL ? complain_of_error(e) : check("completion queue", count);
}

bool raw_endpoint_wait(raw_endpoint *e, const unsigned *count, unsigned target)
{
    for (unsigned spins = 1; (int)(target - *count) > 0; spins++) {
        if (!count_completions(e))
            return false;
        if (!e->alone || spins % SPINS == 0)
            sched_yield(); /* the other side may need this core */
    }
    return true;
}
