/* SPDX-License-Identifier: Apache-2.0 */
/* reg_cache.c - the registrations of memory with a fabric domain, so that memory is registered once. */
#include "base/alloc.h"
#include "mem/storage.h"

#include <assert.h>
#include <stdlib.h>

weft_status wfi_reg_cache_create(const wfi_reg_ops *ops, void *domain, size_t entries_max, wfi_reg_cache **out)
{
    wfi_reg_lock_init();
    wfi_reg_cache *cache = wfi_calloc(1, sizeof(*cache));
    if (!cache)
        return WEFT_ERR_MEMORY;
    cache->ops = ops;
    cache->domain = domain;
    cache->entries_max = entries_max;
    wfi_map_init(&cache->entries);
    wfi_list_init(&cache->idle);
    *out = cache;
    return WEFT_OK;
}

void wfi_reg_cache_destroy(wfi_reg_cache *cache)
{
    if (!cache)
        return;
    wfi_mutex_lock(&wfi_reg_lock);
    while (!wfi_list_empty(&cache->idle))
        wfi_reg_entry_close(wfi_container_of(cache->idle.next, wfi_reg_entry, idle));
    assert(cache->entries.count == 0 && cache->replaced == 0 && "a registration is still in use");
    wfi_mutex_unlock(&wfi_reg_lock);
    wfi_map_fini(&cache->entries);
    free(cache);
}

static void evict_idle(wfi_reg_cache *cache)
{
    wfi_assert_held(&wfi_reg_lock);
    while (cache->entries.count > cache->entries_max && !wfi_list_empty(&cache->idle))
        wfi_reg_entry_close(wfi_container_of(cache->idle.next, wfi_reg_entry, idle));
}

/* An entry in use that was replaced: two threads registered the memory at once, each for another access. */
static wfi_reg_entry *replaced_entry(const wfi_reg_cache *cache, const wfi_reg_anchor *anchor, unsigned access)
{
    WFI_FOR_LIST (wfi_reg_entry, entry, &anchor->entries, of_anchor) {
        if (entry->cache == cache && entry->replaced && (entry->access & access) == access)
            return entry;
    }
    return NULL;
}

/* NULL: there is no entry with this access. */
static wfi_reg_entry *entry_use(wfi_reg_cache *cache, const wfi_reg_anchor *anchor, unsigned access)
{
    wfi_assert_held(&wfi_reg_lock);
    wfi_reg_entry *entry = wfi_map_get(&cache->entries, anchor->id);
    if (!entry || (entry->access & access) != access)
        entry = cache->replaced ? replaced_entry(cache, anchor, access) : NULL;
    if (!entry)
        return NULL;
    entry->users++;
    wfi_list_remove(&entry->idle);
    return entry;
}

/* Removes the anchor's entry, whose access is too little. */
static void entry_replace(wfi_reg_cache *cache, const wfi_reg_anchor *anchor)
{
    wfi_assert_held(&wfi_reg_lock);
    wfi_reg_entry *former = wfi_map_take(&cache->entries, anchor->id);
    if (!former)
        return;
    former->replaced = true;
    cache->replaced++;
    if (former->users == 0)
        wfi_reg_entry_close(former);
}

/* Adds a newly opened region. If another thread has added one, closes *region, and uses the other one. */
static weft_status entry_add(wfi_reg_cache *cache, wfi_reg_anchor *anchor, unsigned access, void **region)
{
    wfi_assert_held(&wfi_reg_lock);
    wfi_reg_entry *other = entry_use(cache, anchor, access);
    if (other) {
        cache->ops->close(cache->domain, *region);
        *region = other->region;
        return WEFT_OK;
    }
    wfi_reg_entry *entry = wfi_calloc(1, sizeof(*entry));
    if (entry)
        entry_replace(cache, anchor);
    if (!entry || wfi_map_put(&cache->entries, anchor->id, entry) != WEFT_OK) {
        free(entry);
        cache->ops->close(cache->domain, *region);
        return WEFT_ERR_MEMORY;
    }
    entry->cache = cache;
    entry->anchor = anchor;
    entry->region = *region;
    entry->access = access;
    entry->users = 1;
    wfi_list_init(&entry->idle);
    wfi_list_push_back(&anchor->entries, &entry->of_anchor);
    evict_idle(cache);
    return WEFT_OK;
}

static bool close_idle(wfi_reg_cache *cache)
{
    wfi_mutex_lock(&wfi_reg_lock);
    bool any = !wfi_list_empty(&cache->idle);
    while (!wfi_list_empty(&cache->idle))
        wfi_reg_entry_close(wfi_container_of(cache->idle.next, wfi_reg_entry, idle));
    wfi_mutex_unlock(&wfi_reg_lock);
    return any;
}

/* The memory that a process may lock is limited (ulimit -l), and unused registrations may have taken it all. */
static weft_status open_region(wfi_reg_cache *cache, const wfi_memory *memory, unsigned access, void **out)
{
    weft_status status = cache->ops->open(cache->domain, memory, access, out);
    if (status == WEFT_ERR_MEMORY && close_idle(cache))
        status = cache->ops->open(cache->domain, memory, access, out);
    return status;
}

void wfi_reg_cache_trim(wfi_reg_cache *cache)
{
    (void)close_idle(cache);
}

bool wfi_reg_cache_find(wfi_reg_cache *cache, wfi_storage *storage, unsigned access, void **region)
{
    wfi_mutex_lock(&wfi_reg_lock);
    const wfi_reg_entry *entry = entry_use(cache, wfi_storage_anchor(storage), access);
    wfi_mutex_unlock(&wfi_reg_lock);
    if (!entry)
        return false;
    wfi_storage_ref(storage);
    *region = entry->region;
    return true;
}

weft_status wfi_reg_cache_get(wfi_reg_cache *cache, wfi_storage *storage, unsigned access, void **region)
{
    wfi_reg_anchor *anchor = wfi_storage_anchor(storage);
    wfi_mutex_lock(&wfi_reg_lock);
    wfi_reg_entry *entry = entry_use(cache, anchor, access);
    const wfi_reg_entry *former = entry ? NULL : wfi_map_get(&cache->entries, anchor->id);
    access |= former ? former->access : 0;
    wfi_mutex_unlock(&wfi_reg_lock);
    if (entry) {
        wfi_storage_ref(storage);
        *region = entry->region;
        return WEFT_OK;
    }
    void *opened = NULL;
    wfi_memory memory = WFI_HOST_MEMORY(anchor->data, anchor->size);
    memory.kind = storage->kind == WFI_MEMORY_CUDA ? WFI_MEMORY_CUDA : WFI_MEMORY_HOST;
    weft_status status = open_region(cache, &memory, access, &opened);
    if (status != WEFT_OK)
        return status;
    wfi_mutex_lock(&wfi_reg_lock);
    status = entry_add(cache, anchor, access, &opened);
    wfi_mutex_unlock(&wfi_reg_lock);
    if (status != WEFT_OK)
        return status;
    wfi_storage_ref(storage);
    *region = opened;
    return WEFT_OK;
}

/* The storage's entry with this region. */
static wfi_reg_entry *entry_of(const wfi_reg_cache *cache, wfi_storage *storage, const void *region)
{
    wfi_assert_held(&wfi_reg_lock);
    WFI_FOR_LIST (wfi_reg_entry, entry, &wfi_storage_anchor(storage)->entries, of_anchor) {
        if (entry->cache == cache && entry->region == region)
            return entry;
    }
    return NULL;
}

void wfi_reg_cache_put(wfi_reg_cache *cache, wfi_storage *storage, const void *region)
{
    wfi_mutex_lock(&wfi_reg_lock);
    wfi_reg_entry *entry = entry_of(cache, storage, region);
    assert(entry && entry->users > 0);
    entry->users--;
    if (entry->users == 0 && entry->replaced) {
        wfi_reg_entry_close(entry);
    } else if (entry->users == 0) {
        wfi_list_push_back(&cache->idle, &entry->idle);
        evict_idle(cache);
    }
    wfi_mutex_unlock(&wfi_reg_lock);
    wfi_storage_unref(storage);
}
