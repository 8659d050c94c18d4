/* SPDX-License-Identifier: Apache-2.0 */
/* result.c - see result.h. */
#include "perf/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name, kind, is_key)                                                                                      \
    {                                                                                                                  \
#name, kind, offsetof(result, name), sizeof(((result *)NULL)->name), is_key                                    \
    }

const result_field result_fields[] = {
    FIELD(measure, FIELD_TEXT, true),     FIELD(program, FIELD_TEXT, true),     FIELD(fabric, FIELD_TEXT, true),
    FIELD(what, FIELD_TEXT, true),        FIELD(bytes, FIELD_COUNT, true),      FIELD(workers, FIELD_COUNT, true),
    FIELD(window, FIELD_COUNT, true),     FIELD(unit, FIELD_TEXT, true),        FIELD(is_rate, FIELD_BOOL, false),
    FIELD(p50, FIELD_NUMBER, false),      FIELD(p90, FIELD_NUMBER, false),      FIELD(p99, FIELD_NUMBER, false),
    FIELD(best, FIELD_NUMBER, false),     FIELD(samples, FIELD_COUNT, false),   FIELD(floor, FIELD_NUMBER, false),
    FIELD(floor_name, FIELD_TEXT, false), FIELD(of_floor, FIELD_NUMBER, false), FIELD(of_weft, FIELD_NUMBER, false),
    FIELD(control, FIELD_TEXT, false),    FIELD(bulk, FIELD_TEXT, false),
};
const size_t result_field_count = sizeof(result_fields) / sizeof(*result_fields);

const void *result_at(const result *r, const result_field *field)
{
    return (const char *)r + field->offset;
}

void text_copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

void result_set(result *r, const result_field *field, const char *text)
{
    char *at = (char *)r + field->offset, *end;
    if (field->kind == FIELD_TEXT) {
        text_copy(at, field->size, text);
    } else if (field->kind == FIELD_BOOL) {
        *(bool *)at = strcmp(text, "true") == 0;
    } else if (field->kind == FIELD_COUNT) {
        *(int64_t *)at = strtoll(text, NULL, 10);
    } else {
        double value = strtod(text, &end);
        *(double *)at = end == text || *end ? (double)NAN : value;
    }
}

bool result_same(const result *a, const result *b)
{
    for (size_t i = 0; i < result_field_count; i++) {
        const result_field *field = &result_fields[i];
        const void *x = result_at(a, field), *y = result_at(b, field);
        if (!field->is_key)
            continue;
        if (field->kind == FIELD_TEXT ? strcmp(x, y) != 0 : memcmp(x, y, field->size) != 0)
            return false;
    }
    return true;
}

result result_of(const char *measure, const char *what, const char *unit, bool is_rate)
{
    result r = {.is_rate = is_rate,
                .p50 = (double)NAN,
                .p90 = (double)NAN,
                .p99 = (double)NAN,
                .best = (double)NAN,
                .floor = (double)NAN,
                .of_floor = (double)NAN,
                .of_weft = (double)NAN};
    text_copy(r.measure, sizeof(r.measure), measure);
    text_copy(r.program, sizeof(r.program), "weft");
    text_copy(r.what, sizeof(r.what), what);
    text_copy(r.unit, sizeof(r.unit), unit);
    return r;
}

void result_fill(result *r, series *samples, double floor, const char *floor_name)
{
    size_t n = samples->count;
    if (n == 0)
        return;
    r->p50 = series_summary(samples).p50; /* sorts */
    size_t tenth = n * 9 / 10, hundredth = n * 99 / 100;
    if (n >= 10)
        r->p90 = samples->values[r->is_rate ? n - 1 - tenth : tenth];
    if (n >= 100)
        r->p99 = samples->values[r->is_rate ? n - 1 - hundredth : hundredth];
    r->best = samples->values[r->is_rate ? n - 1 : 0];
    r->samples = (int64_t)n;
    if (!isfinite(floor))
        return;
    r->floor = floor;
    r->of_floor = r->is_rate ? r->p50 / floor : floor / r->p50;
    text_copy(r->floor_name, sizeof(r->floor_name), floor_name);
}

void results_add(results *to, const result *r)
{
    if (to->count == to->room) {
        size_t room = to->room ? 2 * to->room : 64;
        result *items = realloc(to->items, room * sizeof(*items));
        if (!items) {
            fprintf(stderr, "weft-perf: out of memory\n");
            exit(1);
        }
        to->items = items;
        to->room = room;
    }
    to->items[to->count++] = *r;
}

void results_fini(results *list)
{
    free(list->items);
    *list = (results){0};
}

const result *results_find(const results *in, const result *like)
{
    for (size_t i = 0; i < in->count; i++)
        if (result_same(&in->items[i], like))
            return &in->items[i];
    return NULL;
}
