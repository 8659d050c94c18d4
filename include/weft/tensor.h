/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tensor.h - tensors: a counted view (dtype, sizes, strides, offset) of a counted storage.
 *
 * Elements lie in row-major order; strides are counted in elements. The dtype and shape of a tensor never
 * change. Its contents may change: threads that use tensors of one storage must agree among themselves who
 * writes when.
 *
 * PARAMETERS AND BUFFERS of modules (weft/nn.h) are *cells*: tensors whose value is replaced as a whole. Any thread may read one at any
 * time, also beside a step (WEFT_UPDATE_BESIDE) or weft_tensor_assign of another: it gets the value before or the one after. Views,
 * weft_tensor_contiguous and records of tapes keep the value that was there when they were made, and do not follow.
 *
 * A function that makes a tensor gives you one reference, or returns NULL if memory is out or an argument is
 * wrong; the log at level debug says which. References may be taken and dropped on any thread. NULL for a tensor
 * is a wrong argument too: so what one function failed to make may be handed to the next one, which then makes
 * nothing either. Functions that ask a tensor something return 0, false or NULL then.
 *
 *     float sum_of_first_row(const float data[6])
 *     {
 *         weft_tensor *x = weft_tensor_copy_of(WEFT_SHAPE(2, 3), WEFT_FLOAT32, data); // [2, 3]
 *         float sum = 0;
 *         for (int64_t i = 0; x && i < weft_tensor_size(x, 1); i++)
 *             sum += (float)weft_tensor_get_f64(x, i);
 *         weft_tensor_unref(x); // NULL is allowed
 *         return sum;
 *     }
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
    /* What follows is for storage and transport: operators have no kernels for it. Convert (weft_tensor_to) to
     * compute. */
    WEFT_FLOAT16 = 6,  /* IEEE 754 binary16 */
    WEFT_BFLOAT16 = 7, /* the upper half of a float32 */
    WEFT_INT8 = 8,
    WEFT_INT16 = 9,
    WEFT_COMPLEX64 = 10,  /* two float32: real, imaginary */
    WEFT_COMPLEX128 = 11, /* two float64 */
} weft_dtype;

/* Where a tensor's memory is. */
typedef enum weft_device_kind {
    WEFT_CPU = 0, /* the host's memory; page-locked memory too */
    WEFT_CUDA = 1,
} weft_device_kind;

typedef struct weft_device {
    weft_device_kind kind;
    int index; /* CUDA's number of the GPU; 0 for the CPU */
} weft_device;

/* The sizes of up to WEFT_MAX_DIMS dimensions, passed by value. WEFT_SHAPE(2, 3) makes one; WEFT_SCALAR has no
 * dimensions. */
typedef struct weft_shape {
    int ndim;
    int64_t dims[WEFT_MAX_DIMS];
} weft_shape;

/* A borrowed list of tensors: `count` pointers at `items`. The function that lends it says how long it stays
 * valid. */
typedef struct weft_tensors {
    weft_tensor *const *items;
    size_t count;
} weft_tensors;

/*
 * The gradient of one tensor. Dense: `values` has its shape, `rows` is NULL. Sparse: values[i] belongs to its row
 * rows[i] (int64 [n], each from 0 to its first size - 1); a row may stand several times, then its values add up in
 * order; rows that do not stand there have a gradient of 0. Both NULL: there is none.
 */
typedef struct weft_gradient {
    weft_tensor *values; /* sparse: [n, ...], the rest as the tensor's sizes after its first */
    weft_tensor *rows;
} weft_gradient;

/* A borrowed list of gradients, one for each tensor of another list, in its order. */
typedef struct weft_gradients {
    const weft_gradient *items;
    size_t count;
} weft_gradients;

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

WEFT_API size_t weft_dtype_size(weft_dtype dtype);      /* bytes of one element; 0 if `dtype` is none of the above */
WEFT_API const char *weft_dtype_name(weft_dtype dtype); /* "float32" ... */

/* These make contiguous tensors. Their storage comes from memory that weft keeps and reuses. */
WEFT_API weft_tensor *weft_tensor_empty(weft_shape shape, weft_dtype dtype); /* contents undefined */
WEFT_API weft_tensor *weft_tensor_zeros(weft_shape shape, weft_dtype dtype);
WEFT_API weft_tensor *weft_tensor_full(weft_shape shape, weft_dtype dtype, double value);
WEFT_API weft_tensor *weft_tensor_arange(int64_t count, weft_dtype dtype); /* 0, 1, ... count-1 */
WEFT_API weft_tensor *weft_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data);

/* Devices. A tensor stays on the device that it was made on; operators compute there. Messages carry tensors of
 * the CPU. */
/* Whether tensors can be made on `device`, and if not, why: WEFT_ERR_UNSUPPORTED (weft was built without CUDA, or
 * the machine has no GPU or no driver), WEFT_ERR_INVALID (no such kind or number), with a sentence in *error
 * unless `error` is NULL. */
WEFT_API WEFT_NODISCARD weft_status weft_device_check(weft_device device, weft_error **error);
WEFT_API weft_tensor *weft_tensor_empty_on(weft_device device, weft_shape shape, weft_dtype dtype);
/* A reference to `tensor` if it is on `device`, else a contiguous copy there, complete when this returns. */
WEFT_API weft_tensor *weft_tensor_to_device(weft_tensor *tensor, weft_device device);
WEFT_API weft_device weft_tensor_device(const weft_tensor *tensor);

/*
 * Makes a tensor over memory of yours, without a copy. `data` is the address of its first element, and `strides`
 * has one number for each dimension: how many elements lie from one index to the next. NULL means row-major,
 * without gaps. So memory in Fortran order, or the inside of a field with halos, needs no copy:
 *
 *     static double field[12][12]; // an inside of 10 by 10, a halo of one
 *     weft_tensor *inside_of_field(void)
 *     {
 *         return weft_tensor_wrap(WEFT_SHAPE(10, 10), WEFT_FLOAT64, &field[1][1], (int64_t[]){12, 1}, NULL, NULL);
 *     }
 *     weft_tensor *fortran_array(int64_t m, int64_t n, double *a) // A(m, n)
 *     {
 *         return weft_tensor_wrap(WEFT_SHAPE(m, n), WEFT_FLOAT64, a, (int64_t[]){1, m}, NULL, NULL);
 *     }
 *
 * No stride is negative. Where several indices lead to one element (a stride of 0), the tensor may only be read; that is not checked.
 * `data` must be aligned for the dtype. `drop(arg)` runs when nothing refers to the memory any more, or at once
 * if this fails. With `drop` NULL you must keep the memory alive as long as anything may use it.
 */
WEFT_API weft_tensor *weft_tensor_wrap(weft_shape shape, weft_dtype dtype, void *data, const int64_t *strides,
                                       weft_drop_fn drop, void *arg);

WEFT_API weft_tensor *weft_tensor_ref(weft_tensor *tensor);
WEFT_API void weft_tensor_unref(weft_tensor *tensor);

WEFT_API weft_dtype weft_tensor_dtype(const weft_tensor *tensor);
WEFT_API int weft_tensor_ndim(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_size(const weft_tensor *tensor, int dim); /* dim < 0 counts from the end; 0: no such dim */
WEFT_API int64_t weft_tensor_stride(const weft_tensor *tensor, int dim); /* in elements */
WEFT_API weft_shape weft_tensor_shape(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_numel(const weft_tensor *tensor);
WEFT_API size_t weft_tensor_nbytes(const weft_tensor *tensor); /* numel times the size of one element */
WEFT_API bool weft_tensor_is_contiguous(const weft_tensor *tensor);
WEFT_API bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b);

/* The address of the first element, borrowed; NULL if the tensor is in the memory of a device. Who writes there
 * while a tape may have saved the tensor says so by weft_tensor_wrote. That of a module's parameter or buffer holds until its next
 * step or assignment; weft_tensor_contiguous gives you a tensor whose address stays. */
WEFT_API void *weft_tensor_data(const weft_tensor *tensor);

/* Says that the contents of `tensor` were changed through its address, after the fact. A tape that saved it, or
 * another tensor of the same storage, for its backward pass then fails with WEFT_ERR_STATE instead of using wrong
 * values. Functions of weft that write say so themselves. Memory that nobody has used yet needs no word. */
WEFT_API void weft_tensor_wrote(weft_tensor *tensor);

/* One element, converted to double or int64; of a complex number the real part. `index` counts the elements of the
 * shape in row-major order, whatever the strides are. 0 if it is out of range. */
WEFT_API double weft_tensor_get_f64(const weft_tensor *tensor, int64_t index);
WEFT_API int64_t weft_tensor_get_i64(const weft_tensor *tensor, int64_t index);

/* Views: new tensors over the same storage. No tape records them; weft/ops.h has views that a tape records. */
WEFT_API weft_tensor *weft_tensor_reshape(weft_tensor *tensor,
                                          weft_shape shape); /* one size may be -1; `tensor` must be contiguous */
WEFT_API weft_tensor *weft_tensor_transpose(weft_tensor *tensor, int dim0, int dim1);
/* Elements start .. start + length - 1 along `dim`. */
WEFT_API weft_tensor *weft_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length);
/* Element `index` along `dim`; the result has no such dimension any more. */
WEFT_API weft_tensor *weft_tensor_select(weft_tensor *tensor, int dim, int64_t index);

/* A contiguous tensor of the same elements: a reference to `tensor` if it is contiguous, else a copy. Of a module's parameter or
 * buffer its present value, without a copy, which steps beside it do not change; it wants no gradient. */
WEFT_API weft_tensor *weft_tensor_contiguous(weft_tensor *tensor);
WEFT_API weft_tensor *weft_tensor_clone(const weft_tensor *tensor); /* a contiguous copy */
/* A copy, converted to `dtype`. To a float: rounded to nearest, ties to even, once; beyond the largest value
 * infinity; a NaN stays a NaN. From a float to an integer: towards zero, the nearest that the integer can hold, a
 * NaN 0. Between integers: as C does. To bool: whether it is not 0. Complex dtypes convert only to each other. */
WEFT_API weft_tensor *weft_tensor_to(weft_tensor *tensor, weft_dtype dtype);

/* Copies all elements of `source` to `target`. They must have the same shape (else WEFT_ERR_SHAPE); dtypes and
 * strides may differ, where weft_tensor_to can convert (else WEFT_ERR_TYPE). WEFT_ERR_INVALID (NULL). A module's
 * parameter or buffer whose value somebody holds gets another (WEFT_ERR_MEMORY), and its holders keep theirs. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_assign(weft_tensor *target, const weft_tensor *source);
WEFT_API void weft_tensor_fill(weft_tensor *target, double value);
/*
 * Fill a float32 or float64 tensor with random numbers: uniform in [low, high), or normal. Element i, in row-major
 * order, is a function of `seed` and i alone (Philox4x32-10: Salmon, Moraes, Dror, Shaw, SC 2011), whatever the
 * number of threads. WEFT_ERR_TYPE, WEFT_ERR_INVALID (NULL; low > high; a deviation below 0; not finite),
 * WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_fill_uniform(weft_tensor *target, uint64_t seed, double low,
                                                             double high);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_fill_normal(weft_tensor *target, uint64_t seed, double mean,
                                                            double deviation);

/* Whether a tape that records computes a gradient for this tensor (weft/tape.h). New tensors want none. */
WEFT_API void weft_tensor_set_requires_grad(weft_tensor *tensor, bool requires_grad);
WEFT_API bool weft_tensor_requires_grad(const weft_tensor *tensor);

/* Prints dtype, shape and elements for people to read, and a newline. Of a large tensor it prints only some
 * elements. If the reader of a pipe has gone the text is lost, and no SIGPIPE is raised. */
WEFT_API void weft_tensor_print(const weft_tensor *tensor, FILE *to);

WEFT_END_C
#endif
