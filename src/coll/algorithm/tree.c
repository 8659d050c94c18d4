/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - from one member to all, and from all to one: over a binomial tree, which has few rounds, or along a chain,
 * which passes each byte once; both in chunks, so that all levels work at once. In two levels, a tree joins the members
 * of each host. Another tree, or a chain, joins one member of each host, so that every byte crosses to a host once.
 * levels.c has the two levels of operations without a root.
 *
 * Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
 * 19(1), 2005 (trees); T. Kielmann and others, "MagPIe: MPI's Collective Communication Operations for Clustered Wide
 * Area Systems", PPoPP 1999 (two levels).
 */
#include "coll/algorithm/algorithm.h"

#include "base/alloc.h"

#include <stdlib.h>

#define LEVELS_MAX 64

typedef struct relatives {
    bool has_parent;
    size_t parent;
    size_t children[LEVELS_MAX]; /* the smallest subtrees first */
    size_t child_count;
} relatives;

/* Members in a line: all, from `root` on; or those listed. */
typedef struct line {
    size_t count, root;
    const size_t *who;
} line;

static size_t member_at(const line *of, size_t place)
{
    return of->who ? of->who[place] : (place + of->root) % of->count;
}

/* Finds the parent and children of the member at `place` of the line, in a tree over the line. */
static void add_tree(const line *of, size_t place, relatives *out)
{
    size_t step = 1;
    for (; step < of->count && !(place & step); step *= 2)
        if (place + step < of->count)
            out->children[out->child_count++] = member_at(of, place + step);
    if (place) {
        out->has_parent = true;
        out->parent = member_at(of, place - step);
    }
}

static void add_chain(const line *of, size_t place, relatives *out)
{
    if (place + 1 < of->count)
        out->children[out->child_count++] = member_at(of, place + 1);
    if (place) {
        out->has_parent = true;
        out->parent = member_at(of, place - 1);
    }
}

static void spread(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, size_t at,
                   size_t size)
{
    wfi_place place = wfi_at(WFI_OUTPUT, at);
    if (around->has_parent)
        wfi_pieces_recv(collective, schedule, around->parent, place, size);
    for (size_t i = around->child_count; i-- > 0;) /* the largest subtree first */
        wfi_pieces_send(collective, schedule, around->children[i], place, size);
}

/*
 * The sum of `from` and of all data below; at the root it ends in the output. Each child's data has its own room in
 * scratch, where the sum then grows.
 */
static void collect(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, wfi_buffer from,
                    size_t at, size_t size)
{
    size_t bytes = wfi_part_bytes(collective);
    wfi_place sum = wfi_at(from, at);
    for (size_t i = 0; i < around->child_count; i++) {
        wfi_place room = wfi_at(WFI_SCRATCH, i * bytes + at);
        bool last = i + 1 == around->child_count && !around->has_parent;
        wfi_place to = last ? wfi_at(WFI_OUTPUT, at) : room;
        wfi_pieces_recv_combine(collective, schedule, around->children[i], room, to, sum, size);
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

static size_t root_of(const wfi_collective *collective)
{
    return collective->kind == WFI_ALLREDUCE ? 0 : collective->root;
}

static void build_flat(const wfi_collective *collective, wfi_schedule *schedule,
                       void (*add)(const line *of, size_t place, relatives *out))
{
    relatives around = {0};
    line all = {.count = collective->members, .root = root_of(collective)};
    add(&all, (collective->me + all.count - all.root) % all.count, &around);
    build(collective, schedule, &around);
}

void wfi_build_tree(const wfi_collective *collective, wfi_schedule *schedule)
{
    build_flat(collective, schedule, add_tree);
}

void wfi_build_chain(const wfi_collective *collective, wfi_schedule *schedule)
{
    build_flat(collective, schedule, add_chain);
}

/* ---- Two levels -------------------------------------------------------------------------------------------------- */

#define CHAIN_BYTES                                                                                                    \
    65536 /* longer parts use a chain of hosts: from this size on rounds cost less than bytes, as in table.c */

/* Lists those of this member's host, its leader first, and the leaders of all hosts, the root first: it leads its host,
 * and the first of each other one leads that. */
static void list_levels(const wfi_collective *collective, size_t root, line *here, size_t *locals, line *hosts,
                        size_t *leaders)
{
    const size_t *host = collective->hosts;
    size_t my_host = host[collective->me], leader = host[root] == my_host ? root : my_host;
    locals[here->count++] = leader;
    leaders[hosts->count++] = root;
    for (size_t i = 0; i < collective->members; i++) {
        if (host[i] == my_host && i != leader)
            locals[here->count++] = i;
        if (host[i] == i && i != host[root])
            leaders[hosts->count++] = i;
    }
    here->who = locals;
    hosts->who = leaders;
}

static size_t place_in(const line *of, size_t member)
{
    size_t place = 0;
    while (place < of->count && of->who[place] != member)
        place++;
    return place; /* equal to count: it is not in the line */
}

void wfi_build_two_trees(const wfi_collective *collective, wfi_schedule *schedule)
{
    relatives around = {0};
    line here = {0}, hosts = {0};
    size_t *locals = wfi_calloc(collective->members, sizeof *locals);
    size_t *leaders = wfi_calloc(collective->members, sizeof *leaders);
    if (locals && leaders) {
        list_levels(collective, collective->root, &here, locals, &hosts, leaders);
        size_t place = place_in(&hosts, collective->me);
        add_tree(&here, place_in(&here, collective->me), &around);
        if (place < hosts.count)
            (wfi_part_bytes(collective) > CHAIN_BYTES ? add_chain : add_tree)(&hosts, place, &around);
        build(collective, schedule, &around);
    }
    schedule->failed |= !locals || !leaders;
    free(locals);
    free(leaders);
}
