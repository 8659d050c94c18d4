/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c - each member sends every part directly to the member that needs it: one round. */
#include "coll/algorithm/algorithm.h"

/*
 * The order in which a member serves the others: the next ones first, so that not all send to the same member at
 * once.
 */
static size_t other(const wfi_collective *collective, size_t turn)
{
    return (collective->me + turn) % collective->members;
}

static size_t other_back(const wfi_collective *collective, size_t turn)
{
    return (collective->me + collective->members - turn) % collective->members;
}

static void allgather(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me;
    wfi_operand own = wfi_at(WFI_OUTPUT, me * bytes);
    if (!collective->in_place)
        wfi_pieces_copy(collective, schedule, own, wfi_at(WFI_INPUT, 0), bytes);
    for (size_t turn = 1; turn < collective->members; turn++) {
        size_t from = other_back(collective, turn);
        wfi_pieces_send(collective, schedule, other(collective, turn),
                        collective->in_place ? own : wfi_at(WFI_INPUT, 0), bytes);
        wfi_pieces_recv(collective, schedule, from, wfi_at(WFI_OUTPUT, from * bytes), bytes);
    }
}

static void all_to_all(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me;
    wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, me * bytes), wfi_at(WFI_INPUT, me * bytes), bytes);
    for (size_t turn = 1; turn < collective->members; turn++) {
        size_t to = other(collective, turn), from = other_back(collective, turn);
        wfi_pieces_send(collective, schedule, to, wfi_at(WFI_INPUT, to * bytes), bytes);
        wfi_pieces_recv(collective, schedule, from, wfi_at(WFI_OUTPUT, from * bytes), bytes);
    }
}

static void gather(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = wfi_part_bytes(collective), root = collective->root;
    if (collective->me != root) {
        wfi_pieces_send(collective, schedule, root, wfi_at(WFI_INPUT, 0), bytes);
        return;
    }
    if (!collective->in_place)
        wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, root * bytes), wfi_at(WFI_INPUT, 0), bytes);
    for (size_t turn = 1; turn < collective->members; turn++) {
        size_t from = other(collective, turn);
        wfi_pieces_recv(collective, schedule, from, wfi_at(WFI_OUTPUT, from * bytes), bytes);
    }
}

static void scatter(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = wfi_part_bytes(collective), root = collective->root;
    if (collective->me != root) {
        wfi_pieces_recv(collective, schedule, root, wfi_at(WFI_OUTPUT, 0), bytes);
        return;
    }
    if (!collective->in_place)
        wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, 0), wfi_at(WFI_INPUT, root * bytes), bytes);
    for (size_t turn = 1; turn < collective->members; turn++) {
        size_t to = other(collective, turn);
        wfi_pieces_send(collective, schedule, to, wfi_at(WFI_INPUT, to * bytes), bytes);
    }
}

/* Each adds what it gets, in the order of the ring. */
static void reduce_scatter(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = wfi_part_bytes(collective);
    wfi_operand own = wfi_at(WFI_INPUT, collective->me * bytes), sum = wfi_at(WFI_OUTPUT, 0);
    for (size_t turn = 1; turn < collective->members; turn++) {
        size_t to = other(collective, turn);
        wfi_pieces_send(collective, schedule, to, wfi_at(WFI_INPUT, to * bytes), bytes);
    }
    for (size_t turn = 1; turn < collective->members; turn++)
        wfi_pieces_recv_combine(collective, schedule, other_back(collective, turn),
                                wfi_at(WFI_SCRATCH, (turn - 1) * bytes), sum, turn == 1 ? own : sum, bytes);
    if (collective->divides)
        wfi_pieces_divide(collective, schedule, sum, bytes);
}

void wfi_build_direct(const wfi_collective *collective, wfi_schedule *schedule)
{
    static const wfi_build_fn builds[WFI_KINDS_WITH_ALGORITHMS] = {[WFI_ALLGATHER] = allgather,
                                                                   [WFI_REDUCE_SCATTER] = reduce_scatter,
                                                                   [WFI_GATHER] = gather,
                                                                   [WFI_SCATTER] = scatter,
                                                                   [WFI_ALL_TO_ALL] = all_to_all};
    builds[collective->kind](collective, schedule);
}
