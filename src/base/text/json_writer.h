/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_writer.h - writes JSON objects and arrays to a stream, item by item, with the commas.
 *
 *     wfi_json_open(j, "peer", '{');
 *     wfi_json_put_number(j, "rank", 3);
 *     wfi_json_close(j, '}');
 *
 * `key` is the item's name in an object, NULL in an array.
 */
#ifndef WFI_JSON_WRITER_H
#define WFI_JSON_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct wfi_json {
    FILE *to;
    bool separated; /* the next item needs no comma before it */
} wfi_json;

/* Begins an item, whose text the caller writes to `to`. */
void wfi_json_item(wfi_json *j, const char *key);
void wfi_json_open(wfi_json *j, const char *key, char bracket);
void wfi_json_close(wfi_json *j, char bracket);
void wfi_json_put_text(wfi_json *j, const char *key, const char *text); /* NULL: null */
void wfi_json_put_number(wfi_json *j, const char *key, uint64_t number);
void wfi_json_put_bool(wfi_json *j, const char *key, bool value);
/* Writes to_ns - from_ns in milliseconds; null if not `known`. */
void wfi_json_put_ms(wfi_json *j, const char *key, uint64_t from_ns, uint64_t to_ns, bool known);

#endif
