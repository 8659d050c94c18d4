/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_machine.c - the store's state machine under any sequence of connections, frames, losses and ticks. Whatever
 * comes, its outputs are well-formed frames to connections that are open, and time goes on.
 *
 * Input: options u8, then records of what u8 (2 bits) and connection (3 bits); for a frame: size u8 and so many
 * bytes of type and body, which get a right head.
 */
#include "fuzz/inside.h"

#include "job/store/store.h"

#include <stdlib.h>
#include <string.h>

#define LINES 8

static struct machine {
    wfi_store *store;
    uint64_t open[LINES]; /* the connection's number, which is used once; 0: none */
    uint64_t connections, now_ns;
    bool let_in; /* somebody was */
} machine;

static void must(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t *line_of(uint64_t connection)
{
    for (size_t i = 0; i < LINES; i++)
        if (connection && machine.open[i] == connection)
            return &machine.open[i];
    return NULL;
}

static void on_send(void *arg, uint64_t connection, const uint8_t *data, size_t size)
{
    size_t whole;
    must(line_of(connection));
    must(wfi_store_frame_size(data, size, WFI_STORE_WORLD_MAX, &whole) == WEFT_OK && whole == size);
    machine.let_in |= wfi_store_frame_type(data) == WFI_STORE_WORLD;
}

static void on_close(void *arg, uint64_t connection, int64_t keep_ms)
{
    must(line_of(connection));
    *line_of(connection) = 0;
}

/* Tokens that the input can guess. */
static void on_random(void *arg, void *out, size_t size)
{
    memset(out, 0, size);
}

static size_t feed_frame(uint64_t connection, const uint8_t *bytes, size_t left)
{
    uint8_t frame[WFI_STORE_HEAD + 256] = {0};
    size_t size = left > 1 ? bytes[0] : 0;
    if (left < 2)
        return left;
    size = size > left - 1 ? left - 1 : size;
    if (size == 0)
        return 1;
    wfi_store_message beat = {.type = WFI_STORE_HEARTBEAT};
    uint8_t sample[WFI_STORE_SMALL_MAX];
    wfi_store_encode(&beat, sample); /* magic and version as they are today */
    memcpy(frame, sample, 3);
    frame[3] = bytes[1];
    frame[4] = (uint8_t)(size - 1);
    memcpy(frame + WFI_STORE_HEAD, bytes + 2, size - 1);
    wfi_store_received(machine.store, connection, machine.now_ns, frame, WFI_STORE_HEAD + size - 1);
    return 1 + size;
}

static void open_line(uint64_t *open)
{
    if (*open || wfi_store_opened(machine.store, ++machine.connections))
        return;
    *open = machine.connections;
}

static void lose_line(uint64_t *open, wfi_store_loss how)
{
    uint64_t connection = *open;
    *open = 0;
    if (connection)
        wfi_store_closed(machine.store, connection, how, machine.now_ns);
}

static size_t step(const uint8_t *bytes, size_t left)
{
    uint64_t *open = &machine.open[(bytes[0] >> 2) % LINES];
    switch (bytes[0] & 3) {
    case 0:
        open_line(open);
        return 1;
    case 1:
        return *open ? 1 + feed_frame(*open, bytes + 1, left - 1) : 1;
    case 2:
        lose_line(open, (wfi_store_loss)((bytes[0] >> 5) % 3));
        return 1;
    default:
        machine.now_ns += (uint64_t)(bytes[0] >> 2) * 20000000u;
        wfi_store_tick(machine.store, machine.now_ns);
        return 1;
    }
}

bool fuzz_machine(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return false;
    static const uint8_t job_key[WFI_JOB_KEY_BYTES];
    wfi_store_options options = {.world_size = 1 + (bytes[0] & 3),
                                 .elastic = bytes[0] & 4,
                                 .death_timeout_ms = bytes[0] & 8 ? -1 : 2000,
                                 .now_ns = 1,
                                 .job_key = job_key,
                                 .outputs = {.send = on_send, .close = on_close, .random = on_random}};
    machine = (struct machine){.now_ns = 1};
    if (wfi_store_create(&options, &machine.store))
        return false;
    for (size_t at = 1; at < size;)
        at += step(bytes + at, size - at);
    wfi_store_drain(machine.store, machine.now_ns, machine.now_ns + 1);
    wfi_store_tick(machine.store, machine.now_ns + 1);
    must(wfi_store_is_finished(machine.store, machine.now_ns + 1));
    wfi_store_destroy(machine.store);
    return machine.let_in;
}
