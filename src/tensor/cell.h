/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cell.h - tensors whose value is replaced as a whole: parameters and buffers of modules
 * (docs/decisions/045-cells.md).
 *
 * The tensor that users have is the handle: dtype, shape, id. Its cell holds the current snapshot, an ordinary
 * tensor, which readers reference (wfi_tensor_read) and writers replace. All of these functions also take ordinary
 * tensors, which are read and written directly.
 *
 * LOCKING. Any thread may call any function. A writer holds a cell's `writing` from wfi_cell_write_begin to
 * wfi_cell_write_end. A thread that takes a reference to the snapshot, or reads it between hold and release, locks
 * `lock` shared. A thread that exchanges or overwrites the snapshot locks `lock` exclusively. `writing` is locked
 * before `lock`. Between hold and release, and between begin and end, a thread must not touch the same cell again,
 * park, or run functions of the user. A thread that writes several cells at the same time begins with
 * wfi_cell_write_try, which does not wait: two such threads, or a reader that holds several cells, would wait for
 * each other.
 * LIFETIME. The handle owns the cell; the cell holds one reference to each of its snapshots.
 */
#ifndef WFI_CELL_H
#define WFI_CELL_H

#include "base/mutex.h"
#include "tensor/tensor.h"

/* Only cell.c and tensor.c use the fields: tensor.c reads the snapshot and frees the cell. */
struct wfi_cell {
    wfi_mutex writing;
    pthread_rwlock_t lock;
    weft_tensor *now;   /* the current snapshot, never NULL; changed only with both locks */
    weft_tensor *spare; /* the previous snapshot, or NULL; guarded by `writing` */
    wfi_memory_kind kind;
    int device;
};

/*
 * Makes `tensor` a handle; its storage goes to the first snapshot. A tensor that is not contiguous, was recorded, or
 * is a cell already stays as it is. No other thread may use it meanwhile. WEFT_ERR_MEMORY.
 */
weft_status wfi_tensor_make_cell(weft_tensor *tensor);

/*
 * Returns the snapshot, borrowed; it does not change until wfi_tensor_release. Because the reader takes no reference, a
 * later writer can overwrite the snapshot and need not copy it.
 */
weft_tensor *wfi_tensor_hold(const weft_tensor *tensor);
void wfi_tensor_release(const weft_tensor *tensor);

/* How a cell is written. An ordinary tensor is always written in place. */
typedef enum wfi_write_how {
    WFI_WRITE_IN_PLACE, /* over the snapshot, even if others refer to it */
    WFI_WRITE_BESIDE,   /* the whole value, into another slab */
    WFI_WRITE_WHOLE, /* the whole value: over the snapshot if nobody else refers to it, otherwise into another slab */
    WFI_WRITE_PART,  /* a part of the value: as WFI_WRITE_WHOLE, but another slab starts as a copy of the snapshot */
} wfi_write_how;

typedef struct wfi_write {
    weft_tensor *target;
    wfi_write_how how;
    const weft_tensor *from; /* the present value, borrowed */
    weft_tensor *to;         /* the tensor to write; `from` itself for a write in place */
    weft_tensor *slab;       /* the caller's slab, if it was not needed */
    bool locked;             /* the write holds the cell's `lock` until its end */
} wfi_write;

/*
 * Begins a write. `slab` comes from wfi_cell_reserve or is NULL; wfi_cell_write_begin takes it over, even if it fails.
 * WEFT_ERR_MEMORY, never if `slab` is not NULL. After a failure wfi_cell_write_end must not be called.
 */
weft_status wfi_cell_write_begin(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor *slab);
/*
 * The same without waiting for other threads. WEFT_ERR_TIMEOUT: one of them reads or writes the cell now; then *slab
 * stays the caller's. After success wfi_cell_write_end does not wait either.
 */
weft_status wfi_cell_write_try(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor **slab);
/*
 * Ends a write. If `done` is true, the new value is published; a write in place gives the storage a new version. Pass
 * `done` false only if nothing was written in place. If another slab was written, it is dropped.
 */
void wfi_cell_write_end(wfi_write *w, bool done);
/* Gives a slab for a later write: the previous snapshot if nobody refers to it, otherwise a new tensor.
 * WEFT_ERR_MEMORY. */
weft_status wfi_cell_reserve(weft_tensor *target, weft_tensor **slab);
bool wfi_cell_is_seen(weft_tensor *target); /* whether others than the cell refer to the snapshot now */

#endif
