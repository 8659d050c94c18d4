/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c - functions of one tensor, element by element. */
#include "autograd/autograd.h"

static weft_status scaled(const weft_tensor *dy, double factor, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, dx);
    return status == WEFT_OK ? wfi_scale(dy, factor, *dx) : status;
}

static weft_status scale_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    return scaled(dy, node->state->factor, &dx[0]);
}

static weft_status same_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    (void)node;
    dx[0] = weft_tensor_ref(dy);
    return WEFT_OK;
}

/* saved: y. d e^x = y dx */
static weft_status exp_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_binary(WFI_MUL, dy, node->saved[0], dx[0]) : status;
}

/* saved: x */
static weft_status log_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_binary(WFI_DIV, dy, node->saved[0], dx[0]) : status;
}

/* saved: y, which is positive where x was */
static weft_status relu_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_over(dy, &dx[0]);
    return status == WEFT_OK ? wfi_relu_backward(dy, node->saved[0], dx[0]) : status;
}

/* saved: y */
static weft_status sigmoid_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_sigmoid_backward(dy, node->saved[0], dx[0]) : status;
}

/* saved: y */
static weft_status tanh_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_status status = wfi_grad_like(true, dy->shape, dy, &dx[0]);
    return status == WEFT_OK ? wfi_tanh_backward(dy, node->saved[0], dx[0]) : status;
}

static const wfi_node_type neg_type = {.name = "neg", .backward = scale_backward};
static const wfi_node_type scale_type = {.name = "scale", .backward = scale_backward};
static const wfi_node_type add_scalar_type = {.name = "add_scalar", .backward = same_backward};
static const wfi_node_type exp_type = {.name = "exp", .backward = exp_backward};
static const wfi_node_type log_type = {.name = "log", .backward = log_backward};
static const wfi_node_type relu_type = {.name = "relu", .backward = relu_backward};
static const wfi_node_type sigmoid_type = {.name = "sigmoid", .backward = sigmoid_backward};
static const wfi_node_type tanh_type = {.name = "tanh", .backward = tanh_backward};

static weft_tensor *scale(weft_tape *tape, const wfi_node_type *type, weft_tensor *x, double factor)
{
    wfi_op op;
    if (!wfi_op_begin(&op, tape, type, 0, &x, 1))
        return NULL;
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y)
        wfi_op_check(&op, wfi_scale(op.in[0], factor, y));
    if (op.node)
        op.node->state->factor = factor;
    return wfi_op_end(&op);
}

weft_tensor *weft_neg(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return scale(tape, &neg_type, x, -1);
}

weft_tensor *weft_scale(weft_tape *tape, weft_tensor *x, double factor)
{
    WFI_CHECK_HANDLE(tape, x);
    return scale(tape, &scale_type, x, factor);
}

weft_tensor *weft_add_scalar(weft_tape *tape, weft_tensor *x, double value)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!wfi_op_begin(&op, tape, &add_scalar_type, 0, &x, 1))
        return NULL;
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y)
        wfi_op_check(&op, wfi_add_scalar(op.in[0], value, y));
    return wfi_op_end(&op);
}

/* y = kernel(x), of whose y the gradient is found. */
static weft_tensor *map(weft_tape *tape, const wfi_node_type *type, weft_tensor *x,
                        weft_status (*kernel)(const weft_tensor *x, weft_tensor *y))
{
    wfi_op op;
    if (!wfi_op_begin(&op, tape, type, 0, &x, 1))
        return NULL;
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y)
        wfi_op_check(&op, kernel(op.in[0], y));
    wfi_op_save(&op, 0, y);
    return wfi_op_end(&op);
}

weft_tensor *weft_exp(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return map(tape, &exp_type, x, wfi_exp);
}

weft_tensor *weft_relu(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return map(tape, &relu_type, x, wfi_relu);
}

weft_tensor *weft_relu_in_place(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    bool in_place = wfi_tape_ready(tape) && x && wfi_tape_may_overwrite(tape, x); /* the frame refers to x too */
    if (!in_place)
        return weft_relu(tape, x);
    if (!wfi_op_begin(&op, tape, &relu_type, 0, &x, 1))
        return NULL;
    weft_tensor *y = NULL;
    (void)wfi_tensor_view(x, x->shape, x->strides, x->offset, &y); /* NULL: out of memory */
    if (wfi_op_give(&op, y))
        wfi_op_check(&op, wfi_relu(x, y));
    wfi_op_save(&op, 0, y);
    return wfi_op_end(&op);
}

weft_tensor *weft_sigmoid(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return map(tape, &sigmoid_type, x, wfi_sigmoid);
}

weft_tensor *weft_tanh(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    return map(tape, &tanh_type, x, wfi_tanh);
}

weft_tensor *weft_log(weft_tape *tape, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    wfi_op op;
    if (!wfi_op_begin(&op, tape, &log_type, 0, &x, 1))
        return NULL;
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y)
        wfi_op_check(&op, wfi_ln(op.in[0], y));
    wfi_op_save(&op, 0, op.in[0]);
    return wfi_op_end(&op);
}
