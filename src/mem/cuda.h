/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - choosing a CUDA device for a while, and what CUDA's errors mean here. Only where CUDA is built; for C++ too. */
#ifndef WFI_MEM_CUDA_H
#define WFI_MEM_CUDA_H

#include <weft/status.h>

WEFT_BEGIN_C

/* Makes `device` the calling thread's, until wfi_cuda_leave. WEFT_ERR_UNSUPPORTED (no driver, no GPU), WEFT_ERR_INVALID (not that
 * number), WEFT_ERR_SYSTEM: nothing is to be left then. */
weft_status wfi_cuda_enter(int device, int *before);
void wfi_cuda_leave(int device, int before);
/* Of a cudaError_t; an error is logged, with `what`, and forgotten by CUDA if it can be. */
weft_status wfi_cuda_status(int error, const char *what);

WEFT_END_C
#endif
