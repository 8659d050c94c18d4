/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - opens and closes the fabric, and its table of functions. */
#include "host/host.h"

#include "base/alloc.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/nosignal.h"
#include "topo/machine.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 4096

static const wfi_fabric_limits limits = {
    .message_max = WFI_HOST_MESSAGE_MAX,
    .rma_max = WFI_HOST_RMA_MAX,
    .inject_max = WFI_HOST_INJECT_MAX,
    .keys_per_transfer = true,
    .reports_memory = true,
};

static wfi_host *create(const wfi_fabric_options *options)
{
    wfi_host *host = wfi_calloc(1, sizeof(*host));
    if (!host)
        return NULL;
    host->base.ops = &wfi_fabric_host;
    host->rank = options->rank;
    host->doorbell.fd = host->bell_fd = host->doorbell_page_fd = host->listen_fd = host->epoll_fd = host->wake_fd = -1;
    wfi_mutex_init(&host->slots_lock);
    wfi_mutex_init(&host->events_lock);
    wfi_mutex_init(&host->regions_lock);
    wfi_map_init(&host->sources);
    wfi_list_init(&host->lanes);
    wfi_list_init(&host->requests);
    wfi_list_init(&host->half_open);
    wfi_list_init(&host->notices);
    return host;
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Frees the parts that exist: open may have failed at any point. */
static void take_apart(wfi_host *host)
{
    close_if_open(host->listen_fd);
    close_if_open(host->epoll_fd);
    close_if_open(host->wake_fd);
    close_if_open(host->doorbell_page_fd);
    close_if_open(host->bell_fd);
    wfi_host_doorbell_close(&host->doorbell);
    wfi_host_regions_close(host);
    wfi_map_fini(&host->sources);
    wfi_mutex_fini(&host->slots_lock);
    wfi_mutex_fini(&host->events_lock);
    wfi_mutex_fini(&host->regions_lock);
    free(host->slots);
    free(host);
}

static bool watch(const wfi_host *host, int fd, uint64_t id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    return epoll_ctl(host->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Returns 0 or an errno value. */
static int open_sockets(wfi_host *host)
{
    struct sockaddr_un name;
    randombytes_buf(host->name, sizeof(host->name));
    socklen_t size = wfi_host_socket_name(host->name, &name);
    host->last_id = WFI_HOST_ID_WAKE;
    host->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    host->wake_fd = host->epoll_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    host->listen_fd = host->wake_fd < 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool listens = host->listen_fd >= 0 && bind(host->listen_fd, (struct sockaddr *)&name, size) == 0 &&
                   listen(host->listen_fd, BACKLOG) == 0 && watch(host, host->listen_fd, WFI_HOST_ID_LISTEN) &&
                   watch(host, host->wake_fd, WFI_HOST_ID_WAKE);
    return listens ? 0 : errno;
}

static weft_status fail(weft_error **error, int errnum, const char *doing)
{
    weft_status status = wfi_host_status(errnum);
    return wfi_error_fail(error, status, "fabric 'host': %s: %s%s", doing, wfi_nosignal_strerror(errnum),
                          status == WEFT_ERR_SYSTEM ? " (ulimit -n)" : "");
}

static weft_status host_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    wfi_host *host = sodium_init() < 0 ? NULL : create(options);
    if (!host)
        return fail(error, ENOMEM, "opening it");
    weft_status status = WEFT_OK;
    int errnum;
    host->machine = wfi_machine();
    host->slots = wfi_calloc(WFI_HOST_LANES_MAX, sizeof(*host->slots));
    if (!host->slots)
        status = fail(error, ENOMEM, "opening it");
    else if (!host->machine)
        status = wfi_descriptors_lack(1)
                     ? fail(error, EMFILE, "reading /proc")
                     : wfi_error_fail(error, WEFT_ERR_FABRIC,
                                      "fabric 'host': the machine cannot be identified: "
                                      "/proc/sys/kernel/random/boot_id and /proc/self/ns/net must be readable");
    else if ((errnum = wfi_host_regions_open(host)))
        status = fail(error, errnum, "the table of regions");
    else if ((errnum = wfi_host_doorbell_open(host)))
        status = fail(error, errnum, "its doorbell (memfd_create, a unix socket)");
    else if ((errnum = open_sockets(host)))
        status = fail(error, errnum, "listening on a unix socket");
    if (status == WEFT_OK)
        *out = &host->base;
    else
        take_apart(host);
    return status;
}

static void host_close(wfi_fabric *base)
{
    wfi_host *host = wfi_host_of(base);
    while (!wfi_list_empty(&host->lanes)) {
        wfi_host_log(host, WEFT_LOG_ERROR, "fabric 'host' closed with a lane open");
        wfi_host_lane_close(wfi_container_of(host->lanes.next, wfi_lane, link));
    }
    wfi_mutex_lock(&host->events_lock);
    wfi_list *const all[] = {&host->half_open, &host->requests};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        while (!wfi_list_empty(all[i]))
            wfi_host_request_free(wfi_container_of(all[i]->next, wfi_connect_request, link));
    wfi_mutex_unlock(&host->events_lock);
    take_apart(host);
}

static const wfi_fabric_limits *host_limits(const wfi_fabric *base)
{
    (void)base;
    return &limits;
}

/* It uses no network interface. */
static const char *host_iface(const wfi_fabric *base)
{
    (void)base;
    return "";
}

/* An attempt that fails is announced by an event. */
static const char *host_connect_error(const wfi_fabric *base)
{
    (void)base;
    return NULL;
}

const wfi_fabric_ops wfi_fabric_host = {
    .name = "host",
    .number = 3,
    .open = host_open,
    .close = host_close,
    .limits = host_limits,
    .address = wfi_host_address,
    .reaches = wfi_host_reaches,
    .address_text = wfi_host_address_text,
    .iface = host_iface,
    .lane_open = wfi_host_lane_open,
    .lane_take = wfi_host_lane_take,
    .connect = wfi_host_connect,
    .connect_error = host_connect_error,
    .reject = wfi_host_reject,
    .lane_close = wfi_host_lane_close,
    .is_private = wfi_host_lane_is_private,
    .post_recv = wfi_host_post_recv,
    .send = wfi_host_send,
    .inject = wfi_host_inject,
    .read = wfi_host_read,
    .pass = wfi_host_pass,
    .wake = wfi_host_wake,
    .region_open = wfi_host_region_open,
    .region_close = wfi_host_region_close,
    .poll = wfi_host_poll,
    .poll_events = wfi_host_poll_events,
    .events_arm = wfi_host_events_arm,
    .events_fd = wfi_host_events_fd,
    .wait_fd = wfi_host_wait_fd,
    .may_sleep = wfi_host_may_sleep,
};
