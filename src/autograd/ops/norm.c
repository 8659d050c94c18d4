/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - batch_norm2d. */
#include "autograd/autograd.h"
#include "tensor/cell.h"
#include "tensor/copy.h"

#define DEFAULT_MOMENTUM 0.1
#define DEFAULT_EPS 1e-5

/* saved: x, weight (or none), mean, invstd */
static weft_status batch_norm2d_backward(const wfi_node *node, weft_tensor *dy, weft_tensor **dx)
{
    weft_shape channels = WEFT_SHAPE(node->results[0].shape.dims[1]);
    weft_status status = wfi_grad_like(node->inputs[0].node != NULL, node->results[0].shape, dy, &dx[0]);
    for (int i = 1; i < 3 && status == WEFT_OK; i++)
        status = wfi_grad_like(node->inputs[i].node != NULL, channels, dy, &dx[i]);
    if (status != WEFT_OK)
        return status;
    return wfi_batchnorm_backward(dy, node->saved[0], node->saved[1], node->saved[2], node->saved[3],
                                  node->state->train, dx[0], dx[1], dx[2]);
}

static const wfi_node_type batch_norm2d_type = {.name = "batch_norm2d", .backward = batch_norm2d_backward};

static void check_channels(wfi_op *op, const weft_tensor *tensor, const char *name)
{
    int64_t channels = op->in[0]->shape.dims[1];
    if (!tensor || !wfi_op_ok(op))
        return;
    if (tensor->dtype != op->in[0]->dtype)
        wfi_op_fail(op, WEFT_ERR_TYPE, "%s is of another dtype than x", name);
    else if (tensor->shape.ndim != 1 || tensor->shape.dims[0] != channels)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "%s must have %lld elements", name, (long long)channels);
    else if (!weft_tensor_is_contiguous(tensor))
        wfi_op_fail(op, WEFT_ERR_UNSUPPORTED, "%s must be contiguous", name);
    else
        wfi_op_is_here(op, tensor, name);
}

static void check_batch_norm(wfi_op *op, const weft_tensor *mean, const weft_tensor *var, bool train)
{
    const weft_shape *x = &op->in[0]->shape;
    if (x->ndim != 4) {
        wfi_op_fail(op, WEFT_ERR_SHAPE, "wants x [N, C, H, W]");
        return;
    }
    check_channels(op, op->in[1], "the weight");
    check_channels(op, op->in[2], "the bias");
    check_channels(op, mean, "running_mean");
    check_channels(op, var, "running_var");
    if ((!mean) != (!var) || (!train && !mean))
        wfi_op_fail(op, WEFT_ERR_INVALID, "wants both running statistics, or when training neither");
    if (train && x->dims[0] * x->dims[2] * x->dims[3] < 2)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "training wants more than one value a channel");
}

/* Other threads may train the module too, or read it: a moved vector is published, and none of their moves is lost. */
static void move(wfi_op *op, weft_tensor *running, const weft_tensor *moments, int which, double momentum)
{
    wfi_write write;
    if (!wfi_op_ok(op) || !wfi_op_check(op, wfi_cell_write_begin(&write, running, WFI_WRITE_WHOLE, NULL)))
        return;
    weft_status status = wfi_batchnorm_move(moments, which, momentum, write.from, write.to);
    wfi_cell_write_end(&write, status == WEFT_OK);
    wfi_op_check(op, status);
}

static void run_train(wfi_op *op, weft_tensor *mean, weft_tensor *var, const weft_batch_norm_options *how,
                      weft_tensor *y)
{
    int64_t channels = op->in[0]->shape.dims[1];
    weft_tensor *save_mean = wfi_op_extra(op, WEFT_SHAPE(channels), y->dtype);
    weft_tensor *invstd = wfi_op_extra(op, WEFT_SHAPE(channels), y->dtype);
    weft_tensor *moments = !mean ? NULL : wfi_tensor_empty_like(op->in[0], WEFT_SHAPE(2, channels), WEFT_DTYPE_FLOAT64);
    if (mean && !moments)
        wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
    if (wfi_op_ok(op))
        wfi_op_check(op, wfi_batchnorm_train(op->in[0], op->in[1], op->in[2], how->eps, y, save_mean, invstd, moments));
    if (mean) {
        move(op, mean, moments, 0, how->momentum);
        move(op, var, moments, 1, how->momentum);
    }
    weft_tensor_unref(moments);
    wfi_op_save(op, 2, save_mean);
    wfi_op_save(op, 3, invstd);
}

/* The mean is copied: another step may move the running one before the backward pass. */
static void normalise(wfi_op *op, const weft_tensor *mean, const weft_tensor *var, const weft_batch_norm_options *how,
                      weft_tensor *y)
{
    weft_tensor *invstd = wfi_op_extra(op, mean->shape, y->dtype), *save_mean = NULL;
    if (!invstd)
        return;
    if (!wfi_op_check(op, wfi_batchnorm_eval(op->in[0], op->in[1], op->in[2], mean, var, how->eps, y, invstd)))
        return;
    if (!op->node)
        return;
    save_mean = wfi_op_extra(op, mean->shape, y->dtype);
    if (save_mean && wfi_op_check(op, wfi_copy(mean, save_mean))) {
        wfi_op_save(op, 2, save_mean);
        wfi_op_save(op, 3, invstd);
    }
}

static void run_eval(wfi_op *op, const weft_tensor *mean, const weft_tensor *var, const weft_batch_norm_options *how,
                     weft_tensor *y)
{
    weft_tensor *mean_now = wfi_tensor_read(mean), *var_now = wfi_tensor_read(var);
    normalise(op, mean_now, var_now, how, y);
    weft_tensor_unref(mean_now);
    weft_tensor_unref(var_now);
}

static weft_batch_norm_options how_from(const weft_batch_norm_options *options)
{
    weft_batch_norm_options how = *options;
    if (how.momentum == 0)
        how.momentum = DEFAULT_MOMENTUM;
    if (how.eps == 0)
        how.eps = DEFAULT_EPS;
    return how;
}

weft_tensor *weft_batch_norm2d_sized(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                     weft_tensor *running_mean, weft_tensor *running_var,
                                     const weft_batch_norm_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape, x, weight, bias, running_mean, running_var);
    wfi_op op;
    weft_batch_norm_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &batch_norm2d_type, options != NULL))
        return NULL;
    weft_batch_norm_options how = how_from(options);
    if (!wfi_op_begin(&op, tape, &batch_norm2d_type, 0, (weft_tensor *[]){x, weight, bias}, 3))
        return NULL;
    check_batch_norm(&op, running_mean, running_var, how.train);
    weft_tensor *y = wfi_op_output(&op, x->shape);
    if (y && how.train)
        run_train(&op, running_mean, running_var, &how, y);
    else if (y)
        run_eval(&op, running_mean, running_var, &how, y);
    if (op.node)
        op.node->state->train = how.train;
    wfi_op_save(&op, 0, op.in[0]);
    wfi_op_save(&op, 1, op.in[1]);
    return wfi_op_end(&op);
}
