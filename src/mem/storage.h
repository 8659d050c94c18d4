/* SPDX-License-Identifier: Apache-2.0 */
/* storage.h - the struct of a storage, for the files of this folder. */
#ifndef WFI_MEM_STORAGE_H
#define WFI_MEM_STORAGE_H

#include "base/mutex.h"
#include "mem/slab.h"

/*
 * LOCK. `refs`, `version` and `uses` are atomic. `lock` guards `readers` and `waiters`, and changes of `uses`. The
 * other fields are constant. A waiting thread adds its parker to `waiters` before it parks, and removes it afterwards,
 * both under the lock. So every parker in the list is valid.
 */
struct wfi_storage {
    _Atomic uint32_t refs;
    _Atomic uint64_t version; /* number of in-place changes */
    /* Of device memory: a bit for the number of each stream that has used it since the last write, and of the stream
     * that wrote. From bit WFI_WRITER on: the number of the stream that wrote. 0: no work uses it. */
    _Atomic uint64_t uses;
    wfi_memory_kind kind;
    int device;
    void *data;
    size_t size;
    wfi_slab *slab;       /* or NULL */
    _Atomic bool is_lent; /* another library may use the device memory, see wfi_storage_lend */
    bool is_small;        /* the bytes stand behind this struct, in the same block */
    weft_drop_fn drop;
    void *drop_arg;
    wfi_reg_anchor anchor; /* used if there is no slab; otherwise the slab's is */
    wfi_mutex lock;
    uint32_t readers;
    wfi_list waiters; /* of wfi_parker.link */
};

#define WFI_WRITER 56 /* WFI_STREAMS_MOST of stream.h: a bit for each stream is below */
#define WFI_STREAM_BITS ((UINT64_C(1) << WFI_WRITER) - 1)

static inline wfi_reg_anchor *wfi_storage_anchor(wfi_storage *storage)
{
    return storage->slab ? &storage->slab->anchor : &storage->anchor;
}

#endif
