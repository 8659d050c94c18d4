/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - reference-counted storages of one kind of memory (host, page-locked, device), and their registrations.
 *
 * A storage's bytes are from the process's pool of recycled mappings or from the user. A cache holds their
 * registrations with a fabric.
 *
 *     wfi_storage_create(WFI_MEMORY_HOST, 0, bytes, &storage);     one reference
 *     wfi_storage_pin_read(storage);                               a transfer reads it
 *     wfi_storage_unpin_read(storage);
 *     wfi_storage_unref(storage);                                  back into the pool
 *
 * The copies of wfi_memory_copy are done, or in order with the work of the streams, when it returns. Those of
 * copies.h tell when they have ended, and no thread waits for them.
 *
 * Code above this folder does not branch on the kind of memory, except where an operator chooses its kernel.
 *
 * LOCK. Any thread may call any function. Each storage has a lock for its read pins; the pool has one lock, and all
 * registrations together have one. The functions take and release them. wfi_storage_wait_unread sleeps.
 * LIFETIME. A reference keeps the bytes. A read pin does not: it tells threads that want to write in place that a
 * transfer reads the bytes, so that they wait or use a copy. A registration in use keeps its storage.
 */
#ifndef WFI_MEM_H
#define WFI_MEM_H

#include "mem/rma.h"

#include <weft/status.h>

typedef enum wfi_memory_kind {
    WFI_MEMORY_HOST = 0,
    WFI_MEMORY_PINNED = 1, /* page-locked for CUDA */
    WFI_MEMORY_CUDA = 2,
} wfi_memory_kind;

/* A range of memory, as a fabric registers it. A fabric may refuse a kind with WEFT_ERR_UNSUPPORTED. */
typedef struct wfi_memory {
    void *data;
    size_t size;
    wfi_memory_kind kind; /* page-locked host memory is WFI_MEMORY_HOST too: to a fabric there is no difference */
} wfi_memory;

#define WFI_HOST_MEMORY(data_, size_) ((wfi_memory){.data = (data_), .size = (size_), .kind = WFI_MEMORY_HOST})

typedef struct wfi_storage wfi_storage;

/*
 * New bytes, aligned to 64 (slabs: to a page), contents undefined, one reference. Large ones are from the process's
 * pool of recycled slabs (in huge pages if the host has them). `size` may be 0. WEFT_ERR_MEMORY, WEFT_ERR_UNSUPPORTED
 * (kind).
 */
weft_status wfi_storage_create(wfi_memory_kind kind, int device, size_t size, wfi_storage **out);
/* Wraps bytes of the caller; `drop(arg)` runs when the last reference is dropped, or at once on failure. It may be
 * NULL. */
weft_status wfi_storage_wrap(wfi_memory_kind kind, int device, void *data, size_t size, weft_drop_fn drop, void *arg,
                             wfi_storage **out);
/* WEFT_OK if there is such a device; otherwise WEFT_ERR_UNSUPPORTED (no driver, no GPU) or
 * WEFT_ERR_INVALID (no device with that number), with a text in *error (`error` may be NULL). */
weft_status wfi_memory_check_cuda(int device, weft_error **error);
wfi_storage *wfi_storage_ref(wfi_storage *storage);
void wfi_storage_unref(wfi_storage *storage);

bool wfi_storage_is_alone(const wfi_storage *storage); /* there is one reference */
bool wfi_storage_devices_used(void); /* whether this process ever had device memory in a storage. Any thread */

void *wfi_storage_data(const wfi_storage *storage);
size_t wfi_storage_size(const wfi_storage *storage);
wfi_memory_kind wfi_storage_kind(const wfi_storage *storage);
int wfi_storage_device(const wfi_storage *storage);

void wfi_storage_pin_read(wfi_storage *storage);
void wfi_storage_unpin_read(wfi_storage *storage);
/* Waits until there are no read pins; false at the deadline. For in-place writers. */
bool wfi_storage_wait_unread(wfi_storage *storage, uint64_t deadline_ns);

/*
 * The version counts in-place changes of the bytes, so that code which has saved a tensor can detect that it has
 * changed. wfi_storage_wrote must be called after changing contents that others may have seen; not after filling a new
 * storage.
 */
void wfi_storage_wrote(wfi_storage *storage);
uint64_t wfi_storage_version(const wfi_storage *storage);

/*
 * Call it before work that reads or writes the storage is queued on the stream of this thread (stream.h). That stream
 * then waits for the work on other streams that must come first. Only for device memory; does nothing for other memory.
 * WEFT_ERR_SYSTEM: the driver failed.
 */
weft_status wfi_storage_use(wfi_storage *storage, bool write);
/* Waits for the work on all streams that use the storage, reads included. Does nothing for memory of the host.
 * WEFT_ERR_SYSTEM: the driver failed. */
weft_status wfi_storage_wait_idle(const wfi_storage *storage);
/* Does the same, and from then on another library may use the memory. Then copies on weft's copy streams (copies.h)
 * are in order with the common stream too, and by it with the legacy one. Storages of wfi_storage_wrap are lent from
 * the beginning. */
weft_status wfi_storage_lend(wfi_storage *storage);
/* Adds the number of the stream that wrote device memory last to the set of its device: writers[device]. */
void wfi_storage_add_writer(const wfi_storage *storage, uint64_t *writers);
/* The stream that wrote device memory last, with a reference; NULL: the common one, or it is gone. */
weft_stream *wfi_storage_writer(const wfi_storage *storage);

/* Copies within or between kinds of memory. A copy to the host waits for the stream that wrote the bytes, and is
 * complete on return. A copy to or within a device is queued on the stream of this thread; bytes of the host may be
 * changed on return. WEFT_ERR_INVALID: a range is not in its storage. */
weft_status wfi_memory_copy(wfi_storage *to, size_t to_offset, const wfi_storage *from, size_t from_offset,
                            size_t size);

/* Copies to host memory of the caller, after the work on the stream that wrote the bytes. The copy is complete when it
 * returns. WEFT_ERR_INVALID: the range is not in the storage. */
weft_status wfi_memory_read(const wfi_storage *from, size_t offset, void *to, size_t size);

/* The pool, for statistics and tests. */
typedef struct wfi_slab_stats {
    size_t bytes_live, bytes_idle, bytes_peak; /* in use; kept for reuse; the most that were ever mapped */
    uint64_t reused, mapped;                   /* requests served from idle slabs; by new mappings */
} wfi_slab_stats;
void wfi_slab_stats_read(wfi_slab_stats *out);
void wfi_slab_trim(size_t keep_bytes); /* returns idle slabs beyond keep_bytes to the system */

/*
 * Whether each page of this process's memory can be read, or written. Changes no byte, but fills pages that were not
 * touched yet, so do not call it for much memory while a lock is held. accessible.c. Any thread.
 */
bool wfi_memory_is_accessible(const void *data, size_t size, bool for_writing);
/* The same for data in a storage. True if weft has allocated the memory: only memory of the user's is checked. */
bool wfi_storage_is_accessible(const wfi_storage *storage, const void *data, size_t size, bool for_writing);
#define WFI_INACCESSIBLE "it is unmapped, protected, or lies behind the end of its file" /* for errors */

/* A range of local memory, and the remote range of the same size that it is copied from or to. */
typedef struct wfi_segment {
    void *local;
    wfi_storage *storage; /* contains `local`; the owner of the transfer keeps a reference until it is done */
    uint64_t size;
    wfi_rma_address remote;
    /* For net: `remote` as the peer named it first. Questions to the peer use it: the peer finds the memory by it, even
     * if other memory now has the same address. */
    wfi_rma_address first_remote;
    bool has_moved; /* for net: `first_remote` is set, and `remote` is the address that the peer has answered */
} wfi_segment;

/*
 * The registration cache of one fabric domain: the registered ranges, by anchor. A fabric has none if keys_per_transfer
 * is set and needs_local_regions is not (wfi_fabric_limits). An entry in use is never closed. Idle ones are closed when
 * their memory is freed, and, the least recently used first, when there are more than `entries_max` entries.
 *
 * `access` is a bit set that the fabric defines. A region has the access that it was opened for, and no more: memory
 * that may only be read can be registered for that. If more is asked for later, a region with both replaces it; the
 * former one is closed with its last use.
 */
typedef struct wfi_reg_cache wfi_reg_cache;
typedef struct wfi_reg_ops {
    weft_status (*open)(void *domain, const wfi_memory *memory, unsigned access, void **region);
    void (*close)(void *domain, void *region);
} wfi_reg_ops;
weft_status wfi_reg_cache_create(const wfi_reg_ops *ops, void *domain, size_t entries_max, wfi_reg_cache **out);
void wfi_reg_cache_destroy(wfi_reg_cache *cache);
/* A region of the whole storage or more, with at least this access; in use until put. */
weft_status wfi_reg_cache_get(wfi_reg_cache *cache, wfi_storage *storage, unsigned access, void **region);
/* The same, if there is such a region already; otherwise false. Registers nothing. */
bool wfi_reg_cache_find(wfi_reg_cache *cache, wfi_storage *storage, unsigned access, void **region);
void wfi_reg_cache_put(wfi_reg_cache *cache, wfi_storage *storage, const void *region);
void wfi_reg_cache_trim(wfi_reg_cache *cache); /* closes the registrations that are not in use */

#endif
