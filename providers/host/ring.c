/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - a ring with one producer and one consumer, which are different processes.
 *
 * A message is its head (8 bytes: the size), its bytes, and padding to a multiple of WFI_HOST_ALIGN. A message that is
 * longer than the room is written and taken in parts, so messages may be longer than the ring. Bytes that a producer
 * has written count only when it has published `tail`. So a killed producer leaves nothing that is half written.
 */
#include "host/host.h"

#include <string.h>

#define MASK (WFI_HOST_RING_BYTES - 1)

void wfi_host_rings_init(wfi_lane *lane)
{
    int out = lane->is_dialler ? 0 : 1;
    wfi_host_segment *segment = lane->segment;
    lane->out = (wfi_host_producer){.ring = &segment->rings[out], .data = segment->data[out]};
    lane->in = (wfi_host_consumer){.ring = &segment->rings[!out], .data = segment->data[!out]};
}

static bool is_possible(uint32_t filled)
{
    return filled <= WFI_HOST_RING_BYTES && filled % WFI_HOST_ALIGN == 0;
}

bool wfi_host_ring_room(const wfi_host_producer *producer, uint32_t *room)
{
    uint32_t filled = producer->tail - atomic_load(&producer->ring->head);
    *room = WFI_HOST_RING_BYTES - filled;
    return is_possible(filled);
}

void wfi_host_ring_put(wfi_host_producer *producer, const void *data, uint32_t size)
{
    uint32_t at = producer->tail & MASK, first = WFI_HOST_RING_BYTES - at;
    first = size < first ? size : first;
    if (first)
        memcpy(producer->data + at, data, first);
    if (size > first)
        memcpy(producer->data, (const uint8_t *)data + first, size - first);
    producer->tail += size;
}

void wfi_host_ring_publish(wfi_host_producer *producer)
{
    producer->tail = (producer->tail + WFI_HOST_ALIGN - 1) / WFI_HOST_ALIGN * WFI_HOST_ALIGN;
    atomic_store_explicit(&producer->ring->tail, producer->tail, memory_order_release);
}

void wfi_host_ring_want_room(const wfi_host_producer *producer)
{
    atomic_store(&producer->ring->wants_room, 1);
}

bool wfi_host_ring_filled(const wfi_host_consumer *consumer, uint32_t *filled)
{
    *filled = atomic_load_explicit(&consumer->ring->tail, memory_order_acquire) - consumer->head;
    return is_possible(*filled);
}

/* One read of the shared memory: the peer may change it meanwhile. */
uint64_t wfi_host_ring_head(wfi_host_consumer *consumer)
{
    const _Atomic uint64_t *at = (const _Atomic uint64_t *)(const void *)(consumer->data + (consumer->head & MASK));
    consumer->head += WFI_HOST_ALIGN;
    return atomic_load_explicit(at, memory_order_relaxed);
}

void wfi_host_ring_take(wfi_host_consumer *consumer, void *out, uint32_t size)
{
    uint32_t at = consumer->head & MASK, first = WFI_HOST_RING_BYTES - at;
    first = size < first ? size : first;
    if (first)
        memcpy(out, consumer->data + at, first);
    if (size > first)
        memcpy((uint8_t *)out + first, consumer->data, size - first);
    consumer->head += size;
}

void wfi_host_ring_skip(wfi_host_consumer *consumer, uint32_t size)
{
    consumer->head += size;
}

bool wfi_host_ring_release(wfi_host_consumer *consumer)
{
    atomic_store(&consumer->ring->head, consumer->head);
    return atomic_load(&consumer->ring->wants_room) && atomic_exchange(&consumer->ring->wants_room, 0);
}
