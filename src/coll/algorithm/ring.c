/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - each member sends only to the next one: the fewest bytes possible, in members - 1 rounds.
 *
 * Source: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", JPDC 69(2),
 * 2009.
 */
#include "coll/algorithm/algorithm.h"

typedef struct neighbours {
    size_t members, me, left, right;
} neighbours;

static neighbours neighbours_of(const wfi_collective *collective)
{
    size_t members = collective->members, me = collective->me;
    return (neighbours){members, me, (me + members - 1) % members, (me + 1) % members};
}

/* The part that is `back` positions behind this member's. */
static size_t behind(const neighbours *ring, size_t back)
{
    return (ring->me + 2 * ring->members - back) % ring->members;
}

static void allreduce(const wfi_collective *collective, wfi_schedule *schedule)
{
    neighbours ring = neighbours_of(collective);
    size_t parts = ring.members;
#define BEGIN(i) wfi_part_begin(collective, parts, i)
#define SIZE(i) (BEGIN((i) + 1) - BEGIN(i))
    for (size_t round = 0; round + 1 < parts; round++) {
        size_t out = behind(&ring, round), in = behind(&ring, round + 1);
        wfi_pieces_send(collective, schedule, ring.right, wfi_at(WFI_OUTPUT, BEGIN(out)), SIZE(out));
        wfi_pieces_recv_add(collective, schedule, ring.left, wfi_at(WFI_OUTPUT, BEGIN(in)), SIZE(in));
    }
    size_t whole = behind(&ring, parts - 1);
    if (collective->divides)
        wfi_pieces_divide(collective, schedule, wfi_at(WFI_OUTPUT, BEGIN(whole)), SIZE(whole));
    for (size_t round = 0; round + 1 < parts; round++) {
        size_t out = behind(&ring, parts - 1 + round), in = behind(&ring, round);
        wfi_pieces_send(collective, schedule, ring.right, wfi_at(WFI_OUTPUT, BEGIN(out)), SIZE(out));
        wfi_pieces_recv(collective, schedule, ring.left, wfi_at(WFI_OUTPUT, BEGIN(in)), SIZE(in));
    }
#undef SIZE
#undef BEGIN
}

static void allgather(const wfi_collective *collective, wfi_schedule *schedule)
{
    neighbours ring = neighbours_of(collective);
    size_t bytes = wfi_part_bytes(collective);
    if (!collective->in_place)
        wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, ring.me * bytes), wfi_at(WFI_INPUT, 0), bytes);
    for (size_t round = 0; round + 1 < ring.members; round++) {
        size_t out = behind(&ring, round), in = behind(&ring, round + 1);
        wfi_pieces_send(collective, schedule, ring.right, wfi_at(WFI_OUTPUT, out * bytes), bytes);
        wfi_pieces_recv(collective, schedule, ring.left, wfi_at(WFI_OUTPUT, in * bytes), bytes);
    }
}

/*
 * The sum of a part travels round the ring, and each member adds its own part: in scratch, at the end in the output.
 * Each round uses the half of the scratch memory that the previous one does not use.
 */
static void reduce_scatter(const wfi_collective *collective, wfi_schedule *schedule)
{
    neighbours ring = neighbours_of(collective);
    size_t bytes = wfi_part_bytes(collective);
    wfi_operand sum = wfi_at(WFI_INPUT, behind(&ring, 1) * bytes);
    for (size_t round = 0; round + 1 < ring.members; round++) {
        bool last = round + 2 == ring.members;
        wfi_operand room = wfi_at(WFI_SCRATCH, round % 2 * bytes), to = last ? wfi_at(WFI_OUTPUT, 0) : room;
        wfi_pieces_send(collective, schedule, ring.right, sum, bytes);
        wfi_pieces_recv_combine(collective, schedule, ring.left, room, to,
                                wfi_at(WFI_INPUT, behind(&ring, round + 2) * bytes), bytes);
        sum = to;
    }
    if (collective->divides)
        wfi_pieces_divide(collective, schedule, wfi_at(WFI_OUTPUT, 0), bytes);
}

void wfi_build_ring(const wfi_collective *collective, wfi_schedule *schedule)
{
    if (collective->kind == WFI_ALLREDUCE)
        allreduce(collective, schedule);
    else if (collective->kind == WFI_ALLGATHER)
        allgather(collective, schedule);
    else
        reduce_scatter(collective, schedule);
}
