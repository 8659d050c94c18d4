/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.h - the constructors of weft/tensor.h in a form that nests: tensor_zeros(shape, dtype) is the tensor of
 * weft_tensor_zeros, or NULL if that fails. A test of a failure calls the function itself.
 */
#ifndef TESTS_TENSORS_H
#define TESTS_TENSORS_H

#include <weft/tensor.h>

#define TENSOR_OF(name, function, parameters, ...)                                                                     \
    static inline weft_tensor *name parameters                                                                         \
    {                                                                                                                  \
        weft_tensor *made = NULL;                                                                                      \
        weft_error *why = NULL;                                                                                        \
        if (function(__VA_ARGS__, &made, &why))                                                                        \
            weft_error_unref(why);                                                                                     \
        return made;                                                                                                   \
    }
TENSOR_OF(tensor_empty, weft_tensor_empty, (weft_shape shape, weft_dtype dtype), shape, dtype)
TENSOR_OF(tensor_zeros, weft_tensor_zeros, (weft_shape shape, weft_dtype dtype), shape, dtype)
TENSOR_OF(tensor_full, weft_tensor_full, (weft_shape shape, weft_dtype dtype, double value), shape, dtype, value)
TENSOR_OF(tensor_arange, weft_tensor_arange, (int64_t count, weft_dtype dtype), count, dtype)
TENSOR_OF(tensor_copy_of, weft_tensor_copy_of, (weft_shape shape, weft_dtype dtype, const void *data), shape, dtype,
          data)
TENSOR_OF(tensor_empty_on, weft_tensor_empty_on, (weft_device device, weft_shape shape, weft_dtype dtype), device,
          shape, dtype)
TENSOR_OF(tensor_empty_pinned, weft_tensor_empty_pinned, (weft_device device, weft_shape shape, weft_dtype dtype),
          device, shape, dtype)
TENSOR_OF(tensor_to_device, weft_tensor_to_device, (weft_tensor * x, weft_device device), x, device)
TENSOR_OF(tensor_wrap, weft_tensor_wrap,
          (weft_shape shape, weft_dtype dtype, void *data, const int64_t *strides, weft_drop_fn drop, void *arg), shape,
          dtype, data, strides, drop, arg)
TENSOR_OF(tensor_reshape, weft_tensor_reshape, (weft_tensor * x, weft_shape shape), x, shape)
TENSOR_OF(tensor_transpose, weft_tensor_transpose, (weft_tensor * x, int dim0, int dim1), x, dim0, dim1)
TENSOR_OF(tensor_narrow, weft_tensor_narrow, (weft_tensor * x, int dim, int64_t start, int64_t length), x, dim, start,
          length)
TENSOR_OF(tensor_select, weft_tensor_select, (weft_tensor * x, int dim, int64_t index), x, dim, index)
TENSOR_OF(tensor_contiguous, weft_tensor_contiguous, (weft_tensor * x), x)
TENSOR_OF(tensor_clone, weft_tensor_clone, (const weft_tensor *x), x)
TENSOR_OF(tensor_to, weft_tensor_to, (weft_tensor * x, weft_dtype dtype), x, dtype)
#undef TENSOR_OF

#endif
