/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - the messages that a peer has not acknowledged: what they weigh, and how they end. */
#include "net/net_internal.h"

size_t wfi_message_size(const wfi_message *message)
{
    size_t size = message->head_size;
    for (int i = 0; i < message->part_count; i++)
        size += message->parts[i].size;
    return size;
}

size_t wfi_message_weight(const wfi_message *message)
{
    return wfi_message_size(message) + message->keeps;
}

bool wfi_peer_has_to_send(const wfi_peer *peer)
{
    return !wfi_list_empty(&peer->urgent) || !wfi_list_empty(&peer->queued) || !wfi_list_empty(&peer->sent);
}

size_t wfi_peer_kept_bytes(const wfi_peer *peer)
{
    return peer->kept_bytes;
}

void wfi_peer_keep(wfi_peer *peer, int64_t bytes)
{
    wfi_assert_held(&peer->net->progress.lock);
    peer->kept_bytes += (size_t)bytes;
}

static void tell_owner(wfi_done *done)
{
    wfi_message *message = wfi_container_of(done, wfi_message, net.ended);
    message->done(message, message->net.status);
}

static void finish_message(wfi_peer *peer, wfi_message *message, weft_status status)
{
    wfi_list_remove(&message->link);
    peer->kept_bytes -= wfi_message_weight(message);
    message->net.status = status;
    message->net.ended.run = tell_owner;
    wfi_progress_end(&peer->net->progress, &message->net.ended, WFI_DONE_MESSAGE);
}

void wfi_peer_acknowledge(wfi_peer *peer, uint64_t position)
{
    peer->acknowledged = position;
    while (!wfi_list_empty(&peer->sent)) {
        wfi_message *message = wfi_container_of(peer->sent.next, wfi_message, link);
        if (message->net.sequence > position)
            break;
        if (peer->resend == &message->link)
            peer->resend = message->link.next;
        finish_message(peer, message, WEFT_OK);
    }
}

static void fail_all(wfi_peer *peer, wfi_list *messages, weft_status why)
{
    while (!wfi_list_empty(messages))
        finish_message(peer, wfi_container_of(messages->next, wfi_message, link), why);
}

void wfi_peer_fail_queued(wfi_peer *peer, weft_status why)
{
    for (wfi_list *link = peer->queued.next, *next; link != &peer->queued; link = next) {
        wfi_message *message = wfi_container_of(link, wfi_message, link);
        next = link->next;
        if (!message->lasts)
            finish_message(peer, message, why);
    }
}

void wfi_peer_fail_messages(wfi_peer *peer, weft_status why)
{
    fail_all(peer, &peer->sent, why);
    fail_all(peer, &peer->urgent, why);
    fail_all(peer, &peer->queued, why);
    peer->resend = &peer->sent;
}
