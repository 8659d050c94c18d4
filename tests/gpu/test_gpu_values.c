/* SPDX-License-Identifier: Apache-2.0 */
/* test_gpu_values.c - weft_values_wait: the data of the tensors in a list are on their devices when it returns. And
 * copies for which no thread waits, between kernels. */
#include <weft/sim.h>
#include <weft/weft.h>

#include "base/parker.h"

#include "emulated/emulated.h"
#include "gpu/gpu.h"
#include "make.h"
#include "mem/copies.h"
#include "mem/stream.h"
#include "tensor/tensor.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE = 300, LONG_MS = 60000 };

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

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

/* A tensor that a kernel writes on a stream; the host has not waited. */
static weft_tensor *later(weft_device device, weft_stream *stream)
{
    weft_tensor *here = tensor_empty(WEFT_SHAPE(SIZE), WEFT_DTYPE_FLOAT32);
    weft_tensor_fill(here, 3);
    weft_tensor *there = tensor_to_device(here, device);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = device, .stream = stream});
    weft_tensor *y = weft_tensor_ref(weft_scale(t, there, 2));
    weft_tape_close(t);
    weft_tensor_unref(there);
    weft_tensor_unref(here);
    assert_non_null(y);
    return y;
}

static weft_values *list_of(weft_value value)
{
    weft_values *values = NULL;
    assert_int_equal(weft_values_create(WEFT_VALUES(weft_of_i64(1), value), &values, NULL), WEFT_OK);
    return values;
}

/* Waits with and without a limit, for tensors of two streams (and devices) in a list of lists. */
static void all_data_are_there(void **state)
{
    weft_device second = {WEFT_DEVICE_CUDA, weft_device_check((weft_device){WEFT_DEVICE_CUDA, 1}, NULL) == WEFT_OK};
    for (int limit = 0; limit < 2; limit++) {
        weft_stream *stream = stream_create(gpu, NULL);
        weft_tensor *tensors[] = {later(gpu, NULL), later(gpu, stream), later(second, NULL)};
        weft_tensors last = {&tensors[1], 2};
        weft_values *values = list_of(weft_of_list(WEFT_VALUES(weft_of_tensor(tensors[0]), weft_of_tensors(last))));
        assert_true(!counts || now().pending > 0);
        if (counts)
            assert_int_equal(weft_values_wait(values, 0), WEFT_ERR_TIMEOUT);
        assert_int_equal(weft_values_wait(values, limit ? LONG_MS : WEFT_FOREVER), WEFT_OK);
        assert_int_equal(now().pending, 0);
        assert_int_equal(weft_values_wait(values, 0), WEFT_OK);
        weft_values_unref(values);
        for (int i = 0; i < 3; i++)
            weft_tensor_unref(tensors[i]);
        weft_stream_unref(stream);
    }
}

static void only_the_streams_of_the_tensors_are_waited_for(void **state)
{
    weft_stream *stream = stream_create(gpu, NULL);
    weft_tensor *mine = later(gpu, NULL), *other = later(gpu, stream); /* in this order: memory is used again */
    weft_values *values = list_of(weft_of_tensor(mine));
    assert_int_equal(weft_values_wait(values, WEFT_FOREVER), WEFT_OK);
    assert_true(!counts || now().pending > 0);
    weft_values_unref(values);
    weft_tensor_unref(mine);
    weft_tensor_unref(other);
    weft_stream_unref(stream);
}

static void tensors_of_the_cpu_need_no_wait(void **state)
{
    weft_tensor *here = tensor_empty_on(cpu, WEFT_SHAPE(SIZE), WEFT_DTYPE_FLOAT32), *busy = later(gpu, NULL);
    weft_values *values = list_of(weft_of_tensor(here));
    emulated_counts before = now();
    assert_int_equal(weft_values_wait(values, WEFT_FOREVER), WEFT_OK);
    assert_int_equal(now().pending, before.pending);
    assert_int_equal(now().synchronisations, before.synchronisations);
    weft_values_unref(values);
    weft_tensor_unref(here);
    weft_tensor_unref(busy);
}

/* A parameter of a module, whose value is replaced as a whole. */
static void the_value_of_a_parameter_is_waited_for(void **state)
{
    weft_module *model = linear_create(SIZE, SIZE, true, 1, NULL);
    assert_int_equal(weft_module_to_device(model, gpu), WEFT_OK);
    weft_values *values = list_of(weft_of_tensor(weft_module_parameters(model).items[0]));
    assert_int_equal(weft_values_wait(values, LONG_MS), WEFT_OK);
    weft_values_unref(values);
    weft_module_unref(model);
}

static _Atomic int ended; /* how many copies */

static void count_end(wfi_copies *copies, weft_status status)
{
    atomic_fetch_add(&ended, status == WEFT_OK ? 1 : 100);
}

/* Back and forth between kernels of two streams, without a wait before the end. */
static void copies_are_in_order_with_kernels(void **state)
{
    enum { ROUNDS = 20 };
    weft_stream *streams[2] = {stream_create(gpu, NULL), NULL}, *arrivals = NULL;
    wfi_storage *pinned = NULL;
    wfi_copies copies[2 * ROUNDS];
    assert_int_equal(wfi_copies_stream(0, &arrivals), WEFT_OK);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_PINNED, 0, SIZE * sizeof(float), &pinned), WEFT_OK);
    weft_tensor *x = later(gpu, NULL), *y = NULL;
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = SIZE * sizeof(float);
        wfi_stream_set(arrivals);
        y = tensor_empty_on(gpu, WEFT_SHAPE(SIZE), WEFT_DTYPE_FLOAT32);
        wfi_stream_set(NULL);
        wfi_copies_begin(&copies[2 * i], count_end);
        assert_int_equal(wfi_copies_add(&copies[2 * i], pinned, 0, x->storage, 0, size), WEFT_OK);
        wfi_copies_end(&copies[2 * i]);
        while (atomic_load(&ended) < 2 * i + 1) /* as a call does: its message leaves then */
            (void)wfi_copies_poll();
        wfi_copies_begin(&copies[2 * i + 1], count_end);
        assert_int_equal(wfi_copies_add(&copies[2 * i + 1], y->storage, 0, pinned, 0, size), WEFT_OK);
        wfi_copies_end(&copies[2 * i + 1]);
        weft_tensor_unref(x);
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = streams[i % 2]});
        x = weft_tensor_ref(weft_add_scalar(t, y, 1));
        weft_tape_close(t);
        weft_tensor_unref(y);
        while (atomic_load(&ended) < 2 * i + 2)
            (void)wfi_copies_poll();
    }
    for (int i = 0; i < SIZE; i++)
        assert_true(weft_tensor_get_f64(x, i) == 6 + ROUNDS);
    for (int i = 0; i < 2 * ROUNDS; i++)
        wfi_copies_fini(&copies[i]);
    wfi_storage_unref(pinned);
    weft_tensor_unref(x);
    weft_stream_unref(streams[0]);
}

/* A program of a simulation: copies a tensor to the host, between sleeps, and waits for another one. */
typedef struct fiber {
    uint64_t polls; /* of all fibers: the same seed gives the same number */
    int done;
} fiber;

typedef struct one_copy {
    wfi_copies copies;
    bool has_ended;
} one_copy;

static void one_ended(wfi_copies *copies, weft_status status)
{
    ((one_copy *)copies)->has_ended = status == WEFT_OK;
}

static void copy_in_a_fiber(weft_sim *sim, int rank, void *arg)
{
    fiber *f = arg;
    one_copy one = {.has_ended = false};
    wfi_parker parker;
    wfi_storage *pinned = NULL;
    weft_stream *stream = stream_create(gpu, NULL);
    weft_tensor *x = later(gpu, stream), *y = later(gpu, NULL);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_PINNED, 0, SIZE * sizeof(float), &pinned), WEFT_OK);
    wfi_parker_init(&parker);
    wfi_copies_begin(&one.copies, one_ended);
    assert_int_equal(wfi_copies_add(&one.copies, pinned, 0, x->storage, 0, SIZE * sizeof(float)), WEFT_OK);
    wfi_copies_end(&one.copies);
    for (; !one.has_ended; f->polls++) {
        (void)wfi_park(&parker, wfi_now(wfi_park_clock()) + 1000000);
        (void)wfi_copies_poll();
    }
    wfi_copies_fini(&one.copies);
    assert_true(((float *)wfi_storage_data(pinned))[SIZE - 1] == 6);
    weft_values *values = list_of(weft_of_tensor(y));
    assert_int_equal(weft_values_wait(values, LONG_MS), WEFT_OK);
    weft_values_unref(values);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    wfi_storage_unref(pinned);
    weft_stream_unref(stream);
    f->done++;
}

static uint64_t simulate(uint64_t seed)
{
    enum { FIBERS = 4 };
    fiber f = {.polls = 0};
    weft_sim *sim = NULL;
    wfi_slab_trim(0); /* what idle memory there is decides who waits for whom */
    set_seed(seed);
    assert_int_equal(weft_sim_open(&(weft_sim_options){.seed = seed}, &sim, NULL), WEFT_OK);
    for (int i = 0; i < FIBERS; i++)
        assert_int_equal(weft_sim_spawn(sim, i, copy_in_a_fiber, &f), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, LONG_MS), WEFT_OK);
    weft_sim_close(sim);
    assert_int_equal(f.done, FIBERS);
    return f.polls;
}

static void a_simulation_is_deterministic(void **state)
{
    if (!set_seed || !gpu_is_polled())
        return;
    (void)simulate(0); /* makes the copy streams */
    uint64_t sum = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t polls = simulate(seed);
        assert_int_equal(polls, simulate(seed));
        sum += polls;
    }
    assert_true(sum > 30 * 4); /* not all were done at the first poll */
}

static void wrong_arguments_are_refused(void **state)
{
    weft_values *values = list_of(weft_of_null());
    assert_int_equal(weft_values_wait(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_values_wait(values, -2), WEFT_ERR_INVALID);
    weft_values_unref(values);
}

static void a_failed_device_is_an_error(void **state)
{
    if (!fail_device)
        return;
    static const int64_t waits[] = {WEFT_FOREVER, LONG_MS, 0};
    for (int i = 0; i < 3; i++) {
        weft_tensor *tensor = later(gpu, NULL);
        weft_values *values = list_of(weft_of_tensor(tensor));
        fail_device(0);
        assert_int_equal(weft_values_wait(values, waits[i]), WEFT_ERR_SYSTEM);
        mend_device(0);
        weft_values_unref(values);
        weft_tensor_unref(tensor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_data_are_there),
        cmocka_unit_test(only_the_streams_of_the_tensors_are_waited_for),
        cmocka_unit_test(tensors_of_the_cpu_need_no_wait),
        cmocka_unit_test(the_value_of_a_parameter_is_waited_for),
        cmocka_unit_test(copies_are_in_order_with_kernels),
        cmocka_unit_test(a_simulation_is_deterministic),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_failed_device_is_an_error),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    gpu_find("emulated_gpu_counts", &counts);
    gpu_find("emulated_gpu_fail_device", &fail_device);
    gpu_find("emulated_gpu_mend_device", &mend_device);
    gpu_find("emulated_gpu_seed", &set_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
