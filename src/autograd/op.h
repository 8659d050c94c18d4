/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - the frame of an operator: check the operands, compute, record, hand the result to the tape.
 *
 *     wfi_op op;
 *     if (!wfi_op_begin(&op, tape, &relu_type, 0, (weft_tensor *[]){x}, 1))
 *         return NULL;
 *     weft_tensor *y = wfi_op_output(&op, op.in[0]->shape);
 *     if (y != NULL)
 *         wfi_op_check(&op, wfi_relu(op.in[0], y));
 *     wfi_op_save(&op, 0, y);
 *     return wfi_op_end(&op);
 *
 * After a failure in the middle the later steps do nothing, and wfi_op_end returns NULL.
 */
#ifndef WFI_OP_H
#define WFI_OP_H

#include "autograd/tape.h"
#include "tensor/print.h"

#include <weft/ops.h>

enum {
    WFI_OP_ANY_DTYPE = 1,   /* integers and bool too; they are not recorded */
    WFI_OP_ANY_STRIDES = 2, /* do not make operands contiguous */
    WFI_OP_HOLD_FIRST =
        4, /* in[0] is large and only read until the end: a step on its rows then need not copy it (cell.h) */
};

#define WFI_OP_INPUTS 3 /* of every operator but those on a list */
#define WFI_OP_RESULTS 3

typedef struct wfi_op {
    weft_tape *tape;
    const wfi_node_type *type;
    weft_tensor
        *in[WFI_OP_INPUTS]; /* contiguous unless ANY_STRIDES; referenced; NULL: an optional one is not there, or a list.
                            Of a cell the snapshot: elements are read from here, never from `given` */
    weft_tensor *const *list; /* of an operator on a list: what `in` is for others */
    weft_tensor **taken;      /* the list's memory, if it is not the caller's */
    const weft_tensor *held;  /* until the end */
    weft_tensor *few[WFI_OP_INPUTS];
    weft_tensor *const *given; /* as the caller gave them (`few`, or a list); for the graph and for messages */
    size_t given_count;
    wfi_node *node; /* if this operator is recorded */
    weft_tensor *out[WFI_OP_RESULTS];
    size_t out_count;
} wfi_op;

/*
 * False: the tape had failed, or fails now; nothing needs to be undone. in[0] must be there; a NULL after it is an operand
 * that is optional or was already checked. Operands must be of one dtype.
 */
bool wfi_op_begin(wfi_op *op, weft_tape *tape, const wfi_node_type *type, unsigned flags, weft_tensor *const *in,
                  int count);
/*
 * The same for an operator on a list: at least one tensor, none NULL, of one dtype (any), of any strides. `list` has
 * them; `in` stays empty. `saved`: how many tensors its node has room for.
 */
bool wfi_op_begin_list(wfi_op *op, weft_tape *tape, const wfi_node_type *type, weft_tensors list, size_t saved);
/* Fails the tape if `x` is NULL: for operands that are not optional. */
bool wfi_op_needs(weft_tape *tape, const wfi_node_type *type, const weft_tensor *x, const char *operand);

/* The failure's text is preceded by the operator and its operands: "linear(float32 [2, 3], float32 [4, 5]): ..." */
void wfi_op_fail(wfi_op *op, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);
bool wfi_op_check(wfi_op *op, weft_status status); /* fails with the status's own text; true if it was WEFT_OK */
bool wfi_op_ok(const wfi_op *op);

/* The next result (the first, of most operators): new and contiguous, of the first operand's dtype or another. NULL: failed. It belongs to the frame until the end. */
weft_tensor *wfi_op_output(wfi_op *op, weft_shape shape);
weft_tensor *wfi_op_output_as(wfi_op *op, weft_shape shape, weft_dtype dtype);
/* The next result: what `tensor` references (NULL: out of memory). For views. */
weft_tensor *wfi_op_give(wfi_op *op, weft_tensor *tensor);
/* A tensor that the backward pass needs besides, dropped by the tape. NULL: failed. */
weft_tensor *wfi_op_extra(wfi_op *op, weft_shape shape, weft_dtype dtype);

void wfi_op_save(wfi_op *op, int slot, weft_tensor *tensor); /* if recorded */
weft_tensor *wfi_op_end(wfi_op *op);                         /* the first result, or NULL */
/* For operators with several: all results that were made, or NULL for each of type->results. */
void wfi_op_end_all(wfi_op *op, weft_tensor **results);

/* `dim` made >= 0; fails where it is outside. */
bool wfi_op_dim(wfi_op *op, int *dim);

/* For backward functions: a new tensor in *out if `wanted`. WEFT_ERR_MEMORY. */
weft_status wfi_grad_new(bool wanted, weft_shape shape, weft_dtype dtype, weft_tensor **out);
/* The same, of dy's dtype and on its device: for operators that other devices than the CPU have kernels for. */
weft_status wfi_grad_like(bool wanted, weft_shape shape, const weft_tensor *dy, weft_tensor **out);
/* Of dy's shape, for kernels that may write over what they read: dy itself, referenced, if nobody else refers to it. */
weft_status wfi_grad_over(weft_tensor *dy, weft_tensor **out);

#endif
