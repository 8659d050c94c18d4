/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c - nodes and leaves of a tape, and the gradients that it holds for the leaves. */
#include "base/alloc.h"
#include "autograd/tape.h"

#include <stdlib.h>

static const wfi_node_type leaf_type = {.name = "leaf", .backward = NULL};

wfi_node *wfi_tape_add_node(weft_tape *tape, const wfi_node_type *type, size_t input_count)
{
    wfi_node *node = wfi_node_create(type, tape->id, input_count);
    if (node != NULL && wfi_pointers_push(&tape->nodes, node))
        return node;
    wfi_node_unref(node);
    wfi_tape_fail_memory(tape, type->name);
    return NULL;
}

static bool is_of_lineage(const weft_tape *tape, const wfi_node *node)
{
    uint64_t id = atomic_load_explicit(&node->tape_id, memory_order_relaxed);
    for (; tape != NULL; tape = tape->parent)
        if (tape->id == id)
            return true;
    return false;
}

static wfi_node *leaf_node(weft_tape *tape, const weft_tensor *x)
{
    wfi_node *node = wfi_map_get(&tape->leaves, x->id);
    if (node != NULL)
        return node;
    node = wfi_tape_add_node(tape, &leaf_type, 0);
    if (node == NULL)
        return NULL;
    node->leaf = x->id;
    node->shape = x->shape;
    node->dtype = x->dtype;
    if (wfi_map_put(&tape->leaves, x->id, node) == WEFT_OK)
        return node;
    wfi_tape_fail_memory(tape, "leaf");
    return NULL;
}

wfi_node *wfi_tape_node_of(weft_tape *tape, weft_tensor *x)
{
    if (x->grad_node != NULL && is_of_lineage(tape, x->grad_node))
        return x->grad_node;
    if (!weft_tensor_requires_grad(x) || !wfi_dtype_is_float(x->dtype))
        return NULL;
    return leaf_node(tape, x);
}

/* What is borrowed from the tape never changes: a sum is a new tensor. */
static weft_status sum_of(const weft_tensor *a, const weft_tensor *b, weft_tensor **out)
{
    weft_tensor *sum = weft_tensor_empty(a->shape, a->dtype);
    if (sum == NULL)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_binary(WFI_ADD, a, b, sum);
    if (status != WEFT_OK) {
        weft_tensor_unref(sum);
        return status;
    }
    *out = sum;
    return WEFT_OK;
}

weft_status wfi_tape_add_gradient(weft_tape *tape, uint64_t leaf, weft_tensor *gradient, bool aliased)
{
    weft_tensor *before = wfi_map_get(&tape->gradients, leaf), *after = NULL;
    weft_status status = WEFT_OK;
    if (before != NULL)
        status = sum_of(before, gradient, &after);
    else
        after = aliased ? weft_tensor_clone(gradient) : weft_tensor_ref(gradient);
    if (status != WEFT_OK || after == NULL)
        return status != WEFT_OK ? status : WEFT_ERR_MEMORY;
    weft_tensor_unref(wfi_map_take(&tape->gradients, leaf));
    status = wfi_map_put(&tape->gradients, leaf, after);
    if (status != WEFT_OK)
        weft_tensor_unref(after);
    return status;
}

weft_tensor *weft_tape_grad(const weft_tape *tape, const weft_tensor *x)
{
    return tape == NULL || x == NULL ? NULL : wfi_map_get(&tape->gradients, x->id);
}

/* A gradient as the tape's temporary, so that it outlives later passes. */
static weft_tensor *lend_grad(weft_tape *tape, const weft_tensor *x)
{
    weft_tensor *gradient = weft_tape_grad(tape, x);
    gradient = gradient != NULL ? weft_tensor_ref(gradient) : weft_tensor_zeros(x->shape, x->dtype);
    if (gradient == NULL)
        wfi_tape_fail_memory(tape, "tape_grads");
    return weft_tape_take(tape, gradient);
}

weft_tensors weft_tape_grads(weft_tape *tape, weft_tensors parameters)
{
    const weft_tensors none = {NULL, 0};
    if (!wfi_tape_ready(tape) || parameters.count == 0)
        return none;
    weft_tensor **items = wfi_calloc(parameters.count, sizeof(weft_tensor *));
    if (items == NULL || !wfi_pointers_push(&tape->lists, items)) {
        free(items);
        wfi_tape_fail_memory(tape, "tape_grads");
        return none;
    }
    for (size_t i = 0; i < parameters.count; i++) {
        if (parameters.items[i] == NULL)
            wfi_tape_fail(tape, WEFT_ERR_INVALID, "tape_grads", "tape_grads: parameter %zu is NULL", i);
        else
            items[i] = lend_grad(tape, parameters.items[i]);
        if (items[i] == NULL)
            return none;
    }
    return (weft_tensors){items, parameters.count};
}
