/* SPDX-License-Identifier: Apache-2.0 */
/*
 * revalidate.c - asks and answers, after a bulk connection broke, whether the peer's memory is still exposed.
 *
 * A connection breaks if the peer withdrew the memory, or if the network was cut. This side cannot distinguish the two.
 * So a transfer that had chunks in flight when the connection broke sends a question on the control channel: is the
 * memory of its next chunk still exposed?
 *
 * If it is not, the transfer ends with WEFT_ERR_PROTOCOL. If it is, that chunk is transferred alone; afterwards the
 * transfer continues normally. So a transfer whose memory is exposed survives any number of broken connections. A
 * transfer that had no chunk in flight does not ask, unless keys last (bulk.h).
 *
 * A connection also breaks if memory of the transfer cannot be accessed: it was unmapped or protected, or its file was
 * truncated. So this side checks its own memory of the chunk before it asks, and the peer checks its memory before it
 * answers. If one of them cannot be accessed, the transfer ends with WEFT_ERR_INVALID.
 *
 * libfabric's tcp drops the answer to a read of memory that cannot be read, and takes the answers to later reads for
 * the missing one: wrong bytes arrive, and the last reads never end. It copies to local memory, which raises SIGSEGV.
 * So memory is checked before it is exposed or read to, except on fabrics with limits.reports_memory. If it becomes bad
 * later, the connection may stop although the peer answers. The detector then has this file ask about a chunk in flight
 * (wfi_transfers_doubt).
 *
 * If keys last, an answer is valid only for the connection that the peer had when it answered: the peer may withdraw
 * the memory before it has a later one.
 *
 * The question also names the fabric of the bulk connection, and the answer has the memory's address there. So a
 * transfer also asks if its memory was named on another fabric. The workers may prefer different fabrics, or one has
 * failed.
 */
#include "net/bulk/bulk.h"

#include "base/codec.h"

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

/* Asks whether the memory of a chunk is still exposed, and for its address on the bulk connection's fabric. */
static void ask_about(wfi_transfer_state *state, uint64_t chunk)
{
    wfi_bulk *bulk = state->bulk;
    const wfi_conn *conn = wfi_channel_up(&bulk->channel);
    wfi_writer writer;
    uint64_t size;
    const wfi_segment *segment =
        wfi_transfer_state_place(state, chunk, &bulk->asked_offset, &size, &bulk->asked_segment);
    wfi_rma_address remote = segment->has_moved ? segment->first_remote : segment->remote;
    remote.address += bulk->asked_offset;
    wfi_writer_init(&writer, bulk->revalidate.bytes, sizeof(bulk->revalidate.bytes));
    wfi_write_u64(&writer, ++bulk->questions);
    wfi_rma_encode(&writer, &remote);
    wfi_write_u64(&writer, size);
    wfi_write_u8(&writer, state->owner->kind == WFI_PULL ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
    wfi_write_u8(&writer, conn ? conn->fabric->ops->number : remote.fabric);
    assert(!writer.failed);
    bulk->asked = state;
    wfi_control_message_send(&bulk->revalidate, WFI_CONTROL_REVALIDATE, writer.size);
}

/* Whether the transfer must ask before it can continue. */
static bool must_ask(wfi_transfer_state *state)
{
    const wfi_conn *conn = wfi_channel_up(&state->bulk->channel);
    if (!wfi_transfer_state_has_free(state))
        return false;
    if (state->unvalidated && !state->validated)
        return !state->under_way;
    return conn && !wfi_transfer_state_fits(state, conn); /* including answers for an earlier connection */
}

/* One question is in flight at a time. */
void wfi_transfers_ask(wfi_bulk *bulk)
{
    uint64_t offset, size;
    size_t at;
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        if (bulk->asked || bulk->revalidate.out)
            return;
        if (!must_ask(state))
            continue;
        if (!wfi_transfer_state_has_local(state, state->next)) {
            (void)wfi_transfer_state_place(state, state->next, &offset, &size, &at);
            wfi_transfer_state_spoilt(state, at, true);
            wfi_transfers_ask(bulk); /* the list has changed */
            return;
        }
        ask_about(state, state->next);
    }
}

void wfi_transfers_doubt(wfi_conn *conn)
{
    wfi_bulk *bulk = wfi_bulk_of(conn->channel);
    if (bulk->asked || bulk->revalidate.out || wfi_list_empty(&conn->ios))
        return;
    const wfi_chunk *chunk = wfi_container_of(conn->ios.next, wfi_chunk, io.link);
    if (wfi_transfer_state_has_local(chunk->state, chunk->index)) {
        ask_about(chunk->state, chunk->index);
        return;
    }
    uint64_t offset, size;
    size_t at;
    (void)wfi_transfer_state_place(chunk->state, chunk->index, &offset, &size, &at);
    wfi_transfer_state_spoilt(chunk->state, at, true);
    wfi_channel_broken(conn); /* its chunks in flight will not end */
}

void wfi_transfers_invalidate(wfi_bulk *bulk)
{
    bool keys_last = !bulk->channel.conn->fabric->limits->keys_per_transfer;
    if (keys_last)
        bulk->asked = NULL; /* the answer would be for an earlier connection */
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        bool asks = state->interrupted || keys_last;
        state->unvalidated = state->unvalidated || asks;
        state->validated = state->validated && !asks;
        state->interrupted = false;
    }
    wfi_transfers_ask(bulk);
}

/* Whether the answer was given for another connection than `conn`, or for none: the peer has lost or closed `conn`. */
static bool is_of_another(const wfi_conn *conn, uint32_t generation)
{
    return conn && !conn->fabric->limits->keys_per_transfer && conn->generation != generation;
}

void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader)
{
    uint64_t number = wfi_read_u64(reader);
    uint8_t answer = wfi_read_u8(reader);
    wfi_rma_address there = wfi_rma_decode(reader);
    uint32_t generation = wfi_read_u32(reader);
    wfi_transfer_state *state = bulk->asked;
    if (reader->failed || number != bulk->questions)
        return;
    if (!state) { /* the transfer that asked has ended, and others may have to ask */
        wfi_transfers_ask(bulk);
        return;
    }
    bulk->asked = NULL;
    wfi_conn *conn = wfi_channel_up(&bulk->channel);
    if (answer == WFI_STILL_EXPOSED && is_of_another(conn, generation)) {
        wfi_channel_broken(conn); /* asks again over the next one */
        return;
    }
    if (answer != WFI_NOT_ON_THIS_FABRIC)
        bulk->answered_generation = generation;
    if (answer == WFI_STILL_EXPOSED) {
        wfi_segment *segment = &state->owner->segments[bulk->asked_segment];
        there.address -= bulk->asked_offset;
        if (!segment->has_moved)
            segment->first_remote = segment->remote;
        segment->has_moved = true;
        segment->remote = there;
        state->validated = state->unvalidated;
    } else if (answer == WFI_NOT_ON_THIS_FABRIC) {
        if (conn && conn->fabric->ops->number == there.fabric && !wfi_channel_turn(conn, 0, WEFT_ERR_MEMORY))
            wfi_transfer_state_end(state, WEFT_ERR_MEMORY);
    } else {
        bool hangs = state->under_way; /* wfi_transfers_doubt has asked: its chunks in flight may never end */
        if (answer == WFI_NOT_ACCESSIBLE)
            wfi_transfer_state_spoilt(state, bulk->asked_segment, false);
        else
            wfi_transfer_state_end(state, WEFT_ERR_PROTOCOL);
        if (hangs && conn)
            wfi_channel_broken(conn);
    }
    wfi_transfers_ask(bulk);
}

/* ---- Answering ------------------------------------------------------------------------------------------------- */

static void answer_after(wfi_bulk *bulk, const wfi_registration *ended);

/* [locked] The memory of a query was registered, or could not be. If the peer has asked another question since, only
 * that one is answered. */
static void query_registered(wfi_registration *registration)
{
    wfi_bulk *bulk = registration->owner;
    bulk->registration = NULL;
    answer_after(bulk, registration);
}

/* `ended`: the registration that has just ended, or NULL. */
static void answer_after(wfi_bulk *bulk, const wfi_registration *ended)
{
    const wfi_query *query = &bulk->query;
    const wfi_conn *conn = bulk->channel.crossing ? bulk->channel.crossing : bulk->channel.conn;
    wfi_writer writer;
    bulk->answer_due = bulk->revalidated.out || bulk->registration;
    if (bulk->answer_due)
        return;
    bool is_one = query->access == WFI_REMOTE_READ || query->access == WFI_REMOTE_WRITE;
    wfi_rma_address on = {.fabric = query->fabric};
    uint8_t answer = is_one ? wfi_exposed_answer(bulk, query, ended, query_registered, &on) : WFI_GONE;
    bulk->answer_due = answer == WFI_NOT_YET;
    if (bulk->answer_due)
        return;
    wfi_writer_init(&writer, bulk->revalidated.bytes, sizeof(bulk->revalidated.bytes));
    wfi_write_u64(&writer, query->number);
    wfi_write_u8(&writer, answer);
    wfi_rma_encode(&writer, &on);
    wfi_write_u32(&writer, conn ? conn->generation : 0);
    wfi_control_message_send(&bulk->revalidated, WFI_CONTROL_REVALIDATED, writer.size);
}

/* Answers one question at a time, the next one when the previous answer has arrived. This limits the time that is spent
 * on searching the exposures. */
void wfi_bulk_answer(wfi_bulk *bulk)
{
    answer_after(bulk, NULL);
}

void wfi_bulk_take_revalidate(wfi_bulk *bulk, wfi_reader *reader)
{
    wfi_query query;
    query.number = wfi_read_u64(reader);
    query.remote = wfi_rma_decode(reader);
    query.size = wfi_read_u64(reader);
    query.access = wfi_read_u8(reader);
    query.fabric = wfi_read_u8(reader);
    if (reader->failed)
        return;
    bulk->query = query;
    wfi_bulk_answer(bulk);
}
