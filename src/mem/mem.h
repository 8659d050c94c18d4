/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - storage: bytes of one kind of memory (host, page-locked, device) with a reference count, from the process's
 * pool of recycled mappings or from the user. And the cache of their registrations with a fabric.
 *
 *     wfi_storage_create(WFI_MEMORY_HOST, 0, bytes, &storage);     one reference
 *     wfi_storage_pin_read(storage);                               a transfer reads it from now on
 *     wfi_storage_unpin_read(storage);
 *     wfi_storage_unref(storage);                                  back into the pool
 *
 * Code above this folder does not branch on the kind of memory, except where an operator chooses its kernel.
 *
 * LOCKING. Any thread may call any function. Each storage has a small lock for its read pins, the pool has one, and so
 * have all registrations together; they are taken inside the functions and never held when these return.
 * wfi_storage_wait_unread sleeps.
 * LIFETIME. A reference keeps the bytes. A read pin does not: it tells somebody who wants to write in place that a
 * transfer reads them now, so that the writer waits or takes a copy. A registration in use keeps its storage.
 */
#ifndef WFI_MEM_H
#define WFI_MEM_H

#include <weft/status.h>

typedef enum wfi_memory_kind {
    WFI_MEMORY_HOST = 0,
    WFI_MEMORY_PINNED = 1, /* page-locked for CUDA */
    WFI_MEMORY_CUDA = 2,
} wfi_memory_kind;

typedef struct wfi_storage wfi_storage;

/*
 * New bytes, aligned to 64 (slabs: to a page), contents undefined, one reference. Large ones come from the process's pool
 * of recycled slabs (huge pages where the host gives them). size 0 is fine. WEFT_ERR_MEMORY, WEFT_ERR_UNSUPPORTED (kind).
 */
weft_status wfi_storage_create(wfi_memory_kind kind, int device, size_t size, wfi_storage **out);
/* Foreign bytes; `drop(arg)` runs when the last reference goes, or at once on failure. drop may be NULL. */
weft_status wfi_storage_wrap(wfi_memory_kind kind, int device, void *data, size_t size, weft_drop_fn drop, void *arg,
                             wfi_storage **out);
/* Whether there is such a device: WEFT_OK; WEFT_ERR_UNSUPPORTED (no CUDA in this build, no driver, no GPU at all) or
 * WEFT_ERR_INVALID (not that number), with a sentence in *error if `error` is not NULL. */
weft_status wfi_memory_check_cuda(int device, weft_error **error);
wfi_storage *wfi_storage_ref(wfi_storage *storage);
void wfi_storage_unref(wfi_storage *storage);

bool wfi_storage_is_alone(const wfi_storage *storage); /* there is one reference */

void *wfi_storage_data(const wfi_storage *storage);
size_t wfi_storage_size(const wfi_storage *storage);
wfi_memory_kind wfi_storage_kind(const wfi_storage *storage);
int wfi_storage_device(const wfi_storage *storage);
uint64_t wfi_storage_id(const wfi_storage *storage); /* never used twice: a generation for caches */

void wfi_storage_pin_read(wfi_storage *storage);
void wfi_storage_unpin_read(wfi_storage *storage);
/* Waits until nobody reads; false at the deadline. For in-place writers. */
bool wfi_storage_wait_unread(wfi_storage *storage, uint64_t deadline_ns);

/*
 * How often the bytes were changed in place: whoever saved a tensor for later finds out that it is not the same any more.
 * Whoever changes contents that others may have seen says so with wrote; filling a new storage need not.
 */
void wfi_storage_wrote(wfi_storage *storage);
uint64_t wfi_storage_version(const wfi_storage *storage);

/* Copies between kinds; both ranges valid. */
weft_status wfi_memory_copy(wfi_storage *to, size_t to_offset, const wfi_storage *from, size_t from_offset,
                            size_t size);

/* The pool, for statistics and tests. */
typedef struct wfi_slab_stats {
    size_t bytes_live, bytes_idle, bytes_peak; /* handed out; kept for reuse; most ever mapped */
    uint64_t reused, mapped;                   /* requests served from idle slabs; by fresh mappings */
} wfi_slab_stats;
void wfi_slab_stats_read(wfi_slab_stats *out);
void wfi_slab_trim(size_t keep_bytes); /* gives idle slabs beyond keep_bytes back to the system */

/* A piece of memory here, and the one of the same size elsewhere that it is copied from or to. */
typedef struct wfi_segment {
    void *local;
    wfi_storage *storage; /* that `local` lies in; whoever transfers keeps a reference until done */
    uint64_t size, remote_address, remote_key;
} wfi_segment;

/*
 * The registration cache of one fabric domain: which ranges are registered, keyed by storage id. On fabrics whose keys
 * live for one transfer it is bypassed by its owner. An entry in use is never dropped; idle ones go least recently used
 * first when more than `entries_max`, or when their storage is freed.
 */
typedef struct wfi_reg_cache wfi_reg_cache;
typedef struct wfi_reg_ops {
    weft_status (*open)(void *domain, void *data, size_t size, void **region);
    void (*close)(void *domain, void *region);
} wfi_reg_ops;
weft_status wfi_reg_cache_create(const wfi_reg_ops *ops, void *domain, size_t entries_max, wfi_reg_cache **out);
void wfi_reg_cache_destroy(wfi_reg_cache *cache);
weft_status wfi_reg_cache_get(wfi_reg_cache *cache, wfi_storage *storage, void **region); /* in use until put */
void wfi_reg_cache_put(wfi_reg_cache *cache, wfi_storage *storage);

#endif
