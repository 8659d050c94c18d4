/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - forms of calls, open batches and their seats: where a call's tensors are pulled to; see batch.h. */
#include "base/alloc.h"
#include "rpc/batch/batch.h"

#include "value/value.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 16                   /* seats of a batch; more as they are taken */
#define SLAB_AT_ONCE ((size_t)64 << 20) /* larger ones have places for twice as many calls as came lately */

/* ---- Forms ------------------------------------------------------------------------------------------------------- */

static bool is_of_form(const wfi_batch_form *form, const wfi_tensor_type *types, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (form->tensors[i].dtype != types[i].dtype || !wfi_shape_equal(&form->tensors[i].shape, &types[i].shape))
            return false;
    return true;
}

static uint64_t hash_of(const wfi_batcher *batcher, const wfi_tensor_type *types)
{
    int64_t words[WEFT_MAX_SIGNATURE * (1 + WEFT_MAX_DIMS)];
    size_t count = 0;
    for (size_t i = 0; i < batcher->tensor_count; i++) {
        words[count++] = (int64_t)types[i].dtype << 8 | types[i].shape.ndim;
        for (int d = 0; d < types[i].shape.ndim; d++)
            words[count++] = types[i].shape.dims[d];
    }
    return wfi_hash_keyed(&batcher->agent->hash_key, words, count * sizeof *words);
}

static wfi_batch_form *make_form(wfi_batcher *batcher, const wfi_tensor_type *types, uint64_t hash)
{
    size_t types_size = batcher->tensor_count * sizeof *types;
    wfi_batch_form *form = wfi_calloc(1, sizeof *form + types_size);
    if (!form)
        return NULL;
    wfi_batch_form *first = wfi_map_get(&batcher->forms_by_hash, hash);
    if (!first && wfi_map_put(&batcher->forms_by_hash, hash, form)) {
        free(form);
        return NULL;
    }
    form->hash = hash;
    if (first) {
        form->alike = first->alike;
        first->alike = form;
    }
    memcpy(form->tensors, types, types_size);
    wfi_list_init(&form->open);
    wfi_list_init(&form->extras);
    wfi_list_push_back(&batcher->forms, &form->link);
    return form;
}

static void forget_form(wfi_batcher *batcher, wfi_batch_form *form)
{
    wfi_batch_form *before = wfi_map_get(&batcher->forms_by_hash, form->hash);
    if (before == form) {
        (void)wfi_map_take(&batcher->forms_by_hash, form->hash);
        if (form->alike) /* without memory for that they are not found any more: their next calls are of a form of their own */
            (void)wfi_map_put(&batcher->forms_by_hash, form->hash, form->alike);
        return;
    }
    while (before && before->alike != form)
        before = before->alike;
    if (before)
        before->alike = form->alike;
}

static void free_form_if_over(wfi_batcher *batcher, wfi_batch_form *form)
{
    if (!wfi_list_empty(&form->open) || !wfi_list_empty(&form->extras))
        return;
    forget_form(batcher, form);
    wfi_list_remove(&form->link);
    free(form);
}

static wfi_batch_form *form_for(wfi_batcher *batcher, const wfi_tensor_type *types)
{
    uint64_t hash = hash_of(batcher, types);
    wfi_batch_form *form = wfi_map_get(&batcher->forms_by_hash, hash);
    while (form && !is_of_form(form, types, batcher->tensor_count))
        form = form->alike;
    return form ? form : make_form(batcher, types, hash);
}

/* ---- Batches ------------------------------------------------------------------------------------------------------- */

weft_batch *wfi_batch_open(wfi_batcher *batcher, wfi_batch_form *form)
{
    weft_batch *batch = wfi_calloc(1, sizeof *batch);
    if (!batch)
        return NULL;
    batch->batcher = batcher;
    batch->agent = wfi_agent_ref(batcher->agent);
    batch->form = form;
    batch->open = true;
    wfi_list_push_back(&form->open, &batch->link);
    return batch;
}

static void uncharge(weft_batch *batch, size_t bytes)
{
    size_t spare = bytes < batch->spare_bytes ? bytes : batch->spare_bytes;
    batch->spare_bytes -= spare;
    batch->agent->held_bytes -= spare;
}

static void drop_slabs(weft_batch *batch)
{
    for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++) {
        weft_tensor_unref(batch->slabs[i]);
        batch->slabs[i] = NULL;
    }
    uncharge(batch, batch->spare_bytes);
}

void wfi_batch_shut(weft_batch *batch)
{
    wfi_batch_form *form = batch->form;
    if (!batch->open)
        return;
    batch->open = false;
    batch->form = NULL;
    wfi_list_remove(&batch->link);
    wfi_list_remove(&form->link); /* other forms have their turns first */
    wfi_list_push_back(&batch->batcher->forms, &form->link);
    free_form_if_over(batch->batcher, form);
}

void wfi_batch_free_if_over(weft_batch *batch)
{
    if (batch->holds)
        return;
    if (batch->taken) {
        if (!batch->open)
            wfi_batch_charge_whole(batch);
        return;
    }
    wfi_batch_shut(batch);
    wfi_batch_leave_to_lodgers(batch);
    drop_slabs(batch);
    free(batch->seats);
    free(batch->of_caller);
    free(batch->calls);
    wfi_agent_unref(batch->agent);
    free(batch);
}

/*
 * How many calls get a place beforehand: twice as many as came lately, but within a quarter of what is left of the budget, as nobody
 * has asked for the others yet, and other calls are refused for them; or more, all even, where that is little.
 */
static size_t slab_rows(const weft_batch *batch, size_t row_bytes)
{
    const weft_agent *agent = batch->agent;
    size_t size = (size_t)batch->batcher->options.size, budget = agent->options.values.memory_budget_bytes;
    size_t left = !budget ? SIZE_MAX : budget > agent->held_bytes ? budget - agent->held_bytes : 0;
    if (!row_bytes)
        return size;
    size_t little = left / 16 < SLAB_AT_ONCE ? left / 16 : SLAB_AT_ONCE;
    size_t likely = 2 * batch->batcher->recent_max, few = little / row_bytes;
    size_t rows = likely > few ? likely : few,
           affordable = 1 + left / 4 / row_bytes; /* the first call has paid for its own */
    rows = rows < size ? rows : size;
    rows = rows < affordable ? rows : affordable;
    return rows ? rows : 1;
}

/* The tensor that has a row for each of the first seats; made at the first call. */
static weft_tensor *slab_of(weft_batch *batch, size_t index, weft_dtype dtype, weft_shape row)
{
    if (batch->slabs[index])
        return batch->slabs[index];
    weft_shape shape = {row.ndim + 1, {0}};
    int64_t numel = 0;
    if (!wfi_shape_numel(&row, &numel))
        return NULL;
    shape.dims[0] = (int64_t)slab_rows(batch, (size_t)numel * weft_dtype_size(dtype));
    memcpy(shape.dims + 1, row.dims, (size_t)row.ndim * sizeof(row.dims[0]));
    batch->slabs[index] = weft_tensor_empty(shape, dtype);
    if (batch->slabs[index]) {
        batch->spare_bytes += weft_tensor_nbytes(batch->slabs[index]);
        batch->agent->held_bytes += weft_tensor_nbytes(batch->slabs[index]);
    }
    return batch->slabs[index];
}

/* ---- Seats --------------------------------------------------------------------------------------------------------- */

static const wfi_seat_count *count_of(const weft_batch *batch, const wfi_batch_caller *caller)
{
    static const wfi_seat_count none;
    return caller->number < batch->callers_known ? &batch->of_caller[caller->number] : &none;
}

bool wfi_batch_has_call_of(const weft_batch *batch, const wfi_batch_caller *caller)
{
    return caller && count_of(batch, caller)->ready > 0;
}

static bool has_its_share(const weft_batch *batch, const wfi_batch_caller *caller)
{
    const wfi_batcher *batcher = batch->batcher;
    return batcher->active > 1 &&
           count_of(batch, caller)->taken >= wfi_batch_share(batcher, (size_t)batcher->options.size);
}

static bool make_room(weft_batch *batch)
{
    size_t size = (size_t)batch->batcher->options.size, room = batch->room ? 2 * batch->room : FIRST_ROOM;
    room = room < size ? room : size;
    wfi_seat *seats = realloc(batch->seats, room * sizeof *seats);
    batch->seats = seats ? seats : batch->seats;
    weft_call **calls = seats ? realloc(batch->calls, room * sizeof(*calls)) : NULL;
    if (!calls)
        return false;
    batch->calls = calls;
    memset(seats + batch->room, 0, (room - batch->room) * sizeof *seats);
    batch->room = room;
    return true;
}

static bool know_callers(weft_batch *batch)
{
    size_t known = batch->batcher->callers.count;
    wfi_seat_count *grown = realloc(batch->of_caller, known * sizeof *grown);
    if (!grown)
        return false;
    memset(grown + batch->callers_known, 0, (known - batch->callers_known) * sizeof *grown);
    batch->of_caller = grown;
    batch->callers_known = known;
    return true;
}

/* Room for it in the array, and in the counts. False: memory is out. */
static bool make_room_for(weft_batch *batch, size_t seat, const wfi_batch_caller *caller)
{
    while (seat >= batch->room)
        if (!make_room(batch))
            return false;
    return caller->number < batch->callers_known || know_callers(batch);
}

static void take_seat(weft_batch *batch, size_t seat, weft_call *call, wfi_batch_caller *caller, bool ready)
{
    bool spoiled = batch->seats[seat].spoiled;
    batch->seats[seat] = (wfi_seat){.call = call, .caller = caller, .ready = ready, .spoiled = spoiled};
    batch->taken++;
    batch->ready += ready;
    batch->hurries |= call->is_late;
    batch->of_caller[caller->number].taken++;
    batch->of_caller[caller->number].ready += ready;
    caller->seated += ready;
    call->batch = batch;
    call->seat = seat;
}

static bool is_free(const weft_batch *batch, size_t seat)
{
    return seat >= batch->room || !batch->seats[seat].call;
}

static size_t rows_of(const weft_batch *batch)
{
    return batch->slabs[0] ? (size_t)weft_tensor_size(batch->slabs[0], 0) : 0;
}

static bool is_often_late(const wfi_batcher *batcher, const wfi_batch_caller *caller)
{
    return caller->late && batcher->begun - caller->late < WFI_REMEMBERED_BATCHES;
}

static size_t first_free(weft_batch *batch)
{
    while (!is_free(batch, batch->scanned))
        batch->scanned++;
    return batch->scanned;
}

/* Of those that have a row, if one of them is. */
static size_t last_free(weft_batch *batch)
{
    size_t rows = rows_of(batch);
    while (batch->scanned_back < rows && !is_free(batch, rows - 1 - batch->scanned_back))
        batch->scanned_back++;
    return batch->scanned_back < rows ? rows - 1 - batch->scanned_back : first_free(batch);
}

/* False: memory is out. */
static bool sit(weft_batch *batch, weft_call *call, bool ready)
{
    wfi_batch_caller *caller = wfi_batch_caller_of(batch->batcher, call->from);
    bool at_end = !ready && is_often_late(batch->batcher, caller);
    size_t seat = at_end ? last_free(batch) : first_free(batch);
    if (!make_room_for(batch, seat, caller))
        return false;
    take_seat(batch, seat, call, caller, ready);
    return true;
}

/* Empties a seat; what is in its row stays the call's. */
static void leave_seat(weft_batch *batch, size_t number)
{
    const wfi_seat seat = batch->seats[number];
    batch->ready -= seat.ready;
    batch->taken--;
    batch->of_caller[seat.caller->number].taken--;
    batch->of_caller[seat.caller->number].ready -= seat.ready;
    seat.caller->seated -= seat.ready;
    batch->seats[number] = (wfi_seat){.spoiled = seat.spoiled};
    seat.call->batch = NULL;
}

/* `lodges`: it will be in another batch, and goes on paying for its row here. */
static void stand_up(weft_call *call, bool lodges)
{
    weft_batch *batch = call->batch;
    size_t placed = batch->seats[call->seat].placed;
    if (lodges && placed) {
        wfi_batch_lodge(batch, call);
        placed = 0;
    }
    leave_seat(batch, call->seat);
    batch->scanned = call->seat < batch->scanned ? call->seat : batch->scanned;
    size_t behind = call->seat < rows_of(batch) ? rows_of(batch) - 1 - call->seat : SIZE_MAX;
    batch->scanned_back = behind < batch->scanned_back ? behind : batch->scanned_back;
    batch->spare_bytes += placed; /* nobody pays for it any more */
    batch->agent->held_bytes += placed;
    if (!batch->ready)
        batch->first_ns = batch->could_ns = 0;
    wfi_batch_free_if_over(batch);
}

/* ---- Extras -------------------------------------------------------------------------------------------------------- */

static wfi_batch_extras *extras_of(wfi_batch_form *form, wfi_batch_caller *caller)
{
    for (wfi_list *link = form->extras.next; link != &form->extras; link = link->next) {
        wfi_batch_extras *extras = wfi_container_of(link, wfi_batch_extras, link);
        if (extras->caller == caller)
            return extras;
    }
    wfi_batch_extras *extras = wfi_calloc(1, sizeof *extras);
    if (!extras)
        return NULL;
    extras->form = form;
    extras->caller = caller;
    wfi_list_init(&extras->calls);
    wfi_list_push_back(&form->extras, &extras->link);
    form->extra_callers++;
    return extras;
}

/* `first`: it came before the others of its caller. False: memory is out. */
static bool put_aside(wfi_batcher *batcher, wfi_batch_form *form, weft_call *call, bool first)
{
    wfi_batch_extras *extras = extras_of(form, wfi_batch_caller_of(batcher, call->from));
    if (!extras)
        return false;
    if (first)
        wfi_list_push_front(&extras->calls, &call->extra_link);
    else
        wfi_list_push_back(&extras->calls, &call->extra_link);
    form->extra_count++;
    call->extra_of = extras;
    return true;
}

/* The form is perhaps of no use any more then. */
static void take_back(wfi_batch_extras *extras, weft_call *call)
{
    wfi_batch_form *form = extras->form;
    wfi_list_remove(&call->extra_link);
    call->extra_of = NULL;
    form->extra_count--;
    if (!wfi_list_empty(&extras->calls))
        return;
    wfi_list_remove(&extras->link);
    form->extra_callers--;
    free(extras);
}

/* ---- Whose seat ---------------------------------------------------------------------------------------------------- */

/* The last ready seat of somebody who has more than the share; SIZE_MAX: there is none. */
static size_t find_surplus(const weft_batch *batch)
{
    size_t share = wfi_batch_share(batch->batcher, (size_t)batch->batcher->options.size);
    for (size_t seat = batch->room; seat-- > 0;)
        if (batch->seats[seat].ready && count_of(batch, batch->seats[seat].caller)->taken > share)
            return seat;
    return SIZE_MAX;
}

/* In a full batch of others. If the one who leaves lies in the row he goes on doing so: neither the newcomer nor the handler may use
 * that. */
static bool take_surplus(weft_batch *batch, weft_call *call, bool ready)
{
    wfi_batch_caller *caller = wfi_batch_caller_of(batch->batcher, call->from);
    size_t seat = find_surplus(batch);
    weft_call *leaves = seat < batch->room ? batch->seats[seat].call : NULL;
    if (!leaves || !make_room_for(batch, seat, caller) || !put_aside(batch->batcher, batch->form, leaves, true))
        return false;
    if (batch->seats[seat].placed) {
        batch->seats[seat].spoiled = true;
        wfi_batch_lodge(batch, leaves);
    }
    leave_seat(batch, seat);
    take_seat(batch, seat, call, caller, ready);
    return true;
}

void wfi_batch_close_empty(weft_batch *batch)
{
    wfi_list_remove(&batch->link);
    batch->open = false;
    wfi_batch_free_if_over(batch);
}

static bool has_seat_for(weft_batch *batch, weft_call *call, bool ready)
{
    if (batch->taken < (size_t)batch->batcher->options.size)
        return sit(batch, call, ready);
    return batch->batcher->active > 1 && take_surplus(batch, call, ready);
}

/* In the oldest open batch of which its caller has less than its share, and that has room or somebody with more than the share; or a
 * new one if none has room. NULL: its caller has its share, or memory is out. */
static weft_batch *seat_in(wfi_batcher *batcher, wfi_batch_form *form, weft_call *call, bool ready)
{
    const wfi_batch_caller *caller = wfi_batch_caller_of(batcher, call->from);
    bool has_room = false;
    for (wfi_list *link = form->open.next; link != &form->open; link = link->next) {
        weft_batch *batch = wfi_container_of(link, weft_batch, link);
        batch->nobody_else &= batch->taken > 0; /* all who were in it may have left */
        if (batch->nobody_else)
            continue; /* whoever has his answer from another of them calls again before it begins, and would miss the others' */
        if (!has_its_share(batch, caller) && has_seat_for(batch, call, ready))
            return batch;
        has_room |= batch->taken < (size_t)batcher->options.size;
    }
    weft_batch *batch = has_room ? NULL : wfi_batch_open(batcher, form);
    if (batch && !sit(batch, call, ready)) {
        wfi_batch_close_empty(batch);
        batch = NULL;
    }
    return batch;
}

void wfi_batch_expect(void *arg, const wfi_tensor_types *types)
{
    weft_call *call = arg;
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!types->count || types->count != batcher->tensor_count)
        return; /* nothing to place, or it will be refused */
    for (size_t i = 0; i < types->count; i++)
        if (types->items[i].shape.ndim == WEFT_MAX_DIMS)
            return; /* likewise */
    wfi_batch_form *form = form_for(batcher, types->items);
    if (form && !seat_in(batcher, form, call, false))
        free_form_if_over(batcher, form);
}

weft_tensor *wfi_batch_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_call *call = arg;
    weft_batch *batch = call->batch;
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!batch || batch->seats[call->seat].spoiled)
        return NULL;
    if (!batch->open && !batch->slabs[index])
        return NULL; /* once it has begun, its slabs are the handler's to look at */
    weft_tensor *slab = slab_of(batch, index, dtype, shape);
    if (!slab || (int64_t)call->seat >= weft_tensor_size(slab, 0))
        return NULL;
    weft_tensor *row = weft_tensor_select(slab, 0, (int64_t)call->seat);
    if (row) { /* the call has been charged for it */
        uncharge(batch, weft_tensor_nbytes(row));
        batch->seats[call->seat].placed += weft_tensor_nbytes(row);
    }
    return row;
}

void wfi_batch_fill(weft_batch *batch, bool beyond_shares)
{
    wfi_batch_form *form = batch->form;
    size_t size = (size_t)batch->batcher->options.size, passed = 0;
    while (batch->taken < size && passed < form->extra_callers) {
        wfi_batch_extras *extras = wfi_container_of(form->extras.next, wfi_batch_extras, link);
        weft_call *call = wfi_container_of(extras->calls.next, weft_call, extra_link);
        wfi_list_remove(&extras->link);
        wfi_list_push_back(&form->extras, &extras->link);
        if (!beyond_shares && has_its_share(batch, extras->caller)) {
            passed++;
            continue;
        }
        if (!sit(batch, call, true))
            return;
        take_back(extras, call);
        if (!batch->first_ns || call->span.ready_ns < batch->first_ns)
            batch->first_ns = call->span.ready_ns;
        passed = 0;
    }
}

/* ---- Whole calls --------------------------------------------------------------------------------------------------- */

/* Whether its batch has not begun without it. */
static bool keeps_its_seat(weft_call *call)
{
    weft_batch *batch = call->batch;
    if (!batch)
        return false;
    if (batch->open)
        return true;
    batch->batcher->stats.latecomers++;
    call->is_late = true;
    stand_up(call, true);
    return false;
}

bool wfi_batch_find_room(weft_call *call, weft_tensor *const *tensors)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_tensor_type types[WEFT_MAX_SIGNATURE];
    if (keeps_its_seat(call)) {
        wfi_seat *seat = &call->batch->seats[call->seat];
        seat->ready = true;
        call->batch->ready++;
        call->batch->of_caller[seat->caller->number].ready++;
        seat->caller->seated++;
        return true;
    }
    for (size_t i = 0; i < batcher->tensor_count; i++)
        types[i] = (wfi_tensor_type){tensors[i]->dtype, tensors[i]->shape};
    wfi_batch_form *form = form_for(batcher, types);
    if (!form)
        return false;
    if (seat_in(batcher, form, call, true))
        return true;
    bool has_share = !wfi_list_empty(&form->open); /* else there was no memory for a batch */
    if (has_share && put_aside(batcher, form, call, false))
        return true;
    free_form_if_over(batcher, form);
    return false;
}

void wfi_batch_leave_room(weft_call *call)
{
    wfi_batch_form *form = call->extra_of ? call->extra_of->form : NULL;
    if (form) {
        take_back(call->extra_of, call);
        free_form_if_over(wfi_batcher_of(call->function), form);
    }
    if (call->batch)
        stand_up(call, false);
}
