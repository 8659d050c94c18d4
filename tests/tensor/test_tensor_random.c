/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_random.c - Philox against the known answers published with Random123, and the distributions. */
#include "check_gradients.h"
#include "tensors.h"

static void philox_gives_the_known_answers(void **state)
{
    static const struct {
        wfi_random random;
        uint64_t index, expected; /* the first two words of the answer */
    } known[] = {
        {{0, 0}, 0, 0xe169c58d6627e8d5},
        {{UINT64_MAX, UINT64_MAX}, UINT64_MAX, 0x41c83b0e408f276d},
        {{.seed = 0x299f31d0a4093822, .stream = 0x0370734413198a2e}, 0x85a308d3243f6a88, 0x94fdccebd16cfe09},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_true(wfi_random_u64(known[i].random, known[i].index) == known[i].expected);
}

static void moments(const weft_tensor *x, double *mean, double *variance)
{
    double sum = 0, squares = 0, n = (double)weft_tensor_numel(x);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++) {
        double v = weft_tensor_get_f64(x, i);
        sum += v;
        squares += v * v;
    }
    *mean = sum / n;
    *variance = squares / n - *mean * *mean;
}

static void distributions_have_their_moments(void **state)
{
    double mean, variance;
    weft_tensor *x = tensor_empty(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_random_uniform(x, (wfi_random){1, 2}, 0, 1), WEFT_OK);
    moments(x, &mean, &variance);
    assert_true(fabs(mean - 0.5) < 0.005 && fabs(variance - 1.0 / 12) < 0.002);
    assert_int_equal(wfi_random_normal(x, (wfi_random){1, 3}, 2, 3), WEFT_OK);
    moments(x, &mean, &variance);
    assert_true(fabs(mean - 2) < 0.05 && fabs(variance - 9) < 0.2);
    assert_int_equal(wfi_random_mask(x, (wfi_random){1, 4}, 0.75, 4.0 / 3), WEFT_OK);
    moments(x, &mean, &variance);
    assert_true(fabs(mean - 1) < 0.01);
    weft_tensor_unref(x);
}

static void numbers_do_not_depend_on_the_thread_count(void **state)
{
    weft_tensor *x[2];
    int before = wfi_cpu_threads();
    for (int i = 0; i < 2; i++) {
        wfi_cpu_threads_set(i == 0 ? 1 : 4);
        x[i] = random_tensor(WEFT_SHAPE(50001), WEFT_DTYPE_FLOAT64, 5);
    }
    wfi_cpu_threads_set(before);
    assert_memory_equal(weft_tensor_data(x[0]), weft_tensor_data(x[1]), weft_tensor_nbytes(x[0]));
    weft_tensor_unref(x[0]);
    weft_tensor_unref(x[1]);
}

/* Of every length around those that are made at a time, and from the middle of others' stretches. */
static void each_number_is_the_one_of_its_index(void **state)
{
    const int64_t lengths[] = {1, 7, 511, 512, 513, 1025, 40000};
    const wfi_random random = {0x123456789abcdefu, 0x1000000000003u};
    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        for (int wide = 0; wide < 2; wide++) {
            weft_tensor *u = tensor_empty(WEFT_SHAPE(lengths[l]), wide ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32);
            weft_tensor *mask = tensor_empty(WEFT_SHAPE(lengths[l]), wide ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32);
            assert_int_equal(wfi_random_uniform(u, random, -3, 5), WEFT_OK);
            assert_int_equal(wfi_random_mask(mask, random, 0.3, 7), WEFT_OK);
            for (int64_t i = 0; i < lengths[l]; i++) {
                double x = wfi_random_f64(random, (uint64_t)i);
                float x24 = (float)(wfi_random_u64(random, (uint64_t)i) >> 40) * 0x1p-24f;
                assert_true(weft_tensor_get_f64(u, i) == (wide ? -3 + x * 8 : (double)(-3 + x24 * 8)));
                assert_true(weft_tensor_get_f64(mask, i) == (x < 0.3 ? 7 : 0));
            }
            weft_tensor_unref(u);
            weft_tensor_unref(mask);
        }
    }
}

UNIT_MAIN(philox_gives_the_known_answers, distributions_have_their_moments, numbers_do_not_depend_on_the_thread_count,
          each_number_is_the_one_of_its_index)
