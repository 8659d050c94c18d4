/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver.h - the functions of NVIDIA's driver that weft calls. weft declares them itself and loads them from
 * libcuda.so.1 at run time: it builds without a CUDA toolkit, and starts on machines without a driver.
 *
 * Handles are pointers. Device addresses are 64-bit integers. Each function returns 0 or an error of the driver.
 */
#ifndef WFI_MEM_CUDA_DRIVER_H
#define WFI_MEM_CUDA_DRIVER_H

#include <weft/status.h>

#include <stddef.h>

typedef struct wfi_cuda_driver {
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int length, int device);
    int (*device_address)(char *address, int length, int device); /* on PCI: "0000:17:00.0" */
    int (*device_memory)(size_t *total, int device);
    int (*device_uuid)(uint8_t uuid[16], int device);
    int (*primary_context)(void **context, int device); /* retains it */
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*error_text)(int error, const char **text);
    int (*memory_alloc)(uint64_t *at, size_t size);
    int (*memory_free)(uint64_t at);
    int (*memory_info)(size_t *free, size_t *total); /* of the context's device */
    int (*pinned_alloc)(void **at, size_t size, unsigned flags);
    int (*pinned_free)(void *at);
    /* These three return when the copy is queued. Nothing is certain for host memory that is not page-locked. */
    int (*copy_to_device)(uint64_t to, const void *from, size_t size, void *stream);
    int (*copy_to_host)(void *to, uint64_t from, size_t size, void *stream);
    int (*copy_within)(uint64_t to, uint64_t from, size_t size, void *stream);
    int (*copy_peer)(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t size, void *stream);
    int (*peer_possible)(int *possible, int device, int peer);
    int (*peer_enable)(void *peer_context, unsigned flags); /* of the context that is current, to that one's memory */
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream); /* 0: idle; WFI_CUDA_NOT_READY */
    int (*stream_wait)(void *stream);
    int (*stream_context)(void *stream, void **context);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event); /* 0: done; WFI_CUDA_NOT_READY */
    int (*event_wait)(void *event);
    int (*launch_host)(void *stream, void (*function)(void *argument), void *argument);
    int (*module_load)(void **module, const void *image);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
} wfi_cuda_driver;

enum { /* errors that weft tells from others */
       WFI_CUDA_OUT_OF_MEMORY = 2,
       WFI_CUDA_DEINITIALIZED = 4, /* the process is ending */
       WFI_CUDA_NO_DEVICE = 100,
       WFI_CUDA_INVALID_IMAGE = 200, /* these four: the kernels in weft are not for this GPU or driver */
       WFI_CUDA_NO_BINARY_FOR_GPU = 209,
       WFI_CUDA_INVALID_PTX = 218,
       WFI_CUDA_UNSUPPORTED_PTX_VERSION = 222,
       WFI_CUDA_NOT_READY = 600,
       WFI_CUDA_PEER_ALREADY_ENABLED = 704,
};

/* The driver, loaded and initialized by the first call. NULL: there is none, or it does not work; wfi_cuda_check tells
 * why. */
const wfi_cuda_driver *wfi_cuda_driver_get(void);

#endif
