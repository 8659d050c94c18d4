/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owned.c - the owner's side of remote references: values by name, and the forks that workers hold of each.
 *
 * NUMBERS. A message may arrive twice, or late. wfi_ref_peer keeps three numbers for each peer to detect this: the
 * highest FORK (forks_seen), the highest name of a value that its calls made (creations_seen), and the highest id of
 * such a call (calls_seen). A peer assigns each number in the order in which it sends the messages. So:
 *   - A FORK that is not above forks_seen was counted before: its fork exists, or was dropped.
 *   - If a name is not in the table: above creations_seen, its value may still be made; otherwise the value is gone.
 */
#include "base/alloc.h"
#include "rpc/refs/internal.h"

#include "base/error.h"

#include <stdlib.h>

/* ---- The table --------------------------------------------------------------------------------------------------- */

bool wfi_rref_same_name(const wfi_rref_name *a, const wfi_rref_name *b)
{
    return a->owner == b->owner && a->owner_incarnation == b->owner_incarnation && a->creator == b->creator &&
           a->creator_incarnation == b->creator_incarnation && a->number == b->number;
}

wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name)
{
    wfi_owned *owned = wfi_map_get(&wfi_refs_of(agent)->owned, wfi_reference_name_hash(&agent->hash_key, name));
    while (owned && !wfi_rref_same_name(&owned->name, name))
        owned = owned->next;
    return owned;
}

static bool link_in(weft_agent *agent, wfi_owned *owned)
{
    uint64_t hash = wfi_reference_name_hash(&agent->hash_key, &owned->name);
    wfi_owned *head = wfi_map_get(&wfi_refs_of(agent)->owned, hash);
    if (!head)
        return wfi_map_put(&wfi_refs_of(agent)->owned, hash, owned) == WEFT_OK;
    owned->next = head->next;
    head->next = owned;
    return true;
}

static void link_out(weft_agent *agent, wfi_owned *owned)
{
    uint64_t hash = wfi_reference_name_hash(&agent->hash_key, &owned->name);
    wfi_owned *head = wfi_map_take(&wfi_refs_of(agent)->owned, hash);
    wfi_owned **at = &head;
    while (*at != owned)
        at = &(*at)->next;
    *at = owned->next;
    weft_status status = head ? wfi_map_put(&wfi_refs_of(agent)->owned, hash, head) : WEFT_OK;
    (void)status; /* the entry was just freed, so no memory is needed */
}

wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name)
{
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (owned)
        return owned;
    owned = wfi_calloc(1, sizeof(*owned));
    if (!owned)
        return NULL;
    owned->agent = agent;
    owned->name = *name;
    wfi_list_init(&owned->forks);
    owned->value = wfi_agent_future(agent);
    if (!owned->value || !link_in(agent, owned)) {
        weft_future_unref(owned->value);
        free(owned);
        return NULL;
    }
    return owned;
}

/* The value will not be made. */
static void fail_value(wfi_owned *owned, weft_status why, const char *text)
{
    if (weft_future_done(owned->value))
        return;
    wfi_error_detail detail = {.code = why, .remote_code = WEFT_ERR_UNKNOWN, .worker = wfi_agent_rank(owned->agent)};
    weft_error *error = wfi_error_create(&detail, "%s", text);
    wfi_complete_future(owned->value, NULL, error);
    weft_error_unref(error);
}

/* Runs without the lock: the value may hold a user's object, whose destructor runs. */
static void free_owned_task(wfi_task *task)
{
    wfi_owned *owned = wfi_container_of(task, wfi_owned, release);
    weft_future_unref(owned->value);
    weft_error_unref(owned->refused);
    free(owned);
}

void wfi_owned_release_if_unused(wfi_owned *owned)
{
    if (owned->handles || owned->producers || !wfi_list_empty(&owned->forks))
        return;
    link_out(owned->agent, owned);
    /* A thread may still wait for the value. */
    fail_value(owned, WEFT_ERR_CANCELLED, "the last reference was dropped before the value was made");
    owned->release.run = free_owned_task;
    wfi_net_defer(owned->agent->net, &owned->release, WFI_DEFER_RELEASE);
}

void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    size_t cursor = 0;
    for (wfi_owned *owned; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = owned->next)
            fail_value(owned, why, text);
}

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

static wfi_ref_peer *ref_peer_of(weft_agent *agent, wfi_peer *peer)
{
    wfi_ref_peer *from_peer = &wfi_refs_of(agent)->peers[wfi_peer_rank(peer)];
    if (from_peer->incarnation != wfi_peer_incarnation(peer)) { /* the forks of the last incarnation ended with it */
        *from_peer = (wfi_ref_peer){.incarnation = wfi_peer_incarnation(peer)};
        wfi_list_init(&from_peer->forks);
    }
    return from_peer;
}

static uint64_t fork_key(int rank, uint64_t number)
{
    return ((uint64_t)(uint32_t)rank << 48) | number;
}

static wfi_fork *find_fork(weft_agent *agent, wfi_peer *peer, const wfi_rref_name *name, uint64_t number)
{
    if (number >= WFI_FORK_NUMBERS)
        return NULL;
    wfi_fork *fork = wfi_map_get(&wfi_refs_of(agent)->fork_index, fork_key(wfi_peer_rank(peer), number));
    return fork && fork->peer == peer && wfi_rref_same_name(&fork->owned->name, name) ? fork : NULL;
}

static weft_status add_fork(wfi_owned *owned, wfi_peer *peer, uint64_t number)
{
    weft_agent *agent = owned->agent;
    wfi_ref_peer *from_peer = ref_peer_of(agent, peer);
    if (find_fork(agent, peer, &owned->name, number))
        return WEFT_OK; /* announced before */
    if (number == 0 || number >= WFI_FORK_NUMBERS)
        return WEFT_ERR_NOT_FOUND;
    wfi_fork *fork = from_peer->count < WFI_FORKS_MAX ? wfi_calloc(1, sizeof(*fork)) : NULL;
    if (!fork)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_map_put(&wfi_refs_of(agent)->fork_index, fork_key(wfi_peer_rank(peer), number), fork);
    if (status) { /* WEFT_ERR_EXISTS: the peer uses a number for two values */
        free(fork);
        return status == WEFT_ERR_EXISTS ? WEFT_ERR_NOT_FOUND : status;
    }
    fork->owned = owned;
    fork->peer = peer;
    fork->number = number;
    wfi_list_push_back(&owned->forks, &fork->of_value);
    wfi_list_push_back(&from_peer->forks, &fork->of_peer);
    from_peer->count++;
    wfi_peer_interest(peer, +1);
    return WEFT_OK;
}

static void remove_fork(weft_agent *agent, wfi_fork *fork)
{
    wfi_map_take(&wfi_refs_of(agent)->fork_index, fork_key(wfi_peer_rank(fork->peer), fork->number));
    wfi_list_remove(&fork->of_value);
    wfi_list_remove(&fork->of_peer);
    wfi_refs_of(agent)->peers[wfi_peer_rank(fork->peer)].count--;
    wfi_peer_interest(fork->peer, -1);
    free(fork);
}

static bool is_ours(weft_agent *agent, const wfi_rref_name *name)
{
    int rank = wfi_agent_rank(agent);
    return name->owner == (uint32_t)rank && name->owner_incarnation == wfi_net_member(agent->net, rank)->incarnation;
}

static bool is_of(const wfi_rref_name *name, wfi_peer *creator)
{
    return name->creator == (uint32_t)wfi_peer_rank(creator) &&
           name->creator_incarnation == wfi_peer_incarnation(creator);
}

/* Whether a value that is not in the table may still be made here, by a call of its creator that is in flight. True for
 * a creator that, as far as this worker knows, has not joined yet: the store will report that it joined or ended. */
static bool may_come(weft_agent *agent, const wfi_rref_name *name)
{
    if (name->creator >= (uint32_t)agent->options.values.world_size || (int)name->creator == wfi_agent_rank(agent))
        return false;
    wfi_peer *creator = wfi_net_peer(agent->net, (int)name->creator);
    if (name->creator_incarnation > (creator ? wfi_peer_incarnation(creator) : 0))
        return true;
    return creator && wfi_peer_status(creator) == WEFT_OK && is_of(name, creator) &&
           name->number > ref_peer_of(agent, creator)->creations_seen;
}

weft_status wfi_owned_take_fork(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number)
{
    wfi_ref_peer *from_peer = ref_peer_of(agent, from);
    if (find_fork(agent, from, name, number))
        return WEFT_OK;
    if (number <= from_peer->forks_seen || !is_ours(agent, name))
        return WEFT_ERR_NOT_FOUND; /* a late FORK, dropped since; or this worker is not the owner */
    from_peer->forks_seen = number;
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (!owned && !may_come(agent, name))
        return WEFT_ERR_NOT_FOUND;
    if (!owned)
        owned = wfi_owned_make(agent, name); /* this message arrived before the call that makes the value */
    if (!owned)
        return WEFT_ERR_MEMORY;
    weft_status status = add_fork(owned, from, number);
    if (status)
        wfi_owned_release_if_unused(owned);
    return status;
}

void wfi_owned_take_drop(weft_agent *agent, wfi_peer *from, const wfi_rref_name *name, uint64_t number, bool gave_up)
{
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (gave_up && is_of(name, from)) {
        /* Its call has arrived, or never will: this message was sent after all calls that were queued before. */
        wfi_ref_peer *from_peer = ref_peer_of(agent, from);
        if (name->number > from_peer->creations_seen)
            from_peer->creations_seen = name->number;
        if (owned) {
            wfi_error_detail detail = {.code = WEFT_ERR_CANCELLED, .worker = wfi_agent_rank(agent)};
            weft_error *error = wfi_error_create(&detail, "the worker whose call was to make the value gave it up");
            wfi_owned_give_up(owned, error);
            weft_error_unref(error);
        }
    }
    wfi_fork *fork = find_fork(agent, from, name, number);
    if (!fork)
        return;
    owned = fork->owned;
    remove_fork(agent, fork);
    wfi_owned_release_if_unused(owned);
}

static void drop_forks(weft_agent *agent, wfi_ref_peer *from_peer)
{
    while (!wfi_list_empty(&from_peer->forks)) {
        wfi_fork *fork = wfi_container_of(from_peer->forks.next, wfi_fork, of_peer);
        wfi_owned *owned = fork->owned;
        remove_fork(agent, fork);
        wfi_owned_release_if_unused(owned);
    }
}

void wfi_owned_end(weft_agent *agent)
{
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (wfi_refs_of(agent)->peers[rank].incarnation)
            drop_forks(agent, &wfi_refs_of(agent)->peers[rank]);
}

void wfi_owned_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why)
{
    size_t cursor = 0;
    wfi_ref_peer *from_peer = ref_peer_of(agent, peer);
    if (why == WEFT_ERR_PEER_LEFT && agent->closing) /* it left without dropping them: its own log names them */
        wfi_refs_of(agent)->leaked_forks += from_peer->count;
    drop_forks(agent, from_peer);
    for (wfi_owned *owned; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = owned->next)
            if (is_of(&owned->name, peer)) {
                owned->given_up = true;
                if (!owned->producers)
                    fail_value(owned, why, "the worker whose call was to make the value is gone");
            }
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

weft_status wfi_owned_create_for(weft_agent *agent, wfi_peer *creator, uint64_t call_id, const wfi_rref_name *name,
                                 uint64_t fork, wfi_owned **out)
{
    wfi_ref_peer *from_peer = ref_peer_of(agent, creator);
    if (!is_ours(agent, name) || !is_of(name, creator) || call_id <= from_peer->calls_seen)
        return WEFT_ERR_PROTOCOL;
    from_peer->calls_seen = call_id;
    if (name->number > from_peer->creations_seen)
        from_peer->creations_seen = name->number;
    wfi_owned *owned = wfi_owned_make(agent, name);
    if (!owned)
        return WEFT_ERR_MEMORY;
    weft_status status = add_fork(owned, creator, fork); /* no-op for a further attempt, whose fork exists */
    if (status) {
        wfi_owned_release_if_unused(owned);
        return status == WEFT_ERR_MEMORY ? status : WEFT_ERR_PROTOCOL;
    }
    wfi_owned_begin(owned);
    *out = owned;
    return WEFT_OK;
}

void wfi_owned_begin(wfi_owned *owned)
{
    owned->producers++;
}

/* Whether the call was refused before it ran: then its creator may make another attempt with the same name, and the
 * value fails only when the creator gives up (wfi_owned_give_up). A handler's WEFT_ERR_BUSY would be
 * WEFT_ERR_REMOTE. */
static bool may_be_tried_again(const wfi_owned *owned, const weft_error *error)
{
    return !owned->given_up && error && weft_error_code(error) == WEFT_ERR_BUSY;
}

void wfi_owned_give_up(wfi_owned *owned, const weft_error *why)
{
    owned->given_up = true;
    if (!owned->producers)
        wfi_complete_future(owned->value, NULL, owned->refused ? owned->refused : why);
}

void wfi_owned_finish(wfi_owned *owned, const wfi_made *made)
{
    if (weft_future_done(owned->value)) {
        /* This worker stops, or a peer used a name twice: the call frees its results. */
    } else if (may_be_tried_again(owned, made->error)) {
        weft_error_unref(owned->refused);
        owned->refused = weft_error_ref(made->error);
    } else if (!made->error && *made->object) {
        (void)!wfi_future_complete(owned->value, *made->object, wfi_object_drop);
        *made->object = NULL;
    } else {
        wfi_complete_future(owned->value, made->results, made->error);
    }
    owned->producers--;
    wfi_owned_release_if_unused(owned);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* The agent is being freed. Values that only others held were freed before (wfi_owned_end). */
void wfi_rrefs_fini(weft_agent *agent)
{
    size_t cursor = 0;
    for (wfi_fork *fork; (fork = wfi_map_next(&wfi_refs_of(agent)->fork_index, &cursor, NULL));)
        free(fork);
    cursor = 0;
    for (wfi_owned *owned, *next; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = next) {
            next = owned->next;
            free_owned_task(&owned->release);
        }
    wfi_map_fini(&wfi_refs_of(agent)->owned);
    wfi_map_fini(&wfi_refs_of(agent)->forks);
    wfi_map_fini(&wfi_refs_of(agent)->fork_index);
}
