/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - see update.h. Pieces of a parameter, or of the rows of a gradient, are shared among threads. */
#include "tensor/check.h"
#include "tensor/parallel.h"
#include "tensor/cpu/optim/update.h"

#define AHEAD 8         /* rows that are fetched before their turn comes */
#define AHEAD_BYTES 512 /* of each; the processor sees by itself how a longer one goes on */
#define LINE_BYTES 64

typedef struct update_run {
    const wfi_update *update;
    wfi_span_fn run;
    const void *numbers;
    size_t size; /* bytes of an element */
} update_run;

/* `count` elements from element `begin` of the parameter on, in all tensors except the gradient. */
static wfi_span span_at(const update_run *r, int64_t begin, int64_t count)
{
    const wfi_update *u = r->update;
    size_t offset = (size_t)begin * r->size;
    wfi_span span = {.from = (const char *)wfi_tensor_address(u->from) + offset,
                     .to = (char *)wfi_tensor_address(u->to) + offset,
                     .count = count,
                     .dtype = u->from->dtype};
    for (int k = 0; k < WFI_STEP_SLOTS; k++)
        span.slots[k] = !u->slots[k] ? NULL : (char *)wfi_tensor_address(u->slots[k]) + offset;
    return span;
}

static void run_piece(void *arg, int64_t begin, int64_t end)
{
    const update_run *r = arg;
    wfi_span span = span_at(r, begin, end - begin);
    span.gradient = (const char *)wfi_tensor_address(r->update->gradient) + (size_t)begin * r->size;
    r->run(r->numbers, &span);
}

static wfi_span row_at(const update_run *r, int64_t i)
{
    const wfi_sparse_rows *rows = r->update->rows;
    wfi_span span = span_at(r, rows->rows[i] * rows->width, rows->width);
    span.gradient = rows->at[i];
    return span;
}

/* Prefetches a row: rows are far apart, so the processor does not guess the next one. */
static void fetch_ahead(const wfi_span *span, size_t bytes)
{
    for (size_t at = 0; at < bytes && at < AHEAD_BYTES; at += LINE_BYTES) {
        __builtin_prefetch((const char *)span->from + at, 1);
        __builtin_prefetch((const char *)span->gradient + at);
        for (int k = 0; k < WFI_STEP_SLOTS && span->slots[k]; k++)
            __builtin_prefetch((const char *)span->slots[k] + at, 1);
    }
}

static void run_rows(void *arg, int64_t begin, int64_t end)
{
    const update_run *r = arg;
    size_t bytes = (size_t)r->update->rows->width * r->size;
    for (int64_t i = begin; i < end; i++) {
        wfi_span span = row_at(r, i);
        if (i + AHEAD < end) {
            wfi_span later = row_at(r, i + AHEAD);
            fetch_ahead(&later, bytes);
        }
        r->run(r->numbers, &span);
    }
}

static weft_status check(const wfi_update *u, int slots)
{
    const weft_tensor *p = u->from;
    weft_status status =
        WFI_CHECK_FLOATS_TOGETHER(p, u->to, u->gradient, u->slots[0], u->slots[1], u->slots[2], u->slots[3]);
    if (status != WEFT_OK)
        return status;
    if (u->step < 1 || (!u->gradient) == (!u->rows) || (u->rows && u->to != u->from))
        return WEFT_ERR_INVALID;
    bool fits = weft_tensor_same_shape(p, u->to) && (!u->gradient || weft_tensor_same_shape(p, u->gradient));
    for (int k = 0; k < slots; k++) {
        if (!u->slots[k])
            return WEFT_ERR_INVALID;
        fits = fits && weft_tensor_same_shape(p, u->slots[k]);
    }
    if (!fits || (u->rows && u->rows->dtype != p->dtype))
        return fits ? WEFT_ERR_TYPE : WEFT_ERR_SHAPE;
    return WEFT_OK;
}

/* Makes the stream wait for uses of the tensors that are written. */
static weft_status use_written(const wfi_update *update, int slots)
{
    weft_status status = wfi_tensor_use(update->to, true);
    for (int k = 0; k < slots && status == WEFT_OK; k++)
        status = wfi_tensor_use(update->slots[k], true);
    return status;
}

/*
 * The update of a parameter on a GPU, as an item for a launch. If the step collects its updates (update->steps), the
 * item is added to them; otherwise it is queued by itself.
 */
static weft_status run_on_gpu(const wfi_update *update, const wfi_rule *rule, const void *numbers, size_t size)
{
    const weft_tensor *p = update->from;
    const wfi_sparse_rows *rows = update->rows;
    if (rule->gpu == WFI_GPU_KINDS || (rows && !rows->order))
        return WEFT_ERR_UNSUPPORTED;
    wfi_steps_item item = {.kind = rule->gpu,
                           .gradient = !rows ? update->gradient : rows->values,
                           .rows = rows,
                           .row_count = p->shape.ndim == 0 ? 1 : p->shape.dims[0],
                           .from = wfi_tensor_address(p),
                           .to = wfi_tensor_address(update->to),
                           .numbers = numbers,
                           .size = size,
                           .written = (size_t)p->numel * weft_dtype_size(p->dtype),
                           .scale = update->scale};
    for (int k = 0; k < rule->slots; k++)
        item.slots[k] = wfi_tensor_address(update->slots[k]);
    item.pieces = (item.gradient->numel + WFI_STEP_PIECE - 1) / WFI_STEP_PIECE;
    weft_status status = use_written(update, rule->slots);
    if (status == WEFT_OK && rows)
        status = wfi_check_beside(rows->values, p);
    if (status == WEFT_OK && rows)
        status = wfi_check_beside(rows->order, p);
    if (status != WEFT_OK || item.pieces == 0)
        return status;
    if (update->steps)
        return wfi_steps_add(update->steps, &item);
    wfi_steps *alone = wfi_steps_create();
    if (!alone)
        return WEFT_ERR_MEMORY;
    status = wfi_steps_add(alone, &item);
    if (status == WEFT_OK)
        status = wfi_steps_run(alone);
    wfi_steps_destroy(alone);
    return status;
}

weft_status wfi_update_run(const wfi_update *update, const wfi_rule *rule, const void *numbers, size_t size)
{
    weft_status status = check(update, rule->slots);
    if (status != WEFT_OK)
        return status;
    if (wfi_tensor_is_on_gpu(update->from))
        return run_on_gpu(update, rule, numbers, size);
    weft_dtype dtype = update->from->dtype;
    update_run r = {update, WFI_BY_FLOAT(dtype, rule->f32, rule->f64), numbers, weft_dtype_size(dtype)};
    const wfi_sparse_rows *rows = update->rows;
    if (!rows)
        wfi_parallel(update->from->numel, WFI_GRAIN, run_piece, &r);
    else if (rows->width > 0)
        wfi_parallel(rows->count, 1 + WFI_GRAIN / rows->width, run_rows, &r);
    return WEFT_OK;
}
