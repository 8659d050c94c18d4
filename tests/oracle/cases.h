/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - reads a file of cases: "case KIND", fields of one line each (NAME COUNT VALUES), "end". And compares
 * tensors with fields.
 */
#ifndef CASES_H
#define CASES_H

#include <weft/tensor.h>

#include "tensors.h"
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_FIELDS 32

typedef struct cases_field {
    char name[64];
    double *values;
    size_t count;
} cases_field;

typedef struct cases {
    FILE *file;
    int number; /* of the case read last, from 1 */
    char kind[32];
    cases_field fields[CASES_FIELDS];
    size_t field_count;
} cases;

static inline void cases_forget(cases *c)
{
    for (size_t i = 0; i < c->field_count; i++)
        free(c->fields[i].values);
    c->field_count = 0;
}

/* False at the end of the file. The fields of the case before are gone. */
static inline bool cases_next(cases *c)
{
    char word[64];
    cases_forget(c);
    if (fscanf(c->file, " case %31s", c->kind) != 1)
        return false;
    c->number++;
    while (fscanf(c->file, "%63s", word) == 1 && strcmp(word, "end") != 0) {
        assert_true(c->field_count < CASES_FIELDS);
        cases_field *field = &c->fields[c->field_count++];
        snprintf(field->name, sizeof(field->name), "%s", word);
        assert_int_equal(fscanf(c->file, "%zu", &field->count), 1);
        field->values = calloc(field->count + 1, sizeof(double));
        assert_non_null(field->values);
        for (size_t i = 0; i < field->count; i++) {
            assert_int_equal(fscanf(c->file, "%63s", word), 1);
            field->values[i] = strtod(word, NULL);
        }
    }
    return true;
}

/* NULL: the case has no such field. */
static inline const cases_field *cases_find(const cases *c, const char *name)
{
    for (size_t i = 0; i < c->field_count; i++)
        if (strcmp(c->fields[i].name, name) == 0)
            return &c->fields[i];
    return NULL;
}

static inline const cases_field *cases_get(const cases *c, const char *name)
{
    const cases_field *field = cases_find(c, name);
    if (!field)
        fail_msg("case %d has no field %s", c->number, name);
    return field;
}

static inline int64_t cases_int(const cases *c, const char *name, size_t which)
{
    const cases_field *field = cases_get(c, name);
    assert_true(which < field->count);
    return (int64_t)field->values[which];
}

static inline weft_shape cases_shape(const cases *c, const char *name)
{
    const cases_field *field = cases_get(c, name);
    weft_shape shape = {(int)field->count, {0}};
    assert_true(field->count <= WEFT_MAX_DIMS);
    for (size_t i = 0; i < field->count; i++)
        shape.dims[i] = (int64_t)field->values[i];
    return shape;
}

/* int64 of that shape, or a vector if `shape` is NULL. */
static inline weft_tensor *cases_ints(const cases *c, const char *name, const weft_shape *shape)
{
    const cases_field *field = cases_get(c, name);
    weft_tensor *tensor = tensor_empty(shape ? *shape : WEFT_SHAPE((int64_t)field->count), WEFT_DTYPE_INT64);
    assert_non_null(tensor);
    assert_int_equal(weft_tensor_numel(tensor), field->count);
    for (size_t i = 0; i < field->count; i++)
        ((int64_t *)weft_tensor_data(tensor))[i] = (int64_t)field->values[i];
    return tensor;
}

/* Near each value: within tolerance * (its magnitude + the root of the mean square of all). */
static inline void cases_assert_near(const cases *c, const char *name, const weft_tensor *got, double tolerance)
{
    const cases_field *wanted = cases_get(c, name);
    double squares = 0;
    if (!got)
        fail_msg("case %d (%s): there is no %s", c->number, c->kind, name);
    for (size_t i = 0; i < wanted->count; i++)
        squares += wanted->values[i] * wanted->values[i];
    double rms = wanted->count == 0 ? 0 : sqrt(squares / (double)wanted->count);
    assert_int_equal(weft_tensor_numel(got), wanted->count);
    for (size_t i = 0; i < wanted->count; i++) {
        double is = weft_tensor_get_f64(got, (int64_t)i), should = wanted->values[i];
        if (!(fabs(is - should) <= tolerance * (fabs(should) + rms)))
            fail_msg("case %d (%s, %s): %s %zu is %.17g, wanted %.17g", c->number, c->kind,
                     weft_dtype_name(weft_tensor_dtype(got)), name, i, is, should);
    }
}

#endif
