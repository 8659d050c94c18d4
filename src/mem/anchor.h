/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anchor.h - a range of memory to which registrations with fabrics belong. The range does not move.
 *
 * A slab has one anchor for as long as it is mapped, so that its registrations outlive each use of it. Every other
 * storage has its own anchor.
 */
#ifndef WFI_MEM_ANCHOR_H
#define WFI_MEM_ANCHOR_H

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "mem/mem.h"

typedef struct wfi_reg_anchor {
    uint64_t id; /* unique */
    void *data;
    size_t size;
    wfi_list entries; /* of all caches; guarded by wfi_reg_lock */
} wfi_reg_anchor;

typedef struct wfi_reg_entry { /* one registration, in one cache */
    wfi_list of_anchor;
    wfi_list idle; /* in the cache's idle list while users == 0 */
    wfi_reg_cache *cache;
    wfi_reg_anchor *anchor;
    void *region;
    unsigned access;
    unsigned users;
    bool replaced; /* by a region with more access: it is no longer in the cache's `entries`, and has users */
} wfi_reg_entry;

struct wfi_reg_cache {
    const wfi_reg_ops *ops;
    void *domain;
    size_t entries_max;
    wfi_map entries; /* anchor id -> wfi_reg_entry */
    wfi_list idle;   /* least recently used first */
    size_t replaced; /* number of entries that are in use and not in `entries` */
};

/*
 * LOCK. One lock guards all caches and all anchors' lists of entries, because memory that is freed must be removed from
 * every cache at once. Regions are opened without it (that may take milliseconds) and closed under it. So no close is
 * still running after a cache was destroyed or memory was freed. A close must not call functions of this folder. An
 * entry in use holds a reference of the storage, so its memory is not freed.
 */
extern wfi_mutex wfi_reg_lock;
void wfi_reg_lock_init(void); /* call before the first use; may be called again */

void wfi_reg_anchor_init(wfi_reg_anchor *anchor, void *data, size_t size);
void wfi_reg_anchor_fini(wfi_reg_anchor *anchor); /* closes all its registrations; none may be in use */
void wfi_reg_entry_close(wfi_reg_entry *entry);   /* it must be idle; lock held */

#endif
