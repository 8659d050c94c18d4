/* SPDX-License-Identifier: Apache-2.0 */
/* list.h - intrusive doubly linked ring. A node not in a list points at itself. */
#ifndef WFI_LIST_H
#define WFI_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct wfi_list {
    struct wfi_list *next, *prev;
} wfi_list;

#define wfi_container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/*
 * Loop over the items of a list, from the front; `link` is the member by which items are in it. WFI_FOR_LIST: the
 * current item must stay in the list. WFI_FOR_LIST_TAKING: the current item may be removed, but the next one
 * (next_item) must stay.
 */
#define WFI_FOR_LIST(type, item, list, link)                                                                           \
    for (type *item = wfi_container_of((list)->next, type, link); &item->link != (list);                               \
         item = wfi_container_of(item->link.next, type, link))
#define WFI_FOR_LIST_TAKING(type, item, next_item, list, link)                                                         \
    for (type *item = wfi_container_of((list)->next, type, link),                                                      \
              *next_item = wfi_container_of(item->link.next, type, link);                                              \
         &item->link != (list); item = next_item, next_item = wfi_container_of(item->link.next, type, link))

static inline void wfi_list_init(wfi_list *list)
{
    list->next = list->prev = list;
}

static inline bool wfi_list_empty(const wfi_list *list)
{
    return list->next == list;
}

static inline void wfi_list_insert_after(wfi_list *where, wfi_list *node)
{
    node->next = where->next;
    node->prev = where;
    where->next->prev = node;
    where->next = node;
}

static inline void wfi_list_push_back(wfi_list *list, wfi_list *node)
{
    wfi_list_insert_after(list->prev, node);
}

static inline void wfi_list_push_front(wfi_list *list, wfi_list *node)
{
    wfi_list_insert_after(list, node);
}

static inline void wfi_list_remove(wfi_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    wfi_list_init(node);
}

static inline wfi_list *wfi_list_pop_front(wfi_list *list)
{
    wfi_list *first = list->next;
    if (first == list)
        return NULL;
    wfi_list_remove(first);
    return first;
}

/* Moves all of `from` to the end of `to`. */
static inline void wfi_list_splice(wfi_list *to, wfi_list *from)
{
    if (wfi_list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    wfi_list_init(from);
}

#endif
