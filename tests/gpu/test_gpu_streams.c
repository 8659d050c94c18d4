/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_streams.c - work of several streams runs in order, and errors that only a kernel sees become the tape's
 * after a wait. On the emulated GPU also: a wait for an event that is missing changes the results, and is reported.
 */
#include <weft/dlpack.h>
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "mem/mem.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include "emulated/emulated.h"

#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

/* Of the emulated GPU; NULL on a real one. */
static void (*counts)(emulated_counts *out);
static void (*forget_waits)(uint64_t after, uint64_t times);
static void (*expect_fault)(void);
static const char *(*fault)(void);

static emulated_counts now(void)
{
    emulated_counts out = {.live = 0};
    if (counts)
        counts(&out);
    return out;
}

static weft_tensor *to(weft_tensor *x, weft_device device)
{
    weft_tensor *there = tensor_to_device(x, device);
    assert_non_null(there);
    weft_tensor_unref(x);
    return there;
}

static weft_tensor *floats(weft_shape shape, double first)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((float *)weft_tensor_data(x))[i] = (float)(first + (double)i);
    return x;
}

static weft_tensor *integers(weft_shape shape, const int64_t *values)
{
    return tensor_copy_of(shape, WEFT_DTYPE_INT64, values);
}

/* ---- Errors that a kernel sees ---- */

enum { FAULTS = 9 };

/* Runs operator `which` with operands that are right, or with one that is wrong. */
static weft_tensor *run_on(weft_tape *t, weft_device device, int which, bool wrong)
{
    const int64_t bad = wrong ? 7 : 2, index_values[] = {1, 0, bad, -1 * (int64_t)wrong}, offset_values[] = {0, bad, 3};
    const int64_t first_offset[] = {wrong, 2, 3}, divisor_values[] = {3, 1, !wrong, 2};
    weft_tensor *x = weft_tape_take(t, to(floats(WEFT_SHAPE(4, 4), 1), device));
    weft_tensor *index = weft_tape_take(t, to(integers(WEFT_SHAPE(4), index_values), device));
    weft_tensor *offsets =
        weft_tape_take(t, to(integers(WEFT_SHAPE(3), which == 6 ? first_offset : offset_values), device));
    weft_tensor *divisor = weft_tape_take(t, to(integers(WEFT_SHAPE(4), divisor_values), device));
    weft_tensor *square = weft_tape_take(t, tensor_reshape(index, WEFT_SHAPE(1, 4)));
    weft_tensor *rows = weft_tape_take(t, to(floats(WEFT_SHAPE(3, 2), wrong ? -2 : 0.5), device));
    const int64_t fine_values[] = {0, 1, 2};
    weft_tensor *fine = weft_tape_take(t, to(integers(WEFT_SHAPE(3), fine_values), device));
    switch (which) {
    case 0:
        return weft_take_along_dim(t, x, 0, square);
    case 1:
        return weft_index_select(t, x, 1, index);
    case 2:
        return weft_scatter_add(t, x, 1, square, weft_narrow(t, x, 0, 0, 1));
    case 3:
        return weft_embedding(t, x, index, NULL);
    case 4:
        return weft_cross_entropy(t, x, index);
    case 5:
    case 6:
        return weft_embedding_bag(t, x, fine, offsets, NULL, NULL);
    case 7:
        return weft_categorical(t, rows);
    default:
        return weft_div(t, index, divisor);
    }
}

/* Returns the text of the error that the tape has after a wait. */
static void fail_on(weft_device device, int which, char text[256])
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = device});
    weft_tensor *y = run_on(t, device, which, true);
    if (device.kind != WEFT_DEVICE_CPU) {
        assert_non_null(y);
        assert_int_equal(weft_tape_status(t), WEFT_OK); /* nothing has waited */
    }
    assert_int_equal(weft_tape_wait(t), WEFT_ERR_INVALID);
    snprintf(text, 256, "%s", weft_error_message(weft_tape_error(t)));
    assert_null(weft_relu(t, y)); /* the tape has failed */
    weft_tape_close(t);
}

static void errors_of_kernels_have_the_words_of_the_cpu(void **state)
{
    for (int which = 0; which < FAULTS; which++) {
        char want[256], got[256];
        fail_on(cpu, which, want);
        fail_on(gpu, which, got);
        printf("%s\n", got);
        assert_string_equal(got, want);
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu}); /* the device still works */
        weft_tensor *y = run_on(t, gpu, which, false), *here = to(weft_tensor_ref(y), cpu);
        weft_error_print(weft_tape_error(t), stderr);
        assert_int_equal(weft_tape_wait(t), WEFT_OK);
        weft_tape *h = weft_tape_open(NULL);
        weft_tensor *same = run_on(h, cpu, which, false);
        for (int64_t i = 0; i < weft_tensor_numel(here); i++)
            assert_true(weft_tensor_get_f64(here, i) - weft_tensor_get_f64(same, i) < 1e-5);
        weft_tensor_unref(here);
        weft_tape_close(t);
        weft_tape_close(h);
    }
}

/* Copying any result to the CPU is a wait; of two faults the first one counts. */
static void a_copy_to_the_cpu_shows_the_first_error(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tensor *first = run_on(t, gpu, 3, true), *second = run_on(t, gpu, 7, true);
    assert_non_null(second);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    weft_tensor_unref(to(weft_tensor_ref(first), cpu));
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(weft_tape_error(t)), "embedding("));
    weft_tape_close(t);
}

static void a_parent_gets_the_error_of_its_closed_child(void **state)
{
    weft_tape *parent = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tape *child = weft_tape_open(&(weft_tape_options){.parent = parent});
    assert_non_null(run_on(child, gpu, 4, true));
    assert_int_equal(weft_tape_status(child), WEFT_OK);
    weft_tape_close(child);
    assert_int_equal(weft_tape_status(parent), WEFT_OK);
    assert_int_equal(weft_tape_wait(parent), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(weft_tape_error(parent)), "cross_entropy("));
    weft_tape_close(parent);
}

static char logged[512];
static void keep_log(weft_log_level level, const char *line, void *arg)
{
    snprintf(logged, sizeof(logged), "%s", line);
}

static void without_a_wait_the_error_is_logged(void **state)
{
    weft_logging_set_sink(keep_log, NULL);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tensor *y = weft_tensor_ref(run_on(t, gpu, 1, true));
    weft_tape_close(t);
    assert_string_equal(logged, "");
    weft_tensor_unref(to(y, cpu)); /* waits */
    t = weft_tape_open(&(weft_tape_options){.device = gpu});
    assert_int_equal(weft_tape_wait(t), WEFT_OK); /* looks for what is done, of other tapes too */
    assert_non_null(strstr(logged, "element 2 of the index is 7, not in [0, 4)"));
    weft_tape_close(t);
    weft_logging_set_sink(NULL, NULL);
}

/* A copy to the CPU has waited, and the program does not ask the tape before it closes it. */
static void an_error_that_nobody_asked_for_is_logged(void **state)
{
    logged[0] = '\0';
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tensor *y = run_on(t, gpu, 1, true);
    assert_non_null(y);
    weft_tensor_unref(to(weft_tensor_ref(y), cpu));
    weft_logging_set_sink(keep_log, NULL);
    weft_tape_close(t);
    weft_logging_set_sink(NULL, NULL);
    assert_non_null(strstr(logged, "closed without asking for its status: index_select("));
    assert_non_null(strstr(logged, "element 2 of the index is 7, not in [0, 4)"));
}

/* Each of two streams has a fault. The tape's error has both. */
static void faults_of_two_streams_are_told(void **state)
{
    weft_stream *stream = stream_create(gpu, NULL);
    weft_tape *parent = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tape *child = weft_tape_open(&(weft_tape_options){.parent = parent, .stream = stream});
    weft_tensor *of_parent = run_on(parent, gpu, 3, true), *of_child = weft_tensor_ref(run_on(child, gpu, 7, true));
    assert_non_null(of_parent);
    weft_tape_close(child); /* the parent takes over its checks */
    weft_tensor_unref(to(of_child, cpu));
    assert_int_equal(weft_tape_wait(parent), WEFT_ERR_INVALID);
    const char *text = weft_error_message(weft_tape_error(parent));
    assert_true(strstr(text, "embedding(") && strstr(text, "categorical("));
    assert_non_null(strstr(text, "; the GPU also reported: "));
    weft_tape_close(parent);
    weft_stream_unref(stream);
}

/* ---- Streams ---- */

enum { SIZE = 300, ROUNDS = 4 };

static weft_stream *new_stream(void)
{
    weft_error *error = NULL;
    weft_stream *stream = stream_create(gpu, &error);
    weft_error_print(error, stderr);
    assert_non_null(stream);
    return stream;
}

/* Two tapes of two streams compute in turn with what the other has made, and free it; returns the sum of the last. */
static double play_in_turn(weft_stream *const *streams, int start)
{
    weft_tensor *x = to(floats(WEFT_SHAPE(SIZE), start), gpu);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = streams[i % 2]});
        weft_tensor *y = weft_add(t, weft_scale(t, x, 0.5), weft_add_scalar(t, x, i));
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        weft_tensor_unref(x);
        x = weft_tensor_ref(y);
        weft_tape_close(t); /* the other stream may get the memory of the temporaries */
    }
    weft_tensor *here = to(x, cpu);
    double sum = 0;
    for (int i = 0; i < SIZE; i++)
        sum += weft_tensor_get_f64(here, i) * (i + 1);
    weft_tensor_unref(here);
    return sum;
}

static void streams_take_over_from_each_other(void **state)
{
    weft_stream *streams[2] = {new_stream(), new_stream()}, *none[2] = {NULL, NULL}, *one[2] = {streams[0], NULL};
    double want = play_in_turn(none, 0);
    uint64_t before = now().synchronisations;
    assert_true(play_in_turn(streams, 0) == want);
    assert_true(play_in_turn(one, 0) == want);                    /* and the common stream */
    assert_true(!counts || now().synchronisations == before + 4); /* each reads its result: a copy, and a wait */
    weft_stream_unref(streams[0]);
    weft_stream_unref(streams[1]);
}

static void wait_for_all(weft_stream *const *streams)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu}); /* the common stream */
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tape_close(t);
    assert_int_equal(weft_stream_wait(streams[0]), WEFT_OK);
    assert_int_equal(weft_stream_wait(streams[1]), WEFT_OK);
}

/* By its numbers, and by name: the emulated GPU reports both uses of the memory. */
static void a_missing_wait_is_noticed(void **state)
{
    if (!forget_waits)
        return; /* a GPU rarely shows it */
    weft_stream *streams[2] = {new_stream(), new_stream()}, *none[2] = {NULL, NULL};
    double want[3];
    int noticed = 0;
    for (int i = 0; i < 3; i++) /* first, because recycled memory has old numbers: they must be others */
        want[i] = play_in_turn(none, 100 * i);
    for (int i = 0; i < 3; i++) {
        expect_fault();
        forget_waits(0, UINT64_MAX);
        noticed += play_in_turn(streams, 100 * i) != want[i];
        forget_waits(0, 0);
        wait_for_all(streams);
        const char *named = fault();
        assert_non_null(named);
        assert_non_null(strstr(named, "a race on the "));
        assert_non_null(strstr(named, "no event or wait orders them"));
    }
    assert_int_equal(noticed, 3);
    weft_stream_unref(streams[0]);
    weft_stream_unref(streams[1]);
}

/* The kernels are named too: one writes what the other reads. */
static void a_race_names_both_kernels(void **state)
{
    if (!forget_waits)
        return;
    weft_stream *stream = new_stream();
    weft_tensor *x = to(floats(WEFT_SHAPE(SIZE), 1), gpu);
    wait_for_all((weft_stream *[]){stream, stream});
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tape *u = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = stream});
    expect_fault();
    forget_waits(0, UINT64_MAX);
    weft_tensor *y = weft_relu(t, x);
    assert_non_null(weft_scale(u, y, 2));
    forget_waits(0, 0);
    wait_for_all((weft_stream *[]){stream, stream});
    const char *named = fault(), *first = !named ? NULL : strstr(named, "weft_map_f32 (work ");
    assert_non_null(first);
    assert_non_null(strstr(first, ", stream 1 of device 0) writes bytes "));
    const char *second = strstr(first + 1, "weft_map_f32 (work ");
    assert_non_null(second);
    assert_non_null(strstr(second, ") reads bytes 0 to "));
    weft_tape_close(u);
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_stream_unref(stream);
}

/* Memory that a stream still reads goes to another stream, which writes it: the write waits. */
static void freed_memory_is_not_overwritten_while_a_stream_reads_it(void **state)
{
    weft_stream *reader = new_stream();
    weft_tensor *x = to(floats(WEFT_SHAPE(SIZE), 0), gpu);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = reader});
    weft_tensor *y = weft_tensor_ref(weft_scale(t, x, 2));
    weft_tape_close(t);
    weft_tensor_unref(x);
    weft_tensor *other = to(floats(WEFT_SHAPE(SIZE), 1000), gpu); /* takes over the memory of x, on the common stream */
    weft_tensor *other_here = to(weft_tensor_ref(other), cpu), *here = to(y, cpu);
    for (int i = 0; i < SIZE; i++) {
        assert_true(weft_tensor_get_f64(here, i) == 2 * i);
        assert_true(weft_tensor_get_f64(other_here, i) == 1000 + i);
    }
    weft_tensor_unref(other);
    weft_tensor_unref(other_here);
    weft_tensor_unref(here);
    weft_stream_unref(reader);
}

/* y = 2 x on a stream, which has not run. */
static weft_tensor *double_later(weft_stream *stream, weft_tensor *x)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = stream});
    weft_tensor *y = weft_tensor_ref(weft_scale(t, x, 2));
    weft_tape_close(t);
    return y;
}

static void is_doubled(weft_tensor *y)
{
    weft_tensor *here = to(y, cpu);
    for (int i = 0; i < SIZE; i++)
        assert_true(weft_tensor_get_f64(here, i) == 2 * i);
    weft_tensor_unref(here);
}

/* As an allocator does that has given the memory to another tensor: writes it, outside of weft's order of work. */
static void reuse_memory(weft_dlpack *lent)
{
    weft_tensor *owner = lent->manager;
    weft_tensor_fill(owner, -99);
    assert_true(weft_tensor_get_f64(owner, 0) == -99); /* has run */
}

static void borrowed_memory_is_not_given_back_while_a_stream_reads_it(void **state)
{
    weft_stream *reader = new_stream();
    weft_tensor *owner = to(floats(WEFT_SHAPE(SIZE), 0), gpu), *borrowed = NULL;
    weft_dlpack *own = NULL;
    assert_int_equal(weft_tensor_to_dlpack(owner, 0, &own, NULL), WEFT_OK);
    weft_dlpack other = *own;
    other.manager = owner;
    other.deleter = reuse_memory;
    assert_int_equal(weft_tensor_from_dlpack(&other, 0, &borrowed, NULL), WEFT_OK);
    weft_tensor *y = double_later(reader, borrowed);
    weft_tensor_unref(borrowed);
    assert_true(weft_tensor_get_f64(owner, 0) == -99); /* the deleter has run */
    is_doubled(y);
    own->deleter(own);
    weft_tensor_unref(owner);
    weft_stream_unref(reader);
}

static void memory_is_not_lent_while_a_stream_reads_it(void **state)
{
    weft_stream *reader = new_stream();
    weft_tensor *x = to(floats(WEFT_SHAPE(SIZE), 0), gpu), *borrowed = NULL, *y = double_later(reader, x);
    weft_dlpack *lent = NULL;
    assert_int_equal(weft_tensor_to_dlpack(x, 0, &lent, NULL), WEFT_OK);
    assert_int_equal(weft_tensor_from_dlpack(lent, 0, &borrowed, NULL), WEFT_OK);
    weft_tensor_fill(borrowed, -99); /* as another library, which knows nothing of `reader` */
    assert_true(weft_tensor_get_f64(borrowed, 0) == -99);
    is_doubled(y);
    weft_tensor_unref(borrowed);
    weft_tensor_unref(x);
    weft_stream_unref(reader);
}

static void a_copy_to_the_cpu_waits_for_one_stream(void **state)
{
    weft_stream *streams[2] = {new_stream(), new_stream()};
    weft_tensor *y[2], *x = to(floats(WEFT_SHAPE(SIZE), 0), gpu);
    for (int i = 0; i < 2; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu, .stream = streams[i]});
        y[i] = weft_tensor_ref(weft_scale(t, x, i + 2));
        weft_tape_close(t);
    }
    weft_tensor *here = to(weft_tensor_ref(y[0]), cpu);
    assert_true(weft_tensor_get_f64(here, 7) == 14);
    assert_true(!counts || now().pending > 0); /* of the other stream */
    assert_int_equal(weft_stream_wait(streams[1]), WEFT_OK);
    assert_true(!counts || now().pending == 0);
    weft_tensor *all[] = {here, x, y[0], y[1]};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
    weft_stream_unref(streams[0]);
    weft_stream_unref(streams[1]);
}

/* From one GPU to the other and back, and the source is written again at once; no copy waits for a GPU. */
static double play_across(weft_device second)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    weft_tape *u = weft_tape_open(&(weft_tape_options){.device = second});
    weft_tensor *x = to(floats(WEFT_SHAPE(SIZE), 1), gpu), *y = weft_scale(t, x, 2);
    emulated_counts before = now();
    weft_tensor *there = tensor_to_device(y, second);
    weft_tensor_fill(y, 100);
    weft_tensor *z = weft_scale(u, there, 3), *back = tensor_to_device(z, gpu);
    weft_tensor_fill(z, 100);
    weft_tensor *last = weft_scale(t, back, 5);
    emulated_counts after = now();
    assert_int_equal(after.synchronisations, before.synchronisations);
    assert_int_equal(after.through_host, before.through_host);
    weft_tensor *here = to(weft_tensor_ref(last), cpu);
    double got = weft_tensor_get_f64(here, SIZE - 1);
    weft_tensor *all[] = {x, there, back, here};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
    assert_int_equal(weft_tape_wait(u), WEFT_OK);
    weft_tape_close(t);
    weft_tape_close(u);
    return got;
}

static void copies_between_devices_are_in_order(void **state)
{
    const weft_device second = {WEFT_DEVICE_CUDA, 1};
    if (weft_device_check(second, NULL) != WEFT_OK)
        return;
    assert_true(play_across(second) == 30 * SIZE);
    for (uint64_t wait = 0; forget_waits && wait < 4; wait++) { /* two of each copy */
        expect_fault();
        forget_waits(wait, 1);
        (void)play_across(second);
        forget_waits(0, 0);
        const char *named = fault();
        if (wait % 2 == 1 && !(named && strstr(named, "a copy between devices")))
            fail_msg("without wait %d the fault is '%s'", (int)wait, named ? named : "none");
    }
}

/* A model trains on a stream as on the common one: parameters, gradients and the optimizer's state cross or stay. */
static double train(weft_stream *stream, bool changes)
{
    weft_module *parts[] = {linear_create(6, 5, false, 1, NULL), tanh_create(), linear_create(5, 3, false, 2, NULL)};
    weft_module *model = sequential_create(parts, 3, NULL);
    assert_int_equal(weft_module_to_device(model, gpu), WEFT_OK);
    weft_optimizer *adam =
        optimizer_create(weft_module_parameters(model), &(weft_optimizer_spec){.type = &weft_adam_type}, NULL);
    const int64_t classes[] = {0, 2, 1, 1};
    weft_tensor *x = to(floats(WEFT_SHAPE(4, 6), -12), gpu), *target = to(integers(WEFT_SHAPE(4), classes), gpu);
    double loss = 0;
    for (int step = 0; step < 6; step++) {
        weft_tape *t = weft_tape_open(
            &(weft_tape_options){.record = true, .device = gpu, .stream = changes && step % 2 ? NULL : stream});
        weft_tensor *y = weft_cross_entropy(t, weft_module_forward(t, model, x), target);
        weft_backward(t, y);
        assert_int_equal(weft_tape_status(t), WEFT_OK);
        assert_int_equal(weft_optimizer_apply(adam, weft_tape_gradients(t, weft_optimizer_parameters(adam))), WEFT_OK);
        weft_tensor *here = step < 5 ? NULL : to(weft_tensor_ref(y), cpu);
        loss = !here ? 0 : weft_tensor_get_f64(here, 0);
        weft_tensor_unref(here);
        weft_tape_close(t);
    }
    weft_optimizer_unref(adam);
    weft_module_unref(model);
    weft_tensor_unref(x);
    weft_tensor_unref(target);
    return loss;
}

static void a_model_trains_on_a_stream(void **state)
{
    weft_stream *stream = new_stream();
    double want = train(NULL, false);
    assert_true(train(stream, false) == want);
    assert_true(train(stream, true) == want);
    weft_stream_unref(stream);
}

static void streams_are_checked(void **state)
{
    weft_error *error = NULL;
    assert_null(stream_create(cpu, &error));
    assert_non_null(strstr(weft_error_message(error), "only CUDA devices have streams"));
    weft_error_unref(error);
    weft_stream *mine = new_stream(), *same = stream_wrap(gpu, weft_stream_cuda(mine), NULL);
    assert_ptr_equal(weft_stream_cuda(same), weft_stream_cuda(mine));
    assert_ptr_equal(weft_stream_ref(mine), mine);
    weft_stream_unref(mine);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.stream = mine}); /* the tape computes on the CPU */
    assert_int_equal(weft_tape_status(t), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(weft_tape_error(t)),
                        "the tape's stream is on cuda:0, and the tape computes on the CPU");
    weft_tape_close(t);
    weft_stream_unref(same);
    weft_stream_unref(mine);
    weft_stream_unref(NULL);
    weft_stream *all[60] = {NULL};
    int made = 0;
    while (made < 60 && (all[made] = stream_create(gpu, &error)))
        made++;
    assert_int_equal(made, 55);
    assert_string_equal(weft_error_message(error), "cuda:0 has 55 streams already: drop some first");
    weft_error_unref(error);
    weft_stream_unref(all[--made]);
    weft_stream *legacy = stream_wrap(gpu, NULL, NULL);
    assert_null(weft_stream_cuda(legacy));
    weft_stream_unref(legacy);
    assert_null(stream_wrap(gpu, (void *)2, &error)); /* CU_STREAM_PER_THREAD */
    assert_non_null(strstr(weft_error_message(error), "the per-thread default stream"));
    weft_error_unref(error);
    weft_stream *other = stream_create((weft_device){WEFT_DEVICE_CUDA, 1}, NULL); /* NULL: there is one GPU */
    if (other)
        assert_null(stream_wrap(gpu, weft_stream_cuda(other), NULL));
    weft_stream_unref(other);
    for (int i = 0; i < made; i++)
        weft_stream_unref(all[i]);
}

/* The parent is on the CPU, or on the other GPU with a stream of its own: the child takes neither device nor stream. */
static void a_child_computes_on_its_own_device(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        weft_stream *stream = NULL;
        weft_device outside = i ? (weft_device){WEFT_DEVICE_CUDA, 1} : cpu;
        if (i && weft_device_check(outside, NULL))
            break;
        if (i)
            assert_int_equal(weft_stream_create(outside, &stream, NULL), WEFT_OK);
        weft_tape *parent = weft_tape_open(&(weft_tape_options){.record = true, .device = outside, .stream = stream});
        weft_tape *child = weft_tape_open(&(weft_tape_options){.record = true, .parent = parent, .device = gpu});
        weft_tape *like = weft_tape_open(&(weft_tape_options){.record = true, .parent = child});
        weft_tensor *x = to(floats(WEFT_SHAPE(3), 1), gpu);
        weft_tensor_set_requires_grad(x, true);
        weft_backward(parent, weft_sum(like, weft_mul(child, x, x)));
        assert_int_equal(weft_tape_status(parent), WEFT_OK);
        assert_int_equal(weft_tape_status(like), WEFT_OK);
        assert_float_equal(weft_tensor_get_f64(weft_tape_grad(parent, x), 2), 6, 0);
        weft_tape_close(like);
        weft_tape_close(child);
        weft_tape_close(parent);
        weft_stream_unref(stream);
        weft_tensor_unref(x);
    }
}

static void no_memory_is_left(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tape_close(t);
    wfi_slab_trim(0);
    assert_int_equal(now().live, 1); /* the page-locked pieces of copies to the device, kept until the end */
    assert_int_equal(now().contexts, 0);
    assert_int_equal(now().pending, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_kernels_have_the_words_of_the_cpu),
        cmocka_unit_test(a_copy_to_the_cpu_shows_the_first_error),
        cmocka_unit_test(a_parent_gets_the_error_of_its_closed_child),
        cmocka_unit_test(without_a_wait_the_error_is_logged),
        cmocka_unit_test(an_error_that_nobody_asked_for_is_logged),
        cmocka_unit_test(faults_of_two_streams_are_told),
        cmocka_unit_test(streams_take_over_from_each_other),
        cmocka_unit_test(a_missing_wait_is_noticed),
        cmocka_unit_test(a_race_names_both_kernels),
        cmocka_unit_test(freed_memory_is_not_overwritten_while_a_stream_reads_it),
        cmocka_unit_test(borrowed_memory_is_not_given_back_while_a_stream_reads_it),
        cmocka_unit_test(memory_is_not_lent_while_a_stream_reads_it),
        cmocka_unit_test(a_copy_to_the_cpu_waits_for_one_stream),
        cmocka_unit_test(copies_between_devices_are_in_order),
        cmocka_unit_test(a_model_trains_on_a_stream),
        cmocka_unit_test(streams_are_checked),
        cmocka_unit_test(a_child_computes_on_its_own_device),
        cmocka_unit_test(no_memory_is_left),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    gpu_find("emulated_gpu_counts", &counts);
    gpu_find("emulated_gpu_forget_waits", &forget_waits);
    gpu_find("emulated_gpu_expect_fault", &expect_fault);
    gpu_find("emulated_gpu_fault", &fault);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
