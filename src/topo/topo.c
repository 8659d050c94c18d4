/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo.c - see topo.h. The topology is loaded once and never changes, so reading it needs no lock.
 *
 * hwloc is loaded on a thread of its own, which is waited for wfi_topo_load_ms: whatever hangs there (a plugin, a file, a
 * driver) does not hang the opening of an agent. A topology that comes later is used from then on.
 */
#include "topo/topo.h"

#include "base/env.h"
#include "base/text/log.h"

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t wfi_topo_load_ms = 5000;

static struct {
    _Atomic(hwloc_topology_t) topology; /* NULL: not there (yet); then nothing is known and nothing is bound */
    bool no_binding;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_over; /* [lock] the loading, well or not */
} topo = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
static pthread_once_t topo_once = PTHREAD_ONCE_INIT;

/*
 * Components that ask drivers and servers what weft does not need to know: "gl" looks for X servers on twenty ports, "opencl" and
 * the others start the drivers of GPUs. hwloc still maps their files into memory, but none of their discovery runs, whatever
 * HWLOC_COMPONENTS says. Network devices and what is on PCI come from "linux" and "pci".
 */
static void switch_off_components(hwloc_topology_t topology)
{
    static const char *const names[] = {"gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) /* one that this hwloc does not have: EINVAL */
        (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
}

static hwloc_topology_t load(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return NULL;
    switch_off_components(topology);
    /* All devices: a GPU or interface is found below some core set even where hwloc would hide its bridge. */
    (void)hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology) == 0)
        return topology;
    wfi_log(WEFT_LOG_WARN, "hwloc could not read this machine's topology");
    hwloc_topology_destroy(topology);
    return NULL;
}

static void *loader(void *arg)
{
    (void)arg;
    atomic_store(&topo.topology, load());
    pthread_mutex_lock(&topo.lock);
    topo.is_over = true;
    pthread_cond_signal(&topo.ended);
    pthread_mutex_unlock(&topo.lock);
    return NULL;
}

static bool start_loader(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, loader, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

/* False: it is not over after wfi_topo_load_ms. */
static bool await_loader(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t until_ns = until.tv_nsec + wfi_topo_load_ms % 1000 * 1000000;
    until.tv_sec += wfi_topo_load_ms / 1000 + until_ns / 1000000000;
    until.tv_nsec = until_ns % 1000000000;
    int trouble = 0;
    pthread_mutex_lock(&topo.lock);
    while (!topo.is_over && trouble != ETIMEDOUT)
        trouble = pthread_cond_clockwait(&topo.ended, &topo.lock, CLOCK_MONOTONIC, &until);
    bool is_over = topo.is_over;
    pthread_mutex_unlock(&topo.lock);
    return is_over;
}

static void topo_load(void)
{
    weft_error *error = NULL;
    if (wfi_env_bool("WEFT_NO_BINDING", &topo.no_binding, &error) != WEFT_OK) {
        wfi_log(WEFT_LOG_ERROR, "%s", weft_error_message(error));
        weft_error_unref(error);
    }
    if (!start_loader())
        wfi_log(WEFT_LOG_WARN, "no thread could be started to read this machine's topology: nothing is bound to cores");
    else if (!await_loader())
        wfi_log(WEFT_LOG_WARN, "hwloc has not read this machine's topology within %lld ms: weft goes on without it",
                (long long)wfi_topo_load_ms);
}

static hwloc_topology_t topology_get(void)
{
    pthread_once(&topo_once, topo_load);
    return atomic_load(&topo.topology);
}

static hwloc_const_bitmap_t bitmap(const wfi_cores *cores)
{
    return (hwloc_const_bitmap_t)cores;
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
