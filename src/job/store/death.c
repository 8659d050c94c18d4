/* SPDX-License-Identifier: Apache-2.0 */
/* death.c - detects and declares deaths; handles LEAVING and GOODBYE. The rules are in store.h, DEATHS. */
#include "job/store/state.h"

#include "base/text/log.h"

#include <sodium.h>
#include <string.h>

/* time to resume, if the connection was reset by something between the hosts; at most a quarter of the bound */
#define RESET_MS 100

/* Removes a living member from the table. Workers that join later get no entry for it. */
static void vacate(wfi_store *store, int rank, wfi_store_slot_state state, wfi_store_type type, const char *why)
{
    wfi_store_slot *slot = &store->slots[rank];
    wfi_store_message news = {.type = type, .rank = rank, .incarnation = store->members[rank].incarnation};
    snprintf(news.text, sizeof(news.text), "%s", why);
    snprintf(slot->words, sizeof(slot->words), "%.*s", (int)sizeof(slot->words) - 1, why);
    slot->fate = store->members[rank].incarnation;
    slot->state = state;
    slot->leaving = false;
    slot->link = NULL;
    wfi_outbox_fini(&slot->outbox);
    sodium_memzero(slot->token, sizeof(slot->token));
    store->members[rank] = (wfi_member){.rank = rank};
    store->alive--;
    wfi_store_interest_gone(store, rank);
    wfi_store_send_to_all(store, &news);
    wfi_store_end_members_changed(store);
}

void wfi_store_declare_dead(wfi_store *store, int rank, const char *why)
{
    wfi_log(WEFT_LOG_INFO, "store: rank %d is dead: %s", rank, why);
    wfi_store_link *link = store->slots[rank].link;
    if (link) {
        wfi_store_message message = {.type = WFI_STORE_EVICTED};
        snprintf(message.text, sizeof(message.text), "the store declared this worker dead: %s", why);
        wfi_store_send(store, link, &message);
        wfi_store_hang_up(store, link, WFI_STORE_LINGER_MS);
    }
    vacate(store, rank, WFI_SLOT_DEAD, WFI_STORE_DIED, why);
}

void wfi_store_handle_goodbye(wfi_store *store, wfi_store_link *link)
{
    int rank = link->rank;
    wfi_store_hang_up(store, link, 0);
    vacate(store, rank, WFI_SLOT_LEFT, WFI_STORE_LEFT, "");
}

void wfi_store_handle_leaving(wfi_store *store, int rank)
{
    wfi_store_message news = {.type = WFI_STORE_LEAVING, .rank = rank, .incarnation = store->members[rank].incarnation};
    if (store->slots[rank].leaving)
        return;
    store->slots[rank].leaving = true;
    wfi_store_send_to_others(store, rank, &news);
}

/* ---- Lost connections ------------------------------------------------------------------------------------------ */

static const char connection_broke[] = "its connection to the store broke";

void wfi_store_lost_connection(wfi_store *store, int rank, wfi_store_loss how, bool unconfirmed, uint64_t now_ns)
{
    int64_t bound_ms = wfi_store_bound_ms(store);
    store->slots[rank].link = NULL;
    if (how == WFI_STORE_CUT || unconfirmed)
        wfi_store_unlink(store, rank, now_ns, bound_ms);
    else if (how == WFI_STORE_RESET)
        wfi_store_unlink(store, rank, now_ns, RESET_MS < bound_ms / 4 ? RESET_MS : bound_ms / 4);
    else
        wfi_store_declare_dead(store, rank, connection_broke);
}

/*
 * Another worker asks for this rank. If its member has lost the connection and might still resume, declares it dead
 * now: a new process does not wait for an old one.
 */
void wfi_store_give_up_lost(wfi_store *store, int rank)
{
    if (store->slots[rank].state == WFI_SLOT_ALIVE && !store->slots[rank].link)
        wfi_store_declare_dead(store, rank, connection_broke);
}

/* ---- Suspicion and silence ------------------------------------------------------------------------------------- */

/*
 * Tells `rank` to dial `by`, because a connection may be possible only in that direction. `by` can cause at most
 * world_size such requests in half a bound.
 */
static void ask_to_dial(wfi_store *store, int rank, int by, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[by];
    if (now_ns - slot->asks_ns > wfi_store_bound_ns(store) / 2) {
        slot->asks_ns = now_ns;
        slot->asks = 0;
    }
    if (slot->asks++ >= store->options.world_size)
        return;
    wfi_store_message dial = {.type = WFI_STORE_DIAL, .rank = by, .incarnation = store->members[by].incarnation};
    wfi_store_send_to(store, rank, &dial);
}

void wfi_store_handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                              uint64_t now_ns)
{
    if (message->rank < 0 || message->rank >= store->options.world_size || message->rank == from->rank)
        return;
    bool is_former = store->members[message->rank].incarnation != message->incarnation;
    if (is_former || store->slots[message->rank].state != WFI_SLOT_ALIVE)
        return;
    ask_to_dial(store, message->rank, from->rank, now_ns);
    wfi_store_suspect(store, message->rank, from->rank, message->text, now_ns);
}

void wfi_store_suspect(wfi_store *store, int rank, int by, const char *why, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    int64_t bound_ms = store->options.death_timeout_ms;
    if (slot->state != WFI_SLOT_ALIVE || bound_ms < 0 || slot->suspected_ns != WFI_NEVER)
        return;
    /*
     * A suspicion asks the member for a heartbeat (SPEAK). It does not shorten the bound: a cut that heals within the
     * bound must not cause a death. If no heartbeats were expected of the member, its silence counts from now.
     */
    uint64_t bound_ns = wfi_ns_of_ms(bound_ms), soon = now_ns + bound_ns / 2;
    uint64_t by_silence = (slot->beats ? slot->received_ns : now_ns) + bound_ns;
    slot->suspected_ns = soon > by_silence ? soon : by_silence;
    slot->suspected_by = by;
    snprintf(slot->words, sizeof(slot->words), "%.*s", (int)sizeof(slot->words) - 1, why);
    wfi_log(WEFT_LOG_DEBUG, "store: rank %d suspects rank %d: %s", by, rank, slot->words);
    wfi_store_message speak = {.type = WFI_STORE_SPEAK};
    wfi_store_send_to(store, rank, &speak);
    wfi_store_due_by(store, now_ns);
}

/* When this member is declared dead if it stays silent; WFI_NEVER if nothing is expected of it. */
static uint64_t dead_at_ns(const wfi_store *store, const wfi_store_slot *slot)
{
    uint64_t when_ns = slot->lost_ns, bound_ns = wfi_ns_of_ms(store->options.death_timeout_ms);
    if (store->options.death_timeout_ms < 0 || slot == &store->slots[0])
        return when_ns; /* rank 0 runs in the store's own process: its silence is no sign of death */
    if (slot->beats && slot->received_ns + bound_ns < when_ns)
        when_ns = slot->received_ns + bound_ns;
    return slot->suspected_ns < when_ns ? slot->suspected_ns : when_ns;
}

/*
 * The same, but later while an unauthenticated connection is open: it may be this member resuming after a cut. (Its
 * old connection may still wait for a TCP retransmission.) The delay is at most a quarter of the bound, because any
 * process can connect.
 */
static uint64_t judged_at_ns(const wfi_store *store, const wfi_store_slot *slot)
{
    uint64_t when_ns = dead_at_ns(store, slot), bound_ns = wfi_store_bound_ns(store);
    uint64_t received_by_ns = store->pending_ns ? store->pending_ns + bound_ns / 8 : 0;
    if (when_ns >= received_by_ns)
        return when_ns;
    return received_by_ns < when_ns + bound_ns / 4 ? received_by_ns : when_ns + bound_ns / 4;
}

static void declare_silent(wfi_store *store, int rank, uint64_t now_ns)
{
    const wfi_store_slot *slot = &store->slots[rank];
    char why[WFI_STORE_TEXT_MAX];
    if (slot->overflowed)
        snprintf(why, sizeof(why), "its queue of unacknowledged messages is full");
    else if (slot->lost_ns <= now_ns)
        snprintf(why, sizeof(why), "%s", connection_broke);
    else if (slot->suspected_ns == WFI_NEVER)
        snprintf(why, sizeof(why), "silent for %lld ms", (long long)store->options.death_timeout_ms);
    else
        snprintf(why, sizeof(why), "did not answer after rank %d suspected it: %s", slot->suspected_by, slot->words);
    wfi_store_declare_dead(store, rank, why);
}

/*
 * A late tick means that this process was stopped or had no CPU time: the silence of others in that time proves
 * nothing. If more than half a bound passed since the last tick, every member's silence starts anew, and members that
 * are suspected or disconnected get half a bound. Otherwise all deadlines move by the delay.
 */
void wfi_store_excuse_own_absence(wfi_store *store, uint64_t now_ns)
{
    uint64_t bound_ns = wfi_store_bound_ns(store);
    bool was_absent = store->ticking && now_ns - store->ticked_ns > bound_ns / 2;
    store->ticked_ns = now_ns;
    uint64_t more_ns = store->ticking ? store->late_ns : 0;
    for (int rank = 0; rank < store->options.world_size && (was_absent || more_ns); rank++) {
        wfi_store_slot *slot = &store->slots[rank];
        slot->received_ns = was_absent || slot->received_ns + more_ns > now_ns ? now_ns : slot->received_ns + more_ns;
        if (slot->suspected_ns != WFI_NEVER)
            slot->suspected_ns = was_absent ? now_ns + bound_ns / 2 : slot->suspected_ns + more_ns;
        if (slot->lost_ns != WFI_NEVER)
            slot->lost_ns = was_absent ? now_ns + bound_ns / 2 : slot->lost_ns + more_ns;
    }
}

static void note_pending_connections(wfi_store *store, uint64_t now_ns)
{
    size_t cursor = 0;
    uint64_t id;
    store->pending_ns = 0;
    for (wfi_store_link *link; (link = wfi_map_next(&store->links, &cursor, &id));) {
        if (link->is_pending)
            link->pending_ns = now_ns;
        link->is_pending = false;
        if (link->rank < 0 && link->pending_ns > store->pending_ns)
            store->pending_ns = link->pending_ns;
    }
}

void wfi_store_tick_running(wfi_store *store, uint64_t now_ns)
{
    uint64_t next_ns = WFI_NEVER;
    wfi_store_end_tick(store, now_ns);
    wfi_store_due_by(store, store->wave_at_ns);
    wfi_store_excuse_own_absence(store, now_ns);
    note_pending_connections(store, now_ns);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state == WFI_SLOT_ALIVE && (slot->overflowed || judged_at_ns(store, slot) <= now_ns))
            declare_silent(store, rank, now_ns);
    }
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state == WFI_SLOT_ALIVE && judged_at_ns(store, slot) < next_ns)
            next_ns = judged_at_ns(store, slot);
    }
    store->ticking = next_ns != WFI_NEVER;
    if (!store->ticking)
        return; /* no deadline is set */
    wfi_store_due_by(store, next_ns);
    /* At least four ticks in a bound, so that a late one is noticed. */
    wfi_store_due_by(store, now_ns + wfi_store_bound_ns(store) / 4 + 1);
}
