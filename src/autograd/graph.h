/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - a graph: the recorded operators that one backward pass may go through, and the leaves below them. Several tapes may record
 * into one graph, each on a thread of its own; a tape keeps its new nodes to itself until it commits them.
 *
 * A leaf stands in a graph once, however many tapes use it. Lineage is the graph's: an operator's operand is an input of its node if
 * the operand was recorded into the same graph, else a leaf (if it wants a gradient) or a constant.
 *
 * LOCKING. Any thread may call any function. `lock` is a leaf lock: nothing else is taken under it, and no tensor is dropped.
 * LIFETIME. Counted, by each tape that records into it. With the last reference all of its nodes are cleared.
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
uint64_t wfi_graph_id(const wfi_graph *graph); /* never used twice in a process; not 0 */

/* The number of results of all nodes so far: the slots of these results are below it. */
uint64_t wfi_graph_slots(const wfi_graph *graph);

/* A new node of this graph, added to `nodes`, which holds its one reference until it is committed. NULL: no memory. */
wfi_node *wfi_graph_new_node(wfi_graph *graph, wfi_node_list *nodes, const wfi_node_type *type, wfi_node_counts counts);
/* The leaf of tensor `x`, borrowed from the graph; made at first sight. NULL: no memory. */
wfi_node *wfi_graph_leaf(wfi_graph *graph, const weft_tensor *x);
/* Whether `x` was recorded into this graph: then x->grad_node is the node that made it. */
bool wfi_graph_made(const wfi_graph *graph, const weft_tensor *x);

/*
 * Takes over a tape's nodes and empties its list. `keep` false: the tape failed. Then they are of no graph any more, and drop what
 * they saved, if need be when the last pass that reads it goes on; the nodes themselves end with the graph, as others may lead to them.
 */
void wfi_graph_commit(wfi_graph *graph, wfi_node_list *nodes, bool keep);

#endif
