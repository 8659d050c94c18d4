/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - starts kernels by their number.
 *
 * Everything is queued on the legacy default stream of its device. Later work of the device, and copies to the host
 * (mem/cuda_memory.c), see its results. So memory may be given back and used again without waiting. Errors of a launch
 * are returned; those of a kernel that runs show at the next call that waits. Any thread may call.
 */
#ifndef WFI_LAUNCH_H
#define WFI_LAUNCH_H

#include "tensor/cuda/kernel_list.h"

#include <weft/tensor.h>

#define WFI_BLOCK_THREADS 256

/* One thread for each of `count` pieces of work, or each thread has several. `args` has `size` bytes. Does nothing if
 * `count` is 0. WEFT_ERR_UNSUPPORTED: this weft has no kernels for the device. */
weft_status wfi_cuda_run_threads(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args,
                                 size_t size);
/* The same with a block of 256 threads for each piece. */
weft_status wfi_cuda_run_blocks(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args,
                                size_t size);

#endif
