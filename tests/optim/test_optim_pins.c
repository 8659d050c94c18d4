/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_pins.c - a step waits until no transfer reads a parameter; at its limit it gives up and has changed
 * nothing. */
#include <weft/weft.h>

#include "tensor/tensor.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

static weft_tensor *parameter, *gradient;

/* Either one: its first step takes 0.5 off the parameter. */
static weft_optimizer *ready(bool is_adam, int64_t timeout_ms)
{
    parameter = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    gradient = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 2);
    weft_tensors parameters = {&parameter, 1};
    weft_optimizer *optimizer =
        is_adam
            ? optimizer_create(parameters,
                               &(weft_optimizer_spec){.type = &weft_adam_type, .lr = 0.5, .pin_timeout_ms = timeout_ms},
                               NULL)
            : optimizer_create(parameters,
                               &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.25, .pin_timeout_ms = timeout_ms},
                               NULL);
    assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){&gradient, 1}), WEFT_OK);
    return optimizer;
}

static void done(weft_optimizer *optimizer)
{
    weft_optimizer_unref(optimizer);
    weft_tensor_unref(parameter);
    weft_tensor_unref(gradient);
}

static void gives_up(bool is_adam)
{
    weft_optimizer *optimizer = ready(is_adam, 20);
    wfi_storage_pin_read(parameter->storage);
    assert_int_equal(weft_optimizer_step(optimizer), WEFT_ERR_TIMEOUT);
    assert_true(weft_tensor_get_f64(parameter, 0) == 1);
    assert_int_equal(weft_optimizer_accumulated(optimizer), 1);
    wfi_storage_unpin_read(parameter->storage);
    assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(parameter, 0) - 0.5) < 1e-6);
    done(optimizer);
}

static void *read_for_a_while(void *arg)
{
    uintptr_t wrong = 0;
    for (int i = 0; i < 30; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        wrong += weft_tensor_get_f64(parameter, 3) != 1;
    }
    wfi_storage_unpin_read(parameter->storage);
    return (void *)wrong;
}

static void waits(bool is_adam)
{
    weft_optimizer *optimizer = ready(is_adam, 0);
    pthread_t reader;
    void *wrong;
    wfi_storage_pin_read(parameter->storage);
    assert_int_equal(pthread_create(&reader, NULL, read_for_a_while, NULL), 0);
    assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
    assert_true(fabs(weft_tensor_get_f64(parameter, 3) - 0.5) < 1e-6);
    assert_int_equal(pthread_join(reader, &wrong), 0);
    assert_null(wrong);
    done(optimizer);
}

static void step_gives_up_at_its_limit(void **state)
{
    gives_up(false);
    gives_up(true);
}

static void step_waits_for_the_reader(void **state)
{
    waits(false);
    waits(true);
}

UNIT_MAIN(step_gives_up_at_its_limit, step_waits_for_the_reader)
