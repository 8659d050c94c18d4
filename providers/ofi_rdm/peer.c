/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.c - the list of the endpoints to which this endpoint sends. A peer stays in libfabric's address table after its
 * last lane has closed, because the next lane often follows soon. If many are kept, the oldest unused one is removed.
 */
#include "base/alloc.h"
#include "ofi_rdm/rdm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wfrdm_peer *find(wfrdm *rdm, const uint8_t *address, size_t size)
{
    WFI_FOR_LIST (wfrdm_peer, peer, &rdm->peers, link) {
        if (peer->address_size == size && memcmp(peer->address, address, size) == 0)
            return peer;
    }
    return NULL;
}

/* Returns 0 or libfabric's error. */
static int add_address(wfrdm *rdm, wfrdm_peer *peer)
{
    uint8_t provider[WFRDM_PROVIDER_ADDRESS_MAX + 1] = {0}; /* a name ends with a NUL */
    memcpy(provider, peer->address + WFRDM_ADDRESS_HEAD, peer->address_size - WFRDM_ADDRESS_HEAD);
    int count = fi_av_insert(rdm->av, provider, 1, &peer->to, 0, NULL);
    return count == 1 && peer->to != FI_ADDR_NOTAVAIL ? 0 : count < 0 ? count : -FI_EADDRNOTAVAIL;
}

/* Adds a peer without users. */
static weft_status add_peer(wfrdm *rdm, const uint8_t *address, size_t size, wfrdm_peer **out)
{
    wfrdm_peer *peer = wfi_calloc(1, sizeof(*peer));
    if (!peer)
        return WEFT_ERR_MEMORY;
    memcpy(peer->address, address, size);
    peer->address_size = size;
    peer->to = FI_ADDR_UNSPEC;
    peer->pid_fd = -1;
    wfi_list_init(&peer->waiting);
    wfi_list_init(&peer->stalled);
    wfi_list_init(&peer->failed);
    bool has_ended = rdm->kind->is_local && !wfrdm_local_watch(rdm, peer);
    peer->is_dead = has_ended;
    int ret = has_ended ? 0 : add_address(rdm, peer);
    if (ret != 0) {
        wfrdm_log(rdm, WEFT_LOG_WARN, "%s: adding an address: %s", rdm->base.ops->name, fi_strerror(-ret));
        wfrdm_local_unwatch(rdm, peer);
        free(peer);
        return ret == -FI_ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_FABRIC;
    }
    wfi_list_push_back(&rdm->peers, &peer->link);
    rdm->peer_count++;
    *out = peer;
    return WEFT_OK;
}

weft_status wfrdm_peer_use(wfrdm *rdm, const uint8_t *address, size_t size, wfrdm_peer **out)
{
    wfi_assert_held(&rdm->lock);
    if (!wfrdm_reaches(&rdm->base, address, size))
        return WEFT_ERR_INVALID;
    wfrdm_peer *peer = find(rdm, address, size);
    weft_status status = peer ? WEFT_OK : add_peer(rdm, address, size, &peer);
    if (status != WEFT_OK)
        return status;
    peer->users++;
    *out = peer;
    return WEFT_OK;
}

/* libfabric's shm writes to the memory of a peer that is removed. If the peer is a closed endpoint of this process, its
 * memory is gone. */
static void remove_peer(wfrdm *rdm, wfrdm_peer *peer)
{
    bool is_gone = rdm->kind->is_local && peer->is_dead && peer->pid == getpid();
    if (peer->to != FI_ADDR_UNSPEC && !is_gone)
        (void)fi_av_remove(rdm->av, &peer->to, 1, 0);
    wfrdm_local_unwatch(rdm, peer);
    wfi_list_remove(&peer->link);
    rdm->peer_count--;
    free(peer);
}

static bool is_unused(const wfrdm *rdm, const wfrdm_peer *peer)
{
    return peer->users == 0 && peer->frames == 0 && wfi_list_empty(&peer->failed) &&
           !wfrdm_peer_is_unreached(rdm, peer);
}

void wfrdm_peers_tidy(wfrdm *rdm)
{
    wfi_assert_held(&rdm->lock);
    rdm->is_untidy = false;
    WFI_FOR_LIST_TAKING (wfrdm_peer, peer, next, &rdm->peers, link) {
        if (is_unused(rdm, peer) && (peer->is_dead || rdm->peer_count > WFRDM_PEERS_KEPT))
            remove_peer(rdm, peer);
    }
}

void wfrdm_peer_leave(wfrdm *rdm, wfrdm_peer *peer)
{
    wfi_assert_held(&rdm->lock);
    peer->users--;
    rdm->is_untidy = true;
}

void wfrdm_peers_close(wfrdm *rdm)
{
    while (!wfi_list_empty(&rdm->peers)) {
        wfrdm_peer *peer = wfi_container_of(rdm->peers.next, wfrdm_peer, link);
        wfrdm_local_unwatch(rdm, peer);
        wfi_list_remove(&peer->link);
        free(peer);
    }
}
