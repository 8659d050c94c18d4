/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - what the store exchanges on any connection: greeting and proof, encrypted frames, messages that are
 * kept until they are acknowledged, and resuming on a new connection. The rules are in store.h.
 */
#include "job/store/state.h"

#include "base/guarded.h"
#include "base/text/log.h"
#include "base/utf8.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define UNBOUND_MS 2000 /* the time to resume after a lost connection if silence is no sign of death */

int64_t wfi_store_bound_ms(const wfi_store *store)
{
    return store->options.death_timeout_ms < 0 ? UNBOUND_MS : store->options.death_timeout_ms;
}

uint64_t wfi_store_bound_ns(const wfi_store *store)
{
    return wfi_ns_of_ms(wfi_store_bound_ms(store));
}

void wfi_store_due_by(wfi_store *store, uint64_t when_ns)
{
    if (when_ns < store->due_ns)
        store->due_ns = when_ns;
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

void wfi_store_count_message(wfi_store *store, const uint8_t *frame)
{
    if (wfi_store_frame_type(frame) != WFI_STORE_HEARTBEAT)
        atomic_fetch_add(&store->messages, 1);
}

static void output(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size)
{
    wfi_store_count_message(store, frame);
    store->options.outputs.send(store->options.outputs.arg, link->id, frame, size);
}

void wfi_store_send_frame(wfi_store *store, wfi_store_link *link, const uint8_t *frame, size_t size)
{
    uint8_t small[WFI_STORE_SMALL_MAX + WFI_SEAL_BYTES];
    if (link->stage != WFI_STORE_PROVEN || !link->seal.on) {
        output(store, link, frame, size);
        return;
    }
    uint8_t *sealed = size <= WFI_STORE_SMALL_MAX ? small : malloc(size + WFI_SEAL_BYTES);
    if (sealed)
        output(store, link, sealed, wfi_seal_frame(&link->seal, frame, size, sealed));
    else if (link->rank >= 0)
        store->slots[link->rank].overflowed = true;
    if (sealed != small)
        free(sealed);
}

void wfi_store_send(wfi_store *store, wfi_store_link *link, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_store_send_frame(store, link, frame, wfi_store_encode(message, frame));
}

/*
 * `matters`: as in wfi_outbox_keep. Returns false if the message does not matter and memory is exhausted; nothing was
 * done.
 */
static bool send_to(wfi_store *store, int rank, const wfi_store_message *message, bool matters)
{
    wfi_store_slot *slot = &store->slots[rank];
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = wfi_store_encode(message, frame);
    bool is_kept = wfi_store_type_is_kept(message->type);
    weft_status kept = is_kept ? wfi_outbox_keep(&slot->outbox, frame, size, matters) : WEFT_OK;
    if (kept == WEFT_ERR_MEMORY && !matters)
        return false;
    if (kept) {
        slot->overflowed = true; /* the member could never know what it missed */
        wfi_store_due_by(store, 0);
    }
    if (slot->link && !slot->overflowed)
        wfi_store_send_frame(store, slot->link, frame, size);
    return true;
}

void wfi_store_send_to(wfi_store *store, int rank, const wfi_store_message *message)
{
    (void)send_to(store, rank, message, true);
}

bool wfi_store_answer_sync(wfi_store *store, int rank, const wfi_store_message *sync)
{
    return send_to(store, rank, &(wfi_store_message){.type = WFI_STORE_SYNCED, .wave = sync->wave}, false);
}

void wfi_store_send_to_others(wfi_store *store, int but, const wfi_store_message *message)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->slots[rank].state == WFI_SLOT_ALIVE && rank != but)
            wfi_store_send_to(store, rank, message);
}

void wfi_store_send_to_all(wfi_store *store, const wfi_store_message *message)
{
    wfi_store_send_to_others(store, -1, message);
}

void wfi_store_hang_up(wfi_store *store, wfi_store_link *link, int64_t keep_ms)
{
    store->options.outputs.close(store->options.outputs.arg, link->id, keep_ms);
    wfi_map_take(&store->links, link->id);
    wfi_guarded_free(link);
}

void wfi_store_refuse(wfi_store *store, wfi_store_link *link, weft_status status, const char *format, ...)
{
    wfi_store_message message = {.type = WFI_STORE_REFUSE, .status = status};
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(message.text, sizeof(message.text), format, args);
    va_end(args);
    wfi_log(WEFT_LOG_INFO, "store: refused a join: %s", message.text);
    wfi_store_send(store, link, &message);
    wfi_store_hang_up(store, link, 0);
}

/* Logged at 1, 2, 4, 8, ..., so that a flood does not fill the log. */
void wfi_store_count_refusal(wfi_store *store, const char *why)
{
    uint64_t count = atomic_fetch_add(&store->refused, 1) + 1;
    if ((count & (count - 1)) == 0)
        wfi_log(WEFT_LOG_WARN, "store: refused an unauthenticated peer: %s (%llu so far)", why,
                (unsigned long long)count);
}

/* ---- The greeting ---------------------------------------------------------------------------------------------- */

static void challenge(wfi_store *store, wfi_store_link *link, const wfi_store_message *hello)
{
    const wfi_store_options *options = &store->options;
    wfi_greeting *greeting = &link->greeting;
    *greeting = (wfi_greeting){.counter = ++store->challenges, .death_timeout_ms = options->death_timeout_ms};
    memcpy(greeting->worker_nonce, hello->nonce, WFI_NONCE_BYTES);
    options->outputs.random(options->outputs.arg, greeting->store_nonce, WFI_NONCE_BYTES);
    wfi_store_message message = {
        .type = WFI_STORE_CHALLENGE, .counter = greeting->counter, .timeout_ms = greeting->death_timeout_ms};
    memcpy(message.nonce, greeting->store_nonce, WFI_NONCE_BYTES);
    wfi_proof_make(options->secret, options->secret_size, greeting, message.proof);
    wfi_store_send(store, link, &message);
    link->stage = WFI_STORE_GREETED;
    link->is_pending = true;
    wfi_seal_begin(&link->seal, WFI_SIDE_STORE, options->secret, options->secret_size, greeting);
}

void wfi_store_greet(wfi_store *store, wfi_store_link *link, const wfi_store_message *hello)
{
    bool ours = store->options.secret_size > 0;
    if (hello->on == ours) {
        challenge(store, link, hello);
        return;
    }
    wfi_store_count_refusal(store, ours ? "it has no secret" : "it has a secret, this job has none");
    wfi_store_refuse(store, link, WEFT_ERR_INVALID,
                     ours ? "this worker has no secret, rank 0's job has one: set WEFT_SECRET_FILE"
                          : "this worker has a secret, rank 0's job has none: set WEFT_SECRET_FILE on all");
}

weft_status wfi_store_open_frame(wfi_store_link *link, const uint8_t *frame, size_t size,
                                 uint8_t plain[WFI_STORE_SMALL_MAX], size_t *plain_size)
{
    if (size > WFI_STORE_SMALL_MAX)
        return WEFT_ERR_PROTOCOL;
    return wfi_seal_open(&link->seal, frame, size, plain, plain_size);
}

/* ---- Resuming -------------------------------------------------------------------------------------------------- */

void wfi_store_unlink(wfi_store *store, int rank, uint64_t now_ns, int64_t grace_ms)
{
    wfi_store_slot *slot = &store->slots[rank];
    slot->link = NULL;
    slot->lost_ns = now_ns + wfi_ns_of_ms(grace_ms);
    wfi_store_due_by(store, slot->lost_ns);
}

void wfi_store_relink(wfi_store *store, int rank, wfi_store_link *link, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    if (slot->link)
        wfi_store_hang_up(store, slot->link, 0);
    slot->link = link;
    link->rank = rank;
    slot->received_ns = now_ns;
    slot->lost_ns = slot->suspected_ns = WFI_NEVER;
}

/* To a worker that does not know yet that it was declared dead. */
static void send_evicted(wfi_store *store, wfi_store_link *link, const wfi_store_message *resume)
{
    const wfi_store_slot *slot = &store->slots[resume->rank];
    bool known = slot->fate == resume->incarnation;
    wfi_store_message message = {.type = WFI_STORE_EVICTED};
    snprintf(message.text, sizeof(message.text), "the store declared this worker dead: %s",
             known ? slot->words : "the other workers were told so");
    wfi_store_send(store, link, &message);
    wfi_store_hang_up(store, link, 0);
}

static bool is_the_member(const wfi_store *store, const wfi_store_message *resume)
{
    const wfi_store_slot *slot = &store->slots[resume->rank];
    return slot->state == WFI_SLOT_ALIVE && store->members[resume->rank].incarnation == resume->incarnation &&
           sodium_memcmp(slot->token, resume->token, sizeof(slot->token)) == 0;
}

static void resume_member(wfi_store *store, wfi_store_link *link, int rank, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    wfi_log(WEFT_LOG_INFO, "store: rank %d resumed on another connection", rank);
    wfi_store_relink(store, rank, link, now_ns);
    link->unconfirmed = true;
    slot->acked = slot->received;
    wfi_store_message resumed = {
        .type = WFI_STORE_RESUMED, .received = slot->received, .acknowledged = slot->outbox.acknowledged};
    wfi_store_send(store, link, &resumed);
    for (const wfi_outbox_entry *entry = NULL; (entry = wfi_outbox_next(&slot->outbox, entry));)
        wfi_store_send_frame(store, link, entry->frame, entry->size);
}

void wfi_store_handle_resume(wfi_store *store, wfi_store_link *link, const wfi_store_message *resume, uint64_t now_ns)
{
    bool is_ours = resume->rank >= 0 && resume->rank < store->options.world_size && resume->incarnation > 0 &&
                   resume->incarnation <= store->incarnations;
    /* Its former connection may have acknowledged more since it wrote this. */
    if (is_ours && is_the_member(store, resume) && resume->received <= store->slots[resume->rank].outbox.sent) {
        (void)wfi_outbox_acknowledge(&store->slots[resume->rank].outbox, resume->received);
        resume_member(store, link, resume->rank, now_ns);
    } else if (is_ours && store->members[resume->rank].incarnation != resume->incarnation) {
        send_evicted(store, link, resume);
    } else {
        wfi_store_count_refusal(store, "it tried to resume as a member that it never was");
        wfi_store_refuse(store, link, WEFT_ERR_PROTOCOL, "the store knows no such member");
    }
}
