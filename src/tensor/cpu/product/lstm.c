/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lstm.c - see lstm.h. The input's part of the gates is one product over all steps. So are all gradients except that of
 * the hidden state, which is computed step by step. With a[t] the gates' products, [N, 4H]:
 *
 *   forward    a = x weight_ih^T for all t; for each t: a[t] += h[t-1] weight_hh^T, then the cell (lstm_cell.h);
 *   backward   for t from the last: the cell gives da[t] and dc, then dh = da[t] weight_hh;
 *              dx = da weight_ih; and with sums over t: dweight_ih = da[t]^T x[t], dweight_hh = da[t]^T h[t-1],
 *              dbias = da[t];
 */
#include "tensor/cpu/product/lstm.h"

#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lstm_cell.h"
#include "tensor/cpu/product/gemm.h"

#include <string.h>

typedef struct sizes {
    int64_t steps, batch, input, hidden;
    weft_dtype dtype;
    weft_device device;
} sizes;

static sizes sizes_of(const wfi_lstm *lstm)
{
    return (sizes){lstm->x->shape.dims[0],  lstm->x->shape.dims[1], lstm->x->shape.dims[2],
                   lstm->h0->shape.dims[1], lstm->x->dtype,         weft_tensor_device(lstm->x)};
}

/* Where row `row` of `width` elements begins. */
static void *row_of(const sizes *s, const weft_tensor *tensor, int64_t row, int64_t width)
{
    return (char *)wfi_tensor_address(tensor) + (size_t)(row * width) * weft_dtype_size(s->dtype);
}

/* c = beta c + op(a) op(b), on the device of the sequence. */
static weft_status product(const sizes *s, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                           const void *a, const void *b, double beta, void *c)
{
    wfi_gemm_args args = {.device = s->device,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b,
                          .m = m,
                          .n = n,
                          .k = k,
                          .a = a,
                          .b = b,
                          .beta = beta,
                          .c = c};
    return wfi_gemm_run(s->dtype, &args);
}

static bool has_shape(const weft_tensor *tensor, weft_shape shape)
{
    return !tensor || wfi_shape_equal(&tensor->shape, &shape);
}

static weft_status check(const wfi_lstm *l, const weft_tensor *y, const weft_tensor *c, const weft_tensor *gates)
{
    weft_status status =
        WFI_CHECK_FLOATS_TOGETHER(l->x, l->h0, l->c0, l->weight_ih, l->weight_hh, l->bias_ih, l->bias_hh, y, c, gates);
    if (status != WEFT_OK)
        return status;
    if (l->x->shape.ndim != 3 || l->h0->shape.ndim != 2)
        return WEFT_ERR_SHAPE;
    sizes s = sizes_of(l);
    bool fits = has_shape(l->h0, WEFT_SHAPE(s.batch, s.hidden)) && has_shape(l->c0, WEFT_SHAPE(s.batch, s.hidden)) &&
                has_shape(l->weight_ih, WEFT_SHAPE(4 * s.hidden, s.input)) &&
                has_shape(l->weight_hh, WEFT_SHAPE(4 * s.hidden, s.hidden)) &&
                has_shape(l->bias_ih, WEFT_SHAPE(4 * s.hidden)) && has_shape(l->bias_hh, WEFT_SHAPE(4 * s.hidden)) &&
                has_shape(y, WEFT_SHAPE(s.steps, s.batch, s.hidden)) &&
                has_shape(c, WEFT_SHAPE(s.steps, s.batch, s.hidden)) &&
                has_shape(gates, WEFT_SHAPE(s.steps, s.batch, 4 * s.hidden));
    if (!fits)
        return WEFT_ERR_SHAPE;
    return wfi_blas_fits(s.steps * s.batch, 4 * s.hidden, s.input) ? WEFT_OK : WEFT_ERR_TOO_LARGE;
}

/* *out: the sum of both, one of them, or NULL; one reference. */
static weft_status sum_of_biases(const wfi_lstm *lstm, weft_tensor **out)
{
    *out = NULL;
    if (!lstm->bias_ih && !lstm->bias_hh)
        return WEFT_OK;
    weft_tensor *sum = wfi_tensor_full_like(lstm->x, WEFT_SHAPE(4 * lstm->h0->shape.dims[1]), lstm->x->dtype, 0);
    weft_status status = !sum ? WEFT_ERR_MEMORY : WEFT_OK;
    if (status == WEFT_OK && lstm->bias_ih)
        status = wfi_add_into(lstm->bias_ih, sum);
    if (status == WEFT_OK && lstm->bias_hh)
        status = wfi_add_into(lstm->bias_hh, sum);
    *out = sum;
    return status;
}

weft_status wfi_product_lstm_forward(const wfi_lstm *lstm, weft_tensor *y, weft_tensor *c, weft_tensor *gates)
{
    weft_status status = check(lstm, y, c, gates);
    if (status != WEFT_OK || gates->numel == 0)
        return status;
    sizes s = sizes_of(lstm);
    weft_tensor *bias;
    status = sum_of_biases(lstm, &bias);
    if (status == WEFT_OK)
        status = product(&s, false, true, s.steps * s.batch, 4 * s.hidden, s.input, wfi_tensor_address(lstm->x),
                         wfi_tensor_address(lstm->weight_ih), 0, wfi_tensor_address(gates));
    const void *h_before = wfi_tensor_address(lstm->h0), *c_before = wfi_tensor_address(lstm->c0);
    for (int64_t t = 0; t < s.steps && status == WEFT_OK; t++) {
        wfi_lstm_cell cell = {.batch = s.batch,
                              .hidden = s.hidden,
                              .gates = row_of(&s, gates, t * s.batch, 4 * s.hidden),
                              .bias = !bias ? NULL : wfi_tensor_address(bias),
                              .c_before = c_before,
                              .c = row_of(&s, c, t * s.batch, s.hidden),
                              .h = row_of(&s, y, t * s.batch, s.hidden)};
        status = product(&s, false, true, s.batch, 4 * s.hidden, s.hidden, h_before,
                         wfi_tensor_address(lstm->weight_hh), 1, cell.gates);
        if (status == WEFT_OK)
            status = wfi_lstm_cell_forward(s.device, s.dtype, &cell);
        h_before = cell.h;
        c_before = cell.c;
    }
    weft_tensor_unref(bias);
    return status;
}

/* --- Backward --- */

/* dh and dc [N, H], which each step leaves for the step before; dgates [T, N, 4H], the gradients of all products. */
typedef struct going_back {
    weft_tensor *dh, *dc, *dgates;
} going_back;

/* Makes the three, with dh and dc of the last step. The caller drops them, also on failure. */
static weft_status start(const sizes *s, const wfi_lstm_dy *dy, going_back *back)
{
    weft_shape state = WEFT_SHAPE(s->batch, s->hidden);
    back->dh = wfi_tensor_empty_on(s->device, state, s->dtype, NULL);
    back->dc = wfi_tensor_empty_on(s->device, state, s->dtype, NULL);
    back->dgates = wfi_tensor_empty_on(s->device, WEFT_SHAPE(s->steps, s->batch, 4 * s->hidden), s->dtype, NULL);
    if (!back->dh || !back->dc || !back->dgates)
        return WEFT_ERR_MEMORY;
    weft_status status = dy->h ? wfi_copy(dy->h, back->dh) : wfi_fill(back->dh, 0);
    if (status == WEFT_OK)
        status = dy->c ? wfi_copy(dy->c, back->dc) : wfi_fill(back->dc, 0);
    return status;
}

/* From the last step to the first. Afterwards dh and dc are the gradients of h0 and c0. */
static weft_status go_back(const wfi_lstm *lstm, const weft_tensor *c, const weft_tensor *gates, const weft_tensor *dy,
                           const going_back *back)
{
    sizes s = sizes_of(lstm);
    weft_status status = WEFT_OK;
    for (int64_t t = s.steps - 1; t >= 0 && status == WEFT_OK; t--) {
        wfi_lstm_cell cell = {.batch = s.batch,
                              .hidden = s.hidden,
                              .gates = row_of(&s, gates, t * s.batch, 4 * s.hidden),
                              .c_before =
                                  t > 0 ? row_of(&s, c, (t - 1) * s.batch, s.hidden) : wfi_tensor_address(lstm->c0),
                              .c = row_of(&s, c, t * s.batch, s.hidden),
                              .dy = !dy ? NULL : row_of(&s, dy, t * s.batch, s.hidden),
                              .dh = wfi_tensor_address(back->dh),
                              .dc = wfi_tensor_address(back->dc),
                              .dgates = row_of(&s, back->dgates, t * s.batch, 4 * s.hidden)};
        status = wfi_lstm_cell_backward(s.device, s.dtype, &cell);
        if (status == WEFT_OK)
            status = product(&s, false, false, s.batch, s.hidden, 4 * s.hidden, cell.dgates,
                             wfi_tensor_address(lstm->weight_hh), 0, cell.dh);
    }
    return status;
}

/* The gradients that are products over all steps. The hidden state before step t is y of step t - 1, or h0. */
static weft_status multiply_all(const wfi_lstm *lstm, const weft_tensor *y, const weft_tensor *dgates,
                                const wfi_lstm_dx *dx)
{
    sizes s = sizes_of(lstm);
    const void *dg = wfi_tensor_address(dgates);
    int64_t rows = s.steps * s.batch, wide = 4 * s.hidden;
    weft_status status = WEFT_OK;
    if (dx->x)
        status = product(&s, false, false, rows, s.input, wide, dg, wfi_tensor_address(lstm->weight_ih), 0,
                         wfi_tensor_address(dx->x));
    if (dx->weight_ih && status == WEFT_OK)
        status = product(&s, true, false, wide, s.input, rows, dg, wfi_tensor_address(lstm->x), 0,
                         wfi_tensor_address(dx->weight_ih));
    if (dx->weight_hh && status == WEFT_OK) {
        void *to = wfi_tensor_address(dx->weight_hh);
        int64_t later = s.steps > 0 ? rows - s.batch : 0;
        status = product(&s, true, false, wide, s.hidden, later, row_of(&s, dgates, rows - later, wide),
                         wfi_tensor_address(y), 0, to);
        if (status == WEFT_OK)
            status = product(&s, true, false, wide, s.hidden, rows - later, dg, wfi_tensor_address(lstm->h0), 1, to);
    }
    if (dx->bias && status == WEFT_OK)
        status = wfi_sum(dgates, 1u << 0 | 1u << 1, dx->bias);
    return status;
}

static weft_status check_gradients(const wfi_lstm *l, const weft_tensor *y, const wfi_lstm_dy *dy,
                                   const wfi_lstm_dx *dx)
{
    weft_status status = WFI_CHECK_FLOATS_TOGETHER(y, dy->y, dy->h, dy->c, dx->x, dx->h0, dx->c0, dx->weight_ih,
                                                   dx->weight_hh, dx->bias);
    bool fits = has_shape(dy->y, y->shape) && has_shape(dy->h, l->h0->shape) && has_shape(dy->c, l->c0->shape) &&
                has_shape(dx->x, l->x->shape) && has_shape(dx->h0, l->h0->shape) && has_shape(dx->c0, l->c0->shape) &&
                has_shape(dx->weight_ih, l->weight_ih->shape) && has_shape(dx->weight_hh, l->weight_hh->shape) &&
                has_shape(dx->bias, WEFT_SHAPE(4 * l->h0->shape.dims[1]));
    return status != WEFT_OK ? status : fits ? WEFT_OK : WEFT_ERR_SHAPE;
}

weft_status wfi_product_lstm_backward(const wfi_lstm *lstm, const weft_tensor *y, const weft_tensor *c,
                                      const weft_tensor *gates, const wfi_lstm_dy *dy, const wfi_lstm_dx *dx)
{
    going_back back = {NULL};
    weft_status status = check(lstm, y, c, gates);
    if (status == WEFT_OK)
        status = check_gradients(lstm, y, dy, dx);
    if (status != WEFT_OK)
        return status;
    sizes s = sizes_of(lstm);
    status = start(&s, dy, &back);
    if (status == WEFT_OK)
        status = go_back(lstm, c, gates, dy->y, &back);
    if (status == WEFT_OK)
        status = multiply_all(lstm, y, back.dgates, dx);
    if (status == WEFT_OK && dx->h0)
        status = wfi_copy(back.dh, dx->h0);
    if (status == WEFT_OK && dx->c0)
        status = wfi_copy(back.dc, dx->c0);
    weft_tensor_unref(back.dh);
    weft_tensor_unref(back.dc);
    weft_tensor_unref(back.dgates);
    return status;
}
