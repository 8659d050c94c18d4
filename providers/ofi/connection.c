/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - connecting, accepting, rejecting. */
#include "objects.h"

#include "base/text/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool set_address(void **where, size_t *size, const wfofi_sockaddr *address)
{
    void *copy = malloc(address->size);
    if (!copy)
        return false;
    memcpy(copy, &address->storage, address->size);
    free(*where);
    *where = copy;
    *size = address->size;
    return true;
}

/*
 * The info of an endpoint that connects to `to`. The routing table chooses the source unless the user named an
 * interface; verbs resolves the destination when the endpoint is made.
 */
static struct fi_info *info_towards(const wfofi_fabric *fabric, const wfofi_sockaddr *to)
{
    struct fi_info *info = fi_dupinfo(fabric->info);
    if (!info)
        return NULL;
    wfofi_sockaddr from = fabric->local;
    wfofi_address_set_port(&from, 0);
    bool done = set_address(&info->dest_addr, &info->dest_addrlen, to);
    /* The source is the user's interface, unless its address is of the other family: then the routing table chooses. */
    if (done && fabric->own_iface && from.storage.ss_family == to->storage.ss_family) {
        done = set_address(&info->src_addr, &info->src_addrlen, &from);
    } else {
        free(info->src_addr);
        info->src_addr = NULL;
        info->src_addrlen = 0;
        info->addr_format = to->storage.ss_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
    }
    if (done)
        return info;
    fi_freeinfo(info);
    return NULL;
}

/* Keeps the error text: the caller tries again, and reports the text if all attempts fail. */
static void say_not_connected(wfofi_fabric *fabric, const wfofi_sockaddr *to, int ret)
{
    char text[WFOFI_ADDRESS_TEXT], doing[WFOFI_ADDRESS_TEXT + 16];
    fabric->connect_error = strerrordesc_np(-ret);
    wfofi_address_text(to, text);
    snprintf(doing, sizeof(doing), "connecting to %s", text);
    if (ret == -EMFILE || ret == -ENFILE)
        wfofi_log_failed(fabric, doing, ret);
    else
        wfofi_log(fabric, WEFT_LOG_DEBUG, "%s: %s", doing, fi_strerror(-ret));
}

const char *wfofi_connect_error(const wfi_fabric *base)
{
    return wfofi_of(base)->connect_error;
}

weft_status wfofi_lane_open(wfi_fabric *base, const uint8_t *address, size_t address_size, void *lane_user,
                            wfi_lane **out)
{
    wfofi_fabric *fabric = wfofi_of(base);
    wfofi_sockaddr to;
    fabric->connect_error = NULL;
    if (wfofi_address_decode(address, address_size, &to) != WEFT_OK)
        return WEFT_ERR_INVALID;
    wfofi_address_set_scope(&to, fabric->scope);
    struct fi_info *info = info_towards(fabric, &to);
    if (!info)
        return WEFT_ERR_MEMORY;
    weft_status status = wfofi_lane_create(fabric, info, lane_user, out);
    fi_freeinfo(info);
    if (status == WEFT_OK)
        (*out)->to = to;
    return status;
}

weft_status wfofi_lane_take(wfi_fabric *base, wfi_connect_request *request, void *lane_user, wfi_lane **out)
{
    wfofi_fabric *fabric = wfofi_of(base);
    wfofi_set_sizes(fabric, request->info);
    weft_status status = wfofi_lane_create(fabric, request->info, lane_user, out);
    if (status != WEFT_OK) {
        wfofi_reject(base, request);
        return status;
    }
    wfi_lane *lane = *out;
    lane->request = request;
    if (request->info->dest_addrlen <= sizeof(lane->peer.storage)) {
        wfi_mutex_lock(&fabric->events_lock); /* tcp's event thread reads it */
        memcpy(&lane->peer.storage, request->info->dest_addr, request->info->dest_addrlen);
        lane->peer.size = (socklen_t)request->info->dest_addrlen;
        wfi_mutex_unlock(&fabric->events_lock);
    }
    return WEFT_OK;
}

/* Takes the request out of the list of those that wait for an answer, and frees it. */
static void request_free(wfofi_fabric *fabric, wfi_connect_request *request)
{
    wfi_mutex_lock(&fabric->events_lock);
    wfi_list_remove(&request->link);
    wfi_mutex_unlock(&fabric->events_lock);
    fi_freeinfo(request->info);
    free(request);
}

static weft_status accept_request(wfi_lane *lane, const void *data, size_t data_size)
{
    wfofi_fabric *fabric = lane->fabric;
    wfi_connect_request *request = lane->request;
    int ret = fi_accept(lane->ep, data, data_size);
    if (ret == 0) {
        lane->request = NULL;
        request_free(fabric, request);
        return WEFT_OK;
    }
    if (ret == -FI_EINVAL) /* verbs: the worker that asked has gone */
        wfofi_log(fabric, WEFT_LOG_DEBUG, "accepting a connection: %s", fi_strerror(-ret));
    else
        wfofi_log_failed(fabric, "accepting a connection", ret);
    return ret == -FI_ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_FABRIC;
}

weft_status wfofi_connect(wfi_lane *lane, const void *data, size_t data_size)
{
    if (data_size > WFI_CONNECT_DATA_MAX)
        return WEFT_ERR_INVALID;
    if (lane->request)
        return accept_request(lane, data, data_size);
    wfofi_fabric *fabric = lane->fabric;
    int ret = fi_connect(lane->ep, &lane->to.storage, data, data_size);
    if (ret == 0)
        return WEFT_OK;
    say_not_connected(fabric, &lane->to, ret);
    return ret == -FI_ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_FABRIC;
}

void wfofi_reject(wfi_fabric *base, wfi_connect_request *request)
{
    wfofi_fabric *fabric = wfofi_of(base);
    int ret = fi_reject(fabric->pep, request->info->handle, NULL, 0);
    if (ret != 0)
        wfofi_log(fabric, WEFT_LOG_DEBUG, "rejecting a connection: %s", fi_strerror(-ret));
    request_free(fabric, request);
}

void wfofi_requests_drop(wfofi_fabric *fabric)
{
    wfofi_events_drop(fabric);
    while (!wfi_list_empty(&fabric->requests))
        wfofi_reject(&fabric->base, wfi_container_of(fabric->requests.next, wfi_connect_request, link));
}
