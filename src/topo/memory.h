/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - the NUMA node that this process prefers for the memory it sends from. Any thread may call. */
#ifndef WFI_TOPO_MEMORY_H
#define WFI_TOPO_MEMORY_H

#include <stddef.h>

/* Names the node of the process's network device (wfi_cores_numa_node); -1: none. The first named node counts. */
void wfi_memory_wish(int node);
/*
 * Asks that the pages of a fresh mapping come from the named node when they are first touched. A wish: if that node is
 * full they come from another one, and where the kernel does not allow it, nothing happens.
 */
void wfi_memory_place(void *data, size_t size);

#endif
