/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - the handshake of a lane (greeting.c has its messages), and its end.
 *
 * Only connect is called by threads that do not read events. It never blocks: a unix socket is connected at once or not
 * at all, and a greeting fits its buffer.
 */
#include "host/host.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FOREIGN "the process that listens there belongs to another user"

static wfi_host_greeting greet(const wfi_lane *lane, uint8_t kind, int refusal)
{
    const wfi_host *host = lane->host;
    wfi_host_greeting greeting = {.kind = kind,
                                  .refusal = (uint16_t)refusal,
                                  .slot = lane->slot,
                                  .table = (uintptr_t)host->table,
                                  .token = atomic_load(&host->table[0].key)};
    memcpy(greeting.bell, host->bell, sizeof(greeting.bell));
    return greeting;
}

/* The lane has ended: takes the messages that were sent before, ends its operations, and reports the end once. */
static void announce(wfi_lane *lane, weft_status why, const char *text)
{
    wfi_assert_held(&lane->host->events_lock);
    wfi_mutex_lock(&lane->lock);
    if (lane->state == WFI_HOST_CONNECTED)
        wfi_host_receive(lane); /* the messages that were sent before the end */
    wfi_host_lane_break(lane);
    wfi_mutex_unlock(&lane->lock);
    wfi_host_unwatch(lane->host, &lane->source);
    if (lane->was_announced)
        return;
    lane->was_announced = true;
    lane->why = why;
    lane->why_text = text;
    wfi_host_notify(lane->host, &lane->down, WFI_EVENT_CLOSED);
}

/* ---- Connecting ------------------------------------------------------------------------------------------------ */

/* Returns 0 or an errno value. EACCES: the listener belongs to another user. */
static int call(wfi_lane *lane, const wfi_host_greeting *hello)
{
    const wfi_host *host = lane->host;
    struct sockaddr_un to;
    struct ucred owner;
    socklen_t size = wfi_host_socket_name(lane->name, &to);
    if (connect(lane->source.fd, (struct sockaddr *)&to, size) != 0)
        return errno;
    if (!wfi_host_is_ours(lane->source.fd, &owner))
        return EACCES;
    lane->peer.pid = owner.pid;
    const int fds[] = {host->doorbell_page_fd, lane->segment_fd};
    return wfi_host_greeting_send(lane->source.fd, hello, fds, 2);
}

static void dial(wfi_lane *lane, const wfi_host_greeting *hello)
{
    wfi_host *host = lane->host;
    int errnum = call(lane, hello);
    close(lane->segment_fd);
    lane->segment_fd = -1;
    if (!errnum && !wfi_host_watch(host, &lane->source))
        errnum = ENOMEM;
    if (!errnum)
        return;
    announce(lane, WEFT_ERR_UNREACHABLE, errnum == EACCES ? FOREIGN : strerrordesc_np(errnum));
    (void)eventfd_write(host->wake_fd, 1);
}

/* Answers the request. If the dialler has gone, the lane's end is announced. */
static void answer(wfi_lane *lane, const wfi_host_greeting *greeting)
{
    wfi_host *host = lane->host;
    wfi_connect_request *request = lane->request;
    lane->request = NULL;
    wfi_host_unwatch(host, &request->source);
    lane->source.fd = request->source.fd;
    request->source.fd = -1;
    bool works = !request->is_gone &&
                 wfi_host_greeting_send(lane->source.fd, greeting, &host->doorbell_page_fd, 1) == 0 &&
                 wfi_host_watch(host, &lane->source);
    wfi_host_request_free(request);
    if (works)
        return;
    announce(lane, WEFT_ERR_FABRIC, NULL);
    (void)eventfd_write(host->wake_fd, 1);
}

weft_status wfi_host_connect(wfi_lane *lane, const void *data, size_t size)
{
    wfi_host *host = lane->host;
    if (size > WFI_CONNECT_DATA_MAX)
        return WEFT_ERR_INVALID;
    bool is_dialler = lane->is_dialler;
    int refusal = is_dialler ? EAGAIN : wfi_host_probe(&lane->peer);
    wfi_host_greeting greeting = greet(lane, is_dialler ? WFI_HOST_HELLO : WFI_HOST_ANSWER, is_dialler ? 0 : refusal);
    greeting.data_size = (uint8_t)size;
    if (size)
        memcpy(greeting.data, data, size);
    wfi_mutex_lock(&host->events_lock);
    wfi_mutex_lock(&lane->lock);
    lane->refusal = refusal;
    lane->state = WFI_HOST_CONNECTING;
    wfi_mutex_unlock(&lane->lock);
    if (is_dialler)
        dial(lane, &greeting);
    else
        answer(lane, &greeting);
    wfi_mutex_unlock(&host->events_lock);
    return WEFT_OK;
}

/* ---- The events of a lane's socket ------------------------------------------------------------------------------ */

static void set_up(wfi_lane *lane, int refusal)
{
    wfi_mutex_lock(&lane->lock);
    bool changes = lane->state == WFI_HOST_CONNECTING;
    if (changes) {
        lane->state = WFI_HOST_CONNECTED;
        lane->refusal = refusal;
    }
    wfi_mutex_unlock(&lane->lock);
    if (!changes)
        return;
    wfi_host_notify(lane->host, &lane->up, WFI_EVENT_CONNECTED);
    wfi_host_doorbell_signal(&lane->host->doorbell, lane->slot); /* for messages that came before */
}

static bool on_answer(wfi_lane *lane, const wfi_host_greeting *greeting, int page_fd)
{
    wfi_host_doorbell doorbell;
    if (wfi_host_doorbell_take(page_fd, greeting->bell, &doorbell) != 0)
        return false;
    wfi_mutex_lock(&lane->lock);
    lane->peer.doorbell = doorbell;
    wfi_host_meet(&lane->peer, greeting);
    wfi_mutex_unlock(&lane->lock);
    int refusal = wfi_host_probe(&lane->peer);
    refusal = refusal ? refusal : greeting->refusal;
    const wfi_host_greeting ready = greet(lane, WFI_HOST_READY, refusal);
    if (wfi_host_greeting_send(lane->source.fd, &ready, NULL, 0) != 0)
        return false;
    lane->data_size = greeting->data_size;
    memcpy(lane->data, greeting->data, greeting->data_size);
    set_up(lane, refusal);
    return true;
}

static bool on_greeting(wfi_lane *lane, const wfi_host_greeting *greeting, int *fds, size_t count)
{
    wfi_mutex_lock(&lane->lock);
    bool expects = lane->state == WFI_HOST_CONNECTING, is_up = lane->state == WFI_HOST_CONNECTED;
    wfi_mutex_unlock(&lane->lock);
    if (is_up && greeting->kind == WFI_HOST_PASS && count == 1) {
        if (wfi_host_passed_take(lane, greeting, fds[0]))
            fds[0] = -1;
        return true;
    }
    if (!expects || greeting->kind != (lane->is_dialler ? WFI_HOST_ANSWER : WFI_HOST_READY))
        return false;
    if (lane->is_dialler)
        return count == 1 && on_answer(lane, greeting, fds[WFI_HOST_FD_PAGE]);
    set_up(lane, lane->refusal ? lane->refusal : greeting->refusal);
    return true;
}

/* Why the lane ended: an unanswered dialler was refused. */
static weft_status end_of(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    bool refused = lane->is_dialler && lane->state == WFI_HOST_CONNECTING;
    wfi_mutex_unlock(&lane->lock);
    return refused ? WEFT_ERR_UNREACHABLE : WEFT_ERR_FABRIC;
}

void wfi_host_lane_event(wfi_lane *lane)
{
    wfi_host_greeting greeting;
    int fds[WFI_HOST_FDS_MAX];
    size_t count;
    wfi_assert_held(&lane->host->events_lock);
    int errnum = wfi_host_greeting_receive(lane->source.fd, &greeting, fds, &count);
    if (errnum == EAGAIN)
        return;
    if (errnum || !on_greeting(lane, &greeting, fds, count))
        announce(lane, end_of(lane), NULL);
    for (size_t i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}
