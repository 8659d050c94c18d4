/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo.h - which cores and NUMA nodes this machine has, which of them this process may use, and binding threads.
 * topo/nics.h has its network devices.
 *
 * hwloc is called once, at first use; HWLOC_XMLFILE and HWLOC_SYNTHETIC make it describe another machine. Its
 * components that would start GPU drivers or connect to X servers are switched off: GPUs are known by their PCI class.
 *
 * LOCKING. Any thread may call; a topology never changes once it has been loaded. LIFETIME. The topology of this
 * machine stays until the process ends; a wfi_cores belongs to its receiver.
 */
#ifndef WFI_TOPO_H
#define WFI_TOPO_H

#include <weft/status.h>

/*
 * How long the first caller waits for hwloc; after that the topology is unknown until hwloc is done. Tests change it
 * before the first call.
 */
extern int64_t wfi_topo_load_ms;

typedef struct wfi_topology wfi_topology; /* opaque: hwloc's topology */
typedef struct wfi_cores wfi_cores;       /* opaque: a set of cores, as hwloc's bitmap */

/* Returns NULL if the topology is not known (yet). */
const wfi_topology *wfi_topology_here(void);
/*
 * Loads a description of a machine, in hwloc's XML (lstopo FILE.xml). The caller waits as long as that takes.
 * WEFT_ERR_NOT_FOUND (the file cannot be read), WEFT_ERR_FORMAT, WEFT_ERR_MEMORY; *error names the file.
 */
weft_status wfi_topology_open_file(const char *path, wfi_topology **out, weft_error **error);
void wfi_topology_close(wfi_topology *topology); /* not for the topology of this machine */

/*
 * Returns the cores that the calling thread may use: on this machine its affinity, in a file all that the file allows.
 * NULL: out of memory, or topology is NULL.
 */
wfi_cores *wfi_cores_allowed(const wfi_topology *topology);
/* Reads a list such as "0-3,8", and drops cores that the topology lacks. NULL: no such list, or no core left. */
wfi_cores *wfi_cores_parse(const wfi_topology *topology, const char *list);
void wfi_cores_destroy(wfi_cores *cores);
int wfi_cores_count(const wfi_cores *cores);                         /* 0 for NULL */
void wfi_cores_text(const wfi_cores *cores, char *out, size_t room); /* a list such as "0-3,8"; "" for NULL */
/* The NUMA node of this machine that most of the cores belong to, by the system's number; -1 for NULL or if there is
 * but one. */
int wfi_cores_numa_node(const wfi_cores *cores);

typedef struct wfi_numa_node {
    int node;        /* the system's number */
    uint64_t memory; /* bytes; 0: not known */
    char cores[256]; /* as a list, perhaps cut short */
} wfi_numa_node;

/* Writes up to `room` NUMA nodes, and returns how many there are. */
size_t wfi_topology_nodes(const wfi_topology *topology, wfi_numa_node *out, size_t room);

/* wfi_nic_cores (nics.h) on this machine, of the cores that the calling thread may use. */
wfi_cores *wfi_topo_near_interface(const char *name);
/* The same for the RDMA device (InfiniBand, RoCE) that is nearest to the process with this rank on the machine. */
wfi_cores *wfi_topo_near_rdma(int local_rank);

/*
 * Binds the calling thread to `cores`, and returns whether it did. It does not if WEFT_NO_BINDING is set, if `cores` is
 * NULL, or if `cores` has fewer cores than `threads`, the number of busy threads that will be bound there. Two pollers
 * on one core are slower than unbound ones.
 */
bool wfi_topo_bind_thread(const wfi_cores *cores, int threads);

#endif
