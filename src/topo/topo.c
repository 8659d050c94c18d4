/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topo.c - see topo.h. The topology is loaded once and never changes, so reading it needs no lock.
 *
 * A separate thread loads hwloc. The opening of an agent waits for that thread for at most wfi_topo_load_ms, so it does
 * not hang if a plugin, a file or a driver does. A topology that is loaded later is used from then on.
 */
#include "topo/topo.h"

#include "base/env.h"
#include "base/error.h"
#include "base/text/log.h"
#include "base/thread.h"

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t wfi_topo_load_ms = 5000;

static struct {
    _Atomic(hwloc_topology_t) topology; /* NULL: not there (yet); then nothing is known and nothing is bound */
    bool no_binding;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_done; /* [lock] loading has ended, with or without success */
} topo = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
static pthread_once_t topo_once = PTHREAD_ONCE_INIT;

/*
 * Switches off components of hwloc that weft does not need: "gl" contacts X servers on twenty ports, the others start
 * GPU drivers. hwloc still maps their files into memory, but does not run their discovery, even if HWLOC_COMPONENTS
 * names them. Network devices and PCI devices come from "linux" and "pci".
 */
static void switch_off_components(hwloc_topology_t topology)
{
    static const char *const names[] = {"gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) /* one that this hwloc does not have: EINVAL */
        (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
}

/* `path`: hwloc's XML, or NULL for this machine. Returns NULL with *errnum, an errno value. */
static hwloc_topology_t load(const char *path, int *errnum)
{
    hwloc_topology_t topology;
    *errnum = ENOMEM;
    if (hwloc_topology_init(&topology) != 0)
        return NULL;
    switch_off_components(topology);
    /* Keeps devices and bridges. If hwloc omits a bridge, its devices are below the next object, which has cores. */
    (void)hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    errno = 0;
    if ((!path || hwloc_topology_set_xml(topology, path) == 0) && hwloc_topology_load(topology) == 0)
        return topology;
    *errnum = errno ? errno : EINVAL;
    hwloc_topology_destroy(topology);
    return NULL;
}

static void *loader(void *arg)
{
    int errnum;
    hwloc_topology_t loaded = load(NULL, &errnum);
    (void)arg;
    if (!loaded)
        wfi_log(WEFT_LOG_WARN, "hwloc could not read this machine's topology: %s", strerror(errnum));
    atomic_store(&topo.topology, loaded);
    pthread_mutex_lock(&topo.lock);
    topo.is_done = true;
    pthread_cond_signal(&topo.ended);
    pthread_mutex_unlock(&topo.lock);
    return NULL;
}

static bool start_loader(void)
{
    pthread_t thread;
    bool started = wfi_thread_start(&thread, loader, NULL, "weft-topology") == 0;
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
    int errnum = 0;
    pthread_mutex_lock(&topo.lock);
    while (!topo.is_done && errnum != ETIMEDOUT)
        errnum = pthread_cond_clockwait(&topo.ended, &topo.lock, CLOCK_MONOTONIC, &until);
    bool is_done = topo.is_done;
    pthread_mutex_unlock(&topo.lock);
    return is_done;
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

const wfi_topology *wfi_topology_here(void)
{
    return (const wfi_topology *)topology_get();
}

weft_status wfi_topology_open_file(const char *path, wfi_topology **out, weft_error **error)
{
    int errnum;
    FILE *file = fopen(path, "re"); /* hwloc does not say whether it could read the file */
    if (!file)
        return wfi_error_fail(error, WEFT_ERR_NOT_FOUND, "topology \"%s\": %s", path, strerror(errno));
    fclose(file);
    hwloc_topology_t topology = load(path, &errnum);
    if (!topology && errnum == ENOMEM)
        return WEFT_ERR_MEMORY;
    if (!topology)
        return wfi_error_fail(error, WEFT_ERR_FORMAT,
                              "topology \"%s\" is not hwloc's XML: write one with \"lstopo FILE.xml\"", path);
    *out = (wfi_topology *)topology;
    return WEFT_OK;
}

void wfi_topology_close(wfi_topology *topology)
{
    if (topology)
        hwloc_topology_destroy((hwloc_topology_t)topology);
}

/* ---- Cores ------------------------------------------------------------------------------------------------------ */

static hwloc_topology_t hwloc_of(const wfi_topology *topology) /* hwloc declares no topology const */
{
    return (hwloc_topology_t)topology;
}

static hwloc_const_bitmap_t bitmap(const wfi_cores *cores)
{
    return (hwloc_const_bitmap_t)cores;
}

wfi_cores *wfi_cores_allowed(const wfi_topology *topology)
{
    hwloc_bitmap_t set = topology ? hwloc_bitmap_alloc() : NULL;
    if (!set)
        return NULL;
    bool is_bound = hwloc_topology_is_thissystem(hwloc_of(topology)) &&
                    hwloc_get_cpubind(hwloc_of(topology), set, HWLOC_CPUBIND_THREAD) == 0;
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(hwloc_of(topology));
    int failed = is_bound ? hwloc_bitmap_and(set, set, allowed) : hwloc_bitmap_copy(set, allowed);
    if (!failed)
        return (wfi_cores *)set;
    hwloc_bitmap_free(set);
    return NULL;
}

wfi_cores *wfi_cores_parse(const wfi_topology *topology, const char *list)
{
    hwloc_bitmap_t set =
        topology && list[0] && strspn(list, "0123456789,-") == strlen(list) ? hwloc_bitmap_alloc() : NULL;
    if (!set)
        return NULL;
    if (hwloc_bitmap_list_sscanf(set, list) == 0 &&
        hwloc_bitmap_and(set, set, hwloc_topology_get_topology_cpuset(hwloc_of(topology))) == 0 &&
        !hwloc_bitmap_iszero(set))
        return (wfi_cores *)set;
    hwloc_bitmap_free(set);
    return NULL;
}

void wfi_cores_destroy(wfi_cores *cores)
{
    if (cores)
        hwloc_bitmap_free((hwloc_bitmap_t)cores);
}

int wfi_cores_count(const wfi_cores *cores)
{
    return cores ? hwloc_bitmap_weight(bitmap(cores)) : 0;
}

void wfi_cores_text(const wfi_cores *cores, char *out, size_t room)
{
    out[0] = '\0';
    if (cores)
        (void)hwloc_bitmap_list_snprintf(out, room, bitmap(cores));
}

int wfi_cores_numa_node(const wfi_cores *cores)
{
    hwloc_topology_t topology = topology_get();
    if (!cores || !topology || hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2)
        return -1;
    hwloc_bitmap_t shared = hwloc_bitmap_alloc();
    if (!shared)
        return -1;
    int best = -1, most = 0;
    for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, NULL); node;
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

size_t wfi_topology_nodes(const wfi_topology *topology, wfi_numa_node *out, size_t room)
{
    size_t count = 0;
    hwloc_obj_t node = NULL;
    while (topology && (node = hwloc_get_next_obj_by_type(hwloc_of(topology), HWLOC_OBJ_NUMANODE, node))) {
        if (count < room) {
            out[count] = (wfi_numa_node){.node = (int)node->os_index, .memory = node->attr->numanode.local_memory};
            (void)hwloc_bitmap_list_snprintf(out[count].cores, sizeof(out[count].cores), node->cpuset);
        }
        count++;
    }
    return count;
}

bool wfi_topo_bind_thread(const wfi_cores *cores, int threads)
{
    hwloc_topology_t topology = topology_get();
    bool sensible = cores && topology && !topo.no_binding && wfi_cores_count(cores) >= threads;
    if (!sensible || !hwloc_topology_is_thissystem(topology))
        return false;
    return hwloc_set_cpubind(topology, bitmap(cores), HWLOC_CPUBIND_THREAD) == 0;
}
