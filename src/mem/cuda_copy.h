/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_copy.h - copies to a device, from the host or from another device. */
#ifndef WFI_MEM_CUDA_COPY_H
#define WFI_MEM_CUDA_COPY_H

#include "mem/mem.h"

/* Queues the copy on the stream of this thread for `to_device`, or, from another device, on that one's and in order
 * with it. The host's bytes may be changed when it returns. It waits if the host's memory is page-locked, or if many
 * copies to the device are not done yet. Any thread. WEFT_ERR_UNSUPPORTED, WEFT_ERR_MEMORY, WEFT_ERR_SYSTEM. */
weft_status wfi_cuda_copy(int to_device, void *to, wfi_memory_kind from_kind, int from_device, const void *from,
                          size_t size);

#endif
