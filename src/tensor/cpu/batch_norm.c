/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_norm.c - batch normalisation over channels (Ioffe, Szegedy 2015), x [N, C, P] with P the plane.
 *
 * A channel is one piece of work: its sums run over the batch in order, plane sums in T with several lanes (below), joined
 * in double.
 */
#include "tensor/cpu/check.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"

#include <math.h>

typedef struct norm_args {
    const void *x, *dy, *weight, *bias, *mean, *invstd;
    void *y, *dweight, *dbias, *save_mean, *save_invstd, *running_mean, *running_var;
    int64_t batch, channels, plane;
    double momentum, eps;
    bool train;
} norm_args;

static weft_status norm_init(norm_args *args, const weft_tensor *x, int count, const weft_tensor *const *vectors)
{
    weft_status status = wfi_check_floats(1, &x);
    if (status == WEFT_OK && x->shape.ndim < 2)
        status = WEFT_ERR_SHAPE;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        status = wfi_check_float(vectors[i], x);
        if (status == WEFT_OK && !wfi_is_vector(vectors[i], x->shape.dims[1]))
            status = WEFT_ERR_SHAPE;
    }
    if (status != WEFT_OK)
        return status;
    args->x = wfi_tensor_address(x);
    args->batch = x->shape.dims[0];
    args->channels = x->shape.dims[1];
    args->plane = 1;
    for (int d = 2; d < x->shape.ndim; d++)
        args->plane *= x->shape.dims[d];
    return WEFT_OK;
}

static void *address(const weft_tensor *tensor)
{
    return tensor != NULL ? wfi_tensor_address(tensor) : NULL;
}

/* LANES partial sums let the compiler use vector registers without reordering what C says. */
#define LANES 16
#define NORM_SUM(name, T, EXPRESSION)                                                                                  \
    static double name(const T *restrict x, const T *restrict z, int64_t count, T shift)                               \
    {                                                                                                                  \
        T lane[LANES] = {0};                                                                                           \
        double sum = 0;                                                                                                \
        int64_t i = 0;                                                                                                 \
        (void)z;                                                                                                       \
        (void)shift;                                                                                                   \
        for (; i + LANES <= count; i += LANES) {                                                                       \
            for (int k = 0; k < LANES; k++) {                                                                          \
                T u = x[i + k], v = z[i + k];                                                                          \
                (void)v;                                                                                               \
                lane[k] += (EXPRESSION);                                                                               \
            }                                                                                                          \
        }                                                                                                              \
        for (; i < count; i++) {                                                                                       \
            T u = x[i], v = z[i];                                                                                      \
            (void)v;                                                                                                   \
            sum += (double)(EXPRESSION);                                                                               \
        }                                                                                                              \
        for (int k = 0; k < LANES; k++)                                                                                \
            sum += (double)lane[k];                                                                                    \
        return sum;                                                                                                    \
    }

#define NORM_KERNELS(tag, T)                                                                                           \
    NORM_SUM(tag##_sum, T, u - shift)                                                                                  \
    NORM_SUM(tag##_sum_squares, T, (u - shift) * (u - shift))                                                          \
    NORM_SUM(tag##_sum_product, T, (u - shift) * v)                                                                    \
    static void tag##_moments(const norm_args *args, int64_t c, double *mean, double *variance)                        \
    {                                                                                                                  \
        const T *x = (const T *)args->x + c * args->plane;                                                             \
        int64_t step = args->channels * args->plane;                                                                   \
        double count = (double)(args->batch * args->plane), sum = 0, squares = 0, rest = 0;                            \
        for (int64_t n = 0; n < args->batch; n++)                                                                      \
            sum += tag##_sum(x + n * step, x + n * step, args->plane, 0);                                              \
        T center = (T)(sum / count);                                                                                   \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            squares += tag##_sum_squares(x + n * step, x + n * step, args->plane, center);                             \
        }                                                                                                              \
        rest = sum / count - (double)center; /* what rounding the centre to T left out */                              \
        *mean = sum / count;                                                                                           \
        *variance = squares / count - rest * rest;                                                                     \
    }                                                                                                                  \
    static void tag##_affine(const norm_args *args, int64_t c, double factor, double offset)                           \
    {                                                                                                                  \
        T scale = (T)factor, shift = (T)offset;                                                                        \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            const T *restrict x = (const T *)args->x + (n * args->channels + c) * args->plane;                         \
            T *restrict y = (T *)args->y + (n * args->channels + c) * args->plane;                                     \
            for (int64_t i = 0; i < args->plane; i++)                                                                  \
                y[i] = x[i] * scale + shift;                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_move(void *running, int64_t c, double momentum, double value)                                    \
    {                                                                                                                  \
        T *at = running;                                                                                               \
        if (at != NULL)                                                                                                \
            at[c] = (T)((1 - momentum) * (double)at[c] + momentum * value);                                            \
    }                                                                                                                  \
    static void tag##_train_piece(void *arg, int64_t begin, int64_t end)                                               \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        double count = (double)(args->batch * args->plane);                                                            \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            double mean, variance;                                                                                     \
            tag##_moments(args, c, &mean, &variance);                                                                  \
            double invstd = 1 / sqrt(variance + args->eps);                                                            \
            ((T *)args->save_mean)[c] = (T)mean;                                                                       \
            ((T *)args->save_invstd)[c] = (T)invstd;                                                                   \
            tag##_move(args->running_mean, c, args->momentum, mean);                                                   \
            tag##_move(args->running_var, c, args->momentum, variance *count / (count - 1));                           \
            double factor = args->weight != NULL ? invstd * (double)((const T *)args->weight)[c] : invstd;             \
            double bias = args->bias != NULL ? (double)((const T *)args->bias)[c] : 0;                                 \
            tag##_affine(args, c, factor, bias - mean * factor);                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_eval_piece(void *arg, int64_t begin, int64_t end)                                                \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            double mean = (double)((const T *)args->mean)[c];                                                          \
            double invstd = 1 / sqrt((double)((const T *)args->invstd)[c] + args->eps); /* it holds the variance */    \
            if (args->save_invstd != NULL)                                                                             \
                ((T *)args->save_invstd)[c] = (T)invstd;                                                               \
            double factor = args->weight != NULL ? invstd * (double)((const T *)args->weight)[c] : invstd;             \
            double bias = args->bias != NULL ? (double)((const T *)args->bias)[c] : 0;                                 \
            tag##_affine(args, c, factor, bias - mean * factor);                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    /* dx = f dy + g x + h: for eval g = h = 0. */                                                                     \
    static void tag##_spread(const norm_args *args, int64_t c, double f, double g, double h)                           \
    {                                                                                                                  \
        T tf = (T)f, tg = (T)g, center = ((const T *)args->mean)[c], th = (T)h;                                        \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            int64_t at = (n * args->channels + c) * args->plane;                                                       \
            const T *restrict x = (const T *)args->x + at, *restrict dy = (const T *)args->dy + at;                    \
            T *restrict dx = (T *)args->y + at;                                                                        \
            for (int64_t i = 0; i < args->plane; i++)                                                                  \
                dx[i] = tf * dy[i] + tg * (x[i] - center) + th;                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_back_piece(void *arg, int64_t begin, int64_t end)                                                \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        double count = (double)(args->batch * args->plane);                                                            \
        int64_t step = args->channels * args->plane;                                                                   \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            const T *x = (const T *)args->x + c * args->plane, *dy = (const T *)args->dy + c * args->plane;            \
            T center = ((const T *)args->mean)[c];                                                                     \
            double invstd = (double)((const T *)args->invstd)[c], sum = 0, product = 0;                                \
            for (int64_t n = 0; n < args->batch; n++) {                                                                \
                sum += tag##_sum(dy + n * step, dy + n * step, args->plane, 0);                                        \
                product += tag##_sum_product(x + n * step, dy + n * step, args->plane, center);                        \
            }                                                                                                          \
            if (args->dweight != NULL)                                                                                 \
                ((T *)args->dweight)[c] = (T)(product * invstd);                                                       \
            if (args->dbias != NULL)                                                                                   \
                ((T *)args->dbias)[c] = (T)sum;                                                                        \
            double f = args->weight != NULL ? invstd * (double)((const T *)args->weight)[c] : invstd;                  \
            if (args->y != NULL && args->train)                                                                        \
                tag##_spread(args, c, f, -f *invstd *invstd *product / count, -f * sum / count);                       \
            else if (args->y != NULL)                                                                                  \
                tag##_spread(args, c, f, 0, 0);                                                                        \
        }                                                                                                              \
    }

NORM_KERNELS(f32, float)
NORM_KERNELS(f64, double)

weft_status wfi_batch_norm_train(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                                 weft_tensor *running_mean, weft_tensor *running_var, double momentum, double eps,
                                 weft_tensor *y, weft_tensor *save_mean, weft_tensor *save_invstd)
{
    norm_args args = {.momentum = momentum, .eps = eps};
    const weft_tensor *vectors[] = {weight, bias, running_mean, running_var, save_mean, save_invstd};
    weft_status status = norm_init(&args, x, 6, vectors);
    if (status == WEFT_OK)
        status = wfi_check_float(y, x);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, y) || args.batch * args.plane < 2)
        return WEFT_ERR_SHAPE;
    args.weight = address(weight);
    args.bias = address(bias);
    args.running_mean = address(running_mean);
    args.running_var = address(running_var);
    args.save_mean = address(save_mean);
    args.save_invstd = address(save_invstd);
    args.y = address(y);
    wfi_parallel(args.channels, 1, WFI_BY_FLOAT(x->dtype, f32_train_piece, f64_train_piece), &args);
    return WEFT_OK;
}

weft_status wfi_batch_norm_eval(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                                const weft_tensor *running_mean, const weft_tensor *running_var, double eps,
                                weft_tensor *y, weft_tensor *save_invstd)
{
    norm_args args = {.eps = eps};
    const weft_tensor *vectors[] = {weight, bias, running_mean, running_var, save_invstd};
    weft_status status = norm_init(&args, x, 5, vectors);
    if (status == WEFT_OK)
        status = wfi_check_float(y, x);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, y))
        return WEFT_ERR_SHAPE;
    args.weight = address(weight);
    args.bias = address(bias);
    args.mean = address(running_mean);
    args.invstd = address(running_var);
    args.save_invstd = address(save_invstd);
    args.y = address(y);
    wfi_parallel(args.channels, 1, WFI_BY_FLOAT(x->dtype, f32_eval_piece, f64_eval_piece), &args);
    return WEFT_OK;
}

weft_status wfi_batch_norm_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *weight,
                                    const weft_tensor *mean, const weft_tensor *invstd, bool train, weft_tensor *dx,
                                    weft_tensor *dweight, weft_tensor *dbias)
{
    norm_args args = {.train = train};
    const weft_tensor *vectors[] = {weight, mean, invstd, dweight, dbias};
    weft_status status = norm_init(&args, x, 5, vectors);
    if (status == WEFT_OK)
        status = WFI_CHECK_FLOATS(x, dy, dx);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, dy) || (dx != NULL && !weft_tensor_same_shape(x, dx)))
        return WEFT_ERR_SHAPE;
    args.dy = address(dy);
    args.weight = address(weight);
    args.mean = address(mean);
    args.invstd = address(invstd);
    args.y = address(dx);
    args.dweight = address(dweight);
    args.dbias = address(dbias);
    wfi_parallel(args.channels, 1, WFI_BY_FLOAT(x->dtype, f32_back_piece, f64_back_piece), &args);
    return WEFT_OK;
}
