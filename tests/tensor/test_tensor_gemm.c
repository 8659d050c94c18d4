/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_gemm.c - the product that all others are made of, by whichever library computes it, against plain
 * loops. */
#include "tensor/cpu/product/gemm.h"
#include "tensor/parallel.h"

#include "oracle/formula.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>

typedef struct sizes {
    int64_t m, n, k;
} sizes;

/* One element of each library's share of sizes, and odd ones. */
static const sizes all[] = {{1, 1, 1},     {3, 5, 7},     {1, 128, 4},   {20, 30, 300}, {1, 1000, 70},
                            {64, 64, 64},  {65, 33, 129}, {200, 7, 100}, {7, 200, 100}, {130, 127, 31},
                            {35, 800, 20}, {33, 1025, 3}, {1000, 1, 80}, {40, 40, 40},  {31, 32, 66}};

static double element(const weft_tensor *x, bool transposed, int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    return weft_tensor_get_f64(x, transposed ? column * rows + row : row * columns + column);
}

static void assert_product(sizes s, weft_dtype dtype, bool transpose_a, bool transpose_b, double beta)
{
    weft_tensor *a = formula_tensor(WEFT_SHAPE(s.m * s.k), dtype, 1),
                *b = formula_tensor(WEFT_SHAPE(s.k * s.n), dtype, 2);
    weft_tensor *before = formula_tensor(WEFT_SHAPE(s.m * s.n), dtype, 3);
    weft_tensor *c = beta == 0 ? tensor_full(WEFT_SHAPE(s.m * s.n), dtype, NAN) : tensor_clone(before);
    double tolerance = dtype == WEFT_DTYPE_FLOAT64 ? 1e-13 : 2e-6;
    assert_non_null(c);
    wfi_gemm(dtype, transpose_a, transpose_b, s.m, s.n, s.k, weft_tensor_data(a), weft_tensor_data(b), beta,
             weft_tensor_data(c));
    for (int64_t i = 0; i < s.m * s.n; i++) {
        double wanted = beta == 0 ? 0 : beta * weft_tensor_get_f64(before, i);
        for (int64_t p = 0; p < s.k; p++)
            wanted += element(a, transpose_a, s.m, s.k, i / s.n, p) * element(b, transpose_b, s.k, s.n, p, i % s.n);
        if (!(fabs(weft_tensor_get_f64(c, i) - wanted) <= tolerance * (double)(s.k + 1)))
            fail_msg("%d x %d x %d, transposed %d %d, beta %g: element %d is %.9g, wanted %.9g", (int)s.m, (int)s.n,
                     (int)s.k, transpose_a, transpose_b, beta, (int)i, weft_tensor_get_f64(c, i), wanted);
    }
    weft_tensor_unref(a);
    weft_tensor_unref(b);
    weft_tensor_unref(before);
    weft_tensor_unref(c);
}

static void products_are_those_of_plain_loops(void **state)
{
    (void)state;
    int before = wfi_cpu_threads();
    for (int threads = 1; threads <= 3; threads += 2) {
        wfi_cpu_threads_set(threads);
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) * 4; i++) {
            for (int beta = 0; beta < 2; beta++) {
                assert_product(all[i / 4], WEFT_DTYPE_FLOAT32, i & 1, i & 2, beta);
                assert_product(all[i / 4], WEFT_DTYPE_FLOAT64, i & 1, i & 2, beta);
            }
        }
    }
    wfi_cpu_threads_set(before);
}

static void without_inner_elements_the_product_is_zero(void **state)
{
    (void)state;
    float c[6] = {1, 2, 3, 4, 5, 6};
    wfi_gemm(WEFT_DTYPE_FLOAT32, false, false, 2, 3, 0, NULL, NULL, 1, c);
    assert_true(c[0] == 1 && c[5] == 6);
    wfi_gemm(WEFT_DTYPE_FLOAT32, false, false, 2, 3, 0, NULL, NULL, 0, c);
    for (int i = 0; i < 6; i++)
        assert_true(c[i] == 0);
    wfi_gemm(WEFT_DTYPE_FLOAT32, false, false, 0, 3, 5, NULL, NULL, 0, NULL);
}

UNIT_MAIN(products_are_those_of_plain_loops, without_inner_elements_the_product_is_zero)
