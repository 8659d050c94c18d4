/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8.h - texts of limited size, cut between two characters of UTF-8. Texts are not checked: bytes of other encodings
 * are kept, and at most three of them are lost at the cut.
 */
#ifndef WFI_UTF8_H
#define WFI_UTF8_H

#include <weft/base.h>

#include <stdarg.h>

/* The number of bytes of `text`, at most `most`, to print with "%.*s" so that no character is cut. */
int wfi_utf8_fit(const char *text, int most);
/* Like snprintf and vsnprintf. */
int wfi_utf8_print(char *out, size_t room, const char *format, ...) WEFT_PRINTF(3, 4);
int wfi_utf8_print_v(char *out, size_t room, const char *format, va_list args) WEFT_PRINTF(3, 0);

#endif
