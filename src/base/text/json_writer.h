/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_writer.h - objects and arrays written to a stream, item by item: commas come by themselves.
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
    bool separated; /* no comma before the next item */
} wfi_json;

/* Begins an item, whose text the caller writes to `to`. */
void wfi_json_item(wfi_json *j, const char *key);
void wfi_json_open(wfi_json *j, const char *key, char bracket);
void wfi_json_close(wfi_json *j, char bracket);
void wfi_json_put_text(wfi_json *j, const char *key, const char *text); /* NULL: null */
void wfi_json_put_number(wfi_json *j, const char *key, uint64_t number);
void wfi_json_put_bool(wfi_json *j, const char *key, bool value);
/* In milliseconds, or null for a moment that is not known, or never comes. */
void wfi_json_put_ms(wfi_json *j, const char *key, uint64_t from_ns, uint64_t to_ns, bool known);

#endif
