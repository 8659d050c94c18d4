/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - visits all values of a list and of the lists in it, in the order in which they are encoded: a list, then its
 * items.
 *
 *     wfi_walk walk;
 *     wfi_walk_begin(&walk, values);
 *     for (const weft_value *value; (value = wfi_walk_next(&walk));)
 *         ...
 *
 * A list is not entered if it is deeper than WEFT_MAX_LIST_DEPTH, if it has more than WEFT_MAX_VALUES items, or if it
 * has a count above 0 and items at NULL. If the values are yours you may change the one that wfi_walk_next gave you.
 * The next call enters it if it is a list by then.
 */
#ifndef WFI_WALK_H
#define WFI_WALK_H

#include <weft/value.h>

#include <stdbool.h>

typedef struct wfi_walk {
    struct {
        const weft_value *items;
        size_t count, at;
    } lists[WEFT_MAX_LIST_DEPTH + 1]; /* from the outermost to the one that is being read */
    int depth;                        /* of the latter; a list among its items has one more */
    const weft_value *last;           /* what was given */
} wfi_walk;

/* The values may be lists, or the walk is inside one. */
const weft_value *wfi_walk_next_in_lists(wfi_walk *walk);

static inline void wfi_walk_begin(wfi_walk *walk, weft_args values)
{
    walk->depth = 0;
    walk->last = NULL;
    walk->lists[0].items = values.items;
    walk->lists[0].count = values.items && values.count <= WEFT_MAX_VALUES ? values.count : 0;
    walk->lists[0].at = 0;
}

static inline const weft_value *wfi_walk_next(wfi_walk *walk) /* NULL: there is no more */
{
    if (walk->depth || (walk->last && walk->last->type == WEFT_TYPE_LIST))
        return wfi_walk_next_in_lists(walk);
    bool more = walk->lists[0].at < walk->lists[0].count;
    return walk->last = more ? &walk->lists[0].items[walk->lists[0].at++] : NULL;
}

/*
 * The position of the last value: its index, after the indexes of the lists around it, as in "3.0.1". Returns `text`.
 */
#define WFI_WALK_PATH 64
const char *wfi_walk_path(const wfi_walk *walk, char text[WFI_WALK_PATH]);

/* The tensors of a value that is a tensor or a list of tensors; otherwise none. */
static inline weft_tensors wfi_value_tensors(const weft_value *value)
{
    if (value->type == WEFT_TYPE_TENSORS)
        return value->as.tensors;
    return value->type == WEFT_TYPE_TENSOR ? (weft_tensors){&value->as.tensor, 1} : (weft_tensors){NULL, 0};
}

#endif
