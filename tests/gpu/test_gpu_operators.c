/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_operators.c - a tape that computes on a GPU: values and gradients are near the CPU's. */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

static weft_tensor *counted(int64_t rows, int64_t columns, double scale)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(rows, columns), WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < rows * columns; i++)
        ((float *)weft_tensor_data(x))[i] = (float)(sin((double)i * 1.7) * scale);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

/* relu(x w) * x2, backward from a gradient of ones: the gradients of x, w and x2, on the CPU. */
static void run(weft_device device, weft_tensor *const *in, weft_tensor **out)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = device});
    weft_tensor *leaves[3], *ones = tensor_full(WEFT_SHAPE(8, 5), WEFT_DTYPE_FLOAT32, 1);
    for (int i = 0; i < 3; i++) {
        leaves[i] = tensor_to_device(in[i], device);
        weft_tensor_set_requires_grad(leaves[i], true);
    }
    weft_tensor *y = weft_mul(t, weft_relu(t, weft_matmul(t, leaves[0], leaves[1])), leaves[2]);
    weft_tensor *start = tensor_to_device(ones, device);
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&start, 1}, NULL);
    weft_error_print(weft_tape_error(t), stderr);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    out[0] = tensor_to_device(y, cpu);
    for (int i = 0; i < 3; i++) {
        out[i + 1] = tensor_to_device(weft_tape_grad(t, leaves[i]), cpu);
        weft_tensor_unref(leaves[i]);
    }
    weft_tensor_unref(ones);
    weft_tensor_unref(start);
    weft_tape_close(t);
}

static void a_tape_computes_on_the_gpu(void **state)
{
    weft_tensor *in[3] = {counted(8, 6, 1), counted(6, 5, 0.5), counted(8, 5, 2)}, *want[4], *got[4];
    run(cpu, in, want);
    run(gpu, in, got);
    for (int i = 0; i < 4; i++) {
        assert_true(weft_tensor_same_shape(want[i], got[i]));
        for (int64_t k = 0; k < weft_tensor_numel(want[i]); k++)
            assert_true(fabs(weft_tensor_get_f64(want[i], k) - weft_tensor_get_f64(got[i], k)) < 1e-5);
        weft_tensor_unref(want[i]);
        weft_tensor_unref(got[i]);
    }
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(in[i]);
}

static void operators_without_a_kernel_there_say_so(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tensor *x = tensor_empty_on(gpu, WEFT_SHAPE(2, 3), WEFT_DTYPE_INT16);
    assert_null(weft_add(t, x, x));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "no kernel for int16 on cuda:0"));
    weft_tape_close(t);
    weft_tensor_unref(x);
}

/* ---- Indices: errors have the same words on both devices ---- */

typedef weft_tensor *(*indexed_fn)(weft_tape *t, weft_tensor *x, weft_tensor *index);

static weft_tensor *run_gather(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_take_along_dim(t, x, 0, weft_reshape(t, index, WEFT_SHAPE(-1, 1)));
}
static weft_tensor *run_select(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_index_select(t, x, 0, index);
}
static weft_tensor *run_nll(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_nll_loss(t, x, index);
}
static weft_tensor *run_embedding(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_embedding(t, x, index, NULL);
}
static weft_tensor *run_bags(weft_tape *t, weft_tensor *x, weft_tensor *index)
{
    return weft_embedding_bag(t, x, weft_reshape(t, index, WEFT_SHAPE(1, -1)), NULL, NULL, NULL);
}
static const indexed_fn indexed[] = {run_gather, run_select, run_nll, run_embedding, run_bags};
enum { INDEXED = sizeof(indexed) / sizeof(indexed[0]) };

/* The error of one operator; `text` has room for 256. */
static weft_status error_of(indexed_fn which, weft_device tape, weft_device of_index, const int64_t numbers[4],
                            char *text)
{
    weft_tensor *x = counted(4, 4, 1), *index = tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_INT64, numbers);
    weft_tensor *x_there = tensor_to_device(x, tape), *index_there = tensor_to_device(index, of_index);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = tape});
    (void)which(t, x_there, index_there);
    weft_status status = weft_tape_wait(t);
    snprintf(text, 256, "%s", status == WEFT_OK ? "" : weft_error_message(weft_tape_error(t)));
    weft_tape_close(t);
    weft_tensor *all[] = {x, index, x_there, index_there};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
    return status;
}

static void an_index_outside_has_the_words_of_the_cpu(void **state)
{
    static const int64_t wrong[][4] = {{0, 3, 4, 9}, {0, 3, 2, -1}};
    for (int i = 0; i < 2 * INDEXED; i++) {
        char want[256], got[256];
        assert_int_equal(error_of(indexed[i / 2], cpu, cpu, wrong[i % 2], want), WEFT_ERR_INVALID);
        assert_int_equal(error_of(indexed[i / 2], gpu, gpu, wrong[i % 2], got), WEFT_ERR_INVALID);
        assert_string_equal(want, got);
    }
}

/* The host refuses the second operator at once, and the GPU reports the first one at the wait. The program is told of
 * both. */
static void a_fault_of_the_gpu_is_added_to_an_error_of_the_host(void **state)
{
    static const int64_t wrong[4] = {0, 3, 9, 1};
    weft_tensor *here = counted(4, 4, 1), *x = tensor_to_device(here, gpu);
    weft_tensor *index = tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_INT64, wrong);
    weft_tensor *index_there = tensor_to_device(index, gpu);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    (void)run_select(t, x, index_there);
    weft_tape_fail(t, WEFT_ERR_STATE, "the program gives up");
    const weft_error *first = weft_tape_error(t);
    char before[64];
    snprintf(before, sizeof(before), "%s", weft_error_message(first));
    assert_int_equal(weft_tape_wait(t), WEFT_ERR_STATE);
    const char *both = weft_error_message(weft_tape_error(t));
    assert_non_null(strstr(both, "the program gives up; "));
    assert_non_null(strstr(both, "element 2 of the index is 9, not in [0, 4)"));
    assert_non_null(strstr(weft_error_message(first), "the program gives up")); /* it is still there */
    weft_tape_close(t);
    weft_tensor *all[] = {here, x, index, index_there};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
}

static void an_index_on_another_device_is_named(void **state)
{
    static const int64_t right[4] = {0, 3, 2, 1};
    for (int i = 1; i < INDEXED - 1; i++) { /* the others reshape it on the tape, which refuses it first */
        char text[256];
        assert_int_equal(error_of(indexed[i], gpu, cpu, right, text), WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(text, "is on the CPU, and the tape computes on cuda:0"));
        assert_int_equal(error_of(indexed[i], cpu, gpu, right, text), WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(text, "is on cuda:0, and the tape computes on the CPU"));
    }
}

static void a_row_that_is_no_distribution_is_named(void **state)
{
    const float rows[] = {1, 2, 0, 0, 1, -1};
    weft_tensor *here = tensor_copy_of(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, rows);
    weft_tensor *there = tensor_to_device(here, gpu);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    (void)weft_categorical(t, there);
    assert_int_equal(weft_tape_wait(t), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "row 1 is no distribution"));
    weft_tape_close(t);
    weft_tensor_unref(here);
    weft_tensor_unref(there);
}

/* Ties, and NaN among the numbers. */
static void largest_elements_are_those_of_the_cpu(void **state)
{
    const float values[] = {1, 3, 3, 2, 5, NAN, 7, NAN, -1, -1, -2, -1, 0, -0.0f, 0, 0};
    weft_tensor *here = tensor_copy_of(WEFT_SHAPE(4, 4), WEFT_DTYPE_FLOAT32, values);
    weft_tensor *there = tensor_to_device(here, gpu);
    weft_device devices[2] = {cpu, gpu};
    weft_tensor *found[2], *pooled[2];
    for (int i = 0; i < 2; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = devices[i]});
        weft_tensor *x = i == 0 ? here : there;
        found[i] = tensor_to_device(weft_argmax(t, x, 1), cpu);
        pooled[i] = tensor_to_device(weft_max_pool2d(t, weft_reshape(t, x, WEFT_SHAPE(1, 1, 4, 4)),
                                                     &(weft_max_pool2d_options){.kernel = {2, 2}}),
                                     cpu);
        weft_tape_close(t);
    }
    assert_memory_equal(weft_tensor_data(found[0]), weft_tensor_data(found[1]), weft_tensor_nbytes(found[0]));
    for (int i = 0; i < 4; i++) {
        double want = weft_tensor_get_f64(pooled[0], i), got = weft_tensor_get_f64(pooled[1], i);
        assert_true(want == got || (isnan(want) && isnan(got)));
    }
    weft_tensor *all[] = {here, there, found[0], found[1], pooled[0], pooled[1]};
    for (int i = 0; i < 6; i++)
        weft_tensor_unref(all[i]);
}

/* Of equal rows of a bag the first gets the gradient. */
static void the_first_of_equal_rows_gets_the_gradient(void **state)
{
    const float rows[] = {1, 5, 3, 5, 3, 2};
    const int64_t bags[] = {0, 1, 1, 2};
    weft_tensor *table = tensor_copy_of(WEFT_SHAPE(3, 2), WEFT_DTYPE_FLOAT32, rows);
    weft_tensor *index = tensor_copy_of(WEFT_SHAPE(2, 2), WEFT_DTYPE_INT64, bags);
    weft_device devices[2] = {cpu, gpu};
    weft_tensor *gradients[2];
    for (int i = 0; i < 2; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = devices[i]});
        weft_tensor *x = weft_tape_take(t, tensor_to_device(table, devices[i]));
        weft_tensor *at = weft_tape_take(t, tensor_to_device(index, devices[i]));
        weft_tensor_set_requires_grad(x, true);
        weft_backward(t, weft_sum(t, weft_embedding_bag(t, x, at, NULL, NULL,
                                                        &(weft_embedding_bag_options){.mode = WEFT_BAG_MAX})));
        weft_error_print(weft_tape_error(t), stderr);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        gradients[i] = tensor_to_device(weft_tape_grad(t, x), cpu);
        weft_tape_close(t);
    }
    for (int i = 0; i < 6; i++)
        assert_true(weft_tensor_get_f64(gradients[0], i) == weft_tensor_get_f64(gradients[1], i));
    weft_tensor *all[] = {table, index, gradients[0], gradients[1]};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tape_computes_on_the_gpu),
        cmocka_unit_test(operators_without_a_kernel_there_say_so),
        cmocka_unit_test(an_index_outside_has_the_words_of_the_cpu),
        cmocka_unit_test(a_fault_of_the_gpu_is_added_to_an_error_of_the_host),
        cmocka_unit_test(an_index_on_another_device_is_named),
        cmocka_unit_test(a_row_that_is_no_distribution_is_named),
        cmocka_unit_test(largest_elements_are_those_of_the_cpu),
        cmocka_unit_test(the_first_of_equal_rows_gets_the_gradient),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
