/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_emulated_failures.c - each allocation, copy and launch of a training step fails in turn. The step then fails
 * with an error, or succeeds with the same numbers. No memory of the device is left, and the next step works.
 */
#include <weft/weft.h>

#include "emulated/emulated.h"
#include "gpu/gpu.h"
#include "mem/mem.h"
#include "tensors.h"
#include "unit.h"

#include <string.h>

enum { WORDS = 20, WIDTH = 6, CLASSES = 4, BATCH = 5 };

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};
static void (*counts)(emulated_counts *out);
static void (*fail_next)(emulated_call call, uint64_t after, uint64_t times);

static weft_tensor *random_on_gpu(weft_shape shape, uint64_t seed)
{
    weft_tensor *here = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    assert_int_equal(weft_tensor_fill_normal(here, seed, 0, 1), WEFT_OK);
    weft_tensor *there = tensor_to_device(here, gpu);
    weft_tensor_unref(here);
    if (there)
        weft_tensor_set_requires_grad(there, true);
    return there;
}

static weft_tensor *numbers_on_gpu(int64_t count, int64_t below)
{
    weft_tensor *here = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT64);
    for (int64_t i = 0; i < count; i++)
        ((int64_t *)weft_tensor_data(here))[i] = i * 3 % below;
    weft_tensor *there = tensor_to_device(here, gpu);
    weft_tensor_unref(here);
    return there;
}

/* The loss on the CPU, or NULL. Everything is made anew, on the device. */
static weft_tensor *one_step(void)
{
    weft_tensor *table = random_on_gpu(WEFT_SHAPE(WORDS, WIDTH), 1),
                *weight = random_on_gpu(WEFT_SHAPE(CLASSES, WIDTH), 2);
    weft_tensor *bias = random_on_gpu(WEFT_SHAPE(CLASSES), 3), *index = numbers_on_gpu(BATCH, WORDS);
    weft_tensor *target = numbers_on_gpu(BATCH, CLASSES), *loss_here = NULL;
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = gpu});
    if (table && weight && bias && index && target) {
        weft_tensor *x = weft_tanh(t, weft_embedding(t, table, index, NULL));
        weft_tensor *scores = weft_linear(t, weft_dropout(t, x, 0.5, true), weight, bias);
        weft_tensor *loss = weft_cross_entropy(t, scores, target);
        weft_backward(t, loss);
        bool has_gradients = weft_tape_grad(t, table) && weft_tape_grad(t, bias);
        if (weft_tape_status(t) == WEFT_OK && has_gradients)
            loss_here = tensor_to_device(loss, cpu);
        if (weft_tape_status(t) == WEFT_ERR_INVALID)
            weft_error_print(weft_tape_error(t), stderr);
        assert_int_not_equal(weft_tape_status(t), WEFT_ERR_INVALID); /* the operands are right */
    }
    weft_tape_close(t);
    weft_tensor *all[] = {table, weight, bias, index, target};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
    return loss_here;
}

/* Waits for what failed steps have queued, and frees idle memory. */
static void settle(void)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tape_close(t);
    wfi_slab_trim(0);
}

static emulated_counts counts_now(void)
{
    emulated_counts now;
    counts(&now);
    return now;
}

/* Returns how many steps failed. */
static int every_call_fails(emulated_call call, uint64_t times)
{
    weft_tensor *want = one_step();
    assert_non_null(want);
    settle();
    uint64_t before = counts_now().calls[call], live = counts_now().live;
    weft_tensor_unref(one_step());
    settle();
    uint64_t of_a_step = counts_now().calls[call] - before;
    assert_true(of_a_step > 3);
    int failed = 0;
    for (uint64_t i = 0; i < of_a_step; i++) {
        fail_next(call, i, times);
        weft_tensor *got = one_step();
        failed += !got;
        if (got)
            assert_true(weft_tensor_get_f64(got, 0) == weft_tensor_get_f64(want, 0));
        weft_tensor_unref(got);
        settle();
        assert_int_equal(counts_now().live, live);
        assert_int_equal(counts_now().contexts, 0);
    }
    fail_next(call, 0, 0);
    printf("%d of %d steps failed\n", failed, (int)of_a_step);
    weft_tensor *after = one_step();
    assert_true(weft_tensor_get_f64(after, 0) == weft_tensor_get_f64(want, 0));
    weft_tensor_unref(after);
    weft_tensor_unref(want);
    return failed;
}

/* The pool gives idle memory back and tries again: one failure is not noticed, two are. */
static void allocations_fail(void **state)
{
    assert_int_equal(every_call_fails(EMULATED_ALLOCATION, 1), 0);
    assert_true(every_call_fails(EMULATED_ALLOCATION, 2) > 0);
}

static char logged[600];

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    (void)level, (void)arg;
    snprintf(logged, sizeof(logged), "%s", line);
}

/* The tape's error has the numbers, and so has the log. */
static void a_shortage_is_told_with_its_numbers(void **state)
{
    settle();
    weft_tensor *x = tensor_empty_on(gpu, WEFT_SHAPE(1 << 18), WEFT_DTYPE_FLOAT32);
    assert_non_null(x);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    logged[0] = '\0';
    weft_logging_set_sink(keep_line, NULL);
    fail_next(EMULATED_ALLOCATION, 0, 2);
    assert_null(weft_add(t, x, x));
    fail_next(EMULATED_ALLOCATION, 0, 0);
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(weft_tape_status(t), WEFT_ERR_MEMORY);
    const char *message = weft_error_message(weft_tape_error(t)), *told = strstr(message, "cuda:0 has no room");
    assert_non_null(told);
    assert_non_null(strstr(told, ": use smaller batches, release tensors, or end other programs on this GPU"));
    size_t asked = 0, used = 0, room = 0, total = 0;
    assert_int_equal(sscanf(told,
                            "cuda:0 has no room for %zu bytes: weft's tensors use %zu bytes there, and the driver has "
                            "%zu of %zu bytes free",
                            &asked, &used, &room, &total),
                     4);
    assert_int_equal(asked, 1 << 20);
    assert_true(used >= 1 << 20);
    assert_int_equal(used + room, total); /* nobody else uses the emulated GPU, and nothing is idle */
    assert_non_null(strstr(logged, told));
    weft_tape_close(t);
    t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tape_fail(t, WEFT_ERR_MEMORY, "the program's own");
    assert_string_equal(weft_error_message(weft_tape_error(t)), "the program's own"); /* not this shortage again */
    weft_tape_close(t);
    weft_tensor_unref(x);
    settle();
}

static void copies_fail(void **state)
{
    assert_true(every_call_fails(EMULATED_COPY, 1) > 0);
}

static void launches_fail(void **state)
{
    assert_true(every_call_fails(EMULATED_LAUNCH, 1) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(a_shortage_is_told_with_its_numbers),
        cmocka_unit_test(copies_fail),
        cmocka_unit_test(launches_fail),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    gpu_find("emulated_gpu_counts", &counts);
    gpu_find("emulated_gpu_fail", &fail_next);
    if (!counts || !fail_next)
        return GPU_SKIPPED;
    weft_logging_set_level(WEFT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
