/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lstm.h - one layer of an LSTM over a sequence. The conventions are those of tensor/cpu/cpu.h; the last bits of
 * products depend on the number of threads.
 *
 * Letters: T steps, N batch, I input, H hidden. Gates are ordered i, f, g, o, each [H], as in PyTorch.
 */
#ifndef WFI_LSTM_H
#define WFI_LSTM_H

#include "tensor/tensor.h"

typedef struct wfi_lstm {
    const weft_tensor *x;                 /* [T, N, I] */
    const weft_tensor *h0, *c0;           /* [N, H] */
    const weft_tensor *weight_ih;         /* [4H, I] */
    const weft_tensor *weight_hh;         /* [4H, H] */
    const weft_tensor *bias_ih, *bias_hh; /* [4H]; NULL: 0 */
} wfi_lstm;

/*
 * y [T, N, H]: the hidden state after each step. c [T, N, H] and gates [T, N, 4H] are the cells' and the gates'
 * values, for the backward pass. WEFT_ERR_TOO_LARGE: the matrix product does not take these sizes.
 */
weft_status wfi_product_lstm_forward(const wfi_lstm *lstm, weft_tensor *y, weft_tensor *c, weft_tensor *gates);

/* The gradients of the results: of y, and of the last hidden and cell state. NULL: none. */
typedef struct wfi_lstm_dy {
    const weft_tensor *y, *h, *c;
} wfi_lstm_dy;

/* Gradients, each overwritten; NULL if not required. Both biases have the same. */
typedef struct wfi_lstm_dx {
    weft_tensor *x, *h0, *c0, *weight_ih, *weight_hh, *bias;
} wfi_lstm_dx;

/* y, c, gates: from the forward pass. */
weft_status wfi_product_lstm_backward(const wfi_lstm *lstm, const weft_tensor *y, const weft_tensor *c,
                                      const weft_tensor *gates, const wfi_lstm_dy *dy, const wfi_lstm_dx *dx);

#endif
