/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_calls.c - weft's own functions that workers call in a pass, at the callee. wfi_pass_admit checks a call of
 * "weft:pass" before its gradients are pulled. Then run_pass_call joins the pass, and queues the call as an event.
 * The functions "weft:final" and "weft:abort" change the result of a pass in its context. Worker threads run them all.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "dist/pass_impl.h"

#include <stdlib.h>
#include <string.h>

/* The pass of that root and number; NULL: none. With the context's lock. */
static wfi_pass *find_pass(const weft_context *context, int root, uint64_t number)
{
    WFI_FOR_LIST (wfi_pass, pass, (wfi_list *)&context->passes, result.link)
        if (pass->result.root == root && pass->result.number == number)
            return pass;
    return NULL;
}

/* Creates the part of a pass that another worker began, and charges it. NULL: no memory. With both locks. */
static wfi_pass *create_for_peer(weft_context *context, unsigned flags)
{
    wfi_pass *pass = wfi_pass_create(context, flags);
    if (!pass)
        return NULL;
    pass->for_peer = true;
    pass->counted_bytes = sizeof(*pass) + (size_t)context->agent->options.values.world_size * sizeof(*pass->peers);
    wfi_budget_keep_item(context->agent, (int64_t)pass->counted_bytes);
    return pass;
}

/* ---- Before gradients are pulled --------------------------------------------------------------------------------- */

#define STEP_NAMES_MAX ((size_t)64 << 10) /* for the names of optimizers that step in a pass */

/* Whether the types are right, the lists are of u64, and each gradient has a number. */
static bool are_well_formed(const wfi_peeked args[WFI_PASS_ARGS])
{
    for (int i = 0; i < WFI_PASS_ARGS; i++)
        if (args[i].type != (i == WFI_PASS_ARG_GRADIENTS ? WEFT_TYPE_TENSORS : WEFT_TYPE_BYTES) ||
            (i >= WFI_PASS_ARG_PENDING && i <= WFI_PASS_ARG_NUMBERS && args[i].size % sizeof(uint64_t)))
            return false;
    return args[WFI_PASS_ARG_NUMBERS].size / sizeof(uint64_t) == args[WFI_PASS_ARG_GRADIENTS].tensor_count;
}

/* Why `send`, number `number`, cannot have this gradient from the sender of `call`; WEFT_OK: it can. */
static weft_status gradient_fault(const wfi_send *send, const weft_call *call, const wfi_tensor_type *type)
{
    const wfi_result *sent = send ? &send->node->results[0] : NULL;
    if (!send || send->to != call->from || send->incarnation != call->incarnation)
        return WEFT_ERR_INVALID;
    if (type->to != send->device)
        return WEFT_ERR_UNSUPPORTED;
    return type->dtype == sent->dtype && wfi_shape_equal(&type->shape, &sent->shape) ? WEFT_OK : WEFT_ERR_SHAPE;
}

static uint64_t number_at(const wfi_peeked *numbers, size_t i)
{
    uint64_t number;
    memcpy(&number, numbers->bytes + i * sizeof(number), sizeof(number));
    return le64toh(number);
}

/*
 * Whether a number occurs twice; all are between 1 and `most`. Numbers usually grow, which needs no memory.
 * WEFT_ERR_MEMORY.
 */
static weft_status numbers_repeat(const wfi_peeked *numbers, size_t most, bool *out)
{
    size_t count = numbers->size / sizeof(uint64_t), i = 1;
    *out = false;
    while (i < count && number_at(numbers, i - 1) < number_at(numbers, i))
        i++;
    if (i >= count)
        return WEFT_OK;
    bool *seen = wfi_calloc(most + 1, sizeof(*seen));
    if (!seen)
        return WEFT_ERR_MEMORY;
    for (i = 0; i < count; i++) {
        bool *one = &seen[number_at(numbers, i)];
        *out = *out || *one;
        *one = true;
    }
    free(seen);
    return WEFT_OK;
}

/*
 * Each gradient must be for a tensor that this worker sent to the caller, and of its type. No number may occur twice.
 * With the context's lock.
 */
static weft_status gradients_fault(const weft_context *context, const weft_call *call, const wfi_peeked *args,
                                   char *problem, size_t room)
{
    const wfi_peeked *numbers = &args[WFI_PASS_ARG_NUMBERS];
    wfi_reader tensors = args[WFI_PASS_ARG_GRADIENTS].tensors;
    weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < args[WFI_PASS_ARG_GRADIENTS].tensor_count && !status; i++) {
        wfi_tensor_type type;
        uint64_t number = number_at(numbers, i);
        const wfi_send *send = number >= 1 && number <= context->send_count ? &context->sends[number - 1] : NULL;
        status = wfi_peek_tensor(&tensors, &type) ? gradient_fault(send, call, &type) : WEFT_ERR_PROTOCOL;
        if (status == WEFT_ERR_SHAPE)
            snprintf(problem, room,
                     "the gradient of rank %d for number %llu has not the shape and dtype of the tensor "
                     "that this worker sent",
                     call->from, (unsigned long long)number);
        else if (status == WEFT_ERR_UNSUPPORTED)
            snprintf(problem, room,
                     "the gradient of rank %d for number %llu does not go to the device of the tensor that this worker "
                     "sent",
                     call->from, (unsigned long long)number);
        else if (status)
            snprintf(problem, room,
                     "rank %d gives a gradient for number %llu: this worker sent it no tensor under that number",
                     call->from, (unsigned long long)number);
    }
    bool repeat = false;
    if (!status)
        status = numbers_repeat(numbers, context->send_count, &repeat);
    if (status == WEFT_ERR_MEMORY)
        snprintf(problem, room, "no memory to check the gradients of rank %d", call->from);
    if (!repeat)
        return status;
    snprintf(problem, room, "rank %d gives two gradients for one number", call->from);
    return WEFT_ERR_INVALID;
}

/*
 * Checks the lists of a message. A short message from a worker with which no tensor was exchanged is valid:
 * run_pass_call answers it. With the context's lock.
 */
static weft_status message_fault(const weft_context *context, const weft_call *call, const wfi_peeked *args, bool large,
                                 char *problem, size_t room)
{
    size_t pending = args[WFI_PASS_ARG_PENDING].size / sizeof(uint64_t);
    size_t absent = args[WFI_PASS_ARG_ABSENT].size / sizeof(uint64_t);
    size_t sent = context->send_count, listed = pending > absent ? pending : absent;
    if (large && !context->has_pairs[call->from])
        snprintf(problem, room, "rank %d has no part in the pass: no tensor crossed between it and this worker",
                 call->from);
    else if (listed > sent)
        snprintf(problem, room, "rank %d lists %zu tensors, of %zu that this worker sent", call->from, listed, sent);
    else if (args[WFI_PASS_ARG_STEPS].size > STEP_NAMES_MAX)
        snprintf(problem, room, "rank %d names optimizers in %zu bytes: a pass takes %zu bytes of them", call->from,
                 (size_t)args[WFI_PASS_ARG_STEPS].size, STEP_NAMES_MAX);
    else
        return gradients_fault(context, call, args, problem, room);
    return WEFT_ERR_INVALID;
}

/*
 * The bytes that messages of passes may take at once, even if the budget is smaller: otherwise no pass could end. In
 * one pass each tensor that was sent brings at most one gradient. For each context the running passes of this worker
 * count, and one pass of other workers. [agent lock]
 */
static uint64_t allowance_of(const weft_agent *agent)
{
    const wfi_contexts *all = wfi_contexts_of(agent);
    uint64_t bytes = STEP_NAMES_MAX * 2; /* in the metadata, and in decoded form */
    size_t cursor = 0;
    for (weft_context *context; (context = wfi_map_next(&all->table, &cursor, NULL));)
        for (; context; context = context->next_same) {
            uint64_t passes = 1;
            wfi_mutex_lock(&context->lock);
            WFI_FOR_LIST (const wfi_pass_result, pass, &context->passes, link)
                passes += pass->root == wfi_agent_rank(agent) && !pass->ended_well && !pass->error;
            bytes += context->send_bytes * passes;
            wfi_mutex_unlock(&context->lock);
        }
    return bytes;
}

/* Charges the message. `ended`: its pass is over here. [agent lock] */
static weft_status admit_bytes(weft_call *call, uint64_t bytes, bool ended, char *problem, size_t room)
{
    uint64_t allowance = ended || wfi_budget_has_reserved_room(call->agent, bytes) ? 0 : allowance_of(call->agent);
    return wfi_budget_admit_reserved(&call->charge, bytes, allowance, problem, room);
}

weft_status wfi_pass_admit(weft_call *call, const uint8_t *meta, size_t size, uint64_t bytes, char *problem,
                           size_t room)
{
    weft_agent *agent = call->agent;
    wfi_peeked args[WFI_PASS_ARGS];
    wfi_pass_head head;
    bool large = bytes > WFI_MESSAGE_MAX, ended = false;
    weft_status status = WEFT_OK;
    if (!meta)
        return admit_bytes(call, bytes, false, problem, room);
    if (!wfi_peek_values(meta, size, args, WFI_PASS_ARGS) || !are_well_formed(args) ||
        !wfi_pass_read_head(agent, args[WFI_PASS_ARG_HEAD].bytes, args[WFI_PASS_ARG_HEAD].size, &head)) {
        snprintf(problem, room, "malformed message of a backward pass");
        return WEFT_ERR_PROTOCOL;
    }
    weft_context *context = wfi_contexts_find(agent, &head.id);
    if (!context && (large || args[WFI_PASS_ARG_GRADIENTS].tensor_count)) {
        bool closed = wfi_contexts_was_closed(agent, &head.id);
        snprintf(problem, room, "its distributed context %s", closed ? "is over" : "is not known here");
        return closed ? WEFT_ERR_CANCELLED : WEFT_ERR_INVALID;
    }
    if (context) {
        wfi_mutex_lock(&context->lock);
        const wfi_pass *pass = find_pass(context, head.root, head.number);
        status = message_fault(context, call, args, large, problem, room);
        ended = pass && (pass->result.ended_well || pass->result.error);
        wfi_mutex_unlock(&context->lock);
    }
    if (status || large || args[WFI_PASS_ARG_GRADIENTS].tensor_count)
        return status ? status : admit_bytes(call, bytes, ended, problem, room);
    wfi_budget_charge(&call->charge, bytes);
    return WEFT_OK;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* A reason as text; empty: none. */
typedef struct reason {
    char text[WFI_ERROR_MESSAGE_MAX];
} reason;

/*
 * Returns the pass that a message of `from` names, with a reference; if it is new here, this worker joins it. NULL and
 * *status: it cannot be joined; `why` may say more. NULL and WEFT_OK: no tensor was exchanged between this worker and
 * `from`, so neither takes part in the other's passes. [agent lock]
 */
static wfi_pass *join_pass(weft_context *context, int from, const wfi_pass_head *head, weft_status *status, reason *why)
{
    wfi_mutex_lock(&context->lock);
    wfi_pass *pass = find_pass(context, head->root, head->number);
    if (!pass && context->over) {
        *status = WEFT_ERR_CANCELLED;
    } else if (!pass && head->root == wfi_agent_rank(context->agent)) {
        *status = WEFT_ERR_INVALID; /* this worker knows its own passes */
    } else if (!context->has_pairs[from]) {
        pass = NULL;
    } else if (pass) {
        wfi_pass_ref(pass);
    } else {
        *status = wfi_pass_check_budget(context, why->text, sizeof(why->text));
        pass = *status ? NULL : create_for_peer(context, head->flags);
        if (pass)
            wfi_pass_enlist(pass, head->root, head->number);
        else if (!*status)
            *status = WEFT_ERR_MEMORY;
    }
    wfi_mutex_unlock(&context->lock);
    return pass;
}

/* "weft:pass" */
static weft_status run_pass_call(weft_call *call, void *user)
{
    (void)user;
    wfi_pass_message message;
    weft_agent *agent = call->agent;
    weft_status status = WEFT_OK;
    reason why = {""};
    if (!wfi_pass_read(call, &message))
        return WEFT_ERR_PROTOCOL;
    wfi_pass_event *event = wfi_calloc(1, sizeof(*event));
    if (!event)
        return WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, &message.head.id);
    bool closed = !context && wfi_contexts_was_closed(agent, &message.head.id);
    wfi_pass *pass = context ? join_pass(context, call->from, &message.head, &status, &why) : NULL;
    wfi_net_unlock(agent->net);
    if (!pass) {
        free(event);
        if (*why.text)
            weft_call_fail(call, status, "%s", why.text);
        if (message.number_count && !status)
            status = WEFT_ERR_INVALID;
        if (closed || status)
            return closed ? WEFT_ERR_CANCELLED : status;
        weft_call_give(call, WEFT_VALUES(weft_of_bool(true))); /* no tensor was exchanged with the caller */
        return WEFT_OK;
    }
    event->kind = WFI_PASS_EVENT_CALL;
    event->rank = call->from;
    event->call = weft_call_defer_keeping(call);
    wfi_pass_post(pass, event, WFI_RUN_HERE);
    wfi_pass_unref(pass);
    return WEFT_DEFERRED;
}

/*
 * "weft:final": marks the passes of a root as final. If the pass of that number was not final here, sends it on, so
 * that it reaches all workers of the pass, and each worker sends it once. A thread that runs a pass adds the
 * gradients up.
 */
static weft_status run_final_call(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_pass_head head;
    weft_agent *agent = call->agent;
    wfi_pass *pass = NULL;
    const void *bytes = weft_call_bytes(call, 0, &size);
    if (!wfi_pass_read_head(agent, bytes, size, &head) || head.root == wfi_agent_rank(agent))
        return WEFT_ERR_PROTOCOL;
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, &head.id);
    if (context) {
        wfi_mutex_lock(&context->lock);
        if (context->has_pairs[call->from]) {
            pass = find_pass(context, head.root, head.number);
            bool is_new = pass && pass->result.ended_well && !pass->result.is_final;
            pass = is_new ? wfi_pass_ref(pass) : NULL;
            wfi_context_mark_final(context, head.root, head.number);
        }
        wfi_mutex_unlock(&context->lock);
    }
    wfi_net_unlock(agent->net);
    if (pass)
        wfi_pass_send_final(pass, head.number, call->from);
    wfi_pass_unref(pass);
    return WEFT_OK;
}

/* ---- Failures elsewhere ------------------------------------------------------------------------------------------ */

/*
 * Adds a pass that failed elsewhere before it reached this worker, so that a late message does not begin it. It never
 * runs. Returns it with a reference; NULL: no memory. With the context's lock.
 */
static wfi_pass *add_failed(weft_context *context, int root, uint64_t number, const weft_error *error)
{
    wfi_pass *pass = create_for_peer(context, 0);
    if (!pass)
        return NULL;
    wfi_pass_enlist(pass, root, number);
    pass->result.error = weft_error_ref((weft_error *)error);
    pass->over = true;
    pass->context = NULL; /* drops what only a running pass has */
    atomic_fetch_sub(&wfi_contexts_of(pass->agent)->passes, 1);
    wfi_context_unref(context);
    return pass;
}

/*
 * A pass failed elsewhere. If it ended well here, its gradients are dropped; if it runs here, it can no longer end
 * well. *out: the pass, with a reference; NULL: nothing is known of it. *ended: it has ended here. WEFT_ERR_MEMORY.
 * With the context's lock.
 */
static weft_status end_here(weft_context *context, int root, uint64_t number, const weft_error *error, wfi_pass **out,
                            bool *ended)
{
    wfi_pass *pass = find_pass(context, root, number);
    bool is_root = root == wfi_agent_rank(context->agent); /* it knows its passes from their beginning */
    *ended = false;
    *out = NULL;
    if (!pass && (context->over || is_root))
        return WEFT_OK;
    if (!pass) {
        *out = add_failed(context, root, number, error);
        *ended = true;
        return *out ? WEFT_OK : WEFT_ERR_MEMORY;
    }
    *out = wfi_pass_ref(pass);
    *ended = pass->result.ended_well || pass->result.error;
    if (!wfi_pass_undo(context, &pass->result, error) && !pass->result.error)
        pass->result.error = weft_error_ref((weft_error *)error);
    return WEFT_OK;
}

/*
 * Pass `number` of `root` failed elsewhere, as `from` reports; `takes_part`: `from` must take part in this worker's
 * passes. Not locked.
 */
static weft_status fail_here(weft_agent *agent, const weft_context_id *id, int root, uint64_t number, int from,
                             bool takes_part, const weft_error *error)
{
    wfi_pass *pass = NULL;
    bool ended = false;
    weft_status status = WEFT_OK;
    wfi_net_lock(agent->net);
    weft_context *context = wfi_contexts_find(agent, id);
    if (context) {
        wfi_context_ref(context);
        wfi_mutex_lock(&context->lock);
        if (!takes_part || context->has_pairs[from])
            status = end_here(context, root, number, error, &pass, &ended);
        wfi_mutex_unlock(&context->lock);
    }
    wfi_net_unlock(agent->net);
    if (context)
        wfi_context_sum_final(context); /* drops what was undone */
    wfi_context_unref(context);
    if (pass && ended)
        wfi_pass_abort(pass, error); /* tells the other workers of the pass */
    else if (pass)
        wfi_pass_post_failure(pass, WFI_PASS_EVENT_FAIL, from, weft_error_ref((weft_error *)error), WFI_RUN_HERE);
    wfi_pass_unref(pass);
    return status;
}

/* "weft:abort" */
static weft_status run_abort_call(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_pass_head head;
    weft_agent *agent = call->agent;
    const void *bytes = weft_call_bytes(call, 0, &size);
    int64_t code = weft_call_i64(call, 1), where = weft_call_i64(call, 2);
    if (!wfi_pass_read_head(agent, bytes, size, &head) || code >= 0 || code < INT32_MIN ||
        !wfi_status_is_known((int)code) || where < -1 || where >= agent->options.values.world_size)
        return WEFT_ERR_PROTOCOL;
    wfi_error_detail detail = {.code = (weft_status)code, .function = "backward", .worker = (int)where};
    weft_error *error = wfi_error_create(&detail, "%s", weft_call_string(call, 3));
    weft_status status = fail_here(agent, &head.id, head.root, head.number, call->from, true, error);
    weft_error_unref(error);
    return status;
}

static const weft_function abort_function = {.name = "weft:abort",
                                             .takes = {WEFT_TYPE_BYTES, WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_STRING},
                                             .run = run_abort_call,
                                             .flags = WEFT_FUNCTION_URGENT | WFI_LET_IN};

void wfi_passes_write_failed(weft_context *context, wfi_writer *out)
{
    uint32_t count = 0;
    wfi_mutex_lock(&context->lock);
    WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link)
        count += pass->error != NULL;
    wfi_write_u32(out, count);
    WFI_FOR_LIST (wfi_pass_result, pass, &context->passes, link) {
        if (!pass->error)
            continue;
        wfi_write_u32(out, (uint32_t)pass->root);
        wfi_write_u64(out, pass->number);
    }
    wfi_mutex_unlock(&context->lock);
}

weft_status wfi_passes_read_failed(const weft_call *call, const weft_context_id *id, wfi_reader *in)
{
    weft_agent *agent = call->agent;
    uint32_t count = wfi_read_u32(in), world = (uint32_t)agent->options.values.world_size;
    wfi_error_detail detail = {.code = WEFT_ERR_CANCELLED, .function = "backward", .worker = call->from};
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        uint32_t root = wfi_read_u32(in);
        uint64_t number = wfi_read_u64(in);
        if (in->failed || root >= world)
            return WEFT_ERR_PROTOCOL;
        const char *names[] = {weft_agent_name(agent, call->from), weft_agent_name(agent, (int)root)};
        weft_error *error =
            wfi_error_create(&detail, "rank %d (%s) knows that the pass of rank %u (%s) failed", call->from,
                             names[0] ? names[0] : "unknown", (unsigned)root, names[1] ? names[1] : "unknown");
        weft_status status = fail_here(agent, id, (int)root, number, call->from, false, error);
        weft_error_unref(error);
        if (status)
            return status;
    }
    return in->failed ? WEFT_ERR_PROTOCOL : WEFT_OK;
}

/* ---- Their registration ------------------------------------------------------------------------------------------ */

weft_status wfi_passes_register(weft_agent *agent)
{
    static const weft_function pass_function = {.name = WFI_PASS_FUNCTION,
                                                .takes = {WEFT_TYPE_BYTES, WEFT_TYPE_BYTES, WEFT_TYPE_BYTES,
                                                          WEFT_TYPE_BYTES, WEFT_TYPE_BYTES, WEFT_TYPE_TENSORS},
                                                .gives = {WEFT_TYPE_BOOL},
                                                .run = run_pass_call,
                                                .flags = WFI_RESERVED | WEFT_FUNCTION_URGENT};
    static const weft_function final_function = {.name = WFI_FINAL_FUNCTION,
                                                 .takes = {WEFT_TYPE_BYTES},
                                                 .run = run_final_call,
                                                 .flags = WFI_AT_ONCE | WFI_LET_IN};
    weft_status status = wfi_function_register(agent, &pass_function, NULL);
    if (!status)
        status = wfi_function_register(agent, &final_function, NULL);
    return status ? status : wfi_function_register(agent, &abort_function, NULL);
}
