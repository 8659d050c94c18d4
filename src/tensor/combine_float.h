/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_float.h - combines two floats; the bits of the result depend neither on their order nor on the processor.
 *
 * Two things need care:
 *   NaN. Of two NaNs the processor returns one, chosen by their order. The sign of a NaN that the processor itself
 *   makes differs between manufacturers. So every NaN is replaced by the same one.
 *   Zero. The processor's minimum of -0 and +0 is its second operand. So the minimum is computed in both orders, and
 *   the two results are combined.
 * In a loop, the compiler turns all of this into vector code.
 */
#ifndef WFI_COMBINE_FLOAT_H
#define WFI_COMBINE_FLOAT_H

#include "tensor/half.h"

static inline uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/*
 * The minimum and the maximum are chosen in both orders of the operands, and the bits of the two choices are combined.
 * If neither operand is less, the two choices have the same bits, or both are zeros. For zeros, `|` gives -0 if one of
 * them is -0, and `&` gives +0 if one of them is +0.
 */
#define FLOAT_FUNCTIONS(tag, T, BITS_OF, OF_BITS, NAN_BITS)                                                            \
    static inline T tag##_one_nan(T value)                                                                             \
    {                                                                                                                  \
        return value == value ? value : OF_BITS(NAN_BITS);                                                             \
    }                                                                                                                  \
    static inline T tag##_sum_of(T a, T b)                                                                             \
    {                                                                                                                  \
        return tag##_one_nan(a + b);                                                                                   \
    }                                                                                                                  \
    static inline T tag##_prod_of(T a, T b)                                                                            \
    {                                                                                                                  \
        return tag##_one_nan(a * b);                                                                                   \
    }                                                                                                                  \
    static inline T tag##_quotient_of(T a, T b)                                                                        \
    {                                                                                                                  \
        return tag##_one_nan(a / b);                                                                                   \
    }                                                                                                                  \
    static inline T tag##_min_of(T a, T b)                                                                             \
    {                                                                                                                  \
        T least = OF_BITS(BITS_OF(a < b ? a : b) | BITS_OF(b < a ? b : a));                                            \
        return a == a && b == b ? least : OF_BITS(NAN_BITS);                                                           \
    }                                                                                                                  \
    static inline T tag##_max_of(T a, T b)                                                                             \
    {                                                                                                                  \
        T largest = OF_BITS(BITS_OF(a > b ? a : b) & BITS_OF(b > a ? b : a));                                          \
        return a == a && b == b ? largest : OF_BITS(NAN_BITS);                                                         \
    }
FLOAT_FUNCTIONS(f32, float, wfi_bits_of_float, wfi_float_of_bits, UINT32_C(0x7fc00000))
FLOAT_FUNCTIONS(f64, double, bits_of_double, double_of_bits, UINT64_C(0x7ff8000000000000))

#endif
