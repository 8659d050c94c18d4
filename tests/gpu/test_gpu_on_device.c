/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_on_device.c - weft_on_device_create: a module computes on a GPU for a tape of the CPU, with the CPU's
 * numbers. */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

enum { STEPS = 2, ROWS = 6, IN = 5, HIDDEN = 8, CLASSES = 3 };

static weft_module *make_model(void)
{
    weft_module *parts[] = {linear_create(IN, HIDDEN, false, 1, NULL), relu_create(), dropout_create(0.5, NULL),
                            linear_create(HIDDEN, CLASSES, false, 2, NULL)};
    return sequential_create(parts, 4, NULL);
}

static weft_tensor *input(int step, bool wants_gradient)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(ROWS, IN), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < ROWS * IN; i++)
        ((float *)weft_tensor_data(x))[i] = sinf((float)(i + 31 * step));
    weft_tensor_set_requires_grad(x, wants_gradient);
    return x;
}

static weft_tensor *loss_of(weft_tape *t, weft_module *model, weft_tensor *x)
{
    weft_tensor *target = weft_tape_take(t, tensor_empty(WEFT_SHAPE(ROWS), WEFT_DTYPE_INT64));
    for (int i = 0; i < ROWS; i++)
        ((int64_t *)weft_tensor_data(target))[i] = i % CLASSES;
    weft_tensor *first = weft_module_forward(t, model, x);   /* dropout draws twice, */
    weft_tensor *second = weft_module_forward(t, model, x);  /* other numbers, */
    weft_tensor *noise = weft_dropout(t, first, 0.25, true); /* and so does the tape itself */
    return weft_cross_entropy(t, weft_add(t, noise, second), target);
}

/* The losses, and the gradients of the first input. */
static void train(weft_module *model, double *losses, double *gradient)
{
    weft_optimizer *sgd = optimizer_create(weft_module_parameters(model),
                                           &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.5}, NULL);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t =
            weft_tape_open(&(weft_tape_options){.record = true, .mode = WEFT_MODE_TRAIN, .seed = (uint64_t)step + 1});
        weft_tensor *x = input(step, step == 0);
        weft_tensor *loss = loss_of(t, model, x);
        weft_backward(t, loss);
        weft_error_print(weft_tape_error(t), stderr);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        losses[step] = weft_tensor_get_f64(loss, 0);
        for (int i = 0; i < ROWS * IN && step == 0; i++)
            gradient[i] = weft_tensor_get_f64(weft_tape_grad(t, x), i);
        assert_int_equal(weft_tensor_device(loss).kind, WEFT_DEVICE_CPU);
        assert_int_equal(weft_optimizer_apply(sgd, weft_tape_gradients(t, weft_optimizer_parameters(sgd))), WEFT_OK);
        weft_tape_close(t);
        weft_tensor_unref(x);
    }
    weft_optimizer_unref(sgd);
}

static void it_trains_as_on_the_cpu(void **state)
{
    double want[STEPS], got[STEPS], want_gradient[ROWS * IN], got_gradient[ROWS * IN];
    weft_module *here = make_model(), *there = on_device_create(make_model(), gpu, NULL);
    assert_non_null(there);
    assert_string_equal(weft_module_child_name(there, 0), "module");
    assert_int_equal(weft_tensor_device(weft_module_parameters(there).items[0]).kind, WEFT_DEVICE_CUDA);
    train(here, want, want_gradient);
    train(there, got, got_gradient);
    for (int i = 0; i < STEPS; i++)
        assert_true(fabs(got[i] - want[i]) < 1e-5);
    for (int i = 0; i < ROWS * IN; i++)
        assert_true(fabs(got_gradient[i] - want_gradient[i]) < 1e-6);
    weft_module_unref(here);
    weft_module_unref(there);
}

/* The child's parameters, and the place where it computes, move with the module above it. */
static void it_computes_where_its_parameters_are_moved(void **state)
{
    const weft_device places[] = {cpu, {WEFT_DEVICE_CUDA, 1}, gpu};
    weft_module *here = make_model();
    double want[STEPS], unused[ROWS * IN];
    train(here, want, unused);
    weft_module_unref(here);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (weft_device_check(places[i], NULL) != WEFT_OK)
            continue; /* a machine with one GPU */
        weft_module *wrapper = on_device_create(make_model(), gpu, NULL);
        weft_module *moved = sequential_create(&wrapper, 1, NULL);
        assert_non_null(moved);
        assert_int_equal(weft_module_to_device(moved, places[i]), WEFT_OK);
        double got[STEPS];
        train(moved, got, unused);
        for (int step = 0; step < STEPS; step++)
            assert_true(fabs(got[step] - want[step]) < 1e-5);
        weft_device now = weft_tensor_device(weft_module_parameters(moved).items[0]);
        assert_true(wfi_device_equal(now, places[i]));
        weft_module_unref(moved);
    }
}

/* Each pass has its own gradients; a tape adds those of its passes. */
static void passes_may_retain_the_records(void **state)
{
    weft_module *there = on_device_create(make_model(), gpu, NULL);
    weft_tensor *parameter = weft_module_parameters(there).items[0], *x = input(0, true);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .mode = WEFT_MODE_EVAL});
    weft_tensor *loss = weft_sum(t, weft_module_forward(t, there, x));
    weft_backward_with(t, (weft_tensors){&loss, 1}, (weft_tensors){(weft_tensor *[]){NULL}, 1},
                       &(weft_backward_options){.retain = true});
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    double once = weft_tensor_get_f64(weft_tape_grad(t, parameter), 3),
           once_x = weft_tensor_get_f64(weft_tape_grad(t, x), 3);
    weft_backward(t, loss);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(weft_tape_grad(t, parameter), 3) - 2 * once) < 1e-6);
    assert_true(fabs(weft_tensor_get_f64(weft_tape_grad(t, x), 3) - 2 * once_x) < 1e-6);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_module_unref(there);
}

static void without_records_it_only_computes(void **state)
{
    weft_module *there = on_device_create(make_model(), gpu, NULL), *here = make_model();
    weft_tape *t = weft_tape_open(&(weft_tape_options){.mode = WEFT_MODE_EVAL});
    weft_tensor *x = input(0, false), *y = weft_module_forward(t, there, x), *want = weft_module_forward(t, here, x);
    for (int i = 0; i < ROWS * CLASSES; i++)
        assert_true(fabs(weft_tensor_get_f64(y, i) - weft_tensor_get_f64(want, i)) < 1e-6);
    weft_tape *on_gpu = weft_tape_open(&(weft_tape_options){.mode = WEFT_MODE_EVAL, .device = gpu});
    weft_tensor *x_there = tensor_to_device(x, gpu), *z = weft_module_forward(on_gpu, there, x_there);
    assert_int_equal(weft_tensor_device(z).kind, WEFT_DEVICE_CUDA); /* nothing is copied */
    assert_true(weft_tensor_get_f64(z, 2) == weft_tensor_get_f64(y, 2));
    weft_tape_close(t);
    weft_tape_close(on_gpu);
    weft_tensor_unref(x);
    weft_tensor_unref(x_there);
    weft_module_unref(there);
    weft_module_unref(here);
}

static void failures_are_the_outer_tapes(void **state)
{
    weft_error *error = NULL;
    weft_module *there = on_device_create(make_model(), gpu, NULL);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor *wrong = tensor_zeros(WEFT_SHAPE(ROWS, IN + 1), WEFT_DTYPE_FLOAT32);
    assert_null(weft_module_forward(t, there, wrong));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_SHAPE);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "linear"));
    weft_tape_close(t);
    t = weft_tape_open(NULL);
    assert_null(weft_module_forward(t, there, NULL));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    weft_tape_close(t);
    t = weft_tape_open(NULL);
    weft_tensor *elsewhere = tensor_empty_on(gpu, WEFT_SHAPE(ROWS, IN), WEFT_DTYPE_FLOAT32);
    assert_null(weft_module_forward(t, there, elsewhere));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
    weft_tape_close(t);
    weft_tensor_unref(elsewhere);
    weft_tensor_unref(wrong);
    weft_module_unref(there);
    assert_null(on_device_create(NULL, gpu, NULL));
    assert_null(on_device_create(make_model(), (weft_device){WEFT_DEVICE_CUDA, 1000}, &error));
    assert_int_equal(weft_error_code(error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "cuda:1000"));
    weft_error_unref(error);
    error = NULL;
    weft_module *lent = make_model();
    assert_int_equal(weft_module_parameters(lent).count, 4);
    assert_null(on_device_create(lent, gpu, &error));
    assert_int_equal(weft_error_code(error), WEFT_ERR_STATE);
    assert_non_null(strstr(weft_error_message(error), "create the optimizer afterwards"));
    weft_error_unref(error);
    weft_module *on_cpu = on_device_create(make_model(), cpu, NULL); /* the CPU is a device too */
    assert_non_null(on_cpu);
    weft_module_unref(on_cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_as_on_the_cpu),       cmocka_unit_test(it_computes_where_its_parameters_are_moved),
        cmocka_unit_test(passes_may_retain_the_records), cmocka_unit_test(without_records_it_only_computes),
        cmocka_unit_test(failures_are_the_outer_tapes),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
