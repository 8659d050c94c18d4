/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the tables of kernels: for each family one table, by device and dtype. .cu files include this header, so
 * it is for C++ too.
 *
 * A family is a struct of functions that work on one dtype on one kind of device. NULL in a family means that there is
 * no such kernel; operators then fail with "no kernel for bfloat16 on the CPU". Checks of shapes and dtypes do not
 * depend on the device. They are in the functions that all code calls (copy.h, elementwise.h, cpu/product/product.h).
 * These functions find the family by their first operand, and pass addresses and strides to the kernel.
 * docs/decisions/044 has the reasons.
 *
 * The tables of a device are in its folder: cpu/, cuda/. Any thread may look up a kernel. A kernel of the CPU returns
 * when it is done. A kernel of a GPU returns when it is queued, on a stream; copies from the GPU wait for that stream.
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
typedef enum wfi_map_op {
    WFI_SCALE,            /* y = factor x */
    WFI_ADD_SCALAR,       /* y = x + factor */
    WFI_EXP,              /* y = e^x */
    WFI_LN,               /* y = ln x */
    WFI_RELU,             /* y = x where x > 0 or NaN, else 0 */
    WFI_RELU_BACKWARD,    /* y = x where z > 0 or NaN, else 0, as PyTorch */
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
    const void *x, *z; /* z: NULL if the operator has one operand */
    void *y;
    double factor;
} wfi_map_args;

typedef struct wfi_elementwise_kernels {
    wfi_walk_kernel binary[WFI_BINARY_OPS]; /* operand 2 = operand 0 op operand 1; WEFT_ERR_INVALID: integer / 0 */
    weft_status (*map[WFI_MAP_OPS])(const wfi_map_args *args);
} wfi_elementwise_kernels;

/* ---- Matrix products: c = beta c + op(a) op(b) ---- */
/* op(a) is [m, k], op(b) [k, n], c [m, n]; all are contiguous and row-major. m, n and k fit in an int. */
typedef struct wfi_gemm_args {
    weft_device device;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const void *a, *b;
    double beta;
    void *c;
    /* Of CUDA only: the number of such products, 0 or 1 for one, and how many elements further the next operand is. */
    int64_t batch, step_a, step_b, step_c;
} wfi_gemm_args;

/* Whether m, n and k fit. */
static inline bool wfi_blas_fits(int64_t m, int64_t n, int64_t k)
{
    return m <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX;
}

/* ---- Convolutions in two dimensions, and their gradients ---- */
typedef enum wfi_conv_kind { WFI_CONV_FORWARD, WFI_CONV_BACKWARD_DATA, WFI_CONV_BACKWARD_WEIGHT } wfi_conv_kind;

typedef struct wfi_conv_sizes {
    int64_t batch, groups, in, out; /* in, out: channels of one group */
    int64_t image[2], kernel[2], result[2];
    int64_t stride[2], padding[2], dilation[2];
} wfi_conv_sizes;

/*
 * x [batch, groups in, image], weight [groups out, in, kernel], bias [groups out], y [batch, groups out, result]; all
 * are contiguous. A kernel writes y (FORWARD), x (BACKWARD_DATA), or weight and bias (BACKWARD_WEIGHT). Backward, x,
 * weight, bias and y are gradients where they are written, and so is y where it is read. bias may be NULL.
 */
typedef struct wfi_conv_data {
    void *x, *weight, *bias, *y;
} wfi_conv_data;

typedef struct wfi_product_kernels {
    weft_status (*gemm)(const wfi_gemm_args *args);
    weft_status (*conv)(weft_device device, wfi_conv_kind kind, const wfi_conv_sizes *sizes, const wfi_conv_data *data);
} wfi_product_kernels;

/* ---- The tables of each device, by dtype ---- */
extern const wfi_copy_kernels wfi_copy_cpu[WFI_DTYPES], wfi_copy_cuda[WFI_DTYPES];
extern const wfi_elementwise_kernels wfi_elementwise_cpu[WFI_DTYPES], wfi_elementwise_cuda[WFI_DTYPES];
extern const wfi_product_kernels wfi_product_cpu[WFI_DTYPES], wfi_product_cuda[WFI_DTYPES];

/* The family for the device and the dtype of `tensor`. All its entries are NULL if the device has no table. Matrix
 * products: see cpu/product/product.h. */
const wfi_copy_kernels *wfi_copy_kernels_of(const weft_tensor *tensor);
const wfi_elementwise_kernels *wfi_elementwise_kernels_of(const weft_tensor *tensor);
weft_status wfi_no_kernel(const weft_tensor *tensor); /* on the CPU WEFT_ERR_TYPE, otherwise WEFT_ERR_UNSUPPORTED */

WEFT_END_C
#endif
