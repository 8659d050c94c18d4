/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - log lines. The function that decides an error logs it once; callers that pass it on do not. Lower case. */
#ifndef WFI_LOG_H
#define WFI_LOG_H

#include <weft/log.h>

#include <stdatomic.h>

extern _Atomic int wfi_log_level_now;

void wfi_log_line(weft_log_level level, const char *format, ...) WEFT_PRINTF(2, 3);

#define wfi_log(level, ...)                                                                                            \
    do {                                                                                                               \
        if ((int)(level) <= atomic_load_explicit(&wfi_log_level_now, memory_order_relaxed))                            \
            wfi_log_line((level), __VA_ARGS__);                                                                        \
    } while (0)

#endif
