/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nics.c - see nics.h. A device's locality is the set of NUMA nodes of the nearest object above it that has cores. Sets
 * of nodes are compared, and not sets of cores, because the object may be a cache. hwloc's complete sets are compared:
 * they also contain what a container hides.
 */
#include "topo/nics.h"

#include "base/alloc.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCI_NETWORK 0x02 /* base classes */
#define PCI_DISPLAY 0x03

/* A network device, or a candidate. */
typedef struct device {
    hwloc_obj_t pci;   /* NULL: not on PCI */
    hwloc_obj_t iface; /* the devices of the system; NULL: none */
    hwloc_obj_t verbs;
    size_t index; /* in the given order */
    wfi_nic_reach reach;
    int depth;     /* of the PCI switch that it shares with the GPU; 0: none */
    size_t group;  /* the index of the first device that is as near and of the same model */
    size_t number; /* position within its group; two names of one device share it */
    size_t turned; /* `number`, rotated by the rank */
    bool is_first; /* no earlier entry is the same device */
} device;

/* Read-only, for all devices. */
typedef struct nic_view {
    hwloc_topology_t topology;
    hwloc_bitmap_t nodes;    /* of the process's cores */
    hwloc_bitmap_t packages; /* the complete sets of nodes of their packages */
    hwloc_obj_t gpu;
    int rank;
} nic_view;

static hwloc_topology_t hwloc_of(const wfi_topology *topology) /* hwloc declares no topology const */
{
    return (hwloc_topology_t)topology;
}

/* ---- What a device is ------------------------------------------------------------------------------------------- */

static bool is_pci(hwloc_obj_t object, int base_class)
{
    return object->type == HWLOC_OBJ_PCI_DEVICE && object->attr->pcidev.class_id >> 8 == base_class;
}

static bool is_iface(hwloc_obj_t object)
{
    return object->type == HWLOC_OBJ_OS_DEVICE && object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK;
}

static bool is_verbs(hwloc_obj_t object)
{
    return object->type == HWLOC_OBJ_OS_DEVICE && object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
}

static hwloc_obj_t pci_of(hwloc_obj_t object)
{
    while (object && object->type != HWLOC_OBJ_PCI_DEVICE)
        object = object->parent;
    return object;
}

static void pci_text(hwloc_obj_t pci, char out[WFI_PCI_TEXT_MAX])
{
    const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
    snprintf(out, WFI_PCI_TEXT_MAX, "%04x:%02x:%02x.%01x", at->domain, at->bus, at->dev, at->func);
}

static void model_text(hwloc_obj_t pci, char *out, size_t room)
{
    if (pci->name && pci->name[0])
        snprintf(out, room, "%s", pci->name);
    else
        snprintf(out, room, "%04x:%04x", pci->attr->pcidev.vendor_id, pci->attr->pcidev.device_id);
}

static bool same_model(hwloc_obj_t a, hwloc_obj_t b)
{
    return a->attr->pcidev.vendor_id == b->attr->pcidev.vendor_id &&
           a->attr->pcidev.device_id == b->attr->pcidev.device_id;
}

/* The NUMA nodes of a device, with those that a container hides; NULL: its locality is not known. */
static hwloc_const_nodeset_t nodes_of(hwloc_topology_t topology, hwloc_obj_t object)
{
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, object);
    hwloc_const_nodeset_t nodes = near ? near->complete_nodeset : NULL;
    bool is_anywhere = !nodes || hwloc_bitmap_iszero(nodes) || (!near->parent && hwloc_bitmap_weight(nodes) > 1);
    return is_anywhere ? NULL : nodes;
}

static int node_of(hwloc_topology_t topology, hwloc_obj_t object)
{
    hwloc_const_nodeset_t nodes = nodes_of(topology, object);
    return nodes && hwloc_bitmap_weight(nodes) == 1 ? hwloc_bitmap_first(nodes) : -1;
}

/* ---- Where it is, seen from the process ------------------------------------------------------------------------- */

static hwloc_obj_t find_pci(hwloc_topology_t topology, const char *address)
{
    return address ? hwloc_get_pcidev_by_busidstring(topology, address) : NULL;
}

static bool open_view(const wfi_topology *topology, const wfi_place *place, nic_view *out)
{
    hwloc_topology_t here = hwloc_of(topology);
    hwloc_const_cpuset_t cores =
        place->cores ? (hwloc_const_cpuset_t)place->cores : hwloc_topology_get_allowed_cpuset(here);
    *out = (nic_view){here, hwloc_bitmap_alloc(), hwloc_bitmap_alloc(), find_pci(here, place->gpu), place->rank};
    bool ok = out->nodes && out->packages;
    for (hwloc_obj_t at = NULL; ok && (at = hwloc_get_next_obj_by_type(here, HWLOC_OBJ_NUMANODE, at));)
        if (hwloc_bitmap_intersects(at->cpuset, cores))
            ok = hwloc_bitmap_set(out->nodes, at->os_index) == 0;
    for (hwloc_obj_t at = NULL; ok && (at = hwloc_get_next_obj_by_type(here, HWLOC_OBJ_PACKAGE, at));)
        if (hwloc_bitmap_intersects(at->cpuset, cores))
            ok = hwloc_bitmap_or(out->packages, out->packages, at->complete_nodeset) == 0;
    return ok;
}

static void close_view(nic_view *view)
{
    hwloc_bitmap_free(view->nodes);
    hwloc_bitmap_free(view->packages);
}

static bool is_below(hwloc_obj_t object, hwloc_obj_t above)
{
    while (object && object != above)
        object = object->parent;
    return object != NULL;
}

/* The number of bridges above both devices, if the nearest one is a PCI switch; 0: they share a host bridge at most. */
static int shared_switch(hwloc_obj_t a, hwloc_obj_t b)
{
    int depth = 0;
    hwloc_obj_t shared = a->parent;
    while (shared->type == HWLOC_OBJ_BRIDGE && !is_below(b, shared))
        shared = shared->parent;
    if (shared->type != HWLOC_OBJ_BRIDGE || shared->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI)
        return 0;
    for (; shared->type == HWLOC_OBJ_BRIDGE; shared = shared->parent)
        depth++;
    return depth;
}

static wfi_nic_reach reach_of(const nic_view *view, hwloc_obj_t pci)
{
    hwloc_const_nodeset_t nodes = nodes_of(view->topology, pci);
    if (!nodes)
        return WFI_NIC_UNKNOWN;
    if (hwloc_bitmap_isincluded(nodes, view->nodes))
        return WFI_NIC_SAME_NODE;
    bool is_near = hwloc_bitmap_intersects(nodes, view->packages) || hwloc_bitmap_intersects(nodes, view->nodes);
    return is_near ? WFI_NIC_SAME_PACKAGE : WFI_NIC_REMOTE;
}

static void place_device(const nic_view *view, const char *name, device *one)
{
    if (!one->pci) {
        one->reach = name && strcmp(name, "lo") == 0 ? WFI_NIC_LOOPBACK : WFI_NIC_VIRTUAL;
        return;
    }
    one->depth = view->gpu ? shared_switch(view->gpu, one->pci) : 0;
    one->reach = !one->iface && !one->verbs ? WFI_NIC_NO_DRIVER
                 : one->depth               ? WFI_NIC_SAME_SWITCH
                                            : reach_of(view, one->pci);
}

/* ---- The order -------------------------------------------------------------------------------------------------- */

static bool is_alike(const device *a, const device *b)
{
    return a->reach == b->reach && a->depth == b->depth && same_model(a->pci, b->pci);
}

/* Groups the devices that are of one model and equally near, and rotates each group by the rank. */
static void turn(device *devices, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) {
        device *one = &devices[i], *same = NULL;
        bool may_turn = one->reach <= WFI_NIC_REMOTE;
        one->group = i;
        for (size_t j = 0; may_turn && !same && j < i; j++) {
            same = devices[j].pci == one->pci ? &devices[j] : NULL;
            if (!devices[j].is_first || !is_alike(one, &devices[j]))
                continue;
            one->group = devices[j].group;
            one->number++;
        }
        one->is_first = may_turn && !same;
        if (same)
            one->number = same->number;
    }
    for (size_t i = 0; i < count; i++) {
        size_t members = 0;
        for (size_t j = 0; j < count; j++)
            members += devices[j].is_first && devices[j].group == devices[i].group;
        if (members > 1)
            devices[i].turned = (devices[i].number + members - (size_t)rank % members) % members;
    }
}

/* Smaller: nearer. */
static int distance_of(wfi_nic_reach reach)
{
    return reach == WFI_NIC_UNKNOWN ? (int)WFI_NIC_REMOTE : (int)reach;
}

static int compare(const void *left, const void *right)
{
    const device *a = left, *b = right;
    int a_reach = distance_of(a->reach), b_reach = distance_of(b->reach);
    if (a_reach != b_reach)
        return a_reach < b_reach ? -1 : 1;
    if (a->depth != b->depth)
        return a->depth > b->depth ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->turned != b->turned)
        return a->turned < b->turned ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* False: out of memory. */
static bool arrange(const wfi_topology *topology, const wfi_place *place, const char *const *names, device *devices,
                    size_t count)
{
    nic_view view;
    bool ok = open_view(topology, place, &view);
    for (size_t i = 0; ok && i < count; i++)
        place_device(&view, names ? names[i] : NULL, &devices[i]);
    close_view(&view);
    if (ok && count > 0) {
        turn(devices, count, place->rank > 0 ? place->rank : 0);
        qsort(devices, count, sizeof(*devices), compare);
    }
    return ok;
}

/* ---- Finding devices -------------------------------------------------------------------------------------------- */

/* Whether a name is the device's, perhaps with an ending of libfabric's: "mlx5_0-xrc". */
static bool is_named(const char *device_name, const char *name)
{
    size_t size = device_name ? strlen(device_name) : 0;
    return size > 0 && strncmp(device_name, name, size) == 0 && (name[size] == '\0' || name[size] == '-');
}

/* If two devices match, the one with exactly this name is preferred. */
static hwloc_obj_t find_device(hwloc_topology_t topology, const char *name)
{
    hwloc_obj_t found = NULL;
    for (hwloc_obj_t at = NULL; (at = hwloc_get_next_osdev(topology, at));)
        if ((is_iface(at) || is_verbs(at)) && is_named(at->name, name) && (!found || strcmp(at->name, name) == 0))
            found = at;
    if (!found && strlen(name) < WFI_PCI_TEXT_MAX)
        found = find_pci(topology, name);
    return found;
}

/* One entry for each interface of a network device, or for the device if it has none. Returns the number of entries. */
static size_t list_pci(hwloc_topology_t topology, hwloc_obj_t pci, device *out, size_t at)
{
    device found = {.pci = pci, .index = at};
    size_t ifaces = 0;
    for (hwloc_obj_t child = NULL; (child = hwloc_get_next_osdev(topology, child));)
        if (is_verbs(child) && !found.verbs && pci_of(child) == pci)
            found.verbs = child;
    for (hwloc_obj_t child = NULL; (child = hwloc_get_next_osdev(topology, child));) {
        if (!is_iface(child) || pci_of(child) != pci)
            continue;
        found.iface = child;
        found.index = at + ifaces;
        out[at + ifaces++] = found;
    }
    if (ifaces > 0)
        return ifaces;
    out[at] = found;
    return found.verbs || is_pci(pci, PCI_NETWORK) ? 1 : 0;
}

static void describe(hwloc_topology_t topology, const device *one, wfi_nic *out)
{
    *out = (wfi_nic){.node = -1, .reach = one->reach};
    if (one->iface)
        snprintf(out->iface, sizeof(out->iface), "%s", one->iface->name);
    if (one->verbs)
        snprintf(out->verbs, sizeof(out->verbs), "%s", one->verbs->name);
    if (!one->pci)
        return;
    pci_text(one->pci, out->pci);
    model_text(one->pci, out->model, sizeof(out->model));
    out->node = node_of(topology, one->pci);
}

size_t wfi_nics_list(const wfi_topology *topology, const wfi_place *place, wfi_nic **out)
{
    hwloc_topology_t here = hwloc_of(topology);
    size_t room = 1, count = 0;
    *out = NULL;
    if (!topology)
        return 0;
    for (hwloc_obj_t at = NULL; (at = hwloc_get_next_pcidev(here, at));)
        room++;
    for (hwloc_obj_t at = NULL; (at = hwloc_get_next_osdev(here, at));)
        room++;
    device *devices = wfi_calloc(room, sizeof(*devices));
    for (hwloc_obj_t at = NULL; devices && (at = hwloc_get_next_pcidev(here, at));)
        count += list_pci(here, at, devices, count);
    for (hwloc_obj_t at = NULL; devices && (at = hwloc_get_next_osdev(here, at));)
        if (is_iface(at) && !pci_of(at)) {
            devices[count] = (device){.iface = at, .index = count};
            count++;
        }
    wfi_nic *nics =
        count > 0 && arrange(topology, place, NULL, devices, count) ? wfi_calloc(count, sizeof(*nics)) : NULL;
    for (size_t i = 0; nics && i < count; i++)
        describe(here, &devices[i], &nics[i]);
    free(devices);
    *out = nics;
    return nics ? count : 0;
}

size_t wfi_gpus_list(const wfi_topology *topology, wfi_gpu **out)
{
    hwloc_topology_t here = hwloc_of(topology);
    size_t room = 0, count = 0;
    *out = NULL;
    for (hwloc_obj_t at = NULL; topology && (at = hwloc_get_next_pcidev(here, at));)
        room += is_pci(at, PCI_DISPLAY);
    wfi_gpu *gpus = room > 0 ? wfi_calloc(room, sizeof(*gpus)) : NULL;
    for (hwloc_obj_t at = NULL; gpus && (at = hwloc_get_next_pcidev(here, at));) {
        if (!is_pci(at, PCI_DISPLAY))
            continue;
        pci_text(at, gpus[count].pci);
        model_text(at, gpus[count].model, sizeof(gpus[count].model));
        gpus[count++].node = node_of(here, at);
    }
    *out = gpus;
    return count;
}

void wfi_nics_order(const wfi_topology *topology, const wfi_place *place, const char *const *names, size_t count,
                    wfi_nic_choice *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (wfi_nic_choice){i, WFI_NIC_UNKNOWN};
    device *devices = topology && count > 0 ? wfi_calloc(count, sizeof(*devices)) : NULL;
    for (size_t i = 0; devices && i < count; i++) {
        hwloc_obj_t found = find_device(hwloc_of(topology), names[i]);
        devices[i] = (device){.pci = pci_of(found), .iface = found, .index = i};
    }
    if (devices && arrange(topology, place, names, devices, count))
        for (size_t i = 0; i < count; i++)
            out[i] = (wfi_nic_choice){devices[i].index, devices[i].reach};
    free(devices);
}

static int by_index(const void *a, const void *b)
{
    const wfi_nic_choice *left = a, *right = b;
    return left->index < right->index ? -1 : left->index > right->index;
}

/* The order of network devices also ranks other PCI devices. Of the nearest ones it takes their order in the list. */
size_t wfi_gpus_nearest(const wfi_topology *topology, const wfi_cores *cores, const char *const *addresses,
                        size_t count, int rank)
{
    wfi_nic_choice *order = count > 0 ? wfi_calloc(count, sizeof(*order)) : NULL;
    if (!order)
        return 0;
    wfi_nics_order(topology, &(wfi_place){.cores = cores}, addresses, count, order);
    size_t near = 1;
    while (near < count && distance_of(order[near].reach) == distance_of(order[0].reach))
        near++;
    qsort(order, near, sizeof(*order), by_index);
    size_t chosen = order[(rank > 0 ? (size_t)rank : 0) % near].index;
    free(order);
    return chosen;
}

const char *wfi_nic_reach_text(wfi_nic_reach reach)
{
    static const char *const texts[] = {
        [WFI_NIC_SAME_SWITCH] = "shares a PCI switch with the GPU",
        [WFI_NIC_SAME_NODE] = "on a NUMA node of the process",
        [WFI_NIC_SAME_PACKAGE] = "on a package of the process",
        [WFI_NIC_REMOTE] = "on another package",
        [WFI_NIC_UNKNOWN] = "on PCI, its NUMA node is not known",
        [WFI_NIC_VIRTUAL] = "not on PCI",
        [WFI_NIC_LOOPBACK] = "loopback",
        [WFI_NIC_NO_DRIVER] = "on PCI, without a driver",
    };
    return texts[reach];
}

/* ---- Cores near a device ---------------------------------------------------------------------------------------- */

/* Returns the part of `cores` that lies on `nodes`; NULL: out of memory. Adds to *of_all the number of NUMA nodes of
 * `cores`, and to *of_some how many of these are in `nodes`. */
static hwloc_bitmap_t cores_of(hwloc_topology_t topology, hwloc_const_cpuset_t cores, hwloc_const_nodeset_t nodes,
                               int *of_all, int *of_some)
{
    hwloc_bitmap_t near = hwloc_bitmap_alloc();
    bool ok = near != NULL;
    for (hwloc_obj_t at = NULL; ok && (at = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, at));) {
        if (!hwloc_bitmap_intersects(at->cpuset, cores))
            continue;
        ++*of_all;
        if (!hwloc_bitmap_isset(nodes, at->os_index))
            continue;
        ++*of_some;
        ok = hwloc_bitmap_or(near, near, at->cpuset) == 0;
    }
    if (ok && hwloc_bitmap_and(near, near, cores) == 0)
        return near;
    hwloc_bitmap_free(near);
    return NULL;
}

wfi_cores *wfi_nic_cores(const wfi_topology *topology, const wfi_cores *cores, const char *name)
{
    hwloc_obj_t found = topology && cores && name ? find_device(hwloc_of(topology), name) : NULL;
    hwloc_const_nodeset_t nodes = found ? nodes_of(hwloc_of(topology), found) : NULL;
    int of_all = 0, of_some = 0;
    hwloc_bitmap_t near =
        nodes ? cores_of(hwloc_of(topology), (hwloc_const_cpuset_t)cores, nodes, &of_all, &of_some) : NULL;
    if (near && of_some > 0 && of_some < of_all)
        return (wfi_cores *)near;
    hwloc_bitmap_free(near);
    return NULL;
}

wfi_cores *wfi_topo_near_interface(const char *name)
{
    const wfi_topology *topology = name ? wfi_topology_here() : NULL;
    wfi_cores *allowed = wfi_cores_allowed(topology);
    wfi_cores *near = wfi_nic_cores(topology, allowed, name);
    wfi_cores_destroy(allowed);
    return near;
}

wfi_cores *wfi_topo_near_rdma(int local_rank)
{
    const wfi_topology *topology = wfi_topology_here();
    wfi_cores *allowed = wfi_cores_allowed(topology), *near = NULL;
    const wfi_place place = {.cores = allowed, .rank = local_rank};
    wfi_nic *nics;
    size_t count = wfi_nics_list(topology, &place, &nics), at = 0;
    while (at < count && !nics[at].verbs[0])
        at++;
    if (at < count)
        near = wfi_nic_cores(topology, allowed, nics[at].verbs);
    free(nics);
    wfi_cores_destroy(allowed);
    return near;
}
