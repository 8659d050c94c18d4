/* SPDX-License-Identifier: Apache-2.0 */
/*
 * post.c - sending to the store: messages that are kept until the store has acknowledged them, and frames that are
 * encrypted under the connection's key. See link.h.
 */
#include "job/link/link.h"

void wfi_link_send_frame(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size)
{
    uint8_t sealed[WFI_STORE_SMALL_MAX + WFI_SEAL_BYTES];
    wfi_assert_held(&link->lock);
    bool seals = link->wires[which].stage >= WFI_WIRE_PRESENTED;
    if (seals)
        size = wfi_seal_frame(&link->wires[which].seal, frame, size, sealed);
    link->shell->send(link, which, seals ? sealed : frame, size);
}

void wfi_link_send_on(wfi_rendezvous *link, wfi_which which, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = wfi_store_encode(message, frame);
    wfi_mutex_lock(&link->lock);
    wfi_link_send_frame(link, which, frame, size);
    wfi_mutex_unlock(&link->lock);
}

bool wfi_link_post_locked(wfi_rendezvous *link, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_assert_held(&link->lock);
    if (link->state != WFI_LINK_MEMBER || link->outbox_is_full)
        return true;
    size_t size = wfi_store_encode(message, frame);
    bool is_kept = wfi_store_type_is_kept(message->type);
    if (is_kept) {
        /*
         * Interests and suspicions are sent again later, so they do not use the reserve. If any other message is
         * lost, the link cannot continue.
         */
        bool can_wait = message->type == WFI_STORE_NEED || message->type == WFI_STORE_SUSPECT;
        weft_status status = wfi_outbox_keep(&link->outbox, frame, size, !can_wait);
        if (status == WEFT_ERR_MEMORY && can_wait)
            return false;
        link->outbox_is_full = status != WEFT_OK;
    }
    if (!link->outbox_is_full && link->wires[WFI_CURRENT].stage == WFI_WIRE_LIVE)
        wfi_link_send_frame(link, WFI_CURRENT, frame, size);
    if (is_kept)
        link->shell->wake(link); /* so that the message is acknowledged */
    return true;
}

void wfi_link_post(wfi_rendezvous *link, const wfi_store_message *message)
{
    wfi_mutex_lock(&link->lock);
    (void)wfi_link_post_locked(link, message);
    wfi_mutex_unlock(&link->lock);
}

void wfi_link_send_heartbeat(wfi_rendezvous *link)
{
    wfi_store_message heartbeat = {.type = WFI_STORE_HEARTBEAT, .received = link->received};
    link->acked = link->received;
    wfi_link_post(link, &heartbeat);
}
