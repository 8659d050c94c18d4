/* SPDX-License-Identifier: Apache-2.0 */
/*
 * addresses.c - the addresses of a member's fabrics, as the store passes them on: for each fabric its number
 * (wfi_fabric_ops), the size of its address, and the address.
 */
#include "net/channel/channel.h"

#include <string.h>

bool wfi_addresses_add(wfi_member *member, uint8_t number, const uint8_t *address, size_t size)
{
    if (size > UINT8_MAX || member->addresses_size + 2 + size > sizeof(member->addresses))
        return false;
    uint8_t *at = member->addresses + member->addresses_size;
    at[0] = number;
    at[1] = (uint8_t)size;
    memcpy(at + 2, address, size);
    member->addresses_size += 2 + size;
    return true;
}

const uint8_t *wfi_addresses_find(const wfi_member *member, uint8_t number, size_t *size)
{
    size_t at = 0;
    while (at + 2 <= member->addresses_size) {
        size_t its_size = member->addresses[at + 1];
        if (its_size > member->addresses_size - at - 2)
            return NULL;
        if (member->addresses[at] == number) {
            *size = its_size;
            return member->addresses + at + 2;
        }
        at += 2 + its_size;
    }
    return NULL;
}

bool wfi_addresses_pass(const wfi_member *member)
{
    for (size_t at = 0; at + 2 <= member->addresses_size; at += 2 + (size_t)member->addresses[at + 1]) {
        const wfi_fabric_ops *ops = wfi_fabric_numbered(member->addresses[at]);
        if (ops && ops->pass)
            return true;
    }
    return false;
}

wfi_peer_address wfi_addresses_on(const wfi_member *member, const wfi_net_fabric *fabric)
{
    wfi_peer_address found = {0};
    const uint8_t *bytes = wfi_addresses_find(member, fabric->ops->number, &found.size);
    if (bytes && fabric->ops->reaches && !fabric->ops->reaches(fabric->fabric, bytes, found.size))
        return (wfi_peer_address){.is_elsewhere = true};
    found.bytes = bytes;
    return found;
}
