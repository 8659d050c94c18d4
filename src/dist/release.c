/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release.c - how a context ends at its holders, and how the opener learns who they are (contexts.h has the protocol).
 *
 * On the opener: wfi_contexts_notifying and wfi_contexts_notified for calls that carry `oldest_open` anyway, then
 * "weft:close". On a holder: wfi_contexts_end_older, and reports by "weft:joined". Calls are started by worker threads
 * without the agent lock, because they allocate and may wait; their answers arrive on any thread.
 */
#include "base/alloc.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "value/value.h"

#include <stdlib.h>

#define NOTIFY_MS 2           /* from the end of a context to "weft:close", unless a call notifies the holder before */
#define QUERY_MS 10000        /* after this time without a call a holder asks whether the context is over */
#define CLOSED_MAX 65536      /* numbers of closed contexts from `oldest_open` on that are kept for each opener */
#define CLOSE_NUMBERS_MAX 127 /* in one call of "weft:close" */

void wfi_contexts_end(wfi_contexts *all, weft_context *context, weft_status why, const char *text)
{
    wfi_contexts_remove(all, context);
    wfi_mutex_lock(&context->lock);
    context->over = true;
    wfi_mutex_unlock(&context->lock);
    wfi_passes_cancel(context, why, text);
    wfi_contexts_report(context); /* names the workers called meanwhile, which the opener may not know */
    wfi_context_unref_later(context);
}

/* ---- Contexts that are over -------------------------------------------------------------------------------------- */

/* Ends the contexts of an opener with numbers below `oldest_open`. */
static void end_below(wfi_contexts *all, uint32_t rank, uint32_t incarnation, uint64_t oldest_open, weft_status why,
                      const char *text)
{
    weft_context *found;
    do { /* the table changes when a context is taken out */
        size_t cursor = 0;
        found = NULL;
        for (weft_context *at; !found && (at = wfi_map_next(&all->table, &cursor, NULL));)
            for (; at && !found; at = at->next_same)
                if (at->id.rank == rank && at->id.incarnation == incarnation && at->id.number < oldest_open)
                    found = at;
        if (found)
            wfi_contexts_end(all, found, why, text);
    } while (found);
}

/*
 * Forgets the closed numbers below `oldest_open`. A hostile opener may raise it by 2^63, so a loop over all numbers in
 * between could run forever: the number of steps is at most that of the numbers that are kept.
 */
static void forget_below(wfi_opener *opener, uint64_t oldest_open, const wfi_hash_key *hash_key)
{
    wfi_map *closed = &opener->closed, left;
    if (oldest_open - opener->oldest_open <= closed->count) {
        for (uint64_t number = opener->oldest_open; number < oldest_open; number++)
            wfi_map_take(closed, number);
        return;
    }
    size_t cursor = 0;
    uint64_t number = 0;
    wfi_map_init_keyed(&left, hash_key);
    for (void *value; (value = wfi_map_next(closed, &cursor, &number));)
        if (number >= oldest_open)
            (void)!wfi_map_put(&left, number, value); /* without memory a late call may open it again: end_one */
    wfi_map_fini(closed);
    *closed = left;
}

void wfi_contexts_end_older(weft_agent *agent, uint32_t rank, uint32_t incarnation, uint64_t oldest_open)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    wfi_opener *opener = &all->openers[rank];
    if ((int)rank == wfi_agent_rank(agent) || opener->incarnation > incarnation)
        return;
    if (opener->incarnation < incarnation) {
        wfi_map_fini(&opener->closed);
        *opener = (wfi_opener){.incarnation = incarnation};
        wfi_map_init_keyed(&opener->closed, &agent->hash_key);
    }
    if (oldest_open <= opener->oldest_open)
        return;
    forget_below(opener, oldest_open, &agent->hash_key);
    opener->oldest_open = oldest_open;
    end_below(all, rank, incarnation, oldest_open, WEFT_ERR_CANCELLED, "its context was closed");
}

uint64_t wfi_contexts_oldest_open(const weft_agent *agent)
{
    const wfi_contexts *all = wfi_contexts_of(agent);
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->opened, link)
        if (!context->over || context->ended)
            return context->id.number;
    return all->last_number + 1;
}

/* ---- The opener: the end of its contexts ------------------------------------------------------------------------- */

void wfi_contexts_notify_soon(wfi_contexts *all)
{
    /* Without memory for a timer the next close notifies them. */
    (void)!wfi_net_timer_set(all->agent->net, &all->notify_timer,
                             wfi_deadline(wfi_net_clock(all->agent->net), NOTIFY_MS));
}

/* Completes the future of weft_context_close, if there is one: with `error`, or successfully. */
static void complete_end(weft_context *context, const weft_error *error)
{
    if (!context->ended)
        return;
    wfi_complete_future(context->ended, NULL, error);
    weft_future_unref(context->ended);
    context->ended = NULL;
}

/* Every worker that may have a part counts as a holder, and is notified. */
static void notify_everybody(weft_context *context)
{
    weft_agent *agent = context->agent;
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (rank != wfi_agent_rank(agent) && !context->holders[rank] && wfi_agent_knows_alive(agent, rank))
            context->holders[rank] = WFI_HOLDER_PRESENT;
    wfi_contexts_notify_soon(wfi_contexts_of(agent));
}

weft_future *wfi_contexts_end_future(weft_context *context)
{
    if (!context->ended) {
        context->ended = wfi_agent_future(context->agent);
        if (context->ended && context->holders_unknown)
            notify_everybody(context);
    }
    return weft_future_ref(context->ended);
}

void wfi_contexts_holders_unknown(weft_context *context)
{
    context->holders_unknown = true;
    if (context->ended)
        notify_everybody(context);
}

void wfi_contexts_drop_released(wfi_contexts *all)
{
    WFI_FOR_LIST_TAKING (weft_context, context, next, &all->opened, link) {
        bool released = context->over;
        for (int rank = 0; released && rank < all->agent->options.values.world_size; rank++)
            released = context->holders[rank] == WFI_HOLDER_NONE || context->holders[rank] == WFI_HOLDER_RELEASED;
        if (released) {
            complete_end(context, NULL);
            wfi_list_remove(&context->link);
            wfi_context_unref_later(context);
        }
    }
}

void wfi_contexts_fail_ends(wfi_contexts *all, weft_status why, const char *text)
{
    weft_error *error = weft_error_create(why, "the end of a context: %s", text);
    WFI_FOR_LIST (weft_context, context, &all->opened, link)
        complete_end(context, error);
    weft_error_unref(error);
}

void wfi_contexts_notifying(weft_agent *agent, int rank, uint64_t oldest_open)
{
    WFI_FOR_LIST (weft_context, context, &wfi_contexts_of(agent)->opened, link)
        if (context->over && context->id.number < oldest_open && context->holders[rank] == WFI_HOLDER_PRESENT)
            context->holders[rank] = WFI_HOLDER_NOTIFYING;
}

void wfi_contexts_notified(weft_agent *agent, int rank, uint64_t oldest_open, bool received)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    bool again = false;
    WFI_FOR_LIST (weft_context, context, &all->opened, link) {
        if (!context->over || context->id.number >= oldest_open || context->holders[rank] != WFI_HOLDER_NOTIFYING)
            continue;
        context->holders[rank] = received ? WFI_HOLDER_RELEASED : WFI_HOLDER_PRESENT;
        again = again || !received;
    }
    wfi_contexts_drop_released(all);
    if (again)
        wfi_contexts_notify_soon(all);
}

/* ---- The opener: "weft:close" ------------------------------------------------------------------------------------ */

/*
 * A call of "weft:close" to worker `rank`. It carries `oldest_open`, and the numbers from there on of contexts that are
 * over. The answer has one set of ranks for each number: the workers that the callee has called under that context. Bit
 * r % 8 of byte r / 8 is rank r.
 */
typedef struct close_call {
    weft_agent *agent; /* referenced */
    int rank;
    uint64_t oldest_open;
    uint64_t numbers[CLOSE_NUMBERS_MAX];
    size_t count;
} close_call;

/* Whether the call says that context `number` is over. */
static bool covers(const close_call *close, uint64_t number)
{
    size_t i = 0;
    while (i < close->count && close->numbers[i] != number)
        i++;
    return number < close->oldest_open || i < close->count;
}

/* Whether a worker that answered "weft:close" in this way has no part in the contexts any longer. */
static bool has_released(weft_status answer)
{
    return answer == WEFT_OK || answer == WEFT_ERR_PEER_DEAD || answer == WEFT_ERR_PEER_LEFT ||
           answer == WEFT_ERR_NOT_FOUND; /* it knows no contexts */
}

static size_t set_size(const weft_agent *agent)
{
    return ((size_t)agent->options.values.world_size + 7) / 8;
}

/* Adds the holders that an answer names. Returns whether some of them have to be notified. */
static bool add_holders(weft_context *context, const uint8_t *set)
{
    weft_agent *agent = context->agent;
    bool added = false;
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        if (!(set[rank / 8] & 1u << rank % 8) || rank == wfi_agent_rank(agent))
            continue;
        if (!wfi_agent_knows_alive(agent, rank)) {
            wfi_contexts_holders_unknown(context);
        } else if (!context->holders[rank]) {
            context->holders[rank] = WFI_HOLDER_PRESENT;
            added = true;
        }
    }
    return added;
}

/*
 * Adds the holders that an answer to "weft:close" names. They are needed only if a future waits for the end:
 * otherwise "weft:joined" names them too. `values`: NULL if the answer is lost.
 */
static void process_close_answer(const close_call *close, const weft_values *values)
{
    wfi_contexts *all = wfi_contexts_of(close->agent);
    const void *bytes = NULL;
    size_t size = 0, each = set_size(close->agent);
    bool added = false,
         read = values && !weft_values_get_bytes(values, 0, &bytes, &size) && size == close->count * each;
    WFI_FOR_LIST (weft_context, context, &all->opened, link) {
        size_t i = 0;
        while (i < close->count && close->numbers[i] != context->id.number)
            i++;
        if (!context->ended || i == close->count)
            continue;
        if (read)
            added = add_holders(context, (const uint8_t *)bytes + i * each) || added;
        else
            wfi_contexts_holders_unknown(context);
    }
    if (added)
        wfi_contexts_notify_holders(&all->notify_timer);
}

/*
 * The call of "weft:close" has ended, with `error` or successfully. A worker that could not process it is notified
 * again. So is a worker that cannot be reached, or did not answer within the time limit of calls; but then the future
 * of weft_context_close fails, and does not wait for that worker. [agent lock]
 */
static void close_ended(const close_call *close, const weft_error *error, const weft_values *values)
{
    wfi_contexts *all = wfi_contexts_of(close->agent);
    weft_status status = weft_error_code(error);
    bool again = false;
    WFI_FOR_LIST (weft_context, context, &all->opened, link) {
        if (!context->over || context->holders[close->rank] != WFI_HOLDER_NOTIFYING ||
            !covers(close, context->id.number))
            continue;
        context->holders[close->rank] = has_released(status) ? WFI_HOLDER_RELEASED : WFI_HOLDER_PRESENT;
        again = again || !has_released(status);
        if (status == WEFT_ERR_UNREACHABLE || status == WEFT_ERR_TIMEOUT)
            complete_end(context, error);
    }
    bool has_not_run = status == WEFT_ERR_AGAIN || status == WEFT_ERR_BUSY || status == WEFT_ERR_NOT_FOUND ||
                       status == WEFT_ERR_CLOSED;
    if (!has_not_run)
        process_close_answer(close, values);
    wfi_contexts_drop_released(all);
    if (again)
        wfi_contexts_notify_soon(all);
}

static void close_answered(weft_future *future, void *arg)
{
    const close_call *close = arg;
    if (!wfi_agent_enter_locked(close->agent))
        return;
    close_ended(close, weft_future_error(future), weft_future_values(future));
    wfi_agent_leave_locked(close->agent);
}

static void free_close(void *arg)
{
    close_call *close = arg;
    wfi_agent_unref(close->agent);
    free(close);
}

/* Collects the contents of the call, and marks the holder as being notified. `also`: see wfi_contexts_send_close.
 * [agent lock] */
static void collect_closed(close_call *close, uint64_t also)
{
    const wfi_contexts *all = wfi_contexts_of(close->agent);
    close->oldest_open = wfi_contexts_oldest_open(close->agent);
    if (also >= close->oldest_open)
        close->numbers[close->count++] = also;
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->opened, link) {
        if (!context->over || context->holders[close->rank] != WFI_HOLDER_PRESENT)
            continue;
        if (!covers(close, context->id.number) && close->count < CLOSE_NUMBERS_MAX)
            close->numbers[close->count++] = context->id.number;
        if (covers(close, context->id.number))
            context->holders[close->rank] = WFI_HOLDER_NOTIFYING;
        else
            wfi_contexts_notify_soon((wfi_contexts *)all); /* there are too many for one call */
    }
}

void wfi_contexts_send_close(weft_agent *agent, int rank, uint64_t also)
{
    uint8_t room[(1 + CLOSE_NUMBERS_MAX) * sizeof(uint64_t)];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    close_call *close = wfi_calloc(1, sizeof(*close));
    wfi_net_lock(agent->net);
    if (close) {
        close->agent = wfi_agent_ref(agent);
        close->rank = rank;
        collect_closed(close, also);
    } else {
        wfi_contexts_notify_soon(wfi_contexts_of(agent));
    }
    wfi_net_unlock(agent->net);
    if (!close)
        return;
    wfi_write_u64(&writer, close->oldest_open);
    for (size_t i = 0; i < close->count; i++)
        wfi_write_u64(&writer, close->numbers[i]);
    const wfi_reserved_call call = {.function = "weft:close",
                                    .arguments = WEFT_VALUES(weft_of_bytes(room, writer.size))};
    weft_future *future = NULL;
    weft_error *error = NULL;
    if (wfi_rpc_start_reserved(agent, weft_to_rank(rank), &call, &future, &error)) {
        wfi_net_lock(agent->net);
        close_ended(close, error, NULL);
        wfi_net_unlock(agent->net);
        free_close(close);
        weft_error_unref(error);
        return;
    }
    close_call copy = *close; /* the callback may free `close` at once */
    wfi_agent_ref(agent);
    if (weft_future_add_done_callback(future, close_answered, close, free_close)) { /* without memory: again later */
        error = weft_error_create(WEFT_ERR_MEMORY, "out of memory");
        wfi_net_lock(agent->net);
        close_ended(&copy, error, NULL);
        wfi_net_unlock(agent->net);
        weft_error_unref(error);
    }
    wfi_agent_unref(agent);
    weft_future_unref(future);
}

/* Starts a call of "weft:close" on a worker thread. False: no memory. */
typedef struct close_task {
    wfi_task task;
    weft_agent *agent;
    int rank;
    uint64_t also;
} close_task;

static void run_close_task(wfi_task *task)
{
    close_task *later = wfi_container_of(task, close_task, task);
    if (wfi_agent_enter(later->agent)) {
        wfi_contexts_send_close(later->agent, later->rank, later->also);
        wfi_agent_leave(later->agent);
    }
    wfi_agent_unref(later->agent);
    free(later);
}

static bool send_close_later(weft_agent *agent, int rank, uint64_t also)
{
    close_task *later = wfi_calloc(1, sizeof(*later));
    if (!later)
        return false;
    *later = (close_task){.task.run = run_close_task, .agent = wfi_agent_ref(agent), .rank = rank, .also = also};
    wfi_net_defer(agent->net, &later->task, WFI_DEFER_WORKER);
    return true;
}

/* Whether the worker has a part in a closed context, and no call notifies it at present. */
static bool must_notify(const wfi_contexts *all, int rank)
{
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->opened, link)
        if (context->over && context->holders[rank] == WFI_HOLDER_PRESENT)
            return true;
    return false;
}

void wfi_contexts_notify_holders(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, notify_timer);
    for (int rank = 0; rank < all->agent->options.values.world_size; rank++) {
        if (!must_notify(all, rank))
            continue;
        if (!send_close_later(all->agent, rank, 0)) {
            wfi_contexts_notify_soon(all);
            return;
        }
    }
}

/* ---- The holder: reports by "weft:joined" ------------------------------------------------------------------------ */

/* A call of "weft:joined" to the opener of the context, which names the workers in `ranks`, u32 each. */
typedef struct report {
    wfi_task task;
    weft_context *context; /* referenced */
    wfi_writer ranks;
} report;

static void free_report(void *arg)
{
    report *r = arg;
    wfi_writer_fini(&r->ranks);
    wfi_context_unref(r->context);
    free(r);
}

/* The opener has answered whether the context is over. */
static void report_answered(weft_future *future, void *arg)
{
    const report *r = arg;
    weft_context *context = r->context;
    weft_agent *agent = context->agent;
    bool over = false;
    if (!wfi_agent_enter_locked(agent))
        return;
    context->reports = false;
    if (!weft_future_error(future) &&
        !wfi_values_get(weft_future_values(future), 0, WEFT_TYPE_BOOL, &over, sizeof(over)) && over && !context->over)
        wfi_contexts_end(wfi_contexts_of(agent), context, WEFT_ERR_CANCELLED, "its context was closed");
    else
        wfi_contexts_report(context);
    wfi_agent_leave_locked(agent);
}

/*
 * The report failed, or its answer will not be seen; query_timer reports again. `unsent`: the ranks of a report that
 * did not leave; NULL: it left.
 */
static void report_lost(weft_context *context, const wfi_writer *unsent)
{
    weft_agent *agent = context->agent;
    wfi_reader ranks;
    wfi_reader_init(&ranks, unsent ? unsent->data : NULL, unsent ? unsent->size : 0);
    if (!wfi_agent_enter_locked(agent))
        return;
    context->reports = false;
    while (wfi_reader_left(&ranks)) {
        context->holders[wfi_read_u32(&ranks)] = WFI_HOLDER_PRESENT;
        context->unreported++;
    }
    wfi_contexts_query_later(wfi_contexts_of(agent));
    wfi_agent_leave_locked(agent);
}

/* Sends the report, which it owns. weft_future_add_done_callback takes it over, even if it fails. */
static void run_report(wfi_task *task)
{
    report *r = wfi_container_of(task, report, task);
    weft_context *context = wfi_context_ref(r->context);
    const weft_context_id *id = &context->id;
    weft_agent *agent = context->agent;
    weft_future *future = NULL;
    weft_error *error = NULL;
    weft_status status = WEFT_ERR_CLOSED;
    if (wfi_agent_enter(agent)) {
        const wfi_reserved_call call = {
            .function = "weft:joined",
            .arguments = WEFT_VALUES(weft_of_i64((int64_t)id->number), weft_of_bytes(r->ranks.data, r->ranks.size))};
        status = r->ranks.failed
                     ? WEFT_ERR_MEMORY
                     : wfi_rpc_start_reserved(agent, weft_to_worker((weft_worker){(int)id->rank, id->incarnation}),
                                              &call, &future, &error);
        wfi_agent_leave(agent);
    }
    weft_error_unref(error);
    if (status) { /* its opener may have ended; then the context has too */
        report_lost(context, &r->ranks);
        free_report(r);
    } else if (weft_future_add_done_callback(future, report_answered, r, free_report)) {
        report_lost(context, NULL);
    }
    weft_future_unref(future);
    wfi_context_unref(context);
}

/* Reports this worker, and all workers that it has called and not reported; on a worker thread. [agent lock] */
static void begin_report(weft_context *context)
{
    int world = context->agent->options.values.world_size;
    report *r = wfi_calloc(1, sizeof(*r));
    if (!r)
        return; /* the reply to the opener's next call names them */
    r->context = wfi_context_ref(context);
    r->task.run = run_report;
    wfi_writer_init_growing(&r->ranks);
    for (int rank = 0; rank < world; rank++) {
        if (context->holders[rank] != WFI_HOLDER_PRESENT)
            continue;
        context->holders[rank] = WFI_HOLDER_REPORTED;
        wfi_write_u32(&r->ranks, (uint32_t)rank);
    }
    context->unreported = 0;
    context->reports = true;
    wfi_net_defer(context->agent->net, &r->task, WFI_DEFER_WORKER);
}

void wfi_contexts_report(weft_context *context)
{
    if (context->unreported && !context->served && !context->reports &&
        (int)context->id.rank != wfi_agent_rank(context->agent))
        begin_report(context);
}

void wfi_contexts_report_again(weft_context *context)
{
    if ((int)context->id.rank == wfi_agent_rank(context->agent))
        return;
    for (int rank = 0; rank < context->agent->options.values.world_size; rank++)
        if (context->holders[rank] == WFI_HOLDER_REPORTED)
            context->holders[rank] = WFI_HOLDER_PRESENT;
    begin_report(context);
}

void wfi_contexts_query_later(wfi_contexts *all)
{
    /* Without memory for a timer the next context of another worker sets it. */
    if (!all->query_timer_set)
        all->query_timer_set = !wfi_net_timer_set(all->agent->net, &all->query_timer,
                                                  wfi_deadline(wfi_net_clock(all->agent->net), QUERY_MS));
}

void wfi_contexts_query_openers(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, query_timer);
    size_t cursor = 0;
    bool again = false;
    all->query_timer_set = false;
    for (weft_context *context; (context = wfi_map_next(&all->table, &cursor, NULL));)
        for (; context; context = context->next_same) {
            if ((int)context->id.rank == wfi_agent_rank(all->agent))
                continue;
            if (context->idle && !context->served && !context->reports)
                begin_report(context);
            context->idle = again = true;
        }
    if (again)
        wfi_contexts_query_later(all);
}

/* ---- The opener: "weft:joined" ----------------------------------------------------------------------------------- */

/* This worker's context of that number. NULL: there was none, or it is over and all holders have released it. */
static weft_context *find_opened(const wfi_contexts *all, uint64_t number)
{
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->opened, link)
        if (context->id.number == number)
            return context;
    return NULL;
}

/*
 * Adds a reported holder to context `number` of this worker (`context`; NULL: all known holders have released it). If
 * the context is over, the holder is notified. If the holder has ended, the workers that it called are unknown.
 */
static void add_reported(wfi_contexts *all, weft_context *context, uint64_t number, int rank)
{
    weft_agent *agent = all->agent;
    if (rank < 0 || rank >= agent->options.values.world_size || rank == wfi_agent_rank(agent))
        return;
    if (!wfi_agent_knows_alive(agent, rank)) {
        if (context)
            wfi_contexts_holders_unknown(context);
        return;
    }
    if (context && !context->holders[rank])
        context->holders[rank] = WFI_HOLDER_PRESENT;
    if (context && context->over)
        wfi_contexts_notify_soon(all);
    else if (!context && number <= all->last_number)
        (void)!send_close_later(agent, rank, number); /* without memory the next call to it notifies it */
}

void wfi_contexts_late_holder(weft_context *context, int rank)
{
    wfi_contexts *all = wfi_contexts_of(context->agent);
    add_reported(all, find_opened(all, context->id.number), context->id.number, rank);
}

static weft_status run_joined(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    wfi_contexts *all = wfi_contexts_of(agent);
    const void *bytes = weft_call_bytes(call, 1, &size);
    uint64_t number = (uint64_t)weft_call_i64(call, 0);
    wfi_reader_init(&reader, bytes, size);
    if (size % sizeof(uint32_t) || size / sizeof(uint32_t) > (size_t)agent->options.values.world_size)
        return WEFT_ERR_PROTOCOL;
    wfi_net_lock(agent->net);
    weft_context *context = find_opened(all, number);
    /* If a future waits for the end, "weft:close" notifies the caller, because its answer names further holders. */
    bool over = number <= all->last_number && (!context || (context->over && !context->ended));
    add_reported(all, context, number, call->from);
    while (wfi_reader_left(&reader))
        add_reported(all, context, number, (int)wfi_read_u32(&reader));
    wfi_net_unlock(agent->net);
    weft_call_give(call, WEFT_VALUES(weft_of_bool(over)));
    return WEFT_OK;
}

const weft_function wfi_joined_function = {.name = "weft:joined",
                                           .takes = {WEFT_TYPE_I64, WEFT_TYPE_BYTES},
                                           .gives = {WEFT_TYPE_BOOL},
                                           .run = run_joined,
                                           .flags = WFI_AT_ONCE | WFI_LET_IN};

/* ---- The holder: "weft:close" ------------------------------------------------------------------------------------ */

/* Ends one context of the caller. Adds the workers that this worker has called under it to *set. [agent lock] */
static weft_status end_one(weft_agent *agent, const weft_context_id *id, uint8_t *set)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    wfi_opener *opener = &all->openers[id->rank];
    /* Above the limit the number is not kept: then a late call can create the context again, until `oldest_open` passes
     * the number. */
    if (opener->closed.count < CLOSED_MAX && wfi_map_put(&opener->closed, id->number, opener))
        return WEFT_ERR_MEMORY; /* the opener notifies this worker again */
    weft_context *context = wfi_contexts_find(agent, id);
    if (!context)
        return WEFT_OK;
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (context->holders[rank])
            set[rank / 8] |= (uint8_t)(1u << rank % 8);
    wfi_contexts_end(all, context, WEFT_ERR_CANCELLED, "its context was closed");
    return WEFT_OK;
}

/*
 * The contexts end here at once, even while handlers run under them: such a handler can start no more calls under them.
 * So the answer names all workers that this worker will ever have called.
 */
static weft_status run_close(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    uint64_t oldest_open = wfi_read_u64(&reader);
    if (reader.failed || size % sizeof(uint64_t) || size / sizeof(uint64_t) > 1 + CLOSE_NUMBERS_MAX)
        return WEFT_ERR_PROTOCOL;
    size_t sets_size = (size / sizeof(uint64_t) - 1) * set_size(agent);
    uint8_t *sets = wfi_calloc(sets_size, 1);
    if (!sets)
        return WEFT_ERR_MEMORY;
    weft_context_id id = {.rank = (uint32_t)call->from, .incarnation = call->incarnation};
    weft_status status = WEFT_OK;
    wfi_net_lock(agent->net);
    wfi_contexts_end_older(agent, id.rank, id.incarnation, oldest_open);
    for (uint8_t *set = sets; wfi_reader_left(&reader) && !status; set += set_size(agent)) {
        id.number = wfi_read_u64(&reader);
        if (id.rank != (uint32_t)wfi_agent_rank(agent) && id.number >= oldest_open)
            status = end_one(agent, &id, set);
    }
    wfi_net_unlock(agent->net);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_bytes(sets, sets_size)));
    free(sets);
    return status;
}

const weft_function wfi_close_function = {.name = "weft:close",
                                          .takes = {WEFT_TYPE_BYTES},
                                          .gives = {WEFT_TYPE_BYTES},
                                          .run = run_close,
                                          .flags = WFI_AT_ONCE | WFI_LET_IN};
