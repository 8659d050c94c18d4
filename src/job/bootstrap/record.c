/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - see record.h. A record is text, filled up with zeros.
 *
 *     weft 1
 *     port 34567
 *     secret 00ff...     in hex; missing if the user gave the workers one
 *     address 10.0.0.1   in the order of preference
 *     address fd00::1
 *
 * If rank 0 failed before the store could listen, it is:
 *
 *     weft 1
 *     failed WEFT_IFACE is "eth7": ...
 */
#include "job/bootstrap/record.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/socket.h"
#include "base/utf8.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ADDRESSES_MAX 16
#define REASON_MAX 1024   /* bytes of rank 0's reason, the NUL included */
#define FIRST_TRY_MS 2000 /* for one address, in the first round; a firewall may drop what is sent to it */
#define LAST_TRY_MS 16000
#define PAUSE_NS 20000000l
#define OWN_NAME_MS 2000 /* to resolve this machine's name, whose address only comes first */

/* In the order of preference. */
typedef struct addresses {
    int count;
    struct {
        int order;
        char text[256];
    } at[ADDRESSES_MAX];
} addresses;

void wfi_bootstrap_record_key(_Atomic unsigned *count, char key[WFI_RECORD_KEY])
{
    snprintf(key, WFI_RECORD_KEY, "weft/%u", atomic_fetch_add(count, 1));
}

/* ---- Rank 0 ---------------------------------------------------------------------------------------------------- */

enum { OWN_NAME, IPV4, IPV6, LINK_LOCAL, NO_USE };

/* Which addresses other machines should try first. NO_USE: they cannot connect to it. */
static int order_of(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        uint32_t host = ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
        return host >> 24 == IN_LOOPBACKNET ? NO_USE : host >> 16 == 0xa9fe ? LINK_LOCAL : IPV4;
    }
    if (address->sa_family != AF_INET6)
        return NO_USE;
    const struct in6_addr *host = &((const struct sockaddr_in6 *)address)->sin6_addr;
    /* A link-local address means nothing without the name that the other machine has for its interface. */
    return IN6_IS_ADDR_LOOPBACK(host) || IN6_IS_ADDR_LINKLOCAL(host) ? NO_USE : IPV6;
}

static socklen_t size_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static bool text_of(const struct sockaddr *address, char *text, size_t room)
{
    return !getnameinfo(address, size_of(address), text, (socklen_t)room, NULL, 0, NI_NUMERICHOST);
}

/* The numeric form of the address that this machine's name has; false if it has none. */
static bool resolve_own_name(char *text, size_t room)
{
    char name[256] = "";
    struct addrinfo *found;
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, OWN_NAME_MS);
    if (gethostname(name, sizeof(name) - 1) || wfi_resolve(name, 0, 0, deadline_ns, &found))
        return false;
    bool ok = order_of(found->ai_addr) < NO_USE && text_of(found->ai_addr, text, room);
    freeaddrinfo(found);
    return ok;
}

/* Inserts the address behind those of the same order. If there is no room, the last one is dropped. */
static void add_address(addresses *found, int order, const char *text)
{
    int place = found->count;
    while (place > 0 && found->at[place - 1].order > order)
        place--;
    if (place == ADDRESSES_MAX)
        return;
    found->count += found->count < ADDRESSES_MAX;
    memmove(&found->at[place + 1], &found->at[place], (size_t)(found->count - 1 - place) * sizeof(found->at[0]));
    found->at[place].order = order;
    snprintf(found->at[place].text, sizeof(found->at[place].text), "%s", text);
}

/* This machine's addresses: that of the interface, or the best 16 of all. The address of the machine's name is the
 * first. */
static weft_status find_addresses(const char *iface, addresses *out, weft_error **error)
{
    struct ifaddrs *all;
    char own[64] = "", text[64]; /* numeric */
    if (getifaddrs(&all))
        return wfi_error_fail(error, WEFT_ERR_SYSTEM, "the addresses of this machine cannot be listed: %s",
                              strerrordesc_np(errno));
    bool has_own = !iface && resolve_own_name(own, sizeof(own));
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        int order = one->ifa_addr && one->ifa_flags & IFF_UP ? order_of(one->ifa_addr) : NO_USE;
        if (order == NO_USE || !text_of(one->ifa_addr, text, sizeof(text)))
            continue;
        bool is_chosen = iface && (strcmp(iface, one->ifa_name) == 0 || strcmp(iface, text) == 0);
        if (iface && !is_chosen)
            continue;
        if (is_chosen || (has_own && strcmp(own, text) == 0))
            order = OWN_NAME;
        add_address(out, order, text);
    }
    freeifaddrs(all);
    return WEFT_OK;
}

weft_status wfi_bootstrap_check(const char *master_addr, weft_error **error)
{
    int fd;
    weft_status status = wfi_listen_at(master_addr, 0, &fd, error);
    if (!status)
        close(fd);
    return status;
}

weft_status wfi_bootstrap_listen(bool only_loopback, int port, int *fd, weft_error **error)
{
    if (only_loopback)
        return wfi_listen_at("127.0.0.1", port, fd, error);
    weft_error *refusal = NULL;
    weft_status status = wfi_listen_at("::", port, fd, &refusal); /* IPv4 too, unless the system separates them */
    if (!status || status == WEFT_ERR_EXISTS) {
        if (error)
            *error = refusal;
        else
            weft_error_unref(refusal);
        return status;
    }
    weft_error_unref(refusal);
    return wfi_listen_at("0.0.0.0", port, fd, error); /* a machine without IPv6 */
}

static void write_record(const addresses *found, const wfi_bootstrap_answer *answer, bool with_secret, char *record)
{
    size_t used = (size_t)snprintf(record, WEFT_BOOTSTRAP_BYTES, "weft 1\nport %d\n", answer->port);
    if (with_secret) {
        used += (size_t)snprintf(record + used, WEFT_BOOTSTRAP_BYTES - used, "secret ");
        (void)sodium_bin2hex(record + used, WEFT_BOOTSTRAP_BYTES - used, answer->secret->bytes, answer->secret->size);
        used += 2 * answer->secret->size;
        record[used++] = '\n';
    }
    for (int i = 0; i < found->count; i++) /* 16 lines of at most 72 bytes, or one of MASTER_ADDR's: they fit */
        used += (size_t)snprintf(record + used, WEFT_BOOTSTRAP_BYTES - used, "address %s\n", found->at[i].text);
}

/* Opens the store's socket and fills the answer and the record. */
static weft_status open_store(const wfi_bootstrap_ask *ask, bool only_loopback, wfi_bootstrap_answer *answer,
                              char *record, weft_error **error)
{
    addresses found = {0};
    bool makes_secret = answer->secret->size == 0;
    weft_status status = WEFT_OK;
    if (ask->master_addr) {
        status = wfi_bootstrap_check(ask->master_addr, error);
        found.count = 1;
        snprintf(found.at[0].text, sizeof(found.at[0].text), "%s", ask->master_addr);
    } else if (!only_loopback) {
        status = find_addresses(ask->iface, &found, error);
    }
    if (!status && ask->iface && !only_loopback && found.count == 0)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "iface (WEFT_IFACE) is \"%s\": no interface of this machine has this name or address, is "
                              "up and has an address for other machines",
                              ask->iface);
    if (found.count == 0) { /* no network, or none is needed */
        found.count = 1;
        snprintf(found.at[0].text, sizeof(found.at[0].text), "127.0.0.1");
        only_loopback = true;
    }
    if (!status)
        status = wfi_bootstrap_listen(only_loopback && !ask->master_addr, ask->port, &answer->store_fd, error);
    if (!status && makes_secret)
        status = wfi_secret_random(answer->secret);
    if (status)
        return status;
    answer->port = wfi_listening_port(answer->store_fd);
    snprintf(answer->address, sizeof(answer->address), "%s", found.at[0].text);
    write_record(&found, answer, makes_secret, record);
    return WEFT_OK;
}

static void write_failure(const char *reason, char *record)
{
    char line[REASON_MAX];
    wfi_utf8_print(line, sizeof(line), "%s", reason);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    snprintf(record, WEFT_BOOTSTRAP_BYTES, "weft 1\nfailed %s\n", line);
}

weft_status wfi_bootstrap_record_make(const wfi_bootstrap_ask *ask, bool only_loopback, wfi_bootstrap_answer *answer,
                                      char record[WEFT_BOOTSTRAP_BYTES], weft_error **error)
{
    weft_error *reason = NULL;
    memset(record, 0, WEFT_BOOTSTRAP_BYTES);
    weft_status status = open_store(ask, only_loopback, answer, record, &reason);
    if (!status)
        return WEFT_OK;
    write_failure(reason ? weft_error_message(reason) : weft_status_text(status), record);
    wfi_error_give(error, reason);
    return status;
}

/* ---- The others ------------------------------------------------------------------------------------------------- */

static bool read_line(const char *line, addresses *found, int *port, wfi_secret *secret, bool takes_secret)
{
    if (strncmp(line, "port ", 5) == 0) {
        char *end;
        long number = strtol(line + 5, &end, 10);
        *port = number >= 1 && number <= 65535 && !*end ? (int)number : 0;
        return *port > 0;
    }
    if (strncmp(line, "secret ", 7) == 0) {
        if (!takes_secret)
            return true; /* the user gave this worker one; if they differ, the store refuses it */
        return !sodium_hex2bin(secret->bytes, sizeof(secret->bytes), line + 7, strlen(line + 7), NULL, &secret->size,
                               NULL) &&
               secret->size >= WFI_SECRET_MIN;
    }
    if (strncmp(line, "address ", 8) != 0 || found->count == ADDRESSES_MAX ||
        strlen(line + 8) >= sizeof(found->at[0].text))
        return false;
    snprintf(found->at[found->count++].text, sizeof(found->at[0].text), "%s", line + 8);
    return true;
}

static weft_status read_record(const char *record, addresses *found, wfi_bootstrap_answer *answer, weft_error **error)
{
    char text[WEFT_BOOTSTRAP_BYTES], *rest = NULL;
    bool takes_secret = answer->secret->size == 0;
    bool ok = memchr(record, 0, WEFT_BOOTSTRAP_BYTES) && strncmp(record, "weft 1\n", 7) == 0;
    if (ok && strncmp(record + 7, "failed ", 7) == 0)
        return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS, "rank 0 failed before the job began: %.*s",
                              (int)strcspn(record + 14, "\n"), record + 14);
    if (ok)
        snprintf(text, sizeof(text), "%s", record + 7);
    for (char *line = ok ? strtok_r(text, "\n", &rest) : NULL; line && ok; line = strtok_r(NULL, "\n", &rest))
        ok = read_line(line, found, &answer->port, answer->secret, takes_secret);
    sodium_memzero(text, sizeof(text));
    if (ok && found->count && answer->port)
        return WEFT_OK;
    return wfi_error_fail(error, WEFT_ERR_PROTOCOL,
                          "what rank 0 published is no record of this version of weft: all workers need the same one");
}

static weft_status unreachable(const addresses *found, int port, int errnum, weft_error **error)
{
    char list[ADDRESSES_MAX * 66] = "";
    size_t used = 0;
    for (int i = 0; i < found->count && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", found->at[i].text);
    return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                          "rank 0's store on port %d of %s could not be reached; the last attempt: %s. A "
                          "firewall between the nodes must let this port pass: MASTER_PORT sets one, WEFT_IFACE the "
                          "network",
                          port, list, strerrordesc_np(errnum));
}

weft_status wfi_bootstrap_record_use(const wfi_bootstrap_ask *ask, const char record[WEFT_BOOTSTRAP_BYTES],
                                     wfi_bootstrap_answer *answer, weft_error **error)
{
    addresses found = {0};
    weft_status status = read_record(record, &found, answer, error);
    if (status)
        return status;
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, ask->timeout_ms);
    int64_t try_ms = FIRST_TRY_MS;
    int errnum = 0;
    do {
        for (int i = 0; i < found.count; i++) {
            int fd;
            uint64_t try_ns = wfi_deadline(&wfi_clock_real, try_ms);
            errnum = wfi_connect_to(found.at[i].text, answer->port, try_ns < deadline_ns ? try_ns : deadline_ns, &fd);
            if (errnum)
                continue;
            close(fd); /* the link to the store makes its own connections */
            snprintf(answer->address, sizeof(answer->address), "%s", found.at[i].text);
            return WEFT_OK;
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        try_ms = try_ms * 2 > LAST_TRY_MS ? LAST_TRY_MS : try_ms * 2;
    } while (wfi_now(&wfi_clock_real) < deadline_ns);
    return unreachable(&found, answer->port, errnum, error);
}
