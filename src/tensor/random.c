/* SPDX-License-Identifier: Apache-2.0 */
/* random.c - see random.h. */
#include "tensor/random.h"

#include "base/text/log.h"
#include "tensor/cell.h"
#include "tensor/check.h"
#include "tensor/clones.h"
#include "tensor/copy.h"
#include "tensor/parallel.h"
#include "tensor/tasks.h"

#include <math.h>

#define MULTIPLIER_0 0xD2511F53u /* this and the next three: constants of the paper */
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0 0x9E3779B9u
#define WEYL_1 0xBB67AE85u
#define ROUNDS 10
#define STRETCH 512 /* how many numbers are generated at a time, on the stack */

static inline void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0, p1 = (uint64_t)MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 128 bits for each index: the counter is (index, stream), the key is the seed. */
static inline void block(wfi_random random, uint64_t index, uint64_t out[2])
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)random.stream,
                           (uint32_t)(random.stream >> 32)};
    uint32_t key[2] = {(uint32_t)random.seed, (uint32_t)(random.seed >> 32)}, bits[4];
    philox(counter, key, bits);
    out[0] = bits[0] | (uint64_t)bits[1] << 32;
    out[1] = bits[2] | (uint64_t)bits[3] << 32;
}

/* Numbers `first`, first + 1 and so on, as wfi_random_u64 returns them: the first half of each index's block. The
 * compiler vectorizes this loop. */
WFI_CLONES static void u64s(wfi_random random, uint64_t first, int64_t count, uint64_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits[2];
        block(random, first + (uint64_t)i, bits);
        out[i] = bits[0];
    }
}

static double unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

uint64_t wfi_random_u64(wfi_random random, uint64_t index)
{
    uint64_t bits[2];
    block(random, index, bits);
    return bits[0];
}

double wfi_random_f64(wfi_random random, uint64_t index)
{
    return unit(wfi_random_u64(random, index));
}

double wfi_random_normal_f64(wfi_random random, uint64_t index)
{
    uint64_t bits[2];
    block(random, index, bits);
    double radius = sqrt(-2 * log(1 - unit(bits[0]))); /* 1 - u lies in (0, 1]: no log of 0 */
    return radius * cos(2 * M_PI * unit(bits[1]));
}

typedef struct random_args {
    void *data;
    weft_dtype dtype;
    wfi_random random;
    double a, b;
} random_args;

/* Calls `use` for [begin, end) in short stretches, with the numbers of each. */
static void for_u64s(const random_args *args, int64_t begin, int64_t end,
                     void (*use)(const random_args *args, int64_t first, int64_t count, const uint64_t *bits))
{
    uint64_t bits[STRETCH];
    for (int64_t first = begin; first < end; first += STRETCH) {
        int64_t count = end - first < STRETCH ? end - first : STRETCH;
        u64s(args->random, (uint64_t)first, count, bits);
        use(args, first, count, bits);
    }
}

static void uniform_f32(const random_args *args, int64_t first, int64_t count, const uint64_t *bits)
{
    float *to = (float *)args->data + first, low = (float)args->a, width = (float)(args->b - args->a);
    for (int64_t i = 0; i < count; i++) /* 24 bits: rounding a double could reach 1 */
        to[i] = low + (float)(int32_t)(bits[i] >> 40) * 0x1p-24f * width;
}

static void uniform_f64(const random_args *args, int64_t first, int64_t count, const uint64_t *bits)
{
    double *to = (double *)args->data + first;
    for (int64_t i = 0; i < count; i++)
        to[i] = args->a + unit(bits[i]) * (args->b - args->a);
}

static void uniform_piece(void *arg, int64_t begin, int64_t end)
{
    const random_args *args = arg;
    for_u64s(args, begin, end, wfi_dtype_is_f32(args->dtype) ? uniform_f32 : uniform_f64);
}

static void normal_piece(void *arg, int64_t begin, int64_t end)
{
    const random_args *args = arg;
    for (int64_t i = begin; i < end; i++) {
        double value = args->a + args->b * wfi_random_normal_f64(args->random, (uint64_t)i);
        if (wfi_dtype_is_f32(args->dtype))
            ((float *)args->data)[i] = (float)value;
        else
            ((double *)args->data)[i] = value;
    }
}

/* The bound of `bits >> 11` for which unit(bits) < p. */
static uint64_t mask_end(double p)
{
    return (uint64_t)ceil(p * 0x1p53);
}

static weft_status fill(weft_tensor *tensor, random_args *args, wfi_gpu_kind kind,
                        void (*piece)(void *, int64_t, int64_t))
{
    weft_status status = wfi_check_beside(tensor, tensor);
    if (status != WEFT_OK)
        return status;
    args->data = wfi_tensor_address(tensor);
    args->dtype = tensor->dtype;
    if (wfi_tensor_is_on_gpu(tensor)) {
        wfi_random_task task = {WFI_GPU_TASK(tensor, tensor->dtype, tensor->numel),
                                .data = args->data,
                                .random = args->random,
                                .a = args->a,
                                .b = args->b,
                                .end = kind == WFI_GPU_MASK ? mask_end(args->a) : 0};
        return WFI_GPU_RUN(kind, task);
    }
    wfi_parallel(tensor->numel, WFI_GRAIN / 8, piece, args);
    return WEFT_OK;
}

weft_status wfi_random_uniform(weft_tensor *tensor, wfi_random random, double low, double high)
{
    random_args args = {.random = random, .a = low, .b = high};
    return wfi_dtype_is_float(tensor->dtype) ? fill(tensor, &args, WFI_GPU_UNIFORM, uniform_piece) : WEFT_ERR_TYPE;
}

weft_status wfi_random_normal(weft_tensor *tensor, wfi_random random, double mean, double deviation)
{
    random_args args = {.random = random, .a = mean, .b = deviation};
    return wfi_dtype_is_float(tensor->dtype) ? fill(tensor, &args, WFI_GPU_NORMAL, normal_piece) : WEFT_ERR_TYPE;
}

static void mask_f32(const random_args *args, int64_t first, int64_t count, const uint64_t *bits)
{
    float *to = (float *)args->data + first, value = (float)args->b;
    uint64_t end = mask_end(args->a);
    for (int64_t i = 0; i < count; i++)
        to[i] = bits[i] >> 11 < end ? value : 0;
}

static void mask_f64(const random_args *args, int64_t first, int64_t count, const uint64_t *bits)
{
    double *to = (double *)args->data + first;
    uint64_t end = mask_end(args->a);
    for (int64_t i = 0; i < count; i++)
        to[i] = bits[i] >> 11 < end ? args->b : 0;
}

static void mask_piece(void *arg, int64_t begin, int64_t end)
{
    const random_args *args = arg;
    for_u64s(args, begin, end, wfi_dtype_is_f32(args->dtype) ? mask_f32 : mask_f64);
}

weft_status wfi_random_mask(weft_tensor *tensor, wfi_random random, double p, double value)
{
    random_args args = {.random = random, .a = p, .b = value};
    return wfi_dtype_is_float(tensor->dtype) ? fill(tensor, &args, WFI_GPU_MASK, mask_piece) : WEFT_ERR_TYPE;
}

/* ---- Fills of any tensor ---- */

/* Fills `target` with `fill_plain`. If `target` is not contiguous, fills a contiguous tensor and copies that to it. */
static weft_status fill_any(weft_tensor *target, wfi_random random, double a, double b,
                            weft_status (*fill_plain)(weft_tensor *, wfi_random, double, double))
{
    wfi_write write;
    weft_status status = wfi_cell_write_begin(&write, target, WFI_WRITE_WHOLE, NULL);
    if (status != WEFT_OK)
        return status;
    weft_tensor *plain = weft_tensor_is_contiguous(target)
                             ? weft_tensor_ref(write.to)
                             : wfi_tensor_empty_like(write.to, target->shape, target->dtype);
    status = !plain ? WEFT_ERR_MEMORY : fill_plain(plain, random, a, b);
    if (status == WEFT_OK && plain != write.to)
        status = wfi_copy(plain, write.to);
    wfi_cell_write_end(&write, status == WEFT_OK);
    weft_tensor_unref(plain);
    return status;
}

static weft_status not_filled(const char *function, const weft_tensor *target, weft_status status)
{
    wfi_log(WEFT_LOG_DEBUG, "%s: the target is %s: %s", function, weft_dtype_name(target->dtype),
            status == WEFT_ERR_TYPE ? "pass a float32 or float64 tensor" : weft_status_text(status));
    return status;
}

weft_status weft_tensor_fill_uniform(weft_tensor *target, uint64_t seed, double low, double high)
{
    WFI_CHECK_HANDLE(target);
    if (!target || !isfinite(low) || !isfinite(high) || low > high) {
        wfi_log(WEFT_LOG_DEBUG, "weft_tensor_fill_uniform: %s: low is %g and high %g: finite, and low at most high",
                !target ? "the target is NULL" : "no such range", low, high);
        return WEFT_ERR_INVALID;
    }
    weft_status status = fill_any(target, (wfi_random){seed, 0}, low, high, wfi_random_uniform);
    return status == WEFT_OK ? WEFT_OK : not_filled("weft_tensor_fill_uniform", target, status);
}

weft_status weft_tensor_fill_normal(weft_tensor *target, uint64_t seed, double mean, double deviation)
{
    WFI_CHECK_HANDLE(target);
    if (!target || !isfinite(mean) || !isfinite(deviation) || deviation < 0) {
        wfi_log(WEFT_LOG_DEBUG, "weft_tensor_fill_normal: %s: mean is %g and deviation %g: finite, and not negative",
                !target ? "the target is NULL" : "no such distribution", mean, deviation);
        return WEFT_ERR_INVALID;
    }
    weft_status status = fill_any(target, (wfi_random){seed, 0}, mean, deviation, wfi_random_normal);
    return status == WEFT_OK ? WEFT_OK : not_filled("weft_tensor_fill_normal", target, status);
}
