/* SPDX-License-Identifier: Apache-2.0 */
/* net_bulk.c - see net_bulk.h. */
#include "net/net_bulk.h"

#include <stdio.h>

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

void bulk_create(bulk *all, net_host *host, int peer, const size_t *sizes, size_t count)
{
    memset(all, 0, sizeof(*all));
    all->host = host;
    all->peer = peer;
    all->count = count;
    for (size_t i = 0; i < count; i++) {
        all->sizes[i] = sizes[i];
        must(!wfi_storage_create(WFI_MEMORY_HOST, 0, sizes[i], &all->storages[i]), "no storage");
    }
}

void bulk_destroy(bulk *all)
{
    for (size_t i = 0; i < all->count; i++)
        wfi_storage_unref(all->storages[i]);
}

#define BLOCK 256
#define RAMP_4(x) (x), (x) + 1, (x) + 2, (x) + 3
#define RAMP_16(x) RAMP_4(x), RAMP_4((x) + 4), RAMP_4((x) + 8), RAMP_4((x) + 12)
#define RAMP_64(x) RAMP_16(x), RAMP_16((x) + 16), RAMP_16((x) + 32), RAMP_16((x) + 48)
#define RAMP RAMP_64(0), RAMP_64(64), RAMP_64(128), RAMP_64(192)

/* What a segment has from `at`, a multiple of BLOCK, on: bytes that count up from one that differs from block to
 * block. By the block, because under sanitizers a loop over single bytes takes a second for 20 MB. */
static const uint8_t *content(unsigned salt, size_t segment, size_t at)
{
    static const uint8_t ramp[2 * BLOCK] = {RAMP, RAMP};
    return ramp + (uint8_t)(salt + segment * 13 + (at >> 8) * 3 + (at >> 20) * 5);
}

static size_t block_at(const bulk *all, size_t segment, size_t at)
{
    size_t left = all->sizes[segment] - at;
    return left < BLOCK ? left : BLOCK;
}

void bulk_fill(bulk *all, unsigned salt)
{
    for (size_t i = 0; i < all->count; i++) {
        uint8_t *bytes = wfi_storage_data(all->storages[i]);
        for (size_t at = 0; at < all->sizes[i]; at += BLOCK)
            memcpy(bytes + at, content(salt, i, at), block_at(all, i, at));
    }
}

bool bulk_is(const bulk *all, unsigned salt)
{
    for (size_t i = 0; i < all->count; i++) {
        const uint8_t *bytes = wfi_storage_data(all->storages[i]);
        for (size_t at = 0; at < all->sizes[i]; at += BLOCK) {
            if (memcmp(bytes + at, content(salt, i, at), block_at(all, i, at)) != 0)
                return false;
        }
    }
    return true;
}

void bulk_expose(bulk *all, unsigned access)
{
    wfi_net *net = all->host->net;
    wfi_prepared prepared = {0};
    wfi_net_lock(net);
    wfi_prepared_begin(&prepared, host_peer(all->host, all->peer));
    for (size_t i = 0; i < all->count; i++)
        wfi_prepared_want(&prepared, all->storages[i], access);
    wfi_net_unlock(net);
    must(!wfi_prepared_open(&prepared), "could not register");
    wfi_net_lock(net);
    for (size_t i = 0; i < all->count; i++)
        must(!wfi_peer_expose(host_peer(all->host, all->peer), all->storages[i], wfi_storage_data(all->storages[i]),
                              all->sizes[i], access, &all->exposures[i]),
             "could not expose");
    wfi_prepared_put(&prepared);
    wfi_net_unlock(net);
    wfi_prepared_fini(&prepared);
}

void bulk_withdraw(bulk *all, bool quiet)
{
    wfi_net *net = all->host->net;
    wfi_net_lock(net);
    wfi_peer_withdraw(host_peer(all->host, all->peer), all->exposures, all->count, quiet);
    wfi_net_unlock(net);
}

static void transfer_done(wfi_transfer *transfer, weft_status status)
{
    bulk *local = wfi_container_of(transfer, bulk, transfer);
    must(!atomic_load(&local->done), "done twice");
    local->status = status;
    atomic_store(&local->done, 1);
}

static const wfi_transfer_ops transfer_done_ops = {.chunk = wfi_transfer_ignore_chunk, .done = transfer_done};

weft_status bulk_begin(bulk *local, const bulk *remote, wfi_transfer_kind kind)
{
    return bulk_begin_told(local, remote, kind, 0);
}

weft_status bulk_begin_told(bulk *local, const bulk *remote, wfi_transfer_kind kind, uint32_t told)
{
    wfi_net *net = local->host->net;
    for (size_t i = 0; i < local->count; i++)
        local->segments[i] = (wfi_segment){.local = wfi_storage_data(local->storages[i]),
                                           .storage = local->storages[i],
                                           .size = local->sizes[i],
                                           .remote = remote->exposures[i].remote};
    local->transfer = (wfi_transfer){.kind = kind,
                                     .segments = local->segments,
                                     .segment_count = local->count,
                                     .bulk_generation = told,
                                     .ops = &transfer_done_ops};
    atomic_store(&local->done, 0);
    wfi_net_lock(net);
    weft_status status = wfi_peer_transfer(host_peer(local->host, local->peer), &local->transfer);
    wfi_net_unlock(net);
    return status;
}

weft_status bulk_await(bulk *local)
{
    host_until(local->host, &local->done, 1);
    return local->status;
}

void bulk_stage_body(net_host *host)
{
    bulk_stage *s = host->world->user;
    bool exposes = host->rank == 0, pull = s->kind == WFI_PULL;
    bulk *mine = exposes ? &s->source : &s->target;
    bulk_create(mine, host, 1 - host->rank, s->sizes, s->count);
    bulk_fill(mine, exposes == pull ? 3 : 0);
    if (exposes) {
        bulk_expose(mine, pull ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
        atomic_store(&s->exposed, 1);
        host_until(host, &s->moved, 1);
        bulk_withdraw(mine, true);
    } else {
        host_until(host, &s->exposed, 1);
        assert_int_equal(bulk_begin(mine, &s->source, s->kind), WEFT_OK);
        assert_int_equal(bulk_await(mine), WEFT_OK);
        atomic_store(&s->moved, 1);
    }
    assert_true(bulk_is(mine, 3));
    bulk_destroy(mine);
    host_meet(host, &host->world->finished);
}
