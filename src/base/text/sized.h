/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sized.h - structs of the program in this library's size. The program may have been compiled with the headers of
 * another version, whose structs are shorter or longer (weft/base.h, SIZES).
 */
#ifndef WFI_SIZED_H
#define WFI_SIZED_H

#include "base/text/refuse.h"

#include <weft/base.h>

/*
 * The program's struct `given`, which has `size` bytes, as a struct of this library: `given` itself if it has the same
 * size; otherwise *own, which gets its first bytes, and zeros in the rest. With `given` NULL: zeros. Returns NULL if
 * `given` is longer, and its further bytes are not all zero: the program asks for what this library does not have.
 */
#define WFI_SIZED(given, size, own) ((const __typeof__(*(own)) *)wfi_sized(given, size, own, sizeof(*(own))))
const void *wfi_sized_copy(const void *given, size_t size, void *own, size_t own_size);
static inline const void *wfi_sized(const void *given, size_t size, void *own, size_t own_size)
{
    return given && size == own_size ? given : wfi_sized_copy(given, size, own, own_size);
}

/* Writes a struct of this library to the program's, which has `size` bytes: as much as fits, and zeros after it. */
void wfi_sized_give(void *to, size_t size, const void *own, size_t own_size);

/* Whether the member `reserved` of a struct, the room for later fields, is zero. */
#define WFI_ROOM_IS_ZERO(of) wfi_room_is_zero((of)->reserved, sizeof((of)->reserved) / sizeof(*(of)->reserved))
static inline bool wfi_room_is_zero(const uint64_t *room, size_t count)
{
    uint64_t set = 0;
    for (size_t i = 0; i < count; i++)
        set |= room[i];
    return !set;
}

/* A format for the name of a struct. */
#define WFI_NEWER "the program sets fields of %s that this library does not have: it was compiled with a newer weft"
/* Refuses such a struct. Writes the message to *error, or to the log if `error` is NULL. Returns WEFT_ERR_INVALID. */
__attribute__((cold)) weft_status wfi_refuse_newer(weft_error **error, const char *function, const char *type);

#endif
