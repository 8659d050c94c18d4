/* SPDX-License-Identifier: Apache-2.0 */
/* coll.h - what the tests of groups share. */
#ifndef TESTS_COLL_H
#define TESTS_COLL_H

#include "rpc/world.h"
#include "tensors.h"

#include <math.h>

static inline bool coll_is_dtype(weft_dtype dtype)
{
    return weft_dtype_size(dtype) != 0;
}

static inline bool coll_is_complex(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128;
}

static inline bool coll_is_float(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_FLOAT32 || dtype == WEFT_DTYPE_FLOAT64 || dtype == WEFT_DTYPE_FLOAT16 ||
           dtype == WEFT_DTYPE_BFLOAT16;
}

/* Which reductions there are. */
static inline bool coll_can(weft_dtype dtype, weft_op how)
{
    if (how == WEFT_OP_AVG)
        return coll_is_float(dtype) || coll_is_complex(dtype);
    return !coll_is_complex(dtype) || how == WEFT_OP_SUM || how == WEFT_OP_PROD;
}

static inline weft_tensor *coll_empty(weft_dtype dtype, int64_t count)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(count), dtype);
    MUST(x);
    return x;
}

/* Whether it is true at all members, which all ask. */
static inline bool coll_everywhere(weft_group *group, bool here)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT64, here);
    MUST(x);
    MUST_OK(weft_group_allreduce(group, x, WEFT_OP_MIN, 40000));
    bool all = *(const int64_t *)weft_tensor_data(x) != 0;
    weft_tensor_unref(x);
    return all;
}

/* Of float64; complex: real parts. */
static inline weft_tensor *coll_convert(weft_tensor *x, weft_dtype dtype)
{
    weft_tensor *converted;
    if (!coll_is_complex(dtype)) {
        converted = tensor_to(x, dtype);
        MUST(converted);
        return converted;
    }
    converted = coll_empty(dtype, weft_tensor_numel(x));
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double real = ((const double *)weft_tensor_data(x))[i];
        if (dtype == WEFT_DTYPE_COMPLEX64)
            ((float *)weft_tensor_data(converted))[2 * i] = (float)real,
                                                       ((float *)weft_tensor_data(converted))[2 * i + 1] = 0;
        else
            ((double *)weft_tensor_data(converted))[2 * i] = real,
                                                        ((double *)weft_tensor_data(converted))[2 * i + 1] = 0;
    }
    return converted;
}

/* Of its bytes: FNV-1a, eight bytes at a time, because tests spend their time here. */
static inline uint64_t coll_hash(const weft_tensor *x)
{
    const uint8_t *data = weft_tensor_data(x);
    size_t size = weft_tensor_nbytes(x), i = 0;
    uint64_t hash = 1469598103934665603u, word;
    for (; i + sizeof(word) <= size; i += sizeof(word)) {
        memcpy(&word, data + i, sizeof(word));
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 32; /* otherwise the upper bits of a word would not reach the lower ones */
    }
    for (; i < size; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    return hash;
}

#endif
