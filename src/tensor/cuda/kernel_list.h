/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_list.h - the names of all kernels. In the .cu files they begin with weft_. */
#ifndef WFI_KERNEL_LIST_H
#define WFI_KERNEL_LIST_H

#define WFI_KERNELS_FLOAT(X, name) X(name##_f32) X(name##_f64)
#define WFI_KERNELS_NUMBER(X, name) X(name##_f32) X(name##_f64) X(name##_i64) X(name##_i32) X(name##_u8)
#define WFI_KERNELS_SIZE(X, name) X(name##_1) X(name##_2) X(name##_4) X(name##_8) X(name##_16)
#define WFI_KERNELS_HALF(X, name) X(name##_f32) X(name##_f64) X(name##_f16) X(name##_bf16)

#define WFI_KERNEL_LIST(X)                                                                                             \
    WFI_KERNELS_SIZE(X, copy)                                                                                          \
    WFI_KERNELS_SIZE(X, fill)                                                                                          \
    WFI_KERNELS_HALF(X, convert)                                                                                       \
    WFI_KERNELS_NUMBER(X, binary)                                                                                      \
    WFI_KERNELS_NUMBER(X, compare)                                                                                     \
    WFI_KERNELS_FLOAT(X, map)

#define WFI_KERNEL_NUMBER(name) WFI_KERNEL_##name,
typedef enum wfi_cuda_kernel { WFI_NO_KERNEL, WFI_KERNEL_LIST(WFI_KERNEL_NUMBER) WFI_CUDA_KERNELS } wfi_cuda_kernel;

#endif
