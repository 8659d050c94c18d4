/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_endpoint.h - one side of a connection, directly on libfabric: a connected endpoint, a completion queue that is
 * polled without pause, and memory. For one thread. A function that returns false has called helper_say. Nothing is
 * closed: the process ends.
 */
#ifndef WEFT_PERF_RAW_ENDPOINT_H
#define WEFT_PERF_RAW_ENDPOINT_H

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define RAW_MESSAGE_MAX 4096
#define RAW_RECEIVES 256 /* posted at a time */

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
    bool alone;               /* a core to itself: raw_endpoint_wait offers it rarely */
    unsigned posted;          /* receives, since the start */
    unsigned asked;           /* sends and remote accesses, since the start */
    unsigned received, done;  /* completions: messages that came; of what was asked for */
} raw_endpoint;

typedef struct raw_address {
    struct sockaddr_storage address;
    size_t size;
} raw_address;

typedef struct raw_memory { /* how the other side names the bulk memory */
    uint64_t base, key;
} raw_memory;

bool raw_endpoint_open(raw_endpoint *e, const char *provider, size_t bulk_bytes);
bool raw_endpoint_listen(raw_endpoint *e, raw_address *out);
bool raw_endpoint_accept(raw_endpoint *e);
bool raw_endpoint_connect(raw_endpoint *e, const raw_address *to);
raw_memory raw_endpoint_memory(const raw_endpoint *e);

bool raw_endpoint_receive(raw_endpoint *e); /* posts receives until as many wait as shall */
bool raw_endpoint_send(raw_endpoint *e, size_t bytes);
bool raw_endpoint_rma(raw_endpoint *e, bool writes, size_t at, size_t bytes, const raw_memory *there);
/* Polls until *count, one of the counters, reaches target. There is no time limit: a helper that stalls is killed. */
bool raw_endpoint_wait(raw_endpoint *e, const unsigned *count, unsigned target);

#endif
