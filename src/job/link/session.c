/* SPDX-License-Identifier: Apache-2.0 */
/* session.c - a link's two connections: greeting, proof, joining, resuming, heartbeats. See link.h. */
#include "job/link/link.h"

#include "base/alloc.h"
#include "base/guarded.h"
#include "base/text/log.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000ull
/* to answer a hello while joining; doubled after each hello that was not answered */
#define GREETING_NS (2000 * NS_PER_MS)
#define GREETING_DOUBLINGS 3 /* rank 0 may be busy starting hundreds of workers */
#define UNBOUND_MS 2000      /* replaces the bound if that is switched off */
#define DIAL_LEAST_NS (10 * NS_PER_MS)
#define LOST_BOUNDS 3 /* bounds of silence after which the store is lost */
#define RESERVE 64    /* entries: for `closing` and this worker's reports */
#define RESERVED_BYTES 64

static uint64_t bound_ns(const wfi_rendezvous *link)
{
    int64_t bound_ms = link->world.death_timeout_ms;
    return wfi_ns_of_ms(bound_ms < 0 ? UNBOUND_MS : bound_ms);
}

/*
 * The store runs in rank 0's own process: if it does not answer, its thread only lacks CPU time, and will answer
 * later.
 */
static bool keeps_the_store(const wfi_rendezvous *link)
{
    return link->rank == 0;
}

static void set_stage(wfi_rendezvous *link, wfi_which which, wfi_wire_stage stage)
{
    link->wires[which].stage = stage;
    link->wires[which].since_ns = wfi_now(link->clock);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static void free_secrets(wfi_rendezvous *link)
{
    wfi_guarded_free(link->secret);
    wfi_guarded_free(link->wires);
    wfi_guarded_free(link->job_key);
}

static bool make_secrets(wfi_rendezvous *link, const wfi_rendezvous_options *options)
{
    link->secret = wfi_guarded_calloc(options->secret_size);
    link->wires = wfi_guarded_calloc(2 * sizeof(*link->wires));
    link->job_key = wfi_guarded_calloc(WFI_JOB_KEY_BYTES);
    if (!link->secret || !link->wires || !link->job_key) {
        free_secrets(link);
        return false;
    }
    if (options->secret_size)
        memcpy(link->secret, options->secret, options->secret_size);
    link->secret_size = options->secret_size;
    return true;
}

static void prepare_join(wfi_rendezvous *link, const wfi_rendezvous_options *options)
{
    wfi_store_message *join = &link->join;
    *join = (wfi_store_message){.type = WFI_STORE_JOIN,
                                .rank = options->rank,
                                .world_size = options->world_size,
                                .elastic = options->elastic,
                                .addresses_size = options->addresses_size};
    snprintf(join->text, sizeof(join->text), "%s", options->name ? options->name : "");
    if (options->addresses_size)
        memcpy(join->addresses, options->addresses, options->addresses_size);
    join->machine = options->machine;
    join->cuda_devices = options->cuda_devices;
    if (options->public_key)
        memcpy(join->public_key, options->public_key, sizeof(join->public_key));
    link->patience_ns = wfi_deadline(link->clock, options->join_timeout_ms);
}

weft_status wfi_link_init(wfi_rendezvous *link, const wfi_rendezvous_options *options, const wfi_link_shell *shell)
{
    if (sodium_init() < 0 || !make_secrets(link, options))
        return WEFT_ERR_MEMORY;
    if (wfi_outbox_reserve_init(&link->reserve, RESERVE, RESERVED_BYTES)) {
        free_secrets(link);
        return WEFT_ERR_MEMORY;
    }
    link->shell = shell;
    link->clock = options->clock;
    link->events = *options->events;
    link->rank = options->rank;
    link->world_size = options->world_size;
    link->world.death_timeout_ms = -1;
    link->state = WFI_LINK_JOINING;
    wfi_outbox_init(&link->outbox, &link->reserve);
    wfi_mutex_init(&link->lock);
    prepare_join(link, options);
    return WEFT_OK;
}

void wfi_link_fini(wfi_rendezvous *link)
{
    free_secrets(link);
    sodium_memzero(link->world.token, sizeof(link->world.token));
    free(link->world.members);
    free(link->incarnations);
    free(link->interests);
    wfi_outbox_fini(&link->outbox);
    wfi_outbox_reserve_fini(&link->reserve);
    wfi_mutex_fini(&link->lock);
}

int64_t wfi_link_patience_ms(const wfi_rendezvous *link)
{
    uint64_t now_ns = wfi_now(link->clock);
    if (link->patience_ns == WFI_NEVER)
        return -1;
    return link->patience_ns > now_ns ? (int64_t)((link->patience_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

uint64_t wfi_link_answer_by_ns(const wfi_rendezvous *link, int64_t grace_ms)
{
    return link->greeted ? wfi_deadline_after(link->patience_ns, grace_ms) : link->patience_ns;
}

weft_status wfi_link_refused(const wfi_rendezvous *link, weft_error **error)
{
    return wfi_error_fail(error, link->refusal, "%s", link->refusal_text);
}

/* ---- The greeting ---------------------------------------------------------------------------------------------- */

void wfi_link_dialled(wfi_rendezvous *link)
{
    wfi_wire *wire = &link->wires[WFI_NEXT];
    wfi_store_message hello = {.type = WFI_STORE_HELLO, .on = link->secret_size > 0};
    set_stage(link, WFI_NEXT, WFI_WIRE_GREETING);
    link->shell->random(link, wire->greeting.worker_nonce, WFI_NONCE_BYTES);
    memcpy(hello.nonce, wire->greeting.worker_nonce, WFI_NONCE_BYTES);
    wfi_link_send_on(link, WFI_NEXT, &hello);
}

static void present(wfi_rendezvous *link)
{
    wfi_store_message resume = {.type = WFI_STORE_RESUME, .rank = link->rank, .received = link->received};
    set_stage(link, WFI_NEXT, WFI_WIRE_PRESENTED);
    if (!link->joined) {
        link->join.timeout_ms = wfi_link_patience_ms(link);
        if (sodium_is_zero(link->join.token, sizeof(link->join.token)))
            link->shell->random(link, link->join.token, sizeof(link->join.token));
        wfi_link_send_on(link, WFI_NEXT, &link->join);
        return;
    }
    resume.incarnation = link->incarnation;
    memcpy(resume.token, link->world.token, sizeof(resume.token));
    wfi_link_send_on(link, WFI_NEXT, &resume);
}

/* The next wire has failed. While joining, a status is the answer; a member tries again. */
static void drop_next(wfi_rendezvous *link, weft_status status, const char *text)
{
    link->shell->hang_up(link, WFI_NEXT);
    wfi_seal_wipe(&link->wires[WFI_NEXT].seal);
    set_stage(link, WFI_NEXT, WFI_WIRE_NONE);
    if (!status || link->joined)
        return;
    link->refusal = status;
    snprintf(link->refusal_text, sizeof(link->refusal_text), "%s", text);
    link->answered = true;
}

static void take_challenge(wfi_rendezvous *link, const wfi_store_message *challenge)
{
    wfi_wire *wire = &link->wires[WFI_NEXT];
    wire->greeting.counter = challenge->counter;
    wire->greeting.death_timeout_ms = challenge->timeout_ms;
    memcpy(wire->greeting.store_nonce, challenge->nonce, WFI_NONCE_BYTES);
    if (!wfi_proof_holds(link->secret, link->secret_size, &wire->greeting, challenge->proof)) {
        const wfi_store_message refuse = {.type = WFI_STORE_REFUSE, .status = WEFT_ERR_INVALID};
        wfi_link_send_on(link, WFI_NEXT, &refuse); /* for rank 0's log */
        drop_next(link, WEFT_ERR_INVALID,
                  "what answers at MASTER_PORT could not prove that it has this job's secret: give "
                  "all workers the same (WEFT_SECRET_FILE)");
        return;
    }
    link->greeted = true;
    link->received_ns = wfi_now(link->clock);
    wfi_seal_begin(&wire->seal, WFI_SIDE_WORKER, link->secret, link->secret_size, &wire->greeting);
    if (!link->joined)
        link->world.death_timeout_ms = challenge->timeout_ms;
    present(link);
}

/* Not encrypted: the sender has proved nothing yet. */
static void take_greeting(wfi_rendezvous *link, const uint8_t *frame, size_t size)
{
    wfi_store_message message;
    weft_status status = wfi_store_decode(frame, size, &message);
    if (!status && message.type == WFI_STORE_CHALLENGE)
        take_challenge(link, &message);
    else if (!status && message.type == WFI_STORE_REFUSE)
        drop_next(link, message.status, message.text);
    else
        wfi_link_protocol_error(link, WFI_NEXT);
}

void wfi_link_protocol_error(wfi_rendezvous *link, wfi_which which)
{
    if (which == WFI_NEXT)
        drop_next(link, WEFT_ERR_PROTOCOL, "what answers at MASTER_PORT does not speak as a store of this version");
    else
        wfi_link_lost(link, "the store sent malformed bytes");
}

/* ---- The answer ------------------------------------------------------------------------------------------------ */

static bool prepare_interests(wfi_rendezvous *link)
{
    size_t count = (size_t)link->world.world_size;
    link->incarnations = wfi_calloc(count, sizeof(*link->incarnations));
    link->interests = wfi_calloc((count + 7) / 8, 1);
    for (size_t rank = 0; link->incarnations && rank < count; rank++)
        link->incarnations[rank] = link->world.members[rank].incarnation;
    return link->incarnations && link->interests;
}

/* The next wire replaces the current one. */
static void adopt_next(wfi_rendezvous *link)
{
    wfi_assert_held(&link->lock);
    wfi_seal_wipe(&link->wires[WFI_CURRENT].seal);
    link->wires[WFI_CURRENT] = link->wires[WFI_NEXT];
    link->shell->adopt(link);
    set_stage(link, WFI_CURRENT, WFI_WIRE_LIVE);
    set_stage(link, WFI_NEXT, WFI_WIRE_NONE);
}

static void become_member(wfi_rendezvous *link)
{
    link->received_ns = link->ticked_ns = link->beat_ns = wfi_now(link->clock);
    wfi_mutex_lock(&link->lock);
    adopt_next(link);
    link->state = WFI_LINK_MEMBER;
    wfi_mutex_unlock(&link->lock);
    link->answered = link->joined = true;
}

static void take_world(wfi_rendezvous *link, const uint8_t *frame, size_t size)
{
    wfi_store_world world;
    weft_status status = wfi_store_decode_world(frame, size, &world);
    if (!status)
        memcpy(link->job_key, world.job_key, sizeof(world.job_key));
    sodium_memzero(world.job_key, sizeof(world.job_key));
    if (status) {
        drop_next(link, status, "the store's table could not be read");
        return;
    }
    link->world = world;
    if (world.world_size != link->world_size || (link->rank >= 0 && link->rank != world.rank)) {
        drop_next(link, WEFT_ERR_PROTOCOL, "the store's table is not the one we asked for");
    } else if (!prepare_interests(link)) {
        drop_next(link, WEFT_ERR_MEMORY, "out of memory for the store's table");
    } else {
        link->rank = world.rank;
        link->incarnation = world.members[world.rank].incarnation;
        become_member(link);
    }
}

/* The store accepted the resume on this wire. Both sides send again what the other has not received. */
static void take_resumed(wfi_rendezvous *link, const wfi_store_message *resumed)
{
    wfi_mutex_lock(&link->lock);
    bool sane = resumed->acknowledged <= link->received && wfi_outbox_acknowledge(&link->outbox, resumed->received);
    if (sane) {
        link->skip = link->received - resumed->acknowledged;
        adopt_next(link);
        for (const wfi_outbox_entry *entry = NULL; (entry = wfi_outbox_next(&link->outbox, entry));)
            wfi_link_send_frame(link, WFI_CURRENT, entry->frame, entry->size);
    }
    wfi_mutex_unlock(&link->lock);
    if (!sane) {
        wfi_link_lost(link, "the store resumes where we never were");
        return;
    }
    wfi_log(WEFT_LOG_INFO, "rank %d: resumed with the store on another connection", link->rank);
    wfi_link_send_heartbeat(link); /* confirms the wire */
}

/* Sealed: the sender has the secret, if there is one. */
static void take_answer(wfi_rendezvous *link, const uint8_t *plain, size_t size)
{
    wfi_store_message message;
    if (!link->joined && wfi_store_frame_type(plain) == WFI_STORE_WORLD) {
        take_world(link, plain, size);
        return;
    }
    weft_status status = wfi_store_decode(plain, size, &message);
    bool joins = !link->joined;
    if (status)
        wfi_link_protocol_error(link, WFI_NEXT);
    else if (message.type == WFI_STORE_REFUSE && joins)
        drop_next(link, message.status, message.text);
    else if (message.type == WFI_STORE_REFUSE)
        wfi_link_lost(link, message.text); /* this store no longer knows this worker */
    else if (message.type == WFI_STORE_EVICTED && !joins)
        wfi_link_evicted(link, message.text);
    else if (message.type == WFI_STORE_RESUMED && !joins)
        take_resumed(link, &message);
    else if (message.type != WFI_STORE_HEARTBEAT)
        wfi_link_protocol_error(link, WFI_NEXT);
}

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

static void take_word(wfi_rendezvous *link, const uint8_t *plain, size_t size)
{
    wfi_store_message message;
    if (wfi_store_decode(plain, size, &message)) {
        wfi_link_lost(link, "the store sent malformed bytes");
        return;
    }
    if (message.type == WFI_STORE_HEARTBEAT || message.type == WFI_STORE_ACK) {
        wfi_mutex_lock(&link->lock);
        bool sane = wfi_outbox_acknowledge(&link->outbox, message.received);
        wfi_mutex_unlock(&link->lock);
        if (!sane)
            wfi_link_lost(link, "the store claims to have heard what was never said");
        return;
    }
    if (wfi_store_type_is_kept(message.type) && link->skip > 0) {
        link->skip--;
        return;
    }
    if (wfi_store_type_is_kept(message.type) && ++link->received - link->acked >= WFI_STORE_ACK_EVERY) {
        wfi_store_message ack = {.type = WFI_STORE_ACK, .received = link->received};
        link->acked = link->received;
        wfi_link_post(link, &ack);
    }
    wfi_link_dispatch(link, &message);
}

/* A frame that cannot be opened was changed on its way: the wire is dropped. Only the table may be large. */
static void open_and_take(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size)
{
    uint8_t small[WFI_STORE_SMALL_MAX];
    size_t plain_size;
    uint8_t *plain = size <= sizeof(small) ? small : malloc(size);
    if (!plain) {
        drop_next(link, WEFT_ERR_MEMORY, "out of memory for the store's table");
        return;
    }
    weft_status status = wfi_seal_open(&link->wires[which].seal, frame, size, plain, &plain_size);
    if (!status)
        link->received_ns = wfi_now(link->clock);
    if (status && which == WFI_NEXT)
        drop_next(link, WEFT_OK, NULL);
    else if (status)
        wfi_link_wire_lost(link, which, false, "a frame of the store was changed on its way");
    else if (which == WFI_NEXT)
        take_answer(link, plain, plain_size);
    else
        take_word(link, plain, plain_size);
    sodium_memzero(plain, size); /* the job's key is in the table */
    if (plain != small)
        free(plain);
}

void wfi_link_received(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size)
{
    wfi_wire_stage stage = link->wires[which].stage;
    if (wfi_link_is_out(link) || size < WFI_STORE_HEAD || link->answered != link->joined)
        return;
    if (stage == WFI_WIRE_GREETING)
        take_greeting(link, frame, size);
    else if (stage >= WFI_WIRE_PRESENTED)
        open_and_take(link, which, frame, size);
}

void wfi_link_wire_lost(wfi_rendezvous *link, wfi_which which, bool refused, const char *why)
{
    if (which == WFI_CURRENT) {
        wfi_mutex_lock(&link->lock);
        link->shell->hang_up(link, WFI_CURRENT);
        wfi_seal_wipe(&link->wires[WFI_CURRENT].seal);
        set_stage(link, WFI_CURRENT, WFI_WIRE_NONE);
        wfi_mutex_unlock(&link->lock);
        snprintf(link->broken, sizeof(link->broken), "%s", why);
        /* the end of the wire showed that at least its host was alive */
        link->received_ns = link->wires[WFI_CURRENT].since_ns;
        link->dial_ns = 0;
        return;
    }
    drop_next(link, WEFT_OK, NULL);
    if (link->joined && refused && !keeps_the_store(link))
        wfi_link_lost(link, *link->broken ? link->broken : why);
}

/* ---- The clock ------------------------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t tick_greeting(wfi_rendezvous *link, uint64_t now_ns)
{
    if (link->store_is_here)
        return WFI_NEVER;
    unsigned doublings = link->unanswered < GREETING_DOUBLINGS ? link->unanswered : GREETING_DOUBLINGS;
    uint64_t due_ns = link->wires[WFI_NEXT].since_ns + (GREETING_NS << doublings);
    if (now_ns < due_ns)
        return due_ns;
    link->unanswered++;
    drop_next(link, WEFT_OK, NULL);
    return now_ns;
}

/* While joining: a wire that makes no progress is dropped, and the opener tries again. */
static uint64_t tick_joining(wfi_rendezvous *link, uint64_t now_ns)
{
    const wfi_wire *wire = &link->wires[WFI_NEXT];
    if (wire->stage == WFI_WIRE_GREETING)
        return tick_greeting(link, now_ns);
    if (wire->stage != WFI_WIRE_PRESENTED || link->world.death_timeout_ms < 0)
        return WFI_NEVER;
    if (now_ns - link->ticked_ns > bound_ns(link) / 2)
        link->received_ns = now_ns;
    link->ticked_ns = now_ns;
    if (now_ns - link->received_ns > bound_ns(link)) {
        drop_next(link, WEFT_OK, NULL);
        return now_ns;
    }
    if (now_ns >= link->beat_ns && now_ns - wire->since_ns >= bound_ns(link) / 4) {
        wfi_store_message heartbeat = {.type = WFI_STORE_HEARTBEAT};
        link->beat_ns = now_ns + bound_ns(link) / 4 + 1;
        wfi_link_send_on(link, WFI_NEXT, &heartbeat);
    }
    uint64_t beat_ns = wire->since_ns + bound_ns(link) / 4;
    return earlier(link->beat_ns > beat_ns ? link->beat_ns : beat_ns, link->received_ns + bound_ns(link) + 1);
}

/*
 * Nothing arrives: tries the next wire repeatedly. A slow connect is abandoned for a new one, because its packet may
 * have been lost in a cut that has ended since.
 */
static uint64_t try_to_resume(wfi_rendezvous *link, uint64_t now_ns)
{
    const wfi_wire *next = &link->wires[WFI_NEXT];
    uint64_t pause_ns = bound_ns(link) / 16 > DIAL_LEAST_NS ? bound_ns(link) / 16 : DIAL_LEAST_NS;
    uint64_t patience_ns = next->stage == WFI_WIRE_DIALLING ? pause_ns : bound_ns(link) / 4;
    if (next->stage != WFI_WIRE_NONE && now_ns - next->since_ns >= patience_ns)
        drop_next(link, WEFT_OK, NULL);
    if (next->stage == WFI_WIRE_NONE && now_ns >= link->dial_ns) {
        link->dial_ns = now_ns + pause_ns;
        wfi_log(WEFT_LOG_DEBUG, "rank %d: the store is silent for %llu ms: dialling", link->rank,
                (unsigned long long)((now_ns - link->received_ns) / NS_PER_MS));
        set_stage(link, WFI_NEXT, WFI_WIRE_DIALLING);
        link->shell->dial(link);
    }
    return earlier(now_ns + pause_ns, link->dial_ns > now_ns ? link->dial_ns : WFI_NEVER);
}

static bool must_beat(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    /* a heartbeat is answered with the number of received messages */
    bool unacknowledged = link->outbox.sent > link->outbox.acknowledged;
    bool beats =
        link->heartbeats_wanted || link->interest_count > 0 || link->closing || link->serving || unacknowledged;
    wfi_mutex_unlock(&link->lock);
    return beats && link->world.death_timeout_ms >= 0;
}

static uint64_t tick_member(wfi_rendezvous *link, uint64_t now_ns)
{
    bool beats = must_beat(link), is_broken = link->wires[WFI_CURRENT].stage != WFI_WIRE_LIVE;
    uint64_t bound = bound_ns(link), due_ns = WFI_NEVER;
    /*
     * This process was stopped or had no CPU time: messages that the store sent meanwhile (such as an eviction) are
     * still unread.
     */
    bool was_absent = link->was_beating && now_ns - link->ticked_ns > bound / 2;
    if (was_absent || (beats && !link->was_beating))
        link->received_ns = now_ns;
    link->ticked_ns = now_ns;
    link->was_beating = beats || is_broken;
    if (beats && now_ns >= link->beat_ns) {
        link->beat_ns = now_ns + bound / 8 + 1;
        wfi_link_send_heartbeat(link);
    }
    if (beats)
        due_ns = link->beat_ns;
    wfi_wire_stage next = link->wires[WFI_NEXT].stage;
    bool is_silent = is_broken || (beats && now_ns - link->received_ns >= bound / 4);
    if (!is_silent && next != WFI_WIRE_PRESENTED) {
        if (next != WFI_WIRE_NONE)
            drop_next(link, WEFT_OK, NULL); /* the current one works */
        return beats ? earlier(due_ns, link->received_ns + bound / 4) : due_ns;
    }
    if (!keeps_the_store(link) && now_ns - link->received_ns >= LOST_BOUNDS * bound) {
        wfi_link_lost(link, *link->broken ? link->broken : "the store is silent");
        return WFI_NEVER;
    }
    return earlier(due_ns, try_to_resume(link, now_ns));
}

uint64_t wfi_link_tick(wfi_rendezvous *link)
{
    uint64_t now_ns = wfi_now(link->clock);
    wfi_mutex_lock(&link->lock);
    bool is_full = link->outbox_is_full;
    wfi_mutex_unlock(&link->lock);
    if (!link->joined)
        return tick_joining(link, now_ns);
    if (is_full)
        wfi_link_lost(link, "no room for what the store does not acknowledge");
    if (wfi_link_is_out(link))
        return WFI_NEVER;
    uint64_t due_ns = tick_member(link, now_ns);
    return wfi_link_is_out(link) ? WFI_NEVER : due_ns;
}
