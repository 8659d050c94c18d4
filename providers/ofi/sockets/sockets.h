/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sockets.h - the sockets under a libfabric provider, which does not expose them: their addresses, and finding them
 * among this process's descriptors.
 *
 * Nothing here knows libfabric. No state is kept between calls and no lock is taken, so any thread may call. The
 * owner of a found descriptor may close it at any time; the callers prevent that as their own comments say (silent.c,
 * forgotten.c, drain.c).
 */
#ifndef WFOFI_SOCKETS_H
#define WFOFI_SOCKETS_H

#include "fabric.h"

#include <net/if.h>
#include <sys/socket.h>

typedef struct wfofi_sockaddr {
    struct sockaddr_storage storage;
    socklen_t size;
} wfofi_sockaddr;

/* ---- address.c ------------------------------------------------------------------------------------------------- */

/*
 * The address to listen on, with port 0: that of options->iface (a name or an address), otherwise the source of the
 * route to options->towards.
 */
weft_status wfofi_choose_address(const wfi_fabric_options *options, wfofi_sockaddr *out, weft_error **error);
void wfofi_address_set_port(wfofi_sockaddr *address, int port);
int wfofi_address_port(const wfofi_sockaddr *address);
bool wfofi_address_equal(const wfofi_sockaddr *a, const wfofi_sockaddr *b);
uint64_t wfofi_address_hash(const wfofi_sockaddr *address);

/*
 * A link-local IPv6 address (fe80::...) is valid on one link. Its scope, the interface to that link, differs between
 * hosts and is not part of the encoded address. A worker reaches the others over the interface of its own address.
 */
unsigned wfofi_address_scope(const wfofi_sockaddr *local, const char *iface);
void wfofi_address_set_scope(wfofi_sockaddr *address, unsigned scope); /* of a link-local one; no-op for others */

/* Encodes the address, in at most WFI_ADDRESS_MAX bytes. WEFT_ERR_INVALID if it is no address to connect to. */
size_t wfofi_address_encode(const wfofi_sockaddr *address, uint8_t *out);
weft_status wfofi_address_decode(const uint8_t *bytes, size_t size, wfofi_sockaddr *out);

#define WFOFI_ADDRESS_TEXT 80
void wfofi_address_text(const wfofi_sockaddr *address, char out[WFOFI_ADDRESS_TEXT]);
void wfofi_address_iface(const wfofi_sockaddr *address, char out[IF_NAMESIZE]); /* "": no interface has it */

/* ---- descriptors.c --------------------------------------------------------------------------------------------- */

/*
 * Finds the socket that listens on `local`, and bounds the time of a read on a socket accepted from it. -1: not
 * found.
 */
int wfofi_bound_listener(const wfofi_sockaddr *local);

/* Shuts down the connection between these two ends. Returns its descriptor; -1: not found, or already dead. */
int wfofi_shutdown_socket(const wfofi_sockaddr *local, const wfofi_sockaddr *peer);

bool wfofi_is_caller(int fd, const wfofi_sockaddr *local); /* a connected socket with that local address */
bool wfofi_is_ended(int fd);                               /* this process has shut it down, or it is dead */

/* Calls `visit` for every connected socket of this process with that local address, until `visit` returns true. */
typedef bool wfofi_caller_fn(int fd, const wfofi_sockaddr *peer, void *arg);
void wfofi_each_caller(const wfofi_sockaddr *local, wfofi_caller_fn *visit, void *arg);

/*
 * Calls `visit` for every accepted socket with that local address that has ended, except listen_fd. A dead one has no
 * peer: NULL.
 */
void wfofi_each_ended(const wfofi_sockaddr *local, int listen_fd, wfofi_caller_fn *visit, void *arg);

#endif
