/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.c - descriptors that workers pass to each other over a lane's socket, and the wake-up of a peer.
 *
 * A descriptor is lost if the lane ends before the peer has read it. The layers above expect that.
 */
#include "host/host.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PASSED_MAX 16 /* of one lane, not reported yet */

static bool is_connected(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    bool connected = lane->state == WFI_HOST_CONNECTED;
    wfi_mutex_unlock(&lane->lock);
    return connected;
}

weft_status wfi_host_pass(wfi_lane *lane, int fd, const void *data, size_t size)
{
    wfi_host_greeting greeting = {.kind = WFI_HOST_PASS, .data_size = (uint8_t)size};
    if (size > sizeof(greeting.data))
        return WEFT_ERR_INVALID;
    if (!is_connected(lane))
        return WEFT_ERR_UNREACHABLE;
    memcpy(greeting.data, data, size);
    int errnum = wfi_host_greeting_send(lane->source.fd, &greeting, &fd, 1);
    return !errnum ? WEFT_OK : errnum == EAGAIN ? WEFT_ERR_AGAIN : WEFT_ERR_UNREACHABLE;
}

void wfi_host_wake(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    if (lane->state == WFI_HOST_CONNECTED)
        wfi_host_doorbell_wake(&lane->peer.doorbell);
    wfi_mutex_unlock(&lane->lock);
}

bool wfi_host_passed_take(wfi_lane *lane, const wfi_host_greeting *greeting, int fd)
{
    wfi_assert_held(&lane->host->events_lock);
    wfi_host_passed *passed = lane->passed_count < PASSED_MAX ? wfi_calloc(1, sizeof(*passed)) : NULL;
    if (!passed)
        return false;
    passed->lane = lane;
    passed->fd = fd;
    passed->size = greeting->data_size;
    memcpy(passed->data, greeting->data, greeting->data_size);
    wfi_list_init(&passed->notice.link);
    wfi_list_init(&passed->link);
    wfi_list_push_back(&lane->passed, &passed->link);
    lane->passed_count++;
    wfi_host_notify(lane->host, &passed->notice, WFI_EVENT_PASSED);
    return true;
}

static void free_passed(wfi_host_passed *passed)
{
    wfi_list_remove(&passed->notice.link);
    wfi_list_remove(&passed->link);
    passed->lane->passed_count--;
    free(passed);
}

void wfi_host_passed_report(wfi_host_passed *passed, wfi_event *out)
{
    *out = (wfi_event){.kind = WFI_EVENT_PASSED,
                       .lane = passed->lane,
                       .lane_user = passed->lane->user,
                       .fd = passed->fd,
                       .data_size = passed->size};
    memcpy(out->data, passed->data, passed->size);
    free_passed(passed);
}

void wfi_host_passed_drop(wfi_lane *lane)
{
    wfi_assert_held(&lane->host->events_lock);
    while (!wfi_list_empty(&lane->passed)) {
        wfi_host_passed *passed = wfi_container_of(lane->passed.next, wfi_host_passed, link);
        close(passed->fd);
        free_passed(passed);
    }
}
