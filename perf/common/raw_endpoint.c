/* SPDX-License-Identifier: Apache-2.0 */
/* raw_endpoint.c - see raw_endpoint.h. */
#include "raw_endpoint.h"

#include "measure.h"

#include <errno.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_S 30 /* nothing here takes this long: something is wrong */
#define SPINS 256     /* empty polls, 50 to 500 us of them, before a core of this side's own is offered to others */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int complain(const char *what, ssize_t ret)
{
    fprintf(stderr, "raw endpoint: %s: %s\n", what, fi_strerror((int)-ret));
    return -1;
}

/* ---- Opening and closing --------------------------------------------------------------------------------------- */

static int open_info(raw_endpoint *e, const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return complain("hints", -FI_ENOMEM);
    hints->caps = FI_MSG | FI_RMA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    int ret = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints, &e->info);
    fi_freeinfo(hints);
    if (ret)
        fprintf(stderr,
                "raw endpoint: libfabric %u.%u offers no connected endpoints of a provider '%s' on 127.0.0.1: %s\n",
                FI_MAJOR(fi_version()), FI_MINOR(fi_version()), provider, fi_strerror(-ret));
    return ret ? -1 : 0;
}

static int open_queues(raw_endpoint *e)
{
    struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_attr cq = {.size = 4 * RAW_RECEIVES, .format = FI_CQ_FORMAT_MSG};
    cq.wait_obj = e->quiet ? FI_WAIT_FD : FI_WAIT_NONE;
    int ret = fi_fabric(e->info->fabric_attr, &e->fabric, NULL);
    if (!ret)
        ret = fi_domain(e->fabric, e->info, &e->domain, NULL);
    if (!ret)
        ret = fi_eq_open(e->fabric, &eq, &e->eq, NULL);
    if (!ret)
        ret = fi_cq_open(e->domain, &cq, &e->cq, NULL);
    if (!ret && e->quiet)
        ret = fi_control(&e->cq->fid, FI_GETWAIT, &e->wait_fd);
    return ret ? complain("opening the queues", ret) : 0;
}

static int add_region(raw_endpoint *e, void *memory, size_t size, uint64_t key, struct fid_mr **out)
{
    uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    int ret = fi_mr_reg(e->domain, memory, size, all, 0, key, 0, out, NULL);
    return ret ? complain("registering memory", ret) : 0;
}

static int open_messages(raw_endpoint *e)
{
    e->out = calloc(2, RAW_MESSAGE_MAX);
    if (!e->out)
        return complain("memory", -FI_ENOMEM);
    e->in = e->out + RAW_MESSAGE_MAX;
    return add_region(e, e->out, 2 * RAW_MESSAGE_MAX, 1, &e->message_region);
}

static int open_bulk(raw_endpoint *e, size_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    e->bulk = aligned_alloc(4096, bytes);
    if (!e->bulk)
        return complain("memory", -FI_ENOMEM);
    memset(e->bulk, 1, bytes);
    return add_region(e, e->bulk, bytes, 2, &e->bulk_region);
}

int raw_endpoint_open(raw_endpoint *e, const char *provider, size_t bulk_bytes)
{
    *e = (raw_endpoint){0};
    return open_info(e, provider) || open_queues(e) || open_messages(e) || open_bulk(e, bulk_bytes) ? -1 : 0;
}

int raw_endpoint_open_quiet(raw_endpoint *e, const char *provider)
{
    *e = (raw_endpoint){.quiet = true};
    return open_info(e, provider) || open_queues(e) || open_messages(e) ? -1 : 0;
}

void raw_endpoint_share(raw_endpoint *e, const raw_endpoint *of)
{
    *e = (raw_endpoint){.fabric = of->fabric,
                        .domain = of->domain,
                        .eq = of->eq,
                        .cq = of->cq,
                        .message_region = of->message_region,
                        .out = of->out,
                        .in = of->in,
                        .quiet = of->quiet,
                        .shares = true,
                        .wait_fd = of->wait_fd};
}

void raw_endpoint_close(raw_endpoint *e)
{
    struct fid *fids[] = {e->ep ? &e->ep->fid : NULL,
                          e->pep ? &e->pep->fid : NULL,
                          e->message_region ? &e->message_region->fid : NULL,
                          e->bulk_region ? &e->bulk_region->fid : NULL,
                          e->cq ? &e->cq->fid : NULL,
                          e->eq ? &e->eq->fid : NULL,
                          e->domain ? &e->domain->fid : NULL,
                          e->fabric ? &e->fabric->fid : NULL};
    for (size_t i = 0; i < (e->shares ? 1 : COUNT(fids)); i++) {
        if (fids[i])
            fi_close(fids[i]);
    }
    if (e->info)
        fi_freeinfo(e->info);
    if (!e->shares) {
        free(e->out);
        free(e->bulk);
    }
    *e = (raw_endpoint){0};
}

/* ---- Connecting ------------------------------------------------------------------------------------------------ */

static int wait_event(raw_endpoint *e, uint32_t expected, struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    ssize_t ret = fi_eq_sread(e->eq, &event, entry, sizeof *entry, PATIENCE_S * 1000, 0);
    if (ret < 0 || event != expected)
        return complain("connecting", ret == -FI_EAGAIN ? -FI_ETIMEDOUT : ret < 0 ? ret : -FI_EOTHER);
    return 0;
}

/* Receives are posted before the connection stands: some providers want it so. */
static int open_connection(raw_endpoint *e, struct fi_info *info)
{
    int ret = fi_endpoint(e->domain, info, &e->ep, NULL);
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->eq->fid, 0);
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | (e->quiet ? FI_SELECTIVE_COMPLETION : 0));
    if (!ret)
        ret = fi_ep_bind(e->ep, &e->cq->fid, FI_RECV);
    if (!ret)
        ret = fi_enable(e->ep);
    return ret ? complain("endpoint", ret) : raw_endpoint_receive(e);
}

int raw_endpoint_listen(raw_endpoint *e, raw_address *out)
{
    *out = (raw_address){.size = sizeof out->address};
    int ret = fi_passive_ep(e->fabric, e->info, &e->pep, NULL);
    if (!ret)
        ret = fi_pep_bind(e->pep, &e->eq->fid, 0);
    if (!ret)
        ret = fi_listen(e->pep);
    if (!ret)
        ret = fi_getname(&e->pep->fid, &out->address, &out->size);
    return ret ? complain("listening", ret) : 0;
}

int raw_endpoint_accept(raw_endpoint *e)
{
    struct fi_eq_cm_entry entry;
    if (wait_event(e, FI_CONNREQ, &entry))
        return -1;
    int failed = open_connection(e, entry.info);
    int ret = failed ? 0 : fi_accept(e->ep, NULL, 0);
    fi_freeinfo(entry.info);
    if (ret)
        return complain("accepting", ret);
    return failed ? -1 : wait_event(e, FI_CONNECTED, &entry);
}

int raw_endpoint_connect(raw_endpoint *e, const raw_address *to)
{
    struct fi_eq_cm_entry entry;
    free(e->info->dest_addr);
    e->info->dest_addr = malloc(to->size);
    if (!e->info->dest_addr)
        return complain("memory", -FI_ENOMEM);
    memcpy(e->info->dest_addr, &to->address, to->size);
    e->info->dest_addrlen = to->size;
    if (open_connection(e, e->info))
        return -1;
    int ret = fi_connect(e->ep, &to->address, NULL, 0);
    return ret ? complain("connecting", ret) : wait_event(e, FI_CONNECTED, &entry);
}

raw_memory raw_endpoint_memory(const raw_endpoint *e)
{
    bool virtual = e->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    return (raw_memory){.base = virtual ? (uintptr_t)e->bulk : 0, .key = fi_mr_key(e->bulk_region)};
}

/* ---- Posting and waiting --------------------------------------------------------------------------------------- */

int raw_endpoint_receive(raw_endpoint *e)
{
    unsigned wanted = e->quiet ? RAW_QUIET_RECEIVES : RAW_RECEIVES;
    for (; e->posted - e->received < wanted; e->posted++) {
        ssize_t ret = fi_recv(e->ep, e->in, RAW_MESSAGE_MAX, fi_mr_desc(e->message_region), FI_ADDR_UNSPEC, e);
        if (ret)
            return complain("receive", ret);
    }
    return 0;
}

int raw_endpoint_send(raw_endpoint *e, size_t bytes)
{
    void *desc = fi_mr_desc(e->message_region);
    struct iovec iov = {e->out, bytes};
    struct fi_msg message = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = e};
    ssize_t ret = fi_sendmsg(e->ep, &message, e->quiet ? 0 : FI_COMPLETION);
    e->asked += ret == 0;
    return ret ? complain("send", ret) : 0;
}

int raw_endpoint_rma(raw_endpoint *e, bool writes, size_t at, size_t bytes, const raw_memory *there)
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
    return ret ? complain(writes ? "remote write" : "remote read", ret) : 0;
}

static int complain_of_error(raw_endpoint *e)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t ret = fi_cq_readerr(e->cq, &entry, 0);
    return complain("the other side is gone, or a transfer failed", ret == 1 ? -entry.err : ret);
}

/* How many completions; -1 is an error. */
static int count_completions(raw_endpoint *e)
{
    struct fi_cq_msg_entry entries[16];
    ssize_t count = fi_cq_read(e->cq, entries, 16);
    for (ssize_t i = 0; i < count; i++) {
        raw_endpoint *of = entries[i].op_context;
        if (entries[i].flags & FI_RECV)
            of->received++;
        else
            of->done++;
    }
    if (count >= 0 || count == -FI_EAGAIN)
        return count > 0 ? (int)count : 0;
    return count == -FI_EAVAIL ? complain_of_error(e) : complain("completion queue", count);
}

int raw_endpoint_progress(raw_endpoint *e)
{
    return count_completions(e) < 0 ? -1 : 0;
}

int raw_endpoint_wait(raw_endpoint *e, const unsigned *count, unsigned target)
{
    double limit = 0;
    for (unsigned spins = 0; (int)(target - *count) > 0; spins++) {
        if (raw_endpoint_progress(e))
            return -1;
        if (e->alone && spins % SPINS != SPINS - 1)
            continue;
        double now = measure_now_us();
        limit = limit > 0 ? limit : now + PATIENCE_S * 1e6;
        if (now > limit && !e->patient)
            return complain("waiting for the other side", -FI_ETIMEDOUT);
        sched_yield(); /* the other side may need this core */
    }
    return 0;
}

/* Until the queue's descriptor shows something, which need not become a completion. */
static int doze(raw_endpoint *e, int ms)
{
    struct fid *queue = &e->cq->fid;
    struct pollfd fd = {.fd = e->wait_fd, .events = POLLIN};
    int ret = fi_trywait(e->fabric, &queue, 1);
    if (ret == -FI_EAGAIN)
        return 0;
    if (ret)
        return complain("before sleeping", ret);
    return poll(&fd, 1, ms) < 0 && errno != EINTR ? complain("sleeping", -errno) : 0;
}

int raw_endpoint_sleep(raw_endpoint *e, int seconds)
{
    double limit = 0;
    int count;
    while ((count = count_completions(e)) == 0) {
        double now = measure_now_us();
        limit = limit > 0 ? limit : now + seconds * 1e6;
        if (seconds >= 0 && now >= limit)
            return complain("waiting for the other side", -FI_ETIMEDOUT);
        if (doze(e, seconds < 0 ? -1 : (int)((limit - now) / 1000) + 1))
            return -1;
    }
    return count < 0 ? -1 : 0;
}
