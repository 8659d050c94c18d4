/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/reduce.h - how the elements that several workers have at one place become one.
 *
 * All dtypes (weft/tensor.h) have WEFT_SUM and WEFT_PROD; floating and complex ones have WEFT_AVG; all but the complex ones have WEFT_MIN
 * and WEFT_MAX. What there is not is refused with WEFT_ERR_TYPE.
 *   - Integers wrap around.
 *   - float16 and bfloat16: each step is done in float32 and rounded to nearest, ties to even.
 *   - Of bool, sum and maximum are "or", product and minimum are "and"; a byte that is not 0 counts as 1.
 *   - Complex products are (a + bi)(c + di) = (ac - bd) + (ad + bc)i, without extra care for infinities.
 *
 * A step has the same bits on every processor, whichever of the two elements comes first. A NaN makes a NaN, in WEFT_MIN and WEFT_MAX too, and
 * so does what has no value, as infinity less infinity; the NaN that comes out is always the same one: quiet, positive, without payload.
 */
#ifndef WEFT_REDUCE_H
#define WEFT_REDUCE_H

#include <weft/base.h>

WEFT_BEGIN_C

typedef enum weft_reduce {
    WEFT_SUM = 0,
    WEFT_AVG = 1, /* the sum; at the end divided by the number of members, rounded once more */
    WEFT_MIN = 2, /* -0 is less than +0 */
    WEFT_MAX = 3,
    WEFT_PROD = 4,
} weft_reduce;

WEFT_END_C
#endif
