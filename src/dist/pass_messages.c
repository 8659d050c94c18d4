/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_messages.c - the messages of a pass, written and read. They are calls of weft's own functions:
 *
 *   weft:pass   answers for the callee's sends (pass.h has the protocol): bytes (a head), bytes (pending), bytes
 *               (absent), bytes (numbers of the gradients), bytes (names of optimizers that step; 64 KiB at most),
 *               tensors (gradients). Lists are of u64, numbers of the callee's sends. Gives bool: all is answered.
 *
 *   weft:final  the root's passes up to a number have ended well everywhere: bytes (a head, with that number).
 *
 *   weft:abort  the pass has failed: bytes (a head), i64 (a status), i64 (the rank that failed, or -1), string
 *
 * A head: the context's rank u32, incarnation u32 and number u64; root u32; number of the pass u64; flags u8. With
 * WFI_PASS_FINAL the number u64 of the root's last final pass follows.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"
#include "rpc/client/client.h"
#include "tensor/check.h"
#include "value/value.h"

#include <stdlib.h>
#include <string.h>

void wfi_pass_write_head(const wfi_pass *pass, uint64_t number, unsigned flags, uint64_t final, wfi_writer *writer)
{
    const weft_context_id *id = &pass->context_id;
    wfi_write_u32(writer, id->rank);
    wfi_write_u32(writer, id->incarnation);
    wfi_write_u64(writer, id->number);
    wfi_write_u32(writer, (uint32_t)pass->result.root);
    wfi_write_u64(writer, number);
    wfi_write_u8(writer, (uint8_t)(flags | (final ? WFI_PASS_FINAL : 0)));
    if (final)
        wfi_write_u64(writer, final);
}

/* The lists of the next message to one peer. */
typedef struct lists {
    wfi_writer pending, absent, numbers;
    wfi_pointers gradients; /* borrowed from the recvs */
    wfi_writer devices;     /* of each gradient at the peer, as a byte */
    bool names_devices;     /* not all are on the CPU, here and there */
} lists;

/*
 * Collects the unsent answers to `peer`, oldest first, up to WFI_PASS_GRADIENTS_MAX gradients. With `lists_pending`
 * also the pending list: the numbers of all recvs that this message does not answer, and a later one will. Returns the
 * first answer that is left for a further message.
 */
static wfi_pass_recv *gather(const wfi_pass_peer *peer, bool lists_pending, lists *out)
{
    wfi_pass_recv *recv = peer->unsent;
    for (; recv && out->gradients.count < WFI_PASS_GRADIENTS_MAX; recv = recv->next_unsent) {
        if (recv->state == WFI_RECV_ABSENT) {
            wfi_write_u64(&out->absent, recv->pair.number);
            continue;
        }
        wfi_write_u64(&out->numbers, recv->pair.number);
        wfi_write_u8(&out->devices, recv->pair.device);
        out->names_devices |= recv->pair.device || wfi_tensor_is_on_gpu(recv->gradient);
        if (!wfi_pointers_push(&out->gradients, recv->gradient)) {
            out->numbers.failed = true;
            break;
        }
    }
    for (const wfi_pass_recv *left = lists_pending ? recv : NULL; left; left = left->next_unsent)
        wfi_write_u64(&out->pending, left->pair.number);
    for (const wfi_pass_recv *pending = lists_pending ? peer->recvs : NULL; pending; pending = pending->next)
        if (pending->state == WFI_RECV_PENDING)
            wfi_write_u64(&out->pending, pending->pair.number);
    return recv;
}

/* All answers before `left` have been sent. */
static void mark_sent(wfi_pass_peer *peer, const wfi_pass_recv *left)
{
    while (peer->unsent != left) {
        wfi_pass_recv *recv = peer->unsent;
        peer->unsent = recv->next_unsent;
        if (recv->state == WFI_RECV_READY)
            peer->unsent_gradients--;
        else
            peer->unsent_absent--;
        weft_tensor_unref(recv->gradient);
        recv->gradient = NULL;
        recv->state = WFI_RECV_ANSWERED;
    }
}

/* For the callback of a call: the event that it posts. */
typedef struct answer_arg {
    wfi_pass *pass;
    wfi_pass_event *event; /* NULL: it was posted */
} answer_arg;

/* Posts that a call of the pass has ended. Takes over the event. */
static void post_answer(wfi_pass *pass, weft_future *call, wfi_pass_event *event, wfi_pass_runner runner)
{
    const weft_error *error = weft_future_error(call);
    bool all = false;
    if (error)
        event->error = weft_error_ref(error);
    else if (wfi_values_get(weft_future_values(call), 0, WEFT_TYPE_BOOL, &all, sizeof(all)))
        event->error =
            weft_error_create(WEFT_ERR_PROTOCOL, "rank %d gave a malformed answer in a backward pass", event->rank);
    event->all_answered = all;
    wfi_pass_post(pass, event, runner);
}

static void answered(weft_future *future, void *arg)
{
    answer_arg *answer = arg;
    wfi_pass_event *event = answer->event;
    answer->event = NULL;
    post_answer(answer->pass, future, event, WFI_RUN_HERE);
}

static void free_answer(void *arg)
{
    answer_arg *answer = arg;
    if (answer->event)
        wfi_pass_free_event(answer->event);
    wfi_pass_unref(answer->pass);
    free(answer);
}

/* Has the event posted when the call has ended, and takes the event over: see wfi_waiter_call. */
static weft_status follow_call(wfi_pass *pass, weft_future *call, wfi_pass_event *event)
{
    if (pass->waiter_runs && pass->waiter_call_count < WFI_PASS_WAITS) {
        pass->waiter_calls[pass->waiter_call_count++] = (wfi_waiter_call){weft_future_ref(call), event};
        return WEFT_OK;
    }
    answer_arg *answer = wfi_calloc(1, sizeof(*answer));
    if (!answer) {
        wfi_pass_free_event(event);
        return WEFT_ERR_MEMORY;
    }
    *answer = (answer_arg){wfi_pass_ref(pass), event};
    return wfi_future_add_ending_callback(call, answered, answer, free_answer);
}

void wfi_pass_wait_for_calls(wfi_pass *pass)
{
    weft_future *calls[WFI_PASS_WAITS];
    while (pass->waiter_call_count > 0) { /* the first one to be answered: its content may be needed for the others */
        size_t count = pass->waiter_call_count, first = 0;
        for (size_t i = 0; i < count; i++)
            calls[i] = pass->waiter_calls[i].call;
        if (count > 1 && wfi_future_wait_any(calls, count, WEFT_FOREVER, &first))
            first = 0;
        (void)!wfi_future_wait(calls[first], WEFT_FOREVER); /* its error is the answer */
        wfi_waiter_call one = pass->waiter_calls[first];
        pass->waiter_calls[first] = pass->waiter_calls[--pass->waiter_call_count];
        post_answer(pass, one.call, one.event, WFI_RUN_WAITER);
        weft_future_unref(one.call);
    }
}

/* Starts a call of "weft:pass" to that worker. `devices`: of the gradients there; NULL: the CPU. */
static weft_status call_pass(wfi_pass *pass, int rank, weft_args args, const uint8_t *devices)
{
    weft_agent *agent = pass->agent;
    weft_worker to = {rank, pass->peers[rank].incarnation};
    weft_future *future = NULL;
    weft_error *error = NULL;
    const wfi_reserved_call call = {.function = WFI_PASS_FUNCTION,
                                    .arguments = args,
                                    .timeout_ms = WEFT_FOREVER,
                                    .within = &pass->span,
                                    .devices = devices};
    wfi_pass_event *event = wfi_calloc(1, sizeof(*event)); /* if it were made later, and failed, the pass would hang */
    weft_status status =
        event ? wfi_rpc_start_reserved(agent, weft_to_worker(to), &call, &future, &error) : WEFT_ERR_MEMORY;
    if (status) {
        wfi_error_detail detail = {.code = status, .function = "backward", .worker = rank};
        char who[WFI_PASS_WHO_MAX];
        if (!pass->engine.error)
            pass->engine.error =
                wfi_error_create(&detail, "the message of the backward pass to %s: %s", wfi_pass_who(pass, rank, who),
                                 error ? weft_error_message(error) : weft_status_text(status));
        weft_error_unref(error);
        free(event);
        return status;
    }
    event->kind = WFI_PASS_EVENT_ANSWER;
    event->rank = rank;
    pass->calls++;
    pass->peers[rank].calls++;
    if (follow_call(pass, future, event) || !wfi_pointers_push(&pass->futures, future)) {
        (void)!weft_future_cancel(future); /* it may have been answered */
        weft_future_unref(future);
        return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

/* Writes the next message to that worker. */
static weft_status write_to(wfi_pass *pass, int rank)
{
    wfi_pass_peer *peer = &pass->peers[rank];
    bool lists_pending = !peer->has_pending_list;
    unsigned flags = (peer->awaited ? WFI_PASS_ASKS : 0) | (lists_pending ? WFI_PASS_LISTS_PENDING : 0) |
                     (pass->flags & (WFI_PASS_RETAINS | WFI_PASS_UNORDERED));
    uint8_t room[WFI_PASS_HEAD_BYTES];
    wfi_writer head;
    lists out = {.names_devices = wfi_devices_map_cpu(pass->agent)};
    wfi_writer_init(&head, room, sizeof(room));
    wfi_mutex_lock(&pass->context->lock);
    uint64_t final = wfi_context_last_final(pass->context, pass->result.root);
    wfi_mutex_unlock(&pass->context->lock);
    wfi_pass_write_head(pass, pass->result.number, flags, final, &head);
    wfi_writer_init_growing(&out.pending);
    wfi_writer_init_growing(&out.absent);
    wfi_writer_init_growing(&out.numbers);
    wfi_writer_init_growing(&out.devices);
    const wfi_pass_recv *left = gather(peer, lists_pending, &out);
    bool whole = !out.pending.failed && !out.absent.failed && !out.numbers.failed && !out.devices.failed;
    weft_status status = whole ? WEFT_OK : WEFT_ERR_MEMORY;
    if (!status)
        status = call_pass(
            pass, rank,
            WEFT_VALUES(weft_of_bytes(room, head.size), weft_of_bytes(out.pending.data, out.pending.size),
                        weft_of_bytes(out.absent.data, out.absent.size),
                        weft_of_bytes(out.numbers.data, out.numbers.size),
                        weft_of_bytes(pass->step_names, pass->step_size),
                        weft_of_tensors((weft_tensors){(weft_tensor **)out.gradients.items, out.gradients.count})),
            out.names_devices ? out.devices.data : NULL);
    if (!status) {
        wfi_pass_observe_message(pass, WFI_PASS_SENT,
                                 (weft_tensors){(weft_tensor **)out.gradients.items, out.gradients.count});
        mark_sent(peer, left);
    }
    peer->has_pending_list = peer->sent = true;
    peer->wants_pending_list = false;
    wfi_writer_fini(&out.pending);
    wfi_writer_fini(&out.absent);
    wfi_writer_fini(&out.numbers);
    wfi_writer_fini(&out.devices);
    free(out.gradients.items);
    return status;
}

weft_status wfi_pass_write(wfi_pass *pass)
{
    int world = pass->agent->options.values.world_size;
    weft_status status = WEFT_OK;
    for (int rank = 0; rank < world && !status; rank++) {
        const wfi_pass_peer *peer = &pass->peers[rank];
        /* the cases of pass.h, in its order */
        if (peer->unsent_gradients || (peer->wants_pending_list && !peer->has_pending_list) ||
            (peer->has_pending_list && peer->unsent_absent) || (peer->awaited && !peer->received && !peer->sent))
            status = write_to(pass, rank);
        while (!status && peer->unsent) /* they did not all fit in one message */
            status = write_to(pass, rank);
    }
    return status;
}

void wfi_pass_send_final(wfi_pass *pass, uint64_t number, int except)
{
    uint8_t room[WFI_PASS_HEAD_BYTES];
    wfi_writer head;
    wfi_writer_init(&head, room, sizeof(room));
    wfi_pass_write_head(pass, number, 0, 0, &head);
    const wfi_reserved_call call = {.function = WFI_FINAL_FUNCTION,
                                    .arguments = WEFT_VALUES(weft_of_bytes(room, head.size))};
    for (int rank = 0; rank < pass->agent->options.values.world_size; rank++) {
        wfi_mutex_lock(&pass->lock);
        bool takes_part = pass->peers[rank].sent || pass->peers[rank].received;
        wfi_mutex_unlock(&pass->lock);
        if (!takes_part || rank == except)
            continue;
        weft_future *future = NULL;
        weft_error *unsent = NULL;
        weft_worker to = {rank, pass->peers[rank].incarnation};
        (void)!wfi_rpc_start_reserved(pass->agent, weft_to_worker(to), &call, &future, &unsent);
        weft_future_unref(future);
        weft_error_unref(unsent);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static bool read_numbers(const weft_call *call, size_t index, const uint64_t **numbers, size_t *count)
{
    size_t size;
    *numbers = weft_call_bytes(call, index, &size);
    *count = size / sizeof(uint64_t);
    return size % sizeof(uint64_t) == 0;
}

bool wfi_pass_read_head(const weft_agent *agent, const void *bytes, size_t size, wfi_pass_head *out)
{
    wfi_reader head;
    wfi_reader_init(&head, bytes, size);
    out->id.rank = wfi_read_u32(&head);
    out->id.incarnation = wfi_read_u32(&head);
    out->id.number = wfi_read_u64(&head);
    uint32_t rank = wfi_read_u32(&head), world = (uint32_t)agent->options.values.world_size;
    out->number = wfi_read_u64(&head);
    out->flags = wfi_read_u8(&head);
    out->final = out->flags & WFI_PASS_FINAL ? wfi_read_u64(&head) : 0;
    out->root = (int)rank;
    bool earlier = !out->final || out->final < out->number;
    return !head.failed && !wfi_reader_left(&head) && rank < world && out->id.rank < world && earlier;
}

bool wfi_pass_read(const weft_call *call, wfi_pass_message *out)
{
    size_t size;
    const void *bytes = weft_call_bytes(call, WFI_PASS_ARG_HEAD, &size);
    if (!wfi_pass_read_head(call->agent, bytes, size, &out->head) || out->head.flags & ~WFI_PASS_FLAGS)
        return false;
    out->step_names = weft_call_bytes(call, WFI_PASS_ARG_STEPS, &out->step_size);
    out->gradients = weft_call_tensors(call, WFI_PASS_ARG_GRADIENTS);
    return read_numbers(call, WFI_PASS_ARG_PENDING, &out->pending, &out->pending_count) &&
           read_numbers(call, WFI_PASS_ARG_ABSENT, &out->absent, &out->absent_count) &&
           read_numbers(call, WFI_PASS_ARG_NUMBERS, &out->numbers, &out->number_count) &&
           out->number_count == out->gradients.count;
}
