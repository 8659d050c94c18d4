/* SPDX-License-Identifier: Apache-2.0 */
/* inbound.c - receives a body until all its values have arrived; see payload.h. */
#include "base/alloc.h"
#include "rpc/payload/explain.h"
#include "rpc/payload/payload.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_META (64u << 10) /* bytes: decoding that many small values takes milliseconds */
#define IMPORTS_AT_ONCE 1024   /* references imported while the lock is held once */
#define LARGE_MOVES (1u << 20) /* bytes: memory of devices that may have to be mapped */
#define MANY_MOVES 64          /* tensors: each takes memory of a device */
#define PIECE (1u << 20)       /* bytes that have arrived, and are worth a copy of their own to a device */
#define SENTENCE 140           /* bytes: "value 1.2: tensor 3 could not be pulled: " */

/* ---- On another thread ------------------------------------------------------------------------------------------- */

/*
 * Long work runs on the process's executor. Under the agent lock or on the polling thread it would delay small calls,
 * and the agent's own workers may all be busy, perhaps waiting for this body. The simulation uses a worker fiber. An
 * agent that has no threads, or is stopping, does the work at once, and so does a process that can start no thread.
 */
static bool has_elsewhere(const weft_agent *agent)
{
    return !agent->options.values.no_threads && !agent->stopped &&
           (agent->options.values.sim || !wfi_executor_need_worker(wfi_executor_process()));
}

/* [agent lock] */
static void run_elsewhere(wfi_inbound *inbound, void (*run)(wfi_task *task))
{
    weft_agent *agent = inbound->agent;
    inbound->task.run = run;
    if (agent->options.values.sim) {
        wfi_net_defer(agent->net, &inbound->task, WFI_DEFER_WORKER);
        return;
    }
    inbound->elsewhere = true;
    atomic_fetch_add(&agent->inbound_elsewhere, 1);
    wfi_executor_submit(wfi_executor_process(), &inbound->task);
}

static void become_ready(wfi_inbound *inbound, weft_status status)
{
    wfi_assert_held(wfi_net_mutex(inbound->agent->net));
    inbound->state = WFI_INBOUND_READY;
    for (size_t i = 0; i < inbound->decoded.rref_count; i++)
        if (inbound->decoded.rrefs[i].slot->as.rref)
            inbound->decoded.rrefs[i].slot->as.rref->waiter = NULL;
    inbound->ready(inbound, status);
}

static void fail_inbound(wfi_inbound *inbound, weft_status status, const char *problem)
{
    if (!inbound->problem[0])
        snprintf(inbound->problem, sizeof(inbound->problem), "%s", problem);
    become_ready(inbound, status);
}

/* `part`: "payload" or "metadata". */
static void fail_pull(wfi_inbound *inbound, weft_status status, const char *part)
{
    char text[sizeof(inbound->problem) - SENTENCE] = "", value[WFI_FIND_DATA] = "";
    if (!inbound->cancelled)
        wfi_transfer_problem(&inbound->transfer, inbound->peer, status, text, sizeof(text));
    if (!inbound->cancelled && inbound->transfer.is_spoilt && inbound->values)
        wfi_find_data(weft_values_args(inbound->values),
                      inbound->transfer.segments[inbound->transfer.bad_segment].local, value);
    if (!inbound->problem[0])
        snprintf(inbound->problem, sizeof(inbound->problem), "%s%s could not be pulled%s%s", *value ? "" : "its ",
                 *value ? value : part, *text ? ": " : "", text);
    become_ready(inbound, inbound->cancelled ? WEFT_ERR_CANCELLED : status);
}

/* ---- Last step: references, IMPORTS_AT_ONCE at a time ------------------------------------------------------------ */

static void fail_unconfirmed(wfi_inbound *inbound, weft_status status)
{
    fail_inbound(inbound, status,
                 status == WEFT_ERR_NOT_FOUND ? "a reference in it names no value of this worker"
                                              : "the owner of a reference in it cannot be reached");
}

/* The owner has confirmed a reference, or that has failed (`status`). [agent lock] */
static void reference_confirmed(wfi_ref_waiter *waiter, weft_status status)
{
    wfi_inbound *inbound = wfi_container_of(waiter, wfi_inbound, waiter);
    if (inbound->state != WFI_INBOUND_CONFIRMING)
        return;
    if (status && inbound->task_queued)
        inbound->unknown = status; /* import_task then fails the inbound */
    else if (status)
        fail_unconfirmed(inbound, status);
    else if (--inbound->unconfirmed == 0)
        become_ready(inbound, WEFT_OK);
}

static void import_task(wfi_task *task);

static void import_some(wfi_inbound *inbound)
{
    size_t end = inbound->imported + IMPORTS_AT_ONCE;
    if (end > inbound->decoded.rref_count || !has_elsewhere(inbound->agent))
        end = inbound->decoded.rref_count;
    while (inbound->imported < end && inbound->state == WFI_INBOUND_CONFIRMING) {
        wfi_decoded_rref *item = &inbound->decoded.rrefs[inbound->imported++];
        inbound->unconfirmed++;
        weft_status status = wfi_rref_import(inbound->agent, &item->name, &inbound->waiter, &item->slot->as.rref);
        if (status)
            reference_confirmed(&inbound->waiter, status);
    }
    if (inbound->state != WFI_INBOUND_CONFIRMING)
        return;
    if (inbound->imported == inbound->decoded.rref_count) {
        reference_confirmed(&inbound->waiter, WEFT_OK); /* the count taken in import_references */
    } else {
        inbound->task_queued = true;
        run_elsewhere(inbound, import_task);
    }
}

static void import_task(wfi_task *task)
{
    wfi_inbound *inbound = wfi_container_of(task, wfi_inbound, task);
    weft_agent *agent = inbound->agent;
    bool elsewhere = inbound->elsewhere;
    wfi_net_lock(agent->net);
    inbound->task_queued = inbound->elsewhere = false;
    if (inbound->cancelled)
        fail_inbound(inbound, WEFT_ERR_CANCELLED, "it was cancelled");
    else if (inbound->unknown)
        fail_unconfirmed(inbound, inbound->unknown);
    else
        import_some(inbound);
    wfi_net_unlock(agent->net);
    if (elsewhere) /* last access to the agent; the inbound may already be freed */
        atomic_fetch_sub(&agent->inbound_elsewhere, 1);
}

static void import_references(wfi_inbound *inbound)
{
    inbound->state = WFI_INBOUND_CONFIRMING;
    inbound->waiter.confirmed = reference_confirmed;
    /* One is counted here, so that confirmations that arrive at once do not complete the inbound early. */
    inbound->unconfirmed = 1;
    import_some(inbound);
}

/* ---- Payload ----------------------------------------------------------------------------------------------------- */

static void upload_task(wfi_task *task);
static void copy_if_enough(wfi_pieces *pieces);

/* Runs a step for tensors of devices, without the lock: it may allocate such memory. [agent lock] */
static void run_moves(wfi_inbound *inbound, void (*run)(wfi_task *task))
{
    inbound->state = WFI_INBOUND_PLACING;
    inbound->task.run = run;
    const wfi_decoded_moves *moves = inbound->decoded.moves;
    bool takes_long = moves->nbytes > LARGE_MOVES || moves->count > MANY_MOVES;
    if (takes_long && has_elsewhere(inbound->agent))
        run_elsewhere(inbound, run);
    else
        wfi_net_defer(inbound->agent->net, &inbound->task, WFI_DEFER_RELEASE);
}

/* The pull has ended, and no piece is being copied. [agent lock] */
static void payload_ended(wfi_inbound *inbound, weft_status status)
{
    wfi_pieces *pieces = inbound->pieces;
    inbound->pulling = status;
    if ((inbound->cancelled || status) && !(pieces && (pieces->staging || pieces->status)))
        fail_pull(inbound, status, "payload");
    else if (inbound->decoded.moves)
        run_moves(inbound, upload_task);
    else
        import_references(inbound);
}

static void payload_pulled(wfi_transfer *transfer, weft_status status)
{
    wfi_inbound *inbound = wfi_container_of(transfer, wfi_inbound, transfer);
    for (size_t i = 0; i < transfer->segment_count; i++)
        wfi_storage_wrote(transfer->segments[i].storage);
    inbound->pulling = status;
    if (inbound->pieces && inbound->pieces->is_copying)
        inbound->pieces->has_ended = true; /* copy_pieces goes on */
    else
        payload_ended(inbound, status);
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

/* Queues the copies of what has arrived of large tensors. Not locked. */
static weft_status copy_arrived(wfi_pieces *pieces)
{
    wfi_inbound *inbound = pieces->inbound;
    wfi_piece arrived[WFI_PIECES_MOST];
    wfi_net_lock(inbound->agent->net);
    size_t count = pieces->count;
    memcpy(arrived, pieces->arrived, count * sizeof(*arrived));
    pieces->count = 0;
    pieces->bytes = 0;
    wfi_net_unlock(inbound->agent->net);
    if (!pieces->staging)
        pieces->staging = wfi_staging_create(inbound->agent, inbound->decoded.moves->staged);
    weft_status status = pieces->staging ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count && !status; i++)
        status = wfi_decoded_copy(&inbound->decoded, arrived[i].segment, arrived[i].offset, arrived[i].size,
                                  &pieces->staging->copies);
    return status;
}

/* While the rest is pulled. */
static void copy_pieces(wfi_task *task)
{
    wfi_pieces *pieces = wfi_container_of(task, wfi_pieces, task);
    wfi_inbound *inbound = pieces->inbound;
    weft_agent *agent = inbound->agent;
    weft_status status = copy_arrived(pieces);
    wfi_net_lock(agent->net);
    pieces->is_copying = false;
    pieces->status = status;
    if (pieces->has_ended)
        payload_ended(inbound, inbound->pulling);
    else if (status)
        wfi_transfer_cancel(&inbound->transfer);
    else
        copy_if_enough(pieces);
    wfi_net_unlock(agent->net);
}

static void copy_if_enough(wfi_pieces *pieces)
{
    if (pieces->bytes < PIECE || pieces->is_copying || pieces->status)
        return;
    pieces->is_copying = true;
    pieces->task.run = copy_pieces;
    wfi_net_defer(pieces->inbound->agent->net, &pieces->task, WFI_DEFER_RELEASE);
}

/* If there is no room to note the bytes, their tensor is copied as a whole later. */
static void piece_arrived(wfi_transfer *transfer, size_t segment, uint64_t offset, uint64_t size)
{
    wfi_inbound *inbound = wfi_container_of(transfer, wfi_inbound, transfer);
    wfi_pieces *pieces = inbound->pieces;
    if (!pieces || transfer->segments[segment].size < PIECE)
        return;
    wfi_piece *last = pieces->count ? &pieces->arrived[pieces->count - 1] : NULL;
    if (last && last->segment == segment && last->offset + last->size == offset)
        last->size += size;
    else if (pieces->count < WFI_PIECES_MOST)
        pieces->arrived[pieces->count++] = (wfi_piece){segment, offset, size};
    else
        return;
    pieces->bytes += size;
    copy_if_enough(pieces);
}

static const wfi_transfer_ops payload_pulled_ops = {.chunk = piece_arrived, .done = payload_pulled};

static void pull_payload(wfi_inbound *inbound)
{
    if (inbound->decoded.segment_count == 0) {
        import_references(inbound);
        return;
    }
    inbound->state = WFI_INBOUND_PULLING;
    inbound->transfer = (wfi_transfer){.kind = WFI_PULL,
                                       .segments = inbound->decoded.segments,
                                       .segment_count = inbound->decoded.segment_count,
                                       .bulk_generation = inbound->bulk_generation,
                                       .ops = &payload_pulled_ops};
    weft_status status = wfi_peer_transfer(inbound->peer, &inbound->transfer);
    if (status)
        fail_pull(inbound, status, "payload");
}

/* ---- Tensors of devices ------------------------------------------------------------------------------------------ */

/* Queues the copies to the devices, and puts the tensors into the values. Not locked. */
static weft_status upload(wfi_inbound *inbound)
{
    wfi_decoded *decoded = &inbound->decoded;
    wfi_decoded_moves *moves = decoded->moves;
    if (!moves->staged) /* all go to the CPU */
        return wfi_decoded_to_devices(decoded, inbound->values, NULL);
    wfi_pieces *pieces = inbound->pieces;
    weft_status status = pieces ? pieces->status : WEFT_OK;
    if (pieces && !status && !inbound->pulling)
        status = copy_arrived(pieces);
    wfi_staging *staging =
        pieces && pieces->staging ? pieces->staging : wfi_staging_create(inbound->agent, moves->staged);
    if (!staging)
        return WEFT_ERR_MEMORY;
    if (!status && !inbound->pulling)
        status = wfi_decoded_to_devices(decoded, inbound->values, &staging->copies);
    if (pieces)
        pieces->staging = NULL;
    if (!status && !inbound->pulling) { /* the call goes on, so that only the log can tell of a failure */
        staging->from = wfi_peer_rank(inbound->peer);
        staging->call_id = inbound->call_id;
    }
    wfi_staging_start(staging);
    wfi_staging_unref(staging);
    wfi_storage_unref(moves->staged);
    moves->staged = NULL;
    return status;
}

/* The end of a step. Not locked */
static void end_moves(wfi_inbound *inbound, weft_status status, void (*then)(wfi_inbound *inbound))
{
    weft_agent *agent = inbound->agent;
    bool elsewhere = inbound->elsewhere;
    wfi_net_lock(agent->net);
    inbound->elsewhere = false;
    if (inbound->cancelled)
        fail_inbound(inbound, WEFT_ERR_CANCELLED, "it was cancelled");
    else if (status)
        fail_inbound(inbound, status,
                     inbound->decoded.problem[0] ? inbound->decoded.problem
                     : status == WEFT_ERR_MEMORY ? "no page-locked memory for its tensors"
                                                 : "a device failed: the log has the reason of its driver");
    else if (inbound->pulling)
        fail_pull(inbound, inbound->pulling, "payload");
    else
        then(inbound);
    wfi_net_unlock(agent->net);
    if (elsewhere) /* last access to the agent; the inbound may already be freed */
        atomic_fetch_sub(&agent->inbound_elsewhere, 1);
}

static void upload_task(wfi_task *task)
{
    wfi_inbound *inbound = wfi_container_of(task, wfi_inbound, task);
    end_moves(inbound, upload(inbound), import_references);
}

/* Takes the page-locked memory into which the payload is pulled. */
static void stage_task(wfi_task *task)
{
    wfi_inbound *inbound = wfi_container_of(task, wfi_inbound, task);
    weft_status status = wfi_decoded_stage(&inbound->decoded);
    bool pulls = inbound->decoded.segment_count;
    if (!status && pulls && inbound->decoded.moves->staged && inbound->decoded.moves->nbytes >= PIECE)
        inbound->pieces = wfi_calloc(1, sizeof(*inbound->pieces)); /* NULL: no pieces */
    if (inbound->pieces)
        inbound->pieces->inbound = inbound;
    if (!status && !pulls)
        status = upload(inbound);
    end_moves(inbound, status, pulls ? pull_payload : import_references);
}

/* Chooses the devices of an answer, by those at the sender. Otherwise the sender has chosen them: checks that they are
 * here, before anything is allocated or pulled. */
static weft_status choose_devices(wfi_inbound *inbound)
{
    wfi_decoded_moves *moves = inbound->decoded.moves;
    weft_status status = WEFT_OK;
    for (size_t i = 0; moves && i < moves->count && !status; i++) {
        wfi_decoded_move *move = &moves->items[i];
        if (move->place)
            continue;
        if (inbound->options.is_answer) {
            status = wfi_device_here(inbound->agent, wfi_peer_rank(inbound->peer), move->device, &move->device,
                                     inbound->problem, sizeof(inbound->problem));
        } else if (!wfi_device_is_here(inbound->agent, move->device)) {
            snprintf(inbound->problem, sizeof(inbound->problem),
                     "tensor %zu is for cuda:%d, which this worker does not have", move->index, move->device - 1);
            status = WEFT_ERR_PROTOCOL;
        }
    }
    return status;
}

/* Whether a call must be refused because too much page-locked memory is in use, perhaps by tensors that wait for their
 * devices. weft's own calls are not. */
static bool lacks_staging(const wfi_inbound *inbound)
{
    const weft_agent *agent = inbound->agent;
    return inbound->charge && !inbound->is_let_in && !inbound->admit && inbound->decoded.moves &&
           atomic_load(&agent->staged_bytes) >= agent->options.values.memory_budget_bytes;
}

static void take_values(wfi_inbound *inbound)
{
    inbound->values = inbound->decoded.values;
    inbound->decoded.values = NULL;
    inbound->landed_bytes = inbound->decoded.landed_bytes;
    inbound->agent->stats.bytes_copied += inbound->decoded.copied_bytes;
    weft_status status = choose_devices(inbound);
    if (status)
        fail_inbound(inbound, status, inbound->problem);
    else if (lacks_staging(inbound))
        fail_inbound(inbound, WEFT_ERR_BUSY, "page-locked memory for tensors of devices is at the memory budget");
    else if (inbound->decoded.moves)
        run_moves(inbound, stage_task);
    else
        pull_payload(inbound);
}

/* ---- Memory budget ----------------------------------------------------------------------------------------------- */

/* [agent lock] */
static weft_status admit_bytes(wfi_inbound *inbound, uint64_t bytes)
{
    wfi_charge *charge = inbound->charge;
    if (!charge)
        return WEFT_OK;
    if (inbound->is_let_in && bytes <= WFI_MESSAGE_MAX) {
        wfi_budget_charge(charge, bytes);
        return WEFT_OK;
    }
    return wfi_budget_admit(charge, bytes, inbound->problem, sizeof(inbound->problem));
}

/* If `meta` is NULL, `bytes` is the size of metadata that are still to be pulled. [agent lock] */
static weft_status admit_measured(wfi_inbound *inbound, const uint8_t *meta, size_t size, uint64_t bytes)
{
    return inbound->admit ? inbound->admit(inbound, meta, size, bytes) : admit_bytes(inbound, bytes);
}

/* Charges the budget for all values that `meta` describes. If user code chooses the places, the size is not known yet;
 * admit_slab charges it later. `is_locked`: the caller has the agent lock. */
static weft_status admit_values(wfi_inbound *inbound, const uint8_t *meta, size_t size, bool is_locked)
{
    const wfi_decode_options *options = &inbound->options;
    bool expects = is_locked && options->expect;
    uint64_t bytes;
    wfi_tensor_types types;
    if (!inbound->charge || inbound->user_places)
        return WEFT_OK;
    weft_status status = wfi_decode_measure(&inbound->decoded, meta, size, &bytes, expects ? &types : NULL);
    if (status)
        return status;
    if (!is_locked)
        wfi_net_lock(inbound->agent->net);
    status = admit_measured(inbound, meta, size, bytes);
    if (!is_locked)
        wfi_net_unlock(inbound->agent->net);
    if (!status && expects)
        options->expect(options->place_arg, &types);
    return status;
}

/* Called without the agent lock. */
static weft_status admit_slab(void *arg, uint64_t bytes, char *problem, size_t room)
{
    wfi_inbound *inbound = arg;
    wfi_net_lock(inbound->agent->net);
    weft_status status = admit_bytes(inbound, bytes);
    snprintf(problem, room, "%s", inbound->problem);
    wfi_net_unlock(inbound->agent->net);
    return status;
}

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

static void decode_values(wfi_inbound *inbound, const uint8_t *meta, size_t meta_size, const uint8_t *tail,
                          size_t tail_size)
{
    wfi_reader meta_reader, tail_reader;
    wfi_reader_init(&meta_reader, meta, meta_size);
    wfi_reader_init(&tail_reader, tail, tail_size);
    inbound->decoding = wfi_decode(&inbound->decoded, &meta_reader, &tail_reader, &inbound->options);
    if (!inbound->decoding)
        inbound->decoding = wfi_decode_landing(&meta_reader, &inbound->landing, &inbound->landing_count);
}

static void after_decoding(wfi_inbound *inbound)
{
    wfi_storage_unref(inbound->meta); /* the values have copies; a deferred call may keep the inbound for a long time */
    inbound->meta = NULL;
    if (inbound->cancelled)
        fail_inbound(inbound, WEFT_ERR_CANCELLED, "it was cancelled");
    else if (inbound->decoding)
        fail_inbound(inbound, inbound->decoding,
                     inbound->decoded.problem[0] ? inbound->decoded.problem : "malformed landing places");
    else
        take_values(inbound);
}

static void decode_task(wfi_task *task)
{
    wfi_inbound *inbound = wfi_container_of(task, wfi_inbound, task);
    weft_agent *agent = inbound->agent;
    bool elsewhere = inbound->elsewhere;
    const uint8_t *bytes = wfi_storage_data(inbound->meta);
    weft_status status = admit_values(inbound, bytes, inbound->meta_size, false);
    if (!status)
        decode_values(inbound, bytes, inbound->meta_size, bytes + inbound->meta_size, inbound->tail_size);
    wfi_storage_unref(inbound->meta);
    inbound->meta = NULL;
    wfi_net_lock(agent->net);
    inbound->elsewhere = false;
    if (status)
        fail_inbound(inbound, status, inbound->decoded.problem);
    else
        after_decoding(inbound);
    wfi_net_unlock(agent->net);
    if (elsewhere) /* last access to the agent; the inbound may already be freed */
        atomic_fetch_sub(&agent->inbound_elsewhere, 1);
}

void wfi_inbound_await(weft_agent *agent)
{
    static void (*const tasks[])(wfi_task * task) = {decode_task, stage_task, upload_task, import_task};
    while (atomic_load(&agent->inbound_elsewhere)) {
        /* The process's executor may have no free thread. Runs the task here, even if it belongs to another agent. */
        wfi_task *task = NULL;
        for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]) && !task; i++)
            task = wfi_executor_withdraw(wfi_executor_process(), tasks[i]);
        if (task)
            task->run(task);
        else
            sched_yield();
    }
    wfi_staging_await_all(agent);
}

/* Decodes inbound->meta: at once, or without the lock if user code chooses the places or the metadata are large. */
static void begin_decoding(wfi_inbound *inbound)
{
    const uint8_t *bytes = wfi_storage_data(inbound->meta);
    if (inbound->user_places) {
        inbound->options.checks_places = !wfi_peer_reports_memory(inbound->peer);
        if (inbound->charge) {
            inbound->options.admit = admit_slab;
            inbound->options.admit_arg = inbound;
        }
        inbound->state = WFI_INBOUND_PLACING;
        inbound->task.run = decode_task;
        wfi_net_defer(inbound->agent->net, &inbound->task, WFI_DEFER_INLINE);
        return;
    }
    if (inbound->meta_size > LARGE_META && has_elsewhere(inbound->agent)) {
        if (!inbound->free_places) /* batch rows can be found only with the lock held */
            inbound->options.place = NULL;
        inbound->state = WFI_INBOUND_PLACING;
        run_elsewhere(inbound, decode_task);
        return;
    }
    weft_status status = admit_values(inbound, bytes, inbound->meta_size, true);
    if (status) {
        fail_inbound(inbound, status, inbound->decoded.problem);
        return;
    }
    decode_values(inbound, bytes, inbound->meta_size, bytes + inbound->meta_size, inbound->tail_size);
    after_decoding(inbound);
}

static void meta_pulled(wfi_transfer *transfer, weft_status status)
{
    wfi_inbound *inbound = wfi_container_of(transfer, wfi_inbound, transfer);
    if (inbound->cancelled || status)
        fail_pull(inbound, status, "metadata");
    else
        begin_decoding(inbound);
}

static const wfi_transfer_ops meta_pulled_ops = {.chunk = wfi_transfer_ignore_chunk, .done = meta_pulled};

/* Allocates a buffer for the metadata, and copies the rest of the frame behind it, because the frame is reused when
 * this function returns. Returns false if it failed. */
static bool make_meta(wfi_inbound *inbound, uint64_t meta_size, wfi_reader *body)
{
    inbound->meta_size = meta_size;
    inbound->tail_size = wfi_reader_left(body);
    weft_status status = admit_measured(inbound, NULL, 0, meta_size + inbound->tail_size);
    if (!status)
        status = wfi_storage_create(WFI_MEMORY_HOST, 0, meta_size + inbound->tail_size, &inbound->meta);
    if (status) {
        fail_inbound(inbound, status, "no memory for its metadata");
        return false;
    }
    uint8_t *tail = (uint8_t *)wfi_storage_data(inbound->meta) + meta_size;
    if (inbound->tail_size)
        memcpy(tail, wfi_read_bytes(body, inbound->tail_size), inbound->tail_size);
    return true;
}

/* Pulls metadata that did not fit the message. */
static void pull_meta(wfi_inbound *inbound, wfi_reader *body)
{
    wfi_rma_address remote = wfi_rma_decode(body);
    uint64_t size = wfi_read_u64(body);
    if (body->failed || size > WFI_META_MAX) {
        fail_inbound(inbound, WEFT_ERR_PROTOCOL, "malformed or oversized metadata");
        return;
    }
    if (!make_meta(inbound, size, body))
        return;
    inbound->state = WFI_INBOUND_PULLING;
    inbound->meta_segment = (wfi_segment){
        .local = wfi_storage_data(inbound->meta), .storage = inbound->meta, .size = size, .remote = remote};
    inbound->transfer = (wfi_transfer){.kind = WFI_PULL,
                                       .segments = &inbound->meta_segment,
                                       .segment_count = 1,
                                       .bulk_generation = inbound->bulk_generation,
                                       .ops = &meta_pulled_ops};
    weft_status status = wfi_peer_transfer(inbound->peer, &inbound->transfer);
    if (status)
        fail_pull(inbound, status, "metadata");
}

void wfi_inbound_start(wfi_inbound *inbound, wfi_reader *body)
{
    wfi_assert_held(wfi_net_mutex(inbound->agent->net));
    inbound->bulk_generation = wfi_peer_bulk_generation(inbound->peer);
    uint8_t cpu_to = 0;
    if (inbound->options.is_answer)
        (void)wfi_device_here(inbound->agent, wfi_peer_rank(inbound->peer), 0, &cpu_to, inbound->problem, 0);
    inbound->options.moves_cpu = cpu_to;
    if (wfi_read_u8(body) != 0) {
        pull_meta(inbound, body);
        return;
    }
    size_t meta_size;
    const uint8_t *meta = wfi_read_blob(body, WFI_MESSAGE_MAX, &meta_size);
    weft_status status = body->failed ? WEFT_ERR_PROTOCOL : admit_values(inbound, meta, meta_size, true);
    if (status) {
        fail_inbound(inbound, status, body->failed ? "truncated body" : inbound->decoded.problem);
    } else if (inbound->user_places) { /* the budget is charged later */
        if (!make_meta(inbound, meta_size, body))
            return;
        if (meta_size)
            memcpy(wfi_storage_data(inbound->meta), meta, meta_size);
        begin_decoding(inbound);
    } else {
        decode_values(inbound, meta, meta_size, body->data + body->at, wfi_reader_left(body));
        after_decoding(inbound);
    }
}

void wfi_inbound_cancel(wfi_inbound *inbound)
{
    wfi_assert_held(wfi_net_mutex(inbound->agent->net));
    if (!wfi_inbound_busy(inbound) || inbound->cancelled)
        return;
    inbound->cancelled = true;
    if (inbound->state == WFI_INBOUND_PULLING)
        wfi_transfer_cancel(&inbound->transfer);
    else if (inbound->state == WFI_INBOUND_CONFIRMING && !inbound->task_queued)
        fail_inbound(inbound, WEFT_ERR_CANCELLED, "it was cancelled");
    /* otherwise the queued task checks `cancelled` */
}

bool wfi_inbound_busy(const wfi_inbound *inbound)
{
    return inbound->state != WFI_INBOUND_NEW && inbound->state != WFI_INBOUND_READY;
}

void wfi_inbound_fini(wfi_inbound *inbound)
{
    weft_values_unref(inbound->values);
    free(inbound->landing);
    free(inbound->pieces);
    wfi_decoded_fini(&inbound->decoded);
    wfi_storage_unref(inbound->meta);
    inbound->values = NULL;
    inbound->pieces = NULL;
    inbound->landing = NULL;
    inbound->meta = NULL;
}
