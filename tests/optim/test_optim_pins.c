/* SPDX-License-Identifier: Apache-2.0 */
/* test_optim_pins.c - a step waits until no transfer reads a parameter; at its limit it gives up and has changed nothing. */
#include <weft/weft.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tensor/tensor.h"

#include <pthread.h>
#include <time.h>

static weft_tensor *parameter, *gradient;

static weft_optimizer *ready(int64_t timeout_ms)
{
    parameter = weft_tensor_full(WEFT_SHAPE(4), WEFT_FLOAT32, 1);
    gradient = weft_tensor_full(WEFT_SHAPE(4), WEFT_FLOAT32, 2);
    weft_optimizer *sgd =
        weft_sgd_create((weft_tensors){&parameter, 1}, &(weft_sgd_options){.lr = 0.25, .pin_timeout_ms = timeout_ms});
    assert_int_equal(weft_optimizer_accumulate(sgd, (weft_tensors){&gradient, 1}), WEFT_OK);
    return sgd;
}

static void done(weft_optimizer *sgd)
{
    weft_optimizer_unref(sgd);
    weft_tensor_unref(parameter);
    weft_tensor_unref(gradient);
}

static void step_gives_up_at_its_limit(void **state)
{
    (void)state;
    weft_optimizer *sgd = ready(20);
    wfi_storage_pin_read(parameter->storage);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_ERR_TIMEOUT);
    assert_true(weft_tensor_get_f64(parameter, 0) == 1);
    assert_int_equal(weft_optimizer_accumulated(sgd), 1);
    wfi_storage_unpin_read(parameter->storage);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
    assert_true(weft_tensor_get_f64(parameter, 0) == 0.5);
    done(sgd);
}

static void *read_for_a_while(void *arg)
{
    (void)arg;
    uintptr_t wrong = 0;
    for (int i = 0; i < 30; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        wrong += weft_tensor_get_f64(parameter, 3) != 1;
    }
    wfi_storage_unpin_read(parameter->storage);
    return (void *)wrong;
}

static void step_waits_for_the_reader(void **state)
{
    (void)state;
    weft_optimizer *sgd = ready(0);
    pthread_t reader;
    void *wrong;
    wfi_storage_pin_read(parameter->storage);
    assert_int_equal(pthread_create(&reader, NULL, read_for_a_while, NULL), 0);
    assert_int_equal(weft_optimizer_step(sgd), WEFT_OK);
    assert_true(weft_tensor_get_f64(parameter, 3) == 0.5);
    assert_int_equal(pthread_join(reader, &wrong), 0);
    assert_null(wrong);
    done(sgd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_gives_up_at_its_limit),
        cmocka_unit_test(step_waits_for_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
