/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - the NUMA node that this process prefers for the memory it sends from. Any thread may call. */
#ifndef WFI_TOPO_MEMORY_H
#define WFI_TOPO_MEMORY_H

#include <stddef.h>

/* Prefers the node of the process's network device (wfi_cores_numa_node); -1: none. The first node set stays. */
void wfi_numa_set_preferred(int node);
/*
 * Asks the kernel to take the pages of a fresh mapping from that node when they are first touched. If the node is full,
 * they come from another one. If the kernel does not allow it, nothing happens.
 */
void wfi_numa_place(void *data, size_t size);

#endif
