/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - from one member to all, and from all to one: over a binomial tree, which has few rounds, or along a chain, which
 * passes each byte once; both in chunks, so that all levels work at once.
 *
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
 * 19(1), 2005.
 */
#include "coll/algorithm/algorithm.h"

#define LEVELS_MAX 64

typedef struct relatives {
    bool has_parent;
    size_t parent;
    size_t children[LEVELS_MAX]; /* those with the fewest below them first */
    size_t child_count;
} relatives;

static size_t member_from(const wfi_collective *collective, size_t root, size_t place)
{
    return (place + root) % collective->members;
}

static void in_tree(const wfi_collective *collective, size_t root, relatives *out)
{
    size_t members = collective->members, place = (collective->me + members - root) % members, step = 1;
    *out = (relatives){0};
    for (; step < members && !(place & step); step *= 2)
        if (place + step < members)
            out->children[out->child_count++] = member_from(collective, root, place + step);
    out->has_parent = place > 0;
    out->parent = member_from(collective, root, place - (place ? step : 0));
}

static void in_chain(const wfi_collective *collective, size_t root, relatives *out)
{
    size_t members = collective->members, place = (collective->me + members - root) % members;
    *out = (relatives){.has_parent = place > 0, .child_count = place + 1 < members};
    out->parent = member_from(collective, root, place + members - 1);
    out->children[0] = member_from(collective, root, place + 1);
}

static void spread(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, size_t at,
                   size_t size)
{
    wfi_place place = wfi_at(WFI_OUTPUT, at);
    if (around->has_parent)
        wfi_pieces_recv(collective, schedule, around->parent, place, size);
    for (size_t i = around->child_count; i-- > 0;) /* who has most below comes first */
        wfi_pieces_send(collective, schedule, around->children[i], place, size);
}

/* The sum of `from` and of all below; at the root it ends in the output. A child's part has room of its own in scratch, where
 * the sum then grows. */
static void collect(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, wfi_buffer from,
                    size_t at, size_t size)
{
    size_t bytes = wfi_part_bytes(collective);
    wfi_place sum = wfi_at(from, at);
    for (size_t i = 0; i < around->child_count; i++) {
        wfi_place room = wfi_at(WFI_SCRATCH, i * bytes + at);
        bool last = i + 1 == around->child_count && !around->has_parent;
        wfi_place to = last ? wfi_at(WFI_OUTPUT, at) : room;
        wfi_pieces_recv_combine(collective, schedule, around->children[i], room, to, sum, false, size);
        sum = to;
    }
    if (around->has_parent)
        wfi_pieces_send(collective, schedule, around->parent, sum, size);
    else if (collective->divides)
        wfi_pieces_divide(collective, schedule, wfi_at(WFI_OUTPUT, at), size);
}

static void build(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around)
{
    size_t bytes = wfi_part_bytes(collective);
    for (size_t at = 0; at < bytes; at += collective->chunk) {
        size_t size = bytes - at < collective->chunk ? bytes - at : collective->chunk;
        if (collective->kind != WFI_BROADCAST)
            collect(collective, schedule, around, collective->kind == WFI_REDUCE ? WFI_INPUT : WFI_OUTPUT, at, size);
        if (collective->kind != WFI_REDUCE)
            spread(collective, schedule, around, at, size);
    }
}

void wfi_build_tree(const wfi_collective *collective, wfi_schedule *schedule)
{
    relatives around;
    in_tree(collective, collective->kind == WFI_ALLREDUCE ? 0 : collective->root, &around);
    build(collective, schedule, &around);
}

void wfi_build_chain(const wfi_collective *collective, wfi_schedule *schedule)
{
    relatives around;
    in_chain(collective, collective->root, &around);
    build(collective, schedule, &around);
}
