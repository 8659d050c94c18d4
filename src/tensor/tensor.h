/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h - the fields of a tensor, and functions that create tensors over storages. Kernels are in cpu/ and cuda/.
 *
 * LOCKING. Only cells have locks (cell.h). `refs` and `requires_grad` are atomic. All other fields are set before a
 * tensor is handed out, so any thread may read them. `grad_node` is set once, by the tape that made the tensor, before
 * another thread sees the tensor. Leaves have no node: one leaf may be used on many tapes at the same time, and a tape
 * finds its leaves by their `id`.
 * LIFETIME. A tensor holds one reference to its storage (mem.h), which views of it share. When the last reference to
 * the tensor is dropped, it drops its node and its storage.
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
    wfi_storage *storage;  /* one reference; NULL if the tensor has a cell */
    struct wfi_cell *cell; /* of a parameter or buffer of a module, see cell.h; otherwise NULL */
    void *grad_node;       /* the operation that made it, of src/autograd; NULL: a leaf, or not recorded */
    uint32_t grad_result;  /* which result of `grad_node` it is */
    void (*grad_node_drop)(void *grad_node); /* runs when the last reference is dropped; may be NULL */
};

/* Describes a tensor that could not be made, for the log: "float32 [2, 3]". The shape and the dtype may be invalid. */
#define WFI_WANTED_TEXT 128
const char *wfi_tensor_wanted(const weft_shape *shape, weft_dtype dtype, char text[WFI_WANTED_TEXT]);
/* Why no tensor of that shape and dtype can be made: `status` is that of the attempt. */
#define WFI_NO_TENSOR_TEXT 96
const char *wfi_tensor_fault(const weft_shape *shape, weft_dtype dtype, weft_status status,
                             char text[WFI_NO_TENSOR_TEXT]);
/* Whether there can be such a tensor: WEFT_ERR_TYPE, WEFT_ERR_SHAPE, WEFT_ERR_TOO_LARGE. */
weft_status wfi_tensor_check(const weft_shape *shape, weft_dtype dtype);
/* New contiguous tensor on a kind of memory. WEFT_ERR_TYPE, _SHAPE, _TOO_LARGE, _MEMORY, _UNSUPPORTED. */
weft_status wfi_tensor_create(weft_shape shape, weft_dtype dtype, wfi_memory_kind kind, int device, weft_tensor **out);
/*
 * The constructors of weft/tensor.h, for the library itself. They return the tensor. NULL: it could not be made; *why,
 * if `why` is not NULL, receives the reason.
 */
weft_tensor *wfi_tensor_empty(weft_shape shape, weft_dtype dtype, weft_error **why);
weft_tensor *wfi_tensor_zeros(weft_shape shape, weft_dtype dtype, weft_error **why);
weft_tensor *wfi_tensor_full(weft_shape shape, weft_dtype dtype, double value, weft_error **why);
weft_tensor *wfi_tensor_arange(int64_t count, weft_dtype dtype, weft_error **why);
weft_tensor *wfi_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data, weft_error **why);
weft_tensor *wfi_tensor_empty_on(weft_device device, weft_shape shape, weft_dtype dtype, weft_error **why);
weft_tensor *wfi_tensor_empty_pinned(weft_device device, weft_shape shape, weft_dtype dtype, weft_error **why);
weft_tensor *wfi_tensor_to_device(weft_tensor *tensor, weft_device device, weft_error **why);
/* The same; a copy from a GPU to the CPU is in page-locked memory, which is faster. */
weft_tensor *wfi_tensor_to_device_pinned(weft_tensor *tensor, weft_device device);
weft_tensor *wfi_tensor_reshape(weft_tensor *tensor, weft_shape shape, weft_error **why);
weft_tensor *wfi_tensor_transpose(weft_tensor *tensor, int dim0, int dim1, weft_error **why);
weft_tensor *wfi_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length, weft_error **why);
weft_tensor *wfi_tensor_select(weft_tensor *tensor, int dim, int64_t index, weft_error **why);
weft_tensor *wfi_tensor_contiguous(weft_tensor *tensor, weft_error **why);
weft_tensor *wfi_tensor_clone(const weft_tensor *tensor, weft_error **why);
weft_tensor *wfi_tensor_to(weft_tensor *tensor, weft_dtype dtype, weft_error **why);
/* A new contiguous tensor on the device of `tensor`. NULL: no memory. */
weft_tensor *wfi_tensor_empty_like(const weft_tensor *tensor, weft_shape shape, weft_dtype dtype);
/* A contiguous tensor over an existing storage, to which it takes a reference. Its elements must lie in the storage. */
weft_status wfi_tensor_over(wfi_storage *storage, int64_t offset, weft_shape shape, weft_dtype dtype,
                            weft_tensor **out);
/* Memory that another owns, and the tensor over it; see weft_tensor_wrap. */
typedef struct wfi_wrapping {
    wfi_memory_kind kind;
    int device;
    weft_shape shape;
    weft_dtype dtype;
    void *data;             /* of the first element */
    const int64_t *strides; /* NULL: row-major without gaps */
    weft_drop_fn drop;      /* runs at the end, and at once on failure; may be NULL */
    void *arg;
} wfi_wrapping;
#define WFI_WHY_TEXT 256
/* On failure `why` is the reason. WEFT_ERR_INVALID, _TYPE, _SHAPE, _TOO_LARGE, _MEMORY. */
weft_status wfi_tensor_wrap(const wfi_wrapping *how, weft_tensor **out, char why[WFI_WHY_TEXT]);
/* A view of `tensor` with another geometry; the range must lie inside the storage. */
weft_status wfi_tensor_view(const weft_tensor *tensor, weft_shape shape, const int64_t *strides, int64_t offset,
                            weft_tensor **out);

/* False if a size is negative, there are too many dimensions, or the product overflows. */
bool wfi_shape_numel(const weft_shape *shape, int64_t *numel);
/* The same with a status: WEFT_ERR_SHAPE for the first two, WEFT_ERR_TOO_LARGE for the third. */
weft_status wfi_shape_check(const weft_shape *shape, int64_t *numel);
bool wfi_shape_equal(const weft_shape *a, const weft_shape *b);
void wfi_shape_strides(const weft_shape *shape, int64_t strides[WEFT_MAX_DIMS]); /* row-major */
/* Replaces a size of -1, so that the shape has `numel` elements. WEFT_ERR_SHAPE if no size does that. */
weft_status wfi_shape_infer(int64_t numel, weft_shape *shape);
bool wfi_dim_wrap(int ndim, int *dim); /* negative ones count from the end; false if outside */

static inline bool wfi_device_equal(weft_device a, weft_device b)
{
    return a.kind == b.kind && a.index == b.index;
}
#define WFI_DEVICE_TEXT 24
const char *wfi_device_text(weft_device device, char text[WFI_DEVICE_TEXT]); /* "the CPU", "cuda:1"; returns `text` */
/* Reads "cpu", "cuda" or "cuda:1". False: the text is no device. Whether there is such a GPU is not checked. */
bool wfi_device_parse(const char *text, weft_device *out);

/* wfi_cell_read returns a reference to the present snapshot of a cell. The storage and the address of the snapshot are
 * borrowed until the next write of the cell. The kind of memory never changes. */
typedef struct wfi_cell wfi_cell;
weft_tensor *wfi_cell_read(wfi_cell *cell);
wfi_storage *wfi_cell_storage(wfi_cell *cell);
void *wfi_cell_address(wfi_cell *cell);
wfi_memory_kind wfi_cell_kind(const wfi_cell *cell);

/* Returns a reference to the tensor from which the elements of `tensor` can be read: the snapshot of a cell, otherwise
 * `tensor` itself. Only a write in place (WFI_WRITE_IN_PLACE) changes a snapshot while others refer to it. */
static inline weft_tensor *wfi_tensor_read(const weft_tensor *tensor)
{
    return !tensor->cell ? weft_tensor_ref((weft_tensor *)tensor) : wfi_cell_read(tensor->cell);
}

/* Borrowed; of a cell, only until its next write. To read elements while an optimizer may step, use wfi_tensor_read. */
static inline wfi_storage *wfi_tensor_storage(const weft_tensor *tensor)
{
    return !tensor->cell ? tensor->storage : wfi_cell_storage(tensor->cell);
}

static inline wfi_memory_kind wfi_tensor_kind(const weft_tensor *tensor)
{
    return !tensor->cell ? wfi_storage_kind(tensor->storage) : wfi_cell_kind(tensor->cell);
}

/* Before the elements are read or written on a GPU; see wfi_storage_use. */
static inline weft_status wfi_tensor_use(const weft_tensor *tensor, bool write)
{
    if (wfi_tensor_kind(tensor) != WFI_MEMORY_CUDA)
        return WEFT_OK;
    return wfi_storage_use(wfi_tensor_storage(tensor), write);
}

/* Whether the caller's reference is the only one, and nothing else refers to the storage: then it may be written to. */
static inline bool wfi_tensor_is_alone(const weft_tensor *tensor)
{
    return !tensor->cell && atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1 &&
           wfi_storage_is_alone(tensor->storage);
}

/* The address of the first element, in host or device memory. Of a cell it is valid until the next write. */
static inline void *wfi_tensor_address(const weft_tensor *tensor)
{
    if (tensor->cell)
        return wfi_cell_address(tensor->cell);
    return (char *)wfi_storage_data(tensor->storage) + (size_t)tensor->offset * weft_dtype_size(tensor->dtype);
}

#endif
