/* SPDX-License-Identifier: Apache-2.0 */
/* batch_seats.c - forms of calls, open batches and their seats: where a call's tensors are pulled to; see batch.h. */
#include "rpc/batch.h"

#include "rpc/values.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_AT_ONCE ((size_t)64 << 20) /* larger ones have places for as many calls as came lately */

/* ---- Forms ------------------------------------------------------------------------------------------------------- */

static bool fits_form(const wfi_batch_form *form, size_t index, weft_dtype dtype, const weft_shape *shape)
{
    return index >= form->known ||
           (form->tensors[index].dtype == dtype && wfi_shape_equal(&form->tensors[index].shape, shape));
}

static void note_type(wfi_batch_form *form, size_t index, weft_dtype dtype, weft_shape shape)
{
    if (index != form->known)
        return;
    form->tensors[index].dtype = dtype;
    form->tensors[index].shape = shape;
    form->known++;
}

static wfi_batch_form *make_form(wfi_batcher *batcher)
{
    wfi_batch_form *form = calloc(1, sizeof *form);
    if (!form)
        return NULL;
    wfi_list_init(&form->open);
    wfi_list_init(&form->extras);
    wfi_list_push_back(&batcher->forms, &form->link);
    return form;
}

static void free_form_if_over(wfi_batch_form *form)
{
    if (!wfi_list_empty(&form->open) || !wfi_list_empty(&form->extras))
        return;
    wfi_list_remove(&form->link);
    free(form);
}

/* By the first tensor, which is what is known when a call begins to be taken in. */
static wfi_batch_form *form_for_first(wfi_batcher *batcher, weft_dtype dtype, const weft_shape *shape)
{
    for (wfi_list *link = batcher->forms.next; link != &batcher->forms; link = link->next) {
        wfi_batch_form *form = wfi_container_of(link, wfi_batch_form, link);
        if (fits_form(form, 0, dtype, shape))
            return form;
    }
    return make_form(batcher);
}

static bool fits_whole(const wfi_batch_form *form, weft_tensor *const *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!fits_form(form, i, tensors[i]->dtype, &tensors[i]->shape))
            return false;
    return true;
}

/* The form of a whole call, perhaps a new one; what was not known of it is now. */
static wfi_batch_form *form_for(wfi_batcher *batcher, weft_tensor *const *tensors)
{
    wfi_batch_form *found = NULL;
    for (wfi_list *link = batcher->forms.next; link != &batcher->forms && !found; link = link->next) {
        wfi_batch_form *form = wfi_container_of(link, wfi_batch_form, link);
        found = fits_whole(form, tensors, batcher->tensor_count) ? form : NULL;
    }
    found = found ? found : make_form(batcher);
    for (size_t i = 0; i < batcher->tensor_count && found; i++)
        note_type(found, i, tensors[i]->dtype, tensors[i]->shape);
    return found;
}

/* ---- Batches ------------------------------------------------------------------------------------------------------- */

weft_batch *wfi_batch_open(wfi_batcher *batcher, wfi_batch_form *form)
{
    size_t size = (size_t)batcher->options.size;
    weft_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return NULL;
    batch->seats = calloc(size, sizeof *batch->seats);
    batch->calls = malloc(size * sizeof(*batch->calls));
    if (!batch->seats || !batch->calls) {
        free(batch->seats);
        free(batch->calls);
        free(batch);
        return NULL;
    }
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
    free_form_if_over(form);
}

void wfi_batch_free_if_over(weft_batch *batch)
{
    if (batch->taken || batch->holds)
        return;
    wfi_batch_shut(batch);
    drop_slabs(batch);
    free(batch->seats);
    free(batch->calls);
    wfi_agent_unref(batch->agent);
    free(batch);
}

/* How many calls get a place beforehand: all, where that is little; else as many as came lately, and as the budget allows. */
static size_t slab_rows(const weft_batch *batch, size_t row_bytes)
{
    const weft_agent *agent = batch->agent;
    size_t size = (size_t)batch->batcher->options.size, budget = agent->options.values.memory_budget_bytes;
    size_t likely = 2 * batch->batcher->recent_max, few = row_bytes ? SLAB_AT_ONCE / row_bytes : size;
    size_t rows = likely > few ? likely : few;
    rows = rows < size ? rows : size;
    size_t left = budget > agent->held_bytes ? budget - agent->held_bytes : 0;
    size_t affordable = budget && row_bytes ? 1 + left / row_bytes : rows; /* the first call has paid for its own */
    rows = rows < affordable ? rows : affordable;
    return rows ? rows : 1;
}

/* The tensor that has a row for each seat; made at the first call. */
static weft_tensor *slab_of(weft_batch *batch, size_t index, weft_dtype dtype, weft_shape row)
{
    if (batch->slabs[index])
        return batch->slabs[index];
    weft_shape shape = {row.ndim + 1, {0}};
    int64_t numel = 0;
    if (!wfi_shape_numel(&row, &numel))
        return NULL;
    size_t row_bytes = (size_t)numel * weft_dtype_size(dtype);
    size_t rows = slab_rows(batch, row_bytes);
    batch->slab_rows = batch->slab_rows ? batch->slab_rows : rows;
    if (rows < batch->slab_rows)
        return NULL; /* too large for as many places as the first tensor has */
    shape.dims[0] = (int64_t)batch->slab_rows;
    memcpy(shape.dims + 1, row.dims, (size_t)row.ndim * sizeof(row.dims[0]));
    batch->slabs[index] = weft_tensor_empty(shape, dtype);
    if (batch->slabs[index]) {
        size_t spare = (batch->slab_rows - 1) * row_bytes;
        batch->spare_bytes += spare;
        batch->agent->held_bytes += spare;
    }
    return batch->slabs[index];
}

/* ---- Seats --------------------------------------------------------------------------------------------------------- */

/* How many seats of the batch the caller has. Few enough not to ask, mostly. */
static bool has_its_share(const weft_batch *batch, int rank)
{
    const wfi_batcher *batcher = batch->batcher;
    size_t share = wfi_batch_share(batcher, (size_t)batcher->options.size), has = 0;
    if (batcher->active < 2 || batch->taken < share)
        return false;
    for (size_t i = 0, seen = 0; seen < batch->taken && has < share; i++) {
        seen += batch->seats[i].call != NULL;
        has += batch->seats[i].call && batch->seats[i].from == rank;
    }
    return has >= share;
}

static void sit(weft_batch *batch, weft_call *call, bool ready)
{
    size_t seat = batch->scanned;
    while (batch->seats[seat].call)
        seat++;
    batch->scanned = seat + 1;
    batch->seats[seat] = (wfi_seat){.call = call, .from = call->from, .ready = ready};
    batch->taken++;
    batch->ready += ready;
    call->batch = batch;
    call->seat = seat;
}

static void stand_up(weft_call *call)
{
    weft_batch *batch = call->batch;
    const wfi_seat *seat = &batch->seats[call->seat];
    batch->ready -= seat->ready;
    batch->taken--;
    batch->scanned = call->seat < batch->scanned ? call->seat : batch->scanned;
    batch->seats[call->seat] = (wfi_seat){.call = NULL};
    call->batch = NULL;
    wfi_batch_free_if_over(batch);
}

/* In the oldest open batch that has room and of which its caller has less than its share, or a new one if none has room. NULL: its
 * caller has its share, or memory is out, and then no batch is open. */
static weft_batch *seat_in(wfi_batcher *batcher, wfi_batch_form *form, weft_call *call, bool ready)
{
    size_t size = (size_t)batcher->options.size;
    weft_batch *newest = NULL;
    for (wfi_list *link = form->open.next; link != &form->open; link = link->next) {
        weft_batch *batch = wfi_container_of(link, weft_batch, link);
        newest = batch->taken < size ? batch : newest;
        if (newest == batch && !has_its_share(batch, call->from)) {
            sit(batch, call, ready);
            return batch;
        }
    }
    if (newest)
        return NULL;
    newest = wfi_batch_open(batcher, form);
    if (newest)
        sit(newest, call, ready);
    return newest;
}

weft_tensor *wfi_batch_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_call *call = arg;
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (index >= batcher->tensor_count || shape.ndim == WEFT_MAX_DIMS)
        return NULL;
    if (index == 0) {
        wfi_batch_form *form = form_for_first(batcher, dtype, &shape);
        if (form && !seat_in(batcher, form, call, false))
            free_form_if_over(form);
    }
    weft_batch *batch = call->batch;
    if (!batch || !fits_form(batch->form, index, dtype, &shape))
        return NULL;
    note_type(batch->form, index, dtype, shape);
    weft_tensor *slab = slab_of(batch, index, dtype, shape);
    if (!slab || call->seat >= batch->slab_rows)
        return NULL;
    weft_tensor *row = weft_tensor_select(slab, 0, (int64_t)call->seat);
    if (row)
        uncharge(batch, weft_tensor_nbytes(row)); /* the call has been charged for it */
    return row;
}

/* Looks at so many extras at most: they are asked one by one whether their callers have their shares. */
void wfi_batch_fill(weft_batch *batch, bool beyond_shares)
{
    wfi_batch_form *form = batch->form;
    size_t size = (size_t)batch->batcher->options.size, looks = 2 * size;
    for (wfi_list *link = form->extras.next, *next; link != &form->extras && batch->taken < size && looks--;
         link = next) {
        weft_call *call = wfi_container_of(link, weft_call, extra_link);
        next = link->next;
        if (!beyond_shares && has_its_share(batch, call->from))
            continue;
        wfi_list_remove(link);
        form->extra_count--;
        call->extra_of = NULL;
        sit(batch, call, true);
    }
}

/* Whether the seat that it was pulled to is still good: its batch is open, and of its form. */
static bool keeps_its_seat(weft_call *call, weft_tensor *const *tensors)
{
    weft_batch *batch = call->batch;
    if (!batch)
        return false;
    if (batch->open && fits_whole(batch->form, tensors, batch->batcher->tensor_count))
        return true;
    batch->batcher->stats.latecomers += !batch->open;
    stand_up(call);
    return false;
}

bool wfi_batch_find_room(weft_call *call, weft_tensor *const *tensors)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    if (keeps_its_seat(call, tensors)) {
        call->batch->seats[call->seat].ready = true;
        call->batch->ready++;
        return true;
    }
    wfi_batch_form *form = form_for(batcher, tensors);
    if (!form)
        return false;
    if (seat_in(batcher, form, call, true))
        return true;
    if (wfi_list_empty(&form->open)) { /* not for its share: there was no memory for a batch */
        free_form_if_over(form);
        return false;
    }
    wfi_list_push_back(&form->extras, &call->extra_link);
    form->extra_count++;
    call->extra_of = form;
    return true;
}

void wfi_batch_leave_room(weft_call *call)
{
    wfi_batch_form *form = call->extra_of;
    if (form) {
        wfi_list_remove(&call->extra_link);
        form->extra_count--;
        call->extra_of = NULL;
        free_form_if_over(form);
    }
    if (call->batch)
        stand_up(call);
}
