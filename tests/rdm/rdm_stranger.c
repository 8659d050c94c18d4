/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_stranger.c - see rdm_stranger.h. */
#include "rdm/rdm_stranger.h"

void stranger_say_bytes(ofi_node *from, const ofi_node *to, const void *bytes, size_t size)
{
    wfrdm *rdm = wfrdm_of(from->fabric);
    wfrdm_peer *peer;
    wfi_mutex_lock(&rdm->lock);
    assert_int_equal(wfrdm_peer_use(rdm, to->address, to->address_size, &peer), WEFT_OK);
    wfrdm_buffer *frame = wfrdm_frame_take(rdm);
    assert_non_null(frame);
    memcpy(frame->bytes, bytes, size);
    wfrdm_transmit(rdm, peer, frame, size);
    wfrdm_peer_leave(rdm, peer);
    wfi_mutex_unlock(&rdm->lock);
}

void stranger_say(ofi_node *from, const ofi_node *to, const wfrdm_head *head, const void *content)
{
    uint8_t bytes[WFRDM_FRAME_MAX];
    wfrdm_head_write(head, bytes);
    if (head->size)
        memcpy(bytes + WFRDM_HEAD_BYTES, content, head->size);
    stranger_say_bytes(from, to, bytes, WFRDM_HEAD_BYTES + (size_t)head->size);
}

void stranger_say_on(wfi_lane *lane, wfrdm_head head, const void *content, void (*change)(wfrdm_head *head))
{
    wfrdm *rdm = lane->rdm;
    wfi_mutex_lock(&rdm->lock);
    wfrdm_buffer *frame = wfrdm_frame_take(rdm);
    assert_non_null(frame);
    head.to = lane->id | lane->is_dialler;
    head.sequence = lane->frames_out++;
    head.consumed = lane->data_consumed;
    if (change)
        change(&head);
    wfrdm_head_write(&head, frame->bytes);
    if (head.size)
        memcpy(frame->bytes + WFRDM_HEAD_BYTES, content, head.size);
    wfrdm_transmit(rdm, lane->peer, frame, WFRDM_HEAD_BYTES + (size_t)head.size);
    wfi_mutex_unlock(&rdm->lock);
}

void stranger_hello(ofi_node *from, const ofi_node *to, uint64_t id, uint64_t instance, const uint8_t *address,
                    size_t address_size)
{
    wfrdm_hello hello = {.instance = instance, .address_size = address_size};
    uint8_t content[sizeof(hello)];
    memcpy(hello.address, address, address_size);
    const wfrdm_head head = {
        .kind = WFRDM_HELLO, .size = (uint16_t)wfrdm_hello_write(&hello, content, sizeof(content)), .to = id | 1};
    stranger_say(from, to, &head, content);
}

uint64_t stranger_instance(const ofi_node *node)
{
    uint64_t instance;
    memcpy(&instance, node->address + 8, sizeof(instance));
    return instance;
}
