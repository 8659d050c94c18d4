/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tensor_libraries.c - the host program's numbers of threads for OpenMP and OpenBLAS are the same before and
 * after weft's operators, while these run with weft's own.
 */
#include "children.h"
#include "check_gradients.h"
#include "tensor/cpu/product/libraries.h"
#include "tensors.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#define HOST_OPENMP 5
#define HOST_OPENBLAS 3
#define OURS 2

static int (*openmp_get)(void);
static void (*openmp_set)(int);

static void find_openmp(void)
{
    *(void **)&openmp_get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&openmp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
}

static int openmp_threads(void)
{
    return openmp_get ? openmp_get() : HOST_OPENMP;
}

static void be_the_host(void)
{
    if (openmp_set)
        openmp_set(HOST_OPENMP);
    openblas_set_num_threads(HOST_OPENBLAS);
    wfi_cpu_threads_set(OURS);
}

static bool is_as_the_host_left_it(void)
{
    return openmp_threads() == HOST_OPENMP && openblas_get_num_threads() == HOST_OPENBLAS;
}

static bool multiply(int64_t n)
{
    weft_tensor *matrix = tensor_full(WEFT_SHAPE(n, n), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *product = tensor_empty(WEFT_SHAPE(n, n), WEFT_DTYPE_FLOAT32);
    bool fine = wfi_matmul(matrix, false, matrix, true, product) == WEFT_OK &&
                weft_tensor_get_f64(product, n * n - 1) == (double)n;
    weft_tensor_unref(matrix);
    weft_tensor_unref(product);
    return fine;
}

/* Twice: with a plan of oneDNN that is made, and with one that is there. */
static bool convolve(void)
{
    wfi_conv2d how = {{1, 1}, {1, 1}, {1, 1}, 1};
    weft_tensor *x = tensor_full(WEFT_SHAPE(2, 3, 8, 8), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *weight = tensor_full(WEFT_SHAPE(4, 3, 3, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *y = tensor_empty(WEFT_SHAPE(2, 4, 8, 8), WEFT_DTYPE_FLOAT32);
    bool fine = true;
    for (int i = 0; i < 2 && fine; i++)
        fine = wfi_conv2d_forward(x, weight, NULL, &how, y) == WEFT_OK && is_as_the_host_left_it() &&
               wfi_conv2d_backward_data(y, weight, &how, x) == WEFT_OK && is_as_the_host_left_it() &&
               wfi_conv2d_backward_weight(y, x, &how, weight, NULL) == WEFT_OK && is_as_the_host_left_it();
    weft_tensor *all[] = {x, weight, y};
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(all[i]);
    return fine;
}

static void operators_leave_the_hosts_numbers(void **state)
{
    be_the_host();
    assert_true(multiply(64));
    assert_true(is_as_the_host_left_it());
    assert_true(convolve());
}

static void between_they_are_ours(void **state)
{
    wfi_libraries host;
    be_the_host();
    assert_int_equal(wfi_libraries_enter(&host), OURS);
    assert_int_equal(openblas_get_num_threads(), OURS);
    assert_true(!openmp_get || openmp_get() == OURS);
    wfi_libraries_leave(&host);
    assert_true(is_as_the_host_left_it());
}

static void the_last_of_many_puts_them_back(void **state)
{
    wfi_libraries one, other; /* as two threads would */
    be_the_host();
    (void)wfi_libraries_enter(&one);
    (void)wfi_libraries_enter(&other);
    wfi_libraries_leave(&other);
    assert_int_equal(openblas_get_num_threads(), OURS);
    wfi_libraries_leave(&one);
    assert_true(is_as_the_host_left_it());
}

static void what_the_host_sets_meanwhile_stays(void **state)
{
    wfi_libraries host;
    be_the_host();
    (void)wfi_libraries_enter(&host);
    openblas_set_num_threads(4); /* on another thread of the host's */
    wfi_libraries_leave(&host);
    assert_int_equal(openblas_get_num_threads(), 4);
}

static void *multiply_often(void *arg)
{
    int *wrong = arg;
    if (openmp_set)
        openmp_set(HOST_OPENMP);
    for (int i = 0; i < 200; i++)
        *wrong += !multiply(24) || openmp_threads() != HOST_OPENMP;
    return NULL;
}

static void many_threads_at_once_leave_the_hosts_numbers(void **state)
{
    pthread_t threads[4];
    int wrong[4] = {0};
    be_the_host();
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, multiply_often, &wrong[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(wrong[i], 0);
    }
    assert_true(is_as_the_host_left_it());
}

static void a_forked_child_leaves_them_too(void **state)
{
    be_the_host();
    assert_true(multiply(64) && convolve());
    child one = child_fork("forked");
    if (!one.pid)
        _exit(multiply(64) && convolve() && is_as_the_host_left_it() ? 0 : 1);
    child_must_end_well(&one, 1);
    assert_true(is_as_the_host_left_it());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_leave_the_hosts_numbers),
        cmocka_unit_test(between_they_are_ours),
        cmocka_unit_test(the_last_of_many_puts_them_back),
        cmocka_unit_test(what_the_host_sets_meanwhile_stays),
        cmocka_unit_test(many_threads_at_once_leave_the_hosts_numbers),
        cmocka_unit_test(a_forked_child_leaves_them_too),
    };
    find_openmp();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
