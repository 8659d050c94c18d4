/* SPDX-License-Identifier: Apache-2.0 */
/* store_death.c - silence, suspicion, death and farewell. The rules stand in store.h. */
#include "net/store_state.h"

#include "base/log.h"

#include <string.h>

#define NS_PER_MS 1000000ull

/* Takes a living member out; the others are told by the caller. Returns its connection. */
static wfi_store_link *vacate(wfi_store *store, int rank, wfi_seat_state state)
{
    wfi_seat *seat = &store->seats[rank];
    wfi_store_link *link = seat->link;
    seat->state = state;
    seat->link = NULL;
    store->alive--;
    return link;
}

/* Its place in the table is empty from now on: one who joins later has never heard of it. */
static void tell_gone(wfi_store *store, int rank, wfi_store_type type, const char *why)
{
    wfi_store_message message = {.type = type, .rank = rank, .incarnation = store->members[rank].incarnation};
    store->members[rank] = (wfi_member){.rank = rank};
    snprintf(message.text, sizeof message.text, "%s", why);
    wfi_store_send_all(store, &message);
    wfi_store_end_members_changed(store);
}

void wfi_store_declare_dead(wfi_store *store, int rank, const char *why, bool link_is_lost)
{
    wfi_log(WEFT_LOG_INFO, "store: rank %d is dead: %s", rank, why);
    wfi_store_link *link = vacate(store, rank, WFI_SEAT_DEAD);
    if (!link_is_lost) {
        wfi_store_message message = {.type = WFI_STORE_EVICTED};
        snprintf(message.text, sizeof message.text, "the store declared this worker dead: %s", why);
        wfi_store_send(store, link, &message);
        wfi_store_hang_up(store, link, WFI_STORE_LINGER_MS);
    }
    tell_gone(store, rank, WFI_STORE_DIED, why);
}

void wfi_store_handle_goodbye(wfi_store *store, wfi_store_link *link)
{
    int rank = link->rank;
    vacate(store, rank, WFI_SEAT_LEFT);
    wfi_store_hang_up(store, link, 0);
    tell_gone(store, rank, WFI_STORE_LEFT, "");
}

void wfi_store_handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                              uint64_t now_ns)
{
    if (message->rank < 0 || message->rank >= store->options.world_size || message->rank == from->rank)
        return;
    wfi_seat *seat = &store->seats[message->rank];
    if (seat->state != WFI_SEAT_ALIVE || store->members[message->rank].incarnation != message->incarnation)
        return;
    int64_t bound_ms = store->options.death_timeout_ms;
    if (bound_ms < 0 || seat->suspected_ns != WFI_NEVER)
        return;
    /* A suspicion asks for a sign of life; it does not shorten the bound, within which a cut link may heal unnoticed. */
    uint64_t soon = now_ns + (uint64_t)bound_ms * NS_PER_MS / 2,
             by_silence = seat->heard_ns + (uint64_t)bound_ms * NS_PER_MS;
    seat->suspected_ns = soon > by_silence ? soon : by_silence;
    seat->suspected_by = from->rank;
    snprintf(seat->suspicion, sizeof seat->suspicion, "%.*s", (int)sizeof seat->suspicion - 1, message->text);
    wfi_store_message speak = {.type = WFI_STORE_SPEAK};
    wfi_store_send(store, seat->link, &speak);
    wfi_store_due_by(store, seat->suspected_ns);
}

static uint64_t silence_ends_ns(const wfi_store *store, const wfi_seat *seat)
{
    uint64_t bound_ns = (uint64_t)store->options.death_timeout_ms * NS_PER_MS;
    uint64_t by_silence = seat->heard_ns + bound_ns;
    return seat->suspected_ns < by_silence ? seat->suspected_ns : by_silence;
}

static void declare_silent(wfi_store *store, int rank)
{
    const wfi_seat *seat = &store->seats[rank];
    char why[WFI_STORE_TEXT_MAX];
    long long bound_ms = store->options.death_timeout_ms;
    if (seat->suspected_ns == WFI_NEVER)
        snprintf(why, sizeof why, "silent for %lld ms", bound_ms);
    else
        snprintf(why, sizeof why, "did not answer after rank %d suspected it: %s", seat->suspected_by, seat->suspicion);
    wfi_store_declare_dead(store, rank, why, false);
}

/* The store was stopped, or got no processor, if its tick comes late: then silence proves nothing about the others. */
static void excuse_own_absence(wfi_store *store, uint64_t now_ns)
{
    uint64_t bound_ns = (uint64_t)store->options.death_timeout_ms * NS_PER_MS;
    bool was_absent = now_ns - store->ticked_ns > bound_ns / 2;
    store->ticked_ns = now_ns;
    for (int rank = 0; was_absent && rank < store->options.world_size; rank++) {
        wfi_seat *seat = &store->seats[rank];
        seat->heard_ns = now_ns;
        if (seat->suspected_ns != WFI_NEVER)
            seat->suspected_ns = now_ns + bound_ns / 2;
    }
}

void wfi_store_tick_running(wfi_store *store, uint64_t now_ns)
{
    wfi_store_end_tick(store, now_ns);
    wfi_store_due_by(store, store->wave_at_ns);
    if (store->options.death_timeout_ms < 0)
        return;
    excuse_own_absence(store, now_ns);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_seat *seat = &store->seats[rank];
        if (seat->state == WFI_SEAT_ALIVE && silence_ends_ns(store, seat) <= now_ns)
            declare_silent(store, rank);
    }
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->seats[rank].state == WFI_SEAT_ALIVE)
            wfi_store_due_by(store, silence_ends_ns(store, &store->seats[rank]));
    /* Often enough to notice an absence of our own. */
    wfi_store_due_by(store, now_ns + (uint64_t)store->options.death_timeout_ms * NS_PER_MS / 4 + 1);
}
