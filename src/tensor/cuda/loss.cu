/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cu - softmax and losses. Sums are made in double. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* ---- Softmax: a warp has a line. All lanes of a warp take part in its sums. ---- */

/* body(in, y, out, length, step) for each line, with the addresses of its first elements. */
template <typename T, typename Body> __device__ inline void over_lines(const wfi_softmax_task &args, Body body)
{
    for (int64_t line = first_of_all() / 32; line < args.lines; line += step_of_all() / 32) {
        int64_t at = line / args.inner * args.inner * args.length + line % args.inner;
        body((const T *)args.in + at, (const T *)args.y + at, (T *)args.out + at, args.length, args.inner);
    }
}

template <typename T> __device__ inline T largest(const T *x, int64_t length, int64_t step)
{
    T top = x[0];
    for (int64_t i = threadIdx.x % 32; i < length; i += 32)
        top = x[i * step] > top ? x[i * step] : top;
    return warp_largest(top);
}

/* Returns the sum of e^(x - top), where *top becomes the largest element. */
template <typename T> __device__ inline double shifted_sum(const T *x, int64_t length, int64_t step, T *top)
{
    *top = largest(x, length, step);
    double total = 0;
    for (int64_t i = threadIdx.x % 32; i < length; i += 32)
        total += (double)exponential(x[i * step] - *top);
    return warp_sum(total);
}

template <typename T> __device__ inline void softmax(const wfi_softmax_task &args)
{
    over_lines<T>(args, [](const T *x, const T *, T *y, int64_t length, int64_t step) {
        T top;
        double total = shifted_sum(x, length, step, &top);
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            y[i * step] = (T)((double)exponential(x[i * step] - top) / total);
    });
}

template <typename T> __device__ inline void log_softmax(const wfi_softmax_task &args)
{
    over_lines<T>(args, [](const T *x, const T *, T *y, int64_t length, int64_t step) {
        T top;
        double total = log(shifted_sum(x, length, step, &top));
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            y[i * step] = (T)((double)x[i * step] - (double)top - total);
    });
}

template <typename T> __device__ inline void softmax_backward(const wfi_softmax_task &args)
{
    over_lines<T>(args, [](const T *dy, const T *y, T *dx, int64_t length, int64_t step) {
        double dot = 0;
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            dot += (double)dy[i * step] * (double)y[i * step];
        dot = warp_sum(dot);
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            dx[i * step] = (T)((double)y[i * step] * ((double)dy[i * step] - dot));
    });
}

template <typename T> __device__ inline void log_softmax_backward(const wfi_softmax_task &args)
{
    over_lines<T>(args, [](const T *dy, const T *y, T *dx, int64_t length, int64_t step) {
        double total = 0;
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            total += (double)dy[i * step];
        total = warp_sum(total);
        for (int64_t i = threadIdx.x % 32; i < length; i += 32)
            dx[i * step] = (T)((double)dy[i * step] - (double)exponential(y[i * step]) * total);
    });
}

/* ---- Negative log likelihood ---- */

template <typename T> __device__ inline double nll_of(const wfi_loss_task &args, int64_t i)
{
    int64_t target = ((const int64_t *)args.target)[i];
    return -(double)((const T *)args.x)[(i / args.behind * args.classes + target) * args.behind + i % args.behind];
}

template <typename T> __device__ inline void nll_each(const wfi_loss_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all())
        ((T *)args.y)[i] = (T)nll_of<T>(args, i);
}

template <typename T> __device__ inline void nll(const wfi_loss_task &args) /* one block */
{
    double total = 0;
    for (int64_t i = threadIdx.x; i < args.n; i += blockDim.x)
        total += nll_of<T>(args, i);
    total = block_sum(total);
    if (threadIdx.x == 0)
        *(T *)args.y = (T)(total * args.factor);
}

/* A thread has an element of the log-probabilities. */
template <typename T> __device__ inline void nll_backward(const wfi_loss_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t where = i / args.behind / args.classes * args.behind + i % args.behind;
        bool is_target = ((const int64_t *)args.target)[where] == i / args.behind % args.classes;
        double from = is_target ? (double)((const T *)args.dy)[args.each ? where : 0] : 0;
        ((T *)args.y)[i] = is_target ? (T)(args.factor * from) : (T)0;
    }
}

/* ---- Mean squared error ---- */

template <typename T> __device__ inline void mse_each(const wfi_loss_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        T difference = ((const T *)args.x)[i] - ((const T *)args.target)[i];
        ((T *)args.y)[i] = difference * difference;
    }
}

template <typename T> __device__ inline void mse(const wfi_loss_task &args)
{
    for (int64_t piece = blockIdx.x; piece < args.head.count; piece += gridDim.x) {
        int64_t begin = args.n * piece / args.head.count, end = args.n * (piece + 1) / args.head.count;
        double total = 0;
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            double difference = (double)((const T *)args.x)[i] - (double)((const T *)args.target)[i];
            total += difference * difference;
        }
        total = block_sum(total);
        if (threadIdx.x == 0)
            args.partial[piece] = total;
    }
}

template <typename T> __device__ inline void mse_backward(const wfi_loss_task &args)
{
    const T *dy = (const T *)args.dy;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        T factor = args.each ? (T)args.factor * dy[i] : (T)(args.factor * (double)dy[0]);
        ((T *)args.y)[i] = factor * (((const T *)args.x)[i] - ((const T *)args.target)[i]);
    }
}

} // namespace wfi

WFI_FLOAT_KERNELS(softmax, wfi_softmax_task)
WFI_FLOAT_KERNELS(softmax_backward, wfi_softmax_task)
WFI_FLOAT_KERNELS(log_softmax, wfi_softmax_task)
WFI_FLOAT_KERNELS(log_softmax_backward, wfi_softmax_task)
WFI_FLOAT_KERNELS(nll, wfi_loss_task)
WFI_FLOAT_KERNELS(nll_each, wfi_loss_task)
WFI_FLOAT_KERNELS(nll_backward, wfi_loss_task)
WFI_FLOAT_KERNELS(mse, wfi_loss_task)
WFI_FLOAT_KERNELS(mse_each, wfi_loss_task)
WFI_FLOAT_KERNELS(mse_backward, wfi_loss_task)
