/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - the code that all operators share: check the operands, compute, record, give the result to the tape.
 *
 *     wfi_op op;
 *     if (!wfi_op_begin(&op, tape, &relu_type, 0, (weft_tensor *[]){x}, 1))
 *         return NULL;
 *     weft_tensor *y = wfi_op_output(&op, op.in[0]->shape);
 *     if (y)
 *         wfi_op_check(&op, wfi_relu(op.in[0], y));
 *     wfi_op_save(&op, 0, y);
 *     return wfi_op_end(&op);
 *
 * After a failure the later steps do nothing, and wfi_op_end returns NULL.
 */
#ifndef WFI_OP_H
#define WFI_OP_H

#include "autograd/checks.h"
#include "autograd/tape.h"
#include "base/text/sized.h"

#include <weft/ops.h>

enum {
    WFI_OP_ANY_DTYPE = 1,   /* integers and bool are allowed too; they are not recorded */
    WFI_OP_ANY_STRIDES = 2, /* do not make operands contiguous */
    /* in[0] is large, and only read until the end. So an update of some of its rows need not copy it (cell.h). */
    WFI_OP_HOLD_FIRST = 4,
};

#define WFI_OP_RESULTS 3

typedef struct wfi_op {
    weft_tape *tape;
    const wfi_node_type *type;
    /* The operands, with a reference to each: contiguous unless ANY_STRIDES; of a cell, its snapshot. Elements are read
     * from here, never from `given`. NULL: an optional operand is missing, or the operands are in `list`. */
    weft_tensor *in[WFI_OP_INPUTS];
    weft_tensor *const *list; /* of an operator on a list: its operands */
    weft_tensor **snapshots;  /* the list's memory, if it is not the caller's */
    const weft_tensor *held;  /* until the end */
    weft_tensor *few[WFI_OP_INPUTS];
    /* the operands as the caller gave them (`few`, or a list); for the graph and for messages */
    weft_tensor *const *given;
    size_t given_count;
    wfi_node *node; /* NULL: the operator is not recorded */
    weft_tensor *out[WFI_OP_RESULTS];
    size_t out_count;
    weft_stream *stream_before; /* of this thread; the operator uses the tape's */
} wfi_op;

/*
 * Returns false if the tape has failed or fails now; then nothing must be undone. in[0] must not be NULL; a later
 * NULL is an optional operand, or was already checked. Operands must have one dtype.
 */
bool wfi_op_begin(wfi_op *op, weft_tape *tape, const wfi_node_type *type, unsigned flags, weft_tensor *const *in,
                  int count);
/*
 * The same for an operator on a list: at least one tensor, none NULL, of one dtype (any), of any strides. The
 * operands are in `list`; `in` stays empty. `saved`: the number of tensors that its node has room for.
 */
bool wfi_op_begin_list(wfi_op *op, weft_tape *tape, const wfi_node_type *type, weft_tensors list, size_t saved);
/* Fails the tape if `x` is NULL: for required operands. */
bool wfi_op_needs(weft_tape *tape, const wfi_node_type *type, const weft_tensor *x, const char *operand);

/* Fails the tape unless `known`: the program's options set nothing that this library lacks (base/text/sized.h). */
bool wfi_op_knows(weft_tape *tape, const wfi_node_type *type, bool known);

/* The failure's text is preceded by the operator and its operands: "linear(float32 [2, 3], float32 [4, 5]): ..." */
void wfi_op_fail(wfi_op *op, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);
bool wfi_op_check(wfi_op *op, weft_status status); /* fails with the status's own text; true if it was WEFT_OK */
bool wfi_op_ok(const wfi_op *op);

/*
 * The next result (of most operators the only one): new and contiguous, of the first operand's dtype or another.
 * NULL: failed. wfi_op holds it until the end.
 */
weft_tensor *wfi_op_output(wfi_op *op, weft_shape shape);
weft_tensor *wfi_op_output_as(wfi_op *op, weft_shape shape, weft_dtype dtype);
/* Makes the tensor that `tensor` references (NULL: out of memory) the next result. For views. */
weft_tensor *wfi_op_give(wfi_op *op, weft_tensor *tensor);
/* A further tensor that the backward pass needs; the tape drops it. NULL: failed. */
weft_tensor *wfi_op_extra(wfi_op *op, weft_shape shape, weft_dtype dtype);

void wfi_op_save(wfi_op *op, int slot, weft_tensor *tensor); /* only if the operator is recorded */
weft_tensor *wfi_op_end(wfi_op *op);                         /* the first result, or NULL */
/* For operators with several results: all of them, or NULL for each of type->results. */
void wfi_op_end_all(wfi_op *op, weft_tensor **results);

/* Makes `dim` >= 0; fails if it is out of range. */
bool wfi_op_dim(wfi_op *op, int *dim);

/* Fails unless `x`, which is not among the operands, is on the tape's device. `name`: "the index". */
bool wfi_op_is_here(wfi_op *op, const weft_tensor *x, const char *name);

/* For backward functions: a new tensor in *out if `wanted`, of dy's dtype and on its device. WEFT_ERR_MEMORY. */
weft_status wfi_grad_like(bool wanted, weft_shape shape, const weft_tensor *dy, weft_tensor **out);
/*
 * A tensor of dy's shape, for kernels that may overwrite their input: dy itself, referenced, if it has no other
 * reference.
 */
weft_status wfi_grad_over(weft_tensor *dy, weft_tensor **out);

/*
 * The elements of `index` (int64, contiguous, on the tape's device), which must be in [0, size); of offsets, in a bag
 * of `size` elements. Returns the tensor to compute with: `index`, or on a GPU a safe copy that the tape owns. NULL:
 * the operator has failed.
 */
weft_tensor *wfi_op_checked(wfi_op *op, wfi_check_kind kind, weft_tensor *index, int64_t size);
/* The integer tensor `divisor`, of any strides, for division on a GPU: a copy in which 1 replaces 0. */
weft_tensor *wfi_op_divisor(wfi_op *op, weft_tensor *divisor);

#endif
