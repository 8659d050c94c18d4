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

static void note_done(wfi_message *message, weft_status status)
{
    wfi_note *note = wfi_container_of(message, wfi_note, message);
    wfi_peer *peer = note->peer;
    note->out = false;
    if (!status && note == &peer->ping)
        wfi_reach_pinged(peer);
    if (!status && note == &peer->answer && peer->answer_due)
        wfi_note_answer(peer);
    else if (!status && note == &peer->question)
        wfi_works_ask(peer);
    wfi_peer_unref(peer);
}

void wfi_notes_init(wfi_peer *peer)
{
    peer->ping.peer = peer->dial.peer = peer->question.peer = peer->answer.peer = peer;
}

void wfi_note_send(wfi_note *note, uint8_t type, size_t size)
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

void wfi_note_dial(wfi_peer *peer)
{
    if (!peer->dial.out)
        wfi_note_send(&peer->dial, WFI_NOTE_DIAL, 0);
}

void wfi_notes_take(wfi_conn *conn, uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_peer *peer = conn->line->peer;
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, size);
    if (type == WFI_NOTE_QUESTION)
        wfi_works_question(peer, &reader);
    else if (type == WFI_NOTE_ANSWER)
        wfi_works_answer(peer, &reader);
    else if (type == WFI_NOTE_DIAL)
        wfi_line_wanted(&peer->lines[WFI_BULK]);
    if (reader.failed)
        wfi_peer_nonsense(conn, "a note that is too short");
}
