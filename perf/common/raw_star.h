/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_star.h - the same floor as raw_answer.h, but of libfabric: clients, a process each, with a connected endpoint (FI_EP_MSG) of
 * the provider, and a server with one domain, one completion queue and an endpoint for each. Whoever waits sleeps on the queue's
 * descriptor, and sends have no completions: as weft does it, so the rest of a round is weft's own.
 * Every function returns 0, or -1 with a line on stderr.
 */
#ifndef PERF_RAW_STAR_H
#define PERF_RAW_STAR_H

#include <stdbool.h>
#include <stddef.h>

#define RAW_STAR_CLIENTS_MAX 64

typedef struct raw_star raw_star;

/* Forks: call it before there are threads. Requests and answers have 1 to RAW_MESSAGE_MAX bytes (raw_endpoint.h). */
int raw_star_open(const char *provider, int clients, size_t request_bytes, size_t answer_bytes, raw_star **out);
void raw_star_close(raw_star *star); /* NULL is a no-op */

/* `rounds` requests of each of the first `clients`; *us is the time of all. */
int raw_star_slice(raw_star *star, int clients, bool batched, int rounds, double *us);

#endif
