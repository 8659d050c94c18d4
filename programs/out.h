/* SPDX-License-Identifier: Apache-2.0 */
/* out.h - a report in sections, as text for people or as one JSON object. A section has items, or rows of items. */
#ifndef WEFT_INFO_OUT_H
#define WEFT_INFO_OUT_H

#include "base/text/json_writer.h"

typedef struct out {
    wfi_json json;
    bool is_json, has_section, has_rows, in_row, has_item;
} out;

void out_open(out *to, FILE *stream, bool is_json);
void out_close(out *to);
/* The first line: text without a key. JSON: "verdict". */
void out_verdict(out *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the section before. JSON: an object, or with `has_rows` an array of objects. */
void out_section(out *to, const char *name, bool has_rows);
/* Begins a row: its first item is `key`, which text shows without the key. */
void out_row(out *to, const char *key, const char *value);
void out_text(out *to, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A number; below 0: null, which text does not show. */
void out_number(out *to, const char *key, int64_t number);
/* The same for a limit; 0: null, which text shows as "unlimited". */
void out_limit(out *to, const char *key, int64_t limit);

#endif
