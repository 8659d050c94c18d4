/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload.h - copies from the program's memory to a device, through page-locked pieces.
 *
 * The driver promises nothing for a copy from memory that is not page-locked. It may read the bytes before the call
 * returns, or while the stream works ("API synchronization behavior" of the CUDA driver API). But weft lets the caller
 * change the bytes at once, so they are first copied to page-locked memory: 32 pieces of 256 KiB for each device. These
 * are taken at the first copy and kept until the process ends. An event tells when the device has read a piece.
 */
#ifndef WFI_MEM_UPLOAD_H
#define WFI_MEM_UPLOAD_H

#include <stddef.h>
#include <stdint.h>

/* Queues the copy on the driver's stream `stream` of `device`, whose context is current. `from` may be changed when
 * it returns. It waits only for pieces that the device has not read yet; other copies to the same device then wait
 * too. Returns an error of the driver. Any thread. */
int wfi_upload(int device, uint64_t to, const void *from, size_t size, void *stream);

#endif
