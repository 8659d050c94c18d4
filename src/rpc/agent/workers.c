/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.c - the workers of the job, as this agent knows them: which are alive, their names, and weft_agent_watch.
 *
 * A name that weft_agent_name returned stays valid as long as the agent, even if the worker is gone. So it returns a
 * copy; there is one copy for each name that was ever returned.
 */
#include "base/alloc.h"
#include "base/text/sized.h"
#include "rpc/agent/agent.h"

#include <stdlib.h>
#include <string.h>

typedef struct given_name {
    struct given_name *next; /* others with the same hash */
    char text[];
} given_name;

/* ---- By name ----------------------------------------------------------------------------------------------------- */

/* [agent lock] */
bool wfi_agent_lists(const weft_agent *agent, int rank)
{
    const wfi_peer *peer = wfi_net_peer(agent->net, rank);
    return wfi_agent_knows_alive(agent, rank) && !(peer && wfi_peer_is_leaving(peer));
}

/* [agent lock] */
static bool holds_name(const weft_agent *agent, int rank, const char *name)
{
    const wfi_member *member = wfi_net_member(agent->net, rank);
    return member && strcmp(member->name, name) == 0 && wfi_agent_knows_alive(agent, rank);
}

/* First checks the rank where the name was found last, so that a call by name need not check every rank. That rank may
 * have another name by now. [agent lock] */
static int find_name(weft_agent *agent, const char *name)
{
    int world_size = agent->options.values.world_size;
    uint64_t hash = wfi_hash_keyed(&agent->hash_key, name, strlen(name));
    int found = (int)(uintptr_t)wfi_map_get(&agent->found_names, hash) - 1;
    if (found >= 0 && holds_name(agent, found, name))
        return found;
    for (found = 0; found < world_size && !holds_name(agent, found, name);)
        found++;
    if (found == world_size)
        return -1;
    if (agent->found_names.count > 2 * (size_t)world_size) /* most are names of workers that are gone */
        wfi_map_fini(&agent->found_names);
    wfi_map_take(&agent->found_names, hash);
    weft_status status = wfi_map_put(&agent->found_names, hash, (void *)(uintptr_t)(found + 1));
    (void)status; /* if it failed, the next call checks every rank again */
    return found;
}

int wfi_agent_find(weft_agent *agent, const char *name, bool leaving_too)
{
    wfi_net_lock(agent->net);
    int found = find_name(agent, name);
    if (found >= 0 && !leaving_too && !wfi_agent_lists(agent, found))
        found = -1;
    wfi_net_unlock(agent->net);
    return found;
}

int weft_agent_find(const weft_agent *agent, const char *name)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || !name || agent->forked)
        return -1;
    return wfi_agent_find((weft_agent *)agent, name, false); /* changes only a cache, so the user's pointer is const */
}

/* ---- By rank ----------------------------------------------------------------------------------------------------- */

/* NULL: no memory. [agent lock] */
static const char *give_name(weft_agent *agent, const char *name)
{
    uint64_t hash = wfi_hash_keyed(&agent->hash_key, name, strlen(name));
    given_name *first = wfi_map_get(&agent->given_names, hash), *given = first;
    while (given && strcmp(given->text, name) != 0)
        given = given->next;
    if (given)
        return given->text;
    size_t size = strlen(name) + 1;
    given = wfi_calloc(1, sizeof(*given) + size);
    if (!given)
        return NULL;
    memcpy(given->text, name, size);
    if (first) {
        given->next = first->next;
        first->next = given;
    } else if (wfi_map_put(&agent->given_names, hash, given)) {
        free(given);
        return NULL;
    }
    return given->text;
}

const char *weft_agent_name(const weft_agent *agent, int rank)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || agent->forked)
        return NULL;
    wfi_net_lock(agent->net);
    const wfi_member *member = wfi_net_member(agent->net, rank);
    const char *name = member ? give_name((weft_agent *)agent, member->name) : NULL; /* changes only a cache */
    wfi_net_unlock(agent->net);
    return name;
}

/* [agent lock] */
bool wfi_agent_knows_alive(const weft_agent *agent, int rank)
{
    if (rank == wfi_agent_rank(agent))
        return !agent->gone;
    return wfi_agent_peer_status(agent, rank) == WEFT_OK;
}

weft_status wfi_agent_peer_status(const weft_agent *agent, int rank)
{
    wfi_peer *peer = wfi_net_peer(agent->net, rank);
    return peer ? wfi_peer_status(peer) : WEFT_ERR_PEER_DEAD;
}

bool weft_agent_alive(const weft_agent *agent, int rank)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return false;
    wfi_net_lock(agent->net);
    bool alive = wfi_agent_lists(agent, rank);
    wfi_net_unlock(agent->net);
    return alive;
}

void weft_agent_worker_sized(const weft_agent *agent, int rank, weft_worker *out, size_t size)
{
    WFI_CHECK_HANDLE(agent);
    weft_worker worker = {rank, 0};
    if (agent) {
        wfi_net_lock(agent->net);
        const wfi_member *member = wfi_net_member(agent->net, rank);
        worker.incarnation = member ? member->incarnation : 0;
        wfi_net_unlock(agent->net);
    }
    if (out)
        wfi_sized_give(out, size, &worker, sizeof(worker));
}

size_t weft_agent_workers_sized(const weft_agent *agent, weft_worker *out, size_t size, size_t capacity)
{
    WFI_CHECK_HANDLE(agent);
    size_t count = 0;
    if (!agent)
        return 0;
    wfi_net_lock(agent->net);
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        if (!wfi_agent_lists(agent, rank))
            continue;
        weft_worker worker = {rank, wfi_net_member(agent->net, rank)->incarnation};
        if (out && count < capacity)
            wfi_sized_give((char *)out + count * size, size, &worker, sizeof(worker));
        count++;
    }
    wfi_net_unlock(agent->net);
    return count;
}

void wfi_names_fini(weft_agent *agent)
{
    size_t cursor = 0;
    for (given_name *given, *next; (given = wfi_map_next(&agent->given_names, &cursor, NULL));)
        for (; given; given = next) {
            next = given->next;
            free(given);
        }
    wfi_map_fini(&agent->given_names);
    wfi_map_fini(&agent->found_names);
}

/* ---- Watching ---------------------------------------------------------------------------------------------------- */

/* The count of watches starts anew with each incarnation of the rank. */
static weft_status change_watch(weft_agent *agent, int rank, int by)
{
    if (!agent)
        return wfi_refuse_null(by > 0 ? "weft_agent_watch" : "weft_agent_unwatch", "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    wfi_net_lock(agent->net);
    weft_status status = wfi_agent_usable(agent);
    wfi_peer *peer = status ? NULL : wfi_net_peer(agent->net, rank);
    wfi_rpc_peer *known = peer ? &agent->peers[rank] : NULL;
    if (peer && known->watched != wfi_peer_incarnation(peer)) {
        known->watched = wfi_peer_incarnation(peer);
        known->watches = 0; /* the former incarnation is gone */
    }
    if (!status)
        status = peer ? wfi_peer_status(peer) : WEFT_ERR_NOT_FOUND;
    if (!status && by < 0 && !known->watches)
        status = WEFT_ERR_STATE;
    if (!status) {
        known->watches += (size_t)by;
        wfi_peer_interest(peer, by);
    }
    wfi_net_unlock(agent->net);
    const char *function = by > 0 ? "weft_agent_watch" : "weft_agent_unwatch";
    if (status == WEFT_ERR_NOT_FOUND && rank == wfi_agent_rank(agent))
        return wfi_refuse(status, "%s: rank %d is this worker itself", function, rank);
    if (status == WEFT_ERR_NOT_FOUND)
        return wfi_refuse(status, "%s: rank %d: " WFI_UNKNOWN_RANK_TEXT, function, rank, agent->options.name);
    return status == WEFT_ERR_STATE && by < 0 ? wfi_refuse(status, "%s: rank %d is not watched", function, rank)
                                              : status;
}

weft_status weft_agent_watch(weft_agent *agent, int rank)
{
    WFI_CHECK_HANDLE(agent);
    return change_watch(agent, rank, 1);
}

weft_status weft_agent_unwatch(weft_agent *agent, int rank)
{
    WFI_CHECK_HANDLE(agent);
    return change_watch(agent, rank, -1);
}
