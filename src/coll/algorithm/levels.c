/* SPDX-License-Identifier: Apache-2.0 */
/*
 * levels.c - barrier and allreduce in two levels. The first member of each host is its leader.
 *
 *   1. Each leader collects from the members of its host: it adds their data to its own.
 *   2. The leaders run an algorithm for one level among themselves: each byte crosses to a host once, however many
 *      members the host has.
 *   3. Each leader gives the result to the members of its host.
 *
 * Steps 1 and 3 use the memory that the members of the host share, if they have such memory and the data fit it.
 * Otherwise they are messages, of which large ones are read directly from the memory of the other member. The messages
 * between leaders are the same in both cases, so hosts need not agree about it.
 *
 * ORDER OF SUMS. On a host, the members are added in the pairs of recursive doubling (doubling.c), in memory and by
 * messages. Between hosts, the algorithm determines the order. All leaders have the same bits, and the other members
 * copy them. The numbers of members and hosts, and the size, determine the order. It does not depend on whether a host
 * uses memory.
 */
#include "coll/algorithm/algorithm.h"

#include "base/alloc.h"

#include <stdlib.h>

#define CHILDREN_MAX 64
#define DOUBLING_BYTES 16384       /* between more than two hosts: more than this is not sent whole in each round */
#define RABENSEIFNER_BYTES 4194304 /* likewise: more than this takes a ring, as in table.c */

/* The members of this host, and the leaders. */
typedef struct levels {
    size_t here_count, my_place; /* the leader has place 0 */
    size_t host_count, my_host;
    size_t *here, *leaders;
} levels;

/* A member's relatives in the tree of its host, as places there. */
typedef struct family {
    bool has_parent;
    size_t parent;
    size_t children[CHILDREN_MAX]; /* in the order in which they are added */
    size_t child_count;
} family;

static void list(const wfi_collective *collective, levels *out)
{
    const size_t *host = collective->hosts;
    size_t mine = host[collective->me];
    for (size_t i = 0; i < collective->members; i++) {
        if (i == collective->me)
            out->my_place = out->here_count;
        if (host[i] == mine)
            out->here[out->here_count++] = i;
        if (i == mine)
            out->my_host = out->host_count;
        if (host[i] == i)
            out->leaders[out->host_count++] = i;
    }
}

/*
 * A binomial tree, whose sums are those of recursive doubling: of the first 2 * extra members, each two count as one,
 * so that a power of two is left.
 */
static family family_of(const levels *of)
{
    family found = {0};
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
static wfi_place data_of(const wfi_collective *collective)
{
    return wfi_at(collective->kind == WFI_BARRIER ? WFI_SCRATCH : WFI_OUTPUT, 0);
}

static size_t bytes_of(const wfi_collective *collective)
{
    return collective->kind == WFI_BARRIER ? 1 : wfi_part_bytes(collective);
}

static void collect(const wfi_collective *collective, wfi_schedule *schedule, const family *around)
{
    wfi_place data = data_of(collective);
    size_t bytes = bytes_of(collective);
    for (size_t i = 0; i < around->child_count; i++)
        if (collective->kind == WFI_BARRIER)
            wfi_pieces_recv(collective, schedule, around->children[i], data, bytes);
        else
            wfi_pieces_recv_add(collective, schedule, around->children[i], data, bytes);
    if (around->has_parent)
        wfi_pieces_send(collective, schedule, around->parent, data, bytes);
}

static void spread(const wfi_collective *collective, wfi_schedule *schedule, const family *around)
{
    wfi_place data = data_of(collective);
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
static void join_leaders(const wfi_collective *collective, wfi_schedule *schedule)
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

static void build(const wfi_collective *collective, wfi_schedule *schedule, const levels *of)
{
    family around = family_of(of);
    bool leads = of->my_place == 0;
    /* Without levels, the memory is used by whole operations only (coll/share.c). */
    bool uses_memory = collective->has_levels && collective->uses_memory && of->here_count > 1 &&
                       wfi_part_bytes(collective) <= WFI_SLOT_BYTES;
    wfi_collective here = *collective, leaders = *collective;
    here.members = of->here_count;
    here.me = of->my_place;
    here.who = of->here;
    leaders.members = of->host_count;
    leaders.me = of->my_host;
    leaders.who = of->leaders;
    if (uses_memory)
        wfi_schedule_share(schedule, leads ? WFI_PART_COLLECT : WFI_PART_GIVE, data_of(collective),
                           bytes_of(collective));
    else
        collect(&here, schedule, &around);
    if (leads)
        join_leaders(&leaders, schedule);
    if (uses_memory)
        wfi_schedule_share(schedule, leads ? WFI_PART_SPREAD : WFI_PART_TAKE, data_of(collective),
                           bytes_of(collective));
    else
        spread(&here, schedule, &around);
}

void wfi_build_two_level(const wfi_collective *collective, wfi_schedule *schedule)
{
    if (collective->kind != WFI_BARRIER && collective->kind != WFI_ALLREDUCE) {
        wfi_build_two_trees(collective, schedule);
        return;
    }
    levels of = {.here = wfi_calloc(collective->members, sizeof *of.here),
                 .leaders = wfi_calloc(collective->members, sizeof *of.leaders)};
    if (of.here && of.leaders) {
        list(collective, &of);
        build(collective, schedule, &of);
    }
    schedule->failed |= !of.here || !of.leaders;
    free(of.here);
    free(of.leaders);
}
