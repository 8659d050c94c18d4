/* SPDX-License-Identifier: Apache-2.0 */
/* pointers.h - a growing array of pointers; all zero is an empty one, and free(items) ends it. */
#ifndef WFI_POINTERS_H
#define WFI_POINTERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct wfi_pointers {
    void **items;
    size_t count, capacity;
} wfi_pointers;

bool wfi_pointers_push(wfi_pointers *list, void *item); /* false: no memory */

#endif
