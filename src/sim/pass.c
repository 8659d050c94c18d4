/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.c - what workers of one simulated host do besides messages: they pass descriptors over a connection, and wake
 * each other. Memory that workers share is real memory of this process: what one worker writes, the others see at once.
 */
#include "sim/world.h"

#include "base/alloc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sim_passed *passed_of(sim_event *event)
{
    return wfi_container_of(event, sim_passed, event);
}

static void free_passed(sim_passed *passed)
{
    if (passed->fd >= 0)
        close(passed->fd);
    wfi_list_remove(&passed->link);
    wfi_list_remove(&passed->notice.link);
    wfi_sim_release(passed->pair->sim, 1);
    wfi_sim_pair_unref(passed->pair);
    free(passed);
}

void wfi_sim_passed_drop(sim_end *end)
{
    while (!wfi_list_empty(&end->passed))
        free_passed(wfi_container_of(end->passed.next, sim_passed, link));
}

/* Those that were reported. */
static void drop_reported(sim_end *end)
{
    WFI_FOR_LIST_TAKING (sim_passed, passed, next, &end->passed, link)
        if (passed->fd < 0)
            free_passed(passed);
}

static void pass_drop(weft_sim *sim, sim_event *event)
{
    (void)sim;
    free_passed(passed_of(event));
}

static void pass_fire(weft_sim *sim, sim_event *event)
{
    sim_passed *passed = passed_of(event);
    sim_end *end = passed->notice.end;
    (void)sim;
    if (end->state != SIM_OPEN || end->pair->severed) {
        free_passed(passed);
        return;
    }
    drop_reported(end);
    wfi_list_push_back(&end->passed, &passed->link);
    wfi_list_push_back(&end->fabric->notices, &passed->notice.link);
    wfi_sim_fabric_wake(end->fabric);
}

weft_status wfi_sim_pass(wfi_lane *lane, int fd, const void *data, size_t size)
{
    sim_end *end = (sim_end *)lane, *peer = &end->pair->ends[!end->index];
    weft_sim *sim = end->pair->sim;
    if (size > WFI_CONNECT_DATA_MAX)
        return WEFT_ERR_INVALID;
    if (end->state != SIM_OPEN)
        return WEFT_ERR_UNREACHABLE;
    sim_passed *passed = wfi_calloc(1, sizeof(*passed));
    if (!passed || wfi_sim_reserve(sim, 1) != WEFT_OK) {
        free(passed);
        return WEFT_ERR_AGAIN;
    }
    end->pair->references++;
    passed->pair = end->pair;
    passed->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    passed->notice = (sim_notice){.kind = WFI_EVENT_PASSED, .end = peer};
    passed->size = size;
    memcpy(passed->data, data, size);
    wfi_list_init(&passed->link);
    wfi_list_init(&passed->notice.link);
    passed->event = (sim_event){.fire = pass_fire,
                                .drop = pass_drop,
                                .wire = &end->wire,
                                .from = end->rank,
                                .to = peer->rank,
                                .kind = SIM_PASS,
                                .form = end->pair->form,
                                .size = size};
    if (passed->fd < 0) {
        free_passed(passed);
        return WEFT_ERR_AGAIN;
    }
    wfi_sim_travel(sim, &passed->event, wfi_sim_departure(sim, &end->wire, size));
    return WEFT_OK;
}

/* A doorbell between processes of one machine: it works whatever happens to the connection. */
void wfi_sim_wake(wfi_lane *lane)
{
    const sim_end *end = (const sim_end *)lane;
    const sim_rank *rank = wfi_sim_rank_seen(end->pair->sim, end->pair->ends[!end->index].rank);
    for (size_t i = 0; rank && i < SIM_FORMS; i++)
        if (rank->listens[i])
            wfi_sim_fabric_wake(rank->listens[i]);
}
