/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe_dmabuf.c - whether device memory can be exported as a dmabuf, which is what GPUDirect of current kernels
 * registers. Run by tools/gpu-check.
 */
#include "gpu_probe.h"

#include <unistd.h>

#define WHAT "export of device memory as a dmabuf"
#define BYTES ((size_t)4 << 20)

enum { DMABUF_SUPPORTED = 124, TYPE_DMABUF_FD = 1 }; /* CU_DEVICE_ATTRIBUTE_..., CU_MEM_RANGE_HANDLE_TYPE_... */

static const char *export(uint64_t at)
{
    int (*attribute)(int *value, int which, int device) = NULL;
    int (*get)(void *handle, uint64_t at, size_t size, int type, unsigned long long flags) = NULL;
    int supported = 0, fd = -1;
    if (!probe_find("cuDeviceGetAttribute", (void *)&attribute) ||
        !probe_find("cuMemGetHandleForAddressRange", (void *)&get))
        return "libcuda.so.1 has no cuMemGetHandleForAddressRange";
    if (attribute(&supported, DMABUF_SUPPORTED, 0) == 0)
        printf("the driver says that it is %ssupported\n", supported ? "" : "not ");
    int error = get(&fd, at, BYTES, TYPE_DMABUF_FD, 0);
    if (error)
        return probe_error(error);
    long long size = lseek(fd, 0, SEEK_END);
    printf("the dmabuf has %lld bytes, of %zu\n", size, BYTES);
    close(fd);
    return size >= (long long)BYTES ? NULL : "the dmabuf is smaller than the memory";
}

int main(void)
{
    uint64_t at = 0;
    if (!probe_begin())
        return SKIPPED;
    if (wfi_cuda_enter(0))
        return 1;
    int error = wfi_cuda_driver_get()->memory_alloc(&at, BYTES);
    int code = probe_result(WHAT, error ? probe_error(error) : export(at));
    if (at)
        (void)wfi_cuda_driver_get()->memory_free(at);
    wfi_cuda_leave();
    return code;
}
