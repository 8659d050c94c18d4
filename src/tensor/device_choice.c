/* SPDX-License-Identifier: Apache-2.0 */
/* device_choice.c - reads a device from a text, and chooses the GPU that is nearest to the process. */
#include "tensor/tensor.h"

#include "base/error.h"
#include "base/text/log.h"
#include "mem/cuda.h"
#include "topo/nics.h"
#include "topo/quota.h"

#include <stdlib.h>
#include <string.h>

static weft_device nearest(int local_rank)
{
    char texts[WFI_CUDA_DEVICES_MAX][WFI_CUDA_ADDRESS];
    const char *addresses[WFI_CUDA_DEVICES_MAX];
    int count = wfi_cuda_count();
    if (count == 0)
        return (weft_device){WEFT_DEVICE_CPU, 0};
    for (int i = 0; i < count; i++)
        addresses[i] = wfi_cuda_address(i, texts[i]);
    const wfi_topology *topology = wfi_topology_here();
    wfi_cores *cores = wfi_cores_allowed(topology);
    size_t index = wfi_gpus_nearest(topology, cores, addresses, (size_t)count,
                                    local_rank >= 0 ? local_rank : wfi_quota_local_rank());
    wfi_cores_destroy(cores);
    wfi_log(WEFT_LOG_INFO, "device auto: cuda:%zu at %s, one of %d GPUs", index, addresses[index], count);
    return (weft_device){WEFT_DEVICE_CUDA, (int)index};
}

/* The digits after "cuda:". -1: something else. */
static int index_of(const char *digits)
{
    char *end;
    long index = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : -1;
    return index >= 0 && index < INT32_MAX && *end == '\0' ? (int)index : -1;
}

bool wfi_device_parse(const char *text, weft_device *out)
{
    weft_device device = {WEFT_DEVICE_CPU, 0};
    if (strcmp(text, "cuda") == 0)
        device.kind = WEFT_DEVICE_CUDA;
    else if (strncmp(text, "cuda:", 5) == 0)
        device = (weft_device){WEFT_DEVICE_CUDA, index_of(text + 5)};
    else if (strcmp(text, "cpu") != 0)
        return false;
    *out = device;
    return device.index >= 0;
}

weft_status weft_device_choose(const char *text, int local_rank, weft_device *out, weft_error **error)
{
    if (!text || !out)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "weft_device_choose: %s",
                              !text ? "the text is NULL: pass cpu, cuda, cuda:N or auto" : "out is NULL");
    if (local_rank < -1)
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "weft_device_choose: the local rank is %d: pass a rank from 0 on, or -1 if it is unknown",
                              local_rank);
    weft_device device;
    if (strcmp(text, "auto") == 0)
        device = nearest(local_rank);
    else if (!wfi_device_parse(text, &device))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "'%s' is no device: expected cpu, cuda, cuda:N with a number N from 0 on, or auto", text);
    weft_status status = weft_device_check(device, error);
    if (status == WEFT_OK)
        *out = device;
    return status;
}
