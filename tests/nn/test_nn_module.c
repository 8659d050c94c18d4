/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_module.c - modules of one's own: names, order, state, life, and what building them wrongly leads to. */
#include <weft/weft.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

typedef struct doubler {
    int forwards, drops;
} doubler;

static weft_tensor *doubler_forward(weft_tape *t, weft_module *self, weft_tensor *x)
{
    doubler *d = weft_module_state(self);
    d->forwards++;
    x = weft_mul(t, weft_scale(t, x, 2), weft_module_find(self, "gain"));
    return weft_module_child_count(self) == 0 ? x : weft_module_forward(t, weft_module_child(self, 0), x);
}

static void doubler_drop(void *state)
{
    ((doubler *)state)->drops++;
}

static const weft_module_type doubler_type = {.name = "Doubler", .forward = doubler_forward, .drop = doubler_drop};

static weft_module *make_doubler(doubler *d)
{
    weft_module *m = module_create(&doubler_type, d, NULL);
    weft_module_add_parameter(m, "gain", tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 3));
    weft_module_add_buffer(m, "seen", tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_INT64));
    return m;
}

static void users_module_computes_and_gets_gradients(void **state)
{
    doubler inner = {0}, outer = {0};
    weft_module *m = make_doubler(&outer);
    weft_module_add_child(m, "inner", make_doubler(&inner));
    assert_int_equal(weft_module_status(m), WEFT_OK);
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *y = weft_sum(t, weft_module_forward(t, m, x));
    weft_backward(t, y);
    assert_true(weft_tensor_get_f64(y, 0) == 72);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, weft_module_find(m, "inner.gain")), 0) == 24);
    assert_true(weft_tensor_get_f64(weft_tape_grad(t, weft_module_find(m, "gain")), 0) == 24);
    weft_tape_close(t);
    weft_tensor_unref(x);
    assert_int_equal(inner.forwards, 1);
    weft_module_unref(weft_module_ref(m));
    assert_int_equal(inner.drops + outer.drops, 0);
    weft_module_unref(m);
    assert_int_equal(inner.drops, 1);
    assert_int_equal(outer.drops, 1);
}

static void names_are_full_and_own_ones_come_first(void **state)
{
    doubler d[3] = {{0}};
    weft_module *m = make_doubler(&d[0]), *middle = make_doubler(&d[1]);
    weft_module_add_child(middle, "0", make_doubler(&d[2]));
    weft_module_add_child(m, "middle", middle);
    const char *wanted[] = {"gain", "middle.gain", "middle.0.gain"};
    assert_int_equal(weft_module_parameters(m).count, 3);
    assert_int_equal(weft_module_buffers(m).count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(weft_module_parameter_name(m, i), wanted[i]);
    assert_null(weft_module_parameter_name(m, 3));
    assert_string_equal(weft_module_buffer_name(m, 2), "middle.0.seen");
    assert_null(weft_module_find(m, "middle.1.gain"));
    assert_int_equal(weft_module_numel(m), 3);
    assert_true(weft_tensor_requires_grad(weft_module_find(m, "middle.0.gain")));
    assert_false(weft_tensor_requires_grad(weft_module_find(m, "middle.0.seen")));
    weft_module_train(m, false);
    assert_false(weft_module_is_training(weft_module_child(middle, 0)));
    weft_module_unref(m);
}

static void assert_fails(weft_module *m, weft_status status)
{
    assert_int_equal(weft_module_status(m), status);
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32);
    assert_null(weft_module_forward(t, m, x));
    assert_int_equal(weft_tape_status(t), status);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(m);
}

static void first_mistake_of_building_stays(void **state)
{
    doubler d[2] = {{0}};
    const char *bad[] = {"", "a.b", NULL};
    for (int i = 0; i < 3; i++) {
        weft_module *m = make_doubler(&d[0]);
        weft_module_add_parameter(m, bad[i], tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32));
        assert_fails(m, WEFT_ERR_INVALID);
    }
    weft_module *twice = make_doubler(&d[0]);
    weft_module_add_buffer(twice, "gain", tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32));
    weft_module_add_child(twice, "x", NULL);
    assert_fails(twice, WEFT_ERR_EXISTS);
    weft_module *lent = make_doubler(&d[0]);
    assert_int_equal(weft_module_parameters(lent).count, 1);
    weft_module_add_child(lent, "late", make_doubler(&d[1]));
    assert_int_equal(d[1].drops, 1);
    assert_fails(lent, WEFT_ERR_STATE);
    doubler shared = {0};
    weft_module *parent = make_doubler(&d[0]), *child = make_doubler(&shared);
    weft_module_add_child(parent, "inner", weft_module_ref(child));
    weft_module_add_parameter(child, "late", tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32)); /* it has a parent */
    assert_int_equal(weft_module_status(parent), WEFT_OK);
    assert_fails(child, WEFT_ERR_STATE);
    weft_module_unref(parent);
    assert_int_equal(shared.drops, 1);
    weft_module *own = make_doubler(&d[0]);
    weft_module_add_child(own, "self", weft_module_ref(own));
    assert_fails(own, WEFT_ERR_STATE);
}

static void conversion_changes_all_or_nothing(void **state)
{
    doubler d = {0};
    weft_module *m = make_doubler(&d);
    assert_int_equal(weft_module_to(m, WEFT_DTYPE_INT64), WEFT_ERR_INVALID);
    assert_int_equal(weft_module_to(m, WEFT_DTYPE_FLOAT64), WEFT_OK);
    assert_int_equal(weft_tensor_dtype(weft_module_find(m, "gain")), WEFT_DTYPE_FLOAT64);
    assert_int_equal(weft_tensor_dtype(weft_module_find(m, "seen")), WEFT_DTYPE_INT64);
    assert_true(weft_tensor_requires_grad(weft_module_find(m, "gain")));
    assert_int_equal(weft_module_parameters(m).count, 1);
    assert_int_equal(weft_module_to(m, WEFT_DTYPE_FLOAT32), WEFT_ERR_STATE);
    weft_module_unref(m);
}

/* A list that was lent keeps its tensors: also one of a module below, at any depth. */
static void a_module_above_a_lent_list_is_not_converted(void **state)
{
    weft_module *linear = weft_module_ref(linear_create(2, 2, false, 1, NULL));
    weft_module *inner = sequential_create((weft_module *[]){linear}, 1, NULL);
    weft_module *outer = sequential_create((weft_module *[]){inner, relu_create()}, 2, NULL);
    weft_tensors lent = weft_module_parameters(linear);
    weft_tensor *weight = lent.items[0];
    assert_int_equal(weft_module_to(outer, WEFT_DTYPE_FLOAT64), WEFT_ERR_STATE);
    assert_ptr_equal(weft_module_find(outer, "0.0.weight"), weight);
    assert_ptr_equal(lent.items[0], weight);
    assert_int_equal(weft_tensor_dtype(weight), WEFT_DTYPE_FLOAT32);
    weft_module_unref(outer);
    weft_module_unref(linear);
}

/* What could not be built says which name it was, whoever asks. */
static void a_failed_module_says_why(void **state)
{
    weft_error *error = NULL;
    weft_tape *t = weft_tape_open(NULL);
    weft_module *dotted = sequential_create(NULL, 0, NULL), *counted = sequential_create(NULL, 0, NULL);
    weft_module_add_parameter(dotted, "a.b", tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32));
    assert_int_equal(weft_module_status(dotted), WEFT_ERR_INVALID);
    assert_int_equal(weft_module_save(dotted, "never", &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "cannot take \"a.b\""));
    weft_error_unref(error);
    assert_null(weft_module_forward(t, dotted, weft_tape_take(t, tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32))));
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "cannot take \"a.b\""));
    weft_module_add_parameter(counted, "n", tensor_arange(3, WEFT_DTYPE_INT64));
    assert_int_equal(weft_module_status(counted), WEFT_ERR_TYPE);
    weft_module_unref(counted);
    weft_module_unref(dotted);
    weft_tape_close(t);
}

UNIT_MAIN(a_failed_module_says_why, users_module_computes_and_gets_gradients, names_are_full_and_own_ones_come_first,
          first_mistake_of_building_stays, conversion_changes_all_or_nothing,
          a_module_above_a_lent_list_is_not_converted)
