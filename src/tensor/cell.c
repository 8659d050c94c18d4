/* SPDX-License-Identifier: Apache-2.0 */
/* cell.c - making cells, holding and replacing their snapshots. */
#include "tensor/cell.h"

#include "base/alloc.h"
#include "tensor/copy.h"

#include <stdlib.h>

/* The lock prefers writers. Otherwise readers that follow each other without a pause could block a writer forever. */
static void init_lock(pthread_rwlock_t *lock)
{
    pthread_rwlockattr_t how;
    pthread_rwlockattr_init(&how);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(lock, &how);
    pthread_rwlockattr_destroy(&how);
}

static void lock_shared(wfi_cell *cell)
{
    pthread_rwlock_rdlock(&cell->lock);
}

static void lock_alone(wfi_cell *cell)
{
    pthread_rwlock_wrlock(&cell->lock);
}

static void unlock(wfi_cell *cell)
{
    pthread_rwlock_unlock(&cell->lock);
}

weft_status wfi_tensor_make_cell(weft_tensor *tensor)
{
    if (tensor->cell || tensor->grad_node || !weft_tensor_is_contiguous(tensor))
        return WEFT_OK;
    wfi_cell *cell = wfi_calloc(1, sizeof(*cell));
    if (!cell)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_tensor_over(tensor->storage, tensor->offset, tensor->shape, tensor->dtype, &cell->now);
    if (status != WEFT_OK) {
        free(cell);
        return status;
    }
    wfi_mutex_init(&cell->writing);
    init_lock(&cell->lock);
    cell->kind = wfi_storage_kind(tensor->storage);
    cell->device = wfi_storage_device(tensor->storage);
    wfi_storage_unref(tensor->storage);
    tensor->storage = NULL;
    tensor->offset = 0; /* the offset of a view counts from the snapshot's first element */
    wfi_shape_strides(&tensor->shape, tensor->strides);
    tensor->cell = cell;
    return WEFT_OK;
}

weft_tensor *wfi_tensor_hold(const weft_tensor *tensor)
{
    if (!tensor->cell)
        return (weft_tensor *)tensor;
    lock_shared(tensor->cell);
    return tensor->cell->now;
}

void wfi_tensor_release(const weft_tensor *tensor)
{
    if (tensor->cell)
        unlock(tensor->cell);
}

bool wfi_cell_is_seen(weft_tensor *target)
{
    wfi_cell *cell = target->cell;
    lock_alone(cell);
    bool seen = !wfi_tensor_is_alone(cell->now);
    unlock(cell);
    return seen;
}

weft_status wfi_cell_reserve(weft_tensor *target, weft_tensor **slab)
{
    wfi_cell *cell = target->cell;
    wfi_mutex_lock(&cell->writing);
    weft_tensor *spare = cell->spare;
    cell->spare = NULL;
    wfi_mutex_unlock(&cell->writing);
    *slab = spare;
    if (spare && wfi_tensor_is_alone(spare))
        return WEFT_OK;
    weft_tensor_unref(spare);
    *slab = NULL;
    return wfi_tensor_create(target->shape, target->dtype, cell->kind, cell->device, slab);
}

static void unlock_all(wfi_write *w)
{
    if (w->locked)
        unlock(w->target->cell);
    wfi_mutex_unlock(&w->target->cell->writing);
}

/* Prepares a write into another slab. The caller holds `writing`. Failure unlocks all. */
static weft_status write_beside(wfi_write *w)
{
    wfi_cell *cell = w->target->cell;
    weft_tensor *slab = w->slab;
    w->slab = NULL;
    weft_status status =
        slab ? WEFT_OK : wfi_tensor_create(w->target->shape, w->target->dtype, cell->kind, cell->device, &slab);
    if (status == WEFT_OK && w->how == WFI_WRITE_PART)
        status = wfi_copy(w->from, slab);
    w->to = slab;
    if (status == WEFT_OK)
        return WEFT_OK;
    unlock_all(w);
    weft_tensor_unref(slab);
    return status;
}

weft_status wfi_cell_write_begin(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor *slab)
{
    wfi_cell *cell = target->cell;
    *w = (wfi_write){.target = target, .how = how, .from = target, .to = target, .slab = slab};
    if (!cell)
        return WEFT_OK;
    wfi_mutex_lock(&cell->writing);
    w->from = w->to = cell->now;
    if (how == WFI_WRITE_BESIDE)
        return write_beside(w);
    lock_alone(cell);
    w->locked = how == WFI_WRITE_IN_PLACE || wfi_tensor_is_alone(cell->now);
    if (w->locked)
        return WEFT_OK;
    unlock(cell);
    return write_beside(w);
}

weft_status wfi_cell_write_try(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor **slab)
{
    wfi_cell *cell = target->cell;
    if (cell && !wfi_mutex_trylock(&cell->writing))
        return WEFT_ERR_TIMEOUT;
    if (cell && pthread_rwlock_trywrlock(&cell->lock) != 0) {
        wfi_mutex_unlock(&cell->writing);
        return WEFT_ERR_TIMEOUT;
    }
    *w = (wfi_write){.target = target, .how = how, .from = target, .to = target, .slab = *slab, .locked = cell != NULL};
    *slab = NULL;
    if (!cell)
        return WEFT_OK;
    w->from = w->to = cell->now;
    if (how == WFI_WRITE_IN_PLACE || (how != WFI_WRITE_BESIDE && wfi_tensor_is_alone(cell->now)))
        return WEFT_OK;
    return write_beside(w);
}

/*
 * Publishes the new snapshot. Returns a tensor that the caller must drop, or NULL. WFI_WRITE_BESIDE keeps the old
 * snapshot as `spare` for the next step, and returns the spare before it; other writes return the old snapshot.
 */
static weft_tensor *replace(wfi_write *w)
{
    wfi_cell *cell = w->target->cell;
    weft_tensor *before = cell->now;
    if (!w->locked)
        lock_alone(cell);
    cell->now = w->to;
    if (!w->locked)
        unlock(cell);
    if (w->how != WFI_WRITE_BESIDE)
        return before;
    weft_tensor *older = cell->spare;
    cell->spare = before;
    return older;
}

void wfi_cell_write_end(wfi_write *w, bool done)
{
    wfi_cell *cell = w->target->cell;
    weft_tensor *drop = NULL;
    if (done && w->to == w->from)
        wfi_storage_wrote(w->to->storage); /* tapes that need the old value detect the change */
    if (cell && w->to != w->from)
        drop = done ? replace(w) : w->to;
    if (cell)
        unlock_all(w);
    weft_tensor_unref(drop);
    weft_tensor_unref(w->slab);
}
