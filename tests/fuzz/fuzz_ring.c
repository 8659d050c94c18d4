/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ring.c - the rings of the fabric host, to which a hostile process writes: bytes, positions, at any time.
 * Whatever it writes, each receive and send is reported once, what is received fits its buffers, and a lane that is
 * closed stays closed.
 *
 * Input: records of u8 step and its operands.
 *   0  u8 size, bytes: written behind the last ones and published (the rest of 8 bytes is skipped)
 *   1  u32: the tail of the ring to the victim
 *   2  u32: the head of the ring from the victim
 *   3  u8: the victim posts a receive with two buffers, of this many bytes and of 8
 *   4  u8: the victim sends 16 times as many bytes
 *   5  u16 position, u8: one byte of the ring to the victim
 *   6  u64, u32: a head of a message of that size, and u32 bytes behind it, all published
 */
#include "fuzz/inside.h"

#include "host/host.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 64
#define BUFFER_BYTES 256

typedef struct job {
    wfi_fabric_op op;
    uint8_t first[BUFFER_BYTES], second[8];
    size_t room;
    bool is_posted, is_send, is_reported;
} job;

static struct {
    wfi_host host;
    wfi_lane lane;
    wfi_host_segment segment;
    wfi_host_doorbell_page doorbells[2];
    job jobs[STEPS_MAX];
    uint8_t data[256 * 16];
    uint32_t written; /* what the hostile process has published */
    bool has_received;
} s;

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void set_up(void)
{
    memset(&s, 0, sizeof(s));
    s.host.rank = -1;
    s.host.doorbell = (wfi_host_doorbell){.page = &s.doorbells[0], .fd = -1};
    s.lane.host = &s.host;
    s.lane.source.fd = -1;
    s.lane.segment = &s.segment;
    s.lane.peer.doorbell = (wfi_host_doorbell){.page = &s.doorbells[1], .fd = -1};
    s.lane.state = WFI_HOST_CONNECTED;
    wfi_mutex_init(&s.lane.lock);
    wfi_list_init(&s.lane.receives);
    wfi_list_init(&s.lane.sends);
    wfi_list_init(&s.lane.reads);
    wfi_host_rings_init(&s.lane); /* the victim accepted: it produces in ring 1, and takes from ring 0 */
}

static void publish(uint32_t tail)
{
    s.written = tail;
    atomic_store(&s.segment.rings[0].tail, tail);
}

static void write_bytes(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        s.segment.data[0][(s.written + i) % WFI_HOST_RING_BYTES] = ((const uint8_t *)bytes)[i];
    s.written += (uint32_t)size;
}

/* What poll does with a lane whose bit is set. */
static void visit(void)
{
    wfi_mutex_lock(&s.lane.lock);
    bool was_open = s.lane.state == WFI_HOST_CONNECTED;
    if (was_open)
        wfi_host_receive(&s.lane);
    if (s.lane.state == WFI_HOST_CONNECTED)
        wfi_host_push(&s.lane);
    must(was_open || s.lane.state != WFI_HOST_CONNECTED);
    wfi_mutex_unlock(&s.lane.lock);
    for (wfi_host_op *op = atomic_exchange(&s.host.completed, NULL), *next; op; op = next) {
        next = op->next;
        job *one = (job *)(void *)((uint8_t *)op - offsetof(job, op));
        must(one->is_posted && !one->is_reported);
        one->is_reported = true;
        must(one->is_send || op->status != WEFT_OK || op->size <= one->room);
        s.has_received |= !one->is_send && op->status == WEFT_OK;
    }
}

static void post_receive(job *one, size_t size)
{
    wfi_receive_buffer buffers[2] = {{.data = one->first, .size = size}, {.data = one->second, .size = 8}};
    one->room = size + 8;
    one->is_posted = wfi_host_post_recv(&s.lane, &one->op, buffers, 2) == WEFT_OK;
}

static void post_send(job *one, size_t size)
{
    one->is_send = true;
    one->is_posted = wfi_host_send(&s.lane, &one->op, &(wfi_iov){.data = s.data, .size = size}, 1) == WEFT_OK;
}

/* A number of `size` bytes, little-endian. False: the input has ended. */
static bool take(const uint8_t **at, size_t *left, size_t size, uint64_t *out)
{
    *out = 0;
    if (*left < size)
        return false;
    for (size_t i = 0; i < size; i++)
        *out |= (uint64_t)(*at)[i] << (8 * i);
    *at += size;
    *left -= size;
    return true;
}

static bool play(const uint8_t **at, size_t *left, job *one)
{
    uint64_t step, a, b;
    if (!take(at, left, 1, &step))
        return false;
    switch (step % 7) {
    case 0:
        if (!take(at, left, 1, &a) || a > *left)
            return false;
        write_bytes(*at, (size_t)a);
        *at += a;
        *left -= (size_t)a;
        publish((s.written + 7) / 8 * 8);
        break;
    case 1:
        if (!take(at, left, 4, &a))
            return false;
        publish((uint32_t)a);
        break;
    case 2:
        if (!take(at, left, 4, &a))
            return false;
        atomic_store(&s.segment.rings[1].head, (uint32_t)a);
        break;
    case 3:
        if (!take(at, left, 1, &a))
            return false;
        post_receive(one, (size_t)a);
        break;
    case 4:
        if (!take(at, left, 1, &a))
            return false;
        post_send(one, (size_t)a * 16);
        break;
    case 5:
        if (!take(at, left, 2, &a) || !take(at, left, 1, &b))
            return false;
        s.segment.data[0][a % WFI_HOST_RING_BYTES] = (uint8_t)b;
        break;
    default:
        if (!take(at, left, 8, &a) || !take(at, left, 4, &b))
            return false;
        write_bytes(&a, 8);
        publish(s.written + (uint32_t)b);
    }
    visit();
    return true;
}

bool fuzz_ring(const uint8_t *bytes, size_t size)
{
    set_up();
    for (int i = 0; i < STEPS_MAX && play(&bytes, &size, &s.jobs[i]); i++)
        continue;
    bool is_open = s.lane.state == WFI_HOST_CONNECTED;
    wfi_mutex_lock(&s.lane.lock);
    wfi_host_lane_break(&s.lane);
    wfi_mutex_unlock(&s.lane.lock);
    visit();
    for (int i = 0; i < STEPS_MAX; i++)
        must(!s.jobs[i].is_posted || s.jobs[i].is_reported);
    return is_open && s.has_received;
}
