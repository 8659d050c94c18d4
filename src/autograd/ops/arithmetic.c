/* SPDX-License-Identifier: Apache-2.0 */
/* arithmetic.c - add, sub, mul, div, with broadcasting. */
#include "autograd/autograd.h"

/* Takes over `full` and gives what of it belongs to an operand of `shape`: summed over its broadcast dimensions. */
static weft_status fold(weft_tensor *full, const weft_shape *shape, weft_tensor **out)
{
    if (wfi_shape_equal(&full->shape, shape)) {
        *out = full;
        return WEFT_OK;
    }
    weft_status status = wfi_grad_like(true, *shape, full, out);
    if (status == WEFT_OK)
        status = wfi_sum_to_shape(full, *out);
    weft_tensor_unref(full);
    return status;
}

/* *out = a op b, of dy's shape, then folded. */
static weft_status combine(wfi_binary_op how, const weft_tensor *a, const weft_tensor *b, const weft_shape *full_shape,
                           const weft_shape *shape, weft_tensor **out)
{
    weft_tensor *full = NULL;
    weft_status status = wfi_grad_like(true, *full_shape, a, &full);
    if (status == WEFT_OK)
        status = wfi_binary(how, a, b, full);
    if (status == WEFT_OK)
        return fold(full, shape, out);
    weft_tensor_unref(full);
    return status;
}

static weft_status negate(weft_tensor *tensor)
{
    return wfi_scale(tensor, -1, tensor);
}

/* A negative of dy must not be written into dy: folding may have given dy itself. */
static weft_status negative_of(weft_tensor *dy, const weft_shape *shape, weft_tensor **out)
{
    weft_tensor *full = NULL;
    weft_status status = wfi_grad_like(true, dy->shape, dy, &full);
    if (status == WEFT_OK)
        status = wfi_scale(dy, -1, full);
    if (status == WEFT_OK)
        return fold(full, shape, out);
    weft_tensor_unref(full);
    return status;
}

static weft_status add_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < 2 && status == WEFT_OK; i++)
        if (node->inputs[i].node)
            status = fold(weft_tensor_ref(dy), &node->state->shapes[i], &dx[i]);
    return status;
}

static weft_status sub_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = WEFT_OK;
    if (node->inputs[0].node)
        status = fold(weft_tensor_ref(dy), &node->state->shapes[0], &dx[0]);
    if (status == WEFT_OK && node->inputs[1].node)
        status = negative_of(dy, &node->state->shapes[1], &dx[1]);
    return status;
}

/* saved: a, b */
static weft_status mul_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < 2 && status == WEFT_OK; i++)
        if (node->inputs[i].node)
            status = combine(WFI_MUL, dy, node->saved[1 - i], &dy->shape, &node->state->shapes[i], &dx[i]);
    return status;
}

/*
 * saved: y = a / b, b. da = dy / b, db = -dy (y / b), in this order, as PyTorch. If b is subnormal, dy / b can be
 * infinite where y / b is 0.
 */
static weft_status div_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_tensor *slope = NULL;
    weft_status status = WEFT_OK;
    if (node->inputs[0].node)
        status = combine(WFI_DIV, dy, node->saved[1], &dy->shape, &node->state->shapes[0], &dx[0]);
    if (status != WEFT_OK || !node->inputs[1].node)
        return status;
    status = combine(WFI_DIV, node->saved[0], node->saved[1], &dy->shape, &dy->shape, &slope);
    if (status == WEFT_OK)
        status = combine(WFI_MUL, dy, slope, &dy->shape, &node->state->shapes[1], &dx[1]);
    if (status == WEFT_OK)
        status = negate(dx[1]);
    weft_tensor_unref(slope);
    return status;
}

static const wfi_node_type add_type = {.name = "add", .backward = add_backward};
static const wfi_node_type sub_type = {.name = "sub", .backward = sub_backward};
static const wfi_node_type mul_type = {.name = "mul", .backward = mul_backward};
static const wfi_node_type div_type = {.name = "div", .backward = div_backward};

static void save_operands(wfi_op *op, wfi_binary_op how)
{
    if (!op->node)
        return;
    op->node->state->shapes[0] = op->in[0]->shape;
    op->node->state->shapes[1] = op->in[1]->shape;
    if (how == WFI_MUL && op->node->inputs[1].node)
        wfi_op_save(op, 0, op->in[0]);
    if (how == WFI_DIV && op->node->inputs[1].node)
        wfi_op_save(op, 0, op->out[0]);
    if (how == WFI_DIV || (how == WFI_MUL && op->node->inputs[0].node))
        wfi_op_save(op, 1, op->in[1]);
}

static bool is_integer(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_INT64 || dtype == WEFT_DTYPE_INT32 || dtype == WEFT_DTYPE_UINT8;
}

/* The kernels of the CPU have no other reason for WEFT_ERR_INVALID than a divisor of 0. */
static void check_result(wfi_op *op, wfi_binary_op how, weft_status status)
{
    char fault[WFI_FAULT_TEXT];
    if (status != WEFT_ERR_INVALID || how != WFI_DIV) {
        wfi_op_check(op, status);
        return;
    }
    wfi_fault_text(WFI_CHECK_DIVISOR, 0, &(wfi_report_slot){.value = 0}, fault);
    wfi_op_fail(op, status, "%s", fault);
}

static weft_tensor *binary(weft_tape *tape, const wfi_node_type *type, wfi_binary_op how, weft_tensor *a,
                           weft_tensor *b)
{
    wfi_op op;
    weft_shape shape;
    if (!wfi_op_needs(tape, type, a, "the first operand") || !wfi_op_needs(tape, type, b, "the second operand") ||
        !wfi_op_begin(&op, tape, type, WFI_OP_ANY_DTYPE, (weft_tensor *[]){a, b}, 2))
        return NULL;
    if (wfi_broadcast_shape(&a->shape, &b->shape, &shape) != WEFT_OK)
        wfi_op_fail(&op, WEFT_ERR_SHAPE, "the shapes do not broadcast");
    weft_tensor *y = wfi_op_output(&op, shape), *second = op.in[1];
    if (y && how == WFI_DIV && tape->device.kind != WEFT_DEVICE_CPU && is_integer(b->dtype))
        second = wfi_op_divisor(&op, second);
    if (y && second)
        check_result(&op, how, wfi_binary(how, op.in[0], second, y));
    save_operands(&op, how);
    return wfi_op_end(&op);
}

weft_tensor *weft_add(weft_tape *tape, weft_tensor *a, weft_tensor *b)
{
    WFI_CHECK_HANDLE(tape, a, b);
    return binary(tape, &add_type, WFI_ADD, a, b);
}

weft_tensor *weft_sub(weft_tape *tape, weft_tensor *a, weft_tensor *b)
{
    WFI_CHECK_HANDLE(tape, a, b);
    return binary(tape, &sub_type, WFI_SUB, a, b);
}

weft_tensor *weft_mul(weft_tape *tape, weft_tensor *a, weft_tensor *b)
{
    WFI_CHECK_HANDLE(tape, a, b);
    return binary(tape, &mul_type, WFI_MUL, a, b);
}

weft_tensor *weft_div(weft_tape *tape, weft_tensor *a, weft_tensor *b)
{
    WFI_CHECK_HANDLE(tape, a, b);
    return binary(tape, &div_type, WFI_DIV, a, b);
}
