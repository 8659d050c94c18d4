/* SPDX-License-Identifier: Apache-2.0 */
/* pointers.h - a growing array of pointers; all zero is an empty one, and free(items) ends it. */
#ifndef WFI_POINTERS_H
#define WFI_POINTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct wfi_pointers {
    void **items;
    size_t count, capacity;
} wfi_pointers;

/* False: no memory. */
static inline bool wfi_pointers_push(wfi_pointers *list, void *item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        void **items = realloc(list->items, capacity * sizeof(*items));
        if (!items)
            return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

#endif
