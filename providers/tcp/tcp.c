/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.c - libfabric's tcp provider: connected endpoints over sockets, everywhere.
 *
 * LATE. The first call of libfabric in a process takes 150 ms of processor time or more, because each of its providers
 * looks for its devices. An agent whose job is on one host will probably need no connection over tcp. So it opens this
 * fabric with options->late. A socket then listens at the address that is published. libfabric opens when a lane or a
 * region is opened here, or when a peer connects to the socket, and listens at the same address. The connection to the
 * socket is reset, and the peer connects again (net/channel/channel.c).
 */
#include "tcp/tcp.h"

#include "base/alloc.h"
#include "base/text/log.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static weft_status tcp_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error);

static const wfofi_provider tcp_provider = {
    .hooks = &wfi_tcp_workarounds,
    .ops = &wfi_fabric_tcp,
    .name = "tcp",
    .advice = "it is part of every libfabric (Debian: libfabric1); FI_PROVIDER in the environment must not exclude it",
    .keys_per_transfer = true,
    .signal_wakes = true,
    .injects = true,
    .progress_at_target = true,
};

const wfi_fabric_ops wfi_fabric_tcp = {
    .name = "tcp",
    .number = 1,
    .open = tcp_open,
    WFOFI_FUNCTIONS,
};

/* ---- Late -------------------------------------------------------------------------------------------------------- */

/*
 * Each tcp of libfabric since 1.17 offers these, or more. Two differ from the table above, because opening libfabric
 * takes long. The event thread opens lanes (open_blocks). Memory is registered without the agent's lock, for which its
 * keys must last (net/bulk/prepare.c).
 */
static const wfi_fabric_limits late_limits = {
    .message_max = 1 << 20,
    .rma_max = 1 << 30,
    .inject_max = WFOFI_INJECT_MAX,
    .open_blocks = true,
    .target_must_progress = true,
    .writes = true,
};

typedef struct late_fabric {
    wfi_fabric base;
    _Atomic(wfi_fabric *) libfabric; /* NULL: it is not open yet. Set once */

    /* (constant) */
    wfofi_sockaddr local; /* the published address */
    char iface[IF_NAMESIZE];
    wfi_fabric_options options;
    char *own_iface, *towards; /* what `options` points to */

    wfi_mutex lock;     /* held while libfabric opens; guards the rest */
    int listen_fd;      /* -1: libfabric listens, or the port is lost */
    weft_status failed; /* why the port is lost; WEFT_OK: it is not */
} late_fabric;

static late_fabric *late_of(const wfi_fabric *fabric)
{
    return (late_fabric *)(uintptr_t)fabric;
}

static wfi_fabric *libfabric_of(const wfi_fabric *fabric)
{
    return atomic_load_explicit(&late_of(fabric)->libfabric, memory_order_acquire);
}

/* Opens libfabric at the published address. [lock] */
static weft_status open_published(late_fabric *late)
{
    wfi_fabric_options options = late->options;
    wfi_fabric *fabric = NULL;
    weft_error *error = NULL;
    uint8_t published[WFI_ADDRESS_MAX], address[WFI_ADDRESS_MAX];
    options.port_low = options.port_high = wfofi_address_port(&late->local);
    options.port_spared = 0;
    options.held_fd = &late->listen_fd;
    weft_status status = wfofi_open(&tcp_provider, &options, &fabric, &error);
    size_t size = wfofi_address_encode(&late->local, published);
    if (!status && (wfofi_address(fabric, address) != size || memcmp(address, published, size) != 0)) {
        wfofi_close(fabric);
        status =
            wfi_error_fail(&error, WEFT_ERR_FABRIC, "the address of this machine has changed since the agent opened");
    }
    if (!status) {
        atomic_store_explicit(&late->libfabric, fabric, memory_order_release);
        options.ready(options.ready_arg); /* a thread that polls completions does not know the descriptor */
        return WEFT_OK;
    }
    bool is_taken = status == WEFT_ERR_EXISTS; /* its text would speak of WEFT_PORTS */
    wfi_log_in(&(wfi_log_context){.rank = options.rank}, WEFT_LOG_ERROR, "fabric tcp does not open: %s",
               is_taken ? "another program has taken its port meanwhile"
               : error  ? weft_error_message(error)
                        : weft_status_text(status));
    weft_error_unref(error);
    status = is_taken ? WEFT_ERR_FABRIC : status;
    wfofi_release_port(&late->listen_fd); /* resets the connections that wait there: their peers try again later */
    if (wfofi_hold_port(&options, &late->local, &late->listen_fd, NULL))
        late->failed = status;
    return status;
}

static weft_status open_now(wfi_fabric *fabric)
{
    late_fabric *late = late_of(fabric);
    if (libfabric_of(fabric))
        return WEFT_OK;
    wfi_mutex_lock(&late->lock);
    weft_status status = libfabric_of(fabric) ? WEFT_OK : late->failed ? late->failed : open_published(late);
    wfi_mutex_unlock(&late->lock);
    return status;
}

static void late_close(wfi_fabric *fabric)
{
    late_fabric *late = late_of(fabric);
    if (libfabric_of(fabric))
        wfofi_close(libfabric_of(fabric));
    wfofi_release_port(&late->listen_fd);
    wfi_mutex_fini(&late->lock);
    free(late->own_iface);
    free(late->towards);
    free(late);
}

static const wfi_fabric_limits *late_limits_of(const wfi_fabric *fabric)
{
    (void)fabric;
    return &late_limits;
}

static size_t late_address(const wfi_fabric *fabric, uint8_t *out)
{
    return wfofi_address_encode(&late_of(fabric)->local, out);
}

static const char *late_iface(const wfi_fabric *fabric)
{
    return late_of(fabric)->iface;
}

static weft_status late_lane_open(wfi_fabric *fabric, const uint8_t *address, size_t size, void *user, wfi_lane **out)
{
    weft_status status = open_now(fabric);
    return status ? status : wfofi_lane_open(libfabric_of(fabric), address, size, user, out);
}

static weft_status late_lane_take(wfi_fabric *fabric, wfi_connect_request *request, void *user, wfi_lane **out)
{
    return wfofi_lane_take(libfabric_of(fabric), request, user, out);
}

static const char *late_connect_error(const wfi_fabric *fabric)
{
    return libfabric_of(fabric) ? wfofi_connect_error(libfabric_of(fabric)) : "libfabric does not open (see the log)";
}

static void late_reject(wfi_fabric *fabric, wfi_connect_request *request)
{
    wfofi_reject(libfabric_of(fabric), request);
}

static weft_status late_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    weft_status status = open_now(fabric);
    return status ? status : wfofi_region_open(libfabric_of(fabric), memory, access, out);
}

static void late_region_close(wfi_fabric *fabric, wfi_region *region)
{
    if (region)
        wfofi_region_close(libfabric_of(fabric), region);
}

static size_t late_poll(wfi_fabric *fabric, wfi_completion *out, size_t room)
{
    return libfabric_of(fabric) ? wfofi_poll(libfabric_of(fabric), out, room) : 0;
}

/* The descriptor of the listening socket until libfabric is open. */
static int listen_fd_of(wfi_fabric *fabric)
{
    late_fabric *late = late_of(fabric);
    wfi_mutex_lock(&late->lock);
    int fd = late->listen_fd;
    wfi_mutex_unlock(&late->lock);
    return fd;
}

static size_t late_poll_events(wfi_fabric *fabric, wfi_event *out, size_t room)
{
    if (!libfabric_of(fabric)) {
        struct pollfd peers = {.fd = listen_fd_of(fabric), .events = POLLIN};
        if (peers.fd < 0 || poll(&peers, 1, 0) != 1 || open_now(fabric))
            return 0;
    }
    return wfofi_poll_events(libfabric_of(fabric), out, room);
}

static bool late_events_arm(wfi_fabric *fabric, uint64_t *due_ns)
{
    return !libfabric_of(fabric) || wfofi_events_arm(libfabric_of(fabric), due_ns);
}

static int late_events_fd(wfi_fabric *fabric)
{
    return libfabric_of(fabric) ? wfofi_events_fd(libfabric_of(fabric)) : listen_fd_of(fabric);
}

static int late_wait_fd(wfi_fabric *fabric)
{
    return libfabric_of(fabric) ? wfofi_wait_fd(libfabric_of(fabric)) : -1;
}

static bool late_may_sleep(wfi_fabric *fabric)
{
    return !libfabric_of(fabric) || wfofi_may_sleep(libfabric_of(fabric));
}

static const wfi_fabric_ops late_ops = {
    .name = "tcp",
    .number = 1,
    .open = tcp_open,
    .close = late_close,
    .limits = late_limits_of,
    .address = late_address,
    .address_text = wfofi_peer_text,
    .iface = late_iface,
    .lane_open = late_lane_open,
    .lane_take = late_lane_take,
    .connect = wfofi_connect,
    .connect_error = late_connect_error,
    .reject = late_reject,
    .lane_close = wfofi_lane_close,
    .post_recv = wfofi_post_recv,
    .send = wfofi_send,
    .inject = wfofi_inject,
    .read = wfofi_read,
    .write = wfofi_write,
    .region_open = late_region_open,
    .region_close = late_region_close,
    .poll = late_poll,
    .poll_events = late_poll_events,
    .events_arm = late_events_arm,
    .events_fd = late_events_fd,
    .wait_fd = late_wait_fd,
    .may_sleep = late_may_sleep,
};

static weft_status late_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    late_fabric *late = wfi_calloc(1, sizeof *late);
    if (!late)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
    wfofi_tune(); /* before other threads may read the environment */
    *late = (late_fabric){.base.ops = &late_ops, .options = *options, .listen_fd = -1};
    wfi_mutex_init(&late->lock);
    late->own_iface = options->iface ? strdup(options->iface) : NULL;
    late->towards = options->towards ? strdup(options->towards) : NULL;
    late->options.iface = late->own_iface;
    late->options.towards = late->towards;
    weft_status status = WEFT_OK;
    if ((options->iface && !late->own_iface) || (options->towards && !late->towards))
        status = wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
    if (!status)
        status = wfofi_choose_address(options, &late->local, error);
    if (!status)
        status = wfofi_hold_port(options, &late->local, &late->listen_fd, error);
    if (status) {
        late_close(&late->base);
        return status;
    }
    wfofi_address_iface(&late->local, late->iface);
    *out = &late->base;
    return WEFT_OK;
}

static weft_status tcp_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    return options->late ? late_open(options, out, error) : wfofi_open(&tcp_provider, options, out, error);
}
