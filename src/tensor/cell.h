/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cell.h - tensors whose value is replaced as a whole: parameters and buffers of modules
 * (docs/decisions/045-cells.md).
 *
 * The tensor that users have is the handle: dtype, shape, id. Its cell holds the current snapshot, an ordinary
 * tensor, which readers reference (wfi_tensor_read) and writers replace. All of these functions also take ordinary
 * tensors, which are read and written directly.
 *
 * LOCKING. Any thread may call any function. One writer holds a cell's `writing` from begin to end. `lock` is held
 * for reading by threads that take a reference, or that read between hold and release; and for writing by threads
 * that exchange the snapshot or overwrite it. `writing` comes before `lock`. Between hold and release, and between
 * begin and end, a thread must not touch the same cell again, park, or run functions of the user.
 * LIFETIME. The handle owns the cell; the cell holds one reference to each of its snapshots.
 */
#ifndef WFI_CELL_H
#define WFI_CELL_H

#include "base/mutex.h"
#include "tensor/tensor.h"

/* tensor.c reads and ends it; all other access is in cell.c. */
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
 * The snapshot, borrowed, for readers that take no reference, so that writers need not copy; it does not change until
 * release.
 */
weft_tensor *wfi_tensor_hold(const weft_tensor *tensor);
void wfi_tensor_release(const weft_tensor *tensor);

/* How a cell is written. An ordinary tensor is always written in place. */
typedef enum wfi_write_how {
    WFI_WRITE_IN_PLACE, /* over the snapshot, even if others refer to it */
    WFI_WRITE_BESIDE,   /* all of it, into another slab */
    WFI_WRITE_WHOLE,    /* all of it: over the snapshot if it has no other reference, otherwise into another slab */
    WFI_WRITE_PART,     /* a part of it: the same, but the other slab starts as a copy */
} wfi_write_how;

typedef struct wfi_write {
    weft_tensor *target;
    wfi_write_how how;
    const weft_tensor *from; /* the present value, borrowed */
    weft_tensor *to;         /* the tensor to write; `from` itself if it is written in place */
    weft_tensor *slab;       /* a slab that was given and not needed */
} wfi_write;

/*
 * `slab`: from wfi_cell_reserve, or NULL; taken over in any case. WEFT_ERR_MEMORY, but not if there is a slab: then
 * wfi_write_end must not be called.
 */
weft_status wfi_write_begin(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor *slab);
/*
 * `done`: publishes the new value; a write in place makes a new version. False: nothing was written, or only into
 * another slab, which is dropped.
 */
void wfi_write_end(wfi_write *w, bool done);
/* The slab for a later write: the previous snapshot if it has no reference, otherwise a new one. WEFT_ERR_MEMORY. */
weft_status wfi_cell_reserve(weft_tensor *target, weft_tensor **slab);
bool wfi_cell_is_seen(weft_tensor *target); /* whether the snapshot has other references now */

#endif
