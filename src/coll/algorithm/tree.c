/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - from one member to all, and from all to one: over a binomial tree, which has few rounds, or along a chain,
 * which passes each byte once; both in chunks, so that all levels work at once. In two levels (levels.c), a tree or the
 * memory of the host joins the members of each host. Another tree, or a chain, joins the leaders, so that every byte
 * crosses to a host once.
 *
 * Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
 * 19(1), 2005 (trees); T. Kielmann and others, "MagPIe: MPI's Collective Communication Operations for Clustered Wide
 * Area Systems", PPoPP 1999 (two levels).
 */
#include "coll/algorithm/algorithm.h"

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
    const size_t *members;
} line;

static size_t member_at(const line *of, size_t place)
{
    return of->members ? of->members[place] : (place + of->root) % of->count;
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

static void broadcast(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, size_t at,
                      size_t size)
{
    wfi_operand place = wfi_at(WFI_OUTPUT, at);
    if (around->has_parent)
        wfi_pieces_recv(collective, schedule, around->parent, place, size);
    for (size_t i = around->child_count; i-- > 0;) /* the largest subtree first */
        wfi_pieces_send(collective, schedule, around->children[i], place, size);
}

/*
 * The sum of `sum` and of all data below; at the root it ends in the output. Each child's data has its own room in
 * scratch, where the sum then grows.
 */
static void reduce(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, wfi_operand sum,
                   size_t at, size_t size)
{
    size_t bytes = wfi_part_bytes(collective);
    for (size_t i = 0; i < around->child_count; i++) {
        wfi_operand room = wfi_at(WFI_SCRATCH, i * bytes + at);
        bool last = i + 1 == around->child_count && !around->has_parent;
        wfi_operand to = last ? wfi_at(WFI_OUTPUT, at) : room;
        wfi_pieces_recv_combine(collective, schedule, around->children[i], room, to, sum, size);
        sum = to;
    }
    if (around->has_parent)
        wfi_pieces_send(collective, schedule, around->parent, sum, size);
    else if (collective->divides)
        wfi_pieces_divide(collective, schedule, wfi_at(WFI_OUTPUT, at), size);
}

/* `data`: what this member adds to a sum. */
static void build(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around, wfi_operand data)
{
    size_t bytes = wfi_part_bytes(collective);
    for (size_t at = 0; at < bytes; at += collective->chunk) {
        size_t size = bytes - at < collective->chunk ? bytes - at : collective->chunk;
        if (collective->kind != WFI_BROADCAST)
            reduce(collective, schedule, around, wfi_beyond(data, at), at, size);
        if (collective->kind != WFI_REDUCE)
            broadcast(collective, schedule, around, at, size);
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
    build(collective, schedule, &around, wfi_at(collective->kind == WFI_REDUCE ? WFI_INPUT : WFI_OUTPUT, 0));
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

/* Longer parts use a chain of hosts: from this size on rounds cost less than bytes, as in selection.c. */
#define CHAIN_BYTES 65536

static void add_leaders(const wfi_collective *collective, const wfi_levels *levels, relatives *out)
{
    line hosts = {.count = levels->host_count, .members = levels->leaders};
    if (levels->my_place == 0)
        (wfi_part_bytes(collective) > CHAIN_BYTES ? add_chain : add_tree)(&hosts, levels->my_host, out);
}

/* The sum of a host, which its leader collects in memory, is beyond the rooms that `reduce` uses. */
static void build_with_memory(const wfi_collective *collective, const wfi_levels *levels, wfi_schedule *schedule)
{
    bool leads = levels->my_place == 0, reduces = collective->kind == WFI_REDUCE;
    size_t bytes = wfi_part_bytes(collective);
    wfi_operand in = wfi_at(WFI_INPUT, 0), out = wfi_at(WFI_OUTPUT, 0);
    relatives around = {0};
    add_leaders(collective, levels, &around);
    wfi_operand sum = wfi_at(WFI_SCRATCH, around.child_count * bytes);
    if (reduces)
        wfi_schedule_share(schedule, leads ? WFI_PART_COLLECT : WFI_PART_GIVE, in, bytes, sum, leads ? bytes : 0);
    if (leads)
        build(collective, schedule, &around, reduces ? sum : out);
    if (!reduces)
        wfi_schedule_share(schedule, leads ? WFI_PART_SPREAD : WFI_PART_TAKE, out, leads ? bytes : 0, out,
                           leads ? 0 : bytes);
}

void wfi_build_two_trees(const wfi_collective *collective, const wfi_levels *levels, wfi_schedule *schedule)
{
    relatives around = {0};
    line here = {.count = levels->here_count, .members = levels->here};
    if (levels->shares) {
        build_with_memory(collective, levels, schedule);
        return;
    }
    add_tree(&here, levels->my_place, &around);
    add_leaders(collective, levels, &around);
    build(collective, schedule, &around, wfi_at(collective->kind == WFI_REDUCE ? WFI_INPUT : WFI_OUTPUT, 0));
}
