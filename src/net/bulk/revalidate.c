/* SPDX-License-Identifier: Apache-2.0 */
/*
 * revalidate.c - asks and answers, after a bulk connection broke, whether the peer's memory is still exposed.
 *
 * A connection breaks if the peer withdrew the memory, or if the network was cut; this side cannot tell which. So a
 * transfer that had chunks in flight when the connection broke asks, on the control channel, whether the memory of its
 * next chunk is still exposed.
 *   - If not, the transfer ends with WEFT_ERR_PROTOCOL.
 *   - If it is, only that chunk is transferred. When it is done, the transfer continues normally.
 * So a transfer whose memory is exposed survives any number of broken connections. A transfer that had no chunk in
 * flight does not ask.
 */
#include "net/bulk/bulk.h"

#include "base/codec.h"

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

/* Asks whether the next chunk's memory may still be read or written. */
static void ask_about(wfi_transfer_state *state)
{
    wfi_bulk *bulk = state->bulk;
    wfi_writer writer;
    uint64_t remote, size;
    const wfi_segment *segment = wfi_transfer_state_place(state, state->next, &remote, &size, NULL);
    wfi_writer_init(&writer, bulk->revalidate.bytes, sizeof(bulk->revalidate.bytes));
    wfi_write_u64(&writer, ++bulk->questions);
    wfi_write_u64(&writer, remote);
    wfi_write_u64(&writer, segment->remote_key);
    wfi_write_u64(&writer, size);
    wfi_write_u8(&writer, state->owner->kind == WFI_PULL ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
    assert(!writer.failed);
    bulk->asked = state;
    wfi_control_message_send(&bulk->revalidate, WFI_CONTROL_REVALIDATE, writer.size);
}

/* One question is in flight at a time. */
void wfi_transfers_ask(wfi_bulk *bulk)
{
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        if (bulk->asked || bulk->revalidate.out)
            return;
        if (state->unvalidated && !state->validated && !state->under_way && wfi_transfer_state_has_free(state))
            ask_about(state);
    }
}

void wfi_transfers_invalidate(wfi_bulk *bulk)
{
    WFI_FOR_LIST (wfi_transfer_state, state, &bulk->transfers, link) {
        state->unvalidated = state->unvalidated || state->interrupted;
        state->validated = state->validated && !state->interrupted;
        state->interrupted = false;
    }
    wfi_transfers_ask(bulk);
}

void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader)
{
    uint64_t number = wfi_read_u64(reader);
    bool offered = wfi_read_u8(reader);
    wfi_transfer_state *state = bulk->asked;
    if (reader->failed || number != bulk->questions)
        return;
    bulk->asked = NULL;
    if (state && offered)
        state->validated = true;
    else if (state)
        wfi_transfer_state_end(state, WEFT_ERR_PROTOCOL);
    wfi_transfers_ask(bulk);
    wfi_transfers_pump(bulk);
}

/* ---- Answering ------------------------------------------------------------------------------------------------- */

/* Only after the previous answer has arrived: this limits the searches of the exposures, which take time. */
void wfi_bulk_answer(wfi_bulk *bulk)
{
    const wfi_query *query = &bulk->query;
    wfi_writer writer;
    bulk->answer_due = bulk->revalidated.out;
    if (bulk->answer_due)
        return;
    bool is_one = query->access == WFI_REMOTE_READ || query->access == WFI_REMOTE_WRITE;
    bool offered = is_one && wfi_exposed_covers(bulk, query);
    wfi_writer_init(&writer, bulk->revalidated.bytes, sizeof(bulk->revalidated.bytes));
    wfi_write_u64(&writer, query->number);
    wfi_write_u8(&writer, offered);
    wfi_control_message_send(&bulk->revalidated, WFI_CONTROL_REVALIDATED, writer.size);
}

void wfi_bulk_take_revalidate(wfi_bulk *bulk, wfi_reader *reader)
{
    wfi_query query;
    query.number = wfi_read_u64(reader);
    query.address = wfi_read_u64(reader);
    query.key = wfi_read_u64(reader);
    query.size = wfi_read_u64(reader);
    query.access = wfi_read_u8(reader);
    if (reader->failed)
        return;
    bulk->query = query;
    wfi_bulk_answer(bulk);
}
