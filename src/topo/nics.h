/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nics.h - the network devices and GPUs of a machine, by PCI class, and the order in which a process should use its
 * network devices. Any thread may call. Nothing here looks at the machine: the topology and the place say everything,
 * so tests run it on described machines.
 */
#ifndef WFI_NICS_H
#define WFI_NICS_H

#include "topo/topo.h"

/* Where a network device is, seen from a process: the reason for its position. In order of preference; REMOTE and
 * UNKNOWN count the same. */
typedef enum wfi_nic_reach {
    WFI_NIC_SAME_SWITCH = 0,  /* it shares a PCI switch with the process's GPU */
    WFI_NIC_SAME_NODE = 1,    /* of a NUMA node of the process's cores */
    WFI_NIC_SAME_PACKAGE = 2, /* of another NUMA node, on a package of the process's cores */
    WFI_NIC_REMOTE = 3,       /* of another package */
    WFI_NIC_UNKNOWN = 4,      /* on PCI, without locality */
    WFI_NIC_VIRTUAL = 5,      /* not on PCI (bridges, bonds, veth), or unknown to hwloc */
    WFI_NIC_LOOPBACK = 6,
    WFI_NIC_NO_DRIVER = 7, /* on PCI, without a device of the system */
} wfi_nic_reach;

#define WFI_PCI_TEXT_MAX 16 /* bytes of "0000:17:00.0" with the NUL */

typedef struct wfi_nic {
    char iface[64]; /* "eth0", "ib0"; "": none */
    char verbs[64]; /* the device of verbs: "mlx5_0"; "": none */
    char pci[WFI_PCI_TEXT_MAX];
    char model[64]; /* hwloc's name of the device, or "15b3:1017" */
    int node;       /* its NUMA node, by the system's number; -1: unknown, or several */
    wfi_nic_reach reach;
} wfi_nic;

typedef struct wfi_gpu {
    char pci[WFI_PCI_TEXT_MAX];
    char model[64];
    int node;
} wfi_gpu;

/* The process that chooses. */
typedef struct wfi_place {
    const wfi_cores *cores; /* that it may use; NULL: all */
    const char *gpu;        /* the PCI address of its GPU; NULL: none */
    int rank;               /* the process's rank on this machine; selects one of equally near devices */
} wfi_place;

/*
 * Lists the network devices in the order in which the process should use them. Equally near devices of one model are
 * rotated by the rank, so that the ranks of a machine use all of them. The others keep the order of PCI. Returns the
 * number of devices. Returns 0 if memory is out, or if topology is NULL. Release *out with free().
 */
size_t wfi_nics_list(const wfi_topology *topology, const wfi_place *place, wfi_nic **out);
/* The same for GPUs, in the order of PCI. */
size_t wfi_gpus_list(const wfi_topology *topology, wfi_gpu **out);

/*
 * Chooses one of `count` GPUs by their PCI addresses: among those that are nearest to `cores` (NULL: all cores), number
 * `rank` modulo how many these are. If the topology does not know their places, or is NULL, all are equally near.
 * Returns the index in `addresses`; 0 if memory is out.
 */
size_t wfi_gpus_nearest(const wfi_topology *topology, const wfi_cores *cores, const char *const *addresses,
                        size_t count, int rank);

/* A candidate in its new position. */
typedef struct wfi_nic_choice {
    size_t index; /* in `names` */
    wfi_nic_reach reach;
} wfi_nic_choice;

/*
 * Orders candidates, such as the domains that libfabric offers: names of interfaces ("ib0"), devices of verbs
 * ("mlx5_0", also with an ending: "mlx5_0-xrc"), or PCI addresses. Writes `count` choices. Names of one device stay
 * together, and names whose locality is unknown keep their order. topology NULL: the order does not change.
 */
void wfi_nics_order(const wfi_topology *topology, const wfi_place *place, const char *const *names, size_t count,
                    wfi_nic_choice *out);

/* "shares a PCI switch with the GPU": for logs and errors. */
const char *wfi_nic_reach_text(wfi_nic_reach reach);

/*
 * Returns those of `cores` that belong to the NUMA nodes of a device, for threads that use the device. Returns NULL if
 * binding is useless: all cores are on one node, the device is unknown, it is near all of the cores or none. Also
 * returns NULL if memory is out.
 */
wfi_cores *wfi_nic_cores(const wfi_topology *topology, const wfi_cores *cores, const char *name);

#endif
