/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doubling.c - algorithms in about log2(members) rounds, in which members at a distance of 1, 2, 4 ... exchange.
 *
 * Sources: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier Synchronization", IJPP 17(1), 1988
 * (dissemination); E. Brooks III, "The Butterfly Barrier", IJPP 15(4), 1986 (the same in pairs); R. Thakur, R.
 * Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005
 * (recursive doubling, and members that are no power of two); R. Rabenseifner, "Optimization of Collective Reduction
 * Operations", ICCS 2004 (recursive halving and doubling); J. Bruck and others, "Efficient Algorithms for All-to-All
 * Communications in Multiport Message-Passing Systems", IEEE TPDS 8(11), 1997.
 */
#include "coll/algorithm/algorithm.h"

#include "base/alloc.h"

#include <stdlib.h>

/* In pairs where members are a power of two. */
void wfi_build_dissemination(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t members = collective->members, me = collective->me;
    wfi_operand token = wfi_at(WFI_SCRATCH, 0); /* orders them: a round's send waits for the recv before */
    bool in_pairs = !(members & (members - 1)); /* then each message also acknowledges the one that it meets */
    for (size_t distance = 1; distance < members; distance *= 2) {
        size_t to = in_pairs ? me ^ distance : (me + distance) % members;
        size_t from = in_pairs ? to : (me + members - distance) % members;
        wfi_schedule_send(schedule, wfi_member_at(collective, to), token, 1);
        wfi_schedule_recv(schedule, wfi_member_at(collective, from), token, 1);
    }
}

/*
 * The largest power of two of the members take part in the rounds. Of the first 2 * (members - power), the odd ones
 * take part for themselves and for the even one before them.
 */
typedef struct folding {
    size_t power, extra;
    bool sits_out; /* does not take part: its neighbour does so for it */
    size_t place;  /* number among those that take part */
} folding;

static folding fold_of(const wfi_collective *collective)
{
    folding fold = {.power = 1};
    while (2 * fold.power <= collective->members)
        fold.power *= 2;
    fold.extra = collective->members - fold.power;
    fold.sits_out = collective->me < 2 * fold.extra && collective->me % 2 == 0;
    fold.place = collective->me < 2 * fold.extra ? collective->me / 2 : collective->me - fold.extra;
    return fold;
}

static size_t member_at(const folding *fold, size_t place)
{
    return place < fold->extra ? 2 * place + 1 : place + fold->extra;
}

/* Members that do not take part send their data to their neighbour. */
static void fold_in(const wfi_collective *collective, wfi_schedule *schedule, const folding *fold)
{
    size_t me = collective->me, bytes = wfi_part_bytes(collective);
    wfi_operand all = wfi_at(WFI_OUTPUT, 0);
    if (me >= 2 * fold->extra)
        return;
    if (fold->sits_out)
        wfi_pieces_send(collective, schedule, me + 1, all, bytes);
    else
        wfi_pieces_recv_add(collective, schedule, me - 1, all, bytes);
}

/* And they receive the result. */
static void fold_out(const wfi_collective *collective, wfi_schedule *schedule, const folding *fold)
{
    size_t me = collective->me, bytes = wfi_part_bytes(collective);
    wfi_operand all = wfi_at(WFI_OUTPUT, 0);
    if (me >= 2 * fold->extra)
        return;
    if (fold->sits_out)
        wfi_pieces_recv(collective, schedule, me + 1, all, bytes);
    else
        wfi_pieces_send(collective, schedule, me - 1, all, bytes);
}

void wfi_build_doubling(const wfi_collective *collective, wfi_schedule *schedule)
{
    folding fold = fold_of(collective);
    size_t bytes = wfi_part_bytes(collective);
    wfi_operand all = wfi_at(WFI_OUTPUT, 0);
    fold_in(collective, schedule, &fold);
    for (size_t distance = 1; distance < fold.power && !fold.sits_out; distance *= 2) {
        size_t place = fold.place ^ distance, peer = member_at(&fold, place);
        wfi_pieces_send(collective, schedule, peer, all, bytes);
        wfi_pieces_recv_add(collective, schedule, peer, all, bytes);
    }
    if (collective->divides && !fold.sits_out)
        wfi_pieces_divide(collective, schedule, all, bytes);
    fold_out(collective, schedule, &fold);
}

/*
 * A reduce-scatter by recursive halving, then an allgather by recursive doubling. The data have as many parts as
 * members take part. Of the parts that a member still adds, from `first` on, it gives half to its peer in each round.
 */
void wfi_build_rabenseifner(const wfi_collective *collective, wfi_schedule *schedule)
{
    folding fold = fold_of(collective);
    size_t parts = fold.power, first = 0;
#define BEGIN(part) wfi_part_begin(collective, parts, part)
#define SIZE(part, count) (BEGIN((part) + (count)) - BEGIN(part))
    fold_in(collective, schedule, &fold);
    for (size_t half = parts / 2; half > 0 && !fold.sits_out; half /= 2) {
        size_t peer_place = fold.place ^ half, peer = member_at(&fold, peer_place);
        bool keeps_lower = fold.place < peer_place;
        size_t kept = keeps_lower ? first : first + half, given = keeps_lower ? first + half : first;
        wfi_pieces_send(collective, schedule, peer, wfi_at(WFI_OUTPUT, BEGIN(given)), SIZE(given, half));
        wfi_pieces_recv_add(collective, schedule, peer, wfi_at(WFI_OUTPUT, BEGIN(kept)), SIZE(kept, half));
        first = kept;
    }
    if (collective->divides && !fold.sits_out)
        wfi_pieces_divide(collective, schedule, wfi_at(WFI_OUTPUT, BEGIN(first)), SIZE(first, 1));
    for (size_t count = 1; count < parts && !fold.sits_out; count *= 2) {
        size_t peer = member_at(&fold, fold.place ^ count);
        size_t gathered = fold.place & ~(count - 1), missing = gathered ^ count;
        wfi_pieces_send(collective, schedule, peer, wfi_at(WFI_OUTPUT, BEGIN(gathered)), SIZE(gathered, count));
        wfi_pieces_recv(collective, schedule, peer, wfi_at(WFI_OUTPUT, BEGIN(missing)), SIZE(missing, count));
    }
    fold_out(collective, schedule, &fold);
#undef SIZE
#undef BEGIN
}

/* ---- Allgather --------------------------------------------------------------------------------------------------- */

void wfi_bruck_rounds(const wfi_collective *collective, wfi_schedule *schedule, const size_t *begins)
{
    size_t members = collective->members, me = collective->me;
    for (size_t distance = 1; distance < members; distance *= 2) {
        size_t count = distance < members - distance ? distance : members - distance;
        wfi_pieces_send(collective, schedule, (me + members - distance) % members, wfi_at(WFI_SCRATCH, 0),
                        begins[count]);
        wfi_pieces_recv(collective, schedule, (me + distance) % members, wfi_at(WFI_SCRATCH, begins[distance]),
                        begins[distance + count] - begins[distance]);
    }
}

/* Parts are gathered in scratch, our own first, and put in order at the end. */
void wfi_build_bruck(const wfi_collective *collective, wfi_schedule *schedule)
{
    size_t members = collective->members, me = collective->me, bytes = wfi_part_bytes(collective);
    size_t *begins = wfi_calloc(members + 1, sizeof(*begins));
    schedule->failed = schedule->failed || !begins;
    if (!begins)
        return;
    for (size_t i = 0; i <= members; i++)
        begins[i] = i * bytes;
    wfi_pieces_copy(collective, schedule, wfi_at(WFI_SCRATCH, 0),
                    collective->in_place ? wfi_at(WFI_OUTPUT, me * bytes) : wfi_at(WFI_INPUT, 0), bytes);
    wfi_bruck_rounds(collective, schedule, begins);
    wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, me * bytes), wfi_at(WFI_SCRATCH, 0),
                    (members - me) * bytes);
    wfi_pieces_copy(collective, schedule, wfi_at(WFI_OUTPUT, 0), wfi_at(WFI_SCRATCH, (members - me) * bytes),
                    me * bytes);
    free(begins);
}
