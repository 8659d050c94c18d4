/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.c - the table of memory that peers may read. Only this worker copies from the memory, under rdm->lock. So no
 * byte of it is read after its region or lane is closed.
 */
#include "base/alloc.h"
#include "ofi_rdm/rdm.h"

#include <sodium.h>
#include <stdlib.h>

weft_status wfrdm_region_open(wfi_fabric *base, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    wfrdm *rdm = wfrdm_of(base);
    if (memory->kind != WFI_MEMORY_HOST)
        return WEFT_ERR_UNSUPPORTED;
    if (!memory->data || memory->size == 0 || !access)
        return WEFT_ERR_INVALID;
    wfrdm_region *region = wfi_calloc(1, sizeof(*region));
    if (!region)
        return WEFT_ERR_MEMORY;
    region->data = memory->data;
    region->size = memory->size;
    region->access = access;
    weft_status status;
    wfi_mutex_lock(&rdm->lock);
    do {
        randombytes_buf(&region->base.key, sizeof(region->base.key));
        status = wfi_map_put(&rdm->regions, region->base.key, region);
    } while (status == WEFT_ERR_EXISTS);
    wfi_mutex_unlock(&rdm->lock);
    if (status != WEFT_OK) {
        free(region);
        return status;
    }
    *out = &region->base;
    return WEFT_OK;
}

void wfrdm_region_close(wfi_fabric *base, wfi_region *closing)
{
    wfrdm *rdm = wfrdm_of(base);
    if (!closing)
        return;
    wfi_mutex_lock(&rdm->lock);
    (void)wfi_map_take(&rdm->regions, closing->key);
    wfi_mutex_unlock(&rdm->lock);
    free(wfi_container_of(closing, wfrdm_region, base));
}

const uint8_t *wfrdm_region_find(wfrdm *rdm, const wfrdm_range *range)
{
    wfi_assert_held(&rdm->lock);
    const wfrdm_region *region = wfi_map_get(&rdm->regions, range->key);
    if (!region || !(region->access & WFI_REMOTE_READ) || range->remote > region->size ||
        range->size > region->size - range->remote)
        return NULL;
    return region->data + range->remote;
}
