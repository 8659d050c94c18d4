/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the store's state machine: creating and ending it, its inputs, and its clock. The rules are in store.h.
 *
 * join.c has joining, session.c the messages of a connection, interest.c the dependencies, death.c the deaths,
 * termination.c the end of the job.
 */
#include "base/alloc.h"
#include "job/store/state.h"

#include "base/guarded.h"
#include "base/text/log.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE 64          /* entries, and one for each worker */
#define FRESH_NS 5000000ull /* if a connection ends this soon after the join, that is not a death yet */
#define RESERVED_BYTES 320  /* the longest message about a death or a join */

static uint8_t *copy_guarded(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = wfi_guarded_calloc(size);
    if (copy && size)
        memcpy(copy, bytes, size);
    return copy;
}

weft_status wfi_store_create(const wfi_store_options *options, wfi_store **out)
{
    if (options->world_size < 1 || options->world_size > WFI_STORE_WORKERS_MAX)
        return WEFT_ERR_INVALID;
    wfi_store *store = wfi_calloc(1, sizeof(*store));
    if (!store)
        return WEFT_ERR_MEMORY;
    wfi_map_init(&store->links);
    store->options = *options;
    store->options.secret = copy_guarded(options->secret, options->secret_size);
    store->options.job_key = copy_guarded(options->job_key, WFI_JOB_KEY_BYTES);
    store->slots = wfi_calloc((size_t)options->world_size, sizeof(*store->slots));
    store->members = wfi_calloc((size_t)options->world_size, sizeof(*store->members));
    if (!store->slots || !store->members || !store->options.secret || !store->options.job_key ||
        wfi_outbox_reserve_init(&store->reserve, (size_t)options->world_size + RESERVE, RESERVED_BYTES)) {
        wfi_store_destroy(store);
        return WEFT_ERR_MEMORY;
    }
    if (options->failure) {
        wfi_store_fail_gathering(store, options->failure);
        store->not_joined = options->world_size - 1;
    }
    store->ticked_ns = options->now_ns;
    store->due_ns = store->drain_ns = store->wave_at_ns = store->name_awaited_ns = WFI_NEVER;
    *out = store;
    return WEFT_OK;
}

void wfi_store_destroy(wfi_store *store)
{
    if (!store)
        return;
    size_t cursor = 0;
    wfi_store_link *link;
    while ((link = wfi_map_next(&store->links, &cursor, NULL)))
        wfi_guarded_free(link);
    wfi_map_fini(&store->links);
    for (int rank = 0; store->slots && rank < store->options.world_size; rank++) {
        wfi_outbox_fini(&store->slots[rank].outbox);
        sodium_memzero(store->slots[rank].token, sizeof(store->slots[rank].token));
        free(store->slots[rank].interests);
    }
    wfi_outbox_reserve_fini(&store->reserve);
    wfi_guarded_free((uint8_t *)(uintptr_t)store->options.secret); /* the store's own copies */
    wfi_guarded_free((uint8_t *)(uintptr_t)store->options.job_key);
    free(store->slots);
    free(store->members);
    free(store);
}

void wfi_store_tick(wfi_store *store, uint64_t now_ns)
{
    store->now_ns = now_ns;
    bool is_late = store->due_ns > store->ticked_ns && store->due_ns < now_ns;
    store->late_ns = is_late ? now_ns - store->due_ns : 0;
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
    wfi_store_link *link = wfi_guarded_calloc(sizeof(*link));
    if (!link)
        return WEFT_ERR_MEMORY;
    link->id = connection;
    link->rank = -1;
    link->is_pending = true;
    weft_status status = wfi_map_put(&store->links, connection, link);
    if (status)
        wfi_guarded_free(link);
    return status;
}

/*
 * This is no refusal, and no warning: the connection may be of a worker that is slow, was killed, or gave up. The store
 * also closes connections when it lacks descriptors. Logged at 1, 2, 4, 8, ...
 */
static void log_unproven(wfi_store *store)
{
    uint64_t count = ++store->unproven;
    if ((count & (count - 1)) == 0)
        wfi_log(WEFT_LOG_INFO,
                "store: %llu connections so far ended, or were closed after a time, before they proved anything",
                (unsigned long long)count);
}

void wfi_store_closed(wfi_store *store, uint64_t connection, wfi_store_loss how, uint64_t now_ns)
{
    wfi_store_link *link = wfi_map_take(&store->links, connection);
    if (!link)
        return;
    store->now_ns = now_ns;
    int rank = link->rank;
    bool unconfirmed = link->unconfirmed;
    if (how == WFI_STORE_ENDED && link->joined_ns != 0 && now_ns - link->joined_ns < FRESH_NS)
        how = WFI_STORE_RESET; /* it may have stopped waiting for the table, and join again */
    if (rank < 0 && link->stage != WFI_STORE_PROVEN)
        log_unproven(store);
    wfi_guarded_free(link);
    if (rank < 0)
        return;
    if (store->slots[rank].state == WFI_SLOT_WAITING)
        wfi_store_free_slot(store, rank);
    else if (store->slots[rank].state == WFI_SLOT_ALIVE)
        wfi_store_lost_connection(store, rank, how, unconfirmed, now_ns);
}

/* The first message, which is not encrypted. */
static void handle_hello(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size)
{
    wfi_store_message message;
    weft_status status = wfi_store_decode(frame, size, &message);
    if (status == WEFT_ERR_UNSUPPORTED) {
        wfi_store_count_refusal(store, "it speaks another version");
        wfi_store_refuse(store, link, WEFT_ERR_PROTOCOL,
                         "this weft speaks another version of the store's protocol than rank 0's");
    } else if (status || message.type != WFI_STORE_HELLO) {
        wfi_store_count_refusal(store, "it sent malformed data");
        wfi_store_hang_up(store, link, 0);
    } else {
        wfi_store_greet(store, link, &message);
    }
}

/*
 * The second message: the peer's proof. A frame that cannot be opened comes from a process without the secret. A worker
 * with another secret finds the store's proof wrong and sends REFUSE.
 */
static void handle_proof(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size, uint64_t now_ns)
{
    uint8_t plain[WFI_STORE_SMALL_MAX];
    wfi_store_message message;
    size_t plain_size;
    if (wfi_store_open_frame(link, frame, size, plain, &plain_size)) {
        bool refuses = wfi_store_frame_type(frame) == WFI_STORE_REFUSE;
        wfi_store_count_refusal(store, refuses ? "it has another secret than this job (WEFT_SECRET_FILE)"
                                               : "it could not prove that it has the job's secret");
        wfi_store_hang_up(store, link, 0);
        return;
    }
    link->stage = WFI_STORE_PROVEN;
    weft_status status = wfi_store_decode(plain, plain_size, &message);
    if (!status && message.type == WFI_STORE_JOIN) {
        wfi_store_handle_join(store, link, &message, now_ns);
    } else if (!status && message.type == WFI_STORE_RESUME) {
        wfi_store_handle_resume(store, link, &message, now_ns);
    } else {
        wfi_store_count_refusal(store, "it sent malformed data");
        wfi_store_hang_up(store, link, 0);
    }
}

static void answer_heartbeat(wfi_store *store, wfi_store_link *link)
{
    wfi_store_slot *slot = &store->slots[link->rank];
    wfi_store_message answer = {.type = WFI_STORE_HEARTBEAT, .received = slot->received};
    slot->acked = slot->received;
    wfi_store_send(store, link, &answer);
}

/* From a worker that waits for the job to begin. It sends only heartbeats. */
static void handle_waiting(wfi_store *store, wfi_store_link *link, const wfi_store_message *message, uint64_t now_ns)
{
    if (message && message->type == WFI_STORE_HEARTBEAT) {
        store->slots[link->rank].received_ns = now_ns;
        answer_heartbeat(store, link);
        return;
    }
    wfi_store_free_slot(store, link->rank);
    wfi_store_hang_up(store, link, 0);
}

static void acknowledge(wfi_store *store, int rank)
{
    wfi_store_slot *slot = &store->slots[rank];
    if (slot->state != WFI_SLOT_ALIVE || ++slot->received - slot->acked < WFI_STORE_ACK_EVERY)
        return;
    wfi_store_message ack = {.type = WFI_STORE_ACK, .received = slot->received};
    slot->acked = slot->received;
    wfi_store_send_to(store, rank, &ack);
}

static void answer_await(wfi_store *store, wfi_store_link *link)
{
    wfi_store_message answer = {.type = WFI_STORE_AWAIT};
    wfi_store_end_awaits(store, answer.text, sizeof(answer.text));
    wfi_store_send(store, link, &answer);
}

/* Returns false if memory was exhausted; then nothing has changed. */
static bool handle_word(wfi_store *store, wfi_store_link *link, const wfi_store_message *message, uint64_t now_ns)
{
    switch (message->type) {
    case WFI_STORE_HEARTBEAT:
        answer_heartbeat(store, link);
        break;
    case WFI_STORE_SUSPECT:
        wfi_store_handle_suspect(store, link, message, now_ns);
        break;
    case WFI_STORE_NEED:
        return wfi_store_handle_interest(store, link->rank, message, now_ns);
    case WFI_STORE_CLOSING:
        wfi_store_end_closing(store, link->rank, now_ns);
        break;
    case WFI_STORE_SERVING:
        wfi_store_end_serving(store, link->rank, message->wave, now_ns);
        break;
    case WFI_STORE_ENDING:
        wfi_store_end_follow(store, link->rank);
        break;
    case WFI_STORE_REPORT:
        wfi_store_end_report(store, link->rank, message, now_ns);
        break;
    case WFI_STORE_SYNC:
        return wfi_store_answer_sync(store, link->rank, message);
    case WFI_STORE_LEAVING:
        wfi_store_handle_leaving(store, link->rank);
        break;
    case WFI_STORE_END:
        wfi_store_end_job(store, message->text);
        break;
    case WFI_STORE_AWAIT:
        answer_await(store, link);
        break;
    default: /* an acknowledgement: already processed */
        break;
    }
    return true;
}

/*
 * Closes this connection of a member. The member resumes on another one and sends again what does not count as
 * received.
 */
static void cut_off(wfi_store *store, wfi_store_link *link, uint64_t now_ns)
{
    int rank = link->rank;
    wfi_store_hang_up(store, link, 0);
    wfi_store_lost_connection(store, rank, WFI_STORE_CUT, false, now_ns);
}

static bool makes_sense(const wfi_store *store, int rank, const wfi_store_message *message)
{
    if (message->type == WFI_STORE_LEAVING)
        return store->options.elastic && rank != 0;
    if (message->type == WFI_STORE_END)
        return rank == 0;
    return message->type == WFI_STORE_HEARTBEAT || message->type == WFI_STORE_ACK ||
           message->type == WFI_STORE_SUSPECT || message->type == WFI_STORE_NEED ||
           message->type == WFI_STORE_CLOSING || message->type == WFI_STORE_REPORT || message->type == WFI_STORE_SYNC ||
           message->type == WFI_STORE_AWAIT || message->type == WFI_STORE_GOODBYE ||
           message->type == WFI_STORE_SERVING || message->type == WFI_STORE_ENDING;
}

static void handle_member(wfi_store *store, wfi_store_link *link, const wfi_store_message *message, uint64_t now_ns)
{
    int rank = link->rank;
    wfi_store_slot *slot = &store->slots[rank];
    bool acknowledges = message->type == WFI_STORE_HEARTBEAT || message->type == WFI_STORE_ACK;
    link->unconfirmed = false;
    slot->received_ns = now_ns;
    slot->suspected_ns = WFI_NEVER;
    if (!makes_sense(store, rank, message) ||
        (acknowledges && !wfi_outbox_acknowledge(&slot->outbox, message->received))) {
        wfi_store_declare_dead(store, rank, "it sent the store a message that makes no sense");
    } else if (message->type == WFI_STORE_GOODBYE) {
        wfi_store_handle_goodbye(store, link);
    } else if (!handle_word(store, link, message, now_ns)) {
        cut_off(store, link, now_ns);
    } else if (wfi_store_type_is_kept(message->type)) {
        acknowledge(store, rank);
    }
}

/*
 * From a known worker. A frame that cannot be opened was changed on its way: the connection is not trusted after
 * that.
 */
static void handle_known(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size, uint64_t now_ns)
{
    uint8_t plain[WFI_STORE_SMALL_MAX];
    wfi_store_message message;
    size_t plain_size;
    int rank = link->rank;
    bool opens = wfi_store_open_frame(link, frame, size, plain, &plain_size) == WEFT_OK;
    bool waits = store->slots[rank].state == WFI_SLOT_WAITING;
    weft_status status = opens ? wfi_store_decode(plain, plain_size, &message) : WEFT_ERR_PROTOCOL;
    if (waits) {
        handle_waiting(store, link, status ? NULL : &message, now_ns);
    } else if (!opens) {
        wfi_store_count_refusal(store, "a member's frame was changed on its way");
        cut_off(store, link, now_ns);
    } else if (status) {
        wfi_store_declare_dead(store, rank, "it sent the store malformed bytes");
    } else {
        handle_member(store, link, &message, now_ns);
    }
}

void wfi_store_received(wfi_store *store, uint64_t connection, uint64_t now_ns, const uint8_t *frame, size_t size)
{
    wfi_store_link *link = wfi_map_get(&store->links, connection);
    if (!link)
        return;
    store->now_ns = now_ns;
    if (size >= WFI_STORE_HEAD)
        wfi_store_count_message(store, frame);
    if (link->stage == WFI_STORE_CONNECTED)
        handle_hello(store, link, frame, size);
    else if (link->rank < 0)
        handle_proof(store, link, frame, size, now_ns);
    else
        handle_known(store, link, frame, size, now_ns);
}

bool wfi_store_has_joined(const wfi_store *store, uint64_t connection)
{
    const wfi_store_link *link = wfi_map_get(&store->links, connection);
    return link && link->rank >= 0;
}

void wfi_store_count(const wfi_store *store, wfi_store_counts *out)
{
    *out = (wfi_store_counts){0};
    if (!store)
        return;
    out->refused = atomic_load(&store->refused);
    out->messages = atomic_load(&store->messages);
}

int wfi_store_alive(const wfi_store *store)
{
    return store->alive + store->waiting;
}

void wfi_store_drain(wfi_store *store, uint64_t now_ns, uint64_t deadline_ns)
{
    store->draining = true;
    store->now_ns = now_ns;
    store->drain_ns = deadline_ns;
    if (store->phase == WFI_STORE_GATHERING)
        wfi_store_fail_gathering(store, "rank 0 went away before the job was complete");
    wfi_store_due_by(store, now_ns);
}

bool wfi_store_is_gathering(const wfi_store *store)
{
    return !store->options.elastic && store->phase == WFI_STORE_GATHERING;
}

bool wfi_store_has_failed(const wfi_store *store)
{
    return store->phase == WFI_STORE_FAILED;
}

bool wfi_store_awaits(const wfi_store *store, int rank)
{
    return wfi_store_is_gathering(store) && store->slots[rank].state == WFI_SLOT_EMPTY;
}

void wfi_store_give_up(wfi_store *store, const char *why, int missing)
{
    store->not_joined = store->options.world_size - store->waiting - missing;
    wfi_store_fail_gathering(store, why);
}

bool wfi_store_is_finished(const wfi_store *store, uint64_t now_ns)
{
    bool all_gone = wfi_store_alive(store) == 0 && store->not_joined == 0;
    return store->draining && (all_gone || store->drain_ns <= now_ns);
}
