/* SPDX-License-Identifier: Apache-2.0 */
/* test_autograd_in_place.c - weft_relu_in_place: over the memory of what nobody needs, and like weft_relu everywhere
 * else. */
#include <weft/weft.h>

#include "tensor/tensor.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

#define COUNT 40

typedef weft_tensor *(*relu_fn)(weft_tape *, weft_tensor *);

static weft_tensor *leaf(void)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT64);
    for (int i = 0; i < COUNT; i++)
        ((double *)weft_tensor_data(x))[i] = (i % 7 - 3) * 0.25;
    weft_tensor_set_requires_grad(x, true);
    return x;
}

/* What the relu reads: made so that its elements are free, or needed by somebody in one way each. */
typedef enum made { FREE, SAVED, KEPT, VIEWED, OLDER, USERS, MADES } made;

static weft_tensor *make(weft_tape *t, made how, weft_tensor *x, weft_tensor **keeps)
{
    *keeps = NULL;
    if (how == USERS)
        return x;
    weft_tensor *h = how == SAVED ? weft_tanh(t, x) : weft_scale(t, x, 3);
    if (how == KEPT)
        *keeps = weft_tensor_ref(h);
    if (how == VIEWED)
        *keeps = weft_tensor_ref(weft_reshape(t, h, WEFT_SHAPE(2, COUNT / 2)));
    if (how == OLDER)
        (void)weft_scale(t, x, 2);
    return h;
}

/* The gradient of sum(relu(h)^2) at x, in `grad`; whether the relu wrote over h. */
static bool run(made how, relu_fn relu, double grad[COUNT])
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *x = leaf(), *keeps, *h = make(t, how, x, &keeps);
    double before[COUNT];
    memcpy(before, weft_tensor_data(h), sizeof(before));
    weft_tensor *y = relu(t, h);
    assert_non_null(y);
    bool over = weft_tensor_data(y) == weft_tensor_data(h);
    if (!over)
        assert_memory_equal(before, weft_tensor_data(h), sizeof(before));
    for (int i = 0; i < COUNT; i++)
        assert_true(((const double *)weft_tensor_data(y))[i] == (before[i] > 0 ? before[i] : 0));
    weft_backward(t, weft_sum(t, weft_mul(t, y, y)));
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    memcpy(grad, weft_tensor_data(weft_tape_grad(t, x)), sizeof(double) * COUNT);
    weft_tape_close(t);
    weft_tensor_unref(keeps);
    weft_tensor_unref(x);
    return over;
}

static void it_writes_only_over_what_nobody_needs(void **state)
{
    for (made how = FREE; how < MADES; how++) {
        double plain[COUNT], in_place[COUNT];
        assert_false(run(how, weft_relu, plain));
        assert_int_equal(run(how, weft_relu_in_place, in_place), how == FREE);
        assert_memory_equal(plain, in_place, sizeof(plain));
    }
}

static void a_second_one_reads_the_first(void **state)
{
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *x = leaf(), *h = weft_scale(t, x, -1), *y = weft_relu_in_place(t, h), *z = weft_relu_in_place(t, y);
    assert_ptr_equal(weft_tensor_data(h), weft_tensor_data(y));
    assert_ptr_not_equal(weft_tensor_data(y), weft_tensor_data(z)); /* h refers to y's memory too */
    assert_memory_equal(weft_tensor_data(y), weft_tensor_data(z), sizeof(double) * COUNT);
    weft_tensor_unref(x);
    weft_tape_close(t);
}

static void what_is_wrong_is_said_as_by_the_plain_one(void **state)
{
    weft_tape *t = weft_tape_open(NULL);
    assert_null(weft_relu_in_place(t, NULL));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    t = weft_tape_open(NULL);
    weft_tensor *counts = weft_tape_take(t, tensor_arange(4, WEFT_DTYPE_INT64));
    assert_null(weft_relu_in_place(t, counts));
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "wants float32 or float64"));
    weft_tape_close(t);
    assert_null(weft_relu_in_place(NULL, NULL));
}

UNIT_MAIN(it_writes_only_over_what_nobody_needs, a_second_one_reads_the_first,
          what_is_wrong_is_said_as_by_the_plain_one)
