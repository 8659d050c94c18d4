/* SPDX-License-Identifier: Apache-2.0 */
/* pool.cu - max pooling and adaptive average pooling. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

__device__ inline int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Where an element of a plane of `size` is: plane, row and column. */
struct place {
    int64_t plane, row, column;
};
__device__ inline place place_of(int64_t i, const int64_t size[2])
{
    return {i / size[1] / size[0], i / size[1] % size[0], i % size[1]};
}

/* The first of the largest wins; a NaN wins over all. */
template <typename T> __device__ inline void max_pool(const wfi_pool_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        place at = place_of(i, args.out_size);
        const T *x = (const T *)args.in + at.plane * args.in_size[0] * args.in_size[1];
        int64_t y0 = at.row * args.stride[0] - args.padding[0], x0 = at.column * args.stride[1] - args.padding[1];
        int64_t top = clamp(y0, 0, args.in_size[0]), bottom = clamp(y0 + args.kernel[0], 0, args.in_size[0]);
        int64_t left = clamp(x0, 0, args.in_size[1]), right = clamp(x0 + args.kernel[1], 0, args.in_size[1]);
        T best = -(T)INFINITY;
        int64_t found = top * args.in_size[1] + left;
        for (int64_t h = top; h < bottom; h++) {
            for (int64_t w = left; w < right; w++) {
                T value = x[h * args.in_size[1] + w];
                if (value > best || value != value) {
                    best = value;
                    found = h * args.in_size[1] + w;
                }
            }
        }
        ((T *)args.out)[i] = best;
        args.indices[i] = (int32_t)found;
    }
}

/* `in` is dy here, of the pooled size. A thread has a plane, because windows may overlap. */
template <typename T> __device__ inline void max_pool_backward(const wfi_pool_task &args)
{
    int64_t in = args.in_size[0] * args.in_size[1], out = args.out_size[0] * args.out_size[1];
    for (int64_t plane = first_of_all(); plane < args.head.count; plane += step_of_all()) {
        const T *dy = (const T *)args.in + plane * in;
        const int32_t *indices = args.indices + plane * in;
        T *dx = (T *)args.out + plane * out;
        for (int64_t i = 0; i < in; i++)
            dx[indices[i]] += dy[i];
    }
}

/* Rows or columns of the input that output cell i covers. */
struct range {
    int64_t begin, end;
};
__device__ inline range cell_range(int64_t i, int64_t in, int64_t out)
{
    return {i * in / out, ((i + 1) * in + out - 1) / out};
}

template <typename T> __device__ inline void average_pool(const wfi_pool_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        place at = place_of(i, args.out_size);
        const T *x = (const T *)args.in + at.plane * args.in_size[0] * args.in_size[1];
        range rows = cell_range(at.row, args.in_size[0], args.out_size[0]);
        range columns = cell_range(at.column, args.in_size[1], args.out_size[1]);
        double total = 0;
        for (int64_t h = rows.begin; h < rows.end; h++)
            for (int64_t w = columns.begin; w < columns.end; w++)
                total += (double)x[h * args.in_size[1] + w];
        ((T *)args.out)[i] = (T)(total / (double)((rows.end - rows.begin) * (columns.end - columns.begin)));
    }
}

/* A thread has an element of dx, and adds the shares of the cells that cover it, in their order. `in` is dy here. */
template <typename T> __device__ inline void average_pool_backward(const wfi_pool_task &args)
{
    const int64_t *cells = args.in_size, *size = args.out_size;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        place at = place_of(i, size);
        const T *dy = (const T *)args.in + at.plane * cells[0] * cells[1];
        /* The first cell that covers it: those before end before it. */
        int64_t first_row = at.row * cells[0] / size[0], first_column = at.column * cells[1] / size[1];
        T total = 0;
        for (int64_t h = first_row; h < cells[0]; h++) {
            range rows = cell_range(h, size[0], cells[0]);
            if (rows.begin > at.row)
                break;
            for (int64_t w = first_column; w < cells[1] && rows.end > at.row; w++) {
                range columns = cell_range(w, size[1], cells[1]);
                if (columns.begin > at.column)
                    break;
                if (columns.end > at.column)
                    total += dy[h * cells[1] + w] / (T)((rows.end - rows.begin) * (columns.end - columns.begin));
            }
        }
        ((T *)args.out)[i] = total;
    }
}

} // namespace wfi

WFI_FLOAT_KERNELS(max_pool, wfi_pool_task)
WFI_FLOAT_KERNELS(max_pool_backward, wfi_pool_task)
WFI_FLOAT_KERNELS(average_pool, wfi_pool_task)
WFI_FLOAT_KERNELS(average_pool_backward, wfi_pool_task)
