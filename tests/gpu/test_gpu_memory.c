/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_memory.c - storage on a device: bytes survive the way there and back. */
#include <stddef.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "mem/cuda.h"
#include "mem/mem.h"
#include "mem/stream.h"
#include "unit.h"

#include <string.h>

enum { SIZE = (4 << 20) + 13 };

static wfi_storage *storage_of(wfi_memory_kind kind, size_t size)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(kind, 0, size, &storage), WEFT_OK);
    assert_int_equal(wfi_storage_kind(storage), kind);
    assert_int_equal(wfi_storage_size(storage), size);
    return storage;
}

static wfi_storage *counted(wfi_memory_kind kind)
{
    wfi_storage *storage = storage_of(kind, SIZE);
    uint8_t *bytes = wfi_storage_data(storage);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 31 + (i >> 8));
    return storage;
}

static void round_trip(wfi_memory_kind kind)
{
    wfi_storage *from = counted(kind);
    wfi_storage *device = storage_of(WFI_MEMORY_CUDA, SIZE);
    wfi_storage *second = storage_of(WFI_MEMORY_CUDA, SIZE);
    wfi_storage *back = storage_of(kind, SIZE);
    memset(wfi_storage_data(back), 0, SIZE);
    assert_int_equal(wfi_memory_copy(device, 0, from, 0, SIZE), WEFT_OK);
    assert_int_equal(wfi_memory_copy(second, 0, device, 0, SIZE), WEFT_OK);
    assert_int_equal(wfi_memory_copy(back, 0, second, 0, SIZE), WEFT_OK);
    assert_memory_equal(wfi_storage_data(from), wfi_storage_data(back), SIZE);
    wfi_storage_unref(from);
    wfi_storage_unref(device);
    wfi_storage_unref(second);
    wfi_storage_unref(back);
}

static void test_host_to_device_and_back(void **state)
{
    round_trip(WFI_MEMORY_HOST);
}

static void test_pinned_to_device_and_back(void **state)
{
    round_trip(WFI_MEMORY_PINNED);
}

static void test_copy_at_offsets(void **state)
{
    wfi_storage *from = counted(WFI_MEMORY_HOST);
    wfi_storage *device = storage_of(WFI_MEMORY_CUDA, SIZE);
    wfi_storage *back = storage_of(WFI_MEMORY_HOST, SIZE);
    assert_int_equal(wfi_memory_copy(device, 7, from, 1001, 4097), WEFT_OK);
    assert_int_equal(wfi_memory_copy(back, 3, device, 7, 4097), WEFT_OK);
    assert_memory_equal((char *)wfi_storage_data(from) + 1001, (char *)wfi_storage_data(back) + 3, 4097);
    wfi_storage_unref(from);
    wfi_storage_unref(device);
    wfi_storage_unref(back);
}

/* Copies of all sizes on two streams, more in all than the page-locked pieces hold; nothing waits before the end. */
static void test_the_source_may_change_at_once(void **state)
{
    static const size_t sizes[] = {1, 64, 65, 1000, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, (9 << 20) + 5};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), COPIES = 4 * SIZES };
    wfi_storage *device[COPIES];
    weft_stream *stream = NULL;
    assert_int_equal(wfi_stream_create(0, &stream), WEFT_OK);
    for (size_t i = 0; i < COPIES; i++) {
        size_t size = sizes[i / 4];
        wfi_storage *from = storage_of(WFI_MEMORY_HOST, size);
        memset(wfi_storage_data(from), (int)(i + 1), size);
        wfi_stream_set(i % 2 == 0 ? stream : NULL);
        device[i] = storage_of(WFI_MEMORY_CUDA, size);
        assert_int_equal(wfi_memory_copy(device[i], 0, from, 0, size), WEFT_OK);
        memset(wfi_storage_data(from), 0xee, size);
        wfi_storage_unref(from);
    }
    wfi_stream_set(NULL);
    for (size_t i = 0; i < COPIES; i++) {
        size_t size = sizes[i / 4];
        wfi_storage *back = storage_of(WFI_MEMORY_HOST, size);
        assert_int_equal(wfi_memory_copy(back, 0, device[i], 0, size), WEFT_OK);
        const uint8_t *bytes = wfi_storage_data(back);
        for (size_t k = 0; k < size; k++)
            if (bytes[k] != i + 1)
                fail_msg("byte %zu of copy %zu is %u", k, i, bytes[k]);
        wfi_storage_unref(back);
        wfi_storage_unref(device[i]);
    }
    wfi_stream_unref(stream);
}

/* ---- Failures of events, by a function in the driver's table ---- */

static int (*real_query)(void *event);
static int (*real_record)(void *event, void *stream);
static int fails_after = -1;

static int query(void *event)
{
    return fails_after-- == 0 ? WFI_CUDA_OUT_OF_MEMORY : real_query(event);
}

static int record(void *event, void *stream)
{
    return fails_after-- == 0 ? WFI_CUDA_OUT_OF_MEMORY : real_record(event, stream);
}

static wfi_cuda_driver *driver_table(void)
{
    return (wfi_cuda_driver *)(uintptr_t)wfi_cuda_driver_get();
}

/* The piece that could not be asked for still belongs to a former copy. */
static void test_a_failed_query_keeps_the_piece(void **state)
{
    enum { SIZE_EACH = 256 << 10, COPIES = 48, FAILS = 34 };
    wfi_storage *device[COPIES];
    bool was_copied[COPIES];
    real_query = driver_table()->event_query;
    driver_table()->event_query = query;
    for (int i = 0; i < COPIES; i++) {
        wfi_storage *from = storage_of(WFI_MEMORY_HOST, SIZE_EACH);
        memset(wfi_storage_data(from), i + 1, SIZE_EACH);
        device[i] = storage_of(WFI_MEMORY_CUDA, SIZE_EACH);
        fails_after = i == FAILS ? 0 : -1;
        was_copied[i] = wfi_memory_copy(device[i], 0, from, 0, SIZE_EACH) == WEFT_OK;
        assert_true(was_copied[i] || i == FAILS);
        wfi_storage_unref(from);
    }
    driver_table()->event_query = real_query;
    for (int i = 0; i < COPIES; i++) {
        wfi_storage *back = storage_of(WFI_MEMORY_HOST, SIZE_EACH);
        assert_int_equal(wfi_memory_copy(back, 0, device[i], 0, SIZE_EACH), WEFT_OK);
        if (was_copied[i] && ((uint8_t *)wfi_storage_data(back))[SIZE_EACH - 1] != i + 1)
            fail_msg("copy %d has %u", i, ((uint8_t *)wfi_storage_data(back))[SIZE_EACH - 1]);
        wfi_storage_unref(back);
        wfi_storage_unref(device[i]);
    }
}

/* The destination is freed and used again at once: the copy must not write it later. The emulated GPU sees a race. */
static void test_a_failed_copy_between_devices_has_ended(void **state)
{
    if (wfi_cuda_count() < 2)
        return;
    wfi_storage *from = storage_of(WFI_MEMORY_CUDA, SIZE), *host = counted(WFI_MEMORY_HOST), *to = NULL;
    assert_int_equal(wfi_memory_copy(from, 0, host, 0, SIZE), WEFT_OK);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, 1, SIZE, &to), WEFT_OK);
    real_record = driver_table()->event_record;
    driver_table()->event_record = record;
    fails_after = 1; /* the first is before the copy */
    assert_int_not_equal(wfi_memory_copy(to, 0, from, 0, SIZE), WEFT_OK);
    driver_table()->event_record = real_record;
    wfi_storage_unref(to);
    weft_stream *stream = NULL;
    assert_int_equal(wfi_stream_create(1, &stream), WEFT_OK);
    wfi_stream_set(stream);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, 1, SIZE, &to), WEFT_OK);
    assert_int_equal(wfi_memory_copy(to, 0, host, 0, SIZE), WEFT_OK);
    wfi_stream_set(NULL);
    wfi_storage *back = storage_of(WFI_MEMORY_HOST, SIZE);
    assert_int_equal(wfi_memory_copy(back, 0, to, 0, SIZE), WEFT_OK);
    assert_memory_equal(wfi_storage_data(back), wfi_storage_data(host), SIZE);
    wfi_storage *all[] = {from, host, to, back};
    for (int i = 0; i < 4; i++)
        wfi_storage_unref(all[i]);
    wfi_stream_unref(stream);
}

static void test_copy_out_of_range_is_refused(void **state)
{
    wfi_storage *host = storage_of(WFI_MEMORY_HOST, 64);
    wfi_storage *device = storage_of(WFI_MEMORY_CUDA, 64);
    assert_int_equal(wfi_memory_copy(device, 1, host, 0, 64), WEFT_ERR_INVALID);
    assert_int_equal(wfi_memory_copy(host, 0, device, SIZE_MAX, 2), WEFT_ERR_INVALID);
    wfi_storage_unref(host);
    wfi_storage_unref(device);
}

static void test_empty_storage_on_device(void **state)
{
    wfi_storage_unref(storage_of(WFI_MEMORY_CUDA, 0));
}

static void test_no_such_device_is_an_error(void **state)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, 1000, SIZE, &storage), WEFT_ERR_INVALID);
    assert_null(storage);
}

static void test_more_than_the_device_has_is_an_error(void **state)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_CUDA, 0, (size_t)1 << 50, &storage), WEFT_ERR_MEMORY);
    assert_null(storage);
    wfi_storage_unref(storage_of(WFI_MEMORY_CUDA, SIZE)); /* and what comes after it works */
}

/* The bound of idle memory is one for each device: much traffic in host memory leaves the device's slabs alone. */
static void test_host_traffic_leaves_idle_device_memory(void **state)
{
    enum { MIB = 1 << 20 };
    wfi_slab_trim(0);
    wfi_storage_unref(storage_of(WFI_MEMORY_CUDA, 8 * MIB));
    for (int i = 0; i < 40; i++)
        wfi_storage_unref(storage_of(WFI_MEMORY_HOST, (size_t)(i + 1) * MIB));
    wfi_slab_stats before, after;
    wfi_slab_stats_read(&before);
    wfi_storage_unref(storage_of(WFI_MEMORY_CUDA, 8 * MIB));
    wfi_slab_stats_read(&after);
    assert_int_equal(after.mapped, before.mapped);
    assert_int_equal(after.reused, before.reused + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_to_device_and_back),
        cmocka_unit_test(test_pinned_to_device_and_back),
        cmocka_unit_test(test_copy_at_offsets),
        cmocka_unit_test(test_the_source_may_change_at_once),
        cmocka_unit_test(test_a_failed_query_keeps_the_piece),
        cmocka_unit_test(test_a_failed_copy_between_devices_has_ended),
        cmocka_unit_test(test_copy_out_of_range_is_refused),
        cmocka_unit_test(test_empty_storage_on_device),
        cmocka_unit_test(test_no_such_device_is_an_error),
        cmocka_unit_test(test_more_than_the_device_has_is_an_error),
        cmocka_unit_test(test_host_traffic_leaves_idle_device_memory),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
