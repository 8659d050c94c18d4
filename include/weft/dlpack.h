/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/dlpack.h - DLPack: shares tensors with other libraries of the same process, such as PyTorch, NumPy, CuPy and
 * JAX, without a copy.
 *
 * The structs have the layout of DLPack 1.x: weft_dlpack is DLManagedTensorVersioned, and weft_dlpack_tensor is
 * DLTensor (https://dmlc.github.io/dlpack). weft declares them itself, so it needs no header of DLPack; cast the
 * pointers. In Python a weft_dlpack travels in a capsule with the name "dltensor_versioned".
 *
 * Libraries from before DLPack 1.0, such as NumPy before 2.1 and PyTorch 1.13, know only DLManagedTensor. Its capsule
 * has the name "dltensor". weft_dlpack_unversioned is that struct, with functions of its own. If the other library
 * knows both, use weft_dlpack: it can say that memory must not be written to.
 *
 *     weft_status lend(weft_tensor *x, void (*library)(void *managed_tensor)) // it calls the deleter when it is done
 *     {
 *         weft_dlpack *lent;
 *         weft_status status = weft_tensor_to_dlpack(x, 0, &lent, NULL);
 *         if (!status)
 *             library(lent);
 *         return status;
 *     }
 *     weft_tensor *borrow(void *managed_tensor) // of another library; released with the last reference to the result
 *     {
 *         weft_tensor *x = NULL;
 *         return weft_tensor_from_dlpack(managed_tensor, 0, &x, NULL) ? NULL : x;
 *     }
 *
 * GPUs. Both sides must agree on an order of their work on the GPU. weft_tensor_to_dlpack waits until the GPU has done
 * the work that weft has queued for the tensor, on all streams, reads included. Before weft_tensor_from_dlpack the
 * other library must have done its work, or have queued it on the legacy default stream.
 */
#ifndef WEFT_DLPACK_H
#define WEFT_DLPACK_H

#include <weft/tensor.h>

WEFT_BEGIN_C

#define WEFT_DLPACK_MAJOR 1
#define WEFT_DLPACK_MINOR 0

#define WEFT_DLPACK_READ_ONLY UINT64_C(1) /* the receiver must not write to the memory */

/* The version of DLPack that made the struct. */
typedef struct weft_dlpack_version {
    uint32_t major, minor;
} weft_dlpack_version;

/* DLDevice: where the memory is. */
typedef struct weft_dlpack_device {
    int32_t type; /* 1: CPU, 2: CUDA, 3: page-locked host memory of CUDA */
    int32_t id;   /* number of the GPU */
} weft_dlpack_device;

/* DLDataType: the type of the elements. */
typedef struct weft_dlpack_dtype {
    uint8_t code; /* 0: int, 1: unsigned, 2: float, 4: bfloat, 5: complex, 6: bool */
    uint8_t bits; /* of one element */
    uint16_t lanes;
} weft_dlpack_dtype;

/* DLTensor: a tensor. */
typedef struct weft_dlpack_tensor {
    void *data;
    weft_dlpack_device device;
    int32_t ndim;
    weft_dlpack_dtype dtype;
    int64_t *shape;
    int64_t *strides;     /* in elements; NULL: row-major without gaps */
    uint64_t byte_offset; /* of the first element from `data` */
} weft_dlpack_tensor;

/* DLManagedTensorVersioned: a tensor with its owner. */
typedef struct weft_dlpack {
    weft_dlpack_version version;
    void *manager;                             /* of the side that made the struct */
    void (*deleter)(struct weft_dlpack *self); /* releases the memory and the struct; may be NULL */
    uint64_t flags;                            /* WEFT_DLPACK_READ_ONLY, and others that DLPack defines */
    weft_dlpack_tensor tensor;
} weft_dlpack;

/* DLManagedTensor, the struct of DLPack before 1.0. */
typedef struct weft_dlpack_unversioned {
    weft_dlpack_tensor tensor;
    void *manager;                                         /* of the side that made the struct */
    void (*deleter)(struct weft_dlpack_unversioned *self); /* releases the memory and the struct; may be NULL */
} weft_dlpack_unversioned;

/*
 * Lends the memory of `tensor` to another library. *out is valid until its deleter is called, which must happen exactly
 * once, on any thread. *out keeps the memory alive, but not `tensor` itself. `flags` is 0 or WEFT_DLPACK_READ_ONLY.
 * For a module's parameter or buffer the current value is lent, always with WEFT_DLPACK_READ_ONLY, because tapes may
 * have saved the value. If the other library writes to the memory, call weft_tensor_wrote afterwards if a tape may
 * have saved the tensor.
 *
 * WEFT_ERR_INVALID (NULL, unknown flags), WEFT_ERR_MEMORY, WEFT_ERR_SYSTEM (the GPU has failed). *error, if `error` is
 * not NULL, receives the reason.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_to_dlpack(weft_tensor *tensor, uint64_t flags, weft_dlpack **out,
                                                          weft_error **error);

/*
 * Makes a tensor over memory that another library lends, without a copy. The function takes over `managed` in every
 * case: its deleter runs when nothing refers to the memory, and at once if the function fails. The thread that releases
 * memory of a GPU first waits until weft's work on the memory is done. If the memory must not be written to, the
 * function makes a copy, on the same device, that may be written to. With WEFT_DLPACK_READ_ONLY in `flags` it makes no
 * copy; then you must not write to the tensor, and weft does not check that.
 *
 * Errors, with the reason in *error if `error` is not NULL:
 *   WEFT_ERR_INVALID: NULL; unknown flags; a negative stride; an address that is NULL or not aligned for the dtype; a
 *     GPU that does not exist.
 *   WEFT_ERR_UNSUPPORTED: another major version of DLPack; a device that is neither the CPU nor of CUDA; no GPU here.
 *   WEFT_ERR_TYPE (a dtype that weft does not have, or several lanes), WEFT_ERR_SHAPE (more than WEFT_MAX_DIMS
 *   dimensions, a negative size), WEFT_ERR_TOO_LARGE, WEFT_ERR_MEMORY, WEFT_ERR_SYSTEM (the copy).
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_from_dlpack(weft_dlpack *managed, uint64_t flags, weft_tensor **out,
                                                            weft_error **error);

/*
 * weft_tensor_to_dlpack for libraries from before DLPack 1.0. This struct cannot say that memory must not be written
 * to. So for a module's parameter or buffer the function fails with WEFT_ERR_UNSUPPORTED, unless `flags` has
 * WEFT_DLPACK_READ_ONLY: then you promise that the receiver only reads. For other tensors WEFT_DLPACK_READ_ONLY
 * makes no difference.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_to_dlpack_unversioned(weft_tensor *tensor, uint64_t flags,
                                                                      weft_dlpack_unversioned **out,
                                                                      weft_error **error);

/*
 * weft_tensor_from_dlpack for libraries from before DLPack 1.0. It never makes a copy, because the struct cannot say
 * that memory must not be written to. If you know that the memory must not be written to, do not write to the
 * tensor. The errors are those of weft_tensor_from_dlpack. A versioned struct that is passed by mistake is not
 * recognized: check the capsule's name.
 */
WEFT_API WEFT_NODISCARD weft_status weft_tensor_from_dlpack_unversioned(weft_dlpack_unversioned *managed,
                                                                        weft_tensor **out, weft_error **error);

WEFT_END_C
#endif
