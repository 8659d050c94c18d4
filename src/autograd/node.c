/* SPDX-License-Identifier: Apache-2.0 */
/* node.c - the life of a graph's nodes. */
#include "autograd/node.h"

#include "base/alloc.h"

#include <stdlib.h>

/* One count for all tapes, so that a child's nodes stay in order when they move to the parent. */
uint64_t wfi_sequence_next(void)
{
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

wfi_node *wfi_node_create(const wfi_node_type *type, uint64_t tape_id, size_t input_count)
{
    wfi_node *node = wfi_calloc(1, sizeof(*node) + input_count * sizeof(node->inputs[0]));
    if (node == NULL)
        return NULL;
    atomic_init(&node->refs, 1);
    atomic_init(&node->tape_id, tape_id);
    node->sequence = wfi_sequence_next();
    node->type = type;
    node->input_count = input_count;
    return node;
}

wfi_node *wfi_node_ref(wfi_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return node;
}

void wfi_node_unref(wfi_node *node)
{
    if (node == NULL || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_node_clear(node);
    free(node);
}

void wfi_node_unref_opaque(void *node)
{
    wfi_node_unref(node);
}

void wfi_node_save(wfi_node *node, int slot, weft_tensor *tensor)
{
    if (tensor == NULL)
        return;
    node->saved[slot] = weft_tensor_ref(tensor);
    node->versions[slot] = wfi_storage_version(tensor->storage);
}

int wfi_node_changed(const wfi_node *node)
{
    for (int i = 0; i < WFI_NODE_SAVED; i++)
        if (node->saved[i] != NULL && wfi_storage_version(node->saved[i]->storage) != node->versions[i])
            return i;
    return -1;
}

void wfi_node_release_saved(wfi_node *node)
{
    for (int i = 0; i < WFI_NODE_SAVED; i++) {
        weft_tensor *tensor = node->saved[i];
        node->saved[i] = NULL;
        weft_tensor_unref(tensor);
    }
    node->spent = true;
}

void wfi_node_clear(wfi_node *node)
{
    wfi_node_release_saved(node);
    weft_tensor_unref(node->gradient);
    node->gradient = NULL;
    for (size_t i = 0; i < node->input_count; i++) {
        wfi_node *input = node->inputs[i];
        node->inputs[i] = NULL;
        wfi_node_unref(input);
    }
}
