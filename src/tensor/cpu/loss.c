/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loss.c - negative log likelihood and mean squared error. `factor` is 1 / n for MEAN, otherwise 1; dy is a scalar, for
 * NONE one value per element.
 *
 *   nll   logp [N, C, behind], target [N, behind], n targets
 *         y = factor * sum of -logp[target]; NONE: each of them;    dlogp[target] = -factor dy, otherwise 0;
 *   mse   y = factor * sum of (x - target)^2; NONE: each of them;   dx = 2 factor dy (x - target);
 *
 * Sums are made in double by one thread: nll in order, mse in LANES sums side by side.
 */
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/tasks.h"
#include "tensor/cpu/cpu.h"

#include <math.h>
#include <string.h>

static double read_one(const weft_tensor *x, int64_t i)
{
    const void *data = wfi_tensor_address(x);
    return wfi_dtype_is_f32(x->dtype) ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void write_one(weft_tensor *y, int64_t i, double value)
{
    void *data = wfi_tensor_address(y);
    if (wfi_dtype_is_f32(y->dtype))
        ((float *)data)[i] = (float)value;
    else
        ((double *)data)[i] = value;
}

/* How many elements lie behind a class, and how many classes there are: logp is [N, C, behind], target [N, behind]. */
static int64_t behind_class(const weft_shape *logp, int64_t *classes)
{
    int64_t behind = 1;
    for (int d = 2; d < logp->ndim; d++)
        behind *= logp->dims[d];
    *classes = logp->dims[logp->ndim > 1 ? 1 : 0];
    return behind;
}

static bool target_fits(const weft_shape *logp, const weft_shape *target)
{
    if (logp->ndim < 1 || target->ndim != logp->ndim - 1)
        return false;
    for (int d = 0; d < target->ndim; d++)
        if (target->dims[d] != logp->dims[d == 0 ? 0 : d + 1])
            return false;
    return true;
}

/* target: of classes; y or dy: a scalar, or of the target's shape. */
static weft_status check_nll(const weft_tensor *logp, const weft_tensor *target, wfi_reduction reduction,
                             const weft_tensor *y)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(logp, y);
    if (status == WEFT_OK && target->dtype != WEFT_DTYPE_INT64)
        status = WEFT_ERR_TYPE;
    if (status == WEFT_OK)
        status = wfi_check_beside(target, logp);
    if (status != WEFT_OK)
        return status;
    if ((unsigned)reduction > WFI_REDUCE_NONE)
        return WEFT_ERR_INVALID;
    int64_t expected = reduction == WFI_REDUCE_NONE ? target->numel : 1;
    if (!target_fits(&logp->shape, &target->shape) || y->numel != expected)
        return WEFT_ERR_SHAPE;
    int64_t classes;
    (void)behind_class(&logp->shape, &classes);
    return wfi_index_is_inside(target, classes) ? WEFT_OK : WEFT_ERR_INVALID;
}

static weft_status nll_on_gpu(const weft_tensor *logp, const weft_tensor *target, wfi_reduction reduction,
                              weft_tensor *y)
{
    bool each = reduction == WFI_REDUCE_NONE;
    wfi_loss_task task = {WFI_GPU_TASK(logp, logp->dtype, each ? target->numel : 1),
                          .x = wfi_tensor_address(logp),
                          .target = wfi_tensor_address(target),
                          .y = wfi_tensor_address(y),
                          .n = target->numel,
                          .factor = reduction == WFI_REDUCE_MEAN ? 1.0 / (double)target->numel : 1};
    task.behind = behind_class(&logp->shape, &task.classes);
    return WFI_GPU_RUN(each ? WFI_GPU_NLL_EACH : WFI_GPU_NLL, task);
}

static weft_status nll_backward_on_gpu(const weft_tensor *dy, const weft_tensor *target, wfi_reduction reduction,
                                       weft_tensor *dlogp)
{
    wfi_loss_task task = {WFI_GPU_TASK(dlogp, dlogp->dtype, dlogp->numel),
                          .target = wfi_tensor_address(target),
                          .dy = wfi_tensor_address(dy),
                          .y = wfi_tensor_address(dlogp),
                          .n = target->numel,
                          .factor = reduction == WFI_REDUCE_MEAN ? -1.0 / (double)target->numel : -1,
                          .each = reduction == WFI_REDUCE_NONE};
    task.behind = behind_class(&dlogp->shape, &task.classes);
    return WFI_GPU_RUN(WFI_GPU_NLL_BACKWARD, task);
}

weft_status wfi_nll_loss(const weft_tensor *logp, const weft_tensor *target, wfi_reduction reduction, weft_tensor *y)
{
    weft_status status = check_nll(logp, target, reduction, y);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(logp))
        return nll_on_gpu(logp, target, reduction, y);
    const int64_t *at = wfi_tensor_address(target);
    int64_t classes, behind = behind_class(&logp->shape, &classes);
    double sum = 0;
    for (int64_t i = 0; i < target->numel; i++) {
        double loss = -read_one(logp, (i / behind * classes + at[i]) * behind + i % behind);
        sum += loss;
        if (reduction == WFI_REDUCE_NONE)
            write_one(y, i, loss);
    }
    if (reduction != WFI_REDUCE_NONE)
        write_one(y, 0, reduction == WFI_REDUCE_MEAN ? sum / (double)target->numel : sum);
    return WEFT_OK;
}

weft_status wfi_nll_loss_backward(const weft_tensor *dy, const weft_tensor *target, wfi_reduction reduction,
                                  weft_tensor *dlogp)
{
    weft_status status = check_nll(dlogp, target, reduction, dy);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(dlogp))
        return nll_backward_on_gpu(dy, target, reduction, dlogp);
    const int64_t *at = wfi_tensor_address(target);
    int64_t classes, behind = behind_class(&dlogp->shape, &classes);
    double factor = reduction == WFI_REDUCE_MEAN ? -1.0 / (double)target->numel : -1.0;
    wfi_fill(dlogp, 0);
    for (int64_t i = 0; i < target->numel; i++) {
        double from = read_one(dy, reduction == WFI_REDUCE_NONE ? i : 0);
        write_one(dlogp, (i / behind * classes + at[i]) * behind + i % behind, factor * from);
    }
    return WEFT_OK;
}

static weft_status check_mse(const weft_tensor *x, const weft_tensor *target, wfi_reduction reduction,
                             const weft_tensor *y)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(x, target, y);
    if (status != WEFT_OK)
        return status;
    if ((unsigned)reduction > WFI_REDUCE_NONE)
        return WEFT_ERR_INVALID;
    bool fits = weft_tensor_same_shape(x, target) && y->numel == (reduction == WFI_REDUCE_NONE ? x->numel : 1);
    return fits ? WEFT_OK : WEFT_ERR_SHAPE;
}

typedef struct mse_args {
    const void *x, *target, *dy;
    void *y;
    int64_t count;
    double factor;
    bool each; /* dy has one value for each element */
} mse_args;

/* LANES sums side by side: one alone waits for itself at every addition. */
#define LANES 8
#define MSE_LOOPS(tag, T)                                                                                              \
    static double tag##_mse(const mse_args *args)                                                                      \
    {                                                                                                                  \
        const T *x = args->x, *target = args->target;                                                                  \
        double lane[LANES] = {0}, sum = 0;                                                                             \
        int64_t i = 0;                                                                                                 \
        for (; i + LANES <= args->count; i += LANES) {                                                                 \
            for (int k = 0; k < LANES; k++) {                                                                          \
                double difference = (double)x[i + k] - (double)target[i + k];                                          \
                lane[k] += difference * difference;                                                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (; i < args->count; i++)                                                                                   \
            sum += ((double)x[i] - (double)target[i]) * ((double)x[i] - (double)target[i]);                            \
        for (int k = 0; k < LANES; k++)                                                                                \
            sum += lane[k];                                                                                            \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static void tag##_mse_each(const mse_args *args)                                                                   \
    {                                                                                                                  \
        const T *x = args->x, *target = args->target;                                                                  \
        T *y = args->y;                                                                                                \
        for (int64_t i = 0; i < args->count; i++)                                                                      \
            y[i] = (x[i] - target[i]) * (x[i] - target[i]);                                                            \
    }                                                                                                                  \
    static void tag##_mse_back(const mse_args *args)                                                                   \
    {                                                                                                                  \
        const T *x = args->x, *target = args->target, *dy = args->dy;                                                  \
        T *dx = args->y, factor = (T)(args->factor * (args->each ? 1 : (double)dy[0]));                                \
        for (int64_t i = 0; i < args->count && !args->each; i++)                                                       \
            dx[i] = factor * (x[i] - target[i]);                                                                       \
        for (int64_t i = 0; i < args->count && args->each; i++)                                                        \
            dx[i] = factor * dy[i] * (x[i] - target[i]);                                                               \
    }
MSE_LOOPS(f32, float)
MSE_LOOPS(f64, double)

/* The sum is made in chunks, and these are added by the kernel of sums. */
static weft_status mse_on_gpu(const weft_tensor *x, const weft_tensor *target, wfi_reduction reduction, weft_tensor *y)
{
    enum { CHUNK_ELEMENTS = 4096, CHUNKS_MOST = 512 };
    int64_t chunks = x->numel / CHUNK_ELEMENTS + 1;
    bool each = reduction == WFI_REDUCE_NONE;
    wfi_loss_task task = {WFI_GPU_TASK(x, x->dtype, x->numel), .x = wfi_tensor_address(x),
                          .target = wfi_tensor_address(target), .y = wfi_tensor_address(y), .n = x->numel};
    if (each)
        return WFI_GPU_RUN(WFI_GPU_MSE_EACH, task);
    task.head.count = chunks < CHUNKS_MOST ? chunks : CHUNKS_MOST;
    weft_tensor *partial = wfi_tensor_empty_like(y, WEFT_SHAPE(task.head.count), WEFT_DTYPE_FLOAT64);
    if (!partial)
        return WEFT_ERR_MEMORY;
    task.partial = wfi_tensor_address(partial);
    weft_status status = WFI_GPU_RUN(WFI_GPU_MSE, task);
    wfi_sum_task sum = {WFI_GPU_TASK(y, y->dtype, 1), .partial = task.partial, .chunks = task.head.count, .y = task.y,
                        .factor = reduction == WFI_REDUCE_MEAN ? 1.0 / (double)x->numel : 1};
    if (status == WEFT_OK)
        status = WFI_GPU_RUN(WFI_GPU_SUM_PARTIAL, sum);
    weft_tensor_unref(partial);
    return status;
}

weft_status wfi_mse_loss(const weft_tensor *x, const weft_tensor *target, wfi_reduction reduction, weft_tensor *y)
{
    weft_status status = check_mse(x, target, reduction, y);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(x))
        return mse_on_gpu(x, target, reduction, y);
    mse_args args = {.x = wfi_tensor_address(x), .target = wfi_tensor_address(target), .count = x->numel};
    if (reduction == WFI_REDUCE_NONE) {
        args.y = wfi_tensor_address(y);
        WFI_BY_FLOAT(x->dtype, f32_mse_each, f64_mse_each)(&args);
        return WEFT_OK;
    }
    double sum = WFI_BY_FLOAT(x->dtype, f32_mse, f64_mse)(&args);
    write_one(y, 0, reduction == WFI_REDUCE_MEAN ? sum / (double)x->numel : sum);
    return WEFT_OK;
}

weft_status wfi_mse_loss_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *target,
                                  wfi_reduction reduction, weft_tensor *dx)
{
    weft_status status = check_mse(x, target, reduction, dy);
    if (status == WEFT_OK)
        status = check_mse(x, dx, reduction, dy);
    if (status != WEFT_OK)
        return status;
    if (x->numel == 0)
        return WEFT_OK; /* dy need not hold a value then */
    mse_args args = {.x = wfi_tensor_address(x),
                     .target = wfi_tensor_address(target),
                     .dy = wfi_tensor_address(dy),
                     .y = wfi_tensor_address(dx),
                     .count = x->numel,
                     .factor = reduction == WFI_REDUCE_MEAN ? 2.0 / (double)x->numel : 2.0,
                     .each = reduction == WFI_REDUCE_NONE};
    if (wfi_tensor_is_on_gpu(x)) {
        wfi_loss_task task = {WFI_GPU_TASK(x, x->dtype, x->numel),
                              .x = args.x,
                              .target = args.target,
                              .dy = args.dy,
                              .y = args.y,
                              .factor = args.factor,
                              .each = args.each};
        return WFI_GPU_RUN(WFI_GPU_MSE_BACKWARD, task);
    }
    WFI_BY_FLOAT(x->dtype, f32_mse_back, f64_mse_back)(&args);
    return WEFT_OK;
}
