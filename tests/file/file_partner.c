/* SPDX-License-Identifier: Apache-2.0 */
/* file_partner.c - the C side of python.sh: `file_partner write FOLDER` writes files, `file_partner read FOLDER`
 * reads partner.py's. */
#include "file/safetensors.h"
#include "make.h"
#include "tensors.h"

#include <weft/weft.h>

#include <complex.h>
#include <stdlib.h>
#include <string.h>

static const weft_dtype kinds[] = {WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT32,   WEFT_DTYPE_FLOAT16, WEFT_DTYPE_INT64,
                                   WEFT_DTYPE_INT32,   WEFT_DTYPE_INT16,     WEFT_DTYPE_INT8,    WEFT_DTYPE_UINT8,
                                   WEFT_DTYPE_BOOL,    WEFT_DTYPE_COMPLEX64, WEFT_DTYPE_BFLOAT16};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const char *folder;

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "file_partner: %s\n", what);
    exit(1);
}

static const char *in_folder(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void must_be_ok(weft_status status, weft_error *error, const char *what)
{
    if (status != WEFT_OK && error)
        fprintf(stderr, "%s\n", weft_error_message(error));
    must(status == WEFT_OK, what);
}

/* 0 .. 5 as [2, 3]; bools: odd or not; complex: k - k i. */
static weft_tensor *expected(weft_dtype dtype)
{
    const float values[] = {0, 1, 2, 3, 4, 5};
    const uint8_t odd[] = {0, 1, 0, 1, 0, 1};
    const float complex both[] = {0, 1 - 1 * I, 2 - 2 * I, 3 - 3 * I, 4 - 4 * I, 5 - 5 * I};
    if (dtype == WEFT_DTYPE_BOOL || dtype == WEFT_DTYPE_COMPLEX64)
        return tensor_copy_of(WEFT_SHAPE(2, 3), dtype, dtype == WEFT_DTYPE_BOOL ? (const void *)odd : both);
    weft_tensor *x = tensor_copy_of(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32, values), *y = tensor_to(x, dtype);
    weft_tensor_unref(x);
    return y;
}

static weft_module *make_module(void)
{
    weft_module *module = linear_create(3, 2, false, 1, NULL);
    weft_tensor *x = expected(WEFT_DTYPE_FLOAT32);
    must(weft_tensor_assign(weft_module_find(module, "weight"), x) == WEFT_OK, "assign");
    weft_tensor_unref(x);
    return module;
}

static weft_optimizer *make_optimizer(weft_module *module)
{
    weft_tensors p = weft_module_parameters(module);
    weft_optimizer *adam = optimizer_create(p, &(weft_optimizer_spec){.type = &weft_adam_type}, NULL);
    weft_gradient g[] = {{p.items[0], NULL}, {p.items[1], NULL}};
    must(weft_optimizer_apply(adam, (weft_gradients){g, 2}) == WEFT_OK, "step");
    return adam;
}

static void write_dtypes(void)
{
    wfi_file_tensor items[KINDS + 3];
    weft_error *error = NULL;
    for (size_t i = 0; i < KINDS; i++)
        items[i] = (wfi_file_tensor){wfi_safetensors_dtype(kinds[i]), expected(kinds[i])};
    items[KINDS] = (wfi_file_tensor){"scalar", tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT32, 2.5)};
    items[KINDS + 1] = (wfi_file_tensor){"empty", tensor_zeros(WEFT_SHAPE(0, 4), WEFT_DTYPE_INT64)};
    items[KINDS + 2] = (wfi_file_tensor){"transposed \xc3\xa9\"", tensor_transpose(items[1].tensor, 0, 1)};
    must_be_ok(wfi_safetensors_save(in_folder("dtypes"), &(wfi_file_tensors){items, KINDS + 3, NULL, 0}, &error), error,
               "dtypes");
    for (size_t i = 0; i < KINDS + 3; i++)
        weft_tensor_unref(items[i].tensor);
}

static void read_dtypes(void)
{
    FILE *stream;
    uint8_t head[WFI_SAFETENSORS_HEAD];
    wfi_safetensors file;
    weft_error *error = NULL;
    must_be_ok(wfi_file_open(in_folder("python_dtypes"), &stream, head, &error), error, "open");
    must_be_ok(wfi_safetensors_open(&file, stream, "python_dtypes", head, &error), error, "header");
    must_be_ok(wfi_safetensors_read(&file, &error), error, "elements");
    must(file.count == KINDS - 1, "count");
    for (size_t i = 0; i < file.count; i++) {
        weft_tensor *wanted = expected(file.entries[i].dtype), *got = file.entries[i].tensor;
        must(strcmp(wfi_safetensors_dtype(file.entries[i].dtype), file.entries[i].name) == 0, "name");
        must(weft_tensor_nbytes(wanted) == weft_tensor_nbytes(got) &&
                 memcmp(weft_tensor_data(wanted), weft_tensor_data(got), weft_tensor_nbytes(got)) == 0,
             file.entries[i].name);
        weft_tensor_unref(wanted);
    }
    wfi_safetensors_fini(&file);
    fclose(stream);
}

static void read_module(weft_module *module, weft_optimizer *adam)
{
    weft_error *error = NULL;
    weft_optimizer_state first;
    must_be_ok(weft_module_load(module, in_folder("python_module"), &error), error, "python_module");
    for (int64_t i = 0; i < 6; i++)
        must(weft_tensor_get_f64(weft_module_find(module, "weight"), i) == 2 * (double)i, "weight");
    must(weft_tensor_get_f64(weft_module_find(module, "bias"), 1) == 1, "bias");
    must_be_ok(weft_optimizer_load(adam, in_folder("python_optimizer"), &error), error, "python_optimizer");
    must(weft_optimizer_ref_state(adam, 0, &first) == WEFT_OK && strcmp(first.name, "step") == 0, "state");
    must(weft_tensor_get_f64(first.tensor, 0) == 2, "step");
    weft_tensor_unref(first.tensor);
}

int main(int argc, char **argv)
{
    must(argc == 3, "usage: file_partner write|read FOLDER");
    folder = argv[2];
    weft_module *module = make_module();
    if (strcmp(argv[1], "write") == 0) {
        weft_error *error = NULL;
        write_dtypes();
        must_be_ok(weft_module_save(module, in_folder("module"), &error), error, "module");
    }
    weft_optimizer *adam = make_optimizer(module);
    if (strcmp(argv[1], "write") == 0)
        must(weft_optimizer_save(adam, in_folder("optimizer"), NULL) == WEFT_OK, "optimizer");
    else {
        read_dtypes();
        read_module(module, adam);
    }
    weft_optimizer_unref(adam);
    weft_module_unref(module);
    return 0;
}
