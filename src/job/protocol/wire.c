/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - encodes the messages of protocol.h, and decodes them; every length from the wire is checked before it is
 * used.
 */
#include "job/protocol/protocol.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t magic[2] = {0x57, 0x53};

static void write_head(wfi_writer *writer, wfi_store_type type)
{
    wfi_write_bytes(writer, magic, sizeof magic);
    wfi_write_u8(writer, WFI_STORE_VERSION);
    wfi_write_u8(writer, (uint8_t)type);
    wfi_write_u32(writer, 0); /* the length, once it is known */
}

static void write_length(wfi_writer *writer)
{
    if (writer->failed)
        return;
    size_t length = writer->size - WFI_STORE_HEAD;
    for (size_t i = 0; i < 4; i++)
        writer->data[4 + i] = (uint8_t)(length >> (8 * i));
}

static void write_text(wfi_writer *writer, const char *text)
{
    wfi_write_blob(writer, text, strnlen(text, WFI_STORE_TEXT_MAX - 1));
}

static void write_member(wfi_writer *writer, const wfi_store_message *message)
{
    wfi_write_u32(writer, (uint32_t)message->rank);
    wfi_write_u32(writer, message->incarnation);
}

static void write_join(wfi_writer *writer, const wfi_store_message *message)
{
    wfi_write_u32(writer, (uint32_t)message->rank);
    wfi_write_u32(writer, (uint32_t)message->world_size);
    wfi_write_u8(writer, message->elastic);
    wfi_write_i64(writer, message->timeout_ms);
    write_text(writer, message->text);
    wfi_write_blob(writer, message->address, message->address_size);
    wfi_write_bytes(writer, message->public_key, sizeof message->public_key);
    wfi_write_bytes(writer, message->token, sizeof message->token);
}

static void write_report(wfi_writer *writer, const wfi_store_message *message)
{
    wfi_write_u64(writer, message->wave);
    wfi_write_u8(writer, message->report.idle);
    wfi_write_u64(writer, message->report.started);
    wfi_write_u64(writer, message->report.finished);
    wfi_write_u64(writer, message->report.served);
}

/* Of the messages that make, keep and resume a connection. */
static void write_link_body(wfi_writer *writer, const wfi_store_message *message)
{
    switch (message->type) {
    case WFI_STORE_HELLO:
        wfi_write_u8(writer, message->on);
        wfi_write_bytes(writer, message->nonce, sizeof message->nonce);
        break;
    case WFI_STORE_CHALLENGE:
        wfi_write_u64(writer, message->counter);
        wfi_write_bytes(writer, message->nonce, sizeof message->nonce);
        wfi_write_i64(writer, message->timeout_ms);
        wfi_write_bytes(writer, message->proof, sizeof message->proof);
        break;
    case WFI_STORE_RESUME:
        write_member(writer, message);
        wfi_write_bytes(writer, message->token, sizeof message->token);
        wfi_write_u64(writer, message->received);
        break;
    case WFI_STORE_RESUMED:
        wfi_write_u64(writer, message->received);
        wfi_write_u64(writer, message->acknowledged);
        break;
    case WFI_STORE_HEARTBEAT:
    case WFI_STORE_ACK:
        wfi_write_u64(writer, message->received);
        break;
    case WFI_STORE_NEED:
        write_member(writer, message);
        wfi_write_u8(writer, message->on);
        break;
    case WFI_STORE_BEAT:
        wfi_write_u8(writer, message->on);
        break;
    default: /* the type says it all */
        break;
    }
}

static void write_body(wfi_writer *writer, const wfi_store_message *message)
{
    switch (message->type) {
    case WFI_STORE_JOIN:
        write_join(writer, message);
        break;
    case WFI_STORE_JOINED:
        write_member(writer, message);
        write_text(writer, message->text);
        wfi_write_blob(writer, message->address, message->address_size);
        wfi_write_bytes(writer, message->public_key, sizeof message->public_key);
        break;
    case WFI_STORE_REFUSE:
        wfi_write_i64(writer, message->status);
        write_text(writer, message->text);
        break;
    case WFI_STORE_SUSPECT:
    case WFI_STORE_DIED:
        write_member(writer, message);
        write_text(writer, message->text);
        break;
    case WFI_STORE_LEFT:
    case WFI_STORE_DIAL:
        write_member(writer, message);
        break;
    case WFI_STORE_EVICTED:
        write_text(writer, message->text);
        break;
    case WFI_STORE_PROBE:
        wfi_write_u64(writer, message->wave);
        break;
    case WFI_STORE_REPORT:
        write_report(writer, message);
        break;
    default:
        write_link_body(writer, message);
        break;
    }
}

size_t wfi_store_encode(const wfi_store_message *message, uint8_t *out)
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, WFI_STORE_SMALL_MAX);
    write_head(&writer, message->type);
    write_body(&writer, message);
    write_length(&writer);
    return writer.size;
}

void wfi_store_encode_world(wfi_writer *writer, const wfi_store_world *world)
{
    write_head(writer, WFI_STORE_WORLD);
    wfi_write_u32(writer, (uint32_t)world->rank);
    wfi_write_bytes(writer, world->token, WFI_STORE_TOKEN_BYTES);
    wfi_write_bytes(writer, world->job_key, WFI_JOB_KEY_BYTES);
    wfi_write_i64(writer, world->death_timeout_ms);
    wfi_write_u32(writer, (uint32_t)world->world_size);
    for (int rank = 0; rank < world->world_size; rank++) {
        const wfi_member *member = &world->members[rank];
        wfi_write_u32(writer, member->incarnation);
        wfi_write_string(writer, member->name);
        wfi_write_blob(writer, member->address, member->address_size);
        if (member->incarnation)
            wfi_write_bytes(writer, member->public_key, sizeof member->public_key);
    }
    write_length(writer);
}

bool wfi_store_type_is_kept(wfi_store_type type)
{
    switch (type) {
    case WFI_STORE_SUSPECT:
    case WFI_STORE_DIED:
    case WFI_STORE_LEFT:
    case WFI_STORE_CLOSING:
    case WFI_STORE_PROBE:
    case WFI_STORE_REPORT:
    case WFI_STORE_TERMINATED:
    case WFI_STORE_JOINED:
    case WFI_STORE_NEED:
    case WFI_STORE_BEAT:
        return true;
    default:
        return false;
    }
}

void wfi_store_world_address(uint8_t *frame, int rank, const uint8_t token[WFI_STORE_TOKEN_BYTES],
                             const uint8_t job_key[WFI_JOB_KEY_BYTES])
{
    memcpy(frame + WFI_STORE_HEAD + 4, token, WFI_STORE_TOKEN_BYTES);
    memcpy(frame + WFI_STORE_HEAD + 4 + WFI_STORE_TOKEN_BYTES, job_key, WFI_JOB_KEY_BYTES);
    for (size_t i = 0; i < 4; i++)
        frame[WFI_STORE_HEAD + i] = (uint8_t)((uint32_t)rank >> (8 * i));
}

void wfi_store_message_of_member(wfi_store_message *message, const wfi_member *member)
{
    message->rank = member->rank;
    message->incarnation = member->incarnation;
    snprintf(message->text, sizeof message->text, "%s", member->name);
    memcpy(message->address, member->address, member->address_size);
    message->address_size = member->address_size;
    memcpy(message->public_key, member->public_key, sizeof message->public_key);
}

void wfi_store_member_of_message(wfi_member *member, const wfi_store_message *message)
{
    *member = (wfi_member){.rank = message->rank, .incarnation = message->incarnation};
    snprintf(member->name, sizeof member->name, "%.*s", WFI_NAME_MAX - 1, message->text);
    memcpy(member->address, message->address, message->address_size);
    member->address_size = message->address_size;
    memcpy(member->public_key, message->public_key, sizeof member->public_key);
}

weft_status wfi_store_frame_size(const uint8_t *data, size_t have, size_t limit, size_t *size)
{
    *size = 0;
    if (memcmp(data, magic, have < sizeof magic ? have : sizeof magic) != 0)
        return WEFT_ERR_PROTOCOL;
    if (have < WFI_STORE_HEAD)
        return WEFT_OK;
    wfi_reader reader;
    wfi_reader_init(&reader, data + 4, 4);
    size_t whole = (size_t)wfi_read_u32(&reader) + WFI_STORE_HEAD;
    if (whole > limit)
        return WEFT_ERR_PROTOCOL;
    *size = whole;
    return WEFT_OK;
}

uint8_t wfi_store_frame_type(const uint8_t *frame)
{
    return frame[3];
}

/* Checks the head of a whole frame and leaves the reader at the body. */
static weft_status read_head(wfi_reader *reader, const uint8_t *frame, size_t size, wfi_store_type *type)
{
    size_t whole;
    weft_status status = wfi_store_frame_size(frame, size, WFI_STORE_WORLD_MAX, &whole);
    if (status || whole != size || size < WFI_STORE_HEAD)
        return WEFT_ERR_PROTOCOL;
    wfi_reader_init(reader, frame, size);
    wfi_read_bytes(reader, sizeof magic);
    uint8_t version = wfi_read_u8(reader);
    *type = (wfi_store_type)wfi_read_u8(reader);
    wfi_read_u32(reader);
    return version == WFI_STORE_VERSION || *type == WFI_STORE_REFUSE ? WEFT_OK : WEFT_ERR_UNSUPPORTED;
}

/* What an unauthenticated peer writes may end up on a terminal: nothing but printable ASCII is let through. */
static void read_text(wfi_reader *reader, char *out)
{
    size_t size = 0;
    const uint8_t *text = wfi_read_blob(reader, WFI_STORE_TEXT_MAX - 1, &size);
    if (!text)
        size = 0;
    for (size_t i = 0; i < size; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7f ? (char)text[i] : '?';
    out[size] = 0;
}

static void read_array(wfi_reader *reader, uint8_t *out, size_t size)
{
    const uint8_t *bytes = wfi_read_bytes(reader, size);
    if (bytes)
        memcpy(out, bytes, size);
}

static void read_address(wfi_reader *reader, uint8_t *out, size_t *out_size)
{
    size_t size = 0;
    const uint8_t *address = wfi_read_blob(reader, WFI_STORE_ADDRESS_MAX, &size);
    if (address && size)
        memcpy(out, address, size);
    *out_size = address ? size : 0;
}

static void read_join(wfi_reader *reader, wfi_store_message *out)
{
    out->rank = (int32_t)wfi_read_u32(reader);
    out->world_size = (int32_t)wfi_read_u32(reader);
    out->elastic = wfi_read_u8(reader) != 0;
    out->timeout_ms = wfi_read_i64(reader);
    read_text(reader, out->text);
    read_address(reader, out->address, &out->address_size);
    read_array(reader, out->public_key, sizeof out->public_key);
    read_array(reader, out->token, sizeof out->token);
}

static void read_member(wfi_reader *reader, wfi_store_message *out)
{
    out->rank = (int32_t)wfi_read_u32(reader);
    out->incarnation = wfi_read_u32(reader);
}

static void read_report(wfi_reader *reader, wfi_store_message *out)
{
    out->wave = wfi_read_u64(reader);
    out->report.idle = wfi_read_u8(reader) != 0;
    out->report.started = wfi_read_u64(reader);
    out->report.finished = wfi_read_u64(reader);
    out->report.served = wfi_read_u64(reader);
}

/* A refusal's status comes from the wire: one that is no failure would be taken for success. */
static void read_refusal(wfi_reader *reader, wfi_store_message *out)
{
    int64_t status = wfi_read_i64(reader);
    out->status = status < 0 && status >= WEFT_ERR_SYSTEM ? (weft_status)status : WEFT_ERR_PROTOCOL;
    read_text(reader, out->text);
}

static bool read_link_body(wfi_reader *reader, wfi_store_message *out)
{
    switch (out->type) {
    case WFI_STORE_HELLO:
        out->on = wfi_read_u8(reader) != 0;
        read_array(reader, out->nonce, sizeof out->nonce);
        return true;
    case WFI_STORE_CHALLENGE:
        out->counter = wfi_read_u64(reader);
        read_array(reader, out->nonce, sizeof out->nonce);
        out->timeout_ms = wfi_read_i64(reader);
        read_array(reader, out->proof, sizeof out->proof);
        return out->timeout_ms <= INT64_MAX / 1000000;
    case WFI_STORE_RESUME:
        read_member(reader, out);
        read_array(reader, out->token, sizeof out->token);
        out->received = wfi_read_u64(reader);
        return true;
    case WFI_STORE_RESUMED:
        out->received = wfi_read_u64(reader);
        out->acknowledged = wfi_read_u64(reader);
        return true;
    case WFI_STORE_HEARTBEAT:
    case WFI_STORE_ACK:
        out->received = wfi_read_u64(reader);
        return true;
    case WFI_STORE_NEED:
        read_member(reader, out);
        out->on = wfi_read_u8(reader) != 0;
        return true;
    case WFI_STORE_BEAT:
        out->on = wfi_read_u8(reader) != 0;
        return true;
    default:
        return false;
    }
}

static bool read_body(wfi_reader *reader, wfi_store_message *out)
{
    switch (out->type) {
    case WFI_STORE_JOIN:
        read_join(reader, out);
        return true;
    case WFI_STORE_JOINED:
        read_member(reader, out);
        read_text(reader, out->text);
        read_address(reader, out->address, &out->address_size);
        read_array(reader, out->public_key, sizeof out->public_key);
        return wfi_store_name_is_well_formed(out->text);
    case WFI_STORE_REFUSE:
        read_refusal(reader, out);
        return true;
    case WFI_STORE_SUSPECT:
    case WFI_STORE_DIED:
        read_member(reader, out);
        read_text(reader, out->text);
        return true;
    case WFI_STORE_LEFT:
    case WFI_STORE_DIAL:
        read_member(reader, out);
        return true;
    case WFI_STORE_EVICTED:
        read_text(reader, out->text);
        return true;
    case WFI_STORE_PROBE:
        out->wave = wfi_read_u64(reader);
        return true;
    case WFI_STORE_REPORT:
        read_report(reader, out);
        return true;
    case WFI_STORE_SPEAK:
    case WFI_STORE_CLOSING:
    case WFI_STORE_TERMINATED:
    case WFI_STORE_GOODBYE:
        return true;
    default:
        return read_link_body(reader, out);
    }
}

weft_status wfi_store_decode(const uint8_t *frame, size_t size, wfi_store_message *out)
{
    wfi_reader reader;
    memset(out, 0, sizeof *out);
    weft_status status = read_head(&reader, frame, size, &out->type);
    if (status)
        return status;
    bool known = read_body(&reader, out);
    return known && !reader.failed && wfi_reader_left(&reader) == 0 ? WEFT_OK : WEFT_ERR_PROTOCOL;
}

static void read_entry(wfi_reader *reader, int rank, wfi_member *out)
{
    out->rank = rank;
    out->incarnation = wfi_read_u32(reader);
    wfi_read_string(reader, out->name, sizeof out->name);
    read_address(reader, out->address, &out->address_size);
    if (out->incarnation)
        read_array(reader, out->public_key, sizeof out->public_key);
}

weft_status wfi_store_decode_world(const uint8_t *frame, size_t size, wfi_store_world *out)
{
    wfi_reader reader;
    wfi_store_type type;
    weft_status status = read_head(&reader, frame, size, &type);
    if (status)
        return status;
    if (type != WFI_STORE_WORLD)
        return WEFT_ERR_PROTOCOL;
    *out = (wfi_store_world){.rank = (int)wfi_read_u32(&reader)};
    read_array(&reader, out->token, sizeof out->token);
    read_array(&reader, out->job_key, sizeof out->job_key);
    out->death_timeout_ms = wfi_read_i64(&reader);
    uint32_t count = wfi_read_u32(&reader);
    /* Every entry takes 12 bytes at least: a short frame cannot make us allocate a large table. */
    bool rank_fits = out->rank >= 0 && (uint32_t)out->rank < count;
    if (reader.failed || count == 0 || !rank_fits || count > wfi_reader_left(&reader) / 12 ||
        count > WFI_STORE_WORKERS_MAX)
        return WEFT_ERR_PROTOCOL;
    out->world_size = (int)count;
    out->members = wfi_calloc(count, sizeof *out->members);
    if (!out->members)
        return WEFT_ERR_MEMORY;
    for (int rank = 0; rank < out->world_size; rank++)
        read_entry(&reader, rank, &out->members[rank]);
    if (!reader.failed && wfi_reader_left(&reader) == 0)
        return WEFT_OK;
    free(out->members);
    out->members = NULL;
    return WEFT_ERR_PROTOCOL;
}

bool wfi_store_name_is_well_formed(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:";
    size_t size = strnlen(name, WFI_NAME_MAX);
    return size > 0 && size < WFI_NAME_MAX && strspn(name, allowed) == size;
}
