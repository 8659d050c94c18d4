/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - builds a schedule: its steps, and which of them wait for which. */
#include "coll/algorithm/schedule.h"

#include "base/alloc.h"

#include <stdlib.h>

void wfi_schedule_init(wfi_schedule *schedule, size_t members)
{
    *schedule = (wfi_schedule){0};
    schedule->sends = wfi_calloc(members, 4 * sizeof(*schedule->sends));
    schedule->failed = !schedule->sends;
    if (schedule->failed)
        return;
    schedule->recvs = schedule->sends + members;
    schedule->first_recv = schedule->recvs + members;
    schedule->last_recv = schedule->first_recv + members;
    for (size_t i = 0; i < members; i++)
        schedule->first_recv[i] = schedule->last_recv[i] = WFI_NO_STEP;
}

void wfi_schedule_built(wfi_schedule *schedule)
{
    for (int i = 0; i < WFI_BUFFERS; i++) {
        free(schedule->uses[i].items);
        schedule->uses[i] = (wfi_uses){0};
    }
}

void wfi_schedule_fini(wfi_schedule *schedule)
{
    wfi_schedule_built(schedule);
    free(schedule->steps);
    free(schedule->edges);
    free(schedule->sends); /* and the arrays behind it */
    *schedule = (wfi_schedule){0};
}

/* Makes room for one more after `count`; false: no memory. */
static bool make_room(void **items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    size_t more = *capacity ? 2 * *capacity : 8;
    void *grown = realloc(*items, more * size);
    if (!grown)
        return false;
    *items = grown;
    *capacity = more;
    return true;
}

/* ---- Who waits for whom ------------------------------------------------------------------------------------------ */

static void await_stage(wfi_schedule *schedule, wfi_step_id step, wfi_step_id earlier)
{
    if (step == earlier)
        return;
    schedule->failed = schedule->failed || !make_room((void **)&schedule->edges, schedule->edge_count,
                                                      &schedule->edge_capacity, sizeof(*schedule->edges));
    if (schedule->failed)
        return;
    wfi_step *before = &schedule->steps[earlier];
    schedule->edges[schedule->edge_count] = (wfi_edge){.step = step, .next = before->edges};
    before->edges = (uint32_t)schedule->edge_count++;
    schedule->steps[step].waits++;
}

/*
 * Records that `step` uses that memory. A write waits for every use, and later steps wait for it instead of the uses
 * that it covers; a read waits for writes.
 */
static void use(wfi_schedule *schedule, wfi_step_id step, wfi_operand place, size_t size, bool writes)
{
    wfi_uses *uses = &schedule->uses[place.buffer];
    size_t begin = place.offset, end = place.offset + size, kept = 0;
    if (!size)
        return;
    for (size_t i = 0; i < uses->count; i++) {
        wfi_use *before = &uses->items[i];
        bool meets = before->begin < end && begin < before->end;
        if (meets && (writes || before->writes))
            await_stage(schedule, step, before->step);
        bool covered = writes && begin <= before->begin && before->end <= end;
        if (!covered)
            uses->items[kept++] = *before;
    }
    uses->count = kept;
    schedule->failed =
        schedule->failed || !make_room((void **)&uses->items, uses->count, &uses->capacity, sizeof(*uses->items));
    if (!schedule->failed)
        uses->items[uses->count++] = (wfi_use){.step = step, .writes = writes, .begin = begin, .end = end};
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static void write_to(wfi_schedule *schedule, wfi_step_id step, wfi_operand to, size_t size)
{
    use(schedule, step, to, size, true);
    if (to.buffer == WFI_SCRATCH && to.offset + size > schedule->scratch)
        schedule->scratch = to.offset + size;
}

static wfi_step_id add(wfi_schedule *schedule, wfi_step step)
{
    schedule->failed = schedule->failed || !make_room((void **)&schedule->steps, schedule->step_count,
                                                      &schedule->step_capacity, sizeof(*schedule->steps));
    if (schedule->failed)
        return WFI_NO_STEP;
    wfi_step_id id = (wfi_step_id)schedule->step_count++;
    step.edges = step.next = step.ready = WFI_NO_STEP;
    schedule->steps[id] = step;
    if (step.kind == WFI_STEP_SEND || step.kind == WFI_STEP_COMBINE || step.kind == WFI_STEP_COPY)
        use(schedule, id, step.a, step.size, false);
    if (step.kind == WFI_STEP_COMBINE)
        use(schedule, id, step.b, step.size, false);
    if (step.kind != WFI_STEP_SEND)
        write_to(schedule, id, step.to, step.size);
    return id;
}

void wfi_schedule_send(wfi_schedule *schedule, size_t peer, wfi_operand from, size_t size)
{
    if (!schedule->failed)
        add(schedule,
            (wfi_step){
                .kind = WFI_STEP_SEND, .peer = (int)peer, .slot = schedule->sends[peer]++, .a = from, .size = size});
}

void wfi_schedule_recv(wfi_schedule *schedule, size_t peer, wfi_operand to, size_t size)
{
    if (schedule->failed)
        return;
    wfi_step_id id = add(
        schedule,
        (wfi_step){.kind = WFI_STEP_RECV, .peer = (int)peer, .slot = schedule->recvs[peer]++, .to = to, .size = size});
    if (id == WFI_NO_STEP)
        return;
    if (schedule->first_recv[peer] == WFI_NO_STEP)
        schedule->first_recv[peer] = id;
    else
        schedule->steps[schedule->last_recv[peer]].next = id;
    schedule->last_recv[peer] = id;
}

void wfi_schedule_combine(wfi_schedule *schedule, wfi_operand to, wfi_operand a, wfi_operand b, size_t size)
{
    add(schedule, (wfi_step){.kind = WFI_STEP_COMBINE, .to = to, .a = a, .b = b, .size = size});
}

void wfi_schedule_copy(wfi_schedule *schedule, wfi_operand to, wfi_operand from, size_t size)
{
    add(schedule, (wfi_step){.kind = WFI_STEP_COPY, .to = to, .a = from, .size = size});
}

void wfi_schedule_divide(wfi_schedule *schedule, wfi_operand at, size_t size)
{
    add(schedule, (wfi_step){.kind = WFI_STEP_DIVIDE, .to = at, .size = size});
}

void wfi_schedule_carry(wfi_schedule *schedule)
{
    add(schedule, (wfi_step){.kind = WFI_STEP_CARRY});
}

void wfi_schedule_share(wfi_schedule *schedule, wfi_part part, wfi_operand a, size_t reads, wfi_operand to,
                        size_t writes)
{
    wfi_step_id id = add(schedule, (wfi_step){.kind = WFI_STEP_SHARE, .part = part, .to = to, .a = a});
    schedule->shares++;
    if (id == WFI_NO_STEP)
        return;
    use(schedule, id, a, reads, false);
    write_to(schedule, id, to, writes);
}
