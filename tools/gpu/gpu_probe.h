/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe.h - for programs that try a feature of the driver which weft does not use yet. Their result is a line,
 * "works" or "does not work, because ...", and the exit code is 0 for both; 77 where no GPU is.
 */
#ifndef GPU_PROBE_H
#define GPU_PROBE_H

#include "mem/cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SKIPPED = 77 };

/* Stores a function of the driver that weft does not load in *place. False: the driver lacks it. */
static inline bool probe_find(const char *name, void *place)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(place, &found, sizeof(found));
    return found != NULL;
}

static inline const char *probe_error(int error)
{
    const char *text = NULL;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    return driver && driver->error_text(error, &text) == 0 && text ? text : "an unknown error";
}

/* Prints the device on which the probe runs. False: there is none. */
static inline bool probe_begin(void)
{
    char name[WFI_CUDA_NAME];
    if (wfi_cuda_check(0, NULL)) {
        puts("no GPU here");
        return false;
    }
    printf("device: %s\n", wfi_cuda_name(0, name));
    return true;
}

/* The result; `why` NULL: it works. */
static inline int probe_result(const char *what, const char *why)
{
    printf(why ? "%s: does not work, because %s\n" : "%s: works\n", what, why);
    return 0;
}

#endif
