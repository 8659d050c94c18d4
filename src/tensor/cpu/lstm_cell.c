/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lstm_cell.c - see lstm_cell.h. Hochreiter, Schmidhuber: Long Short-Term Memory (1997), with the forget gate of Gers
 * et al. (2000). With s the logistic function, and a_i, a_f, a_g, a_o the products with the biases:
 *
 *   forward    i = s(a_i), f = s(a_f), g = tanh(a_g), o = s(a_o);  c = f c_before + i g, h = o tanh(c);
 *   backward   dh += dy, t = tanh(c), D = dc + dh o (1 - t^2);
 *              da_i = D g i (1 - i), da_f = D c_before f (1 - f), da_g = D i (1 - g^2), da_o = dh t o (1 - o);
 *              dc = D f, which is the gradient of c_before;
 */
#include "tensor/cpu/lstm_cell.h"

#include "tensor/check.h"
#include "tensor/clones.h"
#include "tensor/cpu/vector_math.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"

#define CELL_GRAIN (WFI_GRAIN / 8) /* cells; each costs as much as some ten elements of a sum */

#define LSTM_CELL(tag, T)                                                                                              \
    WFI_CLONES static void tag##_forward_row(int64_t hidden, T *restrict gates, const T *restrict bias,                \
                                             const T *restrict c_before, T *restrict c, T *restrict h)                 \
    {                                                                                                                  \
        T *restrict in = gates, *restrict forget = gates + hidden;                                                     \
        T *restrict fresh = gates + 2 * hidden, *restrict out = gates + 3 * hidden;                                    \
        for (int64_t j = 0; j < 4 * hidden && bias; j++)                                                               \
            gates[j] += bias[j];                                                                                       \
        for (int64_t j = 0; j < hidden; j++) {                                                                         \
            in[j] = wfi_vector_sigmoid_##tag(in[j]);                                                                   \
            forget[j] = wfi_vector_sigmoid_##tag(forget[j]);                                                           \
            fresh[j] = wfi_vector_tanh_##tag(fresh[j]);                                                                \
            out[j] = wfi_vector_sigmoid_##tag(out[j]);                                                                 \
            c[j] = forget[j] * c_before[j] + in[j] * fresh[j];                                                         \
            h[j] = out[j] * wfi_vector_tanh_##tag(c[j]);                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_forward(void *arg, int64_t begin, int64_t end)                                                   \
    {                                                                                                                  \
        const wfi_lstm_cell *cell = arg;                                                                               \
        int64_t hidden = cell->hidden;                                                                                 \
        for (int64_t n = begin; n < end; n++)                                                                          \
            tag##_forward_row(hidden, (T *)cell->gates + n * 4 * hidden, cell->bias,                                   \
                              (const T *)cell->c_before + n * hidden, (T *)cell->c + n * hidden,                       \
                              (T *)cell->h + n * hidden);                                                              \
    }                                                                                                                  \
    WFI_CLONES static void tag##_backward_row(int64_t hidden, const T *restrict gates, const T *restrict c_before,     \
                                              const T *restrict c, const T *restrict dy, T *restrict dh,               \
                                              T *restrict dc, T *restrict dgates)                                      \
    {                                                                                                                  \
        T *restrict din = dgates, *restrict dforget = dgates + hidden;                                                 \
        T *restrict dfresh = dgates + 2 * hidden, *restrict dout = dgates + 3 * hidden;                                \
        for (int64_t j = 0; j < hidden && dy; j++)                                                                     \
            dh[j] += dy[j];                                                                                            \
        for (int64_t j = 0; j < hidden; j++) {                                                                         \
            T i = gates[j], f = gates[hidden + j], g = gates[2 * hidden + j], o = gates[3 * hidden + j];               \
            T t = wfi_vector_tanh_##tag(c[j]), total = dc[j] + dh[j] * o * (1 - t * t);                                \
            din[j] = total * g * i * (1 - i);                                                                          \
            dforget[j] = total * c_before[j] * f * (1 - f);                                                            \
            dfresh[j] = total * i * (1 - g * g);                                                                       \
            dout[j] = dh[j] * t * o * (1 - o);                                                                         \
            dc[j] = total * f;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void tag##_backward(void *arg, int64_t begin, int64_t end)                                                  \
    {                                                                                                                  \
        const wfi_lstm_cell *cell = arg;                                                                               \
        int64_t hidden = cell->hidden;                                                                                 \
        for (int64_t n = begin; n < end; n++)                                                                          \
            tag##_backward_row(hidden, (const T *)cell->gates + n * 4 * hidden,                                        \
                               (const T *)cell->c_before + n * hidden, (const T *)cell->c + n * hidden,                \
                               cell->dy ? (const T *)cell->dy + n * hidden : NULL, (T *)cell->dh + n * hidden,         \
                               (T *)cell->dc + n * hidden, (T *)cell->dgates + n * 4 * hidden);                        \
    }
LSTM_CELL(f32, float)
LSTM_CELL(f64, double)

static weft_status run_on_gpu(wfi_gpu_kind kind, weft_device device, weft_dtype dtype, const wfi_lstm_cell *cell)
{
    wfi_lstm_task task = {.head = WFI_GPU_HEAD(device, dtype, cell->batch * cell->hidden),
                          .batch = cell->batch,
                          .hidden = cell->hidden,
                          .gates = cell->gates,
                          .bias = cell->bias,
                          .c_before = cell->c_before,
                          .c = cell->c,
                          .h = cell->h,
                          .dy = cell->dy,
                          .dh = cell->dh,
                          .dc = cell->dc,
                          .dgates = cell->dgates};
    return WFI_GPU_RUN(kind, task);
}

static weft_status run(void (*piece)(void *, int64_t, int64_t), const wfi_lstm_cell *cell)
{
    wfi_parallel(cell->batch, 1 + CELL_GRAIN / (cell->hidden > 0 ? cell->hidden : 1), piece, (void *)cell);
    return WEFT_OK;
}

weft_status wfi_lstm_cell_forward(weft_device device, weft_dtype dtype, const wfi_lstm_cell *cell)
{
    if (device.kind != WEFT_DEVICE_CPU)
        return run_on_gpu(WFI_GPU_LSTM_CELL, device, dtype, cell);
    return run(WFI_BY_FLOAT(dtype, f32_forward, f64_forward), cell);
}

weft_status wfi_lstm_cell_backward(weft_device device, weft_dtype dtype, const wfi_lstm_cell *cell)
{
    if (device.kind != WEFT_DEVICE_CPU)
        return run_on_gpu(WFI_GPU_LSTM_CELL_BACKWARD, device, dtype, cell);
    return run(WFI_BY_FLOAT(dtype, f32_backward, f64_backward), cell);
}
