/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the store's state machine: its life, its inputs and outputs. Its contract stands in store.h; joining is in
 * store_join.c, death in store_death.c, the end in store_end.c.
 */
#include "net/store_state.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

weft_status wfi_store_create(const wfi_store_options *options, wfi_store **out)
{
    if (options->world_size < 1 || options->world_size > WFI_STORE_WORKERS_MAX)
        return WEFT_ERR_INVALID;
    wfi_store *store = calloc(1, sizeof *store);
    if (!store)
        return WEFT_ERR_MEMORY;
    store->options = *options;
    store->seats = calloc((size_t)options->world_size, sizeof *store->seats);
    store->members = calloc((size_t)options->world_size, sizeof *store->members);
    if (!store->seats || !store->members)
        goto free_store;
    wfi_map_init(&store->links);
    store->ticked_ns = options->now_ns;
    store->due_ns = store->drain_ns = store->wave_at_ns = WFI_NEVER;
    *out = store;
    return WEFT_OK;

free_store:
    free(store->seats);
    free(store->members);
    free(store);
    return WEFT_ERR_MEMORY;
}

void wfi_store_destroy(wfi_store *store)
{
    if (!store)
        return;
    size_t cursor = 0;
    wfi_store_link *link;
    while ((link = wfi_map_next(&store->links, &cursor, NULL)))
        free(link);
    wfi_map_fini(&store->links);
    free(store->seats);
    free(store->members);
    free(store);
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

void wfi_store_send_frame(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size)
{
    store->options.outputs.send(store->options.outputs.arg, link->id, frame, size);
}

void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    if (!link)
        return;
    size_t size = wfi_store_encode(message, frame);
    wfi_store_send_frame(store, link, frame, size);
}

void wfi_store_send_others(wfi_store *store, int but, const wfi_store_message *message)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->seats[rank].state == WFI_SEAT_ALIVE && rank != but)
            wfi_store_send(store, store->seats[rank].link, message);
}

void wfi_store_send_all(wfi_store *store, const wfi_store_message *message)
{
    wfi_store_send_others(store, -1, message);
}

void wfi_store_hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms)
{
    store->options.outputs.close(store->options.outputs.arg, link->id, keep_ms);
    wfi_map_take(&store->links, link->id);
    free(link);
}

void wfi_store_refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
{
    wfi_store_message message = {.type = WFI_STORE_REFUSE, .status = status};
    va_list args;
    va_start(args, format);
    vsnprintf(message.text, sizeof message.text, format, args);
    va_end(args);
    wfi_log(WEFT_LOG_INFO, "store: refused a join: %s", message.text);
    wfi_store_send(store, link, &message);
    wfi_store_hang_up(store, link, 0);
}

void wfi_store_due_by(wfi_store *store, uint64_t when_ns)
{
    if (when_ns < store->due_ns)
        store->due_ns = when_ns;
}

void wfi_store_tick(wfi_store *store, uint64_t now_ns)
{
    store->due_ns = WFI_NEVER;
    if (store->phase == WFI_STORE_GATHERING)
        wfi_store_tick_gathering(store, now_ns);
    else if (store->phase == WFI_STORE_RUNNING)
        wfi_store_tick_running(store, now_ns);
    if (store->draining)
        wfi_store_due_by(store, store->drain_ns);
}

uint64_t wfi_store_due(const wfi_store *store)
{
    return store->due_ns;
}

/* ---- Inputs ---------------------------------------------------------------------------------------------------- */

weft_status wfi_store_opened(wfi_store *store, uint64_t connection)
{
    wfi_store_link *link = calloc(1, sizeof *link);
    if (!link)
        return WEFT_ERR_MEMORY;
    link->id = connection;
    link->rank = -1;
    weft_status status = wfi_map_put(&store->links, connection, link);
    if (status)
        free(link);
    return status;
}

void wfi_store_closed(wfi_store *store, uint64_t connection, uint64_t now_ns)
{
    (void)now_ns;
    wfi_store_link *link = wfi_map_take(&store->links, connection);
    if (!link)
        return;
    int rank = link->rank;
    free(link);
    if (rank < 0)
        return;
    if (store->seats[rank].state == WFI_SEAT_WAITING)
        wfi_store_free_seat(store, rank);
    else if (store->seats[rank].state == WFI_SEAT_ALIVE)
        wfi_store_declare_dead(store, rank, "its connection to the store broke", true);
}

static void handle_stranger(wfi_store *store, wfi_store_link *link, weft_status decoded,
                            const wfi_store_message *message, uint64_t now_ns)
{
    if (decoded == WEFT_ERR_UNSUPPORTED)
        wfi_store_refuse(store, link, WEFT_ERR_PROTOCOL,
                         "this weft speaks another version of the store's protocol than rank 0's");
    else if (decoded || message->type != WFI_STORE_JOIN)
        wfi_store_hang_up(store, link, 0);
    else
        wfi_store_handle_join(store, link, message, now_ns);
}

static void handle_member(wfi_store *store, wfi_store_link *link, const wfi_store_message *message, uint64_t now_ns)
{
    wfi_store_message answer = {.type = WFI_STORE_HEARTBEAT};
    store->seats[link->rank].heard_ns = now_ns;
    store->seats[link->rank].suspected_ns = WFI_NEVER;
    switch (message->type) {
    case WFI_STORE_HEARTBEAT:
        wfi_store_send(store, link, &answer);
        break;
    case WFI_STORE_SUSPECT:
        wfi_store_handle_suspect(store, link, message, now_ns);
        break;
    case WFI_STORE_CLOSING:
        wfi_store_end_closing(store, link->rank);
        break;
    case WFI_STORE_REPORT:
        wfi_store_end_report(store, link->rank, message, now_ns);
        break;
    case WFI_STORE_GOODBYE:
        wfi_store_handle_goodbye(store, link);
        break;
    default: /* what only the store says */
        wfi_store_declare_dead(store, link->rank, "it sent the store a message that makes no sense", false);
        break;
    }
}

void wfi_store_received(wfi_store *store, uint64_t connection, uint64_t now_ns, const uint8_t *frame, size_t size)
{
    wfi_store_link *link = wfi_map_get(&store->links, connection);
    wfi_store_message message;
    if (!link)
        return;
    weft_status decoded = wfi_store_decode(frame, size, &message);
    if (link->rank < 0) {
        handle_stranger(store, link, decoded, &message, now_ns);
    } else if (store->seats[link->rank].state == WFI_SEAT_WAITING) {
        /* One that waits has nothing to say but goodbye, and that its nonsense says as well. */
        wfi_store_free_seat(store, link->rank);
        wfi_store_hang_up(store, link, 0);
    } else if (decoded) {
        wfi_store_declare_dead(store, link->rank, "it sent the store malformed bytes", false);
    } else {
        handle_member(store, link, &message, now_ns);
    }
}

bool wfi_store_has_joined(const wfi_store *store, uint64_t connection)
{
    const wfi_store_link *link = wfi_map_get(&store->links, connection);
    return link && link->rank >= 0;
}

int wfi_store_alive(const wfi_store *store)
{
    return store->alive + store->waiting;
}

void wfi_store_drain(wfi_store *store, uint64_t now_ns, uint64_t deadline_ns)
{
    store->draining = true;
    store->drain_ns = deadline_ns;
    if (store->phase == WFI_STORE_GATHERING)
        wfi_store_fail_gathering(store, "rank 0 went away before the job was complete");
    wfi_store_due_by(store, now_ns);
}

bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns)
{
    return store->draining && (wfi_store_alive(store) == 0 || store->drain_ns <= now_ns);
}
