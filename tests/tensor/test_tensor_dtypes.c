/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_dtypes.c - every dtype: its storage, its conversions, its text; float16 and bfloat16 against
 * PyTorch's. */
#include "oracle/formula.h"
#include "tensor/copy.h"
#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HALVES = 65536, SAMPLES = 1 << 20 };

static const weft_dtype real_dtypes[] = {
    WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_INT64,    WEFT_DTYPE_INT32, WEFT_DTYPE_UINT8,
    WEFT_DTYPE_BOOL,    WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16, WEFT_DTYPE_INT8,  WEFT_DTYPE_INT16};
enum { REALS = sizeof(real_dtypes) / sizeof(real_dtypes[0]) };

static weft_tensor *moved(weft_tensor *tensor, weft_dtype dtype) /* instead of `tensor` */
{
    weft_tensor *converted = tensor_to(tensor, dtype);
    assert_non_null(converted);
    weft_tensor_unref(tensor);
    return converted;
}

/* ---- Against PyTorch: tests/oracle/half_oracle.py prints these checksums -------------------------------------- */

static const struct {
    weft_dtype dtype;
    uint64_t every, any, near;
} torch_says[] = {
    {WEFT_DTYPE_FLOAT16, 0xa29fcd307f1d2325, 0x2346262b7cf07355, 0x6c44620f167712c9},
    {WEFT_DTYPE_BFLOAT16, 0xae864f38855e2325, 0xa42d0b88e76d6412, 0x55a70fbf6ee12933},
};

static uint64_t with_word(uint64_t sum, uint32_t word)
{
    return (sum ^ word) * UINT64_C(0x100000001B3);
}
#define CHECKSUM_BEGIN UINT64_C(0xCBF29CE484222325)

static weft_tensor *every_half(weft_dtype dtype)
{
    weft_tensor *halves = tensor_empty(WEFT_SHAPE(HALVES), dtype);
    for (int i = 0; i < HALVES; i++)
        ((uint16_t *)weft_tensor_data(halves))[i] = (uint16_t)i;
    return halves;
}

static uint64_t checksum_of_floats(weft_tensor *floats)
{
    uint64_t sum = CHECKSUM_BEGIN;
    const float *x = weft_tensor_data(floats);
    for (int64_t i = 0; i < weft_tensor_numel(floats); i++) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof(word));
        sum = with_word(sum, isnan(x[i]) ? 0x7fc00000 : word);
    }
    return sum;
}

static bool half_is_nan(weft_dtype dtype, uint16_t half)
{
    return (half & 0x7fff) > (dtype == WEFT_DTYPE_FLOAT16 ? 0x7c00 : 0x7f80);
}

static uint64_t checksum_of_halves(weft_tensor *halves)
{
    uint64_t sum = CHECKSUM_BEGIN;
    const uint16_t *x = weft_tensor_data(halves);
    for (int64_t i = 0; i < weft_tensor_numel(halves); i++)
        sum = with_word(sum, half_is_nan(weft_tensor_dtype(halves), x[i]) ? 0x7fff : x[i]);
    return sum;
}

/* Key 1: random bits. Key 2: exponents from 2^-27 to 2^17. */
static weft_tensor *samples(uint64_t key)
{
    weft_tensor *tensor = tensor_empty(WEFT_SHAPE(SAMPLES), WEFT_DTYPE_FLOAT32);
    uint32_t *words = weft_tensor_data(tensor);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        uint64_t bits = formula_u64(key, i);
        words[i] = (uint32_t)(bits >> 32);
        if (key == 2)
            words[i] = (words[i] & 0x807fffff) | (uint32_t)((bits & 0xffff) % 45 + 127 - 27) << 23;
    }
    return tensor;
}

static void halves_are_those_of_pytorch(void **state)
{
    for (int i = 0; i < 2; i++) {
        weft_dtype dtype = torch_says[i].dtype;
        weft_tensor *every = moved(every_half(dtype), WEFT_DTYPE_FLOAT32), *any = moved(samples(1), dtype),
                    *near = moved(samples(2), dtype);
        assert_int_equal(checksum_of_floats(every), torch_says[i].every);
        assert_int_equal(checksum_of_halves(any), torch_says[i].any);
        assert_int_equal(checksum_of_halves(near), torch_says[i].near);
        weft_tensor_unref(every);
        weft_tensor_unref(any);
        weft_tensor_unref(near);
    }
}

/* ---- Rounding ------------------------------------------------------------------------------------------------- */

static uint16_t half_of(weft_dtype from, const void *value, weft_dtype dtype)
{
    uint16_t half = 0;
    assert_true(wfi_convert_one(from, value, dtype, &half));
    return half;
}

static double value_of(weft_dtype dtype, uint16_t half)
{
    double value = 0;
    assert_true(wfi_convert_one(dtype, &half, WEFT_DTYPE_FLOAT64, &value));
    return value;
}

static void every_half_survives_wider_dtypes(void **state)
{
    static const weft_dtype halves[] = {WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16},
                            wide[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64};
    for (int i = 0; i < 4; i++) {
        weft_dtype dtype = halves[i / 2];
        weft_tensor *before = every_half(dtype), *after = moved(tensor_to(before, wide[i % 2]), dtype);
        const uint16_t *a = weft_tensor_data(before), *b = weft_tensor_data(after);
        for (int k = 0; k < HALVES; k++) {
            uint16_t quiet = half_is_nan(dtype, a[k]) ? (dtype == WEFT_DTYPE_FLOAT16 ? 0x200 : 0x40) : 0;
            assert_int_equal(b[k], a[k] | quiet); /* the payload of a NaN too */
        }
        weft_tensor_unref(before);
        weft_tensor_unref(after);
    }
}

/* Halfway between neighbours, and the double just beside it, which as a float would be that halfway. */
static void every_rounding_is_to_nearest_and_once(void **state)
{
    static const weft_dtype halves[] = {WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16};
    for (int i = 0; i < 2; i++) {
        weft_dtype dtype = halves[i];
        int infinity = dtype == WEFT_DTYPE_FLOAT16 ? 0x7c00 : 0x7f80;
        for (int low = 0; low < infinity; low++) {
            double a = value_of(dtype, (uint16_t)low), b = value_of(dtype, (uint16_t)(low + 1));
            if (low + 1 == infinity) /* as if the exponents went on */
                b = 2 * a - value_of(dtype, (uint16_t)(low - 1));
            double middle = (a + b) / 2, below = nextafter(middle, 0), above = nextafter(middle, INFINITY);
            uint16_t even = (uint16_t)(low + (low & 1));
            assert_int_equal(half_of(WEFT_DTYPE_FLOAT64, &middle, dtype), even);
            assert_int_equal(half_of(WEFT_DTYPE_FLOAT64, &below, dtype), low);
            assert_int_equal(half_of(WEFT_DTYPE_FLOAT64, &above, dtype), low + 1);
            double minus = -middle;
            float single = (float)middle, single_above = nextafterf(single, INFINITY);
            assert_int_equal(half_of(WEFT_DTYPE_FLOAT64, &minus, dtype), even | 0x8000);
            if ((double)single == middle) {
                assert_int_equal(half_of(WEFT_DTYPE_FLOAT32, &single, dtype), even);
                assert_int_equal(half_of(WEFT_DTYPE_FLOAT32, &single_above, dtype), low + 1);
            }
        }
    }
}

static void integers_are_rounded_once(void **state)
{
    int64_t one = INT64_C(1) << 62, ulp = one >> 7, tie = one + ulp / 2; /* halfway from 2^62 to the next bfloat16 */
    int64_t above = tie + 1, below = tie - 1;                            /* as doubles, both are the tie */
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT64, &tie, WEFT_DTYPE_BFLOAT16)) == (double)one);
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT64, &below, WEFT_DTYPE_BFLOAT16)) == (double)one);
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT64, &above, WEFT_DTYPE_BFLOAT16)) ==
                (double)(one + ulp));
    int32_t narrow = (1 << 30) + (1 << 22) + 1, minus = -narrow; /* as a float, a tie */
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT32, &narrow, WEFT_DTYPE_BFLOAT16)) ==
                0x1p30 + 0x1p23);
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT32, &minus, WEFT_DTYPE_BFLOAT16)) ==
                -0x1p30 - 0x1p23);
    int64_t least = INT64_MIN, most = INT64_MAX;
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT64, &least, WEFT_DTYPE_BFLOAT16)) == -0x1p63);
    assert_true(value_of(WEFT_DTYPE_BFLOAT16, half_of(WEFT_DTYPE_INT64, &most, WEFT_DTYPE_BFLOAT16)) == 0x1p63);
    int32_t over = 65520, under = 65519;
    assert_int_equal(half_of(WEFT_DTYPE_INT32, &over, WEFT_DTYPE_FLOAT16), 0x7c00);
    assert_int_equal(half_of(WEFT_DTYPE_INT32, &under, WEFT_DTYPE_FLOAT16), 0x7bff);
}

/* ---- All pairs ------------------------------------------------------------------------------------------------ */

static bool is_real_float(weft_dtype dtype)
{
    return wfi_dtype_class_of(dtype) == WFI_CLASS_FLOAT;
}

/* What a small number becomes in `to`. */
static double expected(double value, weft_dtype from, weft_dtype to)
{
    if (is_real_float(to))
        return value;
    if (to == WEFT_DTYPE_BOOL)
        return value != 0;
    if (to == WEFT_DTYPE_UINT8 && value < 0)
        return is_real_float(from) ? 0 : value + 256;
    return trunc(value);
}

/* Small numbers go from every dtype to every other; over strides too. */
static void every_pair_converts(void **state)
{
    static const double numbers[] = {0, 1, 2, 3, 100, 0.5, -0.5, -1, -100, 2.5};
    enum { COUNT = sizeof(numbers) / sizeof(numbers[0]) };
    for (int i = 0; i < REALS * REALS; i++) {
        weft_dtype from = real_dtypes[i / REALS], to = real_dtypes[i % REALS];
        weft_tensor *x = moved(tensor_copy_of(WEFT_SHAPE(2, COUNT / 2), WEFT_DTYPE_FLOAT64, numbers), from);
        weft_tensor *y = tensor_to(x, to), *across = tensor_zeros(WEFT_SHAPE(COUNT / 2, 2), to);
        weft_tensor *turned = tensor_transpose(across, 0, 1);
        assert_int_equal(weft_tensor_assign(turned, x), WEFT_OK);
        for (int k = 0; k < COUNT; k++) {
            double before = expected(numbers[k], WEFT_DTYPE_FLOAT64, from), after = expected(before, from, to);
            assert_true(weft_tensor_get_f64(x, k) == before);
            assert_true(weft_tensor_get_f64(y, k) == after);
            assert_true(weft_tensor_get_f64(turned, k) == after);
            assert_int_equal(weft_tensor_get_i64(y, k), (int64_t)after);
        }
        weft_tensor_unref(x);
        weft_tensor_unref(y);
        weft_tensor_unref(turned);
        weft_tensor_unref(across);
    }
}

static void floats_saturate_in_narrow_integers(void **state)
{
    static const float numbers[] = {1e9F, -1e9F, INFINITY, -INFINITY, NAN};
    static const weft_dtype floats[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT16,
                                        WEFT_DTYPE_BFLOAT16};
    for (int i = 0; i < 4; i++) {
        weft_tensor *x = moved(tensor_copy_of(WEFT_SHAPE(5), WEFT_DTYPE_FLOAT32, numbers), floats[i]);
        weft_tensor *i8 = tensor_to(x, WEFT_DTYPE_INT8), *i16 = tensor_to(x, WEFT_DTYPE_INT16);
        assert_memory_equal(weft_tensor_data(i8), ((int8_t[]){127, -128, 127, -128, 0}), 5);
        assert_memory_equal(weft_tensor_data(i16), ((int16_t[]){32767, -32768, 32767, -32768, 0}), 10);
        weft_tensor *flags = tensor_to(x, WEFT_DTYPE_BOOL);
        assert_memory_equal(weft_tensor_data(flags), ((uint8_t[]){1, 1, 1, 1, 1}), 5);
        weft_tensor_unref(x);
        weft_tensor_unref(i8);
        weft_tensor_unref(i16);
        weft_tensor_unref(flags);
    }
}

/* ---- Complex -------------------------------------------------------------------------------------------------- */

static void complex_converts_to_complex_alone(void **state)
{
    weft_tensor *z = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_COMPLEX64, (float[]){1, -2, 0.5F, 3});
    weft_tensor *wide = tensor_to(z, WEFT_DTYPE_COMPLEX128), *back = tensor_to(wide, WEFT_DTYPE_COMPLEX64);
    assert_int_equal(weft_tensor_nbytes(wide), 32);
    assert_memory_equal(weft_tensor_data(wide), ((double[]){1, -2, 0.5, 3}), 32);
    assert_memory_equal(weft_tensor_data(back), weft_tensor_data(z), 16);
    assert_true(weft_tensor_get_f64(wide, 1) == 0.5 && weft_tensor_get_i64(z, 0) == 1);
    for (int i = 0; i < REALS; i++) {
        weft_tensor *real = tensor_zeros(WEFT_SHAPE(2), real_dtypes[i]);
        assert_null(tensor_to(z, real_dtypes[i]));
        assert_null(tensor_to(real, WEFT_DTYPE_COMPLEX128));
        assert_int_equal(weft_tensor_assign(real, wide), WEFT_ERR_TYPE);
        assert_int_equal(weft_tensor_assign(wide, real), WEFT_ERR_TYPE);
        weft_tensor_unref(real);
    }
    assert_null(tensor_arange(3, WEFT_DTYPE_COMPLEX64));
    weft_tensor_unref(z);
    weft_tensor_unref(wide);
    weft_tensor_unref(back);
}

/* ---- Storage, text -------------------------------------------------------------------------------------------- */

static void each_dtype_has_a_size_and_a_name(void **state)
{
    static const struct {
        weft_dtype dtype;
        int number;
        size_t size;
        const char *name;
    } all[WFI_DTYPES] = {
        {WEFT_DTYPE_FLOAT32, 0, 4, "float32"},
        {WEFT_DTYPE_FLOAT64, 1, 8, "float64"},
        {WEFT_DTYPE_INT64, 2, 8, "int64"},
        {WEFT_DTYPE_INT32, 3, 4, "int32"},
        {WEFT_DTYPE_UINT8, 4, 1, "uint8"},
        {WEFT_DTYPE_BOOL, 5, 1, "bool"},
        {WEFT_DTYPE_FLOAT16, 6, 2, "float16"},
        {WEFT_DTYPE_BFLOAT16, 7, 2, "bfloat16"},
        {WEFT_DTYPE_INT8, 8, 1, "int8"},
        {WEFT_DTYPE_INT16, 9, 2, "int16"},
        {WEFT_DTYPE_COMPLEX64, 10, 8, "complex64"},
        {WEFT_DTYPE_COMPLEX128, 11, 16, "complex128"},
    };
    for (int i = 0; i < WFI_DTYPES; i++) { /* the numbers are those of files and messages */
        assert_int_equal(all[i].dtype, all[i].number);
        assert_int_equal(weft_dtype_size(all[i].dtype), all[i].size);
        assert_string_equal(weft_dtype_name(all[i].dtype), all[i].name);
    }
    assert_int_equal(weft_dtype_size((weft_dtype)WFI_DTYPES), 0);
    assert_int_equal(weft_dtype_size((weft_dtype)-1), 0);
}

/* 0 elements, and so many that they are written in pieces; with strides too. */
static void each_dtype_is_filled_and_copied(void **state)
{
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        for (int64_t rows = 0; rows <= 513; rows += 171) {
            weft_tensor *x = tensor_full(WEFT_SHAPE(rows, 7), (weft_dtype)dtype, 1);
            weft_tensor *part = tensor_narrow(x, 1, 2, 3);
            weft_tensor_fill(part, 0);
            weft_tensor *packed = tensor_contiguous(part), *whole = tensor_clone(x);
            for (int64_t i = 0; i < 7 * rows; i++)
                assert_true(weft_tensor_get_f64(whole, i) == (i % 7 < 2 || i % 7 > 4));
            for (int64_t i = 0; i < 3 * rows; i++)
                assert_true(weft_tensor_get_f64(packed, i) == 0);
            weft_tensor_unref(x);
            weft_tensor_unref(part);
            weft_tensor_unref(packed);
            weft_tensor_unref(whole);
        }
    }
}

static void prints_as(weft_tensor *tensor, const char *text)
{
    char *printed = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&printed, &size);
    weft_tensor_print(tensor, to);
    fclose(to);
    assert_string_equal(printed, text);
    free(printed);
    weft_tensor_unref(tensor);
}

static void each_dtype_is_printed(void **state)
{
    static const double numbers[] = {-1.5, INFINITY};
    prints_as(moved(tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, numbers), WEFT_DTYPE_FLOAT16),
              "float16 [2] [-1.5, inf]\n");
    prints_as(moved(tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT64, numbers), WEFT_DTYPE_BFLOAT16),
              "bfloat16 [2] [-1.5, inf]\n");
    prints_as(tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT8, -3), "int8 [1] [-3]\n");
    prints_as(tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT16, -300), "int16 [1] [-300]\n");
    prints_as(tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_COMPLEX64, (float[]){1, -2, 0.5F, 3}),
              "complex64 [2] [1-2i, 0.5+3i]\n");
    prints_as(tensor_full(WEFT_SCALAR, WEFT_DTYPE_COMPLEX128, 4), "complex128 [] 4+0i\n");
}

UNIT_MAIN(halves_are_those_of_pytorch, every_half_survives_wider_dtypes, every_rounding_is_to_nearest_and_once,
          integers_are_rounded_once, every_pair_converts, floats_saturate_in_narrow_integers,
          complex_converts_to_complex_alone, each_dtype_has_a_size_and_a_name, each_dtype_is_filled_and_copied,
          each_dtype_is_printed)
