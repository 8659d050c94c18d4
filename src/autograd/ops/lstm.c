/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lstm.c - lstm: layers of long short-term memory over a sequence. A layer is one recorded operator with three results.
 * Between layers, and between the caller's and the layers' shapes, are other operators.
 */
#include "autograd/autograd.h"
#include "base/alloc.h"
#include "tensor/copy.h"
#include "tensor/cpu/product/lstm.h"

#include <stdlib.h>

enum { X, H0, C0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, OPERANDS }; /* of a layer; the last two may be missing */
enum { Y = BIAS_IH, C, GATES, SAVED };                                /* saved, after the first five */
enum { RESULT_Y, RESULT_H, RESULT_C, RESULTS };

static const char *const names[OPERANDS] = {"x", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh"};

/* ---- One layer ---- */

static weft_status lstm_backward(const wfi_node *node, weft_tensor *const *dy, weft_tensor **dx)
{
    weft_tensor *const *saved = node->saved;
    wfi_lstm lstm = {saved[X], saved[H0], saved[C0], saved[WEIGHT_IH], saved[WEIGHT_HH], NULL, NULL};
    bool wanted[OPERANDS] = {false};
    weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < node->input_count; i++)
        wanted[i] = node->inputs[i].node != NULL;
    for (uint32_t i = X; i <= WEIGHT_HH && status == WEFT_OK; i++)
        status = wfi_grad_like(wanted[i], saved[i]->shape, saved[i], &dx[i]);
    weft_tensor *bias = NULL;
    if (status == WEFT_OK)
        status =
            wfi_grad_like(wanted[BIAS_IH] || wanted[BIAS_HH], WEFT_SHAPE(lstm.weight_hh->shape.dims[0]), lstm.x, &bias);
    if (status == WEFT_OK)
        status = wfi_product_lstm_backward(&lstm, saved[Y], saved[C], saved[GATES],
                                           &(wfi_lstm_dy){dy[RESULT_Y], dy[RESULT_H], dy[RESULT_C]},
                                           &(wfi_lstm_dx){dx[X], dx[H0], dx[C0], dx[WEIGHT_IH], dx[WEIGHT_HH], bias});
    for (int i = BIAS_IH; i <= BIAS_HH && status == WEFT_OK; i++)
        if (wanted[i])
            dx[i] = weft_tensor_ref(bias);
    weft_tensor_unref(bias);
    return status;
}

static const wfi_node_type lstm_type = {.name = "lstm", .backward_all = lstm_backward, .results = RESULTS};

/* The shape that operand `which` must have, by x and weight_hh. */
static weft_shape wanted_shape(const wfi_op *op, int which)
{
    int64_t batch = op->given[X]->shape.dims[1], input = op->given[X]->shape.dims[2];
    int64_t hidden = op->given[WEIGHT_HH]->shape.dims[1];
    switch (which) {
    case H0:
    case C0:
        return WEFT_SHAPE(batch, hidden);
    case WEIGHT_IH:
        return WEFT_SHAPE(4 * hidden, input);
    case WEIGHT_HH:
        return WEFT_SHAPE(4 * hidden, hidden);
    default:
        return WEFT_SHAPE(4 * hidden);
    }
}

static bool check_layer(wfi_op *op)
{
    char text[WFI_SHAPE_TEXT];
    if (!wfi_dtype_is_float(op->given[X]->dtype))
        wfi_op_fail(op, WEFT_ERR_TYPE, "wants float32 or float64");
    else if (op->given[WEIGHT_HH]->shape.ndim != 2)
        wfi_op_fail(op, WEFT_ERR_SHAPE, "weight_hh must be [4 H, H]");
    for (int i = H0; i < (int)op->given_count && wfi_op_ok(op); i++) {
        weft_shape wanted = wanted_shape(op, i);
        if (!wfi_shape_equal(&wanted, &op->given[i]->shape))
            wfi_op_fail(op, WEFT_ERR_SHAPE, "%s must be %s", names[i], wfi_shape_text(&wanted, text));
    }
    return wfi_op_ok(op);
}

/* The operands packed; the tape keeps what had to be copied. False: failed. */
static bool pack(wfi_op *op, weft_tensor *packed[OPERANDS])
{
    for (size_t i = 0; i < op->given_count; i++) {
        packed[i] = op->list[i];
        if (weft_tensor_is_contiguous(packed[i]))
            continue;
        packed[i] = weft_tape_take(op->tape, wfi_tensor_contiguous(packed[i], NULL));
        if (!packed[i]) {
            wfi_op_fail(op, WEFT_ERR_MEMORY, "out of memory");
            return false;
        }
    }
    return true;
}

/* The state after the last step: row T - 1 of y or c. */
static void give_last(wfi_op *op, weft_tensor *all)
{
    if (!all || !wfi_op_ok(op))
        return;
    weft_tensor *last = wfi_tensor_select(all, 0, -1, NULL);
    weft_tensor *out = wfi_op_output(op, WEFT_SHAPE(all->shape.dims[1], all->shape.dims[2]));
    if (out)
        wfi_op_check(op, !last ? WEFT_ERR_MEMORY : wfi_copy(last, out));
    weft_tensor_unref(last);
}

static void run_layer(wfi_op *op)
{
    weft_tensor *in[OPERANDS] = {NULL};
    if (!check_layer(op) || !pack(op, in) || !in[X] || !in[H0])
        return;
    int64_t steps = in[X]->shape.dims[0], batch = in[X]->shape.dims[1], hidden = in[H0]->shape.dims[1];
    weft_shape states = WEFT_SHAPE(steps, batch, hidden);
    weft_tensor *y = wfi_op_output(op, states), *c = wfi_tensor_empty_like(in[X], states, in[X]->dtype);
    weft_tensor *gates = wfi_tensor_empty_like(in[X], WEFT_SHAPE(steps, batch, 4 * hidden), in[X]->dtype);
    wfi_lstm lstm = {in[X], in[H0], in[C0], in[WEIGHT_IH], in[WEIGHT_HH], in[BIAS_IH], in[BIAS_HH]};
    if (y)
        wfi_op_check(op, !c || !gates ? WEFT_ERR_MEMORY : wfi_product_lstm_forward(&lstm, y, c, gates));
    if (wfi_op_ok(op)) {
        give_last(op, y);
        give_last(op, c);
    }
    weft_tensor *kept[SAVED] = {in[X], in[H0], in[C0], in[WEIGHT_IH], in[WEIGHT_HH], y, c, gates};
    for (int i = 0; i < SAVED; i++)
        wfi_op_save(op, i, kept[i]);
    weft_tensor_unref(c);
    weft_tensor_unref(gates);
}

/* ---- All layers ---- */

typedef struct lstm_call {
    weft_tape *tape;
    weft_tensor *h0, *c0;
    weft_tensors weights;
    size_t layers, each;      /* weights of a layer: 4, or 2 without biases */
    weft_tensor **h_n, **c_n; /* of each layer: `layers`, then as many */
    weft_lstm_options how;
} lstm_call;

/* The initial state of a layer: given, or zeros. */
static weft_tensor *state_of(const lstm_call *call, weft_tensor *all, size_t layer, weft_shape shape)
{
    if (all)
        return weft_select(call->tape, all, 0, (int64_t)layer);
    weft_tensor *zeros = wfi_tensor_full_like(call->weights.items[0], shape, call->weights.items[0]->dtype, 0);
    if (!zeros)
        wfi_tape_fail_memory(call->tape, lstm_type.name);
    return weft_tape_take(call->tape, zeros);
}

/* y of the layer over x [T, N, ..]; NULL: failed. */
static weft_tensor *one_layer(const lstm_call *call, size_t layer, weft_tensor *x)
{
    weft_tensor *const *weights = call->weights.items + layer * call->each;
    weft_shape state = WEFT_SHAPE(weft_tensor_size(x, 1), weft_tensor_size(weights[1], -1));
    weft_tensor *operands[OPERANDS] = {x, state_of(call, call->h0, layer, state),
                                       state_of(call, call->c0, layer, state)};
    weft_tensor *results[RESULTS] = {NULL};
    for (size_t i = 0; i < call->each; i++)
        operands[WEIGHT_IH + i] = weights[i];
    wfi_op op;
    if (!wfi_op_begin_list(&op, call->tape, &lstm_type, (weft_tensors){operands, WEIGHT_IH + call->each}, SAVED))
        return NULL;
    run_layer(&op);
    wfi_op_end_all(&op, results);
    call->h_n[layer] = results[RESULT_H];
    call->c_n[layer] = results[RESULT_C];
    return results[RESULT_Y];
}

/* y of the last layer, as the caller wants it. */
static weft_tensor *all_layers(const lstm_call *call, weft_tensor *x)
{
    weft_tensor *y = call->how.batch_first ? weft_transpose(call->tape, x, 0, 1) : x;
    for (size_t layer = 0; layer < call->layers && y; layer++) {
        if (layer > 0 && call->how.dropout > 0)
            y = weft_dropout(call->tape, y, call->how.dropout, call->how.train);
        if (y)
            y = one_layer(call, layer, y);
    }
    return call->how.batch_first ? weft_transpose(call->tape, y, 0, 1) : y;
}

static bool fail(const lstm_call *call, weft_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wfi_tape_fail_v(call->tape, code, lstm_type.name, format, args);
    va_end(args);
    return false;
}

static bool check_state(const lstm_call *call, const weft_tensor *state, const char *name)
{
    char text[WFI_SHAPE_TEXT];
    if (!state || (state->shape.ndim == 3 && state->shape.dims[0] == (int64_t)call->layers))
        return true;
    return fail(call, WEFT_ERR_SHAPE, "lstm: %s %s must be [%zu, N, H] with these weights", name,
                wfi_shape_text(&state->shape, text), call->layers);
}

static bool check_call(const lstm_call *call, const weft_tensor *x)
{
    char text[WFI_SHAPE_TEXT];
    size_t count = call->weights.count;
    if (count == 0 || count % call->each != 0)
        return fail(call, WEFT_ERR_INVALID, "lstm: %zu weights are not %zu for each of some layers", count, call->each);
    if (!call->weights.items)
        return fail(call, WEFT_ERR_INVALID, "lstm: the list of %zu weights is NULL", count);
    for (size_t i = 0; i < count; i++)
        if (!call->weights.items[i])
            return fail(call, WEFT_ERR_INVALID, "lstm: weight %zu is NULL", i);
    if (x->shape.ndim != 3 || x->shape.dims[call->how.batch_first ? 1 : 0] == 0)
        return fail(call, WEFT_ERR_SHAPE, "lstm: x %s must be %s with at least one step",
                    wfi_shape_text(&x->shape, text), call->how.batch_first ? "[N, T, I]" : "[T, N, I]");
    if (!(call->how.dropout >= 0 && call->how.dropout < 1))
        return fail(call, WEFT_ERR_INVALID, "lstm: a dropout of %g is not in [0, 1)", call->how.dropout);
    return check_state(call, call->h0, "h0") && check_state(call, call->c0, "c0");
}

weft_tensor *weft_lstm_sized(weft_tape *tape, weft_tensor *x, weft_tensor *h0, weft_tensor *c0, weft_tensors weights,
                             const weft_lstm_options *options, size_t size, weft_tensor **h_n, weft_tensor **c_n)
{
    WFI_CHECK_HANDLE(tape, x, h0, c0);
    lstm_call call = {.tape = tape, .h0 = h0, .c0 = c0, .weights = weights};
    if (h_n)
        *h_n = NULL;
    if (c_n)
        *c_n = NULL;
    weft_lstm_options own;
    options = WFI_SIZED(options, size, &own);
    if (!wfi_op_knows(tape, &lstm_type, options != NULL))
        return NULL;
    call.how = *options;
    call.each = call.how.no_bias ? 2 : 4;
    call.layers = weights.count / call.each;
    if (!wfi_op_needs(tape, &lstm_type, x, "x") || !check_call(&call, x))
        return NULL;
    call.h_n = wfi_calloc(2 * call.layers, sizeof(*call.h_n));
    if (!call.h_n) {
        wfi_tape_fail_memory(tape, lstm_type.name);
        return NULL;
    }
    call.c_n = call.h_n + call.layers;
    weft_tensor *y = all_layers(&call, x);
    if (y && h_n)
        *h_n = weft_stack(tape, (weft_tensors){call.h_n, call.layers}, 0);
    if (y && c_n)
        *c_n = weft_stack(tape, (weft_tensors){call.c_n, call.layers}, 0);
    free(call.h_n);
    return weft_tape_status(tape) == WEFT_OK ? y : NULL;
}
