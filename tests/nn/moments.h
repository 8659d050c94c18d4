/* SPDX-License-Identifier: Apache-2.0 */
/* moments.h - whether float32 elements look drawn from a distribution. */
#ifndef MOMENTS_H
#define MOMENTS_H

#include <weft/tensor.h>

#include "unit.h"

#include <math.h>

typedef struct moments {
    double mean, deviation, low, high, kurtosis;
} moments;

static inline moments moments_of(const weft_tensor *x)
{
    moments m = {0, 0, INFINITY, -INFINITY, 0};
    double count = (double)weft_tensor_numel(x), second = 0, fourth = 0;
    const float *v = weft_tensor_data(x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        m.mean += v[i] / count;
        m.low = fmin(m.low, v[i]);
        m.high = fmax(m.high, v[i]);
    }
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double square = (v[i] - m.mean) * (v[i] - m.mean);
        second += square / count;
        fourth += square * square / count;
    }
    m.deviation = sqrt(second);
    m.kurtosis = fourth / (second * second);
    return m;
}

/* U(-bound, bound): deviation bound / sqrt(3), kurtosis 1.8; six standard errors of room. */
static inline void assert_uniform(const weft_tensor *x, double bound)
{
    moments m = moments_of(x);
    double count = (double)weft_tensor_numel(x), error = bound / sqrt(3 * count);
    assert_true(m.low >= -bound * (1 + 1e-6) && m.high <= bound * (1 + 1e-6));
    assert_true(fabs(m.mean) <= 6 * error);
    if (count < 500)
        return;
    assert_true(m.low <= -0.98 * bound && m.high >= 0.98 * bound);
    assert_true(fabs(m.deviation * sqrt(3) / bound - 1) <= 6 / sqrt(2 * count));
    assert_true(fabs(m.kurtosis - 1.8) <= 0.15);
}

static inline void assert_normal(const weft_tensor *x, double deviation)
{
    moments m = moments_of(x);
    double count = (double)weft_tensor_numel(x);
    assert_true(fabs(m.mean) <= 6 * deviation / sqrt(count));
    assert_true(fabs(m.deviation / deviation - 1) <= 6 / sqrt(2 * count));
    assert_true(fabs(m.kurtosis - 3) <= 6 * sqrt(24 / count));
}

#endif
