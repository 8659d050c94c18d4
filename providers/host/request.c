/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - connections that others have opened, until a lane takes them over. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/log.h"
#include "host/host.h"
#include "mem/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HELLO_NS UINT64_C(1000000000) /* a connection without a HELLO is closed after this time */

void wfi_host_request_free(wfi_connect_request *request)
{
    wfi_host *host = request->host;
    wfi_assert_held(&host->events_lock);
    wfi_host_unwatch(host, &request->source);
    if (request->source.fd >= 0)
        close(request->source.fd);
    host->half_open_count -= request->due_ns > 0;
    wfi_list_remove(&request->link);
    wfi_list_remove(&request->asks.link);
    wfi_host_doorbell_close(&request->peer.doorbell);
    if (request->segment)
        munmap(request->segment, sizeof(*request->segment));
    free(request);
}

void wfi_host_reject(wfi_fabric *base, wfi_connect_request *request)
{
    wfi_host *host = wfi_host_of(base);
    wfi_mutex_lock(&host->events_lock);
    wfi_host_request_free(request);
    wfi_mutex_unlock(&host->events_lock);
}

static bool on_hello(wfi_connect_request *request, const wfi_host_greeting *greeting, const int *fds, size_t count)
{
    void *segment;
    if (count != 2 || greeting->kind != WFI_HOST_HELLO ||
        wfi_shm_map(fds[WFI_HOST_FD_SEGMENT], sizeof(*request->segment), &segment) != 0)
        return false;
    request->segment = segment;
    if (wfi_host_doorbell_take(fds[WFI_HOST_FD_PAGE], greeting->bell, &request->peer.doorbell) != 0)
        return false;
    wfi_host_meet(&request->peer, greeting);
    request->data_size = greeting->data_size;
    memcpy(request->data, greeting->data, greeting->data_size);
    return true;
}

/* A connection that has said HELLO becomes a request; one that has said something else is closed. */
static void first_words(wfi_connect_request *request)
{
    wfi_host *host = request->host;
    wfi_host_greeting greeting;
    int fds[WFI_HOST_FDS_MAX];
    size_t count;
    int errnum = wfi_host_greeting_receive(request->source.fd, &greeting, fds, &count);
    if (errnum == EAGAIN)
        return;
    bool asks = !errnum && on_hello(request, &greeting, fds, count);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    if (!asks) {
        host->silent++;
        wfi_host_request_free(request);
        return;
    }
    request->due_ns = 0;
    host->half_open_count--;
    wfi_list_remove(&request->link);
    wfi_list_push_back(&host->requests, &request->link);
    wfi_host_notify(host, &request->asks, WFI_EVENT_REQUEST);
}

void wfi_host_request_event(wfi_connect_request *request)
{
    wfi_assert_held(&request->host->events_lock);
    if (request->due_ns) {
        first_words(request);
        return;
    }
    if (!wfi_list_empty(&request->asks.link)) { /* its owner has not seen it */
        wfi_host_request_free(request);
        return;
    }
    wfi_host_unwatch(request->host, &request->source); /* it has closed the socket, or says too much */
    request->is_gone = true;
}

static wfi_connect_request *receive_caller(wfi_host *host, int fd, pid_t pid)
{
    wfi_connect_request *request = wfi_calloc(1, sizeof(*request));
    if (!request)
        return NULL;
    request->host = host;
    request->source = (wfi_host_source){.kind = WFI_HOST_OF_REQUEST, .fd = fd};
    request->due_ns = wfi_now(&wfi_clock_real) + HELLO_NS;
    request->peer.pid = pid;
    request->peer.doorbell.fd = -1;
    wfi_list_init(&request->asks.link);
    wfi_list_init(&request->link);
    if (!wfi_host_watch(host, &request->source)) {
        free(request);
        return NULL;
    }
    wfi_list_push_back(&host->half_open, &request->link);
    host->half_open_count++;
    return request;
}

/* A new connection. If there are more than WFI_HOST_HALF_OPEN_MAX without a HELLO, closes the oldest of them. */
static void admit(wfi_host *host, int fd)
{
    struct ucred owner;
    if (!wfi_host_is_ours(fd, &owner)) {
        wfi_log(WEFT_LOG_DEBUG,
                "host: a process of another user was refused: this fabric connects workers of one user");
        host->silent++;
        close(fd);
        return;
    }
    wfi_connect_request *request = receive_caller(host, fd, owner.pid);
    if (!request) {
        close(fd);
        return;
    }
    if (host->half_open_count > WFI_HOST_HALF_OPEN_MAX) {
        host->silent++;
        wfi_host_request_free(wfi_container_of(host->half_open.next, wfi_connect_request, link));
    }
    wfi_host_request_event(request);
}

void wfi_host_accept(wfi_host *host)
{
    int fd;
    wfi_assert_held(&host->events_lock);
    while ((fd = accept4(host->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        admit(host, fd);
    if (errno == EMFILE || errno == ENFILE)
        wfi_host_say_exhausted(host);
}
