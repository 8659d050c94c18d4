/* SPDX-License-Identifier: Apache-2.0 */
/* net_bulk.h - for the tests of transfers: segments with known content on both sides, exposed and moved. */
#ifndef TEST_NET_BULK_H
#define TEST_NET_BULK_H

#include "net/net_host.h"

#define SEGMENTS_MAX 64

/* One side's memory: `count` segments in storages of their own. */
typedef struct bulk {
    net_host *host;
    int peer;
    size_t count;
    wfi_storage *storages[SEGMENTS_MAX];
    size_t sizes[SEGMENTS_MAX];
    wfi_exposure exposures[SEGMENTS_MAX];
    wfi_segment segments[SEGMENTS_MAX];
    wfi_transfer transfer;
    atomic_int done;
    weft_status status;
} bulk;

void bulk_create(bulk *all, net_host *host, int peer, const size_t *sizes, size_t count);
void bulk_destroy(bulk *all);
void bulk_fill(bulk *all, unsigned salt); /* content that follows from salt, segment and place */
bool bulk_is(const bulk *all, unsigned salt);
void bulk_expose(bulk *all, unsigned access);
void bulk_withdraw(bulk *all, bool quiet);
/* Moves between `local` and what `remote` has exposed; bulk_await for its end. */
weft_status bulk_begin(bulk *local, const bulk *remote, wfi_transfer_kind kind);
weft_status bulk_begin_told(bulk *local, const bulk *remote, wfi_transfer_kind kind, uint32_t told);
weft_status bulk_await(bulk *local);

/* What the two hosts of a world share: rank 0 exposes `source`, rank 1 has `target`. */
typedef struct bulk_stage {
    wfi_transfer_kind kind;
    const size_t *sizes;
    size_t count;
    bulk source, target;
    atomic_int exposed, moved;
} bulk_stage;
/* A world's body, with a bulk_stage as its user: what one exposes is moved by the other, and is right on both sides. */
void bulk_stage_body(net_host *host);

#endif
