/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_choice.c - weft_device_choose: texts, and "auto" on described machines.
 *
 *     test_gpu_choice          texts
 * test_gpu_choice 010      "auto" for ranks 0, 1, 2 gives cuda:0, cuda:1, cuda:0. The machine is that of HWLOC_XMLFILE,
 *                              and the emulated GPUs are at EMULATED_GPU_PCI. Skipped on a GPU, which is where it is.
 */
#include <weft/tensor.h>

#include "gpu/gpu.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

static void texts_are_devices(void **state)
{
    weft_device device = {WEFT_DEVICE_CUDA, 7};
    assert_int_equal(weft_device_choose("cpu", 0, &device, NULL), WEFT_OK);
    assert_true(device.kind == WEFT_DEVICE_CPU && device.index == 0);
    assert_int_equal(weft_device_choose("cuda", 3, &device, NULL), WEFT_OK);
    assert_true(device.kind == WEFT_DEVICE_CUDA && device.index == 0);
    assert_int_equal(weft_device_choose("cuda:0", -1, &device, NULL), WEFT_OK);
    assert_true(device.kind == WEFT_DEVICE_CUDA && device.index == 0);
    assert_int_equal(weft_device_choose("auto", -1, &device, NULL), WEFT_OK);
    assert_int_equal(device.kind, WEFT_DEVICE_CUDA);
}

static void other_texts_are_refused(void **state)
{
    static const char *const wrong[] = {"",        "gpu",     "cuda:",   "cuda:-1",
                                        "cuda: 1", "cuda:1x", "cuda:+1", "cuda:9999999999999999999",
                                        "CPU",     "auto ",   "cpu:0"};
    weft_device device = {WEFT_DEVICE_CUDA, 7};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        weft_error *error = NULL;
        assert_int_equal(weft_device_choose(wrong[i], 0, &device, &error), WEFT_ERR_INVALID);
        assert_non_null(strstr(weft_error_message(error), "is no device"));
        weft_error_unref(error);
    }
    weft_error *error = NULL;
    assert_int_equal(weft_device_choose("cuda:1000", 0, &device, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "no cuda:1000 here"));
    weft_error_unref(error);
    assert_int_equal(weft_device_choose(NULL, 0, &device, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_device_choose("cpu", 0, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_device_choose("cpu", -2, &device, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "the local rank is -2: pass a rank from 0 on"));
    weft_error_unref(error);
    assert_int_equal(device.index, 7); /* outputs are written only on success */
}

static const char *expected; /* the GPU of each rank */

static void ranks_take_the_nearest_gpus(void **state)
{
    for (int rank = 0; expected[rank]; rank++) {
        weft_device device;
        assert_int_equal(weft_device_choose("auto", rank, &device, NULL), WEFT_OK);
        assert_int_equal(device.kind, WEFT_DEVICE_CUDA);
        assert_int_equal(device.index, expected[rank] - '0');
    }
    assert_int_equal(setenv("LOCAL_RANK", "1", 1), 0); /* of a launcher */
    weft_device device;
    assert_int_equal(weft_device_choose("auto", -1, &device, NULL), WEFT_OK);
    assert_int_equal(device.index, expected[1] - '0');
}

int main(int argc, char **argv)
{
    const struct CMUnitTest texts[] = {cmocka_unit_test(texts_are_devices), cmocka_unit_test(other_texts_are_refused)};
    const struct CMUnitTest machines[] = {cmocka_unit_test(ranks_take_the_nearest_gpus)};
    char name[WFI_CUDA_NAME];
    if (!gpu_is_here())
        return GPU_SKIPPED;
    if (argc < 2)
        return cmocka_run_group_tests(texts, NULL, NULL);
    expected = argv[1];
    if (strncmp(wfi_cuda_name(0, name), "emulated", 8) != 0)
        return GPU_SKIPPED;
    return cmocka_run_group_tests(machines, NULL, NULL);
}
