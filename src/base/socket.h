/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - listens, connects, and computes timeouts of poll(2). */
#ifndef WFI_SOCKET_H
#define WFI_SOCKET_H

#include "base/clock.h"
#include "base/resolve.h"

#include <weft/status.h>

#include <sys/socket.h>

typedef struct wfi_endpoint { /* a resolved address */
    struct sockaddr_storage address;
    socklen_t size;
} wfi_endpoint;

/*
 * A listening, non-blocking socket on host:port. WEFT_ERR_EXISTS (the port is in use), WEFT_ERR_INVALID (no such host,
 * or not an address of this machine), WEFT_ERR_SYSTEM; with *error.
 */
weft_status wfi_listen_at(const char *host, int port, int *fd, weft_error **error);
/* The address at which a listening socket can be reached from this machine. WEFT_ERR_INVALID if it does not listen. */
weft_status wfi_listens_at(int listen_fd, wfi_endpoint *out);
int wfi_listening_port(int listen_fd); /* 0 if it is no internet socket */

bool wfi_endpoint_is_loopback(const wfi_endpoint *where);
/* The advice if no route leads to such a host. */
#define WFI_LOOPBACK_HINT "the loopback interface is down: bring it up (ip link set lo up)"
/* Whether the host is explicitly loopback, or resolves only to loopback addresses. */
bool wfi_hostname_is_loopback(const char *host, uint64_t deadline_ns);

/*
 * Makes one attempt to connect, to all addresses of the name in turn, until the deadline. *fd is a non-blocking socket
 * with TCP_NODELAY. Returns 0 or an errno value; EHOSTUNREACH if the name does not resolve (yet), EMFILE if this
 * process is out of descriptors.
 */
int wfi_connect_to(const char *host, int port, uint64_t deadline_ns, int *fd);
int wfi_connect_endpoint(const wfi_endpoint *endpoint, uint64_t deadline_ns, int *fd);

/* This machine's address for packets to `host`, and its numeric form. False if the name does not resolve before the
 * deadline, or there is no route. Sends nothing to `host`. */
bool wfi_endpoint_towards(const char *host, uint64_t deadline_ns, wfi_endpoint *out);
bool wfi_address_towards(const char *host, uint64_t deadline_ns, char *out, size_t room);

bool wfi_socket_is_connected_to_itself(int fd);

/* Sets TCP_NODELAY, keepalives that detect a vanished host, and fast repair of short losses. */
void wfi_tune_socket(int fd);

/* The timeout for poll(2) until a deadline: rounded up, at most a minute. */
int wfi_poll_timeout(uint64_t now_ns, uint64_t deadline_ns);

#endif
