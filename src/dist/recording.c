/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recording.c - a call under a context: what its messages carry for the context, what it records, and the handler's
 * tape.
 *
 * src/rpc calls these functions through wfi_dist_recording_ops; rpc/payload/recording.h has their order and their
 * locks. A request carries the id of the context, the opener's `oldest_open`, the number of its first send, and the
 * path of the call in the caller's tape. A reply carries the number of its first send, and the workers that the
 * callee has called. Each tensor that was recorded under the context, and travels, is a send at one side and a recv
 * at the other (context.h).
 */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/batch/batch.h"
#include "rpc/payload/recording.h"
#include "value/value.h"

#include <weft/rpc.h>
#include <weft/tape.h>

#include <stdlib.h>

#define HOLDERS_MAX 32 /* in one reply */

/* The caller's side of all attempts of one call: its context, and its place in the order of the caller's tape. */
struct wfi_recording_source {
    _Atomic uint32_t refs;
    weft_context *context; /* referenced */
    wfi_tape_path *path;   /* referenced */
};

/* One side of one attempt of a call. */
struct wfi_recording {
    wfi_recording_source *source; /* referenced */
    weft_context *context;        /* always source->context; not referenced by itself */
    bool is_caller;               /* the caller's side of a call to another worker */
    bool is_answered; /* the callee has answered: it knows what the call said about contexts that are over */
    bool is_served;   /* the callee's side, counted in context->served */
    int peer;
    uint64_t oldest_open; /* as the call carried it, if this worker is the opener; otherwise 0 */
    uint64_t first_send;  /* number of the first tensor that this side sent */
    uint64_t first_recv;  /* number of the first tensor that the other side sent */
};

/* ---- The caller's side ------------------------------------------------------------------------------------------- */

/* Returns a source with one reference, and takes over the reference to `path`. NULL: no memory, or no path. */
static wfi_recording_source *make_source(weft_context *context, wfi_tape_path *path)
{
    wfi_recording_source *source = path ? wfi_calloc(1, sizeof(*source)) : NULL;
    if (!source) {
        wfi_tape_path_unref(path);
        return NULL;
    }
    atomic_init(&source->refs, 1);
    source->context = wfi_context_ref(context);
    source->path = path;
    return source;
}

static wfi_recording_source *ref_source(wfi_recording_source *source)
{
    atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
    return source;
}

static void unref_source(wfi_recording_source *source)
{
    if (!source || atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_context_unref(source->context);
    wfi_tape_path_unref(source->path);
    free(source);
}

static weft_status from_tape(weft_agent *agent, weft_tape *tape, wfi_recording_source **out, char *problem, size_t room)
{
    weft_context *context = wfi_tape_owner(tape);
    weft_status status = weft_tape_status(tape);
    if (status)
        snprintf(problem, room, "the option tape: it has failed: %s", weft_error_message(weft_tape_error(tape)));
    else if (!context || context->agent != agent)
        snprintf(problem, room, "the option tape: it does not record into a distributed context%s",
                 context ? " of this agent" : "");
    if (status || !context || context->agent != agent)
        return status ? status : WEFT_ERR_INVALID;
    wfi_tape_commit(tape);
    *out = make_source(context, wfi_tape_path_begin(tape->path));
    if (!*out)
        snprintf(problem, room, "out of memory");
    return *out ? WEFT_OK : WEFT_ERR_MEMORY;
}

static bool is_linked(const void *source, const weft_tensor *tensor)
{
    return wfi_context_records(((const wfi_recording_source *)source)->context, tensor);
}

static const wfi_recording_source *source_of(const wfi_recording *recording)
{
    return recording->source;
}

/* With a reference to the source. NULL: no memory. */
static wfi_recording *make_recording(wfi_recording_source *source)
{
    wfi_recording *recording = wfi_calloc(1, sizeof(*recording));
    if (!recording)
        return NULL;
    recording->source = ref_source(source);
    recording->context = source->context;
    return recording;
}

static bool is_opener(const weft_context *context)
{
    return (int)context->id.rank == wfi_agent_rank(context->agent);
}

/* Begins an attempt: the callee is a holder from now on. `peer` NULL: a call of this worker to itself. */
static weft_status open_recording(wfi_recording_source *source, wfi_peer *peer, wfi_recording **out)
{
    weft_context *context = source->context;
    wfi_recording *recording = make_recording(source);
    if (!recording)
        return WEFT_ERR_MEMORY;
    *out = recording;
    if (!peer)
        return WEFT_OK;
    int rank = wfi_peer_rank(peer);
    wfi_mutex_lock(&context->lock);
    bool over = context->over;
    wfi_mutex_unlock(&context->lock);
    if (over)
        return WEFT_ERR_STATE;
    recording->is_caller = true;
    recording->peer = rank;
    if (!context->holders[rank] && rank != (int)context->id.rank) {
        context->holders[rank] = WFI_HOLDER_PRESENT;
        context->unreported++;
        wfi_contexts_report(context);
    }
    if (is_opener(context)) { /* the call carries oldest_open */
        recording->oldest_open = wfi_contexts_oldest_open(context->agent);
        wfi_contexts_notifying(context->agent, rank, recording->oldest_open);
    }
    return WEFT_OK;
}

static weft_status add_sends(wfi_recording *recording, wfi_peer *peer, weft_tensor *const *tensors, size_t count,
                             uint64_t *first)
{
    return wfi_context_add_sends(recording->context, recording->source->path, wfi_peer_rank(peer),
                                 wfi_peer_incarnation(peer), tensors, count, first ? first : &recording->first_send);
}

/* Reports to the opener, in a reply, up to HOLDERS_MAX workers that this worker has called. */
static void write_holders(weft_context *context, wfi_writer *blob)
{
    uint16_t count = context->unreported > HOLDERS_MAX ? HOLDERS_MAX : (uint16_t)context->unreported;
    if (is_opener(context))
        count = 0; /* the opener knows */
    wfi_write_u16(blob, count);
    for (int rank = 0; count && rank < context->agent->options.values.world_size; rank++) {
        if (context->holders[rank] != WFI_HOLDER_PRESENT)
            continue;
        context->holders[rank] = WFI_HOLDER_REPORTED;
        context->unreported--;
        wfi_write_u32(blob, (uint32_t)rank);
        count--;
    }
}

/* The served call is answered, or never will be: what its reply did not report is reported now. [agent lock] */
static void end_served(wfi_recording *recording)
{
    if (!recording->is_served)
        return;
    recording->is_served = false;
    recording->context->served--;
    wfi_contexts_report(recording->context);
}

static void write_blob(wfi_recording *recording, wfi_writer *blob)
{
    const weft_context *context = recording->context;
    if (!recording->is_caller) {
        wfi_write_u64(blob, recording->first_send);
        write_holders(recording->context, blob);
        end_served(recording);
        return;
    }
    const wfi_opener *opener = &wfi_contexts_of(context->agent)->openers[context->id.rank];
    wfi_write_u32(blob, context->id.rank);
    wfi_write_u32(blob, context->id.incarnation);
    wfi_write_u64(blob, context->id.number);
    wfi_write_u64(blob, is_opener(context)                               ? recording->oldest_open
                        : opener->incarnation == context->id.incarnation ? opener->oldest_open
                                                                         : 0);
    wfi_write_u64(blob, recording->first_send);
    wfi_write_bytes(blob, recording->source->path->bytes, recording->source->path->size);
}

/*
 * Reads what a reply carries: the number of its first tensor, and workers that the callee has called under the
 * context. This worker notes those that it does not know: the opener will notify them, another worker reports them to
 * the opener.
 */
static bool read_reply(wfi_recording *recording, wfi_reader *blob)
{
    weft_context *context = recording->context;
    recording->first_recv = wfi_read_u64(blob);
    uint16_t count = wfi_read_u16(blob);
    for (uint16_t i = 0; i < count && !blob->failed; i++) {
        uint32_t rank = wfi_read_u32(blob);
        if (rank >= (uint32_t)context->agent->options.values.world_size)
            return false;
        if (blob->failed || rank == context->id.rank)
            continue;
        if (context->over && is_opener(context)) {
            wfi_contexts_late_holder(context, (int)rank);
            continue;
        }
        if (context->holders[rank] == WFI_HOLDER_PRESENT || (is_opener(context) && context->holders[rank]))
            continue; /* already noted */
        context->holders[rank] = WFI_HOLDER_PRESENT;
        context->unreported++;
    }
    wfi_contexts_report(context);
    recording->is_answered = !blob->failed;
    return recording->is_answered;
}

/* ---- The callee's side ------------------------------------------------------------------------------------------- */

/*
 * Reads what a request carries, as write_blob wrote it. Ends the opener's contexts before `oldest_open`, and finds or
 * creates the call's context here. *out: the callee's side.
 */
static weft_status read_request(weft_agent *agent, wfi_peer *from, wfi_reader *blob, wfi_recording **out)
{
    weft_context *context;
    weft_context_id id = {.rank = wfi_read_u32(blob), .incarnation = wfi_read_u32(blob)};
    id.number = wfi_read_u64(blob);
    uint64_t oldest_open = wfi_read_u64(blob), first = wfi_read_u64(blob);
    size_t path_size = wfi_reader_left(blob);
    const void *path = wfi_read_bytes(blob, path_size);
    if (blob->failed || !path_size || path_size > WFI_TAPE_PATH_MAX || !id.number || !id.incarnation ||
        oldest_open > id.number || !first || id.rank >= (uint32_t)agent->options.values.world_size)
        return WEFT_ERR_PROTOCOL;
    wfi_contexts_end_older(agent, id.rank, id.incarnation, oldest_open);
    weft_status status = wfi_contexts_find_or_create(agent, &id, &context);
    if (status)
        return status;
    wfi_recording_source *source = make_source(context, wfi_tape_path_read(path, path_size));
    wfi_recording *recording = source ? make_recording(source) : NULL;
    unref_source(source);
    if (!recording)
        return WEFT_ERR_MEMORY;
    recording->peer = wfi_peer_rank(from);
    recording->first_recv = first;
    recording->is_served = true;
    context->served++;
    context->idle = false;
    wfi_contexts_query_later(wfi_contexts_of(agent));
    *out = recording;
    return WEFT_OK;
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

/* Replaces the received tensors that are linked by recorded ones, each of which is a recv of the context. */
static weft_status add_recvs(wfi_recording *recording, wfi_peer *from, uint64_t first, weft_values *values,
                             const wfi_decoded_link *linked, size_t count)
{
    size_t all = count ? wfi_values_tensors(weft_values_args(values), NULL, 0) : 0;
    weft_tensor **tensors = count ? wfi_calloc(all, sizeof(*tensors)) : NULL;
    weft_status status = WEFT_OK;
    if (!count)
        return WEFT_OK;
    if (!tensors)
        return WEFT_ERR_MEMORY;
    wfi_values_tensors(weft_values_args(values), tensors, all);
    wfi_recv pair = {.from = wfi_peer_rank(from),
                     .incarnation = wfi_peer_incarnation(from),
                     .number = first ? first : recording->first_recv};
    for (size_t i = 0; i < all; i++)
        weft_tensor_ref(tensors[i]);
    for (size_t i = 0; i < count && !status; i++, pair.number++) {
        size_t at = linked[i].index;
        pair.device = linked[i].device;
        weft_tensor *recorded = at < all ? wfi_context_add_recv(recording->context, &pair, tensors[at]) : NULL;
        if (!recorded) {
            status = WEFT_ERR_MEMORY;
            break;
        }
        weft_tensor_unref(tensors[at]);
        tensors[at] = recorded;
    }
    if (!status)
        wfi_values_replace_tensors(values, tensors);
    for (size_t i = 0; i < all; i++)
        weft_tensor_unref(tensors[i]);
    free(tensors);
    return status;
}

static void free_recording(wfi_recording *recording)
{
    if (!recording)
        return;
    weft_agent *agent = recording->context->agent;
    if ((recording->oldest_open || recording->is_served) && wfi_agent_enter_locked(agent)) {
        end_served(recording);
        if (recording->oldest_open)
            wfi_contexts_notified(agent, recording->peer, recording->oldest_open, recording->is_answered);
        wfi_agent_leave_locked(agent);
    }
    unref_source(recording->source);
    free(recording);
}

const wfi_recording_ops wfi_dist_recording_ops = {.from_tape = from_tape,
                                                  .ref = ref_source,
                                                  .unref = unref_source,
                                                  .is_linked = is_linked,
                                                  .source = source_of,
                                                  .open = open_recording,
                                                  .add_sends = add_sends,
                                                  .write = write_blob,
                                                  .read_reply = read_reply,
                                                  .read_request = read_request,
                                                  .add_recvs = add_recvs,
                                                  .free = free_recording,
                                                  .admit = wfi_pass_admit};

/* ---- The handler's tape ------------------------------------------------------------------------------------------ */

/*
 * The tape of a served call, or of a batch of calls. The tape of a call under a context records into the context. It is
 * opened at first use and kept in a slot of the call, because src/rpc does not depend on tapes. When the call or batch
 * is finished, its error is read and it is closed. Its seed follows from the identity of the call or batch.
 */

static weft_error *tape_error(void *value)
{
    const weft_error *error = weft_tape_error(value);
    return error ? weft_error_ref(error) : NULL;
}

static void commit_tape(void *value)
{
    wfi_tape_commit(value);
}

static void close_tape(void *value)
{
    weft_tape_close(value);
}

static weft_tape *open_in(wfi_call_slot *slot, uint64_t seed, const wfi_recording *recording)
{
    if (!slot->value) {
        const weft_tape_options how = {.seed = seed};
        weft_tape *tape =
            recording ? wfi_context_tape_at(recording->context, &how, recording->source->path) : weft_tape_open(&how);
        if (!tape)
            return NULL; /* operators on it return NULL; then giving the results fails */
        *slot = (wfi_call_slot){.value = tape, .error = tape_error, .publish = commit_tape, .drop = close_tape};
    }
    return slot->value;
}

weft_tape *weft_call_tape(weft_call *call)
{
    WFI_CHECK_HANDLE(call);
    if (!call)
        return NULL;
    uint64_t key[] = {(uint64_t)wfi_agent_rank(call->agent), (uint64_t)call->from, call->incarnation, call->id};
    return open_in(&call->slot, wfi_hash_bytes(key, sizeof(key)), call->recording);
}

weft_tape *weft_batch_tape(weft_batch *batch)
{
    WFI_CHECK_HANDLE(batch);
    return batch ? open_in(&batch->slot, batch->seed, NULL) : NULL;
}
