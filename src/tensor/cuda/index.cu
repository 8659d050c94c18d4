/* SPDX-License-Identifier: Apache-2.0 */
/* index.cu - elements and rows picked by an index, and added up where they came from: in the index's order. Checks and
 * sorting of an index. */
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
        int64_t column = i % args.inner, row = i / args.inner;
        T value = ((const T *)args.from)[(args.rows != nullptr ? args.rows[row] : row) * args.inner + column];
        value = factors != nullptr ? factors[row] * value : value;
        ((T *)args.to)[i] = args.index[row] == args.skip ? (T)0 : value;
        if (column == 0)
            args.picked[row] = args.index[row];
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

/* ---- Checks of an index ---- */

namespace wfi
{

/* The least of all threads of the block, in thread 0. */
__device__ inline int64_t block_least(int64_t value)
{
    WFI_SHARED(int64_t, found, 256);
    found[threadIdx.x] = value;
    __syncthreads();
    for (unsigned t = 1; threadIdx.x == 0 && t < blockDim.x; t++)
        value = found[t] < value ? found[t] : value;
    return value;
}

} // namespace wfi

WFI_KERNEL(index_check, wfi_index_task)
{
    int64_t piece = blockIdx.x, begin = args.n * piece / args.head.count, end = args.n * (piece + 1) / args.head.count;
    int64_t first = args.n, value = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        int64_t at = args.index[i];
        bool inside = at >= 0 && at < args.size;
        if (!inside && first == args.n) {
            first = i;
            value = at;
        }
        if (args.safe != nullptr)
            args.safe[i] = inside ? at : 0;
    }
    WFI_SHARED(int64_t, least, 1);
    int64_t of_all = wfi::block_least(first);
    if (threadIdx.x == 0)
        *least = of_all;
    __syncthreads();
    wfi_report_slot *slot = &args.report->slots[piece];
    if (first == *least && first < args.n && slot->check == 0)
        *slot = {args.check, first, value, 0};
}

WFI_KERNEL(offsets_check, wfi_index_task)
{
    int64_t first = args.n;
    for (int64_t i = threadIdx.x; i < args.n && first == args.n; i += blockDim.x) {
        int64_t before = i == 0 ? 0 : args.index[i - 1], at = args.index[i];
        if (at < before || at > args.size || (i == 0 && at != 0))
            first = i;
    }
    WFI_SHARED(int64_t, least, 1);
    int64_t of_all = wfi::block_least(first);
    if (threadIdx.x == 0)
        *least = of_all;
    __syncthreads();
    first = *least;
    for (int64_t i = threadIdx.x; i < args.n; i += blockDim.x)
        args.safe[i] = first == args.n ? args.index[i] : i == 0 ? 0 : args.size;
    wfi_report_slot *slot = args.report->slots;
    if (threadIdx.x == 0 && first < args.n && slot->check == 0)
        *slot = {args.check, first, args.index[first], first == 0 ? 0 : args.index[first - 1]};
}

/* ---- Sorting ---- */

namespace wfi
{

/* A thread counts the elements of its tile that come before its own. */
__device__ inline void sort_tiles(const wfi_sort_task &args)
{
    WFI_SHARED(int64_t, keys, WFI_SORT_TILE);
    for (int64_t tile = blockIdx.x; tile < args.head.count; tile += gridDim.x) {
        int64_t begin = tile * WFI_SORT_TILE, left = args.n - begin, mine = 0;
        int here = threadIdx.x, count = left < WFI_SORT_TILE ? (int)left : WFI_SORT_TILE, rank = 0;
        if (here < count)
            keys[here] = mine = args.keys[begin + here];
        __syncthreads();
        for (int j = 0; here < count && j < count; j++)
            rank += keys[j] < mine || (keys[j] == mine && j < here);
        if (here < count) {
            args.to_keys[begin + rank] = mine;
            args.to_order[begin + rank] = begin + here;
        }
        __syncthreads(); /* the next tile overwrites the keys */
    }
}

/* The new place of an element: its place in its own run, and the number of elements of the other run that come before
 * it. Of equal keys those of the first run do. */
__device__ inline void sort_merge(const wfi_sort_task &args)
{
    for (int64_t i = first_of_all(); i < args.n; i += step_of_all()) {
        int64_t pair = i / (2 * args.width) * (2 * args.width), middle = pair + args.width, end = middle + args.width;
        middle = middle < args.n ? middle : args.n;
        end = end < args.n ? end : args.n;
        bool is_first = i < middle;
        int64_t mine = args.keys[i], other = is_first ? middle : pair, low = other, high = is_first ? end : middle;
        while (low < high) {
            int64_t at = low + (high - low) / 2;
            if (args.keys[at] < mine || (!is_first && args.keys[at] == mine))
                low = at + 1;
            else
                high = at;
        }
        int64_t to = (is_first ? i : pair + i - middle) + low - other;
        args.to_keys[to] = mine;
        args.to_order[to] = args.order[i];
    }
}

} // namespace wfi

WFI_KERNEL(sort_tiles, wfi_sort_task)
{
    wfi::sort_tiles(args);
}

WFI_KERNEL(sort_merge, wfi_sort_task)
{
    wfi::sort_merge(args);
}
