/* SPDX-License-Identifier: Apache-2.0 */
/* build.c - builds the schedule of an operation, by the algorithm that the rules or the table choose. */
#include "coll/carrier.h"

weft_status wfi_operation_make_scratch(wfi_operation *operation)
{
    size_t bytes = operation->schedule.scratch;
    if (!bytes)
        return WEFT_OK;
    weft_status status = wfi_storage_create(WFI_MEMORY_HOST, 0, bytes, &operation->memory[WFI_SCRATCH].storage);
    if (status)
        return status;
    operation->memory[WFI_SCRATCH].data = wfi_storage_data(operation->memory[WFI_SCRATCH].storage);
    if (bytes == 1)
        operation->memory[WFI_SCRATCH].data[0] = 0; /* a barrier's token */
    return WEFT_OK;
}

#define STEPS_MOST 256 /* about the number of pieces into which one member's part is split at most */
/* measured part that is sent in long messages: each saves a read and two messages */
#define IN_MESSAGES_BYTES (128u << 10)

/*
 * Operations whose members pass on what they receive. Between hosts, a member's share of the part is sent in several
 * pieces, so that the next member gets the first one while the others are on their way. A share of more than
 * WFI_GROUP_CHUNK is several pieces anyway. Smaller pieces cost more than they save at 10 Gbit/s.
 */
static const bool relays[WFI_OPERATION_KINDS] = {
    [WFI_ALLREDUCE] = true, [WFI_REDUCE] = true,         [WFI_BROADCAST] = true,
    [WFI_ALLGATHER] = true, [WFI_REDUCE_SCATTER] = true,
};
#define RELAYED_CHUNK (128u << 10)

size_t wfi_chunk_for(const wfi_collective *collective, size_t bytes)
{
    size_t chunk = bytes / STEPS_MOST / 64 * 64;
    if (bytes <= IN_MESSAGES_BYTES)
        return WFI_GROUP_LONG;
    if (collective->spans_hosts && relays[collective->kind] && bytes > WFI_GROUP_CHUNK &&
        bytes / collective->members <= WFI_GROUP_CHUNK)
        return chunk > RELAYED_CHUNK ? chunk : RELAYED_CHUNK;
    return chunk > WFI_GROUP_CHUNK ? chunk : WFI_GROUP_CHUNK;
}

/* A send or a recv. Without elements it is still a message, because both sides must agree on that. */
static void build_transfer(wfi_operation *operation, size_t bytes)
{
    wfi_schedule *schedule = &operation->schedule;
    wfi_operand from = wfi_at(WFI_INPUT, 0), to = wfi_at(WFI_OUTPUT, 0);
    if (operation->sends && bytes)
        wfi_pieces_send(&operation->collective, schedule, operation->peer, from, bytes);
    else if (operation->sends)
        wfi_schedule_send(schedule, operation->peer, from, 0);
    else if (bytes)
        wfi_pieces_recv(&operation->collective, schedule, operation->peer, to, bytes);
    else
        wfi_schedule_recv(schedule, operation->peer, to, 0);
}

weft_status wfi_operation_build(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_collective *collective = &operation->collective;
    wfi_schedule *schedule = &operation->schedule;
    size_t bytes = wfi_part_bytes(collective);
    wfi_schedule_init(schedule, group->size);
    if (schedule->failed)
        return WEFT_ERR_MEMORY;
    if (wfi_carrier_has(group->carrier, collective->kind, operation->sends)) {
        operation->algorithm = WFI_CARRIED;
        wfi_schedule_carry(schedule);
    } else if (collective->kind == WFI_SENDRECV)
        build_transfer(operation, bytes);
    else if (collective->members > 1 && !bytes && collective->kind != WFI_BARRIER)
        wfi_build_dissemination(collective, schedule); /* nothing is moved, but it is checked that all call the same */
    else if (collective->members > 1)
        wfi_rules_choose(&group->rules, collective, &operation->algorithm)(collective, schedule);
    else if (!collective->in_place && operation->memory[WFI_INPUT].data)
        wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, 0), wfi_at(WFI_INPUT, 0), bytes);
    wfi_schedule_built(schedule);
    return schedule->failed ? WEFT_ERR_MEMORY : wfi_operation_make_scratch(operation);
}
