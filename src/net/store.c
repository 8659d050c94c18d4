/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the store's state machine: joining, silence and death, farewells. Its contract stands in store.h. */
#include "net/store_state.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000ull
#define NAMED_MISSING_MAX 8 /* ranks named in a time-out's text */

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

void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    if (!link)
        return;
    size_t size = wfi_store_encode(message, frame);
    store->options.outputs.send(store->options.outputs.arg, link->id, frame, size);
}

void wfi_store_send_all(wfi_store *store, const wfi_store_message *message)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->seats[rank].state == WFI_SEAT_ALIVE)
            wfi_store_send(store, store->seats[rank].link, message);
}

/* The last word on a connection: forgets it. */
static void hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms)
{
    store->options.outputs.close(store->options.outputs.arg, link->id, keep_ms);
    wfi_map_take(&store->links, link->id);
    free(link);
}

WEFT_PRINTF(4, 5)
static void refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
{
    wfi_store_message message = {.type = WFI_STORE_REFUSE, .status = status};
    va_list args;
    va_start(args, format);
    vsnprintf(message.text, sizeof message.text, format, args);
    va_end(args);
    wfi_log(WEFT_LOG_INFO, "store: refused a join: %s", message.text);
    wfi_store_send(store, link, &message);
    hang_up(store, link, 0);
}

void wfi_store_due_by(wfi_store *store, uint64_t when_ns)
{
    if (when_ns < store->due_ns)
        store->due_ns = when_ns;
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

static void free_seat(wfi_store *store, int rank)
{
    store->seats[rank].state = WFI_SEAT_EMPTY;
    store->seats[rank].link = NULL;
    store->waiting--;
}

/* Everybody who waits is told, and so is who comes later. */
static void fail_gathering(wfi_store *store, const char *why)
{
    store->phase = WFI_STORE_FAILED;
    snprintf(store->failure, sizeof store->failure, "%s", why);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        wfi_store_link *link = store->seats[rank].link;
        if (store->seats[rank].state != WFI_SEAT_WAITING)
            continue;
        free_seat(store, rank);
        refuse(store, link, WEFT_ERR_RENDEZVOUS, "%s", store->failure);
    }
}

/* "ranks 2 and 5", "ranks 1, 2 and 40 more" */
static void name_missing(const wfi_store *store, char *out, size_t capacity)
{
    int missing = store->options.world_size - store->waiting, named = 0;
    int name_count = missing > NAMED_MISSING_MAX ? NAMED_MISSING_MAX : missing;
    size_t size = (size_t)snprintf(out, capacity, missing == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < store->options.world_size && named < name_count; rank++) {
        if (store->seats[rank].state != WFI_SEAT_EMPTY)
            continue;
        const char *separator = named == 0 ? " " : named == missing - 1 ? " and " : ", ";
        size += (size_t)snprintf(out + size, capacity - size, "%s%d", separator, rank);
        named++;
    }
    if (missing > named)
        snprintf(out + size, capacity - size, " and %d more", missing - named);
}

static void expire_patience(wfi_store *store, int64_t patience_ms)
{
    char missing[160], why[WFI_STORE_TEXT_MAX];
    name_missing(store, missing, sizeof missing);
    if (patience_ms % 1000 == 0)
        snprintf(why, sizeof why, "%s did not come within %lld s", missing, (long long)patience_ms / 1000);
    else
        snprintf(why, sizeof why, "%s did not come within %lld ms", missing, (long long)patience_ms);
    fail_gathering(store, why);
}

static void start_running(wfi_store *store, uint64_t now_ns)
{
    store->phase = WFI_STORE_RUNNING;
    store->alive = store->waiting;
    store->waiting = 0;
    for (int rank = 0; rank < store->options.world_size; rank++) {
        wfi_seat *seat = &store->seats[rank];
        seat->state = WFI_SEAT_ALIVE;
        seat->heard_ns = now_ns;
        seat->suspected_ns = WFI_NEVER;
        store->members[rank].incarnation = ++store->incarnations;
    }
    store->ticked_ns = now_ns;
    wfi_store_due_by(store, now_ns); /* a tick sets the deadlines */
}

/* The table is complete: one answer for each, the same for all. */
static void complete(wfi_store *store, uint64_t now_ns)
{
    wfi_store_world world = {.death_timeout_ms = store->options.death_timeout_ms,
                             .world_size = store->options.world_size,
                             .members = store->members};
    memcpy(world.job_key, store->options.job_key, sizeof world.job_key);
    start_running(store, now_ns);
    wfi_writer writer;
    wfi_writer_init_growing(&writer);
    wfi_store_encode_world(&writer, &world);
    for (int rank = 0; rank < store->options.world_size && !writer.failed; rank++)
        store->options.outputs.send(store->options.outputs.arg, store->seats[rank].link->id, writer.data, writer.size);
    if (writer.failed) {
        store->waiting = store->alive;
        store->alive = 0;
        for (int rank = 0; rank < store->options.world_size; rank++)
            store->seats[rank].state = WFI_SEAT_WAITING;
        fail_gathering(store, "the store ran out of memory");
    }
    wfi_writer_fini(&writer);
}

static int rank_of_name(const wfi_store *store, const char *name)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->seats[rank].state != WFI_SEAT_EMPTY && strcmp(store->members[rank].name, name) == 0)
            return rank;
    return -1;
}

/* Refuses and returns true if this join cannot be. */
static bool join_is_refused(wfi_store *store, wfi_store_link *link, const wfi_store_message *join)
{
    int world_size = store->options.world_size;
    if (join->world_size != world_size) {
        refuse(store, link, WEFT_ERR_INVALID, "rank %d has world size %d, rank 0 has %d", (int)join->rank,
               (int)join->world_size, world_size);
    } else if (join->rank < 0 || join->rank >= world_size) {
        refuse(store, link, WEFT_ERR_INVALID, "rank %d is not within 0..%d", (int)join->rank, world_size - 1);
    } else if (!wfi_store_name_is_well_formed(join->text)) {
        refuse(store, link, WEFT_ERR_INVALID, "\"%.*s\" is no name: 1 to %d of A-Z a-z 0-9 - _ :", WFI_NAME_MAX,
               join->text, WFI_NAME_MAX - 1);
    } else if (store->phase == WFI_STORE_FAILED) {
        refuse(store, link, WEFT_ERR_RENDEZVOUS, "%s", store->failure);
    } else if (store->seats[join->rank].state != WFI_SEAT_EMPTY) {
        refuse(store, link, WEFT_ERR_EXISTS, "rank %d is taken by \"%s\"", (int)join->rank,
               store->members[join->rank].name);
    } else if (rank_of_name(store, join->text) >= 0) {
        refuse(store, link, WEFT_ERR_EXISTS, "the name \"%s\" is taken by rank %d", join->text,
               rank_of_name(store, join->text));
    } else {
        return false;
    }
    return true;
}

static void take_seat(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns)
{
    wfi_seat *seat = &store->seats[join->rank];
    wfi_member *member = &store->members[join->rank];
    *seat = (wfi_seat){.state = WFI_SEAT_WAITING, .link = link, .patience_ms = join->timeout_ms};
    seat->patience_ns = WFI_NEVER;
    if (join->timeout_ms >= 0 && (uint64_t)join->timeout_ms < (WFI_NEVER - now_ns) / NS_PER_MS)
        seat->patience_ns = now_ns + (uint64_t)join->timeout_ms * NS_PER_MS;
    member->rank = join->rank;
    snprintf(member->name, sizeof member->name, "%.*s", WFI_NAME_MAX - 1, join->text);
    memcpy(member->address, join->address, join->address_size);
    member->address_size = join->address_size;
    link->rank = join->rank;
    store->waiting++;
    wfi_store_due_by(store, seat->patience_ns);
}

static void handle_join(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns)
{
    if (store->terminated) { /* whoever comes now looks for the job that follows this one on the port: it tries again */
        hang_up(store, link, 0);
        return;
    }
    if (join_is_refused(store, link, join))
        return;
    take_seat(store, link, join, now_ns);
    if (store->waiting == store->options.world_size)
        complete(store, now_ns);
}

/* ---- Death and farewell ---------------------------------------------------------------------------------------- */

/* Takes a living member out; the others are told by the caller. Returns its connection. */
static wfi_store_link *vacate(wfi_store *store, int rank, wfi_seat_state state)
{
    wfi_seat *seat = &store->seats[rank];
    wfi_store_link *link = seat->link;
    seat->state = state;
    seat->link = NULL;
    store->alive--;
    return link;
}

static void tell_gone(wfi_store *store, int rank, wfi_store_type type, const char *why)
{
    wfi_store_message message = {.type = type, .rank = rank, .incarnation = store->members[rank].incarnation};
    snprintf(message.text, sizeof message.text, "%s", why);
    wfi_store_send_all(store, &message);
    wfi_store_end_member_gone(store);
}

/* `link_is_lost`: nobody can be told at the other end. */
static void declare_dead(wfi_store *store, int rank, const char *why, bool link_is_lost)
{
    wfi_log(WEFT_LOG_INFO, "store: rank %d is dead: %s", rank, why);
    wfi_store_link *link = vacate(store, rank, WFI_SEAT_DEAD);
    if (!link_is_lost) {
        wfi_store_message message = {.type = WFI_STORE_EVICTED};
        snprintf(message.text, sizeof message.text, "the store declared this worker dead: %s", why);
        wfi_store_send(store, link, &message);
        hang_up(store, link, WFI_STORE_LINGER_MS);
    }
    tell_gone(store, rank, WFI_STORE_DIED, why);
}

static void handle_goodbye(wfi_store *store, wfi_store_link *link)
{
    int rank = link->rank;
    vacate(store, rank, WFI_SEAT_LEFT);
    hang_up(store, link, 0);
    tell_gone(store, rank, WFI_STORE_LEFT, "");
}

static void handle_suspect(wfi_store *store, const wfi_store_link *from, const wfi_store_message *message,
                           uint64_t now_ns)
{
    if (message->rank < 0 || message->rank >= store->options.world_size || message->rank == from->rank)
        return;
    wfi_seat *seat = &store->seats[message->rank];
    if (seat->state != WFI_SEAT_ALIVE || store->members[message->rank].incarnation != message->incarnation)
        return;
    int64_t bound_ms = store->options.death_timeout_ms;
    if (bound_ms < 0 || seat->suspected_ns != WFI_NEVER)
        return;
    /* A suspicion asks for a sign of life; it does not shorten the bound, within which a cut link may heal unnoticed. */
    uint64_t soon = now_ns + (uint64_t)bound_ms * NS_PER_MS / 2,
             by_silence = seat->heard_ns + (uint64_t)bound_ms * NS_PER_MS;
    seat->suspected_ns = soon > by_silence ? soon : by_silence;
    seat->suspected_by = from->rank;
    snprintf(seat->suspicion, sizeof seat->suspicion, "%.*s", (int)sizeof seat->suspicion - 1, message->text);
    wfi_store_message speak = {.type = WFI_STORE_SPEAK};
    wfi_store_send(store, seat->link, &speak);
    wfi_store_due_by(store, seat->suspected_ns);
}

static uint64_t silence_ends_ns(const wfi_store *store, const wfi_seat *seat)
{
    uint64_t bound_ns = (uint64_t)store->options.death_timeout_ms * NS_PER_MS;
    uint64_t by_silence = seat->heard_ns + bound_ns;
    return seat->suspected_ns < by_silence ? seat->suspected_ns : by_silence;
}

static void declare_silent(wfi_store *store, int rank)
{
    const wfi_seat *seat = &store->seats[rank];
    char why[WFI_STORE_TEXT_MAX];
    long long bound_ms = store->options.death_timeout_ms;
    if (seat->suspected_ns == WFI_NEVER)
        snprintf(why, sizeof why, "silent for %lld ms", bound_ms);
    else
        snprintf(why, sizeof why, "did not answer after rank %d suspected it: %s", seat->suspected_by, seat->suspicion);
    declare_dead(store, rank, why, false);
}

/* The store was stopped, or got no processor, if its tick comes late: then silence proves nothing about the others. */
static void excuse_own_absence(wfi_store *store, uint64_t now_ns)
{
    uint64_t bound_ns = (uint64_t)store->options.death_timeout_ms * NS_PER_MS;
    bool was_absent = now_ns - store->ticked_ns > bound_ns / 2;
    store->ticked_ns = now_ns;
    for (int rank = 0; was_absent && rank < store->options.world_size; rank++) {
        wfi_seat *seat = &store->seats[rank];
        seat->heard_ns = now_ns;
        if (seat->suspected_ns != WFI_NEVER)
            seat->suspected_ns = now_ns + bound_ns / 2;
    }
}

static void tick_running(wfi_store *store, uint64_t now_ns)
{
    wfi_store_end_tick(store, now_ns);
    wfi_store_due_by(store, store->wave_at_ns);
    if (store->options.death_timeout_ms < 0)
        return;
    excuse_own_absence(store, now_ns);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        const wfi_seat *seat = &store->seats[rank];
        if (seat->state == WFI_SEAT_ALIVE && silence_ends_ns(store, seat) <= now_ns)
            declare_silent(store, rank);
    }
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->seats[rank].state == WFI_SEAT_ALIVE)
            wfi_store_due_by(store, silence_ends_ns(store, &store->seats[rank]));
    /* Often enough to notice an absence of our own. */
    wfi_store_due_by(store, now_ns + (uint64_t)store->options.death_timeout_ms * NS_PER_MS / 4 + 1);
}

static void tick_gathering(wfi_store *store, uint64_t now_ns)
{
    for (int rank = 0; rank < store->options.world_size && store->phase == WFI_STORE_GATHERING; rank++) {
        const wfi_seat *seat = &store->seats[rank];
        if (seat->state != WFI_SEAT_WAITING)
            continue;
        if (seat->patience_ns <= now_ns)
            expire_patience(store, seat->patience_ms);
        else
            wfi_store_due_by(store, seat->patience_ns);
    }
}

void wfi_store_tick(wfi_store *store, uint64_t now_ns)
{
    store->due_ns = WFI_NEVER;
    if (store->phase == WFI_STORE_GATHERING)
        tick_gathering(store, now_ns);
    else if (store->phase == WFI_STORE_RUNNING)
        tick_running(store, now_ns);
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
        free_seat(store, rank);
    else if (store->seats[rank].state == WFI_SEAT_ALIVE)
        declare_dead(store, rank, "its connection to the store broke", true);
}

static void handle_stranger(wfi_store *store, wfi_store_link *link, weft_status decoded,
                            const wfi_store_message *message, uint64_t now_ns)
{
    if (decoded == WEFT_ERR_UNSUPPORTED)
        refuse(store, link, WEFT_ERR_PROTOCOL,
               "this weft speaks another version of the store's protocol than rank 0's");
    else if (decoded || message->type != WFI_STORE_JOIN)
        hang_up(store, link, 0);
    else
        handle_join(store, link, message, now_ns);
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
        handle_suspect(store, link, message, now_ns);
        break;
    case WFI_STORE_CLOSING:
        wfi_store_end_closing(store, link->rank);
        break;
    case WFI_STORE_REPORT:
        wfi_store_end_report(store, link->rank, message, now_ns);
        break;
    case WFI_STORE_GOODBYE:
        handle_goodbye(store, link);
        break;
    default: /* what only the store says */
        declare_dead(store, link->rank, "it sent the store a message that makes no sense", false);
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
        free_seat(store, link->rank);
        hang_up(store, link, 0);
    } else if (decoded) {
        declare_dead(store, link->rank, "it sent the store malformed bytes", false);
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
        fail_gathering(store, "rank 0 went away before the job was complete");
    wfi_store_due_by(store, now_ns);
}

bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns)
{
    return store->draining && (wfi_store_alive(store) == 0 || store->drain_ns <= now_ns);
}
