/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_apply.c - steps from borrowed gradients: as accumulating them, without those that are missing, and
 * refusals. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

#define PARAMETERS 3

typedef weft_optimizer *(*make_fn)(weft_tensors parameters);

static weft_optimizer *make_sgd(weft_tensors parameters)
{
    return optimizer_create(
        parameters,
        &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1, .sgd = {.momentum = 0.9, .dampening = 0.5}}, NULL);
}

static weft_optimizer *make_adam(weft_tensors parameters)
{
    return optimizer_create(parameters,
                            &(weft_optimizer_spec){.type = &weft_adam_type, .lr = 0.1, .adam.amsgrad = true}, NULL);
}

static const make_fn kinds[] = {make_sgd, make_adam};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const weft_shape shapes[PARAMETERS] = {{1, {7}}, {2, {2, 3}}, {0, {0}}};

static void make_tensors(weft_tensor **p, uint64_t key)
{
    for (int k = 0; k < PARAMETERS; k++)
        p[k] = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, key + (uint64_t)k);
}

static void drop_tensors(weft_tensor **p)
{
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(p[k]);
}

static void assert_equal(weft_tensor *const *a, weft_tensor *const *b)
{
    for (int k = 0; k < PARAMETERS; k++)
        assert_memory_equal(weft_tensor_data(a[k]), weft_tensor_data(b[k]), weft_tensor_nbytes(a[k]));
}

static void apply_steps_as_accumulating_does(void **state)
{
    for (size_t kind = 0; kind < KINDS; kind++) {
        weft_tensor *p[PARAMETERS], *q[PARAMETERS], *g[PARAMETERS];
        make_tensors(p, 1);
        make_tensors(q, 1);
        make_tensors(g, 10);
        weft_tensor *turned = tensor_transpose(g[1], 0, 1), *flat = tensor_clone(turned);
        weft_tensor *strided = tensor_transpose(flat, 0, 1); /* [2, 3] again, of other strides */
        weft_optimizer *of_p = kinds[kind]((weft_tensors){p, PARAMETERS});
        weft_optimizer *of_q = kinds[kind]((weft_tensors){q, PARAMETERS});
        const weft_gradient lent[] = {{g[0], NULL}, {strided, NULL}, {g[2], NULL}};
        for (int step = 0; step < 5; step++) {
            assert_int_equal(weft_optimizer_accumulate(of_p, (weft_tensors){g, PARAMETERS}), WEFT_OK);
            assert_int_equal(weft_optimizer_step(of_p), WEFT_OK);
            assert_int_equal(weft_optimizer_apply(of_q, (weft_gradients){lent, PARAMETERS}), WEFT_OK);
            assert_equal(p, q);
        }
        weft_optimizer_unref(of_p);
        weft_optimizer_unref(of_q);
        weft_tensor_unref(turned);
        weft_tensor_unref(flat);
        weft_tensor_unref(strided);
        drop_tensors(p);
        drop_tensors(q);
        drop_tensors(g);
    }
}

/* What has no gradient in a step takes its next one as if that step had not been: value, momentum, bias correction. */
static void apply_leaves_alone_what_has_no_gradient(void **state)
{
    for (size_t kind = 0; kind < KINDS; kind++) {
        weft_tensor *p[PARAMETERS], *q[PARAMETERS], *g[PARAMETERS];
        make_tensors(p, 1);
        make_tensors(q, 1);
        make_tensors(g, 10);
        weft_optimizer *all = kinds[kind]((weft_tensors){p, PARAMETERS});
        weft_optimizer *some = kinds[kind]((weft_tensors){q, PARAMETERS});
        weft_gradient lent[PARAMETERS];
        for (int step = 0; step < 3; step++) {
            for (int k = 0; k < PARAMETERS; k++)
                lent[k] = (weft_gradient){g[k], NULL};
            assert_int_equal(weft_optimizer_apply(all, (weft_gradients){lent, PARAMETERS}), WEFT_OK);
            for (int turn = 0; turn < PARAMETERS; turn++) { /* one parameter at a time */
                memset(lent, 0, sizeof(lent));
                lent[turn].values = g[turn];
                assert_int_equal(weft_optimizer_apply(some, (weft_gradients){lent, PARAMETERS}), WEFT_OK);
            }
            assert_equal(p, q);
        }
        weft_optimizer_unref(all);
        weft_optimizer_unref(some);
        drop_tensors(p);
        drop_tensors(q);
        drop_tensors(g);
    }
}

static void apply_leaves_the_sums_alone(void **state)
{
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64),
                *one = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, 1);
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&one, 1}), WEFT_OK);
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){&(weft_gradient){one, NULL}, 1}), WEFT_OK);
    assert_true(weft_tensor_get_f64(p, 1) == -1);
    assert_int_equal(weft_optimizer_accumulated(sgd), 1);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
    assert_true(weft_tensor_get_f64(p, 1) == -2);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(p);
    weft_tensor_unref(one);
}

/* Sums too: what only NULL was added for is not stepped, and of two accumulations one that is missing counts as 0. */
static void sums_leave_alone_what_has_no_gradient(void **state)
{
    weft_tensor *p[2], *g[2];
    for (int k = 0; k < 2; k++) {
        p[k] = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32);
        g[k] = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 4);
    }
    weft_optimizer *adagrad = optimizer_create(
        (weft_tensors){p, 2}, &(weft_optimizer_spec){.type = &weft_adagrad_type, .lr = 1, .average = true}, NULL);
    weft_tensor *none = NULL, *first_alone[] = {g[0], none}, *nothing[] = {none, none};
    assert_int_equal(weft_optimizer_accumulate(adagrad, (weft_tensors){first_alone, 2}), WEFT_OK);
    assert_int_equal(weft_optimizer_accumulate(adagrad, (weft_tensors){nothing, 2}), WEFT_OK);
    assert_int_equal(weft_optimizer_step(adagrad), WEFT_OK);
    weft_optimizer_state item;
    assert_int_equal(weft_optimizer_state_count(adagrad), 2); /* the first parameter's step and sum */
    assert_int_equal(weft_optimizer_ref_state(adagrad, 1, &item), WEFT_OK);
    assert_true(item.parameter == 0 && weft_tensor_get_f64(item.tensor, 2) == 2 * 2);
    weft_tensor_unref(item.tensor);
    assert_true(weft_tensor_get_f64(p[0], 2) == -1 && weft_tensor_get_f64(p[1], 2) == 0);
    weft_optimizer_unref(adagrad);
    for (int k = 0; k < 2; k++) {
        weft_tensor_unref(p[k]);
        weft_tensor_unref(g[k]);
    }
}

static void apply_refuses_and_changes_nothing(void **state)
{
    weft_tensor *p[PARAMETERS], *q[PARAMETERS];
    make_tensors(p, 1);
    make_tensors(q, 1);
    weft_tensor *doubles = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT64);
    weft_optimizer *sgd = make_sgd((weft_tensors){p, PARAMETERS});
    weft_gradient lent[] = {{q[0], NULL}, {q[1], NULL}, {q[2], NULL}};
    assert_int_equal(weft_optimizer_apply(NULL, (weft_gradients){lent, PARAMETERS}), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){lent, 2}), WEFT_ERR_SHAPE);
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){NULL, PARAMETERS}), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){NULL, PARAMETERS}), WEFT_ERR_INVALID);
    lent[1].values = q[0];
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){lent, PARAMETERS}), WEFT_ERR_SHAPE);
    lent[1].values = doubles;
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){lent, PARAMETERS}), WEFT_ERR_TYPE);
    lent[1] = (weft_gradient){NULL, q[1]};
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){lent, PARAMETERS}), WEFT_ERR_INVALID);
    assert_equal(p, q);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(doubles);
    drop_tensors(p);
    drop_tensors(q);
}

UNIT_MAIN(apply_steps_as_accumulating_does, apply_leaves_alone_what_has_no_gradient, apply_leaves_the_sums_alone,
          sums_leave_alone_what_has_no_gradient, apply_refuses_and_changes_nothing)
