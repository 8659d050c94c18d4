/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tensor_combine.c - reductions of two elements against one written plainly here: every dtype and kind, any
 * length and place, the values at the edges, every half. Each for the library's kernels and for the same compiled
 * for one processor: bit for bit.
 */
#include "tensor/combine.h"
#include "tensor/dtype.h"
#include "unit.h"
#include "prng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REDUCES 5
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- The kernels: CMakeLists.txt compiles them for one processor each, under these names ---------------------- */

#define FOR_ONE_PROCESSOR(name)                                                                                        \
    void wfi_combine_##name(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b, size_t count);     \
    void wfi_combine_divide_##name(weft_dtype dtype, void *data, size_t count, size_t divisor);
FOR_ONE_PROCESSOR(oldest)
FOR_ONE_PROCESSOR(avx2)
FOR_ONE_PROCESSOR(avx512f)

typedef struct kernels {
    const char *name;
    void (*combine)(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b, size_t count);
    void (*divide)(weft_dtype dtype, void *data, size_t count, size_t divisor);
} kernels;

static kernels each[4];
static size_t kernels_count;

static int find_kernels(void **state)
{
    (void)state;
    each[kernels_count++] = (kernels){"the library's", wfi_combine, wfi_combine_divide};
    each[kernels_count++] = (kernels){"oldest", wfi_combine_oldest, wfi_combine_divide_oldest};
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        each[kernels_count++] = (kernels){"avx2", wfi_combine_avx2, wfi_combine_divide_avx2};
    if (__builtin_cpu_supports("avx512f"))
        each[kernels_count++] = (kernels){"avx512f", wfi_combine_avx512f, wfi_combine_divide_avx512f};
#endif
    return 0;
}

/* ---- One element, plainly ------------------------------------------------------------------------------------- */

/* Every step is stored, so that no compiler joins two. */
static double f64_of(weft_op how, volatile double a, volatile double b)
{
    volatile double sum = a + b, product = a * b;
    if (isnan(a) || isnan(b))
        return NAN;
    if (how == WEFT_OP_MIN)
        return a == b ? (signbit(a) ? a : b) : a < b ? a : b;
    if (how == WEFT_OP_MAX)
        return a == b ? (signbit(a) ? b : a) : a > b ? a : b;
    return how == WEFT_OP_PROD ? product : sum;
}

/* Of floats, which a double holds, it also holds the product; that a sum is rounded twice changes nothing (Figueroa
 * 1995). */
static float f32_of(weft_op how, float a, float b)
{
    return (float)f64_of(how, (double)a, (double)b);
}

static void put_f32(void *out, float value)
{
    uint32_t bits = 0x7fc00000;
    if (!isnan(value))
        memcpy(&bits, &value, sizeof(bits));
    memcpy(out, &bits, sizeof(bits));
}

static void put_f64(void *out, double value)
{
    uint64_t bits = UINT64_C(0x7ff8000000000000);
    if (!isnan(value))
        memcpy(&bits, &value, sizeof(bits));
    memcpy(out, &bits, sizeof(bits));
}

/* A float of 16 bits, of which `fraction` are the fraction's. */
typedef struct half_format {
    int fraction, bias;
} half_format;

static half_format format_of(weft_dtype dtype)
{
    return dtype == WEFT_DTYPE_FLOAT16 ? (half_format){10, 15} : (half_format){7, 127};
}

static float float_of_half(weft_dtype dtype, const void *half)
{
    half_format f = format_of(dtype);
    uint16_t bits;
    memcpy(&bits, half, sizeof(bits));
    int fraction = bits & ((1 << f.fraction) - 1), exponent = (bits & 0x7fff) >> f.fraction;
    double size = ldexp(fraction + (exponent ? 1 << f.fraction : 0), (exponent ? exponent : 1) - f.bias - f.fraction);
    if (exponent == (0x7fff >> f.fraction))
        size = fraction ? NAN : INFINITY;
    return (float)copysign(size, bits & 0x8000 ? -1 : 1);
}

static void put_half(weft_dtype dtype, void *out, float value)
{
    half_format f = format_of(dtype);
    int exponent, least = 1 - f.bias, top = 0x7fff >> f.fraction;
    (void)frexpf(value, &exponent);
    exponent = value == 0 || exponent - 1 < least ? least : exponent - 1;
    uint32_t bits = (uint32_t)(top << f.fraction) | (isnan(value) ? 1u << (f.fraction - 1) : 0);
    if (isfinite(value)) {
        /* In units of the last place; one too many carries into the exponent, as it should. */
        uint32_t units = (uint32_t)nearbyint(ldexp(fabs((double)value), f.fraction - exponent));
        uint32_t rounded = units + ((uint32_t)(exponent - least) << f.fraction);
        bits = rounded < bits ? rounded : bits;
    }
    uint16_t half = (uint16_t)(bits | (signbit(value) && !isnan(value) ? 0x8000 : 0));
    memcpy(out, &half, sizeof(half));
}

static int64_t integer_at(weft_dtype dtype, const void *at)
{
    int64_t wide = 0;
    size_t size = weft_dtype_size(dtype);
    memcpy(&wide, at, size); /* the lowest byte comes first on all machines that weft runs on */
    if (dtype == WEFT_DTYPE_UINT8 || size == 8)
        return wide;
    int64_t sign = INT64_C(1) << (8 * size - 1);
    return (wide ^ sign) - sign;
}

static void plain_integer(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b)
{
    int64_t x = integer_at(dtype, a), y = integer_at(dtype, b);
    uint64_t result = how == WEFT_OP_SUM    ? (uint64_t)x + (uint64_t)y
                      : how == WEFT_OP_PROD ? (uint64_t)x * (uint64_t)y
                      : how == WEFT_OP_MIN  ? (uint64_t)(x < y ? x : y)
                                            : (uint64_t)(x > y ? x : y);
    memcpy(out, &result, weft_dtype_size(dtype));
}

static void plain_bool(weft_op how, void *out, const void *a, const void *b)
{
    bool x = *(const uint8_t *)a != 0, y = *(const uint8_t *)b != 0, both = how == WEFT_OP_MIN || how == WEFT_OP_PROD;
    *(uint8_t *)out = both ? x && y : x || y;
}

/* ac - bd and ad + bc, or the sums of the parts. */
static void plain_complex64(weft_op how, void *out, const void *a, const void *b)
{
    float x[2], y[2], re, im;
    memcpy(x, a, sizeof(x));
    memcpy(y, b, sizeof(y));
    if (how == WEFT_OP_PROD) {
        re = f32_of(WEFT_OP_SUM, f32_of(WEFT_OP_PROD, x[0], y[0]), -f32_of(WEFT_OP_PROD, x[1], y[1]));
        im = f32_of(WEFT_OP_SUM, f32_of(WEFT_OP_PROD, x[0], y[1]), f32_of(WEFT_OP_PROD, x[1], y[0]));
    } else {
        re = f32_of(how, x[0], y[0]);
        im = f32_of(how, x[1], y[1]);
    }
    put_f32(out, re);
    put_f32((float *)out + 1, im);
}

static void plain_complex128(weft_op how, void *out, const void *a, const void *b)
{
    double x[2], y[2], re, im;
    memcpy(x, a, sizeof(x));
    memcpy(y, b, sizeof(y));
    if (how == WEFT_OP_PROD) {
        re = f64_of(WEFT_OP_SUM, f64_of(WEFT_OP_PROD, x[0], y[0]), -f64_of(WEFT_OP_PROD, x[1], y[1]));
        im = f64_of(WEFT_OP_SUM, f64_of(WEFT_OP_PROD, x[0], y[1]), f64_of(WEFT_OP_PROD, x[1], y[0]));
    } else {
        re = f64_of(how, x[0], y[0]);
        im = f64_of(how, x[1], y[1]);
    }
    put_f64(out, re);
    put_f64((double *)out + 1, im);
}

static void plain(weft_dtype dtype, weft_op how, void *out, const void *a, const void *b)
{
    float x, y;
    double u, v;
    switch (dtype) {
    case WEFT_DTYPE_FLOAT32:
        memcpy(&x, a, sizeof(x));
        memcpy(&y, b, sizeof(y));
        put_f32(out, f32_of(how, x, y));
        break;
    case WEFT_DTYPE_FLOAT64:
        memcpy(&u, a, sizeof(u));
        memcpy(&v, b, sizeof(v));
        put_f64(out, f64_of(how, u, v));
        break;
    case WEFT_DTYPE_FLOAT16:
    case WEFT_DTYPE_BFLOAT16:
        put_half(dtype, out, f32_of(how, float_of_half(dtype, a), float_of_half(dtype, b)));
        break;
    case WEFT_DTYPE_COMPLEX64:
        plain_complex64(how, out, a, b);
        break;
    case WEFT_DTYPE_COMPLEX128:
        plain_complex128(how, out, a, b);
        break;
    case WEFT_DTYPE_BOOL:
        plain_bool(how, out, a, b);
        break;
    default:
        plain_integer(dtype, how, out, a, b);
    }
}

static void plain_quotient(weft_dtype real, void *at, size_t divisor)
{
    float x;
    double u;
    if (real == WEFT_DTYPE_FLOAT32) {
        memcpy(&x, at, sizeof(x));
        put_f32(at, x / (float)divisor);
    } else if (real == WEFT_DTYPE_FLOAT64) {
        memcpy(&u, at, sizeof(u));
        put_f64(at, u / (double)divisor);
    } else {
        put_half(real, at, float_of_half(real, at) / (float)divisor);
    }
}

/* ---- Elements: random ones, and those at the edges ------------------------------------------------------------ */

/* Floats by their bits: zeros, ones, the least and largest, subnormals, infinities, NaNs of both kinds and signs. */
static const uint64_t f32_edges[] = {0,          0x80000000, 0x3f800000, 0xbf800000, 1,          0x80000001,
                                     0x7fffff,   0x800000,   0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                     0x7fc00000, 0xffc00001, 0x7f800001, 0xffbfffff, 0x3f800001, 0x33800000};
static const uint64_t f64_edges[] = {0,
                                     UINT64_C(0x8000000000000000),
                                     UINT64_C(0x3ff0000000000000),
                                     1,
                                     UINT64_C(0x800fffffffffffff),
                                     UINT64_C(0x0010000000000000),
                                     UINT64_C(0x7fefffffffffffff),
                                     UINT64_C(0xffefffffffffffff),
                                     UINT64_C(0x7ff0000000000000),
                                     UINT64_C(0xfff0000000000000),
                                     UINT64_C(0x7ff8000000000000),
                                     UINT64_C(0xfff8000000000123),
                                     UINT64_C(0x7ff0000000000001),
                                     UINT64_C(0x3ca0000000000000)};
static const uint64_t f16_edges[] = {0,      0x8000, 0x3c00, 0xbc00, 1,      0x8001, 0x3ff,  0x400,
                                     0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xfdff,
                                     0x3c01, 0x1400, 0x1000, 0x4c00, 0x6bff, 0x0bff, 0x8800, 0x3555};
static const uint64_t bf16_edges[] = {0,      0x8000, 0x3f80, 0xbf80, 1,      0x8001, 0x7f,   0x80,
                                      0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xffbf,
                                      0x3f81, 0x3b80, 0x3b00, 0x4300, 0x7eff, 0x01ff, 0x8180, 0x3eab};
static const uint64_t integer_edges[] = {0,
                                         1,
                                         UINT64_MAX,
                                         2,
                                         0x7f,
                                         0x80,
                                         0x7fff,
                                         0x8000,
                                         0x7fffffff,
                                         0x80000000,
                                         INT64_MAX,
                                         UINT64_C(0x8000000000000000),
                                         UINT64_C(0x123456789abcdef),
                                         0xb505};

typedef struct edge_list {
    const uint64_t *bits;
    size_t count;
} edge_list;

static edge_list edges_of(weft_dtype dtype)
{
    switch (wfi_dtype_real(dtype)) {
    case WEFT_DTYPE_FLOAT32:
        return (edge_list){f32_edges, COUNT(f32_edges)};
    case WEFT_DTYPE_FLOAT64:
        return (edge_list){f64_edges, COUNT(f64_edges)};
    case WEFT_DTYPE_FLOAT16:
        return (edge_list){f16_edges, COUNT(f16_edges)};
    case WEFT_DTYPE_BFLOAT16:
        return (edge_list){bf16_edges, COUNT(bf16_edges)};
    default:
        return (edge_list){integer_edges, COUNT(integer_edges)};
    }
}

/* An edge, any bits, or a number near 1, whose sums and products round. */
static uint64_t some_real(weft_dtype real, uint64_t *state)
{
    uint64_t draw = prng_next(state), word = prng_next(state);
    edge_list edges = edges_of(real);
    if (draw % 4 == 0)
        return edges.bits[word % edges.count];
    if (draw % 4 == 1 || wfi_dtype_class_of(real) != WFI_CLASS_FLOAT)
        return word;
    double near = ldexp((double)(word >> 11), (int)(draw % 7) - 55) * (draw & 8 ? -1 : 1);
    if (real == WEFT_DTYPE_FLOAT64)
        put_f64(&word, near);
    else if (real == WEFT_DTYPE_FLOAT32)
        put_f32(&word, (float)near);
    else
        put_half(real, &word, (float)near);
    return word;
}

static void fill(weft_dtype dtype, void *data, size_t count, uint64_t seed)
{
    weft_dtype real = wfi_dtype_real(dtype);
    size_t size = weft_dtype_size(real), reals = count * weft_dtype_size(dtype) / size;
    for (size_t i = 0; i < reals; i++) {
        uint64_t bits = some_real(real, &seed);
        if (real == WEFT_DTYPE_BOOL)
            bits = bits % 8 == 7 ? bits : bits & 1; /* from another program, perhaps */
        memcpy((char *)data + i * size, &bits, size);
    }
}

/* ---- The tests ------------------------------------------------------------------------------------------------ */

enum { LARGEST = 5000, AROUND = 8, ROOM = (LARGEST + 2 * AROUND) * 16 };

typedef enum placement { APART, IN_LEFT, IN_RIGHT, PLACEMENTS } placement;

typedef struct bench {
    _Alignas(64) char a[ROOM], b[ROOM], out[ROOM], expected[ROOM];
} bench;

static const char *const names[REDUCES] = {"sum", "avg", "min", "max", "prod"};

static void expect_bytes(const kernels *k, weft_dtype dtype, const char *what, const void *got, const void *expected,
                         size_t bytes)
{
    if (memcmp(got, expected, bytes) == 0)
        return;
    size_t at = 0, size = weft_dtype_size(dtype);
    while (memcmp((const char *)got + at, (const char *)expected + at, size) == 0)
        at += size;
    uint64_t is[2] = {0}, should_be[2] = {0};
    memcpy(is, (const char *)got + at, size);
    memcpy(should_be, (const char *)expected + at, size);
    fail_msg("%s, %s, %s: element %zu is %#llx %#llx, not %#llx %#llx", k->name, weft_dtype_name(dtype), what,
             at / size, (unsigned long long)is[0], (unsigned long long)is[1], (unsigned long long)should_be[0],
             (unsigned long long)should_be[1]);
}

/* `count` elements, the first of them `first` elements behind an address that suits any dtype. What lies around them
 * stays. */
static void check_combine(const kernels *k, bench *s, weft_dtype dtype, weft_op how, size_t first, size_t count,
                          placement where)
{
    size_t size = weft_dtype_size(dtype), begin = first * size, all = first + count + AROUND;
    fill(dtype, s->a, all, 2 * count + first);
    fill(dtype, s->b, all, 2 * count + first + 1000003);
    memset(s->out, 0x5a, all * size);
    char *target = where == APART ? s->out : where == IN_LEFT ? s->a : s->b;
    memcpy(s->expected, target, all * size);
    for (size_t at = begin; at < begin + count * size; at += size)
        plain(dtype, how, s->expected + at, s->a + at, s->b + at);
    k->combine(dtype, how, target + begin, s->a + begin, s->b + begin, count);
    expect_bytes(k, dtype, names[how], target, s->expected, all * size);
}

static void check_lengths(const kernels *k, bench *s, weft_dtype dtype, weft_op how)
{
    static const size_t longer[] = {127, 511, 512, 513, 1025, 4099, LARGEST};
    for (int where = 0; where < PLACEMENTS; where++) {
        for (size_t count = 0; count <= 70; count++)
            check_combine(k, s, dtype, how, count % AROUND, count, (placement)where);
        for (size_t i = 0; i < COUNT(longer); i++)
            check_combine(k, s, dtype, how, i % AROUND, longer[i], (placement)where);
    }
}

static void any_length_and_place_agrees_with_plain_loops(void **state)
{
    (void)state;
    bench *s = aligned_alloc(64, sizeof(*s));
    assert_non_null(s);
    for (size_t n = 0; n < kernels_count; n++)
        for (int dtype = 0; dtype < WFI_DTYPES; dtype++)
            for (int how = 0; how < REDUCES; how++)
                if (wfi_can_combine((weft_dtype)dtype, (weft_op)how))
                    check_lengths(&each[n], s, (weft_dtype)dtype, (weft_op)how);
    free(s);
}

/* Each edge with each: element i j is edge i and edge j. Of complex numbers both parts. */
static size_t fill_pairs(weft_dtype dtype, void *a, void *b)
{
    edge_list edges = edges_of(dtype);
    size_t size = weft_dtype_size(wfi_dtype_real(dtype)), parts = weft_dtype_size(dtype) / size, at = 0;
    for (size_t i = 0; i < edges.count; i++)
        for (size_t j = 0; j < edges.count; j++)
            for (size_t part = 0; part < parts; part++, at += size) {
                memcpy((char *)a + at, &edges.bits[(i + 3 * part) % edges.count], size);
                memcpy((char *)b + at, &edges.bits[(j + 5 * part) % edges.count], size);
            }
    return edges.count * edges.count;
}

static void check_edges(const kernels *k, bench *s, weft_dtype dtype, weft_op how)
{
    size_t count = fill_pairs(dtype, s->a, s->b), size = weft_dtype_size(dtype);
    for (size_t at = 0; at < count * size; at += size)
        plain(dtype, how, s->expected + at, s->a + at, s->b + at);
    k->combine(dtype, how, s->out, s->a, s->b, count);
    expect_bytes(k, dtype, names[how], s->out, s->expected, count * size);
    k->combine(dtype, how, s->out, s->b, s->a, count);
    expect_bytes(k, dtype, names[how], s->out, s->expected, count * size);
}

static void edges_combine_alike_in_either_order(void **state)
{
    (void)state;
    bench *s = aligned_alloc(64, sizeof(*s));
    assert_non_null(s);
    for (size_t n = 0; n < kernels_count; n++)
        for (int dtype = 0; dtype < WFI_DTYPES; dtype++)
            for (int how = 0; how < REDUCES; how++)
                if (wfi_can_combine((weft_dtype)dtype, (weft_op)how))
                    check_edges(&each[n], s, (weft_dtype)dtype, (weft_op)how);
    free(s);
}

enum { HALVES = 65536 };

static void every_half_with_every_edge(void **state)
{
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT16, WEFT_DTYPE_BFLOAT16};
    static uint16_t all[HALVES], edge[HALVES], out[HALVES], expected[HALVES];
    for (int i = 0; i < HALVES; i++)
        all[i] = (uint16_t)i;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t e = 0; e < edges_of(dtypes[d]).count; e++)
            for (int how = 0; how < REDUCES; how++) {
                for (int i = 0; i < HALVES; i++) {
                    edge[i] = (uint16_t)edges_of(dtypes[d]).bits[e];
                    plain(dtypes[d], (weft_op)how, &expected[i], &all[i], &edge[i]);
                }
                for (size_t n = 0; n < kernels_count; n++) {
                    each[n].combine(dtypes[d], (weft_op)how, out, all, edge, HALVES);
                    expect_bytes(&each[n], dtypes[d], names[how], out, expected, sizeof(out));
                }
            }
}

static void a_range_may_be_cut_anywhere(void **state)
{
    (void)state;
    bench *s = aligned_alloc(64, sizeof(*s));
    assert_non_null(s);
    for (int d = 0; d < WFI_DTYPES; d++) {
        weft_dtype dtype = (weft_dtype)d;
        size_t size = weft_dtype_size(dtype), length = 1;
        fill(dtype, s->a, LARGEST, 5);
        fill(dtype, s->b, LARGEST, 6);
        wfi_combine(dtype, WEFT_OP_PROD, s->expected, s->a, s->b, LARGEST);
        for (size_t at = 0; at < LARGEST; at += length, length = length % 613 + 1) {
            size_t count = length < LARGEST - at ? length : LARGEST - at, begin = at * size;
            wfi_combine(dtype, WEFT_OP_PROD, s->out + begin, s->a + begin, s->b + begin, count);
        }
        expect_bytes(&each[0], dtype, "pieces of a product", s->out, s->expected, LARGEST * size);
    }
    free(s);
}

static const weft_dtype with_average[] = {WEFT_DTYPE_FLOAT32,  WEFT_DTYPE_FLOAT64,   WEFT_DTYPE_FLOAT16,
                                          WEFT_DTYPE_BFLOAT16, WEFT_DTYPE_COMPLEX64, WEFT_DTYPE_COMPLEX128};

static void check_quotients(const kernels *k, bench *s, weft_dtype dtype, size_t first, size_t count, size_t divisor)
{
    weft_dtype real = wfi_dtype_real(dtype);
    size_t size = weft_dtype_size(dtype), begin = first * size, all = first + count + AROUND;
    fill(dtype, s->out, all, count + divisor);
    memcpy(s->expected, s->out, all * size);
    for (size_t at = begin; at < begin + count * size; at += weft_dtype_size(real))
        plain_quotient(real, s->expected + at, divisor);
    k->divide(dtype, s->out + begin, count, divisor);
    expect_bytes(k, dtype, "quotient", s->out, s->expected, all * size);
}

static void quotients_agree_with_plain_loops(void **state)
{
    (void)state;
    static const size_t divisors[] = {1, 2, 3, 7, 41, 4096, 99991};
    bench *s = aligned_alloc(64, sizeof(*s));
    assert_non_null(s);
    for (size_t n = 0; n < kernels_count; n++)
        for (size_t d = 0; d < COUNT(with_average); d++)
            for (size_t i = 0; i < COUNT(divisors); i++) {
                for (size_t count = 0; count <= 70; count++)
                    check_quotients(&each[n], s, with_average[d], count % AROUND, count, divisors[i]);
                check_quotients(&each[n], s, with_average[d], 1, LARGEST, divisors[i]);
            }
    free(s);
}

/* Multiplied by the reciprocal of 41 and of others, it would not be. */
static void the_average_of_equal_numbers_is_that_number(void **state)
{
    (void)state;
    for (size_t members = 1; members <= 300; members++) {
        float x = 1, sum[3] = {1, 1, 1};
        for (size_t i = 1; i < members; i++)
            wfi_combine(WEFT_DTYPE_FLOAT32, WEFT_OP_AVG, sum, sum, (float[]){x, x, x}, 3);
        wfi_combine_divide(WEFT_DTYPE_FLOAT32, sum, 3, members);
        for (int i = 0; i < 3; i++)
            assert_true(sum[i] == x);
    }
}

static void what_can_be_combined(void **state)
{
    (void)state;
    for (int d = 0; d < WFI_DTYPES; d++) {
        weft_dtype dtype = (weft_dtype)d;
        wfi_dtype_class class = wfi_dtype_class_of(dtype);
        assert_true(wfi_can_combine(dtype, WEFT_OP_SUM) && wfi_can_combine(dtype, WEFT_OP_PROD));
        assert_int_equal(wfi_can_combine(dtype, WEFT_OP_AVG), class == WFI_CLASS_FLOAT || class == WFI_CLASS_COMPLEX);
        assert_int_equal(wfi_can_combine(dtype, WEFT_OP_MIN), class != WFI_CLASS_COMPLEX);
        assert_int_equal(wfi_can_combine(dtype, WEFT_OP_MAX), class != WFI_CLASS_COMPLEX);
        assert_false(wfi_can_combine(dtype, (weft_op)REDUCES));
        assert_false(wfi_can_combine(dtype, (weft_op)-1));
    }
    assert_false(wfi_can_combine((weft_dtype)WFI_DTYPES, WEFT_OP_SUM));
    assert_false(wfi_can_combine((weft_dtype)-1, WEFT_OP_SUM));
}

static void nothing_may_be_nowhere(void **state)
{
    (void)state;
    for (int d = 0; d < WFI_DTYPES; d++)
        for (int how = 0; how < REDUCES; how++)
            if (wfi_can_combine((weft_dtype)d, (weft_op)how))
                wfi_combine((weft_dtype)d, (weft_op)how, NULL, NULL, NULL, 0);
    for (size_t d = 0; d < COUNT(with_average); d++)
        wfi_combine_divide(with_average[d], NULL, 0, 2);
}

UNIT_MAIN_WITH(find_kernels, NULL, what_can_be_combined, any_length_and_place_agrees_with_plain_loops,
               edges_combine_alike_in_either_order, every_half_with_every_edge, a_range_may_be_cut_anywhere,
               quotients_agree_with_plain_loops, the_average_of_equal_numbers_is_that_number, nothing_may_be_nowhere)
