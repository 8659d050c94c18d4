/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.h - runs a step: its arithmetic, written for consecutive elements, over a whole parameter or over some of
 * its rows.
 */
#ifndef WFI_UPDATE_H
#define WFI_UPDATE_H

#include "tensor/cpu/optim/optim.h"
#include "tensor/tasks.h"

/* Consecutive elements. `from` may be `to`. */
typedef weft_optimizer_span wfi_span;
typedef weft_optimizer_span_fn wfi_span_fn;

/* One entry of a launch: a step of a parameter, or the squares of a gradient. */
typedef struct wfi_steps_item {
    wfi_gpu_kind kind;
    const weft_tensor *gradient; /* or the values of `rows`; not empty */
    const wfi_sparse_rows *rows; /* NULL: dense */
    int64_t row_count;           /* of the parameter */
    const void *from;
    void *to, *slots[WFI_STEP_SLOTS];
    const void *numbers;  /* `size` bytes; NULL: none */
    size_t size, written; /* bytes of `numbers`; bytes from `to` on that are written */
    const double *scale;
    int64_t pieces;
} wfi_steps_item;
weft_status wfi_steps_add(wfi_steps *steps, const wfi_steps_item *item);

/* The arithmetic of a step. */
typedef struct wfi_rule {
    int slots; /* how many it uses */
    wfi_span_fn f32, f64;
    wfi_gpu_kind gpu; /* WFI_GPU_KINDS: there is none */
} wfi_rule;

/*
 * Runs one of the two functions over all elements of the update, on several threads; if these are on a GPU, its
 * kernel. `numbers`: the argument of the functions, for a kernel at most WFI_STEP_NUMBERS doubles. WEFT_ERR_TYPE,
 * _SHAPE, _UNSUPPORTED, _INVALID; then nothing was run.
 */
weft_status wfi_update_run(const wfi_update *update, const wfi_rule *rule, const void *numbers, size_t size);
#define WFI_UPDATE_RUN(update, numbers, slots, f32, f64, gpu)                                                          \
    wfi_update_run((update), &(const wfi_rule){(slots), (f32), (f64), (gpu)}, &(numbers), sizeof(numbers))

/* Before a loop over a span: output element i depends only on elements i, even if `to` is `from`. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* a build with a sanitizer does not vectorize */
#define WFI_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define WFI_ELEMENTWISE _Pragma("GCC ivdep")
#endif

#endif
