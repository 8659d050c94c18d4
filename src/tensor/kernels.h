/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - who computes what: for each family of kernels a table by device and dtype. For C++ too, as .cu files are.
 *
 * A family is a struct of functions that work on one dtype on one kind of device. A NULL in it is a kernel that is not there; operators
 * then say "no kernel for bfloat16 on the CPU". What is the same on all devices, whether shapes and dtypes fit each other, stands once,
 * in the functions that everybody calls (copy.h, elementwise.h, cpu/product/product.h): these look the family up by their first operand
 * and hand over addresses and strides. docs/decisions/044 says why.
 *
 * A device's own entries are data of its folder: cpu/, cuda/. They may be asked for from any thread. The CPU's kernels return when they
 * are done; a GPU's when they are queued, on the stream that copies from it wait for.
 */
#ifndef WFI_KERNELS_H
#define WFI_KERNELS_H

#include "tensor/dtype.h"
#include "tensor/strided.h"

WEFT_BEGIN_C

#define WFI_DEVICE_KINDS 2

typedef weft_status (*wfi_walk_kernel)(const wfi_strided *walk);

/* ---- Copies, by the dtype of what is read; fills, by what is written ---- */
typedef struct wfi_copy_kernels {
    wfi_walk_kernel same;                                              /* operand 0 to operand 1, as it is */
    wfi_walk_kernel to[WFI_DTYPES];                                    /* converted; see weft_tensor_to */
    weft_status (*fill)(const wfi_strided *walk, const void *element); /* operand 0; `element` in host memory */
} wfi_copy_kernels;

/* ---- Elementwise ---- */
typedef enum wfi_binary_op { WFI_ADD, WFI_SUB, WFI_MUL, WFI_DIV, WFI_BINARY_OPS } wfi_binary_op;
typedef enum wfi_compare_op { WFI_EQ, WFI_NE, WFI_LT, WFI_LE, WFI_GT, WFI_GE, WFI_COMPARE_OPS } wfi_compare_op;
typedef enum wfi_map_op {
    WFI_SCALE,            /* y = factor x */
    WFI_AXPY,             /* y = y + factor x */
    WFI_ADD_SCALAR,       /* y = x + factor */
    WFI_EXP,              /* y = e^x */
    WFI_LN,               /* y = ln x */
    WFI_RELU,             /* y = x where x > 0 or NaN, else 0 */
    WFI_RELU_BACKWARD,    /* y = x where z > 0, else 0 */
    WFI_SIGMOID,          /* y = 1 / (1 + e^-x) */
    WFI_SIGMOID_BACKWARD, /* y = x z (1 - z) */
    WFI_TANH,
    WFI_TANH_BACKWARD, /* y = x (1 - z^2) */
    WFI_MAP_OPS,
} wfi_map_op;

/* Contiguous, of one length; y may be x or z. */
typedef struct wfi_map_args {
    weft_device device;
    int64_t count;
    const void *x, *z; /* z: NULL where the operator has none */
    void *y;
    double factor;
} wfi_map_args;

typedef struct wfi_elementwise_kernels {
    wfi_walk_kernel binary[WFI_BINARY_OPS];   /* operand 2 = 0 op 1. WEFT_ERR_INVALID: an integer was divided by 0 */
    wfi_walk_kernel compare[WFI_COMPARE_OPS]; /* operand 2, a bool, = 0 op 1 */
    weft_status (*map[WFI_MAP_OPS])(const wfi_map_args *args);
} wfi_elementwise_kernels;

/* ---- Matrix products; c [m, n] = beta c + op(a) [m, k] op(b) [k, n], all packed, row-major; m, n, k fit an int ---- */
typedef struct wfi_gemm_args {
    weft_device device;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    double beta;
    void *c;
} wfi_gemm_args;

typedef struct wfi_product_kernels {
    weft_status (*gemm)(const wfi_gemm_args *args);
} wfi_product_kernels;

/* ---- The tables of each device, by dtype ---- */
extern const wfi_copy_kernels wfi_copy_cpu[WFI_DTYPES], wfi_copy_cuda[WFI_DTYPES];
extern const wfi_elementwise_kernels wfi_elementwise_cpu[WFI_DTYPES], wfi_elementwise_cuda[WFI_DTYPES];
extern const wfi_product_kernels wfi_product_cpu[WFI_DTYPES], wfi_product_cuda[WFI_DTYPES];

/* One of them, by what a tensor is and where; all NULL if nothing is there. Of products: cpu/product/product.h. */
const wfi_copy_kernels *wfi_copy_kernels_of(const weft_tensor *tensor);
const wfi_elementwise_kernels *wfi_elementwise_kernels_of(const weft_tensor *tensor);
weft_status wfi_no_kernel(const weft_tensor *tensor); /* WEFT_ERR_TYPE; not on the CPU: WEFT_ERR_UNSUPPORTED */

WEFT_END_C
#endif
