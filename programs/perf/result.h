/* SPDX-License-Identifier: Apache-2.0 */
/*
 * result.h - one measured quantity: what was measured, over which fabric, its distribution, and the floor beside it.
 *
 * result_fields lists all fields, for the writer and the reader of JSON.
 */
#ifndef WEFT_PERF_RESULT_H
#define WEFT_PERF_RESULT_H

#include "common/measure.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct result {
    char measure[24]; /* "latency"; all results of one measurement stand together */
    char program[24]; /* "weft", or the peer that was measured */
    char fabric[32];  /* the fabric that was requested, for example "tcp"; a peer: beside which it was measured */
    char what[32];    /* "one way" */
    int64_t bytes, workers, window;
    char unit[16];
    bool is_rate;               /* true: larger values are better; false: smaller values are */
    double p50, p90, p99, best; /* p90, p99: 90 and 99 % of the samples are at least as good. NaN: too few samples */
    int64_t samples;
    double floor; /* median of the floor, in the same unit; NaN: there is none */
    char floor_name[48];
    double of_floor;            /* speed divided by the floor's speed: 1 is equally fast. NaN: no floor */
    double of_weft;             /* of a peer: its speed divided by weft's in the same turns. NaN: of weft */
    char control[24], bulk[24]; /* the fabrics of the lanes that were used (weft_agent_fabric); a peer's transport */
} result;

typedef enum field_kind { FIELD_TEXT, FIELD_COUNT, FIELD_NUMBER, FIELD_BOOL } field_kind;
typedef struct result_field {
    const char *name;
    field_kind kind;
    size_t offset, size;
    bool is_key; /* two results with equal keys measure the same */
} result_field;
extern const result_field result_fields[];
extern const size_t result_field_count;

const void *result_at(const result *r, const result_field *field);
/* Sets a field from a text; numbers that cannot be read, and "null", become NaN or 0. */
void result_set(result *r, const result_field *field, const char *text);
bool result_same(const result *a, const result *b); /* equal keys */

/* A result without numbers. Texts are cut to their fields. */
result result_of(const char *measure, const char *what, const char *unit, bool is_rate);
/* Sets the distribution from samples, and of_floor from a median of the floor (NaN: none). Sorts the samples. */
void result_fill(result *r, series *samples, double floor, const char *floor_name);

/* A growing list. Zeroed = empty. */
typedef struct results {
    result *items;
    size_t count, room;
} results;
void results_add(results *to, const result *r); /* ends the program if memory is out */
void results_fini(results *list);
const result *results_find(const results *in, const result *like); /* NULL: none has equal keys */

/* Copies a text into a field of `size` bytes, cut to fit. */
void text_copy(char *to, size_t size, const char *from);

#endif
