/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - translates libfabric's return values to weft's. */
#include "objects.h"

#include "base/descriptors.h"
#include "base/utf8.h"

#include <errno.h>

weft_status wfofi_status(int ret)
{
    switch (-ret) {
    case 0:
        return WEFT_OK;
    case FI_EAGAIN:
        return WEFT_ERR_AGAIN;
    case FI_ENOMEM:
        return WEFT_ERR_MEMORY;
    case EMFILE:
    case ENFILE:
        return WEFT_ERR_SYSTEM;
    case FI_EINVAL:
        return WEFT_ERR_INVALID;
    case FI_ETRUNC:
    case FI_EMSGSIZE:
        return WEFT_ERR_TOO_LARGE;
    case FI_ECANCELED:
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ETIMEDOUT:
    case EPIPE:
        return WEFT_ERR_UNREACHABLE;
    default:
        return WEFT_ERR_FABRIC;
    }
}

#define FEW_DESCRIPTORS 6 /* one call opens at most this many, and closes them before it reports a failure */

weft_status wfofi_fail(weft_error **error, int ret, const char *format, ...)
{
    weft_status status = ret == -FI_ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_FABRIC;
    char what[512];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(what, sizeof(what), format, args);
    va_end(args);
    bool exhausted =
        wfi_descriptors_lack(FEW_DESCRIPTORS); /* libfabric reports this as "Input/output error" in some places */
    char hint[96] = "";
    if (exhausted) {
        status = WEFT_ERR_SYSTEM;
        snprintf(hint, sizeof(hint), " (this process is about out of file descriptors, its limit is %llu: ulimit -n)",
                 wfi_descriptors_limit());
    }
    bool is_told = ret == -FI_ENODATA; /* fi_getinfo found nothing, which `what` says */
    return wfi_error_fail(error, status, "%s%s%s%s", what, is_told ? "" : ": ", is_told ? "" : fi_strerror(-ret), hint);
}
