/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - writes JSON strings: checks UTF-8, and escapes characters. */
#include "base/text/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

size_t wfi_utf8_size(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t point = size > 1 ? *at & (0x7fu >> size) : *at;
    for (size_t i = 1; i < size; i++) {
        if (at[i] >> 6 != 2)
            return 0; /* also at the end of the text */
        point = point << 6 | (at[i] & 0x3f);
    }
    bool is_good = size && point >= least[size] && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
    return is_good ? size : 0;
}

void wfi_json_write_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t size = wfi_utf8_size((const char *)at);
        if (*at == '"' || *at == '\\')
            fprintf(to, "\\%c", *at);
        else if (!size || *at < 0x20 || *at == 0x7f)
            fprintf(to, "\\u%04x", *at);
        else
            fwrite(at, 1, size, to);
        at += size ? size : 1;
    }
    fputc('"', to);
}
