/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ofi.h - a libfabric provider with connected endpoints (FI_EP_MSG) as a wfi_fabric (fabric.h).
 *
 * It has the properties that differ between providers, and the functions that they share. providers/tcp/tcp.c is an
 * example: a description and a table of these functions.
 *
 * Threads, operations and lifetimes are those of fabric.h; the locks are described in objects.h, and libfabric's
 * errors with weft's workarounds in docs/libfabric.md.
 */
#ifndef WFOFI_OFI_H
#define WFOFI_OFI_H

#include "ofi/address.h"

typedef struct wfofi_hooks wfofi_hooks; /* objects.h */

/* The properties that differ between providers. Const; lives as long as the program. */
typedef struct wfofi_provider {
    const wfi_fabric_ops *ops;
    const wfofi_hooks *hooks; /* what the provider does beyond this folder; NULL: nothing */
    const char *name;         /* the provider's name in libfabric */
    const char *advice;       /* what to do if libfabric does not offer it */
    /* Optional: instead of `advice`, finds out why. `local`: the user's interface; NULL: none was named. */
    void (*explain)(const wfofi_sockaddr *local, char *out, size_t room);
    uint32_t protocol;       /* of the endpoints: FI_PROTO_...; 0: any */
    bool chooses_device;     /* uses the nearest device, unless the user names an interface */
    bool open_blocks;        /* creating an endpoint resolves the peer's address, which may take seconds */
    bool reserves_queues;    /* each lane reserves entries of the completion queue for lane_sends and lane_receives */
    bool signal_wakes;       /* fi_cq_signal makes the queue's descriptor readable */
    bool events_outlive;     /* fi_close leaves events of its endpoint in the queue */
    bool injects;            /* a send without a completion is cheaper, and takes unregistered memory */
    bool keys_per_transfer;  /* registration costs almost nothing */
    bool long_pays;          /* wfi_fabric_limits.long_pays */
    bool progress_at_target; /* remote reads and writes need the target to poll */
} wfofi_provider;

weft_status wfofi_open(const wfofi_provider *provider, const wfi_fabric_options *options, wfi_fabric **out,
                       weft_error **error);
void wfofi_close(wfi_fabric *fabric);
const wfi_fabric_limits *wfofi_limits(const wfi_fabric *fabric);
size_t wfofi_address(const wfi_fabric *fabric, uint8_t *out);
const char *wfofi_iface(const wfi_fabric *fabric);
void wfofi_peer_text(const uint8_t *address, size_t size, char *out, size_t room);

weft_status wfofi_lane_open(wfi_fabric *fabric, const uint8_t *address, size_t address_size, void *lane_user,
                            wfi_lane **out);
weft_status wfofi_lane_take(wfi_fabric *fabric, wfi_connect_request *request, void *lane_user, wfi_lane **out);
weft_status wfofi_connect(wfi_lane *lane, const void *data, size_t data_size);
const char *wfofi_connect_error(const wfi_fabric *fabric);
void wfofi_reject(wfi_fabric *fabric, wfi_connect_request *request);
void wfofi_lane_close(wfi_lane *lane);

weft_status wfofi_post_recv(wfi_lane *lane, wfi_fabric_op *op, const wfi_receive_buffer *buffers, size_t count);
weft_status wfofi_send(wfi_lane *lane, wfi_fabric_op *op, const wfi_iov *iov, size_t count);
weft_status wfofi_inject(wfi_lane *lane, const void *data, size_t size);
weft_status wfofi_read(wfi_lane *lane, wfi_fabric_op *op, void *local, size_t size, wfi_region *region, uint64_t remote,
                       uint64_t key);
weft_status wfofi_write(wfi_lane *lane, wfi_fabric_op *op, const void *local, size_t size, wfi_region *region,
                        uint64_t remote, uint64_t key);

weft_status wfofi_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out);
void wfofi_region_close(wfi_fabric *fabric, wfi_region *region);

size_t wfofi_poll(wfi_fabric *fabric, wfi_completion *out, size_t room);
size_t wfofi_poll_events(wfi_fabric *fabric, wfi_event *out, size_t room);
bool wfofi_events_arm(wfi_fabric *fabric, uint64_t *due_ns);
int wfofi_events_fd(wfi_fabric *fabric);
int wfofi_wait_fd(wfi_fabric *fabric);
bool wfofi_may_sleep(wfi_fabric *fabric);

/* tuning.c */
void wfofi_tune(void); /* before the first call of libfabric */

/* status.c */
weft_status wfofi_status(int ret); /* for a negative libfabric return value */
weft_status wfofi_fail(weft_error **error, int ret, const char *format, ...) WEFT_PRINTF(3, 4);
/* No port of the range was free: WEFT_ERR_EXISTS. `last` is the last address that was tried, `ret` its error. */
weft_status wfofi_no_port(const wfi_fabric_options *options, const char *last, int ret, weft_error **error);

/* The functions that all providers share, for their tables. */
#define WFOFI_FUNCTIONS                                                                                                \
    .close = wfofi_close, .limits = wfofi_limits, .address = wfofi_address, .address_text = wfofi_peer_text,           \
    .iface = wfofi_iface, .lane_open = wfofi_lane_open, .lane_take = wfofi_lane_take, .connect = wfofi_connect,        \
    .connect_error = wfofi_connect_error, .reject = wfofi_reject, .lane_close = wfofi_lane_close,                      \
    .post_recv = wfofi_post_recv, .send = wfofi_send, .inject = wfofi_inject, .read = wfofi_read,                      \
    .write = wfofi_write, .region_open = wfofi_region_open, .region_close = wfofi_region_close, .poll = wfofi_poll,    \
    .poll_events = wfofi_poll_events, .events_arm = wfofi_events_arm, .events_fd = wfofi_events_fd,                    \
    .wait_fd = wfofi_wait_fd, .may_sleep = wfofi_may_sleep

#endif
