/* SPDX-License-Identifier: Apache-2.0 */
/* anchor.c - anchors of registrations, and closing the registrations. See anchor.h. */
#include "mem/anchor.h"

#include <assert.h>
#include <stdlib.h>

wfi_mutex wfi_reg_lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t next_id(void)
{
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static void init_lock(void)
{
    wfi_mutex_init(&wfi_reg_lock);
}

void wfi_reg_lock_init(void)
{
    pthread_once(&once, init_lock);
}

void wfi_reg_anchor_init(wfi_reg_anchor *anchor, void *data, size_t size)
{
    wfi_reg_lock_init();
    anchor->id = next_id();
    anchor->data = data;
    anchor->size = size;
    wfi_list_init(&anchor->entries);
}

void wfi_reg_entry_close(wfi_reg_entry *entry)
{
    wfi_assert_held(&wfi_reg_lock);
    assert(entry->users == 0);
    wfi_reg_cache *cache = entry->cache;
    if (entry->replaced)
        cache->replaced--;
    else
        wfi_map_take(&cache->entries, entry->anchor->id);
    wfi_list_remove(&entry->of_anchor);
    wfi_list_remove(&entry->idle);
    cache->ops->close(cache->domain, entry->region);
    free(entry);
}

void wfi_reg_anchor_fini(wfi_reg_anchor *anchor)
{
    wfi_mutex_lock(&wfi_reg_lock);
    while (!wfi_list_empty(&anchor->entries))
        wfi_reg_entry_close(wfi_container_of(anchor->entries.next, wfi_reg_entry, of_anchor));
    wfi_mutex_unlock(&wfi_reg_lock);
}
