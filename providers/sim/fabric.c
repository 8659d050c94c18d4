/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.c - the fabric of one simulated worker: opening, polling, and the table of its operations. */
#include "base/alloc.h"
#include "sim/world.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const wfi_fabric_limits limits = {
    .message_max = SIM_MESSAGE_MAX,
    .rma_max = SIM_RMA_MAX,
    .send_parts_max = SIM_PARTS_MAX,
    .keys_per_transfer = true,
};

static const wfi_fabric_limits limits_like_verbs = {
    .message_max = SIM_MESSAGE_MAX,
    .rma_max = SIM_RMA_MAX,
    .send_parts_max = SIM_PARTS_MAX,
    .needs_local_regions = true,
};

void wfi_sim_fabric_wake(sim_fabric *fabric)
{
    if (fabric->ready && wfi_list_empty(&fabric->ready_link))
        wfi_list_push_back(&fabric->sim->ready, &fabric->ready_link);
}

void wfi_sim_complete(sim_fabric *fabric, sim_op *op, weft_status status, size_t size)
{
    op->status = status;
    op->size = size;
    wfi_list_push_back(&fabric->completions, &op->link);
    wfi_sim_fabric_wake(fabric);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static weft_status fail(weft_error **error, weft_status code, const char *text)
{
    wfi_error_give(error, wfi_error_create(&(wfi_error_detail){.code = code, .worker = -1}, "%s", text));
    return code;
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

/* Nothing of it happens any more; its memory stays. */
void wfi_sim_fabric_kill(sim_fabric *fabric)
{
    while (!wfi_list_empty(&fabric->ends))
        wfi_sim_end_close(wfi_container_of(fabric->ends.next, sim_end, link));
    wfi_list_init(&fabric->completions); /* the operations belong to their initiator, who may be gone */
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
    memcpy(out + sizeof fabric->rank->rank, &fabric->number, sizeof fabric->number);
    return WFI_SIM_ADDRESS_BYTES;
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

/* ---- Polling --------------------------------------------------------------------------------------------------- */

static size_t fabric_poll(wfi_fabric *base, wfi_completion *out, size_t room)
{
    sim_fabric *fabric = (sim_fabric *)base;
    size_t count = 0;
    wfi_list *node;
    while (count < room && (node = wfi_list_pop_front(&fabric->completions))) {
        sim_op *op = wfi_container_of(node, sim_op, link);
        out[count++] = (wfi_completion){.op = (wfi_op *)op, .status = op->status, .size = op->size};
    }
    if (count)
        wfi_sim_trace(fabric->sim, SIM_POLL, fabric->rank->rank, -1, count);
    return count;
}

static void fill_event(wfi_event *out, const sim_notice *notice)
{
    sim_end *end = notice->end;
    const sim_end *peer = &end->pair->ends[!end->index];
    *out = (wfi_event){.kind = notice->kind};
    if (notice->kind == WFI_EVENT_REQUEST) {
        out->request = (wfi_connect_request *)end->pair;
    } else {
        out->lane = (wfi_lane *)end;
        out->lane_user = end->user;
    }
    if (notice->kind == WFI_EVENT_CLOSED) {
        out->status = end->why;
    } else if (notice->kind == WFI_EVENT_REQUEST || end->index == 0) {
        memcpy(out->data, peer->data, peer->data_size);
        out->data_size = peer->data_size;
    }
}

static size_t fabric_poll_events(wfi_fabric *base, wfi_event *out, size_t room, int timeout_ms, int wake_fd)
{
    (void)timeout_ms;
    (void)wake_fd;
    sim_fabric *fabric = (sim_fabric *)base;
    size_t count = 0;
    wfi_list *node;
    while (count < room && (node = wfi_list_pop_front(&fabric->notices)))
        fill_event(&out[count++], wfi_container_of(node, sim_notice, link));
    if (count)
        wfi_sim_trace(fabric->sim, SIM_POLL_EVENTS, fabric->rank->rank, -1, count);
    return count;
}

static int fabric_wait_fd(wfi_fabric *fabric)
{
    (void)fabric;
    return -1;
}

static bool fabric_may_sleep(wfi_fabric *base)
{
    const sim_fabric *fabric = (const sim_fabric *)base;
    return wfi_list_empty(&fabric->completions) && wfi_list_empty(&fabric->notices);
}

const wfi_fabric_ops wfi_fabric_sim = {
    .size = sizeof(wfi_fabric_ops),
    .name = "sim",
    .open = fabric_open,
    .close = fabric_close,
    .limits = fabric_limits,
    .address = fabric_address,
    .address_text = fabric_address_text,
    .iface = fabric_iface,
    .connect = wfi_sim_connect,
    .accept = wfi_sim_accept,
    .reject = wfi_sim_reject,
    .lane_close = wfi_sim_lane_close,
    .post_recv = wfi_sim_post_recv,
    .send = wfi_sim_send,
    .read = wfi_sim_read,
    .write = wfi_sim_write,
    .region_open = wfi_sim_region_open,
    .region_close = wfi_sim_region_close,
    .poll = fabric_poll,
    .poll_events = fabric_poll_events,
    .wait_fd = fabric_wait_fd,
    .may_sleep = fabric_may_sleep,
};
