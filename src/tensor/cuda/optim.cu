/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - the rules of optimizers: the expressions of tensor/cpu/optim in the same order, so that a step has the
 * CPU's bits. Also the sum of the squares of a gradient, and the factor that clips it. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* The numbers of one element: a rule reads them, and may change those in the slots. */
template <typename T> struct element {
    T p, g;                    /* parameter, gradient */
    T *first, *second, *third; /* in the slots */
};

/* The sum of the values of a row, in the order of their places, for element i of a gradient by rows. Only the first
 * value of a row, in this order, has it: false for the others. `at`: the element of the parameter. */
template <typename T>
__device__ inline bool row_sum(const wfi_rows_order &by, const T *values, int64_t i, int64_t *at, T *sum)
{
    int64_t k = i / by.width, column = i % by.width, row = by.rows[by.order[k]];
    if (k > 0 && by.rows[by.order[k - 1]] == row)
        return false;
    *at = row * by.width + column;
    *sum = values[by.order[k] * by.width + column];
    for (k++; k < by.n && by.rows[by.order[k]] == row; k++)
        *sum += values[by.order[k] * by.width + column];
    return true;
}

/* rule(element) returns the new parameter. */
template <typename T, typename Rule> __device__ inline void over_elements(const wfi_step_task &args, Rule rule)
{
    T *first = (T *)args.slots[0], *second = (T *)args.slots[1], *third = (T *)args.slots[2];
    const T *gradient = (const T *)args.gradient;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t at = i;
        T g;
        if (args.by.rows == nullptr)
            g = gradient[i];
        else if (!row_sum(args.by, gradient, i, &at, &g) || at < 0 || at >= args.row_count * args.by.width)
            continue;
        element<T> e = {((const T *)args.from)[at], g, first + at, second + at, third + at};
        ((T *)args.to)[at] = rule(e);
    }
}

#define FACTOR() ((T)(args.scale == nullptr ? args.numbers[0] : args.numbers[0] * *args.scale))
#define NUMBER(i) ((T)args.numbers[i])

template <typename T> __device__ inline void sgd_plain(const wfi_step_task &args)
{
    T factor = FACTOR(), lr = NUMBER(1), decay = NUMBER(2);
    over_elements<T>(args, [=](element<T> e) { return e.p - lr * (factor * e.g + decay * e.p); });
}

template <typename T> __device__ inline void sgd_first(const wfi_step_task &args)
{
    T factor = FACTOR(), lr = NUMBER(1), decay = NUMBER(2), ahead = NUMBER(5), direct = NUMBER(6);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g + decay * e.p;
        *e.first = d;
        return e.p - lr * (direct * d + ahead * d);
    });
}

template <typename T> __device__ inline void sgd(const wfi_step_task &args)
{
    T factor = FACTOR(), lr = NUMBER(1), decay = NUMBER(2), old = NUMBER(3), fresh = NUMBER(4), ahead = NUMBER(5);
    T direct = NUMBER(6);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, u = old * *e.first + fresh * d;
        *e.first = u;
        return e.p - lr * (direct * d + ahead * u);
    });
}

template <typename T, bool largest> __device__ inline void adam_with(const wfi_step_task &args)
{
    T factor = FACTOR(), decay = NUMBER(1), keep = NUMBER(2), beta2 = NUMBER(3), fresh1 = NUMBER(4);
    T fresh2 = NUMBER(5), rate = NUMBER(6), eps = NUMBER(7);
    over_elements<T>(args, [=](element<T> e) {
        T m = *e.first, d = factor * e.g + decay * e.p, mean = m + fresh1 * (d - m);
        T square = beta2 * *e.second + fresh2 * d * d, under = square;
        *e.first = mean;
        *e.second = square;
        if (largest) {
            under = square > *e.third || square != square ? square : *e.third; /* keeps a NaN */
            *e.third = under;
        }
        return keep * e.p - rate * mean / (square_root(under) + eps);
    });
}
template <typename T> __device__ inline void adam(const wfi_step_task &args)
{
    adam_with<T, false>(args);
}
template <typename T> __device__ inline void amsgrad(const wfi_step_task &args)
{
    adam_with<T, true>(args);
}

template <typename T> __device__ inline void adagrad(const wfi_step_task &args)
{
    T factor = FACTOR(), decay = NUMBER(1), rate = NUMBER(2), eps = NUMBER(3);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, sum = *e.first + d * d;
        *e.first = sum;
        return e.p - rate * d / (square_root(sum) + eps);
    });
}

template <typename T> __device__ inline void adadelta(const wfi_step_task &args)
{
    T factor = FACTOR(), decay = NUMBER(1), rho = NUMBER(2), fresh = NUMBER(3), lr = NUMBER(4), eps = NUMBER(5);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, square = rho * *e.first + fresh * d * d;
        T step = square_root(*e.second + eps) / square_root(square + eps) * d;
        *e.first = square;
        *e.second = rho * *e.second + fresh * step * step;
        return e.p - lr * step;
    });
}

template <typename T> __device__ inline void adamax(const wfi_step_task &args)
{
    T factor = FACTOR(), decay = NUMBER(1), fresh = NUMBER(2), beta2 = NUMBER(3), rate = NUMBER(4), eps = NUMBER(5);
    over_elements<T>(args, [=](element<T> e) {
        T m = *e.first, d = factor * e.g + decay * e.p, mean = m + fresh * (d - m);
        T old = beta2 * *e.second, now = (d < 0 ? -d : d) + eps;
        T largest = old > now || old != old ? old : now; /* keeps a NaN */
        *e.first = mean;
        *e.second = largest;
        return e.p - rate * mean / largest;
    });
}

template <typename T> __device__ inline void rprop(const wfi_step_task &args)
{
    T factor = FACTOR(), shorter = NUMBER(1), longer = NUMBER(2), shortest = NUMBER(3), longest = NUMBER(4);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g, turn = d * *e.first;
        T step = *e.second * (turn > 0 ? longer : turn < 0 ? shorter : 1 + turn); /* keeps a NaN */
        step = step < shortest ? shortest : step > longest ? longest : step;
        d = turn < 0 ? 0 : d;
        *e.first = d;
        *e.second = step;
        return e.p - (T)((d > 0) - (d < 0)) * step;
    });
}

/* Slots: the mean square; the velocity, with momentum; the mean, if centered. */
template <typename T, bool centered, bool with_momentum> __device__ inline void rmsprop_with(const wfi_step_task &args)
{
    T factor = FACTOR(), decay = NUMBER(1), alpha = NUMBER(2), fresh = NUMBER(3), momentum = NUMBER(4);
    T lr = NUMBER(5), eps = NUMBER(6);
    over_elements<T>(args, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, square = alpha * *e.first + fresh * d * d, spread = square;
        *e.first = square;
        if (centered) {
            T *m = with_momentum ? e.third : e.second, mean = alpha * *m + fresh * d;
            *m = mean;
            spread = square - mean * mean;
        }
        d = d / (square_root(spread) + eps);
        if (with_momentum) {
            d = momentum * *e.second + d;
            *e.second = d;
        }
        return e.p - lr * d;
    });
}
template <typename T> __device__ inline void rmsprop(const wfi_step_task &args)
{
    rmsprop_with<T, false, false>(args);
}
template <typename T> __device__ inline void rmsprop_momentum(const wfi_step_task &args)
{
    rmsprop_with<T, false, true>(args);
}
template <typename T> __device__ inline void rmsprop_centered(const wfi_step_task &args)
{
    rmsprop_with<T, true, false>(args);
}
template <typename T> __device__ inline void rmsprop_both(const wfi_step_task &args)
{
    rmsprop_with<T, true, true>(args);
}

template <typename T> __device__ inline void squares(const wfi_squares_task &args)
{
    for (int64_t piece = blockIdx.x; piece < args.head.count; piece += gridDim.x) {
        int64_t begin = args.n * piece / args.head.count, end = args.n * (piece + 1) / args.head.count;
        double total = 0;
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            int64_t at;
            T value;
            if (args.by.rows == nullptr)
                value = ((const T *)args.x)[i];
            else if (!row_sum(args.by, (const T *)args.x, i, &at, &value))
                continue;
            total += (double)value * (double)value;
        }
        total = block_sum(total);
        if (threadIdx.x == 0)
            args.partial[piece] = total;
    }
}

} // namespace wfi

WFI_FLOAT_KERNELS(sgd, wfi_step_task)
WFI_FLOAT_KERNELS(sgd_first, wfi_step_task)
WFI_FLOAT_KERNELS(sgd_plain, wfi_step_task)
WFI_FLOAT_KERNELS(adam, wfi_step_task)
WFI_FLOAT_KERNELS(amsgrad, wfi_step_task)
WFI_FLOAT_KERNELS(adagrad, wfi_step_task)
WFI_FLOAT_KERNELS(adadelta, wfi_step_task)
WFI_FLOAT_KERNELS(adamax, wfi_step_task)
WFI_FLOAT_KERNELS(rprop, wfi_step_task)
WFI_FLOAT_KERNELS(rmsprop, wfi_step_task)
WFI_FLOAT_KERNELS(rmsprop_momentum, wfi_step_task)
WFI_FLOAT_KERNELS(rmsprop_centered, wfi_step_task)
WFI_FLOAT_KERNELS(rmsprop_both, wfi_step_task)
WFI_FLOAT_KERNELS(squares, wfi_squares_task)

WFI_KERNEL(clip, wfi_clip_task)
{
    double total = 0;
    for (int64_t i = threadIdx.x; i < args.n; i += blockDim.x)
        total += args.partial[i];
    total = wfi::block_sum(total);
    if (threadIdx.x != 0)
        return;
    double norm = args.factor * wfi::square_root(total), factor = args.max_norm / (norm + args.room);
    args.out[0] = norm;
    args.out[1] = factor > 1 ? 1 : factor; /* keeps a NaN */
}
