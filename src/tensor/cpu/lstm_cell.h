/* SPDX-License-Identifier: Apache-2.0 */
/* lstm_cell.h - one step of an LSTM without its products: gates, cell and output in one pass, forward and backward. */
#ifndef WFI_LSTM_CELL_H
#define WFI_LSTM_CELL_H

#include <weft/tensor.h>

/* N rows of H cells each, packed, of one floating dtype; a row of gates is i, f, g, o, each [H]. Nothing overlaps. */
typedef struct wfi_lstm_cell {
    int64_t batch, hidden;
    void *gates;      /* [N, 4H]; forward: holds the products, then the gates' values; backward: the gates' values */
    const void *bias; /* [4H], added to the products; NULL: 0 */
    const void *c_before; /* [N, H] */
    void *c, *h;          /* [N, H]; backward reads only c */
    /* only for backward */
    const void *dy; /* [N, H]: the gradient of h from outside; NULL: 0 */
    void *dh;       /* [N, H]: the gradient from the next step; dy is added to it */
    void *dc;       /* [N, H]: holds the gradient of c from the next step, then that of c_before */
    void *dgates;   /* [N, 4H]: the gradient of the products */
} wfi_lstm_cell;

/* The same bits for any number of threads. On the CPU they always succeed. */
weft_status wfi_lstm_cell_forward(weft_device device, weft_dtype dtype, const wfi_lstm_cell *cell);
weft_status wfi_lstm_cell_backward(weft_device device, weft_dtype dtype, const wfi_lstm_cell *cell);

#endif
