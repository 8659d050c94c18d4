/* SPDX-License-Identifier: Apache-2.0 */
/*
 * termination.c - finds out when the whole job is done: termination detection by two equal waves (F. Mattern,
 * "Algorithms for distributed termination detection", Distributed Computing 2, 1987: the four-counter method).
 *
 * Once every living member closes or serves, the store sends waves of probes. A worker answers a probe when it is idle
 * (it closes or serves, has no call outstanding, and no handler runs or waits), with three counters that only grow:
 * calls started, calls finished, handlers served. A wave is complete when all living members have answered; the next
 * one begins only after that. All is done after two complete waves in a row in which everybody was idle, the sum of
 * calls started equals the sum of calls finished, and no counter of any member changed.
 *
 * Then, if all members close, the job ends. If some of them serve, their weft_agent_serve ends, and the others continue
 * to close. In an elastic job waves begin only when all close: a member that serves there waits for workers that may
 * still join.
 *
 * WHY THIS IS RIGHT. Take an instant T between the end of the first wave and the beginning of the second. Every member
 * gave its first answer before T and its second after T. Its counters are equal in both and never shrink, so they had
 * the same values at T, and in between the member started nothing, finished nothing and served nothing. At its first
 * answer it had no call outstanding, and it has started none since; so at T no member has a call outstanding. A request
 * or reply that somebody waits for belongs to an outstanding call, so none is on its way at T. A handler that runs at T
 * was either running at one of the two answers (then the member was not idle) or has ended in between (then `served`
 * changed). Closing workers start calls only from handlers. So at T nothing runs, nothing is on its way, and nothing
 * can begin: the job is done. One wave is not enough. Its answers are given at different times, so a call may pass
 * unseen from a worker that was not yet asked to one that has already answered, and back.
 *
 * JOINING while others close, or while all do, is allowed and prolongs the job: the new worker does not close, so no
 * wave begins before it does. A wave under way is void then, and so is the one before, because the argument above is
 * about one set of members in both waves. The others hear of the new member before the next wave, as messages on a link
 * keep their order. After the end was told nobody joins.
 *
 * THE DEAD AND THOSE WHO LEFT are taken out of the sums. Calls to them fail (finished), and what they sent is dropped
 * by its receivers, who hear of the death before the next wave. A wave under way when a member goes is void, and so is
 * the one before.
 *
 * NO BUSY WAVES. A worker answers a probe when it is idle. So waves follow each other only if counters changed, that
 * is, if calls were made in between. If a worker answers although it is not idle, the next wave waits a little.
 */
#include "job/store/state.h"

#include "base/text/log.h"

#include <string.h>

#define WAVE_PAUSE_NS (10ull * 1000 * 1000)

static bool all_are_closing(const wfi_store *store)
{
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state == WFI_SLOT_ALIVE && !slot->closing)
            return false;
    }
    return store->alive > 0;
}

static bool all_are_ending(const wfi_store *store)
{
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state == WFI_SLOT_ALIVE && !slot->ending)
            return false;
    }
    return store->alive > 0;
}

static void begin_wave(wfi_store *store)
{
    if (store->phase != WFI_STORE_RUNNING || store->terminated || store->unanswered || !all_are_ending(store) ||
        (store->options.elastic && !all_are_closing(store)))
        return;
    store->wave_at_ns = WFI_NEVER;
    store->wave++;
    store->unanswered = store->alive;
    for (int rank = 0; rank < store->options.world_size; rank++)
        store->slots[rank].answered = false;
    wfi_store_message probe = {.type = WFI_STORE_PROBE, .wave = store->wave};
    wfi_store_send_to_all(store, &probe);
}

/* Every member is idle, and the sum of open calls is zero. */
static bool wave_found_idle(const wfi_store *store)
{
    uint64_t open = 0; /* modulo 2^64, because counters from the network may have any value */
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state != WFI_SLOT_ALIVE)
            continue;
        if (!slot->report.idle)
            return false;
        open += slot->report.started - slot->report.finished;
    }
    return open == 0;
}

/* Compares this wave with the one before, and replaces that. */
static bool wave_repeats(wfi_store *store)
{
    bool same = store->has_before;
    for (int rank = 0; rank < store->options.world_size; rank++) {
        wfi_store_slot *slot = &store->slots[rank];
        const wfi_idle_report *now = &slot->report, *before = &slot->report_before;
        bool equal =
            now->started == before->started && now->finished == before->finished && now->served == before->served;
        if (slot->state == WFI_SLOT_ALIVE && !equal)
            same = false;
        slot->report_before = slot->report;
    }
    store->has_before = true;
    return same;
}

static void send_ending(wfi_store *store, int follower, int rank)
{
    wfi_store_message news = {.type = WFI_STORE_ENDING,
                              .rank = rank,
                              .incarnation = store->members[rank].incarnation,
                              .on = store->slots[rank].ending};
    if (follower != rank)
        wfi_store_send_to(store, follower, &news);
}

static void set_ending(wfi_store *store, int rank, bool ending, uint64_t now_ns)
{
    if (store->slots[rank].ending == ending)
        return;
    wfi_store_interest_ending(store, rank, ending, now_ns);
    for (int other = 0; other < store->options.world_size; other++) {
        if (store->slots[other].state == WFI_SLOT_ALIVE && store->slots[other].follows)
            send_ending(store, other, rank);
    }
}

static void release_servers(wfi_store *store, uint64_t now_ns)
{
    store->has_before = false;
    for (int rank = 0; rank < store->options.world_size; rank++) {
        wfi_store_slot *slot = &store->slots[rank];
        wfi_store_message stops = {.type = WFI_STORE_SERVING, .wave = slot->serving};
        if (slot->state != WFI_SLOT_ALIVE || !slot->serving)
            continue;
        slot->serving = 0;
        wfi_store_send_to(store, rank, &stops);
        set_ending(store, rank, slot->closing, now_ns);
    }
}

static void finish_wave(wfi_store *store, uint64_t now_ns)
{
    if (!wave_found_idle(store)) {
        store->has_before = false;
        store->wave_at_ns = now_ns + WAVE_PAUSE_NS;
        wfi_store_due_by(store, store->wave_at_ns);
        return;
    }
    if (!wave_repeats(store)) {
        begin_wave(store);
        return;
    }
    if (!all_are_closing(store)) {
        release_servers(store, now_ns);
        return;
    }
    store->terminated = true;
    wfi_store_message message = {.type = WFI_STORE_TERMINATED};
    wfi_store_send_to_all(store, &message);
}

void wfi_store_end_closing(wfi_store *store, int rank, uint64_t now_ns)
{
    store->slots[rank].closing = true;
    set_ending(store, rank, true, now_ns);
    begin_wave(store);
}

void wfi_store_end_serving(wfi_store *store, int rank, uint64_t number, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    slot->serving = number;
    set_ending(store, rank, number || slot->closing, now_ns);
    if (number)
        begin_wave(store);
    else if (!slot->closing)
        wfi_store_end_members_changed(store); /* a wave under way is void */
}

void wfi_store_end_follow(wfi_store *store, int rank)
{
    store->slots[rank].follows = true;
    for (int other = 0; other < store->options.world_size; other++) {
        if (store->slots[other].state == WFI_SLOT_ALIVE && store->slots[other].ending)
            send_ending(store, rank, other);
    }
}

void wfi_store_end_report(wfi_store *store, int rank, const wfi_store_message *message, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    if (store->unanswered == 0 || message->wave != store->wave || slot->answered)
        return; /* of a wave that is void */
    slot->answered = true;
    slot->report = message->report;
    if (--store->unanswered == 0)
        finish_wave(store, now_ns);
}

void wfi_store_end_members_changed(wfi_store *store)
{
    store->unanswered = 0;
    store->has_before = false;
    store->wave_at_ns = WFI_NEVER;
    begin_wave(store);
}

void wfi_store_end_job(wfi_store *store, const char *why)
{
    wfi_store_message message = {.type = WFI_STORE_END};
    if (store->ended || store->terminated)
        return;
    snprintf(store->failure, sizeof(store->failure), "%s", why);
    snprintf(message.text, sizeof(message.text), "%s", why);
    wfi_log(WEFT_LOG_INFO, "store: rank 0 ended the job%s%s", *why ? ": " : "", why);
    store->ended = store->terminated = true;
    wfi_store_send_to_all(store, &message);
}

/* Whether the end of the job waits for this member: to close, or, once all close, to be idle. */
static bool is_awaited(const wfi_store *store, int rank, bool all_close)
{
    const wfi_store_slot *slot = &store->slots[rank];
    if (slot->state != WFI_SLOT_ALIVE)
        return false;
    return all_close ? (store->unanswered ? !slot->answered : !slot->report.idle) : !slot->closing;
}

void wfi_store_end_awaits(const wfi_store *store, char *out, size_t room)
{
    bool all_close = all_are_closing(store);
    size_t used = 0, count = 0, named = 0;
    for (int rank = 0; rank < store->options.world_size; rank++)
        count += is_awaited(store, rank, all_close);
    used +=
        (size_t)snprintf(out, room, "%s (%zu)",
                         all_close ? "workers that close, but are not idle" : "workers that have not closed", count);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        if (!is_awaited(store, rank, all_close))
            continue;
        char name[WFI_NAME_MAX + 48];
        int size = snprintf(name, sizeof(name), "%s rank %d (%s%s)", named ? "," : ":", rank, store->members[rank].name,
                            store->slots[rank].serving ? ", serves" : "");
        if (used + (size_t)size + 8 > room) { /* with room for the dots */
            snprintf(out + used, room - used, ", ...");
            return;
        }
        memcpy(out + used, name, (size_t)size + 1);
        used += (size_t)size;
        named++;
    }
}

void wfi_store_end_tick(wfi_store *store, uint64_t now_ns)
{
    if (store->wave_at_ns <= now_ns)
        begin_wave(store);
}
