/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - writes JSON strings, and checks UTF-8. */
#ifndef WFI_JSON_H
#define WFI_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Writes a text in quotes. UTF-8 is not changed; an invalid byte becomes \u00XX, so that the file is always valid. */
void wfi_json_write_string(FILE *to, const char *text);

/* The size of the UTF-8 sequence of a valid code point at `text`; 0: there is none. Reads at most up to the first byte
 * that cannot belong to the sequence, such as the NUL at the end. */
size_t wfi_utf8_size(const char *text);

#endif
