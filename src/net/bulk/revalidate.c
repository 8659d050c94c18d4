/* SPDX-License-Identifier: Apache-2.0 */
/*
 * revalidate.c - whether memory is still on offer, asked and answered after a bulk lane broke.
 *
 * DOUBT. A key that the peer withdrew breaks the lane, and so does a cut cable: from here they look the same. So a transfer
 * that a lane took along asks, on the control lane, whether the peer still offers what its next chunk lies in. If not, it
 * ends with WEFT_ERR_PROTOCOL; if so, that chunk goes, alone, and with it the doubt. However often lanes break, a transfer
 * whose memory is on offer goes on. Those that had nothing under way do not ask.
 */
#include "net/bulk/bulk.h"

#include "base/codec.h"

/* ---- Asking ---------------------------------------------------------------------------------------------------- */

/* Whether `size` bytes there may still be read or written, as `kind` does. False: the question before is still on its way. */
static bool ask(wfi_bulk *bulk, wfi_transfer_kind kind, uint64_t address, uint64_t key, uint64_t size)
{
    wfi_writer writer;
    if (bulk->revalidate.out)
        return false;
    wfi_writer_init(&writer, bulk->revalidate.bytes, sizeof(bulk->revalidate.bytes));
    wfi_write_u64(&writer, ++bulk->questions);
    wfi_write_u64(&writer, address);
    wfi_write_u64(&writer, key);
    wfi_write_u64(&writer, size);
    wfi_write_u8(&writer, kind == WFI_PULL ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
    assert(!writer.failed);
    wfi_control_message_send(&bulk->revalidate, WFI_CONTROL_REVALIDATE, writer.size);
    return true;
}

/* Sends the question; false: one is still on its way. */
static bool ask_about(wfi_transfer_state *work)
{
    wfi_bulk *bulk = work->bulk;
    uint64_t remote, size;
    const wfi_segment *segment = wfi_transfer_state_place(work, work->next, &remote, &size, NULL);
    if (!ask(bulk, work->owner->kind, remote, segment->remote_key, size))
        return false;
    bulk->asked = work;
    return true;
}

void wfi_transfers_ask(wfi_bulk *bulk)
{
    for (wfi_list *node = bulk->transfers.next; node != &bulk->transfers && !bulk->asked; node = node->next) {
        wfi_transfer_state *work = wfi_transfer_state_at(node);
        if (work->unvalidated && !work->validated && !work->under_way && wfi_transfer_state_has_free(work) &&
            !ask_about(work))
            return;
    }
}

static void told(wfi_bulk *bulk, bool offered)
{
    wfi_transfer_state *work = bulk->asked;
    bulk->asked = NULL;
    if (work && offered)
        work->validated = true;
    else if (work)
        wfi_transfer_state_end(work, WEFT_ERR_PROTOCOL);
    wfi_transfers_ask(bulk);
    wfi_transfers_pump(bulk);
}

void wfi_transfers_invalidate(wfi_bulk *bulk)
{
    for (wfi_list *node = bulk->transfers.next; node != &bulk->transfers; node = node->next) {
        wfi_transfer_state *work = wfi_transfer_state_at(node);
        work->unvalidated = work->unvalidated || work->interrupted;
        work->validated = work->validated && !work->interrupted;
        work->interrupted = false;
    }
    wfi_transfers_ask(bulk);
}

void wfi_bulk_take_revalidated(wfi_bulk *bulk, wfi_reader *reader)
{
    uint64_t number = wfi_read_u64(reader);
    bool offered = wfi_read_u8(reader);
    if (!reader->failed && number == bulk->questions)
        told(bulk, offered);
}

/* ---- Answering ------------------------------------------------------------------------------------------------- */

/* Only once the answer before has arrived: looking through what is exposed takes time. */
static bool covers_query(const wfi_bulk *bulk)
{
    const wfi_query *query = &bulk->query;
    bool is_one = query->access == WFI_REMOTE_READ || query->access == WFI_REMOTE_WRITE;
    return is_one && wfi_exposed_covers(bulk, query->address, query->key, query->size, query->access);
}

void wfi_bulk_answer(wfi_bulk *bulk)
{
    wfi_writer writer;
    bulk->answer_due = bulk->revalidated.out;
    if (bulk->answer_due)
        return;
    wfi_writer_init(&writer, bulk->revalidated.bytes, sizeof(bulk->revalidated.bytes));
    wfi_write_u64(&writer, bulk->query.number);
    wfi_write_u8(&writer, covers_query(bulk));
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
