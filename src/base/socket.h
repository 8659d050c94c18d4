/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - sockets: listening, connecting, how long to poll; and threads that take no signals. */
#ifndef WFI_SOCKET_H
#define WFI_SOCKET_H

#include "base/clock.h"

#include <weft/status.h>

#include <pthread.h>
#include <sys/socket.h>

typedef struct wfi_endpoint { /* a resolved address */
    struct sockaddr_storage address;
    socklen_t size;
} wfi_endpoint;

/*
 * A listening, non-blocking socket on host:port. WEFT_ERR_EXISTS (the port is in use), WEFT_ERR_INVALID (no such host, or
 * not an address of this machine), WEFT_ERR_SYSTEM; with *error.
 */
weft_status wfi_listen_at(const char *host, int port, int *fd, weft_error **error);
/* Where a listening socket can be reached from this machine. WEFT_ERR_INVALID if it is none. */
weft_status wfi_listens_at(int listen_fd, wfi_endpoint *out);
int wfi_listening_port(int listen_fd); /* 0 if it is no socket of the internet */

bool wfi_endpoint_is_loopback(const wfi_endpoint *where);
/* Whether the host is a name or an address that says it: "localhost", "127.0.0.1", "::1". */
bool wfi_host_says_loopback(const char *host);
/* Whether it says so, or resolves to such addresses alone. May ask a name server; not if it says so. */
bool wfi_host_is_loopback(const char *host);

/*
 * One attempt to connect, over all addresses of the name; a non-blocking socket without delays. Gives up at the deadline.
 * Returns 0 or an errno value; a name that does not resolve (yet) is EHOSTUNREACH.
 */
int wfi_connect_to(const char *host, int port, uint64_t deadline_ns, int *fd);
int wfi_connect_endpoint(const wfi_endpoint *endpoint, uint64_t deadline_ns, int *fd);

bool wfi_is_connected_to_itself(int fd);

/* No delays; a vanished host is noticed in the end, and short losses are repaired soon. */
void wfi_tune_socket(int fd);

/* poll(2)'s time out until a deadline: rounded up, at most a minute. */
int wfi_poll_timeout(uint64_t now_ns, uint64_t deadline_ns);

/* A thread with all signals blocked. Returns 0 or an errno value. */
int wfi_start_quiet_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name);

#endif
