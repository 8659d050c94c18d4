/* SPDX-License-Identifier: Apache-2.0 */
/* test_file_optimizer.c - an optimizer whose state went through a file goes on with the same bits; files that do not
 * fit are refused. */
#include <weft/weft.h>

#include "oracle/formula.h"
#include "make.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARAMETERS 2

static char path[] = "weft-test-file-optimizer-XXXXXX";
static const weft_shape shapes[PARAMETERS] = {{2, {3, 4}}, {1, {5}}};

static weft_optimizer *make(const weft_optimizer_type *type, weft_tensor *parameters[PARAMETERS])
{
    weft_optimizer_spec spec = {.type = type};
    if (type == &weft_sgd_type)
        spec = (weft_optimizer_spec){.type = type, .lr = 0.1, .sgd.momentum = 0.9};
    for (int k = 0; k < PARAMETERS; k++)
        parameters[k] = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 1 + (uint64_t)k);
    weft_optimizer *o = optimizer_create((weft_tensors){parameters, PARAMETERS}, &spec, NULL);
    assert_non_null(o);
    return o;
}

static void step(weft_optimizer *o, uint64_t seed)
{
    weft_gradient g[PARAMETERS] = {{0}};
    for (int k = 0; k < PARAMETERS; k++)
        g[k].values = formula_tensor(shapes[k], WEFT_DTYPE_FLOAT32, 10 * seed + (uint64_t)k);
    assert_int_equal(weft_optimizer_apply(o, (weft_gradients){g, PARAMETERS}), WEFT_OK);
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(g[k].values);
}

static void drop(weft_optimizer *o, weft_tensor *parameters[PARAMETERS])
{
    weft_optimizer_unref(o);
    for (int k = 0; k < PARAMETERS; k++)
        weft_tensor_unref(parameters[k]);
}

static void state_goes_through_a_file(void **state)
{
    const weft_optimizer_type *types[] = {&weft_sgd_type, &weft_adam_type, &weft_adamw_type, &weft_adagrad_type};
    for (size_t type = 0; type < sizeof(types) / sizeof(types[0]); type++) {
        weft_tensor *p[PARAMETERS], *q[PARAMETERS];
        weft_error *error = NULL;
        weft_optimizer *one = make(types[type], p), *other = make(types[type], q);
        step(one, 1);
        step(one, 2);
        assert_int_equal(weft_optimizer_save(one, path, NULL), WEFT_OK);
        assert_int_equal(weft_optimizer_load(other, path, &error), WEFT_OK);
        for (int k = 0; k < PARAMETERS; k++)
            assert_int_equal(weft_tensor_assign(q[k], p[k]), WEFT_OK);
        step(one, 3);
        step(other, 3);
        for (int k = 0; k < PARAMETERS; k++)
            assert_memory_equal(weft_tensor_data(p[k]), weft_tensor_data(q[k]), weft_tensor_nbytes(p[k]));
        drop(one, p);
        drop(other, q);
    }
}

static void one_that_was_never_stepped_has_an_empty_file(void **state)
{
    weft_tensor *p[PARAMETERS], *q[PARAMETERS];
    weft_optimizer *fresh = make(&weft_adam_type, p), *other = make(&weft_adam_type, q);
    step(other, 1);
    assert_int_equal(weft_optimizer_save(fresh, path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_load(other, path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_state_count(other), 0);
    drop(fresh, p);
    drop(other, q);
}

static void assert_refused(weft_optimizer *o, const char *header, size_t bytes, weft_status wanted, const char *text)
{
    weft_error *error = NULL;
    FILE *file = fopen(path, "wb");
    uint64_t size = strlen(header);
    assert_non_null(file);
    fwrite(&size, 1, sizeof(size), file);
    fwrite(header, 1, size, file);
    for (size_t i = 0; i < bytes; i++)
        fputc(0, file);
    fclose(file);
    assert_int_equal(weft_optimizer_load(o, path, &error), wanted);
    if (!strstr(weft_error_message(error), text))
        fail_msg("\"%s\", not \"%s\"", weft_error_message(error), text);
    weft_error_unref(error);
}

static void files_that_do_not_fit_are_refused(void **state)
{
    weft_tensor *p[PARAMETERS], *q[PARAMETERS];
    weft_error *error = NULL;
    weft_optimizer *adam = make(&weft_adam_type, p), *sgd = make(&weft_sgd_type, q);
    step(adam, 1);
    size_t before = weft_optimizer_state_count(adam);
    assert_int_equal(weft_optimizer_save(adam, path, NULL), WEFT_OK);
    assert_int_equal(weft_optimizer_load(sgd, path, &error), WEFT_ERR_TYPE);
    weft_error_unref(error);
    assert_refused(adam, "{\"weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, WEFT_ERR_NOT_FOUND,
                   "\"weight\", which is no state");
    assert_refused(adam, "{\"state.x.step\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                   WEFT_ERR_NOT_FOUND, "no state");
    assert_refused(adam,
                   "{\"state.99999999999999999999.step\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   WEFT_ERR_NOT_FOUND, "no state");
    assert_refused(adam, "{\"state.2.step\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   WEFT_ERR_NOT_FOUND, "there are 2 parameters");
    assert_refused(adam, "{\"state.0.exp_avg\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   WEFT_ERR_SHAPE, "[2], the parameter [3, 4]");
    assert_refused(adam, "{\"state.0.step\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   WEFT_ERR_INVALID, "exp_avg is missing");
    assert_refused(adam, "{\"state.00.step\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   WEFT_ERR_NOT_FOUND, "no state");
    assert_refused(adam, "{\"state.0.exp_avg\":{\"dtype\":\"F64\",\"shape\":[3,4],\"data_offsets\":[0,96]}}", 96,
                   WEFT_ERR_TYPE, path); /* which file */
    assert_refused(adam, "{\"state.0.step\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 3,
                   WEFT_ERR_FORMAT, "ends too early");
    assert_int_equal(weft_optimizer_load(adam, "no-such-file", NULL), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_optimizer_load(NULL, path, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_save(adam, NULL, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_optimizer_save(adam, "no-such-folder/file", NULL), WEFT_ERR_IO);
    assert_int_equal(weft_optimizer_state_count(adam), before);
    drop(adam, p);
    drop(sgd, q);
}

/* Nothing of the elements is there: so it was refused by the header. */
static void what_a_pipe_announces_is_refused_before_it_is_read(void **state)
{
    static const char header[] = "{\"state.0.moment\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]}}";
    weft_tensor *p[PARAMETERS];
    weft_error *error = NULL;
    char name[32];
    int ends[2];
    uint64_t size = strlen(header);
    weft_optimizer *adam = make(&weft_adam_type, p);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], &size, sizeof(size)), sizeof(size));
    assert_int_equal(write(ends[1], header, size), size);
    close(ends[1]);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", ends[0]);
    assert_int_equal(weft_optimizer_load(adam, name, &error), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_error_message(error), "keeps no 'moment'"));
    assert_non_null(strstr(weft_error_message(error), name));
    weft_error_unref(error);
    close(ends[0]);
    drop(adam, p);
}

static int make_file(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? 1 : close(fd);
}

static int remove_file(void **state)
{
    return unlink(path);
}

UNIT_MAIN_WITH(make_file, remove_file, state_goes_through_a_file, one_that_was_never_stepped_has_an_empty_file,
               files_that_do_not_fit_are_refused, what_a_pipe_announces_is_refused_before_it_is_read)
