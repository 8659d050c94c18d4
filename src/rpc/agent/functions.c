/* SPDX-License-Identifier: Apache-2.0 */
/* functions.c - the table of registered functions, by name. No entry is removed while the agent lives. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/text/distance.h"
#include "base/utf8.h"
#include "base/text/sized.h"
#include "rpc/agent/agent.h"

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

/* The registered function of the program whose name is most similar to `name`, at a distance of at most 2; or NULL. */
static const char *find_similar(weft_agent *agent, const char *name)
{
    const char *found = NULL;
    size_t cursor = 0, least = 3, size = strlen(name);
    pthread_mutex_lock(&agent->function_lock);
    for (const wfi_registered *entry; (entry = wfi_map_next(&agent->functions, &cursor, NULL));)
        for (; entry; entry = entry->next) {
            const char *known = entry->function.name;
            size_t known_size = strlen(known);
            bool is_far = size > known_size + 2 || known_size > size + 2;
            if (is_far || size > WFI_DISTANCE_BYTES || known_size > WFI_DISTANCE_BYTES || !strncmp(known, "weft:", 5))
                continue;
            size_t far = wfi_distance(name, size, known, known_size);
            if (far < least && far < size) {
                least = far;
                found = known;
            }
        }
    pthread_mutex_unlock(&agent->function_lock);
    return found; /* no entry is removed while the agent lives */
}

weft_error *wfi_function_unknown(weft_agent *agent, const char *name)
{
    wfi_error_detail unknown = {.code = WEFT_ERR_NOT_FOUND, .function = name, .worker = wfi_agent_rank(agent)};
    const char *similar = find_similar(agent, name);
    return wfi_error_create(&unknown, "no function \"%s\" is registered on %s%s%s%s", name, agent->options.name,
                            similar ? ": did you mean \"" : "", similar ? similar : "", similar ? "\"?" : "");
}

/* Whether no type follows the WEFT_TYPE_NONE at `end`: it would be ignored. */
static bool ends_there(const weft_type *types, int end)
{
    for (int i = end + 1; i < WEFT_MAX_SIGNATURE; i++)
        if (types[i] != WEFT_TYPE_NONE)
            return false;
    return true;
}

/* Returns what is wrong with a signature, at *at, or NULL. */
static const char *signature_problem(const weft_type *types, int *at)
{
    for (int i = 0; i < WEFT_MAX_SIGNATURE; i++) {
        *at = i;
        if (types[i] == WEFT_TYPE_NONE)
            return ends_there(types, i) ? NULL : "goes on after WEFT_TYPE_NONE";
        if (types[i] < WEFT_TYPE_NULL || types[i] > WEFT_TYPE_REST)
            return "has a number that is no type";
        if (types[i] == WEFT_TYPE_REST && i + 1 < WEFT_MAX_SIGNATURE && types[i + 1] != WEFT_TYPE_NONE)
            return "goes on after WEFT_TYPE_REST";
    }
    return "is not ended by WEFT_TYPE_NONE";
}

static const char *flags_problem(const weft_function *function)
{
    const unsigned all = WEFT_FUNCTION_INLINE | WEFT_FUNCTION_URGENT | WEFT_FUNCTION_LAZY | WEFT_FUNCTION_LAND_ADD |
                         WEFT_FUNCTION_ORDERED | WFI_AT_ONCE | WFI_RESERVED | WFI_LET_IN,
                   both = WEFT_FUNCTION_URGENT | WEFT_FUNCTION_LAZY;
    unsigned flags = function->flags;
    if (flags & ~all)
        return "has a bit that is no flag";
    if ((flags & both) == both)
        return "is WEFT_FUNCTION_URGENT and WEFT_FUNCTION_LAZY at once";
    if (flags & WEFT_FUNCTION_ORDERED && function->run_batch)
        return "is WEFT_FUNCTION_ORDERED with run_batch: a batch has calls of many callers";
    if (flags & WEFT_FUNCTION_LAND_ADD && !function->land)
        return "is WEFT_FUNCTION_LAND_ADD without a land function";
    return flags & WEFT_FUNCTION_LAND_ADD && flags & WEFT_FUNCTION_INLINE
               ? "is WEFT_FUNCTION_LAND_ADD and WEFT_FUNCTION_INLINE at once"
               : NULL;
}

/* *error names the faulty field, and what is wrong with it. */
static weft_status check_function(const weft_agent *agent, const weft_function *function, weft_error **error)
{
    const weft_status bad = WEFT_ERR_INVALID;
    const char *problem;
    int at = 0;
    if (!function)
        return wfi_error_fail(error, bad, "the function is NULL");
    if (!function->name || !function->name[0])
        return wfi_error_fail(error, bad, "name is NULL or empty");
    if (strlen(function->name) > WFI_FUNCTION_NAME_MAX)
        return wfi_error_fail(error, bad, "name has %zu bytes: 1 to %d", strlen(function->name), WFI_FUNCTION_NAME_MAX);
    if (!function->run && !function->run_batch)
        return wfi_error_fail(error, bad, "run is NULL");
    if ((problem = signature_problem(function->takes, &at)))
        return wfi_error_fail(error, bad, "takes %s: takes[%d] is %d", problem, at, (int)function->takes[at]);
    if ((problem = signature_problem(function->gives, &at)))
        return wfi_error_fail(error, bad, "gives %s: gives[%d] is %d", problem, at, (int)function->gives[at]);
    if ((problem = flags_problem(function)))
        return wfi_error_fail(error, bad, "flags %s: 0x%x", problem, function->flags);
    weft_status status = WEFT_OK;
    WFI_FOR_COMPONENTS (component, check)
        status = status ? status : component->check(agent, function, error);
    return status;
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

static weft_status make_runner(weft_agent *agent, wfi_registered *entry)
{
    weft_status status = WEFT_OK;
    WFI_FOR_COMPONENTS (component, runner) {
        status = component->runner(agent, &entry->function, &entry->runner);
        entry->runs = component;
        if (status || entry->runner)
            break;
    }
    return status;
}

static void free_entry(wfi_registered *entry)
{
    wfi_map_fini(&entry->lines); /* empty: no call is left */
    if (entry->runner)
        entry->runs->free_runner(entry->runner);
    free((char *)entry->function.name);
    free(entry);
}

weft_status wfi_function_register(weft_agent *agent, const weft_function *function, weft_error **error)
{
    weft_status status = check_function(agent, function, error);
    if (status || !function || !function->name) /* the check has failed if one is NULL */
        return status;
    wfi_registered *entry = wfi_calloc(1, sizeof(*entry));
    if (!entry)
        return WEFT_ERR_MEMORY;
    entry->function = *function;
    wfi_map_init(&entry->lines);
    entry->function.name = strdup(function->name);
    status = entry->function.name ? make_runner(agent, entry) : WEFT_ERR_MEMORY;
    if (!status) {
        pthread_mutex_init(&entry->adding, NULL);
        pthread_mutex_lock(&agent->function_lock);
        status = insert_locked(agent, entry);
        pthread_mutex_unlock(&agent->function_lock);
    }
    if (status)
        free_entry(entry);
    else if (entry->runner)
        entry->runs->registered(entry->runner);
    return status == WEFT_ERR_EXISTS ? wfi_error_fail(error, status, "name is taken") : status;
}

weft_status wfi_function_register_user(weft_agent *agent, const weft_function *function, weft_error **error)
{
    if (function && function->name && strncmp(function->name, "weft:", 5) == 0)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "name begins with \"weft:\", as only weft's own do");
    if (function && function->flags & WFI_AT_ONCE)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "flags has a bit that is no flag: 0x%x", function->flags);
    return wfi_function_register(agent, function, error);
}

/* Returns only the code; the log names the faulty field. */
weft_status weft_agent_register_sized(weft_agent *agent, const weft_function *function, size_t size)
{
    WFI_CHECK_HANDLE(agent);
    weft_error *error = NULL;
    if (!agent)
        return wfi_refuse_null("weft_agent_register", "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    weft_function own;
    const weft_function *known = function ? WFI_SIZED(function, size, &own) : NULL;
    if (function && !known)
        return wfi_refuse_newer(NULL, "weft_agent_register", "weft_function");
    const char *name = known && known->name ? known->name : "(no name)";
    weft_status status = wfi_function_register_user(agent, known, &error);
    if (error)
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "weft_agent_register: \"%.*s\": %s", wfi_utf8_fit(name, 140), name,
                      weft_error_message(error));
    weft_error_unref(error);
    return status;
}

void wfi_functions_fini(weft_agent *agent)
{
    size_t cursor = 0;
    for (wfi_registered *entry; (entry = wfi_map_next(&agent->functions, &cursor, NULL));) {
        while (entry) {
            wfi_registered *next = entry->next;
            pthread_mutex_destroy(&entry->adding);
            free_entry(entry);
            entry = next;
        }
    }
    wfi_map_fini(&agent->functions);
}
