/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - log lines. Any thread may log.
 *
 * The function that detects an error logs it, once; callers that pass the error on do not. Lines are in lower case and
 * never contain a secret or a key. Lines of an agent are logged with its rank, by functions of the layers above.
 */
#ifndef WFI_LOG_H
#define WFI_LOG_H

#include "base/clock.h"

#include <weft/log.h>
#include <weft/status.h>

#include <stdarg.h>
#include <stdatomic.h>

extern _Atomic int wfi_log_level_now;

/* The origin of a line. */
typedef struct wfi_log_context {
    int rank;               /* -1: none */
    uint64_t call_id;       /* 0: none */
    const wfi_clock *clock; /* of a simulation: the line has its time; NULL or the machine's clock: the time of day */
} wfi_log_context;

/* The value of WEFT_LOG, or the default; WEFT_ERR_INVALID. */
weft_status wfi_log_setting(int *level, weft_error **error);
void wfi_log_line(weft_log_level level, const char *format, ...) WEFT_PRINTF(2, 3);
void wfi_log_in(const wfi_log_context *context, weft_log_level level, const char *format, ...) WEFT_PRINTF(3, 4);
void wfi_log_line_in(const wfi_log_context *context, weft_log_level level, const char *format, va_list args)
    WEFT_PRINTF(3, 0);

static inline bool wfi_log_wants(weft_log_level level)
{
    return (int)level <= atomic_load_explicit(&wfi_log_level_now, memory_order_relaxed);
}

#define wfi_log(level, ...)                                                                                            \
    do {                                                                                                               \
        if (wfi_log_wants(level))                                                                                      \
            wfi_log_line((level), __VA_ARGS__);                                                                        \
    } while (0)

#endif
