/* SPDX-License-Identifier: Apache-2.0 */
/* tasks.c - the table of the kernels of tasks (tensor/tasks.h). */
#include "tensor/cuda/launch.h"
#include "tensor/dtype.h"
#include "tensor/tasks.h"

typedef struct task_row {
    uint16_t kernels[WFI_DTYPES]; /* of wfi_cuda_kernel; WFI_NO_KERNEL: none */
    bool by_blocks;               /* a piece is the work of a block, not of a thread */
} task_row;

#define FLOATS(name)                                                                                                   \
    {                                                                                                                  \
        [WEFT_DTYPE_FLOAT32] = WFI_KERNEL_##name##_f32, [WEFT_DTYPE_FLOAT64] = WFI_KERNEL_##name##_f64                 \
    }
#define VALUES(name)                                                                                                   \
    {                                                                                                                  \
        [WEFT_DTYPE_FLOAT32] = WFI_KERNEL_##name##_f32, [WEFT_DTYPE_FLOAT64] = WFI_KERNEL_##name##_f64,                \
        [WEFT_DTYPE_INT64] = WFI_KERNEL_##name##_i64, [WEFT_DTYPE_INT32] = WFI_KERNEL_##name##_i32,                    \
        [WEFT_DTYPE_UINT8] = WFI_KERNEL_##name##_u8, [WEFT_DTYPE_BOOL] = WFI_KERNEL_##name##_bool8                     \
    }
#define INTEGERS(name)                                                                                                 \
    {                                                                                                                  \
        [WEFT_DTYPE_INT64] = WFI_KERNEL_##name##_i64, [WEFT_DTYPE_INT32] = WFI_KERNEL_##name##_i32,                    \
        [WEFT_DTYPE_UINT8] = WFI_KERNEL_##name##_u8                                                                    \
    }
#define SIZES(name)                                                                                                    \
    {                                                                                                                  \
        [WEFT_DTYPE_FLOAT32] = WFI_KERNEL_##name##_4, [WEFT_DTYPE_FLOAT64] = WFI_KERNEL_##name##_8,                    \
        [WEFT_DTYPE_INT64] = WFI_KERNEL_##name##_8, [WEFT_DTYPE_INT32] = WFI_KERNEL_##name##_4,                        \
        [WEFT_DTYPE_UINT8] = WFI_KERNEL_##name##_1, [WEFT_DTYPE_BOOL] = WFI_KERNEL_##name##_1,                         \
        [WEFT_DTYPE_FLOAT16] = WFI_KERNEL_##name##_2, [WEFT_DTYPE_BFLOAT16] = WFI_KERNEL_##name##_2,                   \
        [WEFT_DTYPE_INT8] = WFI_KERNEL_##name##_1, [WEFT_DTYPE_INT16] = WFI_KERNEL_##name##_2,                         \
        [WEFT_DTYPE_COMPLEX64] = WFI_KERNEL_##name##_8, [WEFT_DTYPE_COMPLEX128] = WFI_KERNEL_##name##_16               \
    }
#define INT64(name)                                                                                                    \
    {                                                                                                                  \
        [WEFT_DTYPE_INT64] = WFI_KERNEL_##name                                                                         \
    }

static const task_row rows[WFI_GPU_KINDS] = {
    [WFI_GPU_SUM] = {VALUES(sum), true},
    [WFI_GPU_SUM_COLUMNS] = {FLOATS(sum_columns), true},
    [WFI_GPU_SUM_PARTIAL] = {FLOATS(sum_partial), false},
    [WFI_GPU_ARGMAX] = {VALUES(argmax), false},
    [WFI_GPU_INDEX_CHECK] = {INT64(index_check), true},
    [WFI_GPU_OFFSETS_CHECK] = {INT64(offsets_check), true},
    [WFI_GPU_SORT_TILES] = {INT64(sort_tiles), true},
    [WFI_GPU_SORT_MERGE] = {INT64(sort_merge), false},
    [WFI_GPU_DIVISOR] = {INTEGERS(divisor), false},
    [WFI_GPU_GATHER] = {SIZES(gather), false},
    [WFI_GPU_SCATTER_ADD] = {FLOATS(scatter_add), false},
    [WFI_GPU_SELECT] = {SIZES(select), false},
    [WFI_GPU_ADD_ROWS] = {FLOATS(add_rows), false},
    [WFI_GPU_PICK_ROWS] = {FLOATS(pick_rows), false},
    [WFI_GPU_BAG] = {FLOATS(bag), false},
    [WFI_GPU_BAG_MAX] = {FLOATS(bag_max), false},
    [WFI_GPU_BAG_SPREAD] = {FLOATS(bag_spread), false},
    [WFI_GPU_BAG_MAX_BACKWARD] = {FLOATS(bag_max_backward), false},
    [WFI_GPU_BAG_SCALE_BACKWARD] = {FLOATS(bag_scale_backward), false},
    [WFI_GPU_SOFTMAX] = {FLOATS(softmax), false},
    [WFI_GPU_SOFTMAX_BACKWARD] = {FLOATS(softmax_backward), false},
    [WFI_GPU_LOG_SOFTMAX] = {FLOATS(log_softmax), false},
    [WFI_GPU_LOG_SOFTMAX_BACKWARD] = {FLOATS(log_softmax_backward), false},
    [WFI_GPU_NLL] = {FLOATS(nll), true},
    [WFI_GPU_NLL_EACH] = {FLOATS(nll_each), false},
    [WFI_GPU_NLL_BACKWARD] = {FLOATS(nll_backward), false},
    [WFI_GPU_MSE] = {FLOATS(mse), true},
    [WFI_GPU_MSE_EACH] = {FLOATS(mse_each), false},
    [WFI_GPU_MSE_BACKWARD] = {FLOATS(mse_backward), false},
    [WFI_GPU_NORM_TRAIN] = {FLOATS(norm_train), true},
    [WFI_GPU_NORM_EVAL] = {FLOATS(norm_eval), true},
    [WFI_GPU_NORM_BACKWARD] = {FLOATS(norm_backward), true},
    [WFI_GPU_NORM_MOVE] = {FLOATS(norm_move), false},
    [WFI_GPU_MAX_POOL] = {FLOATS(max_pool), false},
    [WFI_GPU_MAX_POOL_BACKWARD] = {FLOATS(max_pool_backward), false},
    [WFI_GPU_AVERAGE_POOL] = {FLOATS(average_pool), false},
    [WFI_GPU_AVERAGE_POOL_BACKWARD] = {FLOATS(average_pool_backward), false},
    [WFI_GPU_UNIFORM] = {FLOATS(uniform), false},
    [WFI_GPU_NORMAL] = {FLOATS(normal), false},
    [WFI_GPU_MASK] = {FLOATS(mask), false},
    [WFI_GPU_CATEGORICAL] = {FLOATS(categorical), false},
    [WFI_GPU_UNFOLD] = {FLOATS(unfold), false},
    [WFI_GPU_FOLD] = {FLOATS(fold), false},
    [WFI_GPU_ADD_BIAS] = {FLOATS(add_bias), false},
    [WFI_GPU_LSTM_CELL] = {FLOATS(lstm_cell), false},
    [WFI_GPU_LSTM_CELL_BACKWARD] = {FLOATS(lstm_cell_backward), false},
    [WFI_GPU_SGD] = {FLOATS(sgd), true},
    [WFI_GPU_SGD_FIRST] = {FLOATS(sgd_first), true},
    [WFI_GPU_SGD_PLAIN] = {FLOATS(sgd_plain), true},
    [WFI_GPU_ADAM] = {FLOATS(adam), true},
    [WFI_GPU_AMSGRAD] = {FLOATS(amsgrad), true},
    [WFI_GPU_ADAGRAD] = {FLOATS(adagrad), true},
    [WFI_GPU_ADADELTA] = {FLOATS(adadelta), true},
    [WFI_GPU_ADAMAX] = {FLOATS(adamax), true},
    [WFI_GPU_RPROP] = {FLOATS(rprop), true},
    [WFI_GPU_RMSPROP] = {FLOATS(rmsprop), true},
    [WFI_GPU_RMSPROP_MOMENTUM] = {FLOATS(rmsprop_momentum), true},
    [WFI_GPU_RMSPROP_CENTERED] = {FLOATS(rmsprop_centered), true},
    [WFI_GPU_RMSPROP_BOTH] = {FLOATS(rmsprop_both), true},
    [WFI_GPU_SQUARES] = {FLOATS(squares), true},
    [WFI_GPU_CLIP] = {{[WEFT_DTYPE_FLOAT64] = WFI_KERNEL_clip}, true},
};

static weft_status run(wfi_gpu_kind kind, const wfi_gpu_task *task, size_t size)
{
    wfi_cuda_kernel kernel = (wfi_cuda_kernel)rows[kind].kernels[task->dtype];
    if (kernel == WFI_NO_KERNEL)
        return WEFT_ERR_UNSUPPORTED;
    return rows[kind].by_blocks ? wfi_launch_blocks(kernel, task->device, task->count, task, size)
                                : wfi_launch_threads(kernel, task->device, task->count, task, size);
}

const wfi_gpu_runner wfi_gpu_runner_cuda = run;
