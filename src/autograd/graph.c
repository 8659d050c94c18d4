/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - the graph that several tapes record into: nodes, leaves, and when they are cleared. */
#include "autograd/graph.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/mutex.h"

#include <stdlib.h>

struct wfi_graph {
    _Atomic uint32_t refs;
    uint64_t id;
    _Atomic uint64_t slots; /* number given so far */
    wfi_mutex lock;         /* guards all fields below */
    wfi_node_list nodes;
    wfi_map leaves; /* tensor id -> wfi_node, borrowed from nodes */
};

static const wfi_node_type leaf_type = {.name = "leaf"};

wfi_graph *wfi_graph_create(void)
{
    static _Atomic uint64_t last_id;
    wfi_graph *graph = wfi_calloc(1, sizeof(*graph));
    if (!graph)
        return NULL;
    atomic_init(&graph->refs, 1);
    graph->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    wfi_mutex_init(&graph->lock);
    wfi_map_init(&graph->leaves);
    return graph;
}

wfi_graph *wfi_graph_ref(wfi_graph *graph)
{
    atomic_fetch_add_explicit(&graph->refs, 1, memory_order_relaxed);
    return graph;
}

/* Clears all nodes before it releases any: so the end of one node never ends another, however deep the graph is. */
static void drop_nodes(const wfi_node_list *nodes)
{
    for (wfi_node *node = nodes->first; node; node = node->next)
        wfi_node_clear(node);
    for (wfi_node *node = nodes->first, *next; node; node = next) {
        next = node->next;
        wfi_node_unref(node);
    }
}

void wfi_graph_unref(wfi_graph *graph)
{
    if (!graph || atomic_fetch_sub_explicit(&graph->refs, 1, memory_order_acq_rel) != 1)
        return;
    drop_nodes(&graph->nodes);
    wfi_map_fini(&graph->leaves);
    wfi_mutex_fini(&graph->lock);
    free(graph);
}

uint64_t wfi_graph_slots(const wfi_graph *graph)
{
    return atomic_load_explicit(&graph->slots, memory_order_relaxed);
}

static void join(wfi_node_list *list, const wfi_node_list *more)
{
    if (!more->first)
        return;
    if (list->last)
        list->last->next = more->first;
    else
        list->first = more->first;
    list->last = more->last;
}

wfi_node *wfi_graph_new_node(wfi_graph *graph, wfi_node_list *nodes, const wfi_node_type *type, wfi_node_counts counts)
{
    uint64_t slot = atomic_fetch_add_explicit(&graph->slots, counts.results, memory_order_relaxed);
    wfi_node *node = wfi_node_create(type, graph->id, slot, counts);
    if (node)
        join(nodes, &(wfi_node_list){node, node});
    return node;
}

/* With the lock. */
static wfi_node *add_leaf(wfi_graph *graph, const weft_tensor *x)
{
    wfi_node_list made = {0};
    wfi_node *node = wfi_graph_new_node(graph, &made, &leaf_type, (wfi_node_counts){.results = 1});
    if (!node)
        return NULL;
    node->leaf = x->id;
    node->results[0] = (wfi_result){.shape = x->shape, .dtype = x->dtype};
    if (wfi_map_put(&graph->leaves, x->id, node) != WEFT_OK) {
        wfi_node_unref(node);
        return NULL;
    }
    join(&graph->nodes, &made);
    return node;
}

wfi_node *wfi_graph_leaf(wfi_graph *graph, const weft_tensor *x)
{
    wfi_mutex_lock(&graph->lock);
    wfi_node *node = wfi_map_get(&graph->leaves, x->id);
    if (!node)
        node = add_leaf(graph, x);
    wfi_mutex_unlock(&graph->lock);
    return node;
}

bool wfi_graph_made(const wfi_graph *graph, const weft_tensor *x)
{
    const wfi_node *node = x->grad_node;
    return node && atomic_load_explicit(&node->graph_id, memory_order_relaxed) == graph->id;
}

void wfi_graph_commit(wfi_graph *graph, wfi_node_list *nodes, bool keep)
{
    for (wfi_node *node = keep ? NULL : nodes->first; node; node = node->next) {
        atomic_store_explicit(&node->graph_id, 0, memory_order_relaxed);
        if (wfi_node_enter(node, true))
            wfi_node_leave(node, false);
    }
    wfi_mutex_lock(&graph->lock);
    join(&graph->nodes, nodes);
    wfi_mutex_unlock(&graph->lock);
    *nodes = (wfi_node_list){0};
}
