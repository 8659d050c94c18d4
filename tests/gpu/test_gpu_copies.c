/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_copies.c - copies between devices and page-locked memory, for which no thread waits (mem/copies.h): their
 * order with other streams, and their end. On the emulated GPU also: a wait for an event that is missing is reported
 * as a race, no thread waits, and a device fails.
 */
#include <stddef.h>
#include <stdint.h>

#include "emulated/emulated.h"
#include "gpu/gpu.h"
#include "mem/copies.h"
#include "mem/cuda.h"
#include "mem/stream.h"
#include "prng.h"
#include "unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 40000, SEEDS = 60 };

/* Of the emulated GPU; NULL on a real one. */
static void (*counts)(emulated_counts *out);
static void (*set_seed)(uint64_t seed);
static void (*fail_device)(int device);
static void (*mend_device)(int device);

static emulated_counts now(void)
{
    emulated_counts out = {.live = 0};
    if (counts)
        counts(&out);
    return out;
}

static void seed(uint64_t number)
{
    if (set_seed)
        set_seed(number);
}

/* ---- What the tests copy ---- */

typedef struct task {
    wfi_copies copies;
    weft_status status;
    _Atomic int ended; /* how often */
} task;

static void task_ended(wfi_copies *copies, weft_status status)
{
    task *t = (task *)copies;
    t->status = status;
    atomic_fetch_add(&t->ended, 1);
}

static void begin(task *t)
{
    *t = (task){.status = WEFT_ERR_CANCELLED};
    wfi_copies_begin(&t->copies, task_ended);
}

static void pause_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Polls, as the timer of an agent does. */
static weft_status finish(task *t)
{
    while (atomic_load(&t->ended) == 0) {
        (void)wfi_copies_poll();
        pause_ms();
    }
    wfi_copies_fini(&t->copies);
    weft_status status = atomic_load(&t->ended) == 1 ? t->status : WEFT_ERR_STATE;
    memset(t, 0xdd, sizeof(*t)); /* nobody uses it any more */
    return status;
}

static wfi_storage *storage_on(wfi_memory_kind kind, int device, size_t size)
{
    wfi_storage *storage = NULL;
    if (wfi_storage_create(kind, device, size, &storage) != WEFT_OK)
        abort(); /* not an assertion: threads call it */
    return storage;
}

static wfi_storage *filled(wfi_memory_kind kind, size_t size, int byte)
{
    wfi_storage *storage = storage_on(kind, 0, size);
    memset(wfi_storage_data(storage), byte, size);
    return storage;
}

static bool holds(const void *bytes, size_t size, int byte)
{
    const uint8_t *at = bytes;
    return size == 0 || (at[0] == (uint8_t)byte && memcmp(at, at + 1, size - 1) == 0);
}

static bool pinned_holds(wfi_storage *pinned, int byte)
{
    return holds(wfi_storage_data(pinned), wfi_storage_size(pinned), byte);
}

/* Writes device memory on a stream (NULL: the common one); the host does not wait. */
static void write_on(weft_stream *stream, wfi_storage *device, int byte)
{
    wfi_storage *from = filled(WFI_MEMORY_HOST, wfi_storage_size(device), byte);
    weft_stream *before = wfi_stream_set(stream);
    if (wfi_memory_copy(device, 0, from, 0, wfi_storage_size(from)) != WEFT_OK)
        abort();
    wfi_stream_set(before);
    wfi_storage_unref(from);
}

/* Waits for the device. */
static bool device_holds(wfi_storage *device, int byte)
{
    size_t size = wfi_storage_size(device);
    void *back = malloc(size);
    bool same = back && wfi_memory_read(device, 0, back, size) == WEFT_OK && holds(back, size, byte);
    free(back);
    return same;
}

static weft_stream *new_stream(int device)
{
    weft_stream *stream = NULL;
    assert_int_equal(wfi_stream_create(device, &stream), WEFT_OK);
    return stream;
}

/* ---- Order ---- */

static void a_copy_to_the_host_is_between_two_writers(void **state)
{
    weft_stream *streams[2] = {new_stream(0), new_stream(0)};
    for (int i = 0; i < SEEDS; i++) {
        task t;
        seed((uint64_t)i);
        wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *pinned = filled(WFI_MEMORY_PINNED, SIZE, 0xee);
        write_on(streams[i % 2], device, i + 1);
        uint64_t waits = now().synchronisations;
        begin(&t);
        assert_int_equal(wfi_copies_add(&t.copies, pinned, 0, device, 0, SIZE), WEFT_OK);
        wfi_copies_end(&t.copies);
        assert_int_equal(now().synchronisations, waits);
        write_on(i % 3 == 0 ? NULL : streams[i % 3 - 1], device, 0xaa);
        assert_int_equal(finish(&t), WEFT_OK);
        assert_true(pinned_holds(pinned, i + 1));
        assert_true(device_holds(device, 0xaa));
        wfi_storage_unref(device);
        wfi_storage_unref(pinned);
    }
    wfi_stream_unref(streams[0]);
    wfi_stream_unref(streams[1]);
}

/* The device memory is in use by a reader on another stream when the data arrive. */
static void an_arrival_is_between_two_readers(void **state)
{
    weft_stream *streams[2] = {new_stream(0), new_stream(0)};
    for (int i = 0; i < SEEDS; i++) {
        task t;
        seed((uint64_t)i);
        wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *read[2];
        wfi_storage *pinned = filled(WFI_MEMORY_PINNED, SIZE, i + 1);
        write_on(NULL, device, 0xaa);
        uint64_t waits = now().synchronisations;
        for (int k = 0; k < 2; k++) {
            wfi_stream_set(streams[(i + k) % 2]);
            read[k] = storage_on(WFI_MEMORY_CUDA, 0, SIZE);
            assert_int_equal(wfi_memory_copy(read[k], 0, device, 0, SIZE), WEFT_OK);
            wfi_stream_set(NULL);
            if (k == 1)
                break;
            begin(&t);
            assert_int_equal(wfi_copies_add(&t.copies, device, 0, pinned, 0, SIZE / 2), WEFT_OK);
            assert_int_equal(wfi_copies_add(&t.copies, device, SIZE / 2, pinned, SIZE / 2, SIZE / 2), WEFT_OK);
            wfi_copies_end(&t.copies);
        }
        assert_int_equal(now().synchronisations, waits);
        wfi_storage_unref(device); /* its memory may be used again, in order */
        write_on(NULL, device = storage_on(WFI_MEMORY_CUDA, 0, SIZE), 0x77);
        assert_true(device_holds(read[0], 0xaa));
        assert_true(device_holds(read[1], i + 1));
        assert_int_equal(finish(&t), WEFT_OK);
        wfi_storage *all[] = {device, read[0], read[1], pinned};
        for (int k = 0; k < 4; k++)
            wfi_storage_unref(all[k]);
    }
    wfi_stream_unref(streams[0]);
    wfi_stream_unref(streams[1]);
}

/* A storage that is made on the copy stream does not wait for what the common stream does now. */
static void an_arrival_does_not_wait_for_the_common_stream(void **state)
{
    if (!counts)
        return;
    task t;
    weft_stream *arrivals = NULL;
    wfi_slab_trim(0);
    wfi_storage *busy = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *pinned = filled(WFI_MEMORY_PINNED, SIZE, 3);
    write_on(NULL, busy, 1);
    uint64_t pending = now().pending;
    assert_int_equal(wfi_copies_stream(0, &arrivals), WEFT_OK);
    wfi_stream_set(arrivals);
    wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, SIZE);
    wfi_stream_set(NULL);
    begin(&t);
    assert_int_equal(wfi_copies_add(&t.copies, device, 0, pinned, 0, SIZE), WEFT_OK);
    wfi_copies_end(&t.copies);
    assert_int_equal(finish(&t), WEFT_OK);
    assert_true(pending > 0 && now().pending >= pending); /* the write has not run */
    wfi_storage *all[] = {busy, pinned, device};
    for (int i = 0; i < 3; i++)
        wfi_storage_unref(all[i]);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* Another library writes its memory on the legacy stream, before and after the copy, without a word to weft. */
static void lent_memory_is_in_order_with_the_legacy_stream(void **state)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    wfi_storage *bytes[] = {filled(WFI_MEMORY_PINNED, SIZE, 1), filled(WFI_MEMORY_PINNED, SIZE, 2),
                            filled(WFI_MEMORY_PINNED, SIZE, 3)};
    wfi_storage *pinned = storage_on(WFI_MEMORY_PINNED, 0, SIZE);
    for (int i = 0; i < SEEDS; i++) {
        task t[2];
        wfi_storage *owner = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *device = owner;
        uint64_t at = (uint64_t)(uintptr_t)wfi_storage_data(owner);
        seed((uint64_t)i);
        if (i % 2 == 0)
            assert_int_equal(
                wfi_storage_wrap(WFI_MEMORY_CUDA, 0, wfi_storage_data(owner), SIZE, nothing, NULL, &device), WEFT_OK);
        else
            assert_int_equal(wfi_storage_lend(device), WEFT_OK);
        memset(wfi_storage_data(pinned), 0xee, SIZE);
        assert_int_equal(wfi_cuda_enter(0), WEFT_OK);
        assert_int_equal(driver->copy_to_device(at, wfi_storage_data(bytes[0]), SIZE, NULL), 0);
        begin(&t[0]);
        assert_int_equal(wfi_copies_add(&t[0].copies, pinned, 0, device, 0, SIZE), WEFT_OK); /* reads 1 */
        assert_int_equal(driver->copy_to_device(at, wfi_storage_data(bytes[1]), SIZE, NULL), 0);
        assert_int_equal(wfi_copies_add(&t[0].copies, pinned, 0, device, 0, SIZE / 2), WEFT_OK); /* reads 2 */
        wfi_copies_end(&t[0].copies);
        begin(&t[1]);
        assert_int_equal(wfi_copies_add(&t[1].copies, device, 0, bytes[2], 0, SIZE), WEFT_OK); /* writes 3 */
        wfi_copies_end(&t[1].copies);
        wfi_storage *seen = storage_on(WFI_MEMORY_PINNED, 0, SIZE);
        assert_int_equal(driver->copy_to_host(wfi_storage_data(seen), at, SIZE, NULL), 0);
        assert_int_equal(driver->stream_wait(NULL), 0);
        wfi_cuda_leave();
        assert_true(pinned_holds(seen, 3));
        assert_int_equal(finish(&t[1]), WEFT_OK);
        assert_int_equal(finish(&t[0]), WEFT_OK);
        const char *now_there = wfi_storage_data(pinned);
        assert_true(holds(now_there, SIZE / 2, 2) && holds(now_there + SIZE / 2, SIZE / 2, 1));
        wfi_storage_unref(seen);
        if (device != owner)
            wfi_storage_unref(device);
        wfi_storage_unref(owner);
    }
    for (int i = 0; i < 3; i++)
        wfi_storage_unref(bytes[i]);
    wfi_storage_unref(pinned);
}

/* ---- Ends ---- */

static void copies_that_are_none_end_at_once(void **state)
{
    task t;
    wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, 8), *pinned = storage_on(WFI_MEMORY_PINNED, 0, 8);
    begin(&t);
    wfi_copies_fini(&t.copies); /* not ended */
    assert_int_equal(t.ended, 0);
    begin(&t);
    wfi_copies_end(&t.copies);
    assert_int_equal(t.ended, 1);
    assert_int_equal(finish(&t), WEFT_OK);
    begin(&t);
    assert_int_equal(wfi_copies_add(&t.copies, device, 3, pinned, 8, 0), WEFT_OK);
    wfi_copies_end(&t.copies);
    assert_int_equal(t.ended, 1);
    assert_int_equal(finish(&t), WEFT_OK);
    wfi_storage_unref(device);
    wfi_storage_unref(pinned);
}

static void wrong_copies_are_refused(void **state)
{
    task t;
    wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, 8), *pinned = filled(WFI_MEMORY_PINNED, 8, 5);
    wfi_storage *host = storage_on(WFI_MEMORY_HOST, 0, 8);
    begin(&t);
    assert_int_equal(wfi_copies_add(&t.copies, device, 0, pinned, 0, 8), WEFT_OK);
    assert_int_equal(wfi_copies_add(&t.copies, device, 1, pinned, 0, 8), WEFT_ERR_INVALID);
    assert_int_equal(wfi_copies_add(&t.copies, pinned, 0, device, SIZE_MAX, 2), WEFT_ERR_INVALID);
    assert_int_equal(wfi_copies_add(&t.copies, device, 0, host, 0, 8), WEFT_ERR_INVALID);
    assert_int_equal(wfi_copies_add(&t.copies, host, 0, device, 0, 8), WEFT_ERR_INVALID);
    assert_int_equal(wfi_copies_add(&t.copies, pinned, 0, pinned, 0, 8), WEFT_ERR_INVALID);
    assert_int_equal(wfi_copies_add(&t.copies, device, 0, device, 0, 8), WEFT_ERR_INVALID);
    wfi_copies_end(&t.copies);
    assert_int_equal(finish(&t), WEFT_ERR_INVALID); /* the first failure */
    assert_true(device_holds(device, 5));
    wfi_storage *all[] = {device, pinned, host};
    for (int i = 0; i < 3; i++)
        wfi_storage_unref(all[i]);
}

/* One way of bytes: from page-locked memory to a device and, later, back. */
typedef struct way {
    task there, back;
    wfi_storage *from, *device, *to;
    int byte;
    bool there_is_first; /* it is ended first */
} way;

static void send(way *w, uint64_t *random, int devices)
{
    size_t size = 1 + prng_below(random, SIZE);
    w->byte = 1 + (int)prng_below(random, 200);
    w->from = filled(WFI_MEMORY_PINNED, size, w->byte);
    w->to = filled(WFI_MEMORY_PINNED, size, 0xee);
    w->device = storage_on(WFI_MEMORY_CUDA, (int)prng_below(random, (uint64_t)devices), size);
    begin(&w->there);
    begin(&w->back);
    size_t middle = prng_below(random, size);
    if (wfi_copies_add(&w->there.copies, w->device, 0, w->from, 0, middle) != WEFT_OK ||
        wfi_copies_add(&w->there.copies, w->device, middle, w->from, middle, size - middle) != WEFT_OK ||
        wfi_copies_add(&w->back.copies, w->to, 0, w->device, 0, size) != WEFT_OK)
        abort();
    w->there_is_first = prng_below(random, 2) == 0;
    wfi_copies_end(w->there_is_first ? &w->there.copies : &w->back.copies);
    wfi_storage_unref(w->device);
}

/* Returns whether the bytes came back. */
static bool arrive(way *w)
{
    wfi_copies_end(w->there_is_first ? &w->back.copies : &w->there.copies);
    bool back = finish(&w->back) == WEFT_OK && pinned_holds(w->to, w->byte);
    wfi_storage_unref(w->to);
    bool there = finish(&w->there) == WEFT_OK;
    wfi_storage_unref(w->from);
    return back && there;
}

enum { WAYS = 24, ROUNDS = 20, THREADS = 8 };

/* Returns how many ways had wrong bytes. They end in a random order. */
static int play(uint64_t random)
{
    int devices = wfi_cuda_count() < 2 ? 1 : 2, wrong = 0, order[WAYS];
    way *ways = calloc(WAYS, sizeof(*ways));
    for (int i = 0; i < WAYS && ways; i++)
        send(&ways[order[i] = i], &random, devices);
    for (int i = WAYS; i > 0 && ways; i--) {
        unsigned at = (unsigned)prng_below(&random, (uint64_t)i);
        wrong += !arrive(&ways[order[at]]);
        order[at] = order[i - 1];
    }
    free(ways);
    return wrong;
}

static void copies_end_in_any_order(void **state)
{
    for (int i = 0; i < ROUNDS; i++) {
        seed((uint64_t)i);
        assert_int_equal(play((uint64_t)i), 0);
    }
    emulated_counts after = now();
    assert_int_equal(after.stream_waits + after.event_waits + after.context_waits, 0);
}

static void *play_on_thread(void *number)
{
    int *wrong = number;
    *wrong = play((uint64_t)*wrong + 1000);
    return NULL;
}

static void threads_copy_at_once(void **state)
{
    for (int round = 0; round < 3; round++) {
        pthread_t threads[THREADS];
        int wrong[THREADS];
        seed((uint64_t)round);
        for (int i = 0; i < THREADS; i++) {
            wrong[i] = i + THREADS * round;
            assert_int_equal(pthread_create(&threads[i], NULL, play_on_thread, &wrong[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(wrong[i], 0);
        }
    }
}

/* Nobody polls: the driver's thread tells. */
static void the_host_function_tells_the_end(void **state)
{
    if (gpu_is_polled())
        return; /* there is no thread */
    wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *pinned = filled(WFI_MEMORY_PINNED, SIZE, 9);
    for (int i = 0; i < SEEDS; i++) {
        task t;
        seed((uint64_t)i);
        begin(&t);
        assert_int_equal(wfi_copies_add(&t.copies, device, 0, pinned, 0, SIZE), WEFT_OK);
        wfi_copies_end(&t.copies);
        while (atomic_load(&t.ended) == 0)
            pause_ms();
        assert_int_equal(finish(&t), WEFT_OK);
    }
    wfi_storage_unref(device);
    wfi_storage_unref(pinned);
}

/* ---- Failures of the driver, by functions in its table ---- */

static wfi_cuda_driver *driver_table(void)
{
    return (wfi_cuda_driver *)(uintptr_t)wfi_cuda_driver_get();
}

static int refuse_event(void *event, void *stream)
{
    return WFI_CUDA_OUT_OF_MEMORY;
}

static int refuse_function(void *stream, void (*function)(void *argument), void *argument)
{
    return WFI_CUDA_OUT_OF_MEMORY;
}

static void without_a_host_function_the_poller_tells_the_end(void **state)
{
    wfi_cuda_driver real = *driver_table();
    wfi_storage *device = storage_on(WFI_MEMORY_CUDA, 0, SIZE), *pinned = filled(WFI_MEMORY_PINNED, SIZE, 9);
    for (int i = 0; i < 8; i++) {
        task t;
        seed((uint64_t)i);
        memset(wfi_storage_data(pinned), i, SIZE);
        begin(&t);
        assert_int_equal(wfi_copies_add(&t.copies, device, 0, pinned, 0, SIZE), WEFT_OK);
        driver_table()->launch_host = refuse_function;
        if (i >= 4) /* and without an event the end waits */
            driver_table()->event_record = refuse_event;
        wfi_copies_end(&t.copies);
        *driver_table() = real;
        assert_true(i < 4 || t.ended == 1);
        assert_int_equal(finish(&t), WEFT_OK);
        assert_true(device_holds(device, i));
    }
    assert_int_equal(wfi_copies_poll(), 0);
    wfi_storage_unref(device);
    wfi_storage_unref(pinned);
}

/* A device fails before the copies are added, before their end is queued, after it, or when all is done. */
static void a_failed_device_ends_its_copies(void **state)
{
    enum { BEFORE, ADDED, ENDED, DONE, PLACES, TASKS = 3 };
    if (!fail_device)
        return;
    for (int i = 0; i < SEEDS; i++) {
        int place = i % PLACES, device = i / PLACES % 2;
        task t[TASKS], other;
        seed((uint64_t)i);
        wfi_storage *there[2] = {storage_on(WFI_MEMORY_CUDA, 0, SIZE), storage_on(WFI_MEMORY_CUDA, 1, SIZE)};
        wfi_storage *pinned[2] = {filled(WFI_MEMORY_PINNED, SIZE, 3), filled(WFI_MEMORY_PINNED, SIZE, 4)};
        begin(&other);
        assert_int_equal(wfi_copies_add(&other.copies, there[!device], 0, pinned[!device], 0, SIZE), WEFT_OK);
        if (place == BEFORE)
            fail_device(device);
        for (int k = 0; k < TASKS; k++) {
            begin(&t[k]);
            weft_status status = wfi_copies_add(&t[k].copies, there[device], 0, pinned[device], 0, SIZE);
            assert_int_equal(status, place == BEFORE ? WEFT_ERR_SYSTEM : WEFT_OK);
        }
        if (place == ADDED)
            fail_device(device);
        for (int k = 0; k < TASKS; k++) {
            wfi_copies_end(&t[k].copies);
            assert_true(t[k].ended == 1 || place > ADDED);
        }
        if (place == ENDED) {
            fail_device(device);
            (void)wfi_copies_poll(); /* one poll ends all */
            for (int k = 0; k < TASKS; k++)
                assert_int_equal(t[k].ended, 1);
        }
        wfi_copies_end(&other.copies);
        for (int k = 0; k < TASKS; k++) {
            weft_status status = finish(&t[k]); /* some may have been done in time */
            assert_true(status == WEFT_ERR_SYSTEM ? place <= ENDED : status == WEFT_OK && place >= ENDED);
        }
        if (place == DONE)
            fail_device(device);
        assert_int_equal(finish(&other), WEFT_OK); /* the other device works */
        assert_int_equal(wfi_copies_poll(), 0);
        mend_device(device);
        for (int k = 0; k < 2; k++) {
            wfi_storage_unref(there[k]);
            wfi_storage_unref(pinned[k]);
        }
    }
}

/* ---- What else there is ---- */

static void devices_have_names(void **state)
{
    uint8_t uuids[2][WFI_CUDA_UUID] = {{0}};
    assert_true(wfi_cuda_uuid(0, uuids[0]));
    assert_false(wfi_cuda_uuid(1000, uuids[1]));
    if (wfi_cuda_count() < 2)
        return;
    assert_true(wfi_cuda_uuid(1, uuids[1]));
    assert_memory_not_equal(uuids[0], uuids[1], WFI_CUDA_UUID);
}

static void no_memory_is_left(void **state)
{
    if (!counts)
        return;
    assert_int_equal(wfi_copies_poll(), 0);
    wfi_slab_trim(0);
    assert_int_equal(now().device_bytes, 0);
    assert_int_equal(now().contexts, 0);
    assert_true(now().pinned_bytes <= 2 * (8 << 20)); /* the pieces of uploads */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_end_in_any_order), /* first: it counts waits */
        cmocka_unit_test(a_copy_to_the_host_is_between_two_writers),
        cmocka_unit_test(an_arrival_is_between_two_readers),
        cmocka_unit_test(an_arrival_does_not_wait_for_the_common_stream),
        cmocka_unit_test(lent_memory_is_in_order_with_the_legacy_stream),
        cmocka_unit_test(copies_that_are_none_end_at_once),
        cmocka_unit_test(wrong_copies_are_refused),
        cmocka_unit_test(threads_copy_at_once),
        cmocka_unit_test(the_host_function_tells_the_end),
        cmocka_unit_test(without_a_host_function_the_poller_tells_the_end),
        cmocka_unit_test(a_failed_device_ends_its_copies),
        cmocka_unit_test(devices_have_names),
        cmocka_unit_test(no_memory_is_left),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    gpu_find("emulated_gpu_counts", &counts);
    gpu_find("emulated_gpu_seed", &set_seed);
    gpu_find("emulated_gpu_fail_device", &fail_device);
    gpu_find("emulated_gpu_mend_device", &mend_device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
