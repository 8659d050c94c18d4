/* SPDX-License-Identifier: Apache-2.0 */
/*
 * race.c - reports two pieces of work that use the same memory, of which at least one writes it, if nothing orders
 * them.
 *
 * A copy says what it reads and writes. Of a kernel only the addresses among its arguments are known. What it writes is
 * found by comparing the allocations before and after it runs. It counts as reading each allocation from the address
 * on. So a kernel that writes the bytes that were there before counts as a reader. Kernels are compared only from
 * the time on when the program has created a stream.
 */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an item did to an allocation. */
typedef struct access {
    struct access *next;
    const char *piece;       /* the address of the allocation */
    const char *begin, *end; /* the bytes */
    bool writes;
    int timeline;
    uint32_t tick;
    int device;
    unsigned stream;
    const char *name;
    uint64_t number;
} access;

enum { CHAINS = 1024 };
static access *chains[CHAINS]; /* by allocation: accesses that later items may be unordered with */
static size_t access_count;

/* The contents of the allocations that the running kernel uses, before it runs. */
static struct before {
    gpu_piece piece;
    const char *from; /* the least address among the arguments */
    char *bytes;
} * befores;
static size_t before_count, before_room;

static access **chain_of(const char *piece)
{
    return &chains[((uintptr_t)piece >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 54];
}

static void drop(access **at)
{
    access *gone = *at;
    *at = gone->next;
    free(gone);
    access_count--;
}

/* ---- Finding races ---- */

static void describe(char *text, size_t size, const access *a)
{
    char stream[64];
    if (a->stream == 0)
        snprintf(stream, sizeof(stream), "the legacy stream of device %d", a->device);
    else
        snprintf(stream, sizeof(stream), "stream %u of device %d", a->stream, a->device);
    snprintf(text, size, "%s (work %llu, %s) %s bytes %zu to %zu", a->name, (unsigned long long)a->number, stream,
             a->writes ? "writes" : "reads", (size_t)(a->begin - a->piece), (size_t)(a->end - a->piece) - 1);
}

static void report(const access *one, const access *other, const gpu_piece *piece)
{
    char texts[2][160];
    bool in_order = one->number < other->number;
    describe(texts[0], sizeof(texts[0]), in_order ? one : other);
    describe(texts[1], sizeof(texts[1]), in_order ? other : one);
    gpu_fault("a race on the %zu bytes at %p: %s, %s; no event or wait orders them", piece->size, (void *)piece->at,
              texts[0], texts[1]);
}

static bool is_before(const access *earlier, const gpu_clock *clock)
{
    return earlier->timeline < clock->count && earlier->tick <= clock->ticks[earlier->timeline];
}

/* Work that runs later never comes before work that has run: so it is enough to look whether `old` comes before. */
static void add(const access *new, const gpu_piece *piece, const gpu_clock *clock)
{
    access **at = chain_of(new->piece);
    while (*at) {
        access *old = *at;
        bool same_piece = old->piece == new->piece, covered = new->begin <= old->begin && old->end <= new->end;
        bool overlaps = new->begin < old->end && old->begin < new->end;
        if (same_piece && overlaps && (old->writes || new->writes) && !is_before(old, clock))
            report(old, new, piece);
        if (same_piece && covered && old->timeline == new->timeline && (new->writes || !old->writes))
            drop(at); /* what would race with it races with the new one */
        else
            at = &old->next;
    }
    access *kept = malloc(sizeof(*kept));
    if (!kept)
        abort();
    *kept = *new;
    *at = kept; /* the last, so that writes of an item are found before what it may have read */
    access_count++;
}

static void add_bytes(const gpu_item *item, const gpu_piece *piece, const char *begin, const char *end, bool writes)
{
    if (begin >= end)
        return;
    access a = {.piece = piece->at,
                .begin = begin,
                .end = end,
                .writes = writes,
                .timeline = item->timeline,
                .tick = item->clock->ticks[item->timeline],
                .device = item->device,
                .stream = gpu_timeline_stream(item->timeline),
                .name = item->name,
                .number = item->number};
    add(&a, piece, item->clock);
}

/* ---- What a kernel writes ---- */

static void keep_before(const gpu_operand *operand)
{
    const gpu_piece *piece = gpu_memory_find(operand->at, 0);
    if (!piece)
        return;
    for (size_t i = 0; i < before_count; i++) {
        if (befores[i].piece.at == piece->at) {
            befores[i].from = operand->at < befores[i].from ? operand->at : befores[i].from;
            return;
        }
    }
    if (before_count == before_room) {
        before_room = before_room == 0 ? 16 : 2 * before_room;
        befores = realloc(befores, before_room * sizeof(*befores));
    }
    char *bytes = malloc(piece->size);
    if (!befores || !bytes)
        abort();
    memcpy(bytes, piece->at, piece->size);
    befores[before_count++] = (struct before){*piece, operand->at, bytes};
}

/* Adds what has changed as a write, from the first byte to the last. */
static void compare(const gpu_item *item, const struct before *before)
{
    const char *now = before->piece.at;
    size_t first = 0, end = before->piece.size;
    if (memcmp(now, before->bytes, end) != 0) {
        while (now[first] == before->bytes[first])
            first++;
        while (now[end - 1] == before->bytes[end - 1])
            end--;
        add_bytes(item, &before->piece, now + first, now + end, true);
    }
    add_bytes(item, &before->piece, before->from, now + before->piece.size, false);
}

void gpu_race_before(const gpu_item *item)
{
    for (size_t i = 0; i < item->operand_count && !gpu_timeline_is_alone(); i++)
        if (item->operands[i].use == GPU_USES)
            keep_before(&item->operands[i]);
}

void gpu_race_after(const gpu_item *item)
{
    for (size_t i = 0; i < item->operand_count && !gpu_timeline_is_alone(); i++) {
        const gpu_operand *operand = &item->operands[i];
        const gpu_piece *piece = operand->use == GPU_USES ? NULL : gpu_memory_find(operand->at, operand->size);
        if (piece)
            add_bytes(item, piece, operand->at, operand->at + operand->size, operand->use == GPU_WRITES);
    }
    for (size_t i = 0; i < before_count; i++) {
        compare(item, &befores[i]);
        free(befores[i].bytes);
    }
    before_count = 0;
}

/* ---- Forgetting ---- */

void gpu_race_forget(const char *piece)
{
    for (access **at = chain_of(piece); *at;) {
        if ((*at)->piece == piece)
            drop(at);
        else
            at = &(*at)->next;
    }
}

void gpu_race_settle(void)
{
    for (int i = 0; i < CHAINS && access_count > 0; i++) {
        for (access **at = &chains[i]; *at;) {
            if (gpu_clock_host_knows((*at)->timeline, (*at)->tick))
                drop(at);
            else
                at = &(*at)->next;
        }
    }
}
