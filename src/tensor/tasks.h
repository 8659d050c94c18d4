/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tasks.h - the kernels of GPUs for what the CPU computes without a table (cpu/cpu.h and the folders below it). Those
 * functions check their operands, and if these are on a GPU, they describe the work in one of the structs below and run
 * it as a task. For C++ too: the structs are the parameters of the kernels.
 *
 * A task has one kernel for each dtype; tensor/cuda/tasks.c has the table. If there is none for a dtype, wfi_gpu_run
 * returns WEFT_ERR_UNSUPPORTED. All tensors are contiguous and on one device. A kernel is queued when wfi_gpu_run
 * returns. The sums of a kernel are made in an order that depends only on the sizes.
 */
#ifndef WFI_TASKS_H
#define WFI_TASKS_H

#include "tensor/random.h"

#include <weft/tensor.h>

WEFT_BEGIN_C

typedef enum wfi_gpu_kind {
    /* reductions */
    WFI_GPU_SUM,
    WFI_GPU_SUM_COLUMNS,
    WFI_GPU_SUM_PARTIAL,
    WFI_GPU_ARGMAX,
    /* indices */
    WFI_GPU_INDEX_CHECK,
    WFI_GPU_OFFSETS_CHECK,
    WFI_GPU_DIVISOR,
    WFI_GPU_SORT_TILES,
    WFI_GPU_SORT_MERGE,
    WFI_GPU_GATHER,
    WFI_GPU_SCATTER_ADD,
    WFI_GPU_SELECT,
    WFI_GPU_ADD_ROWS,
    WFI_GPU_PICK_ROWS,
    WFI_GPU_BAG,
    WFI_GPU_BAG_MAX,
    WFI_GPU_BAG_SPREAD,
    WFI_GPU_BAG_MAX_BACKWARD,
    WFI_GPU_BAG_SCALE_BACKWARD,
    /* softmax and losses */
    WFI_GPU_SOFTMAX,
    WFI_GPU_SOFTMAX_BACKWARD,
    WFI_GPU_LOG_SOFTMAX,
    WFI_GPU_LOG_SOFTMAX_BACKWARD,
    WFI_GPU_NLL,
    WFI_GPU_NLL_EACH,
    WFI_GPU_NLL_BACKWARD,
    WFI_GPU_MSE,
    WFI_GPU_MSE_EACH,
    WFI_GPU_MSE_BACKWARD,
    /* normalisation and pooling */
    WFI_GPU_NORM_TRAIN,
    WFI_GPU_NORM_EVAL,
    WFI_GPU_NORM_BACKWARD,
    WFI_GPU_NORM_MOVE,
    WFI_GPU_MAX_POOL,
    WFI_GPU_MAX_POOL_BACKWARD,
    WFI_GPU_AVERAGE_POOL,
    WFI_GPU_AVERAGE_POOL_BACKWARD,
    /* random numbers */
    WFI_GPU_UNIFORM,
    WFI_GPU_NORMAL,
    WFI_GPU_MASK,
    WFI_GPU_CATEGORICAL,
    /* products */
    WFI_GPU_UNFOLD,
    WFI_GPU_FOLD,
    WFI_GPU_ADD_BIAS,
    WFI_GPU_LSTM_CELL,
    WFI_GPU_LSTM_CELL_BACKWARD,
    /* optimizers */
    WFI_GPU_SGD,
    WFI_GPU_SGD_FIRST,
    WFI_GPU_SGD_PLAIN,
    WFI_GPU_ADAM,
    WFI_GPU_AMSGRAD,
    WFI_GPU_ADAGRAD,
    WFI_GPU_ADADELTA,
    WFI_GPU_ADAMAX,
    WFI_GPU_RPROP,
    WFI_GPU_RMSPROP,
    WFI_GPU_RMSPROP_MOMENTUM,
    WFI_GPU_RMSPROP_CENTERED,
    WFI_GPU_RMSPROP_BOTH,
    WFI_GPU_SQUARES,
    WFI_GPU_CLIP,
    WFI_GPU_KINDS,
} wfi_gpu_kind;

/* The first member of each struct. */
typedef struct wfi_gpu_task {
    weft_device device;
    weft_dtype dtype; /* selects the kernel */
    int reserved;     /* 0; no struct has padding, so that all bytes of the parameter are defined */
    int64_t count;    /* of independent pieces of work: threads, or blocks of threads */
} wfi_gpu_task;

/* Queues it. WEFT_ERR_UNSUPPORTED: there is no such kernel for the dtype, or the device is the CPU. */
weft_status wfi_gpu_run(wfi_gpu_kind kind, const wfi_gpu_task *task, size_t size);
/* The same on one kind of device, for the table of kernels.c. */
typedef weft_status (*wfi_gpu_runner)(wfi_gpu_kind kind, const wfi_gpu_task *task, size_t size);
extern const wfi_gpu_runner wfi_gpu_runner_cuda;
#define WFI_GPU_HEAD(device_, dtype_, count_)                                                                          \
    {                                                                                                                  \
        .device = (device_), .dtype = (dtype_), .count = (count_)                                                      \
    }
#define WFI_GPU_TASK(like, dtype_, count_) .head = WFI_GPU_HEAD(weft_tensor_device(like), (dtype_), (count_))
#define WFI_GPU_RUN(kind, task) wfi_gpu_run((kind), &(task).head, sizeof(task))

/* y [count] = factor * the sums of x: element o of y is the sum over the reduced dimensions. Strides in elements. */
typedef struct wfi_sum_task {
    wfi_gpu_task head;
    const void *x;
    void *y;
    double *partial; /* [outputs, chunks]: what SUM writes instead of y if chunks > 0, and SUM_PARTIAL reads */
    int64_t chunks;
    int64_t length; /* elements of a sum; of SUM_COLUMNS: rows of x [length, count] */
    int kept, reduced;
    int64_t kept_dims[WEFT_MAX_DIMS], kept_strides[WEFT_MAX_DIMS];
    int64_t reduced_dims[WEFT_MAX_DIMS], reduced_strides[WEFT_MAX_DIMS];
    double factor;
} wfi_sum_task;

typedef struct wfi_argmax_task {
    wfi_gpu_task head;
    const void *x; /* [count / inner, length, inner] */
    int64_t *y;
    int64_t length, inner;
} wfi_argmax_task;

/*
 * The faults that checks have found, in page-locked memory. The host reads it after a wait. The checks of a report have
 * numbers from 1 on, and run in this order. Each block of a check has a slot, and writes it unless an earlier check
 * has. The first fault is that of the lowest check; of its slots that with the lowest place.
 */
enum { WFI_REPORT_SLOTS = 8 };
typedef struct wfi_report_slot {
    int64_t check; /* 0: no fault */
    int64_t place, value;
    int64_t before; /* OFFSETS_CHECK: the offset before it */
} wfi_report_slot;
typedef struct wfi_report {
    wfi_report_slot slots[WFI_REPORT_SLOTS];
} wfi_report;

/* safe[i] = index[i], or 0 for an element that is not in [0, size), which is reported. `safe` may be `index`, or NULL.
 * A piece is a part of the index; there are at most WFI_REPORT_SLOTS. OFFSETS_CHECK (one piece): the same for offsets
 * of bags of `size` elements, see cpu/embedding.h; if one is wrong, all bags but the first become empty. */
typedef struct wfi_index_task {
    wfi_gpu_task head;
    const int64_t *index;
    int64_t *safe;
    int64_t n, size;
    wfi_report *report;
    int64_t check;
} wfi_index_task;

/* divisor[i] = 1 where it is 0, which is reported. */
typedef struct wfi_divisor_task {
    wfi_gpu_task head;
    void *divisor;
    wfi_report *report;
    int64_t check;
} wfi_divisor_task;

/* GATHER: y[e] = x[offset(e) + index[e] * stride], with offset(e) by the strides of the dimensions of e. */
typedef struct wfi_gather_task {
    wfi_gpu_task head;
    const void *from;
    void *to;
    const int64_t *index;
    int64_t ndim;
    int64_t dims[WEFT_MAX_DIMS],
        strides[WEFT_MAX_DIMS]; /* of the index; of x, 0 for the dimension that is picked from */
    int64_t stride;             /* of that dimension in x */
    /* SCATTER_ADD only, where `dims` lack that dimension: a piece is a line along it. */
    int64_t index_strides[WEFT_MAX_DIMS], length, index_stride;
} wfi_gather_task;

/* SELECT: to [outer, n, inner] = the rows of from [outer, size, inner] that index [n] names.
 * ADD_ROWS: to [outer, size, inner] += factors[i] * from, row by row in the index's order, without those of `skip`; row
 * i of `from` [outer, n, inner] or rows[i] of it. A piece is a column.
 * PICK_ROWS: to [n, inner] = factors[i] * row rows[i] of from, and picked[i] = index[i]; 0 for the index `skip`. */
typedef struct wfi_rows_task {
    wfi_gpu_task head;
    const void *from;
    void *to;
    const int64_t *index;
    const int64_t *rows; /* NULL: i */
    const void *factors; /* NULL: 1 */
    int64_t *picked;
    int64_t n, size, inner, skip;
} wfi_rows_task;

/* Bags of rows; see cpu/embedding.h. */
typedef struct wfi_bag_task {
    wfi_gpu_task head;
    const void *table, *scale, *dy;
    const int64_t *index, *offsets;
    int64_t bags, n, length, width, padding;
    int64_t mean;    /* 0 or 1 */
    void *y;         /* or the factors of SPREAD, which may be NULL */
    int64_t *picked; /* or the bags of SPREAD and SCALE_BACKWARD */
} wfi_bag_task;

/* Lines of `length` elements, `inner` apart. */
typedef struct wfi_softmax_task {
    wfi_gpu_task head;
    const void *in, *y;
    void *out;
    int64_t length, inner, lines;
} wfi_softmax_task;

typedef struct wfi_loss_task {
    wfi_gpu_task head;
    const void *x; /* NLL: the log-probabilities [.., classes, behind] */
    const void *target, *dy;
    void *y;
    double *partial; /* MSE: the sum of each of the pieces */
    int64_t n, classes, behind;
    double factor;
    int64_t each; /* 0 or 1: dy has a value for each element */
} wfi_loss_task;

/* x [batch, channels, plane]; a piece is a channel. See cpu/batch_norm.c. */
typedef struct wfi_norm_task {
    wfi_gpu_task head;
    const void *x, *dy, *weight, *bias, *mean, *var, *invstd; /* var: only NORM_EVAL */
    void *y, *dweight, *dbias, *save_mean, *save_invstd;
    double *moments;
    int64_t batch, channels, plane;
    double eps;
    int64_t train; /* 0 or 1 */
} wfi_norm_task;

typedef struct wfi_norm_move_task {
    wfi_gpu_task head;
    const double *moments;
    const void *running;
    void *next;
    double momentum;
} wfi_norm_move_task;

/* A piece is an element of the result; of MAX_POOL_BACKWARD a plane. */
typedef struct wfi_pool_task {
    wfi_gpu_task head;
    const void *in;
    void *out;
    int32_t *indices;
    int64_t in_size[2], out_size[2], kernel[2], stride[2], padding[2];
} wfi_pool_task;

typedef struct wfi_random_task {
    wfi_gpu_task head;
    void *data;
    wfi_random random;
    double a, b;
    uint64_t end;        /* MASK: numbers below it give b */
    const void *weights; /* CATEGORICAL: [count, classes]; data: int64, -1 where a row is no distribution */
    int64_t classes;
} wfi_random_task;

/* matrix [images, rows, columns], rows = in KH KW, columns = OH OW; image [images, .., H, W] with `image_step` elements
 * from one to the next. A piece is an element of the result. */
typedef struct wfi_unfold_task {
    wfi_gpu_task head;
    const void *from;
    void *to;
    int64_t in, image_step;
    int64_t image[2], kernel[2], result[2], stride[2], padding[2], dilation[2];
} wfi_unfold_task;

/* to [.., channels, plane] += bias [channels] */
typedef struct wfi_bias_task {
    wfi_gpu_task head;
    const void *bias;
    void *to;
    int64_t channels, plane;
} wfi_bias_task;

/* See cpu/lstm_cell.h. */
typedef struct wfi_lstm_task {
    wfi_gpu_task head;
    int64_t batch, hidden;
    void *gates;
    const void *bias, *c_before;
    void *c, *h;
    const void *dy;
    void *dh, *dc, *dgates;
} wfi_lstm_task;

/* SORT_TILES: sorts each tile of WFI_SORT_TILE elements of `keys` [n], and writes the places that they had before to
 * to_order. A piece is a tile. SORT_MERGE: merges pairs of sorted runs of `width` elements, and their `order`. A piece
 * is an element. Equal keys stay in the order of their places. */
enum { WFI_SORT_TILE = 256 };
typedef struct wfi_sort_task {
    wfi_gpu_task head;
    const int64_t *keys, *order; /* the input; SORT_TILES has no order */
    int64_t *to_keys, *to_order;
    int64_t n, width;
} wfi_sort_task;

/* A gradient by rows: values [n, width]. `rows` are their rows, sorted, and value order[k] is one of row rows[k]; see
 * wfi_sort_task. All zero: a dense gradient. */
typedef struct wfi_rows_order {
    const int64_t *rows, *order;
    int64_t n, width;
    int64_t row_count; /* of the parameter; other rows are ignored */
} wfi_rows_order;

/*
 * One step of an optimizer on many parameters; see cpu/optim/. An entry is a parameter. `places` holds entries from the
 * front on, and from the end on what several entries may share. A piece of work belongs to one entry: WFI_STEP_PIECE
 * elements of its gradient. The parameter of a kernel has at most 4 KiB.
 */
enum { WFI_STEP_NUMBERS = 8, WFI_STEP_SLOTS_USED = 3, WFI_STEP_PIECE = 1024, WFI_STEP_PLACES = 63 };
typedef struct wfi_step_entry {
    const void *from, *gradient;
    void *to, *slots[WFI_STEP_SLOTS_USED];
    int64_t count;   /* elements of the gradient; not 0 in a step */
    int32_t begin;   /* its first piece */
    int16_t numbers; /* the place of its numbers */
    int16_t rows;    /* the place of its rows; 0: the gradient is dense */
} wfi_step_entry;
typedef union wfi_step_place {
    wfi_step_entry entry;
    double numbers[WFI_STEP_NUMBERS]; /* the struct `numbers` of the rule; the first one is the gradient's factor */
    wfi_rows_order rows;
} wfi_step_place;
typedef struct wfi_step_task {
    wfi_gpu_task head;
    const double *scale; /* the factors are multiplied by it; NULL: 1 */
    int64_t entries;
    wfi_step_place places[WFI_STEP_PLACES];
} wfi_step_task;
/* SQUARES: `to` [pieces of the entry] = the sums of the squares of equal parts of the gradient, or of its sums by
 * row. */

/* out[0] = factor * norm, with the squared norm the sum of partial [n]; out[1] = what then limits it to max_norm, at
 * most 1; see wfi_clip_factor. One block. */
typedef struct wfi_clip_task {
    wfi_gpu_task head;
    const double *partial;
    int64_t n;
    double *out;
    double factor, max_norm, room;
} wfi_clip_task;

WEFT_END_C
#endif
