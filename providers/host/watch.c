/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - the sockets that are watched (epoll), and the notices that they lead to.
 *
 * The sockets of lanes and requests are known to epoll by a number, because another thread may close a lane whose event
 * was just read.
 */
#include "base/clock.h"
#include "host/host.h"

#include <sys/epoll.h>

#define ACCEPT_PAUSE_NS UINT64_C(20000000) /* between two attempts to accept while descriptors have run out */
#define LOG_PAUSE_NS UINT64_C(60000000000) /* between two log lines about that */

bool wfi_host_watch(wfi_host *host, wfi_host_source *source)
{
    wfi_assert_held(&host->events_lock);
    uint64_t id = ++host->last_id;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = id};
    if (wfi_map_put(&host->sources, id, source) != WEFT_OK)
        return false;
    if (epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) != 0) {
        (void)wfi_map_take(&host->sources, id);
        return false;
    }
    source->id = id;
    return true;
}

void wfi_host_unwatch(wfi_host *host, wfi_host_source *source)
{
    wfi_assert_held(&host->events_lock);
    if (!source->id)
        return;
    (void)wfi_map_take(&host->sources, source->id);
    (void)epoll_ctl(host->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    source->id = 0;
}

/* While descriptors have run out, a waiting connection would keep the descriptor for events readable. */
void wfi_host_listen(wfi_host *host, bool does)
{
    struct epoll_event event = {.events = does ? EPOLLIN : 0, .data.u64 = WFI_HOST_ID_LISTEN};
    (void)epoll_ctl(host->epoll_fd, EPOLL_CTL_MOD, host->listen_fd, &event);
    host->accepts_none = !does;
    host->accepts_none_until_ns = wfi_now(&wfi_clock_real) + ACCEPT_PAUSE_NS;
}

void wfi_host_say_exhausted(wfi_host *host)
{
    uint64_t now = wfi_now(&wfi_clock_real);
    wfi_assert_held(&host->events_lock);
    wfi_host_listen(host, false);
    if (host->logged_ns && now - host->logged_ns < LOG_PAUSE_NS)
        return;
    host->logged_ns = now;
    wfi_host_log(host, WEFT_LOG_ERROR, "out of file descriptors: this worker can neither open nor accept a connection");
}

void wfi_host_notify(wfi_host *host, wfi_host_notice *notice, wfi_event_kind kind)
{
    wfi_assert_held(&host->events_lock);
    notice->kind = kind;
    wfi_list_push_back(&host->notices, &notice->link);
}
