/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - building weft_error with its detail, and its form on the wire. */
#ifndef WFI_ERROR_H
#define WFI_ERROR_H

#include "base/codec.h"

#include <weft/status.h>

#include <stdarg.h>

#define WFI_ERROR_HOPS_MAX 16
#define WFI_ERROR_MESSAGE_MAX 1024 /* bytes, the NUL included; longer ones are cut */
#define WFI_ERROR_FUNCTION_MAX 256 /* likewise */

bool wfi_status_is_known(int status); /* one of weft_status */

/* The log has the detail of a failure whose code the calling thread's function returns: weft_report adds no line for
 * it. */
void wfi_status_said(weft_status status);

typedef struct wfi_error_detail {
    weft_status code; /* negative; anything else becomes WEFT_ERR_INVALID */
    weft_status remote_code;
    const char *function; /* copied; NULL: none */
    int worker;           /* -1: here */
} wfi_error_detail;

weft_error *wfi_error_create(const wfi_error_detail *detail, const char *format, ...) WEFT_PRINTF(2, 3);
weft_error *wfi_error_create_v(const wfi_error_detail *detail, const char *format, va_list args) WEFT_PRINTF(2, 0);
/* A copy with one more hop (a worker it passed); past WFI_ERROR_HOPS_MAX, or without memory, the hop is left out. */
weft_error *wfi_error_with_hop(const weft_error *error, int rank);
/* A copy with other codes, and with `worker` where the original says "here". */
weft_error *wfi_error_recoded(const weft_error *error, weft_status code, weft_status remote_code, int worker);
/* A reference to the same error if it names a function (or `function` is NULL or ""), else a copy that names this one. */
weft_error *wfi_error_naming(const weft_error *error, const char *function);
/* Moves `error` to *out if out is not NULL, else drops it. For functions with an optional error output. */
void wfi_error_give(weft_error **out, weft_error *error);
/* Gives one of here, with that text, if anybody asked for it (out is not NULL). Returns `code`. */
weft_status wfi_error_fail(weft_error **out, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

void wfi_error_write(wfi_writer *writer, const weft_error *error);
/* One without texts and hops: 21 bytes. */
void wfi_error_write_bare(wfi_writer *writer, weft_status code, weft_status remote_code, int worker);
/* NULL if malformed. Unknown codes become WEFT_ERR_PROTOCOL; the remote code is the handler's own and stays as it is. */
weft_error *wfi_error_read(wfi_reader *reader);

#endif
