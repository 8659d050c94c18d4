/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8.h - texts of bounded size, cut between two characters of UTF-8. Texts are not checked: bytes of other encodings
 * pass, and at most three of them are lost at the cut.
 */
#ifndef WFI_UTF8_H
#define WFI_UTF8_H

#include <weft/base.h>

#include <stdarg.h>

/* Returns how many of the first `most` bytes of `text` to print by "%.*s", so that no character is cut. */
int wfi_utf8_fit(const char *text, int most);
/* As snprintf and vsnprintf. */
int wfi_utf8_print(char *out, size_t room, const char *format, ...) WEFT_PRINTF(3, 4);
int wfi_utf8_print_v(char *out, size_t room, const char *format, va_list args) WEFT_PRINTF(3, 0);

#endif
