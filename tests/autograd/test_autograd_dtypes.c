/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_dtypes.c - operators and dtypes: where there is no kernel they say so; what only moves elements
 * takes any. */
#include <weft/weft.h>

#include "tensor/tensor.h"
#include "tensors.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

typedef weft_tensor *(*operator_fn)(weft_tape *t, weft_tensor *x);

/* clang-format off */
static weft_tensor *add(weft_tape *t, weft_tensor *x) { return weft_add(t, x, x); }
static weft_tensor *divide(weft_tape *t, weft_tensor *x) { return weft_div(t, x, x); }
static weft_tensor *matmul(weft_tape *t, weft_tensor *x) { return weft_matmul(t, x, x); }
static weft_tensor *linear(weft_tape *t, weft_tensor *x) { return weft_linear(t, x, x, NULL); }
static weft_tensor *softmax(weft_tape *t, weft_tensor *x) { return weft_softmax(t, x, 1); }
static weft_tensor *argmax(weft_tape *t, weft_tensor *x) { return weft_argmax(t, x, 1); }
static weft_tensor *dropout(weft_tape *t, weft_tensor *x) { return weft_dropout(t, x, 0.5, true); }
static weft_tensor *mse(weft_tape *t, weft_tensor *x) { return weft_mse_loss(t, x, x); }
/* clang-format on */

static const struct {
    const char *name;
    operator_fn run;
    bool any_number; /* for integers too */
} operators[] = {{"add", add, true},          {"div", divide, true},     {"argmax", argmax, true},
                 {"matmul", matmul, false},   {"linear", linear, false}, {"relu", weft_relu, false},
                 {"exp", weft_exp, false},    {"sum", weft_sum, false},  {"softmax", softmax, false},
                 {"dropout", dropout, false}, {"mse_loss", mse, false}};

static void operators_without_a_kernel_say_so(void **state)
{
    static const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16,  WEFT_DTYPE_INT8,
                                        WEFT_DTYPE_INT16,   WEFT_DTYPE_COMPLEX64, WEFT_DTYPE_COMPLEX128};
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]) * 6; i++) {
        weft_dtype dtype = dtypes[i % 6];
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *x = tensor_full(WEFT_SHAPE(2, 2), dtype, 1);
        weft_tensor_set_requires_grad(x, true);
        assert_null(operators[i / 6].run(t, x));
        assert_int_equal(weft_tape_status(t), WEFT_ERR_TYPE);
        char no_kernel[64];
        snprintf(no_kernel, sizeof(no_kernel), "no kernel for %s on the CPU", weft_dtype_name(dtype));
        const char *message = weft_error_message(weft_tape_error(t));
        bool half = dtype == WEFT_DTYPE_FLOAT16 || dtype == WEFT_DTYPE_BFLOAT16;
        assert_non_null(strstr(message, half || operators[i / 6].any_number ? no_kernel : "wants float32 or float64"));
        assert_int_equal(strncmp(message, operators[i / 6].name, strlen(operators[i / 6].name)), 0);
        weft_tensor_unref(x);
        weft_tape_close(t);
    }
}

/* 0, 1, 2 .. as any dtype: complex through its parts. */
static weft_tensor *counted(int64_t count, weft_dtype dtype)
{
    if (dtype != WEFT_DTYPE_COMPLEX64 && dtype != WEFT_DTYPE_COMPLEX128)
        return tensor_arange(count, dtype);
    weft_tensor *z = tensor_zeros(WEFT_SHAPE(count), dtype);
    for (int64_t i = 0; i < count; i++) {
        weft_tensor *one = tensor_select(z, 0, i);
        weft_tensor_fill(one, (double)i);
        weft_tensor_unref(one);
    }
    return z;
}

static void what_moves_elements_takes_any_dtype(void **state)
{
    for (int dtype = WEFT_DTYPE_FLOAT32; dtype <= WEFT_DTYPE_COMPLEX128; dtype++) {
        if (dtype == WEFT_DTYPE_BOOL)
            continue; /* would not count so far */
        weft_tape *t = weft_tape_open(NULL);
        weft_tensor *x = weft_tape_take(t, counted(6, (weft_dtype)dtype)), *m = weft_reshape(t, x, WEFT_SHAPE(2, 3));
        weft_tensor *turned = weft_clone(t, weft_transpose(t, m, 0, 1));
        weft_tensor *index = weft_tape_take(t, tensor_full(WEFT_SHAPE(2, 1), WEFT_DTYPE_INT64, 2));
        weft_tensor *picked = weft_take_along_dim(t, m, 1, index);
        weft_tensor *both[] = {m, m}, *joined = weft_concat(t, (weft_tensors){both, 2}, 1);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        assert_true(weft_tensor_get_f64(turned, 1) == 3 && weft_tensor_get_f64(turned, 4) == 2);
        assert_true(weft_tensor_get_f64(picked, 0) == 2 && weft_tensor_get_f64(picked, 1) == 5);
        assert_true(weft_tensor_get_f64(joined, 5) == 2 && weft_tensor_get_f64(joined, 6) == 3);
        weft_tape_close(t);
    }
}

/* Through the data pointer: noticed if it is said, and of a view too. */
static void what_was_written_is_noticed(void **state)
{
    for (int through_view = 0; through_view < 2; through_view++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 3), *view = tensor_select(x, 0, 1);
        weft_tensor_set_requires_grad(x, true);
        weft_tensor *loss = weft_sum(t, weft_mul(t, x, x));
        *(float *)weft_tensor_data(view) = 7;
        weft_tensor_wrote(through_view ? view : x);
        weft_backward(t, loss);
        assert_int_equal(weft_tape_status(t), WEFT_ERR_STATE);
        assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "changed in place"));
        weft_tape_close(t);
        weft_tensor_unref(x);
        weft_tensor_unref(view);
    }
}

/* A device that is not there fails the tape from the start, and its first operator is not run. */
static void a_tape_wants_its_device(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = {WEFT_DEVICE_CUDA, 4711}});
    assert_non_null(t);
    assert_true(weft_tape_status(t) == WEFT_ERR_UNSUPPORTED || weft_tape_status(t) == WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "the tape's device: no cuda:4711 here: "));
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    assert_null(weft_relu(t, x));
    weft_tape_close(t);
    weft_tensor_unref(x);
}

static char far_away[64]; /* stands for device memory: nobody may look into it */

static weft_tensor *on_device(weft_shape shape)
{
    wfi_storage *storage;
    weft_tensor *tensor = NULL;
    assert_int_equal(wfi_storage_wrap(WFI_MEMORY_CUDA, 1, far_away, sizeof(far_away), NULL, NULL, &storage), WEFT_OK);
    assert_int_equal(wfi_tensor_over(storage, 0, shape, WEFT_DTYPE_FLOAT32, &tensor), WEFT_OK);
    wfi_storage_unref(storage);
    return tensor;
}

static void operands_lie_where_the_tape_computes(void **state)
{
    weft_tensor *there = on_device(WEFT_SHAPE(2, 2)), *here = tensor_zeros(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32);
    for (int which = 0; which < 2; which++) {
        weft_tape *t = weft_tape_open(NULL);
        weft_tensor *both[] = {which == 0 ? there : here, which == 0 ? here : there};
        assert_null(which == 0 ? weft_add(t, both[0], both[1]) : weft_concat(t, (weft_tensors){both, 2}, 0));
        assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(weft_error_message(weft_tape_error(t)),
                               which == 0 ? "operand 0 is on cuda:1, and the tape computes on the CPU"
                                          : "operand 1 is on cuda:1, and the tape computes on the CPU"));
        weft_tape_close(t);
    }
    weft_tensor_unref(there);
    weft_tensor_unref(here);
}

UNIT_MAIN(operators_without_a_kernel_say_so, what_moves_elements_takes_any_dtype, what_was_written_is_noticed,
          a_tape_wants_its_device, operands_lie_where_the_tape_computes)
