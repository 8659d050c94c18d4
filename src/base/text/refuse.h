/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse.h - how public functions refuse a wrong argument: one line in the log, and the status to return. A function
 * with an optional error output logs only if the caller does not take the error.
 *
 * A line reads "weft_future_wait: wait_ms is -9: ...": the function, the argument and its value, and what to pass
 * instead. weft_report adds no line of its own for a failure that was refused here. Any thread.
 */
#ifndef WFI_REFUSE_H
#define WFI_REFUSE_H

#include <weft/status.h>

/* Logs the text at level error. Returns `status`. */
__attribute__((cold)) weft_status wfi_refuse(weft_status status, const char *format, ...) WEFT_PRINTF(2, 3);
/* Logs that `argument` is NULL. Returns WEFT_ERR_INVALID. */
__attribute__((cold)) weft_status wfi_refuse_null(const char *function, const char *argument);
/* The same, but writes the message to *error, or to the log if `error` is NULL. */
__attribute__((cold)) weft_status wfi_refuse_null_to(weft_error **error, const char *function, const char *argument);
/* Writes the message to *error, or to the log if `error` is NULL. Returns `status`. */
__attribute__((cold)) weft_status wfi_refuse_to(weft_error **error, weft_status status, const char *format, ...)
    WEFT_PRINTF(3, 4);
/* Moves `error`, which may be NULL, to *out; if `out` is NULL, writes its message to the log and drops it. */
void wfi_refuse_with(weft_error **out, weft_error *error);
/* For constructors: gives the program the object `made`, or refuses with `why`, which it takes over (NULL: no memory).
 * Without `out` it releases the object. The result is the status. */
#define WFI_GIVE(function, made, why, unref, out, error)                                                               \
    ((made) && (out) ? (*(out) = (made), WEFT_OK)                                                                      \
                     : (unref(made), wfi_refuse_object(function, (made) != NULL, why, error)))
__attribute__((cold)) weft_status wfi_refuse_object(const char *function, bool made, weft_error *why,
                                                    weft_error **error);
/* Logs that wait_ms is below WEFT_FOREVER. Returns WEFT_ERR_INVALID. */
__attribute__((cold)) weft_status wfi_refuse_wait(const char *function, int64_t wait_ms);

#endif
