/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_training.c - models train on a device as on the CPU: the losses of several steps agree, for each optimizer.
 * On the emulated GPU also: no memory of the device is left.
 */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "mem/mem.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include "emulated/emulated.h"
#include "prng.h"

#include <math.h>
#include <string.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};

enum { STEPS_MOST = 20 };

/* ---- Models: each makes its module, its inputs and its loss ---- */

typedef struct model {
    const char *name;
    weft_module *(*make)(void);
    weft_tensor *(*input)(int step);
    weft_tensor *(*target)(int step);
    weft_tensor *(*loss)(weft_tape *t, weft_module *module, weft_tensor *x, weft_tensor *target);
    int steps;
} model;

static weft_tensor *waves(weft_shape shape, int step)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_FLOAT32);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((float *)weft_tensor_data(x))[i] = (float)sin(0.37 * (double)(step * 1000 + i));
    return x;
}

static weft_tensor *numbers(weft_shape shape, int64_t below, int step)
{
    weft_tensor *x = tensor_empty(shape, WEFT_DTYPE_INT64);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        ((int64_t *)weft_tensor_data(x))[i] = (step * 7 + i * 3) % below;
    return x;
}

static weft_tensor *cross_entropy(weft_tape *t, weft_module *module, weft_tensor *x, weft_tensor *target)
{
    return weft_cross_entropy(t, weft_module_forward(t, module, x), target);
}

/* The network of PyTorch's MNIST example; its dropout draws the same numbers on both devices. */
static weft_module *make_convnet(void)
{
    return mnist_convnet_create(3);
}
static weft_tensor *image_input(int step)
{
    return waves(WEFT_SHAPE(2, 1, 28, 28), step);
}
static weft_tensor *image_target(int step)
{
    return numbers(WEFT_SHAPE(2), 10, step);
}
static weft_tensor *nll(weft_tape *t, weft_module *module, weft_tensor *x, weft_tensor *target)
{
    return weft_nll_loss(t, weft_module_forward(t, module, x), target);
}

/* A language model: embedding, two layers of LSTM, linear. */
enum { WORDS = 30, TIME = 5, BATCH = 3 };
static weft_module *make_language(void)
{
    weft_module *parts[] = {
        embedding_create(&(weft_embedding_layer){.rows = WORDS, .width = 8, .seed = 1}, NULL),
        lstm_create(&(weft_lstm_layer){.in_features = 8, .hidden_features = 12, .layers = 2, .seed = 2}, NULL),
        linear_create(12, WORDS, false, 3, NULL)};
    return sequential_create(parts, 3, NULL);
}
static weft_tensor *language_input(int step)
{
    return numbers(WEFT_SHAPE(TIME, BATCH), WORDS, step);
}
static weft_tensor *language_target(int step)
{
    return numbers(WEFT_SHAPE(TIME * BATCH), WORDS, step + 1);
}
static weft_tensor *language_loss(weft_tape *t, weft_module *module, weft_tensor *x, weft_tensor *target)
{
    weft_tensor *scores = weft_module_forward(t, module, x);
    return weft_cross_entropy(t, weft_reshape(t, scores, WEFT_SHAPE(TIME * BATCH, WORDS)), target);
}

/* Bags of words. */
static weft_module *make_bags(void)
{
    weft_module *parts[] = {
        embedding_bag_create(&(weft_embedding_bag_layer){.rows = WORDS, .width = 8, .seed = 1}, NULL), tanh_create(),
        linear_create(8, 4, false, 3, NULL)};
    return sequential_create(parts, 3, NULL);
}
static weft_tensor *bags_input(int step)
{
    return numbers(WEFT_SHAPE(6, 7), WORDS, step);
}
static weft_tensor *bags_target(int step)
{
    return numbers(WEFT_SHAPE(6), 4, step);
}

/* A stem and one block of ResNet-50. */
static weft_module *make_resnet(void)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 3, .out_channels = 8, .kernel = {3, 3}, .seed = 4}, NULL),
        batch_norm2d_create(8, 0, 0, NULL),
        relu_create(),
        max_pool2d_create(&(weft_max_pool2d_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, NULL),
        bottleneck_create(8, 4, 2, 5, NULL),
        adaptive_avg_pool2d_create(1, 1, NULL),
        flatten_create(1),
        linear_create(16, 5, false, 6, NULL)};
    return sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
}
static weft_tensor *resnet_input(int step)
{
    return waves(WEFT_SHAPE(2, 3, 16, 16), step);
}
static weft_tensor *resnet_target(int step)
{
    return numbers(WEFT_SHAPE(2), 5, step);
}

static weft_module *make_mlp(void)
{
    weft_module *parts[] = {flatten_create(1), linear_create(3 * 16 * 16, 20, false, 7, NULL), relu_create(),
                            linear_create(20, 5, false, 8, NULL)};
    return sequential_create(parts, 4, NULL);
}

/* Bags of words whose gradient is by rows. */
static weft_module *make_sparse_bags(void)
{
    weft_module *parts[] = {
        embedding_bag_create(
            &(weft_embedding_bag_layer){
                .rows = WORDS, .width = 8, .seed = 1, .how = {.sparse = true, .padding = true, .padding_row = 3}},
            NULL),
        tanh_create(), linear_create(8, 4, false, 3, NULL)};
    return sequential_create(parts, 3, NULL);
}

static const model models[] = {
    {"MNIST ConvNet", make_convnet, image_input, image_target, nll, 2},
    {"LSTM language model", make_language, language_input, language_target, language_loss, 20},
    {"bags of words", make_bags, bags_input, bags_target, cross_entropy, 20},
    {"ResNet block", make_resnet, resnet_input, resnet_target, cross_entropy, 10},
    {"MLP", make_mlp, resnet_input, resnet_target, cross_entropy, 10},
    {"sparse bags", make_sparse_bags, bags_input, bags_target, cross_entropy, 10},
};
enum { BAGS = 2, SPARSE_BAGS = 5 };

/* ---- Optimizers ---- */

static weft_optimizer *make_optimizer(int which, weft_tensors parameters)
{
    weft_error *error = NULL;
    const weft_optimizer_spec specs[] = {
        {.type = &weft_sgd_type, .lr = 0.05},
        {.type = &weft_sgd_type, .lr = 0.05, .sgd = {.momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}},
        {.type = &weft_adam_type, .lr = 0.01},
        {.type = &weft_adam_type, .lr = 0.01, .adam = {.amsgrad = true}},
        {.type = &weft_adamw_type, .lr = 0.01},
        {.type = &weft_adagrad_type, .lr = 0.05},
        {.type = &weft_rmsprop_type, .lr = 0.005},
        {.type = &weft_rmsprop_type, .lr = 0.005, .rmsprop = {.momentum = 0.5, .centered = true}},
        {.type = &weft_rprop_type},
        {.type = &weft_adadelta_type},
        {.type = &weft_adamax_type, .lr = 0.01},
        {.type = &weft_sgd_type, .lr = 0.05, .max_norm = 0.5},
    };
    weft_optimizer *made = optimizer_create(parameters, &specs[which], &error);
    weft_error_print(error, stderr);
    assert_non_null(made);
    return made;
}
enum { OPTIMIZERS = 12, PLAIN_SGD = 0, ADAM = 2, CLIPPED_SGD = 11 };

/* ---- Training ---- */

/* Returns the loss, on the device, with a reference. */
static weft_tensor *queue_step(const model *m, weft_module *module, weft_optimizer *optimizer, int step,
                               weft_device device)
{
    weft_tape *t = weft_tape_open(
        &(weft_tape_options){.record = true, .mode = WEFT_MODE_TRAIN, .seed = (uint64_t)step + 1, .device = device});
    weft_tensor *x = m->input(step), *target = m->target(step);
    weft_tensor *there = tensor_to_device(x, device), *target_there = tensor_to_device(target, device);
    weft_tensor *loss = m->loss(t, module, there, target_there);
    weft_backward(t, loss);
    weft_error_print(weft_tape_error(t), stderr);
    assert_int_equal(weft_tape_status(t), WEFT_OK);
    assert_int_equal(weft_optimizer_apply(optimizer, weft_tape_gradients(t, weft_optimizer_parameters(optimizer))),
                     WEFT_OK);
    weft_tensor *all[] = {x, target, there, target_there};
    for (int i = 0; i < 4; i++)
        weft_tensor_unref(all[i]);
    weft_tensor_ref(loss);
    weft_tape_close(t);
    return loss;
}

static double one_step(const model *m, weft_module *module, weft_optimizer *optimizer, int step, weft_device device)
{
    weft_tensor *loss = queue_step(m, module, optimizer, step, device), *here = tensor_to_device(loss, cpu);
    double value = weft_tensor_get_f64(here, 0);
    weft_tensor_unref(loss);
    weft_tensor_unref(here);
    return value;
}

static void train(const model *m, int which, int steps, weft_device device, double *losses)
{
    weft_module *module = m->make();
    assert_non_null(module);
    assert_int_equal(weft_module_to_device(module, device), WEFT_OK);
    weft_optimizer *optimizer = make_optimizer(which, weft_module_parameters(module));
    for (int step = 0; step < steps; step++)
        losses[step] = one_step(m, module, optimizer, step, device);
    weft_optimizer_unref(optimizer);
    weft_module_unref(module);
}

static void train_on_both(const model *m, int which, int steps)
{
    double want[STEPS_MOST], got[STEPS_MOST], again[STEPS_MOST];
    train(m, which, steps, cpu, want);
    train(m, which, steps, gpu, got);
    train(m, which, steps, gpu, again);
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        worst = fmax(worst, fabs(got[i] - want[i]) / fabs(want[i]));
        assert_true(got[i] == again[i]); /* sums have a fixed order: the same bits in each run */
    }
    printf("%-20s optimizer %2d: loss %.5f to %.5f, largest relative error %.1e\n", m->name, which, want[0],
           want[steps - 1], worst);
    assert_true(worst < 1e-4);
}

static void models_train_as_on_the_cpu(void **state)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        train_on_both(&models[i], ADAM, models[i].steps);
}

static void every_optimizer_steps_as_on_the_cpu(void **state)
{
    for (int which = 0; which < OPTIMIZERS; which++)
        train_on_both(&models[BAGS], which, 6);
}

static void sparse_steps_are_those_of_the_cpu(void **state)
{
    static const int takers[] = {PLAIN_SGD, ADAM, 5, CLIPPED_SGD}; /* 5: Adagrad */
    for (size_t i = 0; i < sizeof(takers) / sizeof(takers[0]); i++)
        train_on_both(&models[SPARSE_BAGS], takers[i], 6);
}

/* ---- Steps that do not wait ---- */

static emulated_counts now(void)
{
    void (*counts)(emulated_counts *);
    emulated_counts out = {.live = 0}; /* of a GPU, which does not tell */
    gpu_find("emulated_gpu_counts", &counts);
    if (counts)
        counts(&out);
    return out;
}

/* Ten steps; only the loss of the last one is read. In steps 4 to 10 the host does not wait, and nothing is
 * allocated. */
static double train_without_waiting(const model *m, int which)
{
    enum { FIRST = 3, LAST = 10 };
    weft_module *module = m->make();
    assert_int_equal(weft_module_to_device(module, gpu), WEFT_OK);
    weft_optimizer *optimizer = make_optimizer(which, weft_module_parameters(module));
    emulated_counts before = now();
    weft_tensor *loss = NULL;
    for (int step = 0; step < LAST; step++) {
        if (step == FIRST)
            before = now();
        weft_tensor_unref(loss);
        loss = queue_step(m, module, optimizer, step, gpu);
    }
    emulated_counts after = now();
    printf("%-20s optimizer %2d: %llu waits, %llu allocations, %llu launches in %d steps\n", m->name, which,
           (unsigned long long)(after.synchronisations - before.synchronisations),
           (unsigned long long)(after.calls[EMULATED_ALLOCATION] - before.calls[EMULATED_ALLOCATION]),
           (unsigned long long)(after.calls[EMULATED_LAUNCH] - before.calls[EMULATED_LAUNCH]), LAST - FIRST);
    assert_int_equal(after.synchronisations, before.synchronisations);
    assert_int_equal(after.calls[EMULATED_ALLOCATION], before.calls[EMULATED_ALLOCATION]);
    weft_tensor *here = tensor_to_device(loss, cpu);
    double value = weft_tensor_get_f64(here, 0);
    weft_tensor_unref(here);
    weft_tensor_unref(loss);
    weft_optimizer_unref(optimizer);
    weft_module_unref(module);
    return value;
}

static void steps_neither_wait_nor_allocate(void **state)
{
    for (size_t i = 1; i < sizeof(models) / sizeof(models[0]); i++) { /* all but the first, which is slow */
        static const int optimizers[] = {PLAIN_SGD, ADAM, CLIPPED_SGD};
        for (int k = 0; k < 3; k++) {
            double want[STEPS_MOST];
            train(&models[i], optimizers[k], 10, cpu, want);
            double got = train_without_waiting(&models[i], optimizers[k]);
            assert_true(fabs(got - want[9]) <= 1e-4 * fabs(want[9]));
        }
    }
}

static int count_nan_of_state(const weft_optimizer *optimizer)
{
    int count = 0;
    for (size_t i = 0; i < weft_optimizer_state_count(optimizer); i++) {
        weft_optimizer_state item;
        assert_int_equal(weft_optimizer_ref_state(optimizer, i, &item), WEFT_OK);
        for (int64_t k = 0; k < weft_tensor_numel(item.tensor); k++)
            count += isnan(weft_tensor_get_f64(item.tensor, k));
        weft_tensor_unref(item.tensor);
    }
    return count;
}

/* Two steps with the same gradient, in which one element is NaN; the parameter is on the CPU afterwards. */
static weft_tensor *stepped_with_nan(const weft_optimizer_spec *how, weft_device device, int *of_state)
{
    const float numbers[] = {1, NAN, -1, 0.5f};
    weft_tensor *here = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    weft_tensor *g = tensor_copy_of(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, numbers);
    weft_tensor *p = tensor_to_device(here, device), *g_there = tensor_to_device(g, device);
    weft_optimizer *optimizer = optimizer_create((weft_tensors){&p, 1}, how, NULL);
    assert_non_null(optimizer);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){&g_there, 1}), WEFT_OK);
        assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
    }
    *of_state = count_nan_of_state(optimizer);
    weft_tensor *result = tensor_clone(p), *back = tensor_to_device(result, cpu);
    weft_optimizer_unref(optimizer);
    weft_tensor *all[] = {here, g, p, g_there, result};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
    return back;
}

static void a_nan_stays_to_be_seen(void **state)
{
    const weft_optimizer_spec specs[] = {{.type = &weft_adam_type, .lr = 0.1, .adam = {.amsgrad = true}},
                                         {.type = &weft_rprop_type}};
    for (int i = 0; i < 2; i++) {
        int want_state = 0, got_state = 0;
        weft_tensor *want = stepped_with_nan(&specs[i], cpu, &want_state),
                    *got = stepped_with_nan(&specs[i], gpu, &got_state);
        assert_true(want_state > 0 && want_state == got_state);
        for (int k = 0; k < 4; k++) {
            double a = weft_tensor_get_f64(want, k), b = weft_tensor_get_f64(got, k);
            assert_true(isnan(a) == isnan(b) && isnan(b) == (k == 1));
            assert_true(isnan(a) || fabs(a - b) < 1e-6);
        }
        weft_tensor_unref(want);
        weft_tensor_unref(got);
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
}

/* Prints a number that has all bits of the losses of some steps of each model: for tools/long.d/gpu-order. */
static int print_bits(void)
{
    uint64_t bits = 0;
    for (size_t i = 1; i < sizeof(models) / sizeof(models[0]); i++) {
        double losses[STEPS_MOST];
        train(&models[i], CLIPPED_SGD, 3, gpu, losses);
        for (int step = 0; step < 3; step++) {
            uint64_t one;
            memcpy(&one, &losses[step], sizeof(one));
            bits = prng_mix(bits ^ one);
        }
    }
    printf("%016llx\n", (unsigned long long)bits);
    return 0;
}

/* With fixed statistics dx = dy * weight / sqrt(var + eps), whatever x is. */
static void fixed_norm_of_a_nan(weft_device device, int64_t plane)
{
    weft_tensor *x = waves(WEFT_SHAPE(2, 3, plane, 1), 0), *parts[4];
    ((float *)weft_tensor_data(x))[1] = NAN;
    ((float *)weft_tensor_data(x))[plane] = INFINITY;
    const double values[4] = {2, 0, 0, 3}; /* weight, bias, mean, variance */
    for (int i = 0; i < 4; i++) {
        weft_tensor *here = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, values[i]);
        parts[i] = tensor_to_device(here, device);
        weft_tensor_unref(here);
    }
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true, .device = device});
    weft_tensor *input = tensor_to_device(x, device);
    weft_tensor_set_requires_grad(input, true);
    weft_backward(t, weft_sum(t, weft_batch_norm2d(t, input, parts[0], parts[1], parts[2], parts[3],
                                                   &(weft_batch_norm_options){.eps = 1})));
    assert_int_equal(weft_tape_wait(t), WEFT_OK);
    weft_tensor *dx = tensor_to_device(weft_tape_grad(t, input), cpu);
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        assert_true(weft_tensor_get_f64(dx, i) == 1);
    weft_tape_close(t);
    weft_tensor *all[] = {x, input, dx, parts[0], parts[1], parts[2], parts[3]};
    for (int i = 0; i < 7; i++)
        weft_tensor_unref(all[i]);
}

static void the_gradient_of_a_fixed_norm_does_not_depend_on_x(void **state)
{
    const int64_t planes[] = {4, 3000}; /* the CPU has two algorithms */
    for (int i = 0; i < 2; i++) {
        fixed_norm_of_a_nan(cpu, planes[i]);
        fixed_norm_of_a_nan(gpu, planes[i]);
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_train_as_on_the_cpu),
        cmocka_unit_test(every_optimizer_steps_as_on_the_cpu),
        cmocka_unit_test(the_gradient_of_a_fixed_norm_does_not_depend_on_x),
        cmocka_unit_test(a_nan_stays_to_be_seen),
        cmocka_unit_test(sparse_steps_are_those_of_the_cpu),
        cmocka_unit_test(steps_neither_wait_nor_allocate),
        cmocka_unit_test(no_memory_is_left),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    if (argc > 1)
        return print_bits();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
