/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - a node of the graph: one recorded operator with one result, or a leaf.
 *
 * The tape holds a reference to a node, and so does the tensor that the operator made. When the tape closes, each of
 * its nodes drops all that it holds. So the last reference to a node never drops a chain of others, however deep the
 * graph was. (A tensor that was saved by the very node that made it is a cycle; closing the tape breaks it.)
 */
#ifndef WFI_NODE_H
#define WFI_NODE_H

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/product/product.h"

#include <stdatomic.h>

#define WFI_NODE_INPUTS 3 /* of every operator but those that join a list */
#define WFI_NODE_SAVED 4

typedef struct wfi_node wfi_node;

/*
 * dy: the result's gradient, contiguous, borrowed, not to be changed. Sets dx[i] (NULL before; one reference each,
 * contiguous, of input i's shape) for every input with node->inputs[i] != NULL; on failure what is set is dropped by the
 * caller. dx[i] may be dy itself, referenced, or share its storage. Where there are more than WFI_NODE_INPUTS, they share
 * storage with dy only, not with each other.
 */
typedef weft_status (*wfi_backward_fn)(const wfi_node *node, weft_tensor *dy, weft_tensor **dx);

typedef struct wfi_node_type {
    const char *name;         /* the operator's, for errors */
    wfi_backward_fn backward; /* NULL: a leaf */
} wfi_node_type;

/* What an operator keeps besides tensors; each uses what it needs. */
typedef struct wfi_node_state {
    weft_shape shapes[2]; /* of the inputs, where they are not kept */
    double factor;
    int dims[2];
    uint32_t mask; /* of dimensions */
    int64_t start;
    bool train;
    wfi_binary_op binary;
    wfi_reduction reduction;
    wfi_conv2d conv;
} wfi_node_state;

struct wfi_node {
    _Atomic uint32_t refs;
    _Atomic uint64_t tape_id; /* changes when a child's nodes move to the parent */
    uint64_t sequence;        /* greater than that of every input */
    uint64_t leaf;            /* a leaf: its tensor's id */
    const wfi_node_type *type;
    weft_shape shape; /* of the result */
    weft_dtype dtype;
    bool spent; /* what it had saved is gone */

    weft_tensor *saved[WFI_NODE_SAVED];
    uint64_t versions[WFI_NODE_SAVED]; /* of their storages when they were saved */
    wfi_node_state state;

    weft_tensor *gradient; /* during a backward pass: the sum so far, referenced */
    bool gradient_own;     /* made by the engine: it may be added to in place */
    bool gradient_aliased; /* others hold its storage */
    bool queued;

    size_t input_count;
    wfi_node *inputs[]; /* referenced; NULL: no gradient wanted */
};

wfi_node *wfi_node_create(const wfi_node_type *type, uint64_t tape_id, size_t input_count); /* NULL: no memory */
wfi_node *wfi_node_ref(wfi_node *node);
void wfi_node_unref(wfi_node *node);
void wfi_node_unref_opaque(void *node);                            /* for weft_tensor.grad_node_drop */
void wfi_node_save(wfi_node *node, int slot, weft_tensor *tensor); /* references it; NULL saves nothing */
/* The slot of a saved tensor that was changed in place since; -1 if there is none. */
int wfi_node_changed(const wfi_node *node);
void wfi_node_release_saved(wfi_node *node);
void wfi_node_clear(wfi_node *node); /* all that it holds */

uint64_t wfi_sequence_next(void); /* ascending over the process; ids of tapes, too */

#endif
