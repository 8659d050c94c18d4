/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_fork.c - a child of fork() computes although the parent's threads did not come along. */
#include "children.h"
#include "check_gradients.h"
#include "tensors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static bool compute(void)
{
    wfi_conv2d how = {{1, 1}, {1, 1}, {1, 1}, 1};
    weft_tensor *x = tensor_full(WEFT_SHAPE(8, 8, 32, 32), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *weight = tensor_full(WEFT_SHAPE(8, 8, 3, 3), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *y = tensor_empty(WEFT_SHAPE(8, 8, 32, 32), WEFT_DTYPE_FLOAT32);
    weft_tensor *matrix = tensor_full(WEFT_SHAPE(300, 300), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *product = tensor_empty(WEFT_SHAPE(300, 300), WEFT_DTYPE_FLOAT32);
    bool fine = wfi_conv2d_forward(x, weight, NULL, &how, y) == WEFT_OK && weft_tensor_get_f64(y, 33) == 72 &&
                wfi_add_into(x, y) == WEFT_OK && weft_tensor_get_f64(y, 33) == 73 &&
                wfi_matmul(matrix, false, matrix, true, product) == WEFT_OK && weft_tensor_get_f64(product, 7) == 300;
    weft_tensor *all[] = {x, weight, y, matrix, product};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
    return fine;
}

static void a_child_computes_after_its_parent_did(void **state)
{
    wfi_cpu_threads_set(2);
    assert_true(compute());
    for (int i = 0; i < 3; i++) {
        child one = child_fork("computes");
        if (!one.pid)
            _exit(compute() && compute() ? 0 : 1);
        child_must_end_well(&one, 1);
    }
    assert_true(compute());
}

static atomic_bool is_over;

static void *use_memory(void *arg)
{
    while (!atomic_load(&is_over))
        weft_tensor_unref(tensor_empty(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32));
    return arg;
}

/* Other threads of the parent are in the pool of memory at the fork. */
static void a_child_has_memory_although_threads_took_some(void **state)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_memory, NULL), 0);
    for (int i = 0; i < 100; i++) {
        child one = child_fork("uses memory");
        if (!one.pid)
            _exit(tensor_empty(WEFT_SHAPE(100000), WEFT_DTYPE_FLOAT32) ? 0 : 1);
        child_must_end_well(&one, 1);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

UNIT_MAIN(a_child_computes_after_its_parent_did, a_child_has_memory_although_threads_took_some)
