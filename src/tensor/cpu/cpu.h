/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - arithmetic on tensors without a tape. Most operations have a function for the forward computation and one for
 * the gradients. Each function checks its operands. If they are on a GPU, it queues a task (tensor/tasks.h); otherwise
 * it computes with loops of weft's own. Operations that need a library are in tensor/cpu/product/.
 *
 * No kernel takes a lock or keeps state between calls, and any thread may call. A large kernel shares its loop among
 * the threads of tensor/parallel.h. Kernels do not call wfi_storage_wrote (mem.h), by which a tape notices that a
 * saved tensor was changed in place: their callers know whether the output was new, and call it.
 *
 * Unless a comment says otherwise, tensors are contiguous, on one device, of one floating dtype (float32 or float64).
 * The caller has made the outputs, with the right shapes (given by the _shape functions). Outputs are overwritten. They
 * may overlap inputs only if the comment says "in place". NULL stands for an optional tensor that is missing or not
 * required. WEFT_ERR_SHAPE, _TYPE, _UNSUPPORTED (several devices, not contiguous), _INVALID, _MEMORY: then outputs are
 * undefined. Elementwise and reducing kernels give the same bits for any number of threads.
 *
 * Letters: N batch, C channels, O output channels, H W height and width, K kernel size.
 */
#ifndef WFI_CPU_H
#define WFI_CPU_H

#include "tensor/elementwise.h"
#include "tensor/random.h"
#include "tensor/tensor.h"

/* --- reductions; `dims` is a mask, bit d for dimension d; WFI_ALL_DIMS all of them --- */
#define WFI_ALL_DIMS UINT32_MAX
/* x summed over its broadcast dimensions to y's shape: the gradient of a broadcast operand. */
weft_status wfi_sum_to_shape(const weft_tensor *x, weft_tensor *y);
weft_shape wfi_reduce_shape(const weft_shape *x, uint32_t dims, bool keep);
/* y: reduce_shape, kept or not. float to the same float; int64, int32, uint8, bool to int64. An empty mean is NaN. */
weft_status wfi_sum(const weft_tensor *x, uint32_t dims, weft_tensor *y);
weft_status wfi_mean(const weft_tensor *x, uint32_t dims, weft_tensor *y); /* floats */
/* dx = dy spread over the reduced dimensions, times `factor` (1 for a sum, 1/count for a mean). */
weft_status wfi_sum_backward(const weft_tensor *dy, uint32_t dims, double factor, weft_tensor *dx);
/* Index of the (first) largest along `dim` (>= 0); y int64 without that dimension, or with it as 1. x as in a sum. */
weft_status wfi_argmax(const weft_tensor *x, int dim, weft_tensor *y);

/* --- picking; any dtype; dim >= 0 --- */
/* Whether the index has as many dimensions as x, and none is larger, except `dim`. */
bool wfi_gather_fits(const weft_shape *x, int dim, const weft_shape *index);
/* Its first element that is not in [0, size); -1: none. In host memory. */
int64_t wfi_index_outside(const weft_tensor *index, int64_t size);
/* Whether all elements are in [0, size); on a GPU true, because operators have checked it (autograd/checks.h). */
bool wfi_index_is_inside(const weft_tensor *index, int64_t size);
int64_t wfi_index_at(const weft_tensor *index, int64_t i); /* element i, for messages; also from a GPU */
/* y[.., i, ..] = x[.., index[.., i, ..], ..]; y of the index's shape; index int64, in range (else WEFT_ERR_INVALID). */
weft_status wfi_gather(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y);
/* dx = for each element the sum of the gradients of its copies; floats. */
weft_status wfi_gather_backward(const weft_tensor *dy, int dim, const weft_tensor *index, weft_tensor *dx);

/*
 * y[.., index[.., i, ..], ..] += source[.., i, ..], floats; source has the index's shape, which fits y as in a
 * gather. In the index's order, on one thread: several may add to one element, and the sum always has the same bits.
 */
weft_status wfi_scatter_add(const weft_tensor *source, int dim, const weft_tensor *index, weft_tensor *y);

/* y = the slices of x along `dim` that index [n] names, in its order; any dtype. WEFT_ERR_INVALID: one outside. */
weft_status wfi_index_select(const weft_tensor *x, int dim, const weft_tensor *index, weft_tensor *y);
/* dx = for each slice the sum of the gradients of its copies, in the index's order; floats. */
weft_status wfi_index_select_backward(const weft_tensor *dy, int dim, const weft_tensor *index, weft_tensor *dx);

/* --- drawing --- */
/*
 * drawn [...] int64: number i is a class drawn from row i of `weights` [..., C] (floats; finite, >= 0, not all 0);
 * -1 if the row is not such a distribution.
 */
weft_status wfi_categorical_draw(weft_tensor *drawn, wfi_random random, const weft_tensor *weights);

/* --- softmax and losses; dim >= 0 --- */
weft_status wfi_softmax(const weft_tensor *x, int dim, weft_tensor *y);
weft_status wfi_softmax_backward(const weft_tensor *dy, const weft_tensor *y, int dim, weft_tensor *dx);
weft_status wfi_logsoftmax(const weft_tensor *x, int dim, weft_tensor *y);
weft_status wfi_logsoftmax_backward(const weft_tensor *dy, const weft_tensor *y, int dim, weft_tensor *dx);

typedef enum wfi_reduction { WFI_REDUCE_MEAN, WFI_REDUCE_SUM, WFI_REDUCE_NONE } wfi_reduction;
/*
 * logp [N, C, ...] or [C], target int64 [N, ...] or a scalar, in [0, C) (else WEFT_ERR_INVALID). y is a scalar, or of
 * the target's shape for NONE.
 */
weft_status wfi_nll_loss(const weft_tensor *logp, const weft_tensor *target, wfi_reduction reduction, weft_tensor *y);
weft_status wfi_nll_loss_backward(const weft_tensor *dy, const weft_tensor *target, wfi_reduction reduction,
                                  weft_tensor *dlogp);
/* (x - target)^2; y scalar, or x's shape for NONE. The gradient of target is -dx. */
weft_status wfi_mse_loss(const weft_tensor *x, const weft_tensor *target, wfi_reduction reduction, weft_tensor *y);
weft_status wfi_mse_loss_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *target,
                                  wfi_reduction reduction, weft_tensor *dx);

/* --- batch normalisation; x [N, C, H, W] or [N, C]; all others [C] --- */
/*
 * Normalises by the batch's own mean and (biased) variance; keeps mean and 1 / sqrt(var + eps) for the backward pass.
 * `moments` (float64 [2, C], contiguous) gets the mean and the unbiased variance, by which running ones are updated.
 * weight and bias may be NULL (1, 0), and so may moments. WEFT_ERR_SHAPE if a channel has a single value.
 */
weft_status wfi_batchnorm_train(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias, double eps,
                                weft_tensor *y, weft_tensor *save_mean, weft_tensor *save_invstd, weft_tensor *moments);
/* next = (1 - momentum) running + momentum moment; `which`: 0 for the mean, 1 for the variance. next may be running. */
weft_status wfi_batchnorm_move(const weft_tensor *moments, int which, double momentum, const weft_tensor *running,
                               weft_tensor *next);
/* Normalises by the running statistics; save_invstd (may be NULL) receives 1 / sqrt(running_var + eps). */
weft_status wfi_batchnorm_eval(const weft_tensor *x, const weft_tensor *weight, const weft_tensor *bias,
                               const weft_tensor *running_mean, const weft_tensor *running_var, double eps,
                               weft_tensor *y, weft_tensor *save_invstd);
/* mean and invstd: those of the forward pass; `train` says which pass it was. dx, dweight, dbias may be NULL. */
weft_status wfi_batchnorm_backward(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *weight,
                                   const weft_tensor *mean, const weft_tensor *invstd, bool train, weft_tensor *dx,
                                   weft_tensor *dweight, weft_tensor *dbias);

/* --- pooling; x [N, C, H, W] --- */
typedef struct wfi_pool2d {
    int64_t kernel[2], stride[2], padding[2]; /* padding at most half the kernel */
} wfi_pool2d;
weft_status wfi_pool2d_shape(const weft_shape *x, const wfi_pool2d *how, weft_shape *y);
/* indices int32, y's shape: the position of each maximum in the H x W plane. */
weft_status wfi_max_pool2d(const weft_tensor *x, const wfi_pool2d *how, weft_tensor *y, weft_tensor *indices);
weft_status wfi_max_pool2d_backward(const weft_tensor *dy, const weft_tensor *indices, weft_tensor *dx);
/* y [N, C, OH, OW]: cell i covers rows floor(i H / OH) to ceil((i + 1) H / OH). */
weft_status wfi_adaptive_avg_pool2d(const weft_tensor *x, weft_tensor *y);
weft_status wfi_adaptive_avg_pool2d_backward(const weft_tensor *dy, weft_tensor *dx);

#endif
