/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - joining: who may join, who waits for whom, and how the others are told. The rules are in store.h, JOINING.
 */
#include "job/store/state.h"

#include "base/text/log.h"

#include <sodium.h>
#include <string.h>

#define NS_PER_MS 1000000ull
#define AWAITED_FIRST_MS 5000ull  /* from the first join to the first log line about missing ranks */
#define AWAITED_LAST_MS 120000ull /* the longest pause between two such lines */
#define NAMED_MISSING_MAX 8       /* ranks named in the text of a timeout */
#define AWAITED_TEXT 280          /* bytes of the text about their processes */

static bool is_free(const wfi_store_slot *slot)
{
    return slot->state != WFI_SLOT_WAITING && slot->state != WFI_SLOT_ALIVE;
}

void wfi_store_free_slot(wfi_store *store, int rank)
{
    store->slots[rank].state = WFI_SLOT_EMPTY;
    store->slots[rank].link = NULL;
    store->members[rank] = (wfi_member){0};
    store->waiting--;
}

void wfi_store_fail_gathering(wfi_store *store, const char *why)
{
    store->phase = WFI_STORE_FAILED;
    snprintf(store->failure, sizeof(store->failure), "%s", why);
    for (int rank = 0; rank < store->options.world_size; rank++) {
        wfi_store_link *link = store->slots[rank].link;
        if (store->slots[rank].state != WFI_SLOT_WAITING)
            continue;
        wfi_store_free_slot(store, rank);
        wfi_store_refuse(store, link, WEFT_ERR_RENDEZVOUS, "%s", store->failure);
    }
}

/* ---- Patience -------------------------------------------------------------------------------------------------- */

/* "ranks 2 and 5", "ranks 1, 2 and 40 more" */
static void name_missing(const wfi_store *store, char *out, size_t capacity)
{
    int missing = store->options.world_size - store->waiting, named = 0;
    int name_count = missing > NAMED_MISSING_MAX ? NAMED_MISSING_MAX : missing;
    size_t size = (size_t)snprintf(out, capacity, missing == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < store->options.world_size && named < name_count; rank++) {
        if (store->slots[rank].state != WFI_SLOT_EMPTY)
            continue;
        const char *separator = named == 0 ? " " : named == missing - 1 ? " and " : ", ";
        size += (size_t)snprintf(out + size, capacity - size, "%s%d", separator, rank);
        named++;
    }
    if (missing > named)
        snprintf(out + size, capacity - size, " and %d more", missing - named);
}

void wfi_store_out_of_resources(wfi_store *store)
{
    if (!store->out_of_resources)
        wfi_log_in(&(wfi_log_context){.rank = 0}, WEFT_LOG_ERROR,
                   "store: out of file descriptors (ulimit -n) or memory: workers that join have to wait");
    store->out_of_resources = true;
}

static void describe_awaited(const wfi_store *store, char *out, size_t room)
{
    out[0] = '\0';
    if (store->options.describe_awaited)
        store->options.describe_awaited(store->options.describe_arg, store, out, room);
}

static void expire_patience(wfi_store *store, int rank)
{
    char missing[160] = "rank 0", awaited[AWAITED_TEXT], why[WFI_STORE_TEXT_MAX];
    long long patience_ms = store->slots[rank].patience_ms;
    if (!store->options.elastic)
        name_missing(store, missing, sizeof(missing));
    bool whole = patience_ms % 1000 == 0;
    const char *cause = store->out_of_resources ? "; rank 0 is out of file descriptors (ulimit -n) or memory" : "";
    describe_awaited(store, awaited, sizeof(awaited));
    int size = snprintf(why, sizeof(why), "%s did not come within %lld %s%s%s", missing,
                        whole ? patience_ms / 1000 : patience_ms, whole ? "s" : "ms", cause, awaited);
    if (size >= (int)sizeof(why))
        memcpy(why + sizeof(why) - sizeof("..."), "...", sizeof("..."));
    if (!store->options.elastic) {
        wfi_store_fail_gathering(store, why);
        return;
    }
    wfi_store_link *link = store->slots[rank].link;
    wfi_store_free_slot(store, rank);
    wfi_store_refuse(store, link, WEFT_ERR_RENDEZVOUS, "%s", why);
}

/* Workers that wait to join send heartbeats. A silent one loses its slot to others; it joins again if it continues. */
static void expire_silence(wfi_store *store, int rank)
{
    wfi_store_link *link = store->slots[rank].link;
    wfi_log(WEFT_LOG_WARN, "store: rank %d joined and was silent for %lld ms: its slot is free again", rank,
            (long long)store->options.death_timeout_ms);
    wfi_store_free_slot(store, rank);
    wfi_store_hang_up(store, link, 0);
}

/* Logs which ranks are missing before the first worker's patience ends, so that the user sees them in time. */
static void name_awaited(wfi_store *store, uint64_t now_ns)
{
    char missing[160], awaited[AWAITED_TEXT];
    if (store->options.elastic || store->waiting == 0 || store->phase != WFI_STORE_GATHERING) {
        store->name_awaited_ns = WFI_NEVER;
        return;
    }
    if (store->name_awaited_ns == WFI_NEVER) {
        store->name_awaited_pause_ns = AWAITED_FIRST_MS * NS_PER_MS;
    } else if (store->name_awaited_ns > now_ns) {
        wfi_store_due_by(store, store->name_awaited_ns);
        return;
    } else {
        name_missing(store, missing, sizeof(missing));
        describe_awaited(store, awaited, sizeof(awaited));
        wfi_log_in(&(wfi_log_context){.rank = 0}, WEFT_LOG_WARN, "store: waiting for %s: %d of %d workers are here%s",
                   missing, store->waiting, store->options.world_size, awaited);
        store->name_awaited_pause_ns *= 2;
        if (store->name_awaited_pause_ns > AWAITED_LAST_MS * NS_PER_MS)
            store->name_awaited_pause_ns = AWAITED_LAST_MS * NS_PER_MS;
    }
    store->name_awaited_ns = now_ns + store->name_awaited_pause_ns;
    wfi_store_due_by(store, store->name_awaited_ns);
}

void wfi_store_tick_gathering(wfi_store *store, uint64_t now_ns)
{
    bool beats = store->options.death_timeout_ms >= 0 && store->waiting > 0;
    uint64_t bound_ns = wfi_store_bound_ns(store);
    wfi_store_excuse_own_absence(store, now_ns);
    for (int rank = 0; rank < store->options.world_size && store->phase == WFI_STORE_GATHERING; rank++) {
        const wfi_store_slot *slot = &store->slots[rank];
        if (slot->state != WFI_SLOT_WAITING)
            continue;
        if (slot->patience_ns <= now_ns)
            expire_patience(store, rank);
        else if (beats && slot->received_ns + bound_ns <= now_ns)
            expire_silence(store, rank);
        else
            wfi_store_due_by(store, slot->patience_ns);
    }
    name_awaited(store, now_ns);
    store->ticking = beats;
    if (beats)
        wfi_store_due_by(store, now_ns + bound_ns / 4 + 1);
}

/* ---- The table ------------------------------------------------------------------------------------------------- */

/* From now on it is told of every change; earlier changes are in its table. */
static void make_member(wfi_store *store, int rank, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    slot->state = WFI_SLOT_ALIVE;
    slot->received_ns = now_ns;
    slot->link->joined_ns = now_ns;
    store->options.outputs.random(store->options.outputs.arg, slot->token, sizeof(slot->token));
    store->members[rank].incarnation = ++store->incarnations;
    store->waiting--;
    store->alive++;
}

/* The current table. The receiver's rank, and the fields that only members may know, are filled in later. */
static void encode_table(const wfi_store *store, wfi_writer *writer)
{
    wfi_store_world world = {.death_timeout_ms = store->options.death_timeout_ms,
                             .world_size = store->options.world_size,
                             .members = store->members};
    wfi_writer_init_growing(writer);
    wfi_store_encode_world(writer, &world);
}

static void send_table(wfi_store *store, int rank, wfi_writer *writer)
{
    static const uint8_t nothing[WFI_STORE_TOKEN_BYTES];
    wfi_store_world_address(writer->data, rank, store->slots[rank].token, store->options.job_key);
    wfi_store_send_frame(store, store->slots[rank].link, writer->data, writer->size);
    wfi_store_world_address(writer->data, rank, nothing, nothing);
}

/* The job begins: each waiting worker gets an answer with the same table. */
static void begin(wfi_store *store, uint64_t now_ns)
{
    wfi_writer writer;
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (store->slots[rank].state == WFI_SLOT_WAITING)
            make_member(store, rank, now_ns);
    encode_table(store, &writer);
    store->phase = WFI_STORE_RUNNING;
    store->ticked_ns = now_ns;
    wfi_store_due_by(store, now_ns); /* a tick sets the deadlines */
    for (int rank = 0; rank < store->options.world_size; rank++) {
        if (store->slots[rank].state != WFI_SLOT_ALIVE)
            continue;
        if (!writer.failed) {
            send_table(store, rank, &writer);
            continue;
        }
        store->waiting++;
        store->alive--;
        store->slots[rank].state = WFI_SLOT_WAITING;
    }
    if (writer.failed)
        wfi_store_fail_gathering(store, "the store ran out of memory");
    wfi_writer_fini(&writer);
}

/* Tells a new member which members have announced that they leave: the table does not contain that. */
static void send_leavers(wfi_store *store, int rank)
{
    wfi_store_message news = {.type = WFI_STORE_LEAVING};
    for (int other = 0; other < store->options.world_size; other++) {
        if (!store->slots[other].leaving)
            continue;
        news.rank = other;
        news.incarnation = store->members[other].incarnation;
        wfi_store_send_to(store, rank, &news);
    }
}

/* A worker joins a running job: it gets the table, the others get its entry. The present wave of probes does not
 * include it, so wfi_store_end_members_changed discards that wave. */
static void admit(wfi_store *store, int rank, uint64_t now_ns)
{
    wfi_writer writer;
    make_member(store, rank, now_ns);
    encode_table(store, &writer);
    if (writer.failed) {
        wfi_store_link *link = store->slots[rank].link;
        store->waiting++; /* as before make_member */
        store->alive--;
        wfi_store_free_slot(store, rank);
        wfi_store_refuse(store, link, WEFT_ERR_MEMORY, "the store ran out of memory");
    } else {
        wfi_log(WEFT_LOG_INFO, "store: \"%s\" joined as rank %d, incarnation %u", store->members[rank].name, rank,
                store->members[rank].incarnation);
        send_table(store, rank, &writer);
        send_leavers(store, rank);
        wfi_store_message joined = {.type = WFI_STORE_JOINED};
        wfi_store_message_of_member(&joined, &store->members[rank]);
        wfi_store_send_to_others(store, rank, &joined);
        wfi_store_interest_review(store, rank, now_ns);
        wfi_store_end_members_changed(store);
        wfi_store_due_by(store, now_ns);
    }
    wfi_writer_fini(&writer);
}

/* ---- Who may --------------------------------------------------------------------------------------------------- */

static int rank_of_name(const wfi_store *store, const char *name)
{
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (!is_free(&store->slots[rank]) && strcmp(store->members[rank].name, name) == 0)
            return rank;
    return -1;
}

/* The lowest free rank other than 0, which belongs to the store's own worker. -1: all are taken. */
static int free_rank(const wfi_store *store)
{
    for (int rank = 1; rank < store->options.world_size; rank++)
        if (is_free(&store->slots[rank]))
            return rank;
    return -1;
}

/* Checks of a JOIN that do not depend on the slots. */
static bool refuse_malformed(wfi_store *store, wfi_store_link *link, const wfi_store_message *join)
{
    int world_size = store->options.world_size;
    bool elastic = store->options.elastic;
    if (join->elastic != elastic)
        wfi_store_refuse(store, link, WEFT_ERR_INVALID, "this worker's job is %s, rank 0's is %s",
                         elastic ? "static" : "elastic", elastic ? "elastic" : "static");
    else if (join->world_size != world_size)
        wfi_store_refuse(store, link, WEFT_ERR_INVALID, "rank %d has world size %d, rank 0 has %d", (int)join->rank,
                         (int)join->world_size, world_size);
    else if (join->rank < (elastic ? -1 : 0) || join->rank >= world_size)
        wfi_store_refuse(store, link, WEFT_ERR_INVALID, "rank %d is not within 0..%d", (int)join->rank, world_size - 1);
    else if (!wfi_store_name_is_well_formed(join->text) && !(join->rank < 0 && !*join->text))
        wfi_store_refuse(store, link, WEFT_ERR_INVALID,
                         "\"%.*s\" is no name: 1 to %d of A-Z a-z 0-9 - _ :", WFI_NAME_MAX, join->text,
                         WFI_NAME_MAX - 1);
    else
        return false;
    return true;
}

/* A worker that joins after the end wants the next job on this port: it gets no answer, and tries again. */
static bool refuse_after_end(wfi_store *store, wfi_store_link *link)
{
    if (store->phase == WFI_STORE_FAILED) {
        store->not_joined -= store->not_joined > 0;
        wfi_store_refuse(store, link, WEFT_ERR_RENDEZVOUS, "%s", store->failure);
    } else if (store->ended) {
        wfi_store_refuse(store, link, WEFT_ERR_JOB_ENDED, "rank 0 ended the job%s%s", *store->failure ? ": " : "",
                         store->failure);
    } else if (store->terminated || store->draining) {
        wfi_store_hang_up(store, link, 0);
    } else {
        return false;
    }
    return true;
}

/* Refuses the join if it cannot have that slot or that name. */
static bool refuse_slot(wfi_store *store, wfi_store_link *link, int rank, const char *name)
{
    const wfi_store_slot *slot = rank < 0 ? NULL : &store->slots[rank];
    bool is_late = store->phase == WFI_STORE_RUNNING;
    if (!slot)
        wfi_store_refuse(store, link, WEFT_ERR_EXISTS, "no rank is free: all %d are taken", store->options.world_size);
    else if (!is_free(slot))
        wfi_store_refuse(store, link, WEFT_ERR_EXISTS, "rank %d is taken by \"%s\"", rank, store->members[rank].name);
    else if (is_late && rank == 0)
        wfi_store_refuse(store, link, WEFT_ERR_EXISTS, "rank 0 keeps the store: it cannot be taken again");
    else if (is_late && !store->options.elastic && slot->state == WFI_SLOT_LEFT)
        wfi_store_refuse(store, link, WEFT_ERR_EXISTS, "rank %d has left the job, which is not elastic", rank);
    else if (rank_of_name(store, name) >= 0)
        wfi_store_refuse(store, link, WEFT_ERR_EXISTS, "the name \"%s\" is taken by rank %d", name,
                         rank_of_name(store, name));
    else
        return false;
    return true;
}

/* The holder has announced that it leaves: the joiner gets no answer and tries again, until the slot is free. */
static bool await_leaving_holder(wfi_store *store, wfi_store_link *link, int rank)
{
    if (rank == 0 || !store->slots[rank].leaving)
        return false;
    wfi_log(WEFT_LOG_INFO, "store: rank %d is wanted by another process, which waits until \"%s\" has left it", rank,
            store->members[rank].name);
    wfi_store_hang_up(store, link, 0);
    return true;
}

/*
 * If no heartbeats are expected of the slot's holder, it may have lost its connection long ago and may be the very
 * process that joins again. The store asks the holder for a heartbeat. The joiner gets no answer and tries again,
 * until the holder has answered or is dead. Returns true in that case.
 */
static bool probe_silent_holder(wfi_store *store, wfi_store_link *link, int rank, uint64_t now_ns)
{
    const wfi_store_slot *slot = &store->slots[rank];
    uint64_t bound_ns = wfi_store_bound_ns(store);
    if (rank == 0 || slot->state != WFI_SLOT_ALIVE || store->options.death_timeout_ms < 0)
        return false;
    if (slot->suspected_ns == WFI_NEVER && now_ns - slot->received_ns < bound_ns)
        return false;
    wfi_store_suspect(store, rank, 0, "another process wants its rank", now_ns);
    wfi_store_hang_up(store, link, 0);
    return true;
}

static void take_slot(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[join->rank];
    wfi_member *member = &store->members[join->rank];
    *slot = (wfi_store_slot){
        .state = WFI_SLOT_WAITING, .link = link, .patience_ms = join->timeout_ms, .received_ns = now_ns};
    slot->patience_ns = wfi_deadline_after(now_ns, join->timeout_ms);
    slot->suspected_ns = slot->lost_ns = WFI_NEVER;
    memcpy(slot->asked_with, join->token, sizeof(slot->asked_with));
    wfi_outbox_init(&slot->outbox, &store->reserve);
    wfi_store_member_of_message(member, join); /* incarnation 0, because a JOIN has none */
    link->rank = join->rank;
    store->waiting++;
    if (store->phase == WFI_STORE_GATHERING)
        wfi_log(WEFT_LOG_INFO, "store: \"%s\" has come for rank %d: %d of %d", member->name, member->rank,
                store->waiting, store->options.world_size);
    wfi_store_due_by(store, now_ns); /* a tick sets the deadlines */
}

/* The slot of the join that this JOIN repeats, if the answer was lost with its connection; -1: it is a new join. */
static int slot_of_lost_answer(const wfi_store *store, const wfi_store_message *join)
{
    if (sodium_is_zero(join->token, sizeof(join->token)))
        return -1;
    for (int rank = 0; rank < store->options.world_size; rank++)
        if (!is_free(&store->slots[rank]) &&
            sodium_memcmp(store->slots[rank].asked_with, join->token, sizeof(join->token)) == 0)
            return rank;
    return -1;
}

/* Sends the same answer on another connection, followed by the messages since. */
static void answer_again(wfi_store *store, wfi_store_link *link, int rank, uint64_t now_ns)
{
    wfi_store_slot *slot = &store->slots[rank];
    wfi_writer writer;
    wfi_store_relink(store, rank, link, now_ns);
    if (slot->state == WFI_SLOT_WAITING)
        return;
    wfi_log(WEFT_LOG_INFO, "store: rank %d joins again, its answer was lost", rank);
    link->unconfirmed = true;
    encode_table(store, &writer);
    if (writer.failed)
        slot->overflowed = true;
    else
        send_table(store, rank, &writer);
    for (const wfi_outbox_entry *entry = NULL; !slot->overflowed && (entry = wfi_outbox_next(&slot->outbox, entry));)
        wfi_store_send_frame(store, link, entry->frame, entry->size);
    wfi_writer_fini(&writer);
    wfi_store_due_by(store, now_ns);
}

/* A function here that returns true has refused the joiner, or has closed its connection so that it tries again. */
void wfi_store_handle_join(wfi_store *store, wfi_store_link *link, const wfi_store_message *join, uint64_t now_ns)
{
    if (refuse_malformed(store, link, join) || refuse_after_end(store, link))
        return;
    int taken = slot_of_lost_answer(store, join);
    if (taken >= 0 && store->slots[taken].received == 0) {
        answer_again(store, link, taken, now_ns);
        return;
    }
    if (join->rank >= 0)
        wfi_store_give_up_lost(store, join->rank);
    wfi_store_message placed = *join;
    if (join->rank < 0)
        placed.rank = free_rank(store);
    if (placed.rank >= 0 && !*join->text)
        snprintf(placed.text, sizeof(placed.text), "worker%d", (int)placed.rank);
    int holder =
        placed.rank >= 0 && !is_free(&store->slots[placed.rank]) ? placed.rank : rank_of_name(store, placed.text);
    if (holder >= 0 && (probe_silent_holder(store, link, holder, now_ns) || await_leaving_holder(store, link, holder)))
        return;
    if (refuse_slot(store, link, placed.rank, placed.text))
        return;
    take_slot(store, link, &placed, now_ns);
    bool is_complete = store->options.elastic ? placed.rank == 0 : store->waiting == store->options.world_size;
    if (store->phase == WFI_STORE_RUNNING)
        admit(store, placed.rank, now_ns);
    else if (is_complete)
        begin(store, now_ns);
}
