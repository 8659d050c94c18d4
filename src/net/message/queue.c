/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - the messages that a peer has not acknowledged: their bytes, waiting for room, and their ends. */
#include "net/message/message.h"

size_t wfi_message_size(const wfi_message *message)
{
    size_t size = message->head_size;
    for (int i = 0; i < message->part_count; i++)
        size += message->parts[i].size;
    return size;
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

/* ---- Room ------------------------------------------------------------------------------------------------------ */

bool wfi_peer_has_room(const wfi_peer *peer)
{
    return wfi_peer_kept_bytes(peer) < peer->transport->queue_limit_bytes;
}

static void wake_first(wfi_control *control)
{
    wfi_list *first = wfi_list_pop_front(&control->waiters);
    if (first)
        wfi_progress_end(control->channel.peer->transport->progress, wfi_container_of(first, wfi_done, link),
                         WFI_DONE_MESSAGE);
}

static void wake_if_room(wfi_peer *peer)
{
    if (peer->status || wfi_peer_has_room(peer))
        wake_first(wfi_peer_control(peer));
}

void wfi_control_release(wfi_control *control, size_t bytes)
{
    control->kept_bytes -= bytes;
    wake_if_room(control->channel.peer);
}

void wfi_control_use_large(wfi_control *control)
{
    wfi_progress *progress = control->channel.peer->transport->progress;
    control->large_ns = wfi_progress_now(progress);
    if (!control->large_end.heap_index)
        (void)wfi_timer_set(progress, &control->large_end, control->large_ns + WFI_LARGE_KEPT_NS); /* reserved */
}

static size_t large_bytes(const wfi_message *message)
{
    size_t size = wfi_message_size(message);
    return size > WFI_LONG_MESSAGE_MAX ? size : 0;
}

void wfi_control_keep(wfi_control *control, const wfi_message *message)
{
    size_t large = large_bytes(message);
    control->kept_bytes += wfi_message_size(message) + message->keeps;
    control->large_bytes += large;
    if (large)
        wfi_control_use_large(control);
}

void wfi_control_let_go(wfi_control *control, const wfi_message *message)
{
    control->large_bytes -= large_bytes(message);
    wfi_control_release(control, wfi_message_size(message) + message->keeps);
}

void wfi_room_await(wfi_room_waiter *waiter, wfi_peer *peer)
{
    wfi_assert_held(&peer->transport->progress->lock);
    wfi_room_leave(waiter);
    wfi_peer_ref(peer);
    waiter->peer = peer;
    wfi_list_push_back(&wfi_peer_control(peer)->waiters, &waiter->woken.link);
    wake_if_room(peer);
}

void wfi_room_leave(wfi_room_waiter *waiter)
{
    wfi_peer *peer = waiter->peer;
    if (!peer)
        return;
    wfi_list_remove(&waiter->woken.link); /* from the waiters, or from the owners to be called */
    waiter->peer = NULL;
    wake_if_room(peer);
    wfi_peer_unref(peer);
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

static void call_message_owner(wfi_done *done)
{
    wfi_message *message = wfi_container_of(done, wfi_message, net.ended);
    message->done(message, message->net.status);
}

static void finish_message(wfi_control *control, wfi_message *message, weft_status status)
{
    wfi_list_remove(&message->link);
    message->net.status = status;
    message->net.ended.run = call_message_owner;
    wfi_progress_end(control->channel.peer->transport->progress, &message->net.ended, WFI_DONE_MESSAGE);
    wfi_control_let_go(control, message);
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

static void fail_list(wfi_control *control, wfi_list *messages, weft_status why)
{
    while (!wfi_list_empty(messages))
        finish_message(control, wfi_container_of(messages->next, wfi_message, link), why);
}

void wfi_control_fail_queued(wfi_control *control, weft_status why)
{
    WFI_FOR_LIST_TAKING (wfi_message, message, next, &control->queued, link)
        if (!message->persistent)
            finish_message(control, message, why);
}

void wfi_control_fail(wfi_control *control, weft_status why)
{
    wfi_timer_clear(control->channel.peer->transport->progress, &control->ack);
    control->owes_ack = false;
    wfi_timer_clear(control->channel.peer->transport->progress, &control->large_end);
    control->channel.peer->transport->large_peers -= control->has_large;
    control->has_large = false;
    fail_list(control, &control->sent, why);
    fail_list(control, &control->urgent, why);
    fail_list(control, &control->queued, why);
    control->resend = &control->sent;
    while (!wfi_list_empty(&control->waiters))
        wake_first(control);
}
