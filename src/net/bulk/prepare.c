/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prepare.c - registers memory without the lock, before it is exposed or transferred.
 *
 * Registering much memory takes long, because the kernel pins every page. Under the lock that would delay heartbeats
 * and all other calls. A thread that is about to expose memory registers it before it takes the lock. It keeps the
 * regions in use until it has exposed the memory (wfi_prepared). Code that holds the lock lets another thread register
 * the memory, and continues when that thread has finished (wfi_registration).
 */
#include "base/alloc.h"
#include "net/bulk/bulk.h"

#include <sched.h>
#include <stdlib.h>

#define FIRST_ROOM 4

/* ---- Prepared memory --------------------------------------------------------------------------------------------- */

struct wfi_prepared_region {
    wfi_storage *storage; /* a reference */
    unsigned access;
    wfi_net_fabric *fabric; /* the fabric of `region`; NULL: none */
    void *region;
};

/* The same order as in wfi_peer_expose. */
void wfi_prepared_begin(wfi_prepared *out, const wfi_peer *peer)
{
    wfi_transport *transport = peer->transport;
    const wfi_channel *channel = peer->channels[WFI_BULK];
    wfi_assert_held(&transport->progress->lock);
    wfi_net_fabric *first = wfi_channel_exposes_on(channel);
    if (!first || peer->status)
        return;
    out->is_optional = first->limits->keys_per_transfer;
    if (!out->is_optional)
        out->fabrics[out->fabric_count++] = first;
    for (size_t i = 0; i < transport->fabric_count && !out->is_optional; i++) {
        if (&transport->fabrics[i] == first || !wfi_channel_may_use(channel, i))
            continue;
        out->is_optional = transport->fabrics[i].limits->keys_per_transfer;
        if (!out->is_optional)
            out->fabrics[out->fabric_count++] = &transport->fabrics[i];
    }
}

static bool make_room(wfi_prepared *prepared)
{
    if (prepared->count < prepared->room)
        return true;
    size_t room = prepared->room ? 2 * prepared->room : FIRST_ROOM;
    wfi_prepared_region *more = realloc(prepared->regions, room * sizeof(*more));
    if (!more)
        return false;
    prepared->regions = more;
    prepared->room = room;
    return true;
}

void wfi_prepared_want(wfi_prepared *prepared, wfi_storage *storage, unsigned access)
{
    if (!prepared->fabric_count || !wfi_storage_size(storage) || !make_room(prepared))
        return;
    prepared->regions[prepared->count++] = (wfi_prepared_region){.storage = wfi_storage_ref(storage), .access = access};
}

bool wfi_prepared_has(const wfi_prepared *prepared, const wfi_storage *storage, unsigned access)
{
    for (size_t i = 0; i < prepared->count; i++) {
        const wfi_prepared_region *one = &prepared->regions[i];
        if (one->storage == storage && (one->access & access) == access)
            return true;
    }
    return false;
}

bool wfi_prepared_take(wfi_prepared *prepared)
{
    bool has_all = true;
    for (size_t i = 0; i < prepared->count; i++) {
        wfi_prepared_region *one = &prepared->regions[i];
        if (!one->fabric && wfi_net_fabric_find(prepared->fabrics[0], one->storage, one->access, &one->region))
            one->fabric = prepared->fabrics[0];
        has_all = has_all && one->fabric;
    }
    return has_all;
}

static weft_status register_one(const wfi_prepared *prepared, wfi_prepared_region *one)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < prepared->fabric_count && !one->fabric; i++) {
        wfi_net_fabric *fabric = prepared->fabrics[i];
        status = wfi_net_fabric_register(fabric, one->storage, one->access, &one->region);
        if (!status) {
            one->fabric = fabric;
        } else if (one->access & (WFI_REMOTE_READ | WFI_REMOTE_WRITE)) { /* transfers report their failures */
            wfi_progress_lock(fabric->transport->progress);
            wfi_net_fabric_refused(fabric, wfi_storage_size(one->storage), status);
            wfi_progress_unlock(fabric->transport->progress);
        }
    }
    return status;
}

weft_status wfi_prepared_open(wfi_prepared *prepared)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < prepared->count; i++) {
        weft_status one = register_one(prepared, &prepared->regions[i]);
        status = status ? status : one;
    }
    return prepared->is_optional ? WEFT_OK : status;
}

void wfi_prepared_put(wfi_prepared *prepared)
{
    for (size_t i = 0; i < prepared->count; i++) {
        wfi_prepared_region *one = &prepared->regions[i];
        if (one->fabric)
            wfi_reg_cache_put(one->fabric->cache, one->storage, one->region); /* not its last reference */
        one->fabric = NULL;
    }
}

void wfi_prepared_fini(wfi_prepared *prepared)
{
    for (size_t i = 0; i < prepared->count; i++)
        wfi_storage_unref(prepared->regions[i].storage);
    free(prepared->regions);
    *prepared = (wfi_prepared){0};
}

/* ---- On another thread ------------------------------------------------------------------------------------------- */

static void run_registration(wfi_task *task)
{
    wfi_registration *registration = wfi_container_of(task, wfi_registration, task);
    wfi_transport *transport = registration->transport;
    bool is_counted = registration->is_counted;
    registration->status = wfi_prepared_open(&registration->prepared);
    wfi_progress_lock(transport->progress);
    if (registration->owner)
        registration->done(registration);
    wfi_prepared_put(&registration->prepared);
    wfi_progress_unlock(transport->progress);
    wfi_prepared_fini(&registration->prepared);
    free(registration);
    if (is_counted) /* the last access to the net */
        atomic_fetch_sub(&transport->registering, 1);
}

/* Runs on the process's executor, because the agent's own workers may all be busy, or wait for this memory. In the
 * simulation it runs on a worker fiber. Without threads it runs on the thread that releases the lock. */
wfi_registration *wfi_registration_start(wfi_transport *transport, wfi_prepared *prepared,
                                         void (*done)(wfi_registration *registration), void *owner)
{
    wfi_progress *progress = transport->progress;
    wfi_assert_held(&progress->lock);
    wfi_registration *registration = wfi_calloc(1, sizeof(*registration));
    if (!registration)
        return NULL;
    *registration = (wfi_registration){
        .prepared = *prepared, .done = done, .owner = owner, .transport = transport, .task.run = run_registration};
    *prepared = (wfi_prepared){0};
    if (progress->no_threads || progress->fibers) {
        wfi_progress_defer(progress, &registration->task, progress->no_threads ? WFI_DEFER_RELEASE : WFI_DEFER_WORKER);
        return registration;
    }
    registration->is_counted = true;
    atomic_fetch_add(&transport->registering, 1);
    wfi_executor_submit(wfi_executor_process(), &registration->task);
    return registration;
}

void wfi_registration_forget(wfi_registration **registration)
{
    if (*registration)
        (*registration)->owner = NULL;
    *registration = NULL;
}

void wfi_registrations_await(wfi_transport *transport)
{
    while (atomic_load(&transport->registering)) {
        /* The process's executor may have no free thread. So a task runs here, even one of another net. */
        wfi_task *task = wfi_executor_withdraw(wfi_executor_process(), run_registration);
        if (task)
            task->run(task);
        else
            sched_yield();
    }
}
