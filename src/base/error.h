/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - building weft_error with its detail, and its form on the wire. */
#ifndef WFI_ERROR_H
#define WFI_ERROR_H

#include "base/codec.h"

#include <weft/status.h>

#include <stdarg.h>

#define WFI_ERROR_HOPS_MAX 16
#define WFI_ERROR_MESSAGE_MAX 1024 /* bytes, the NUL included; longer ones are cut */

typedef struct wfi_error_detail {
    weft_status code, remote_code;
    const char *function; /* copied; NULL: none */
    int worker;           /* -1: here */
} wfi_error_detail;

weft_error *wfi_error_create(const wfi_error_detail *detail, const char *format, ...) WEFT_PRINTF(2, 3);
weft_error *wfi_error_create_v(const wfi_error_detail *detail, const char *format, va_list args);
/* A copy with one more hop (a worker it passed). */
weft_error *wfi_error_with_hop(const weft_error *error, int rank);
/* Writes `detail->message` to *out if out is not NULL, else drops the error. For options with an error field. */
void wfi_error_give(weft_error **out, weft_error *error);

void wfi_error_write(wfi_writer *writer, const weft_error *error);
weft_error *wfi_error_read(wfi_reader *reader); /* NULL if malformed; unknown codes become WEFT_ERR_PROTOCOL */

#endif
