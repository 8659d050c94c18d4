/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_histogram.c - what the histogram answers, against the sorted values themselves. */
#include "base/histogram.h"
#include "unit.h"
#include "prng.h"

#include <math.h>
#include <stdlib.h>

#define HOUR_NS UINT64_C(3600000000000)

static uint64_t random_state = 88172645463325252u;

/* Every magnitude from 1 ns to an hour as likely as any other. */
static uint64_t random_latency(void)
{
    return 1 + prng_next(&random_state) % (UINT64_C(1) << (prng_next(&random_state) % 42)) % HOUR_NS;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static bool is_near(uint64_t kept, uint64_t value)
{
    uint64_t off = kept > value ? kept - value : value - kept;
    return off * 32 <= value;
}

static uint64_t exact_quantile(const uint64_t *sorted, size_t count, double share)
{
    size_t rank = (size_t)ceil(share * (double)count);
    return sorted[rank ? rank - 1 : 0];
}

static void one_value_is_kept_within_a_thirty_second(void **state)
{
    for (int i = 0; i < 200000; i++) {
        uint64_t value = i < 5000 ? (uint64_t)i + 1 : random_latency();
        wfi_histogram histogram;
        wfi_histogram_init(&histogram);
        wfi_histogram_record(&histogram, value);
        wfi_histogram_record(&histogram, 1); /* so that neither min nor max answers for it */
        wfi_histogram_record(&histogram, HOUR_NS);
        assert_true(is_near(wfi_histogram_quantile(&histogram, 0.5), value));
        wfi_histogram_fini(&histogram);
    }
}

static void quantiles_agree_with_sorted_data(void **state)
{
    enum { COUNT = 20011 };
    static const double shares[] = {0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    static uint64_t values[COUNT];
    wfi_histogram histogram;
    uint64_t sum = 0;
    wfi_histogram_init(&histogram);
    for (int i = 0; i < COUNT; i++) {
        values[i] = random_latency();
        sum += values[i];
        wfi_histogram_record(&histogram, values[i]);
    }
    qsort(values, COUNT, sizeof(*values), by_value);
    for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++)
        assert_true(is_near(wfi_histogram_quantile(&histogram, shares[i]), exact_quantile(values, COUNT, shares[i])));
    assert_int_equal(histogram.count, COUNT);
    assert_int_equal(histogram.sum, sum);
    assert_int_equal(wfi_histogram_mean(&histogram), sum / COUNT);
    assert_int_equal(histogram.min, values[0]);
    assert_int_equal(histogram.max, values[COUNT - 1]);
    for (unsigned exponent = 4; exponent <= 42; exponent++) {
        size_t below = 0;
        while (below < COUNT && values[below] < UINT64_C(1) << exponent)
            below++;
        assert_int_equal(wfi_histogram_below(&histogram, exponent), below);
    }
    wfi_histogram_fini(&histogram);
}

static void equal_values_come_back_as_they_were(void **state)
{
    for (uint64_t value = 1; value < HOUR_NS; value = value * 9 / 8 + 1) {
        wfi_histogram histogram;
        wfi_histogram_init(&histogram);
        wfi_histogram_record(&histogram, value);
        wfi_histogram_record(&histogram, value);
        assert_int_equal(wfi_histogram_quantile(&histogram, 1), value);
        wfi_histogram_fini(&histogram);
    }
}

static void merged_parts_equal_the_whole(void **state)
{
    wfi_histogram whole, parts[3], sum;
    wfi_histogram_init(&whole);
    wfi_histogram_init(&sum);
    for (int part = 0; part < 3; part++) {
        wfi_histogram_init(&parts[part]);
        for (int i = 0; i < 1000; i++) {
            uint64_t value = random_latency() >> (12 * part);
            wfi_histogram_record(&parts[part], value);
            wfi_histogram_record(&whole, value);
        }
    }
    for (int part = 2; part >= 0; part--) /* the largest comes last: the range grows upwards */
        assert_int_equal(wfi_histogram_merge(&sum, &parts[part]), WEFT_OK);
    for (double share = 0; share <= 1; share += 0.01)
        assert_int_equal(wfi_histogram_quantile(&sum, share), wfi_histogram_quantile(&whole, share));
    assert_int_equal(sum.count, whole.count);
    assert_int_equal(sum.sum, whole.sum);
    assert_int_equal(sum.min, whole.min);
    assert_int_equal(sum.max, whole.max);
    for (int part = 0; part < 3; part++)
        wfi_histogram_fini(&parts[part]);
    wfi_histogram_fini(&whole);
    wfi_histogram_fini(&sum);
}

static void an_empty_one_answers_zero(void **state)
{
    wfi_histogram empty, other;
    wfi_histogram_init(&empty);
    wfi_histogram_init(&other);
    assert_int_equal(wfi_histogram_quantile(&empty, 0.5), 0);
    assert_int_equal(wfi_histogram_mean(&empty), 0);
    assert_int_equal(wfi_histogram_below(&empty, 42), 0);
    assert_int_equal(wfi_histogram_merge(&empty, &other), WEFT_OK);
    assert_null(empty.counts);
    wfi_histogram_fini(&empty);
}

static void zero_and_more_than_an_hour_are_counted(void **state)
{
    wfi_histogram histogram;
    wfi_histogram_init(&histogram);
    wfi_histogram_record(&histogram, UINT64_MAX);
    wfi_histogram_record(&histogram, 0);
    assert_int_equal(histogram.count, 2);
    assert_int_equal(histogram.min, 0);
    assert_int_equal(histogram.max, UINT64_MAX);
    assert_int_equal(histogram.octaves, WFI_HISTOGRAM_OCTAVES);
    assert_int_equal(wfi_histogram_quantile(&histogram, 0.5), 0);
    assert_true(wfi_histogram_quantile(&histogram, 1) >= UINT64_C(1) << 41);
    wfi_histogram_fini(&histogram);
}

static void a_narrow_range_takes_little_memory(void **state)
{
    wfi_histogram histogram;
    wfi_histogram_init(&histogram);
    for (uint64_t value = 20000; value < 640000; value += 7)
        wfi_histogram_record(&histogram, value);
    assert_true(histogram.octaves <= 6);
    wfi_histogram_fini(&histogram);
}

UNIT_MAIN(one_value_is_kept_within_a_thirty_second, quantiles_agree_with_sorted_data,
          equal_values_come_back_as_they_were, merged_parts_equal_the_whole, an_empty_one_answers_zero,
          zero_and_more_than_an_hour_are_counted, a_narrow_range_takes_little_memory)
