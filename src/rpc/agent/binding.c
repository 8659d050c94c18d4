/* SPDX-License-Identifier: Apache-2.0 */
/*
 * binding.c - finds the cores near the job's network interface, for weft's own threads. The interface is the option
 * `iface`; otherwise the nearest RDMA device, unless the fabric is tcp; otherwise the one that routes to the store.
 */
#include "rpc/agent/agent.h"

#include "base/socket.h"
#include "topo/quota.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <string.h>

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

/* The name of the interface that has this address. */
static bool interface_of(const struct sockaddr *address, char *name, size_t room)
{
    struct ifaddrs *all, *found = NULL;
    if (getifaddrs(&all))
        return false;
    for (struct ifaddrs *one = all; one && !found; one = one->ifa_next)
        if (same_address(one->ifa_addr, address))
            found = one;
    if (found)
        snprintf(name, room, "%s", found->ifa_name);
    freeifaddrs(all);
    return found != NULL;
}

/* Finds the interface that has this numeric address. */
static bool find_interface(const char *address, char *name, size_t room)
{
    struct addrinfo *list;
    if (wfi_resolve(address, 0, AI_NUMERICHOST, WFI_NEVER, &list))
        return false;
    bool found = interface_of(list->ai_addr, name, room);
    freeaddrinfo(list);
    return found;
}

/* Finds the interface for packets to rank 0. */
static bool find_interface_towards(const weft_agent_options *options, char *name, size_t room)
{
    wfi_endpoint local;
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, options->rendezvous_timeout_ms);
    return wfi_endpoint_towards(options->master_addr, deadline_ns, &local) &&
           interface_of((struct sockaddr *)&local.address, name, room);
}

/* Whether the first fabric of the list that uses a network is one over IP: it takes the interface of the route. */
static bool is_by_ip(const char *fabrics)
{
    while (strncmp(fabrics, "host,", 5) == 0 || strncmp(fabrics, "shm,", 4) == 0)
        fabrics = strchr(fabrics, ',') + 1;
    return strncmp(fabrics, "tcp", 3) == 0 || strncmp(fabrics, "rxm", 3) == 0;
}

wfi_cores *wfi_binding_of(const weft_agent_options *options)
{
    char name[64];
    if (options->no_binding || options->sim)
        return NULL;
    if (!options->iface && !is_by_ip(options->fabric)) { /* verbs chooses a device in the same way */
        wfi_cores *near = wfi_topo_near_rdma(wfi_quota_local_rank());
        if (near)
            return near;
    }
    if (!options->iface)
        return find_interface_towards(options, name, sizeof(name)) ? wfi_topo_near_interface(name) : NULL;
    wfi_cores *cores = wfi_topo_near_interface(options->iface);
    if (!cores && find_interface(options->iface, name, sizeof(name)))
        cores = wfi_topo_near_interface(name);
    return cores;
}
