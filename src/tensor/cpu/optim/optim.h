/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - one step of an optimizer on one parameter, and the norm of a gradient. The conventions are those of
 * tensor/cpu/cpu.h; state is kept only in the tensors of the caller.
 */
#ifndef WFI_CPU_OPTIM_H
#define WFI_CPU_OPTIM_H

#include "tensor/tasks.h"
#include "tensor/tensor.h"

#include <weft/optimizer_type.h>

#define WFI_STEP_SLOTS WEFT_OPTIMIZER_SLOTS

/* A sparse gradient, added up by row. Zeroed = none. */
typedef struct wfi_sparse_rows {
    int64_t count, width; /* number of different rows; elements of each */
    weft_dtype dtype;
    int64_t *rows;             /* [count], ascending */
    const void **at;           /* [count]: the sum of each row's values, [width] */
    void *sums;                /* of the rows that occurred several times */
    weft_tensor *values, *ids; /* one reference each: contiguous versions of the arguments */
    /* On a GPU, where nobody waits to count the different rows: int64 [2, count], the rows of all values in ascending
     * order, and the places that they have in `ids`. The fields `rows`, `at` and `sums` are NULL. */
    weft_tensor *order;
} wfi_sparse_rows;

/*
 * values [n, ...], rows int64 [n] on the same device, any strides. WEFT_ERR_SHAPE, _TYPE, _UNSUPPORTED, _MEMORY;
 * WEFT_ERR_INVALID if a row is outside of [0, row_count): *bad is its position in `rows`. On a GPU such a row is not
 * noticed (see wfi_sparse_rows_check), and a step ignores it. The values of a row are added in the order of their
 * positions.
 */
weft_status wfi_sparse_rows_init(wfi_sparse_rows *out, weft_tensor *values, weft_tensor *rows, int64_t row_count,
                                 int64_t *bad);
void wfi_sparse_rows_fini(wfi_sparse_rows *rows);
/* On a GPU: queues a check that reports the first row that is not in [0, row_count), under the number `check`. */
weft_status wfi_sparse_rows_check(const wfi_sparse_rows *rows, int64_t row_count, wfi_report *report, int64_t check);

/* The sum of the squares of all elements, the same for any number of threads. WEFT_ERR_TYPE, WEFT_ERR_MEMORY;
 * WEFT_ERR_UNSUPPORTED: on a GPU. */
weft_status wfi_squares(const weft_tensor *x, double *sum);
weft_status wfi_squares_of_rows(const wfi_sparse_rows *x, double *sum);
/*
 * Work on GPUs that is collected, so that one launch does the steps of many parameters, or the squares of many
 * gradients: wfi_steps_run queues what is collected. A launch has up to 62 parameters of one dtype on one device. The
 * collected work is queued earlier if its launch is full, or if a new step uses memory that it writes. Until
 * wfi_steps_run returns, the caller keeps all tensors, and keeps other threads from them. Work is queued on the stream
 * that the thread has at that time. This stream must be the same for all of the work. NULL: no memory.
 */
typedef struct wfi_steps wfi_steps;
wfi_steps *wfi_steps_create(void);
void wfi_steps_destroy(wfi_steps *steps);
/* WEFT_ERR_UNSUPPORTED, WEFT_ERR_SYSTEM. Afterwards nothing is collected, even if it failed. */
weft_status wfi_steps_run(wfi_steps *steps);
/* The sums of squares on a GPU, without a wait: of `x` or, if it is NULL, of `rows`. Collects work that writes
 * wfi_squares_count sums, which together are the sum, to `partial` from `first` on. `partial` is a tensor of float64 on
 * the same device. */
int64_t wfi_squares_count(const weft_tensor *x, const wfi_sparse_rows *rows);
weft_status wfi_squares_parts(wfi_steps *steps, const weft_tensor *x, const wfi_sparse_rows *rows, weft_tensor *partial,
                              int64_t first);
/* out [2], float64 = factor * the norm, and the factor that limits it to max_norm; from such sums (all of
 * `partial`). */
weft_status wfi_squares_clip(const weft_tensor *partial, double factor, double max_norm, double room, weft_tensor *out);

/* The data of weft_optimizer_update.gpu. */
typedef struct weft_optimizer_gpu {
    const double *scale;         /* in memory of the GPU; NULL: 1 */
    const wfi_sparse_rows *rows; /* NULL: dense */
    wfi_steps *steps;            /* that collects the step; NULL: it is queued at once */
} wfi_gpu_update;

/*
 * The data of a step. All tensors have the parameter's shape and dtype. `from` is read and `to` written: the same
 * tensor, or two that share no memory; with `rows` they are the same, and only those rows change.
 */
typedef struct wfi_update {
    const weft_tensor *from;
    weft_tensor *to;
    const weft_tensor *gradient; /* NULL with rows */
    const wfi_sparse_rows *rows; /* NULL: dense */
    double factor;               /* the gradient is first multiplied by it */
    const double *scale;         /* and by this number in memory of the GPU; NULL: 1 */
    wfi_steps *steps;            /* of a GPU; NULL: the step is queued at once */
    weft_tensor *slots[WFI_STEP_SLOTS];
    uint64_t step; /* number of this step of this parameter; the first is 1 */
} wfi_update;

typedef struct wfi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
} wfi_sgd;
/* PyTorch's SGD. Slots: the velocity, if momentum > 0; the first step does not read it. */
weft_status wfi_sgd_step(const wfi_update *update, const wfi_sgd *how);

typedef struct wfi_adam {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW's weight decay */
    bool amsgrad;
} wfi_adam;
/* PyTorch's Adam and AdamW; on rows its SparseAdam. Slots: mean, mean square, and with amsgrad the largest of it; zeros
 * at first. */
weft_status wfi_adam_step(const wfi_update *update, const wfi_adam *how);

typedef struct wfi_adagrad {
    double lr, lr_decay, eps, weight_decay;
} wfi_adagrad;
/* PyTorch's Adagrad. Slots: the sum of squares. */
weft_status wfi_adagrad_step(const wfi_update *update, const wfi_adagrad *how);

typedef struct wfi_rmsprop {
    double lr, alpha, eps, weight_decay, momentum;
    bool centered;
} wfi_rmsprop;
/* PyTorch's RMSprop. Slots: mean square; with momentum the velocity; if centered the mean; zeros at first. */
weft_status wfi_rmsprop_step(const wfi_update *update, const wfi_rmsprop *how);

typedef struct wfi_rprop {
    double eta_minus, eta_plus, step_min, step_max;
} wfi_rprop;
/* PyTorch's Rprop. Slots: the previous gradient, zeros at first, and the step size. */
weft_status wfi_rprop_step(const wfi_update *update, const wfi_rprop *how);

typedef struct wfi_adadelta {
    double lr, rho, eps, weight_decay;
} wfi_adadelta;
/* PyTorch's Adadelta. Slots: the mean squares of gradients and of steps, zeros at first. */
weft_status wfi_adadelta_step(const wfi_update *update, const wfi_adadelta *how);

typedef struct wfi_adamax {
    double lr, beta1, beta2, eps, weight_decay;
} wfi_adamax;
/* PyTorch's Adamax. Slots: the mean, and the largest absolute value; zeros at first. */
weft_status wfi_adamax_step(const wfi_update *update, const wfi_adamax *how);

#endif
