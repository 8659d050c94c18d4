/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - when a batch begins; see batch.h.
 *
 * ADAPTIVE. One more call in a batch of n costs the n that wait a gap between calls each, and saves the newcomer a wait for the
 * handler. So it is waited for while n gaps are shorter than the handler's time: that long after each call, divided by n; not at
 * all where calls come at larger gaps. Nor is anybody waited for once all who share the batches are in. What passes while a batch
 * could not begin, as others ran, costs nobody anything, and says nothing about who is still to come: those who wait for their
 * answers were in the others. So these times count from when it could: and anew when one of its form begins that was before it, as
 * those come to this one. But not when one of another form does: where there is always one of another that is full, they would
 * never be over.
 */
#include "rpc/batch/batch.h"

#include "tensor/tensor.h"

#include <string.h>

#define GRACE_NS 10000000u     /* for calls that are being pulled when the time is over */
#define LOOK_AGAIN_NS 1000000u /* when memory was out for a batch */
#define WEIGHT 0.125           /* of the newest value in an average */

typedef enum wfi_reason { NOT_YET, BY_SIZE, BY_TIME, BY_CALLERS, BY_CLOSING } wfi_reason;

static void average(double *mean, double value)
{
    *mean = *mean > 0 ? *mean + WEIGHT * (value - *mean) : value;
}

void wfi_batch_note_handler(weft_batch *batch, uint64_t now_ns)
{
    wfi_batcher *batcher = batch->batcher;
    batcher->finished_ns = now_ns;
    average(&batcher->handler_ns, (double)(now_ns - batch->began_ns));
}

/* ---- Whether ------------------------------------------------------------------------------------------------------- */

static bool is_expected(const wfi_batcher *batcher, int rank)
{
    return rank == wfi_agent_rank(batcher->agent) || wfi_agent_knows_alive(batcher->agent, rank);
}

static bool all_expected_are_in(const weft_batch *batch)
{
    wfi_batcher *batcher = batch->batcher;
    const weft_batch_options *o = &batcher->options;
    size_t expected = 0;
    if (batch->nobody_else)
        return true;
    for (size_t i = 0; i < o->caller_count; i++)
        expected += is_expected(batcher, o->callers[i]);
    if (!o->caller_count || batch->ready < expected)
        return false;
    for (size_t i = 0; i < o->caller_count; i++)
        if (is_expected(batcher, o->callers[i]) &&
            !wfi_batch_has_call_of(batch, wfi_batch_caller_of(batcher, o->callers[i])))
            return false;
    return true;
}

static bool waits_somewhere(const wfi_batch_caller *caller)
{
    return caller && caller->seated;
}

/*
 * Where callers bring different shapes, no batch may ever have calls of them all. But once each has a call in one, and none is due by
 * itself, all may be waiting for these: nobody else is waited for in any of them. False: nothing came of it.
 */
static bool let_all_go(wfi_batcher *batcher)
{
    const weft_batch_options *o = &batcher->options;
    bool any = false;
    for (size_t i = 0; i < o->caller_count; i++)
        if (is_expected(batcher, o->callers[i]) && !waits_somewhere(wfi_batch_caller_of(batcher, o->callers[i])))
            return false;
    for (wfi_list *at = batcher->forms.next; o->caller_count && at != &batcher->forms; at = at->next) {
        wfi_batch_form *form = wfi_container_of(at, wfi_batch_form, link);
        for (wfi_list *link = form->open.next; link != &form->open; link = link->next) {
            weft_batch *batch = wfi_container_of(link, weft_batch, link);
            any |= batch->ready && !batch->nobody_else;
            batch->nobody_else |= batch->ready > 0;
        }
    }
    return any;
}

static bool all_active_are_in(const weft_batch *batch)
{
    const wfi_batcher *batcher = batch->batcher;
    size_t cursor = 0;
    uint64_t rank;
    const wfi_batch_caller *caller;
    if (batch->ready < batcher->active)
        return false;
    while ((caller = wfi_map_next(&batcher->callers, &cursor, &rank)))
        if (caller->is_active && !wfi_batch_has_call_of(batch, caller))
            return false;
    return true;
}

static uint64_t later(uint64_t time_ns, uint64_t by_ns)
{
    return by_ns < WFI_NEVER - time_ns ? time_ns + by_ns : WFI_NEVER;
}

static uint64_t last_of(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

/* When it is due by time. */
static uint64_t time_limit(const weft_batch *batch)
{
    const wfi_batcher *batcher = batch->batcher;
    int64_t wait_us = batcher->options.wait_us;
    if (wait_us == WEFT_FOREVER)
        return WFI_NEVER;
    uint64_t wait_ns = (uint64_t)wait_us < WFI_NEVER / 1000u ? (uint64_t)wait_us * 1000u : WFI_NEVER;
    if (!batcher->options.adaptive)
        return later(batch->first_ns, wait_ns);
    double pause = batcher->handler_ns / (double)(batch->ready ? batch->ready : 1);
    if (pause <= 0 || batcher->gap_ns > pause || all_active_are_in(batch))
        return batch->first_ns;
    uint64_t likely = later(last_of(batch->last_ns, batch->could_ns), (uint64_t)pause);
    uint64_t longest = later(batch->could_ns, wait_ns);
    return likely < longest ? likely : longest;
}

static wfi_reason reason_for(const weft_batch *batch, uint64_t now_ns)
{
    const wfi_batcher *batcher = batch->batcher;
    size_t size = (size_t)batcher->options.size;
    if (!batch->ready)
        return NOT_YET;
    if (batch->taken == size || batch->ready + batch->form->extra_count >= size)
        return BY_SIZE;
    if (all_expected_are_in(batch))
        return BY_CALLERS;
    if (batcher->agent->closing || batcher->agent->stopped)
        return BY_CLOSING;
    return batch->hurries || now_ns >= time_limit(batch) ? BY_TIME : NOT_YET;
}

/* The same, once seats that are being pulled had their time: they belong to a batch that is full, or has all who are expected, and
 * it does not go without them before its own time is over. */
static wfi_reason is_due(weft_batch *batch, uint64_t now_ns)
{
    wfi_reason reason = reason_for(batch, now_ns);
    if (!reason || batch->ready == batch->taken) {
        batch->due_ns = 0; /* it may have been due and is not any more: somebody left, or others are expected */
        return reason;
    }
    bool in_time = reason != BY_CLOSING && !batch->hurries && now_ns < time_limit(batch);
    if (!batch->due_ns && !in_time)
        batch->due_ns = now_ns;
    return batch->due_ns && now_ns - batch->due_ns >= GRACE_NS ? reason : NOT_YET;
}

/* ---- Beginning ------------------------------------------------------------------------------------------------------- */

void wfi_batch_count(weft_batch *batch, uint64_t now_ns)
{
    wfi_batcher *batcher = batch->batcher;
    weft_batch_stats *stats = &batcher->stats;
    stats->batches++;
    stats->calls += batch->count;
    stats->by_size += batch->reason == BY_SIZE;
    stats->by_time += batch->reason == BY_TIME;
    stats->by_callers += batch->reason == BY_CALLERS;
    wfi_histogram_record(&batcher->sizes, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        wfi_histogram_record(&batcher->waits, now_ns - batch->calls[i]->span.ready_ns);
}

static void note_size_and_wait(const weft_batch *batch, uint64_t now_ns)
{
    wfi_batcher *batcher = batch->batcher;
    average(&batcher->chosen_ns, (double)(now_ns - batch->first_ns));
    size_t faded = batcher->recent_max - batcher->recent_max / 8;
    batcher->recent_max = batch->count > faded ? batch->count : faded;
}

/* How many rows its slabs have, all of them, or at least one. */
static void count_rows(const weft_batch *batch, size_t *all, size_t *one)
{
    *all = SIZE_MAX;
    *one = 0;
    for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++) {
        size_t rows = batch->slabs[i] ? (size_t)weft_tensor_size(batch->slabs[i], 0) : 0;
        *one = rows > *one ? rows : *one;
        *all = batch->slabs[i] && rows < *all ? rows : *all;
    }
}

static const wfi_seat *seat_at(const weft_batch *batch, size_t seat)
{
    static const wfi_seat nobodys;
    return seat < batch->room ? &batch->seats[seat] : &nobodys;
}

/*
 * Where the rows begin that the handler sees: `count` of the first `rows`, next to each other, none of which is written to by a pull
 * that goes on, or lent to a call that is not in the batch; and with most of the calls in their own rows, so that fewest are copied.
 * SIZE_MAX: there is no such place.
 */
static size_t find_place(const weft_batch *batch, size_t count, size_t rows)
{
    size_t best = SIZE_MAX, most = 0, from = 0, ready = 0;
    for (size_t i = 0; i < rows && i < batch->room + count; i++) {
        const wfi_seat *seat = seat_at(batch, i);
        if (seat->spoiled || (seat->call && !seat->ready)) {
            from = i + 1;
            ready = 0;
            continue;
        }
        ready += seat->ready;
        if (i + 1 - from > count)
            ready -= seat_at(batch, from++)->ready;
        if (i + 1 - from == count && (best == SIZE_MAX || ready > most)) {
            best = from;
            most = ready;
        }
    }
    return best;
}

/* Whose calls are still being pulled: they sit at the end of the next batches. */
static void note_late(const weft_batch *batch)
{
    for (size_t i = 0; i < batch->room && batch->taken > batch->ready; i++)
        if (batch->seats[i].call && !batch->seats[i].ready)
            batch->seats[i].caller->late = batch->batcher->begun + 1;
}

/* Whole calls go with the batch, each in its row where that is among those that the handler sees, the others in the gaps between them.
 * Seats that are still being pulled stay, for nobody. */
static void take_calls(weft_batch *batch)
{
    size_t all_rows, some_rows, next = 0;
    count_rows(batch, &all_rows, &some_rows);
    size_t place = find_place(batch, batch->ready, all_rows);
    if (place == SIZE_MAX)
        place = find_place(batch, batch->ready, some_rows);
    batch->in_place = place != SIZE_MAX;
    batch->first_row = batch->in_place ? place : 0;
    batch->count = batch->ready;
    for (size_t i = 0; i < batch->count; i++) {
        const wfi_seat *seat = seat_at(batch, batch->first_row + i);
        batch->calls[i] = seat->ready ? seat->call : NULL;
    }
    for (size_t gap = 0; gap < batch->count; gap++) {
        if (batch->calls[gap])
            continue;
        while (next - batch->first_row < batch->count || !batch->seats[next].ready)
            next++; /* past those that are there; below the first row the difference is large */
        batch->calls[gap] = batch->seats[next++].call;
    }
    for (size_t i = 0; i < batch->count; i++) {
        weft_call *call = batch->calls[i];
        batch->seats[call->seat] = (wfi_seat){.call = NULL};
        call->batch = NULL;
        wfi_batch_unqueue(call);
        wfi_batch_caller *caller = wfi_batch_caller_of(batch->batcher, call->from);
        caller->served = batch->batcher->begun + 1;
        caller->seated--;
    }
    batch->taken -= batch->count;
    batch->ready = 0;
}

/* Follows from which batch of which function of which worker it is. [agent lock] */
static uint64_t seed_of(const weft_batch *batch)
{
    const char *name = batch->batcher->function->name;
    int rank = wfi_agent_rank(batch->agent);
    uint64_t key[] = {(uint64_t)rank, wfi_net_member(batch->agent->net, rank)->incarnation,
                      wfi_hash_bytes(name, strlen(name)), batch->batcher->begun};
    return wfi_hash_bytes(key, sizeof key);
}

/* Whoever gets his answer from this one may come to those behind it. */
static void count_anew_behind(const weft_batch *batch)
{
    for (wfi_list *link = batch->link.next; link != &batch->form->open; link = link->next)
        wfi_container_of(link, weft_batch, link)->could_ns = 0;
}

static void begin(weft_batch *batch, wfi_reason reason, uint64_t now_ns)
{
    wfi_batcher *batcher = batch->batcher;
    const weft_function *function = batcher->function;
    batch->reason = reason;
    wfi_batch_fill(batch, false);
    wfi_batch_fill(batch, true);
    count_anew_behind(batch);
    wfi_batch_shut(batch);
    note_late(batch);
    take_calls(batch);
    note_size_and_wait(batch, now_ns);
    batcher->begun++;
    batch->seed = seed_of(batch);
    batcher->running++;
    batch->holds = 2;
    batch->began_ns = now_ns;
    wfi_batch_count_active(batcher);
    batch->task.run = wfi_batch_task;
    batch->task.urgency = wfi_serve_urgency(function);
    bool is_inline = function->flags & WEFT_INLINE;
    wfi_net_defer(batch->agent->net, &batch->task, is_inline ? WFI_DEFER_INLINE : WFI_DEFER_WORKER);
    wfi_stall_watch(batch->agent);
}

/* ---- Looking ------------------------------------------------------------------------------------------------------- */

/* When to look again; WFI_NEVER: something else will have to happen. */
static uint64_t next_look(weft_batch *batch, uint64_t now_ns)
{
    if (!batch->ready)
        return WFI_NEVER;
    if (batch->due_ns)
        return batch->due_ns + GRACE_NS;
    uint64_t limit = time_limit(batch);
    return limit > now_ns ? limit : now_ns;
}

static weft_batch *first_with_room(const wfi_batcher *batcher, const wfi_batch_form *form)
{
    for (wfi_list *link = form->open.next; link != &form->open; link = link->next) {
        weft_batch *batch = wfi_container_of(link, weft_batch, link);
        if (batch->taken < (size_t)batcher->options.size && !batch->nobody_else)
            return batch;
    }
    return NULL;
}

/* Extras whose batch has begun without them get their share of the next. Whoever else has seats in that may still be pulled, or never
 * come. False: memory is out. */
static bool seat_extras(wfi_batcher *batcher, wfi_batch_form *form, uint64_t now_ns)
{
    if (!form->extra_count)
        return true;
    weft_batch *batch = first_with_room(batcher, form);
    if (!batch && !wfi_list_empty(&form->open))
        return true; /* it is full of others */
    batch = batch ? batch : wfi_batch_open(batcher, form);
    if (!batch)
        return false;
    batch->last_ns = batch->last_ns ? batch->last_ns : now_ns;
    wfi_batch_fill(batch, false);
    if (batch->taken)
        return true;
    wfi_batch_close_empty(batch);
    return false;
}

/* How many batches had begun when one last had a call of the caller in it who has waited longest for that. */
static uint64_t longest_unserved(const weft_batch *batch)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < batch->room; i++)
        if (batch->seats[i].ready && batch->seats[i].caller->served < least)
            least = batch->seats[i].caller->served;
    return least;
}

/* Of two that are due, `first` by the turn of its form. A caller with many forms has no more turns than one with few, but for every
 * fourth batch, so that each form has its turn at last, whoever else has calls of it. */
static bool goes_before(const weft_batch *batch, const weft_batch *first)
{
    return batch->batcher->begun % 4 && longest_unserved(batch) < longest_unserved(first);
}

typedef struct look {
    weft_batch *due; /* whose turn it is; NULL: none is due */
    wfi_reason reason;
    uint64_t again_ns; /* when to look again */
} look;

/* Fewer than in_flight run. */
static void look_at(wfi_batcher *batcher, wfi_batch_form *form, uint64_t now_ns, look *seen)
{
    if (!seat_extras(batcher, form, now_ns))
        seen->again_ns = now_ns + LOOK_AGAIN_NS;
    for (wfi_list *link = form->open.next; link != &form->open; link = link->next) {
        weft_batch *batch = wfi_container_of(link, weft_batch, link);
        if (batch->ready && !batch->could_ns)
            batch->could_ns = now_ns;
        wfi_reason why = is_due(batch, now_ns);
        if (why && (!seen->due || goes_before(batch, seen->due))) {
            seen->due = batch;
            seen->reason = why;
        }
        uint64_t next = next_look(batch, now_ns);
        seen->again_ns = next < seen->again_ns ? next : seen->again_ns;
    }
}

static look look_at_all(wfi_batcher *batcher, uint64_t now_ns)
{
    look seen = {.again_ns = WFI_NEVER};
    for (wfi_list *at = batcher->forms.next; at != &batcher->forms; at = at->next)
        look_at(batcher, wfi_container_of(at, wfi_batch_form, link), now_ns, &seen);
    return seen;
}

static weft_batch *any_ready(wfi_batcher *batcher)
{
    for (wfi_list *at = batcher->forms.next; at != &batcher->forms; at = at->next) {
        wfi_batch_form *form = wfi_container_of(at, wfi_batch_form, link);
        for (wfi_list *link = form->open.next; link != &form->open; link = link->next)
            if (wfi_container_of(link, weft_batch, link)->ready)
                return wfi_container_of(link, weft_batch, link);
    }
    return NULL;
}

void wfi_batcher_pump(wfi_batcher *batcher)
{
    wfi_net *net = batcher->agent->net;
    wfi_assert_held(wfi_net_mutex(net));
    if (batcher->agent->stopped) { /* whatever waits is being refused */
        wfi_net_timer_clear(net, &batcher->timer);
        return;
    }
    uint64_t now_ns = wfi_net_now(net);
    look seen = {.again_ns = WFI_NEVER};
    while (batcher->running < (size_t)batcher->options.in_flight) {
        seen = look_at_all(batcher, now_ns);
        if (seen.due)
            begin(seen.due, seen.reason, now_ns);
        else if (!let_all_go(batcher))
            break;
    }
    batcher->look_ns = seen.due ? WFI_NEVER : seen.again_ns;
    if (batcher->look_ns == WFI_NEVER)
        wfi_net_timer_clear(net, &batcher->timer);
    else if (wfi_net_timer_set(net, &batcher->timer, batcher->look_ns)) {
        batcher->look_ns = WFI_NEVER;
        weft_batch *batch = any_ready(batcher);
        if (batch)
            begin(batch, BY_TIME, now_ns); /* no memory for a timer: rather early than never */
    }
}

/*
 * Whether a call of the form that came makes something due. Where limits are fixed and nobody is expected, no batch of another form
 * can be by that: with as many forms as the queue has calls, to look at all for each would be quadratic.
 */
static bool matters(wfi_batcher *batcher, wfi_batch_form *form, uint64_t now_ns)
{
    const weft_batch_options *o = &batcher->options;
    look seen = {.again_ns = WFI_NEVER};
    if (o->adaptive || o->caller_count || batcher->agent->closing || batcher->agent->stopped)
        return true;
    if (batcher->running >= (size_t)o->in_flight)
        return false;
    look_at(batcher, form, now_ns, &seen);
    return seen.due || seen.again_ns < batcher->look_ns;
}

void wfi_batch_timer(wfi_timer *timer)
{
    wfi_batcher_pump(wfi_container_of(timer, wfi_batcher, timer));
}

void wfi_batchers_pump(weft_agent *agent)
{
    for (wfi_batcher *batcher = atomic_load(&agent->batchers); batcher; batcher = batcher->next)
        wfi_batcher_pump(batcher);
}

/* How far apart calls come: callers that wait for their answers call again only after a batch is over. */
static void note_gap(wfi_batcher *batcher, uint64_t now_ns)
{
    uint64_t from = batcher->finished_ns > batcher->arrived_ns ? batcher->finished_ns : batcher->arrived_ns;
    if (batcher->arrived_ns)
        average(&batcher->gap_ns, now_ns > from ? (double)(now_ns - from) : 0);
    batcher->arrived_ns = now_ns;
}

void wfi_batch_arrived(weft_call *call, uint64_t now_ns)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    weft_batch *batch = call->batch;
    note_gap(batcher, now_ns);
    if (batch) {
        batch->first_ns = batch->first_ns ? batch->first_ns : now_ns;
        batch->last_ns = now_ns;
    }
    if (matters(batcher, batch ? batch->form : call->extra_of->form, now_ns))
        wfi_batcher_pump(batcher);
}
