/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/tensor.h - tensors: a counted view (dtype, sizes, strides, offset) of a counted storage.
 *
 * Elements are in row-major order; strides are counted in elements. The dtype and shape of a tensor never change. Its
 * contents may change: threads that use one storage must synchronize their writes.
 *
 * PARAMETERS AND BUFFERS of modules (weft/nn.h) are *cells*: tensors whose value is replaced as a whole. Any thread may
 * read a cell at any time, even during a step (WEFT_UPDATE_BESIDE) or weft_tensor_assign on another thread: it reads
 * either the value before or the value after. Views, weft_tensor_contiguous and records of tapes keep the value that
 * the cell had when they were made.
 *
 * A function that makes a tensor gives the caller one reference, in *out. Otherwise *error, if `error` is not NULL,
 * receives the reason, such as "no new tensor float32 [-1]: ..."; you release it. If `error` is NULL, the log has it.
 * Codes: WEFT_ERR_SHAPE, WEFT_ERR_TYPE (there is no such shape or dtype), WEFT_ERR_TOO_LARGE, WEFT_ERR_INVALID,
 * WEFT_ERR_UNSUPPORTED, WEFT_ERR_MEMORY. For failures of weft_tensor_assign and weft_tensor_fill_* the log at level
 * debug has the reason. Any thread may take and drop references. Every function checks for a NULL tensor: it fails with
 * WEFT_ERR_INVALID, or, if it queries the tensor, returns 0, false or NULL.
 *
 *     weft_status sum_of_first_row(const float data[6], double *sum)
 *     {
 *         weft_tensor *x = NULL; // [2, 3]
 *         weft_status status = weft_tensor_copy_of(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, data, &x, NULL);
 *         *sum = 0;
 *         for (int64_t i = 0; i < weft_tensor_size(x, 1); i++)
 *             *sum += weft_tensor_get_f64(x, i);
 *         weft_tensor_unref(x); // NULL is allowed
 *         return status;
 *     }
 */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include <weft/status.h>

WEFT_BEGIN_C

#define WEFT_MAX_DIMS 8

/* The type of the elements of a tensor. */
typedef enum weft_dtype {
    WEFT_DTYPE_FLOAT32 = 0,
    WEFT_DTYPE_FLOAT64 = 1,
    WEFT_DTYPE_INT64 = 2,
    WEFT_DTYPE_INT32 = 3,
    WEFT_DTYPE_UINT8 = 4,
    /* One byte: 0 is false, any other true. As a number true is 1. Results of operators are 0 or 1; copies
     * keep the bytes. */
    WEFT_DTYPE_BOOL = 5,
    /* The dtypes below are only for storage and transport: operators have no kernels for them. Convert (weft_tensor_to)
     * to compute. */
    WEFT_DTYPE_FLOAT16 = 6,  /* IEEE 754 binary16 */
    WEFT_DTYPE_BFLOAT16 = 7, /* the upper half of a float32 */
    WEFT_DTYPE_INT8 = 8,
    WEFT_DTYPE_INT16 = 9,
    WEFT_DTYPE_COMPLEX64 = 10,  /* two float32: real, imaginary */
    WEFT_DTYPE_COMPLEX128 = 11, /* two float64 */
} weft_dtype;

/* Where a tensor's memory is. */
typedef enum weft_device_kind {
    WEFT_DEVICE_CPU = 0, /* host memory, page-locked or not */
    WEFT_DEVICE_CUDA = 1,
} weft_device_kind;

/* A device: the CPU, or one GPU. */
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

/* A borrowed list of tensors: `count` pointers at `items`. The function that lends it states how long it is valid. */
typedef struct weft_tensors {
    weft_tensor *const *items;
    size_t count;
} weft_tensors;

/*
 * The gradient of one tensor. Both fields NULL: no gradient. Dense: `values` has the tensor's shape, and `rows` is
 * NULL. Sparse: `rows` is int64 [n], and values[i] belongs to row rows[i] of the tensor. A row may occur several times:
 * its values are added in order. Rows that do not occur have a gradient of 0.
 */
typedef struct weft_gradient {
    weft_tensor *values; /* sparse: [n, ...], where ... are the tensor's sizes without the first */
    weft_tensor *rows;   /* sparse: each in 0..(the tensor's first size) - 1 */
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
/* The shape without dimensions, WEFT_SCALAR. */
static inline weft_shape weft_tensor_scalar_shape(void)
{
    weft_shape s = {0, {0}};
    return s;
}

WEFT_API size_t weft_dtype_size(weft_dtype dtype);      /* bytes of one element; 0 if `dtype` is invalid */
WEFT_API const char *weft_dtype_name(weft_dtype dtype); /* the name of a dtype: "float32" ... */

/* ---- Making tensors ---- */

/* These functions make contiguous CPU tensors. Their contents are, in this order: undefined; zeros; one value; the
 * numbers 0, 1, ... count - 1; a copy of the elements at `data`. The memory of such tensors is cached and used
 * again. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_empty(weft_shape shape, weft_dtype dtype, weft_tensor **out,
                                                      weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_zeros(weft_shape shape, weft_dtype dtype, weft_tensor **out,
                                                      weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_full(weft_shape shape, weft_dtype dtype, double value,
                                                     weft_tensor **out, weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_arange(int64_t count, weft_dtype dtype, weft_tensor **out,
                                                       weft_error **error);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data,
                                                        weft_tensor **out, weft_error **error);

/* ---- Devices. A tensor stays on the device on which it was made, and operators compute there. Calls send them,
 * groups only those of the CPU (docs/cuda.md). ---- */

/* Checks whether tensors can be made on `device`: then it returns WEFT_OK. WEFT_ERR_UNSUPPORTED: the machine has no GPU
 * or no driver. WEFT_ERR_INVALID: no such kind or index. *error, if `error` is not NULL, receives the reason. */
WEFT_API WEFT_NODISCARD weft_status weft_device_check(weft_device device, weft_error **error);
/*
 * Reads a device from a text, such as the value of an option: "cpu", "cuda" (the first GPU), "cuda:1", or "auto".
 *   auto: The candidates are the GPUs on the NUMA nodes of the cores that the calling thread may use. If there are
 *   none, they are the GPUs on the same packages (sockets), otherwise all GPUs. The function takes candidate number
 *   `local_rank` modulo the number of candidates. Without a GPU or a driver it takes the CPU.
 * `local_rank` is the number of this process on its machine; -1: as the launcher's variables say (LOCAL_RANK and
 * others), otherwise 0. CUDA_VISIBLE_DEVICES limits the choice. *error, if `error` is not NULL, receives the reason of
 * a failure: WEFT_ERR_INVALID (an unknown text, or a GPU that does not exist), WEFT_ERR_UNSUPPORTED (no GPU or no
 * driver).
 */
WEFT_API WEFT_NODISCARD weft_status weft_device_choose(const char *text, int local_rank, weft_device *out,
                                                       weft_error **error);
/* Makes a contiguous tensor on a device, contents undefined. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_empty_on(weft_device device, weft_shape shape, weft_dtype dtype,
                                                         weft_tensor **out, weft_error **error);
/* Makes a contiguous CPU tensor, contents undefined, in memory that is page-locked for GPUs: copies between it and any
 * GPU are faster than from other host memory. Calls, groups and operators take it as any CPU tensor. `device` is the
 * GPU whose driver allocates the memory; for the CPU the function is weft_tensor_empty. Page-locked memory cannot be
 * swapped out: allocate little, and use it again. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_empty_pinned(weft_device device, weft_shape shape, weft_dtype dtype,
                                                             weft_tensor **out, weft_error **error);
/* Returns a reference to `tensor` if it is on `device`; otherwise a contiguous copy there. A copy to the CPU is
 * complete when the function returns. A copy to a GPU is queued (weft/stream.h); even so, `tensor` may be changed as
 * soon as the function has returned. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_to_device(weft_tensor *tensor, weft_device device, weft_tensor **out,
                                                          weft_error **error);
WEFT_API weft_device weft_tensor_device(const weft_tensor *tensor); /* the device of a tensor */

/* ---- Memory of the program ---- */

/*
 * Makes a tensor over memory of the caller, without a copy. `data` is the address of its first element. `strides` has
 * one number for each dimension, the distance between neighbors in elements; NULL means row-major without gaps. Arrays
 * in Fortran order, or the interior of a field with halos, need no copy:
 *
 *     static double field[12][12]; // interior 10 by 10, a halo of width 1
 *     weft_status inside_of_field(weft_tensor **out)
 *     {
 *         const int64_t strides[] = {12, 1};
 *         weft_shape shape = WEFT_SHAPE(10, 10);
 *         return weft_tensor_wrap(shape, WEFT_DTYPE_FLOAT64, &field[1][1], strides, NULL, NULL, out, NULL);
 *     }
 *     weft_status fortran_array(int64_t m, int64_t n, double *a, weft_tensor **out) // A(m, n)
 *     {
 *         return weft_tensor_wrap(WEFT_SHAPE(m, n), WEFT_DTYPE_FLOAT64, a, (int64_t[]){1, m}, NULL, NULL, out, NULL);
 *     }
 *
 * Strides are not negative. If several indices refer to one element (a stride of 0), the tensor must only be read; weft
 * does not check that. `data` must be aligned for the dtype. `drop(arg)` runs when nothing refers to the memory, or at
 * once if the function fails. If `drop` is NULL, you must keep the memory valid as long as anything may use it.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_wrap(weft_shape shape, weft_dtype dtype, void *data,
                                                     const int64_t *strides, weft_drop_fn drop, void *arg,
                                                     weft_tensor **out, weft_error **error);

WEFT_API weft_tensor *weft_tensor_ref(weft_tensor *tensor);
WEFT_API void weft_tensor_unref(weft_tensor *tensor);

/* ---- Reading a tensor ---- */

/* These functions read the form of a tensor: its dtype, sizes, strides and number of elements. */
WEFT_API weft_dtype weft_tensor_dtype(const weft_tensor *tensor);
WEFT_API int weft_tensor_ndim(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_size(const weft_tensor *tensor, int dim); /* dim < 0 counts from the end; 0: no such dim */
WEFT_API int64_t weft_tensor_stride(const weft_tensor *tensor, int dim); /* in elements */
WEFT_API weft_shape weft_tensor_shape(const weft_tensor *tensor);
WEFT_API int64_t weft_tensor_numel(const weft_tensor *tensor);
WEFT_API size_t weft_tensor_nbytes(const weft_tensor *tensor); /* numel times the size of one element */
WEFT_API bool weft_tensor_is_contiguous(const weft_tensor *tensor);
WEFT_API bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b);

/* The address of the first element, borrowed; NULL if the tensor is on a device. After writing to it, call
 * weft_tensor_wrote if a tape may have saved the tensor. The address of a module's parameter or buffer is valid until
 * its next step or assignment; weft_tensor_contiguous gives a tensor whose address does not change. */
WEFT_API void *weft_tensor_data(const weft_tensor *tensor);

/* Tells weft that the contents of `tensor` were changed through its address. If a tape saved the tensor, or another
 * tensor with the same storage, its backward pass then fails with WEFT_ERR_STATE instead of using wrong values. Call
 * the function after the change. It is not needed for memory that nothing has used yet, nor after weft's own
 * functions. */
WEFT_API void weft_tensor_wrote(weft_tensor *tensor);

/*
 * Waits until no transfer reads the storage of `tensor`, at most wait_ms (0: not at all; or WEFT_FOREVER). That
 * includes transfers of other tensors that are views of the storage. After WEFT_OK the contents may be changed,
 * unless a new reader has begun. Only your own lock prevents new readers (weft_call_give shows how). These are
 * readers:
 *   Results of calls, from weft_call_give until the caller has received them or the call has failed.
 *   Items, from weft_call_send_item until on_item has returned.
 *   Arguments of calls to other workers, and tensors of group operations, while they are transferred.
 * The function does not wait for weft's kernels, nor for handlers of this worker that have a reference.
 *
 * For a module's parameter or buffer the function waits for readers of its current value. If a handler gives a
 * parameter with weft_call_give, the reading begins when the handler returns, not earlier.
 *
 * Returns WEFT_ERR_TIMEOUT at the limit, and WEFT_ERR_INVALID (NULL; wait_ms below WEFT_FOREVER). An inline handler
 * must not wait, and a handler must not wait for results that it gave itself. With no_threads, use a wait_ms of 0
 * between calls of weft_agent_progress, because no other thread reads the network.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_wait_unread(const weft_tensor *tensor, int64_t wait_ms);

/* Return one element, converted to double or int64; the real part of a complex number. `index` counts elements in
 * row-major order, independent of the strides. 0 if `index` is out of range. The element of a tensor on a device is
 * copied when the device has done all work queued there, so the functions wait. They return 0 if the device fails. */
WEFT_API double weft_tensor_get_f64(const weft_tensor *tensor, int64_t index);
WEFT_API int64_t weft_tensor_get_i64(const weft_tensor *tensor, int64_t index);

/* ---- Views and copies. Views are new tensors over the same storage. Tapes do not record them; weft/ops.h has views
 * that tapes record. ---- */

/* A view with another shape. One size may be -1; `tensor` must be contiguous. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_reshape(weft_tensor *tensor, weft_shape shape, weft_tensor **out,
                                                        weft_error **error);
/* A view with two dimensions exchanged. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_transpose(weft_tensor *tensor, int dim0, int dim1, weft_tensor **out,
                                                          weft_error **error);
/* A view of the elements start .. start + length - 1 along `dim`. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length,
                                                       weft_tensor **out, weft_error **error);
/* A view of element `index` along `dim`; the result does not have that dimension. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_select(weft_tensor *tensor, int dim, int64_t index, weft_tensor **out,
                                                       weft_error **error);

/* Returns a reference to `tensor` if it is contiguous; otherwise a contiguous copy. For a module's parameter or buffer
 * it gives the current value, without a copy; later steps do not change the result, which wants no gradient. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_contiguous(weft_tensor *tensor, weft_tensor **out, weft_error **error);
/* A contiguous copy. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_clone(const weft_tensor *tensor, weft_tensor **out, weft_error **error);
/* A copy, converted to `dtype`.
 *   To a float: rounded once to nearest, ties to even. Numbers beyond the largest value become infinity. NaN remains
 *   NaN, but its payload bits are not specified.
 *   From a float to an integer: rounded towards zero, and clamped to the integer's range. NaN becomes 0.
 *   Between integers: as in C.
 *   To bool: whether the number is not 0. From bool to bool the bytes are copied.
 *   Complex dtypes convert only to each other.
 *   On a GPU only the floating dtypes convert, to each other.
 * WEFT_ERR_TYPE if there is no such conversion. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_to(weft_tensor *tensor, weft_dtype dtype, weft_tensor **out,
                                                   weft_error **error);

/* Copies all elements of `source` to `target`. Shapes must be equal (WEFT_ERR_SHAPE). Dtypes and strides may differ, if
 * weft_tensor_to can convert (WEFT_ERR_TYPE). WEFT_ERR_INVALID (NULL). If `target` is a module's parameter or
 * buffer, and its value has other references, then `target` gets new memory (WEFT_ERR_MEMORY), and those references
 * keep the old value. */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_assign(weft_tensor *target, const weft_tensor *source);
/* Sets all elements to `value`. */
WEFT_API void weft_tensor_fill(weft_tensor *target, double value);
/*
 * Fill a float32 or float64 tensor with random numbers: uniform in [low, high), or normal. Element i, in row-major
 * order, depends only on `seed` and i, not on the number of threads (Philox4x32-10: Salmon, Moraes, Dror, Shaw, SC
 * 2011). WEFT_ERR_TYPE, WEFT_ERR_INVALID (NULL; low > high; a negative deviation; not finite), WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_fill_uniform(weft_tensor *target, uint64_t seed, double low,
                                                             double high);
WEFT_API WEFT_NODISCARD weft_status weft_tensor_fill_normal(weft_tensor *target, uint64_t seed, double mean,
                                                            double deviation);

/* ---- Gradients, printing ---- */

/* Sets or tells whether tapes that record compute a gradient for this tensor (weft/tape.h). New tensors want no
 * gradient. */
WEFT_API void weft_tensor_set_requires_grad(weft_tensor *tensor, bool requires_grad);
WEFT_API bool weft_tensor_requires_grad(const weft_tensor *tensor);

/* Prints dtype, shape, the device unless it is the CPU, and elements in readable form, and a newline. Only some
 * elements of a large tensor are printed. The elements of a tensor on a device are copied one by one, as
 * weft_tensor_get_f64. If the reader of a pipe is gone, the text is lost, and no SIGPIPE is raised. */
WEFT_API void weft_tensor_print(const weft_tensor *tensor, FILE *to);

WEFT_END_C
#endif
