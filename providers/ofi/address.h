/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h - socket addresses: which of this machine's to listen on, their encoding, their text.
 *
 * Nothing here knows libfabric. No state is kept between calls and no lock is taken, so any thread may call.
 */
#ifndef WFOFI_ADDRESS_H
#define WFOFI_ADDRESS_H

#include "fabric.h"

#include <net/if.h>
#include <sys/socket.h>

typedef struct wfofi_sockaddr {
    struct sockaddr_storage storage;
    socklen_t size;
} wfofi_sockaddr;

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

/* encode: writes at most WFI_ADDRESS_MAX bytes, and returns their number. decode: returns WEFT_ERR_INVALID if the bytes
 * are malformed, the wildcard address, or have port 0. */
size_t wfofi_address_encode(const wfofi_sockaddr *address, uint8_t *out);
weft_status wfofi_address_decode(const uint8_t *bytes, size_t size, wfofi_sockaddr *out);

#define WFOFI_ADDRESS_TEXT 80
void wfofi_address_text(const wfofi_sockaddr *address, char out[WFOFI_ADDRESS_TEXT]);
void wfofi_address_iface(const wfofi_sockaddr *address, char out[IF_NAMESIZE]); /* "": no interface has it */

#endif
