/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - the code that all operators share. */
#include "autograd/op.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "tensor/cell.h"
#include "tensor/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_TEXT 512

void wfi_op_fail(wfi_op *op, weft_status code, const char *format, ...)
{
    char operands[WFI_TENSORS_TEXT], reason[REASON_TEXT];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(reason, sizeof(reason), format, args);
    va_end(args);
    wfi_tensors_text((weft_tensors){op->given, op->given_count}, operands);
    wfi_tape_fail(op->tape, code, op->type->name, "%s(%s): %s", op->type->name, operands, reason);
}

/* The dtypes are compatible, but the device has no kernel for them. */
static void fail_no_kernel(wfi_op *op, weft_status code)
{
    weft_device device = weft_tensor_device(op->given[0]);
    char where[WFI_DEVICE_TEXT];
    wfi_op_fail(op, code, "no kernel for %s on %s", weft_dtype_name(op->given[0]->dtype),
                wfi_device_text(device, where));
}

bool wfi_op_check(wfi_op *op, weft_status status)
{
    if (status == WEFT_ERR_TYPE || status == WEFT_ERR_UNSUPPORTED)
        fail_no_kernel(op, status);
    else if (status != WEFT_OK)
        wfi_op_fail(op, status, "%s", weft_status_text(status));
    return status == WEFT_OK;
}

bool wfi_op_ok(const wfi_op *op)
{
    return !op->tape->error;
}

bool wfi_op_needs(weft_tape *tape, const wfi_node_type *type, const weft_tensor *x, const char *operand)
{
    if (!wfi_tape_ready(tape))
        return false;
    if (!x)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: %s is NULL", type->name, operand);
    return x != NULL;
}

bool wfi_op_knows(weft_tape *tape, const wfi_node_type *type, bool known)
{
    if (!known)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: " WFI_NEWER, type->name, "its options");
    return known;
}

static void check_dtypes(wfi_op *op, unsigned flags)
{
    weft_dtype dtype = op->given[0]->dtype;
    if (!(flags & WFI_OP_ANY_DTYPE) && !wfi_dtype_is_float(dtype)) {
        if (wfi_dtype_class_of(dtype) == WFI_CLASS_FLOAT)
            fail_no_kernel(op, WEFT_ERR_TYPE);
        else
            wfi_op_fail(op, WEFT_ERR_TYPE, "wants float32 or float64");
        return;
    }
    for (size_t i = 1; i < op->given_count && wfi_op_ok(op); i++)
        if (op->given[i] && op->given[i]->dtype != dtype)
            wfi_op_fail(op, WEFT_ERR_TYPE, "operand %zu is of another dtype than the first", i);
}

static void check_devices(wfi_op *op)
{
    weft_device tape = op->tape->device;
    for (size_t i = 0; i < op->given_count && wfi_op_ok(op); i++) {
        weft_device device = !op->given[i] ? tape : weft_tensor_device(op->given[i]);
        char here[WFI_DEVICE_TEXT], there[WFI_DEVICE_TEXT];
        if (!wfi_device_equal(device, tape))
            wfi_op_fail(op, WEFT_ERR_UNSUPPORTED, "operand %zu is on %s, and the tape computes on %s", i,
                        wfi_device_text(device, there), wfi_device_text(tape, here));
    }
}

bool wfi_op_is_here(wfi_op *op, const weft_tensor *x, const char *name)
{
    weft_device device = weft_tensor_device(x), tape = op->tape->device;
    char here[WFI_DEVICE_TEXT], there[WFI_DEVICE_TEXT];
    if (!wfi_device_equal(device, tape))
        wfi_op_fail(op, WEFT_ERR_UNSUPPORTED, "%s is on %s, and the tape computes on %s", name,
                    wfi_device_text(device, there), wfi_device_text(tape, here));
    else
        wfi_op_check(op, wfi_tensor_use(x, false));
    return wfi_op_ok(op);
}

/* Operand i as the kernel reads it: the snapshot of a cell, contiguous unless the flags allow strides. A reference. */
static weft_tensor *read_operand(wfi_op *op, size_t i, unsigned flags)
{
    weft_tensor *x = op->given[i];
    if (i == 0 && (flags & WFI_OP_HOLD_FIRST) && x->cell) {
        op->held = x;
        return weft_tensor_ref(wfi_tensor_hold(x));
    }
    bool as_is = (flags & WFI_OP_ANY_STRIDES) || weft_tensor_is_contiguous(x);
    return as_is ? wfi_tensor_read(x) : wfi_tensor_contiguous(x, NULL);
}

/* The first one is dropped last: another operand may hold it. */
static void read_operands(wfi_op *op, unsigned flags)
{
    for (size_t i = op->given_count; i-- > 0 && wfi_op_ok(op);) {
        if (!op->given[i])
            continue;
        op->in[i] = read_operand(op, i, flags);
        if (!op->in[i])
            wfi_tape_fail_memory(op->tape, op->type->name);
        else if (op->tape->device.kind != WEFT_DEVICE_CPU)
            wfi_op_check(op, wfi_tensor_use(op->in[i], false));
    }
}

/* The operands of an operator on a list: as given, or with snapshots of its cells. */
static void read_list(wfi_op *op)
{
    size_t i = 0;
    while (i < op->given_count && !op->given[i]->cell)
        i++;
    op->list = op->given;
    if (i == op->given_count)
        return;
    op->snapshots = wfi_calloc(op->given_count, sizeof(weft_tensor *));
    if (!op->snapshots) {
        wfi_tape_fail_memory(op->tape, op->type->name);
        return;
    }
    for (i = 0; i < op->given_count; i++)
        op->snapshots[i] = wfi_tensor_read(op->given[i]);
    op->list = op->snapshots;
}

static void drop_operands(wfi_op *op)
{
    for (int i = 0; i < WFI_OP_INPUTS; i++)
        weft_tensor_unref(op->in[i]);
    if (op->held)
        wfi_tensor_release(op->held);
    for (size_t i = 0; op->snapshots && i < op->given_count; i++)
        weft_tensor_unref(op->snapshots[i]);
    free(op->snapshots);
}

/* Made now, so that its slot comes after its inputs', and the tensors that the operator saves have a place. */
static void make_node(wfi_op *op, size_t saved)
{
    wfi_node_counts counts = {op->given_count, op->type->results == 0 ? 1 : op->type->results, saved,
                              sizeof(wfi_node_state)};
    if (op->type->backward || op->type->backward_all)
        op->node = wfi_tape_add_node(op->tape, op->type, counts, (weft_tensors){op->given, op->given_count});
}

static void start_frame(wfi_op *op, weft_tape *tape, const wfi_node_type *type)
{
    memset(op, 0, sizeof(*op));
    op->tape = tape;
    op->type = type;
    if (tape->device.kind != WEFT_DEVICE_CPU)
        op->stream_before = wfi_stream_set(tape->stream);
}

static void end_frame(const wfi_op *op)
{
    if (op->tape->device.kind != WEFT_DEVICE_CPU)
        (void)wfi_stream_set(op->stream_before);
}

bool wfi_op_begin(wfi_op *op, weft_tape *tape, const wfi_node_type *type, unsigned flags, weft_tensor *const *in,
                  int count)
{
    if (!wfi_op_needs(tape, type, in[0], "the first operand"))
        return false;
    start_frame(op, tape, type);
    op->given = op->few;
    op->given_count = (size_t)count;
    memcpy(op->few, in, (size_t)count * sizeof(in[0]));
    check_devices(op);
    if (wfi_op_ok(op))
        check_dtypes(op, flags);
    if (wfi_op_ok(op))
        make_node(op, WFI_NODE_SAVED);
    if (wfi_op_ok(op))
        read_operands(op, flags);
    if (!wfi_op_ok(op)) {
        drop_operands(op);
        end_frame(op);
    }
    return wfi_op_ok(op);
}

static bool is_list(weft_tape *tape, const wfi_node_type *type, weft_tensors list)
{
    if (list.count == 0) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: wants at least one tensor", type->name);
        return false;
    }
    if (!list.items) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: the list of %zu tensors is NULL", type->name,
                      list.count);
        return false;
    }
    for (size_t i = 0; i < list.count; i++) {
        if (!list.items[i]) {
            wfi_tape_fail(tape, WEFT_ERR_INVALID, type->name, "%s: operand %zu is NULL", type->name, i);
            return false;
        }
    }
    return true;
}

bool wfi_op_begin_list(wfi_op *op, weft_tape *tape, const wfi_node_type *type, weft_tensors list, size_t saved)
{
    if (!wfi_tape_ready(tape) || !is_list(tape, type, list))
        return false;
    start_frame(op, tape, type);
    op->given = list.items;
    op->given_count = list.count;
    check_devices(op);
    if (wfi_op_ok(op))
        check_dtypes(op, WFI_OP_ANY_DTYPE);
    if (wfi_op_ok(op))
        make_node(op, saved);
    if (wfi_op_ok(op))
        read_list(op);
    for (size_t i = 0; i < list.count && wfi_op_ok(op) && tape->device.kind != WEFT_DEVICE_CPU; i++)
        wfi_op_check(op, wfi_tensor_use(op->list[i], false));
    if (!wfi_op_ok(op)) {
        drop_operands(op);
        end_frame(op);
    }
    return wfi_op_ok(op);
}

weft_tensor *wfi_op_give(wfi_op *op, weft_tensor *tensor)
{
    op->out[op->out_count++] = tensor;
    if (!tensor)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory for the result");
    return tensor;
}

weft_tensor *wfi_op_output_as(wfi_op *op, weft_shape shape, weft_dtype dtype)
{
    char text[WFI_WANTED_TEXT];
    if (!wfi_op_ok(op))
        return NULL;
    weft_status status = wfi_tensor_check(&shape, dtype);
    weft_tensor *y = status == WEFT_OK ? wfi_tensor_empty_on(op->tape->device, shape, dtype, NULL) : NULL;
    op->out[op->out_count++] = y;
    if (!y && status != WEFT_OK)
        wfi_op_fail(op, status, "the result would be %s: %s", wfi_tensor_wanted(&shape, dtype, text),
                    weft_status_text(status));
    else if (!y)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory for the result %s", wfi_tensor_wanted(&shape, dtype, text));
    return y;
}

weft_tensor *wfi_op_output(wfi_op *op, weft_shape shape)
{
    return wfi_op_output_as(op, shape, op->given[0]->dtype);
}

weft_tensor *wfi_op_extra(wfi_op *op, weft_shape shape, weft_dtype dtype)
{
    if (!wfi_op_ok(op))
        return NULL;
    weft_tensor *extra = wfi_tensor_empty_on(op->tape->device, shape, dtype, NULL);
    if (!extra)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
    return weft_tape_take(op->tape, extra);
}

void wfi_op_save(wfi_op *op, int slot, weft_tensor *tensor)
{
    if (op->node && wfi_op_ok(op))
        wfi_node_save(op->node, slot, tensor);
}

void wfi_op_end_all(wfi_op *op, weft_tensor **results)
{
    drop_operands(op);
    for (size_t i = 0; i < op->out_count && wfi_op_ok(op) && op->node; i++)
        wfi_node_set_result(op->node, (uint32_t)i, op->out[i]);
    for (size_t i = 0; i < op->out_count; i++)
        op->out[i] = weft_tape_take(op->tape, op->out[i]);
    end_frame(op);
    for (size_t i = 0; i == 0 || i < op->type->results; i++)
        results[i] = wfi_op_ok(op) ? op->out[i] : NULL;
}

weft_tensor *wfi_op_end(wfi_op *op)
{
    weft_tensor *results[WFI_OP_RESULTS];
    wfi_op_end_all(op, results);
    return results[0];
}

bool wfi_op_dim(wfi_op *op, int *dim)
{
    int given = *dim;
    if (wfi_dim_wrap(op->given[0]->shape.ndim, dim))
        return true;
    wfi_op_fail(op, WEFT_ERR_SHAPE, "there is no dimension %d", given);
    return false;
}

static weft_status grad_given(weft_tensor *tensor, weft_tensor **out)
{
    if (!tensor)
        return WEFT_ERR_MEMORY;
    *out = tensor;
    return WEFT_OK;
}

weft_status wfi_grad_like(bool wanted, weft_shape shape, const weft_tensor *dy, weft_tensor **out)
{
    return wanted ? grad_given(wfi_tensor_empty_like(dy, shape, dy->dtype), out) : WEFT_OK;
}

weft_status wfi_grad_over(weft_tensor *dy, weft_tensor **out)
{
    bool over = wfi_tensor_is_alone(dy) && weft_tensor_is_contiguous(dy);
    return over ? grad_given(weft_tensor_ref(dy), out) : wfi_grad_like(true, dy->shape, dy, out);
}
