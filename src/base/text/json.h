/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - a text as a JSON string. */
#ifndef WFI_JSON_H
#define WFI_JSON_H

#include <stdio.h>

/* In quotes. UTF-8 goes as it is; a byte that belongs to none becomes \u00XX, so that the file can be read whatever the name. */
void wfi_json_write_string(FILE *to, const char *text);

#endif
