/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formula.h - tensors whose elements follow from a key and their index alone: formula.py makes the same ones, so
 * that no inputs or weights need to be stored. The mixing is SplitMix64's (Steele, Lea, Flood, OOPSLA 2014).
 */
#ifndef FORMULA_H
#define FORMULA_H

#include "tensors.h"

#include <weft/tensor.h>

static inline uint64_t formula_u64(uint64_t key, uint64_t index)
{
    uint64_t z = (index + 1) * UINT64_C(0x9E3779B97F4A7C15) + key * UINT64_C(0xD1342543DE82EF95);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In [-1, 1), a multiple of 2^-23: exact in float32. */
static inline double formula_value(uint64_t key, uint64_t index)
{
    return (double)(formula_u64(key, index) >> 40) / 8388608.0 - 1.0;
}

/* target[i] = offset + factor * value, rounded to its dtype once. */
static inline void formula_fill(weft_tensor *target, uint64_t key, double factor, double offset)
{
    int64_t count = weft_tensor_numel(target);
    void *data = weft_tensor_data(target);
    for (int64_t i = 0; i < count; i++) {
        double value = offset + factor * formula_value(key, (uint64_t)i);
        if (weft_tensor_dtype(target) == WEFT_DTYPE_FLOAT64)
            ((double *)data)[i] = value;
        else
            ((float *)data)[i] = (float)value;
    }
}

/* int64 in [0, end) */
static inline void formula_fill_below(weft_tensor *target, uint64_t key, int64_t end)
{
    int64_t count = weft_tensor_numel(target), *data = weft_tensor_data(target);
    for (int64_t i = 0; i < count; i++)
        data[i] = (int64_t)(formula_u64(key, (uint64_t)i) % (uint64_t)end);
}

static inline weft_tensor *formula_tensor(weft_shape shape, weft_dtype dtype, uint64_t key)
{
    weft_tensor *tensor = tensor_empty(shape, dtype);
    if (tensor)
        formula_fill(tensor, key, 1, 0);
    return tensor;
}

#endif
