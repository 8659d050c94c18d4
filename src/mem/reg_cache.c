/* SPDX-License-Identifier: Apache-2.0 */
/* reg_cache.c - which memory is registered with a fabric domain, so that it is registered once. */
#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "mem/storage.h"

#include <assert.h>
#include <stdlib.h>

typedef struct reg_entry {
    wfi_list of_anchor;
    wfi_list idle; /* in the cache's idle list while users == 0 */
    wfi_reg_cache *cache;
    wfi_reg_anchor *anchor;
    void *region;
    unsigned users;
} reg_entry;

/*
 * Locking: one lock for all caches and all anchors' lists of entries, because memory that goes away must take its entries
 * out of every cache at once. Regions are opened outside it (that may take milliseconds) and closed under it: so once a
 * cache is destroyed, or memory is gone, nobody is still inside a close on its behalf. A close must not call back here.
 * An entry in use holds a reference of the storage, so memory never goes away under it.
 */
static wfi_mutex reg_lock;
static pthread_once_t reg_once = PTHREAD_ONCE_INIT;

struct wfi_reg_cache {
    const wfi_reg_ops *ops;
    void *domain;
    size_t entries_max;
    wfi_map entries; /* anchor id -> reg_entry */
    wfi_list idle;   /* least recently used first */
};

static void reg_init(void)
{
    wfi_mutex_init(&reg_lock);
}

void wfi_reg_anchor_init(wfi_reg_anchor *anchor, void *data, size_t size)
{
    pthread_once(&reg_once, reg_init);
    anchor->id = wfi_storage_next_id();
    anchor->data = data;
    anchor->size = size;
    wfi_list_init(&anchor->entries);
}

static void entry_close(reg_entry *entry)
{
    wfi_assert_held(&reg_lock);
    assert(entry->users == 0);
    wfi_reg_cache *cache = entry->cache;
    wfi_map_take(&cache->entries, entry->anchor->id);
    wfi_list_remove(&entry->of_anchor);
    wfi_list_remove(&entry->idle);
    cache->ops->close(cache->domain, entry->region);
    free(entry);
}

void wfi_reg_anchor_fini(wfi_reg_anchor *anchor)
{
    wfi_mutex_lock(&reg_lock);
    while (!wfi_list_empty(&anchor->entries))
        entry_close(wfi_container_of(anchor->entries.next, reg_entry, of_anchor));
    wfi_mutex_unlock(&reg_lock);
}

weft_status wfi_reg_cache_create(const wfi_reg_ops *ops, void *domain, size_t entries_max, wfi_reg_cache **out)
{
    pthread_once(&reg_once, reg_init);
    wfi_reg_cache *cache = wfi_calloc(1, sizeof(*cache));
    if (cache == NULL)
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
    if (cache == NULL)
        return;
    wfi_mutex_lock(&reg_lock);
    while (!wfi_list_empty(&cache->idle))
        entry_close(wfi_container_of(cache->idle.next, reg_entry, idle));
    assert(cache->entries.count == 0 && "a registration is still in use");
    wfi_mutex_unlock(&reg_lock);
    wfi_map_fini(&cache->entries);
    free(cache);
}

static void evict_idle(wfi_reg_cache *cache)
{
    wfi_assert_held(&reg_lock);
    while (cache->entries.count > cache->entries_max && !wfi_list_empty(&cache->idle))
        entry_close(wfi_container_of(cache->idle.next, reg_entry, idle));
}

static reg_entry *entry_use(wfi_reg_cache *cache, wfi_reg_anchor *anchor)
{
    wfi_assert_held(&reg_lock);
    reg_entry *entry = wfi_map_get(&cache->entries, anchor->id);
    if (entry == NULL)
        return NULL;
    entry->users++;
    wfi_list_remove(&entry->idle);
    return entry;
}

/* Enters a freshly opened region, unless another thread was quicker: then `region` is closed and theirs is used. */
static weft_status entry_add(wfi_reg_cache *cache, wfi_reg_anchor *anchor, void **region)
{
    wfi_assert_held(&reg_lock);
    reg_entry *other = entry_use(cache, anchor);
    if (other != NULL) {
        cache->ops->close(cache->domain, *region);
        *region = other->region;
        return WEFT_OK;
    }
    reg_entry *entry = wfi_calloc(1, sizeof(*entry));
    if (entry == NULL || wfi_map_put(&cache->entries, anchor->id, entry) != WEFT_OK) {
        free(entry);
        cache->ops->close(cache->domain, *region);
        return WEFT_ERR_MEMORY;
    }
    entry->cache = cache;
    entry->anchor = anchor;
    entry->region = *region;
    entry->users = 1;
    wfi_list_init(&entry->idle);
    wfi_list_push_back(&anchor->entries, &entry->of_anchor);
    evict_idle(cache);
    return WEFT_OK;
}

weft_status wfi_reg_cache_get(wfi_reg_cache *cache, wfi_storage *storage, void **region)
{
    wfi_reg_anchor *anchor = wfi_storage_anchor(storage);
    wfi_mutex_lock(&reg_lock);
    reg_entry *entry = entry_use(cache, anchor);
    wfi_mutex_unlock(&reg_lock);
    if (entry != NULL) {
        wfi_storage_ref(storage);
        *region = entry->region;
        return WEFT_OK;
    }
    void *opened = NULL;
    weft_status status = cache->ops->open(cache->domain, anchor->data, anchor->size, &opened);
    if (status != WEFT_OK)
        return status;
    wfi_mutex_lock(&reg_lock);
    status = entry_add(cache, anchor, &opened);
    wfi_mutex_unlock(&reg_lock);
    if (status != WEFT_OK)
        return status;
    wfi_storage_ref(storage);
    *region = opened;
    return WEFT_OK;
}

void wfi_reg_cache_put(wfi_reg_cache *cache, wfi_storage *storage)
{
    wfi_mutex_lock(&reg_lock);
    reg_entry *entry = wfi_map_get(&cache->entries, wfi_storage_anchor(storage)->id);
    assert(entry != NULL && entry->users > 0);
    entry->users--;
    if (entry->users == 0) {
        wfi_list_push_back(&cache->idle, &entry->idle);
        evict_idle(cache);
    }
    wfi_mutex_unlock(&reg_lock);
    wfi_storage_unref(storage);
}
