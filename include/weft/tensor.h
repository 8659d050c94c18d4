/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tensor.h - tensors: a counted view (dtype, sizes, strides, offset) of a counted storage.
 *
 * Row-major; strides in elements. A tensor's shape never changes; its contents may, and whoever shares a storage orders
 * that among themselves. References may be taken and dropped from any thread.
 * Functions that make a tensor return NULL if memory is out or an argument is wrong (weft/log.h at debug says which).
 */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include <weft/status.h>

WEFT_BEGIN_C

#define WEFT_MAX_DIMS 8

typedef enum weft_dtype {
    WEFT_FLOAT32 = 0,
    WEFT_FLOAT64 = 1,
    WEFT_INT64 = 2,
    WEFT_INT32 = 3,
    WEFT_UINT8 = 4,
    WEFT_BOOL_DTYPE = 5, /* one byte, 0 or 1 */
} weft_dtype;

/* Sizes of up to WEFT_MAX_DIMS dimensions, by value; WEFT_SHAPE(2, 3) makes one, WEFT_SCALAR is the empty one. */
typedef struct weft_shape {
    int ndim;
    int64_t dims[WEFT_MAX_DIMS];
} weft_shape;

/* A borrowed list of tensors: `count` pointers at `items`. Lives as long as whoever lent it says. */
typedef struct weft_tensors {
    weft_tensor *const *items;
    size_t count;
} weft_tensors;

#ifdef __cplusplus
}
template <typename... D> static inline weft_shape WEFT_SHAPE(D... d)
{
    return weft_shape{(int)sizeof...(d), {(int64_t)d...}};
}
extern "C" {
#else
#define WEFT_SHAPE(...) ((weft_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#endif
#define WEFT_SCALAR (weft_tensor_scalar_shape())
static inline weft_shape weft_tensor_scalar_shape(void)
{
    weft_shape s = {0, {0}};
    return s;
}

WEFT_API size_t weft_dtype_size(weft_dtype dtype);      /* bytes an element; 0 for no dtype */
WEFT_API const char *weft_dtype_name(weft_dtype dtype); /* "float32" ... */

/* New contiguous tensors, one reference each. Storage comes from recycled slabs. */
WEFT_API weft_tensor *weft_tensor_empty(weft_shape shape, weft_dtype dtype); /* contents undefined */
WEFT_API weft_tensor *weft_tensor_zeros(weft_shape shape, weft_dtype dtype);
WEFT_API weft_tensor *weft_tensor_full(weft_shape shape, weft_dtype dtype, double value);
WEFT_API weft_tensor *weft_tensor_arange(int64_t count, weft_dtype dtype); /* 0, 1, ... count-1 */
WEFT_API weft_tensor *weft_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data);

/*
 * Your memory without a copy: `data` holds the elements, contiguous; `drop(arg)` runs when the last reference goes, or
 * at once if this fails. drop NULL: you keep it alive as long as anything may use it.
 */
WEFT_API weft_tensor *weft_tensor_wrap(weft_shape shape, weft_dtype dtype, void *data, weft_drop_fn drop, void *arg);

WEFT_API weft_tensor *weft_tensor_ref(weft_tensor *tensor);
WEFT_API void weft_tensor_unref(weft_tensor *tensor);

WEFT_API weft_dtype weft_tensor_dtype(const weft_tensor *tensor);
WEFT_API int weft_tensor_ndim(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_size(const weft_tensor *tensor, int dim);   /* dim < 0 counts from the end; 0 if none */
WEFT_API int64_t weft_tensor_stride(const weft_tensor *tensor, int dim); /* in elements */
WEFT_API weft_shape weft_tensor_shape(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_numel(const weft_tensor *tensor);
WEFT_API size_t weft_tensor_nbytes(const weft_tensor *tensor); /* numel times element size */
WEFT_API bool weft_tensor_is_contiguous(const weft_tensor *tensor);
WEFT_API bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b);

/* The first element. Host memory only; NULL for device memory. Borrowed. */
WEFT_API void *weft_tensor_data(const weft_tensor *tensor);

/* One element as a double or int64, by row-major index over the logical shape; 0 out of range. */
WEFT_API double weft_tensor_get_f64(const weft_tensor *tensor, int64_t index);
WEFT_API int64_t weft_tensor_get_i64(const weft_tensor *tensor, int64_t index);

/* Views: new tensors over the same storage, without a tape (weft/ops.h has the recorded ones). */
WEFT_API weft_tensor *weft_tensor_reshape(weft_tensor *tensor,
                                          weft_shape shape); /* one size may be -1; contiguous only */
WEFT_API weft_tensor *weft_tensor_transpose(weft_tensor *tensor, int dim0, int dim1);
WEFT_API weft_tensor *weft_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length);
WEFT_API weft_tensor *weft_tensor_select(weft_tensor *tensor, int dim, int64_t index); /* drops `dim` */

/* A contiguous tensor with the same elements: itself (referenced) if it is contiguous, else a packed copy. */
WEFT_API weft_tensor *weft_tensor_contiguous(weft_tensor *tensor);
WEFT_API weft_tensor *weft_tensor_clone(const weft_tensor *tensor);          /* contiguous copy */
WEFT_API weft_tensor *weft_tensor_to(weft_tensor *tensor, weft_dtype dtype); /* converted copy */

/* Copies all elements from `source` (same shape, any dtype, any strides). WEFT_ERR_SHAPE. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_assign(weft_tensor *target, const weft_tensor *source);
WEFT_API void weft_tensor_fill(weft_tensor *target, double value);

/* Whether operators on a recording tape treat it as a leaf that wants a gradient. Off in new tensors. */
WEFT_API void weft_tensor_set_requires_grad(weft_tensor *tensor, bool requires_grad);
WEFT_API bool weft_tensor_requires_grad(const weft_tensor *tensor);

/* Dtype, shape and elements (large ones abridged), human-readable, ends with a newline. */
WEFT_API void weft_tensor_print(const weft_tensor *tensor, FILE *to);

WEFT_END_C
#endif
