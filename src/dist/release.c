/* SPDX-License-Identifier: Apache-2.0 */
/* release.c - how a context ends: here, and at all its holders. */
#include "base/alloc.h"
#include "dist/contexts.h"
#include "dist/pass.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "value/value.h"

#include <stdlib.h>

#define TELL_MS 2
#define ASK_MS 10000
#define CLOSED_MOST 65536 /* numbers of closed contexts above the floor that are kept for each opener */

/* Takes a context out of the table: its passes end, and calls that name it fail. */
void wfi_contexts_end(wfi_contexts *all, weft_context *context, weft_status why, const char *text)
{
    wfi_contexts_take(all, context);
    wfi_mutex_lock(&context->lock);
    context->over = true;
    wfi_mutex_unlock(&context->lock);
    wfi_passes_cancel(context, why, text);
    wfi_contexts_report(context); /* names the workers called meanwhile, which the opener may not know */
    wfi_context_unref_later(context);
}

/* ---- What is over ------------------------------------------------------------------------------------------------ */

/* Ends all contexts of an opener below `floor`; if the opener has ended, all up to an incarnation. */
static void end_below(wfi_contexts *all, uint32_t rank, uint32_t incarnation, uint64_t floor, weft_status why,
                      const char *text)
{
    weft_context *found;
    do { /* the table changes when a context is taken out */
        size_t cursor = 0;
        found = NULL;
        for (weft_context *at; !found && (at = wfi_map_next(&all->table, &cursor, NULL));)
            for (; at && !found; at = at->next_same)
                if (at->id.rank == rank && at->id.incarnation == incarnation && at->id.number < floor)
                    found = at;
        if (found)
            wfi_contexts_end(all, found, why, text);
    } while (found);
}

/* Forgets the closed contexts below `floor`. The opener chooses the floor and the numbers, so the distance between two
 * floors bounds nothing: the loops end after as many steps as there are numbers. */
static void forget_below(wfi_opener *opener, uint64_t floor, const wfi_hash_key *hash_key)
{
    wfi_map *closed = &opener->closed, left;
    if (floor - opener->floor <= closed->count) {
        for (uint64_t number = opener->floor; number < floor; number++)
            wfi_map_take(closed, number);
        return;
    }
    size_t cursor = 0;
    uint64_t number = 0;
    wfi_map_init_keyed(&left, hash_key);
    for (void *value; (value = wfi_map_next(closed, &cursor, &number));)
        if (number >= floor)
            (void)!wfi_map_put(&left, number, value); /* without memory a late call may open it again: run_close */
    wfi_map_fini(closed);
    *closed = left;
}

void wfi_contexts_floor(weft_agent *agent, uint32_t rank, uint32_t incarnation, uint64_t floor)
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
    if (floor <= opener->floor)
        return;
    forget_below(opener, floor, &agent->hash_key);
    opener->floor = floor;
    end_below(all, rank, incarnation, floor, WEFT_ERR_CANCELLED, "its context was closed");
}

uint64_t wfi_contexts_our_floor(const weft_agent *agent)
{
    const wfi_contexts *all = wfi_contexts_of(agent);
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link)
        if (!context->over || context->ended)
            return context->id.number;
    return all->last_number + 1;
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

void wfi_contexts_look_again(wfi_contexts *all)
{
    /* Without memory for a timer the next close tells them. */
    (void)!wfi_net_timer_set(all->agent->net, &all->timer, wfi_deadline(wfi_net_clock(all->agent->net), TELL_MS));
}

/* Completes the future of weft_context_close, if there is one: with `error`, or successfully. */
static void settle_ended(weft_context *context, const weft_error *error)
{
    if (!context->ended)
        return;
    wfi_future_settle(context->ended, NULL, error);
    weft_future_unref(context->ended);
    context->ended = NULL;
}

/* Tells every worker that is not known to have released the context that it has ended. */
static void tell_everybody(weft_context *context)
{
    weft_agent *agent = context->agent;
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (rank != wfi_agent_rank(agent) && !context->holders[rank] && wfi_agent_knows_alive(agent, rank))
            context->holders[rank] = WFI_HOLDER_YES;
    wfi_contexts_look_again(wfi_contexts_of(agent));
}

weft_future *wfi_contexts_end_of(weft_context *context)
{
    if (!context->ended) {
        context->ended = wfi_agent_future(context->agent);
        if (context->ended && context->lost)
            tell_everybody(context);
    }
    return weft_future_ref(context->ended);
}

void wfi_contexts_lose_names(weft_context *context)
{
    context->lost = true;
    if (context->ended)
        tell_everybody(context);
}

/* Releases this worker's contexts that are over and known to be so by all. */
void wfi_contexts_forget_told(wfi_contexts *all)
{
    WFI_FOR_LIST_TAKING (weft_context, context, next, &all->ours, link) {
        bool told = context->over;
        for (int rank = 0; told && rank < all->agent->options.values.world_size; rank++)
            told = context->holders[rank] == WFI_HOLDER_NONE || context->holders[rank] == WFI_HOLDER_TOLD;
        if (told) {
            settle_ended(context, NULL);
            wfi_list_remove(&context->link);
            wfi_context_unref_later(context);
        }
    }
}

void wfi_contexts_give_up(wfi_contexts *all, weft_status why, const char *text)
{
    weft_error *error = weft_error_create(why, "the end of a context: %s", text);
    WFI_FOR_LIST (weft_context, context, &all->ours, link)
        settle_ended(context, error);
    weft_error_unref(error);
}

void wfi_contexts_telling(weft_agent *agent, int rank, uint64_t floor)
{
    WFI_FOR_LIST (weft_context, context, &wfi_contexts_of(agent)->ours, link)
        if (context->over && context->id.number < floor && context->holders[rank] == WFI_HOLDER_YES)
            context->holders[rank] = WFI_HOLDER_TELLING;
}

void wfi_contexts_told(weft_agent *agent, int rank, uint64_t floor, bool heard)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    bool again = false;
    WFI_FOR_LIST (weft_context, context, &all->ours, link) {
        if (!context->over || context->id.number >= floor || context->holders[rank] != WFI_HOLDER_TELLING)
            continue;
        context->holders[rank] = heard ? WFI_HOLDER_TOLD : WFI_HOLDER_YES;
        again = again || !heard;
    }
    wfi_contexts_forget_told(all);
    if (again)
        wfi_contexts_look_again(all);
}

/*
 * The contents of a call of "weft:close": the floor, and the numbers above it of contexts that are over. The answer has
 * one set of ranks for each number: the workers that the callee knows to have a part. Bit r % 8 of byte r / 8 is rank
 * r.
 */
#define TELL_MOST 127
typedef struct close_call {
    weft_agent *agent; /* referenced */
    int rank;
    uint64_t floor;
    uint64_t numbers[TELL_MOST];
    size_t count;
} close_call;

static bool is_told(const close_call *close, uint64_t number)
{
    size_t i = 0;
    while (i < close->count && close->numbers[i] != number)
        i++;
    return number < close->floor || i < close->count;
}

/* Whether a worker with this answer to "weft:close" holds nothing. */
static bool has_let_go(weft_status answer)
{
    return answer == WEFT_OK || answer == WEFT_ERR_PEER_DEAD || answer == WEFT_ERR_PEER_LEFT ||
           answer == WEFT_ERR_NOT_FOUND; /* it knows no contexts */
}

/* Whether a call of "weft:close" that failed in this way did not run at the worker. */
static bool has_not_run(weft_status answer)
{
    return answer == WEFT_ERR_AGAIN || answer == WEFT_ERR_BUSY || answer == WEFT_ERR_NOT_FOUND ||
           answer == WEFT_ERR_CLOSED;
}

static size_t set_size(const weft_agent *agent)
{
    return ((size_t)agent->options.values.world_size + 7) / 8;
}

/* Adds the workers that may have a part in the context. Returns whether some of them have to be told of its end. */
static bool add_named(weft_context *context, const uint8_t *set)
{
    weft_agent *agent = context->agent;
    bool added = false;
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        if (!(set[rank / 8] & 1u << rank % 8) || rank == wfi_agent_rank(agent))
            continue;
        if (!wfi_agent_knows_alive(agent, rank)) {
            wfi_contexts_lose_names(context);
        } else if (!context->holders[rank]) {
            context->holders[rank] = WFI_HOLDER_YES;
            added = true;
        }
    }
    return added;
}

/*
 * An answer to "weft:close" names the workers that have a part in contexts that are over. Without a future of
 * weft_context_close the names are not needed now: "weft:joined" names them too. `values`: NULL if the names are
 * lost.
 */
static void take_names(const close_call *close, const weft_values *values)
{
    wfi_contexts *all = wfi_contexts_of(close->agent);
    const void *bytes = NULL;
    size_t size = 0, each = set_size(close->agent);
    bool added = false,
         read = values && !weft_values_get_bytes(values, 0, &bytes, &size) && size == close->count * each;
    WFI_FOR_LIST (weft_context, context, &all->ours, link) {
        size_t i = 0;
        while (i < close->count && close->numbers[i] != context->id.number)
            i++;
        if (!context->ended || i == close->count)
            continue;
        if (read)
            added = add_named(context, (const uint8_t *)bytes + i * each) || added;
        else
            wfi_contexts_lose_names(context);
    }
    if (added)
        wfi_contexts_tell_all(&all->timer);
}

/*
 * The call of "weft:close" has ended, with `error` or successfully. A worker that could not process it now is told
 * again. A worker that cannot be reached, or did not answer within the time limit of calls, is told again too, but
 * the future of weft_context_close does not wait for it.
 */
static void take_close_answer(const close_call *close, const weft_error *error, const weft_values *values)
{
    wfi_contexts *all = wfi_contexts_of(close->agent);
    weft_status st = weft_error_code(error);
    bool again = false;
    WFI_FOR_LIST (weft_context, context, &all->ours, link) {
        if (!context->over || context->holders[close->rank] != WFI_HOLDER_TELLING ||
            !is_told(close, context->id.number))
            continue;
        context->holders[close->rank] = has_let_go(st) ? WFI_HOLDER_TOLD : WFI_HOLDER_YES;
        again = again || !has_let_go(st);
        if (st == WEFT_ERR_UNREACHABLE || st == WEFT_ERR_TIMEOUT)
            settle_ended(context, error);
    }
    if (!has_not_run(st))
        take_names(close, values);
    wfi_contexts_forget_told(all);
    if (again)
        wfi_contexts_look_again(all);
}

static void close_answered(weft_future *future, void *arg)
{
    const close_call *close = arg;
    if (!wfi_agent_enter_locked(close->agent))
        return;
    take_close_answer(close, weft_future_error(future), weft_future_values(future));
    wfi_agent_leave_locked(close->agent);
}

static void free_close(void *arg)
{
    close_call *close = arg;
    wfi_agent_unref(close->agent);
    free(close);
}

/* Takes over `close`. Without memory to wait for the answer, the worker is told again later. */
static void hear_answer(weft_future *future, close_call *close)
{
    close_call copy = *close;
    wfi_agent_ref(copy.agent);
    if (weft_future_add_done_callback(future, close_answered, close, free_close)) {
        weft_error *error = weft_error_create(WEFT_ERR_MEMORY, "out of memory");
        wfi_net_lock(copy.agent->net);
        take_close_answer(&copy, error, NULL);
        wfi_net_unlock(copy.agent->net);
        weft_error_unref(error);
    }
    wfi_agent_unref(copy.agent);
}

/* Collects the content of the call; `also`: see wfi_contexts_tell. [agent lock] */
static void gather_ends(close_call *close, uint64_t also)
{
    const wfi_contexts *all = wfi_contexts_of(close->agent);
    close->floor = wfi_contexts_our_floor(close->agent);
    if (also >= close->floor)
        close->numbers[close->count++] = also;
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link) {
        if (!context->over || context->holders[close->rank] != WFI_HOLDER_YES)
            continue;
        if (!is_told(close, context->id.number) && close->count < TELL_MOST)
            close->numbers[close->count++] = context->id.number;
        if (is_told(close, context->id.number))
            context->holders[close->rank] = WFI_HOLDER_TELLING;
        else
            wfi_contexts_look_again((wfi_contexts *)all); /* there are too many for one call */
    }
}

void wfi_contexts_tell(weft_agent *agent, int rank, uint64_t also)
{
    uint8_t room[(1 + TELL_MOST) * sizeof(uint64_t)];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    close_call *close = wfi_calloc(1, sizeof *close);
    wfi_net_lock(agent->net);
    if (close) {
        close->agent = wfi_agent_ref(agent);
        close->rank = rank;
        gather_ends(close, also);
    } else {
        wfi_contexts_look_again(wfi_contexts_of(agent));
    }
    wfi_net_unlock(agent->net);
    if (!close)
        return;
    wfi_write_u64(&writer, close->floor);
    for (size_t i = 0; i < close->count; i++)
        wfi_write_u64(&writer, close->numbers[i]);
    const wfi_reserved_call call = {.function = "weft:close",
                                    .arguments = WEFT_VALUES(weft_of_bytes(room, writer.size))};
    weft_future *future = NULL;
    weft_error *error = NULL;
    if (wfi_rpc_start_reserved(agent, weft_to_rank(rank), &call, &future, &error)) {
        wfi_net_lock(agent->net);
        take_close_answer(close, error, NULL);
        wfi_net_unlock(agent->net);
        free_close(close);
    } else {
        hear_answer(future, close);
    }
    weft_error_unref(error);
    weft_future_unref(future);
}

typedef struct tell_task {
    wfi_task task;
    weft_agent *agent;
    int rank;
    uint64_t also;
} tell_task;

static void run_tell(wfi_task *task)
{
    tell_task *later = wfi_container_of(task, tell_task, task);
    if (wfi_agent_enter(later->agent)) {
        wfi_contexts_tell(later->agent, later->rank, later->also);
        wfi_agent_leave(later->agent);
    }
    wfi_agent_unref(later->agent);
    free(later);
}

static bool tell_later(weft_agent *agent, int rank, uint64_t also)
{
    tell_task *later = wfi_calloc(1, sizeof *later);
    if (!later)
        return false;
    *later = (tell_task){.task.run = run_tell, .agent = wfi_agent_ref(agent), .rank = rank, .also = also};
    wfi_net_defer(agent->net, &later->task, WFI_DEFER_WORKER);
    return true;
}

static bool is_untold(const wfi_contexts *all, int rank)
{
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link)
        if (context->over && context->holders[rank] == WFI_HOLDER_YES)
            return true;
    return false;
}

void wfi_contexts_tell_all(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, timer);
    for (int rank = 0; rank < all->agent->options.values.world_size; rank++) {
        if (!is_untold(all, rank))
            continue;
        if (!tell_later(all->agent, rank, 0)) {
            wfi_contexts_look_again(all);
            return;
        }
    }
}

/* ---- "weft:joined" ----------------------------------------------------------------------------------------------- */

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
        !wfi_values_get(weft_future_values(future), 0, WEFT_TYPE_BOOL, &over, sizeof over) && over && !context->over)
        wfi_contexts_end(wfi_contexts_of(agent), context, WEFT_ERR_CANCELLED, "its context was closed");
    else
        wfi_contexts_report(context);
    wfi_agent_leave_locked(agent);
}

/*
 * No answer will come. `unsaid`: ranks that the opener was not told; NULL: it was told all. The asking timer reports
 * again.
 */
static void report_lost(weft_context *context, const wfi_writer *unsaid)
{
    weft_agent *agent = context->agent;
    wfi_reader ranks;
    wfi_reader_init(&ranks, unsaid ? unsaid->data : NULL, unsaid ? unsaid->size : 0);
    if (!wfi_agent_enter_locked(agent))
        return;
    context->reports = false;
    while (wfi_reader_left(&ranks)) {
        context->holders[wfi_read_u32(&ranks)] = WFI_HOLDER_YES;
        context->untold++;
    }
    wfi_contexts_ask_later(wfi_contexts_of(agent));
    wfi_agent_leave_locked(agent);
}

static void run_report(wfi_task *task)
{
    report *r = wfi_container_of(task, report, task);
    weft_context *context = wfi_context_ref(r->context);
    const weft_context_id *id = &context->id;
    weft_agent *agent = context->agent;
    weft_future *future = NULL;
    weft_error *error = NULL;
    weft_status st = WEFT_ERR_CLOSED;
    if (wfi_agent_enter(agent)) {
        const wfi_reserved_call call = {
            .function = "weft:joined",
            .arguments = WEFT_VALUES(weft_of_i64((int64_t)id->number), weft_of_bytes(r->ranks.data, r->ranks.size))};
        st = r->ranks.failed
                 ? WEFT_ERR_MEMORY
                 : wfi_rpc_start_reserved(agent, weft_to_worker((weft_worker){(int)id->rank, id->incarnation}), &call,
                                          &future, &error);
        wfi_agent_leave(agent);
    }
    weft_error_unref(error);
    if (st) { /* its opener may have ended; then the context has too */
        report_lost(context, &r->ranks);
        free_report(r);
    } else if (weft_future_add_done_callback(future, report_answered, r, free_report)) {
        report_lost(context, NULL);
    }
    weft_future_unref(future);
    wfi_context_unref(context);
}

static void begin_report(weft_context *context)
{
    int world = context->agent->options.values.world_size;
    report *r = wfi_calloc(1, sizeof *r);
    if (!r)
        return; /* the opener's next call will get these names */
    r->context = wfi_context_ref(context);
    r->task.run = run_report;
    wfi_writer_init_growing(&r->ranks);
    for (int rank = 0; rank < world; rank++) {
        if (context->holders[rank] != WFI_HOLDER_YES)
            continue;
        context->holders[rank] = WFI_HOLDER_TELLING; /* here it means: this is not reported twice */
        wfi_write_u32(&r->ranks, (uint32_t)rank);
    }
    context->untold = 0;
    context->reports = true;
    wfi_net_defer(context->agent->net, &r->task, WFI_DEFER_WORKER);
}

void wfi_contexts_report(weft_context *context)
{
    if (context->untold && !context->served && !context->reports &&
        (int)context->id.rank != wfi_agent_rank(context->agent))
        begin_report(context);
}

/* A worker has ended, perhaps with reports about this worker and about those it named: each holder reports itself. */
void wfi_contexts_report_again(weft_context *context)
{
    if ((int)context->id.rank == wfi_agent_rank(context->agent))
        return;
    for (int rank = 0; rank < context->agent->options.values.world_size; rank++)
        if (context->holders[rank] == WFI_HOLDER_TELLING)
            context->holders[rank] = WFI_HOLDER_YES;
    begin_report(context);
}

void wfi_contexts_ask_later(wfi_contexts *all)
{
    /* Without memory for a timer the next context of another worker sets it. */
    if (!all->asks)
        all->asks =
            !wfi_net_timer_set(all->agent->net, &all->asking, wfi_deadline(wfi_net_clock(all->agent->net), ASK_MS));
}

void wfi_contexts_ask_openers(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, asking);
    size_t cursor = 0;
    bool again = false;
    all->asks = false;
    for (weft_context *context; (context = wfi_map_next(&all->table, &cursor, NULL));)
        for (; context; context = context->next_same) {
            if ((int)context->id.rank == wfi_agent_rank(all->agent))
                continue;
            if (context->quiet && !context->served && !context->reports)
                begin_report(context);
            context->quiet = again = true;
        }
    if (again)
        wfi_contexts_ask_later(all);
}

/* NULL: there was none of that number, or it is over and all holders know. */
static weft_context *ours_of(const wfi_contexts *all, uint64_t number)
{
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link)
        if (context->id.number == number)
            return context;
    return NULL;
}

/*
 * Adds a holder of a context of this worker; if the context is over, the holder is told. If the holder has ended, the
 * workers that it called are unknown.
 */
static void join_holder(wfi_contexts *all, weft_context *context, uint64_t number, int rank)
{
    weft_agent *agent = all->agent;
    if (rank < 0 || rank >= agent->options.values.world_size || rank == wfi_agent_rank(agent))
        return;
    if (!wfi_agent_knows_alive(agent, rank)) {
        if (context)
            wfi_contexts_lose_names(context);
        return;
    }
    if (context && !context->holders[rank])
        context->holders[rank] = WFI_HOLDER_YES;
    if (context && context->over)
        wfi_contexts_look_again(all);
    else if (!context && number <= all->last_number)
        (void)!tell_later(agent, rank, number); /* without memory it is told by the next call to it */
}

void wfi_contexts_late_holder(weft_context *context, int rank)
{
    wfi_contexts *all = wfi_contexts_of(context->agent);
    join_holder(all, ours_of(all, context->id.number), context->id.number, rank);
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
    weft_context *context = ours_of(all, number);
    /*
     * If a future waits for the end, the caller is told by "weft:close": its answer names the workers that it has
     * called.
     */
    bool over = number <= all->last_number && (!context || (context->over && !context->ended));
    join_holder(all, context, number, call->from);
    while (wfi_reader_left(&reader))
        join_holder(all, context, number, (int)wfi_read_u32(&reader));
    wfi_net_unlock(agent->net);
    weft_call_give(call, WEFT_VALUES(weft_of_bool(over)));
    return WEFT_OK;
}

const weft_function wfi_joined_function = {.name = "weft:joined",
                                           .takes = {WEFT_TYPE_I64, WEFT_TYPE_BYTES},
                                           .gives = {WEFT_TYPE_BOOL},
                                           .run = run_joined,
                                           .flags = WFI_AT_ONCE | WFI_LET_IN};

/* ---- "weft:close" ------------------------------------------------------------------------------------------------ */

/*
 * Ends one context of the caller's. *set gets the workers that may have a part in it because this worker has one.
 * [agent lock]
 */
static weft_status end_one(weft_agent *agent, const weft_context_id *id, uint8_t *set)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    wfi_opener *opener = &all->openers[id->rank];
    /* Above the limit the number is not kept: then a late call can open the context again until the floor passes its
     * number. */
    if (opener->closed.count < CLOSED_MOST && wfi_map_put(&opener->closed, id->number, opener))
        return WEFT_ERR_MEMORY; /* the opener tells it again */
    weft_context *context = wfi_contexts_find(agent, id);
    if (!context)
        return WEFT_OK;
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        if (context->holders[rank])
            set[rank / 8] |= (uint8_t)(1u << rank % 8);
    wfi_contexts_end(all, context, WEFT_ERR_CANCELLED, "its context was closed");
    return WEFT_OK;
}

/* [agent lock] */
static weft_status end_listed(weft_call *call, uint64_t floor, wfi_reader *numbers, uint8_t *sets)
{
    weft_agent *agent = weft_call_agent(call);
    weft_context_id id = {.rank = (uint32_t)call->from, .incarnation = call->incarnation};
    weft_status st = WEFT_OK;
    wfi_contexts_floor(agent, id.rank, id.incarnation, floor);
    for (; wfi_reader_left(numbers) && !st; sets += set_size(agent)) {
        id.number = wfi_read_u64(numbers);
        if (id.rank != (uint32_t)wfi_agent_rank(agent) && id.number >= floor)
            st = end_one(agent, &id, sets);
    }
    return st;
}

/*
 * The contexts end here at once, even while handlers run under them: those start no more calls under them. So the
 * answer names all workers that this worker has called.
 */
static weft_status run_close(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    uint64_t floor = wfi_read_u64(&reader);
    if (reader.failed || size % sizeof(uint64_t) || size / sizeof(uint64_t) > 1 + TELL_MOST)
        return WEFT_ERR_PROTOCOL;
    size_t sets_size = (size / sizeof(uint64_t) - 1) * set_size(agent);
    uint8_t *sets = wfi_calloc(sets_size, 1);
    if (!sets)
        return WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    weft_status st = end_listed(call, floor, &reader, sets);
    wfi_net_unlock(agent->net);
    if (!st)
        weft_call_give(call, WEFT_VALUES(weft_of_bytes(sets, sets_size)));
    free(sets);
    return st;
}

const weft_function wfi_close_function = {.name = "weft:close",
                                          .takes = {WEFT_TYPE_BYTES},
                                          .gives = {WEFT_TYPE_BYTES},
                                          .run = run_close,
                                          .flags = WFI_AT_ONCE | WFI_LET_IN};
