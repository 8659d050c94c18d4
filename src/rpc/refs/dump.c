/* SPDX-License-Identifier: Apache-2.0 */
/* refs/dump.c - the references of an agent, as weft_debug_dump shows them. */
#include "base/alloc.h"
#include "rpc/refs/internal.h"

#include <inttypes.h>
#include <stdlib.h>

static void put_name(wfi_json *j, const wfi_rref_name *name)
{
    char text[80];
    snprintf(text, sizeof(text), "%u.%u/%u.%u:%" PRIu64, name->owner, name->owner_incarnation, name->creator,
             name->creator_incarnation, name->number);
    wfi_json_put_text(j, "name", text);
}

static void put_value(wfi_json *j, const weft_future *value)
{
    const wfi_object *object = wfi_object_of(value);
    const weft_error *error = weft_future_error(value);
    const weft_values *values = weft_future_values(value);
    if (!weft_future_done(value))
        wfi_json_put_text(j, "what", "being made");
    else if (error)
        wfi_json_put_text(j, "what", "failed");
    else
        wfi_json_put_text(j, "what", object ? "object" : "value");
    if (error)
        wfi_json_put_text(j, "error", weft_status_name(weft_error_code(error)));
    if (object)
        wfi_json_put_text(j, "type", object->type ? object->type->name : NULL);
    else if (values)
        wfi_json_put_text(j, "type",
                          weft_type_name(weft_values_count(values) ? weft_values_type(values, 0) : WEFT_TYPE_NULL));
}

/* Writes how many references to the value each other worker holds (forks: refs.h). `counts` has an entry for every
 * rank, all 0 before and after. */
static size_t put_forks(wfi_json *j, const wfi_owned *owned, size_t *counts, int world_size)
{
    size_t total = 0;
    WFI_FOR_LIST (const wfi_fork, fork, &owned->forks, of_value) {
        counts[wfi_peer_rank(fork->peer)]++;
        total++;
    }
    wfi_json_open(j, "forks", '[');
    for (int rank = 0; rank < world_size && total; rank++) {
        if (!counts[rank])
            continue;
        wfi_json_open(j, NULL, '{');
        wfi_json_put_number(j, "rank", (uint64_t)rank);
        wfi_json_put_number(j, "count", counts[rank]);
        wfi_json_close(j, '}');
        counts[rank] = 0;
    }
    wfi_json_close(j, ']');
    return total;
}

static weft_status put_owned(wfi_json *j, weft_agent *agent)
{
    size_t cursor = 0, forks = 0, handles = 0, count = 0;
    int world_size = agent->options.values.world_size;
    size_t *counts = wfi_calloc((size_t)world_size, sizeof(*counts));
    if (!counts)
        return WEFT_ERR_MEMORY;
    wfi_json_open(j, "values", '[');
    for (wfi_owned *owned; (owned = wfi_map_next(&wfi_refs_of(agent)->owned, &cursor, NULL));)
        for (; owned; owned = owned->next, count++) {
            wfi_json_open(j, NULL, '{');
            put_name(j, &owned->name);
            put_value(j, owned->value);
            wfi_json_put_number(j, "handles", owned->handles);
            wfi_json_put_number(j, "makers", owned->producers);
            forks += put_forks(j, owned, counts, world_size);
            handles += owned->handles;
            wfi_json_close(j, '}');
        }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "value_count", count);
    wfi_json_put_number(j, "handle_count", handles);
    wfi_json_put_number(j, "fork_count", forks);
    free(counts);
    return WEFT_OK;
}

static void put_references(wfi_json *j, weft_agent *agent)
{
    size_t count = 0, unconfirmed = 0;
    wfi_json_open(j, "references", '[');
    WFI_FOR_LIST (const weft_rref, rref, &wfi_refs_of(agent)->references, link) {
        wfi_json_open(j, NULL, '{');
        put_name(j, &rref->name);
        wfi_json_put_number(j, "owner", rref->name.owner);
        wfi_json_put_number(j, "fork", rref->fork);
        wfi_json_put_bool(j, "confirmed", rref->confirmed);
        wfi_json_put_bool(j, "making", rref->making);
        if (rref->error)
            wfi_json_put_text(j, "error", weft_status_name(weft_error_code(rref->error)));
        wfi_json_close(j, '}');
        unconfirmed += !rref->confirmed && !rref->error;
        count++;
    }
    wfi_json_close(j, ']');
    wfi_json_put_number(j, "reference_count", count);
    wfi_json_put_number(j, "unconfirmed_count", unconfirmed);
    wfi_json_put_number(j, "awaiting_confirmation", wfi_refs_of(agent)->forks.count);
}

weft_status wfi_refs_dump(weft_agent *agent, wfi_json *j)
{
    weft_status status = put_owned(j, agent);
    put_references(j, agent);
    return status;
}
