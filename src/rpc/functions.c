/* SPDX-License-Identifier: Apache-2.0 */
/* functions.c - the table of functions that others may call, by name. Entries stay until the agent goes. */
#include "rpc/agent.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static const wfi_registered *find_locked(weft_agent *agent, const char *name, uint64_t hash)
{
    const wfi_registered *entry = wfi_map_get(&agent->functions, hash);
    while (entry && strcmp(entry->function.name, name) != 0)
        entry = entry->next;
    return entry;
}

const weft_function *wfi_function_find(weft_agent *agent, const char *name)
{
    uint64_t hash = wfi_hash_bytes(name, strlen(name));
    pthread_mutex_lock(&agent->function_lock);
    const wfi_registered *entry = find_locked(agent, name, hash);
    pthread_mutex_unlock(&agent->function_lock);
    return entry ? &entry->function : NULL;
}

static bool signature_is_sound(const weft_type *types)
{
    for (int i = 0; i < WEFT_MAX_SIGNATURE; i++) {
        if (types[i] == WEFT_NONE)
            return true;
        if (types[i] < WEFT_NULL || types[i] > WEFT_REST)
            return false;
        if (types[i] == WEFT_REST && i + 1 < WEFT_MAX_SIGNATURE && types[i + 1] != WEFT_NONE)
            return false;
    }
    return false; /* nothing ends it */
}

static bool flags_are_sound(const weft_function *function)
{
    const unsigned all = WEFT_INLINE | WEFT_URGENT | WEFT_LAZY | WEFT_LAND_ADD | WFI_AT_ONCE,
                   both = WEFT_URGENT | WEFT_LAZY;
    unsigned flags = function->flags;
    if (flags & ~all || (flags & both) == both)
        return false;
    return !(flags & WEFT_LAND_ADD) || (function->land && !(flags & WEFT_INLINE));
}

static weft_status insert_locked(weft_agent *agent, wfi_registered *entry)
{
    const char *name = entry->function.name;
    uint64_t hash = wfi_hash_bytes(name, strlen(name));
    if (find_locked(agent, name, hash))
        return WEFT_ERR_EXISTS;
    wfi_registered *head = wfi_map_get(&agent->functions, hash);
    if (!head)
        return wfi_map_put(&agent->functions, hash, entry);
    entry->next = head->next;
    head->next = entry;
    return WEFT_OK;
}

weft_status wfi_function_register(weft_agent *agent, const weft_function *function)
{
    if (!agent || !function || !function->run || !function->name || !function->name[0] ||
        strlen(function->name) > WFI_FUNCTION_NAME_MAX || !signature_is_sound(function->takes) ||
        !signature_is_sound(function->gives) || !flags_are_sound(function))
        return WEFT_ERR_INVALID;
    wfi_registered *entry = calloc(1, sizeof *entry);
    char *name = strdup(function->name);
    weft_status st = entry && name ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!st) {
        entry->function = *function;
        entry->function.name = name;
        pthread_mutex_init(&entry->adding, NULL);
        pthread_mutex_lock(&agent->function_lock);
        st = insert_locked(agent, entry);
        pthread_mutex_unlock(&agent->function_lock);
    }
    if (st) {
        free(name);
        free(entry);
    }
    return st;
}

weft_status weft_agent_register(weft_agent *agent, const weft_function *function)
{
    if (function && ((function->name && strncmp(function->name, "weft:", 5) == 0) || function->flags & WFI_AT_ONCE))
        return WEFT_ERR_INVALID; /* weft's own */
    return wfi_function_register(agent, function);
}

void wfi_functions_fini(weft_agent *agent)
{
    size_t cursor = 0;
    uint64_t hash;
    for (wfi_registered *entry; (entry = wfi_map_next(&agent->functions, &cursor, &hash));) {
        while (entry) {
            wfi_registered *next = entry->next;
            pthread_mutex_destroy(&entry->adding);
            free((char *)entry->function.name);
            free(entry);
            entry = next;
        }
    }
    wfi_map_fini(&agent->functions);
}
