/* SPDX-License-Identifier: Apache-2.0 */
/* sized.c - structs of the program in this library's size; see sized.h. */
#include "base/text/sized.h"

#include <string.h>

static bool is_zero(const unsigned char *bytes, size_t size)
{
    while (size && !*bytes)
        bytes++, size--;
    return !size;
}

const void *wfi_sized_copy(const void *given, size_t size, void *own, size_t own_size)
{
    size_t known = !given ? 0 : size < own_size ? size : own_size;
    if (given && !is_zero((const unsigned char *)given + known, size - known))
        return NULL;
    memset(own, 0, own_size);
    if (known)
        memcpy(own, given, known);
    return own;
}

void wfi_sized_give(void *to, size_t size, const void *own, size_t own_size)
{
    size_t known = size < own_size ? size : own_size;
    memcpy(to, own, known);
    memset((char *)to + known, 0, size - known);
}

weft_status wfi_refuse_newer(weft_error **error, const char *function, const char *type)
{
    return wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: " WFI_NEWER, function, type);
}
