/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tensor_no_memory.c - each allocation in turn fails: an error comes back, nothing leaks (AddressSanitizer
 * looks), and the next try works. The linker puts the functions below in the place of the library's.
 */
#include "check_gradients.h"
#include "tensors.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);

static int until_failure = -1; /* allocations that still succeed; -1: all */
static bool failed;

static bool fails(void)
{
    if (until_failure < 0 || until_failure-- > 0)
        return false;
    until_failure = -1;
    failed = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap(at, size, protection, flags, file, offset);
}

static weft_status make_small(void)
{
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32);
    weft_tensor_unref(tensor);
    return tensor ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_status make_large(void)
{
    wfi_slab_trim(0); /* or a recycled one is found */
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(1 << 20), WEFT_DTYPE_FLOAT32);
    weft_tensor_unref(tensor);
    return tensor ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_status make_views(void)
{
    weft_status status = WEFT_ERR_MEMORY;
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT32);
    weft_tensor *turned = tensor ? tensor_transpose(tensor, 0, 1) : NULL;
    weft_tensor *packed = turned ? tensor_contiguous(turned) : NULL;
    weft_tensor *converted = packed ? tensor_to(packed, WEFT_DTYPE_INT64) : NULL;
    if (converted)
        status = WEFT_OK;
    weft_tensor_unref(tensor);
    weft_tensor_unref(turned);
    weft_tensor_unref(packed);
    weft_tensor_unref(converted);
    return status;
}

static void note(void *arg)
{
    ++*(int *)arg;
}

static weft_status wrap(void)
{
    static float data[2];
    int drops = 0;
    weft_tensor *tensor = tensor_wrap(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, data, NULL, note, &drops);
    bool made = tensor != NULL;
    weft_tensor_unref(tensor);
    assert_int_equal(drops, 1);
    return made ? WEFT_OK : WEFT_ERR_MEMORY;
}

static weft_tensor *inputs[4]; /* made while memory was there */

static weft_status sum(void)
{
    return wfi_sum(inputs[0], 1u << 0, inputs[1]);
}

static weft_status convolve(void)
{
    wfi_conv2d how = {{1, 1}, {1, 1}, {1, 1}, 1};
    return wfi_conv2d_forward(inputs[0], inputs[2], NULL, &how, inputs[3]);
}

static void exhaust(weft_status (*run)(void))
{
    for (int allowed = 0; allowed < 200; allowed++) {
        failed = false;
        until_failure = allowed;
        weft_status status = run();
        until_failure = -1;
        if (!failed) {
            assert_int_equal(status, WEFT_OK);
            return;
        }
        /* A mapping that fails once is tried again when idle slabs have gone. */
        assert_true(status == WEFT_ERR_MEMORY || status == WEFT_OK);
        assert_int_equal(run(), WEFT_OK);
    }
    fail_msg("it never succeeded");
}

static void making_tensors_survives_any_failure(void **state)
{
    exhaust(make_small);
    exhaust(make_large);
    exhaust(make_views);
    exhaust(wrap);
}

static void kernels_survive_any_failure(void **state)
{
    for (int dtype = WEFT_DTYPE_FLOAT32; dtype <= WEFT_DTYPE_FLOAT64; dtype++) {
        inputs[0] = tensor_full(WEFT_SHAPE(2, 3, 6, 6), (weft_dtype)dtype, 1);
        inputs[1] = tensor_zeros(WEFT_SHAPE(3, 6, 6), (weft_dtype)dtype);
        inputs[2] = tensor_full(WEFT_SHAPE(4, 3, 3, 3), (weft_dtype)dtype, 1);
        inputs[3] = tensor_zeros(WEFT_SHAPE(2, 4, 6, 6), (weft_dtype)dtype);
        exhaust(sum);
        exhaust(convolve);
        assert_true(weft_tensor_get_f64(inputs[3], 7) == 27);
        for (int i = 0; i < 4; i++)
            weft_tensor_unref(inputs[i]);
    }
}

UNIT_MAIN(making_tensors_survives_any_failure, kernels_survive_any_failure)
