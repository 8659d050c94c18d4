/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - makes and closes lanes. */
#include "base/alloc.h"
#include "host/host.h"
#include "mem/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Slots ----------------------------------------------------------------------------------------------------- */

static bool take_slot(wfi_lane *lane)
{
    wfi_host *host = lane->host;
    uint32_t slot = 0;
    wfi_mutex_lock(&host->slots_lock);
    while (slot < WFI_HOST_LANES_MAX && host->slots[slot])
        slot++;
    if (slot < WFI_HOST_LANES_MAX) {
        lane->slot = slot;
        host->slots[slot] = lane;
        if (atomic_load(&host->words) < slot / 64 + 1)
            atomic_store(&host->words, slot / 64 + 1);
    }
    wfi_mutex_unlock(&host->slots_lock);
    return slot < WFI_HOST_LANES_MAX;
}

static void give_slot(const wfi_lane *lane)
{
    wfi_mutex_lock(&lane->host->slots_lock);
    lane->host->slots[lane->slot] = NULL;
    wfi_mutex_unlock(&lane->host->slots_lock);
}

/* ---- Making ---------------------------------------------------------------------------------------------------- */

static wfi_lane *create(wfi_host *host, void *user, bool is_dialler)
{
    wfi_lane *lane = wfi_calloc(1, sizeof(*lane));
    if (!lane)
        return NULL;
    lane->host = host;
    lane->user = user;
    lane->is_dialler = is_dialler;
    lane->source = (wfi_host_source){.kind = WFI_HOST_OF_LANE, .fd = -1};
    lane->segment_fd = lane->peer.doorbell.fd = -1;
    lane->refusal = EAGAIN;
    wfi_list_init(&lane->link);
    wfi_list_init(&lane->up.link);
    wfi_list_init(&lane->down.link);
    wfi_list_init(&lane->passed);
    wfi_list_init(&lane->receives);
    wfi_list_init(&lane->sends);
    wfi_list_init(&lane->reads);
    wfi_mutex_init(&lane->lock);
    if (!take_slot(lane)) {
        wfi_host_log(host, WEFT_LOG_WARN, "host: all %d lanes of this worker are in use", WFI_HOST_LANES_MAX);
        wfi_mutex_fini(&lane->lock);
        free(lane);
        return NULL;
    }
    wfi_mutex_lock(&host->events_lock);
    wfi_list_push_back(&host->lanes, &lane->link);
    wfi_mutex_unlock(&host->events_lock);
    return lane;
}

weft_status wfi_host_lane_open(wfi_fabric *base, const uint8_t *address, size_t size, void *user, wfi_lane **out)
{
    wfi_host *host = wfi_host_of(base);
    if (!wfi_host_reaches(base, address, size))
        return WEFT_ERR_INVALID;
    wfi_lane *lane = create(host, user, true);
    if (!lane)
        return WEFT_ERR_MEMORY;
    void *segment = NULL;
    memcpy(lane->name, address + size - WFI_HOST_NAME_BYTES, WFI_HOST_NAME_BYTES);
    lane->source.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int errnum =
        lane->source.fd < 0 ? errno : wfi_shm_make("weft-lane", sizeof(*lane->segment), &lane->segment_fd, &segment);
    if (errnum) {
        wfi_host_lane_close(lane);
        return wfi_host_status(errnum);
    }
    lane->segment = segment;
    wfi_host_rings_init(lane);
    *out = lane;
    return WEFT_OK;
}

weft_status wfi_host_lane_take(wfi_fabric *base, wfi_connect_request *request, void *user, wfi_lane **out)
{
    wfi_lane *lane = create(wfi_host_of(base), user, false);
    if (!lane) {
        wfi_host_reject(base, request);
        return WEFT_ERR_MEMORY;
    }
    lane->request = request;
    lane->segment = request->segment;
    lane->peer = request->peer;
    request->segment = NULL;
    request->peer.doorbell = (wfi_host_doorbell){.fd = -1};
    wfi_host_rings_init(lane);
    *out = lane;
    return WEFT_OK;
}

bool wfi_host_lane_is_private(const wfi_lane *lane)
{
    return !lane->refusal; /* it does not change once the lane is connected */
}

/* ---- Closing --------------------------------------------------------------------------------------------------- */

void wfi_host_lane_close(wfi_lane *lane)
{
    if (!lane)
        return;
    wfi_host *host = lane->host;
    wfi_mutex_lock(&host->events_lock);
    wfi_host_unwatch(host, &lane->source);
    wfi_list_remove(&lane->link);
    wfi_list_remove(&lane->up.link);
    wfi_list_remove(&lane->down.link);
    wfi_host_passed_drop(lane);
    wfi_mutex_unlock(&host->events_lock);
    give_slot(lane);             /* from now on poll does not find the lane */
    wfi_mutex_lock(&lane->lock); /* waits until poll has left it */
    lane->state = WFI_HOST_CLOSING;
    if (lane->segment)
        atomic_store(&lane->segment->has_ended[!lane->is_dialler], 1);
    wfi_host_lane_flush(lane, WEFT_ERR_CANCELLED);
    wfi_mutex_unlock(&lane->lock);
    if (lane->source.fd >= 0) {
        shutdown(lane->source.fd, SHUT_RDWR); /* a child of fork(2) may have a copy of the descriptor */
        close(lane->source.fd);
    }
    if (lane->segment_fd >= 0)
        close(lane->segment_fd);
    wfi_host_doorbell_close(&lane->peer.doorbell);
    if (lane->segment)
        munmap(lane->segment, sizeof(*lane->segment));
    if (lane->request)
        wfi_host_reject(&host->base, lane->request);
    wfi_mutex_fini(&lane->lock);
    free(lane);
}
