/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - a graph: the recorded operators that one backward pass may run, and the leaves below them. Several tapes
 * may record into one graph, each on its own thread; a tape keeps its new nodes to itself until it commits them.
 *
 * A leaf is in a graph once, however many tapes use it. An operator's operand is an input of its node if it was
 * recorded into the same graph; otherwise it is a leaf (if it requires a gradient) or a constant.
 *
 * LOCKING. Any thread may call any function. `lock` is a leaf lock: no other lock is taken while it is held, and no
 * tensor is dropped.
 * LIFETIME. Reference-counted, by each tape that records into it. The last reference clears all of its nodes.
 */
#ifndef WFI_GRAPH_H
#define WFI_GRAPH_H

#include "autograd/node.h"

/* Nodes, linked by `next`; the list holds one reference to each. */
typedef struct wfi_node_list {
    wfi_node *first, *last;
} wfi_node_list;

wfi_graph *wfi_graph_create(void); /* one reference; NULL: no memory */
wfi_graph *wfi_graph_ref(wfi_graph *graph);
void wfi_graph_unref(wfi_graph *graph);

/* The number of results of all nodes so far: the slots of these results are below it. */
uint64_t wfi_graph_slots(const wfi_graph *graph);

/*
 * Makes a node of this graph and adds it to `nodes`, which holds its one reference until it is committed. NULL: no
 * memory.
 */
wfi_node *wfi_graph_new_node(wfi_graph *graph, wfi_node_list *nodes, const wfi_node_type *type, wfi_node_counts counts);
/* The leaf of tensor `x`, borrowed from the graph; made at its first use. NULL: no memory. */
wfi_node *wfi_graph_leaf(wfi_graph *graph, const weft_tensor *x);
/* Whether `x` was recorded into this graph: then x->grad_node is the node that made it. */
bool wfi_graph_made(const wfi_graph *graph, const weft_tensor *x);

/*
 * Takes over a tape's nodes and empties its list. `keep` false: the tape failed. Then the nodes are removed from the
 * graph and drop their saved tensors, at the latest when the last pass that reads these has finished. The nodes
 * themselves are freed with the graph, because others may refer to them.
 */
void wfi_graph_commit(wfi_graph *graph, wfi_node_list *nodes, bool keep);

#endif
