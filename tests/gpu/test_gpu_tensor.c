/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_tensor.c - tensors on a device: copies, conversions, fills, arithmetic and matrix products, each compared
 * with the CPU's. It needs none of the libraries that products rest on, so that tools/gpu-check can run it.
 */
#include "gpu/gpu.h"
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};
static const weft_dtype floats[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16};

static weft_tensor *to(weft_tensor *tensor, weft_device device)
{
    weft_tensor *moved = tensor_to_device(tensor, device);
    assert_non_null(moved);
    assert_int_equal(weft_tensor_device(moved).kind, device.kind);
    return moved;
}

/* Of both signs, and of sizes from 2^-20 to 2^20; never 0. */
static weft_tensor *numbers(weft_shape shape, weft_dtype dtype, uint64_t stream)
{
    weft_tensor *wide = tensor_empty(shape, WEFT_DTYPE_FLOAT64);
    double *x = weft_tensor_data(wide);
    for (int64_t i = 0; i < weft_tensor_numel(wide); i++) {
        uint64_t bits = wfi_random_u64((wfi_random){3, stream}, (uint64_t)i);
        x[i] = ldexp(1 + (double)(bits >> 11) * 0x1p-53, (int)(bits % 41) - 20) * (bits >> 10 & 1 ? -1 : 1);
    }
    weft_tensor *tensor = tensor_to(wide, dtype);
    weft_tensor_unref(wide);
    return tensor;
}

/* `there` is on the device, `here` what it should be. Both are dropped. */
static void same_bits(weft_tensor *there, weft_tensor *here)
{
    weft_tensor *back = to(there, cpu), *packed = tensor_contiguous(here);
    assert_true(weft_tensor_same_shape(back, packed));
    assert_int_equal(weft_tensor_dtype(back), weft_tensor_dtype(packed));
    assert_memory_equal(weft_tensor_data(back), weft_tensor_data(packed), weft_tensor_nbytes(packed));
    weft_tensor_unref(back);
    weft_tensor_unref(packed);
    weft_tensor_unref(there);
    weft_tensor_unref(here);
}

static void every_dtype_goes_there_and_back(void **state)
{
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        for (int64_t rows = 0; rows <= 1000; rows = rows * 10 + 1) {
            weft_tensor *x = tensor_empty(WEFT_SHAPE(rows, 7), (weft_dtype)dtype);
            for (size_t i = 0; i < weft_tensor_nbytes(x); i++)
                ((uint8_t *)weft_tensor_data(x))[i] = (uint8_t)(i * 41 + (i >> 8));
            same_bits(to(x, gpu), x);
        }
    }
}

/* Strides on either side, and in between. */
static void views_are_packed_and_spread(void **state)
{
    weft_tensor *x = numbers(WEFT_SHAPE(37, 53), WEFT_DTYPE_FLOAT32, 1), *turned = tensor_transpose(x, 0, 1);
    same_bits(to(turned, gpu), weft_tensor_ref(turned));
    weft_tensor *there = to(x, gpu), *there_turned = tensor_transpose(there, 0, 1);
    same_bits(tensor_contiguous(there_turned), weft_tensor_ref(turned));
    weft_tensor *halves = tensor_empty_on(gpu, WEFT_SHAPE(37, 53), WEFT_DTYPE_FLOAT16),
                *halves_turned = tensor_transpose(halves, 0, 1);
    assert_int_equal(weft_tensor_assign(halves_turned, turned), WEFT_OK); /* converted, and spread there */
    same_bits(halves, tensor_to(x, WEFT_DTYPE_FLOAT16));
    weft_tensor *all[] = {x, turned, there, there_turned, halves_turned};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void every_dtype_is_filled(void **state)
{
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        weft_tensor *here = tensor_full(WEFT_SHAPE(100, 9), (weft_dtype)dtype, 1);
        weft_tensor *there = tensor_empty_on(gpu, WEFT_SHAPE(100, 9), (weft_dtype)dtype);
        weft_tensor_fill(there, 1);
        weft_tensor *part_here = tensor_narrow(here, 1, 2, 3), *part_there = tensor_narrow(there, 1, 2, 3);
        weft_tensor_fill(part_here, 0);
        weft_tensor_fill(part_there, 0);
        weft_tensor_unref(part_here);
        weft_tensor_unref(part_there);
        same_bits(there, here);
    }
}

static void floats_convert_as_on_the_cpu(void **state)
{
    for (int i = 0; i < 16; i++) {
        weft_tensor *x = numbers(WEFT_SHAPE(10000), floats[i / 4], 2), *there = to(x, gpu);
        same_bits(tensor_to(there, floats[i % 4]), tensor_to(x, floats[i % 4]));
        weft_tensor_unref(x);
        weft_tensor_unref(there);
    }
}

static void nan_stays_nan(void **state)
{
    const double values[] = {NAN, -NAN};
    for (int i = 0; i < 16; i++) {
        weft_tensor *x = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, values), *from = tensor_to(x, floats[i / 4]);
        weft_tensor *there = to(from, gpu), *y = tensor_to(there, floats[i % 4]), *back = to(y, cpu);
        assert_true(isnan(weft_tensor_get_f64(back, 0)) && isnan(weft_tensor_get_f64(back, 1)));
        weft_tensor *all[] = {x, from, there, y, back};
        for (size_t k = 0; k < 5; k++)
            weft_tensor_unref(all[k]);
    }
}

/* Numbers that rounding twice, first to float32, would round to another float16 or bfloat16. */
static void doubles_are_rounded_once(void **state)
{
    const double values[] = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-8 + 0x1p-40, -1 - 0x1p-11 - 0x1p-40, 1e30, -0.0};
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT64, values), *there = to(x, gpu);
    same_bits(tensor_to(there, WEFT_DTYPE_FLOAT16), tensor_to(x, WEFT_DTYPE_FLOAT16));
    same_bits(tensor_to(there, WEFT_DTYPE_BFLOAT16), tensor_to(x, WEFT_DTYPE_BFLOAT16));
    weft_tensor_unref(x);
    weft_tensor_unref(there);
}

static void relu_keeps_nan(void **state)
{
    const float values[] = {-1, NAN, 0, 2, -0.0f, -INFINITY};
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(6), WEFT_DTYPE_FLOAT32, values), *there = to(x, gpu);
    assert_int_equal(wfi_relu(there, there), WEFT_OK);
    weft_tensor *y = to(there, cpu);
    for (int i = 0; i < 6; i++) {
        double want = isnan(values[i]) ? (double)NAN : fmax((double)values[i], 0), got = weft_tensor_get_f64(y, i);
        assert_true(isnan(want) ? isnan(got) : want == got);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(there);
    weft_tensor_unref(y);
}

static weft_tensor *calculated(wfi_binary_op op, const weft_tensor *a, const weft_tensor *b)
{
    weft_tensor *y = wfi_tensor_empty_like(a, a->shape, a->dtype);
    assert_int_equal(wfi_binary(op, a, b, y), WEFT_OK);
    return y;
}

/* The second operand broadcast, and read across. */
static void arithmetic_has_the_bits_of_the_cpu(void **state)
{
    static const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_INT64, WEFT_DTYPE_INT32,
                                        WEFT_DTYPE_UINT8};
    for (int i = 0; i < 5; i++) {
        weft_tensor *a = numbers(WEFT_SHAPE(300, 40), dtypes[i], 3),
                    *whole = numbers(WEFT_SHAPE(40, 300), dtypes[i], 4);
        weft_tensor *b[] = {tensor_transpose(whole, 0, 1), numbers(WEFT_SHAPE(40), dtypes[i], 5)};
        weft_tensor *a_there = to(a, gpu), *whole_there = to(whole, gpu);
        weft_tensor *b_there[] = {tensor_transpose(whole_there, 0, 1), to(b[1], gpu)};
        for (int k = 0; k < 2; k++) {
            for (int op = WFI_ADD; op < (i < 2 ? WFI_BINARY_OPS : WFI_DIV); op++)
                same_bits(calculated((wfi_binary_op)op, a_there, b_there[k]), calculated((wfi_binary_op)op, a, b[k]));
        }
        weft_tensor *all[] = {a, whole, b[0], b[1], a_there, whole_there, b_there[0], b_there[1]};
        for (int k = 0; k < 8; k++)
            weft_tensor_unref(all[k]);
    }
}

/* Bytes of a bool that are neither 0 nor 1 come from other libraries. */
static void bools_of_any_byte_have_the_values_of_the_cpu(void **state)
{
    weft_tensor *a = tensor_empty(WEFT_SHAPE(300, 40), WEFT_DTYPE_BOOL);
    for (size_t i = 0; i < weft_tensor_nbytes(a); i++)
        ((uint8_t *)weft_tensor_data(a))[i] = (uint8_t)(i % 5 * 63);
    weft_tensor *a_there = to(a, gpu);
    weft_tensor *sums = tensor_empty(WEFT_SHAPE(300), WEFT_DTYPE_INT64), *sums_there = to(sums, gpu);
    assert_int_equal(wfi_sum(a, 1u << 1, sums), WEFT_OK);
    assert_int_equal(wfi_sum(a_there, 1u << 1, sums_there), WEFT_OK);
    assert_int_equal(weft_tensor_get_i64(sums_there, 0), 32);
    same_bits(weft_tensor_ref(sums_there), weft_tensor_ref(sums));
    assert_int_equal(wfi_argmax(a, 1, sums), WEFT_OK);
    assert_int_equal(wfi_argmax(a_there, 1, sums_there), WEFT_OK);
    same_bits(sums_there, sums);
    weft_tensor_unref(a);
    weft_tensor_unref(a_there);
}

static weft_tensor *mapped(wfi_map_op op, const weft_tensor *x, weft_tensor *z)
{
    weft_tensor *y = tensor_clone(z);
    weft_status status = op == WFI_SCALE        ? wfi_scale(x, 1.7, y)
                         : op == WFI_ADD_SCALAR ? wfi_add_scalar(x, 1.7, y)
                         : op == WFI_RELU       ? wfi_relu(x, y)
                                                : wfi_relu_backward(x, z, y);
    assert_int_equal(status, WEFT_OK);
    return y;
}

static void functions_have_the_bits_of_the_cpu(void **state)
{
    static const wfi_map_op ops[] = {WFI_SCALE, WFI_ADD_SCALAR, WFI_RELU, WFI_RELU_BACKWARD};
    for (int i = 0; i < 8; i++) {
        weft_tensor *x = numbers(WEFT_SHAPE(9999), floats[i % 2], 6), *z = numbers(WEFT_SHAPE(9999), floats[i % 2], 7);
        weft_tensor *x_there = to(x, gpu), *z_there = to(z, gpu);
        same_bits(mapped(ops[i / 2], x_there, z_there), mapped(ops[i / 2], x, z));
        weft_tensor_unref(x);
        weft_tensor_unref(z);
        weft_tensor_unref(x_there);
        weft_tensor_unref(z_there);
    }
}

static void exp_and_ln_are_near(void **state)
{
    for (int i = 0; i < 4; i++) {
        weft_dtype dtype = floats[i % 2];
        weft_tensor *x = tensor_empty(WEFT_SHAPE(5000), dtype);
        assert_int_equal(wfi_random_uniform(x, (wfi_random){5, 1}, 0.01, 10), WEFT_OK);
        weft_tensor *there = to(x, gpu);
        assert_int_equal(i < 2 ? wfi_exp(there, there) : wfi_ln(there, there), WEFT_OK); /* in place */
        assert_int_equal(i < 2 ? wfi_exp(x, x) : wfi_ln(x, x), WEFT_OK);
        weft_tensor *back = to(there, cpu);
        for (int64_t k = 0; k < 5000; k++) {
            double want = weft_tensor_get_f64(x, k), error = fabs(weft_tensor_get_f64(back, k) - want);
            assert_true(error <= (dtype == WEFT_DTYPE_FLOAT32 ? 5e-7 : 1e-15) * fmax(fabs(want), 1e-2));
        }
        weft_tensor_unref(x);
        weft_tensor_unref(there);
        weft_tensor_unref(back);
    }
}

static double product_at(const weft_tensor *a, bool ta, const weft_tensor *b, bool tb, int64_t row, int64_t column)
{
    double sum = 0;
    int64_t inner = weft_tensor_size(a, ta ? 0 : 1), a_row = weft_tensor_size(a, 1), b_row = weft_tensor_size(b, 1);
    for (int64_t i = 0; i < inner; i++)
        sum += weft_tensor_get_f64(a, ta ? i * a_row + row : row * a_row + i) *
               weft_tensor_get_f64(b, tb ? column * b_row + i : i * b_row + column);
    return sum;
}

/* Through the table: tensor/cpu/product, which looks there, rests on OpenBLAS. */
static void products_are_near(void **state)
{
    enum { M = 33, N = 20, K = 47 };
    for (int i = 0; i < 8; i++) {
        weft_dtype dtype = floats[i % 2];
        bool ta = i & 2, tb = i & 4;
        weft_tensor *a = tensor_empty(ta ? WEFT_SHAPE(K, M) : WEFT_SHAPE(M, K), dtype),
                    *b = tensor_empty(tb ? WEFT_SHAPE(N, K) : WEFT_SHAPE(K, N), dtype);
        assert_int_equal(wfi_random_normal(a, (wfi_random){8, 1}, 0, 1), WEFT_OK);
        assert_int_equal(wfi_random_normal(b, (wfi_random){8, 2}, 0, 1), WEFT_OK);
        weft_tensor *a_there = to(a, gpu), *b_there = to(b, gpu), *c = tensor_empty_on(gpu, WEFT_SHAPE(M, N), dtype);
        weft_tensor_fill(c, 2);
        wfi_gemm_args args = {.device = gpu,
                              .transpose_a = ta,
                              .transpose_b = tb,
                              .m = M,
                              .n = N,
                              .k = K,
                              .a = wfi_tensor_address(a_there),
                              .b = wfi_tensor_address(b_there),
                              .beta = 0.5,
                              .c = wfi_tensor_address(c)};
        assert_int_equal(wfi_product_cuda[dtype].gemm(&args), WEFT_OK);
        weft_tensor *back = to(c, cpu);
        for (int64_t k = 0; k < M * N; k++)
            assert_true(fabs(weft_tensor_get_f64(back, k) - 1 - product_at(a, ta, b, tb, k / N, k % N)) <
                        (dtype == WEFT_DTYPE_FLOAT32 ? 2e-4 : 1e-12));
        weft_tensor *all[] = {a, b, a_there, b_there, c, back};
        for (int k = 0; k < 6; k++)
            weft_tensor_unref(all[k]);
    }
}

static void what_has_no_kernel_is_refused(void **state)
{
    weft_tensor *here = numbers(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 9), *there = to(here, gpu);
    weft_tensor *whole = tensor_empty_on(gpu, WEFT_SHAPE(4), WEFT_DTYPE_INT32);
    assert_int_equal(wfi_binary(WFI_ADD, here, there, here), WEFT_ERR_UNSUPPORTED); /* on two devices */
    assert_null(tensor_to(whole, WEFT_DTYPE_FLOAT32));
    assert_null(weft_tensor_data(there));
    weft_tensor_unref(here);
    weft_tensor_unref(there);
    weft_tensor_unref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_goes_there_and_back),
        cmocka_unit_test(views_are_packed_and_spread),
        cmocka_unit_test(every_dtype_is_filled),
        cmocka_unit_test(floats_convert_as_on_the_cpu),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(doubles_are_rounded_once),
        cmocka_unit_test(relu_keeps_nan),
        cmocka_unit_test(arithmetic_has_the_bits_of_the_cpu),
        cmocka_unit_test(bools_of_any_byte_have_the_values_of_the_cpu),
        cmocka_unit_test(functions_have_the_bits_of_the_cpu),
        cmocka_unit_test(exp_and_ln_are_near),
        cmocka_unit_test(products_are_near),
        cmocka_unit_test(what_has_no_kernel_is_refused),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
