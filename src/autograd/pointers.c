/* SPDX-License-Identifier: Apache-2.0 */
/* pointers.c - a growing array of pointers. */
#include "autograd/pointers.h"

#include <stdlib.h>

bool wfi_pointers_push(wfi_pointers *list, void *item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        void **items = realloc(list->items, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}
