/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - WEFT_FUNCTION_ORDERED: the calls of one caller to one function run one after another, in their order.
 *
 * Each caller of such a function has a line: the calls that have arrived and whose handlers have not begun, in the
 * order in which their messages arrived. That is the order in which the caller sent them. A call enters the line before
 * its arguments are pulled. Only the first call of the line may begin, after its arguments have arrived and the handler
 * of the call before it has returned. A call that ends earlier leaves the line. A caller is one incarnation of a rank,
 * so a new incarnation does not wait for the handler of a dead one.
 */
#include "rpc/server/server.h"

#include "base/alloc.h"

#include <stdlib.h>

/* Freed when no call is in it. [agent lock] */
typedef struct wfi_line {
    wfi_registered *function;
    uint64_t caller;  /* its key in function->lines */
    wfi_list waiting; /* weft_call.line_link */
    bool busy;        /* the handler of one of its calls was queued, and has not returned */
} wfi_line;

static wfi_line *find_line(wfi_registered *function, uint64_t caller)
{
    wfi_line *line = wfi_map_get(&function->lines, caller);
    if (line)
        return line;
    line = wfi_calloc(1, sizeof(*line));
    if (!line)
        return NULL;
    line->function = function;
    line->caller = caller;
    wfi_list_init(&line->waiting);
    if (wfi_map_put(&function->lines, caller, line)) {
        free(line);
        return NULL;
    }
    return line;
}

weft_status wfi_order_join(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!(call->function->flags & WEFT_FUNCTION_ORDERED))
        return WEFT_OK;
    uint64_t caller = (uint64_t)call->from << 32 | call->incarnation;
    call->line = find_line(wfi_container_of(call->function, wfi_registered, function), caller);
    if (!call->line)
        return WEFT_ERR_MEMORY;
    wfi_list_push_back(&call->line->waiting, &call->line_link);
    call->in_line = true;
    return WEFT_OK;
}

/* Removes the first call from the line if it may begin; otherwise NULL. */
static weft_call *take_next(wfi_line *line)
{
    if (line->busy || wfi_list_empty(&line->waiting))
        return NULL;
    weft_call *first = wfi_container_of(line->waiting.next, weft_call, line_link);
    if (first->stage != WFI_SERVE_SERVING)
        return NULL; /* its arguments have not arrived */
    wfi_list_remove(&first->line_link);
    first->in_line = false;
    line->busy = true;
    return first;
}

/* Queues the handler. [agent lock] */
static void queue(weft_call *call)
{
    bool is_inline = call->function->flags & WEFT_FUNCTION_INLINE;
    wfi_defer_kind kind = is_inline ? WFI_DEFER_INLINE : WFI_DEFER_WORKER;
    if (call->function->flags & WFI_AT_ONCE)
        kind = WFI_DEFER_RELEASE;
    wfi_net_defer(call->agent->net, &call->task, kind);
    wfi_overload_watch(call->agent);
}

void wfi_order_run(weft_call *call)
{
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!call->line || take_next(call->line) == call)
        queue(call);
}

void wfi_order_leave(weft_call *call)
{
    wfi_line *line = call->line;
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!line)
        return;
    if (call->in_line)
        wfi_list_remove(&call->line_link);
    else
        line->busy = false;
    call->in_line = false;
    call->line = NULL;
    weft_call *next = take_next(line);
    if (next) {
        queue(next);
    } else if (!line->busy && wfi_list_empty(&line->waiting)) {
        wfi_map_take(&line->function->lines, line->caller);
        free(line);
    }
}

void wfi_order_skip(weft_call *call)
{
    if (!call->in_line || call->stage != WFI_SERVE_SERVING)
        return;
    wfi_order_leave(call);
    wfi_net_defer(call->agent->net, &call->task, WFI_DEFER_RELEASE);
}
