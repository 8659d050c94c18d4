/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - the rules of optimizers, as in tensor/cpu/optim: the same expressions in the same order, so that a step
 * has the CPU's bits. And the sums of the squares of gradients. A launch is for many parameters. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* The numbers of one element: a rule reads them, and may change those in the slots. */
template <typename T> struct element {
    T p, g;                    /* parameter, gradient */
    T *first, *second, *third; /* in the slots */
};

/* The work of a block at a time: elements [begin, end) of the gradient of one entry. */
struct part {
    const wfi_step_entry &entry;
    const wfi_rows_order *by; /* NULL: the gradient is dense */
    int64_t begin, end;
};

/* The last entry that begins at this piece or before it. */
__device__ inline const wfi_step_entry &entry_of(const wfi_step_task &args, int64_t piece, int64_t *next)
{
    int low = 0, high = (int)args.entries;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (args.places[middle].entry.begin <= piece)
            low = middle;
        else
            high = middle;
    }
    *next = high < (int)args.entries ? args.places[high].entry.begin : args.head.count;
    return args.places[low].entry;
}

__device__ inline const wfi_rows_order *rows_of(const wfi_step_task &args, const wfi_step_entry &entry)
{
    return entry.rows == 0 ? nullptr : &args.places[entry.rows].rows;
}

/* rule(part, numbers, factor) steps the elements of a part. */
template <typename T, typename Rule> __device__ inline void over_parts(const wfi_step_task &args, Rule rule)
{
    for (int64_t piece = blockIdx.x, next; piece < args.head.count; piece += gridDim.x) {
        const wfi_step_entry &entry = entry_of(args, piece, &next);
        const double *numbers = args.places[entry.numbers].numbers;
        int64_t begin = (piece - entry.begin) * WFI_STEP_PIECE, end = begin + WFI_STEP_PIECE;
        part of = {entry, rows_of(args, entry), begin, end < entry.count ? end : entry.count};
        rule(of, numbers, (T)(args.scale == nullptr ? numbers[0] : numbers[0] * *args.scale));
    }
}

/* The sum of the values of a row, in the order of their places, for element i of a gradient by rows. Only the first
 * value of a row, in this order, has it: false for the others. `at`: the element of the parameter. */
template <typename T>
__device__ inline bool row_sum(const wfi_rows_order &by, const T *values, int64_t i, int64_t *at, T *sum)
{
    int64_t k = i / by.width, column = i % by.width, row = by.rows[k];
    if (k > 0 && by.rows[k - 1] == row)
        return false;
    *at = row >= 0 && row < by.row_count ? row * by.width + column : -1; /* a product of a wrong row may overflow */
    *sum = values[by.order[k] * by.width + column];
    for (k++; k < by.n && by.rows[k] == row; k++)
        *sum += values[by.order[k] * by.width + column];
    return true;
}

template <typename T, typename Rule>
__device__ inline void step_element(const wfi_step_entry &entry, int64_t at, T gradient, Rule rule)
{
    element<T> e = {((const T *)entry.from)[at], gradient, (T *)entry.slots[0] + at, (T *)entry.slots[1] + at,
                    (T *)entry.slots[2] + at};
    ((T *)entry.to)[at] = rule(e);
}

/* rule(element) returns the new parameter. */
template <typename T, typename Rule> __device__ inline void over_elements(const part &of, Rule rule)
{
    const T *gradient = (const T *)of.entry.gradient;
    if (of.by == nullptr) {
        for (int64_t i = of.begin + threadIdx.x; i < of.end; i += blockDim.x)
            step_element(of.entry, i, gradient[i], rule);
        return;
    }
    int64_t size = of.by->row_count * of.by->width;
    for (int64_t i = of.begin + threadIdx.x; i < of.end; i += blockDim.x) {
        int64_t at;
        T sum;
        if (row_sum(*of.by, gradient, i, &at, &sum) && at >= 0 && at < size)
            step_element(of.entry, at, sum, rule);
    }
}

#define NUMBER(i) ((T)numbers[i])

template <typename T> __device__ inline void sgd_plain(const part &of, const double *numbers, T factor)
{
    T lr = NUMBER(1), decay = NUMBER(2);
    over_elements<T>(of, [=](element<T> e) { return e.p - lr * (factor * e.g + decay * e.p); });
}

template <typename T> __device__ inline void sgd_first(const part &of, const double *numbers, T factor)
{
    T lr = NUMBER(1), decay = NUMBER(2), ahead = NUMBER(5), direct = NUMBER(6);
    over_elements<T>(of, [=](element<T> e) {
        T d = factor * e.g + decay * e.p;
        *e.first = d;
        return e.p - lr * (direct * d + ahead * d);
    });
}

template <typename T> __device__ inline void sgd(const part &of, const double *numbers, T factor)
{
    T lr = NUMBER(1), decay = NUMBER(2), old = NUMBER(3), fresh = NUMBER(4), ahead = NUMBER(5);
    T direct = NUMBER(6);
    over_elements<T>(of, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, u = old * *e.first + fresh * d;
        *e.first = u;
        return e.p - lr * (direct * d + ahead * u);
    });
}

template <typename T, bool largest> __device__ inline void adam_with(const part &of, const double *numbers, T factor)
{
    T decay = NUMBER(1), keep = NUMBER(2), beta2 = NUMBER(3), fresh1 = NUMBER(4);
    T fresh2 = NUMBER(5), rate = NUMBER(6), eps = NUMBER(7);
    over_elements<T>(of, [=](element<T> e) {
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
template <typename T> __device__ inline void adam(const part &of, const double *numbers, T factor)
{
    adam_with<T, false>(of, numbers, factor);
}
template <typename T> __device__ inline void amsgrad(const part &of, const double *numbers, T factor)
{
    adam_with<T, true>(of, numbers, factor);
}

template <typename T> __device__ inline void adagrad(const part &of, const double *numbers, T factor)
{
    T decay = NUMBER(1), rate = NUMBER(2), eps = NUMBER(3);
    over_elements<T>(of, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, sum = *e.first + d * d;
        *e.first = sum;
        return e.p - rate * d / (square_root(sum) + eps);
    });
}

template <typename T> __device__ inline void adadelta(const part &of, const double *numbers, T factor)
{
    T decay = NUMBER(1), rho = NUMBER(2), fresh = NUMBER(3), lr = NUMBER(4), eps = NUMBER(5);
    over_elements<T>(of, [=](element<T> e) {
        T d = factor * e.g + decay * e.p, square = rho * *e.first + fresh * d * d;
        T step = square_root(*e.second + eps) / square_root(square + eps) * d;
        *e.first = square;
        *e.second = rho * *e.second + fresh * step * step;
        return e.p - lr * step;
    });
}

template <typename T> __device__ inline void adamax(const part &of, const double *numbers, T factor)
{
    T decay = NUMBER(1), fresh = NUMBER(2), beta2 = NUMBER(3), rate = NUMBER(4), eps = NUMBER(5);
    over_elements<T>(of, [=](element<T> e) {
        T m = *e.first, d = factor * e.g + decay * e.p, mean = m + fresh * (d - m);
        T old = beta2 * *e.second, now = (d < 0 ? -d : d) + eps;
        T largest = old > now || old != old ? old : now; /* keeps a NaN */
        *e.first = mean;
        *e.second = largest;
        return e.p - rate * mean / largest;
    });
}

template <typename T> __device__ inline void rprop(const part &of, const double *numbers, T factor)
{
    T shorter = NUMBER(1), longer = NUMBER(2), shortest = NUMBER(3), longest = NUMBER(4);
    over_elements<T>(of, [=](element<T> e) {
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
template <typename T, bool centered, bool with_momentum>
__device__ inline void rmsprop_with(const part &of, const double *numbers, T factor)
{
    T decay = NUMBER(1), alpha = NUMBER(2), fresh = NUMBER(3), momentum = NUMBER(4);
    T lr = NUMBER(5), eps = NUMBER(6);
    over_elements<T>(of, [=](element<T> e) {
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
template <typename T> __device__ inline void rmsprop(const part &of, const double *numbers, T factor)
{
    rmsprop_with<T, false, false>(of, numbers, factor);
}
template <typename T> __device__ inline void rmsprop_momentum(const part &of, const double *numbers, T factor)
{
    rmsprop_with<T, false, true>(of, numbers, factor);
}
template <typename T> __device__ inline void rmsprop_centered(const part &of, const double *numbers, T factor)
{
    rmsprop_with<T, true, false>(of, numbers, factor);
}
template <typename T> __device__ inline void rmsprop_both(const part &of, const double *numbers, T factor)
{
    rmsprop_with<T, true, true>(of, numbers, factor);
}

template <typename T> __device__ inline void squares(const wfi_step_task &args)
{
    for (int64_t piece = blockIdx.x, next; piece < args.head.count; piece += gridDim.x) {
        const wfi_step_entry &entry = entry_of(args, piece, &next);
        const wfi_rows_order *by = rows_of(args, entry);
        const T *x = (const T *)entry.gradient;
        int64_t part = piece - entry.begin, parts = next - entry.begin;
        int64_t begin = entry.count * part / parts, end = entry.count * (part + 1) / parts;
        double total = 0;
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            int64_t at;
            T value;
            if (by == nullptr)
                value = x[i];
            else if (!row_sum(*by, x, i, &at, &value))
                continue;
            total += (double)value * (double)value;
        }
        total = block_sum(total);
        if (threadIdx.x == 0)
            ((double *)entry.to)[part] = total;
    }
}

} // namespace wfi

#define STEP_KERNEL(kernel, rule, T)                                                                                   \
    WFI_KERNEL(kernel, wfi_step_task)                                                                                  \
    {                                                                                                                  \
        wfi::over_parts<T>(                                                                                            \
            args, [](const wfi::part &of, const double *numbers, T factor) { wfi::rule<T>(of, numbers, factor); });    \
    }
#define STEP_KERNELS(rule)                                                                                             \
    STEP_KERNEL(rule##_f32, rule, float)                                                                               \
    STEP_KERNEL(rule##_f64, rule, double)

STEP_KERNELS(sgd)
STEP_KERNELS(sgd_first)
STEP_KERNELS(sgd_plain)
STEP_KERNELS(adam)
STEP_KERNELS(amsgrad)
STEP_KERNELS(adagrad)
STEP_KERNELS(adadelta)
STEP_KERNELS(adamax)
STEP_KERNELS(rprop)
STEP_KERNELS(rmsprop)
STEP_KERNELS(rmsprop_momentum)
STEP_KERNELS(rmsprop_centered)
STEP_KERNELS(rmsprop_both)
WFI_FLOAT_KERNELS(squares, wfi_step_task)

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
