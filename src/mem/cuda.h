/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - makes the primary context of a CUDA device current for a while, and translates the driver's errors.
 *
 * weft is a guest in its process: it uses the primary contexts, which the CUDA runtime and other libraries share, and
 * after each of its calls the context that was current before is current again.
 */
#ifndef WFI_MEM_CUDA_H
#define WFI_MEM_CUDA_H

#include "mem/cuda_driver.h"

#define WFI_CUDA_DEVICES_MAX 64

/* Makes the primary context of `device` current on the calling thread until wfi_cuda_leave. If it fails, wfi_cuda_leave
 * must not be called: WEFT_ERR_UNSUPPORTED (no driver, no GPU), WEFT_ERR_INVALID (no device with that number),
 * WEFT_ERR_SYSTEM. */
weft_status wfi_cuda_enter(int device);
void wfi_cuda_leave(void);
/* The primary context of a device that was entered. */
void *wfi_cuda_context(int device);
/* The status for an error of the driver (0: WEFT_OK). Logs the error, with `what` ("creating a stream"). */
weft_status wfi_cuda_status(int error, const char *what);

/* Whether it may be the number of a device, here or elsewhere. */
static inline bool wfi_cuda_is_number(int device)
{
    return device >= 0 && device < WFI_CUDA_DEVICES_MAX;
}
/* WEFT_OK if there is such a device; otherwise as wfi_memory_check_cuda (mem.h). */
weft_status wfi_cuda_check(int device, weft_error **error);
/* Opens the primary context of a device, for good, and tells why that fails. */
weft_status wfi_cuda_open(int device, weft_error **error);
/* Whether there is a driver's library. *why: the reason why it has no GPU for this process (valid forever), or NULL.
 */
bool wfi_cuda_is_found(const char **why);
#define WFI_CUDA_NAME 96
/* The driver's name of a device, "none" if there is no such device. */
const char *wfi_cuda_name(int device, char name[WFI_CUDA_NAME]);

/* The memory of a device in bytes; 0 if the driver does not tell. */
size_t wfi_cuda_bytes(int device);

/* The number of GPUs that the driver shows to this process; 0 without a driver. */
int wfi_cuda_count(void);
#define WFI_CUDA_ADDRESS 16
/* The PCI address of a device, such as "0000:17:00.0"; "" if the driver does not tell. */
const char *wfi_cuda_address(int device, char address[WFI_CUDA_ADDRESS]);
#define WFI_CUDA_UUID 16 /* bytes */
/* The identifier of a device, unique among all machines. False: the driver does not tell; `uuid` is then undefined.
 * */
bool wfi_cuda_uuid(int device, uint8_t uuid[WFI_CUDA_UUID]);

#endif
