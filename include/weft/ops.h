/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/ops.h - operators on tensors. Every one takes the tape that it computes on first.
 *
 * What they return is borrowed from the tape, until it closes: weft_tensor_ref what you keep. They return NULL when the
 * tape has failed, now or before, so expressions nest and the tape is asked once (weft/tape.h). Errors kept there:
 * WEFT_ERR_SHAPE, WEFT_ERR_TYPE (dtypes differ, or not floating), WEFT_ERR_INVALID (an option or a NULL operand),
 * WEFT_ERR_UNSUPPORTED, WEFT_ERR_MEMORY.
 *
 * Operands are float32 or float64, the same in one call, of any strides, unless said otherwise; results are contiguous
 * except for views. Gradients flow to every floating operand. A dimension < 0 counts from the end. In an options struct a
 * zero field takes its default; `options` NULL takes them all.
 *
 * Letters: N batch, C channels, O output channels, H W height and width, K kernel size.
 */
#ifndef WEFT_OPS_H
#define WEFT_OPS_H

#include <weft/tape.h>

WEFT_BEGIN_C

/* ---- Elementwise. a and b broadcast as NumPy has it; the first four also for integers of one dtype, unrecorded. ---- */
WEFT_API weft_tensor *weft_add(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_sub(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_mul(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_div(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_neg(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_scale(weft_tape *tape, weft_tensor *x, double factor);
WEFT_API weft_tensor *weft_add_scalar(weft_tape *tape, weft_tensor *x, double value);
WEFT_API weft_tensor *weft_exp(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_log(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_relu(weft_tape *tape, weft_tensor *x); /* max(x, 0) */

/* ---- Products ---- */
WEFT_API weft_tensor *weft_matmul(weft_tape *tape, weft_tensor *a, weft_tensor *b); /* [M, K] [K, L] -> [M, L] */
/* x [..., I], weight [O, I], bias [O] or NULL -> x weight^T + bias [..., O] */
WEFT_API weft_tensor *weft_linear(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias);

typedef struct weft_conv2d_options {
    int64_t stride[2];   /* height, width; 1 */
    int64_t padding[2];  /* zeros on both sides; 0 */
    int64_t dilation[2]; /* 1 */
    int64_t groups;      /* 1 */
} weft_conv2d_options;
/* x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or NULL -> [N, O, OH, OW] (cross-correlation) */
WEFT_API weft_tensor *weft_conv2d(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                  const weft_conv2d_options *options);

/* ---- Normalising, pooling ---- */
typedef struct weft_batch_norm_options {
    bool train;      /* normalise by the batch and move the running statistics; else normalise by them */
    double momentum; /* share of the batch in the running statistics; 0.1 */
    double eps;      /* added to the variance; 1e-5 */
} weft_batch_norm_options;
/*
 * x [N, C, H, W]; weight, bias [C] or NULL (1, 0); running_mean, running_var [C], contiguous, changed in place when
 * training: NULL is legal then. Needs more than one value a channel when training.
 */
WEFT_API weft_tensor *weft_batch_norm2d(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                        weft_tensor *running_mean, weft_tensor *running_var,
                                        const weft_batch_norm_options *options);

typedef struct weft_max_pool2d_options {
    int64_t kernel[2];  /* height, width; no default */
    int64_t stride[2];  /* the kernel's size */
    int64_t padding[2]; /* at most half the kernel; 0 */
} weft_max_pool2d_options;
/* [N, C, H, W] -> [N, C, OH, OW] */
WEFT_API weft_tensor *weft_max_pool2d(weft_tape *tape, weft_tensor *x, const weft_max_pool2d_options *options);
/* [N, C, H, W] -> [N, C, height, width]: cell i averages rows floor(i H / height) to ceil((i + 1) H / height). */
WEFT_API weft_tensor *weft_adaptive_avg_pool2d(weft_tape *tape, weft_tensor *x, int64_t height, int64_t width);

/*
 * Zeroes elements (dropout2d: whole planes of [N, C, ...]) with probability p in [0, 1) and scales the others by
 * 1 / (1 - p). Random numbers are a function of the tape's seed and of how many random operators it ran before. Without
 * `train` the result is x itself.
 */
WEFT_API weft_tensor *weft_dropout(weft_tape *tape, weft_tensor *x, double p, bool train);
WEFT_API weft_tensor *weft_dropout2d(weft_tape *tape, weft_tensor *x, double p, bool train);

/*
 * Draws a class from each row of [..., C]: int64 [...], class c with probability row[c] / sum(row), never one of weight 0; no
 * gradient. Random numbers as dropout's, number r for row r. WEFT_ERR_INVALID: a row with a weight that is negative or not
 * finite, or with none above 0.
 */
WEFT_API weft_tensor *weft_categorical(weft_tape *tape, weft_tensor *probabilities);

/* ---- Shape. Views over x's storage where its strides allow; any dtype. ---- */
WEFT_API weft_tensor *weft_flatten(weft_tape *tape, weft_tensor *x, int from_dim); /* joins from_dim and those after */
WEFT_API weft_tensor *weft_reshape(weft_tape *tape, weft_tensor *x, weft_shape shape); /* one size may be -1 */
WEFT_API weft_tensor *weft_transpose(weft_tape *tape, weft_tensor *x, int dim0, int dim1);
WEFT_API weft_tensor *weft_narrow(weft_tape *tape, weft_tensor *x, int dim, int64_t start, int64_t length);
WEFT_API weft_tensor *weft_select(weft_tape *tape, weft_tensor *x, int dim, int64_t index); /* drops `dim` */
/*
 * y of the index's shape, y[.., i, ..] = x[.., index[.., i, ..], ..], i along `dim`: index int64 with as many dimensions as
 * x, no larger than it but along `dim`. WEFT_ERR_INVALID: an index outside [0, size). A new tensor; any dtype.
 */
WEFT_API weft_tensor *weft_gather(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index);
/* Tensors of one dtype (any), at least one, side by side: of one shape along a new `dim`; or along one that is there, where
 * alone they may differ. A new tensor. */
WEFT_API weft_tensor *weft_stack(weft_tape *tape, weft_tensors xs, int dim);
WEFT_API weft_tensor *weft_concat(weft_tape *tape, weft_tensors xs, int dim);
WEFT_API weft_tensor *weft_clone(weft_tape *tape, weft_tensor *x);  /* a contiguous copy; the gradient passes */
WEFT_API weft_tensor *weft_detach(weft_tape *tape, weft_tensor *x); /* the same storage; no gradient passes */

/* ---- Reducing ---- */
WEFT_API weft_tensor *weft_sum(weft_tape *tape, weft_tensor *x);                         /* of all elements; a scalar */
WEFT_API weft_tensor *weft_mean(weft_tape *tape, weft_tensor *x);                        /* NaN if there are none */
WEFT_API weft_tensor *weft_sum_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep); /* keep: `dim` stays, as 1 */
WEFT_API weft_tensor *weft_mean_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep);
/* Index of the first largest element along `dim`; int64, without `dim`. Any dtype; no gradient. */
WEFT_API weft_tensor *weft_argmax(weft_tape *tape, weft_tensor *x, int dim);

/* ---- Softmax and losses ---- */
WEFT_API weft_tensor *weft_softmax(weft_tape *tape, weft_tensor *x, int dim);
WEFT_API weft_tensor *weft_log_softmax(weft_tape *tape, weft_tensor *x, int dim);

typedef enum weft_reduction {
    WEFT_REDUCE_MEAN = 0,
    WEFT_REDUCE_SUM = 1,
    WEFT_REDUCE_NONE = 2, /* one loss a sample (mse_loss: an element) */
} weft_reduction;

/* log_probabilities [N, C], target int64 [N] in [0, C) -> the mean of -log_probabilities[n, target[n]] */
WEFT_API weft_tensor *weft_nll_loss(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target);
/* The same of log_softmax(scores, 1). */
WEFT_API weft_tensor *weft_cross_entropy(weft_tape *tape, weft_tensor *scores, weft_tensor *target);
/* The mean of (x - target)^2; the same shape. */
WEFT_API weft_tensor *weft_mse_loss(weft_tape *tape, weft_tensor *x, weft_tensor *target);

WEFT_API weft_tensor *weft_nll_loss_reduced(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target,
                                            weft_reduction reduction);
WEFT_API weft_tensor *weft_cross_entropy_reduced(weft_tape *tape, weft_tensor *scores, weft_tensor *target,
                                                 weft_reduction reduction);
WEFT_API weft_tensor *weft_mse_loss_reduced(weft_tape *tape, weft_tensor *x, weft_tensor *target,
                                            weft_reduction reduction);

WEFT_END_C
#endif
