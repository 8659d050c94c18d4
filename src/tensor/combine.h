/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine.h - combines the elements of two ranks: the computation of a group's reduction for each chunk. The elements
 * are contiguous in host memory. Any thread may call, and computes all by itself.
 *
 * weft/reduce.h says what each kind gives, element by element. The bits depend only on the two elements: not on their
 * order, on the processor, or on how a range was divided. NULL is allowed if count is 0.
 */
#ifndef WFI_COMBINE_H
#define WFI_COMBINE_H

#include <weft/reduce.h>
#include <weft/tensor.h>

/* Whether the dtype can be combined in this way; false if either is unknown. The functions below require true. */
bool wfi_can_combine(weft_dtype dtype, weft_op how);

/*
 * out[i] = a[i] (how) b[i], for i < count. All are aligned for the dtype. `out` may be `a` or `b`; otherwise it
 * overlaps neither. WEFT_OP_AVG only adds: wfi_combine_divide then computes the average.
 */
void wfi_combine(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b, size_t count);

/*
 * data[i] /= divisor, rounded once (float16, bfloat16: the float32 quotient is rounded); for a dtype that has AVG,
 * and a divisor of at least 1.
 */
void wfi_combine_divide(weft_dtype dtype, void *data, size_t count, size_t divisor);

#endif
