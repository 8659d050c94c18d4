/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - the backward pass.
 *
 * Every node was made after its inputs, so its sequence is greater than theirs. A heap that always gives the greatest
 * sequence therefore meets a node only when all that use its result have added their share: no counting of uses before, no
 * recursion, and only what is reachable is looked at.
 */
#include "base/alloc.h"
#include "autograd/tape.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct engine {
    weft_tape *tape;
    bool retain;
    wfi_pointers heap; /* wfi_node, borrowed from its tape; the greatest sequence first */
} engine;

static uint64_t sequence_at(const engine *e, size_t i)
{
    return ((wfi_node *)e->heap.items[i])->sequence;
}

static void swap(engine *e, size_t i, size_t j)
{
    void *item = e->heap.items[i];
    e->heap.items[i] = e->heap.items[j];
    e->heap.items[j] = item;
}

static weft_status push(engine *e, wfi_node *node)
{
    if (node->queued)
        return WEFT_OK;
    if (!wfi_pointers_push(&e->heap, node))
        return WEFT_ERR_MEMORY;
    node->queued = true;
    for (size_t i = e->heap.count - 1; i > 0 && sequence_at(e, (i - 1) / 2) < sequence_at(e, i); i = (i - 1) / 2)
        swap(e, i, (i - 1) / 2);
    return WEFT_OK;
}

static wfi_node *pop(engine *e)
{
    if (e->heap.count == 0)
        return NULL;
    wfi_node *top = e->heap.items[0];
    e->heap.items[0] = e->heap.items[--e->heap.count];
    for (size_t i = 0;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < e->heap.count && sequence_at(e, child + 1) > sequence_at(e, child))
            child++;
        if (child >= e->heap.count || sequence_at(e, child) < sequence_at(e, i))
            break;
        swap(e, i, child);
        i = child;
    }
    top->queued = false;
    return top;
}

/*
 * Takes over the reference to `gradient`. The first share is kept as it is; the second makes a buffer of the node's own,
 * to which the others are added in place.
 */
static weft_status add_share(wfi_node *node, weft_tensor *gradient, bool aliased)
{
    if (node->gradient == NULL) {
        node->gradient = gradient;
        node->gradient_own = false;
        node->gradient_aliased = aliased;
        return WEFT_OK;
    }
    weft_status status = WEFT_OK;
    if (node->gradient_own) {
        status = wfi_add_into(gradient, node->gradient);
    } else {
        weft_tensor *sum = weft_tensor_empty(node->shape, node->dtype);
        status = sum == NULL ? WEFT_ERR_MEMORY : wfi_binary(WFI_ADD, node->gradient, gradient, sum);
        weft_tensor_unref(node->gradient);
        node->gradient = sum;
        node->gradient_own = true;
        node->gradient_aliased = false;
    }
    weft_tensor_unref(gradient);
    return status;
}

static void forget_gradient(wfi_node *node)
{
    weft_tensor_unref(node->gradient);
    node->gradient = NULL;
}

/* Whether another of the operator's gradients, or its result's, lies in the same storage. */
static bool is_aliased(const wfi_node *node, weft_tensor *const *dx, size_t which)
{
    if (dx[which]->storage == node->gradient->storage)
        return true;
    for (size_t i = 0; i < node->input_count && node->input_count <= WFI_NODE_INPUTS; i++)
        if (i != which && dx[i] != NULL && dx[i]->storage == dx[which]->storage)
            return true;
    return false;
}

static weft_status spread(engine *e, wfi_node *node, weft_tensor *const *dx)
{
    for (size_t i = 0; i < node->input_count; i++) {
        if (dx[i] == NULL || node->inputs[i] == NULL)
            continue;
        weft_status status = add_share(node->inputs[i], weft_tensor_ref(dx[i]), is_aliased(node, dx, i));
        if (status == WEFT_OK)
            status = push(e, node->inputs[i]);
        if (status != WEFT_OK) {
            forget_gradient(node->inputs[i]); /* it may not have reached the heap, which others are cleaned up from */
            return status;
        }
    }
    return WEFT_OK;
}

static bool is_usable(engine *e, const wfi_node *node)
{
    const char *name = node->type->name;
    if (node->spent) {
        wfi_tape_fail(
            e->tape, WEFT_ERR_STATE, "backward",
            "backward: the records of %s are gone: to go back through them a second time, the first pass must "
            "retain them",
            name);
        return false;
    }
    int slot = wfi_node_changed(node);
    if (slot < 0)
        return true;
    wfi_tape_fail(e->tape, WEFT_ERR_STATE, "backward",
                  "backward: tensor %d that %s kept for its gradient was changed in place afterwards", slot, name);
    return false;
}

/* The node's backward function, and its gradients to where they belong. */
static weft_status run_backward(engine *e, wfi_node *node)
{
    weft_tensor *few[WFI_NODE_INPUTS] = {NULL}, **dx = few;
    if (node->input_count > WFI_NODE_INPUTS)
        dx = wfi_calloc(node->input_count, sizeof(weft_tensor *));
    if (dx == NULL)
        return WEFT_ERR_MEMORY;
    weft_status status = node->type->backward(node, node->gradient, dx);
    if (status == WEFT_OK)
        status = spread(e, node, dx);
    for (size_t i = 0; i < node->input_count; i++)
        weft_tensor_unref(dx[i]);
    if (dx != few)
        free(dx);
    return status;
}

static void run_node(engine *e, wfi_node *node)
{
    weft_status status = WEFT_OK;
    if (node->type->backward == NULL) {
        status = wfi_tape_add_gradient(e->tape, node->leaf, node->gradient, node->gradient_aliased);
    } else if (is_usable(e, node)) {
        status = run_backward(e, node);
    }
    if (status != WEFT_OK)
        wfi_tape_fail(e->tape, status, "backward", "backward: %s: %s", node->type->name, weft_status_text(status));
    forget_gradient(node);
    if (!e->retain && node->type->backward != NULL && e->tape->error == NULL)
        wfi_node_release_saved(node);
}

static void run(engine *e)
{
    wfi_node *node;
    while (e->tape->error == NULL && (node = pop(e)) != NULL)
        run_node(e, node);
    while ((node = pop(e)) != NULL) /* after a failure */
        forget_gradient(node);
    free(e->heap.items);
}

static weft_tensor *ones_for(weft_tape *tape, const weft_tensor *output)
{
    if (output->numel != 1) {
        wfi_tape_fail(tape, WEFT_ERR_SHAPE, "backward",
                      "backward: a gradient can be implied only for an output of one element; this one has %lld",
                      (long long)output->numel);
        return NULL;
    }
    weft_tensor *one = weft_tensor_full(output->shape, output->dtype, 1);
    if (one == NULL)
        wfi_tape_fail_memory(tape, "backward");
    return one;
}

/* The gradient to start from, contiguous, with a reference. */
static weft_tensor *start_gradient(weft_tape *tape, const weft_tensor *output, weft_tensor *gradient)
{
    if (gradient == NULL)
        return ones_for(tape, output);
    if (gradient->dtype != output->dtype || !weft_tensor_same_shape(output, gradient)) {
        wfi_tape_fail(tape, gradient->dtype != output->dtype ? WEFT_ERR_TYPE : WEFT_ERR_SHAPE, "backward",
                      "backward: the gradient is not of its output's shape and dtype");
        return NULL;
    }
    weft_tensor *contiguous = weft_tensor_contiguous(gradient);
    if (contiguous == NULL)
        wfi_tape_fail_memory(tape, "backward");
    return contiguous;
}

static void start(engine *e, weft_tensor *output, weft_tensor *gradient)
{
    if (output == NULL) {
        wfi_tape_fail(e->tape, WEFT_ERR_INVALID, "backward", "backward: the output is NULL");
        return;
    }
    wfi_node *node = wfi_tape_node_of(e->tape, output);
    if (node == NULL) {
        wfi_tape_fail(e->tape, WEFT_ERR_INVALID, "backward",
                      "backward: the output was not recorded on this tape and is no leaf that wants a gradient");
        return;
    }
    weft_tensor *first = start_gradient(e->tape, output, gradient);
    if (first == NULL)
        return;
    weft_status status = add_share(node, first, true);
    if (status == WEFT_OK)
        status = push(e, node);
    if (status == WEFT_OK)
        return;
    forget_gradient(node);
    wfi_tape_fail(e->tape, status, "backward", "backward: %s", weft_status_text(status));
}

void weft_backward_with(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                        const weft_backward_options *options)
{
    if (!wfi_tape_ready(tape))
        return;
    if (gradients.count != 0 && gradients.count != outputs.count) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "backward", "backward: %zu gradients for %zu outputs", gradients.count,
                      outputs.count);
        return;
    }
    engine e = {.tape = tape, .retain = options != NULL && options->retain};
    for (size_t i = 0; i < outputs.count && tape->error == NULL; i++)
        start(&e, outputs.items[i], gradients.count == 0 ? NULL : gradients.items[i]);
    run(&e);
}

void weft_backward(weft_tape *tape, weft_tensor *loss)
{
    weft_backward_with(tape, (weft_tensors){&loss, 1}, (weft_tensors){NULL, 0}, NULL);
}
