/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - a node of the graph: one recorded operator with its inputs, results and saved tensors; or a leaf.
 *
 * A node is one block of memory: its lists lie behind it. A recorded node never changes, except `use`, which controls
 * reading of the saved tensors; so several backward passes may run over it at once.
 *
 * LIFETIME. The graph (before the commit, the tape) holds a reference to a node, and so does each tensor that the
 * operator made. When the graph ends, each of its nodes drops all its references. So the last reference to a node
 * never drops a chain of others, however deep the graph was. (A tensor saved by the node that made it is a cycle; the
 * end of the graph breaks it.)
 */
#ifndef WFI_NODE_H
#define WFI_NODE_H

#include "autograd/tape_path.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/product/product.h"

#include <stdatomic.h>

typedef struct wfi_node wfi_node;
typedef struct wfi_graph wfi_graph;

/*
 * A backward function. dy: the results' gradients, contiguous, borrowed, read-only. It sets dx[i] (NULL before; one
 * reference each, contiguous, of input i's shape and dtype) for the inputs with node->inputs[i].node != NULL. An
 * input whose dx[i] stays NULL gets no gradient from this node. On failure the caller drops those that are set. dx[i]
 * may be a tensor of dy, referenced, or share storage with one, or with another dx.
 */
typedef weft_status (*wfi_backward_fn)(const wfi_node *node, weft_tensor *dy, weft_tensor **dx);
/*
 * The same for an operator with several results: dy[i] is NULL if result i got no gradient; at least one is not NULL.
 */
typedef weft_status (*wfi_backward_all_fn)(const wfi_node *node, weft_tensor *const *dy, weft_tensor **dx);
/*
 * The gradient of input 0 by rows: values[i] belongs to row rows[i] (int64) of the input; one reference each. Called
 * if input 0 is a leaf without hooks, before `backward`, which is called for input 0 only if `*rows` is NULL
 * afterwards.
 */
typedef weft_status (*wfi_backward_rows_fn)(const wfi_node *node, weft_tensor *dy, weft_tensor **rows,
                                            weft_tensor **values);

typedef struct wfi_node_type {
    const char *name;                   /* the operator's name, for errors */
    wfi_backward_fn backward;           /* either this or backward_all; a leaf has neither */
    wfi_backward_all_fn backward_all;   /* for more than one result */
    wfi_backward_rows_fn backward_rows; /* or NULL */
    uint32_t results;                   /* 0 means 1 */
    bool is_boundary; /* no inputs and no function: its gradient goes to give_boundary of the engine (engine.h) */
} wfi_node_type;

/* Data that weft's operators keep besides tensors; each uses the fields that it needs. */
typedef struct wfi_node_state {
    weft_shape shapes[2]; /* of the inputs, if these are not kept */
    double factor;
    int dims[2];
    uint32_t mask; /* bit set of dimensions */
    int64_t start;
    bool train;
    bool sparse; /* the gradient is by rows if possible */
    wfi_reduction reduction;
    wfi_conv2d conv;
} wfi_node_state;

/* One result of a node, as an input of another. */
typedef struct wfi_edge {
    wfi_node *node; /* referenced; NULL: no gradient required */
    uint32_t result;
} wfi_edge;

typedef struct wfi_result {
    weft_shape shape;
    weft_dtype dtype;
} wfi_result;

struct wfi_node {
    _Atomic uint32_t refs;
    _Atomic uint32_t use;      /* number of passes that read the saved tensors, and a bit: they are spent (node.c) */
    _Atomic uint64_t graph_id; /* 0: removed from its graph */
    uint64_t slot;             /* of the first result, greater than those of all inputs; result i has slot + i */
    uint64_t leaf;             /* a leaf: its tensor's id; else 0 */
    wfi_tape_path *path;       /* of its tape; referenced; NULL: none, or it is a leaf or an end */
    const wfi_node_type *type;
    uint32_t input_count, result_count, saved_count; /* saved: up to the last one used */
    uint32_t after; /* number of calls and child tapes that had begun on the tape before it */
    wfi_node *next; /* in the list of its tape, later of its graph */
    wfi_edge *inputs;
    wfi_result *results;
    weft_tensor **saved; /* referenced; some may be NULL */
    uint64_t *versions;  /* of their storages when they were saved */
    union {
        wfi_node_state *state;          /* of weft's operators */
        struct wfi_user_operator *user; /* of the user's operators (operator.c) */
    };
    void *user_state; /* argument of `drop`, which is called when nothing reads it any longer */
    weft_drop_fn drop;
};

typedef struct wfi_node_counts {
    size_t inputs, results, saved;
    size_t state; /* bytes, a multiple of 8 */
} wfi_node_counts;

#define WFI_NODE_SAVED 4 /* of each of weft's operators */

/* `slot`: graph.h gives it. NULL: no memory. */
wfi_node *wfi_node_create(const wfi_node_type *type, uint64_t graph_id, uint64_t slot, wfi_node_counts counts);
wfi_node *wfi_node_ref(wfi_node *node);
void wfi_node_unref(wfi_node *node);
void wfi_node_unref_opaque(void *node); /* for weft_tensor.grad_node_drop */
/* Makes `tensor`, which no other thread has seen yet, result `result` of the node. */
void wfi_node_set_result(wfi_node *node, uint32_t result, weft_tensor *tensor);
/* Gives a new node the path of its tape, and the present number of calls and child tapes begun on the tape. */
void wfi_node_set_path(wfi_node *node, wfi_tape_path *path);
void wfi_node_save(wfi_node *node, size_t slot,
                   weft_tensor *tensor); /* references it, or a cell's snapshot; NULL saves nothing */
/* The slot of a saved tensor that was changed in place after it was saved; -1 if there is none. */
int wfi_node_changed(const wfi_node *node);
void wfi_node_clear(wfi_node *node); /* drops all that it holds. No pass may use it, now or later */

/*
 * A pass reads saved tensors between enter and leave. `last`: no other pass may enter afterwards, and the last one to
 * leave drops the saved tensors. False: another pass entered as the last before. `undo`: it does not count as the
 * last after all.
 */
bool wfi_node_enter(wfi_node *node, bool last);
void wfi_node_leave(wfi_node *node, bool undo);

/*
 * Why a backward function of this thread returned WEFT_ERR_SHAPE, for the error's text; "": not known. The reader
 * clears it.
 */
#define WFI_MISFIT_TEXT 400
char *wfi_node_misfit(void);

#endif
