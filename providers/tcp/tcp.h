/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - workarounds for defects of libfabric's tcp (docs/libfabric.md). They search for its sockets among this
 * process's descriptors, because libfabric does not expose them.
 *
 * The functions without a comment are hooks of providers/ofi: wfofi_hooks in ofi/objects.h says when they are called.
 * The locks are described there too.
 */
#ifndef WFI_TCP_H
#define WFI_TCP_H

#include "ofi/objects.h"

#define WFI_TCP_SILENT_MAX 256 /* connections watched at a time */

/* The state of a fabric: wfofi_fabric.state. */
typedef struct wfi_tcp {
    int listen_fd; /* libfabric's descriptor; -1: not found */

    wfi_list parked; /* lanes that their owners closed, but whose reads have not ended: drain.c; events_lock */
    atomic_size_t parked_count;

    /* Used only by the event thread: accept.c, silent.c. */
    bool exhausted; /* no connection can be accepted, because descriptors have run out */
    bool silent_suspected;
    uint64_t silent_due_ns;
    uint64_t silent[WFI_TCP_SILENT_MAX]; /* hashes of the silent connections that the last search found */
    size_t silent_count;
    unsigned silent_late; /* searches in a row that were late, and began anew */
    size_t silent_ended;  /* connections closed and not yet reported by poll_events */
} wfi_tcp;

static inline wfi_tcp *wfi_tcp_of(const wfofi_fabric *fabric)
{
    return fabric->state;
}

/* accept.c */
void wfi_tcp_listening(wfofi_fabric *fabric);
int wfi_tcp_accept_begin(wfofi_fabric *fabric);
void wfi_tcp_accept_end(wfofi_fabric *fabric, int next);

/* silent.c */
size_t wfi_tcp_events_after(wfofi_fabric *fabric, wfi_event *out, size_t room);
bool wfi_tcp_events_arm(wfofi_fabric *fabric, uint64_t *due_ns);
bool wfi_tcp_events_watch(const wfofi_fabric *fabric);
size_t wfi_tcp_silent_hang_up(wfofi_fabric *fabric); /* for closing: shuts all silent ones down, returns their number */

/* forgotten.c. Whether an accepted lane or a request that waits for its answer has this other end. events_lock held. */
bool wfi_tcp_is_known(const wfofi_fabric *fabric, const wfofi_sockaddr *peer);
/*
 * Closes the accepted sockets that libfabric has lost. False: some may be lost, but that is not certain yet: call again
 * later.
 * `all_were_read`: no connection is accepted any longer, and libfabric has read from every socket since it ended.
 */
bool wfi_tcp_lost_close(wfofi_fabric *fabric, bool all_were_read);

/* drain.c */
void wfi_tcp_created(wfofi_fabric *fabric);
bool wfi_tcp_lane_drain(wfi_lane *lane);
void wfi_tcp_polled(wfofi_fabric *fabric);
bool wfi_tcp_closing(wfofi_fabric *fabric);

/* ---- descriptors.c --------------------------------------------------------------------------------------------- */

/*
 * No state is kept between calls and no lock is taken. The owner of a found descriptor may close it at any time; the
 * callers prevent that as their own comments say (silent.c, forgotten.c, drain.c).
 */

/*
 * Finds the socket that listens on `local`, and bounds the time of a read on a socket accepted from it. -1: not
 * found.
 */
int wfi_tcp_bound_listener(const wfofi_sockaddr *local);

/* Shuts down the connection between these two ends. Returns its descriptor; -1: not found, or already dead. */
int wfi_tcp_shutdown_socket(const wfofi_sockaddr *local, const wfofi_sockaddr *peer);

bool wfi_tcp_is_caller(int fd, const wfofi_sockaddr *local); /* a connected socket with that local address */
bool wfi_tcp_is_ended(int fd);                               /* this process has shut it down, or it is dead */

/* Calls `visit` for every connected socket of this process with that local address, until `visit` returns true. */
typedef bool wfi_tcp_caller_fn(int fd, const wfofi_sockaddr *peer, void *arg);
void wfi_tcp_each_caller(const wfofi_sockaddr *local, wfi_tcp_caller_fn *visit, void *arg);

/*
 * Calls `visit` for every accepted socket with that local address that has ended, except listen_fd. A dead one has no
 * peer: NULL.
 */
void wfi_tcp_each_ended(const wfofi_sockaddr *local, int listen_fd, wfi_tcp_caller_fn *visit, void *arg);

#endif
