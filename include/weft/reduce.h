/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/reduce.h - reductions: how corresponding elements of several workers are combined.
 *
 * WEFT_OP_SUM and WEFT_OP_PROD accept all dtypes (weft/tensor.h), WEFT_OP_AVG floating and complex dtypes, WEFT_OP_MIN
 * and WEFT_OP_MAX all except complex dtypes. Other combinations are rejected with WEFT_ERR_TYPE.
 *   Integers wrap around.
 *   With float16 and bfloat16 each step is computed in float32 and rounded to nearest, ties to even.
 *   With bool, sum and maximum are "or", product and minimum are "and". A byte that is not 0 counts as 1.
 *   Complex products are (a + bi)(c + di) = (ac - bd) + (ad + bc)i, without special rules for infinities.
 *
 * Combining two elements gives the same bits on every processor and in either order. A NaN gives a NaN, even with
 * WEFT_OP_MIN and WEFT_OP_MAX, and so do undefined results such as infinity minus infinity. The NaN is always the same:
 * quiet, positive, without payload.
 */
#ifndef WEFT_REDUCE_H
#define WEFT_REDUCE_H

#include <weft/base.h>

WEFT_BEGIN_C

/* How elements are combined. */
typedef enum weft_op {
    WEFT_OP_SUM = 0,
    WEFT_OP_AVG = 1, /* the sum, divided at the end by the number of members and rounded once more */
    WEFT_OP_MIN = 2, /* -0 is less than +0 */
    WEFT_OP_MAX = 3,
    WEFT_OP_PROD = 4,
} weft_op;

WEFT_END_C
#endif
