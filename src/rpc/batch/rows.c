/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - shape classes, open batches and their rows, into which the tensors of calls are pulled; see batch.h. */
#include "rpc/batch/batch.h"

#include "base/alloc.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 16                   /* initial number of rows; grows as rows are taken */
#define SLAB_AT_ONCE ((size_t)64 << 20) /* larger slabs have rows for twice the largest recent batch */

/* ---- Shape classes ----------------------------------------------------------------------------------------------- */

static bool is_of_class(const wfi_shape_class *class, const wfi_tensor_type *types, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (class->tensors[i].dtype != types[i].dtype || class->tensors[i].to != types[i].to ||
            !wfi_shape_equal(&class->tensors[i].shape, &types[i].shape))
            return false;
    return true;
}

static uint64_t hash_of(const wfi_batcher *batcher, const wfi_tensor_type *types, int64_t attempt)
{
    int64_t words[1 + WEFT_MAX_SIGNATURE * (1 + WEFT_MAX_DIMS)] = {attempt};
    size_t count = 1;
    for (size_t i = 0; i < batcher->tensor_count; i++) {
        words[count++] = (int64_t)types[i].to << 16 | (int64_t)types[i].dtype << 8 | types[i].shape.ndim;
        for (int d = 0; d < types[i].shape.ndim; d++)
            words[count++] = types[i].shape.dims[d];
    }
    return wfi_hash_keyed(&batcher->agent->hash_key, words, count * sizeof(*words));
}

static wfi_shape_class *make_class(wfi_batcher *batcher, const wfi_tensor_type *types, uint64_t hash)
{
    size_t types_size = batcher->tensor_count * sizeof(*types);
    wfi_shape_class *class = wfi_calloc(1, sizeof(*class) + types_size);
    if (!class || wfi_map_put(&batcher->class_by_hash, hash, class)) {
        free(class);
        return NULL;
    }
    class->hash = hash;
    memcpy(class->tensors, types, types_size);
    wfi_list_init(&class->open);
    return class;
}

/* If two lists of types have the same hash, the second one is hashed again with the next `attempt`. NULL: memory is
 * out. */
static wfi_shape_class *class_for(wfi_batcher *batcher, const wfi_tensor_type *types)
{
    for (int64_t attempt = 0;; attempt++) {
        uint64_t hash = hash_of(batcher, types, attempt);
        wfi_shape_class *class = wfi_map_get(&batcher->class_by_hash, hash);
        if (!class)
            return make_class(batcher, types, hash);
        if (is_of_class(class, types, batcher->tensor_count))
            return class;
    }
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Opens a batch of the class. NULL: memory is out; then the class is freed if it has no open batch. */
static weft_batch *open_batch(wfi_batcher *batcher, wfi_shape_class *class)
{
    weft_batch *batch = wfi_calloc(1, sizeof(*batch));
    if (!batch)
        return NULL;
    WFI_HANDLE_INIT(batch);
    batch->batcher = batcher;
    batch->agent = wfi_agent_ref(batcher->agent);
    batch->class = class;
    batch->open = true;
    wfi_list_push_back(&batcher->open, &batch->link);
    wfi_list_push_back(&class->open, &batch->class_link);
    return batch;
}

static void free_class_if_unused(wfi_batcher *batcher, wfi_shape_class *class)
{
    if (!wfi_list_empty(&class->open))
        return;
    (void)wfi_map_take(&batcher->class_by_hash, class->hash);
    free(class);
}

static void shut(weft_batch *batch)
{
    if (!batch->open)
        return;
    batch->open = false;
    wfi_list_remove(&batch->link);
    wfi_list_remove(&batch->class_link);
    free_class_if_unused(batch->batcher, batch->class);
    batch->class = NULL;
}

static void charge_spare(weft_batch *batch, size_t bytes)
{
    batch->spare_bytes += bytes;
    batch->agent->held_bytes += bytes;
}

static void uncharge_spare(weft_batch *batch, size_t bytes)
{
    size_t spare = bytes < batch->spare_bytes ? bytes : batch->spare_bytes;
    batch->spare_bytes -= spare;
    batch->agent->held_bytes -= spare;
}

void wfi_batch_free_if_ended(weft_batch *batch)
{
    if (batch->holds)
        return;
    if (batch->taken && !batch->open) {
        /* The handler is over, but late calls are still being pulled into the slabs: charges the batch for all rows. */
        uncharge_spare(batch, batch->spare_bytes);
        for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++)
            charge_spare(batch, batch->slabs[i] ? weft_tensor_nbytes(batch->slabs[i]) : 0);
    }
    if (batch->taken)
        return;
    shut(batch);
    for (size_t i = 0; i < WEFT_MAX_SIGNATURE; i++)
        weft_tensor_unref(batch->slabs[i]);
    uncharge_spare(batch, batch->spare_bytes);
    free(batch->rows);
    free(batch->of_client);
    free(batch->calls);
    wfi_agent_unref(batch->agent);
    wfi_handle_free(batch);
}

/*
 * How many rows a slab gets beforehand: twice as many as the largest recent batch had, but at most a quarter of the
 * remaining budget, because these rows may never be used, and other calls are refused because of them. If all `size`
 * rows need little memory, all are made.
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
           affordable = 1 + left / 4 / row_bytes; /* the first call is charged for its own row */
    rows = rows < size ? rows : size;
    rows = rows < affordable ? rows : affordable;
    return rows ? rows : 1;
}

/* Makes the slab at the first call. NULL: memory is out. */
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
    batch->slabs[index] = wfi_tensor_empty(shape, dtype, NULL);
    if (batch->slabs[index])
        charge_spare(batch, weft_tensor_nbytes(batch->slabs[index]));
    return batch->slabs[index];
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

wfi_row_count wfi_batch_count_of(const weft_batch *batch, const wfi_batch_client *client)
{
    return client && client->number < batch->clients_known ? batch->of_client[client->number] : (wfi_row_count){0};
}

static bool grow_rows(weft_batch *batch)
{
    size_t size = (size_t)batch->batcher->options.size, room = batch->room ? 2 * batch->room : FIRST_ROOM;
    room = room < size ? room : size;
    wfi_row *rows = realloc(batch->rows, room * sizeof(*rows));
    batch->rows = rows ? rows : batch->rows;
    weft_call **calls = rows ? realloc(batch->calls, room * sizeof(*calls)) : NULL;
    if (!calls)
        return false;
    batch->calls = calls;
    memset(rows + batch->room, 0, (room - batch->room) * sizeof(*rows));
    batch->room = room;
    return true;
}

static bool know_clients(weft_batch *batch)
{
    size_t known = batch->batcher->clients.count;
    wfi_row_count *grown = realloc(batch->of_client, known * sizeof(*grown));
    if (!grown)
        return false;
    memset(grown + batch->clients_known, 0, (known - batch->clients_known) * sizeof(*grown));
    batch->of_client = grown;
    batch->clients_known = known;
    return true;
}

/* Gives the call the first free row. False: memory is out. */
static bool take_row(weft_batch *batch, weft_call *call)
{
    wfi_batch_client *client = wfi_batch_client_of(batch->batcher, call->from);
    while (batch->scanned < batch->room && batch->rows[batch->scanned].call)
        batch->scanned++;
    if ((batch->scanned == batch->room && !grow_rows(batch)) ||
        (client->number >= batch->clients_known && !know_clients(batch)))
        return false;
    batch->rows[batch->scanned] = (wfi_row){.call = call, .client = client};
    batch->taken++;
    batch->of_client[client->number].taken++;
    call->batch = batch;
    call->row = batch->scanned;
    return true;
}

static void set_ready(weft_call *call, bool ready)
{
    weft_batch *batch = call->batch;
    wfi_row *row = &batch->rows[call->row];
    wfi_row_count *count = &batch->of_client[row->client->number];
    if (row->ready == ready)
        return;
    row->ready = ready;
    count->ready += ready ? 1 : -1u;
    batch->ready += ready ? 1 : (size_t)-1;
    row->client->waiting += ready ? 1 : (size_t)-1;
}

static void free_row(weft_call *call)
{
    weft_batch *batch = call->batch;
    set_ready(call, false);
    batch->taken--;
    batch->of_client[batch->rows[call->row].client->number].taken--;
    batch->rows[call->row] = (wfi_row){.call = NULL};
    batch->scanned = call->row < batch->scanned ? call->row : batch->scanned;
    call->batch = NULL;
}

void wfi_batch_leave_row(weft_call *call)
{
    weft_batch *batch = call->batch;
    if (!batch)
        return;
    size_t placed = batch->rows[call->row].placed;
    free_row(call);
    charge_spare(batch, placed); /* the call is no longer charged for these */
    if (!batch->ready)
        batch->first_ns = 0;
    wfi_batch_free_if_ended(batch);
}

static bool takes(weft_batch *batch, const wfi_batch_client *client)
{
    const weft_batch_options *o = &batch->batcher->options;
    batch->takes_no_others &= batch->taken > 0; /* all its calls may have left */
    /* A client that another of these batches has answered may call again before this one begins. Its new call goes into
     * a new batch, with the next calls of the other clients. */
    return !batch->takes_no_others && batch->taken < (size_t)o->size &&
           !(o->one_per_caller && wfi_batch_count_of(batch, client).taken);
}

/* Gives the call a row: in the oldest open batch of these types that takes a call of its client, or in a new batch.
 * False: memory is out. */
static bool find_row(weft_call *call, const wfi_tensor_type *types)
{
    wfi_batcher *batcher = wfi_batcher_of(call->function);
    wfi_shape_class *class = class_for(batcher, types);
    weft_batch *batch = NULL;
    if (!class)
        return false;
    const wfi_batch_client *client = wfi_batch_client_of(batcher, call->from);
    WFI_FOR_LIST (weft_batch, open, &class->open, class_link) {
        if (takes(open, client)) {
            batch = open;
            break;
        }
    }
    if (!batch && !(batch = open_batch(batcher, class))) {
        free_class_if_unused(batcher, class);
        return false;
    }
    bool done = take_row(batch, call);
    if (!done)
        wfi_batch_free_if_ended(batch); /* if it is new */
    return done;
}

void wfi_batch_expect(void *arg, const wfi_tensor_types *types)
{
    weft_call *call = arg;
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    if (!types->count || types->count != wfi_batcher_of(call->function)->tensor_count)
        return; /* there are no tensors, or it will be refused */
    for (size_t i = 0; i < types->count; i++)
        if (types->items[i].shape.ndim == WEFT_MAX_DIMS || types->items[i].to)
            return;                     /* it will be refused; or copied on its device */
    (void)find_row(call, types->items); /* without a row it is pulled into new memory, and copied */
}

weft_tensor *wfi_batch_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    weft_call *call = arg;
    weft_batch *batch = call->batch;
    wfi_assert_held(wfi_net_mutex(call->agent->net));
    /* After the batch has begun, its handler reads the slabs. */
    if (!batch || (!batch->open && !batch->slabs[index]))
        return NULL;
    weft_tensor *slab = slab_of(batch, index, dtype, shape);
    if (!slab || (int64_t)call->row >= weft_tensor_size(slab, 0))
        return NULL;
    weft_tensor *row = wfi_tensor_select(slab, 0, (int64_t)call->row, NULL);
    if (row) { /* the call has been charged for it */
        uncharge_spare(batch, weft_tensor_nbytes(row));
        batch->rows[call->row].placed += weft_tensor_nbytes(row);
    }
    return row;
}

bool wfi_batch_make_ready(weft_call *call, const wfi_tensor_types *types)
{
    if (!call->batch && !find_row(call, types->items))
        return false;
    set_ready(call, true);
    return true;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/* Whether a late call has one of the first `count` rows, which is then still being written to. */
static bool has_late_below(const weft_batch *batch, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (batch->rows[i].call && !batch->rows[i].ready)
            return true;
    return false;
}

/*
 * The handler gets `count` adjacent rows. If no late call has one of the first `count` rows, it gets these, and calls
 * in later rows are copied into the gaps. Otherwise all calls are copied to another tensor, and late calls keep their
 * rows.
 */
void wfi_batch_take_calls(weft_batch *batch)
{
    batch->count = batch->ready;
    shut(batch);
    batch->in_place = !has_late_below(batch, batch->count);
    size_t next = batch->in_place ? batch->count : 0;
    for (size_t i = 0; i < batch->count; i++) {
        batch->calls[i] = batch->in_place ? batch->rows[i].call : NULL;
        if (batch->calls[i])
            continue;
        while (!batch->rows[next].ready)
            next++;
        batch->calls[i] = batch->rows[next++].call;
    }
    for (size_t i = 0; i < batch->count; i++) {
        free_row(batch->calls[i]);
        wfi_batch_unqueue(batch->calls[i]);
    }
}
