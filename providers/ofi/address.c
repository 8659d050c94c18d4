/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - which of the machine's addresses to use, and its encoding.
 *
 * The encoding of an address: one byte 4 or 6, the port (2 bytes, big-endian), then 4 or 16 bytes.
 */
#include "ofi/address.h"

#include "base/descriptors.h"
#include "base/error.h"
#include "base/map.h"
#include "base/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

static struct sockaddr_in *v4_of(const wfofi_sockaddr *address)
{
    return (struct sockaddr_in *)(uintptr_t)&address->storage;
}

static struct sockaddr_in6 *v6_of(const wfofi_sockaddr *address)
{
    return (struct sockaddr_in6 *)(uintptr_t)&address->storage;
}

static void address_set(wfofi_sockaddr *out, const struct sockaddr *from, socklen_t size)
{
    memset(out, 0, sizeof(*out));
    memcpy(&out->storage, from, size);
    out->size = size;
}

static bool is_any(const wfofi_sockaddr *address)
{
    if (address->storage.ss_family == AF_INET)
        return v4_of(address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&v6_of(address)->sin6_addr);
}

void wfofi_address_set_port(wfofi_sockaddr *address, int port)
{
    if (address->storage.ss_family == AF_INET)
        v4_of(address)->sin_port = htons((uint16_t)port);
    else
        v6_of(address)->sin6_port = htons((uint16_t)port);
}

int wfofi_address_port(const wfofi_sockaddr *address)
{
    return ntohs(address->storage.ss_family == AF_INET ? v4_of(address)->sin_port : v6_of(address)->sin6_port);
}

size_t wfofi_address_encode(const wfofi_sockaddr *address, uint8_t *out)
{
    bool v4 = address->storage.ss_family == AF_INET;
    int port = wfofi_address_port(address);
    out[0] = v4 ? 4 : 6;
    out[1] = (uint8_t)(port >> 8);
    out[2] = (uint8_t)port;
    if (v4)
        memcpy(out + 3, &v4_of(address)->sin_addr, 4);
    else
        memcpy(out + 3, &v6_of(address)->sin6_addr, 16);
    return v4 ? 7 : 19;
}

weft_status wfofi_address_decode(const uint8_t *bytes, size_t size, wfofi_sockaddr *out)
{
    memset(out, 0, sizeof(*out));
    if (size == 7 && bytes[0] == 4) {
        out->storage.ss_family = AF_INET;
        out->size = sizeof(struct sockaddr_in);
        memcpy(&v4_of(out)->sin_addr, bytes + 3, 4);
    } else if (size == 19 && bytes[0] == 6) {
        out->storage.ss_family = AF_INET6;
        out->size = sizeof(struct sockaddr_in6);
        memcpy(&v6_of(out)->sin6_addr, bytes + 3, 16);
    } else {
        return WEFT_ERR_INVALID;
    }
    wfofi_address_set_port(out, bytes[1] << 8 | bytes[2]);
    return is_any(out) || wfofi_address_port(out) == 0 ? WEFT_ERR_INVALID : WEFT_OK;
}

static bool is_link_local(const wfofi_sockaddr *address)
{
    return address->storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6_of(address)->sin6_addr);
}

void wfofi_address_set_scope(wfofi_sockaddr *address, unsigned scope)
{
    if (is_link_local(address))
        v6_of(address)->sin6_scope_id = scope;
}

unsigned wfofi_address_scope(const wfofi_sockaddr *local, const char *iface)
{
    return is_link_local(local) ? v6_of(local)->sin6_scope_id : if_nametoindex(iface);
}

bool wfofi_address_equal(const wfofi_sockaddr *a, const wfofi_sockaddr *b)
{
    uint8_t first[WFI_ADDRESS_MAX], second[WFI_ADDRESS_MAX];
    if (a->storage.ss_family != b->storage.ss_family)
        return false;
    size_t size = wfofi_address_encode(a, first);
    return wfofi_address_encode(b, second) == size && memcmp(first, second, size) == 0;
}

uint64_t wfofi_address_hash(const wfofi_sockaddr *address)
{
    uint8_t bytes[WFI_ADDRESS_MAX];
    return wfi_hash_bytes(bytes, wfofi_address_encode(address, bytes));
}

void wfofi_address_text(const wfofi_sockaddr *address, char out[WFOFI_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool v4 = address->storage.ss_family == AF_INET;
    const void *bytes = v4 ? (const void *)&v4_of(address)->sin_addr : (const void *)&v6_of(address)->sin6_addr;
    inet_ntop(address->storage.ss_family, bytes, host, sizeof(host));
    snprintf(out, WFOFI_ADDRESS_TEXT, v4 ? "%s:%d" : "[%s]:%d", host, wfofi_address_port(address));
}

/* ---- Choosing -------------------------------------------------------------------------------------------------- */

/* The interface that has this address; 0: none. */
static unsigned scope_here(const wfofi_sockaddr *address)
{
    char iface[IF_NAMESIZE];
    wfofi_address_iface(address, iface);
    return if_nametoindex(iface);
}

/* "fe80::1%eth0": an address that is valid on one link only, with its interface. */
static bool parse_scoped(const char *text, wfofi_sockaddr *out)
{
    struct addrinfo hints = {.ai_family = AF_INET6, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    if (!strchr(text, '%') || getaddrinfo(text, NULL, &hints, &found) != 0)
        return false;
    address_set(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return true;
}

static bool parse_numeric(const char *text, wfofi_sockaddr *out)
{
    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, text, &v4_of(out)->sin_addr) == 1) {
        out->storage.ss_family = AF_INET;
        out->size = sizeof(struct sockaddr_in);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6_of(out)->sin6_addr) == 1) {
        out->storage.ss_family = AF_INET6;
        out->size = sizeof(struct sockaddr_in6);
        wfofi_address_set_scope(out, scope_here(out));
        return true;
    }
    return parse_scoped(text, out);
}

/* How well `entry` suits: 0 not at all; IPv4 is better than IPv6, which is better than a link-local IPv6 address. */
static int preference(const struct ifaddrs *entry, const char *iface)
{
    if (!entry->ifa_addr || strcmp(entry->ifa_name, iface) != 0)
        return 0;
    if (entry->ifa_addr->sa_family == AF_INET)
        return 3;
    if (entry->ifa_addr->sa_family != AF_INET6)
        return 0;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)entry->ifa_addr;
    return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? 1 : 2;
}

/* The names of the possible interfaces, for the error. */
static void list_interfaces(const struct ifaddrs *all, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = 0;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (!preference(entry, entry->ifa_name) || used + strlen(entry->ifa_name) + 3 > capacity)
            continue;
        if (used == 0 || !strstr(out, entry->ifa_name))
            used += (size_t)snprintf(out + used, capacity - used, "%s%s", used ? ", " : "", entry->ifa_name);
    }
}

static weft_status from_interface(const char *iface, wfofi_sockaddr *out, weft_error **error)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return wfi_error_fail(error, WEFT_ERR_SYSTEM, "getifaddrs: %s", strerror(errno));
    const struct ifaddrs *best = NULL;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (preference(entry, iface) > (best ? preference(best, iface) : 0))
            best = entry;
    }
    char names[256];
    list_interfaces(all, names, sizeof(names));
    if (best)
        address_set(out, best->ifa_addr,
                    best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    freeifaddrs(all);
    if (best)
        return WEFT_OK;
    wfi_error_give(error, weft_error_create(WEFT_ERR_INVALID,
                                            "no interface '%s' with an address; those with one: %s; or give an address",
                                            iface, names[0] ? names : "none"));
    return WEFT_ERR_INVALID;
}

void wfofi_address_iface(const wfofi_sockaddr *address, char out[IF_NAMESIZE])
{
    struct ifaddrs *all;
    out[0] = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *entry = all; entry && !out[0]; entry = entry->ifa_next) {
        int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
        wfofi_sockaddr here;
        if (family != AF_INET && family != AF_INET6)
            continue;
        address_set(&here, entry->ifa_addr,
                    family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        wfofi_address_set_port(&here, wfofi_address_port(address));
        if (wfofi_address_equal(&here, address))
            snprintf(out, IF_NAMESIZE, "%s", entry->ifa_name);
    }
    freeifaddrs(all);
}

/*
 * Asks the routing table: a connected datagram socket has the local address of its route; nothing is sent. Returns 0
 * or an errno value.
 */
static int route_from(const struct addrinfo *to, wfofi_sockaddr *out)
{
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    wfofi_sockaddr there;
    address_set(&there, to->ai_addr, to->ai_addrlen);
    wfofi_address_set_port(&there, 9); /* some systems refuse port 0 */
    struct sockaddr_storage here;
    socklen_t size = sizeof(here);
    int errnum = 0;
    if (connect(fd, (struct sockaddr *)&there.storage, there.size) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &size) == 0)
        address_set(out, (struct sockaddr *)&here, size);
    else
        errnum = errno;
    close(fd);
    return errnum;
}

static weft_status from_route(const char *towards, wfofi_sockaddr *out, weft_error **error)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int ret = getaddrinfo(towards, NULL, &hints, &found);
    if (ret != 0 && wfi_descriptors_lack(1)) /* one for the file of hosts */
        return wfi_descriptors_fail("resolve MASTER_ADDR", error);
    if (ret != 0)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "cannot resolve '%s' (MASTER_ADDR): %s", towards,
                              ret == EAI_SYSTEM ? strerror(errno) : gai_strerror(ret));
    int errnum = ENETUNREACH;
    for (const struct addrinfo *to = found; to && errnum; to = to->ai_next)
        errnum = route_from(to, out);
    freeaddrinfo(found);
    if (!errnum)
        return WEFT_OK;
    if (wfi_descriptors_lack(1))
        return wfi_descriptors_fail("look for a route", error);
    return wfi_error_fail(
        error, WEFT_ERR_UNREACHABLE, "no route to '%s' (%s): %s", towards, strerrordesc_np(errnum),
        errnum == ENETUNREACH && wfi_hostname_says_loopback(towards)
            ? WFI_LOOPBACK_HINT
            : "give master_addr (MASTER_ADDR) another address, or name an interface or address of this machine "
              "(WEFT_IFACE)");
}

weft_status wfofi_choose_address(const wfi_fabric_options *options, wfofi_sockaddr *out, weft_error **error)
{
    weft_status status = WEFT_OK;
    if (!options->iface || !options->iface[0])
        status = from_route(options->towards && options->towards[0] ? options->towards : "127.0.0.1", out, error);
    else if (!parse_numeric(options->iface, out))
        status = from_interface(options->iface, out, error);
    if (status != WEFT_OK)
        return status;
    if (is_any(out))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "the address to listen on must be one that others can connect to, not "
                              "the wildcard '%s'",
                              options->iface ? options->iface : options->towards);
    wfofi_address_set_port(out, 0);
    return WEFT_OK;
}
