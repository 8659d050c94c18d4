/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c - see utf8.h. */
#include "base/utf8.h"

#include <string.h>

#define TAIL_MOST 3 /* bytes of a character after its first */

static size_t size_of_character(unsigned char first)
{
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
}

/* Returns `size`, or less if the last bytes begin a character that is not complete. */
static size_t whole(const char *text, size_t size)
{
    for (size_t back = 1; back <= TAIL_MOST && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        if ((c & 0xc0) != 0x80)
            return size_of_character(c) > back ? size - back : size;
    }
    return size;
}

int wfi_utf8_fit(const char *text, int most)
{
    size_t size = strnlen(text, (size_t)most);
    return (int)(size < (size_t)most ? size : whole(text, size));
}

int wfi_utf8_print_v(char *out, size_t room, const char *format, va_list args)
{
    int length = vsnprintf(out, room, format, args);
    if (length > 0 && room > 0 && (size_t)length >= room)
        out[whole(out, room - 1)] = '\0';
    return length;
}

int wfi_utf8_print(char *out, size_t room, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = wfi_utf8_print_v(out, room, format, args);
    va_end(args);
    return length;
}
