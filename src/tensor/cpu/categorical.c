/* SPDX-License-Identifier: Apache-2.0 */
/*
 * categorical.c - draws from the distributions that rows of weights stand for, by inversion of the running sum, in
 * double. A class of weight 0 does not raise the running sum, so it is never drawn. Row r uses random number r.
 */
#include "tensor/check.h"
#include "tensor/tasks.h"
#include "tensor/parallel.h"
#include "tensor/cpu/cpu.h"

#include <math.h>

typedef struct categorical_args {
    const void *weights;
    int64_t *drawn; /* -1: not a distribution */
    int64_t classes;
    wfi_random random;
} categorical_args;

/*
 * DRAW returns the first class i with weights[0] + .. + weights[i] > number * sum, `number` in [0, 1). If the sum
 * exceeds double's range, the weights are scaled by 2^-64. If all are so small that number * sum rounds up to the sum,
 * the last class that has a weight is drawn. -1: the row is not a distribution.
 */
#define CATEGORICAL(tag, T)                                                                                            \
    static double tag##_sum(const T *weights, int64_t classes, double factor)                                          \
    {                                                                                                                  \
        double sum = 0;                                                                                                \
        for (int64_t i = 0; i < classes; i++) {                                                                        \
            if (!(weights[i] >= 0) || !isfinite(weights[i]))                                                           \
                return -1;                                                                                             \
            sum += factor * (double)weights[i];                                                                        \
        }                                                                                                              \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static int64_t tag##_draw(const T *weights, int64_t classes, double number)                                        \
    {                                                                                                                  \
        double factor = 1, sum = tag##_sum(weights, classes, 1), running = 0;                                          \
        int64_t last = -1;                                                                                             \
        if (isinf(sum)) {                                                                                              \
            factor = 0x1p-64;                                                                                          \
            sum = tag##_sum(weights, classes, factor);                                                                 \
        }                                                                                                              \
        for (int64_t i = 0; i < classes && sum > 0; i++) {                                                             \
            running += factor * (double)weights[i];                                                                    \
            if (running > number * sum)                                                                                \
                return i;                                                                                              \
            last = weights[i] > 0 ? i : last;                                                                          \
        }                                                                                                              \
        return last;                                                                                                   \
    }                                                                                                                  \
    static void tag##_piece(void *arg, int64_t begin, int64_t end)                                                     \
    {                                                                                                                  \
        const categorical_args *args = arg;                                                                            \
        for (int64_t row = begin; row < end; row++) {                                                                  \
            const T *weights = (const T *)args->weights + row * args->classes;                                         \
            args->drawn[row] = tag##_draw(weights, args->classes, wfi_random_f64(args->random, (uint64_t)row));        \
        }                                                                                                              \
    }
CATEGORICAL(f32, float)
CATEGORICAL(f64, double)

static weft_status draw_on_gpu(const categorical_args *args, const weft_tensor *drawn, const weft_tensor *weights)
{
    wfi_random_task task = {WFI_GPU_TASK(weights, weights->dtype, drawn->numel), .data = args->drawn,
                            .random = args->random, .weights = args->weights, .classes = args->classes};
    return WFI_GPU_RUN(WFI_GPU_CATEGORICAL, task);
}

weft_status wfi_categorical_draw(weft_tensor *drawn, wfi_random random, const weft_tensor *weights)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(weights);
    if (status == WEFT_OK)
        status = drawn->dtype == WEFT_DTYPE_INT64 ? wfi_check_beside(drawn, weights) : WEFT_ERR_TYPE;
    if (status != WEFT_OK)
        return status;
    int last = weights->shape.ndim - 1;
    if (last < 0 || drawn->numel * weights->shape.dims[last] != weights->numel)
        return WEFT_ERR_SHAPE;
    categorical_args args = {wfi_tensor_address(weights), wfi_tensor_address(drawn), weights->shape.dims[last], random};
    if (wfi_tensor_is_on_gpu(weights))
        return draw_on_gpu(&args, drawn, weights);
    wfi_parallel(drawn->numel, 1 + WFI_GRAIN / 8 / (1 + args.classes),
                 WFI_BY_FLOAT(weights->dtype, f32_piece, f64_piece), &args);
    return WEFT_OK;
}
