/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - for tests of GPUs: prints which device a test runs on, a GPU or the emulated one, and whether there is
 * any. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "mem/cuda.h"

#include <stdio.h>

enum { GPU_SKIPPED = 77 };

static inline bool gpu_is_here(void)
{
    char name[WFI_CUDA_NAME];
    if (wfi_cuda_check(0, NULL) != WEFT_OK) {
        puts("device: none, neither a GPU nor the emulated one");
        return false;
    }
    printf("device: %s\n", wfi_cuda_name(0, name));
    fflush(stdout);
    return true;
}

#endif
