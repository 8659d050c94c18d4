/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv.c - convolutions on a GPU, and the gradients of their inputs and weights, as matrix products over unfolded
 * images (im2col), as tensor/cpu/product/conv_gemm.c does on the CPU. Several images are unfolded at once, as many
 * as fit into MATRIX_BYTES. The kernels that unfold and fold are in tensor/cuda/conv.cu, the products are cuBLAS's
 * (gemm.c). All work is queued on the stream of this thread.
 */
#include "tensor/cuda/product/product.h"

#include "tensor/check.h"
#include "tensor/kernels.h"
#include "tensor/tasks.h"

#include <string.h>

#define MATRIX_BYTES ((size_t)64 << 20)

/* Work on one group of channels of some images. The addresses are those of the first image; steps are in elements. */
typedef struct conv_part {
    weft_device device;
    weft_dtype dtype;
    const wfi_conv_sizes *sizes;
    int64_t images, rows, columns;
    char *x, *weight, *y;
    void *matrix; /* [images, rows, columns] */
    int64_t x_step, y_step;
} conv_part;

/* matrix = the unfolded x (UNFOLD), or x = the sum of what the matrix has for each element (FOLD) */
static weft_status unfold(const conv_part *part, wfi_gpu_kind kind)
{
    const wfi_conv_sizes *s = part->sizes;
    bool fold = kind == WFI_GPU_FOLD;
    int64_t of_image = fold ? s->in * s->image[0] * s->image[1] : part->rows * part->columns;
    wfi_unfold_task task = {.head = WFI_GPU_HEAD(part->device, part->dtype, part->images * of_image),
                            .from = fold ? part->matrix : part->x,
                            .to = fold ? part->x : part->matrix,
                            .in = s->in,
                            .image_step = part->x_step};
    for (int d = 0; d < 2; d++) {
        task.image[d] = s->image[d];
        task.kernel[d] = s->kernel[d];
        task.result[d] = s->result[d];
        task.stride[d] = s->stride[d];
        task.padding[d] = s->padding[d];
        task.dilation[d] = s->dilation[d];
    }
    return WFI_GPU_RUN(kind, task);
}

/* y [images, out, columns] = weight [out, rows] matrix [images, rows, columns] */
static weft_status forward(const conv_part *part)
{
    wfi_gemm_args args = {.device = part->device,
                          .m = part->sizes->out,
                          .n = part->columns,
                          .k = part->rows,
                          .a = part->weight,
                          .b = part->matrix,
                          .c = part->y,
                          .batch = part->images,
                          .step_b = part->rows * part->columns,
                          .step_c = part->y_step};
    weft_status status = unfold(part, WFI_GPU_UNFOLD);
    return status == WEFT_OK ? wfi_product_cuda[part->dtype].gemm(&args) : status;
}

/* The gradient of x: matrix = weight^T y, folded back into x. y is the gradient of the result. */
static weft_status backward_data(const conv_part *part)
{
    wfi_gemm_args args = {.device = part->device,
                          .transpose_a = true,
                          .m = part->rows,
                          .n = part->columns,
                          .k = part->sizes->out,
                          .a = part->weight,
                          .b = part->y,
                          .c = part->matrix,
                          .batch = part->images,
                          .step_b = part->y_step,
                          .step_c = part->rows * part->columns};
    weft_status status = wfi_product_cuda[part->dtype].gemm(&args);
    return status == WEFT_OK ? unfold(part, WFI_GPU_FOLD) : status;
}

/* The gradient of the weight: weight (+)= the sum of y matrix^T over the images, one after the other. */
static weft_status backward_weight(const conv_part *part, bool first)
{
    size_t element = weft_dtype_size(part->dtype);
    weft_status status = unfold(part, WFI_GPU_UNFOLD);
    for (int64_t i = 0; i < part->images && status == WEFT_OK; i++) {
        wfi_gemm_args args = {.device = part->device,
                              .transpose_b = true,
                              .m = part->sizes->out,
                              .n = part->rows,
                              .k = part->columns,
                              .a = part->y + (size_t)(i * part->y_step) * element,
                              .b = (char *)part->matrix + (size_t)(i * part->rows * part->columns) * element,
                              .beta = first && i == 0 ? 0 : 1,
                              .c = part->weight};
        status = wfi_product_cuda[part->dtype].gemm(&args);
    }
    return status;
}

static weft_status add_bias(const conv_part *whole, const wfi_conv_data *data)
{
    const wfi_conv_sizes *s = whole->sizes;
    int64_t channels = s->groups * s->out;
    wfi_bias_task task = {.head = WFI_GPU_HEAD(whole->device, whole->dtype, s->batch * channels * whole->columns),
                          .bias = data->bias,
                          .to = data->y,
                          .channels = channels,
                          .plane = whole->columns};
    return WFI_GPU_RUN(WFI_GPU_ADD_BIAS, task);
}

weft_status wfi_cublas_conv(weft_device device, weft_dtype dtype, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data)
{
    const wfi_conv_sizes *s = sizes;
    int64_t rows = s->in * s->kernel[0] * s->kernel[1], columns = s->result[0] * s->result[1];
    int64_t plane = s->image[0] * s->image[1];
    size_t element = weft_dtype_size(dtype), bytes;
    if (!wfi_blas_fits(rows, columns, s->out) ||
        __builtin_mul_overflow((size_t)rows * element, (size_t)columns, &bytes))
        return WEFT_ERR_TOO_LARGE;
    int64_t most = bytes < MATRIX_BYTES ? (int64_t)(MATRIX_BYTES / bytes) : 1;
    most = most < s->batch ? most : s->batch;
    wfi_storage *matrix;
    weft_status status = wfi_storage_create(WFI_MEMORY_CUDA, device.index, bytes * (size_t)most, &matrix);
    if (status != WEFT_OK)
        return status;
    conv_part part = {.device = device,
                      .dtype = dtype,
                      .sizes = s,
                      .rows = rows,
                      .columns = columns,
                      .matrix = wfi_storage_data(matrix),
                      .x_step = s->groups * s->in * plane,
                      .y_step = s->groups * s->out * columns};
    for (int64_t group = 0; group < s->groups && status == WEFT_OK; group++) {
        for (int64_t n = 0; n < s->batch && status == WEFT_OK; n += most) {
            part.images = most < s->batch - n ? most : s->batch - n;
            part.x = (char *)data->x + (size_t)(n * part.x_step + group * s->in * plane) * element;
            part.weight = (char *)data->weight + (size_t)(group * s->out * rows) * element;
            part.y = (char *)data->y + (size_t)(n * part.y_step + group * s->out * columns) * element;
            status = kind == WFI_CONV_FORWARD         ? forward(&part)
                     : kind == WFI_CONV_BACKWARD_DATA ? backward_data(&part)
                                                      : backward_weight(&part, n == 0);
        }
    }
    if (status == WEFT_OK && kind == WFI_CONV_FORWARD && data->bias)
        status = add_bias(&part, data);
    wfi_storage_unref(matrix);
    return status;
}
