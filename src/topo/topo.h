/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo.h - which cores, NUMA nodes, network interfaces and GPUs are near each other, and binding threads accordingly.
 *
 * hwloc is called once, at first use; HWLOC_XMLFILE and HWLOC_SYNTHETIC make it describe another machine. Its
 * components that would start GPU drivers or connect to X servers are switched off, so GPUs have numbers only in such
 * described machines.
 *
 * LOCKING. Any thread may call; the topology never changes once it has been loaded. LIFETIME. The topology stays
 * until the process ends; a wfi_cores belongs to its receiver.
 */
#ifndef WFI_TOPO_H
#define WFI_TOPO_H

#include <weft/status.h>

/*
 * How long the first caller waits for hwloc; after that the topology is unknown until hwloc is done. Tests change it
 * before the first call.
 */
extern int64_t wfi_topo_load_ms;

/* Where something is: an opaque set of cores, as hwloc's bitmap; NULL where nothing is known. */
typedef struct wfi_cores wfi_cores;

/* NULL out of memory, or if no such device is known, or all cores are as near. By name ("eth0", "mlx5_0") or number. */
wfi_cores *wfi_topo_near_interface(const char *name);
wfi_cores *wfi_topo_near_gpu(int index);
wfi_cores *wfi_topo_near_numa_node(int node);
void wfi_cores_destroy(wfi_cores *cores);
int wfi_cores_count(const wfi_cores *cores); /* 0 for NULL */
/* The NUMA node that most of the cores belong to, by the system's number; -1 for NULL or if there is but one. */
int wfi_cores_numa_node(const wfi_cores *cores);

/*
 * Binds the calling thread to `cores` if that helps: not with WEFT_NO_BINDING set, not for NULL, and not if there are
 * fewer cores than `threads`, the number of busy threads that are to live there (two pollers on one core fare worse than
 * unbound). Says whether it did.
 */
bool wfi_topo_bind_thread(const wfi_cores *cores, int threads);

/* Asks that pages of this range come from that node, when first touched. A wish: failing is not an error. node -1: none. */
void wfi_topo_prefer_numa_node(void *data, size_t size, int node);

#endif
