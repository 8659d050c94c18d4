/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim_no_memory.c - each allocation in turn fails: an error comes back, no parameter and no state has
 * changed, nothing leaks (AddressSanitizer looks), and the next try works. The linker puts the functions below in
 * the place of the library's.
 */
#include <weft/weft.h>

#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <errno.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);

static int until_failure = -1; /* allocations that still succeed; -1: all */
static bool failed;

static bool fails(void)
{
    if (until_failure < 0 || until_failure-- > 0)
        return false;
    until_failure = -1;
    failed = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *block, size_t size)
{
    return fails() ? NULL : __real_realloc(block, size);
}

/* What the attempts work on; two parameters of [4, 2], of zeros. */
static weft_tensor *parameters[2], *dense, *strided, *rows, *values;
static weft_optimizer *optimizer;

static const weft_optimizer_spec spec = {.type = &weft_adam_type, .lr = 1, .max_norm = 100, .adam.amsgrad = true};

static weft_status make(void)
{
    weft_error *error = NULL;
    weft_optimizer *made = optimizer_create((weft_tensors){parameters, 1}, &spec, &error);
    weft_status status = weft_error_code(error);
    assert_true((!made) == (status != WEFT_OK));
    weft_error_unref(error);
    if (made) {
        status = weft_optimizer_add_group(made, (weft_tensors){parameters + 1, 1}, &spec, NULL);
        assert_int_equal(weft_optimizer_group_count(made), status == WEFT_OK ? 2 : 1);
    }
    weft_optimizer_unref(made);
    return status;
}

static weft_status apply(void)
{
    const weft_gradient lent[] = {{strided, NULL}, {values, rows}};
    return weft_optimizer_apply(optimizer, (weft_gradients){lent, 2});
}

static weft_status accumulate(void)
{
    weft_status status = weft_optimizer_accumulate(optimizer, (weft_tensors){(weft_tensor *[]){dense, strided}, 2});
    assert_int_equal(weft_optimizer_accumulated(optimizer), status == WEFT_OK ? 1 : 0);
    weft_optimizer_zero(optimizer);
    return status;
}

static weft_status step(void)
{
    assert_int_equal(weft_optimizer_accumulated(optimizer), 1); /* what failed before is still there */
    return weft_optimizer_step(optimizer);
}

static weft_status norm(void)
{
    double norm;
    const weft_gradient lent[] = {{strided, NULL}, {values, rows}};
    return weft_gradients_norm((weft_gradients){lent, 2}, &norm);
}

static weft_status set_state(void)
{
    static const char *const names[] = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    weft_tensor *one = tensor_full(WEFT_SCALAR, WEFT_DTYPE_INT64, 1);
    if (!one)
        return WEFT_ERR_MEMORY;
    weft_optimizer_state items[4];
    for (int i = 0; i < 4; i++)
        items[i] = (weft_optimizer_state){0, names[i], i == 0 ? one : dense};
    size_t before = weft_optimizer_state_count(optimizer);
    weft_status status = weft_optimizer_set_state(optimizer, items, 4, NULL);
    assert_int_equal(weft_optimizer_state_count(optimizer), status == WEFT_OK ? 4 : before);
    weft_tensor_unref(one);
    return status;
}

static void open_all(void)
{
    for (int k = 0; k < 2; k++)
        parameters[k] = tensor_zeros(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32);
    dense = tensor_full(WEFT_SHAPE(4, 2), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *turned = tensor_full(WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32, 1);
    strided = tensor_transpose(turned, 0, 1);
    weft_tensor_unref(turned);
    rows = tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_INT64, (int64_t[]){2, 0, 2});
    values = tensor_full(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, 1);
    optimizer = optimizer_create((weft_tensors){parameters, 2}, &spec, NULL);
}

static void close_all(void)
{
    weft_tensor *all[] = {parameters[0], parameters[1], dense, strided, rows, values};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        weft_tensor_unref(all[i]);
    weft_optimizer_unref(optimizer);
}

static bool has_stepped(void)
{
    return weft_tensor_get_f64(parameters[0], 0) != 0 || weft_tensor_get_f64(parameters[1], 0) != 0;
}

/* Each attempt has an optimizer of its own, so that none finds what another made. `sums`: gradients are accumulated
 * before. */
static void exhaust(weft_status (*run)(void), bool sums)
{
    for (int allowed = 0; allowed < 100; allowed++) {
        open_all();
        if (sums)
            assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){(weft_tensor *[]){dense, strided}, 2}),
                             WEFT_OK);
        failed = false;
        until_failure = allowed;
        weft_status status = run();
        until_failure = -1;
        bool done = !failed;
        assert_int_equal(status, done ? WEFT_OK : WEFT_ERR_MEMORY);
        if (!done) {
            assert_false(has_stepped());
            assert_int_equal(weft_optimizer_state_count(optimizer), 0);
            assert_int_equal(run(), WEFT_OK);
        }
        close_all();
        if (done)
            return;
    }
    fail_msg("it never succeeded");
}

static void optimizers_survive_any_failure(void **state)
{
    exhaust(make, false);
    exhaust(apply, false);
    exhaust(accumulate, false);
    exhaust(step, true);
    exhaust(norm, false);
    exhaust(set_state, false);
}

UNIT_MAIN(optimizers_survive_any_failure)
