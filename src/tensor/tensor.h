/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - the inside of a tensor, and making tensors over storage. Kernels are in cpu/.
 *
 * LOCKING. None, but cells have their own (cell.h). Everything but `refs` and `requires_grad`, which are atomic, is fixed before a tensor
 * is handed out, so any thread may read it. `grad_node` is set once, by the tape that made the tensor, before anyone else sees it.
 * Leaves have none: one leaf may be used on many tapes at the same time, and a tape finds its leaves by their `id`.
 * LIFETIME. A tensor holds one reference to its storage (mem.h), which views of it share. With its last reference it
 * drops both.
 */
#ifndef WFI_TENSOR_H
#define WFI_TENSOR_H

#include "base/handle.h"
#include "mem/mem.h"
#include "tensor/dtype.h"

#include <weft/tensor.h>

#include <stdatomic.h>

struct weft_tensor {
    wfi_handle handle;
    _Atomic uint32_t refs;
    atomic_bool requires_grad;
    weft_dtype dtype;
    weft_shape shape;
    int64_t strides[WEFT_MAX_DIMS]; /* in elements */
    int64_t offset;                 /* of the first element, in elements */
    int64_t numel;
    uint64_t id;           /* never used twice in a process: a key for maps */
    wfi_storage *storage;  /* one reference; NULL: a cell */
    struct wfi_cell *cell; /* of the module's that it is a parameter or buffer of, see cell.h; else NULL */
    void *grad_node;       /* autograd's; NULL: a leaf, or not recorded */
    uint32_t grad_result;  /* which result of that node it is */
    void (*grad_node_drop)(void *grad_node); /* runs with the last reference; may be NULL */
};

/* "float32 [2, 3]": a tensor that could not be made, for the log; the shape and the dtype may be invalid. */
#define WFI_WANTED_TEXT 128
const char *wfi_tensor_wanted(const weft_shape *shape, weft_dtype dtype, char text[WFI_WANTED_TEXT]);
/* New contiguous tensor on a kind of memory. WEFT_ERR_INVALID, _TOO_LARGE, _MEMORY, _UNSUPPORTED. */
weft_status wfi_tensor_create(weft_shape shape, weft_dtype dtype, wfi_memory_kind kind, int device, weft_tensor **out);
/* New and contiguous where `tensor` is. NULL: no memory. */
weft_tensor *wfi_tensor_empty_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype);
/* Contiguous over an existing storage, which it references. The range must lie inside it. */
weft_status wfi_tensor_over(wfi_storage *storage, int64_t offset, weft_shape shape, weft_dtype dtype,
                            weft_tensor **out);
/* A view of `tensor` with another geometry; the range must lie inside the storage. */
weft_status wfi_tensor_view(const weft_tensor *tensor, weft_shape shape, const int64_t *strides, int64_t offset,
                            weft_tensor **out);

/* False if a size is negative, there are too many dimensions, or the product overflows. */
bool wfi_shape_numel(const weft_shape *shape, int64_t *numel);
bool wfi_shape_equal(const weft_shape *a, const weft_shape *b);
void wfi_shape_strides(const weft_shape *shape, int64_t strides[WEFT_MAX_DIMS]); /* row-major */
/* Fills in a -1 of a reshape. WEFT_ERR_SHAPE if the element count does not come out. */
weft_status wfi_shape_infer(int64_t numel, weft_shape *shape);
bool wfi_dim_wrap(int ndim, int *dim); /* negative ones count from the end; false if outside */

#define WFI_DEVICE_TEXT 24
const char *wfi_device_text(weft_device device, char text[WFI_DEVICE_TEXT]); /* "the CPU", "cuda:1"; returns `text` */

/* What lies behind a cell: the present snapshot, with a reference; borrowed until the next write; fixed. */
typedef struct wfi_cell wfi_cell;
weft_tensor *wfi_cell_read(wfi_cell *cell);
wfi_storage *wfi_cell_storage(wfi_cell *cell);
void *wfi_cell_address(wfi_cell *cell);
wfi_memory_kind wfi_cell_kind(const wfi_cell *cell);

/* What to read the elements of `tensor` from, with a reference: a cell's snapshot, which stays as it is; else itself. */
static inline weft_tensor *wfi_tensor_read(const weft_tensor *tensor)
{
    return tensor->cell == NULL ? weft_tensor_ref((weft_tensor *)tensor) : wfi_cell_read(tensor->cell);
}

/* Borrowed. Of a cell: until its next write, so for those who read, and not beside a step, wfi_tensor_read is the way. */
static inline wfi_storage *wfi_tensor_storage(const weft_tensor *tensor)
{
    return tensor->cell == NULL ? tensor->storage : wfi_cell_storage(tensor->cell);
}

static inline wfi_memory_kind wfi_tensor_kind(const weft_tensor *tensor)
{
    return tensor->cell == NULL ? wfi_storage_kind(tensor->storage) : wfi_cell_kind(tensor->cell);
}

/* Whether the caller's reference is the only one, and nothing else refers to the storage: then it may be written to. */
static inline bool wfi_tensor_is_alone(const weft_tensor *tensor)
{
    return tensor->cell == NULL && atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1 &&
           wfi_storage_is_alone(tensor->storage);
}

/* The first element's address, in whatever memory it is; of a cell as wfi_tensor_storage. */
static inline void *wfi_tensor_address(const weft_tensor *tensor)
{
    if (tensor->cell != NULL)
        return wfi_cell_address(tensor->cell);
    return (char *)wfi_storage_data(tensor->storage) + (size_t)tensor->offset * weft_dtype_size(tensor->dtype);
}

#endif
