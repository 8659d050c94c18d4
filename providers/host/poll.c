/* SPDX-License-Identifier: Apache-2.0 */
/* poll.c - visits the lanes that have something to do, and reports operations whose result is known. */
#include "host/host.h"

/* The lock of the lane is taken before slots_lock is released: lane_close first clears the slot. */
static wfi_lane *lock_lane(wfi_host *host, uint32_t slot)
{
    wfi_mutex_lock(&host->slots_lock);
    wfi_lane *lane = host->slots[slot];
    if (lane)
        wfi_mutex_lock(&lane->lock);
    wfi_mutex_unlock(&host->slots_lock);
    return lane;
}

static void visit(wfi_host *host, uint32_t slot, size_t *budget)
{
    wfi_lane *lane = lock_lane(host, slot);
    if (!lane)
        return; /* closed, or a peer has set the bit for nothing */
    if (lane->state == WFI_HOST_CONNECTED)
        wfi_host_receive(lane);
    if (lane->state == WFI_HOST_CONNECTED)
        wfi_host_push(lane);
    if (lane->state == WFI_HOST_CONNECTED)
        wfi_host_read_some(lane, budget);
    wfi_mutex_unlock(&lane->lock);
}

/* Begins at the slot behind the one that used up the last budget. */
static void visit_ready(wfi_host *host)
{
    size_t budget = WFI_HOST_ROUND_BYTES;
    uint32_t words = atomic_load_explicit(&host->words, memory_order_relaxed), turn = host->turn;
    for (uint32_t k = 0; k < words; k++) {
        uint32_t i = (turn / 64 + k) % words, shift = turn % 64;
        _Atomic uint64_t *word = &host->doorbell.page->ready[i];
        if (!atomic_load_explicit(word, memory_order_relaxed))
            continue;
        uint64_t bits = atomic_exchange(word, 0);
        for (bits = shift ? bits >> shift | bits << (64 - shift) : bits; bits; bits &= bits - 1) {
            uint32_t slot = i * 64 + ((uint32_t)__builtin_ctzll(bits) + shift) % 64;
            bool had_budget = budget > 0;
            visit(host, slot, &budget);
            if (had_budget && !budget)
                host->turn = slot + 1;
        }
    }
}

/* Moves all of host->completed to host->to_report, which is empty, the oldest first. */
static bool take_ready(wfi_host *host)
{
    if (!atomic_load_explicit(&host->completed, memory_order_relaxed))
        return false;
    for (wfi_host_op *op = atomic_exchange(&host->completed, NULL), *next; op; op = next) {
        next = op->next;
        op->next = host->to_report;
        host->to_report = op;
    }
    return true;
}

size_t wfi_host_poll(wfi_fabric *base, wfi_completion *out, size_t room)
{
    wfi_host *host = wfi_host_of(base);
    size_t count = 0;
    visit_ready(host);
    while (count < room && (host->to_report || take_ready(host))) {
        wfi_host_op *op = host->to_report;
        host->to_report = op->next;
        out[count++] = (wfi_completion){.op = (wfi_fabric_op *)op, .status = op->status, .size = op->size};
    }
    return count;
}

int wfi_host_wait_fd(wfi_fabric *base)
{
    return wfi_host_of(base)->bell_fd;
}

bool wfi_host_may_sleep(wfi_fabric *base)
{
    wfi_host *host = wfi_host_of(base);
    wfi_host_doorbell_drain(host); /* what it announced was polled, or is seen below */
    host->generation += 2;
    atomic_store(&host->doorbell.page->armed, host->generation | 1);
    bool nothing = !host->to_report && !atomic_load(&host->completed);
    uint32_t words = atomic_load(&host->words);
    for (uint32_t i = 0; i < words && nothing; i++)
        nothing = atomic_load(&host->doorbell.page->ready[i]) == 0;
    return nothing;
}
