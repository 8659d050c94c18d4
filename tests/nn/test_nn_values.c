/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_values.c - modules from values to values, modes of tapes, children that stand at several places. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static weft_tape *recording(void)
{
    return weft_tape_open(&(weft_tape_options){.record = true});
}

static double first(const weft_tensor *x)
{
    assert_non_null(x);
    return weft_tensor_get_f64(x, 0);
}

/* ---- Values ---- */

/* (x, picks int64, factor) -> (factor x gain [picks], the number of picks): a float and an integer tensor, and a
 * scalar. */
static weft_status pick_call(weft_tape *t, weft_module *self, weft_args inputs, weft_values *results)
{
    weft_tensor *x = weft_args_tensor(inputs, 0), *picks = weft_args_tensor(inputs, 1);
    if (inputs.count != 3 || inputs.items[2].type != WEFT_TYPE_F64)
        return WEFT_ERR_TYPE;
    x = weft_scale(t, weft_mul(t, x, weft_module_find(self, "gain")), inputs.items[2].as.f64);
    weft_status status = weft_values_add(results, weft_of_tensor(weft_take_along_dim(t, x, 0, picks)));
    return status != WEFT_OK ? status : weft_values_add(results, weft_of_i64(weft_tensor_numel(picks)));
}

static const weft_module_type pick_type = {.name = "Pick", .call = pick_call};

static weft_module *make_pick(void)
{
    weft_module *m = module_create(&pick_type, NULL, NULL);
    weft_module_add_parameter(m, "gain", tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 3));
    return m;
}

static void module_takes_and_gives_values(void **state)
{
    weft_module *m = make_pick();
    weft_tensor *x = tensor_arange(5, WEFT_DTYPE_FLOAT32);
    weft_tensor *picks = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){4, 1});
    weft_tape *t = recording();
    weft_args out = weft_module_call(t, m, WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(picks), weft_of_f64(10)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(out.count, 2);
    assert_true(first(weft_args_tensor(out, 0)) == 120);
    assert_true(out.items[1].type == WEFT_TYPE_I64 && out.items[1].as.i64 == 2);
    assert_null(weft_args_tensor(out, 1));
    assert_null(weft_args_tensor(out, 2));
    weft_backward(t, weft_sum(t, weft_args_tensor(out, 0)));
    assert_true(first(weft_tape_grad(t, weft_module_find(m, "gain"))) == 50);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor_unref(picks);
    weft_module_unref(m);
}

static void gates_are_modules(void **state)
{
    weft_module *gates[] = {sigmoid_create(), tanh_create()};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_tape *t = weft_tape_open(NULL);
    assert_true(first(weft_module_forward(t, gates[0], x)) == 0.5 && first(weft_module_forward(t, gates[1], x)) == 0);
    assert_string_equal(weft_module_type_name(gates[1]), "Tanh");
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(gates[0]);
    weft_module_unref(gates[1]);
}

/* Running statistics of a channel with a NaN are NaN, of small and of large planes; the other channel's are not. */
static void batch_norm_lets_a_nan_through(void **state)
{
    const weft_shape shapes[] = {{4, {3, 2, 1, 1}}, {4, {3, 2, 2, 2}}, {4, {3, 2, 40, 40}}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        weft_module *norm = batch_norm2d_create(2, 0, 0, NULL);
        weft_tensor *x = formula_tensor(shapes[i], WEFT_DTYPE_FLOAT32, 1);
        ((float *)weft_tensor_data(x))[weft_tensor_numel(x) / 6] = NAN; /* channel 1 of the first image */
        weft_tape *t = weft_tape_open(NULL);
        assert_non_null(weft_module_forward(t, norm, x));
        const char *names[] = {"running_mean", "running_var"};
        for (int k = 0; k < 2; k++) {
            const weft_tensor *running = weft_module_find(norm, names[k]);
            assert_true(isfinite(weft_tensor_get_f64(running, 0)) && isnan(weft_tensor_get_f64(running, 1)));
        }
        weft_tape_close(t);
        weft_tensor_unref(x);
        weft_module_unref(norm);
    }
}

static void one_tensor_is_a_list_of_one_and_back(void **state)
{
    weft_module *linear = linear_create(3, 2, false, 1, NULL);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *t = recording();
    weft_tensor *y = weft_module_forward(t, linear, x);
    weft_args out = weft_module_call(t, linear, WEFT_VALUES(weft_of_tensor(x)));
    assert_int_equal(out.count, 1);
    assert_memory_equal(weft_tensor_data(weft_args_tensor(out, 0)), weft_tensor_data(y), weft_tensor_nbytes(y));
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(linear);
}

/* What a module gives, all of it, is what the next in a sequence takes. */
static weft_status swap_call(weft_tape *t, weft_module *self, weft_args inputs, weft_values *results)
{
    (void)t, (void)self;
    if (inputs.count != 2)
        return WEFT_ERR_INVALID;
    weft_status status = weft_values_add(results, inputs.items[1]);
    return status != WEFT_OK ? status : weft_values_add(results, inputs.items[0]);
}

static void sequence_hands_on_all_values(void **state)
{
    static const weft_module_type swap_type = {.name = "Swap", .call = swap_call};
    weft_module *parts[] = {module_create(&swap_type, NULL, NULL), module_create(&swap_type, NULL, NULL),
                            module_create(&swap_type, NULL, NULL)};
    weft_module *m = sequential_create(parts, 3, NULL);
    weft_tape *t = weft_tape_open(NULL);
    weft_args out = weft_module_call(t, m, WEFT_VALUES(weft_of_i64(1), weft_of_string("two")));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(out.count == 2 && out.items[0].type == WEFT_TYPE_STRING && out.items[1].as.i64 == 1);
    weft_tape_close(t);
    weft_module_unref(m);
}

static weft_status fail_call(weft_tape *t, weft_module *self, weft_args inputs, weft_values *results)
{
    (void)t, (void)self, (void)inputs, (void)results;
    return WEFT_ERR_UNSUPPORTED;
}

static void assert_call_fails(weft_module *m, weft_args inputs, weft_status code, const char *part)
{
    weft_tape *t = recording();
    assert_int_equal(weft_module_call(t, m, inputs).count, 0);
    assert_int_equal(weft_tape_status(t), code);
    if (!strstr(weft_error_message(weft_tape_error(t)), part))
        fail_msg("\"%s\" is not in \"%s\"", part, weft_error_message(weft_tape_error(t)));
    assert_int_equal(weft_module_call(t, m, inputs).count, 0); /* the first failure stays */
    weft_tape_close(t);
}

static void wrong_values_fail_the_tape_by_the_modules_name(void **state)
{
    static const weft_module_type fail_type = {.name = "Failing", .call = fail_call};
    weft_module *linear = linear_create(3, 2, false, 1, NULL), *failing = module_create(&fail_type, NULL, NULL);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT32, 1);
    assert_call_fails(linear, WEFT_NO_VALUES, WEFT_ERR_INVALID, "Linear: takes one tensor, not 0");
    assert_call_fails(linear, WEFT_VALUES(weft_of_i64(1)), WEFT_ERR_INVALID, "Linear: takes one tensor");
    assert_call_fails(linear, WEFT_VALUES(weft_of_tensor(x), weft_of_tensor(x)), WEFT_ERR_INVALID, "not 2 values");
    assert_call_fails(linear, WEFT_VALUES(weft_of_tensor(NULL)), WEFT_ERR_INVALID, "input 0 is a NULL tensor");
    const weft_value whole = weft_of_tensor(x);
    assert_call_fails(linear, (weft_args){&whole, SIZE_MAX}, WEFT_ERR_TOO_LARGE,
                      "Linear: 18446744073709551615 inputs are more than a list may have");
    assert_call_fails(linear, (weft_args){NULL, 3}, WEFT_ERR_INVALID, "Linear: 3 inputs at NULL");
    assert_call_fails(failing, WEFT_NO_VALUES, WEFT_ERR_UNSUPPORTED, "Failing");
    assert_call_fails(NULL, WEFT_NO_VALUES, WEFT_ERR_INVALID, "the module is NULL");
    assert_int_equal(weft_module_call(NULL, linear, WEFT_NO_VALUES).count, 0);
    weft_tape *t = recording(); /* one tensor is asked for, and no tensor comes */
    static const weft_module_type swap_type = {.name = "Swap", .call = swap_call};
    weft_module *swap = module_create(&swap_type, NULL, NULL), *none = sequential_create(NULL, 0, NULL);
    assert_null(weft_module_forward(t, swap, x));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    t = recording();
    assert_ptr_equal(weft_module_forward(t, none, x), x);
    assert_null(weft_module_forward(t, linear, NULL));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    weft_module_unref(none);
    weft_module_unref(swap);
    weft_module_unref(linear);
    weft_module_unref(failing);
    weft_tensor_unref(x);
}

/* ---- Mode ---- */

static bool drops(weft_module *dropout, weft_mode mode, weft_mode parents)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(1000), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *parent = weft_tape_open(&(weft_tape_options){.mode = parents});
    weft_tape *t = weft_tape_open(&(weft_tape_options){.mode = mode, .parent = parent});
    double sum = first(weft_sum(t, weft_module_forward(t, dropout, x)));
    weft_tape_close(t);
    weft_tape_close(parent);
    weft_tensor_unref(x);
    return sum != 1000;
}

static void mode_of_a_tape_overrules_the_modules(void **state)
{
    weft_module *dropout = dropout_create(0.5, NULL);
    for (int train = 0; train < 2; train++) {
        weft_module_train(dropout, train);
        assert_int_equal(drops(dropout, WEFT_MODE_MODULE, WEFT_MODE_MODULE), train);
        assert_true(drops(dropout, WEFT_MODE_TRAIN, WEFT_MODE_MODULE));
        assert_false(drops(dropout, WEFT_MODE_EVAL, WEFT_MODE_MODULE));
        assert_false(drops(dropout, WEFT_MODE_MODULE, WEFT_MODE_EVAL)); /* as the parent's */
        assert_true(drops(dropout, WEFT_MODE_TRAIN, WEFT_MODE_EVAL));
    }
    weft_module *norm = batch_norm2d_create(2, 0, 0, NULL);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(3, 2, 4, 4), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.mode = WEFT_MODE_EVAL});
    weft_module_forward(t, norm, x);
    assert_true(first(weft_module_find(norm, "num_batches_tracked")) == 0);
    weft_tape_set_mode(t, WEFT_MODE_TRAIN);
    weft_module_forward(t, norm, x);
    assert_true(first(weft_module_find(norm, "num_batches_tracked")) == 1);
    assert_true(weft_module_trains_on(norm, t));
    weft_tape_close(t);
    weft_tape_set_mode(NULL, WEFT_MODE_EVAL);
    weft_tensor_unref(x);
    weft_module_unref(norm);
    weft_module_unref(dropout);
}

/* ---- A child at several places ---- */

static void child_used_twice_is_listed_once(void **state)
{
    weft_module *shared = linear_create(3, 3, false, 1, NULL), *inner[] = {relu_create(), weft_module_ref(shared)};
    weft_module *parts[] = {weft_module_ref(shared), sequential_create(inner, 2, NULL), shared};
    weft_module *m = sequential_create(parts, 3, NULL);
    assert_non_null(m);
    assert_int_equal(weft_module_parameters(m).count, 2);
    assert_string_equal(weft_module_parameter_name(m, 0), "0.weight");
    assert_int_equal(weft_module_numel(m), 12);
    weft_tensor *weight = weft_module_find(m, "0.weight");
    assert_non_null(weight);
    assert_ptr_equal(weft_module_find(m, "2.weight"), weight);
    assert_ptr_equal(weft_module_find(m, "1.1.weight"), weight);
    assert_null(weft_module_find(m, "3.weight"));
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *t = recording(); /* y = L(L(relu(L x))): all three uses add to one gradient */
    weft_backward(t, weft_sum(t, weft_module_forward(t, m, x)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(first(weft_tape_grad(t, weft_module_find(m, "0.bias"))) != 0);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(m);
}

static void conversion_meets_a_shared_child_once(void **state)
{
    weft_module *shared = batch_norm2d_create(2, 0, 0, NULL), *parts[] = {weft_module_ref(shared), shared};
    weft_module *m = sequential_create(parts, 2, NULL);
    assert_int_equal(weft_module_to(m, WEFT_DTYPE_FLOAT64), WEFT_OK);
    assert_int_equal(weft_tensor_dtype(weft_module_find(m, "0.weight")), WEFT_DTYPE_FLOAT64);
    assert_ptr_equal(weft_module_find(m, "1.weight"), weft_module_find(m, "0.weight"));
    assert_ptr_equal(weft_module_find(weft_module_child(m, 1), "weight"), weft_module_find(m, "0.weight"));
    assert_int_equal(weft_tensor_dtype(weft_module_find(m, "1.num_batches_tracked")), WEFT_DTYPE_INT64);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 2, 2, 2), WEFT_DTYPE_FLOAT64, 1);
    weft_tape *t = recording();
    weft_module_forward(t, m, x);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(first(weft_module_find(m, "0.num_batches_tracked")) == 2);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(m);
}

/* ---- Stages ---- */

static void assert_same_bits(const weft_tensor *a, const weft_tensor *b)
{
    assert_true(a && b && weft_tensor_same_shape(a, b));
    assert_memory_equal(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a));
}

/* Two stages on tapes of their own, with the gradient of what is between them handed back: as two workers do it. */
static void stages_are_the_whole_network_cut_in_two(void **state)
{
    weft_module *whole = resnet50_create(5, 7, NULL);
    weft_module *stage[] = {resnet50_stage_create(WEFT_RESNET_STEM, WEFT_RESNET_LAYER3, 0, 7, NULL),
                            resnet50_stage_create(WEFT_RESNET_LAYER3, WEFT_RESNET_PARTS, 5, 7, NULL)};
    assert_true(whole && stage[0] && stage[1]);
    assert_int_equal(weft_module_parameters(stage[0]).count + weft_module_parameters(stage[1]).count,
                     weft_module_parameters(whole).count);
    weft_tensor *x = formula_tensor(WEFT_SHAPE(2, 3, 32, 32), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *t = recording(), *a = recording(), *b = recording();
    weft_tensor *y = weft_module_forward(t, whole, x);
    weft_backward(t, weft_sum(t, y));
    weft_tensor *middle = weft_module_forward(a, stage[0], x), *cut = weft_tensor_ref(weft_detach(a, middle));
    weft_tensor_set_requires_grad(cut, true);
    weft_tensor *end = weft_module_forward(b, stage[1], cut);
    weft_backward(b, weft_sum(b, end));
    weft_tensor *back = weft_tape_grad(b, cut);
    weft_backward_with(a, (weft_tensors){&middle, 1}, (weft_tensors){&back, 1}, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(weft_tape_status(a), WEFT_OK);
    assert_int_equal(weft_tape_status(b), WEFT_OK);
    assert_same_bits(end, y);
    for (size_t i = 0; i < weft_module_parameters(whole).count; i++) {
        const char *name = weft_module_parameter_name(whole, i);
        int which = weft_module_find(stage[0], name) ? 0 : 1;
        weft_tensor *parameter = weft_module_parameters(whole).items[i], *of = weft_module_find(stage[which], name);
        assert_same_bits(of, parameter);
        assert_same_bits(weft_tape_grad(which == 0 ? a : b, of), weft_tape_grad(t, parameter));
    }
    weft_tape_close(t);
    weft_tape_close(b);
    weft_tape_close(a);
    weft_tensor_unref(cut);
    weft_tensor_unref(x);
    weft_module_unref(whole);
    weft_module_unref(stage[0]);
    weft_module_unref(stage[1]);
}

static void parts_that_are_none_are_refused(void **state)
{
    assert_null(resnet50_stage_create(WEFT_RESNET_LAYER2, WEFT_RESNET_LAYER2, 5, 1, NULL));
    assert_null(resnet50_stage_create(WEFT_RESNET_HEAD, (weft_resnet_part)7, 5, 1, NULL));
    assert_null(resnet50_stage_create(WEFT_RESNET_HEAD, WEFT_RESNET_PARTS, 0, 1, NULL));
    assert_null(bottleneck_create(0, 64, 1, 1, NULL));
    assert_null(bottleneck_create(64, 64, 0, 1, NULL));
    weft_module *block = bottleneck_create(16, 4, 1, 1, NULL); /* 16 = 4 planes: no fourth convolution */
    assert_int_equal(weft_module_child_count(block), 7);
    weft_module_unref(block);
}

UNIT_MAIN(module_takes_and_gives_values, gates_are_modules, batch_norm_lets_a_nan_through,
          one_tensor_is_a_list_of_one_and_back, sequence_hands_on_all_values,
          wrong_values_fail_the_tape_by_the_modules_name, mode_of_a_tape_overrules_the_modules,
          child_used_twice_is_listed_once, conversion_meets_a_shared_child_once,
          stages_are_the_whole_network_cut_in_two, parts_that_are_none_are_refused)
