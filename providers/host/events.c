/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - reads what the sockets have, and reports what happened to lanes and requests. */
#include "base/clock.h"
#include "host/host.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define BATCH 32

static void dispatch(wfi_host *host, uint64_t id)
{
    eventfd_t count;
    wfi_host_source *source = NULL;
    if (id == WFI_HOST_ID_LISTEN)
        wfi_host_accept(host);
    else if (id == WFI_HOST_ID_WAKE)
        (void)eventfd_read(host->wake_fd, &count);
    else
        source = wfi_map_get(&host->sources, id);
    if (source && source->kind == WFI_HOST_OF_LANE)
        wfi_host_lane_event(wfi_container_of(source, wfi_lane, source));
    else if (source)
        wfi_host_request_event(wfi_container_of(source, wfi_connect_request, source));
}

static void close_silent(wfi_host *host)
{
    uint64_t now = wfi_list_empty(&host->half_open) ? 0 : wfi_now(&wfi_clock_real);
    while (!wfi_list_empty(&host->half_open)) {
        wfi_connect_request *request = wfi_container_of(host->half_open.next, wfi_connect_request, link);
        if (request->due_ns > now)
            return;
        host->silent++;
        wfi_host_request_free(request);
    }
}

/* Handles what the sockets have, then closes silent connections: if this process was stopped, some may have spoken. */
static void absorb(wfi_host *host)
{
    struct epoll_event events[BATCH];
    int count;
    if (host->accepts_none && wfi_now(&wfi_clock_real) >= host->accepts_none_until_ns)
        wfi_host_listen(host, true);
    do {
        count = epoll_wait(host->epoll_fd, events, BATCH, 0);
        for (int i = 0; i < count; i++)
            dispatch(host, events[i].data.u64);
    } while (count == BATCH);
    close_silent(host);
}

/* ---- Reporting ------------------------------------------------------------------------------------------------- */

static void report_lane(const wfi_host_notice *notice, wfi_lane *lane, wfi_event *out)
{
    *out = (wfi_event){.kind = notice->kind, .lane = lane, .lane_user = lane->user};
    if (notice->kind == WFI_EVENT_CLOSED) {
        out->status = lane->why;
        out->why = lane->why_text;
        return;
    }
    out->why = wfi_host_refusal_text(lane->refusal);
    out->data_size = lane->data_size;
    memcpy(out->data, lane->data, lane->data_size);
}

static void report(wfi_host_notice *notice, wfi_event *out)
{
    if (notice->kind == WFI_EVENT_PASSED) {
        wfi_host_passed_report(wfi_container_of(notice, wfi_host_passed, notice), out);
        return;
    }
    if (notice->kind != WFI_EVENT_REQUEST) {
        report_lane(notice,
                    notice->kind == WFI_EVENT_CLOSED ? wfi_container_of(notice, wfi_lane, down)
                                                     : wfi_container_of(notice, wfi_lane, up),
                    out);
        return;
    }
    wfi_connect_request *request = wfi_container_of(notice, wfi_connect_request, asks);
    *out = (wfi_event){.kind = WFI_EVENT_REQUEST, .request = request, .data_size = request->data_size};
    memcpy(out->data, request->data, request->data_size);
}

size_t wfi_host_poll_events(wfi_fabric *base, wfi_event *out, size_t room)
{
    wfi_host *host = wfi_host_of(base);
    size_t count = 0;
    wfi_mutex_lock(&host->events_lock);
    absorb(host);
    for (wfi_list *node; count < room && (node = wfi_list_pop_front(&host->notices));)
        report(wfi_container_of(node, wfi_host_notice, link), &out[count++]);
    if (host->silent && count < room) {
        out[count++] = (wfi_event){.kind = WFI_EVENT_SILENT, .count = host->silent};
        host->silent = 0;
    }
    wfi_mutex_unlock(&host->events_lock);
    return count;
}

static void make_earlier(uint64_t *due_ns, uint64_t time_ns)
{
    *due_ns = time_ns < *due_ns ? time_ns : *due_ns;
}

bool wfi_host_events_arm(wfi_fabric *base, uint64_t *due_ns)
{
    wfi_host *host = wfi_host_of(base);
    wfi_mutex_lock(&host->events_lock);
    absorb(host);
    bool nothing = wfi_list_empty(&host->notices) && !host->silent;
    if (!wfi_list_empty(&host->half_open))
        make_earlier(due_ns, wfi_container_of(host->half_open.next, wfi_connect_request, link)->due_ns);
    if (host->accepts_none)
        make_earlier(due_ns, host->accepts_none_until_ns);
    wfi_mutex_unlock(&host->events_lock);
    return nothing;
}

int wfi_host_events_fd(wfi_fabric *base)
{
    return wfi_host_of(base)->epoll_fd;
}
