/* SPDX-License-Identifier: Apache-2.0 */
/* op_checks.c - operators check their data: on the CPU at once, on a GPU by a kernel that reports later (checks.h). */
#include "autograd/op.h"

#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"
#include "tensor/tasks.h"

#define PIECE_ELEMENTS 2048 /* of an index; fewer are the work of one block */

/* NULL: the operator has failed. The caller queues the kernel, and sets the mark. */
static wfi_checks *add_check(wfi_op *op, wfi_check_kind kind, int64_t size)
{
    wfi_check check = {.kind = kind, .name = op->type->name, .size = size, .operands = (int)op->given_count};
    for (int i = 0; i < check.operands; i++)
        if (op->given[i])
            check.given[i] = (wfi_operand){true, op->given[i]->dtype, op->given[i]->shape};
    wfi_checks *checks = wfi_checks_add(&op->tape->checks, wfi_stream_now(op->tape->device.index), &check);
    if (!checks)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
    return checks;
}

static weft_tensor *queue_check(wfi_op *op, wfi_check_kind kind, weft_tensor *index, int64_t size)
{
    bool in_place = kind == WFI_CHECK_ROWS;
    weft_tensor *safe = in_place ? index : wfi_op_extra(op, index->shape, WEFT_DTYPE_INT64);
    wfi_checks *checks = !safe ? NULL : add_check(op, kind, size);
    if (!checks)
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
    char fault[WFI_FAULT_TEXT];
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
    wfi_fault_text(kind, size, &found, fault);
    wfi_op_fail(op, WEFT_ERR_INVALID, "%s", fault);
    return NULL;
}

weft_tensor *wfi_op_divisor(wfi_op *op, weft_tensor *divisor)
{
    weft_tensor *safe = wfi_op_extra(op, divisor->shape, divisor->dtype);
    wfi_checks *checks = !safe ? NULL : add_check(op, WFI_CHECK_DIVISOR, 0);
    if (!checks || !wfi_op_check(op, wfi_copy(divisor, safe)))
        return NULL;
    wfi_divisor_task task = {WFI_GPU_TASK(safe, safe->dtype, safe->numel), .divisor = wfi_tensor_address(safe),
                             .report = checks->report, .check = (int64_t)checks->count};
    bool queued = wfi_op_check(op, WFI_GPU_RUN(WFI_GPU_DIVISOR, task));
    checks->mark = wfi_stream_mark_now(wfi_stream_now(op->tape->device.index));
    return queued ? safe : NULL;
}
