/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - the parameters of kernels that are not tasks (tensor/kernels.h): walks over strides. For C++ too. */
#ifndef WFI_CUDA_ARGS_H
#define WFI_CUDA_ARGS_H

#include "tensor/kernels.h"
#include "tensor/tasks.h"

typedef struct wfi_walk_args {
    wfi_strided walk;
    int64_t count;       /* of elements */
    int64_t op;          /* which of the functions of the kernel; of a conversion: the dtype that is written */
    uint64_t element[2]; /* a fill: what is written */
} wfi_walk_args;

typedef struct wfi_map_kernel_args {
    wfi_map_args map;
    int64_t op;
} wfi_map_kernel_args;

#endif
