/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.c - refuses wrong arguments; see refuse.h. */
#include "base/text/refuse.h"

#include "base/error.h"
#include "base/text/log.h"
#include "base/utf8.h"

#include <stdarg.h>

weft_status wfi_refuse(weft_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text, sizeof(text), format, args);
    va_end(args);
    wfi_log(WEFT_LOG_ERROR, "%s", text);
    wfi_status_logged(status);
    return status;
}

weft_status wfi_refuse_null(const char *function, const char *argument)
{
    return wfi_refuse(WEFT_ERR_INVALID, "%s: %s is NULL", function, argument);
}

weft_status wfi_refuse_to(weft_error **error, weft_status status, const char *format, ...)
{
    wfi_error_detail detail = {.code = status, .worker = -1};
    va_list args;
    va_start(args, format);
    wfi_refuse_with(error, wfi_error_create_v(&detail, format, args));
    va_end(args);
    return status;
}

void wfi_refuse_with(weft_error **out, weft_error *error)
{
    if (error && !out)
        (void)wfi_refuse(weft_error_code(error), "%s", weft_error_message(error));
    wfi_error_give(out, error);
}

weft_status wfi_refuse_null_to(weft_error **error, const char *function, const char *argument)
{
    return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: %s is NULL", function, argument);
}

weft_status wfi_refuse_object(const char *function, bool made, weft_error *why, weft_error **error)
{
    if (made)
        return wfi_refuse_null_to(error, function, "out");
    if (!why)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "%s: %s", function, weft_status_text(WEFT_ERR_MEMORY));
    weft_status status = weft_error_code(why);
    wfi_refuse_with(error, why);
    return status;
}

weft_status wfi_refuse_wait(const char *function, int64_t wait_ms)
{
    return wfi_refuse(WEFT_ERR_INVALID, "%s: wait_ms is %lld: pass 0, more, or WEFT_FOREVER", function,
                      (long long)wait_ms);
}
