/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.c - steps on GPUs, collected for launches of many parameters. A launch takes its table in the parameter of the
 * kernel, so nothing is copied to the GPU for it, and no memory of it must be kept (docs/decisions/069).
 */
#include "tensor/check.h"
#include "tensor/cpu/optim/update.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One launch for each kernel: SGD has two for parameters of different age, and a module may have two dtypes. */
enum { LAUNCHES = 4 };
static_assert(sizeof(wfi_step_task) <= 4096, "more than CUDA's limit of the parameters of a kernel");
static_assert(sizeof(wfi_step_place) == sizeof(wfi_step_entry), "an entry is the largest of the places");

typedef struct collected {
    wfi_gpu_kind kind;
    int used_back;                                                       /* places at the end */
    const char *written[WFI_STEP_PLACES], *written_end[WFI_STEP_PLACES]; /* what each entry writes, except its slots */
    wfi_step_task task;                                                  /* task.entries 0: nothing is collected */
} collected;

struct wfi_steps {
    collected launches[LAUNCHES];
    weft_status failed; /* of a launch since the last wfi_steps_run */
};

wfi_steps *wfi_steps_create(void)
{
    return wfi_calloc(1, sizeof(wfi_steps));
}

void wfi_steps_destroy(wfi_steps *steps)
{
    free(steps);
}

static weft_status run(wfi_steps *steps, collected *c)
{
    if (c->task.entries == 0)
        return WEFT_OK;
    weft_status status = WFI_GPU_RUN(c->kind, c->task);
    steps->failed = steps->failed == WEFT_OK ? status : steps->failed;
    c->task = (wfi_step_task){.entries = 0}; /* the kernel gets all bytes: none is left from before */
    c->used_back = 0;
    return status;
}

weft_status wfi_steps_run(wfi_steps *steps)
{
    for (int i = 0; i < LAUNCHES; i++)
        (void)run(steps, &steps->launches[i]);
    weft_status status = steps->failed;
    steps->failed = WEFT_OK;
    return status;
}

/* Whether [at, at + size) and [begin, end) have bytes in common. */
static bool meet(const void *at, size_t size, const char *begin, const char *end)
{
    return (const char *)at < end && (const char *)at + size > begin;
}

/* Whether the item must run after what is collected: parameters may be views of the same memory. */
static bool depends(const wfi_steps *steps, const wfi_steps_item *item)
{
    const void *gradient = wfi_tensor_address(item->gradient);
    size_t size = (size_t)item->gradient->numel * weft_dtype_size(item->gradient->dtype);
    for (const collected *c = steps->launches; c < steps->launches + LAUNCHES; c++)
        for (int64_t i = 0; i < c->task.entries; i++) {
            const wfi_step_entry *entry = &c->task.places[i].entry;
            const char *begin = c->written[i], *end = c->written_end[i];
            if (meet(item->to, item->written, begin, end) || meet(gradient, size, begin, end) ||
                (item->from != item->to && item->from && meet(item->from, item->written, begin, end)))
                return true;
            size_t read = (size_t)entry->count * weft_dtype_size(c->task.head.dtype);
            if (meet(item->to, item->written, entry->gradient, (const char *)entry->gradient + read))
                return true;
        }
    return false;
}

static bool fits(const collected *c, const wfi_steps_item *item)
{
    weft_device device = weft_tensor_device(item->gradient), of = c->task.head.device;
    return c->kind == item->kind && c->task.head.dtype == item->gradient->dtype && wfi_device_equal(of, device) &&
           c->task.scale == item->scale;
}

/* The launch that the item belongs to; a new one for the first of its kind. */
static weft_status choose(wfi_steps *steps, const wfi_steps_item *item, collected **out)
{
    collected *unused = NULL;
    for (collected *c = steps->launches; c < steps->launches + LAUNCHES; c++) {
        if (c->task.entries > 0 && fits(c, item)) {
            *out = c;
            return WEFT_OK;
        }
        unused = !unused && c->task.entries == 0 ? c : unused;
    }
    *out = unused ? unused : steps->launches;
    return unused ? WEFT_OK : run(steps, *out);
}

static wfi_step_place shared_place(const void *bytes, size_t size)
{
    wfi_step_place place = {.numbers = {0}};
    assert(size <= sizeof(place));
    memcpy(&place, bytes, size);
    return place;
}

/* The place that has these bytes; 0, an entry's: there is none. */
static int find_shared(const collected *c, const wfi_step_place *wanted)
{
    int place = WFI_STEP_PLACES - 1;
    /* All bytes were set: see shared_place. */
    while (place >= WFI_STEP_PLACES - c->used_back &&
           memcmp((const void *)&c->task.places[place], (const void *)wanted, sizeof(*wanted)) != 0)
        place--;
    return place >= WFI_STEP_PLACES - c->used_back ? place : 0;
}

/* The place that has these bytes; a new one for the first such. */
static int16_t share(collected *c, const wfi_step_place *wanted)
{
    int place = find_shared(c, wanted);
    if (place == 0) {
        place = WFI_STEP_PLACES - 1 - c->used_back++;
        c->task.places[place] = *wanted;
    }
    return (int16_t)place;
}

static bool has_room(const collected *c, const wfi_steps_item *item)
{
    int64_t needed = 1 + (item->rows != NULL);
    if (item->numbers) {
        const wfi_step_place numbers = shared_place(item->numbers, item->size);
        needed += find_shared(c, &numbers) == 0;
    }
    return c->task.entries + c->used_back + needed <= WFI_STEP_PLACES && c->task.head.count + item->pieces <= INT32_MAX;
}

static wfi_rows_order order_of(const wfi_sparse_rows *rows, int64_t row_count)
{
    const int64_t *sorted = wfi_tensor_address(rows->order);
    return (wfi_rows_order){sorted, sorted + rows->count, rows->count, rows->width, row_count};
}

static void put(collected *c, const wfi_steps_item *item)
{
    int64_t number = c->task.entries++;
    wfi_step_entry entry = {.from = item->from,
                            .gradient = wfi_tensor_address(item->gradient),
                            .to = item->to,
                            .count = item->gradient->numel,
                            .begin = (int32_t)c->task.head.count};
    for (int k = 0; k < WFI_STEP_SLOTS_USED; k++)
        entry.slots[k] = item->slots[k];
    if (item->numbers) {
        const wfi_step_place numbers = shared_place(item->numbers, item->size);
        entry.numbers = share(c, &numbers);
    }
    if (item->rows) {
        const wfi_rows_order order = order_of(item->rows, item->row_count);
        const wfi_step_place rows = shared_place(&order, sizeof(order));
        entry.rows = share(c, &rows);
    }
    c->written[number] = item->to;
    c->written_end[number] = (const char *)item->to + item->written;
    c->task.places[number].entry = entry;
    c->task.head.count += item->pieces;
}

weft_status wfi_steps_add(wfi_steps *steps, const wfi_steps_item *item)
{
    collected *c = NULL;
    assert(item->pieces > 0 && !item->slots[WFI_STEP_SLOTS_USED]);
    weft_status status = WEFT_OK;
    for (int i = 0; i < LAUNCHES && depends(steps, item); i++)
        status = run(steps, &steps->launches[i]);
    if (status == WEFT_OK)
        status = choose(steps, item, &c);
    if (status == WEFT_OK && !has_room(c, item))
        status = run(steps, c);
    if (status != WEFT_OK)
        return status;
    if (c->task.entries == 0) {
        c->kind = item->kind;
        c->task.head = (wfi_gpu_task)WFI_GPU_HEAD(weft_tensor_device(item->gradient), item->gradient->dtype, 0);
        c->task.scale = item->scale;
    }
    put(c, item);
    return WEFT_OK;
}
