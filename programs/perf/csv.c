/* SPDX-License-Identifier: Apache-2.0 */
/* csv.c - results as CSV: a head with the names of the fields, then one line each. */
#include "perf/writers.h"

#include <math.h>

static void write_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++)
        fprintf(to, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', to);
}

static void write_field(FILE *to, const result *r, const result_field *field)
{
    const void *at = result_at(r, field);
    if (field->kind == FIELD_TEXT)
        write_text(to, at);
    else if (field->kind == FIELD_COUNT)
        fprintf(to, "%lld", (long long)*(const int64_t *)at);
    else if (field->kind == FIELD_BOOL)
        fputs(*(const bool *)at ? "true" : "false", to);
    else if (isfinite(*(const double *)at))
        fprintf(to, "%.6g", *(const double *)at);
}

void csv_write(FILE *to, const results *found)
{
    for (size_t i = 0; i < result_field_count; i++)
        fprintf(to, "%s%s", i ? "," : "", result_fields[i].name);
    for (size_t k = 0; k < found->count; k++)
        for (size_t i = 0; i < result_field_count; i++) {
            fputs(i ? "," : "\n", to);
            write_field(to, &found->items[k], &result_fields[i]);
        }
    fputc('\n', to);
}
