/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anchor.h - a range of memory that stays where it is, and to which registrations with fabrics belong. A slab has an
 * anchor for as long as it is mapped, so that its registrations outlive each use of it; every other storage has an
 * anchor of its own.
 */
#ifndef WFI_MEM_ANCHOR_H
#define WFI_MEM_ANCHOR_H

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "mem/mem.h"

typedef struct wfi_reg_anchor {
    uint64_t id; /* never used twice */
    void *data;
    size_t size;
    wfi_list entries; /* of all caches; under the registrations' lock */
} wfi_reg_anchor;

typedef struct wfi_reg_entry { /* one registration, in one cache */
    wfi_list of_anchor;
    wfi_list idle; /* in the cache's idle list while users == 0 */
    wfi_reg_cache *cache;
    wfi_reg_anchor *anchor;
    void *region;
    unsigned users;
} wfi_reg_entry;

struct wfi_reg_cache {
    const wfi_reg_ops *ops;
    void *domain;
    size_t entries_max;
    wfi_map entries; /* anchor id -> wfi_reg_entry */
    wfi_list idle;   /* least recently used first */
};

/*
 * Locking: one lock for all caches and all anchors' lists of entries, because memory that goes away must take its entries
 * out of every cache at once. Regions are opened outside it (that may take milliseconds) and closed under it: so once a
 * cache is destroyed, or memory is gone, nobody is still inside a close on its behalf. A close must not call back here.
 * An entry in use holds a reference of the storage, so memory never goes away under it.
 */
extern wfi_mutex wfi_reg_lock;
void wfi_reg_lock_init(void); /* at its first use; again is a no-op */

uint64_t wfi_storage_next_id(void); /* for storages and anchors */
void wfi_reg_anchor_init(wfi_reg_anchor *anchor, void *data, size_t size);
void wfi_reg_anchor_fini(wfi_reg_anchor *anchor); /* closes all its registrations; none may be in use */
void wfi_reg_entry_close(wfi_reg_entry *entry);   /* an idle one; lock held */

#endif
