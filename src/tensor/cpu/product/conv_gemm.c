/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_gemm.c - convolution as a matrix product over the unfolded image (im2col; Chellapilla et al. 2006). For float64,
 * where the numbers serve to check gradients, and for what oneDNN does not offer. With U the unfolded image
 * [in KH KW, OH OW], the weight W [out, in KH KW], for each image and group, one after another:
 *
 *   forward          y = W U + bias;
 *   backward data    U = W^T dy, and dx = U folded back: elements of U from one place of the image are added;
 *   backward weight  dW += dy U^T, in the order of the images; dbias = sum of dy, in double;
 */
#include "tensor/check.h"
#include "tensor/cpu/product/conv.h"
#include "tensor/cpu/product/gemm.h"

#include <string.h>

typedef struct unfold {
    const wfi_conv_sizes *sizes;
    int64_t rows, columns; /* [in KH KW, OH OW] */
    size_t element;
} unfold;

/* *h: the image's row that row kh of the kernel meets for output row oh. False: it is padding. */
static bool source_row(const wfi_conv_sizes *s, int64_t kh, int64_t oh, int64_t *h)
{
    *h = oh * s->stride[0] - s->padding[0] + kh * s->dilation[0];
    return *h >= 0 && *h < s->image[0];
}

#define UNFOLD(tag, T)                                                                                                 \
    static void tag##_unfold_row(const wfi_conv_sizes *s, const T *channel, int64_t kh, int64_t kw, T *row)            \
    {                                                                                                                  \
        for (int64_t i = 0; i < s->result[0] * s->result[1]; i++) {                                                    \
            int64_t h, w = i % s->result[1] * s->stride[1] - s->padding[1] + kw * s->dilation[1];                      \
            bool inside = source_row(s, kh, i / s->result[1], &h) && w >= 0 && w < s->image[1];                        \
            row[i] = inside ? channel[h * s->image[1] + w] : 0;                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_fold_row(const wfi_conv_sizes *s, const T *row, int64_t kh, int64_t kw, T *channel)              \
    {                                                                                                                  \
        for (int64_t i = 0; i < s->result[0] * s->result[1]; i++) {                                                    \
            int64_t h, w = i % s->result[1] * s->stride[1] - s->padding[1] + kw * s->dilation[1];                      \
            if (source_row(s, kh, i / s->result[1], &h) && w >= 0 && w < s->image[1])                                  \
                channel[h * s->image[1] + w] += row[i];                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    /* fold false: matrix = unfolded image; true: image += matrix folded back. */                                      \
    static void tag##_unfold(const unfold *u, T *image, T *matrix, bool fold)                                          \
    {                                                                                                                  \
        const wfi_conv_sizes *s = u->sizes;                                                                            \
        for (int64_t r = 0; r < u->rows; r++) {                                                                        \
            int64_t kw = r % s->kernel[1], kh = r / s->kernel[1] % s->kernel[0];                                       \
            T *channel = image + r / (s->kernel[0] * s->kernel[1]) * s->image[0] * s->image[1];                        \
            if (fold)                                                                                                  \
                tag##_fold_row(s, matrix + r * u->columns, kh, kw, channel);                                           \
            else                                                                                                       \
                tag##_unfold_row(s, channel, kh, kw, matrix + r * u->columns);                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_add_bias(const wfi_conv_sizes *s, const T *bias, T *y, int64_t plane)                            \
    {                                                                                                                  \
        int64_t channels = s->groups * s->out;                                                                         \
        for (int64_t i = 0; i < s->batch * channels * plane; i++)                                                      \
            y[i] += bias[i / plane % channels];                                                                        \
    }                                                                                                                  \
    static void tag##_sum_bias(const wfi_conv_sizes *s, const T *dy, T *dbias, int64_t plane)                          \
    {                                                                                                                  \
        int64_t channels = s->groups * s->out;                                                                         \
        for (int64_t c = 0; c < channels; c++) {                                                                       \
            double sum = 0;                                                                                            \
            for (int64_t i = 0; i < s->batch * plane; i++)                                                             \
                sum += (double)dy[(i / plane * channels + c) * plane + i % plane];                                     \
            dbias[c] = (T)sum;                                                                                         \
        }                                                                                                              \
    }
UNFOLD(f32, float)
UNFOLD(f64, double)

static void unfold_image(weft_dtype dtype, const unfold *u, void *image, void *matrix, bool fold)
{
    if (wfi_dtype_is_f32(dtype))
        f32_unfold(u, image, matrix, fold);
    else
        f64_unfold(u, image, matrix, fold);
}

/* One image and group. `first`: the gradient of the weight is overwritten, not added to. `matrix`: room for U. */
static weft_status one_image(weft_dtype dtype, wfi_conv_kind kind, const unfold *u, char *x, char *weight, char *y,
                             void *matrix, bool first)
{
    int64_t out = u->sizes->out;
    if (kind == WFI_CONV_BACKWARD_DATA) {
        weft_status status = wfi_gemm(dtype, true, false, u->rows, u->columns, out, weight, y, 0, matrix);
        if (!status)
            unfold_image(dtype, u, x, matrix, true);
        return status;
    }
    unfold_image(dtype, u, x, matrix, false);
    if (kind == WFI_CONV_FORWARD)
        return wfi_gemm(dtype, false, false, out, u->columns, u->rows, weight, matrix, 0, y);
    return wfi_gemm(dtype, false, true, out, u->rows, u->columns, y, matrix, first ? 0 : 1, weight);
}

/* Forward: y += bias. Backward weight: dbias. */
static void apply_bias(weft_dtype dtype, wfi_conv_kind kind, const wfi_conv_sizes *s, const wfi_conv_data *data,
                       int64_t plane)
{
    if (!data->bias || kind == WFI_CONV_BACKWARD_DATA)
        return;
    bool forward = kind == WFI_CONV_FORWARD;
    if (wfi_dtype_is_f32(dtype) && forward)
        f32_add_bias(s, data->bias, data->y, plane);
    else if (wfi_dtype_is_f32(dtype))
        f32_sum_bias(s, data->y, data->bias, plane);
    else if (forward)
        f64_add_bias(s, data->bias, data->y, plane);
    else
        f64_sum_bias(s, data->y, data->bias, plane);
}

weft_status wfi_conv_gemm(weft_dtype dtype, wfi_conv_kind kind, const wfi_conv_sizes *sizes, const wfi_conv_data *data)
{
    int64_t plane = sizes->image[0] * sizes->image[1], columns = sizes->result[0] * sizes->result[1];
    size_t element = weft_dtype_size(dtype), bytes;
    int64_t rows = sizes->in * sizes->kernel[0] * sizes->kernel[1];
    unfold u = {sizes, rows, columns, element};
    if (!wfi_blas_fits(rows, columns, sizes->out))
        return WEFT_ERR_TOO_LARGE;
    if (__builtin_mul_overflow((size_t)rows * element, (size_t)columns, &bytes))
        return WEFT_ERR_TOO_LARGE;
    wfi_storage *matrix;
    weft_status status = wfi_storage_create(WFI_MEMORY_HOST, 0, bytes, &matrix);
    if (status != WEFT_OK)
        return status;
    if (kind == WFI_CONV_BACKWARD_DATA)
        memset(data->x, 0, (size_t)(sizes->batch * sizes->groups * sizes->in * plane) * element);
    for (int64_t i = 0; i < sizes->batch * sizes->groups && !status; i++) {
        int64_t group = i % sizes->groups;
        status = one_image(dtype, kind, &u, (char *)data->x + (size_t)(i * sizes->in * plane) * element,
                           (char *)data->weight + (size_t)(group * sizes->out * rows) * element,
                           (char *)data->y + (size_t)(i * sizes->out * columns) * element, wfi_storage_data(matrix),
                           i < sizes->groups);
    }
    if (!status)
        apply_bias(dtype, kind, sizes, data, columns);
    wfi_storage_unref(matrix);
    return status;
}
