/* SPDX-License-Identifier: Apache-2.0 */
/* tables.c - the tables of CUDA's copies and elementwise kernels (tensor/kernels.h), which start kernels of copy.cu and
 * elementwise.cu. */
#include "tensor/cuda/args.h"
#include "tensor/cuda/launch.h"

#include <string.h>

static weft_status run_walk(wfi_cuda_kernel kernel, const wfi_strided *walk, int op, const void *element,
                            size_t element_size)
{
    wfi_walk_args args = {.walk = *walk, .count = 1, .op = op};
    for (int d = 0; d < walk->ndim; d++)
        args.count = walk->dims[d] == 0 || args.count == 0 ? 0 : args.count * walk->dims[d];
    if (element)
        memcpy(args.element, element, element_size);
    return wfi_launch_threads(kernel, walk->device, args.count, &args, sizeof(args));
}

/* ---- Copies ---- */

#define COPY(size)                                                                                                     \
    static weft_status copy_##size(const wfi_strided *walk)                                                            \
    {                                                                                                                  \
        return run_walk(WFI_KERNEL_copy_##size, walk, 0, NULL, 0);                                                     \
    }                                                                                                                  \
    static weft_status fill_##size(const wfi_strided *walk, const void *element)                                       \
    {                                                                                                                  \
        return run_walk(WFI_KERNEL_fill_##size, walk, 0, element, size);                                               \
    }
COPY(1)
COPY(2)
COPY(4)
COPY(8)
COPY(16)

#define CONVERT_TO(from, to, dtype)                                                                                    \
    static weft_status from##_to_##to(const wfi_strided *walk)                                                         \
    {                                                                                                                  \
        return run_walk(WFI_KERNEL_convert_##from, walk, dtype, NULL, 0);                                              \
    }
#define CONVERT(from)                                                                                                  \
    CONVERT_TO(from, f32, WEFT_DTYPE_FLOAT32)                                                                          \
    CONVERT_TO(from, f64, WEFT_DTYPE_FLOAT64)                                                                          \
    CONVERT_TO(from, f16, WEFT_DTYPE_FLOAT16)                                                                          \
    CONVERT_TO(from, bf16, WEFT_DTYPE_BFLOAT16)
CONVERT(f32)
CONVERT(f64)
CONVERT(f16)
CONVERT(bf16)

#define MOVES(size) .same = copy_##size, .fill = fill_##size
#define FLOATS(tag)                                                                                                    \
    .to = {[WEFT_DTYPE_FLOAT32] = tag##_to_f32,                                                                        \
           [WEFT_DTYPE_FLOAT64] = tag##_to_f64,                                                                        \
           [WEFT_DTYPE_FLOAT16] = tag##_to_f16,                                                                        \
           [WEFT_DTYPE_BFLOAT16] = tag##_to_bf16}

const wfi_copy_kernels wfi_copy_cuda[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {MOVES(4), FLOATS(f32)},
    [WEFT_DTYPE_FLOAT64] = {MOVES(8), FLOATS(f64)},
    [WEFT_DTYPE_INT64] = {MOVES(8)},
    [WEFT_DTYPE_INT32] = {MOVES(4)},
    [WEFT_DTYPE_UINT8] = {MOVES(1)},
    [WEFT_DTYPE_BOOL] = {MOVES(1)},
    [WEFT_DTYPE_FLOAT16] = {MOVES(2), FLOATS(f16)},
    [WEFT_DTYPE_BFLOAT16] = {MOVES(2), FLOATS(bf16)},
    [WEFT_DTYPE_INT8] = {MOVES(1)},
    [WEFT_DTYPE_INT16] = {MOVES(2)},
    [WEFT_DTYPE_COMPLEX64] = {MOVES(8)},
    [WEFT_DTYPE_COMPLEX128] = {MOVES(16)},
};

/* ---- Elementwise ---- */

#define WALK(kernel, tag, op)                                                                                          \
    static weft_status kernel##_##tag##_##op(const wfi_strided *walk)                                                  \
    {                                                                                                                  \
        return run_walk(WFI_KERNEL_##kernel##_##tag, walk, op, NULL, 0);                                               \
    }
#define INTEGERS(tag)                                                                                                  \
    WALK(binary, tag, WFI_ADD)                                                                                         \
    WALK(binary, tag, WFI_SUB)                                                                                         \
    WALK(binary, tag, WFI_MUL)
INTEGERS(f32)
INTEGERS(f64)
INTEGERS(i64)
INTEGERS(i32)
INTEGERS(u8)
WALK(binary, f32, WFI_DIV)
WALK(binary, f64, WFI_DIV)
WALK(binary, i64, WFI_DIV)
WALK(binary, i32, WFI_DIV)
WALK(binary, u8, WFI_DIV)

static weft_status run_map(wfi_cuda_kernel kernel, wfi_map_op op, const wfi_map_args *map)
{
    wfi_map_kernel_args args = {*map, op};
    return wfi_launch_threads(kernel, map->device, map->count, &args, sizeof(args));
}

#define MAP(tag, op)                                                                                                   \
    static weft_status map_##tag##_##op(const wfi_map_args *args)                                                      \
    {                                                                                                                  \
        return run_map(WFI_KERNEL_map_##tag, op, args);                                                                \
    }
#define MAPS(tag)                                                                                                      \
    MAP(tag, WFI_SCALE)                                                                                                \
    MAP(tag, WFI_ADD_SCALAR)                                                                                           \
    MAP(tag, WFI_EXP)                                                                                                  \
    MAP(tag, WFI_LN)                                                                                                   \
    MAP(tag, WFI_RELU)                                                                                                 \
    MAP(tag, WFI_RELU_BACKWARD)                                                                                        \
    MAP(tag, WFI_SIGMOID)                                                                                              \
    MAP(tag, WFI_SIGMOID_BACKWARD)                                                                                     \
    MAP(tag, WFI_TANH)                                                                                                 \
    MAP(tag, WFI_TANH_BACKWARD)
MAPS(f32)
MAPS(f64)

#define RING(tag)                                                                                                      \
    [WFI_ADD] = binary_##tag##_WFI_ADD, [WFI_SUB] = binary_##tag##_WFI_SUB, [WFI_MUL] = binary_##tag##_WFI_MUL
#define MAP_ROW(tag)                                                                                                   \
    .map = {[WFI_SCALE] = map_##tag##_WFI_SCALE,     [WFI_ADD_SCALAR] = map_##tag##_WFI_ADD_SCALAR,                    \
            [WFI_EXP] = map_##tag##_WFI_EXP,         [WFI_LN] = map_##tag##_WFI_LN,                                    \
            [WFI_RELU] = map_##tag##_WFI_RELU,       [WFI_RELU_BACKWARD] = map_##tag##_WFI_RELU_BACKWARD,              \
            [WFI_SIGMOID] = map_##tag##_WFI_SIGMOID, [WFI_SIGMOID_BACKWARD] = map_##tag##_WFI_SIGMOID_BACKWARD,        \
            [WFI_TANH] = map_##tag##_WFI_TANH,       [WFI_TANH_BACKWARD] = map_##tag##_WFI_TANH_BACKWARD}
#define FLOAT_ROW(tag)                                                                                                 \
    {                                                                                                                  \
        .binary = {RING(tag), [WFI_DIV] = binary_##tag##_WFI_DIV}, MAP_ROW(tag)                                        \
    }

/* Integers: the operator has replaced divisors that are 0 (autograd/checks.h). */
const wfi_elementwise_kernels wfi_elementwise_cuda[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = FLOAT_ROW(f32),
    [WEFT_DTYPE_FLOAT64] = FLOAT_ROW(f64),
    [WEFT_DTYPE_INT64] = {.binary = {RING(i64), [WFI_DIV] = binary_i64_WFI_DIV}},
    [WEFT_DTYPE_INT32] = {.binary = {RING(i32), [WFI_DIV] = binary_i32_WFI_DIV}},
    [WEFT_DTYPE_UINT8] = {.binary = {RING(u8), [WFI_DIV] = binary_u8_WFI_DIV}},
};
