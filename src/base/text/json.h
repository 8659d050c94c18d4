/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - writes JSON strings, and checks UTF-8. */
#ifndef WFI_JSON_H
#define WFI_JSON_H

#include <stddef.h>
#include <stdio.h>

/* In quotes. UTF-8 goes as it is; a byte that belongs to none becomes \u00XX, so that the file can be read whatever
 * the name. */
void wfi_json_write_string(FILE *to, const char *text);

/* Bytes of the UTF-8 sequence that begins here, of a code point that may stand in text; 0: it is none. It may read up
 * to a byte that belongs to none, such as the NUL at the end. */
size_t wfi_utf8_size(const char *text);

#endif
