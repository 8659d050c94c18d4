/* SPDX-License-Identifier: Apache-2.0 */
/* storage.c - reference-counted storages, and their read pins. */
#include "mem/storage.h"

#include "base/parker.h"
#include "mem/cuda.h"
#include "mem/cuda_copy.h"
#include "mem/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_ALIGNMENT 64

static atomic_bool devices_used;

bool wfi_storage_devices_used(void)
{
    return atomic_load_explicit(&devices_used, memory_order_relaxed);
}

/* Allocates it with `room` bytes after the struct. */
static wfi_storage *storage_alloc(wfi_memory_kind kind, int device, size_t size, size_t room)
{
    wfi_storage *storage = malloc(sizeof(*storage) + room);
    if (!storage)
        return NULL;
    memset(storage, 0, sizeof(*storage));
    atomic_init(&storage->refs, 1);
    storage->kind = kind;
    storage->device = device;
    storage->size = size;
    wfi_mutex_init(&storage->lock);
    wfi_list_init(&storage->waiters);
    if (kind == WFI_MEMORY_CUDA)
        atomic_store_explicit(&devices_used, true, memory_order_relaxed);
    return storage;
}

static void storage_dealloc(wfi_storage *storage)
{
    wfi_mutex_fini(&storage->lock);
    free(storage);
}

/* Small storages have their bytes in the same block, after the struct: malloc is cheap, but aligned_alloc is not. */
static void *bytes_behind(wfi_storage *storage)
{
    uintptr_t end = (uintptr_t)(storage + 1);
    return (char *)(storage + 1) + (-end & (SMALL_ALIGNMENT - 1));
}

/* Other streams may still use the slab. The stream of this thread, which writes it next, waits for them. */
static weft_status allocate_slab(wfi_storage *storage)
{
    int stream = storage->kind == WFI_MEMORY_CUDA ? wfi_stream_now(storage->device)->number : 0;
    weft_status status = wfi_slab_alloc(storage->kind, storage->device, storage->size, stream, &storage->slab);
    if (status != WEFT_OK)
        return status;
    storage->data = storage->slab->data;
    atomic_init(&storage->uses, storage->slab->uses);
    status = wfi_storage_use(storage, true);
    if (status != WEFT_OK)
        wfi_slab_free(storage->slab);
    return status;
}

weft_status wfi_storage_create(wfi_memory_kind kind, int device, size_t size, wfi_storage **out)
{
    if ((unsigned)kind > WFI_MEMORY_CUDA)
        return WEFT_ERR_INVALID;
    if (kind == WFI_MEMORY_CUDA && !wfi_cuda_is_number(device))
        return wfi_cuda_check(device, NULL); /* never WEFT_OK */
    bool small = kind == WFI_MEMORY_HOST && size < WFI_SLAB_BYTES_MIN;
    size_t room = small ? SMALL_ALIGNMENT + size : 0;
    wfi_storage *storage = storage_alloc(kind, kind == WFI_MEMORY_HOST ? 0 : device, size, room);
    if (!storage)
        return WEFT_ERR_MEMORY;
    weft_status status = small ? WEFT_OK : allocate_slab(storage);
    if (status != WEFT_OK) {
        storage_dealloc(storage);
        return status;
    }
    storage->is_small = small;
    if (small)
        storage->data = bytes_behind(storage);
    wfi_reg_anchor_init(&storage->anchor, storage->data, size);
    *out = storage;
    return WEFT_OK;
}

weft_status wfi_storage_wrap(wfi_memory_kind kind, int device, void *data, size_t size, weft_drop_fn drop, void *arg,
                             wfi_storage **out)
{
    weft_status status = WEFT_ERR_INVALID;
    if ((unsigned)kind > WFI_MEMORY_CUDA || (!data && size > 0) ||
        (kind == WFI_MEMORY_CUDA && !wfi_cuda_is_number(device)))
        goto drop;
    status = WEFT_ERR_MEMORY;
    wfi_storage *storage = storage_alloc(kind, kind == WFI_MEMORY_HOST ? 0 : device, size, 0);
    if (!storage)
        goto drop;
    storage->data = data;
    atomic_init(&storage->is_lent, true);
    if (kind == WFI_MEMORY_CUDA)
        atomic_init(&storage->uses, 1); /* as if the common stream had written it: others wait for that stream */
    storage->drop = drop;
    storage->drop_arg = arg;
    wfi_reg_anchor_init(&storage->anchor, data, size);
    *out = storage;
    return WEFT_OK;
drop:
    if (drop)
        drop(arg);
    return status;
}

wfi_storage *wfi_storage_ref(wfi_storage *storage)
{
    uint32_t before = atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    assert(before > 0 && before < UINT32_MAX);
    (void)before;
    return storage;
}

bool wfi_storage_is_alone(const wfi_storage *storage)
{
    return atomic_load_explicit(&storage->refs, memory_order_acquire) == 1;
}

void wfi_storage_unref(wfi_storage *storage)
{
    if (!storage || atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1)
        return;
    assert(storage->readers == 0 && wfi_list_empty(&storage->waiters));
    wfi_reg_anchor_fini(&storage->anchor);
    if (storage->slab) {
        storage->slab->uses = atomic_load_explicit(&storage->uses, memory_order_relaxed) & WFI_STREAM_BITS;
        wfi_slab_free(storage->slab);
    }
    if (storage->drop) {
        (void)wfi_storage_wait_idle(storage); /* if the GPU has failed, it no longer uses the memory */
        storage->drop(storage->drop_arg);
    }
    storage_dealloc(storage);
}

void *wfi_storage_data(const wfi_storage *storage)
{
    return storage->data;
}

size_t wfi_storage_size(const wfi_storage *storage)
{
    return storage->size;
}

wfi_memory_kind wfi_storage_kind(const wfi_storage *storage)
{
    return storage->kind;
}

int wfi_storage_device(const wfi_storage *storage)
{
    return storage->device;
}

void wfi_storage_pin_read(wfi_storage *storage)
{
    wfi_mutex_lock(&storage->lock);
    storage->readers++;
    wfi_mutex_unlock(&storage->lock);
}

void wfi_storage_unpin_read(wfi_storage *storage)
{
    wfi_mutex_lock(&storage->lock);
    assert(storage->readers > 0);
    storage->readers--;
    if (storage->readers == 0) {
        for (wfi_list *link = storage->waiters.next; link != &storage->waiters; link = link->next)
            wfi_unpark(wfi_container_of(link, wfi_parker, link));
    }
    wfi_mutex_unlock(&storage->lock);
}

/* Joins the waiters if there are read pins. */
static bool unread_or_enlist(wfi_storage *storage, wfi_parker *parker)
{
    wfi_mutex_lock(&storage->lock);
    bool unread = storage->readers == 0;
    if (!unread)
        wfi_list_push_back(&storage->waiters, &parker->link);
    wfi_mutex_unlock(&storage->lock);
    return unread;
}

static bool leave_waiters(wfi_storage *storage, wfi_parker *parker)
{
    wfi_mutex_lock(&storage->lock);
    wfi_list_remove(&parker->link);
    bool unread = storage->readers == 0;
    wfi_mutex_unlock(&storage->lock);
    return unread;
}

bool wfi_storage_wait_unread(wfi_storage *storage, uint64_t deadline_ns)
{
    wfi_parker parker;
    wfi_parker_init(&parker);
    while (!unread_or_enlist(storage, &parker)) {
        bool woken = wfi_park(&parker, deadline_ns);
        if (leave_waiters(storage, &parker))
            return true;
        if (!woken)
            return false;
    }
    return true;
}

/* Not from a device to the host: read_device. */
static weft_status copy_bytes(wfi_memory_kind to_kind, int to_device, void *to, const wfi_storage *from,
                              const void *source, size_t size)
{
    if (size == 0)
        return WEFT_OK;
    if (to_kind == WFI_MEMORY_CUDA)
        return wfi_cuda_copy(to_device, to, from->kind, from->device, source, size);
    memmove(to, source, size);
    return WEFT_OK;
}

/* Waits for the stream that wrote the storage. */
static weft_status read_device(const wfi_storage *from, const char *source, void *to, size_t size)
{
    uint64_t uses = atomic_load_explicit(&from->uses, memory_order_acquire);
    int writer = uses == 0 ? wfi_stream_now(from->device)->number : (int)(uses >> WFI_WRITER);
    return wfi_stream_copy_to_host(from->device, writer, to, source, size);
}

weft_status wfi_memory_copy(wfi_storage *to, size_t to_offset, const wfi_storage *from, size_t from_offset, size_t size)
{
    bool fits = to_offset <= to->size && size <= to->size - to_offset && from_offset <= from->size &&
                size <= from->size - from_offset;
    if (!fits)
        return WEFT_ERR_INVALID;
    char *at = (char *)to->data + to_offset;
    const char *source = (const char *)from->data + from_offset;
    if (size > 0 && from->kind == WFI_MEMORY_CUDA && to->kind != WFI_MEMORY_CUDA)
        return read_device(from, source, at, size);
    weft_status status = wfi_storage_use((wfi_storage *)from, false);
    if (status == WEFT_OK)
        status = wfi_storage_use(to, true);
    return status != WEFT_OK ? status : copy_bytes(to->kind, to->device, at, from, source, size);
}

/* This stream first waits: before a write for all streams that use the storage, before a read for the one that
 * wrote. */
static weft_status cross(wfi_storage *storage, weft_stream *now, bool write)
{
    wfi_mutex_lock(&storage->lock);
    uint64_t uses = atomic_load_explicit(&storage->uses, memory_order_relaxed), me = UINT64_C(1) << now->number;
    uint64_t others = write ? uses & WFI_STREAM_BITS : uses == 0 ? 0 : UINT64_C(1) << (uses >> WFI_WRITER);
    weft_status status = wfi_stream_follow(now, others);
    if (status == WEFT_OK)
        atomic_store_explicit(&storage->uses, write || uses == 0 ? me | (uint64_t)now->number << WFI_WRITER : uses | me,
                              memory_order_release);
    wfi_mutex_unlock(&storage->lock);
    return status;
}

weft_status wfi_storage_use(wfi_storage *storage, bool write)
{
    if (storage->kind != WFI_MEMORY_CUDA)
        return WEFT_OK;
    weft_stream *now = wfi_stream_now(storage->device);
    uint64_t uses = atomic_load_explicit(&storage->uses, memory_order_acquire), me = UINT64_C(1) << now->number;
    bool ordered = write ? uses == (me | (uint64_t)now->number << WFI_WRITER) : (uses & me) != 0;
    return ordered ? WEFT_OK : cross(storage, now, write);
}

weft_status wfi_storage_wait_idle(const wfi_storage *storage)
{
    if (storage->kind != WFI_MEMORY_CUDA)
        return WEFT_OK;
    uint64_t uses = atomic_load_explicit(&storage->uses, memory_order_acquire);
    return wfi_stream_wait_all(storage->device, uses & WFI_STREAM_BITS, WFI_NEVER);
}

weft_status wfi_storage_lend(wfi_storage *storage)
{
    atomic_store_explicit(&storage->is_lent, true, memory_order_release);
    return wfi_storage_wait_idle(storage);
}

void wfi_storage_add_writer(const wfi_storage *storage, uint64_t *writers)
{
    uint64_t uses = atomic_load_explicit(&storage->uses, memory_order_acquire);
    if (storage->kind == WFI_MEMORY_CUDA && uses != 0)
        writers[storage->device] |= UINT64_C(1) << (uses >> WFI_WRITER);
}

weft_status wfi_memory_read(const wfi_storage *from, size_t offset, void *to, size_t size)
{
    if (offset > from->size || size > from->size - offset)
        return WEFT_ERR_INVALID;
    const char *source = (const char *)from->data + offset;
    if (size > 0 && from->kind == WFI_MEMORY_CUDA)
        return read_device(from, source, to, size);
    return copy_bytes(WFI_MEMORY_HOST, 0, to, from, source, size);
}

void wfi_storage_wrote(wfi_storage *storage)
{
    atomic_fetch_add_explicit(&storage->version, 1, memory_order_relaxed);
}

uint64_t wfi_storage_version(const wfi_storage *storage)
{
    return atomic_load_explicit(&storage->version, memory_order_relaxed);
}

weft_stream *wfi_storage_writer(const wfi_storage *storage)
{
    int writer = (int)(atomic_load_explicit(&storage->uses, memory_order_acquire) >> WFI_WRITER);
    return storage->kind == WFI_MEMORY_CUDA && writer > 0 ? wfi_stream_find(storage->device, writer) : NULL;
}
