/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.c - the fabric of one simulated worker: opening and closing, and the table of its operations. */
#include "base/alloc.h"
#include "sim/world.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const wfi_fabric_limits limits = {
    .message_max = SIM_MESSAGE_MAX,
    .rma_max = SIM_RMA_MAX,
    .send_iov_max = SIM_IOV_MAX,
    .keys_per_transfer = true,
};

static const wfi_fabric_limits limits_like_verbs = {
    .message_max = SIM_MESSAGE_MAX,
    .rma_max = SIM_RMA_MAX,
    .send_iov_max = SIM_IOV_MAX,
    .needs_local_regions = true,
};

static weft_status fail(weft_error **error, weft_status code, const char *text)
{
    return wfi_error_fail(error, code, "%s", text);
}

static weft_status fabric_open(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)
{
    if (!options->sim)
        return fail(error, WEFT_ERR_INVALID, "the simulated fabric needs a world (weft_agent_options.sim)");
    if (options->rank < 0 || options->rank >= SIM_RANK_MAX)
        return fail(error, WEFT_ERR_INVALID, "no such rank in a simulated world");
    sim_rank *rank = wfi_sim_rank(options->sim, options->rank);
    sim_fabric *fabric = rank ? wfi_calloc(1, sizeof *fabric) : NULL;
    if (!fabric)
        return fail(error, WEFT_ERR_MEMORY, "out of memory");
    if (rank->fabric) {
        free(fabric);
        return fail(error, WEFT_ERR_FABRIC, "this simulated worker has an open fabric already");
    }
    fabric->base.ops = &wfi_fabric_sim;
    fabric->sim = options->sim;
    fabric->rank = rank;
    fabric->number = ++rank->fabrics;
    fabric->ready = options->ready;
    fabric->ready_arg = options->ready_arg;
    wfi_list_init(&fabric->ready_link);
    wfi_list_init(&fabric->ends);
    wfi_list_init(&fabric->completions);
    wfi_list_init(&fabric->notices);
    wfi_map_init(&fabric->regions);
    wfi_list_push_back(&options->sim->fabrics, &fabric->link);
    rank->fabric = fabric;
    *out = &fabric->base;
    return WEFT_OK;
}

/* No event of it happens after this; its memory stays. */
void wfi_sim_fabric_kill(sim_fabric *fabric)
{
    while (!wfi_list_empty(&fabric->ends))
        wfi_sim_end_close(wfi_container_of(fabric->ends.next, sim_end, link));
    wfi_list_init(&fabric->completions); /* the operations belong to their initiator, which may be gone */
    wfi_list_remove(&fabric->ready_link);
    if (fabric->rank->fabric == fabric)
        fabric->rank->fabric = NULL;
}

void wfi_sim_fabric_free(sim_fabric *fabric)
{
    wfi_sim_fabric_kill(fabric);
    wfi_sim_regions_free(fabric);
    wfi_list_remove(&fabric->link);
    free(fabric);
}

static void fabric_close(wfi_fabric *fabric)
{
    if (fabric)
        wfi_sim_fabric_free((sim_fabric *)fabric);
}

static const wfi_fabric_limits *fabric_limits(const wfi_fabric *fabric)
{
    return ((const sim_fabric *)fabric)->sim->registers ? &limits_like_verbs : &limits;
}

static size_t fabric_address(const wfi_fabric *base, uint8_t *out)
{
    const sim_fabric *fabric = (const sim_fabric *)base;
    memcpy(out, &fabric->rank->rank, sizeof fabric->rank->rank);
    int host = fabric->rank->rank / fabric->sim->options.ranks_per_host;
    memcpy(out + sizeof fabric->rank->rank, &fabric->number, sizeof fabric->number);
    memcpy(out + WFI_SIM_ADDRESS_BYTES - sizeof host, &host, sizeof host);
    return WFI_SIM_ADDRESS_BYTES;
}

static bool fabric_same_host(const uint8_t *one, const uint8_t *other, size_t size)
{
    size_t at = WFI_SIM_ADDRESS_BYTES - sizeof(int);
    return size == WFI_SIM_ADDRESS_BYTES && memcmp(one + at, other + at, sizeof(int)) == 0;
}

static void fabric_address_text(const uint8_t *address, size_t size, char *out, size_t room)
{
    int rank = -1;
    if (size == WFI_SIM_ADDRESS_BYTES)
        memcpy(&rank, address, sizeof rank);
    snprintf(out, room, "sim:%d", rank);
}

static const char *fabric_iface(const wfi_fabric *fabric)
{
    (void)fabric;
    return "sim";
}

/* The simulated network has no error texts of its own. */
static const char *fabric_connect_error(const wfi_fabric *fabric)
{
    (void)fabric;
    return NULL;
}

const wfi_fabric_ops wfi_fabric_sim = {
    .size = sizeof(wfi_fabric_ops),
    .name = "sim",
    .open = fabric_open,
    .close = fabric_close,
    .limits = fabric_limits,
    .address = fabric_address,
    .same_host = fabric_same_host,
    .address_text = fabric_address_text,
    .iface = fabric_iface,
    .lane_open = wfi_sim_lane_open,
    .lane_take = wfi_sim_lane_take,
    .connect = wfi_sim_connect,
    .connect_error = fabric_connect_error,
    .reject = wfi_sim_reject,
    .lane_close = wfi_sim_lane_close,
    .post_recv = wfi_sim_post_recv,
    .send = wfi_sim_send,
    .read = wfi_sim_read,
    .write = wfi_sim_write,
    .region_open = wfi_sim_region_open,
    .region_close = wfi_sim_region_close,
    .poll = wfi_sim_poll,
    .poll_events = wfi_sim_poll_events,
    .wait_fd = wfi_sim_wait_fd,
    .may_sleep = wfi_sim_may_sleep,
};
