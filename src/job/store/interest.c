/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interest.c - which member has an interest in which, and therefore who has to send heartbeats.
 *
 * A worker is told to send heartbeats while some other has an interest in it; from then on its silence means its death.
 * The death bound counts from the moment at which the store learns of the interest. A worker that closes or serves has
 * an interest in all others, because it waits for them to do the same. An interest ends when it is taken back, or when
 * either worker is gone.
 */
#include "base/alloc.h"
#include "job/store/state.h"

#include <stdlib.h>
#include <string.h>

static bool has_bit(const uint8_t *bits, int rank)
{
    return bits && (bits[rank / 8] >> (rank % 8) & 1);
}

void wfi_store_interest_review(wfi_store *store, int rank, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    bool wanted = store->options.death_timeout_ms >= 0 && (slot->interested > 0 || store->enders > slot->ending);
    if (slot->state != WFI_SLOT_ALIVE || wanted == slot->beats)
        return;
    slot->beats = wanted;
    slot->received_ns = now_ns;
    wfi_store_message beat = {.type = WFI_STORE_BEAT, .on = wanted};
    wfi_store_send_to(store, rank, &beat);
    wfi_store_due_by(store, now_ns);
}

static void review_all(wfi_store *store, uint64_t now_ns)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        wfi_store_interest_review(store, rank, now_ns);
}

bool wfi_store_handle_interest(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns)
{
    wfi_store_slot *from = &store->slots[rank];
    int target = message->rank;
    if (target < 0 || target >= store->options.world_size || target == rank)
        return true;
    if (store->slots[target].state != WFI_SLOT_ALIVE || store->members[target].incarnation != message->incarnation)
        return true; /* it has been told, or will be: messages keep their order */
    if (!from->interests && message->on &&
        !(from->interests = wfi_calloc(((size_t)store->options.world_size + 7) / 8, 1)))
        return false;
    if (has_bit(from->interests, target) == message->on)
        return true;
    from->interests[target / 8] ^= (uint8_t)(1u << (target % 8));
    store->slots[target].interested += message->on ? 1 : -1;
    wfi_store_interest_review(store, target, now_ns);
    return true;
}

void wfi_store_interest_ending(wfi_store *store, int rank, bool ending, uint64_t now_ns)
{
    if (store->slots[rank].ending == ending)
        return;
    store->slots[rank].ending = ending;
    store->enders += ending ? 1 : -1;
    review_all(store, now_ns);
}

void wfi_store_interest_gone(wfi_store *store, int rank)
{
    wfi_store_slot *gone = &store->slots[rank];
    for (int other = 0; other < store->options.world_size; other++) {
        if (has_bit(gone->interests, other))
            store->slots[other].interested--;
        if (has_bit(store->slots[other].interests, rank))
            store->slots[other].interests[rank / 8] ^= (uint8_t)(1u << (rank % 8));
    }
    free(gone->interests);
    gone->interests = NULL;
    gone->interested = 0;
    gone->beats = false;
    store->enders -= gone->ending;
    gone->closing = gone->ending = gone->follows = false;
    gone->serving = 0;
    review_all(store, store->now_ns);
}
