/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - net's state of a transfer: its chunks, the fabric that its local memory is registered with, and its end.
 */
#include "base/alloc.h"
#include "net/bulk/bulk.h"

#include <stdlib.h>

static wfi_transport *bulk_transport(const wfi_bulk *bulk)
{
    return bulk->channel.peer->transport;
}

uint64_t wfi_transfer_state_chunks(const wfi_transfer_state *state)
{
    return state->first[state->owner->segment_count];
}

bool wfi_transfer_state_has_free(wfi_transfer_state *state)
{
    uint64_t count = wfi_transfer_state_chunks(state);
    while (state->next < count && (state->taken[state->next / 64] >> (state->next % 64) & 1))
        state->next++;
    return !state->ending && state->next < count;
}

/* ---- Creating and ending --------------------------------------------------------------------------------------- */

static void drop_regions(wfi_transfer_state *state)
{
    for (size_t i = 0; state->regions && i < state->owner->segment_count; i++) {
        if (state->regions[i])
            wfi_reg_cache_put(state->region_fabric->cache, state->owner->segments[i].storage, state->regions[i]);
    }
    free(state->regions);
    state->regions = NULL;
    state->region_fabric = NULL;
    state->refused = 0;
}

static unsigned local_access(const wfi_transfer_state *state)
{
    return state->owner->kind == WFI_PULL ? WFI_LOCAL_WRITE : WFI_LOCAL_READ;
}

/* Takes the regions that the cache of region_fabric has. Returns the size of a segment without a region, or 0. */
static size_t take_regions(wfi_transfer_state *state)
{
    size_t missing = 0;
    for (size_t i = 0; i < state->owner->segment_count; i++) {
        const wfi_segment *segment = &state->owner->segments[i];
        if (segment->size && !state->regions[i] &&
            !wfi_net_fabric_find(state->region_fabric, segment->storage, local_access(state), &state->regions[i]))
            missing = segment->size;
    }
    return missing;
}

static void local_registered(wfi_registration *registration)
{
    wfi_transfer_state *state = registration->owner;
    state->registration = NULL;
    state->refused = take_regions(state);
    state->lack = registration->status ? registration->status : WEFT_ERR_MEMORY;
    state->bulk->channel.ops->retry(&state->bulk->channel);
}

static weft_status register_later(wfi_transfer_state *state)
{
    wfi_prepared prepared = {.fabrics = {state->region_fabric}, .fabric_count = 1};
    for (size_t i = 0; i < state->owner->segment_count; i++) {
        const wfi_segment *segment = &state->owner->segments[i];
        if (segment->size && !state->regions[i])
            wfi_prepared_want(&prepared, segment->storage, local_access(state));
    }
    state->registration = wfi_registration_start(bulk_transport(state->bulk), &prepared, local_registered, state);
    wfi_prepared_fini(&prepared); /* the transfer's owner has references too */
    return state->registration ? WEFT_ERR_AGAIN : WEFT_ERR_MEMORY;
}

/* The fabric failed to register memory. Reports that once. If the fabric does not copy such memory, a later call
 * tries to register it again. */
static weft_status report_refused(wfi_transfer_state *state, size_t *refused)
{
    bool copies = state->region_fabric->limits->copied_max;
    *refused = state->refused;
    state->refused = 0;
    if (!copies)
        drop_regions(state);
    return copies ? WEFT_OK : state->lack;
}

/* A transfer that continues on another fabric has no chunk in flight on the former one, so its regions there are
 * dropped. */
weft_status wfi_transfer_state_register(wfi_transfer_state *state, wfi_net_fabric *fabric, size_t *refused)
{
    *refused = 0;
    if (state->region_fabric == fabric)
        return state->refused ? report_refused(state, refused) : WEFT_OK;
    drop_regions(state);
    state->region_fabric = fabric;
    if (!fabric->limits->needs_local_regions)
        return WEFT_OK;
    state->regions = wfi_calloc(state->owner->segment_count + 1, sizeof(*state->regions));
    weft_status status = !state->regions ? WEFT_ERR_MEMORY : take_regions(state) ? register_later(state) : WEFT_OK;
    if (status && status != WEFT_ERR_AGAIN)
        drop_regions(state);
    return status;
}

void wfi_transfer_state_destroy(wfi_transfer_state *state)
{
    wfi_registration_forget(&state->registration);
    drop_regions(state);
    free(state->first);
    free(state->taken);
    free(state);
}

weft_status wfi_transfer_state_create(wfi_bulk *bulk, wfi_transfer *transfer, wfi_transfer_state **out)
{
    uint64_t chunks = 0, max = bulk_transport(bulk)->chunk_bytes;
    wfi_transfer_state *state = wfi_calloc(1, sizeof(*state));
    if (!state)
        return WEFT_ERR_MEMORY;
    state->owner = transfer;
    state->bulk = bulk;
    state->first = malloc((transfer->segment_count + 1) * sizeof(*state->first));
    if (!state->first)
        goto destroy;
    for (size_t i = 0; i < transfer->segment_count; i++) {
        state->first[i] = chunks;
        chunks += transfer->segments[i].size / max + (transfer->segments[i].size % max != 0);
    }
    state->first[transfer->segment_count] = chunks;
    state->taken = wfi_calloc(chunks / 64 + 1, sizeof(*state->taken));
    if (!state->taken)
        goto destroy;
    *out = state;
    return WEFT_OK;
destroy:
    wfi_transfer_state_destroy(state);
    return WEFT_ERR_MEMORY;
}

static void call_transfer_owner(wfi_done *done)
{
    wfi_transfer_state *state = wfi_container_of(done, wfi_transfer_state, ended);
    wfi_transfer *owner = state->owner;
    weft_status status = state->status;
    wfi_transfer_state_destroy(state);
    owner->net = NULL;
    owner->ops->done(owner, status);
}

/* Ends the transfer if no chunk is in flight and none will be posted. */
void wfi_transfer_state_finish(wfi_transfer_state *state)
{
    bool complete = state->done == wfi_transfer_state_chunks(state);
    if (state->under_way || !(complete || state->ending))
        return;
    if (complete)
        state->status = WEFT_OK;
    if (state->bulk->asked == state)
        state->bulk->asked = NULL;
    wfi_list_remove(&state->link);
    state->ended.run = call_transfer_owner;
    wfi_progress_end(bulk_transport(state->bulk)->progress, &state->ended, WFI_DONE_TRANSFER);
}

void wfi_transfer_state_end(wfi_transfer_state *state, weft_status why)
{
    if (!state->ending)
        state->status = why;
    state->ending = true;
    wfi_transfer_state_finish(state);
}

void wfi_transfer_state_spoilt(wfi_transfer_state *state, size_t segment, bool here)
{
    if (!state->ending) {
        state->owner->is_spoilt = true;
        state->owner->bad_segment = segment;
        state->owner->is_bad_here = here;
    }
    wfi_transfer_state_end(state, WEFT_ERR_INVALID);
}

/* ---- Places ---------------------------------------------------------------------------------------------------- */

/* The segment of chunk `index`: the last one that does not begin after it. Empty segments have no chunks. */
static size_t segment_of(const wfi_transfer_state *state, uint64_t index)
{
    size_t low = 0, high = state->owner->segment_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (state->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

wfi_segment *wfi_transfer_state_place(const wfi_transfer_state *state, uint64_t index, uint64_t *offset, uint64_t *size,
                                      size_t *which)
{
    uint64_t max = bulk_transport(state->bulk)->chunk_bytes;
    size_t at = segment_of(state, index);
    wfi_segment *segment = &state->owner->segments[at];
    *offset = (index - state->first[at]) * max;
    uint64_t left = segment->size - *offset;
    *size = left < max ? left : max;
    if (which)
        *which = at;
    return segment;
}

bool wfi_transfer_state_has_local(const wfi_transfer_state *state, uint64_t chunk)
{
    uint64_t offset, size;
    const wfi_segment *segment = wfi_transfer_state_place(state, chunk, &offset, &size, NULL);
    return wfi_memory_is_accessible((const char *)segment->local + offset, size, state->owner->kind == WFI_PULL);
}

bool wfi_transfer_state_fits(const wfi_transfer_state *state, const wfi_conn *conn)
{
    if (conn->transport->fabric_count == 1)
        return true;
    return state->owner->segments[segment_of(state, state->next)].remote.fabric == conn->fabric->ops->number;
}
