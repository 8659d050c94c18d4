/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. It calls the kernel directly: hwloc would have to be loaded first. */
#include "topo/memory.h"

#include "base/text/log.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024 /* that Linux may have */
#define WORD_BITS (8 * sizeof(unsigned long))

static atomic_int preferred = -1;
static atomic_bool refused; /* said once; containers often forbid it */

void wfi_numa_set_preferred(int node)
{
    int none = -1;
    if (node >= 0 && node < NODES_MAX)
        (void)atomic_compare_exchange_strong(&preferred, &none, node);
}

void wfi_numa_place(void *data, size_t size)
{
    int node = atomic_load_explicit(&preferred, memory_order_relaxed);
    if (node < 0 || atomic_load_explicit(&refused, memory_order_relaxed))
        return;
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    nodes[(size_t)node / WORD_BITS] = 1ul << ((size_t)node % WORD_BITS);
    if (syscall(SYS_mbind, data, size, MPOL_PREFERRED, nodes, NODES_MAX + 1ul, 0u) != 0 &&
        !atomic_exchange(&refused, true))
        wfi_log(WEFT_LOG_DEBUG, "memory is not placed on NUMA node %d: mbind: %s", node, strerror(errno));
}
