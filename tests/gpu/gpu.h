/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - for tests of GPUs: which device a test runs on, a GPU or the emulated one, and what the emulated one offers. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "mem/cuda.h"
#include "tensor/tensor.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_SKIPPED = 77 };

/* Prints the device. False: there is none. */
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

/* Stores in *function, a pointer to a function, the emulated GPU's function of this name; NULL on a GPU. */
static inline void gpu_find(const char *name, void *function)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof(found));
}

/* Whether the emulated GPU has no thread, EMULATED_GPU_HOST=polled: the tests that may run on the simulation do so. */
static inline bool gpu_is_polled(void)
{
    const char *how = getenv("EMULATED_GPU_HOST");
    return how && strcmp(how, "polled") == 0;
}

static inline bool gpu_is_on(const weft_tensor *tensor, weft_device device)
{
    return wfi_device_equal(weft_tensor_device(tensor), device);
}

#endif
