/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_optim.c - steps of optimizers on a GPU: few launches for many parameters, with the bits of the CPU; sparse
 * gradients of many rows; rows outside of their parameter. On the emulated GPU also: how many launches there are.
 */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "mem/mem.h"
#include "tensor/cell.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include "emulated/emulated.h"
#include "prng.h"

#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

/* Of the emulated GPU; NULL on a real one. */
static void (*counts)(emulated_counts *out);
static void (*fail_next)(emulated_call call, uint64_t after, uint64_t times);

static emulated_counts now(void)
{
    emulated_counts out = {.live = 0};
    if (counts)
        counts(&out);
    return out;
}

/* ---- Parameters and gradients ---- */

enum { MANY = 400 };

typedef struct set {
    size_t count;
    weft_tensor *parameters[MANY], *gradients[MANY];
    weft_module *module; /* has the parameters; NULL: they are plain tensors */
} set;

static weft_tensor *moved(weft_tensor *x, weft_device device)
{
    weft_tensor *there = tensor_to_device(x, device);
    assert_non_null(there);
    weft_tensor_unref(x);
    return there;
}

/* Numbers whose squares are rounded when they are added, so that the order of a sum shows. */
static weft_tensor *fractions(weft_shape shape, weft_dtype dtype, int first, weft_device device)
{
    weft_tensor *x = tensor_empty(shape, dtype);
    for (int64_t j = 0; j < weft_tensor_numel(x); j++) {
        int k = (int)((j * 37 + first * 11) % 101) - 50;
        if (dtype == WEFT_DTYPE_FLOAT64)
            ((double *)weft_tensor_data(x))[j] = k / 49.0;
        else
            ((float *)weft_tensor_data(x))[j] = (float)k / 49.0f;
    }
    return moved(x, device);
}

/* Sizes around those of a thread block, of a piece of work and of a part of a sum. */
static int64_t size_of(size_t i)
{
    static const int64_t sizes[] = {1, 0, 7, 255, 257, 1024, 1025, 3, 2049, 4097};
    return sizes[i % 10];
}

static weft_dtype dtype_of(size_t i, bool mixed)
{
    return mixed && i % 3 == 1 ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32;
}

static weft_tensor *pass_on(weft_tape *t, weft_module *self, weft_tensor *x)
{
    return x;
}

static void make_set(set *s, size_t count, bool mixed, bool in_module, weft_device device)
{
    static const weft_module_type holder = {.name = "holder", .forward = pass_on};
    *s = (set){.count = count, .module = in_module ? module_create(&holder, NULL, NULL) : NULL};
    for (size_t i = 0; i < count; i++) {
        const weft_shape shape = WEFT_SHAPE(size_of(i));
        s->parameters[i] = fractions(shape, dtype_of(i, mixed), (int)i + 5, device);
        s->gradients[i] = fractions(shape, dtype_of(i, mixed), (int)i, device);
        char name[24];
        snprintf(name, sizeof(name), "p%zu", i);
        if (in_module)
            weft_module_add_parameter(s->module, name, weft_tensor_ref(s->parameters[i]));
    }
}

static void drop_set(set *s)
{
    for (size_t i = 0; i < s->count; i++) {
        weft_tensor_unref(s->parameters[i]);
        weft_tensor_unref(s->gradients[i]);
    }
    weft_module_unref(s->module);
    wfi_slab_trim(0); /* each allocation makes all further work on the emulated GPU slower */
}

/* One step. `without`: of the parameters, each whose number has this rest modulo 7 has no gradient. */
static weft_status step_set(const set *s, weft_optimizer *optimizer, size_t without)
{
    weft_gradient lent[MANY] = {{NULL, NULL}};
    for (size_t i = 0; i < s->count; i++)
        lent[i].values = i % 7 == without ? NULL : s->gradients[i];
    return weft_optimizer_apply(optimizer, (weft_gradients){lent, s->count});
}

static void assert_same_bits(weft_tensor *a, weft_tensor *b)
{
    weft_tensor *x = moved(tensor_clone(a), cpu), *y = moved(tensor_clone(b), cpu);
    size_t size = (size_t)weft_tensor_numel(x) * (weft_tensor_dtype(x) == WEFT_DTYPE_FLOAT64 ? 8 : 4);
    assert_int_equal(weft_tensor_numel(x), weft_tensor_numel(y));
    if (size > 0)
        assert_memory_equal(weft_tensor_data(x), weft_tensor_data(y), size);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

static weft_optimizer *make_optimizer(weft_tensors parameters, const weft_optimizer_spec *spec)
{
    weft_error *error = NULL;
    weft_optimizer *made = optimizer_create(parameters, spec, &error);
    weft_error_print(error, stderr);
    assert_non_null(made);
    return made;
}

/* ---- Dense steps ---- */

static const weft_optimizer_spec specs[] = {
    {.type = &weft_sgd_type, .lr = 0.05},
    {.type = &weft_sgd_type, .lr = 0.05, .sgd = {.momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}},
    {.type = &weft_adam_type, .lr = 0.01},
    {.type = &weft_adam_type, .lr = 0.01, .adam = {.amsgrad = true}},
    {.type = &weft_adamw_type, .lr = 0.01},
    {.type = &weft_adagrad_type, .lr = 0.05},
    {.type = &weft_rmsprop_type, .lr = 0.005},
    {.type = &weft_rmsprop_type, .lr = 0.005, .rmsprop = {.momentum = 0.5}},
    {.type = &weft_rmsprop_type, .lr = 0.005, .rmsprop = {.centered = true}},
    {.type = &weft_rmsprop_type, .lr = 0.005, .rmsprop = {.momentum = 0.5, .centered = true}},
    {.type = &weft_rprop_type},
    {.type = &weft_adadelta_type},
    {.type = &weft_adamax_type, .lr = 0.01},
};
enum { SPECS = sizeof(specs) / sizeof(specs[0]), ADAM = 2, PLAIN_SGD = 0 };

/* Three steps, of which one or two may lack a gradient: then parameters have different numbers of steps. A second group
 * has another rate. */
static void train_set(set *s, size_t count, weft_optimizer_spec spec, weft_update update, weft_device device)
{
    size_t first = count * 2 / 3;
    make_set(s, count, true, update == WEFT_UPDATE_BESIDE, device);
    spec.update = update;
    weft_optimizer *optimizer = make_optimizer((weft_tensors){s->parameters, first}, &spec);
    spec.lr = spec.lr == 0 ? 0.003 : 2 * spec.lr;
    assert_int_equal(
        weft_optimizer_add_group(optimizer, (weft_tensors){s->parameters + first, count - first}, &spec, NULL),
        WEFT_OK);
    for (size_t step = 0; step < 3; step++)
        assert_int_equal(step_set(s, optimizer, step), WEFT_OK);
    weft_optimizer_unref(optimizer);
}

static void compare_training(size_t count, const weft_optimizer_spec *spec, weft_update update)
{
    static set here, there;
    train_set(&here, count, *spec, update, cpu);
    train_set(&there, count, *spec, update, gpu);
    for (size_t k = 0; k < count; k++)
        assert_same_bits(here.parameters[k], there.parameters[k]);
    drop_set(&here);
    drop_set(&there);
}

static void steps_of_many_parameters_have_the_bits_of_the_cpu(void **state)
{
    for (int i = 0; i < SPECS; i++)
        compare_training(20, &specs[i], i % 2 ? WEFT_UPDATE_BESIDE : WEFT_UPDATE_IN_PLACE);
    compare_training(70, &specs[ADAM], WEFT_UPDATE_BESIDE);
}

/* The first group fills a launch, so that the numbers of the second one have no place in it. */
static void a_full_launch_takes_no_other_numbers(void **state)
{
    enum { COUNT = 75, FIRST = 68 }; /* 61 of the first 68 are not empty */
    static set here, there;
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        set *s = on_gpu ? &there : &here;
        make_set(s, COUNT, false, false, on_gpu ? gpu : cpu);
        weft_optimizer *adam = make_optimizer((weft_tensors){s->parameters, FIRST}, &specs[ADAM]);
        weft_optimizer_spec faster = specs[ADAM];
        faster.lr = 0.5;
        const weft_tensors rest = {s->parameters + FIRST, COUNT - FIRST};
        assert_int_equal(weft_optimizer_add_group(adam, rest, &faster, NULL), WEFT_OK);
        assert_int_equal(step_set(s, adam, SIZE_MAX), WEFT_OK);
        weft_optimizer_unref(adam);
    }
    for (size_t k = FIRST - 10; k < COUNT; k++)
        assert_same_bits(here.parameters[k], there.parameters[k]);
    drop_set(&here);
    drop_set(&there);
}

/* CTest runs this test also with an allocation for each tensor, in which accesses outside are noticed. */
static void exact_steps_use_only_their_memory(void **state)
{
    static set s;
    weft_optimizer_spec spec = specs[3];
    spec.max_norm = 0.5;
    make_set(&s, 10, true, false, gpu);
    weft_optimizer *amsgrad = make_optimizer((weft_tensors){s.parameters, s.count}, &spec);
    for (int step = 0; step < 2; step++)
        assert_int_equal(step_set(&s, amsgrad, SIZE_MAX), WEFT_OK);
    assert_int_equal(weft_optimizer_wait(amsgrad, NULL), WEFT_OK);
    weft_optimizer_unref(amsgrad);
    drop_set(&s);
}

/* The launches of the second step. */
static uint64_t launches_of(size_t count, bool mixed, weft_optimizer_spec spec, weft_update update)
{
    static set s;
    spec.update = update;
    make_set(&s, count, mixed, update != WEFT_UPDATE_IN_PLACE, gpu);
    weft_optimizer *optimizer = make_optimizer((weft_tensors){s.parameters, count}, &spec);
    assert_int_equal(step_set(&s, optimizer, SIZE_MAX), WEFT_OK);
    emulated_counts before = now();
    assert_int_equal(step_set(&s, optimizer, SIZE_MAX), WEFT_OK);
    emulated_counts after = now();
    assert_int_equal(after.synchronisations, before.synchronisations);
    weft_optimizer_unref(optimizer);
    drop_set(&s);
    return after.calls[EMULATED_LAUNCH] - before.calls[EMULATED_LAUNCH];
}

static void a_step_takes_few_launches(void **state)
{
    weft_optimizer_spec clipped = specs[ADAM];
    clipped.max_norm = 0.5;
    if (!counts)
        return; /* a GPU does not tell */
    for (int i = 0; i < SPECS; i++)
        assert_int_equal(launches_of(60, false, specs[i], i % 2 ? WEFT_UPDATE_BESIDE : WEFT_UPDATE_IN_PLACE), 1);
    assert_int_equal(launches_of(60, false, specs[ADAM], WEFT_UPDATE_DEFAULT), 1);
    assert_int_equal(launches_of(60, false, clipped, WEFT_UPDATE_IN_PLACE), 3);    /* squares, factor, step */
    assert_int_equal(launches_of(60, true, specs[ADAM], WEFT_UPDATE_IN_PLACE), 2); /* one for each dtype */
    /* Of 69 parameters 62 are not empty. */
    assert_int_equal(launches_of(69, false, specs[ADAM], WEFT_UPDATE_IN_PLACE), 1);
    assert_int_equal(launches_of(70, false, specs[ADAM], WEFT_UPDATE_IN_PLACE), 2);
    /* 360 of 400 parameters, 62 a launch; 400 sums of squares, 63 a launch. */
    assert_int_equal(launches_of(MANY, false, specs[ADAM], WEFT_UPDATE_BESIDE), 6);
    assert_int_equal(launches_of(MANY, false, clipped, WEFT_UPDATE_BESIDE), 6 + 7 + 1);
}

/* Norms of gradients of these sizes that were added up by one launch for each gradient, at commit 66f84b54. */
static void norms_have_the_bits_of_one_launch_for_each_gradient(void **state)
{
    static const struct {
        size_t count;
        bool mixed;
        double waiting, clipping;
    } cases[] = {
        {60, false, 0x1.1025a81fe0537p+7, 0x1.1025a81fe0537p+7},
        {60, true, 0x1.1025a81a3c178p+7, 0x1.1025a81a3c178p+7},
        {300, true, 0x1.30492e7d07788p+8, 0x1.30492e7d07789p+8},
    };
    for (int i = 0; i < 3; i++) {
        static set s;
        weft_gradient lent[MANY] = {{NULL, NULL}};
        make_set(&s, cases[i].count, cases[i].mixed, false, gpu);
        for (size_t k = 0; k < s.count; k++)
            lent[k].values = s.gradients[k];
        double norm = 0;
        emulated_counts before = now();
        assert_int_equal(weft_gradients_norm((weft_gradients){lent, s.count}, &norm), WEFT_OK);
        emulated_counts after = now();
        assert_true(after.calls[EMULATED_LAUNCH] - before.calls[EMULATED_LAUNCH] <= 2 + s.count / 63);
        printf("norm of %zu gradients: %llu launches, %llu waits\n", s.count,
               (unsigned long long)(after.calls[EMULATED_LAUNCH] - before.calls[EMULATED_LAUNCH]),
               (unsigned long long)(after.synchronisations - before.synchronisations));
        assert_true(after.synchronisations - before.synchronisations <= 2); /* one copy, and its wait */
        assert_true(norm == cases[i].waiting);
        weft_optimizer_spec spec = specs[PLAIN_SGD];
        spec.max_norm = 0.5;
        weft_optimizer *sgd = make_optimizer((weft_tensors){s.parameters, s.count}, &spec);
        assert_int_equal(step_set(&s, sgd, SIZE_MAX), WEFT_OK);
        assert_true(weft_optimizer_norm(sgd) == cases[i].clipping);
        weft_optimizer_unref(sgd);
        drop_set(&s);
    }
}

/* Parameters that are views of the same memory are stepped one after the other, as on the CPU. */
static weft_tensor *step_views(weft_device device)
{
    enum { VIEWS = 3, LENGTH = 300 };
    static const int64_t begins[VIEWS] = {0, 200, 600};
    weft_tensor *whole = fractions(WEFT_SHAPE(900), WEFT_DTYPE_FLOAT32, 3, device), *views[VIEWS], *gradients[VIEWS];
    for (int i = 0; i < VIEWS; i++) {
        views[i] = tensor_narrow(whole, 0, begins[i], LENGTH);
        gradients[i] = fractions(WEFT_SHAPE(LENGTH), WEFT_DTYPE_FLOAT32, i, device);
    }
    weft_optimizer_spec spec = specs[1];
    weft_optimizer *sgd = make_optimizer((weft_tensors){views, VIEWS}, &spec);
    const weft_gradient lent[] = {{gradients[0], NULL}, {gradients[1], NULL}, {gradients[2], NULL}};
    for (int step = 0; step < 2; step++)
        assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){lent, VIEWS}), WEFT_OK);
    /* A gradient that an earlier step of the same call has written, and one that a later step writes. */
    const weft_gradient crossed[] = {{gradients[0], NULL}, {NULL, NULL}, {views[0], NULL}};
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){crossed, VIEWS}), WEFT_OK);
    const weft_gradient other_way[] = {{views[2], NULL}, {NULL, NULL}, {gradients[2], NULL}};
    assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){other_way, VIEWS}), WEFT_OK);
    weft_optimizer_unref(sgd);
    for (int i = 0; i < VIEWS; i++) {
        weft_tensor_unref(views[i]);
        weft_tensor_unref(gradients[i]);
    }
    return whole;
}

static void parameters_may_share_memory(void **state)
{
    weft_tensor *want = step_views(cpu), *got = step_views(gpu);
    assert_same_bits(want, got);
    weft_tensor_unref(want);
    weft_tensor_unref(got);
}

typedef struct reader {
    pthread_t thread;
    const weft_tensor *first, *second;
    sem_t holds;
} reader;

static void *read_both(void *arg)
{
    reader *r = arg;
    (void)wfi_tensor_hold(r->first);
    sem_post(&r->holds);
    (void)wfi_tensor_hold(r->second); /* the step may have it: it must not wait for the first one meanwhile */
    wfi_tensor_release(r->second);
    wfi_tensor_release(r->first);
    return NULL;
}

static void a_step_waits_for_a_reader_with_no_parameter_locked(void **state)
{
    for (int beside = 0; beside < 2; beside++) {
        static set here, there;
        weft_optimizer_spec spec = specs[ADAM];
        spec.update = beside ? WEFT_UPDATE_BESIDE : WEFT_UPDATE_DEFAULT;
        make_set(&here, 30, false, true, cpu);
        make_set(&there, 30, false, true, gpu);
        weft_optimizer *want = make_optimizer((weft_tensors){here.parameters, 30}, &spec),
                       *got = make_optimizer((weft_tensors){there.parameters, 30}, &spec);
        assert_int_equal(step_set(&here, want, SIZE_MAX), WEFT_OK);
        reader r = {.first = there.parameters[20], .second = there.parameters[4]};
        assert_int_equal(sem_init(&r.holds, 0, 0), 0);
        assert_int_equal(pthread_create(&r.thread, NULL, read_both, &r), 0);
        sem_wait(&r.holds);
        assert_int_equal(step_set(&there, got, SIZE_MAX), WEFT_OK);
        pthread_join(r.thread, NULL);
        sem_destroy(&r.holds);
        for (size_t k = 0; k < 30; k++)
            assert_same_bits(here.parameters[k], there.parameters[k]);
        weft_optimizer_unref(want);
        weft_optimizer_unref(got);
        drop_set(&here);
        drop_set(&there);
    }
}

static void a_launch_that_fails_is_no_step(void **state)
{
    enum { COUNT = 71 }; /* two launches */
    static set s, same;
    if (!fail_next)
        return; /* a GPU does not fail on demand */
    make_set(&s, COUNT, false, true, gpu);
    make_set(&same, COUNT, false, true, gpu);
    weft_optimizer *adam = make_optimizer((weft_tensors){s.parameters, COUNT}, &specs[ADAM]);
    assert_int_equal(step_set(&s, adam, SIZE_MAX), WEFT_OK);
    assert_int_equal(weft_optimizer_state_count(adam), 3 * COUNT);
    fail_next(EMULATED_LAUNCH, 0, 1);
    assert_int_not_equal(step_set(&s, adam, SIZE_MAX), WEFT_OK);
    weft_optimizer_state item;
    assert_int_equal(weft_optimizer_ref_state(adam, 0, &item), WEFT_OK);
    assert_true(weft_tensor_get_f64(item.tensor, 0) == 1); /* the steps of parameter 0 */
    weft_tensor_unref(item.tensor);
    assert_int_equal(step_set(&s, adam, SIZE_MAX), WEFT_OK);
    weft_optimizer *other = make_optimizer((weft_tensors){same.parameters, COUNT}, &specs[ADAM]);
    for (int step = 0; step < 2; step++)
        assert_int_equal(step_set(&same, other, SIZE_MAX), WEFT_OK);
    for (size_t k = 0; k < COUNT; k += 7)
        assert_same_bits(s.parameters[k], same.parameters[k]);
    weft_optimizer_unref(adam);
    weft_optimizer_unref(other);
    drop_set(&s);
    drop_set(&same);
}

/* ---- Sparse steps ---- */

enum { WIDTH = 3 };

static weft_tensor *rows_below(int64_t n, int64_t below, weft_device device)
{
    weft_tensor *rows = tensor_empty(WEFT_SHAPE(n), WEFT_DTYPE_INT64);
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)weft_tensor_data(rows))[i] = (int64_t)prng_below(&x, (uint64_t)below);
    return moved(rows, device);
}

static weft_tensor *step_by_rows(const weft_optimizer_spec *spec, int64_t n, int64_t below, weft_stream *stream,
                                 weft_device device, uint64_t *launches)
{
    weft_tensor *p = fractions(WEFT_SHAPE(below, WIDTH), WEFT_DTYPE_FLOAT32, 1, device);
    weft_tensor *values = fractions(WEFT_SHAPE(n, WIDTH), WEFT_DTYPE_FLOAT32, 2, device);
    weft_tensor *rows = rows_below(n, below, device);
    weft_optimizer *optimizer = make_optimizer((weft_tensors){&p, 1}, spec);
    for (int step = 0; step < 2; step++) {
        emulated_counts before = now();
        weft_tape *t = weft_tape_open(&(weft_tape_options){.device = device, .stream = stream});
        weft_tensor *made = !stream ? values : weft_scale(t, values, 1); /* the stream that the step runs on */
        assert_int_equal(weft_optimizer_apply(optimizer, (weft_gradients){&(weft_gradient){made, rows}, 1}), WEFT_OK);
        weft_tape_close(t);
        *launches = now().calls[EMULATED_LAUNCH] - before.calls[EMULATED_LAUNCH];
    }
    assert_int_equal(weft_optimizer_wait(optimizer, NULL), WEFT_OK);
    weft_optimizer_unref(optimizer);
    weft_tensor_unref(values);
    weft_tensor_unref(rows);
    return p;
}

/* With 50,000 rows, comparing each with all others would take longer than the test may. */
static void sparse_steps_sort_their_rows(void **state)
{
    static const struct {
        int64_t n, below;
        uint64_t launches; /* a check, sorted tiles of 256, merged in pairs, and the step */
    } cases[] = {{1, 5, 3},   {2, 1, 3},   {255, 40, 3},    {256, 1000, 3}, {257, 1000, 4},
                 {512, 9, 4}, {513, 9, 5}, {1000, 3000, 5}, {5000, 100, 8}, {50000, 20000, 11}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t launches = 0;
        const weft_optimizer_spec *spec = &specs[i % 2 ? ADAM : PLAIN_SGD];
        weft_tensor *want = step_by_rows(spec, cases[i].n, cases[i].below, NULL, cpu, &launches);
        weft_tensor *got = step_by_rows(spec, cases[i].n, cases[i].below, NULL, gpu, &launches);
        assert_same_bits(want, got);
        assert_true(!counts || launches == cases[i].launches);
        weft_tensor_unref(want);
        weft_tensor_unref(got);
    }
}

static void sparse_steps_run_on_the_stream_of_their_gradients(void **state)
{
    uint64_t launches = 0;
    weft_stream *stream = stream_create(gpu, NULL);
    weft_tensor *want = step_by_rows(&specs[ADAM], 600, 50, NULL, cpu, &launches);
    weft_tensor *got = step_by_rows(&specs[ADAM], 600, 50, stream, gpu, &launches);
    assert_same_bits(want, got);
    weft_tensor_unref(want);
    weft_tensor_unref(got);
    weft_stream_unref(stream);
}

/* ---- Rows outside ---- */

enum { ROWS = 6 };

/* Two parameters; the gradient of the first one is dense. */
typedef struct sparse_pair {
    weft_tensor *parameters[2], *values, *dense;
    weft_optimizer *optimizer;
} sparse_pair;

static void make_pair(sparse_pair *pair, weft_device device)
{
    for (int i = 0; i < 2; i++)
        pair->parameters[i] = fractions(WEFT_SHAPE(ROWS, WIDTH), WEFT_DTYPE_FLOAT32, i, device);
    pair->values = fractions(WEFT_SHAPE(4, WIDTH), WEFT_DTYPE_FLOAT32, 7, device);
    pair->dense = fractions(WEFT_SHAPE(ROWS, WIDTH), WEFT_DTYPE_FLOAT32, 8, device);
    pair->optimizer = make_optimizer((weft_tensors){pair->parameters, 2}, &specs[PLAIN_SGD]);
}

static void drop_pair(sparse_pair *pair)
{
    weft_optimizer_unref(pair->optimizer);
    weft_tensor *all[] = {pair->parameters[0], pair->parameters[1], pair->values, pair->dense};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
}

/* The gradient of the second parameter names row `row` in its third place. */
static weft_status step_pair(const sparse_pair *pair, int64_t row, weft_error **error)
{
    const int64_t rows[] = {1, ROWS - 1, row, 1};
    weft_tensor *named = moved(tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_INT64, rows), weft_tensor_device(pair->values));
    const weft_gradients lent = {(weft_gradient[]){{pair->dense, NULL}, {pair->values, named}}, 2};
    weft_status status = weft_optimizer_check_gradients(pair->optimizer, lent, error);
    if (status == WEFT_OK)
        status = weft_optimizer_apply(pair->optimizer, lent);
    weft_tensor_unref(named);
    return status;
}

static void a_row_outside_has_the_error_of_the_cpu(void **state)
{
    static const int64_t wrong[] = {ROWS, -1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 4; i++) {
        sparse_pair here, there;
        weft_error *want = NULL, *got = NULL;
        make_pair(&here, cpu);
        make_pair(&there, gpu);
        assert_int_equal(step_pair(&here, wrong[i], &want), WEFT_ERR_INVALID);
        assert_int_equal(step_pair(&there, wrong[i], NULL), WEFT_OK); /* nothing has waited */
        assert_int_equal(weft_optimizer_wait(there.optimizer, &got), WEFT_ERR_INVALID);
        assert_string_equal(weft_error_message(got), weft_error_message(want));
        printf("%s\n", weft_error_message(got));
        weft_error_unref(want);
        weft_error_unref(got);
        assert_int_equal(weft_optimizer_wait(there.optimizer, NULL), WEFT_OK); /* the error is given away */
        weft_tensor *before = fractions(WEFT_SHAPE(ROWS, WIDTH), WEFT_DTYPE_FLOAT32, 1, cpu);
        for (int64_t k = 0; k < ROWS * WIDTH; k++) { /* the wrong row is ignored, and not taken for row 0 */
            bool stepped = k / WIDTH == 1 || k / WIDTH == ROWS - 1;
            assert_true((weft_tensor_get_f64(there.parameters[1], k) != weft_tensor_get_f64(before, k)) == stepped);
        }
        weft_tensor_unref(before);
        assert_int_equal(step_pair(&there, 3, NULL), WEFT_OK);
        assert_int_equal(weft_optimizer_wait(there.optimizer, NULL), WEFT_OK);
        drop_pair(&here);
        drop_pair(&there);
    }
}

/* After any wait the next step shows the error, and all further ones until weft_optimizer_wait. Of two wrong steps the
 * first one counts. */
static void the_next_step_shows_the_error_of_a_row(void **state)
{
    sparse_pair pair;
    weft_error *error = NULL;
    make_pair(&pair, gpu);
    assert_int_equal(step_pair(&pair, 77, NULL), WEFT_OK);
    assert_int_equal(step_pair(&pair, 88, NULL), WEFT_OK);
    weft_tensor_unref(moved(tensor_clone(pair.parameters[0]), cpu)); /* waits */
    const weft_gradients lent = {(weft_gradient[]){{pair.dense, NULL}, {NULL, NULL}}, 2};
    weft_tensor *before = tensor_clone(pair.parameters[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_optimizer_apply(pair.optimizer, lent), WEFT_ERR_INVALID);
    assert_same_bits(before, pair.parameters[0]); /* no step was made */
    weft_tensor_unref(before);
    assert_int_equal(weft_optimizer_check_gradients(pair.optimizer, lent, &error), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(error), "gradient 1: rows[2] is 77, its parameter has 6 rows");
    weft_error_unref(error);
    assert_int_equal(weft_optimizer_wait(pair.optimizer, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_apply(pair.optimizer, lent), WEFT_OK);
    drop_pair(&pair);
}

/* Of the rows, parts are checked by different blocks: a later step with a fault at an earlier place does not hide the
 * first fault. */
static void of_two_wrong_steps_the_first_one_counts(void **state)
{
    enum { COUNT = 5000 };
    weft_tensor *p = fractions(WEFT_SHAPE(ROWS, 1), WEFT_DTYPE_FLOAT32, 1, gpu);
    weft_tensor *values = fractions(WEFT_SHAPE(COUNT, 1), WEFT_DTYPE_FLOAT32, 2, gpu);
    weft_optimizer *sgd = make_optimizer((weft_tensors){&p, 1}, &specs[PLAIN_SGD]);
    static const int64_t wrong[] = {3000, 10};
    for (int i = 0; i < 2; i++) {
        weft_tensor *rows = tensor_zeros(WEFT_SHAPE(COUNT), WEFT_DTYPE_INT64);
        ((int64_t *)weft_tensor_data(rows))[wrong[i]] = 9;
        rows = moved(rows, gpu);
        assert_int_equal(weft_optimizer_apply(sgd, (weft_gradients){&(weft_gradient){values, rows}, 1}), WEFT_OK);
        weft_tensor_unref(rows);
    }
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_wait(sgd, &error), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(error), "gradient 0: rows[3000] is 9, its parameter has 6 rows");
    weft_error_unref(error);
    weft_optimizer_unref(sgd);
    weft_tensor_unref(p);
    weft_tensor_unref(values);
}

static char logged[512];
static void keep_log(weft_log_level level, const char *line, void *arg)
{
    snprintf(logged, sizeof(logged), "%s", line);
}

static void the_error_of_a_dropped_optimizer_is_logged(void **state)
{
    sparse_pair pair;
    weft_logging_set_sink(keep_log, NULL);
    make_pair(&pair, gpu);
    assert_int_equal(step_pair(&pair, -5, NULL), WEFT_OK);
    drop_pair(&pair);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tape_close(t);
    assert_non_null(strstr(logged, "gradient 1: rows[2] is -5, its parameter has 6 rows"));
    weft_logging_set_sink(NULL, NULL);
}

/* Many steps without a wait: the list of checks does not grow, and nothing is allocated. */
static void sparse_steps_neither_wait_nor_allocate(void **state)
{
    sparse_pair pair;
    make_pair(&pair, gpu);
    for (int i = 0; i < 3; i++)
        assert_int_equal(step_pair(&pair, 2, NULL), WEFT_OK);
    emulated_counts before = now();
    for (int i = 0; i < 50; i++)
        assert_int_equal(step_pair(&pair, i % ROWS, NULL), WEFT_OK);
    emulated_counts after = now();
    assert_int_equal(after.synchronisations, before.synchronisations);
    assert_int_equal(after.calls[EMULATED_ALLOCATION], before.calls[EMULATED_ALLOCATION]);
    assert_int_equal(weft_optimizer_wait(pair.optimizer, NULL), WEFT_OK);
    drop_pair(&pair);
}

static void a_norm_refuses_a_negative_row(void **state)
{
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        const int64_t right[] = {3, 0, 3}, wrong[] = {3, -2, 3};
        double norm[2] = {0};
        weft_tensor *values = fractions(WEFT_SHAPE(3, WIDTH), WEFT_DTYPE_FLOAT32, 7, on_gpu ? gpu : cpu);
        for (int i = 0; i < 2; i++) {
            weft_tensor *rows =
                moved(tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_INT64, i ? wrong : right), on_gpu ? gpu : cpu);
            assert_int_equal(weft_gradients_norm((weft_gradients){&(weft_gradient){values, rows}, 1}, &norm[i]),
                             i ? WEFT_ERR_INVALID : WEFT_OK);
            weft_tensor_unref(rows);
        }
        assert_true(norm[0] > 0 && norm[1] == 0);
        weft_tensor_unref(values);
    }
}

/* No parameter says how many rows there are. The kernel must not compute the place of such a row (UBSan). */
static void a_norm_takes_the_largest_row(void **state)
{
    const int64_t numbers[] = {3, INT64_MAX - 1, 3};
    double norm[2] = {0};
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        weft_device device = on_gpu ? gpu : cpu;
        weft_tensor *values = fractions(WEFT_SHAPE(3, WIDTH), WEFT_DTYPE_FLOAT32, 7, device);
        weft_tensor *rows = moved(tensor_copy_of(WEFT_SHAPE(3), WEFT_DTYPE_INT64, numbers), device);
        weft_gradient gradient = {values, rows};
        assert_int_equal(weft_gradients_norm((weft_gradients){&gradient, 1}, &norm[on_gpu]), WEFT_OK);
        weft_tensor_unref(values);
        weft_tensor_unref(rows);
    }
    assert_true(norm[0] > 0 && fabs(norm[1] - norm[0]) < 1e-6 * norm[0]);
}

static void a_wait_on_the_cpu_returns_at_once(void **state)
{
    sparse_pair pair;
    make_pair(&pair, cpu);
    assert_int_equal(step_pair(&pair, 2, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_wait(pair.optimizer, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_wait(NULL, NULL), WEFT_ERR_INVALID);
    drop_pair(&pair);
}

static void no_memory_is_left(void **state)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.device = gpu});
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tape_close(t);
    wfi_slab_trim(0);
    assert_int_equal(now().live, 1); /* the page-locked pieces of copies to the device, kept until the end */
    assert_int_equal(now().contexts, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_many_parameters_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_full_launch_takes_no_other_numbers),
        cmocka_unit_test(exact_steps_use_only_their_memory),
        cmocka_unit_test(a_step_takes_few_launches),
        cmocka_unit_test(norms_have_the_bits_of_one_launch_for_each_gradient),
        cmocka_unit_test(parameters_may_share_memory),
        cmocka_unit_test(a_step_waits_for_a_reader_with_no_parameter_locked),
        cmocka_unit_test(a_launch_that_fails_is_no_step),
        cmocka_unit_test(sparse_steps_sort_their_rows),
        cmocka_unit_test(sparse_steps_run_on_the_stream_of_their_gradients),
        cmocka_unit_test(a_row_outside_has_the_error_of_the_cpu),
        cmocka_unit_test(the_next_step_shows_the_error_of_a_row),
        cmocka_unit_test(of_two_wrong_steps_the_first_one_counts),
        cmocka_unit_test(the_error_of_a_dropped_optimizer_is_logged),
        cmocka_unit_test(sparse_steps_neither_wait_nor_allocate),
        cmocka_unit_test(a_norm_refuses_a_negative_row),
        cmocka_unit_test(a_norm_takes_the_largest_row),
        cmocka_unit_test(a_wait_on_the_cpu_returns_at_once),
        cmocka_unit_test(no_memory_is_left),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    gpu_find("emulated_gpu_counts", &counts);
    gpu_find("emulated_gpu_fail", &fail_next);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
