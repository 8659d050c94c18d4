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

/* The fields of a message, in the order of the body. */
enum {
    STATUS = 1 << 0,
    RANK = 1 << 1,
    INCARNATION = 1 << 2,
    WORLD_SIZE = 1 << 3,
    ELASTIC = 1 << 4,
    ON = 1 << 5,
    COUNTER = 1 << 6,
    NONCE = 1 << 7,
    TIMEOUT = 1 << 8,
    PROOF = 1 << 9,
    TEXT = 1 << 10,
    ADDRESSES = 1 << 11,
    PUBLIC_KEY = 1 << 12,
    TOKEN = 1 << 13,
    RECEIVED = 1 << 14,
    ACKNOWLEDGED = 1 << 15,
    WAVE = 1 << 16,
    REPORT = 1 << 17,

    DEVICES = 1 << 18,

    NOTHING = 1 << 19, /* the type has no fields */
    KEPT = 1 << 20,    /* until it is acknowledged */
};

/* The fields of each type; 0: there is no such type, or its body has another form (the table of members). */
static const uint32_t fields_by_type[] = {
    [WFI_STORE_JOIN] = RANK | WORLD_SIZE | ELASTIC | TIMEOUT | TEXT | ADDRESSES | DEVICES | PUBLIC_KEY | TOKEN,
    [WFI_STORE_REFUSE] = STATUS | TEXT,
    [WFI_STORE_HEARTBEAT] = RECEIVED,
    [WFI_STORE_SPEAK] = NOTHING,
    [WFI_STORE_SUSPECT] = RANK | INCARNATION | TEXT | KEPT,
    [WFI_STORE_DIED] = RANK | INCARNATION | TEXT | KEPT,
    [WFI_STORE_LEFT] = RANK | INCARNATION | KEPT,
    [WFI_STORE_EVICTED] = TEXT,
    [WFI_STORE_CLOSING] = NOTHING | KEPT,
    [WFI_STORE_PROBE] = WAVE | KEPT,
    [WFI_STORE_REPORT] = WAVE | REPORT | KEPT,
    [WFI_STORE_TERMINATED] = NOTHING | KEPT,
    [WFI_STORE_GOODBYE] = NOTHING,
    [WFI_STORE_JOINED] = RANK | INCARNATION | TEXT | ADDRESSES | DEVICES | PUBLIC_KEY | KEPT,
    [WFI_STORE_HELLO] = ON | NONCE,
    [WFI_STORE_CHALLENGE] = COUNTER | NONCE | TIMEOUT | PROOF,
    [WFI_STORE_RESUME] = RANK | INCARNATION | TOKEN | RECEIVED,
    [WFI_STORE_RESUMED] = RECEIVED | ACKNOWLEDGED,
    [WFI_STORE_ACK] = RECEIVED,
    [WFI_STORE_NEED] = RANK | INCARNATION | ON | KEPT,
    [WFI_STORE_BEAT] = ON | KEPT,
    [WFI_STORE_DIAL] = RANK | INCARNATION,
    [WFI_STORE_SYNC] = WAVE | KEPT,
    [WFI_STORE_SYNCED] = WAVE | KEPT,
    [WFI_STORE_LEAVING] = RANK | INCARNATION | KEPT,
    [WFI_STORE_END] = TEXT | KEPT,
    [WFI_STORE_AWAIT] = TEXT,
    [WFI_STORE_SERVING] = WAVE | KEPT,
    [WFI_STORE_ENDING] = RANK | INCARNATION | ON | KEPT,
};

static uint32_t fields_of(wfi_store_type type)
{
    return (size_t)type < sizeof(fields_by_type) / sizeof(*fields_by_type) ? fields_by_type[type] : 0;
}

bool wfi_store_type_is_kept(wfi_store_type type)
{
    return (fields_of(type) & KEPT) != 0;
}

static void write_head(wfi_writer *writer, wfi_store_type type)
{
    wfi_write_bytes(writer, magic, sizeof(magic));
    wfi_write_u8(writer, WFI_STORE_VERSION);
    wfi_write_u8(writer, (uint8_t)type);
    wfi_write_u32(writer, 0); /* the length; filled in later */
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

/* The body: the fields of the message's type, in the order of the enum. */
static void write_body(wfi_writer *writer, const wfi_store_message *message)
{
    uint32_t fields = fields_of(message->type);
    if (fields & STATUS)
        wfi_write_i64(writer, message->status);
    if (fields & RANK)
        wfi_write_u32(writer, (uint32_t)message->rank);
    if (fields & INCARNATION)
        wfi_write_u32(writer, message->incarnation);
    if (fields & WORLD_SIZE)
        wfi_write_u32(writer, (uint32_t)message->world_size);
    if (fields & ELASTIC)
        wfi_write_u8(writer, message->elastic);
    if (fields & ON)
        wfi_write_u8(writer, message->on);
    if (fields & COUNTER)
        wfi_write_u64(writer, message->counter);
    if (fields & NONCE)
        wfi_write_bytes(writer, message->nonce, sizeof(message->nonce));
    if (fields & TIMEOUT)
        wfi_write_i64(writer, message->timeout_ms);
    if (fields & PROOF)
        wfi_write_bytes(writer, message->proof, sizeof(message->proof));
    if (fields & TEXT)
        write_text(writer, message->text);
    if (fields & ADDRESSES) {
        wfi_write_u64(writer, message->machine);
        wfi_write_blob(writer, message->addresses, message->addresses_size);
    }
    if (fields & DEVICES)
        wfi_write_u8(writer, message->cuda_devices);
    if (fields & PUBLIC_KEY)
        wfi_write_bytes(writer, message->public_key, sizeof(message->public_key));
    if (fields & TOKEN)
        wfi_write_bytes(writer, message->token, sizeof(message->token));
    if (fields & RECEIVED)
        wfi_write_u64(writer, message->received);
    if (fields & ACKNOWLEDGED)
        wfi_write_u64(writer, message->acknowledged);
    if (fields & WAVE)
        wfi_write_u64(writer, message->wave);
    if (fields & REPORT) {
        wfi_write_u8(writer, message->report.idle);
        wfi_write_u64(writer, message->report.started);
        wfi_write_u64(writer, message->report.finished);
        wfi_write_u64(writer, message->report.served);
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
        wfi_write_u64(writer, member->machine);
        wfi_write_blob(writer, member->addresses, member->addresses_size);
        wfi_write_u8(writer, member->cuda_devices);
        if (member->incarnation)
            wfi_write_bytes(writer, member->public_key, sizeof(member->public_key));
    }
    write_length(writer);
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
    snprintf(message->text, sizeof(message->text), "%s", member->name);
    memcpy(message->addresses, member->addresses, member->addresses_size);
    message->addresses_size = member->addresses_size;
    message->machine = member->machine;
    message->cuda_devices = member->cuda_devices;
    memcpy(message->public_key, member->public_key, sizeof(message->public_key));
}

void wfi_store_member_of_message(wfi_member *member, const wfi_store_message *message)
{
    *member = (wfi_member){.rank = message->rank, .incarnation = message->incarnation};
    snprintf(member->name, sizeof(member->name), "%.*s", WFI_NAME_MAX - 1, message->text);
    memcpy(member->addresses, message->addresses, message->addresses_size);
    member->addresses_size = message->addresses_size;
    member->machine = message->machine;
    member->cuda_devices = message->cuda_devices;
    memcpy(member->public_key, message->public_key, sizeof(member->public_key));
}

weft_status wfi_store_frame_size(const uint8_t *data, size_t have, size_t limit, size_t *size)
{
    *size = 0;
    if (memcmp(data, magic, have < sizeof(magic) ? have : sizeof(magic)) != 0)
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
    wfi_read_bytes(reader, sizeof(magic));
    uint8_t version = wfi_read_u8(reader);
    *type = (wfi_store_type)wfi_read_u8(reader);
    wfi_read_u32(reader);
    return version == WFI_STORE_VERSION || *type == WFI_STORE_REFUSE ? WEFT_OK : WEFT_ERR_UNSUPPORTED;
}

/* Text from an unauthenticated peer may end up on a terminal: only printable ASCII is kept. */
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

static void read_addresses(wfi_reader *reader, uint8_t *out, size_t *out_size)
{
    size_t size = 0;
    const uint8_t *addresses = wfi_read_blob(reader, WFI_STORE_ADDRESSES_MAX, &size);
    if (addresses && size)
        memcpy(out, addresses, size);
    *out_size = addresses ? size : 0;
}

/* A refusal's status comes from the network: a success there is replaced, or the refusal would look like one. */
static weft_status read_status(wfi_reader *reader)
{
    int64_t status = wfi_read_i64(reader);
    return status < 0 && status >= WEFT_ERR_JOB_ENDED ? (weft_status)status : WEFT_ERR_PROTOCOL;
}

static void read_body(wfi_reader *reader, wfi_store_message *out)
{
    uint32_t fields = fields_of(out->type);
    if (fields & STATUS)
        out->status = read_status(reader);
    if (fields & RANK)
        out->rank = (int32_t)wfi_read_u32(reader);
    if (fields & INCARNATION)
        out->incarnation = wfi_read_u32(reader);
    if (fields & WORLD_SIZE)
        out->world_size = (int32_t)wfi_read_u32(reader);
    if (fields & ELASTIC)
        out->elastic = wfi_read_u8(reader) != 0;
    if (fields & ON)
        out->on = wfi_read_u8(reader) != 0;
    if (fields & COUNTER)
        out->counter = wfi_read_u64(reader);
    if (fields & NONCE)
        read_array(reader, out->nonce, sizeof(out->nonce));
    if (fields & TIMEOUT)
        out->timeout_ms = wfi_read_i64(reader);
    if (fields & PROOF)
        read_array(reader, out->proof, sizeof(out->proof));
    if (fields & TEXT)
        read_text(reader, out->text);
    if (fields & ADDRESSES) {
        out->machine = wfi_read_u64(reader);
        read_addresses(reader, out->addresses, &out->addresses_size);
    }
    if (fields & DEVICES)
        out->cuda_devices = wfi_read_u8(reader);
    if (fields & PUBLIC_KEY)
        read_array(reader, out->public_key, sizeof(out->public_key));
    if (fields & TOKEN)
        read_array(reader, out->token, sizeof(out->token));
    if (fields & RECEIVED)
        out->received = wfi_read_u64(reader);
    if (fields & ACKNOWLEDGED)
        out->acknowledged = wfi_read_u64(reader);
    if (fields & WAVE)
        out->wave = wfi_read_u64(reader);
    if (fields & REPORT) {
        out->report.idle = wfi_read_u8(reader) != 0;
        out->report.started = wfi_read_u64(reader);
        out->report.finished = wfi_read_u64(reader);
        out->report.served = wfi_read_u64(reader);
    }
}

static bool fields_are_sane(const wfi_store_message *message)
{
    if (message->type == WFI_STORE_JOINED)
        return wfi_store_name_is_well_formed(message->text);
    return fields_of(message->type) != 0;
}

weft_status wfi_store_decode(const uint8_t *frame, size_t size, wfi_store_message *out)
{
    wfi_reader reader;
    memset(out, 0, sizeof(*out));
    weft_status status = read_head(&reader, frame, size, &out->type);
    if (status)
        return status;
    read_body(&reader, out);
    return fields_are_sane(out) && !reader.failed && wfi_reader_left(&reader) == 0 ? WEFT_OK : WEFT_ERR_PROTOCOL;
}

static void read_entry(wfi_reader *reader, int rank, wfi_member *out)
{
    out->rank = rank;
    out->incarnation = wfi_read_u32(reader);
    wfi_read_string(reader, out->name, sizeof(out->name));
    out->machine = wfi_read_u64(reader);
    read_addresses(reader, out->addresses, &out->addresses_size);
    out->cuda_devices = wfi_read_u8(reader);
    if (out->incarnation)
        read_array(reader, out->public_key, sizeof(out->public_key));
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
    read_array(&reader, out->token, sizeof(out->token));
    read_array(&reader, out->job_key, sizeof(out->job_key));
    out->death_timeout_ms = wfi_read_i64(&reader);
    uint32_t count = wfi_read_u32(&reader);
    /* Every entry takes at least 12 bytes: a short frame cannot cause a large allocation. */
    bool rank_fits = out->rank >= 0 && (uint32_t)out->rank < count;
    if (reader.failed || count == 0 || !rank_fits || count > wfi_reader_left(&reader) / 12 ||
        count > WFI_STORE_WORKERS_MAX)
        return WEFT_ERR_PROTOCOL;
    out->world_size = (int)count;
    out->members = wfi_calloc(count, sizeof(*out->members));
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
