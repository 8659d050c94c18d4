/* SPDX-License-Identifier: Apache-2.0 */
/* storage.h - the struct of a storage, for the files of this folder. */
#ifndef WFI_MEM_STORAGE_H
#define WFI_MEM_STORAGE_H

#include "base/mutex.h"
#include "mem/slab.h"

/*
 * LOCK. `refs` and `version` are atomic; `lock` guards `readers` and `waiters`; the other fields are constant. A
 * waiting thread adds its parker to `waiters` before it parks, and removes it afterwards, both under the lock. So every
 * parker in the list is valid.
 */
struct wfi_storage {
    _Atomic uint32_t refs;
    _Atomic uint64_t version; /* number of in-place changes */
    wfi_memory_kind kind;
    int device;
    void *data;
    size_t size;
    uint64_t id;
    wfi_slab *slab; /* or NULL */
    weft_drop_fn drop;
    void *drop_arg;
    wfi_reg_anchor anchor; /* used if there is no slab; otherwise the slab's is */
    wfi_mutex lock;
    uint32_t readers;
    wfi_list waiters; /* of wfi_parker.link */
};

static inline wfi_reg_anchor *wfi_storage_anchor(wfi_storage *storage)
{
    return storage->slab != NULL ? &storage->slab->anchor : &storage->anchor;
}

#endif
