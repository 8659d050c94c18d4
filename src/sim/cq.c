/* SPDX-License-Identifier: Apache-2.0 */
/* cq.c - what a fabric reports: completed operations, events of its connections, and the callback `ready`. */
#include "sim/world.h"

#include <string.h>

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

size_t wfi_sim_poll(wfi_fabric *base, wfi_completion *out, size_t room)
{
    sim_fabric *fabric = (sim_fabric *)base;
    size_t count = 0;
    wfi_list *node;
    while (count < room && (node = wfi_list_pop_front(&fabric->completions))) {
        sim_op *op = wfi_container_of(node, sim_op, link);
        out[count++] = (wfi_completion){.op = (wfi_fabric_op *)op, .status = op->status, .size = op->size};
    }
    if (count)
        wfi_sim_trace(fabric->sim, SIM_POLL, fabric->rank->rank, -1, count);
    return count;
}

/* The caller gets the descriptor. pass.c frees the rest later. */
static void fill_passed(wfi_event *out, sim_passed *passed)
{
    *out = (wfi_event){.kind = WFI_EVENT_PASSED,
                       .lane = (wfi_lane *)passed->notice.end,
                       .lane_user = passed->notice.end->user,
                       .fd = passed->fd,
                       .data_size = passed->size};
    memcpy(out->data, passed->data, passed->size);
    passed->fd = -1;
}

static void fill_event(wfi_event *out, sim_notice *notice)
{
    sim_end *end = notice->end;
    if (notice->kind == WFI_EVENT_PASSED) {
        fill_passed(out, wfi_container_of(notice, sim_passed, notice));
        return;
    }
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

size_t wfi_sim_poll_events(wfi_fabric *base, wfi_event *out, size_t room)
{
    sim_fabric *fabric = (sim_fabric *)base;
    size_t count = 0;
    wfi_list *node;
    while (count < room && (node = wfi_list_pop_front(&fabric->notices)))
        fill_event(&out[count++], wfi_container_of(node, sim_notice, link));
    if (count)
        wfi_sim_trace(fabric->sim, SIM_POLL_EVENTS, fabric->rank->rank, -1, count);
    return count;
}

bool wfi_sim_events_arm(wfi_fabric *base, uint64_t *due_ns) // NOLINT(readability-non-const-parameter): fabric.h
{
    (void)due_ns;
    return wfi_list_empty(&((const sim_fabric *)base)->notices);
}

int wfi_sim_no_fd(wfi_fabric *fabric)
{
    (void)fabric;
    return -1;
}

bool wfi_sim_may_sleep(wfi_fabric *base)
{
    const sim_fabric *fabric = (const sim_fabric *)base;
    return wfi_list_empty(&fabric->completions) && wfi_list_empty(&fabric->notices);
}
