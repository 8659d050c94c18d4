/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - creates and frees the nodes of a graph. */
#include "autograd/node.h"

#include "base/alloc.h"

#include <stdlib.h>

#define SPENT (UINT32_C(1) << 31) /* in `use` */

/* Places the lists behind the node; those that every pass reads come first. */
static void place_lists(wfi_node *node, const wfi_node_counts *counts)
{
    char *at = (char *)(node + 1);
    node->inputs = (wfi_edge *)at;
    at += counts->inputs * sizeof(wfi_edge);
    node->results = (wfi_result *)at;
    at += counts->results * sizeof(wfi_result);
    node->saved = (weft_tensor **)at;
    at += counts->saved * sizeof(weft_tensor *);
    node->versions = (uint64_t *)at;
    at += counts->saved * sizeof(uint64_t);
    node->state = counts->state == 0 ? NULL : (wfi_node_state *)at;
}

wfi_node *wfi_node_create(const wfi_node_type *type, uint64_t graph_id, uint64_t slot, wfi_node_counts counts)
{
    _Static_assert(sizeof(wfi_node_state) % 8 == 0 && sizeof(wfi_edge) % 8 == 0 && sizeof(wfi_result) % 8 == 0, "");
    if (counts.inputs > UINT32_MAX || counts.results > UINT32_MAX || counts.saved > UINT32_MAX)
        return NULL;
    size_t size = sizeof(wfi_node) + counts.state + counts.inputs * sizeof(wfi_edge) +
                  counts.results * sizeof(wfi_result) + counts.saved * (sizeof(weft_tensor *) + sizeof(uint64_t));
    wfi_node *node = wfi_calloc(1, size);
    if (!node)
        return NULL;
    atomic_init(&node->refs, 1);
    atomic_init(&node->graph_id, graph_id);
    node->slot = slot;
    node->type = type;
    node->input_count = (uint32_t)counts.inputs;
    node->result_count = (uint32_t)counts.results;
    place_lists(node, &counts);
    return node;
}

wfi_node *wfi_node_ref(wfi_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}

void wfi_node_unref(wfi_node *node)
{
    if (!node || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_node_clear(node);
    wfi_tape_path_unref(node->path);
    free(node);
}

void wfi_node_unref_opaque(void *node)
{
    wfi_node_unref(node);
}

void wfi_node_set_result(wfi_node *node, uint32_t result, weft_tensor *tensor)
{
    node->results[result] = (wfi_result){.shape = tensor->shape, .dtype = tensor->dtype};
    tensor->grad_node = wfi_node_ref(node);
    tensor->grad_result = result;
    tensor->grad_node_drop = wfi_node_unref_opaque;
}

void wfi_node_set_path(wfi_node *node, wfi_tape_path *path)
{
    node->path = wfi_tape_path_ref(path);
    node->after = wfi_tape_path_now(path);
}

void wfi_node_save(wfi_node *node, size_t slot, weft_tensor *tensor)
{
    if (!tensor)
        return;
    node->saved[slot] = wfi_tensor_read(tensor);
    node->versions[slot] = wfi_storage_version(wfi_tensor_storage(node->saved[slot]));
    if (node->saved_count <= slot)
        node->saved_count = (uint32_t)slot + 1;
}

int wfi_node_changed(const wfi_node *node)
{
    for (uint32_t i = 0; i < node->saved_count; i++)
        if (node->saved[i] && wfi_storage_version(wfi_tensor_storage(node->saved[i])) != node->versions[i])
            return (int)i;
    return -1;
}

static void release_saved(wfi_node *node)
{
    for (uint32_t i = 0; i < node->saved_count; i++) {
        weft_tensor *tensor = node->saved[i];
        node->saved[i] = NULL;
        weft_tensor_unref(tensor);
    }
    weft_drop_fn drop = node->drop;
    node->drop = NULL;
    if (drop)
        drop(node->user_state);
}

bool wfi_node_enter(wfi_node *node, bool last)
{
    uint32_t use = atomic_load_explicit(&node->use, memory_order_relaxed);
    do {
        if (use & SPENT)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&node->use, &use, (use + 1) | (last ? SPENT : 0),
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

void wfi_node_leave(wfi_node *node, bool undo)
{
    if (undo)
        atomic_fetch_and_explicit(&node->use, ~SPENT, memory_order_relaxed);
    if (atomic_fetch_sub_explicit(&node->use, 1, memory_order_acq_rel) == (SPENT | 1))
        release_saved(node);
}

void wfi_node_clear(wfi_node *node)
{
    atomic_fetch_or_explicit(&node->use, SPENT, memory_order_relaxed);
    release_saved(node);
    for (uint32_t i = 0; i < node->input_count; i++) {
        wfi_node *input = node->inputs[i].node;
        node->inputs[i].node = NULL;
        wfi_node_unref(input);
    }
}

char *wfi_node_misfit(void)
{
    static _Thread_local char text[WFI_MISFIT_TEXT];
    return text;
}
