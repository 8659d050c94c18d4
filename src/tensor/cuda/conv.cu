/* SPDX-License-Identifier: Apache-2.0 */
/* conv.cu - kernels of convolutions (queued by tensor/cuda/product/conv.c) and LSTMs beside matrix products. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* ---- Images as matrices of the places that each result sees (im2col) ---- */

template <typename T> __device__ inline void unfold(const wfi_unfold_task &args)
{
    int64_t columns = args.result[0] * args.result[1], rows = args.in * args.kernel[0] * args.kernel[1];
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % columns, row = i / columns % rows, n = i / columns / rows;
        int64_t kw = row % args.kernel[1], kh = row / args.kernel[1] % args.kernel[0];
        int64_t channel = row / (args.kernel[0] * args.kernel[1]);
        int64_t h = column / args.result[1] * args.stride[0] - args.padding[0] + kh * args.dilation[0];
        int64_t w = column % args.result[1] * args.stride[1] - args.padding[1] + kw * args.dilation[1];
        bool inside = h >= 0 && h < args.image[0] && w >= 0 && w < args.image[1];
        const T *image = (const T *)args.from + n * args.image_step;
        ((T *)args.to)[i] = inside ? image[(channel * args.image[0] + h) * args.image[1] + w] : (T)0;
    }
}

/* Which result saw `at` by place k of the kernel, along one dimension; -1: none. */
__device__ inline int64_t seen_by(int64_t at, int64_t k, int64_t padding, int64_t dilation, int64_t stride,
                                  int64_t results)
{
    int64_t from = at + padding - k * dilation;
    return from >= 0 && from % stride == 0 && from / stride < results ? from / stride : -1;
}

/* A thread has an element of the image. It adds the elements of the matrix that were copied from there, in the order of
 * the kernel's places. */
template <typename T> __device__ inline void fold(const wfi_unfold_task &args)
{
    int64_t columns = args.result[0] * args.result[1], rows = args.in * args.kernel[0] * args.kernel[1];
    int64_t plane = args.image[0] * args.image[1];
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t w = i % args.image[1], h = i / args.image[1] % args.image[0], channel = i / plane % args.in;
        int64_t n = i / plane / args.in;
        const T *matrix = (const T *)args.from + n * rows * columns;
        T total = 0;
        for (int64_t kh = 0; kh < args.kernel[0]; kh++) {
            int64_t oh = seen_by(h, kh, args.padding[0], args.dilation[0], args.stride[0], args.result[0]);
            for (int64_t kw = 0; kw < args.kernel[1] && oh >= 0; kw++) {
                int64_t ow = seen_by(w, kw, args.padding[1], args.dilation[1], args.stride[1], args.result[1]);
                int64_t row = (channel * args.kernel[0] + kh) * args.kernel[1] + kw;
                if (ow >= 0)
                    total += matrix[row * columns + oh * args.result[1] + ow];
            }
        }
        ((T *)args.to)[n * args.image_step + i % (plane * args.in)] = total;
    }
}

template <typename T> __device__ inline void add_bias(const wfi_bias_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all())
        ((T *)args.to)[i] += ((const T *)args.bias)[i / args.plane % args.channels];
}

/* ---- LSTM cells: a thread has one ---- */

template <typename T> __device__ inline void lstm_cell(const wfi_lstm_task &args)
{
    const T *bias = (const T *)args.bias;
    int64_t hidden = args.hidden;
    for (int64_t at = first_of_all(); at < args.head.count; at += step_of_all()) {
        int64_t j = at % hidden;
        T *gates = (T *)args.gates + at / hidden * 4 * hidden + j, g[4];
        for (int k = 0; k < 4; k++) {
            T sum = gates[k * hidden] + (bias != nullptr ? bias[k * hidden + j] : (T)0);
            g[k] = k == 2 ? hyperbolic_tangent(sum) : sigmoid(sum);
            gates[k * hidden] = g[k];
        }
        T c = g[1] * ((const T *)args.c_before)[at] + g[0] * g[2];
        ((T *)args.c)[at] = c;
        ((T *)args.h)[at] = g[3] * hyperbolic_tangent(c);
    }
}

template <typename T> __device__ inline void lstm_cell_backward(const wfi_lstm_task &args)
{
    int64_t hidden = args.hidden;
    for (int64_t at = first_of_all(); at < args.head.count; at += step_of_all()) {
        int64_t row = at / hidden * 4 * hidden + at % hidden;
        const T *gates = (const T *)args.gates + row;
        T *dgates = (T *)args.dgates + row, *dc = (T *)args.dc + at, *dh = (T *)args.dh + at;
        T in = gates[0], forget = gates[hidden], fresh = gates[2 * hidden], out = gates[3 * hidden];
        T h = args.dy != nullptr ? *dh + ((const T *)args.dy)[at] : *dh;
        T t = hyperbolic_tangent(((const T *)args.c)[at]), total = *dc + h * out * (1 - t * t);
        dgates[0] = total * fresh * in * (1 - in);
        dgates[hidden] = total * ((const T *)args.c_before)[at] * forget * (1 - forget);
        dgates[2 * hidden] = total * in * (1 - fresh * fresh);
        dgates[3 * hidden] = h * t * out * (1 - out);
        *dc = total * forget;
        *dh = h;
    }
}

} // namespace wfi

WFI_FLOAT_KERNELS(unfold, wfi_unfold_task)
WFI_FLOAT_KERNELS(fold, wfi_unfold_task)
WFI_FLOAT_KERNELS(add_bias, wfi_bias_task)
WFI_FLOAT_KERNELS(lstm_cell, wfi_lstm_task)
WFI_FLOAT_KERNELS(lstm_cell_backward, wfi_lstm_task)
