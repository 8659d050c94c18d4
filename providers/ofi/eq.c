/* SPDX-License-Identifier: Apache-2.0 */
/* eq.c - translates libfabric's connection events. */
#include "base/alloc.h"
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EXHAUSTED_MS 20    /* between two attempts to accept while descriptors have run out */
#define EVENT_DATA_MAX 512 /* the most that a provider passes on: 256 with tcp */

typedef union event_entry {
    struct fi_eq_cm_entry cm;
    uint8_t bytes[sizeof(struct fi_eq_cm_entry) + EVENT_DATA_MAX];
} event_entry;

static void refuse(wfofi_fabric *fabric, struct fi_info *info)
{
    fi_reject(fabric->pep, info->handle, NULL, 0);
    fi_freeinfo(info);
}

static bool on_request(wfofi_fabric *fabric, const event_entry *entry, size_t data_size, wfi_event *out)
{
    if (data_size > WFI_CONNECT_DATA_MAX) { /* not a weft peer */
        refuse(fabric, entry->cm.info);
        return false;
    }
    wfi_connect_request *request = wfi_calloc(1, sizeof *request);
    if (!request) {
        refuse(fabric, entry->cm.info);
        return false;
    }
    request->info = entry->cm.info;
    wfi_list_push_back(&fabric->requests, &request->link);
    out->kind = WFI_EVENT_REQUEST;
    out->request = request;
    out->data_size = data_size;
    memcpy(out->data, entry->cm.data, data_size);
    return true;
}

/* Changes the lane's state, unless it has that state already or is being closed. */
static bool become(wfi_lane *lane, wfofi_lane_state state)
{
    wfi_mutex_lock(&lane->lock);
    bool changes = lane->state < state;
    if (changes)
        lane->state = state;
    wfi_mutex_unlock(&lane->lock);
    return changes;
}

static void about_lane(wfi_event *out, wfi_event_kind kind, wfi_lane *lane)
{
    out->kind = kind;
    out->lane = lane;
    out->lane_user = lane->user;
}

/* libfabric 1.17 may report a broken lane before it reports the lane as connected: then it never was connected. */
static bool on_connected(const event_entry *entry, size_t data_size, wfi_event *out)
{
    wfi_lane *lane = entry->cm.fid->context;
    if (!become(lane, WFOFI_CONNECTED))
        return false;
    about_lane(out, WFI_EVENT_CONNECTED, lane);
    out->data_size = data_size < WFI_CONNECT_DATA_MAX ? data_size : WFI_CONNECT_DATA_MAX;
    memcpy(out->data, entry->cm.data, out->data_size);
    return true;
}

static bool on_closed(struct fid *fid, weft_status status, wfi_event *out)
{
    wfi_lane *lane = fid->context;
    if (!become(lane, WFOFI_BROKEN))
        return false;
    about_lane(out, WFI_EVENT_CLOSED, lane);
    out->status = status;
    return true;
}

static bool translate(wfofi_fabric *fabric, uint32_t kind, const event_entry *entry, size_t size, wfi_event *out)
{
    size_t data_size = size > sizeof entry->cm ? size - sizeof entry->cm : 0;
    switch (kind) {
    case FI_CONNREQ:
        return on_request(fabric, entry, data_size, out);
    case FI_CONNECTED:
        return on_connected(entry, data_size, out);
    case FI_SHUTDOWN:
        return on_closed(entry->cm.fid, WEFT_ERR_FABRIC, out);
    default:
        return false;
    }
}

static bool translate_error(const wfofi_fabric *fabric, const struct fi_eq_err_entry *entry, wfi_event *out)
{
    if (!entry->fid || entry->fid->fclass != FI_CLASS_EP) {
        wfofi_log(fabric, WEFT_LOG_WARN, "connection event: %s", fi_strerror(entry->err));
        return false;
    }
    wfofi_log(fabric, WEFT_LOG_DEBUG, "connection failed: %s", fi_strerror(entry->err));
    out->why = fi_strerror(entry->err);
    return on_closed(entry->fid, WEFT_ERR_UNREACHABLE, out);
}

typedef enum read_result { READ_NOTHING, READ_DROPPED, READ_EVENT } read_result;

/*
 * Clears errno: libfabric 1.17 reads errno when a socket has ended, and an old EAGAIN there would make it report the
 * socket forever.
 */
static read_result read_one(wfofi_fabric *fabric, wfi_event *out)
{
    event_entry entry;
    uint32_t kind = 0;
    bool given;
    *out = (wfi_event){0};
    int next = wfofi_accept_before(fabric);
    wfi_mutex_lock(&fabric->events_lock);
    errno = 0;
    ssize_t size = fi_eq_read(fabric->eq, &kind, &entry, sizeof entry, 0);
    if (size == -FI_EAVAIL) {
        struct fi_eq_err_entry failure = {0};
        size = fi_eq_readerr(fabric->eq, &failure, 0);
        given = size > 0 && translate_error(fabric, &failure, out);
    } else {
        given = size > 0 && translate(fabric, kind, &entry, (size_t)size, out);
    }
    wfi_mutex_unlock(&fabric->events_lock);
    wfofi_accept_after(fabric, next);
    if (size <= 0)
        return READ_NOTHING;
    return given ? READ_EVENT : READ_DROPPED;
}

static size_t read_events(wfofi_fabric *fabric, wfi_event *out, size_t room)
{
    size_t count = 0;
    while (count < room) {
        read_result result = read_one(fabric, &out[count]);
        if (result == READ_NOTHING)
            break;
        count += result == READ_EVENT;
    }
    return count;
}

/* Whether an event can be read. */
static bool has_event(wfofi_fabric *fabric)
{
    event_entry entry;
    uint32_t kind;
    int next = wfofi_accept_before(fabric);
    wfi_mutex_lock(&fabric->events_lock);
    errno = 0; /* see read_one */
    ssize_t size = fi_eq_read(fabric->eq, &kind, &entry, sizeof entry, FI_PEEK);
    wfi_mutex_unlock(&fabric->events_lock);
    wfofi_accept_after(fabric, next);
    return size > 0 || size == -FI_EAVAIL;
}

static size_t tell_of_silent(wfofi_fabric *fabric, wfi_event *out)
{
    if (!fabric->silent_ended)
        return 0;
    *out = (wfi_event){.kind = WFI_EVENT_SILENT, .count = fabric->silent_ended};
    fabric->silent_ended = 0;
    return 1;
}

size_t wfofi_poll_events(wfi_fabric *base, wfi_event *out, size_t room)
{
    wfofi_fabric *fabric = wfofi_of(base);
    size_t count = read_events(fabric, out, room);
    if (fabric->provider->sockets)
        wfofi_silent_look(fabric);
    if (count < room)
        count += tell_of_silent(fabric, &out[count]);
    return count;
}

static void make_earlier(uint64_t *due_ns, uint64_t time_ns)
{
    *due_ns = time_ns < *due_ns ? time_ns : *due_ns;
}

/* Looks for events after fi_trywait: libfabric 2.1 loses the wake-up of an event that came during that call. */
bool wfofi_events_arm(wfi_fabric *base, uint64_t *due_ns)
{
    wfofi_fabric *fabric = wfofi_of(base);
    struct fid *queue = &fabric->eq->fid;
    int next = wfofi_accept_before(fabric);
    int ret = fi_trywait(fabric->fabric, &queue, 1);
    wfofi_accept_after(fabric, next);
    bool armed = ret == FI_SUCCESS && !has_event(fabric);
    if (fabric->exhausted)
        make_earlier(due_ns, wfi_deadline(&wfi_clock_real, EXHAUSTED_MS));
    if (fabric->provider->sockets && fabric->silent_suspected)
        make_earlier(due_ns, fabric->silent_due_ns);
    return armed && !fabric->silent_ended;
}

/* While descriptors have run out, a pending connection keeps the queue's descriptor readable: nobody would sleep. */
int wfofi_events_fd(wfi_fabric *base)
{
    const wfofi_fabric *fabric = wfofi_of(base);
    return fabric->exhausted ? -1 : fabric->eq_fd;
}

/* For closing: nothing will answer these requests. */
static void drop_requests(wfofi_fabric *fabric)
{
    wfi_event event;
    while (read_one(fabric, &event) != READ_NOTHING)
        ;
    while (!wfi_list_empty(&fabric->requests))
        wfofi_reject(&fabric->base, wfi_container_of(fabric->requests.next, wfi_connect_request, link));
}

/*
 * libfabric 1.17 leaks sockets that it has accepted and not announced, with their records. So no more connections are
 * accepted, and libfabric is called until it has read the end of those that were: one round may end several, but not
 * any number.
 */
void wfofi_events_end(wfofi_fabric *fabric)
{
    drop_requests(fabric);
    if (!fabric->provider->sockets)
        return;
    if (fabric->listen_fd >= 0)
        (void)shutdown(fabric->listen_fd, SHUT_RDWR);
    drop_requests(fabric);
    for (size_t rounds = wfofi_silent_hang_up(fabric) + 1; rounds; rounds--)
        drop_requests(fabric);
    (void)wfofi_lost_close(fabric, true);
}
