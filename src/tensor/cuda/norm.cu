/* SPDX-License-Identifier: Apache-2.0 */
/* norm.cu - batch normalisation, as cpu/batch_norm.c has it: a block has a channel, and its sums are made in double. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* body(offset) for each element of a channel that this thread has. */
template <typename Body> __device__ inline void over_channel(const wfi_norm_task &args, int64_t channel, Body body)
{
    for (int64_t i = threadIdx.x; i < args.batch * args.plane; i += blockDim.x)
        body((i / args.plane * args.channels + channel) * args.plane + i % args.plane);
}

/* y = x * factor + offset; an x that is the mean gives the bias. */
template <typename T>
__device__ inline void affine(const wfi_norm_task &args, int64_t channel, double mean, double invstd)
{
    double factor = args.weight != nullptr ? invstd * (double)((const T *)args.weight)[channel] : invstd;
    double offset = (args.bias != nullptr ? (double)((const T *)args.bias)[channel] : 0) - mean * factor;
    T scale = (T)factor, shift = (T)offset;
    over_channel(args, channel, [&](int64_t at) { ((T *)args.y)[at] = ((const T *)args.x)[at] * scale + shift; });
}

template <typename T> __device__ inline void norm_train(const wfi_norm_task &args)
{
    double count = (double)(args.batch * args.plane);
    for (int64_t channel = blockIdx.x; channel < args.head.count; channel += gridDim.x) {
        double total = 0, squares = 0;
        over_channel(args, channel, [&](int64_t at) { total += (double)((const T *)args.x)[at]; });
        double mean = block_sum(total) / count;
        over_channel(args, channel, [&](int64_t at) {
            double distance = (double)((const T *)args.x)[at] - mean;
            squares += distance * distance;
        });
        double variance = block_sum(squares) / count, invstd = 1 / sqrt(variance + args.eps);
        if (threadIdx.x == 0) {
            ((T *)args.save_mean)[channel] = (T)mean;
            ((T *)args.save_invstd)[channel] = (T)invstd;
            if (args.moments != nullptr) {
                args.moments[channel] = mean;
                args.moments[args.channels + channel] = variance * count / (count - 1);
            }
        }
        affine<T>(args, channel, mean, invstd);
    }
}

/* mean and var are the running ones. */
template <typename T> __device__ inline void norm_eval(const wfi_norm_task &args)
{
    for (int64_t channel = blockIdx.x; channel < args.head.count; channel += gridDim.x) {
        double mean = (double)((const T *)args.mean)[channel];
        double invstd = 1 / sqrt((double)((const T *)args.var)[channel] + args.eps);
        if (threadIdx.x == 0 && args.save_invstd != nullptr)
            ((T *)args.save_invstd)[channel] = (T)invstd;
        affine<T>(args, channel, mean, invstd);
    }
}

/* dx = f dy + g (x - mean) + h; for eval dx = f dy, because 0 (x - mean) is NaN if x is not finite. */
template <typename T> __device__ inline void norm_backward(const wfi_norm_task &args)
{
    double count = (double)(args.batch * args.plane);
    for (int64_t channel = blockIdx.x; channel < args.head.count; channel += gridDim.x) {
        T mean = ((const T *)args.mean)[channel];
        double invstd = (double)((const T *)args.invstd)[channel], sum = 0, product = 0;
        over_channel(args, channel, [&](int64_t at) {
            T dy = ((const T *)args.dy)[at];
            sum += (double)dy;
            product += (double)((((const T *)args.x)[at] - mean) * dy);
        });
        sum = block_sum(sum);
        product = block_sum(product);
        if (threadIdx.x == 0 && args.dweight != nullptr)
            ((T *)args.dweight)[channel] = (T)(product * invstd);
        if (threadIdx.x == 0 && args.dbias != nullptr)
            ((T *)args.dbias)[channel] = (T)sum;
        if (args.y == nullptr)
            continue;
        double factor = args.weight != nullptr ? invstd * (double)((const T *)args.weight)[channel] : invstd;
        T f = (T)factor, g = args.train ? (T)(-factor * invstd * invstd * product / count) : (T)0;
        T h = args.train ? (T)(-factor * sum / count) : (T)0;
        over_channel(args, channel, [&](int64_t at) {
            T dx = f * ((const T *)args.dy)[at];
            ((T *)args.y)[at] = args.train ? dx + g * (((const T *)args.x)[at] - mean) + h : dx;
        });
    }
}

template <typename T> __device__ inline void norm_move(const wfi_norm_move_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all())
        ((T *)args.next)[i] =
            (T)((1 - args.momentum) * (double)((const T *)args.running)[i] + args.momentum * args.moments[i]);
}

} // namespace wfi

WFI_FLOAT_KERNELS(norm_train, wfi_norm_task)
WFI_FLOAT_KERNELS(norm_eval, wfi_norm_task)
WFI_FLOAT_KERNELS(norm_backward, wfi_norm_task)
WFI_FLOAT_KERNELS(norm_move, wfi_norm_move_task)
