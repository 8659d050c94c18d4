/* SPDX-License-Identifier: Apache-2.0 */
/* eq.c - translates libfabric's connection events. */
#include "base/alloc.h"
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_DATA_MAX 512 /* bytes of private data that a provider passes on, at most; tcp: 256 */

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
    wfi_connect_request *request = wfi_calloc(1, sizeof(*request));
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

/* libfabric 1.17 may report a lane as broken before it reports the lane as connected. The second event is dropped. */
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

static bool on_closed(const struct fid *fid, weft_status status, wfi_event *out)
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
    size_t data_size = size > sizeof(entry->cm) ? size - sizeof(entry->cm) : 0;
    switch (kind) {
    case FI_CONNREQ:
        return on_request(fabric, entry, data_size, out);
    case FI_CONNECTED:
        return entry->cm.fid != fabric->closed && on_connected(entry, data_size, out);
    case FI_SHUTDOWN:
        return entry->cm.fid != fabric->closed && on_closed(entry->cm.fid, WEFT_ERR_FABRIC, out);
    default:
        return false;
    }
}

static bool translate_error(const wfofi_fabric *fabric, const struct fi_eq_err_entry *entry, wfi_event *out)
{
    if (!entry->fid || entry->fid == &fabric->eq->fid || entry->fid == &fabric->pep->fid) {
        wfofi_log(fabric, WEFT_LOG_WARN, "connection event: %s", fi_strerror(entry->err));
        return false;
    }
    wfofi_log(fabric, WEFT_LOG_DEBUG, "connection failed: %s", fi_strerror(entry->err));
    out->why = fi_strerror(entry->err);
    return on_closed(entry->fid, WEFT_ERR_UNREACHABLE, out);
}

static int accept_begin(wfofi_fabric *fabric)
{
    return fabric->hooks->accept_begin ? fabric->hooks->accept_begin(fabric) : 0;
}

static void accept_end(wfofi_fabric *fabric, int begun)
{
    if (fabric->hooks->accept_end)
        fabric->hooks->accept_end(fabric, begun);
}

typedef enum read_result { READ_NOTHING, READ_DROPPED, READ_EVENT } read_result;

/*
 * Clears errno: libfabric 1.17 reads errno when a socket has ended, and an old EAGAIN there would make it report the
 * socket forever.
 */
static read_result read_locked(wfofi_fabric *fabric, wfi_event *out)
{
    event_entry entry;
    uint32_t kind = 0;
    bool given;
    wfi_assert_held(&fabric->events_lock);
    *out = (wfi_event){0};
    errno = 0;
    ssize_t size = fi_eq_read(fabric->eq, &kind, &entry, sizeof(entry), 0);
    if (size == -FI_EAVAIL) {
        struct fi_eq_err_entry failure = {0};
        size = fi_eq_readerr(fabric->eq, &failure, 0);
        given = size > 0 && translate_error(fabric, &failure, out);
    } else {
        given = size > 0 && translate(fabric, kind, &entry, (size_t)size, out);
    }
    if (size <= 0)
        return READ_NOTHING;
    return given ? READ_EVENT : READ_DROPPED;
}

static read_result read_one(wfofi_fabric *fabric, wfi_event *out)
{
    int begun = accept_begin(fabric);
    wfi_mutex_lock(&fabric->events_lock);
    read_result result = read_locked(fabric, out);
    wfi_mutex_unlock(&fabric->events_lock);
    accept_end(fabric, begun);
    return result;
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

/* ---- Events that were read ahead --------------------------------------------------------------------------------- */

struct wfofi_ahead {
    wfi_list link;
    wfi_event event;
};

static void ahead_free(wfofi_fabric *fabric, wfofi_ahead *ahead)
{
    wfi_list_remove(&ahead->link);
    free(fabric->ahead_spare);
    fabric->ahead_spare = ahead;
}

/* Reads one event, and keeps it for poll_events. If memory is out, it reads none. */
static read_result read_ahead(wfofi_fabric *fabric)
{
    wfofi_ahead *ahead = fabric->ahead_spare ? fabric->ahead_spare : wfi_calloc(1, sizeof(*ahead));
    if (!ahead)
        return READ_NOTHING;
    fabric->ahead_spare = NULL;
    wfi_list_init(&ahead->link);
    read_result result = read_locked(fabric, &ahead->event);
    if (result == READ_EVENT)
        wfi_list_push_back(&fabric->ahead, &ahead->link);
    else
        ahead_free(fabric, ahead);
    return result;
}

/* Whether there is an event. Does not use FI_PEEK: on verbs, a peeked event could outlive its endpoint (objects.h). */
static bool has_event(wfofi_fabric *fabric)
{
    int begun = accept_begin(fabric);
    wfi_mutex_lock(&fabric->events_lock);
    read_result result = wfi_list_empty(&fabric->ahead) ? READ_DROPPED : READ_EVENT;
    while (result == READ_DROPPED)
        result = read_ahead(fabric);
    wfi_mutex_unlock(&fabric->events_lock);
    accept_end(fabric, begun);
    return result == READ_EVENT;
}

static size_t take_ahead(wfofi_fabric *fabric, wfi_event *out, size_t room)
{
    size_t count = 0;
    wfi_mutex_lock(&fabric->events_lock);
    while (count < room && !wfi_list_empty(&fabric->ahead)) {
        wfofi_ahead *ahead = wfi_container_of(fabric->ahead.next, wfofi_ahead, link);
        out[count++] = ahead->event;
        ahead_free(fabric, ahead);
    }
    wfi_mutex_unlock(&fabric->events_lock);
    return count;
}

void wfofi_events_forget(const wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    wfi_mutex_lock(&fabric->events_lock);
    for (wfi_list *at = fabric->ahead.next; at != &fabric->ahead;) {
        wfofi_ahead *ahead = wfi_container_of(at, wfofi_ahead, link);
        at = at->next;
        if (ahead->event.lane == lane)
            ahead_free(fabric, ahead);
    }
    wfi_mutex_unlock(&fabric->events_lock);
}

void wfofi_events_closed(wfofi_fabric *fabric, const struct fid *closed)
{
    struct fid *queue = &fabric->eq->fid;
    struct fi_eq_cm_entry nothing = {0};
    wfi_assert_held(&fabric->events_lock);
    if (!fabric->provider->events_outlive)
        return;
    fabric->closed = closed;
    bool kept = false;
    read_result result = READ_DROPPED;
    while (result != READ_NOTHING && fi_trywait(fabric->fabric, &queue, 1) == -FI_EAGAIN) {
        result = read_ahead(fabric);
        kept = kept || result == READ_EVENT;
    }
    fabric->closed = NULL;
    if (kept) /* wakes the thread that waits for events; translate drops the event that does so */
        (void)fi_eq_write(fabric->eq, FI_NOTIFY, &nothing, sizeof(nothing), 0);
}

void wfofi_events_fini(wfofi_fabric *fabric)
{
    for (wfi_list *node; (node = wfi_list_pop_front(&fabric->ahead));)
        free(wfi_container_of(node, wfofi_ahead, link));
    free(fabric->ahead_spare);
}

/* ---- For poll_events --------------------------------------------------------------------------------------------- */

size_t wfofi_poll_events(wfi_fabric *base, wfi_event *out, size_t room)
{
    wfofi_fabric *fabric = wfofi_of(base);
    size_t count = take_ahead(fabric, out, room);
    count += read_events(fabric, &out[count], room - count);
    if (fabric->hooks->events_after)
        count += fabric->hooks->events_after(fabric, &out[count], room - count);
    return count;
}

/* Looks for events after fi_trywait: libfabric 2.1 loses the wake-up of an event that came during that call. */
bool wfofi_events_arm(wfi_fabric *base, uint64_t *due_ns)
{
    wfofi_fabric *fabric = wfofi_of(base);
    struct fid *queue = &fabric->eq->fid;
    int begun = accept_begin(fabric);
    int ret = fi_trywait(fabric->fabric, &queue, 1);
    accept_end(fabric, begun);
    bool armed = ret == FI_SUCCESS && !has_event(fabric);
    return (!fabric->hooks->events_arm || fabric->hooks->events_arm(fabric, due_ns)) && armed;
}

int wfofi_events_fd(wfi_fabric *base)
{
    const wfofi_fabric *fabric = wfofi_of(base);
    return !fabric->hooks->events_watch || fabric->hooks->events_watch(fabric) ? fabric->eq_fd : -1;
}

void wfofi_events_drop(wfofi_fabric *fabric)
{
    wfi_event event;
    while (read_one(fabric, &event) != READ_NOTHING)
        ;
}
