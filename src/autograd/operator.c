/* SPDX-License-Identifier: Apache-2.0 */
/* operator.c - the user's own operators: records them, and calls their backward functions. */
#include "autograd/tape.h"

#include "autograd/hooks.h"
#include "base/alloc.h"
#include "base/text/sized.h"
#include "tensor/print.h"

#include <weft/operator.h>

#include <stdio.h>
#include <stdlib.h>

#define FEW 8 /* inputs that fit on the stack */

/* The data that such a node keeps behind it. */
struct wfi_user_operator {
    wfi_node_type type; /* the node's type, with this operator's name */
    weft_operator op;
};

/*
 * Makes the gradient that the user's function gave for an input contiguous; WEFT_ERR_SHAPE if its shape or dtype is
 * not that input's.
 */
static weft_status accept(const wfi_edge *input, uint32_t index, weft_tensor **dx)
{
    char given[WFI_SHAPE_TEXT], wanted[WFI_SHAPE_TEXT];
    if (!*dx)
        return WEFT_OK;
    if (!input->node) { /* no gradient was required */
        weft_tensor_unref(*dx);
        *dx = NULL;
        return WEFT_OK;
    }
    const wfi_result *of = &input->node->results[input->result];
    if ((*dx)->dtype != of->dtype || !wfi_shape_equal(&(*dx)->shape, &of->shape)) {
        snprintf(wfi_node_misfit(), WFI_MISFIT_TEXT, "the gradient of input %u is %s %s, the input is %s %s", index,
                 weft_dtype_name((*dx)->dtype), wfi_shape_text(&(*dx)->shape, given), weft_dtype_name(of->dtype),
                 wfi_shape_text(&of->shape, wanted));
        return WEFT_ERR_SHAPE;
    }
    weft_tensor *contiguous = wfi_tensor_contiguous(*dx, NULL);
    if (!contiguous)
        return WEFT_ERR_MEMORY;
    weft_tensor_unref(*dx);
    *dx = contiguous;
    return WEFT_OK;
}

static weft_status call_backward(const wfi_node *node, weft_tensor *const *dy, weft_tensor **dx, bool *wanted)
{
    for (uint32_t i = 0; i < node->input_count; i++)
        wanted[i] = node->inputs[i].node != NULL;
    weft_status status = node->user->op.backward(node->user_state, (weft_tensors){node->saved, node->saved_count},
                                                 (weft_tensors){dy, node->result_count}, wanted, dx);
    for (uint32_t i = 0; i < node->input_count && status == WEFT_OK; i++)
        status = accept(&node->inputs[i], i, &dx[i]);
    return status;
}

static weft_status user_backward(const wfi_node *node, weft_tensor *const *dy, weft_tensor **dx)
{
    bool few[FEW], *wanted = few;
    if (node->input_count > FEW && !(wanted = wfi_calloc(node->input_count, sizeof(*wanted))))
        return WEFT_ERR_MEMORY;
    weft_status status = call_backward(node, dy, dx, wanted);
    if (wanted != few)
        free(wanted);
    return status;
}

/* The operator's node; NULL: no input requires a gradient, or the tape has failed. */
static wfi_node *make_node(weft_tape *tape, const weft_operator *op, weft_tensors inputs, weft_tensors saved,
                           size_t results)
{
    wfi_node_counts counts = {inputs.count, results, saved.count, sizeof(struct wfi_user_operator)};
    wfi_node *node = wfi_tape_add_node(tape, &(wfi_node_type){.name = op->name}, counts, inputs);
    if (!node)
        return NULL;
    node->user->op = *op;
    node->user->type = (wfi_node_type){.name = op->name, .backward_all = user_backward};
    node->type = &node->user->type;
    for (size_t i = 0; i < saved.count; i++)
        wfi_node_save(node, i, saved.items[i]);
    node->saved_count = (uint32_t)saved.count; /* includes NULLs at the end */
    return node;
}

static bool is_list(weft_tape *tape, const weft_operator *op, weft_tensors list, const char *what)
{
    if (list.count > 0 && !list.items)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, op->name, "%s: record: the list of %zu %s is NULL", op->name, list.count,
                      what);
    return wfi_tape_ready(tape);
}

static bool check_results(weft_tape *tape, const weft_operator *op, weft_tensors results)
{
    const char *name = op->name;
    if (!op->backward || results.count == 0)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, name, "%s: record: %s", name,
                      results.count == 0 ? "there are no results" : "the backward function is NULL");
    for (size_t i = 0; i < results.count && wfi_tape_ready(tape); i++)
        if (!results.items[i])
            wfi_tape_fail(tape, WEFT_ERR_INVALID, name, "%s: record: result %zu is NULL", name, i);
    return wfi_tape_ready(tape);
}

/* Result i as the tape knows it. NULL: the tape failed. */
static weft_tensor *make_result(weft_tape *tape, const char *name, wfi_node *node, size_t i, weft_tensor *result)
{
    weft_tensor *out = NULL;
    if (!node)
        return weft_tape_take(tape, weft_tensor_ref(result));
    if (!wfi_dtype_is_float(result->dtype)) {
        wfi_tape_fail(tape, WEFT_ERR_TYPE, name, "%s: record: result %zu is %s, which has no gradient", name, i,
                      weft_dtype_name(result->dtype));
        return NULL;
    }
    if (wfi_tensor_view(result, result->shape, result->strides, result->offset, &out) != WEFT_OK) {
        wfi_tape_fail_memory(tape, name);
        return NULL;
    }
    wfi_node_set_result(node, (uint32_t)i, out);
    return weft_tape_take(tape, out);
}

/* Returns whether the node took over the state. */
static bool record(weft_tape *tape, const weft_operator *op, weft_tensors inputs, weft_tensors saved, void *state,
                   weft_tensors results, weft_tensor **out)
{
    if (!is_list(tape, op, inputs, "inputs") || !is_list(tape, op, saved, "saved tensors") ||
        !is_list(tape, op, results, "results") || !check_results(tape, op, results))
        return false;
    wfi_node *node = make_node(tape, op, inputs, saved, results.count);
    if (node) {
        node->user_state = state;
        node->drop = op->drop;
    }
    for (size_t i = 0; i < results.count && wfi_tape_ready(tape); i++)
        out[i] = make_result(tape, op->name, node, i, results.items[i]);
    return node != NULL;
}

void weft_tape_record_sized(weft_tape *tape, const weft_operator *op, size_t size, weft_tensors inputs,
                            weft_tensors saved, void *state, weft_tensors results, weft_tensor **out)
{
    WFI_CHECK_HANDLE(tape);
    for (size_t i = 0; i < results.count && out; i++)
        out[i] = NULL;
    weft_operator own;
    const weft_operator *given = op;
    op = given ? WFI_SIZED(given, size, &own) : NULL;
    if (given && !op) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "record", "record: " WFI_NEWER, "weft_operator");
        if (given->drop)
            given->drop(state);
        return;
    }
    if (!op || !op->name || !out) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "record", "record: %s is NULL",
                      !op    ? "the operator"
                      : !out ? "`out`"
                             : "the operator's name");
        if (op && op->drop)
            op->drop(state);
        return;
    }
    bool taken = wfi_tape_ready(tape) && record(tape, op, inputs, saved, state, results, out);
    if (!taken && op->drop)
        op->drop(state);
    for (size_t i = 0; i < results.count && !wfi_tape_ready(tape); i++)
        out[i] = NULL;
}

/* ---- A function on the gradient of any tensor ---- */

typedef struct gradient_function {
    weft_gradient_fn fn;
    void *arg;
    weft_drop_fn drop;
} gradient_function;

static weft_status call_function(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)saved, (void)wanted;
    const gradient_function *function = state;
    dx[0] = wfi_gradient_from(function->fn, function->arg, dy.items[0]);
    return !dx[0] ? WEFT_ERR_INVALID : WEFT_OK;
}

static void end_function(void *state)
{
    gradient_function *function = state;
    if (function->drop)
        function->drop(function->arg);
    free(function);
}

weft_tensor *weft_on_gradient(weft_tape *tape, weft_tensor *x, weft_gradient_fn fn, void *arg, weft_drop_fn drop)
{
    WFI_CHECK_HANDLE(tape, x);
    static const weft_operator op = {.name = "on_gradient", .backward = call_function, .drop = end_function};
    gradient_function *function = !fn || !x ? NULL : wfi_calloc(1, sizeof(*function));
    if (!function) {
        if (fn && x)
            wfi_tape_fail_memory(tape, op.name);
        else
            wfi_tape_fail(tape, WEFT_ERR_INVALID, op.name, "on_gradient: %s is NULL", !x ? "x" : "the function");
        if (drop)
            drop(arg);
        return NULL;
    }
    *function = (gradient_function){fn, arg, drop};
    weft_tensor *out = NULL;
    weft_tape_record(tape, &op, (weft_tensors){&x, 1}, (weft_tensors){0}, function, (weft_tensors){&x, 1}, &out);
    return out;
}
