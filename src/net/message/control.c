/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - what a net says to a peer's net, in messages of its own among those of the layer above.
 *
 *   0xF0 PING      nothing: that it is acknowledged is the answer
 *   0xF1 QUESTION  number u64, address u64, key u64, size u64, access u8: may I still read (1) or write (2) that?
 *   0xF2 ANSWER    number u64, yes u8
 *   0xF3 DIAL      nothing: I cannot open a bulk lane to you, so open one to me
 *
 * Each kind has one note, embedded in the peer, so none of it needs memory and nobody can make us keep more: who asks
 * again before the last answer has arrived gets an answer to the newest question only.
 */
#include "net/net_internal.h"

#include "base/codec.h"

enum { PING = WFI_NET_MESSAGES, QUESTION, ANSWER, DIAL, END };

static_assert(END == WFI_NET_MESSAGES_END, "no other types are let through");

static void send_answer(wfi_peer *peer);

static void note_done(wfi_message *message, weft_status status)
{
    wfi_note *note = wfi_container_of(message, wfi_note, message);
    wfi_peer *peer = note->peer;
    note->out = false;
    if (!status && note == &peer->ping)
        wfi_reach_pinged(peer);
    if (!status && note == &peer->answer && peer->answer_due)
        send_answer(peer);
    else if (!status && note == &peer->question)
        wfi_works_ask(peer);
    wfi_peer_unref(peer);
}

void wfi_notes_init(wfi_peer *peer)
{
    peer->ping.peer = peer->dial.peer = peer->question.peer = peer->answer.peer = peer;
}

static void send_note(wfi_note *note, uint8_t type, size_t size)
{
    note->message =
        (wfi_message){.type = type, .urgent = true, .head = note->bytes, .head_size = size, .done = note_done};
    note->out = true;
    (void)wfi_peer_ref(note->peer); /* until it is done */
    if (!wfi_net_send(note->peer->net, note->peer, &note->message))
        return;
    note->out = false; /* the peer is gone, or we are */
    wfi_peer_unref(note->peer);
}

void wfi_note_ping(wfi_peer *peer)
{
    if (peer->ping.out)
        return;
    peer->pinged_ns = wfi_net_now(peer->net);
    send_note(&peer->ping, PING, 0);
}

void wfi_note_dial(wfi_peer *peer)
{
    if (!peer->dial.out)
        send_note(&peer->dial, DIAL, 0);
}

bool wfi_note_ask(wfi_peer *peer, wfi_transfer_kind kind, uint64_t address, uint64_t key, uint64_t size)
{
    wfi_writer writer;
    if (peer->question.out)
        return false;
    wfi_writer_init(&writer, peer->question.bytes, sizeof(peer->question.bytes));
    wfi_write_u64(&writer, ++peer->questions);
    wfi_write_u64(&writer, address);
    wfi_write_u64(&writer, key);
    wfi_write_u64(&writer, size);
    wfi_write_u8(&writer, kind == WFI_PULL ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
    assert(!writer.failed);
    send_note(&peer->question, QUESTION, writer.size);
    return true;
}

/* Only once the answer before has arrived: looking through what is exposed takes time. */
static bool covers_query(const wfi_peer *peer)
{
    const wfi_query *query = &peer->query;
    bool is_one = query->access == WFI_REMOTE_READ || query->access == WFI_REMOTE_WRITE;
    return is_one && wfi_exposed_covers(peer, query->address, query->key, query->size, query->access);
}

static void send_answer(wfi_peer *peer)
{
    wfi_writer writer;
    peer->answer_due = peer->answer.out;
    if (peer->answer_due)
        return;
    wfi_writer_init(&writer, peer->answer.bytes, sizeof(peer->answer.bytes));
    wfi_write_u64(&writer, peer->query.number);
    wfi_write_u8(&writer, covers_query(peer));
    send_note(&peer->answer, ANSWER, writer.size);
}

static void take_question(wfi_peer *peer, wfi_reader *reader)
{
    wfi_query query;
    query.number = wfi_read_u64(reader);
    query.address = wfi_read_u64(reader);
    query.key = wfi_read_u64(reader);
    query.size = wfi_read_u64(reader);
    query.access = wfi_read_u8(reader);
    if (reader->failed)
        return;
    peer->query = query;
    send_answer(peer);
}

static void take_answer(wfi_peer *peer, wfi_reader *reader)
{
    uint64_t number = wfi_read_u64(reader);
    bool offered = wfi_read_u8(reader);
    if (!reader->failed && number == peer->questions)
        wfi_works_told(peer, offered);
}

void wfi_notes_take(wfi_conn *conn, uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_peer *peer = conn->line->peer;
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, size);
    if (type == QUESTION)
        take_question(peer, &reader);
    else if (type == ANSWER)
        take_answer(peer, &reader);
    else if (type == DIAL)
        wfi_line_wanted(&peer->lines[WFI_BULK]);
    if (reader.failed)
        wfi_peer_nonsense(conn, "a note that is too short");
}
