/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_groups.c - groups of parameters, each with its options, step as optimizers of their own; specs, and
 * what is wrong with them. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"
#include "said.h"

#include <math.h>
#include <string.h>

#define PARAMETERS 3 /* of which the first group has two */

static const weft_optimizer_spec specs[][2] = {
    {{.type = &weft_sgd_type, .lr = 0.1, .sgd = {.momentum = 0.9, .weight_decay = 0.1}},
     {.type = &weft_sgd_type, .lr = 0.01}},
    {{.type = &weft_adam_type, .lr = 0.1},
     {.type = &weft_adam_type, .lr = 0.2, .maximize = true, .adam = {.weight_decay = 0.1, .amsgrad = true}}},
    {{.type = &weft_adamw_type, .adam.weight_decay = 0.5},
     {.type = &weft_adamw_type, .adam = {.beta1 = 0.5, .eps = 0.1}}},
    {{.type = &weft_adagrad_type, .lr = 0.1},
     {.type = &weft_adagrad_type, .adagrad = {.lr_decay = 0.5, .initial_accumulator_value = 2}}},
};
#define SPECS (sizeof(specs) / sizeof(specs[0]))

static void make_tensors(weft_tensor **p, uint64_t key)
{
    for (int k = 0; k < PARAMETERS; k++)
        p[k] = formula_tensor(WEFT_SHAPE(3 + k), WEFT_DTYPE_FLOAT32, key + (uint64_t)k);
}

static void drop_tensors(weft_tensor **p)
{
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(p[k]);
}

static void apply(weft_optimizer *optimizer, weft_tensor *const *gradients, size_t count)
{
    weft_gradient lent[PARAMETERS] = {{0}};
    for (size_t k = 0; k < count; k++)
        lent[k].values = gradients[k];
    assert_int_equal(weft_optimizer_apply(optimizer, (weft_gradients){lent, count}), WEFT_OK);
}

static void groups_step_as_optimizers_of_their_own(void **state)
{
    for (size_t s = 0; s < SPECS; s++) {
        weft_tensor *p[PARAMETERS], *q[PARAMETERS], *g[PARAMETERS];
        make_tensors(p, 1);
        make_tensors(q, 1);
        weft_optimizer *joined = optimizer_create((weft_tensors){p, 2}, &specs[s][0], NULL);
        assert_int_equal(weft_optimizer_add_group(joined, (weft_tensors){p + 2, 1}, &specs[s][1], NULL), WEFT_OK);
        weft_optimizer *first = optimizer_create((weft_tensors){q, 2}, &specs[s][0], NULL);
        weft_optimizer *second = optimizer_create((weft_tensors){q + 2, 1}, &specs[s][1], NULL);
        for (uint64_t step = 0; step < 6; step++) {
            make_tensors(g, 10 + 3 * step);
            apply(joined, g, 3);
            apply(first, g, 2);
            apply(second, g + 2, 1);
            drop_tensors(g);
            if (step == 2) {
                assert_int_equal(weft_optimizer_set_group_lr(joined, 1, 0.5), WEFT_OK);
                assert_int_equal(weft_optimizer_set_lr(second, 0.5), WEFT_OK);
            }
        }
        for (int k = 0; k < PARAMETERS; k++)
            assert_memory_equal(weft_tensor_data(p[k]), weft_tensor_data(q[k]), weft_tensor_nbytes(p[k]));
        assert_int_equal(weft_optimizer_state_count(joined),
                         weft_optimizer_state_count(first) + weft_optimizer_state_count(second));
        weft_optimizer_unref(joined);
        weft_optimizer_unref(first);
        weft_optimizer_unref(second);
        drop_tensors(p);
        drop_tensors(q);
    }
}

static void groups_tell_their_parameters_rates_and_specs(void **state)
{
    weft_tensor *p[PARAMETERS];
    weft_optimizer_spec spec;
    make_tensors(p, 1);
    weft_optimizer *adamw = optimizer_create((weft_tensors){p, 2}, &specs[2][0], NULL);
    assert_int_equal(weft_optimizer_add_group(adamw, (weft_tensors){p + 2, 1}, &specs[2][1], NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_group_count(adamw), 2);
    assert_int_equal(weft_optimizer_parameters(adamw).count, 3);
    assert_int_equal(weft_optimizer_group_parameters(adamw, 0).count, 2);
    weft_tensors of_second = weft_optimizer_group_parameters(adamw, 1);
    assert_int_equal(of_second.count, 1);
    assert_ptr_equal(of_second.items[0], p[2]);
    assert_int_equal(weft_optimizer_group_parameters(adamw, 2).count, 0);
    assert_int_equal(weft_optimizer_set_group_lr(adamw, 1, 0.25), WEFT_OK);
    assert_true(weft_optimizer_lr(adamw) == 1e-3 && weft_optimizer_group_lr(adamw, 1) == 0.25);
    assert_int_equal(weft_optimizer_get_spec(adamw, 1, &spec), WEFT_OK);
    assert_ptr_equal(spec.type, &weft_adamw_type);
    assert_true(spec.lr == 0.25 && spec.adam.beta1 == 0.5 && spec.adam.beta2 == 0.999 && spec.adam.eps == 0.1);
    assert_int_equal(weft_optimizer_set_lr(adamw, 0.125), WEFT_OK); /* all groups' */
    assert_true(weft_optimizer_group_lr(adamw, 0) == 0.125 && weft_optimizer_group_lr(adamw, 1) == 0.125);
    assert_int_equal(weft_optimizer_get_spec(adamw, 2, &spec), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_set_group_lr(adamw, 2, 1), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_set_group_lr(adamw, 0, NAN), WEFT_ERR_INVALID);
    assert_true(weft_optimizer_group_lr(adamw, 2) == 0);
    weft_optimizer_unref(adamw);
    drop_tensors(p);
}

/* Of every kind: set later, and in the options. A step then moves no parameter, counts, and its state goes on. */
static void a_rate_of_zero_is_a_rate(void **state)
{
    const weft_optimizer_type *types[] = {&weft_sgd_type,     &weft_adam_type,  &weft_adamw_type,    &weft_adagrad_type,
                                          &weft_rmsprop_type, &weft_rprop_type, &weft_adadelta_type, &weft_adamax_type};
    for (size_t type = 0; type < sizeof(types) / sizeof(types[0]); type++)
        for (int later = 0; later < 2; later++) {
            weft_tensor *p[PARAMETERS], *q[PARAMETERS], *g[PARAMETERS];
            weft_optimizer_spec spec = {.type = types[type], .has_lr = true}, found;
            make_tensors(p, 1);
            make_tensors(q, 1);
            make_tensors(g, 10);
            if (later)
                spec.lr = 0.5;
            weft_optimizer *optimizer = optimizer_create((weft_tensors){p, PARAMETERS}, &spec, NULL);
            assert_non_null(optimizer);
            if (later)
                assert_int_equal(weft_optimizer_set_lr(optimizer, 0), WEFT_OK);
            assert_true(weft_optimizer_lr(optimizer) == 0);
            apply(optimizer, g, PARAMETERS);
            for (int k = 0; k < PARAMETERS && types[type] != &weft_rprop_type;
                 k++) /* its steps have lengths of their own */
                assert_memory_equal(weft_tensor_data(p[k]), weft_tensor_data(q[k]), weft_tensor_nbytes(p[k]));
            assert_true(types[type] == &weft_sgd_type || weft_optimizer_state_count(optimizer) > 0);
            assert_int_equal(weft_optimizer_get_spec(optimizer, 0, &found), WEFT_OK);
            weft_optimizer *other = optimizer_create((weft_tensors){q, PARAMETERS}, &found, NULL);
            assert_true(found.has_lr && weft_optimizer_lr(other) == 0);
            assert_int_equal(weft_optimizer_set_lr(optimizer, 0.5), WEFT_OK);
            apply(optimizer, g, PARAMETERS);
            assert_true(weft_tensor_get_f64(p[0], 0) != weft_tensor_get_f64(q[0], 0));
            assert_int_equal(weft_optimizer_set_lr(optimizer, -1e-9), WEFT_ERR_INVALID);
            assert_int_equal(weft_optimizer_set_lr(optimizer, INFINITY), WEFT_ERR_INVALID);
            assert_true(weft_optimizer_lr(optimizer) == 0.5);
            weft_optimizer_unref(optimizer);
            weft_optimizer_unref(other);
            drop_tensors(p);
            drop_tensors(q);
            drop_tensors(g);
        }
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_optimizer *adam = optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_adam_type},
                                            NULL); /* without has_lr 0 stands for the default */
    weft_optimizer *sgd =
        optimizer_create((weft_tensors){&p, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0}, NULL);
    assert_true(weft_optimizer_lr(adam) == 1e-3 && weft_optimizer_lr(sgd) == 1e-3);
    weft_optimizer_unref(adam);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(p);
}

static void refuse_group(weft_optimizer *optimizer, weft_tensor *const *p, size_t count, weft_optimizer_spec spec,
                         weft_status code, const char *text)
{
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_add_group(optimizer, (weft_tensors){p, count}, &spec, &error), code);
    assert_string_equal(weft_error_message(error), text);
    weft_error_unref(error);
}

static void groups_that_do_not_fit_are_refused(void **state)
{
    const char *whole =
        "update, average, max_norm, error_if_nonfinite and pin_timeout_ms of a group must be the first group's";
    weft_tensor *p[PARAMETERS], *integers = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_INT64);
    make_tensors(p, 1);
    weft_optimizer *sgd = optimizer_create((weft_tensors){p, 2}, &specs[0][0], NULL);
    refuse_group(sgd, p + 2, 1, specs[1][0], WEFT_ERR_INVALID, "a group of Adam in an optimizer of type SGD");
    refuse_group(sgd, p + 1, 2, specs[0][0], WEFT_ERR_INVALID, "parameter 0 is parameter 1 of the optimizer already");
    refuse_group(sgd, (weft_tensor *[]){p[2], p[2]}, 2, specs[0][0], WEFT_ERR_INVALID,
                 "parameters 0 and 1 are one tensor");
    refuse_group(sgd, &integers, 1, specs[0][0], WEFT_ERR_TYPE,
                 "parameter 0 is int64; optimizers step float32 and float64");
    refuse_group(sgd, NULL, 0, specs[0][0], WEFT_ERR_INVALID, "there are no parameters");
    refuse_group(sgd, NULL, 3, specs[0][0], WEFT_ERR_INVALID, "the list of 3 parameters is NULL");
    refuse_group(sgd, p + 2, 1, (weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .average = true},
                 WEFT_ERR_INVALID, whole);
    refuse_group(sgd, p + 2, 1, (weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .max_norm = 1}, WEFT_ERR_INVALID,
                 whole);
    refuse_group(sgd, p + 2, 1, (weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .error_if_nonfinite = true},
                 WEFT_ERR_INVALID, whole);
    refuse_group(sgd, p + 2, 1, (weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1, .pin_timeout_ms = 1},
                 WEFT_ERR_INVALID, whole);
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){p, 2}), WEFT_OK);
    refuse_group(sgd, p + 2, 1, specs[0][1], WEFT_ERR_STATE, "1 gradients are accumulated: step or zero them first");
    assert_int_equal(weft_optimizer_add_group(NULL, (weft_tensors){p, 1}, &specs[0][0], NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_add_group(sgd, (weft_tensors){p, 1}, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_group_count(sgd), 1);
    assert_int_equal(weft_optimizer_parameters(sgd).count, 2);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(integers);
    drop_tensors(p);
}

static void specs_that_are_wrong_are_named(void **state)
{
    const struct {
        weft_optimizer_spec spec;
        weft_status code;
        const char *text;
    } wrong[] = {
        {{.lr = 1}, WEFT_ERR_INVALID, "the type of the optimizer is NULL: set it, to &weft_sgd_type for example"},
        {{.type = &weft_sgd_type, .lr = 1, .adam = {.beta2 = 0.5}},
         WEFT_ERR_INVALID,
         "SGD: adam.beta2 is 0.5, an option of another type"},
        {{.type = &weft_adam_type, .own = {[2] = 3}},
         WEFT_ERR_INVALID,
         "Adam: own[2] is 3, but the type has 0 options of its own"},
        {{.type = &weft_sgd_type, .sgd.momentum = -1},
         WEFT_ERR_INVALID,
         "SGD: momentum is -1, it must be finite and not negative"},
        {{.type = &weft_sgd_type, .lr = -0.5}, WEFT_ERR_INVALID, "SGD: lr is -0.5, it must be finite and not negative"},
        {{.type = &weft_adam_type, .has_lr = true, .lr = -1},
         WEFT_ERR_INVALID,
         "Adam: lr is -1, it must be finite and not negative"},
        {{.type = &weft_rprop_type, .lr = INFINITY},
         WEFT_ERR_INVALID,
         "Rprop: lr is inf, it must be finite and not negative"},
        {{.type = &weft_sgd_type, .lr = 1, .sgd.momentum = -1},
         WEFT_ERR_INVALID,
         "SGD: momentum is -1, it must be finite and not negative"},
        {{.type = &weft_sgd_type, .lr = 1, .sgd.dampening = INFINITY},
         WEFT_ERR_INVALID,
         "SGD: dampening is inf, it must be finite"},
        {{.type = &weft_sgd_type, .lr = 1, .sgd.nesterov = true},
         WEFT_ERR_INVALID,
         "SGD: momentum is 0, it must be positive with nesterov"},
        {{.type = &weft_sgd_type, .lr = 1, .sgd = {.momentum = 0.5, .dampening = 0.5, .nesterov = true}},
         WEFT_ERR_INVALID,
         "SGD: dampening is 0.5, it must be 0 with nesterov"},
        {{.type = &weft_sgd_type, .lr = 1, .max_norm = -2},
         WEFT_ERR_INVALID,
         "SGD: max_norm is -2, it must be finite and not negative"},
        {{.type = &weft_sgd_type, .lr = 1, .pin_timeout_ms = -7},
         WEFT_ERR_INVALID,
         "SGD: pin_timeout_ms is -7, it must be WEFT_FOREVER (-1) or not negative"},
        {{.type = &weft_adamw_type, .adam.beta2 = 1},
         WEFT_ERR_INVALID,
         "AdamW: beta2 is 1, it must be between 0 and 1"},
        {{.type = &weft_adagrad_type, .adagrad.lr_decay = -0.5},
         WEFT_ERR_INVALID,
         "Adagrad: lr_decay is -0.5, it must be finite and not negative"},
        {{.type = &weft_rmsprop_type, .rmsprop.alpha = 1.5},
         WEFT_ERR_INVALID,
         "RMSprop: alpha is 1.5, it must be between 0 and 1"},
        {{.type = &weft_rmsprop_type, .rmsprop.momentum = -1},
         WEFT_ERR_INVALID,
         "RMSprop: momentum is -1, it must be finite and not negative"},
        {{.type = &weft_rprop_type, .rprop.eta_plus = 1},
         WEFT_ERR_INVALID,
         "Rprop: eta_plus is 1, it must be finite and above 1"},
        {{.type = &weft_rprop_type, .rprop = {.step_min = 2, .step_max = 1}},
         WEFT_ERR_INVALID,
         "Rprop: step_max is 1, it must be finite and at least step_min"},
        {{.type = &weft_adadelta_type, .adadelta.rho = -0.1},
         WEFT_ERR_INVALID,
         "Adadelta: rho is -0.1, it must be between 0 and 1"},
        {{.type = &weft_adamax_type, .adamax.eps = -1},
         WEFT_ERR_INVALID,
         "Adamax: eps is -1, it must be finite and not negative"},
        {{.type = &weft_adagrad_type, .update = (weft_update)5}, WEFT_ERR_INVALID, "Adagrad: there is no update 5"},
    };
    weft_tensor *p = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        weft_error *error = NULL;
        assert_null(optimizer_create((weft_tensors){&p, 1}, &wrong[i].spec, &error));
        assert_int_equal(weft_error_code(error), wrong[i].code);
        assert_string_equal(weft_error_message(error), wrong[i].text);
        weft_error_unref(error);
    }
    assert_null(optimizer_create((weft_tensors){&p, 1}, NULL, NULL));
    weft_tensor_unref(p);
}

static void wrong_arguments_are_named(void **state)
{
    weft_tensor *p[PARAMETERS];
    weft_optimizer_spec spec;
    weft_optimizer_state item;
    double norm;
    make_tensors(p, 1);
    weft_optimizer *sgd = optimizer_create((weft_tensors){p, 2}, &specs[0][0], NULL);
    REFUSES(weft_optimizer_set_lr(sgd, NAN), WEFT_ERR_INVALID, "weft_optimizer_set_lr: lr is nan");
    REFUSES(weft_optimizer_set_lr(NULL, 1), WEFT_ERR_INVALID, "weft_optimizer_set_lr: the optimizer is NULL");
    REFUSES(weft_optimizer_set_group_lr(sgd, 4, 1), WEFT_ERR_INVALID, "there is no group 4: the optimizer has 1");
    REFUSES(weft_optimizer_set_group_lr(sgd, 0, -1), WEFT_ERR_INVALID, "weft_optimizer_set_group_lr: lr is -1");
    REFUSES(weft_optimizer_get_spec(sgd, 3, &spec), WEFT_ERR_INVALID, "weft_optimizer_get_spec: there is no group 3");
    REFUSES(weft_optimizer_get_spec(sgd, 0, NULL), WEFT_ERR_INVALID, "weft_optimizer_get_spec: spec is NULL");
    REFUSES(weft_optimizer_ref_state(sgd, 99, &item), WEFT_ERR_INVALID, "there is no state 99: the optimizer has");
    REFUSES(weft_optimizer_ref_state(sgd, 0, NULL), WEFT_ERR_INVALID, "weft_optimizer_ref_state: out is NULL");
    REFUSES(weft_optimizer_step(sgd), WEFT_ERR_STATE, "weft_optimizer_step: no gradients");
    REFUSES(weft_optimizer_step(NULL), WEFT_ERR_INVALID, "weft_optimizer_step: the optimizer is NULL");
    REFUSES(weft_optimizer_apply(NULL, (weft_gradients){0}), WEFT_ERR_INVALID, "weft_optimizer_apply: the optimizer");
    REFUSES(weft_optimizer_accumulate(NULL, (weft_tensors){0}), WEFT_ERR_INVALID, "the optimizer is NULL");
    REFUSES(weft_gradients_norm((weft_gradients){NULL, 2}, &norm), WEFT_ERR_INVALID,
            "weft_gradients_norm: the list of 2 gradients is NULL");
    REFUSES(weft_gradients_norm((weft_gradients){0}, NULL), WEFT_ERR_INVALID, "weft_gradients_norm: norm is NULL");
    REFUSES(weft_optimizer_update_run(NULL, NULL, NULL), WEFT_ERR_INVALID, "update is NULL");
    REFUSES(weft_optimizer_save(NULL, "x", NULL), WEFT_ERR_INVALID, "weft_optimizer_save: the optimizer is NULL");
    REFUSES(weft_optimizer_load(sgd, NULL, NULL), WEFT_ERR_INVALID, "weft_optimizer_load: path is NULL");
    REFUSES(weft_optimizer_set_state(sgd, NULL, 1, NULL), WEFT_ERR_INVALID, "weft_optimizer_set_state: items is NULL");
    REFUSES(weft_optimizer_add_group(sgd, (weft_tensors){0}, NULL, NULL), WEFT_ERR_INVALID,
            "weft_optimizer_add_group: spec is NULL");
    weft_optimizer_spec wrong = {.type = &weft_sgd_type, .sgd.momentum = -2};
    REFUSES(optimizer_create((weft_tensors){p, 2}, &wrong, NULL), NULL, "SGD: momentum is -2");
    REFUSES(weft_optimizer_add_group(sgd, (weft_tensors){p + 2, 1}, &wrong, NULL), WEFT_ERR_INVALID,
            "SGD: momentum is -2");
    REFUSES(weft_optimizer_apply(sgd, (weft_gradients){0}), WEFT_ERR_SHAPE, "0 gradients for 2 parameters");
    REFUSES(weft_optimizer_accumulate(sgd, (weft_tensors){0}), WEFT_ERR_SHAPE, "0 gradients for 2 parameters");
    weft_optimizer_unref(sgd);
    for (size_t i = 0; i < PARAMETERS; i++)
        weft_tensor_unref(p[i]);
}

UNIT_MAIN(groups_step_as_optimizers_of_their_own, groups_tell_their_parameters_rates_and_specs,
          a_rate_of_zero_is_a_rate, groups_that_do_not_fit_are_refused, specs_that_are_wrong_are_named,
          wrong_arguments_are_named)
