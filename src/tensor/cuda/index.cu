/* SPDX-License-Identifier: Apache-2.0 */
/* index.cu - elements and rows picked by an index, and added up where they came from: in the index's order. */
#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* ---- Single elements ---- */

template <typename T> __device__ inline void gather(const wfi_gather_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t rest = i, at = args.index[i] * args.stride;
        for (int d = args.ndim - 1; d >= 0; d--) {
            at += rest % args.dims[d] * args.strides[d];
            rest /= args.dims[d];
        }
        ((T *)args.to)[i] = ((const T *)args.from)[at];
    }
}

/* A thread has a line along the dimension: what is added to one element is all in one line. */
template <typename T> __device__ inline void scatter_add(const wfi_gather_task &args)
{
    for (int64_t line = first_of_all(); line < args.head.count; line += step_of_all()) {
        int64_t rest = line, to = 0, from = 0;
        for (int d = args.ndim - 1; d >= 0; d--) {
            int64_t at = rest % args.dims[d];
            rest /= args.dims[d];
            to += at * args.strides[d];
            from += at * args.index_strides[d];
        }
        for (int64_t i = 0; i < args.length; i++, from += args.index_stride)
            ((T *)args.to)[to + args.index[from] * args.stride] += ((const T *)args.from)[from];
    }
}

/* ---- Rows ---- */

template <typename T> __device__ inline void select(const wfi_rows_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % args.inner, row = i / args.inner;
        int64_t from = row / args.n * args.size + args.index[row % args.n];
        ((T *)args.to)[i] = ((const T *)args.from)[from * args.inner + column];
    }
}

template <typename T> __device__ inline void add_rows(const wfi_rows_task &args)
{
    const T *factors = (const T *)args.factors;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % args.inner, outer = i / args.inner;
        const T *from = (const T *)args.from + outer * args.n * args.inner + column;
        T *to = (T *)args.to + outer * args.size * args.inner + column;
        for (int64_t k = 0; k < args.n; k++) {
            if (args.index[k] == args.skip)
                continue;
            T value = from[(args.rows != nullptr ? args.rows[k] : k) * args.inner];
            to[args.index[k] * args.inner] += factors != nullptr ? factors[k] * value : value;
        }
    }
}

template <typename T> __device__ inline void pick_rows(const wfi_rows_task &args)
{
    const T *factors = (const T *)args.factors;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % args.inner, row = i / args.inner, place = args.places != nullptr ? args.places[row] : row;
        if (place < 0)
            continue;
        T value = ((const T *)args.from)[(args.rows != nullptr ? args.rows[row] : row) * args.inner + column];
        ((T *)args.to)[place * args.inner + column] = factors != nullptr ? factors[row] * value : value;
        if (column == 0)
            args.picked[place] = args.index[row];
    }
}

/* ---- Bags of rows ---- */

__device__ inline int64_t bag_begin(const wfi_bag_task &args, int64_t bag)
{
    if (args.offsets == nullptr)
        return bag * args.length;
    return bag < args.bags ? args.offsets[bag] : args.n;
}

template <typename T> __device__ inline void bag(const wfi_bag_task &args)
{
    const T *scale = (const T *)args.scale;
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % args.width, bag = i / args.width, used = 0, end = bag_begin(args, bag + 1);
        T total = 0;
        for (int64_t k = bag_begin(args, bag); k < end; k++) {
            if (args.index[k] == args.padding)
                continue;
            T value = ((const T *)args.table)[args.index[k] * args.width + column];
            total += scale != nullptr ? scale[k] * value : value;
            used++;
        }
        ((T *)args.y)[i] = args.mean && used > 1 ? total / (T)used : total;
    }
}

template <typename T> __device__ inline void bag_max(const wfi_bag_task &args)
{
    for (int64_t i = first_of_all(); i < args.head.count; i += step_of_all()) {
        int64_t column = i % args.width, bag = i / args.width, picked = -1, end = bag_begin(args, bag + 1);
        T best = 0;
        for (int64_t k = bag_begin(args, bag); k < end; k++) {
            int64_t row = args.index[k];
            if (row == args.padding)
                continue;
            T value = ((const T *)args.table)[row * args.width + column];
            if (picked < 0 || value > best) {
                best = value;
                picked = row;
            }
        }
        ((T *)args.y)[i] = best;
        if (args.picked != nullptr)
            args.picked[i] = picked;
    }
}

/* For each index its bag, and what a mean multiplies its gradient with. A thread has a bag. */
template <typename T> __device__ inline void bag_spread(const wfi_bag_task &args)
{
    T *factors = (T *)args.y;
    for (int64_t bag = first_of_all(); bag < args.head.count; bag += step_of_all()) {
        int64_t begin = bag_begin(args, bag), end = bag_begin(args, bag + 1), used = 0;
        for (int64_t k = begin; k < end; k++)
            used += args.index[k] != args.padding;
        for (int64_t k = begin; k < end; k++) {
            args.picked[k] = bag;
            if (factors != nullptr)
                factors[k] = (T)1 / (T)used;
        }
    }
}

/* A thread has a column, and adds in the order of the bags. */
template <typename T> __device__ inline void bag_max_backward(const wfi_bag_task &args)
{
    for (int64_t column = first_of_all(); column < args.head.count; column += step_of_all()) {
        for (int64_t i = column; i < args.bags * args.width; i += args.width)
            if (args.picked[i] >= 0)
                ((T *)args.y)[args.picked[i] * args.width + column] += ((const T *)args.dy)[i];
    }
}

template <typename T> __device__ inline void bag_scale_backward(const wfi_bag_task &args)
{
    for (int64_t k = first_of_all(); k < args.head.count; k += step_of_all()) {
        const T *dy = (const T *)args.dy + args.picked[k] * args.width;
        const T *row = (const T *)args.table + args.index[k] * args.width;
        T total = 0;
        for (int64_t d = 0; d < args.width && args.index[k] != args.padding; d++)
            total += dy[d] * row[d];
        ((T *)args.y)[k] = total;
    }
}

} // namespace wfi

WFI_SIZE_KERNELS(gather, wfi_gather_task)
WFI_FLOAT_KERNELS(scatter_add, wfi_gather_task)
WFI_SIZE_KERNELS(select, wfi_rows_task)
WFI_FLOAT_KERNELS(add_rows, wfi_rows_task)
WFI_FLOAT_KERNELS(pick_rows, wfi_rows_task)
WFI_FLOAT_KERNELS(bag, wfi_bag_task)
WFI_FLOAT_KERNELS(bag_max, wfi_bag_task)
WFI_FLOAT_KERNELS(bag_spread, wfi_bag_task)
WFI_FLOAT_KERNELS(bag_max_backward, wfi_bag_task)
WFI_FLOAT_KERNELS(bag_scale_backward, wfi_bag_task)

/* ---- Checks of an index: one block ---- */

WFI_KERNEL(index_outside, wfi_index_task)
{
    WFI_SHARED(int64_t, found, 256);
    int64_t first = args.n;
    for (int64_t i = threadIdx.x; i < args.n && first == args.n; i += blockDim.x)
        if (args.index[i] < 0 || args.index[i] >= args.size)
            first = i;
    found[threadIdx.x] = first;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned t = 1; t < blockDim.x; t++)
        first = found[t] < first ? found[t] : first;
    *args.found = first == args.n ? -1 : first;
}

WFI_KERNEL(index_count, wfi_index_task)
{
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < args.n; i += blockDim.x)
        count += args.index[i] != args.size;
    count = wfi::block_sum(count);
    if (threadIdx.x == 0)
        *args.found = count;
}

WFI_KERNEL(index_places, wfi_index_task)
{
    if (threadIdx.x != 0)
        return;
    int64_t place = 0;
    for (int64_t i = 0; i < args.n; i++)
        args.found[i] = args.index[i] == args.size ? -1 : place++;
}
