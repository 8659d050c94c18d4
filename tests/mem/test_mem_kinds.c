/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mem_kinds.c - a machine without a GPU: every request for its memory is refused with a status, in a build with
 * CUDA and in one without. Skipped where there is a GPU (test_gpu_memory looks at that).
 */
#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include "tensors.h"
#include "unit.h"

static char far_away[256]; /* stands for device memory: nobody may look into it */

static weft_tensor *on_device(weft_shape shape, weft_dtype dtype)
{
    wfi_storage *storage;
    weft_tensor *tensor = NULL;
    assert_int_equal(wfi_storage_wrap(WFI_MEMORY_CUDA, 0, far_away, sizeof(far_away), NULL, NULL, &storage), WEFT_OK);
    assert_int_equal(wfi_tensor_over(storage, 0, shape, dtype, &tensor), WEFT_OK);
    wfi_storage_unref(storage);
    return tensor;
}

static void device_memory_is_refused_each_time(void **state)
{
    wfi_storage *idle = NULL; /* host memory of that size: it is not handed out for another kind */
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 1 << 20, &idle), WEFT_OK);
    wfi_storage_unref(idle);
    for (int i = 0; i < 3; i++) {
        wfi_storage *storage = NULL;
        weft_tensor *tensor = NULL;
        assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, 0, 1 << 20, &storage), WEFT_ERR_UNSUPPORTED);
        assert_int_equal(wfi_storage_create(WFI_MEMORY_PINNED, 0, 1 << 20, &storage), WEFT_ERR_UNSUPPORTED);
        assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, -1, 0, &storage), WEFT_ERR_UNSUPPORTED);
        assert_int_equal(wfi_tensor_create(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, WFI_MEMORY_CUDA, 0, &tensor),
                         WEFT_ERR_UNSUPPORTED);
        assert_null(storage);
        assert_null(tensor);
    }
    assert_int_equal(wfi_storage_create((wfi_memory_kind)3, 0, 1, &(wfi_storage *){NULL}), WEFT_ERR_INVALID);
}

static void refusals_leave_nothing_behind(void **state)
{
    wfi_slab_stats before, after;
    wfi_storage *storage = NULL;
    wfi_slab_stats_read(&before);
    (void)wfi_storage_create(WFI_MEMORY_CUDA, 0, (size_t)1 << 30, &storage);
    (void)wfi_storage_create(WFI_MEMORY_PINNED, 0, (size_t)1 << 30, &storage);
    wfi_slab_stats_read(&after);
    assert_int_equal(after.bytes_live, before.bytes_live);
    assert_int_equal(after.bytes_idle, before.bytes_idle);
}

static void copies_to_and_from_a_device_are_refused(void **state)
{
    weft_tensor *device = on_device(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32),
                *host = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_copy(device, host), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_copy(host, device), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_memory_copy(host->storage, 0, device->storage, 0, 0), WEFT_OK); /* nothing is always there */
    assert_null(tensor_clone(device));
    weft_tensor_unref(device);
    weft_tensor_unref(host);
}

static void host_kernels_do_not_touch_device_memory(void **state)
{
    weft_tensor *device = on_device(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32),
                *host = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32);
    weft_tensor *total = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    assert_int_equal(wfi_relu(device, host), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_relu(host, device), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_add_into(device, host), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_sum(device, WFI_ALL_DIMS, total), WEFT_ERR_UNSUPPORTED);
    assert_int_equal(wfi_logsoftmax(device, 0, host), WEFT_ERR_UNSUPPORTED);
    assert_null(weft_tensor_data(device));
    assert_true(weft_tensor_get_f64(device, 0) == 0);
    weft_tensor_fill(device, 7);
    assert_int_equal(far_away[0], 0);
    weft_tensor_unref(device);
    weft_tensor_unref(host);
    weft_tensor_unref(total);
}

static void a_device_tensor_prints_where_it_is(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    weft_tensor *device = on_device(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32);
    weft_tensor_print(device, file);
    fclose(file);
    assert_string_equal(text, "float32 [2, 2] cuda:0 [[?, ?], [?, ?]]\n");
    free(text);
    weft_tensor_unref(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_memory_is_refused_each_time),
        cmocka_unit_test(refusals_leave_nothing_behind),
        cmocka_unit_test(copies_to_and_from_a_device_are_refused),
        cmocka_unit_test(host_kernels_do_not_touch_device_memory),
        cmocka_unit_test(a_device_tensor_prints_where_it_is),
    };
    wfi_storage *probe = NULL;
    if (wfi_storage_create(WFI_MEMORY_CUDA, 0, 1, &probe) == WEFT_OK) {
        wfi_storage_unref(probe);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
