/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_state.c - state taken out and put into another optimizer, which goes on with the same bits; and state
 * that does not fit. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

#define PARAMETERS 3
#define STATE_MAX (4 * PARAMETERS)

static const weft_optimizer_spec specs[] = {
    {.type = &weft_sgd_type, .lr = 0.1, .sgd = {.momentum = 0.9, .dampening = 0.5}},
    {.type = &weft_sgd_type, .lr = 0.1},
    {.type = &weft_adam_type, .lr = 0.1},
    {.type = &weft_adamw_type, .lr = 0.1, .adam = {.weight_decay = 0.1, .amsgrad = true}},
    {.type = &weft_adagrad_type, .lr = 0.1, .adagrad = {.lr_decay = 0.1, .initial_accumulator_value = 1}},
    {.type = &weft_rmsprop_type, .rmsprop = {.momentum = 0.9, .centered = true}},
    {.type = &weft_rprop_type, .lr = 0.05},
    {.type = &weft_adadelta_type, .adadelta.rho = 0.8},
    {.type = &weft_adamax_type, .lr = 0.1},
};
#define SPECS (sizeof(specs) / sizeof(specs[0]))

static const weft_shape shapes[PARAMETERS] = {{1, {7}}, {2, {2, 3}}, {0, {0}}};

/* Steps `from` to `to`; the last parameter has no gradient before step 6. */
static void run(weft_optimizer *optimizer, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step < to; step++) {
        weft_gradient g[PARAMETERS] = {{0}};
        for (int k = 0; k < PARAMETERS - (step < 6); k++)
            g[k].values = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 10 * step + (uint64_t)k);
        assert_int_equal(weft_optimizer_apply(optimizer, (weft_gradients){g, PARAMETERS}), WEFT_OK);
        for (int k = 0; k < PARAMETERS; k++)
            weft_tensor_unref(g[k].values);
    }
}

static size_t take_state(const weft_optimizer *optimizer, weft_optimizer_state *items)
{
    size_t count = weft_optimizer_state_count(optimizer);
    assert_true(count <= STATE_MAX);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(weft_optimizer_ref_state(optimizer, i, &items[i]), WEFT_OK);
    return count;
}

static void drop_state(weft_optimizer_state *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(items[i].tensor);
}

static void state_lets_another_go_on_with_the_same_bits(void **state)
{
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *p[PARAMETERS], *q[PARAMETERS];
        weft_optimizer_state items[STATE_MAX];
        for (int k = 0; k < PARAMETERS; k++)
            p[k] = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 1 + (uint64_t)k);
        weft_optimizer *one = optimizer_create((weft_tensors){p, PARAMETERS}, &specs[s], NULL);
        run(one, 0, 5);
        for (int k = 0; k < PARAMETERS; k++)
            q[k] = tensor_clone(p[k]);
        weft_optimizer *other = optimizer_create((weft_tensors){q, PARAMETERS}, &specs[s], NULL);
        run(other, 0, 1); /* what it had before must go, without a trace */
        for (int k = 0; k < PARAMETERS; k++)
            assert_int_equal(weft_tensor_assign(q[k], p[k]), WEFT_OK);
        size_t count = take_state(one, items);
        assert_int_equal(weft_optimizer_set_state(other, items, count, NULL), WEFT_OK);
        drop_state(items, count);
        run(one, 5, 9);
        run(other, 5, 9);
        for (int k = 0; k < PARAMETERS; k++) {
            assert_memory_equal(weft_tensor_data(p[k]), weft_tensor_data(q[k]), weft_tensor_nbytes(p[k]));
            weft_tensor_unref(p[k]);
            weft_tensor_unref(q[k]);
        }
        weft_optimizer_unref(one);
        weft_optimizer_unref(other);
    }
}

static void state_has_pytorchs_names(void **state)
{
    static const char *const names[SPECS][5] = {{"momentum_buffer"},
                                                {NULL},
                                                {"step", "exp_avg", "exp_avg_sq"},
                                                {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                                {"step", "sum"},
                                                {"step", "square_avg", "momentum_buffer", "grad_avg"},
                                                {"step", "prev", "step_size"},
                                                {"step", "square_avg", "acc_delta"},
                                                {"step", "exp_avg", "exp_inf"}};
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *p[PARAMETERS];
        weft_optimizer_state item;
        size_t at = 0;
        for (int k = 0; k < PARAMETERS; k++)
            p[k] = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 1);
        weft_optimizer *one = optimizer_create((weft_tensors){p, PARAMETERS}, &specs[s], NULL);
        assert_int_equal(weft_optimizer_state_count(one), 0);
        run(one, 0, 3);
        for (size_t k = 0; k < PARAMETERS - 1; k++) { /* the last one was never stepped */
            for (int i = 0; names[s][i] != NULL; i++) {
                assert_int_equal(weft_optimizer_ref_state(one, at++, &item), WEFT_OK);
                assert_int_equal(item.parameter, k);
                assert_string_equal(item.name, names[s][i]);
                if (strcmp(item.name, "step") == 0)
                    assert_true(weft_tensor_get_f64(item.tensor, 0) == 3);
                else
                    assert_true(weft_tensor_same_shape(item.tensor, p[k]));
                weft_tensor_unref(item.tensor);
            }
        }
        assert_int_equal(weft_optimizer_state_count(one), at);
        assert_int_equal(weft_optimizer_ref_state(one, at, &item), WEFT_ERR_INVALID);
        weft_optimizer_unref(one);
        for (int k = 0; k < PARAMETERS; k++)
            weft_tensor_unref(p[k]);
    }
    assert_int_equal(weft_optimizer_state_count(NULL), 0);
}

static void refuse(weft_optimizer *adam, const weft_optimizer_state *items, size_t count, weft_status code,
                   const char *text)
{
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_set_state(adam, items, count, &error), code);
    assert_string_equal(weft_error_message(error), text);
    weft_error_unref(error);
}

/* Each of these is wrong in one place; after all of them the state is what it was. */
static void state_that_does_not_fit_changes_nothing(void **state)
{
    weft_tensor *p = formula_tensor(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *fits = tensor_full(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, 7),
                *flat = tensor_zeros(WEFT_SHAPE(6), WEFT_DTYPE_FLOAT32);
    weft_tensor *doubles = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT64);
    weft_tensor *two = tensor_full(WEFT_SCALAR, WEFT_DTYPE_INT64, 2),
                *half = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 0.5);
    weft_tensor *minus = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, -1);
    weft_optimizer *adam =
        optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_adam_type}, NULL);
    const weft_optimizer_state good[] = {{0, "exp_avg_sq", fits}, {0, "step", two}, {0, "exp_avg", fits}};
    assert_int_equal(weft_optimizer_set_state(adam, good, 3, NULL), WEFT_OK);
    const struct {
        weft_optimizer_state item; /* instead of the second */
        weft_status code;
        const char *text;
    } wrong[] = {
        {{1, "step", two}, WEFT_ERR_NOT_FOUND, "step of parameter 1: there are 1 parameters"},
        {{0, "sum", fits}, WEFT_ERR_NOT_FOUND, "parameter 0: Adam with these options keeps no 'sum'"},
        {{0, "max_exp_avg_sq", fits},
         WEFT_ERR_NOT_FOUND,
         "parameter 0: Adam with these options keeps no 'max_exp_avg_sq'"},
        {{0, "exp_avg", fits}, WEFT_ERR_EXISTS, "parameter 0: exp_avg is given twice"},
        {{0, "exp_avg", flat}, WEFT_ERR_SHAPE, "parameter 0: exp_avg is [6], the parameter [2, 3]"},
        {{0, "exp_avg", doubles}, WEFT_ERR_TYPE, "parameter 0: exp_avg is float64, the parameter float32"},
        {{0, "step", half}, WEFT_ERR_INVALID, "parameter 0: step is 0.5, not a whole number from 0 on"},
        {{0, "step", minus}, WEFT_ERR_INVALID, "parameter 0: step is -1, not a whole number from 0 on"},
        {{0, "step", fits}, WEFT_ERR_SHAPE, "parameter 0: step has 6 elements, not 1"},
        {{0, NULL, two}, WEFT_ERR_INVALID, "a name or a tensor of the state is NULL"},
        {{0, "step", NULL}, WEFT_ERR_INVALID, "a name or a tensor of the state is NULL"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        weft_optimizer_state items[] = {good[0], wrong[i].item, good[2]};
        refuse(adam, items, 3, wrong[i].code, wrong[i].text);
    }
    refuse(adam, good, 2, WEFT_ERR_INVALID, "parameter 0: its exp_avg is missing");
    refuse(adam, good, 1, WEFT_ERR_INVALID, "parameter 0: its step is missing");
    refuse(adam, (weft_optimizer_state[]){good[1], good[1]}, 2, WEFT_ERR_EXISTS, "parameter 0: step is given twice");
    refuse(adam, NULL, 1, WEFT_ERR_INVALID, "weft_optimizer_set_state: items is NULL");
    weft_optimizer_state items[STATE_MAX];
    assert_int_equal(take_state(adam, items), 3);
    assert_true(weft_tensor_get_f64(items[0].tensor, 0) == 2 && weft_tensor_get_f64(items[1].tensor, 5) == 7);
    drop_state(items, 3);
    assert_int_equal(weft_optimizer_set_state(adam, NULL, 0, NULL), WEFT_OK); /* as new */
    assert_int_equal(weft_optimizer_state_count(adam), 0);
    weft_optimizer_unref(adam);
    weft_tensor *all[] = {p, fits, flat, doubles, two, half, minus};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
}

UNIT_MAIN(state_lets_another_go_on_with_the_same_bits, state_has_pytorchs_names,
          state_that_does_not_fit_changes_nothing)
