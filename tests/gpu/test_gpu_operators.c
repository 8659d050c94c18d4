/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_operators.c - a tape that computes on a GPU: values and gradients are near the CPU's. */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

static weft_tensor *counted(int64_t rows, int64_t columns, double scale)
{
    weft_tensor *x = weft_tensor_empty(WEFT_SHAPE(rows, columns), WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < rows * columns; i++)
        ((float *)weft_tensor_data(x))[i] = (float)(sin((double)i * 1.7) * scale);
    weft_tensor_set_requires_grad(x, true);
    return x;
}

/* relu(x w) * x2, backward from a gradient of ones: the gradients of x, w and x2, on the CPU. */
static void run(weft_device device, weft_tensor *const *in, weft_tensor **out)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = device});
    weft_tensor *leaves[3], *ones = weft_tensor_full(WEFT_SHAPE(8, 5), WEFT_DTYPE_FLOAT32, 1);
    for (int i = 0; i < 3; i++) {
        leaves[i] = weft_tensor_to_device(in[i], device);
        weft_tensor_set_requires_grad(leaves[i], true);
    }
    weft_tensor *y = weft_mul(t, weft_relu(t, weft_matmul(t, leaves[0], leaves[1])), leaves[2]);
    weft_tensor *start = weft_tensor_to_device(ones, device);
    weft_backward_with(t, (weft_tensors){&y, 1}, (weft_tensors){&start, 1}, NULL);
    weft_error_print(weft_tape_error(t), stderr);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    out[0] = weft_tensor_to_device(y, cpu);
    for (int i = 0; i < 3; i++) {
        out[i + 1] = weft_tensor_to_device(weft_tape_grad(t, leaves[i]), cpu);
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
    weft_tensor *x = weft_tensor_empty_on(gpu, WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
    assert_null(weft_softmax(t, x, 1));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "no kernel for float32 on cuda:0"));
    weft_tape_close(t);
    weft_tensor_unref(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tape_computes_on_the_gpu),
        cmocka_unit_test(operators_without_a_kernel_there_say_so),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
