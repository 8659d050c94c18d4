/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h - starts kernels by their number.
 *
 * A kernel is queued on the stream of the thread (mem/stream.h). The caller has told the storages of its operands
 * (wfi_storage_use), so that work on other streams runs in order. Errors of a launch are returned; those of a kernel
 * that runs show at the next call that waits. Any thread may call.
 */
#ifndef WFI_LAUNCH_H
#define WFI_LAUNCH_H

#include "tensor/cuda/kernel_list.h"

#include <weft/tensor.h>

#define WFI_BLOCK_THREADS 256

/* One thread for each of `count` pieces of work, or each thread has several. `args` has `size` bytes. Does nothing if
 * `count` is 0. WEFT_ERR_UNSUPPORTED: this weft has no kernels for the device. */
weft_status wfi_launch_threads(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args,
                               size_t size);
/* The same with a block of 256 threads for each piece. */
weft_status wfi_launch_blocks(wfi_cuda_kernel kernel, weft_device device, int64_t count, const void *args, size_t size);

/* Opens the device and loads its kernels: whether operators can run there. WEFT_ERR_UNSUPPORTED, WEFT_ERR_INVALID,
 * WEFT_ERR_SYSTEM, WEFT_ERR_MEMORY, with the reason in *error if `error` is not NULL. */
weft_status wfi_launch_try(int device, weft_error **error);

#endif
