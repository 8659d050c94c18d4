/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_norm.c - batch normalisation over channels (Ioffe, Szegedy: Batch Normalization, 2015). x is [N, C, P], P the
 * plane; a channel has m = N P elements. Everything else is [C].
 *
 *   train     mean = sum(x) / m, var = sum((x - mean)^2) / m; moments gets mean and the unbiased m var / (m - 1);
 *   eval      mean and var are the running ones;
 *   both      invstd = 1 / sqrt(var + eps), factor = weight invstd, offset = bias - mean factor, y = factor x + offset;
 *   backward  dbias = sum(dy), dweight = invstd S, S = sum((x - mean) dy);
 *             train: dx = factor dy - factor invstd^2 S / m (x - mean) - factor dbias / m; eval: dx = factor dy;
 *
 * Numbers of a channel are computed in double, and rounded to T once. Those of an element are computed in T.
 *
 * ORDER OF SUMS. It does not depend on the number of threads, because one thread has a whole channel. Large planes: a
 * channel is one piece of work. The sum of a plane has 16 lanes in T, which are added in double; the sums of the planes
 * are added in double, in the order of the batch. Small planes, of which the deep layers have many: a run of
 * neighbouring channels is one piece of work. Each place in it has a sum in double over the batch, and the places of
 * a channel are added at the end.
 */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <string.h>

typedef struct norm_args {
    const void *x, *dy, *weight, *bias, *mean;
    const void *var;    /* eval: the running variance */
    const void *invstd; /* backward: of the forward computation */
    void *y;            /* backward: dx, or NULL */
    void *dweight, *dbias, *save_mean, *save_invstd;
    double *moments; /* [2, C], or NULL */
    int64_t batch, channels, plane;
    double eps;
    bool train;
} norm_args;

/* Checks x and the vectors [C] (NULL: missing), and sets the sizes. */
static weft_status norm_init(norm_args *args, const weft_tensor *x, int count, const weft_tensor *const *vectors)
{
    weft_status status = wfi_check_floats_together(1, &x);
    if (status == WEFT_OK && x->shape.ndim < 2)
        status = WEFT_ERR_SHAPE;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        status = wfi_check_float_beside(vectors[i], x);
        if (status == WEFT_OK && !wfi_tensor_is_vector(vectors[i], x->shape.dims[1]))
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
    return tensor ? wfi_tensor_address(tensor) : NULL;
}

/* NAME(x, z, count, shift) = the sum of EXPRESSION over u = x[i], v = z[i]: LANES sums in T, so that the compiler uses
 * vector registers and adds in the order that C says, then JOIN in double. */
#define LANES 16
#define NORM_SUM(tag, name, T, EXPRESSION)                                                                             \
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
        return sum + tag##_join(lane);                                                                                 \
    }

#define NORM_JOIN(tag, T)                                                                                              \
    static double tag##_join(const T *lane)                                                                            \
    {                                                                                                                  \
        double half[LANES / 2];                                                                                        \
        for (int k = 0; k < LANES / 2; k++)                                                                            \
            half[k] = (double)lane[k] + (double)lane[k + LANES / 2];                                                   \
        for (int left = LANES / 4; left > 0; left /= 2) {                                                              \
            for (int k = 0; k < left; k++)                                                                             \
                half[k] += half[k + left];                                                                             \
        }                                                                                                              \
        return half[0];                                                                                                \
    }

#define NORM_KERNELS(tag, T)                                                                                           \
    NORM_JOIN(tag, T)                                                                                                  \
    NORM_SUM(tag, tag##_sum, T, u - shift)                                                                             \
    NORM_SUM(tag, tag##_sum_squares, T, (u - shift) * (u - shift))                                                     \
    NORM_SUM(tag, tag##_sum_product, T, (u - shift) * v)                                                               \
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
    static void tag##_move(const double *moments, int64_t count, double momentum, const T *running, T *next)           \
    {                                                                                                                  \
        for (int64_t c = 0; c < count; c++)                                                                            \
            next[c] = (T)((1 - momentum) * (double)running[c] + momentum * moments[c]);                                \
    }                                                                                                                  \
    static void tag##_coefficients(const norm_args *args, int64_t c, double mean, double invstd, double *factor,       \
                                   double *offset)                                                                     \
    {                                                                                                                  \
        *factor = args->weight ? invstd * (double)((const T *)args->weight)[c] : invstd;                               \
        *offset = (args->bias ? (double)((const T *)args->bias)[c] : 0) - mean * *factor;                              \
    }                                                                                                                  \
    static void tag##_train_coefficients(const norm_args *args, int64_t c, double mean, double variance,               \
                                         double *factor, double *offset)                                               \
    {                                                                                                                  \
        double count = (double)(args->batch * args->plane), invstd = 1 / sqrt(variance + args->eps);                   \
        ((T *)args->save_mean)[c] = (T)mean;                                                                           \
        ((T *)args->save_invstd)[c] = (T)invstd;                                                                       \
        if (args->moments) {                                                                                           \
            args->moments[c] = mean;                                                                                   \
            args->moments[args->channels + c] = variance * count / (count - 1);                                        \
        }                                                                                                              \
        tag##_coefficients(args, c, mean, invstd, factor, offset);                                                     \
    }                                                                                                                  \
    static void tag##_eval_coefficients(const norm_args *args, int64_t c, double *factor, double *offset)              \
    {                                                                                                                  \
        double mean = (double)((const T *)args->mean)[c];                                                              \
        double invstd = 1 / sqrt((double)((const T *)args->var)[c] + args->eps);                                       \
        if (args->save_invstd)                                                                                         \
            ((T *)args->save_invstd)[c] = (T)invstd;                                                                   \
        tag##_coefficients(args, c, mean, invstd, factor, offset);                                                     \
    }                                                                                                                  \
    /* fgh: dx = f dy + g (x - mean) + h, from sum = sum(dy) and product = S. */                                       \
    static void tag##_back_coefficients(const norm_args *args, int64_t c, double sum, double product, T fgh[3])        \
    {                                                                                                                  \
        double count = (double)(args->batch * args->plane), invstd = (double)((const T *)args->invstd)[c];             \
        if (args->dweight)                                                                                             \
            ((T *)args->dweight)[c] = (T)(product * invstd);                                                           \
        if (args->dbias)                                                                                               \
            ((T *)args->dbias)[c] = (T)sum;                                                                            \
        double f = args->weight ? invstd * (double)((const T *)args->weight)[c] : invstd;                              \
        fgh[0] = (T)f;                                                                                                 \
        fgh[1] = args->train ? (T)(-f * invstd * invstd * product / count) : 0;                                        \
        fgh[2] = args->train ? (T)(-f * sum / count) : 0;                                                              \
    }                                                                                                                  \
    static void tag##_train_piece(void *arg, int64_t begin, int64_t end)                                               \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            double mean, variance, factor, offset;                                                                     \
            tag##_moments(args, c, &mean, &variance);                                                                  \
            tag##_train_coefficients(args, c, mean, variance, &factor, &offset);                                       \
            tag##_affine(args, c, factor, offset);                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_eval_piece(void *arg, int64_t begin, int64_t end)                                                \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            double factor, offset;                                                                                     \
            tag##_eval_coefficients(args, c, &factor, &offset);                                                        \
            tag##_affine(args, c, factor, offset);                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_write_dx(const norm_args *args, int64_t c, const T fgh[3])                                       \
    {                                                                                                                  \
        T f = fgh[0], g = fgh[1], h = fgh[2], center = ((const T *)args->mean)[c];                                     \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            int64_t at = (n * args->channels + c) * args->plane;                                                       \
            const T *restrict x = (const T *)args->x + at, *restrict dy = (const T *)args->dy + at;                    \
            T *restrict dx = (T *)args->y + at;                                                                        \
            for (int64_t i = 0; i < args->plane && !args->train; i++)                                                  \
                dx[i] = f * dy[i];                                                                                     \
            for (int64_t i = 0; i < args->plane && args->train; i++)                                                   \
                dx[i] = f * dy[i] + g * (x[i] - center) + h;                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_back_piece(void *arg, int64_t begin, int64_t end)                                                \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        int64_t step = args->channels * args->plane;                                                                   \
        for (int64_t c = begin; c < end; c++) {                                                                        \
            const T *x = (const T *)args->x + c * args->plane, *dy = (const T *)args->dy + c * args->plane;            \
            T center = ((const T *)args->mean)[c], fgh[3];                                                             \
            double sum = 0, product = 0;                                                                               \
            for (int64_t n = 0; n < args->batch; n++) {                                                                \
                sum += tag##_sum(dy + n * step, dy + n * step, args->plane, 0);                                        \
                product += tag##_sum_product(x + n * step, dy + n * step, args->plane, center);                        \
            }                                                                                                          \
            tag##_back_coefficients(args, c, sum, product, fgh);                                                       \
            if (args->y)                                                                                               \
                tag##_write_dx(args, c, fgh);                                                                          \
        }                                                                                                              \
    }

/* --- small planes: a run of channels, as wide as RUN elements --- */

#define PLANE_SMALL 64
#define RUN 256

static int64_t run_channels(const norm_args *args)
{
    return args->plane > 0 && args->plane <= PLANE_SMALL ? RUN / args->plane : 1;
}

static double join_plane(const double *sums, int64_t plane)
{
    double sum = 0;
    for (int64_t i = 0; i < plane; i++)
        sum += sums[i];
    return sum;
}

#define NORM_RUNS(tag, T)                                                                                              \
    static void tag##_fill_plane(T *places, const norm_args *args, int64_t channel, T value)                           \
    {                                                                                                                  \
        for (int64_t i = 0; i < args->plane; i++)                                                                      \
            places[channel * args->plane + i] = value;                                                                 \
    }                                                                                                                  \
    static void tag##_run_affine(const norm_args *args, int64_t begin, int64_t width, const T *scale, const T *shift)  \
    {                                                                                                                  \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            const T *restrict x = (const T *)args->x + (n * args->channels + begin) * args->plane;                     \
            T *restrict y = (T *)args->y + (n * args->channels + begin) * args->plane;                                 \
            for (int64_t i = 0; i < width; i++)                                                                        \
                y[i] = x[i] * scale[i] + shift[i];                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    /* The sums of x - center and of its squares. */                                                                   \
    static void tag##_run_moments(const norm_args *args, int64_t begin, int64_t width, const T *center, double *sums,  \
                                  double *squares)                                                                     \
    {                                                                                                                  \
        memset(sums, 0, RUN * sizeof(double));                                                                         \
        memset(squares, 0, RUN * sizeof(double));                                                                      \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            const T *x = (const T *)args->x + (n * args->channels + begin) * args->plane;                              \
            for (int64_t i = 0; i < width; i++) {                                                                      \
                double distance = (double)(x[i] - center[i]);                                                          \
                sums[i] += distance;                                                                                   \
                squares[i] += distance * distance;                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    /* The first image gives a centre near the mean: then one pass is enough, and nothing cancels. */                  \
    static void tag##_train_run(void *arg, int64_t begin, int64_t end)                                                 \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        const T *first = (const T *)args->x + begin * args->plane;                                                     \
        T center[RUN], scale[RUN], shift[RUN];                                                                         \
        double sums[RUN], squares[RUN], count = (double)(args->batch * args->plane), factor, offset;                   \
        for (int64_t c = 0; c < end - begin; c++)                                                                      \
            tag##_fill_plane(center, args, c, first[c * args->plane]);                                                 \
        tag##_run_moments(args, begin, (end - begin) * args->plane, center, sums, squares);                            \
        for (int64_t c = 0; c < end - begin; c++) {                                                                    \
            double away = join_plane(sums + c * args->plane, args->plane) / count;                                     \
            double square = join_plane(squares + c * args->plane, args->plane) / count;                                \
            double mean = (double)first[c * args->plane] + away, variance = square - away * away;                      \
            variance = variance < 0 ? 0 : variance; /* a NaN stays one */                                              \
            tag##_train_coefficients(args, begin + c, mean, variance, &factor, &offset);                               \
            tag##_fill_plane(scale, args, c, (T)factor);                                                               \
            tag##_fill_plane(shift, args, c, (T)offset);                                                               \
        }                                                                                                              \
        tag##_run_affine(args, begin, (end - begin) * args->plane, scale, shift);                                      \
    }                                                                                                                  \
    static void tag##_eval_run(void *arg, int64_t begin, int64_t end)                                                  \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        T scale[RUN], shift[RUN];                                                                                      \
        double factor, offset;                                                                                         \
        for (int64_t c = 0; c < end - begin; c++) {                                                                    \
            tag##_eval_coefficients(args, begin + c, &factor, &offset);                                                \
            tag##_fill_plane(scale, args, c, (T)factor);                                                               \
            tag##_fill_plane(shift, args, c, (T)offset);                                                               \
        }                                                                                                              \
        tag##_run_affine(args, begin, (end - begin) * args->plane, scale, shift);                                      \
    }                                                                                                                  \
    static void tag##_run_products(const norm_args *args, int64_t begin, int64_t width, const T *center, double *sums, \
                                   double *products)                                                                   \
    {                                                                                                                  \
        memset(sums, 0, RUN * sizeof(double));                                                                         \
        memset(products, 0, RUN * sizeof(double));                                                                     \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            int64_t at = (n * args->channels + begin) * args->plane;                                                   \
            const T *x = (const T *)args->x + at, *dy = (const T *)args->dy + at;                                      \
            for (int64_t i = 0; i < width; i++) {                                                                      \
                sums[i] += (double)dy[i];                                                                              \
                products[i] += (double)((x[i] - center[i]) * dy[i]);                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_run_write_dx(const norm_args *args, int64_t begin, int64_t width, const T *center, T(*fgh)[RUN]) \
    {                                                                                                                  \
        for (int64_t n = 0; n < args->batch; n++) {                                                                    \
            int64_t at = (n * args->channels + begin) * args->plane;                                                   \
            const T *restrict x = (const T *)args->x + at, *restrict dy = (const T *)args->dy + at;                    \
            T *restrict dx = (T *)args->y + at;                                                                        \
            for (int64_t i = 0; i < width && !args->train; i++)                                                        \
                dx[i] = fgh[0][i] * dy[i];                                                                             \
            for (int64_t i = 0; i < width && args->train; i++)                                                         \
                dx[i] = fgh[0][i] * dy[i] + fgh[1][i] * (x[i] - center[i]) + fgh[2][i];                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_back_run(void *arg, int64_t begin, int64_t end)                                                  \
    {                                                                                                                  \
        const norm_args *args = arg;                                                                                   \
        T center[RUN], fgh[3][RUN], one[3];                                                                            \
        double sums[RUN], products[RUN];                                                                               \
        for (int64_t c = 0; c < end - begin; c++)                                                                      \
            tag##_fill_plane(center, args, c, ((const T *)args->mean)[begin + c]);                                     \
        tag##_run_products(args, begin, (end - begin) * args->plane, center, sums, products);                          \
        for (int64_t c = 0; c < end - begin; c++) {                                                                    \
            double sum = join_plane(sums + c * args->plane, args->plane);                                              \
            tag##_back_coefficients(args, begin + c, sum, join_plane(products + c * args->plane, args->plane), one);   \
            for (int k = 0; k < 3; k++)                                                                                \
                tag##_fill_plane(fgh[k], args, c, one[k]);                                                             \
        }                                                                                                              \
        if (args->y)                                                                                                   \
            tag##_run_write_dx(args, begin, (end - begin) * args->plane, center, fgh);                                 \
    }

NORM_KERNELS(f32, float)
NORM_KERNELS(f64, double)
/* The analyser does not see that the loop over channels fills what the next call reads: both are empty together. */
NORM_RUNS(f32, float)  // NOLINT(clang-analyzer-core.CallAndMessage,clang-analyzer-core.UndefinedBinaryOperatorResult)
NORM_RUNS(f64, double) // NOLINT(clang-analyzer-core.CallAndMessage,clang-analyzer-core.UndefinedBinaryOperatorResult)

/* The tables of pieces are by dtype, then by whether the plane is large. */
typedef void (*norm_piece)(void *arg, int64_t begin, int64_t end);

static weft_status run_on_gpu(wfi_gpu_kind kind, const norm_args *args, const weft_tensor *x)
{
    wfi_norm_task task = {WFI_GPU_TASK(x, x->dtype, args->channels),
                          .x = args->x,
                          .dy = args->dy,
                          .weight = args->weight,
                          .bias = args->bias,
                          .mean = args->mean,
                          .var = args->var,
                          .invstd = args->invstd,
                          .y = args->y,
                          .dweight = args->dweight,
                          .dbias = args->dbias,
                          .save_mean = args->save_mean,
                          .save_invstd = args->save_invstd,
                          .moments = args->moments,
                          .batch = args->batch,
                          .channels = args->channels,
                          .plane = args->plane,
                          .eps = args->eps,
                          .train = args->train};
    return WFI_GPU_RUN(kind, task);
}

static void run_pieces(norm_args *args, weft_dtype dtype, const norm_piece pieces[2][2])
{
    int64_t channels = run_channels(args);
    wfi_parallel(args->channels, channels, pieces[!wfi_dtype_is_f32(dtype)][channels == 1], args);
}

weft_status wfi_batchnorm_train(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias, double eps,
                                weft_tensor *y, weft_tensor *save_mean, weft_tensor *save_invstd, weft_tensor *moments)
{
    norm_args args = {.eps = eps};
    const weft_tensor *vectors[] = {weight, bias, save_mean, save_invstd};
    weft_status status = norm_init(&args, x, 4, vectors);
    if (status == WEFT_OK)
        status = wfi_check_float_beside(y, x);
    if (status == WEFT_OK)
        status = wfi_check_beside(moments, x);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, y) || args.batch * args.plane < 2)
        return WEFT_ERR_SHAPE;
    if (moments && (moments->dtype != WEFT_DTYPE_FLOAT64 || moments->numel != 2 * args.channels))
        return WEFT_ERR_SHAPE;
    args.weight = address(weight);
    args.bias = address(bias);
    args.moments = address(moments);
    args.save_mean = address(save_mean);
    args.save_invstd = address(save_invstd);
    args.y = address(y);
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_NORM_TRAIN, &args, x);
    static const norm_piece pieces[2][2] = {{f32_train_run, f32_train_piece}, {f64_train_run, f64_train_piece}};
    run_pieces(&args, x->dtype, pieces);
    return WEFT_OK;
}

weft_status wfi_batchnorm_move(const weft_tensor *moments, int which, double momentum, const weft_tensor *running,
                               weft_tensor *next)
{
    int64_t channels = moments->numel / 2;
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(running, next);
    if (status == WEFT_OK)
        status = wfi_check_beside(moments, running);
    if (status != WEFT_OK)
        return status;
    if (running->numel != channels || next->numel != channels)
        return WEFT_ERR_SHAPE;
    const double *values = (const double *)wfi_tensor_address(moments) + which * channels;
    if (wfi_tensor_is_on_gpu(running)) {
        wfi_norm_move_task task = {WFI_GPU_TASK(running, running->dtype, channels), values, wfi_tensor_address(running),
                                   wfi_tensor_address(next), momentum};
        return WFI_GPU_RUN(WFI_GPU_NORM_MOVE, task);
    }
    if (wfi_dtype_is_f32(running->dtype))
        f32_move(values, channels, momentum, wfi_tensor_address(running), wfi_tensor_address(next));
    else
        f64_move(values, channels, momentum, wfi_tensor_address(running), wfi_tensor_address(next));
    return WEFT_OK;
}

weft_status wfi_batchnorm_eval(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                               const weft_tensor *running_mean, const weft_tensor *running_var, double eps,
                               weft_tensor *y, weft_tensor *save_invstd)
{
    norm_args args = {.eps = eps};
    const weft_tensor *vectors[] = {weight, bias, running_mean, running_var, save_invstd};
    weft_status status = norm_init(&args, x, 5, vectors);
    if (status == WEFT_OK)
        status = wfi_check_float_beside(y, x);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, y))
        return WEFT_ERR_SHAPE;
    args.weight = address(weight);
    args.bias = address(bias);
    args.mean = address(running_mean);
    args.var = address(running_var);
    args.save_invstd = address(save_invstd);
    args.y = address(y);
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_NORM_EVAL, &args, x);
    static const norm_piece pieces[2][2] = {{f32_eval_run, f32_eval_piece}, {f64_eval_run, f64_eval_piece}};
    run_pieces(&args, x->dtype, pieces);
    return WEFT_OK;
}

weft_status wfi_batchnorm_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *weight,
                                   const weft_tensor *mean, const weft_tensor *invstd, bool train, weft_tensor *dx,
                                   weft_tensor *dweight, weft_tensor *dbias)
{
    norm_args args = {.train = train};
    const weft_tensor *vectors[] = {weight, mean, invstd, dweight, dbias};
    weft_status status = norm_init(&args, x, 5, vectors);
    if (status == WEFT_OK)
        status = WFI_CHECK_FLOATS_TOGETHER(x, dy, dx);
    if (status != WEFT_OK)
        return status;
    if (!weft_tensor_same_shape(x, dy) || (dx && !weft_tensor_same_shape(x, dx)))
        return WEFT_ERR_SHAPE;
    args.dy = address(dy);
    args.weight = address(weight);
    args.mean = address(mean);
    args.invstd = address(invstd);
    args.y = address(dx);
    args.dweight = address(dweight);
    args.dbias = address(dbias);
    if (wfi_tensor_is_on_gpu(x))
        return run_on_gpu(WFI_GPU_NORM_BACKWARD, &args, x);
    static const norm_piece pieces[2][2] = {{f32_back_run, f32_back_piece}, {f64_back_run, f64_back_piece}};
    run_pieces(&args, x->dtype, pieces);
    return WEFT_OK;
}
