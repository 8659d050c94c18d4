/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_list.h - the names of all kernels. In the .cu files they begin with weft_. */
#ifndef WFI_KERNEL_LIST_H
#define WFI_KERNEL_LIST_H

#define WFI_KERNELS_FLOAT(X, name) X(name##_f32) X(name##_f64)
#define WFI_KERNELS_NUMBER(X, name) X(name##_f32) X(name##_f64) X(name##_i64) X(name##_i32) X(name##_u8)
/* Numbers, and bools read as numbers. */
#define WFI_KERNELS_VALUE(X, name) WFI_KERNELS_NUMBER(X, name) X(name##_bool8)
#define WFI_KERNELS_INTEGER(X, name) X(name##_i64) X(name##_i32) X(name##_u8)
#define WFI_KERNELS_SIZE(X, name) X(name##_1) X(name##_2) X(name##_4) X(name##_8) X(name##_16)
#define WFI_KERNELS_HALF(X, name) X(name##_f32) X(name##_f64) X(name##_f16) X(name##_bf16)

#define WFI_KERNEL_LIST(X)                                                                                             \
    WFI_KERNELS_SIZE(X, copy)                                                                                          \
    WFI_KERNELS_SIZE(X, fill)                                                                                          \
    WFI_KERNELS_HALF(X, convert)                                                                                       \
    WFI_KERNELS_NUMBER(X, binary)                                                                                      \
    WFI_KERNELS_FLOAT(X, map)                                                                                          \
    WFI_KERNELS_VALUE(X, sum)                                                                                          \
    WFI_KERNELS_VALUE(X, argmax)                                                                                       \
    X(index_check)                                                                                                     \
    X(offsets_check)                                                                                                   \
    X(sort_tiles)                                                                                                      \
    X(sort_merge)                                                                                                      \
    WFI_KERNELS_INTEGER(X, divisor)                                                                                    \
    WFI_KERNELS_SIZE(X, gather)                                                                                        \
    WFI_KERNELS_SIZE(X, select)                                                                                        \
    WFI_KERNELS_FLOAT(X, sum_columns)                                                                                  \
    WFI_KERNELS_FLOAT(X, sum_partial)                                                                                  \
    WFI_KERNELS_FLOAT(X, scatter_add)                                                                                  \
    WFI_KERNELS_FLOAT(X, add_rows)                                                                                     \
    WFI_KERNELS_FLOAT(X, pick_rows)                                                                                    \
    WFI_KERNELS_FLOAT(X, bag)                                                                                          \
    WFI_KERNELS_FLOAT(X, bag_max)                                                                                      \
    WFI_KERNELS_FLOAT(X, bag_spread)                                                                                   \
    WFI_KERNELS_FLOAT(X, bag_max_backward)                                                                             \
    WFI_KERNELS_FLOAT(X, bag_scale_backward)                                                                           \
    WFI_KERNELS_FLOAT(X, softmax)                                                                                      \
    WFI_KERNELS_FLOAT(X, softmax_backward)                                                                             \
    WFI_KERNELS_FLOAT(X, log_softmax)                                                                                  \
    WFI_KERNELS_FLOAT(X, log_softmax_backward)                                                                         \
    WFI_KERNELS_FLOAT(X, nll)                                                                                          \
    WFI_KERNELS_FLOAT(X, nll_each)                                                                                     \
    WFI_KERNELS_FLOAT(X, nll_backward)                                                                                 \
    WFI_KERNELS_FLOAT(X, mse)                                                                                          \
    WFI_KERNELS_FLOAT(X, mse_each)                                                                                     \
    WFI_KERNELS_FLOAT(X, mse_backward)                                                                                 \
    WFI_KERNELS_FLOAT(X, norm_train)                                                                                   \
    WFI_KERNELS_FLOAT(X, norm_eval)                                                                                    \
    WFI_KERNELS_FLOAT(X, norm_backward)                                                                                \
    WFI_KERNELS_FLOAT(X, norm_move)                                                                                    \
    WFI_KERNELS_FLOAT(X, max_pool)                                                                                     \
    WFI_KERNELS_FLOAT(X, max_pool_backward)                                                                            \
    WFI_KERNELS_FLOAT(X, average_pool)                                                                                 \
    WFI_KERNELS_FLOAT(X, average_pool_backward)                                                                        \
    WFI_KERNELS_FLOAT(X, uniform)                                                                                      \
    WFI_KERNELS_FLOAT(X, normal)                                                                                       \
    WFI_KERNELS_FLOAT(X, mask)                                                                                         \
    WFI_KERNELS_FLOAT(X, categorical)                                                                                  \
    WFI_KERNELS_FLOAT(X, unfold)                                                                                       \
    WFI_KERNELS_FLOAT(X, fold)                                                                                         \
    WFI_KERNELS_FLOAT(X, add_bias)                                                                                     \
    WFI_KERNELS_FLOAT(X, lstm_cell)                                                                                    \
    WFI_KERNELS_FLOAT(X, lstm_cell_backward)                                                                           \
    WFI_KERNELS_FLOAT(X, sgd)                                                                                          \
    WFI_KERNELS_FLOAT(X, sgd_first)                                                                                    \
    WFI_KERNELS_FLOAT(X, sgd_plain)                                                                                    \
    WFI_KERNELS_FLOAT(X, adam)                                                                                         \
    WFI_KERNELS_FLOAT(X, amsgrad)                                                                                      \
    WFI_KERNELS_FLOAT(X, adagrad)                                                                                      \
    WFI_KERNELS_FLOAT(X, adadelta)                                                                                     \
    WFI_KERNELS_FLOAT(X, adamax)                                                                                       \
    WFI_KERNELS_FLOAT(X, rprop)                                                                                        \
    WFI_KERNELS_FLOAT(X, rmsprop)                                                                                      \
    WFI_KERNELS_FLOAT(X, rmsprop_momentum)                                                                             \
    WFI_KERNELS_FLOAT(X, rmsprop_centered)                                                                             \
    WFI_KERNELS_FLOAT(X, rmsprop_both)                                                                                 \
    WFI_KERNELS_FLOAT(X, squares)                                                                                      \
    X(clip)

#define WFI_KERNEL_NUMBER(name) WFI_KERNEL_##name,
typedef enum wfi_cuda_kernel { WFI_NO_KERNEL, WFI_KERNEL_LIST(WFI_KERNEL_NUMBER) WFI_CUDA_KERNELS } wfi_cuda_kernel;

#endif
