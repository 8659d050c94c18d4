/* SPDX-License-Identifier: Apache-2.0 */
/* inside.c - see inside.h. Each also checks what its decoder promises of what it accepts. */
#include "fuzz/inside.h"

#include "file/safetensors.h"
#include "job/protocol/protocol.h"
#include "net/net.h"
#include "ofi_rdm/rdm.h"
#include "value/decode.h"

#include <stdlib.h>
#include <string.h>

static void must(int holds)
{
    if (!holds)
        abort();
}

/* The metadata of a call: first byte, where the tail begins. */
static bool run_values(const uint8_t *bytes, size_t size)
{
    wfi_decoded decoded;
    wfi_reader meta, tail;
    wfi_landing *landing;
    size_t count;
    wfi_decode_options options = {.landed_count = 2, .takes_linked = true};
    if (size == 0)
        return false;
    size_t at = 1 + (size_t)bytes[0] * (size - 1) / 255;
    wfi_reader_init(&meta, bytes + 1, at - 1);
    wfi_reader_init(&tail, bytes + at, size - at);
    if (wfi_decode(&decoded, &meta, &tail, &options) != WEFT_OK)
        return false;
    must(decoded.values && weft_values_count(decoded.values) <= WEFT_MAX_VALUES);
    must(decoded.linked_count <= WEFT_MAX_CALL_TENSORS);
    for (size_t i = 1; i < decoded.linked_count; i++)
        must(decoded.linked[i - 1].index < decoded.linked[i].index);
    for (size_t i = 0; decoded.moves && i < decoded.moves->count; i++) {
        const wfi_decoded_move *move = &decoded.moves->items[i];
        must(move->device && move->device < WFI_DEVICE_CODES && (move->host || move->segment < decoded.segment_count));
        must(i == 0 || decoded.moves->items[i - 1].index < move->index);
    }
    if (wfi_decode_landing(&meta, &landing, &count) == WEFT_OK)
        free(landing);
    wfi_decoded_fini(&decoded);
    return true;
}

/* A frame of a control lane, long and large ones too, with a hash that is right, so that what lies behind it is
 * reached. */
static bool run_frame(const uint8_t *bytes, size_t size)
{
    static const uint8_t key[crypto_shorthash_KEYBYTES];
    static uint8_t data[WFI_LARGE_MESSAGE_MAX + WFI_FRAME_OTHER];
    wfi_frame frame;
    if (size < WFI_FRAME_HEAD || size > sizeof(data))
        return false;
    memcpy(data, bytes, size);
    size_t hashed = size > WFI_FRAME_BYTES ? WFI_LONG_HASHED : size;
    crypto_shorthash(data, data + crypto_shorthash_BYTES, hashed - crypto_shorthash_BYTES, key);
    if (!wfi_frame_read(data, size, key, &frame))
        return false;
    size_t at = WFI_FRAME_HEAD, length;
    const uint8_t *message;
    uint8_t type;
    unsigned i = 0;
    for (; i < frame.count && wfi_frame_next(data, size, &at, &type, &message, &length); i++)
        must(message >= data && message + length <= data + size && length <= WFI_LARGE_MESSAGE_MAX);
    return i == frame.count;
}

/* A message between a worker and the store. */
static bool run_store(const uint8_t *bytes, size_t size)
{
    wfi_store_message message;
    wfi_store_world world;
    size_t whole;
    if (wfi_store_frame_size(bytes, size, WFI_STORE_WORLD_MAX, &whole) || whole == 0 || whole > size)
        return false;
    if (wfi_store_frame_type(bytes) == WFI_STORE_WORLD) {
        if (wfi_store_decode_world(bytes, whole, &world))
            return false;
        free(world.members);
        return true;
    }
    if (wfi_store_decode(bytes, whole, &message))
        return false;
    must(memchr(message.text, 0, sizeof(message.text)) && message.addresses_size <= sizeof(message.addresses));
    return true;
}

/* A file of tensors. The sizes in its header are looked at before it is read, as whoever reads a pipe does. */
static bool run_safetensors(const uint8_t *bytes, size_t size)
{
    wfi_safetensors file;
    if (size <= WFI_SAFETENSORS_HEAD)
        return false;
    size_t left = size - WFI_SAFETENSORS_HEAD;
    FILE *stream = fmemopen((void *)(bytes + WFI_SAFETENSORS_HEAD), left, "rb");
    if (!stream)
        return false;
    bool taken = wfi_safetensors_open(&file, stream, "fuzz", bytes, NULL) == WEFT_OK && file.size < left;
    uint64_t at = 0;
    for (size_t i = 0; taken && i < file.count; i++) {
        must(file.entries[i].begin == at && file.entries[i].name && file.entries[i].shape.ndim <= WEFT_MAX_DIMS);
        at += file.entries[i].size;
    }
    must(!taken || at == file.size);
    taken = taken && wfi_safetensors_read(&file, NULL) == WEFT_OK;
    wfi_safetensors_fini(&file);
    fclose(stream);
    return taken;
}

/* A frame of an unconnected endpoint. What is read, and written again, is the same bytes. */
static bool run_rdm(const uint8_t *bytes, size_t size)
{
    wfrdm_head head;
    wfrdm_hello hello;
    wfrdm_range range;
    uint8_t again[WFRDM_HEAD_BYTES + sizeof(hello)];
    if (!wfrdm_head_read(bytes, size, &head))
        return false;
    const uint8_t *content = bytes + WFRDM_HEAD_BYTES;
    wfrdm_head_write(&head, again);
    must(memcmp(again, bytes, WFRDM_HEAD_BYTES) == 0 && size == WFRDM_HEAD_BYTES + (size_t)head.size);
    if (head.kind == WFRDM_HELLO) {
        if (!wfrdm_hello_read(content, head.size, &hello))
            return false;
        must(wfrdm_hello_write(&hello, again, sizeof(again)) == head.size && memcmp(again, content, head.size) == 0);
    } else if (head.kind == WFRDM_READ) {
        if (!wfrdm_range_read(content, head.size, &range))
            return false;
        must(wfrdm_range_write(&range, again, sizeof(again)) == head.size && memcmp(again, content, head.size) == 0);
    }
    return true;
}

const fuzz_target fuzz_targets[] = {
    {"values", run_values},    {"frame", run_frame},
    {"store", run_store},      {"agent", fuzz_agent},
    {"machine", fuzz_machine}, {"safetensors", run_safetensors},
    {"context", fuzz_context}, {"ring", fuzz_ring},
    {"rdm", run_rdm},          {NULL, NULL},
};
