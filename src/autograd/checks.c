/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c - see checks.h. */
#include "autograd/checks.h"

#include "autograd/op.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/text/log.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"
#include "tensor/tasks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_TEXT 160
#define PIECE_ELEMENTS 2048 /* of an index; fewer are the work of one block */
#define LEFT_MOST 1024      /* checks of closed tapes; then a new tape waits for its stream */
#define PAGE_REPORTS 64

/* What a message says of an operand. */
typedef struct operand {
    bool is_there;
    weft_dtype dtype;
    weft_shape shape;
} operand;

typedef struct check {
    wfi_check_kind kind;
    const char *name; /* of the operator */
    int64_t size;
    int operands;
    operand given[WFI_OP_INPUTS];
} check;

/* Page-locked memory of several reports: a loop that never waits, with a tape for each step, must not allocate. */
typedef struct page {
    struct page *next;
    wfi_storage *memory;
    uint64_t used; /* a bit for each report */
} page;

/* The checks of a tape on one stream. */
struct wfi_checks {
    wfi_checks *next;
    page *page;
    wfi_report *report; /* in `page` */
    wfi_stream_mark mark;
    check *items; /* number i + 1 is items[i] */
    size_t count, room;
};

/* LOCK. `lock` guards all fields, the pages, and `page` of all checks. */
static struct left {
    pthread_mutex_t lock;
    wfi_checks *first; /* of closed tapes; the newest first */
    size_t count;
    page *pages;
} left = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int number_of(const wfi_checks *checks)
{
    return (int)(checks->report - (wfi_report *)wfi_storage_data(checks->page->memory));
}

/* Nothing on a GPU uses them any more. [lock] */
static void drop(wfi_checks *checks)
{
    page *p = checks->page, **at = &left.pages;
    p->used &= ~(UINT64_C(1) << number_of(checks));
    if (p->used == 0) {
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
        wfi_storage_unref(p->memory);
        free(p);
    }
    free(checks->items);
    free(checks);
}

/* A page with a free report, or NULL. [lock] */
static page *find_page(int device)
{
    page *p = left.pages;
    while (p != NULL && p->used == UINT64_MAX)
        p = p->next;
    if (p != NULL)
        return p;
    p = wfi_calloc(1, sizeof(*p));
    if (p == NULL)
        return NULL;
    if (wfi_storage_create(WFI_MEMORY_PINNED, device, PAGE_REPORTS * sizeof(wfi_report), &p->memory) != WEFT_OK) {
        free(p);
        return NULL;
    }
    p->next = left.pages;
    left.pages = p;
    return p;
}

/* [lock] */
static bool take_report(wfi_checks *checks, int device)
{
    checks->page = find_page(device);
    if (checks->page == NULL)
        return false;
    int number = __builtin_ctzll(~checks->page->used);
    checks->page->used |= UINT64_C(1) << number;
    checks->report = (wfi_report *)wfi_storage_data(checks->page->memory) + number;
    memset(checks->report, 0, sizeof(*checks->report));
    return true;
}

/* ---- The words of a fault ---- */

static void fault_text(wfi_check_kind kind, int64_t size, const wfi_report_slot *found, char text[FAULT_TEXT])
{
    long long place = found->place, value = found->value, before = found->before, end = size;
    if (kind == WFI_CHECK_INDEX)
        snprintf(text, FAULT_TEXT, "element %lld of the index is %lld, not in [0, %lld)", place, value, end);
    else if (kind == WFI_CHECK_TARGET)
        snprintf(text, FAULT_TEXT, "element %lld of the target is %lld: a target is not in [0, %lld)", place, value,
                 end);
    else if (kind == WFI_CHECK_OFFSETS && place == 0)
        snprintf(text, FAULT_TEXT, "offset 0 is %lld, not 0", value);
    else if (kind == WFI_CHECK_OFFSETS)
        snprintf(text, FAULT_TEXT, "offset %lld is %lld, not in [%lld, %lld]", place, value, before, end);
    else if (kind == WFI_CHECK_ROWS)
        snprintf(text, FAULT_TEXT,
                 "row %lld is no distribution: wants weights that are finite, not negative, and not all 0", place);
    else
        snprintf(text, FAULT_TEXT, "%s", weft_status_text(WEFT_ERR_INVALID));
}

/* The fault of a check that is done; NULL: there is none. */
static const wfi_report_slot *first_fault(const wfi_checks *checks)
{
    const wfi_report_slot *first = NULL;
    for (int i = 0; i < WFI_REPORT_SLOTS; i++) {
        const wfi_report_slot *slot = &checks->report->slots[i];
        if (slot->check == 0)
            continue;
        if (first == NULL || slot->check < first->check || (slot->check == first->check && slot->place < first->place))
            first = slot;
    }
    return first;
}

/* The operands of a message are those of an operator that has failed at once. */
static weft_error *error_of(const wfi_checks *checks, const wfi_report_slot *found)
{
    const check *c = &checks->items[found->check - 1];
    char fault[FAULT_TEXT], operands[WFI_OPERANDS_TEXT];
    weft_tensor like[WFI_OP_INPUTS], *given[WFI_OP_INPUTS];
    for (int i = 0; i < c->operands; i++) {
        like[i].dtype = c->given[i].dtype;
        like[i].shape = c->given[i].shape;
        given[i] = c->given[i].is_there ? &like[i] : NULL;
    }
    fault_text(c->kind, c->size, found, fault);
    wfi_operands_text((weft_tensors){given, (size_t)c->operands}, operands);
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .function = c->name, .worker = -1};
    return wfi_error_create(&detail, "%s(%s): %s", c->name, operands, fault);
}

/* ---- Queueing a check ---- */

static bool is_current(const wfi_checks *checks, const weft_stream *stream)
{
    return checks != NULL && checks->mark.id == stream->id && checks->mark.device == stream->device;
}

/* Frees the checks of closed tapes that are done, and logs their faults. [lock] */
static void clear_left(void)
{
    for (wfi_checks **at = &left.first; *at != NULL;) {
        wfi_checks *checks = *at;
        if (!wfi_stream_passed(&checks->mark)) {
            at = &checks->next;
            continue;
        }
        const wfi_report_slot *found = first_fault(checks);
        weft_error *error = found == NULL ? NULL : error_of(checks, found);
        if (found != NULL)
            wfi_log(WEFT_LOG_ERROR, "on a tape that was closed before anything waited for it: %s",
                    error == NULL ? "out of memory" : weft_error_message(error));
        weft_error_unref(error);
        *at = checks->next;
        left.count--;
        drop(checks);
    }
}

static wfi_checks *new_checks(weft_stream *stream)
{
    wfi_checks *checks = wfi_calloc(1, sizeof(*checks));
    if (checks == NULL)
        return NULL;
    pthread_mutex_lock(&left.lock);
    clear_left();
    bool many = left.count >= LEFT_MOST, taken = take_report(checks, stream->device);
    pthread_mutex_unlock(&left.lock);
    if (!taken) {
        free(checks);
        return NULL;
    }
    if (many)
        (void)wfi_stream_wait(stream); /* so that the next tape finds them done */
    checks->mark = wfi_stream_mark_now(stream);
    return checks;
}

/* Adds a check to those of the tape. NULL: the operator has failed. The caller queues the kernel, and sets the mark. */
static wfi_checks *add_check(wfi_op *op, wfi_check_kind kind, int64_t size)
{
    weft_stream *stream = wfi_stream_now(op->tape->device.index);
    wfi_checks *checks = op->tape->checks;
    if (!is_current(checks, stream)) {
        checks = new_checks(stream);
        if (checks != NULL) {
            checks->next = op->tape->checks;
            op->tape->checks = checks;
        }
    }
    if (checks != NULL && checks->count == checks->room) {
        size_t room = checks->room == 0 ? 8 : 2 * checks->room;
        check *grown = realloc(checks->items, room * sizeof(*grown));
        checks->items = grown == NULL ? checks->items : grown;
        checks->room = grown == NULL ? checks->room : room;
    }
    if (checks == NULL || checks->count == checks->room) {
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
        return NULL;
    }
    check *c = &checks->items[checks->count++];
    *c = (check){.kind = kind, .name = op->type->name, .size = size, .operands = (int)op->given_count};
    for (int i = 0; i < c->operands; i++)
        if (op->given[i] != NULL)
            c->given[i] = (operand){true, op->given[i]->dtype, op->given[i]->shape};
    return checks;
}

static weft_tensor *queue_check(wfi_op *op, wfi_check_kind kind, weft_tensor *index, int64_t size)
{
    bool in_place = kind == WFI_CHECK_ROWS;
    weft_tensor *safe = in_place ? index : wfi_op_extra(op, index->shape, WEFT_DTYPE_INT64);
    wfi_checks *checks = safe == NULL ? NULL : add_check(op, kind, size);
    if (checks == NULL)
        return NULL;
    int64_t pieces = kind == WFI_CHECK_OFFSETS ? 1 : (index->numel + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    wfi_index_task task = {WFI_GPU_TASK(index, WEFT_DTYPE_INT64, pieces < WFI_REPORT_SLOTS ? pieces : WFI_REPORT_SLOTS),
                           .index = wfi_tensor_address(index),
                           .safe = wfi_tensor_address(safe),
                           .n = index->numel,
                           .size = size,
                           .report = checks->report,
                           .check = (int64_t)checks->count};
    bool queued =
        wfi_op_check(op, WFI_GPU_RUN(kind == WFI_CHECK_OFFSETS ? WFI_GPU_OFFSETS_CHECK : WFI_GPU_INDEX_CHECK, task));
    checks->mark = wfi_stream_mark_now(wfi_stream_now(op->tape->device.index));
    return queued ? safe : NULL;
}

/* ---- On the CPU ---- */

static bool find_offset(const int64_t *offsets, int64_t count, int64_t size, wfi_report_slot *found)
{
    for (int64_t b = 0; b < count; b++) {
        int64_t before = b == 0 ? 0 : offsets[b - 1];
        if (offsets[b] < before || offsets[b] > size || (b == 0 && offsets[b] != 0)) {
            *found = (wfi_report_slot){1, b, offsets[b], before};
            return true;
        }
    }
    return false;
}

static bool find_outside(const weft_tensor *index, int64_t size, wfi_report_slot *found)
{
    int64_t place = wfi_index_outside(index, size);
    if (place >= 0)
        *found = (wfi_report_slot){1, place, ((const int64_t *)wfi_tensor_address(index))[place], 0};
    return place >= 0;
}

weft_tensor *wfi_op_checked(wfi_op *op, wfi_check_kind kind, weft_tensor *index, int64_t size)
{
    wfi_report_slot found = {.check = 0};
    char fault[FAULT_TEXT];
    if (index->numel == 0)
        return index;
    bool on_gpu = wfi_tensor_kind(index) == WFI_MEMORY_CUDA;
    if (on_gpu && (size > 0 || kind == WFI_CHECK_OFFSETS))
        return queue_check(op, kind, index, size);
    bool wrong = on_gpu; /* no index is in an empty range */
    if (on_gpu)
        found = (wfi_report_slot){1, 0, wfi_index_at(index, 0), 0};
    else if (kind == WFI_CHECK_OFFSETS)
        wrong = find_offset(wfi_tensor_address(index), index->numel, size, &found);
    else
        wrong = find_outside(index, size, &found);
    if (!wrong)
        return index;
    fault_text(kind, size, &found, fault);
    wfi_op_fail(op, WEFT_ERR_INVALID, "%s", fault);
    return NULL;
}

weft_tensor *wfi_op_divisor(wfi_op *op, weft_tensor *divisor)
{
    weft_tensor *safe = wfi_op_extra(op, divisor->shape, divisor->dtype);
    wfi_checks *checks = safe == NULL ? NULL : add_check(op, WFI_CHECK_DIVISOR, 0);
    if (checks == NULL || !wfi_op_check(op, wfi_copy(divisor, safe)))
        return NULL;
    wfi_divisor_task task = {WFI_GPU_TASK(safe, safe->dtype, safe->numel), .divisor = wfi_tensor_address(safe),
                             .report = checks->report, .check = (int64_t)checks->count};
    bool queued = wfi_op_check(op, WFI_GPU_RUN(WFI_GPU_DIVISOR, task));
    checks->mark = wfi_stream_mark_now(wfi_stream_now(op->tape->device.index));
    return queued ? safe : NULL;
}

/* ---- After a wait ---- */

void wfi_tape_look(weft_tape *tape)
{
    if (tape->checks == NULL)
        return;
    pthread_mutex_lock(&left.lock);
    for (wfi_checks **at = &tape->checks; *at != NULL;) {
        wfi_checks *checks = *at;
        if (!wfi_stream_passed(&checks->mark)) {
            at = &checks->next;
            continue;
        }
        const wfi_report_slot *found = first_fault(checks);
        if (found != NULL && tape->error == NULL)
            tape->error = error_of(checks, found);
        *at = checks->next;
        drop(checks);
    }
    pthread_mutex_unlock(&left.lock);
}

void wfi_checks_settle(void)
{
    pthread_mutex_lock(&left.lock);
    clear_left();
    pthread_mutex_unlock(&left.lock);
}

void wfi_tape_leave_checks(weft_tape *tape)
{
    if (tape->checks == NULL)
        return;
    wfi_checks *last = tape->checks;
    size_t count = 1;
    for (; last->next != NULL; last = last->next)
        count++;
    if (tape->parent != NULL) {
        last->next = tape->parent->checks;
        tape->parent->checks = tape->checks;
    } else {
        pthread_mutex_lock(&left.lock);
        last->next = left.first;
        left.first = tape->checks;
        left.count += count;
        clear_left();
        pthread_mutex_unlock(&left.lock);
    }
    tape->checks = NULL;
}
