/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - what a member computes in a turn. */
#include "coll/shared/slots.h"

#include "tensor/combine.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/*
 * If the members of an allreduce have more bytes than this together, it has two steps. Then each byte is read twice
 * instead of once by each member, but the members wait for each other once more. For two members both ways move as many
 * bytes, so that one step is faster, unless the sum takes longer than a copy (PLAIN_BYTES).
 */
#define ONE_STEP_BYTES ((size_t)16 << 10)
#define PLAIN_BYTES 4 /* of an element: smaller ones are converted before they are added */

wfi_slots_waited wfi_slots_waits(const wfi_collective *collective)
{
    bool is_root = collective->me == collective->root;
    switch (collective->kind) {
    case WFI_BROADCAST:
    case WFI_SCATTER:
        return is_root ? WFI_SLOTS_FOR_NONE : WFI_SLOTS_FOR_ROOT;
    case WFI_REDUCE:
    case WFI_GATHER:
        return is_root ? WFI_SLOTS_FOR_ALL : WFI_SLOTS_FOR_NONE;
    default:
        return WFI_SLOTS_FOR_ALL;
    }
}

bool wfi_slots_has_second(const wfi_collective *collective)
{
    return collective->kind == WFI_ALLREDUCE && wfi_part_bytes(collective) * collective->members > ONE_STEP_BYTES &&
           (collective->members > 2 || collective->element < PLAIN_BYTES);
}

size_t wfi_slots_work_bytes(const wfi_collective *collective)
{
    wfi_slots_waited waits = wfi_slots_waits(collective);
    if (wfi_slots_has_second(collective))
        return 2 * wfi_part_bytes(collective);
    if (waits == WFI_SLOTS_FOR_NONE && collective->kind != WFI_SCATTER)
        return 0; /* its part is done when its data are in its slot */
    return wfi_part_bytes(collective) * (waits == WFI_SLOTS_FOR_ALL ? collective->members : 1);
}

/*
 * Copies into this member's slot. A usual store first fetches the line from the cache of the member that has read it
 * last. With `streams` the stores bypass all caches.
 */
static void copy_to_slot(const wfi_slots_work *work, uint8_t *to, const uint8_t *from, size_t bytes)
{
#ifdef __SSE2__
    size_t head = -(uintptr_t)to % 64, whole = bytes > head ? (bytes - head) / 64 * 64 : 0;
    if (work->streams && whole) {
        memcpy(to, from, head);
        for (size_t at = head; at < head + whole; at += 64) {
            const __m128i *source = (const void *)(from + at);
            __m128i *line = (void *)(to + at), a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                    c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(line, a);
            _mm_stream_si128(line + 1, b);
            _mm_stream_si128(line + 2, c);
            _mm_stream_si128(line + 3, d);
        }
        _mm_sfence(); /* before the flag */
        memcpy(to + head + whole, from + head + whole, bytes - head - whole);
        return;
    }
#else
    (void)work;
#endif
    memcpy(to, from, bytes);
}

static uint8_t *data_at(const wfi_slots_work *work, size_t member)
{
    return wfi_slots_data(work->slots, member, work->turn, wfi_slot_need(work->collective));
}

void wfi_slots_put(const wfi_slots_work *work)
{
    const wfi_collective *collective = work->collective;
    const uint8_t *from = work->input;
    size_t bytes = wfi_slot_need(collective);
    if (wfi_slots_waits(collective) == WFI_SLOTS_FOR_ROOT ||
        (collective->kind == WFI_GATHER && collective->me == collective->root))
        return;                             /* its data are not read by others */
    if (wfi_slots_has_second(collective)) { /* the others do not need the part that this member sums */
        size_t begin = wfi_part_begin(collective, collective->members, collective->me);
        size_t end = wfi_part_begin(collective, collective->members, collective->me + 1);
        uint8_t *to = data_at(work, collective->me);
        copy_to_slot(work, to, work->output, begin);
        copy_to_slot(work, to + end, (const uint8_t *)work->output + end, bytes - end);
        return;
    }
    if (collective->kind == WFI_ALLREDUCE || collective->kind == WFI_BROADCAST)
        from = work->output;
    else if (collective->kind == WFI_ALLGATHER && collective->in_place)
        from = (const uint8_t *)work->output + collective->me * bytes;
    if (bytes)
        copy_to_slot(work, data_at(work, collective->me), from, bytes);
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

#define BLOCK_BYTES 2048 /* summed at once, so that partial sums stay in the cache */
#define LEVELS_MAX 16    /* log2 of the most members */

/* A block of the slots, while it is summed. */
typedef struct block {
    const wfi_slots_work *work;
    size_t at, size;  /* in the slots */
    size_t extra;     /* as in doubling.c: of the first 2 * extra members, each two count as one */
    uint8_t *partial; /* LEVELS_MAX blocks for partial sums, one for each level of the tree */
} block;

/* In an allreduce this member's own data are in its output. Its slot may not have them. */
static const uint8_t *data_of(const block *of, size_t member)
{
    if (of->work->collective->kind == WFI_ALLREDUCE && member == of->work->collective->me)
        return (const uint8_t *)of->work->output + of->at;
    return data_at(of->work, member) + of->at;
}

static void add(const block *of, uint8_t *to, const uint8_t *a, const uint8_t *b)
{
    wfi_combine(of->work->dtype, of->work->how, to, a, b, of->size / of->work->collective->element);
}

/*
 * The sum over 2^level places from `first` on, in pairs, as recursive doubling adds (algorithm/doubling.c): so both
 * give the same bits. A place is one member, or two of the first 2 * extra. Returns `to`, which then holds the sum; or
 * the data of a member in its slot, if they alone are the sum.
 */
static const uint8_t *sum_of(const block *of, size_t first, unsigned level, uint8_t *to)
{
    if (level == 0 && first >= of->extra)
        return data_of(of, first + of->extra);
    if (level == 0) {
        add(of, to, data_of(of, 2 * first), data_of(of, 2 * first + 1));
        return to;
    }
    uint8_t *half = of->partial + (size_t)(level - 1) * BLOCK_BYTES;
    const uint8_t *a = sum_of(of, first, level - 1, to);
    const uint8_t *b = sum_of(of, first + ((size_t)1 << (level - 1)), level - 1, half);
    add(of, to, a, b);
    return to;
}

/* to = the sum over all members of the `size` bytes at `at` in their slots. The same in `copy`, if it is not NULL. */
static void reduce(const wfi_slots_work *work, uint8_t *to, uint8_t *copy, size_t at, size_t size)
{
    _Alignas(64) uint8_t partial[LEVELS_MAX * BLOCK_BYTES], sum[BLOCK_BYTES];
    const wfi_collective *collective = work->collective;
    unsigned level = 0; /* log2 of the members, rounded down */
    while ((size_t)2 << level <= collective->members)
        level++;
    for (size_t done = 0, piece; done < size; done += piece) {
        piece = size - done < BLOCK_BYTES ? size - done : BLOCK_BYTES;
        block of = {.work = work,
                    .at = at + done,
                    .size = piece,
                    .extra = collective->members - ((size_t)1 << level),
                    .partial = partial};
        /* With more than two members, partial sums are written before this member's own data, at `to`, are read. */
        uint8_t *block_sum = collective->members > 2 ? sum : to + done;
        (void)sum_of(&of, 0, level, block_sum);
        if (collective->divides)
            wfi_combine_divide(work->dtype, block_sum, piece / collective->element, collective->members);
        if (block_sum != to + done)
            memcpy(to + done, block_sum, piece);
        if (copy)
            copy_to_slot(work, copy + done, block_sum, piece);
    }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static void gather(const wfi_slots_work *work, size_t at)
{
    size_t bytes = wfi_part_bytes(work->collective);
    for (size_t i = 0; i < work->collective->members; i++)
        memcpy((uint8_t *)work->output + i * bytes, data_at(work, i) + at, bytes);
}

static void gather_at_root(const wfi_slots_work *work)
{
    size_t bytes = wfi_part_bytes(work->collective), me = work->collective->me;
    for (size_t i = 0; i < work->collective->members; i++)
        if (i != me)
            memcpy((uint8_t *)work->output + i * bytes, data_at(work, i), bytes);
    if (!work->collective->in_place)
        memcpy((uint8_t *)work->output + me * bytes, work->input, bytes);
}

static void first_with_root(const wfi_slots_work *work)
{
    const wfi_collective *collective = work->collective;
    size_t bytes = wfi_part_bytes(collective);
    bool is_root = collective->me == collective->root, scatters = collective->kind == WFI_SCATTER;
    const uint8_t *from = data_at(work, collective->root) + (scatters ? collective->me * bytes : 0);
    if (collective->kind == WFI_REDUCE && is_root)
        reduce(work, work->output, NULL, 0, bytes);
    else if (collective->kind == WFI_GATHER && is_root)
        gather_at_root(work);
    else if ((scatters || collective->kind == WFI_BROADCAST) && !is_root)
        memcpy(work->output, from, bytes);
    else if (scatters && !collective->in_place)
        memcpy(work->output, (const uint8_t *)work->input + collective->me * bytes, bytes);
}

void wfi_slots_first(const wfi_slots_work *work)
{
    const wfi_collective *collective = work->collective;
    size_t bytes = wfi_part_bytes(collective), me = collective->me;
    if (!bytes)
        return;
    switch (collective->kind) {
    case WFI_ALLREDUCE:
        if (wfi_slots_has_second(collective)) {
            size_t begin = wfi_part_begin(collective, collective->members, me),
                   end = wfi_part_begin(collective, collective->members, me + 1);
            reduce(work, (uint8_t *)work->output + begin, data_at(work, me) + begin, begin, end - begin);
        } else {
            reduce(work, work->output, NULL, 0, bytes);
        }
        break;
    case WFI_ALLGATHER:
        gather(work, 0);
        break;
    case WFI_REDUCE_SCATTER:
        reduce(work, work->output, NULL, me * bytes, bytes);
        break;
    case WFI_ALL_TO_ALL:
        gather(work, me * bytes);
        break;
    default:
        first_with_root(work);
        break;
    }
}

void wfi_slots_second(const wfi_slots_work *work)
{
    const wfi_collective *collective = work->collective;
    for (size_t i = 0; i < collective->members; i++) {
        size_t begin = wfi_part_begin(collective, collective->members, i),
               end = wfi_part_begin(collective, collective->members, i + 1);
        if (i != collective->me && end > begin)
            memcpy((uint8_t *)work->output + begin, data_at(work, i) + begin, end - begin);
    }
}
