/* SPDX-License-Identifier: Apache-2.0 */
/* raw_floor.c - see raw_floor.h. The child is the target: it answers messages, then only makes progress. */
#include "raw_floor.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRIP_BYTES_MAX 4096
#define WARM_UP 200
#define WINDOW 4
#define PATIENCE_S 30 /* nothing here takes this long: something is wrong */

static const size_t trip_sizes[] = {8, 64, 256, 1024, 4096};
static const size_t rate_sizes[] = {65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
static const size_t chunk_sizes[] = {65536, 262144, 1 << 20, 4 << 20};

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    struct fid_mr *message_region, *bulk_region;
    uint8_t *out, *in, *bulk; /* in follows out, in one registration */
    size_t bulk_size;
    unsigned received, sent; /* completions seen */
} side;

typedef struct target_note { /* what the child tells */
    struct sockaddr_storage address;
    size_t address_size;
} target_note;

typedef struct memory_note {
    uint64_t base, key;
} memory_note;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int complain(const char *what, ssize_t ret)
{
    fprintf(stderr, "raw floor: %s: %s\n", what, fi_strerror((int)-ret));
    return -1;
}

/* ---- One side: opening, posting, waiting ----------------------------------------------------------------------- */

static int open_info(side *s, const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return complain("hints", -FI_ENOMEM);
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    int ret = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, hints, &s->info);
    fi_freeinfo(hints);
    return ret ? complain(provider, ret) : 0;
}

static int open_queues(side *s)
{
    struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    int ret = fi_fabric(s->info->fabric_attr, &s->fabric, NULL);
    if (!ret)
        ret = fi_domain(s->fabric, s->info, &s->domain, NULL);
    if (!ret)
        ret = fi_eq_open(s->fabric, &eq, &s->eq, NULL);
    if (!ret)
        ret = fi_cq_open(s->domain, &cq, &s->cq, NULL);
    return ret ? complain("opening the queues", ret) : 0;
}

static int open_memory(side *s, size_t bulk_size)
{
    uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    s->bulk_size = bulk_size;
    s->out = calloc(2, TRIP_BYTES_MAX);
    s->bulk = aligned_alloc(4096, bulk_size);
    if (!s->out || !s->bulk)
        return complain("memory", -FI_ENOMEM);
    s->in = s->out + TRIP_BYTES_MAX;
    memset(s->bulk, 1, bulk_size);
    int ret = fi_mr_reg(s->domain, s->out, 2 * TRIP_BYTES_MAX, all, 0, 1, 0, &s->message_region, NULL);
    if (!ret)
        ret = fi_mr_reg(s->domain, s->bulk, bulk_size, all, 0, 2, 0, &s->bulk_region, NULL);
    return ret ? complain("registering memory", ret) : 0;
}

static int post_receive(side *s)
{
    ssize_t ret = fi_recv(s->ep, s->in, TRIP_BYTES_MAX, fi_mr_desc(s->message_region), FI_ADDR_UNSPEC, NULL);
    return ret ? complain("receive", ret) : 0;
}

static int post_send(side *s, size_t bytes)
{
    ssize_t ret = fi_send(s->ep, s->out, bytes, fi_mr_desc(s->message_region), FI_ADDR_UNSPEC, NULL);
    return ret ? complain("send", ret) : 0;
}

static int open_endpoint(side *s, struct fi_info *info)
{
    int ret = fi_endpoint(s->domain, info, &s->ep, NULL);
    if (!ret)
        ret = fi_ep_bind(s->ep, &s->eq->fid, 0);
    if (!ret)
        ret = fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV);
    if (!ret)
        ret = fi_enable(s->ep);
    return ret ? complain("endpoint", ret) : post_receive(s);
}

/* Counts what has completed: receives, and everything else. */
static int progress(side *s)
{
    struct fi_cq_msg_entry entries[16];
    ssize_t count = fi_cq_read(s->cq, entries, 16);
    for (ssize_t i = 0; i < count; i++) {
        if (entries[i].flags & FI_RECV)
            s->received++;
        else
            s->sent++;
    }
    return count >= 0 || count == -FI_EAGAIN ? 0 : complain("completion queue", count);
}

static int wait_for(side *s, const unsigned *count, unsigned target)
{
    double limit = 0;
    for (unsigned spins = 0; (int)(target - *count) > 0; spins++) {
        if (progress(s))
            return -1;
        if (spins % 65536 == 65535) {
            double now = now_us();
            limit = limit > 0 ? limit : now + PATIENCE_S * 1e6;
            if (now > limit)
                return complain("waiting for the other side", -FI_ETIMEDOUT);
        }
    }
    return 0;
}

static int wait_event(side *s, uint32_t expected, struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    ssize_t ret = fi_eq_sread(s->eq, &event, entry, sizeof *entry, PATIENCE_S * 1000, 0);
    if (ret < 0 || event != expected)
        return complain("connecting", ret < 0 ? ret : -FI_EOTHER);
    return 0;
}

static void close_side(side *s)
{
    struct fid *fids[] = {s->ep ? &s->ep->fid : NULL,
                          s->pep ? &s->pep->fid : NULL,
                          s->message_region ? &s->message_region->fid : NULL,
                          s->bulk_region ? &s->bulk_region->fid : NULL,
                          s->cq ? &s->cq->fid : NULL,
                          s->eq ? &s->eq->fid : NULL,
                          s->domain ? &s->domain->fid : NULL,
                          s->fabric ? &s->fabric->fid : NULL};
    for (size_t i = 0; i < COUNT(fids); i++) {
        if (fids[i])
            fi_close(fids[i]);
    }
    fi_freeinfo(s->info);
    free(s->out);
    free(s->bulk);
}

/* ---- The target ------------------------------------------------------------------------------------------------ */

static int target_listen(side *s, int to_parent)
{
    target_note note = {.address_size = sizeof note.address};
    int ret = fi_passive_ep(s->fabric, s->info, &s->pep, NULL);
    if (!ret)
        ret = fi_pep_bind(s->pep, &s->eq->fid, 0);
    if (!ret)
        ret = fi_listen(s->pep);
    if (!ret)
        ret = fi_getname(&s->pep->fid, &note.address, &note.address_size);
    if (ret)
        return complain("listening", ret);
    return write(to_parent, &note, sizeof note) == sizeof note ? 0 : -1;
}

static int target_accept(side *s)
{
    struct fi_eq_cm_entry entry;
    if (wait_event(s, FI_CONNREQ, &entry))
        return -1;
    int failed = open_endpoint(s, entry.info);
    int ret = failed ? 0 : fi_accept(s->ep, NULL, 0);
    fi_freeinfo(entry.info);
    if (ret)
        return complain("accepting", ret);
    return failed ? -1 : wait_event(s, FI_CONNECTED, &entry);
}

static int target_serve(const raw_floor_options *o, int to_parent)
{
    side s = {0};
    if (open_info(&s, o->provider) || open_queues(&s) || open_memory(&s, o->bytes_max) ||
        target_listen(&s, to_parent) || target_accept(&s))
        return 1;
    unsigned trips = (unsigned)(COUNT(trip_sizes) * (size_t)(o->rounds + WARM_UP));
    for (unsigned i = 0; i < trips; i++) {
        size_t bytes = trip_sizes[i / (unsigned)(o->rounds + WARM_UP)];
        if (wait_for(&s, &s.received, i + 1) || post_receive(&s) || post_send(&s, bytes))
            return 1;
    }
    bool virtual = s.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    memory_note note = {.base = virtual ? (uintptr_t)s.bulk : 0, .key = fi_mr_key(s.bulk_region)};
    memcpy(s.out, &note, sizeof note);
    if (wait_for(&s, &s.sent, trips) || post_send(&s, sizeof note))
        return 1;
    while (s.received < trips + 1) { /* the last message: done */
        if (progress(&s))
            return 1;
    }
    close_side(&s);
    return 0;
}

/* ---- The initiator --------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_trip(side *s, size_t bytes, int rounds, double *times, raw_floor_trip *out)
{
    for (int i = -WARM_UP; i < rounds; i++) {
        double start = now_us();
        if (post_send(s, bytes) || wait_for(s, &s->received, s->received + 1))
            return -1;
        if (i >= 0)
            times[i] = now_us() - start;
        if (post_receive(s))
            return -1;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    *out = (raw_floor_trip){bytes, times[0], times[rounds / 2], times[(size_t)rounds * 99 / 100]};
    return 0;
}

static int post_chunk(side *s, bool writes, size_t at, size_t bytes, const memory_note *there)
{
    void *desc = fi_mr_desc(s->bulk_region);
    struct iovec iov = {s->bulk + at, bytes};
    struct fi_rma_iov to = {.addr = there->base + at, .len = bytes, .key = there->key};
    struct fi_msg_rma message = {
        .msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &to, .rma_iov_count = 1};
    ssize_t ret = writes ? fi_writemsg(s->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)
                         : fi_readmsg(s->ep, &message, FI_COMPLETION);
    return ret ? complain(writes ? "remote write" : "remote read", ret) : 0;
}

static int transfer(side *s, bool writes, size_t bytes, size_t chunk, const memory_note *there)
{
    unsigned first = s->sent, posted = 0;
    for (size_t at = 0; at < bytes; at += chunk) {
        size_t piece = bytes - at < chunk ? bytes - at : chunk;
        if (posted >= WINDOW && wait_for(s, &s->sent, first + posted - WINDOW + 1))
            return -1;
        if (post_chunk(s, writes, at, piece, there))
            return -1;
        posted++;
    }
    return wait_for(s, &s->sent, first + posted);
}

static int measure_rate(side *s, bool writes, size_t bytes, int repeat_ms, const memory_note *there,
                        raw_floor_rate *out)
{
    double *best = writes ? &out->write_gb_s : &out->read_gb_s;
    size_t *best_chunk = writes ? &out->write_chunk : &out->read_chunk;
    for (size_t i = 0; i < COUNT(chunk_sizes); i++) {
        size_t chunk = chunk_sizes[i];
        double end = now_us() + repeat_ms * 1e3 / COUNT(chunk_sizes);
        if (chunk > bytes)
            break;
        for (int repeat = 0; repeat < 3 || now_us() < end; repeat++) {
            double start = now_us();
            if (transfer(s, writes, bytes, chunk, there))
                return -1;
            double rate = (double)bytes / (now_us() - start) / 1e3;
            if (rate > *best) {
                *best = rate;
                *best_chunk = chunk;
            }
        }
    }
    return 0;
}

static int measure_rates(side *s, const raw_floor_options *o, raw_floor *out)
{
    memory_note there;
    if (wait_for(s, &s->received, s->received + 1) || post_receive(s))
        return -1;
    memcpy(&there, s->in, sizeof there);
    if (wait_for(s, &s->sent, (unsigned)(COUNT(trip_sizes) * (size_t)(o->rounds + WARM_UP))))
        return -1;
    for (size_t i = 0; i < COUNT(rate_sizes) && rate_sizes[i] <= o->bytes_max; i++) {
        raw_floor_rate *rate = &out->rates[out->rate_count++];
        *rate = (raw_floor_rate){.bytes = rate_sizes[i]};
        if (measure_rate(s, false, rate_sizes[i], o->repeat_ms, &there, rate) ||
            measure_rate(s, true, rate_sizes[i], o->repeat_ms, &there, rate))
            return -1;
    }
    return 0;
}

static int initiator_connect(side *s, const target_note *note)
{
    struct fi_eq_cm_entry entry;
    free(s->info->dest_addr);
    s->info->dest_addr = malloc(note->address_size);
    if (!s->info->dest_addr)
        return complain("memory", -FI_ENOMEM);
    memcpy(s->info->dest_addr, &note->address, note->address_size);
    s->info->dest_addrlen = note->address_size;
    if (open_endpoint(s, s->info))
        return -1;
    int ret = fi_connect(s->ep, &note->address, NULL, 0);
    return ret ? complain("connecting", ret) : wait_event(s, FI_CONNECTED, &entry);
}

static int initiate(const raw_floor_options *o, int from_child, raw_floor *out)
{
    target_note note;
    side s = {0};
    double *times = malloc((size_t)o->rounds * sizeof *times);
    int failed = !times || read(from_child, &note, sizeof note) != sizeof note || open_info(&s, o->provider) ||
                 open_queues(&s) || open_memory(&s, o->bytes_max) || initiator_connect(&s, &note);
    for (size_t i = 0; !failed && i < COUNT(trip_sizes); i++)
        failed = measure_trip(&s, trip_sizes[i], o->rounds, times, &out->trips[out->trip_count++]);
    failed = failed || measure_rates(&s, o, out) || post_send(&s, 1);
    for (double end = now_us() + 1e4; !failed && now_us() < end;) /* the last message leaves */
        failed = progress(&s);
    close_side(&s);
    free(times);
    return failed ? -1 : 0;
}

int raw_floor_measure(const raw_floor_options *options, raw_floor *out)
{
    raw_floor_options o = options ? *options : (raw_floor_options){0};
    o.provider = o.provider ? o.provider : "tcp";
    o.rounds = o.rounds > 0 ? o.rounds : 2000;
    o.repeat_ms = o.repeat_ms > 0 ? o.repeat_ms : 100;
    o.bytes_max = o.bytes_max ? o.bytes_max : (size_t)64 << 20;
    *out = (raw_floor){0};
    snprintf(out->provider, sizeof out->provider, "%s", o.provider);
    snprintf(out->version, sizeof out->version, "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    int fds[2];
    if (pipe(fds))
        return complain("pipe", -FI_EOTHER);
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? target_serve(&o, fds[1]) : 1);
    }
    close(fds[1]);
    int failed = child < 0 ? complain("fork", -FI_EOTHER) : initiate(&o, fds[0], out);
    close(fds[0]);
    if (child > 0 && failed)
        kill(child, SIGKILL);
    if (child > 0)
        waitpid(child, NULL, 0);
    return failed;
}

/* ---- Showing --------------------------------------------------------------------------------------------------- */

void raw_floor_print(const raw_floor *floor, FILE *to)
{
    fprintf(to, "raw libfabric %s, provider %s, connected endpoints, loopback, both sides polling\n", floor->version,
            floor->provider);
    fprintf(to, "%12s %10s %10s %10s   round trip, us\n", "bytes", "min", "p50", "p99");
    for (size_t i = 0; i < floor->trip_count; i++) {
        const raw_floor_trip *t = &floor->trips[i];
        fprintf(to, "%12zu %10.2f %10.2f %10.2f\n", t->bytes, t->min_us, t->p50_us, t->p99_us);
    }
    fprintf(to, "%12s %10s %10s %21s   GB/s, best chunk\n", "bytes", "read", "write", "chunks");
    for (size_t i = 0; i < floor->rate_count; i++) {
        const raw_floor_rate *r = &floor->rates[i];
        fprintf(to, "%12zu %10.2f %10.2f %10zu %10zu\n", r->bytes, r->read_gb_s, r->write_gb_s, r->read_chunk,
                r->write_chunk);
    }
}

void raw_floor_json(const raw_floor *floor, FILE *to)
{
    fprintf(to, "{\"provider\": \"%s\", \"libfabric\": \"%s\", \"round_trips\": [", floor->provider, floor->version);
    for (size_t i = 0; i < floor->trip_count; i++) {
        const raw_floor_trip *t = &floor->trips[i];
        fprintf(to, "%s{\"bytes\": %zu, \"min_us\": %.3f, \"p50_us\": %.3f, \"p99_us\": %.3f}", i ? ", " : "", t->bytes,
                t->min_us, t->p50_us, t->p99_us);
    }
    fprintf(to, "], \"rates\": [");
    for (size_t i = 0; i < floor->rate_count; i++) {
        const raw_floor_rate *r = &floor->rates[i];
        fprintf(to,
                "%s{\"bytes\": %zu, \"read_gb_s\": %.3f, \"write_gb_s\": %.3f, \"read_chunk\": %zu, "
                "\"write_chunk\": %zu}",
                i ? ", " : "", r->bytes, r->read_gb_s, r->write_gb_s, r->read_chunk, r->write_chunk);
    }
    fprintf(to, "]}\n");
}
