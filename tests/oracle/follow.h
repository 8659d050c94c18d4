/* SPDX-License-Identifier: Apache-2.0 */
/* follow.h - the initial weights of the models of follow.py, and PyTorch's losses in tests/data/follow.txt. */
#ifndef FOLLOW_H
#define FOLLOW_H

#include "nn/fingerprint.h"
#include "oracle/formula.h"
#include "tensors.h"

enum { FOLLOW_STEPS = 20 };

/* As factor_of in follow.py. */
static inline double follow_factor(const weft_tensor *p, const char *name, double *offset)
{
    size_t length = strlen(name);
    *offset = 0;
    if (weft_tensor_ndim(p) == 4)
        return sqrt(6.0 / (double)(weft_tensor_size(p, 0) * weft_tensor_size(p, 2) * weft_tensor_size(p, 3)));
    if (weft_tensor_ndim(p) == 2)
        return 1 / sqrt((double)weft_tensor_size(p, 1));
    if (strstr(name, "bias") != NULL)
        return 0.1;
    bool ends_branch = length >= 10 && strcmp(name + length - 10, "bn3.weight") == 0;
    *offset = ends_branch ? 0.2 : 1;
    return ends_branch ? 0.05 : 0.25;
}

/* The parameters may be on a device. */
static inline void follow_fill(weft_module *net)
{
    weft_tensors parameters = weft_module_parameters(net);
    for (size_t i = 0; i < parameters.count; i++) {
        weft_tensor *p = parameters.items[i];
        double offset, factor = follow_factor(p, weft_module_parameter_name(net, i), &offset);
        weft_tensor *value = tensor_empty(weft_tensor_shape(p), weft_tensor_dtype(p));
        formula_fill(value, 1000 + i, factor, offset);
        weft_tensor *there = tensor_to_device(value, weft_tensor_device(p));
        assert_int_equal(weft_tensor_assign(p, there), WEFT_OK);
        weft_tensor_unref(there);
        weft_tensor_unref(value);
    }
}

static inline void follow_losses(const char *name, double losses[FOLLOW_STEPS])
{
    char line[4096], *words[FOLLOW_STEPS + 2];
    FILE *file = fopen(WEFT_TEST_DATA "/follow.txt", "r");
    if (!file) /* built on another machine: tools/gpu/run is in the root of the tree */
        file = fopen("tests/data/follow.txt", "r");
    assert_non_null(file);
    size_t count = fingerprint_line(file, name, line, sizeof(line), words, FOLLOW_STEPS + 2);
    fclose(file);
    assert_int_equal(count, FOLLOW_STEPS + 1);
    for (int i = 0; i < FOLLOW_STEPS; i++)
        losses[i] = atof(words[1 + i]);
}

#endif
