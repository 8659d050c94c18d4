/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_check.c - compares some elements of a convolution's result, float32, with sums over its operands.
 *
 * Debian 13's oneDNN (3.7.2) leaves out all but the first element of each row and column of the kernel in the backward
 * pass to the images, for stride 1. So no plan of oneDNN is believed before some of its results were right.
 */
#include "tensor/cpu/product/conv.h"

#include <float.h>
#include <math.h>

#define SAMPLES 16
#define ENOUGH 8       /* samples that are not trivially 0 */
#define TOLERANCE 1e-3 /* of the sum of the terms' magnitudes; float32 sums of a million terms are far better */

typedef struct sum {
    double value, magnitude;
} sum;

/* The element of the image on which element `kernel` lies for element `result`. False: it is padding. */
static bool find_image(const wfi_conv_sizes *s, int axis, int64_t result, int64_t kernel, int64_t *out)
{
    *out = result * s->stride[axis] - s->padding[axis] + kernel * s->dilation[axis];
    return *out >= 0 && *out < s->image[axis];
}

/* The reverse. False: no element of the result. */
static bool find_result(const wfi_conv_sizes *s, int axis, int64_t image, int64_t kernel, int64_t *out)
{
    int64_t at = image + s->padding[axis] - kernel * s->dilation[axis];
    *out = at / s->stride[axis];
    return at >= 0 && at % s->stride[axis] == 0 && *out < s->result[axis];
}

static const float *image_at(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t image, int64_t channel)
{
    return (const float *)data->x + (image * s->groups * s->in + channel) * s->image[0] * s->image[1];
}

static const float *kernel_at(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t to, int64_t from)
{
    return (const float *)data->weight + (to * s->in + from) * s->kernel[0] * s->kernel[1];
}

static const float *result_at(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t image, int64_t channel)
{
    return (const float *)data->y + (image * s->groups * s->out + channel) * s->result[0] * s->result[1];
}

static void add(sum *to, float a, float b)
{
    to->value += (double)a * (double)b;
    to->magnitude += fabs((double)a * (double)b);
}

/* Element (row, column) of a result's channel `to`. */
static sum forward(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t image, int64_t to, const int64_t at[2])
{
    sum total = {0};
    int64_t row, column;
    if (data->bias)
        add(&total, ((const float *)data->bias)[to], 1);
    for (int64_t from = 0; from < s->in; from++) {
        const float *x = image_at(s, data, image, to / s->out * s->in + from), *w = kernel_at(s, data, to, from);
        for (int64_t i = 0; i < s->kernel[0]; i++)
            for (int64_t j = 0; j < s->kernel[1]; j++)
                if (find_image(s, 0, at[0], i, &row) && find_image(s, 1, at[1], j, &column))
                    add(&total, x[row * s->image[1] + column], w[i * s->kernel[1] + j]);
    }
    return total;
}

/* Element (row, column) of an image's channel `from`, counted over all groups. */
static sum backward_data(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t image, int64_t from,
                         const int64_t at[2])
{
    sum total = {0};
    int64_t row, column, group = from / s->in;
    for (int64_t to = group * s->out; to < (group + 1) * s->out; to++) {
        const float *y = result_at(s, data, image, to), *w = kernel_at(s, data, to, from % s->in);
        for (int64_t i = 0; i < s->kernel[0]; i++)
            for (int64_t j = 0; j < s->kernel[1]; j++)
                if (find_result(s, 0, at[0], i, &row) && find_result(s, 1, at[1], j, &column))
                    add(&total, y[row * s->result[1] + column], w[i * s->kernel[1] + j]);
    }
    return total;
}

/* Element (row, column) of the kernel that leads from channel `from` of a group to channel `to`. */
static sum backward_weight(const wfi_conv_sizes *s, const wfi_conv_data *data, int64_t to, int64_t from,
                           const int64_t at[2])
{
    sum total = {0};
    int64_t row, column;
    for (int64_t image = 0; image < s->batch; image++) {
        const float *x = image_at(s, data, image, to / s->out * s->in + from), *y = result_at(s, data, image, to);
        for (int64_t i = 0; i < s->result[0]; i++)
            for (int64_t j = 0; j < s->result[1]; j++)
                if (find_image(s, 0, i, at[0], &row) && find_image(s, 1, j, at[1], &column))
                    add(&total, x[row * s->image[1] + column], y[i * s->result[1] + j]);
    }
    return total;
}

wfi_conv_verdict wfi_conv_check(wfi_conv_pass pass, const wfi_conv_sizes *s, const wfi_conv_data *data)
{
    static sum (*const sums[])(const wfi_conv_sizes *, const wfi_conv_data *, int64_t, int64_t, const int64_t[2]) = {
        [WFI_CONV_FORWARD] = forward,
        [WFI_CONV_BACKWARD_DATA] = backward_data,
        [WFI_CONV_BACKWARD_WEIGHT] = backward_weight,
    };
    const int64_t shapes[][4] = {
        [WFI_CONV_FORWARD] = {s->batch, s->groups * s->out, s->result[0], s->result[1]},
        [WFI_CONV_BACKWARD_DATA] = {s->batch, s->groups * s->in, s->image[0], s->image[1]},
        [WFI_CONV_BACKWARD_WEIGHT] = {s->groups * s->out, s->in, s->kernel[0], s->kernel[1]},
    };
    const void *const results[] = {
        [WFI_CONV_FORWARD] = data->y, [WFI_CONV_BACKWARD_DATA] = data->x, [WFI_CONV_BACKWARD_WEIGHT] = data->weight};
    const int64_t *shape = shapes[pass];
    uint64_t count = (uint64_t)(shape[0] * shape[1] * shape[2] * shape[3]), random = 1;
    int right = 0;
    for (int i = 0; i < SAMPLES; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX: the same samples each time */
        uint64_t index = i == 0 ? 0 : i == 1 ? count - 1 : (random >> 20) % count;
        int64_t rest = (int64_t)index, at[2] = {rest / shape[3] % shape[2], rest % shape[3]};
        rest /= shape[2] * shape[3];
        sum wanted = sums[pass](s, data, rest / shape[1], rest % shape[1], at);
        if (!isfinite(wanted.magnitude) || wanted.magnitude == 0)
            continue;
        double got = (double)((const float *)results[pass])[index];
        if (!(fabs(got - wanted.value) <= TOLERANCE * wanted.magnitude + FLT_MIN))
            return WFI_CONV_WRONG;
        right++;
    }
    return right >= ENOUGH ? WFI_CONV_RIGHT : WFI_CONV_UNKNOWN;
}
