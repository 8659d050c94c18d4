/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_endpoint.h - one side of a connection, directly on libfabric: a connected endpoint, its completion queue, memory.
 *
 * The usual kind polls its queue without pause. A quiet one sleeps on the queue's descriptor, its sends have no completions,
 * and several of them can share one domain, queue and memory, as the connections of a server do.
 * One thread. Functions return 0, or -1 with a line on stderr; after a failure only raw_endpoint_close is left to do.
 */
#ifndef PERF_RAW_ENDPOINT_H
#define PERF_RAW_ENDPOINT_H

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define RAW_MESSAGE_MAX 4096
#define RAW_RECEIVES 256     /* posted at a time */
#define RAW_QUIET_RECEIVES 4 /* by a quiet one, which has one message under way */

typedef struct raw_endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    struct fid_mr *message_region, *bulk_region;
    uint8_t *out, *in, *bulk; /* in follows out, in one registration */
    bool quiet, shares;       /* shares: all but ep belongs to another */
    bool patient;    /* raw_endpoint_wait has no limit of its own: the other side has one, and ends this process */
    bool alone;      /* a core to itself: raw_endpoint_wait offers it rarely */
    int wait_fd;     /* the queue's, if quiet */
    unsigned posted; /* receives, since the start */
    unsigned asked;  /* sends and remote accesses, since the start */
    unsigned received, done; /* completions: messages that came; of what was asked for */
} raw_endpoint;

typedef struct raw_address {
    struct sockaddr_storage address;
    size_t size;
} raw_address;

typedef struct raw_memory { /* how the other side names the bulk memory */
    uint64_t base, key;
} raw_memory;

int raw_endpoint_open(raw_endpoint *e, const char *provider, size_t bulk_bytes);
int raw_endpoint_open_quiet(raw_endpoint *e, const char *provider); /* no bulk memory */
/* For one more connection of `of`, a quiet one. It is closed before `of`. */
void raw_endpoint_share(raw_endpoint *e, const raw_endpoint *of);
void raw_endpoint_close(raw_endpoint *e);

int raw_endpoint_listen(raw_endpoint *e, raw_address *out);
int raw_endpoint_accept(raw_endpoint *e);
int raw_endpoint_connect(raw_endpoint *e, const raw_address *to);
raw_memory raw_endpoint_memory(const raw_endpoint *e);

int raw_endpoint_receive(raw_endpoint *e); /* posts receives until as many wait as shall */
int raw_endpoint_send(raw_endpoint *e, size_t bytes);
int raw_endpoint_rma(raw_endpoint *e, bool writes, size_t at, size_t bytes, const raw_memory *there);

int raw_endpoint_progress(raw_endpoint *e); /* counts completions, each at the endpoint that it is of */
/* Polls until *count, one of the counters, reaches target. */
int raw_endpoint_wait(raw_endpoint *e, const unsigned *count, unsigned target);
/* Of a quiet one: sleeps until completions have come, of those that share its queue too. seconds < 0: for ever. */
int raw_endpoint_sleep(raw_endpoint *e, int seconds);

#endif
