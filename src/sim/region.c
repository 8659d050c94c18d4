/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.c - registered memory: random keys, and random bases, so that a program that confuses offsets and addresses
 * fails.
 */
#include "base/alloc.h"
#include "sim/world.h"

#include <stdlib.h>

weft_status wfi_sim_region_open(wfi_fabric *base, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    sim_fabric *fabric = (sim_fabric *)base;
    const sim_form *form = fabric->form;
    if (memory->kind != WFI_MEMORY_HOST)
        return WEFT_ERR_UNSUPPORTED;
    if (fabric->rank->refuses_memory[form->number] || (form->regions_max && fabric->regions.count >= form->regions_max))
        return WEFT_ERR_MEMORY;
    sim_region *region = wfi_calloc(1, sizeof(*region));
    if (!region)
        return WEFT_ERR_MEMORY;
    region->data = memory->data;
    region->size = memory->size;
    region->access = access;
    region->base.base = wfi_sim_random(fabric->sim) >> 17 << 12;
    weft_status status;
    do {
        region->base.key = wfi_sim_random(fabric->sim) & form->key_mask;
        status = wfi_map_put(&fabric->regions, region->base.key, region);
    } while (status == WEFT_ERR_EXISTS);
    if (status != WEFT_OK) {
        free(region);
        return status;
    }
    *out = &region->base;
    return WEFT_OK;
}

void wfi_sim_region_close(wfi_fabric *base, wfi_region *region)
{
    if (region)
        free(wfi_map_take(&((sim_fabric *)base)->regions, region->key));
}

uint8_t *wfi_sim_region_find(const sim_fabric *fabric, uint64_t key, uint64_t remote, size_t size, unsigned access)
{
    const sim_region *region = wfi_map_get(&fabric->regions, key);
    if (!region || !(region->access & access) || remote < region->base.base)
        return NULL;
    uint64_t offset = remote - region->base.base;
    if (offset > region->size || size > region->size - offset)
        return NULL;
    return region->data + offset;
}

bool wfi_sim_region_covers(const sim_fabric *fabric, const wfi_region *base, const void *data, size_t size,
                           unsigned access)
{
    if (!fabric->form->registers || !size)
        return true;
    const sim_region *region = (const sim_region *)base;
    if (!region || wfi_map_get(&fabric->regions, base->key) != region || (region->access & access) != access)
        return false;
    uintptr_t from = (uintptr_t)data, low = (uintptr_t)region->data;
    return from >= low && from - low <= region->size && size <= region->size - (from - low);
}

void wfi_sim_regions_free(sim_fabric *fabric)
{
    size_t cursor = 0;
    uint64_t key;
    for (void *region; (region = wfi_map_next(&fabric->regions, &cursor, &key));)
        free(region);
    wfi_map_fini(&fabric->regions);
}
