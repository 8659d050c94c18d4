/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h - connects lanes and accepts requests where a test posts no receives before; waits for events. */
#ifndef TEST_LANES_H
#define TEST_LANES_H

#include "fabric.h"

#include "base/clock.h"
#include "base/socket.h"

#include <poll.h>

static inline weft_status lanes_begin(wfi_fabric *fabric, weft_status made, const void *data, size_t size,
                                      wfi_lane **lane)
{
    weft_status status = made ? made : fabric->ops->connect(*lane, data, size);
    if (!made && status)
        fabric->ops->lane_close(*lane);
    if (status)
        *lane = NULL;
    return status;
}

static inline weft_status lanes_connect(wfi_fabric *fabric, const uint8_t *address, size_t address_size,
                                        const void *data, size_t size, void *user, wfi_lane **lane)
{
    return lanes_begin(fabric, fabric->ops->lane_open(fabric, address, address_size, user, lane), data, size, lane);
}

static inline weft_status lanes_accept(wfi_fabric *fabric, wfi_connect_request *request, const void *data, size_t size,
                                       void *user, wfi_lane **lane)
{
    return lanes_begin(fabric, fabric->ops->lane_take(fabric, request, user, lane), data, size, lane);
}

/* Waits for one event, up to timeout_ms or until wake_fd (-1: none) is readable. Returns 1, or 0 without an event. */
static inline size_t lanes_await_event(wfi_fabric *fabric, wfi_event *event, int timeout_ms, int wake_fd)
{
    const uint64_t until_ns = wfi_deadline(&wfi_clock_real, timeout_ms);
    for (bool woken = false;;) {
        uint64_t due_ns = until_ns, now_ns = wfi_now(&wfi_clock_real);
        if (fabric->ops->poll_events(fabric, event, 1))
            return 1;
        if (woken || now_ns >= until_ns)
            return 0;
        if (!fabric->ops->events_arm(fabric, &due_ns))
            continue;
        struct pollfd fds[] = {{.fd = fabric->ops->events_fd(fabric), .events = POLLIN},
                               {.fd = wake_fd, .events = POLLIN}};
        (void)poll(fds, 2, wfi_poll_timeout(now_ns, due_ns));
        woken = fds[1].revents;
    }
}

#endif
