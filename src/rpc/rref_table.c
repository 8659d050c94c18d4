/* SPDX-License-Identifier: Apache-2.0 */
/* rref_table.c - the owner's side of remote references: values by name, and who holds a fork of each. */
#include "rpc/rref.h"
#include "rpc/rref_internal.h"

#include "base/error.h"
#include "rpc/intake.h"
#include "rpc/serve.h"
#include "rpc/values.h"

#include <stdlib.h>
#include <string.h>

/* ---- The table --------------------------------------------------------------------------------------------------- */

bool wfi_rref_same_name(const wfi_rref_name *a, const wfi_rref_name *b)
{
    return a->owner == b->owner && a->creator == b->creator && a->creator_incarnation == b->creator_incarnation &&
           a->number == b->number;
}

wfi_owned *wfi_owned_find(weft_agent *agent, const wfi_rref_name *name)
{
    wfi_owned *owned = wfi_map_get(&agent->rrefs, wfi_rref_name_hash(name));
    while (owned && !wfi_rref_same_name(&owned->name, name))
        owned = owned->next;
    return owned;
}

static bool link_in(weft_agent *agent, wfi_owned *owned)
{
    uint64_t hash = wfi_rref_name_hash(&owned->name);
    wfi_owned *head = wfi_map_get(&agent->rrefs, hash);
    if (!head)
        return wfi_map_put(&agent->rrefs, hash, owned) == WEFT_OK;
    owned->next = head->next;
    head->next = owned;
    return true;
}

static void link_out(weft_agent *agent, wfi_owned *owned)
{
    uint64_t hash = wfi_rref_name_hash(&owned->name);
    wfi_owned *head = wfi_map_take(&agent->rrefs, hash);
    wfi_owned **at = &head;
    while (*at != owned)
        at = &(*at)->next;
    *at = owned->next;
    weft_status st = head ? wfi_map_put(&agent->rrefs, hash, head) : WEFT_OK;
    (void)st; /* the slot was just freed: putting it back cannot need memory */
}

wfi_owned *wfi_owned_make(weft_agent *agent, const wfi_rref_name *name)
{
    wfi_owned *owned = wfi_owned_find(agent, name);
    if (owned)
        return owned;
    owned = calloc(1, sizeof *owned);
    if (!owned)
        return NULL;
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

/* Nobody will make it any more. */
static void fail_value(wfi_owned *owned, weft_status why, const char *text)
{
    weft_error *error = weft_error_create(why, "%s", text);
    weft_status st = weft_future_fail(owned->value, error);
    (void)st; /* WEFT_ERR_COMPLETED: it was made */
    weft_error_unref(error);
}

/* The value may hold a user's object: it is let go outside the lock. */
static void free_owned_task(wfi_task *task)
{
    wfi_owned *owned = wfi_container_of(task, wfi_owned, release);
    weft_future_unref(owned->value);
    free(owned);
}

void wfi_owned_release_if_unused(weft_agent *agent, wfi_owned *owned)
{
    if (owned->handles || owned->makers || !wfi_list_empty(&owned->forks))
        return;
    link_out(agent, owned);
    if (!weft_future_done(owned->value)) /* somebody may be asking for it still */
        fail_value(owned, WEFT_ERR_CANCELLED, "the last reference went before the value was made");
    owned->release.run = free_owned_task;
    wfi_net_defer(agent->net, &owned->release, WFI_DEFER_RELEASE);
}

void wfi_owned_begin(wfi_owned *owned)
{
    owned->makers++;
}

void wfi_owned_finish(weft_agent *agent, wfi_owned *owned, const weft_values *results, const weft_error *error)
{
    wfi_owned_complete(owned->value, results, error);
    owned->makers--;
    wfi_owned_release_if_unused(agent, owned);
}

bool wfi_owned_may_come(weft_agent *agent, const wfi_rref_name *name)
{
    wfi_peer *creator = wfi_net_peer(agent->net, (int)name->creator);
    return creator && wfi_peer_status(creator) == WEFT_OK &&
           wfi_net_member(agent->net, (int)name->creator)->incarnation == name->creator_incarnation;
}

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

static wfi_fork *find_fork(wfi_owned *owned, int rank, uint64_t number)
{
    for (wfi_list *link = owned->forks.next; link != &owned->forks; link = link->next) {
        wfi_fork *fork = wfi_container_of(link, wfi_fork, link);
        if (fork->rank == rank && fork->number == number)
            return fork;
    }
    return NULL;
}

weft_status wfi_owned_add_fork(wfi_owned *owned, int rank, uint64_t number)
{
    if (find_fork(owned, rank, number))
        return WEFT_OK; /* said twice */
    wfi_fork *fork = calloc(1, sizeof *fork);
    if (!fork)
        return WEFT_ERR_MEMORY;
    fork->rank = rank;
    fork->number = number;
    wfi_list_push_back(&owned->forks, &fork->link);
    return WEFT_OK;
}

void wfi_owned_drop_fork(weft_agent *agent, const wfi_rref_name *name, int rank, uint64_t number)
{
    wfi_owned *owned = wfi_owned_find(agent, name);
    wfi_fork *fork = owned ? find_fork(owned, rank, number) : NULL;
    if (!fork)
        return;
    wfi_list_remove(&fork->link);
    free(fork);
    wfi_owned_release_if_unused(agent, owned);
}

static void drop_forks_of(wfi_owned *owned, int rank)
{
    for (wfi_list *link = owned->forks.next, *next; link != &owned->forks; link = next) {
        wfi_fork *fork = wfi_container_of(link, wfi_fork, link);
        next = link->next;
        if (rank >= 0 && fork->rank != rank)
            continue;
        wfi_list_remove(&fork->link);
        free(fork);
    }
}

/* All entries as an array that stays valid while they change; *count of them. NULL: none, or no memory. */
static wfi_owned **snapshot(weft_agent *agent, size_t *count)
{
    size_t cursor = 0, room = 0;
    uint64_t hash;
    for (wfi_owned *owned; (owned = wfi_map_next(&agent->rrefs, &cursor, &hash));)
        for (; owned; owned = owned->next)
            room++;
    wfi_owned **list = malloc(room * sizeof *list + 1);
    *count = 0;
    cursor = 0;
    for (wfi_owned *owned; list && (owned = wfi_map_next(&agent->rrefs, &cursor, &hash));)
        for (; owned; owned = owned->next)
            list[(*count)++] = owned;
    return list;
}

void wfi_owned_drop_all_of(weft_agent *agent, int rank)
{
    size_t count;
    wfi_owned **list = snapshot(agent, &count);
    for (size_t i = 0; list && i < count; i++) {
        if (list[i]->name.creator == (uint32_t)rank && !list[i]->makers)
            fail_value(list[i], WEFT_ERR_PEER_DEAD, "the worker that was to have the value made is gone");
        drop_forks_of(list[i], rank);
        wfi_owned_release_if_unused(agent, list[i]);
    }
    free(list);
}

void wfi_owned_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    size_t cursor = 0;
    uint64_t hash;
    for (wfi_owned *owned; (owned = wfi_map_next(&agent->rrefs, &cursor, &hash));)
        for (; owned; owned = owned->next)
            fail_value(owned, why, text);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

void wfi_owned_complete(weft_future *value, const weft_values *results, const weft_error *error)
{
    weft_status st;
    if (error)
        st = weft_future_fail(value, error);
    else
        st = weft_future_complete(value, weft_values_ref((weft_values *)results), wfi_values_drop);
    (void)st; /* WEFT_ERR_COMPLETED: a peer used a name twice; the first value stays */
}

static void answer_fetch(weft_future *value, void *arg)
{
    weft_call *call = arg;
    const weft_values *values = weft_future_values(value);
    const weft_error *error = weft_future_error(value);
    if (error) /* as it was: the one who asks shall see why the value could not be made */
        call->error = wfi_error_with_hop(error, wfi_agent_rank(call->agent));
    else if (!values)
        weft_call_fail(call, WEFT_ERR_TYPE, "the reference holds an object of its owner's own type");
    else if (weft_values_count(values) == 0)
        weft_call_give(call, WEFT_VALUES(weft_of_null()));
    else
        weft_call_give(call, (weft_args){weft_values_args(values).items, 1});
    weft_call_finish(call, WEFT_OK);
}

static weft_status run_fetch(weft_call *call, void *user)
{
    size_t size;
    wfi_reader reader;
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    wfi_rref_name name = wfi_read_rref_name(&reader);
    if (reader.failed)
        return WEFT_ERR_PROTOCOL;
    wfi_net_lock(agent->net);
    wfi_owned *owned = wfi_owned_find(agent, &name);
    weft_future *value = owned ? weft_future_ref(owned->value) : NULL;
    wfi_net_unlock(agent->net);
    if (!value)
        return WEFT_ERR_NOT_FOUND;
    weft_call_defer(call);
    if (weft_future_add_done_callback(value, answer_fetch, call, NULL)) {
        weft_call_fail(call, WEFT_ERR_MEMORY, "no memory to wait for the value");
        weft_call_finish(call, WEFT_ERR_MEMORY);
    }
    weft_future_unref(value);
    return WEFT_DEFERRED;
}

const weft_function wfi_fetch_function = {
    .name = "weft:fetch", .takes = {WEFT_BYTES}, .gives = {WEFT_ANY}, .run = run_fetch, .flags = WEFT_INLINE};

/* The agent is being freed: nobody can ask any more. */
void wfi_rrefs_fini(weft_agent *agent)
{
    size_t count;
    wfi_owned **list = snapshot(agent, &count);
    for (size_t i = 0; list && i < count; i++) {
        drop_forks_of(list[i], -1);
        weft_future_unref(list[i]->value);
        free(list[i]);
    }
    free(list);
    wfi_map_fini(&agent->rrefs);
    wfi_map_fini(&agent->forks);
}
