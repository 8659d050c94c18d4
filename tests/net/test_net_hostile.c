/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_hostile.c - a peer that has the key and sends malformed data: frames of random bytes, frames with a
 * proper head and random messages, damaged ones. They may close its lane; they must not disturb anybody else.
 */
#include "net/net_host.h"
#include "prng.h"

#define FRAMES 3000
#define FRIENDLY 50

static void fill_random(weft_sim *sim, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++)
        out[i] = (uint8_t)wfi_sim_random(sim);
}

/* A head that the receiver will find good, over `size` bytes that make sense or not. */
static void put_head(weft_sim *sim, const wfi_conn *conn, uint8_t *out, size_t size)
{
    wfi_frame head = inside_next_frame(conn, size);
    head.count = (unsigned)(wfi_sim_random(sim) % 6);
    head.first -= wfi_sim_random(sim) % 8 / 7;
    wfi_frame_write(&head, inside_frame_key(conn, false), out);
}

/* `count` messages of random sizes that fill it; the last may run over the end. */
static void put_messages(weft_sim *sim, uint8_t *out, size_t size)
{
    size_t at = WFI_FRAME_HEAD;
    while (at + WFI_MESSAGE_HEAD < size) {
        size_t length = wfi_sim_random(sim) % 300;
        wfi_frame_message(out + at, (uint8_t)(wfi_sim_random(sim) % WFI_NET_MESSAGES_END), length);
        at += WFI_MESSAGE_HEAD + length;
    }
}

static size_t make_frame(weft_sim *sim, const wfi_conn *conn, uint8_t *out)
{
    size_t size = wfi_sim_random(sim) % (WFI_FRAME_BYTES + 1);
    fill_random(sim, out, WFI_FRAME_BYTES);
    unsigned kind = (unsigned)(wfi_sim_random(sim) % 5);
    if (kind == 0)
        return size; /* noise */
    size = size < WFI_FRAME_HEAD ? WFI_FRAME_HEAD : size;
    if (kind > 1)
        put_messages(sim, out, size);
    put_head(sim, conn, out, size);
    if (kind == 3)
        out[wfi_sim_random(sim) % size] ^= (uint8_t)(1 << wfi_sim_random(sim) % 8);
    if (kind == 4)
        size -= wfi_sim_random(sim) % size;
    return size;
}

static void attack(net_host *host)
{
    uint8_t frame[WFI_FRAME_BYTES];
    for (int i = 0; i < FRAMES; i++) {
        wfi_net_lock(host->net);
        /* Or our next hello would not be believed. */
        bool nothing_waits = inside_synchronize(host->net, 0, host->world->hosts[0].net);
        wfi_conn *conn = inside_up(host->net, 0, WFI_CONTROL);
        if (conn)
            (void)inside_put(conn, frame, make_frame(host->world->sim, conn, frame));
        else if (nothing_waits)
            (void)host_send(host, 0, 0, 10, false);
        wfi_net_unlock(host->net);
        host_pause(host, 100000);
    }
}

static void body(net_host *host)
{
    if (host->rank == 1) {
        attack(host);
    } else {
        int other = 2 - host->rank;
        for (uint64_t i = 0; i < FRIENDLY; i++) {
            assert_int_equal(host_send_free(host, other, i, 100), WEFT_OK);
            host_until(host, &host->done_ok, (int)i + 1);
            host_pause(host, 1000000);
        }
        assert_int_equal(host->gone, 0);
    }
    host_meet(host, &host->world->finished);
    if (host->rank == 0) {
        assert_true(host_refused(host) > 100);
        assert_true(inside_suspected_ns(host->net, 1) > 0);     /* the store was asked to look at it, */
        assert_int_equal(inside_suspected_ns(host->net, 2), 0); /* and at nobody else */
    }
}

static void take(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    uint8_t sum = type;
    for (size_t i = 0; i < size; i++)
        sum ^= bytes[i];
    host->user = (void *)(uintptr_t)sum;
    if (wfi_peer_rank(from) != 1)
        host_check_order(host, from, type, bytes, size);
}

NET_TEST(nonsense_of_a_peer_disturbs_nobody, body, 3, 5, false, .on_message = take, .death_timeout_ms = 20000)

/* ---- The decoder alone ----------------------------------------------------------------------------------------- */

static bool walk(const uint8_t *data, size_t size)
{
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *bytes;
    uint8_t type;
    while (wfi_frame_next(data, size, &at, &type, &bytes, &length)) {
        if (bytes < data || length > size || (size_t)(bytes - data) > size - length || at > size)
            return false;
    }
    return at <= size;
}

static void decoding_stays_within_its_bytes(void **state)
{
    static const uint8_t key[crypto_shorthash_KEYBYTES] = {1, 2, 3};
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 30000; i++) {
        size_t size = prng_next(&random) % 600;
        uint8_t *data = malloc(size ? size : 1); /* of its exact size: a checker sees what is read beyond */
        assert_non_null(data);
        for (size_t at = 0; at < size; at++)
            data[at] = (uint8_t)(prng_next(&random) % (i % 2 ? 256 : 3));
        wfi_frame frame = {.count = 3, .first = 1, .size = (uint32_t)size}, read;
        bool is_private = i % 5 == 0, is_frame = size >= WFI_FRAME_HEAD && i % 3;
        if (is_frame)
            wfi_frame_write(&frame, is_private ? NULL : key, data);
        assert_true(wfi_frame_read(data, size, key, &read) == (is_frame && !is_private));
        assert_true(wfi_frame_read(data, size, NULL, &read) == (is_frame && is_private));
        assert_true(size < WFI_FRAME_HEAD || walk(data, size));
        free(data);
    }
}

UNIT_MAIN(nonsense_of_a_peer_disturbs_nobody, decoding_stays_within_its_bytes)
