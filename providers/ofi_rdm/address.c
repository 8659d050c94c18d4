/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - makes and checks addresses. An address has three parts: eight bytes that are equal in processes that can
 * share memory (0: not needed), the instance (eight bytes), and the address of libfabric. The last is a socket address,
 * a name, or bytes that only the provider understands.
 */
#include "base/error.h"
#include "ofi_rdm/rdm.h"

#include <netinet/in.h>
#include <sodium.h>
#include <string.h>
#include <rdma/fi_cm.h>

size_t wfrdm_address(const wfi_fabric *base, uint8_t *out)
{
    const wfrdm *rdm = wfrdm_of(base);
    memcpy(out, rdm->address, rdm->address_size);
    return rdm->address_size;
}

/* A socket address that a frame may be sent to. */
static bool is_ip(const uint8_t *bytes, size_t size)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    sa_family_t family;
    if (size < sizeof(family))
        return false;
    memcpy(&family, bytes, sizeof(family));
    if (family == AF_INET && size == sizeof(four)) {
        memcpy(&four, bytes, sizeof(four));
        return four.sin_port && four.sin_addr.s_addr != INADDR_ANY;
    }
    if (family != AF_INET6 || size != sizeof(six))
        return false;
    memcpy(&six, bytes, sizeof(six));
    return six.sin6_port && !IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

bool wfrdm_reaches(const wfi_fabric *base, const uint8_t *address, size_t size)
{
    const wfrdm *rdm = wfrdm_of(base);
    if (size <= WFRDM_ADDRESS_HEAD || size > WFI_ADDRESS_MAX || memcmp(address, rdm->address, 8) != 0)
        return false;
    if (rdm->kind->is_ip)
        return is_ip(address + WFRDM_ADDRESS_HEAD, size - WFRDM_ADDRESS_HEAD);
    return rdm->kind->is_local || size == rdm->address_size;
}

static void put_ip(const uint8_t *bytes, size_t size, char *out, size_t room)
{
    char text[WFOFI_ADDRESS_TEXT];
    wfofi_sockaddr address = {.size = (socklen_t)size};
    memcpy(&address.storage, bytes, size);
    wfofi_address_text(&address, text);
    snprintf(out, room, "%s", text);
}

/* A name is printed, and bytes as hexadecimal numbers. */
void wfrdm_address_text(const uint8_t *address, size_t size, char *out, size_t room)
{
    const uint8_t *bytes = address + WFRDM_ADDRESS_HEAD;
    size_t count = size > WFRDM_ADDRESS_HEAD && size <= WFI_ADDRESS_MAX ? size - WFRDM_ADDRESS_HEAD : 0, printable = 0;
    if (!count) {
        snprintf(out, room, "an address that makes no sense");
        return;
    }
    if (is_ip(bytes, count)) {
        put_ip(bytes, count, out, room);
        return;
    }
    while (printable < count && bytes[printable] > ' ' && bytes[printable] < 127)
        printable++;
    if (printable == count) {
        snprintf(out, room, "%.*s", (int)count, (const char *)bytes);
        return;
    }
    for (size_t i = 0; i < count && 2 * i + 2 < room; i++)
        snprintf(out + 2 * i, room - 2 * i, "%02x", bytes[i]);
}

weft_status wfrdm_address_make(wfrdm *rdm, weft_error **error)
{
    uint8_t name[256];
    size_t size = sizeof(name);
    int ret = fi_getname(&rdm->ep->fid, name, &size);
    if (ret == 0 && rdm->kind->is_local)
        size = strnlen((char *)name, size);
    if (ret == 0 && (size == 0 || size > WFRDM_PROVIDER_ADDRESS_MAX))
        ret = -FI_ETOOSMALL;
    if (ret != 0)
        return wfofi_fail(error, ret, "the address of the endpoint of provider '%s'", rdm->kind->provider);
    uint64_t where = rdm->kind->is_local ? wfrdm_local_scope() : 0;
    randombytes_buf(&rdm->instance, sizeof(rdm->instance));
    memcpy(rdm->address, &where, sizeof(where));
    memcpy(rdm->address + 8, &rdm->instance, sizeof(rdm->instance));
    memcpy(rdm->address + WFRDM_ADDRESS_HEAD, name, size);
    rdm->address_size = WFRDM_ADDRESS_HEAD + size;
    return WEFT_OK;
}
