/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cell.h - tensors whose value is replaced as a whole: parameters and buffers of modules (docs/decisions/045-cells.md).
 *
 * The tensor that users have is the handle: dtype, shape, id. Its cell holds the current snapshot, an ordinary tensor, which readers
 * reference (wfi_tensor_read) and writers replace. All of these functions take ordinary tensors too, which are read and written as they are.
 *
 * LOCKING. Any thread may call any function. A cell's `writing` is one writer's from begin to end; `lock` is held for reading
 * by those who take a reference, or who read between hold and release, and for writing by those who exchange the snapshot or write over it.
 * `writing` comes before `lock`. Between hold and release, and between begin and end, a thread must not touch the same
 * cell again, park, or run functions of the user.
 * LIFETIME. The handle owns the cell; the cell holds one reference to each of its snapshots.
 */
#ifndef WFI_CELL_H
#define WFI_CELL_H

#include "base/mutex.h"
#include "tensor/tensor.h"

/* tensor.c reads and ends it, all else is cell.c's. */
struct wfi_cell {
    wfi_mutex writing;
    pthread_rwlock_t lock;
    weft_tensor *now;   /* the current snapshot, never NULL; changed by who has both locks */
    weft_tensor *spare; /* the one before it, or NULL; under `writing` */
    wfi_memory_kind kind;
    int device;
};

/* Makes `tensor` a handle; its storage goes to the first snapshot. It stays an ordinary tensor if it is not contiguous, was recorded, or
 * is a cell already. No other thread may use it meanwhile. WEFT_ERR_MEMORY. */
weft_status wfi_tensor_make_cell(weft_tensor *tensor);

/* For readers that take no reference, so that writers need not copy: the snapshot, borrowed; it does not change until release. */
weft_tensor *wfi_tensor_hold(const weft_tensor *tensor);
void wfi_tensor_release(const weft_tensor *tensor);

/* How a cell is written. An ordinary tensor is always written in place. */
typedef enum wfi_write_how {
    WFI_WRITE_IN_PLACE, /* over the snapshot, also if others refer to it */
    WFI_WRITE_BESIDE,   /* all of it, into another slab */
    WFI_WRITE_WHOLE,    /* all of it: over the snapshot if nobody else refers to it, else into another slab */
    WFI_WRITE_PART,     /* some of it: the same, but the other slab begins as a copy */
} wfi_write_how;

typedef struct wfi_write {
    weft_tensor *target;
    wfi_write_how how;
    const weft_tensor *from; /* the present value, borrowed */
    weft_tensor *to;         /* what to write; `from` itself if it is written in place */
    weft_tensor *slab;       /* what was given and not needed */
} wfi_write;

/* `slab`: of wfi_cell_reserve, taken over in any case, or NULL. WEFT_ERR_MEMORY: then there must be no end; not if there is a slab. */
weft_status wfi_write_begin(wfi_write *w, weft_tensor *target, wfi_write_how how, weft_tensor *slab);
/* `done`: publishes; what was written in place is a new version. False: nothing was written, or only beside, which is dropped. */
void wfi_write_end(wfi_write *w, bool done);
/* The slab of a later write beside: the snapshot before this one if nobody refers to it any more, else a new one. WEFT_ERR_MEMORY. */
weft_status wfi_cell_reserve(weft_tensor *target, weft_tensor **slab);
bool wfi_cell_is_seen(weft_tensor *target); /* whether somebody else refers to the snapshot just now */

#endif
