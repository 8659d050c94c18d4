/* SPDX-License-Identifier: Apache-2.0 */
/*
 * levels.c - operations in two levels. One member of each host is its leader: the root on its host, the first member on
 * each other one, and on every host if there is no root.
 *
 *   1. Each leader collects from the members of its host: it adds their data to its own (barrier, allreduce, reduce),
 *      or puts their parts side by side (gather).
 *   2. The leaders run an algorithm for one level among themselves: each byte crosses to a host once, however many
 *      members the host has. In a gather or scatter each leader and the root exchange one message for the whole host.
 *   3. Each leader gives the result (barrier, allreduce, broadcast), or to each member its part of it (scatter), to the
 *      members of its host.
 *
 * Steps 1 and 3 use the memory that the members of the host share, if they have such memory and the data fit it.
 * Otherwise they are messages, of which large ones are read directly from the memory of the other member. The messages
 * between leaders are the same in both cases, so hosts need not agree about it. tree.c has reduce and broadcast.
 *
 * ORDER OF SUMS of an allreduce. On a host, the members are added in the pairs of recursive doubling (doubling.c), in
 * memory and by messages. Between hosts, the algorithm determines the order. All leaders have the same bits, and the
 * other members copy them. The numbers of members and hosts, and the size, determine the order. It does not depend on
 * whether a host uses memory. In a reduce it does, because by messages the members of a host are added in a tree.
 */
#include "coll/algorithm/algorithm.h"

#include "base/alloc.h"

#include <stdlib.h>

#define CHILDREN_MAX 64
#define DOUBLING_BYTES 16384       /* between more than two hosts: more than this is not sent whole in each round */
#define RABENSEIFNER_BYTES 4194304 /* likewise: more than this takes a ring, as in selection.c */

/* The relatives of a member in the tree of its host, as places there. */
typedef struct relatives {
    bool has_parent;
    size_t parent;
    size_t children[CHILDREN_MAX]; /* in the order in which they are added */
    size_t child_count;
} relatives;

static void list(const wfi_collective *collective, wfi_levels *out)
{
    const size_t *host = collective->hosts;
    size_t mine = host[collective->me], root = collective->root, leader = wfi_leader_of(collective, collective->me);
    out->here[out->here_count++] = leader;
    out->leaders[out->host_count++] = root;
    for (size_t i = 0; i < collective->members; i++) {
        if (i == collective->me && i != leader)
            out->my_place = out->here_count;
        if (host[i] == mine && i != leader)
            out->here[out->here_count++] = i;
        if (i == mine && i != host[root])
            out->my_host = out->host_count;
        if (host[i] == i && i != host[root])
            out->leaders[out->host_count++] = i;
    }
    wfi_collective here = *collective;
    here.members = out->here_count;
    /* Without levels, the memory is used by whole operations only (coll/share.c). */
    out->shares =
        collective->has_levels && collective->uses_memory && here.members > 1 && wfi_slot_need(&here) <= WFI_SLOT_BYTES;
}

/*
 * A binomial tree, whose sums are those of recursive doubling: of the first 2 * extra members, each two count as one
 * (a pair), so that a power of two is left. The even member of such a pair is the parent of the odd one.
 */
static relatives relatives_of(const wfi_levels *of)
{
    relatives found = {0};
    size_t power = 1, place = of->my_place;
    while (2 * power <= of->here_count)
        power *= 2;
    size_t extra = of->here_count - power;
#define PLACE_OF(pair) ((pair) < extra ? 2 * (pair) : (pair) + extra)
    found.has_parent = place > 0;
    if (place < 2 * extra && place % 2) {
        found.parent = place - 1;
        return found;
    }
    size_t pair = place < 2 * extra ? place / 2 : place - extra, step = 1;
    if (place < 2 * extra)
        found.children[found.child_count++] = place + 1;
    for (; step < power && !(pair & step); step *= 2)
        found.children[found.child_count++] = PLACE_OF(pair + step);
    if (found.has_parent)
        found.parent = PLACE_OF(pair - step);
#undef PLACE_OF
    return found;
}

/* The data of the operation; a barrier has a token, which orders its steps. */
static wfi_operand data_of(const wfi_collective *collective)
{
    return wfi_at(collective->kind == WFI_BARRIER ? WFI_SCRATCH : WFI_OUTPUT, 0);
}

static size_t bytes_of(const wfi_collective *collective)
{
    return collective->kind == WFI_BARRIER ? 1 : wfi_part_bytes(collective);
}

static void reduce_here(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around)
{
    wfi_operand data = data_of(collective);
    size_t bytes = bytes_of(collective);
    for (size_t i = 0; i < around->child_count; i++)
        if (collective->kind == WFI_BARRIER)
            wfi_pieces_recv(collective, schedule, around->children[i], data, bytes);
        else
            wfi_pieces_recv_add(collective, schedule, around->children[i], data, bytes);
    if (around->has_parent)
        wfi_pieces_send(collective, schedule, around->parent, data, bytes);
}

static void broadcast_here(const wfi_collective *collective, wfi_schedule *schedule, const relatives *around)
{
    wfi_operand data = data_of(collective);
    size_t bytes = bytes_of(collective);
    if (around->has_parent)
        wfi_pieces_recv(collective, schedule, around->parent, data, bytes);
    for (size_t i = around->child_count; i-- > 0;) /* the largest subtree first */
        wfi_pieces_send(collective, schedule, around->children[i], data, bytes);
}

/*
 * With two hosts, recursive doubling is best at every size: the data cross once in each direction, at the same time.
 * With more hosts it sends them whole in each of its rounds.
 */
static void build_between_leaders(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t bytes = bytes_of(collective);
    if (collective->kind == WFI_BARRIER)
        wfi_build_dissemination(collective, schedule);
    else if (collective->members <= 2 || bytes <= DOUBLING_BYTES)
        wfi_build_doubling(collective, schedule);
    else if (bytes <= RABENSEIFNER_BYTES)
        wfi_build_rabenseifner(collective, schedule);
    else
        wfi_build_ring(collective, schedule);
}

/* Barrier and allreduce. */
static void build_all(const wfi_collective *collective, wfi_schedule *schedule, const wfi_levels *of)
{
    relatives around = relatives_of(of);
    bool leads = of->my_place == 0;
    size_t bytes = bytes_of(collective);
    wfi_operand data = data_of(collective);
    wfi_collective here = *collective, leaders = *collective;
    here.members = of->here_count;
    here.me = of->my_place;
    here.by_place = of->here;
    leaders.members = of->host_count;
    leaders.me = of->my_host;
    leaders.by_place = of->leaders;
    if (of->shares)
        wfi_schedule_share(schedule, leads ? WFI_PART_COLLECT : WFI_PART_GIVE, data, bytes, data, leads ? bytes : 0);
    else
        reduce_here(&here, schedule, &around);
    if (leads)
        build_between_leaders(&leaders, schedule);
    if (of->shares)
        wfi_schedule_share(schedule, leads ? WFI_PART_SPREAD : WFI_PART_TAKE, data, leads ? bytes : 0, data,
                           leads ? 0 : bytes);
    else
        broadcast_here(&here, schedule, &around);
}

/* ---- Gather and scatter ------------------------------------------------------------------------------------------ */

/* Consecutive members of a host. The parts of such members are side by side at the root. */
typedef struct run {
    size_t first, count;
    size_t place; /* of the first one, among the members of the host */
} run;

/* Finds the next run of that host. The first one follows a run of zeros. */
static bool next_run(const wfi_collective *collective, size_t host, run *at)
{
    const size_t *hosts = collective->hosts;
    size_t first = at->first + at->count;
    while (first < collective->members && hosts[first] != host)
        first++;
    *at = (run){.first = first, .place = at->place + at->count};
    while (first + at->count < collective->members && hosts[first + at->count] == host)
        at->count++;
    return at->count > 0;
}

/* The parts of a host's members, by place: where they are at its leader while they are collected or spread. */
static wfi_operand parts_of(const wfi_collective *collective, const wfi_levels *of, wfi_buffer all, wfi_buffer own)
{
    run first = {0};
    (void)next_run(collective, collective->hosts[collective->me], &first);
    if (collective->me == collective->root && first.count == of->here_count)
        return wfi_at(all, first.first * wfi_part_bytes(collective));
    if (collective->me != collective->root && of->here_count == 1)
        return wfi_at(own, 0);
    return wfi_at(WFI_SCRATCH, 0);
}

/* At a leader: `parts` = what the members of its host give. */
static void gather_here(const wfi_collective *collective, wfi_schedule *schedule, const wfi_levels *of,
                        wfi_operand parts)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me, place = 0;
    wfi_operand own = wfi_at(WFI_INPUT, 0);
    if (of->shares) {
        wfi_schedule_share(schedule, WFI_PART_COLLECT, own, bytes, parts, of->here_count * bytes);
        return;
    }
    for (size_t i = 0; i < collective->members; i++) {
        if (collective->hosts[i] != collective->hosts[me])
            continue;
        wfi_operand to = wfi_beyond(parts, place++ * bytes);
        if (i != me)
            wfi_pieces_recv(collective, schedule, i, to, bytes);
        else if (to.buffer != WFI_INPUT && !(to.buffer == WFI_OUTPUT && collective->in_place))
            wfi_pieces_copy(collective, schedule, to, own, bytes);
    }
}

/* Each member gives its part to its leader. Each leader sends the parts of its host to the root, run by run. */
static void gather(const wfi_collective *collective, wfi_schedule *schedule, const wfi_levels *of)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me, root = collective->root;
    size_t host = collective->hosts[me], leader = wfi_leader_of(collective, me);
    if (me != leader) {
        if (of->shares)
            wfi_schedule_share(schedule, WFI_PART_GIVE, wfi_at(WFI_INPUT, 0), bytes, wfi_at(WFI_INPUT, 0), 0);
        else
            wfi_pieces_send(collective, schedule, leader, wfi_at(WFI_INPUT, 0), bytes);
        return;
    }
    wfi_operand parts = parts_of(collective, of, WFI_OUTPUT, WFI_INPUT);
    gather_here(collective, schedule, of, parts);
    for (run at = {0}; next_run(collective, host, &at);) {
        wfi_operand from = wfi_beyond(parts, at.place * bytes);
        if (me != root)
            wfi_pieces_send(collective, schedule, root, from, at.count * bytes);
        else if (parts.buffer == WFI_SCRATCH)
            wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, at.first * bytes), from, at.count * bytes);
    }
    for (size_t other = 0; me == root && other < collective->members; other++)
        for (run at = {0}; collective->hosts[other] == other && other != host && next_run(collective, other, &at);)
            wfi_pieces_recv(collective, schedule, other, wfi_at(WFI_OUTPUT, at.first * bytes), at.count * bytes);
}

/* At a leader: each member of its host gets its part. */
static void scatter_here(const wfi_collective *collective, wfi_schedule *schedule, const wfi_levels *of,
                         wfi_operand parts)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me, place = 0;
    wfi_operand own = wfi_at(WFI_OUTPUT, 0);
    if (of->shares) {
        wfi_schedule_share(schedule, WFI_PART_SPREAD, parts, of->here_count * bytes, own, bytes);
        return;
    }
    for (size_t i = 0; i < collective->members; i++) {
        if (collective->hosts[i] != collective->hosts[me])
            continue;
        wfi_operand from = wfi_beyond(parts, place++ * bytes);
        if (i != me)
            wfi_pieces_send(collective, schedule, i, from, bytes);
        else if (from.buffer != WFI_OUTPUT && !collective->in_place)
            wfi_pieces_copy(collective, schedule, own, from, bytes);
    }
}

/* The reverse of a gather. */
static void scatter(const wfi_collective *collective, wfi_schedule *schedule, const wfi_levels *of)
{
    size_t bytes = wfi_part_bytes(collective), me = collective->me, root = collective->root;
    size_t host = collective->hosts[me], leader = wfi_leader_of(collective, me);
    if (me != leader) {
        if (of->shares)
            wfi_schedule_share(schedule, WFI_PART_TAKE, wfi_at(WFI_OUTPUT, 0), 0, wfi_at(WFI_OUTPUT, 0), bytes);
        else
            wfi_pieces_recv(collective, schedule, leader, wfi_at(WFI_OUTPUT, 0), bytes);
        return;
    }
    wfi_operand parts = parts_of(collective, of, WFI_INPUT, WFI_OUTPUT);
    for (size_t other = 0; me == root && other < collective->members; other++)
        for (run at = {0}; collective->hosts[other] == other && other != host && next_run(collective, other, &at);)
            wfi_pieces_send(collective, schedule, other, wfi_at(WFI_INPUT, at.first * bytes), at.count * bytes);
    for (run at = {0}; next_run(collective, host, &at);) {
        wfi_operand to = wfi_beyond(parts, at.place * bytes);
        if (me != root)
            wfi_pieces_recv(collective, schedule, root, to, at.count * bytes);
        else if (parts.buffer == WFI_SCRATCH)
            wfi_pieces_copy(collective, schedule, to, wfi_at(WFI_INPUT, at.first * bytes), at.count * bytes);
    }
    scatter_here(collective, schedule, of, parts);
}

void wfi_build_two_level(const wfi_collective *collective, wfi_schedule *schedule)
{
    wfi_levels of = {.here = wfi_calloc(collective->members, sizeof(*of.here)),
                     .leaders = wfi_calloc(collective->members, sizeof(*of.leaders))};
    if (of.here && of.leaders) {
        list(collective, &of);
        if (collective->kind == WFI_GATHER)
            gather(collective, schedule, &of);
        else if (collective->kind == WFI_SCATTER)
            scatter(collective, schedule, &of);
        else if (collective->kind == WFI_REDUCE || collective->kind == WFI_BROADCAST)
            wfi_build_two_trees(collective, &of, schedule);
        else
            build_all(collective, schedule, &of);
    }
    schedule->failed |= !of.here || !of.leaders;
    free(of.here);
    free(of.leaders);
}
