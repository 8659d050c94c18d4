/* SPDX-License-Identifier: Apache-2.0 */
/* storage.h - the inside of a storage, for the files of this folder. */
#ifndef WFI_MEM_STORAGE_H
#define WFI_MEM_STORAGE_H

#include "base/mutex.h"
#include "mem/slab.h"

/*
 * Locking: `refs` and `version` are atomic; `lock` covers `readers` and `waiters`; the rest does not change. A waiter's parker is in
 * `waiters` from before it parks until it has removed itself, both under the lock, so an unpark never meets a dead one.
 */
struct wfi_storage {
    _Atomic uint32_t refs;
    _Atomic uint64_t version; /* in-place changes */
    wfi_memory_kind kind;
    int device;
    void *data;
    size_t size;
    uint64_t id;
    wfi_slab *slab; /* or NULL */
    weft_drop_fn drop;
    void *drop_arg;
    wfi_reg_anchor anchor; /* unless there is a slab: then the slab's counts */
    wfi_mutex lock;
    uint32_t readers;
    wfi_list waiters; /* of wfi_parker.link */
};

static inline wfi_reg_anchor *wfi_storage_anchor(wfi_storage *storage)
{
    return storage->slab != NULL ? &storage->slab->anchor : &storage->anchor;
}

#endif
