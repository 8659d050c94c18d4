/* SPDX-License-Identifier: Apache-2.0 */
/* inbound.c - a body that arrives, until it is whole; see inbound.h. */
#include "rpc/payload/inbound.h"

#include "rpc/refs/refs.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_META (64u << 10) /* bytes; to decode so many of the smallest values takes milliseconds */
#define IMPORTS_AT_ONCE 1024   /* references made known under one hold of the lock */
#define SENTENCE 40            /* bytes: "its metadata could not be pulled: " */

/* ---- Elsewhere ------------------------------------------------------------------------------------------------------ */

/*
 * What takes long runs where it delays nobody's small calls: neither under the lock nor on the thread that reads the network. Nor on the
 * agent's workers, which may all be busy, perhaps with waiting for this very body: on the process's. The simulation has but its
 * fibers; an agent without threads has but the one that drives it, which does this at once, and so does one that stops.
 */
static bool has_elsewhere(const weft_agent *agent)
{
    return !agent->options.values.no_threads && !agent->stopped;
}

/* [agent lock] */
static void run_elsewhere(wfi_intake *intake, void (*run)(wfi_task *task))
{
    weft_agent *agent = intake->agent;
    intake->task.run = run;
    if (agent->options.values.sim) {
        wfi_net_defer(agent->net, &intake->task, WFI_DEFER_WORKER);
        return;
    }
    intake->elsewhere = true;
    atomic_fetch_add(&agent->intakes_elsewhere, 1);
    wfi_executor_submit(wfi_executor_process(), &intake->task);
}

/* The last touch of the agent, by a task that began with `elsewhere`; the intake may be gone. */
static void leave_elsewhere(weft_agent *agent, bool elsewhere)
{
    if (elsewhere)
        atomic_fetch_sub(&agent->intakes_elsewhere, 1);
}

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

static void fail_pull(wfi_intake *intake, weft_status status, const char *what)
{
    char trouble[sizeof intake->problem - SENTENCE] = "";
    if (!intake->cancelled && status == WEFT_ERR_UNREACHABLE)
        wfi_peer_bulk_trouble(intake->peer, trouble, sizeof trouble);
    if (!intake->problem[0])
        snprintf(intake->problem, sizeof intake->problem, "its %s could not be pulled%s%s", what, *trouble ? ": " : "",
                 trouble);
    become_ready(intake, intake->cancelled ? WEFT_ERR_CANCELLED : status);
}

/* ---- Last step: references, some at a time --------------------------------------------------------------------------------------- */

static void fail_unconfirmed(wfi_intake *intake, weft_status status)
{
    fail(intake, status,
         status == WEFT_ERR_NOT_FOUND ? "a reference in it names no value of ours"
                                      : "the owner of a reference in it cannot be reached");
}

void wfi_intake_confirmed(wfi_intake *intake, weft_status status)
{
    if (intake->state != WFI_INTAKE_CONFIRMING)
        return;
    if (status && intake->task_queued)
        intake->unknown = status; /* the task sees it */
    else if (status)
        fail_unconfirmed(intake, status);
    else if (--intake->unconfirmed == 0)
        become_ready(intake, WEFT_OK);
}

static void import_task(wfi_task *task);

static void import_some(wfi_intake *intake)
{
    size_t end = intake->imported + IMPORTS_AT_ONCE;
    if (end > intake->unpack.rref_count || !has_elsewhere(intake->agent))
        end = intake->unpack.rref_count;
    while (intake->imported < end && intake->state == WFI_INTAKE_CONFIRMING) {
        wfi_unpacked_rref *item = &intake->unpack.rrefs[intake->imported++];
        intake->unconfirmed++;
        weft_status st = wfi_rref_import(intake->agent, &item->name, intake, &item->slot->as.rref);
        if (st)
            wfi_intake_confirmed(intake, st);
    }
    if (intake->state != WFI_INTAKE_CONFIRMING)
        return;
    if (intake->imported == intake->unpack.rref_count) {
        wfi_intake_confirmed(intake, WEFT_OK); /* ours */
    } else {
        intake->task_queued = true;
        run_elsewhere(intake, import_task);
    }
}

static void import_task(wfi_task *task)
{
    wfi_intake *intake = wfi_container_of(task, wfi_intake, task);
    weft_agent *agent = intake->agent;
    bool elsewhere = intake->elsewhere;
    wfi_net_lock(agent->net);
    intake->task_queued = intake->elsewhere = false;
    if (intake->cancelled)
        fail(intake, WEFT_ERR_CANCELLED, "it was cancelled");
    else if (intake->unknown)
        fail_unconfirmed(intake, intake->unknown);
    else
        import_some(intake);
    wfi_net_unlock(agent->net);
    leave_elsewhere(agent, elsewhere);
}

static void import_references(wfi_intake *intake)
{
    intake->state = WFI_INTAKE_CONFIRMING;
    intake->unconfirmed = 1; /* ours, so that confirmations at once do not end it half-way */
    import_some(intake);
}

/* ---- Payload ----------------------------------------------------------------------------------------------------- */

static void payload_pulled(wfi_transfer *transfer, weft_status status)
{
    wfi_intake *intake = wfi_container_of(transfer, wfi_intake, transfer);
    for (size_t i = 0; i < transfer->segment_count; i++)
        wfi_storage_wrote(transfer->segments[i].storage);
    if (intake->cancelled || status)
        fail_pull(intake, status, "payload");
    else
        import_references(intake);
}

static const wfi_transfer_ops payload_pulled_ops = {.chunk = wfi_transfer_chunk_unheard, .done = payload_pulled};

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
                                      .ops = &payload_pulled_ops};
    weft_status st = wfi_peer_transfer(intake->peer, &intake->transfer);
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
    const wfi_unpack_options *options = &intake->options;
    uint64_t bytes;
    wfi_tensor_types types;
    if (!intake->admit || intake->user_places)
        return WEFT_OK;
    weft_status st = wfi_unpack_measure(meta, size, &bytes, options->expect ? &types : NULL);
    if (!st)
        st = admit(intake, bytes);
    if (!st && options->expect)
        options->expect(options->place_arg, &types);
    return st;
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

/* As admit_values. Not locked. */
static weft_status admit_large(wfi_intake *intake, const uint8_t *meta, size_t size)
{
    uint64_t bytes;
    if (!intake->admit || intake->user_places)
        return WEFT_OK;
    weft_status st = wfi_unpack_measure(meta, size, &bytes, NULL);
    if (st)
        return st;
    wfi_net_lock(intake->agent->net);
    st = admit(intake, bytes);
    wfi_net_unlock(intake->agent->net);
    return st;
}

static void decode_task(wfi_task *task)
{
    wfi_intake *intake = wfi_container_of(task, wfi_intake, task);
    weft_agent *agent = intake->agent;
    bool elsewhere = intake->elsewhere;
    const uint8_t *bytes = wfi_storage_data(intake->meta);
    weft_status st = admit_large(intake, bytes, intake->meta_size);
    if (!st)
        decode(intake, bytes, intake->meta_size, bytes + intake->tail_at, intake->tail_size);
    wfi_storage_unref(intake->meta);
    intake->meta = NULL;
    wfi_net_lock(agent->net);
    intake->elsewhere = false;
    if (st)
        fail(intake, st, "malformed metadata");
    else
        after_decoding(intake);
    wfi_net_unlock(agent->net);
    leave_elsewhere(agent, elsewhere);
}

void wfi_intakes_await(weft_agent *agent)
{
    while (atomic_load(&agent->intakes_elsewhere)) {
        /* Nobody may have taken it, for want of a thread: whosever it is, it can run here. */
        wfi_task *task = wfi_executor_withdraw(wfi_executor_process(), decode_task);
        if (!task)
            task = wfi_executor_withdraw(wfi_executor_process(), import_task);
        if (task)
            task->run(task);
        else
            sched_yield();
    }
}

/* Decodes what lies in intake->meta: here, or outside the lock where the user chooses the places, or where it takes long. */
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
    if (intake->meta_size > LARGE_META && has_elsewhere(intake->agent)) {
        if (!intake->free_places) /* a batch's rows: they would have to be found with the lock */
            intake->options.place = NULL;
        intake->state = WFI_INTAKE_PLACING;
        run_elsewhere(intake, decode_task);
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
        fail_pull(intake, status, "metadata");
    else
        unpack_now(intake);
}

static const wfi_transfer_ops meta_pulled_ops = {.chunk = wfi_transfer_chunk_unheard, .done = meta_pulled};

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
    intake->transfer = (wfi_transfer){
        .kind = WFI_PULL, .segments = &intake->meta_segment, .segment_count = 1, .ops = &meta_pulled_ops};
    st = wfi_peer_transfer(intake->peer, &intake->transfer);
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
        wfi_transfer_cancel(&intake->transfer);
    else if (intake->state == WFI_INTAKE_CONFIRMING && !intake->task_queued)
        fail(intake, WEFT_ERR_CANCELLED, "it was cancelled");
    /* else the task sees the flag */
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
