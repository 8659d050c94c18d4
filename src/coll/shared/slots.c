/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c - the layout of the memory: the members' flags, then for each member two slots, each with a head. */
#include "coll/shared/slots.h"

#include <assert.h>
#include <stdatomic.h>

#define PAGE 4096

typedef struct flags {
    _Alignas(128) _Atomic uint64_t turns[WFI_SLOTS_FLAGS]; /* two lines: processors fetch lines in pairs */
} flags;

typedef struct slot {
    _Alignas(64) _Atomic uint64_t number, what, count;
    _Alignas(64) uint8_t data[WFI_SLOT_BYTES];
} slot;

static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock in this process would not help other processes");

static size_t slots_begin(size_t members)
{
    return (members * sizeof(flags) + PAGE - 1) / PAGE * PAGE;
}

size_t wfi_slots_bytes(size_t members)
{
    return (slots_begin(members) + members * 2 * sizeof(slot) + PAGE - 1) / PAGE * PAGE;
}

static slot *slot_of(const wfi_slots *slots, size_t member, uint64_t turn)
{
    assert(member < slots->members);
    return (slot *)(void *)(slots->memory + slots_begin(slots->members)) + 2 * member + turn % 2;
}

static flags *flags_of(const wfi_slots *slots, size_t member)
{
    assert(member < slots->members);
    return (flags *)(void *)slots->memory + member;
}

uint8_t *wfi_slots_data(const wfi_slots *slots, size_t member, uint64_t turn)
{
    return slot_of(slots, member, turn)->data;
}

void wfi_slots_write_head(const wfi_slots *slots, uint64_t turn, const wfi_slot_head *head)
{
    slot *mine = slot_of(slots, slots->me, turn);
    atomic_store_explicit(&mine->number, head->number, memory_order_relaxed);
    atomic_store_explicit(&mine->what, head->what, memory_order_relaxed);
    atomic_store_explicit(&mine->count, head->count, memory_order_relaxed);
}

wfi_slot_head wfi_slots_read_head(const wfi_slots *slots, size_t member, uint64_t turn)
{
    slot *theirs = slot_of(slots, member, turn);
    return (wfi_slot_head){.number = atomic_load_explicit(&theirs->number, memory_order_relaxed),
                           .what = atomic_load_explicit(&theirs->what, memory_order_relaxed),
                           .count = atomic_load_explicit(&theirs->count, memory_order_relaxed)};
}

/* Sequentially consistent, as wfi_fabric_ops.wake demands: the peer arms its door, then reads the flag. */
void wfi_slots_set(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn)
{
    atomic_store(&flags_of(slots, slots->me)->turns[flag], turn);
}

bool wfi_slots_has(const wfi_slots *slots, size_t member, wfi_slots_flag flag, uint64_t turn)
{
    return atomic_load(&flags_of(slots, member)->turns[flag]) >= turn;
}

bool wfi_slots_have(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn, size_t *first)
{
    while (*first < slots->members && wfi_slots_has(slots, *first, flag, turn))
        ++*first;
    return *first == slots->members;
}
