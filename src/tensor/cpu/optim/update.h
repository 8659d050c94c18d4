/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.h - runs a step: its arithmetic, written for consecutive elements, over a whole parameter or over some of
 * its rows.
 */
#ifndef WFI_UPDATE_H
#define WFI_UPDATE_H

#include "tensor/cpu/optim/optim.h"

/* Consecutive elements. `from` may be `to`. */
typedef weft_optimizer_span wfi_span;
typedef weft_optimizer_span_fn wfi_span_fn;

/*
 * Runs one of the two functions over all elements of the update, on several threads. `slots`: how many it uses.
 * WEFT_ERR_TYPE, _SHAPE, _UNSUPPORTED, _INVALID; then nothing was run.
 */
weft_status wfi_update_run(const wfi_update *update, int slots, wfi_span_fn f32, wfi_span_fn f64, const void *numbers);

/* Before a loop over a span: output element i depends only on elements i, even if `to` is `from`. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* a build with a sanitizer does not vectorize */
#define WFI_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define WFI_ELEMENTWISE _Pragma("GCC ivdep")
#endif

#endif
