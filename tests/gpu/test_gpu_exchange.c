/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_exchange.c - tensors go between devices and page-locked memory, are read and printed, and are shared by
 * DLPack. It needs none of the libraries that products rest on, so that tools/gpu-check can run it.
 */
#include <weft/dlpack.h>

#include "gpu/gpu.h"
#include "mem/copies.h"
#include "tensor/tensor.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, other = {WEFT_DEVICE_CUDA, 1}, cpu = {WEFT_DEVICE_CPU, 0};

static bool are_two(void)
{
    bool two = weft_device_check(other, NULL) == WEFT_OK;
    if (!two)
        puts("one GPU: not tested with two");
    return two;
}

static weft_tensor *to(weft_tensor *tensor, weft_device device)
{
    weft_tensor *moved = tensor_to_device(tensor, device);
    assert_non_null(moved);
    weft_device is = weft_tensor_device(moved);
    assert_true(wfi_device_equal(is, device));
    return moved;
}

static void drop_all(weft_tensor *const *all, int count)
{
    for (int i = 0; i < count; i++)
        weft_tensor_unref(all[i]);
}
#define DROP(...)                                                                                                      \
    drop_all((weft_tensor *[]){__VA_ARGS__}, (int)(sizeof((weft_tensor *[]){__VA_ARGS__}) / sizeof(weft_tensor *)))

static void same_elements(const weft_tensor *a, const weft_tensor *b)
{
    assert_true(weft_tensor_same_shape(a, b));
    for (int64_t i = 0; i < weft_tensor_numel(a); i++)
        assert_true(weft_tensor_get_f64(a, i) == weft_tensor_get_f64(b, i));
}

/* Contiguous, and a view that is packed on its device first. */
static void tensors_go_from_one_gpu_to_another(void **state)
{
    if (!are_two())
        return;
    weft_tensor *x = tensor_arange(60, WEFT_DTYPE_FLOAT64), *grid = tensor_reshape(x, WEFT_SHAPE(5, 12));
    weft_tensor *there = to(grid, gpu), *across = to(there, other), *back = to(across, cpu);
    same_elements(back, grid);
    weft_tensor *part = tensor_narrow(there, 1, 3, 4), *turned = tensor_transpose(part, 0, 1);
    weft_tensor *turned_across = to(turned, other), *turned_back = to(turned_across, cpu);
    assert_true(weft_tensor_is_contiguous(turned_across));
    same_elements(turned_back, turned);
    weft_tensor *target = tensor_empty_on(other, WEFT_SHAPE(12, 5), WEFT_DTYPE_FLOAT32);
    weft_tensor *spread = tensor_transpose(target, 0, 1);
    assert_int_equal(weft_tensor_assign(spread, there), WEFT_OK); /* converted, and spread over there */
    same_elements(spread, grid);
    DROP(x, grid, there, across, back, part, turned, turned_across, turned_back, target, spread);
}

static void the_same_device_gives_the_same_tensor(void **state)
{
    weft_tensor *x = tensor_empty_on(gpu, WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32), *y = to(x, gpu);
    assert_ptr_equal(x, y);
    DROP(x, y);
}

static void page_locked_tensors_are_cpu_tensors(void **state)
{
    weft_tensor *x = tensor_empty_pinned(gpu, WEFT_SHAPE(40, 30), WEFT_DTYPE_FLOAT32);
    assert_non_null(x);
    assert_int_equal(wfi_tensor_kind(x), WFI_MEMORY_PINNED);
    assert_int_equal(weft_tensor_device(x).kind, WEFT_DEVICE_CPU);
    assert_int_equal(weft_tensor_device(x).index, 0);
    for (int i = 0; i < 1200; i++)
        ((float *)weft_tensor_data(x))[i] = (float)i;
    weft_tensor *there = to(x, gpu), *back = tensor_empty_pinned(gpu, WEFT_SHAPE(40, 30), WEFT_DTYPE_FLOAT32);
    assert_int_equal(weft_tensor_assign(back, there), WEFT_OK);
    assert_memory_equal(weft_tensor_data(back), weft_tensor_data(x), weft_tensor_nbytes(x));
    weft_tensor *sum = tensor_clone(x);
    weft_tensor *plain = tensor_empty_pinned(cpu, WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32); /* for the CPU: any memory */
    assert_int_equal(wfi_tensor_kind(plain), WFI_MEMORY_HOST);
    assert_null(tensor_empty_pinned((weft_device){WEFT_DEVICE_CUDA, 1000}, WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32));
    DROP(x, there, back, sum, plain);
}

/* weft_tensor_data is NULL there; single elements are copied. */
static void elements_are_read_one_by_one(void **state)
{
    for (int dtype = 0; dtype < WFI_DTYPES; dtype++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(3, 5), (weft_dtype)dtype, 1), *there = to(x, gpu);
        weft_tensor *part = tensor_narrow(there, 1, 2, 2);
        assert_null(weft_tensor_data(there));
        weft_tensor_fill(part, 0);
        assert_true(weft_tensor_get_f64(there, 6) == 1 && weft_tensor_get_f64(there, 7) == 0);
        assert_int_equal(weft_tensor_get_i64(there, 14), 1);
        assert_int_equal(weft_tensor_get_i64(there, 15), 0); /* no such element */
        DROP(x, there, part);
    }
}

static void prints(const weft_tensor *tensor, const char *wanted)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    weft_tensor_print(tensor, file);
    fclose(file);
    assert_string_equal(text, wanted);
    free(text);
}

static void device_tensors_are_printed(void **state)
{
    const float data[] = {1, -2.5f, 0, 4};
    const double parts[] = {1, 2, -3, 0.5};
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(2, 2), WEFT_DTYPE_FLOAT32, data), *there = to(x, gpu);
    prints(there, "float32 [2, 2] cuda:0 [[1, -2.5], [0, 4]]\n");
    weft_tensor *turned = tensor_transpose(there, 0, 1);
    prints(turned, "float32 [2, 2] cuda:0 [[1, 0], [-2.5, 4]]\n");
    weft_tensor *z = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_COMPLEX128, parts), *z_there = to(z, gpu);
    prints(z_there, "complex128 [2] cuda:0 [1+2i, -3+0.5i]\n");
    weft_tensor *none = tensor_empty_on(gpu, WEFT_SHAPE(0), WEFT_DTYPE_INT64);
    prints(none, "int64 [0] cuda:0 []\n");
    DROP(x, there, turned, z, z_there, none);
}

static void device_tensors_are_shared_by_dlpack(void **state)
{
    weft_tensor *x = tensor_arange(12, WEFT_DTYPE_FLOAT32), *there = to(x, gpu);
    weft_tensor *part = tensor_narrow(there, 0, 2, 8), *again = NULL;
    weft_dlpack *lent = NULL;
    assert_int_equal(weft_tensor_to_dlpack(part, 0, &lent, NULL), WEFT_OK);
    assert_int_equal(lent->tensor.device.type, 2);
    assert_int_equal(lent->tensor.device.id, 0);
    assert_int_equal(weft_tensor_from_dlpack(lent, 0, &again, NULL), WEFT_OK);
    assert_int_equal(weft_tensor_device(again).kind, WEFT_DEVICE_CUDA);
    weft_tensor_fill(again, 7);
    DROP(part, again);
    assert_true(weft_tensor_get_f64(there, 1) == 1 && weft_tensor_get_f64(there, 2) == 7);
    assert_true(weft_tensor_get_f64(there, 9) == 7 && weft_tensor_get_f64(there, 10) == 10);
    assert_int_equal(weft_tensor_to_dlpack(there, WEFT_DLPACK_READ_ONLY, &lent, NULL), WEFT_OK);
    assert_int_equal(weft_tensor_from_dlpack(lent, 0, &again, NULL), WEFT_OK); /* a copy there */
    weft_tensor_fill(again, 0);
    assert_true(weft_tensor_get_f64(there, 2) == 7 && weft_tensor_get_f64(again, 2) == 0);
    DROP(x, there, again);
}

static _Atomic int ended;

static void copies_ended(wfi_copies *copies, weft_status status)
{
    atomic_store(&ended, 1);
}

/* The receiver writes the tensor on CUDA's legacy stream, of which weft knows nothing. */
static void a_lent_tensor_is_copied_in_order_with_its_receiver(void **state)
{
    enum { COUNT = 5000, BYTES = 8 * COUNT };
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    weft_tensor *x = tensor_arange(COUNT, WEFT_DTYPE_FLOAT64), *there = to(x, gpu);
    weft_dlpack *lent = NULL;
    wfi_storage *pinned[2];
    wfi_copies copies;
    assert_int_equal(weft_tensor_to_dlpack(there, 0, &lent, NULL), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wfi_storage_create(WFI_MEMORY_PINNED, 0, BYTES, &pinned[i]), WEFT_OK);
        memset(wfi_storage_data(pinned[i]), 0, BYTES);
    }
    wfi_copies_begin(&copies, copies_ended);
    assert_int_equal(wfi_copies_add(&copies, pinned[0], 0, there->storage, 0, BYTES), WEFT_OK);
    wfi_copies_end(&copies);
    assert_int_equal(wfi_cuda_enter(0), WEFT_OK);
    uint64_t at = (uint64_t)(uintptr_t)lent->tensor.data;
    assert_int_equal(driver->copy_to_device(at, wfi_storage_data(pinned[1]), BYTES, NULL), 0);
    assert_int_equal(driver->stream_wait(NULL), 0);
    wfi_cuda_leave();
    while (atomic_load(&ended) == 0)
        (void)wfi_copies_poll();
    wfi_copies_fini(&copies);
    assert_memory_equal(wfi_storage_data(pinned[0]), weft_tensor_data(x), BYTES);
    assert_true(weft_tensor_get_f64(there, COUNT - 1) == 0);
    lent->deleter(lent);
    wfi_storage_unref(pinned[0]);
    wfi_storage_unref(pinned[1]);
    DROP(x, there);
}

static void page_locked_tensors_are_shared_by_dlpack(void **state)
{
    weft_tensor *x = tensor_empty_pinned(gpu, WEFT_SHAPE(4), WEFT_DTYPE_INT32), *y = NULL;
    weft_dlpack *lent = NULL;
    weft_tensor_fill(x, 3);
    assert_int_equal(weft_tensor_to_dlpack(x, 0, &lent, NULL), WEFT_OK);
    assert_int_equal(lent->tensor.device.type, 3);
    assert_int_equal(weft_tensor_from_dlpack(lent, 0, &y, NULL), WEFT_OK);
    assert_ptr_equal(weft_tensor_data(x), weft_tensor_data(y));
    weft_tensor_unref(x);
    assert_int_equal(weft_tensor_get_i64(y, 3), 3);
    weft_tensor_unref(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_go_from_one_gpu_to_another),
        cmocka_unit_test(the_same_device_gives_the_same_tensor),
        cmocka_unit_test(page_locked_tensors_are_cpu_tensors),
        cmocka_unit_test(elements_are_read_one_by_one),
        cmocka_unit_test(device_tensors_are_printed),
        cmocka_unit_test(device_tensors_are_shared_by_dlpack),
        cmocka_unit_test(a_lent_tensor_is_copied_in_order_with_its_receiver),
        cmocka_unit_test(page_locked_tensors_are_shared_by_dlpack),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
