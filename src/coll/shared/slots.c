/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - the layout of the memory: the futex, the members' flags, then for each member two slots, each with a head.
 */
#include "coll/shared/slots.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define PAIR 128 /* bytes: processors fetch lines in pairs */

/* In one line of the cache. */
typedef struct line {
    _Alignas(64) _Atomic uint64_t turn; /* the flag ARRIVED */
    _Atomic uint64_t check;             /* of the head */
    uint8_t data[WFI_SLOTS_LINE_BYTES];
} line;

typedef struct padded_line {
    _Alignas(PAIR) line line;
} padded_line;

typedef struct flags {
    padded_line arrived[2]; /* of odd and of even turns */
    _Alignas(PAIR) _Atomic uint64_t reduced;
    _Atomic uint32_t need_wakeup; /* no bool: another member may write any bits */
} flags;

typedef struct slot {
    _Alignas(64) _Atomic uint64_t number, signature, count, history;
    _Alignas(64) uint8_t data[WFI_SLOT_BYTES];
} slot;

/* At the begin of the memory. The members' flags follow. */
typedef struct futex {
    _Alignas(PAIR) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} futex;

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
              "a lock in this process would not help other processes");
static_assert(sizeof(line) == 64, "one line");

static size_t slots_begin(size_t members)
{
    return (sizeof(futex) + members * sizeof(flags) + PAGE - 1) / PAGE * PAGE;
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
    return (flags *)(void *)(slots->memory + sizeof(futex)) + member;
}

static line *line_of(const wfi_slots *slots, size_t member, uint64_t turn)
{
    return &flags_of(slots, member)->arrived[turn % 2].line;
}

uint8_t *wfi_slots_data(const wfi_slots *slots, size_t member, uint64_t turn, size_t bytes)
{
    return bytes <= WFI_SLOTS_LINE_BYTES ? line_of(slots, member, turn)->data : slot_of(slots, member, turn)->data;
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

/* Different heads have the same check with a probability of 2^-64. */
uint64_t wfi_slots_check(const wfi_slot_head *head)
{
    uint64_t mixed = head->number * UINT64_C(0x9e3779b97f4a7c15) ^ head->signature;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93) ^ head->count;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93) ^ head->history;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return mixed ^ mixed >> 32;
}

void wfi_slots_write_head(const wfi_slots *slots, uint64_t turn, const wfi_slot_head *head)
{
    slot *mine = slot_of(slots, slots->me, turn);
    atomic_store_explicit(&mine->number, head->number, memory_order_relaxed);
    atomic_store_explicit(&mine->signature, head->signature, memory_order_relaxed);
    atomic_store_explicit(&mine->count, head->count, memory_order_relaxed);
    atomic_store_explicit(&mine->history, head->history, memory_order_relaxed);
    atomic_store_explicit(&line_of(slots, slots->me, turn)->check, wfi_slots_check(head), memory_order_relaxed);
}

wfi_slot_head wfi_slots_read_head(const wfi_slots *slots, size_t member, uint64_t turn)
{
    slot *theirs = slot_of(slots, member, turn);
    return (wfi_slot_head){.number = atomic_load_explicit(&theirs->number, memory_order_relaxed),
                           .signature = atomic_load_explicit(&theirs->signature, memory_order_relaxed),
                           .count = atomic_load_explicit(&theirs->count, memory_order_relaxed),
                           .history = atomic_load_explicit(&theirs->history, memory_order_relaxed)};
}

uint64_t wfi_slots_read_check(const wfi_slots *slots, size_t member, uint64_t turn)
{
    return atomic_load_explicit(&line_of(slots, member, turn)->check, memory_order_relaxed);
}

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *flag_of(const wfi_slots *slots, size_t member, wfi_slots_flag flag, uint64_t turn)
{
    return flag == WFI_SLOTS_ARRIVED ? &line_of(slots, member, turn)->turn : &flags_of(slots, member)->reduced;
}

/* Sequentially consistent, as wfi_fabric_ops.wake demands: the peer sets need_wakeup, then reads the flag. */
void wfi_slots_set(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn)
{
    atomic_store(flag_of(slots, slots->me, flag, turn), turn);
}

bool wfi_slots_has(const wfi_slots *slots, size_t member, wfi_slots_flag flag, uint64_t turn)
{
    return atomic_load(flag_of(slots, member, flag, turn)) >= turn;
}

bool wfi_slots_have(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn, size_t *first)
{
    while (*first < slots->members && wfi_slots_has(slots, *first, flag, turn))
        ++*first;
    return *first == slots->members;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

void wfi_slots_set_need_wakeup(const wfi_slots *slots, bool need_wakeup)
{
    _Atomic uint32_t *mine = &flags_of(slots, slots->me)->need_wakeup;
    if (atomic_load_explicit(mine, memory_order_relaxed) != (uint32_t)need_wakeup)
        atomic_store(mine, need_wakeup);
}

bool wfi_slots_needs_wakeup(const wfi_slots *slots, size_t member)
{
    return atomic_load(&flags_of(slots, member)->need_wakeup) != 0;
}

static futex *futex_of(const wfi_slots *slots)
{
    return (futex *)(void *)slots->memory;
}

uint32_t wfi_slots_futex_prepare(const wfi_slots *slots)
{
    atomic_fetch_add(&futex_of(slots)->sleepers, 1);
    return atomic_load(&futex_of(slots)->value);
}

void wfi_slots_futex_wait(const wfi_slots *slots, uint32_t value, uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)syscall(SYS_futex, &futex_of(slots)->value, FUTEX_WAIT, value, &left, NULL, 0); /* it also returns early */
}

void wfi_slots_futex_finish(const wfi_slots *slots)
{
    atomic_fetch_sub(&futex_of(slots)->sleepers, 1);
}

void wfi_slots_futex_wake(const wfi_slots *slots)
{
    futex *all = futex_of(slots);
    if (!atomic_load(&all->sleepers))
        return;
    atomic_fetch_add(&all->value, 1);
    (void)syscall(SYS_futex, &all->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
