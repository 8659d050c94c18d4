/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - creates errors with details, and encodes them for messages. */
#ifndef WFI_ERROR_H
#define WFI_ERROR_H

#include "base/codec.h"

#include <weft/status.h>

#include <stdarg.h>

#define WFI_ERROR_HOPS_MAX 16
#define WFI_ERROR_MESSAGE_MAX 1024 /* bytes, including the NUL; longer messages are cut */
#define WFI_ERROR_NOTE_MAX 384     /* the same for the text of wfi_error_note_memory */
#define WFI_ERROR_FUNCTION_MAX 256 /* the same for names of functions */

bool wfi_status_is_known(int status); /* whether it is a value of weft_status */

/* The calling thread's function has logged or printed the detail of a failure, and will return its code:
 * weft_report adds no line for it. WEFT_OK: forgets what was said before, because a program has the detail of a new
 * failure. */
void wfi_status_logged(weft_status status);

/* Adds this text to the next error with the code WEFT_ERR_MEMORY that the calling thread creates. For functions that
 * know which memory was missing, and return only a status. NULL: forgets the text. */
void wfi_error_note_memory(const char *text);

typedef struct wfi_error_detail {
    weft_status code;        /* negative; anything else becomes WEFT_ERR_INVALID */
    weft_status remote_code; /* WEFT_ERR_REMOTE: the handler's; others: WEFT_ERR_UNKNOWN if the handler may have run */
    const char *function;    /* copied; NULL: none */
    int worker;              /* -1: this worker */
    bool did_not_run;        /* it did not, whatever the code says; not sent to other workers */
} wfi_error_detail;

weft_error *wfi_error_create(const wfi_error_detail *detail, const char *format, ...) WEFT_PRINTF(2, 3);
weft_error *wfi_error_create_v(const wfi_error_detail *detail, const char *format, va_list args) WEFT_PRINTF(2, 0);
/* A copy with one more hop (a worker that passed it on). Beyond WFI_ERROR_HOPS_MAX, or without memory, the hop is left
 * out. */
weft_error *wfi_error_with_hop(const weft_error *error, int rank);
weft_status wfi_error_remote_code(const weft_error *error); /* NULL: WEFT_OK */
/* A copy with other codes. If the worker of the original is -1, the copy has `worker`. */
weft_error *wfi_error_recoded(const weft_error *error, weft_status code, weft_status remote_code, int worker);
/* A copy that names `function`. If the error names one, or `function` is NULL or "": a reference to the same error. */
weft_error *wfi_error_naming(const weft_error *error, const char *function);
/* Moves `error` to *out, or drops it if `out` is NULL. For functions with an optional error output. */
void wfi_error_give(weft_error **out, weft_error *error);
/* Sets *out to an error of this worker with that text; `out` may be NULL. Returns `code`. */
weft_status wfi_error_fail(weft_error **out, weft_status code, const char *format, ...) WEFT_PRINTF(3, 4);

void wfi_error_write(wfi_writer *writer, const weft_error *error);
/* Writes an error without texts and hops: 21 bytes. */
void wfi_error_write_bare(wfi_writer *writer, weft_status code, weft_status remote_code, int worker);
/* NULL if malformed. Unknown codes become WEFT_ERR_PROTOCOL; the remote code is the handler's and is not changed. */
weft_error *wfi_error_read(wfi_reader *reader);

#endif
