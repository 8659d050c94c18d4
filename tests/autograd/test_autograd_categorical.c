/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_autograd_categorical.c - draws follow their weights, never fall on a weight of 0, and depend on the tape's
 * seed and count alone: so a program that opens a tape a step can go on where another left off.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "tensor/copy.h"
#include "tensor/parallel.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define S(...) WEFT_SHAPE(__VA_ARGS__)
#define DRAWS 100000

/* One row of weights, DRAWS times. */
static weft_tensor *rows_of(const double *weights, int64_t classes, weft_dtype dtype)
{
    weft_tensor *rows = tensor_empty(S(DRAWS, classes), dtype), *row, *all;
    assert_non_null(rows);
    row = tensor_copy_of(S(classes), WEFT_DTYPE_FLOAT64, weights);
    all = tensor_to(row, dtype);
    assert_int_equal(wfi_expand(all, rows), WEFT_OK);
    weft_tensor_unref(row);
    weft_tensor_unref(all);
    return rows;
}

static void count_draws(const double *weights, int64_t classes, weft_dtype dtype, uint64_t seed, int64_t *counts)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = seed});
    weft_tensor *rows = weft_tape_take(t, rows_of(weights, classes, dtype)), *drawn = weft_categorical(t, rows);
    assert_non_null(drawn);
    assert_int_equal(weft_tensor_dtype(drawn), WEFT_DTYPE_INT64);
    assert_int_equal(weft_tensor_ndim(drawn), 1);
    assert_int_equal(weft_tensor_numel(drawn), DRAWS);
    const int64_t *class = weft_tensor_data(drawn);
    memset(counts, 0, (size_t)classes * sizeof(*counts));
    for (int64_t i = 0; i < DRAWS; i++) {
        assert_in_range(class[i], 0, classes - 1);
        counts[class[i]]++;
    }
    weft_tape_close(t);
}

static double chi_square(const double *weights, const int64_t *counts, int64_t classes)
{
    double sum = 0, square = 0;
    for (int64_t i = 0; i < classes; i++)
        sum += weights[i];
    for (int64_t i = 0; i < classes; i++) {
        double expected = DRAWS * weights[i] / sum, off = (double)counts[i] - expected;
        if (weights[i] == 0)
            assert_int_equal(counts[i], 0);
        else
            square += off * off / expected;
    }
    return square;
}

/*
 * The seeds are fixed, so this passes always or never. With k degrees of freedom chi-square exceeds k + 4 sqrt(2 k)
 * + 6 once in some thousands of seeds, and by far for weights that are not followed.
 */
static void draws_follow_their_weights(void **state)
{
    static const double weights[][6] = {
        {1, 1, 1, 1, 1, 1},           {0.5, 0, 0.25, 0.125, 0, 0.125}, {0, 0, 0, 1, 2, 0},
        {1e-3, 5, 0.2, 0, 7e-3, 0.1}, {3e-30, 1e-30, 0, 6e-30, 0, 0},
    };
    for (size_t k = 0; k < sizeof(weights) / sizeof(weights[0]); k++)
        for (int of_doubles = 0; of_doubles < 2; of_doubles++) {
            int64_t counts[6], degrees = -1;
            for (int i = 0; i < 6; i++)
                degrees += weights[k][i] > 0;
            count_draws(weights[k], 6, of_doubles ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32, 11 + k, counts);
            double off = chi_square(weights[k], counts, 6);
            if (off > (double)degrees + 4 * sqrt(2 * (double)degrees) + 6)
                fail_msg("weights %zu: chi-square %g with %d degrees of freedom", k, off, (int)degrees);
        }
}

static void draws_of_one_possible_class_are_that_class(void **state)
{
    static const double extremes[] = {1, 1e-40, 5e-324, 1e308, 1.7976931348623157e308};
    int64_t counts[4];
    for (size_t k = 0; k < sizeof(extremes) / sizeof(extremes[0]); k++)
        for (int class = 0; class < 4; class ++) {
            double weights[4] = {0, -0.0, 0, 0};
            weights[class] = extremes[k];
            count_draws(weights, 4, WEFT_DTYPE_FLOAT64, 5, counts);
            assert_int_equal(counts[class], DRAWS);
        }
    count_draws((double[]){2}, 1, WEFT_DTYPE_FLOAT32, 5, counts);
    assert_int_equal(counts[0], DRAWS);
}

/* The sums of such weights are infinite, or cannot be divided: the shares must come out all the same. */
static void draws_of_extreme_weights_keep_their_shares(void **state)
{
    int64_t counts[4];
    double large[4] = {1e308, 0, 1.5e308, 1.5e308}, small[4] = {0, 5e-324, 5e-324, 0};
    count_draws(large, 4, WEFT_DTYPE_FLOAT64, 8, counts);
    assert_true(chi_square((double[]){1, 0, 1.5, 1.5}, counts, 4) < 25);
    count_draws(small, 4, WEFT_DTYPE_FLOAT64, 8, counts);
    assert_int_equal(counts[0] + counts[3], 0);
    assert_int_equal(counts[1] + counts[2], DRAWS);
}

static weft_tensor *draw_kept(uint64_t seed, weft_tensor *x)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = seed});
    weft_tensor *drawn = weft_tensor_ref(weft_categorical(t, x));
    assert_non_null(drawn);
    weft_tape_close(t);
    return drawn;
}

static void assert_same_draws(weft_tensor *a, weft_tensor *b, bool same)
{
    assert_true(weft_tensor_same_shape(a, b));
    assert_int_equal(memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0, same);
    weft_tensor_unref(a);
    weft_tensor_unref(b);
}

static weft_tensor *weights_of(weft_shape shape)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    formula_fill(x, 3, 1, 1.5);
    return x;
}

static void draws_follow_the_seed_and_not_the_layout(void **state)
{
    weft_tensor *x = weights_of(S(20, 30, 5)), *flat = tensor_reshape(x, S(600, 5));
    weft_tensor *turned = tensor_transpose(x, 0, 2), *copy = tensor_clone(turned), *same = tensor_transpose(copy, 0, 2);
    weft_tensor *drawn = draw_kept(1, x), *drawn_flat = draw_kept(1, flat);
    assert_int_equal(weft_tensor_ndim(drawn), 2);
    assert_int_equal(weft_tensor_size(drawn, 1), 30);
    assert_memory_equal(weft_tensor_data(drawn), weft_tensor_data(drawn_flat), weft_tensor_nbytes(drawn));
    assert_same_draws(drawn, draw_kept(1, same), true); /* strides do not matter */
    assert_same_draws(drawn_flat, draw_kept(2, flat), false);
    weft_tensor *all[] = {x, flat, turned, copy, same};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

/* Row r draws the same with more rows behind it: what a batch holds besides does not change an observer's action. */
static void draws_of_a_row_do_not_depend_on_those_after_it(void **state)
{
    weft_tensor *x = weights_of(S(300, 4)), *some = tensor_narrow(x, 0, 0, 7);
    weft_tensor *of_all = draw_kept(9, x), *of_some = draw_kept(9, some);
    assert_memory_equal(weft_tensor_data(of_all), weft_tensor_data(of_some), 7 * sizeof(int64_t));
    weft_tensor *vector = tensor_select(x, 0, 0), *one = draw_kept(9, vector);
    assert_int_equal(weft_tensor_ndim(one), 0);
    assert_int_equal(weft_tensor_get_i64(one, 0), weft_tensor_get_i64(of_all, 0));
    weft_tensor *all[] = {x, some, of_all, of_some, vector, one};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static void draws_of_a_tape_differ_from_one_to_the_next(void **state)
{
    weft_tensor *x = weights_of(S(100, 4));
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .seed = 4});
    weft_tensor_set_requires_grad(x, true);
    weft_tensor *first = weft_categorical(t, x), *second = weft_categorical(t, x);
    assert_memory_not_equal(weft_tensor_data(first), weft_tensor_data(second), 100 * sizeof(int64_t));
    weft_backward_with(t, (weft_tensors){&first, 1}, (weft_tensors){NULL, 0}, NULL); /* no gradient passes */
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static void draws_of_no_rows_are_none(void **state)
{
    const weft_shape shapes[] = {S(0, 3), S(0, 0), S(2, 0, 3)};
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        weft_tensor *x = tensor_zeros(shapes[k], WEFT_DTYPE_FLOAT64), *drawn = draw_kept(1, x);
        assert_int_equal(weft_tensor_numel(drawn), 0);
        assert_int_equal(weft_tensor_ndim(drawn), shapes[k].ndim - 1);
        weft_tensor_unref(drawn);
        weft_tensor_unref(x);
    }
}

#define RUN_STEPS 40

/* A run as weft/tape.h describes it: steps `from` to `to`, each on a tape of its own, with the seed of run and step. */
static void run_steps(uint64_t run, uint64_t from, uint64_t to, int64_t actions[][8])
{
    weft_tensor *x = weights_of(S(8, 64));
    for (uint64_t step = from; step < to; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.seed = run << 32 | step});
        weft_tensor *drawn = weft_categorical(t, weft_softmax(t, weft_dropout(t, x, 0.6, true), 1));
        assert_non_null(drawn);
        memcpy(actions[step], weft_tensor_data(drawn), sizeof(actions[step]));
        weft_tape_close(t);
    }
    weft_tensor_unref(x);
}

static void run_goes_on_where_another_left_off(void **state)
{
    static int64_t whole[RUN_STEPS][8], parts[RUN_STEPS][8], other[RUN_STEPS][8];
    run_steps(7, 0, RUN_STEPS, whole);
    run_steps(7, 0, 13, parts);
    run_steps(7, 13, RUN_STEPS, parts);
    assert_memory_equal(whole, parts, sizeof(whole));
    run_steps(8, 0, RUN_STEPS, other);
    for (int step = 0; step < RUN_STEPS; step++) {
        assert_memory_not_equal(whole[step], other[step], sizeof(whole[0]));
        for (int before = 0; before < step; before++)
            assert_memory_not_equal(whole[step], whole[before], sizeof(whole[0]));
    }
}

static void draws_are_the_same_on_any_number_of_threads(void **state)
{
    weft_tensor *x = weights_of(S(30011, 3));
    int before = wfi_cpu_threads();
    wfi_cpu_threads_set(1);
    weft_tensor *alone = draw_kept(6, x);
    wfi_cpu_threads_set(3);
    weft_tensor *together = draw_kept(6, x);
    wfi_cpu_threads_set(before);
    assert_same_draws(alone, together, true);
    ((float *)weft_tensor_data(x))[3 * 20000 + 1] = -1;
    ((float *)weft_tensor_data(x))[3 * 29000 + 1] = NAN;
    weft_tape *t = weft_tape_open(NULL);
    assert_null(weft_categorical(t, x)); /* the first bad row is named, whichever thread found one first */
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "row 20000 is no distribution"));
    weft_tape_close(t);
    weft_tensor_unref(x);
}

UNIT_MAIN(draws_follow_their_weights, draws_of_one_possible_class_are_that_class,
          draws_of_extreme_weights_keep_their_shares, draws_follow_the_seed_and_not_the_layout,
          draws_of_a_row_do_not_depend_on_those_after_it, draws_of_a_tape_differ_from_one_to_the_next,
          draws_of_no_rows_are_none, run_goes_on_where_another_left_off, draws_are_the_same_on_any_number_of_threads)
