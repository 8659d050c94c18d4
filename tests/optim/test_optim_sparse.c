/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_sparse.c - sparse gradients: rows in any order and several times are added up in the order of their
 * places; other rows keep value and state; what does not fit is refused. PyTorch's values are in test_optim_cases.c.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const weft_optimizer_spec specs[] = {
    {.type = &weft_sgd_type, .lr = 0.1},
    {.type = &weft_adam_type, .lr = 0.1, .adam.amsgrad = true},
    {.type = &weft_adamw_type, .lr = 0.1},
    {.type = &weft_adagrad_type, .lr = 0.1, .adagrad.lr_decay = 0.1},
};
#define SPECS (sizeof(specs) / sizeof(specs[0]))

static weft_tensor *rows_of(int64_t count, const int64_t *rows)
{
    return tensor_copy_of(WEFT_SHAPE(count), WEFT_DTYPE_INT64, rows);
}

static void apply(weft_optimizer *optimizer, weft_tensor *values, weft_tensor *rows)
{
    weft_gradient g = {values, rows};
    assert_int_equal(weft_optimizer_apply(optimizer, (weft_gradients){&g, 1}), WEFT_OK);
}

static void assert_same_bits(const weft_tensor *a, const weft_tensor *b)
{
    assert_memory_equal(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a));
}

/* Sizes on both sides of what one thread takes, and widths down to 1; rows that are named over and over, and high
 * ones. */
static void sums_of_rows_are_those_of_their_places_in_order(void **state)
{
    const struct {
        int64_t rows, width, count;
        weft_dtype dtype;
    } sizes[] = {{5, 3, 40, WEFT_DTYPE_FLOAT32},          {1, 1, 9, WEFT_DTYPE_FLOAT64},
                 {5000, 1, 20000, WEFT_DTYPE_FLOAT32},    {300, 400, 1000, WEFT_DTYPE_FLOAT32},
                 {3000000, 2, 50000, WEFT_DTYPE_FLOAT64}, {7, 100000, 20, WEFT_DTYPE_FLOAT32}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const int64_t rows = sizes[s].rows, width = sizes[s].width, count = sizes[s].count;
        weft_tensor *p = tensor_zeros(WEFT_SHAPE(rows, width), sizes[s].dtype), *wanted = tensor_clone(p);
        weft_tensor *ids = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64);
        weft_tensor *values = formula_tensor(WEFT_SHAPE(count, width), sizes[s].dtype, 3);
        formula_fill_below(ids, 4, rows);
        const int64_t *id = weft_tensor_data(ids);
        for (int64_t i = 0; i < count; i++) /* as -1 times the gradient is exact, so is the wanted sum */
            for (int64_t k = 0; k < width; k++) {
                if (sizes[s].dtype == WEFT_DTYPE_FLOAT32)
                    ((float *)weft_tensor_data(wanted))[id[i] * width + k] -=
                        ((float *)weft_tensor_data(values))[i * width + k];
                else
                    ((double *)weft_tensor_data(wanted))[id[i] * width + k] -=
                        ((double *)weft_tensor_data(values))[i * width + k];
            }
        weft_optimizer *sgd =
            optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
        apply(sgd, values, ids);
        assert_same_bits(p, wanted);
        weft_optimizer_unref(sgd);
        weft_tensor *all[] = {p, wanted, ids, values};
        for (size_t i = 0; i < 4; i++)
            weft_tensor_unref(all[i]);
    }
}

/* Sorted rows, and the same ones turned round, of values with other strides: the same bits. */
static void order_and_strides_of_rows_do_not_matter(void **state)
{
    const int64_t up[] = {1, 4, 6}, down[] = {6, 9, 4, 9, 1, 9};
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *p = formula_tensor(WEFT_SHAPE(8, 2), WEFT_DTYPE_FLOAT32, 1), *q = tensor_clone(p);
        weft_tensor *rows = rows_of(3, up), *all_down = rows_of(6, down);
        weft_tensor *pairs = tensor_reshape(all_down, WEFT_SHAPE(3, 2));
        weft_tensor *back = tensor_select(pairs, 1, 0); /* [3], every other one of `down` */
        weft_tensor *values = formula_tensor(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, 2);
        weft_tensor *columns = tensor_empty(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
        weft_tensor *turned = tensor_transpose(columns, 0, 1); /* [3, 2] */
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 2; k++)
                ((float *)weft_tensor_data(columns))[k * 3 + i] = ((float *)weft_tensor_data(values))[(2 - i) * 2 + k];
        weft_optimizer *one = optimizer_create((weft_tensors){&p, 1}, &specs[s], NULL);
        weft_optimizer *other = optimizer_create((weft_tensors){&q, 1}, &specs[s], NULL);
        for (int step = 0; step < 3; step++) {
            apply(one, values, rows);
            apply(other, turned, back);
            assert_same_bits(p, q);
        }
        weft_optimizer_unref(one);
        weft_optimizer_unref(other);
        weft_tensor *all[] = {p, q, rows, all_down, pairs, back, values, columns, turned};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            weft_tensor_unref(all[i]);
    }
}

/* A row that is named in every step goes as it does in a dense step, but for where SparseAdam adds eps; others stay. */
static void rows_step_as_dense_ones_and_others_stay(void **state)
{
    const int64_t named[] = {2, 0};
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *p = formula_tensor(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT64, 1), *q = tensor_clone(p),
                    *was = tensor_clone(p);
        weft_tensor *rows = rows_of(2, named);
        weft_optimizer *sparse = optimizer_create((weft_tensors){&p, 1}, &specs[s], NULL);
        weft_optimizer *dense = optimizer_create((weft_tensors){&q, 1}, &specs[s], NULL);
        for (uint64_t step = 0; step < 4; step++) {
            weft_tensor *values = formula_tensor(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT64, 10 + step);
            weft_tensor *full = tensor_zeros(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT64);
            for (int i = 0; i < 2; i++)
                memcpy((double *)weft_tensor_data(full) + 3 * named[i], (double *)weft_tensor_data(values) + 3 * i,
                       3 * sizeof(double));
            apply(sparse, values, rows);
            apply(dense, full, NULL);
            weft_tensor_unref(values);
            weft_tensor_unref(full);
        }
        for (int64_t i = 0; i < 12; i++) {
            double got = weft_tensor_get_f64(p, i), of_dense = weft_tensor_get_f64(q, i),
                   before = weft_tensor_get_f64(was, i);
            if (i / 3 == 0 || i / 3 == 2)
                assert_true(fabs(got - of_dense) < 1e-6 && got != before);
            else
                assert_true(got == before);
        }
        weft_optimizer_unref(sparse);
        weft_optimizer_unref(dense);
        weft_tensor *all[] = {p, q, was, rows};
        for (size_t i = 0; i < 4; i++)
            weft_tensor_unref(all[i]);
    }
}

/* No rows, rows without elements, and a parameter without rows: the step counts, and nothing else happens. */
static void empty_sparse_gradients_step_nothing(void **state)
{
    const struct {
        weft_shape parameter, values;
        int64_t rows;
    } sizes[] = {{WEFT_SHAPE(3, 2), WEFT_SHAPE(0, 2), 0},
                 {WEFT_SHAPE(3, 0), WEFT_SHAPE(2, 0), 2},
                 {WEFT_SHAPE(0), WEFT_SHAPE(0), 0}};
    for (size_t s = 0; s < SPECS; s++)
        for (size_t k = 0; k < 3; k++) {
            weft_tensor *p = formula_tensor(sizes[k].parameter, WEFT_DTYPE_FLOAT32, 1), *was = tensor_clone(p);
            weft_tensor *values = tensor_zeros(sizes[k].values, WEFT_DTYPE_FLOAT32);
            weft_tensor *rows = tensor_zeros(WEFT_SHAPE(sizes[k].rows), WEFT_DTYPE_INT64); /* row 0, twice */
            weft_optimizer *optimizer = optimizer_create((weft_tensors){&p, 1}, &specs[s], NULL);
            apply(optimizer, values, rows);
            assert_same_bits(p, was);
            if (specs[s].type != &weft_sgd_type) {
                weft_optimizer_state step;
                assert_int_equal(weft_optimizer_ref_state(optimizer, 0, &step), WEFT_OK);
                assert_true(weft_tensor_get_f64(step.tensor, 0) == 1);
                weft_tensor_unref(step.tensor);
            }
            weft_optimizer_unref(optimizer);
            weft_tensor *all[] = {p, was, values, rows};
            for (size_t i = 0; i < 4; i++)
                weft_tensor_unref(all[i]);
        }
}

static void refuse(weft_optimizer *optimizer, weft_gradient gradient, weft_status code, const char *text)
{
    weft_error *error = NULL;
    weft_gradients gradients = {&gradient, 1};
    assert_int_equal(weft_optimizer_apply(optimizer, gradients), code);
    assert_int_equal(weft_optimizer_check_gradients(optimizer, gradients, &error), code);
    assert_string_equal(weft_error_message(error), text);
    weft_error_unref(error);
}

static void sparse_gradients_that_do_not_fit_are_refused(void **state)
{
    weft_tensor *p = formula_tensor(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32, 1), *was = tensor_clone(p);
    weft_tensor *values = tensor_full(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32, 1), *rows = rows_of(2, (int64_t[]){0, 1});
    weft_tensor *high = rows_of(2, (int64_t[]){0, 4}), *low = rows_of(2, (int64_t[]){-1, 0});
    weft_tensor *three = rows_of(3, (int64_t[]){0, 1, 2}), *square = tensor_zeros(WEFT_SHAPE(2, 1), WEFT_DTYPE_INT64);
    weft_tensor *small = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT32),
                *doubles = tensor_zeros(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT64);
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
    refuse(sgd, (weft_gradient){values, high}, WEFT_ERR_INVALID, "gradient 0: rows[1] is 4, its parameter has 4 rows");
    refuse(sgd, (weft_gradient){values, low}, WEFT_ERR_INVALID, "gradient 0: rows[0] is -1, its parameter has 4 rows");
    refuse(sgd, (weft_gradient){values, three}, WEFT_ERR_SHAPE,
           "gradient 0: its values are [2, 2]; for these rows they must be [3, 2]");
    refuse(sgd, (weft_gradient){values, square}, WEFT_ERR_SHAPE, "gradient 0: its rows are [2, 1], not a vector");
    refuse(sgd, (weft_gradient){values, small}, WEFT_ERR_TYPE, "gradient 0: its rows are int32, not int64");
    refuse(sgd, (weft_gradient){doubles, rows}, WEFT_ERR_TYPE, "gradient 0 is float64, its parameter float32");
    refuse(sgd, (weft_gradient){NULL, rows}, WEFT_ERR_INVALID, "gradient 0 has rows and no values");
    assert_same_bits(p, was);
    weft_optimizer_unref(sgd);
    weft_tensor *all[] = {p, was, values, rows, high, low, three, square, small, doubles};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

static void options_that_move_every_row_refuse_sparse_gradients(void **state)
{
    const struct {
        weft_optimizer_spec spec;
        const char *text;
    } all[] = {
        {{.type = &weft_sgd_type, .lr = 1, .sgd.momentum = 0.5},
         "gradient 0 is sparse: SGD takes these only without momentum"},
        {{.type = &weft_sgd_type, .lr = 1, .sgd.weight_decay = 0.5},
         "gradient 0 is sparse: SGD takes these only without weight_decay"},
        {{.type = &weft_adam_type, .adam.weight_decay = 0.5},
         "gradient 0 is sparse: Adam takes these only without weight_decay"},
        {{.type = &weft_adamw_type, .adam.weight_decay = 0.5},
         "gradient 0 is sparse: AdamW takes these only without weight_decay"},
        {{.type = &weft_adagrad_type, .adagrad.weight_decay = 0.5},
         "gradient 0 is sparse: Adagrad takes these only without weight_decay"},
        {{.type = &weft_rmsprop_type}, "gradient 0 is sparse, and RMSprop takes dense ones only"},
        {{.type = &weft_rprop_type}, "gradient 0 is sparse, and Rprop takes dense ones only"},
        {{.type = &weft_adadelta_type}, "gradient 0 is sparse, and Adadelta takes dense ones only"},
        {{.type = &weft_adamax_type}, "gradient 0 is sparse, and Adamax takes dense ones only"},
    };
    weft_tensor *p = formula_tensor(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1),
                *values = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *rows = rows_of(1, (int64_t[]){2}), *scalar = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        weft_optimizer *optimizer = optimizer_create((weft_tensors){&p, 1}, &all[i].spec, NULL);
        refuse(optimizer, (weft_gradient){values, rows}, WEFT_ERR_UNSUPPORTED, all[i].text);
        weft_optimizer_unref(optimizer);
    }
    weft_optimizer *of_scalar =
        optimizer_create((weft_tensors){&scalar, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
    refuse(of_scalar, (weft_gradient){values, rows}, WEFT_ERR_SHAPE, "gradient 0 is sparse, its parameter a scalar");
    weft_optimizer_unref(of_scalar);
    weft_tensor *tensors[] = {p, values, rows, scalar};
    for (size_t i = 0; i < 4; i++)
        weft_tensor_unref(tensors[i]);
}

/* Several threads, also where a test may have one. */
static int take_threads(void **state)
{
    return setenv("WEFT_CPU_THREADS", "3", 1);
}

UNIT_MAIN_WITH(take_threads, NULL, sums_of_rows_are_those_of_their_places_in_order,
               order_and_strides_of_rows_do_not_matter, rows_step_as_dense_ones_and_others_stay,
               empty_sparse_gradients_step_nothing, sparse_gradients_that_do_not_fit_are_refused,
               options_that_move_every_row_refuse_sparse_gradients)
