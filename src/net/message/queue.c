/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - the messages that a peer has not acknowledged: what they weigh, and how they end. */
#include "net/message/message.h"

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
    const wfi_control *control = wfi_peer_control(peer);
    return !wfi_list_empty(&control->urgent) || !wfi_list_empty(&control->queued) || !wfi_list_empty(&control->sent);
}

size_t wfi_peer_kept_bytes(const wfi_peer *peer)
{
    return wfi_peer_control(peer)->kept_bytes;
}

static void tell_owner(wfi_done *done)
{
    wfi_message *message = wfi_container_of(done, wfi_message, net.ended);
    message->done(message, message->net.status);
}

static void finish_message(wfi_control *control, wfi_message *message, weft_status status)
{
    wfi_list_remove(&message->link);
    control->kept_bytes -= wfi_message_weight(message);
    message->net.status = status;
    message->net.ended.run = tell_owner;
    wfi_progress_end(control->channel.peer->transport->progress, &message->net.ended, WFI_DONE_MESSAGE);
}

void wfi_control_acknowledge(wfi_control *control, uint64_t position)
{
    control->acknowledged = position;
    while (!wfi_list_empty(&control->sent)) {
        wfi_message *message = wfi_container_of(control->sent.next, wfi_message, link);
        if (message->net.sequence > position)
            break;
        if (control->resend == &message->link)
            control->resend = message->link.next;
        finish_message(control, message, WEFT_OK);
    }
}

static void fail_all(wfi_control *control, wfi_list *messages, weft_status why)
{
    while (!wfi_list_empty(messages))
        finish_message(control, wfi_container_of(messages->next, wfi_message, link), why);
}

void wfi_control_fail_queued(wfi_control *control, weft_status why)
{
    for (wfi_list *link = control->queued.next, *next; link != &control->queued; link = next) {
        wfi_message *message = wfi_container_of(link, wfi_message, link);
        next = link->next;
        if (!message->persistent)
            finish_message(control, message, why);
    }
}

void wfi_control_fail_messages(wfi_control *control, weft_status why)
{
    fail_all(control, &control->sent, why);
    fail_all(control, &control->urgent, why);
    fail_all(control, &control->queued, why);
    control->resend = &control->sent;
}
