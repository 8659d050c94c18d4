/* SPDX-License-Identifier: Apache-2.0 */
/* topo_node.h - the description of a GPU node as hwloc's XML (version 2), for tests on machines that are none. */
#ifndef TOPO_NODE_H
#define TOPO_NODE_H

#include <stdio.h>

/*
 * Writes a node of `sockets` packages: package s has one NUMA node s, `cores` cores, and one PCI bridge with the GPU
 * "cuda<s>" (also "nvml<s>"), the InfiniBand device "mlx5_<s>" and its interface "ib<s>".
 */
void topo_node_write(FILE *to, int sockets, int cores);

#endif
