/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_embedding.c - a table learns from the sparse gradients of its lookups what it learns from dense ones:
 * two lookups of one table in a pass, indices that stand several times, beside a dense parameter, some steps without
 * the table.
 */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>

#define ROWS 50
#define WIDTH 4
#define LOOKUPS 12
#define STEPS 12

static const weft_optimizer_spec specs[] = {
    {.type = &weft_sgd_type, .lr = 0.5, .max_norm = 0.2},
    {.type = &weft_adagrad_type, .lr = 0.5, .adagrad.lr_decay = 0.1},
};
#define SPECS (sizeof(specs) / sizeof(specs[0]))

/* The loss of a step: two lookups of the table, weighted; or every third time of the weights alone. */
static weft_tensor *loss_of(weft_tape *t, weft_tensor *table, weft_tensor *weights, uint64_t step, bool sparse)
{
    const weft_embedding_options how = {.sparse = sparse};
    weft_tensor *index = weft_tape_take(t, tensor_empty(WEFT_SHAPE(LOOKUPS), WEFT_DTYPE_INT64));
    weft_tensor *other = weft_tape_take(t, tensor_empty(WEFT_SHAPE(3, LOOKUPS / 3), WEFT_DTYPE_INT64));
    if (step % 3 == 2)
        return weft_sum(t, weft_mul(t, weights, weights));
    formula_fill_below(index, 10 + step, ROWS / 4);
    formula_fill_below(other, 20 + step, ROWS);
    weft_tensor *a = weft_mul(t, weft_embedding(t, table, index, &how), weights);
    weft_tensor *b = weft_embedding(t, table, other, &how);
    return weft_add(t, weft_mean(t, weft_mul(t, a, a)), weft_mean(t, weft_mul(t, b, b)));
}

static void learn(const weft_optimizer_spec *spec, bool sparse, weft_tensor *table, weft_tensor *weights)
{
    weft_tensor *p[] = {table, weights};
    weft_optimizer *optimizer = optimizer_create((weft_tensors){p, 2}, spec, NULL);
    for (int k = 0; k < 2; k++)
        weft_tensor_set_requires_grad(p[k], true);
    for (uint64_t step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_backward(t, loss_of(t, table, weights, step, sparse));
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        weft_gradients gradients = weft_tape_gradients(t, (weft_tensors){p, 2});
        assert_int_equal(gradients.items[0].rows != NULL, sparse && step % 3 != 2);
        assert_int_equal(!gradients.items[0].values, step % 3 == 2);
        assert_int_equal(weft_optimizer_apply(optimizer, gradients), WEFT_OK);
        weft_tape_close(t);
    }
    weft_optimizer_unref(optimizer);
}

static void a_table_learns_from_rows_what_it_learns_from_dense_gradients(void **state)
{
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *tables[2], *weights[2], *first = formula_tensor(WEFT_SHAPE(ROWS, WIDTH), WEFT_DTYPE_FLOAT64, 1);
        double moved = 0;
        for (int sparse = 0; sparse < 2; sparse++) {
            tables[sparse] = tensor_clone(first);
            weights[sparse] = formula_tensor(WEFT_SHAPE(WIDTH), WEFT_DTYPE_FLOAT64, 2);
            learn(&specs[s], sparse != 0, tables[sparse], weights[sparse]);
        }
        for (int64_t i = 0; i < ROWS * WIDTH; i++) {
            double dense = weft_tensor_get_f64(tables[0], i);
            assert_true(fabs(weft_tensor_get_f64(tables[1], i) - dense) < 1e-12);
            moved += fabs(dense - weft_tensor_get_f64(first, i));
        }
        for (int64_t i = 0; i < WIDTH; i++)
            assert_true(fabs(weft_tensor_get_f64(weights[1], i) - weft_tensor_get_f64(weights[0], i)) < 1e-12);
        assert_true(moved > 0.1);
        weft_tensor *all[] = {tables[0], tables[1], weights[0], weights[1], first};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            weft_tensor_unref(all[i]);
    }
}

UNIT_MAIN(a_table_learns_from_rows_what_it_learns_from_dense_gradients)
