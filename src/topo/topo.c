/* SPDX-License-Identifier: Apache-2.0 */
/* topo.c - see topo.h. The topology is loaded once and never changes, so reading it needs no lock. */
#include "topo/topo.h"

#include "base/env.h"
#include "base/log.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static struct {
    hwloc_topology_t topology; /* NULL: hwloc failed; then nothing is known and nothing is bound */
    bool no_binding;
} topo;
static pthread_once_t topo_once = PTHREAD_ONCE_INIT;

static void topo_load(void)
{
    hwloc_topology_t topology;
    weft_error *error = NULL;
    if (wfi_env_bool("WEFT_NO_BINDING", &topo.no_binding, &error) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "%s", weft_error_message(error));
        weft_error_unref(error);
    }
    if (hwloc_topology_init(&topology) != 0)
        return;
    /* All devices: a GPU or interface is found below some core set even where hwloc would hide its bridge. */
    (void)hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology) != 0) {
        wfi_log(WEFT_LOG_WARN, "hwloc could not read this machine's topology");
        hwloc_topology_destroy(topology);
        return;
    }
    topo.topology = topology;
}

static hwloc_topology_t topology_get(void)
{
    pthread_once(&topo_once, topo_load);
    return topo.topology;
}

static hwloc_const_bitmap_t bitmap(const wfi_cores *cores)
{
    return (hwloc_const_bitmap_t)cores;
}

/* cgroup v2: "quota period" or "max period". 0 if there is none. */
static int quota_cores(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file == NULL)
        return 0;
    char line[64], *rest = line;
    bool any = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    long long quota = any ? strtoll(line, &rest, 10) : 0, period = any ? strtoll(rest, NULL, 10) : 0;
    if (quota <= 0 || period <= 0 || quota / period > 1 << 20)
        return 0;
    return (int)((quota + period - 1) / period);
}

static int affinity_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

int wfi_topo_cores_usable(void)
{
    hwloc_topology_t topology = topology_get();
    int count = affinity_cores();
    if (topology != NULL && !hwloc_topology_is_thissystem(topology)) /* a described machine, not this one */
        count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    int quota = quota_cores();
    if (quota > 0 && quota < count)
        count = quota;
    return count > 0 ? count : 1;
}

/* A copy of the cores nearest to `object`; NULL if that is all cores, which says nothing. */
static wfi_cores *cores_near(hwloc_topology_t topology, hwloc_obj_t object)
{
    hwloc_obj_t near = object->cpuset != NULL ? object : hwloc_get_non_io_ancestor_obj(topology, object);
    if (near == NULL || near->cpuset == NULL || hwloc_bitmap_iszero(near->cpuset))
        return NULL;
    if (hwloc_bitmap_isequal(near->cpuset, hwloc_topology_get_topology_cpuset(topology)))
        return NULL;
    return (wfi_cores *)hwloc_bitmap_dup(near->cpuset);
}

wfi_cores *wfi_topo_near_interface(const char *name)
{
    hwloc_topology_t topology = topology_get();
    if (topology == NULL || name == NULL)
        return NULL;
    for (hwloc_obj_t device = hwloc_get_next_osdev(topology, NULL); device != NULL;
         device = hwloc_get_next_osdev(topology, device)) {
        bool network = device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK ||
                       device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        if (network && device->name != NULL && strcmp(device->name, name) == 0)
            return cores_near(topology, device);
    }
    return NULL;
}

/* hwloc names CUDA devices "cuda0" and, where only the driver's library is seen, "nvml0". */
static bool is_gpu(hwloc_obj_t device, int index)
{
    char cuda[32], nvml[32];
    snprintf(cuda, sizeof(cuda), "cuda%d", index);
    snprintf(nvml, sizeof(nvml), "nvml%d", index);
    return device->name != NULL && (strcmp(device->name, cuda) == 0 || strcmp(device->name, nvml) == 0);
}

wfi_cores *wfi_topo_near_gpu(int index)
{
    hwloc_topology_t topology = topology_get();
    if (topology == NULL)
        return NULL;
    for (hwloc_obj_t device = hwloc_get_next_osdev(topology, NULL); device != NULL;
         device = hwloc_get_next_osdev(topology, device)) {
        if (is_gpu(device, index))
            return cores_near(topology, device);
    }
    return NULL;
}

wfi_cores *wfi_topo_near_numa_node(int node)
{
    hwloc_topology_t topology = topology_get();
    if (topology == NULL || node < 0)
        return NULL;
    hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)node);
    return object != NULL ? cores_near(topology, object) : NULL;
}

void wfi_cores_destroy(wfi_cores *cores)
{
    if (cores != NULL)
        hwloc_bitmap_free((hwloc_bitmap_t)cores);
}

int wfi_cores_count(const wfi_cores *cores)
{
    return cores != NULL ? hwloc_bitmap_weight(bitmap(cores)) : 0;
}

int wfi_cores_numa_node(const wfi_cores *cores)
{
    hwloc_topology_t topology = topology_get();
    if (cores == NULL || topology == NULL || hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2)
        return -1;
    hwloc_bitmap_t shared = hwloc_bitmap_alloc();
    if (shared == NULL)
        return -1;
    int best = -1, most = 0;
    for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, NULL); node != NULL;
         node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) {
        hwloc_bitmap_and(shared, bitmap(cores), node->cpuset);
        if (hwloc_bitmap_weight(shared) > most) {
            most = hwloc_bitmap_weight(shared);
            best = (int)node->os_index;
        }
    }
    hwloc_bitmap_free(shared);
    return best;
}

bool wfi_topo_bind_thread(const wfi_cores *cores, int threads)
{
    hwloc_topology_t topology = topology_get();
    bool sensible = cores != NULL && topology != NULL && !topo.no_binding && wfi_cores_count(cores) >= threads;
    if (!sensible || !hwloc_topology_is_thissystem(topology))
        return false;
    return hwloc_set_cpubind(topology, bitmap(cores), HWLOC_CPUBIND_THREAD) == 0;
}

void wfi_topo_prefer_numa_node(void *data, size_t size, int node)
{
    hwloc_topology_t topology = topology_get();
    if (topology == NULL || node < 0 || size == 0 || !hwloc_topology_is_thissystem(topology))
        return;
    hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)node);
    if (object != NULL)
        (void)hwloc_set_area_membind(topology, data, size, object->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET);
}
