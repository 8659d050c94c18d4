/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear.c - matrix products and the linear layer on any device, and the tables that lead to the kernels.
 *
 *   linear    y [N, O] = x [N, I] weight [O, I]^T + bias;  dx = dy weight, dweight = dy^T x, dbias = sum of dy's rows;
 */
#include "tensor/check.h"
#include "tensor/kernels.h"
#include "tensor/cpu/product/conv.h"
#include "tensor/cpu/product/gemm.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/product/product.h"

static weft_status gemm_f32(const wfi_gemm_args *g)
{
    return wfi_gemm(WEFT_DTYPE_FLOAT32, g->transpose_a, g->transpose_b, g->m, g->n, g->k, g->a, g->b, g->beta, g->c);
}

static weft_status gemm_f64(const wfi_gemm_args *g)
{
    return wfi_gemm(WEFT_DTYPE_FLOAT64, g->transpose_a, g->transpose_b, g->m, g->n, g->k, g->a, g->b, g->beta, g->c);
}

static weft_status conv_f32(weft_device device, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data)
{
    (void)device;
    weft_status status = wfi_conv_onednn(kind, sizes, data);
    return status != WEFT_ERR_UNSUPPORTED ? status : wfi_conv_gemm(WEFT_DTYPE_FLOAT32, kind, sizes, data);
}

static weft_status conv_f64(weft_device device, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data)
{
    (void)device;
    return wfi_conv_gemm(WEFT_DTYPE_FLOAT64, kind, sizes, data);
}

const wfi_product_kernels wfi_product_cpu[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {gemm_f32, conv_f32}, [WEFT_DTYPE_FLOAT64] = {gemm_f64, conv_f64}};

static const wfi_product_kernels *const by_device[WFI_DEVICE_KINDS] = {
    [WEFT_DEVICE_CPU] = wfi_product_cpu,
    [WEFT_DEVICE_CUDA] = wfi_product_cuda,
};

const wfi_product_kernels *wfi_product_kernels_of(const weft_tensor *tensor)
{
    return &by_device[weft_tensor_device(tensor).kind][tensor->dtype];
}

weft_status wfi_gemm_run(weft_dtype dtype, const wfi_gemm_args *args)
{
    const wfi_product_kernels *kernels = &by_device[args->device.kind][dtype];
    return kernels->gemm ? kernels->gemm(args) : WEFT_ERR_UNSUPPORTED;
}

/* Contiguous, of one dtype, on one device; those that are NULL are skipped, except the first. */
static weft_status check_alike(int count, const weft_tensor *const *tensors)
{
    if (!tensors[0])
        return WEFT_ERR_INVALID;
    weft_device device = weft_tensor_device(tensors[0]);
    for (int i = 0; i < count; i++) {
        if (!tensors[i])
            continue;
        weft_device other = weft_tensor_device(tensors[i]);
        if (tensors[i]->dtype != tensors[0]->dtype)
            return WEFT_ERR_TYPE;
        if (!wfi_device_equal(other, device) || !weft_tensor_is_contiguous(tensors[i]))
            return WEFT_ERR_UNSUPPORTED;
    }
    return wfi_product_kernels_of(tensors[0])->gemm ? WEFT_OK : wfi_no_kernel(tensors[0]);
}

/* y = beta y + op(a) op(b) */
static weft_status multiply(const weft_tensor *a, bool transpose_a, const weft_tensor *b, bool transpose_b, double beta,
                            weft_tensor *y)
{
    wfi_gemm_args args = {.device = weft_tensor_device(a),
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .m = a->shape.dims[transpose_a],
                          .n = b->shape.dims[!transpose_b],
                          .k = a->shape.dims[!transpose_a],
                          .a = wfi_tensor_address(a),
                          .b = wfi_tensor_address(b),
                          .beta = beta,
                          .c = wfi_tensor_address(y)};
    if (b->shape.dims[transpose_b] != args.k || y->shape.dims[0] != args.m || y->shape.dims[1] != args.n)
        return WEFT_ERR_SHAPE;
    if (!wfi_blas_fits(args.m, args.n, args.k))
        return WEFT_ERR_TOO_LARGE;
    return wfi_product_kernels_of(a)->gemm(&args);
}

weft_status wfi_matmul(const weft_tensor *a, bool transpose_a, const weft_tensor *b, bool transpose_b, weft_tensor *y)
{
    weft_status status = check_alike(3, (const weft_tensor *[]){a, b, y});
    if (status != WEFT_OK)
        return status;
    if (a->shape.ndim != 2 || b->shape.ndim != 2 || y->shape.ndim != 2)
        return WEFT_ERR_SHAPE;
    return multiply(a, transpose_a, b, transpose_b, 0, y);
}

static weft_status check_linear(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                                const weft_tensor *y)
{
    weft_status status = check_alike(4, (const weft_tensor *[]){x, weight, bias, y});
    if (status != WEFT_OK)
        return status;
    bool fits = x->shape.ndim == 2 && weight->shape.ndim == 2 && y->shape.ndim == 2 &&
                x->shape.dims[1] == weight->shape.dims[1] && y->shape.dims[0] == x->shape.dims[0] &&
                y->shape.dims[1] == weight->shape.dims[0] && wfi_tensor_is_vector(bias, weight->shape.dims[0]);
    return fits ? WEFT_OK : WEFT_ERR_SHAPE;
}

/* y is filled with the bias, and the product is added: that saves reading y again to add the bias. */
weft_status wfi_linear(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias, weft_tensor *y)
{
    weft_status status = check_linear(x, weight, bias, y);
    if (status != WEFT_OK)
        return status;
    if (bias)
        status = wfi_expand(bias, y);
    return status == WEFT_OK ? multiply(x, false, weight, true, bias ? 1 : 0, y) : status;
}

weft_status wfi_linear_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *weight, weft_tensor *dx,
                                weft_tensor *dweight, weft_tensor *dbias)
{
    weft_status status = check_linear(x, weight, dbias, dy);
    if (status == WEFT_OK && dx)
        status = wfi_matmul(dy, false, weight, false, dx);
    if (status == WEFT_OK && dweight)
        status = wfi_matmul(dy, true, x, false, dweight);
    if (status == WEFT_OK && dbias)
        status = wfi_sum(dy, 1u << 0, dbias);
    return status;
}
