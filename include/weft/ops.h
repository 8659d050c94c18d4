/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/ops.h - operators on tensors. The first argument of each is the tape that it runs on.
 *
 *     weft_tensor *scores(weft_tape *t, weft_tensor *x, weft_tensor *w1, weft_tensor *w2) // x [N, I]
 *     {
 *         return weft_log_softmax(t, weft_linear(t, weft_relu(t, weft_linear(t, x, w1, NULL)), w2, NULL), 1); // [N, O]
 *     }
 *
 * RESULTS belong to the tape and are freed when it closes: take a reference (weft_tensor_ref) to what you keep. They
 * are contiguous, except for views.
 *
 * ERRORS. An operator returns NULL if it fails, if the tape has failed before, or if the tape is NULL. So expressions
 * may nest, and the program checks the tape once (weft_tape_status). Errors that the tape keeps: WEFT_ERR_SHAPE,
 * WEFT_ERR_TYPE (the dtypes differ, or are not floating), WEFT_ERR_INVALID (an option, or a NULL operand),
 * WEFT_ERR_UNSUPPORTED, WEFT_ERR_MEMORY.
 *
 * OPERANDS are float32 or float64, the same for all operands of one operator, with any strides, unless said otherwise.
 * Every floating operand gets a gradient. A negative dimension counts from the end. A zero field of an options struct
 * takes the default in its description; `options` NULL takes all defaults.
 *
 * LETTERS in shapes: N batch, C channels, O output channels, H height, W width, K kernel size.
 */
#ifndef WEFT_OPS_H
#define WEFT_OPS_H

#include <weft/tape.h>

WEFT_BEGIN_C

/* ---- Elementwise operators. a and b broadcast as in NumPy. weft_add, weft_sub, weft_mul and weft_div also take
 * integers, which get no gradient. ---- */
WEFT_API weft_tensor *weft_add(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_sub(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_mul(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_div(weft_tape *tape, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_neg(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_scale(weft_tape *tape, weft_tensor *x, double factor);
WEFT_API weft_tensor *weft_add_scalar(weft_tape *tape, weft_tensor *x, double value);
WEFT_API weft_tensor *weft_exp(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_log(weft_tape *tape, weft_tensor *x);
/* max(x, 0). NaN stays NaN, and the gradient passes there unchanged. */
WEFT_API weft_tensor *weft_relu(weft_tape *tape, weft_tensor *x);
WEFT_API weft_tensor *weft_sigmoid(weft_tape *tape, weft_tensor *x); /* 1 / (1 + e^-x) */
WEFT_API weft_tensor *weft_tanh(weft_tape *tape, weft_tensor *x);

/* Like weft_relu, but writes to the memory of x if x is the newest result on this tape, nothing else references it, and
 * no record saved its elements. Do not use x afterwards: its elements may have been overwritten. */
WEFT_API weft_tensor *weft_relu_in_place(weft_tape *tape, weft_tensor *x);

/* ---- Products ---- */
/* Matrix product: [M, K] [K, L] -> [M, L]. */
WEFT_API weft_tensor *weft_matmul(weft_tape *tape, weft_tensor *a, weft_tensor *b);
/* Linear layer: x [..., I], weight [O, I], bias [O] or NULL -> x weight^T + bias [..., O]; I is at least 1 */
WEFT_API weft_tensor *weft_linear(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias);

typedef struct weft_conv2d_options {
    int64_t stride[2];    /* height, width; 1 */
    int64_t padding[2];   /* zeros on both sides; 0 */
    int64_t dilation[2];  /* 1 */
    int64_t groups;       /* 1 */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_conv2d_options;
/* Convolution of images: x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or NULL -> [N, O, OH, OW]
 * (cross-correlation) */
WEFT_API weft_tensor *weft_conv2d_sized(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                        const weft_conv2d_options *options, size_t size);
static inline weft_tensor *weft_conv2d(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                       const weft_conv2d_options *options)
{
    return weft_conv2d_sized(tape, x, weight, bias, options, sizeof(*options));
}

/* ---- Normalizing, pooling ---- */
typedef struct weft_batch_norm_options {
    bool train;      /* normalize by the batch's statistics and update the running ones; false: use the running ones */
    double momentum; /* the weight of the batch in the running statistics; 0.1 */
    double eps;      /* added to the variance; 1e-5 */
} weft_batch_norm_options;
/*
 * Batch normalization of images: x [N, C, H, W]; weight and bias [C], NULL for 1 and 0; running_mean and running_var
 * [C], contiguous. With `train` the running statistics are updated in place and may be NULL, and x must have more than
 * one value per channel.
 */
WEFT_API weft_tensor *weft_batch_norm2d_sized(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                              weft_tensor *running_mean, weft_tensor *running_var,
                                              const weft_batch_norm_options *options, size_t size);
static inline weft_tensor *weft_batch_norm2d(weft_tape *tape, weft_tensor *x, weft_tensor *weight, weft_tensor *bias,
                                             weft_tensor *running_mean, weft_tensor *running_var,
                                             const weft_batch_norm_options *options)
{
    return weft_batch_norm2d_sized(tape, x, weight, bias, running_mean, running_var, options, sizeof(*options));
}

typedef struct weft_max_pool2d_options {
    int64_t kernel[2];  /* height, width; no default */
    int64_t stride[2];  /* the kernel's size */
    int64_t padding[2]; /* at most half the kernel; 0 */
} weft_max_pool2d_options;
/* Maximum pooling: [N, C, H, W] -> [N, C, OH, OW]. */
WEFT_API weft_tensor *weft_max_pool2d_sized(weft_tape *tape, weft_tensor *x, const weft_max_pool2d_options *options,
                                            size_t size);
static inline weft_tensor *weft_max_pool2d(weft_tape *tape, weft_tensor *x, const weft_max_pool2d_options *options)
{
    return weft_max_pool2d_sized(tape, x, options, sizeof(*options));
}
/* Average pooling to a given size: [N, C, H, W] -> [N, C, height, width]. Cell i averages rows floor(i H / height) to
 * ceil((i + 1) H / height). */
WEFT_API weft_tensor *weft_adaptive_avg_pool2d(weft_tape *tape, weft_tensor *x, int64_t height, int64_t width);

/*
 * Dropout: sets each element (weft_dropout2d: each whole plane of [N, C, ...]) to zero with probability p, in [0, 1).
 * Multiplies the other elements by 1 / (1 - p). For the random numbers see RANDOM NUMBERS in weft/tape.h. Without
 * `train` the result is x itself.
 */
WEFT_API weft_tensor *weft_dropout(weft_tape *tape, weft_tensor *x, double p, bool train);
WEFT_API weft_tensor *weft_dropout2d(weft_tape *tape, weft_tensor *x, double p, bool train);

/*
 * Draws a class from each row of `probabilities` [..., C]; the result is int64 [...]. The probability of class c is
 * row[c] / sum(row). The result has no gradient. Row r uses random number r of this operator (weft/tape.h).
 * WEFT_ERR_INVALID: a row has a negative or non-finite element, or no element above 0.
 */
WEFT_API weft_tensor *weft_categorical(weft_tape *tape, weft_tensor *probabilities);

/* New float32 or float64 tensors of random numbers, uniform in [low, high) or normal. Element i is random number i of
 * this operator (weft/tape.h). No gradient. */
WEFT_API weft_tensor *weft_uniform(weft_tape *tape, weft_shape shape, weft_dtype dtype, double low, double high);
WEFT_API weft_tensor *weft_normal(weft_tape *tape, weft_shape shape, weft_dtype dtype, double mean, double deviation);

/* ---- Changing the shape. The result is a view of x's storage if the strides allow that, otherwise a copy; any dtype.
 * ---- */
WEFT_API weft_tensor *weft_flatten(weft_tape *tape, weft_tensor *x, int from_dim); /* joins from_dim and all after it */
WEFT_API weft_tensor *weft_reshape(weft_tape *tape, weft_tensor *x, weft_shape shape); /* one size may be -1 */
WEFT_API weft_tensor *weft_transpose(weft_tape *tape, weft_tensor *x, int dim0, int dim1);
WEFT_API weft_tensor *weft_narrow(weft_tape *tape, weft_tensor *x, int dim, int64_t start, int64_t length);
WEFT_API weft_tensor *weft_select(weft_tape *tape, weft_tensor *x, int dim, int64_t index); /* drops `dim` */
/*
 * Picks elements of x along `dim`: y[.., i, ..] = x[.., index[.., i, ..], ..], where i is the position along `dim`. y
 * has the shape of `index`. `index` is int64 and has as many dimensions as x, each no larger than that of x, except
 * along `dim`. x may have any dtype. The result is a new tensor. WEFT_ERR_INVALID: an index outside [0, size of x along
 * `dim`).
 */
WEFT_API weft_tensor *weft_take_along_dim(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index);
/*
 * Takes slices of x along `dim`: slice i of the result is slice index[i] of x. `index` is int64 [n], and may repeat
 * numbers. The result has x's shape, with size n along `dim`. x may have any dtype. The result is a new tensor.
 * WEFT_ERR_INVALID: an index outside [0, size of x along `dim`).
 */
WEFT_API weft_tensor *weft_index_select(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index);
/*
 * Adds elements of `source` to a copy of x, at the places that `index` names. The copy y has
 * y[.., index[.., i, ..], ..] += source[.., i, ..], where i is the position along `dim`. `index` matches x as in
 * weft_take_along_dim, and `source` has the shape of `index`. The result is a new tensor. Elements are added in the
 * order of `index`.
 */
WEFT_API weft_tensor *weft_scatter_add(weft_tape *tape, weft_tensor *x, int dim, weft_tensor *index,
                                       weft_tensor *source);
/* Join at least one tensor to a new tensor. All have the same dtype, which may be any. With weft_stack all shapes are
 * equal, and `dim` is a new dimension. With weft_concat `dim` exists; only sizes along it may differ. */
WEFT_API weft_tensor *weft_stack(weft_tape *tape, weft_tensors xs, int dim);
WEFT_API weft_tensor *weft_concat(weft_tape *tape, weft_tensors xs, int dim);
WEFT_API weft_tensor *weft_clone(weft_tape *tape, weft_tensor *x);  /* a contiguous copy; the gradient is passed to x */
WEFT_API weft_tensor *weft_detach(weft_tape *tape, weft_tensor *x); /* a view of x through which no gradient passes */

/* ---- Rows of a table: weight [V, D]. Indices are int64; WEFT_ERR_INVALID: an index outside [0, V). ---- */
typedef struct weft_embedding_options {
    bool padding;         /* padding_row is used; false */
    int64_t padding_row;  /* a row without a gradient; a negative one counts from the end */
    bool sparse;          /* the gradient is sparse, if the weight is a leaf without hooks; false */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_embedding_options;
/* Looks up rows of a table: y[.., :] = weight[index[..], :]. `index` has any shape [...], the result [..., D]. */
WEFT_API weft_tensor *weft_embedding_sized(weft_tape *tape, weft_tensor *weight, weft_tensor *index,
                                           const weft_embedding_options *options, size_t size);
static inline weft_tensor *weft_embedding(weft_tape *tape, weft_tensor *weight, weft_tensor *index,
                                          const weft_embedding_options *options)
{
    return weft_embedding_sized(tape, weight, index, options, sizeof(*options));
}

/* How the rows of a bag are combined. */
typedef enum weft_bag_mode {
    WEFT_BAG_MEAN = 0,
    WEFT_BAG_SUM = 1,
    WEFT_BAG_MAX = 2, /* the maximum of each column; the gradient goes to the first of equal ones */
} weft_bag_mode;

typedef struct weft_embedding_bag_options {
    weft_bag_mode mode;   /* WEFT_BAG_MEAN */
    bool padding;         /* padding_row is used; false */
    int64_t padding_row;  /* indices of this row are ignored; a negative one counts from the end */
    bool sparse;          /* as weft_embedding; dense if sample_weights want a gradient. Not with WEFT_BAG_MAX */
    uint64_t reserved[4]; /* 0: room for later fields */
} weft_embedding_bag_options;
/*
 * Reduces the rows of each of B bags to one row: [B, D], zeros for an empty bag. Without `offsets` (NULL) each row of
 * index [B, L] is a bag. With `offsets`, int64 [B], and index [n], bag b has the elements of `index` from offsets[b] to
 * before offsets[b + 1]; the last bag has all that follow. The offsets begin with 0, and neither decrease nor exceed n
 * (WEFT_ERR_INVALID). `sample_weights`, with the index's shape and the weight's dtype, multiply the rows with
 * WEFT_BAG_SUM; NULL: 1.
 */
WEFT_API weft_tensor *weft_embedding_bag_sized(weft_tape *tape, weft_tensor *weight, weft_tensor *index,
                                               weft_tensor *offsets, weft_tensor *sample_weights,
                                               const weft_embedding_bag_options *options, size_t size);
static inline weft_tensor *weft_embedding_bag(weft_tape *tape, weft_tensor *weight, weft_tensor *index,
                                              weft_tensor *offsets, weft_tensor *sample_weights,
                                              const weft_embedding_bag_options *options)
{
    return weft_embedding_bag_sized(tape, weight, index, offsets, sample_weights, options, sizeof(*options));
}

/* ---- Sequences ---- */
typedef struct weft_lstm_options {
    bool batch_first; /* x and y are [N, T, ..] instead of [T, N, ..] */
    bool no_bias;
    double dropout; /* dropout between layers, as weft_dropout; 0 */
    bool train;     /* apply the dropout */
} weft_lstm_options;
/*
 * Long short-term memory (Hochreiter, Schmidhuber 1997) over T steps: x [T, N, I] -> y [T, N, H], the last layer's
 * hidden state after each step. For each layer `weights` has weight_ih [4 H, I] and weight_hh [4 H, H], and, without
 * no_bias, bias_ih and bias_hh [4 H]. I is H after the first layer. The gates have PyTorch's order: input, forget,
 * cell, output.
 *
 * h0 and c0 [layers, N, H] are the initial states; NULL: zeros. *h_n and *c_n [layers, N, H] receive the states after
 * the last step; h_n and c_n may be NULL. There are no bidirectional layers and no projections. T must be at least 1
 * (WEFT_ERR_SHAPE).
 */
WEFT_API weft_tensor *weft_lstm_sized(weft_tape *tape, weft_tensor *x, weft_tensor *h0, weft_tensor *c0,
                                      weft_tensors weights, const weft_lstm_options *options, size_t size,
                                      weft_tensor **h_n, weft_tensor **c_n);
static inline weft_tensor *weft_lstm(weft_tape *tape, weft_tensor *x, weft_tensor *h0, weft_tensor *c0,
                                     weft_tensors weights, const weft_lstm_options *options, weft_tensor **h_n,
                                     weft_tensor **c_n)
{
    return weft_lstm_sized(tape, x, h0, c0, weights, options, sizeof(*options), h_n, c_n);
}

/* ---- Reducing ---- */
WEFT_API weft_tensor *weft_sum(weft_tape *tape, weft_tensor *x); /* the sum of all elements, a scalar */
/* The mean of all elements, a scalar; NaN if x has no elements. */
WEFT_API weft_tensor *weft_mean(weft_tape *tape, weft_tensor *x);
/* The sum, or the mean, of the elements along `dim`. If `keep` is true, `dim` remains, with size 1. */
WEFT_API weft_tensor *weft_sum_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep);
WEFT_API weft_tensor *weft_mean_dim(weft_tape *tape, weft_tensor *x, int dim, bool keep);
/* The index of the largest element along `dim`, the first of equal ones: int64, without dimension `dim`. x may have any
 * dtype. No gradient. */
WEFT_API weft_tensor *weft_argmax(weft_tape *tape, weft_tensor *x, int dim);

/* ---- Softmax and losses ---- */
/* Softmax along `dim`, or its logarithm: y = e^x / (the sum of e^x along `dim`). */
WEFT_API weft_tensor *weft_softmax(weft_tape *tape, weft_tensor *x, int dim);
WEFT_API weft_tensor *weft_log_softmax(weft_tape *tape, weft_tensor *x, int dim);

/* How the losses of single elements are combined. */
typedef enum weft_reduction {
    WEFT_REDUCTION_MEAN = 0,
    WEFT_REDUCTION_SUM = 1,
    WEFT_REDUCTION_NONE = 2, /* one loss for each element of the target */
} weft_reduction;

/* Negative log likelihood: log_probabilities [N, C, ...] or [C], target int64 [N, ...] in [0, C), or a scalar. The
 * result is the mean of -log_probabilities[n, target[n, ...], ...]. */
WEFT_API weft_tensor *weft_nll_loss(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target);
/* Cross entropy: weft_nll_loss of the log_softmax over the classes of scores [N, C, ...] or [C]. */
WEFT_API weft_tensor *weft_cross_entropy(weft_tape *tape, weft_tensor *scores, weft_tensor *target);
/* Mean squared error: the mean of (x - target)^2; x and target have the same shape. */
WEFT_API weft_tensor *weft_mse_loss(weft_tape *tape, weft_tensor *x, weft_tensor *target);

/* The same losses with another reduction. weft_nll_loss, weft_cross_entropy and weft_mse_loss take the mean. */
WEFT_API weft_tensor *weft_nll_loss_reduced(weft_tape *tape, weft_tensor *log_probabilities, weft_tensor *target,
                                            weft_reduction reduction);
WEFT_API weft_tensor *weft_cross_entropy_reduced(weft_tape *tape, weft_tensor *scores, weft_tensor *target,
                                                 weft_reduction reduction);
WEFT_API weft_tensor *weft_mse_loss_reduced(weft_tape *tape, weft_tensor *x, weft_tensor *target,
                                            weft_reduction reduction);

WEFT_END_C
#endif
