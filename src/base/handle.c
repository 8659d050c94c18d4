/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - the end of handles, and the sentence about misuse; see handle.h. */
#include "base/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void wfi_handle_free(void *handle)
{
    if (!handle)
        return;
    atomic_store_explicit(&((wfi_handle *)handle)->word, 0, memory_order_relaxed);
    free(handle);
}

void wfi_handle_end(void *handle, const char *function)
{
    uint32_t live = WFI_HANDLE_LIVE;
    if (!atomic_compare_exchange_strong_explicit(&((wfi_handle *)handle)->word, &live, 0, memory_order_relaxed,
                                                 memory_order_relaxed))
        wfi_handle_refuse(handle, function, NULL);
}

_Noreturn void wfi_handle_refuse(const void *handle, const char *function, const char *why)
{
    char text[512];
    const char *sized = strstr(function, "_sized"); /* the program calls the inline function without it */
    int size = snprintf(text, sizeof(text), "%.*s: %p is %s\n",
                        (int)(sized ? sized - function : (ptrdiff_t)strlen(function)), function, handle,
                        why ? why
                            : "no object of weft, or no longer one: it was closed, finished or released before, it is "
                              "memory of something else, or it was overwritten");
    ssize_t written = write(STDERR_FILENO, text, (size_t)size); /* one write: texts of several threads do not mix */
    (void)written;
    abort();
}
