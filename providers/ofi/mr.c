/* SPDX-License-Identifier: Apache-2.0 */
/* mr.c - registered ranges. Keys are random if the provider allows a choice: only the key protects the memory. */
#include "base/alloc.h"
#include "objects.h"

#include "base/text/log.h"

#include <sodium.h>
#include <stdlib.h>

#define KEY_TRIES 8 /* two collisions of random 64-bit keys in a row mean another error */

static uint64_t fi_access(unsigned access)
{
    return (access & WFI_REMOTE_READ ? FI_REMOTE_READ : 0) | (access & WFI_REMOTE_WRITE ? FI_REMOTE_WRITE : 0) |
           (access & WFI_LOCAL_READ ? FI_SEND | FI_WRITE : 0) | (access & WFI_LOCAL_WRITE ? FI_RECV | FI_READ : 0);
}

int wfofi_register(wfofi_fabric *fabric, void *data, size_t size, uint64_t access, struct fid_mr **out)
{
    bool theirs = fabric->info->domain_attr->mr_mode & FI_MR_PROV_KEY;
    int ret = -FI_ENOKEY;
    for (int tries = 0; tries < KEY_TRIES && ret == -FI_ENOKEY; tries++) {
        uint64_t key = 0;
        if (!theirs)
            randombytes_buf(&key, sizeof(key));
        ret = fi_mr_reg(fabric->domain, data, size, access, 0, key, 0, out, NULL);
    }
    return ret;
}

weft_status wfofi_region_open(wfi_fabric *base, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    wfofi_fabric *fabric = wfofi_of(base);
    if (memory->kind != WFI_MEMORY_HOST)
        return WEFT_ERR_UNSUPPORTED;
    if (!memory->data || memory->size == 0 || !fi_access(access))
        return WEFT_ERR_INVALID;
    wfofi_region *region = wfi_calloc(1, sizeof(*region));
    if (!region)
        return WEFT_ERR_MEMORY;
    int ret = wfofi_register(fabric, memory->data, memory->size, fi_access(access), &region->mr);
    if (ret != 0) {
        wfofi_log(fabric, ret == -FI_ENOMEM ? WEFT_LOG_DEBUG : WEFT_LOG_WARN, "registering %zu bytes: %s", memory->size,
                  fi_strerror(-ret));
        free(region);
        return wfofi_status(ret);
    }
    region->base.base = fabric->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory->data : 0;
    region->base.key = fi_mr_key(region->mr);
    region->base.descriptor = fabric->limits.needs_local_regions ? fi_mr_desc(region->mr) : NULL;
    *out = &region->base;
    return WEFT_OK;
}

void wfofi_region_close(wfi_fabric *base, wfi_region *closing)
{
    const wfofi_fabric *fabric = wfofi_of(base);
    if (!closing)
        return;
    wfofi_region *region = wfi_container_of(closing, wfofi_region, base);
    int ret = fi_close(&region->mr->fid);
    if (ret != 0)
        wfofi_log(fabric, WEFT_LOG_ERROR, "closing a region: %s", fi_strerror(-ret));
    free(region);
}
