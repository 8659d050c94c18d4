/* SPDX-License-Identifier: Apache-2.0 */
/* contexts.c - the table of contexts, opening and closing them. */
#include "dist/contexts.h"

#include "base/alloc.h"
#include "dist/pass.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdlib.h>

#define TELL_MS 2

/* ---- The table --------------------------------------------------------------------------------------------------- */

static uint64_t key_of(const weft_agent *agent, const weft_context_id *id)
{
    uint64_t words[] = {id->rank, id->incarnation, id->number};
    return wfi_hash_keyed(&agent->hash_key, words, sizeof words);
}

weft_context *wfi_contexts_find(weft_agent *agent, const weft_context_id *id)
{
    weft_context *context = wfi_map_get(&wfi_contexts_of(agent)->table, key_of(agent, id));
    while (context && !wfi_context_is_of(context, id))
        context = context->next_same;
    return context;
}

static weft_status add(wfi_contexts *all, weft_context *context)
{
    uint64_t key = key_of(all->agent, &context->id);
    context->next_same = wfi_map_take(&all->table, key);
    if (wfi_map_put(&all->table, key, context)) {
        if (context->next_same && wfi_map_put(&all->table, key, context->next_same))
            return WEFT_ERR_MEMORY; /* cannot be: its place has just become free */
        return WEFT_ERR_MEMORY;
    }
    all->count++;
    return WEFT_OK;
}

typedef struct unref_task {
    wfi_task task;
    weft_context *context;
} unref_task;

static void run_unref(wfi_task *task)
{
    unref_task *later = wfi_container_of(task, unref_task, task);
    wfi_context_unref(later->context);
    free(later);
}

/* Drops a reference when the lock is let go. Without memory for that it is kept for ever. */
static void unref_later(weft_context *context)
{
    unref_task *later = wfi_calloc(1, sizeof *later);
    if (!later)
        return;
    *later = (unref_task){.task.run = run_unref, .context = context};
    wfi_net_defer(context->agent->net, &later->task, WFI_DEFER_RELEASE);
}

/* Takes a context out of the table: its passes end, and calls that name it fail. */
static void end_context(wfi_contexts *all, weft_context *context, weft_status why, const char *text)
{
    uint64_t key = key_of(all->agent, &context->id);
    weft_context *first = wfi_map_take(&all->table, key), **at = &first;
    while (*at && *at != context)
        at = &(*at)->next_same;
    if (*at)
        *at = context->next_same;
    if (first && wfi_map_put(&all->table, key, first))
        first = NULL; /* cannot be: its place has just become free */
    all->count--;
    wfi_mutex_lock(&context->lock);
    context->over = true;
    wfi_mutex_unlock(&context->lock);
    wfi_passes_cancel(context, why, text);
    unref_later(context);
}

weft_status wfi_contexts_join(weft_agent *agent, const weft_context_id *id, weft_context **out)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    const wfi_opener *opener = &all->openers[id->rank];
    *out = wfi_contexts_find(agent, id);
    if (*out)
        return WEFT_OK;
    const wfi_member *member = wfi_net_member(agent->net, (int)id->rank);
    if ((int)id->rank == wfi_agent_rank(agent) || !wfi_agent_knows_alive(agent, (int)id->rank) ||
        member->incarnation > id->incarnation || opener->incarnation > id->incarnation ||
        (opener->incarnation == id->incarnation &&
         (id->number < opener->floor || wfi_map_get(&opener->closed, id->number))))
        return WEFT_ERR_STATE;
    weft_context *context = wfi_context_create(agent, *id);
    if (!context)
        return WEFT_ERR_MEMORY;
    if (add(all, context)) {
        unref_later(context);
        return WEFT_ERR_MEMORY;
    }
    *out = context;
    return WEFT_OK;
}

/* ---- What is over ------------------------------------------------------------------------------------------------ */

/* Ends all contexts of an opener below `floor`, or up to an incarnation, if that is gone. */
static void end_below(wfi_contexts *all, uint32_t rank, uint32_t incarnation, uint64_t floor, weft_status why,
                      const char *text)
{
    weft_context *found;
    do { /* the table changes as one is taken out */
        size_t cursor = 0;
        found = NULL;
        for (weft_context *at; !found && (at = wfi_map_next(&all->table, &cursor, NULL));)
            for (; at && !found; at = at->next_same)
                if (at->id.rank == rank && at->id.incarnation == incarnation && at->id.number < floor)
                    found = at;
        if (found)
            end_context(all, found, why, text);
    } while (found);
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
    for (uint64_t number = opener->floor; number < floor && opener->closed.count; number++)
        wfi_map_take(&opener->closed, number);
    opener->floor = floor;
    end_below(all, rank, incarnation, floor, WEFT_ERR_CANCELLED, "its context was closed");
}

uint64_t wfi_contexts_our_floor(const weft_agent *agent)
{
    const wfi_contexts *all = wfi_contexts_of(agent);
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link)
        if (!context->over)
            return context->id.number;
    return all->last_number + 1;
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

static void look_again(wfi_contexts *all)
{
    /* Without memory for a timer they are told by the next close. */
    (void)!wfi_net_timer_set(all->agent->net, &all->timer, wfi_deadline(wfi_net_clock(all->agent->net), TELL_MS));
}

/* Lets go of those of ours that are over, and heard of by all. */
static void forget_told(wfi_contexts *all)
{
    WFI_FOR_LIST_TAKING (weft_context, context, next, &all->ours, link) {
        bool told = context->over;
        for (int rank = 0; told && rank < all->agent->options.values.world_size; rank++)
            told = !context->holders[rank];
        if (told) {
            wfi_list_remove(&context->link);
            unref_later(context);
        }
    }
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
        context->holders[rank] = heard ? WFI_HOLDER_NONE : WFI_HOLDER_YES;
        again = again || !heard;
    }
    forget_told(all);
    if (again)
        look_again(all);
}

/* What "weft:close" says: the floor, and the numbers above it that are over. */
typedef struct close_call {
    weft_agent *agent;
    int rank;
    uint64_t floor, most; /* what it told of: numbers up to `most` */
} close_call;

static void close_answered(weft_future *future, void *arg)
{
    const close_call *close = arg;
    bool heard = !weft_future_error(future) || weft_error_code(weft_future_error(future)) == WEFT_ERR_PEER_DEAD ||
                 weft_error_code(weft_future_error(future)) == WEFT_ERR_PEER_LEFT;
    if (!wfi_agent_enter_locked(close->agent))
        return;
    wfi_contexts_told(close->agent, close->rank, close->most + 1, heard);
    wfi_agent_leave_locked(close->agent);
}

static void free_close(void *arg)
{
    close_call *close = arg;
    wfi_agent_unref(close->agent);
    free(close);
}

/* Begins a call of "weft:close" to `rank`, for all that it has not heard of; *out its future. Not locked. */
static weft_status tell(weft_agent *agent, int rank, weft_future **out)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    uint8_t room[1024];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    close_call *close = wfi_calloc(1, sizeof *close);
    if (!close)
        return WEFT_ERR_MEMORY;
    close->agent = wfi_agent_ref(agent);
    close->rank = rank;
    wfi_net_lock(agent->net);
    close->floor = close->most = wfi_contexts_our_floor(agent);
    wfi_write_u64(&writer, close->floor);
    WFI_FOR_LIST (weft_context, context, &all->ours, link) {
        if (!context->over || context->holders[rank] != WFI_HOLDER_YES || writer.size + sizeof(uint64_t) > sizeof room)
            continue;
        context->holders[rank] = WFI_HOLDER_TELLING;
        if (context->id.number >= close->floor)
            wfi_write_u64(&writer, context->id.number);
        if (context->id.number > close->most)
            close->most = context->id.number;
    }
    wfi_net_unlock(agent->net);
    weft_future *future = NULL;
    weft_error *error = NULL;
    weft_status st =
        weft_rpc_async(agent, weft_to_rank(rank), "weft:close", WEFT_VALUES(weft_of_bytes(room, writer.size)),
                       &(weft_rpc_options){.error = &error}, &future);
    if (st)
        future = wfi_failed_future(agent, error);
    weft_error_unref(error);
    if (!future) {
        free_close(close);
        return WEFT_ERR_MEMORY;
    }
    st = weft_future_add_done_callback(future, close_answered, close, free_close);
    if (st)
        free_close(close);
    *out = future;
    return st;
}

typedef struct tell_task {
    wfi_task task;
    weft_agent *agent;
    int rank;
} tell_task;

static void run_tell(wfi_task *task)
{
    tell_task *later = wfi_container_of(task, tell_task, task);
    weft_future *future = NULL;
    if (wfi_agent_enter(later->agent)) {
        if (tell(later->agent, later->rank, &future) == WEFT_OK)
            weft_future_unref(future);
        wfi_agent_leave(later->agent);
    }
    wfi_agent_unref(later->agent);
    free(later);
}

static bool is_untold(const wfi_contexts *all, int rank)
{
    WFI_FOR_LIST (weft_context, context, (wfi_list *)&all->ours, link)
        if (context->over && context->holders[rank] == WFI_HOLDER_YES)
            return true;
    return false;
}

static void tell_all(wfi_timer *timer)
{
    wfi_contexts *all = wfi_container_of(timer, wfi_contexts, timer);
    for (int rank = 0; rank < all->agent->options.values.world_size; rank++) {
        if (!is_untold(all, rank))
            continue;
        tell_task *later = wfi_calloc(1, sizeof *later);
        if (!later) {
            look_again(all);
            return;
        }
        *later = (tell_task){.task.run = run_tell, .agent = wfi_agent_ref(all->agent), .rank = rank};
        wfi_net_defer(all->agent->net, &later->task, WFI_DEFER_WORKER);
    }
}

/* ---- "weft:close" ------------------------------------------------------------------------------------------------ */

static weft_status run_close(weft_call *call, void *user)
{
    (void)user;
    size_t size;
    wfi_reader reader;
    weft_agent *agent = weft_call_agent(call);
    const void *bytes = weft_call_bytes(call, 0, &size);
    wfi_reader_init(&reader, bytes, size);
    uint64_t floor = wfi_read_u64(&reader);
    if (reader.failed || size % sizeof(uint64_t))
        return WEFT_ERR_PROTOCOL;
    weft_context_id id = {.rank = (uint32_t)call->from, .incarnation = call->incarnation};
    wfi_net_lock(agent->net);
    wfi_contexts_floor(agent, id.rank, id.incarnation, floor);
    while (wfi_reader_left(&reader)) {
        id.number = wfi_read_u64(&reader);
        if (id.rank == (uint32_t)wfi_agent_rank(agent) || id.number < floor)
            continue;
        wfi_opener *opener = &wfi_contexts_of(agent)->openers[id.rank];
        (void)!wfi_map_put(&opener->closed, id.number,
                           opener); /* without memory a late call may open it again, until the floor passes */
        weft_context *context = wfi_contexts_find(agent, &id);
        if (context)
            end_context(wfi_contexts_of(agent), context, WEFT_ERR_CANCELLED, "its context was closed");
    }
    wfi_net_unlock(agent->net);
    return WEFT_OK;
}

static const weft_function close_function = {
    .name = "weft:close", .takes = {WEFT_BYTES}, .run = run_close, .flags = WFI_AT_ONCE};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

weft_status weft_context_open(weft_agent *agent, weft_context **out)
{
    if (!agent || !out)
        return wfi_refuse_null("weft_context_open", agent ? "out" : "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    if (!wfi_agent_enter(agent))
        return WEFT_ERR_CLOSED;
    wfi_contexts *all = wfi_contexts_of(agent);
    uint32_t rank = (uint32_t)wfi_agent_rank(agent);
    wfi_net_lock(agent->net);
    weft_status st = wfi_agent_usable(agent);
    weft_context_id id = {rank, wfi_net_member(agent->net, (int)rank)->incarnation, all->last_number + 1};
    wfi_net_unlock(agent->net);
    weft_context *context = st ? NULL : wfi_context_create(agent, id);
    if (!st && !context)
        st = WEFT_ERR_MEMORY;
    wfi_net_lock(agent->net);
    if (!st) {
        context->id.number = all->last_number + 1; /* others may have opened some meanwhile */
        st = add(all, context);
    }
    if (!st) {
        all->last_number++;
        wfi_list_push_back(&all->ours, &context->link);
        wfi_context_ref(context); /* the list's, until all have heard that it is over */
        *out = wfi_context_ref(context);
    }
    wfi_net_unlock(agent->net);
    if (st)
        wfi_context_unref(context);
    wfi_agent_leave(agent);
    return st;
}

/* Tells everybody now; *out: when all have answered. Not locked. */
static void tell_now(weft_agent *agent, const weft_context *context, weft_future **out)
{
    int world = agent->options.values.world_size;
    weft_future **futures = wfi_calloc((size_t)world, sizeof *futures);
    size_t count = 0;
    for (int rank = 0; futures && rank < world; rank++) {
        wfi_net_lock(agent->net);
        bool untold = context->holders[rank] == WFI_HOLDER_YES;
        wfi_net_unlock(agent->net);
        if (untold && tell(agent, rank, &futures[count]) == WEFT_OK)
            count++;
    }
    *out = futures ? weft_future_collect_all(futures, count) : NULL;
    for (size_t i = 0; i < count; i++)
        weft_future_unref(futures[i]);
    free(futures);
}

void weft_context_close(weft_context *context, weft_future **out)
{
    if (out)
        *out = NULL;
    if (!context)
        return;
    weft_agent *agent = context->agent;
    if (wfi_agent_enter_locked(agent)) {
        wfi_contexts *all = wfi_contexts_of(agent);
        if (!context->over && (int)context->id.rank == wfi_agent_rank(agent))
            end_context(all, context, WEFT_ERR_CANCELLED, "its context was closed");
        forget_told(all);
        if (!out)
            look_again(all);
        wfi_net_unlock(agent->net);
        if (out)
            tell_now(agent, context, out);
        wfi_agent_leave(agent);
    } else if (out) {
        *out = weft_future_collect_all(NULL, 0);
    }
    wfi_context_unref(context);
}

size_t weft_agent_contexts(weft_agent *agent, size_t *passes)
{
    size_t count = 0;
    if (passes)
        *passes = 0;
    if (!agent || !wfi_agent_enter_locked(agent))
        return 0;
    const wfi_contexts *all = wfi_contexts_of(agent);
    count = all->count;
    if (passes)
        *passes = all->passes;
    wfi_agent_leave_locked(agent);
    return count;
}

/* ---- As the agent goes ----------------------------------------------------------------------------------------------- */

weft_status wfi_contexts_open(weft_agent *agent)
{
    wfi_contexts *all = wfi_calloc(1, sizeof *all);
    wfi_opener *openers = all ? wfi_calloc((size_t)agent->options.values.world_size, sizeof *openers) : NULL;
    if (!openers) {
        free(all);
        return WEFT_ERR_MEMORY;
    }
    all->agent = agent;
    all->openers = openers;
    all->timer.fire = tell_all;
    wfi_map_init(&all->table);
    wfi_list_init(&all->ours);
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_map_init_keyed(&openers[rank].closed, &agent->hash_key);
    agent->state[WFI_STATE_CONTEXTS] = all;
    return wfi_function_register(agent, &close_function, NULL);
}

/* Everything of contexts that end with a worker, or with this agent. */
static void end_all(wfi_contexts *all, int rank, weft_status why, const char *text)
{
    weft_context *found;
    do {
        size_t cursor = 0;
        found = wfi_map_next(&all->table, &cursor, NULL);
        while (rank >= 0 && found && (int)found->id.rank != rank)
            found = found->next_same ? found->next_same : wfi_map_next(&all->table, &cursor, NULL);
        if (found)
            end_context(all, found, why, text);
    } while (found);
}

void wfi_contexts_peer_gone(weft_agent *agent, wfi_peer *peer, weft_status why, const char *text)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    int rank = wfi_peer_rank(peer);
    size_t cursor = 0;
    end_all(all, rank, why, text);
    for (weft_context *context; (context = wfi_map_next(&all->table, &cursor, NULL));)
        for (; context; context = context->next_same)
            wfi_passes_peer_gone(context, rank, why, text);
    WFI_FOR_LIST (weft_context, context, &all->ours, link)
        context->holders[rank] = WFI_HOLDER_NONE;
    forget_told(all);
}

void wfi_contexts_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    end_all(wfi_contexts_of(agent), -1, why, text);
}

bool wfi_contexts_are_busy(weft_agent *agent)
{
    return wfi_contexts_of(agent)->passes > 0;
}

size_t wfi_contexts_leaks(weft_agent *agent)
{
    size_t leaks = 0;
    wfi_net_lock(agent->net);
    WFI_FOR_LIST (weft_context, context, &wfi_contexts_of(agent)->ours, link)
        leaks += !context->over;
    wfi_net_unlock(agent->net);
    if (leaks)
        wfi_log_agent(agent, WEFT_LOG_WARN, 0, "%zu distributed contexts were not closed (weft_context_close)", leaks);
    return leaks;
}

void wfi_contexts_close(weft_agent *agent)
{
    wfi_contexts *all = wfi_contexts_of(agent);
    if (!all)
        return;
    for (wfi_list *link; (link = wfi_list_pop_front(&all->ours));)
        wfi_context_unref(wfi_container_of(link, weft_context, link));
    wfi_map_fini(&all->table);
    for (int rank = 0; rank < agent->options.values.world_size; rank++)
        wfi_map_fini(&all->openers[rank].closed);
    free(all->openers);
    free(all);
    agent->state[WFI_STATE_CONTEXTS] = NULL;
}
