/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - selects a CUDA device for a while, and translates CUDA's errors. Only in builds with CUDA; also for C++. */
#ifndef WFI_MEM_CUDA_H
#define WFI_MEM_CUDA_H

#include <weft/status.h>

WEFT_BEGIN_C

/* Makes `device` the calling thread's device until wfi_cuda_leave. If it fails, wfi_cuda_leave must not be called:
 * WEFT_ERR_UNSUPPORTED (no driver, no GPU), WEFT_ERR_INVALID (no device with that number), WEFT_ERR_SYSTEM. */
weft_status wfi_cuda_enter(int device, int *before);
void wfi_cuda_leave(int device, int before);
/* The status of a cudaError_t. Logs an error, with `what`, and clears it in CUDA if that is possible. */
weft_status wfi_cuda_status(int error, const char *what);

WEFT_END_C
#endif
