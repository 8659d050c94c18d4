/* SPDX-License-Identifier: Apache-2.0 */
/* intake.c - a body that arrives, until it is whole; see intake.h. */
#include "rpc/intake.h"

#include "rpc/rref.h"

#include <stdlib.h>
#include <string.h>

static void unpack_now(wfi_intake *intake);

static void become_ready(wfi_intake *intake, weft_status status)
{
    wfi_assert_held(wfi_net_mutex(intake->agent->net));
    intake->state = WFI_INTAKE_READY;
    for (size_t i = 0; i < intake->unpack.rref_count; i++)
        wfi_rref_forget_waiter(intake->unpack.rrefs[i].slot->as.rref);
    intake->ready(intake, status);
}

static void fail(wfi_intake *intake, weft_status status, const char *problem)
{
    if (!intake->problem[0])
        snprintf(intake->problem, sizeof intake->problem, "%s", problem);
    become_ready(intake, status);
}

/* ---- Last step: references --------------------------------------------------------------------------------------- */

void wfi_intake_confirmed(wfi_intake *intake, weft_status status)
{
    if (intake->state != WFI_INTAKE_CONFIRMING)
        return;
    if (status)
        fail(intake, status,
             status == WEFT_ERR_NOT_FOUND ? "a reference in it names no value of ours"
                                          : "the owner of a reference in it cannot be reached");
    else if (--intake->unconfirmed == 0)
        become_ready(intake, WEFT_OK);
}

static void import_references(wfi_intake *intake)
{
    intake->state = WFI_INTAKE_CONFIRMING;
    intake->unconfirmed = 1; /* ours, so that confirmations at once do not end it half-way */
    for (size_t i = 0; i < intake->unpack.rref_count && intake->state == WFI_INTAKE_CONFIRMING; i++) {
        wfi_unpacked_rref *item = &intake->unpack.rrefs[i];
        intake->unconfirmed++;
        weft_status st = wfi_rref_import(intake->agent, &item->name, intake, &item->slot->as.rref);
        if (st)
            wfi_intake_confirmed(intake, st);
    }
    wfi_intake_confirmed(intake, WEFT_OK);
}

/* ---- Payload ----------------------------------------------------------------------------------------------------- */

static void payload_pulled(wfi_transfer *transfer, weft_status status)
{
    wfi_intake *intake = wfi_container_of(transfer, wfi_intake, transfer);
    for (size_t i = 0; i < transfer->segment_count; i++)
        wfi_storage_wrote(transfer->segments[i].storage);
    if (intake->cancelled || status)
        fail(intake, intake->cancelled ? WEFT_ERR_CANCELLED : status, "its payload could not be pulled");
    else
        import_references(intake);
}

static void pull_payload(wfi_intake *intake)
{
    intake->values = intake->unpack.values;
    intake->unpack.values = NULL;
    intake->landed_bytes = intake->unpack.landed_bytes;
    intake->agent->stats.bytes_copied += intake->unpack.copied_bytes;
    if (intake->unpack.segment_count == 0) {
        import_references(intake);
        return;
    }
    intake->state = WFI_INTAKE_PULLING;
    intake->transfer = (wfi_transfer){.kind = WFI_PULL,
                                      .segments = intake->unpack.segments,
                                      .segment_count = intake->unpack.segment_count,
                                      .done = payload_pulled};
    weft_status st = wfi_net_transfer(intake->agent->net, intake->peer, &intake->transfer);
    if (st)
        fail(intake, st, "its payload could not be pulled");
}

/* ---- Room ------------------------------------------------------------------------------------------------------------ */

static weft_status admit(wfi_intake *intake, uint64_t bytes)
{
    return intake->admit ? intake->admit(intake, bytes) : WEFT_OK;
}

/* Room for all that `meta` speaks of. Where the user chooses places it is not known yet: admit_slab comes later. */
static weft_status admit_values(wfi_intake *intake, const uint8_t *meta, size_t size)
{
    uint64_t bytes;
    if (!intake->admit || intake->user_places)
        return WEFT_OK;
    weft_status st = wfi_unpack_measure(meta, size, &bytes);
    return st ? st : admit(intake, bytes);
}

/* Not locked. */
static weft_status admit_slab(void *arg, uint64_t bytes, char *problem, size_t room)
{
    wfi_intake *intake = arg;
    wfi_net_lock(intake->agent->net);
    weft_status st = admit(intake, bytes);
    snprintf(problem, room, "%s", intake->problem);
    wfi_net_unlock(intake->agent->net);
    return st;
}

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

static void decode(wfi_intake *intake, const uint8_t *meta, size_t meta_size, const uint8_t *tail, size_t tail_size)
{
    wfi_reader meta_reader, tail_reader;
    wfi_reader_init(&meta_reader, meta, meta_size);
    wfi_reader_init(&tail_reader, tail, tail_size);
    intake->unpacked = wfi_unpack_values(&intake->unpack, &meta_reader, &tail_reader, &intake->options);
    if (!intake->unpacked)
        intake->unpacked = wfi_unpack_landing(&meta_reader, &intake->landing, &intake->landing_count);
}

static void after_decoding(wfi_intake *intake)
{
    wfi_storage_unref(intake->meta); /* the values have copies, and a deferred call may keep us for long */
    intake->meta = NULL;
    if (intake->cancelled)
        fail(intake, WEFT_ERR_CANCELLED, "it was cancelled");
    else if (intake->unpacked)
        fail(intake, intake->unpacked, intake->unpack.problem[0] ? intake->unpack.problem : "malformed landing places");
    else
        pull_payload(intake);
}

static void decode_task(wfi_task *task)
{
    wfi_intake *intake = wfi_container_of(task, wfi_intake, task);
    wfi_net *net = intake->agent->net;
    const uint8_t *bytes = wfi_storage_data(intake->meta);
    decode(intake, bytes, intake->meta_size, bytes + intake->tail_at, intake->tail_size);
    wfi_net_lock(net);
    after_decoding(intake);
    wfi_net_unlock(net);
}

/* Decodes what lies in intake->meta: here, or outside the lock where the user chooses the places. */
static void unpack_now(wfi_intake *intake)
{
    const uint8_t *bytes = wfi_storage_data(intake->meta);
    if (intake->user_places) {
        if (intake->admit) {
            intake->options.admit = admit_slab;
            intake->options.admit_arg = intake;
        }
        intake->state = WFI_INTAKE_PLACING;
        intake->task.run = decode_task;
        wfi_net_defer(intake->agent->net, &intake->task, WFI_DEFER_INLINE);
        return;
    }
    weft_status st = admit_values(intake, bytes, intake->meta_size);
    if (st) {
        fail(intake, st, "malformed metadata");
        return;
    }
    decode(intake, bytes, intake->meta_size, bytes + intake->tail_at, intake->tail_size);
    after_decoding(intake);
}

static void meta_pulled(wfi_transfer *transfer, weft_status status)
{
    wfi_intake *intake = wfi_container_of(transfer, wfi_intake, transfer);
    if (intake->cancelled || status)
        fail(intake, intake->cancelled ? WEFT_ERR_CANCELLED : status, "its metadata could not be pulled");
    else
        unpack_now(intake);
}

/* Metadata outgrew the frame: pull it into a buffer that has the tail of the frame behind it. */
static void pull_meta(wfi_intake *intake, wfi_reader *body)
{
    uint64_t address = wfi_read_u64(body), key = wfi_read_u64(body), size = wfi_read_u64(body);
    if (body->failed || size > WFI_META_MAX) {
        fail(intake, WEFT_ERR_PROTOCOL, "malformed or oversized metadata");
        return;
    }
    intake->meta_size = size;
    intake->tail_at = size;
    intake->tail_size = wfi_reader_left(body);
    weft_status st = admit(intake, size + intake->tail_size);
    if (!st)
        st = wfi_storage_create(WFI_MEMORY_HOST, 0, size + intake->tail_size, &intake->meta);
    if (st) {
        fail(intake, st, "no memory for its metadata");
        return;
    }
    uint8_t *bytes = wfi_storage_data(intake->meta);
    if (intake->tail_size)
        memcpy(bytes + size, wfi_read_bytes(body, intake->tail_size), intake->tail_size);
    intake->state = WFI_INTAKE_PULLING;
    intake->meta_segment = (wfi_segment){
        .local = bytes, .storage = intake->meta, .size = size, .remote_address = address, .remote_key = key};
    intake->transfer =
        (wfi_transfer){.kind = WFI_PULL, .segments = &intake->meta_segment, .segment_count = 1, .done = meta_pulled};
    st = wfi_net_transfer(intake->agent->net, intake->peer, &intake->transfer);
    if (st)
        fail(intake, st, "its metadata could not be pulled");
}

/* The frame goes back to the network when we return, the user's places come later: keep a copy of the body. */
static void copy_and_place(wfi_intake *intake, const uint8_t *meta, size_t meta_size, wfi_reader *body)
{
    size_t tail_size = wfi_reader_left(body);
    weft_status st = admit(intake, meta_size + tail_size);
    if (!st)
        st = wfi_storage_create(WFI_MEMORY_HOST, 0, meta_size + tail_size, &intake->meta);
    if (st) {
        fail(intake, st, "no memory for its metadata");
        return;
    }
    uint8_t *bytes = wfi_storage_data(intake->meta);
    if (meta_size)
        memcpy(bytes, meta, meta_size);
    if (tail_size)
        memcpy(bytes + meta_size, wfi_read_bytes(body, tail_size), tail_size);
    intake->meta_size = meta_size;
    intake->tail_at = meta_size;
    intake->tail_size = tail_size;
    unpack_now(intake);
}

void wfi_intake_start(wfi_intake *intake, wfi_reader *body)
{
    wfi_assert_held(wfi_net_mutex(intake->agent->net));
    if (wfi_read_u8(body) != 0) {
        pull_meta(intake, body);
        return;
    }
    size_t meta_size;
    const uint8_t *meta = wfi_read_blob(body, WFI_MESSAGE_MAX, &meta_size);
    weft_status st = body->failed ? WEFT_ERR_PROTOCOL : admit_values(intake, meta, meta_size);
    if (st) {
        fail(intake, st, body->failed ? "truncated body" : "malformed metadata");
    } else if (intake->user_places) {
        copy_and_place(intake, meta, meta_size, body);
    } else {
        decode(intake, meta, meta_size, body->data + body->at, wfi_reader_left(body));
        after_decoding(intake);
    }
}

void wfi_intake_cancel(wfi_intake *intake)
{
    wfi_assert_held(wfi_net_mutex(intake->agent->net));
    if (!wfi_intake_busy(intake) || intake->cancelled)
        return;
    intake->cancelled = true;
    if (intake->state == WFI_INTAKE_PULLING)
        wfi_net_transfer_cancel(intake->agent->net, &intake->transfer);
    else if (intake->state == WFI_INTAKE_CONFIRMING)
        fail(intake, WEFT_ERR_CANCELLED, "it was cancelled");
    /* PLACING: the task sees the flag */
}

bool wfi_intake_busy(const wfi_intake *intake)
{
    return intake->state != WFI_INTAKE_NEW && intake->state != WFI_INTAKE_READY;
}

void wfi_intake_fini(wfi_intake *intake)
{
    weft_values_unref(intake->values);
    free(intake->landing);
    wfi_unpack_fini(&intake->unpack);
    wfi_storage_unref(intake->meta);
    intake->values = NULL;
    intake->landing = NULL;
    intake->meta = NULL;
}
