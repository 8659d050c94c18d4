/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_openblas.c - OpenBLAS is loaded by the first operator that needs it. If it cannot be loaded, products
 * fail. */
#include "children.h"
#include "check_gradients.h"
#include "tensor/cpu/product/product.h"
#include "tensors.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPENBLAS "libopenblas.so.0"

static bool is_loaded(void)
{
    void *library = dlopen(OPENBLAS, RTLD_LAZY | RTLD_NOLOAD);
    return library && dlclose(library) == 0;
}

static weft_status multiply(weft_dtype dtype, int64_t n)
{
    weft_tensor *matrix = tensor_full(WEFT_SHAPE(n, n), dtype, 1);
    weft_tensor *product = tensor_full(WEFT_SHAPE(n, n), dtype, 0);
    weft_status status = wfi_matmul(matrix, false, matrix, true, product);
    assert_int_equal(weft_tensor_get_f64(product, n * n - 1), status ? 0 : n);
    weft_tensor_unref(matrix);
    weft_tensor_unref(product);
    return status;
}

/* Float64: weft's own convolution, by products. */
static weft_status convolve(void)
{
    wfi_conv2d how = {{1, 1}, {1, 1}, {1, 1}, 1};
    weft_tensor *x = tensor_full(WEFT_SHAPE(2, 3, 8, 8), WEFT_DTYPE_FLOAT64, 1);
    weft_tensor *weight = tensor_full(WEFT_SHAPE(4, 3, 3, 3), WEFT_DTYPE_FLOAT64, 1);
    weft_tensor *y = tensor_full(WEFT_SHAPE(2, 4, 8, 8), WEFT_DTYPE_FLOAT64, 0);
    weft_status forward = wfi_conv2d_forward(x, weight, NULL, &how, y);
    assert_int_equal(wfi_conv2d_backward_data(y, weight, &how, x), forward);
    assert_int_equal(wfi_conv2d_backward_weight(y, x, &how, weight, NULL), forward);
    weft_tensor *all[] = {x, weight, y};
    for (int i = 0; i < 3; i++)
        weft_tensor_unref(all[i]);
    return forward;
}

static void by_the_first_product(void **state)
{
    assert_false(is_loaded());
    weft_tensor *sum = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1);
    assert_int_equal(wfi_add_into(sum, sum), WEFT_OK); /* needs none */
    assert_false(is_loaded());
    assert_int_equal(multiply(WEFT_DTYPE_FLOAT64, 8), WEFT_OK);
    assert_true(is_loaded());
    assert_int_equal(convolve(), WEFT_OK);
    weft_tensor_unref(sum);
}

/* In a child whose library path begins with a file of that name that is no library. Its log is file 2. */
static int without(void)
{
    bool fine = multiply(WEFT_DTYPE_FLOAT32, 8) == WEFT_ERR_UNSUPPORTED &&
                multiply(WEFT_DTYPE_FLOAT32, 128) == WEFT_ERR_UNSUPPORTED &&
                multiply(WEFT_DTYPE_FLOAT64, 8) == WEFT_ERR_UNSUPPORTED && convolve() == WEFT_ERR_UNSUPPORTED;
    return fine && !is_loaded() ? 0 : 1;
}

static void a_missing_one_is_an_error(void **state)
{
    char folder[] = "/tmp/openblas-XXXXXX", file[64], log[64], text[2048] = "";
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/" OPENBLAS, folder);
    snprintf(log, sizeof(log), "%s/log", folder);
    FILE *out = fopen(file, "w");
    assert_true(out && fputs("no library\n", out) >= 0 && fclose(out) == 0);
    assert_int_equal(setenv("LD_LIBRARY_PATH", folder, 1), 0);
    child one = child_exec("without", (const char *const[]){"openblas", "without", log, NULL});
    child_must_end_well(&one, 1);
    unsetenv("LD_LIBRARY_PATH");
    FILE *in = fopen(log, "r");
    assert_non_null(in);
    size_t size = fread(text, 1, sizeof(text) - 1, in);
    fclose(in);
    text[size] = 0;
    const char *first = strstr(text, "OpenBLAS cannot be loaded: ");
    assert_non_null(first);
    assert_non_null(strstr(first, "Debian: libopenblas0"));
    assert_null(strstr(first + 1, "OpenBLAS cannot be loaded: ")); /* said once */
    assert_true(unlink(file) == 0 && unlink(log) == 0 && rmdir(folder) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) /* in the child */
        return argc == 3 && strcmp(argv[1], "without") == 0 && freopen(argv[2], "w", stderr) ? without() : 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_the_first_product),
        cmocka_unit_test(a_missing_one_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
