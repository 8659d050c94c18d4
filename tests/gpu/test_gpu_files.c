/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_files.c - modules and optimizers on a device are saved and loaded: the files are those of the CPU, byte by
 * byte, and a file goes to any device.
 */
#include <weft/weft.h>

#include "gpu/gpu.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const weft_device gpu = {WEFT_DEVICE_CUDA, 0}, cpu = {WEFT_DEVICE_CPU, 0};
static char folder[] = "/tmp/weft_gpu_files_XXXXXX", here_path[64], there_path[64];

static int make_folder(void **state)
{
    if (!mkdtemp(folder))
        return -1;
    snprintf(here_path, sizeof(here_path), "%s/here", folder);
    snprintf(there_path, sizeof(there_path), "%s/there", folder);
    return 0;
}

static int remove_folder(void **state)
{
    unlink(here_path);
    unlink(there_path);
    return rmdir(folder);
}

/* With buffers: float32, and int64 that counts batches. */
static weft_module *model_on(weft_device device, uint64_t seed)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = 3, .kernel = {3, 3}, .seed = seed}, NULL),
        batch_norm2d_create(3, 0, 0, NULL),
        flatten_create(1),
        linear_create(3 * 2 * 2, 2, false, seed + 1, NULL),
    };
    weft_module *model = sequential_create(parts, sizeof(parts) / sizeof(parts[0]), NULL);
    assert_non_null(model);
    assert_int_equal(weft_module_to_device(model, device), WEFT_OK);
    return model;
}

static void same_files(void)
{
    char command[160];
    snprintf(command, sizeof(command), "cmp %s %s", here_path, there_path);
    assert_int_equal(system(command), 0);
}

static void same_parameters(const weft_module *a, const weft_module *b)
{
    weft_tensors x = weft_module_parameters(a), y = weft_module_parameters(b);
    assert_int_equal(x.count, y.count);
    for (size_t i = 0; i < x.count; i++)
        for (int64_t k = 0; k < weft_tensor_numel(x.items[i]); k++)
            assert_true(weft_tensor_get_f64(x.items[i], k) == weft_tensor_get_f64(y.items[i], k));
}

static void modules_are_saved_from_and_loaded_to_a_device(void **state)
{
    weft_module *here = model_on(cpu, 5), *there = model_on(gpu, 5), *loaded = model_on(gpu, 9);
    assert_int_equal(weft_module_save(here, here_path, NULL), WEFT_OK);
    assert_int_equal(weft_module_save(there, there_path, NULL), WEFT_OK);
    same_files();
    assert_int_equal(weft_module_load(loaded, here_path, NULL), WEFT_OK);
    same_parameters(loaded, here);
    assert_int_equal(weft_tensor_device(weft_module_parameters(loaded).items[0]).kind, WEFT_DEVICE_CUDA);
    weft_module *back = model_on(cpu, 9);
    assert_int_equal(weft_module_load(back, there_path, NULL), WEFT_OK);
    same_parameters(back, here);
    weft_module *all[] = {here, there, loaded, back};
    for (int i = 0; i < 4; i++)
        weft_module_unref(all[i]);
}

/* One step with gradients that only the step's number decides. */
static void step(weft_module *model, weft_optimizer *optimizer, weft_device device, int number)
{
    weft_tensors parameters = weft_module_parameters(model);
    weft_tensor *gradients[8];
    assert_true(parameters.count <= 8);
    for (size_t i = 0; i < parameters.count; i++) {
        weft_tensor *filled =
            tensor_full(weft_tensor_shape(parameters.items[i]), WEFT_DTYPE_FLOAT32, number + 0.5 * (double)i);
        gradients[i] = tensor_to_device(filled, device);
        weft_tensor_unref(filled);
    }
    assert_int_equal(weft_optimizer_accumulate(optimizer, (weft_tensors){gradients, parameters.count}), WEFT_OK);
    assert_int_equal(weft_optimizer_step(optimizer), WEFT_OK);
    for (size_t i = 0; i < parameters.count; i++)
        weft_tensor_unref(gradients[i]);
}

/* The step after loading is the one that would have followed. */
static void optimizers_are_saved_from_and_loaded_to_a_device(void **state)
{
    weft_module *here = model_on(cpu, 5), *there = model_on(gpu, 5), *resumed = model_on(gpu, 5);
    const weft_optimizer_spec how = {.type = &weft_sgd_type, .lr = 0.1, .sgd.momentum = 0.9};
    weft_optimizer *sgd_here = optimizer_create(weft_module_parameters(here), &how, NULL),
                   *sgd_there = optimizer_create(weft_module_parameters(there), &how, NULL),
                   *sgd_resumed = optimizer_create(weft_module_parameters(resumed), &how, NULL);
    step(here, sgd_here, cpu, 1);
    step(there, sgd_there, gpu, 1);
    assert_int_equal(weft_optimizer_save(sgd_here, here_path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_save(sgd_there, there_path, NULL), WEFT_OK);
    same_files();
    assert_int_equal(weft_optimizer_load(sgd_resumed, here_path, NULL), WEFT_OK);
    weft_optimizer_state state_there;
    assert_int_equal(weft_optimizer_ref_state(sgd_resumed, 0, &state_there), WEFT_OK);
    assert_int_equal(weft_tensor_device(state_there.tensor).kind,
                     strcmp(state_there.name, "step") == 0 ? WEFT_DEVICE_CPU : WEFT_DEVICE_CUDA);
    weft_tensor_unref(state_there.tensor);
    assert_int_equal(weft_module_save(there, there_path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(resumed, there_path, NULL), WEFT_OK);
    step(there, sgd_there, gpu, 2);
    step(resumed, sgd_resumed, gpu, 2);
    same_parameters(resumed, there);
    weft_optimizer *optimizers[] = {sgd_here, sgd_there, sgd_resumed};
    weft_module *modules[] = {here, there, resumed};
    for (int i = 0; i < 3; i++) {
        weft_optimizer_unref(optimizers[i]);
        weft_module_unref(modules[i]);
    }
}

static void parameters_on_a_device_are_lent_by_dlpack(void **state)
{
    weft_module *there = model_on(gpu, 5);
    weft_tensor *parameter = weft_module_parameters(there).items[0], *seen = NULL;
    double before = weft_tensor_get_f64(parameter, 0);
    weft_dlpack *lent = NULL;
    assert_int_equal(weft_tensor_to_dlpack(parameter, 0, &lent, NULL), WEFT_OK);
    assert_true(lent->flags & WEFT_DLPACK_READ_ONLY && lent->tensor.device.type == 2);
    assert_int_equal(weft_tensor_from_dlpack(lent, WEFT_DLPACK_READ_ONLY, &seen, NULL), WEFT_OK);
    weft_tensor_fill(parameter, 3);
    assert_true(weft_tensor_get_f64(seen, 0) == before && weft_tensor_get_f64(parameter, 0) == 3);
    weft_tensor_unref(seen);
    weft_module_unref(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_are_saved_from_and_loaded_to_a_device),
        cmocka_unit_test(optimizers_are_saved_from_and_loaded_to_a_device),
        cmocka_unit_test(parameters_on_a_device_are_lent_by_dlpack),
    };
    if (!gpu_is_here())
        return GPU_SKIPPED;
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
