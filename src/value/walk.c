/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c - see walk.h. */
#include "value/walk.h"

#include <stdio.h>

const weft_value *wfi_walk_next_in_lists(wfi_walk *walk)
{
    const weft_value *last = walk->last;
    if (last && last->type == WEFT_TYPE_LIST && walk->depth < WEFT_MAX_LIST_DEPTH) {
        const weft_args *list = &last->as.list;
        walk->depth++;
        walk->lists[walk->depth].items = list->items;
        walk->lists[walk->depth].count = list->items && list->count <= WEFT_MAX_VALUES ? list->count : 0;
        walk->lists[walk->depth].at = 0;
    }
    while (walk->depth > 0 && walk->lists[walk->depth].at == walk->lists[walk->depth].count)
        walk->depth--;
    bool more = walk->lists[walk->depth].at < walk->lists[walk->depth].count;
    walk->last = more ? &walk->lists[walk->depth].items[walk->lists[walk->depth].at++] : NULL;
    return walk->last;
}

const char *wfi_walk_path(const wfi_walk *walk, char text[WFI_WALK_PATH])
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i <= walk->depth && at < WFI_WALK_PATH; i++)
        at += (size_t)snprintf(text + at, WFI_WALK_PATH - at, "%s%zu", i ? "." : "", walk->lists[i].at - 1);
    return text;
}
