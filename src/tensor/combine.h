/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine.h - two ranks' elements become one: what a reduction over a group does to each chunk. In host memory, contiguous, on the calling
 * thread; any thread may call.
 *
 * weft/reduce.h says what each kind gives, element by element. The bits depend on the two elements alone: not on their order, on the
 * processor, nor on how a range was cut into pieces. NULL is allowed where count is 0.
 */
#ifndef WFI_COMBINE_H
#define WFI_COMBINE_H

#include <weft/reduce.h>
#include <weft/tensor.h>

/* Whether there is such a combination; false too if there is no such dtype or kind. The functions below are for those that there are. */
bool wfi_can_combine(weft_dtype dtype, weft_op how);

/*
 * out[i] = a[i] (how) b[i], for i < count. All aligned for the dtype; `out` may be `a` or `b`, else overlaps neither. AVG adds;
 * wfi_combine_divide is its end.
 */
void wfi_combine(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b, size_t count);

/* data[i] /= divisor, rounded once (float16, bfloat16: the float32 quotient is rounded); a dtype that has AVG, a divisor of at least 1. */
void wfi_combine_divide(weft_dtype dtype, void *data, size_t count, size_t divisor);

#endif
