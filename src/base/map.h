/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - hash table from uint64 to pointer; open addressing, grows, not thread-safe. Values are never NULL. */
#ifndef WFI_MAP_H
#define WFI_MAP_H

#include <weft/status.h>

typedef struct wfi_map {
    struct wfi_map_slot *slots;
    size_t capacity, count, used;
} wfi_map;

void wfi_map_init(wfi_map *map); /* allocates nothing */
void wfi_map_fini(wfi_map *map);
weft_status wfi_map_put(wfi_map *map, uint64_t key, void *value); /* WEFT_ERR_EXISTS, WEFT_ERR_MEMORY */
void *wfi_map_get(const wfi_map *map, uint64_t key);              /* NULL if absent */
void *wfi_map_take(wfi_map *map, uint64_t key);                   /* removes; NULL if absent */
/* Visits all in unspecified but deterministic order: start with *cursor = 0; NULL at the end. No changes meanwhile. */
void *wfi_map_next(const wfi_map *map, size_t *cursor, uint64_t *key);

uint64_t wfi_hash_bytes(const void *data, size_t size); /* FNV-1a, 64 bits; stable across machines */

#endif
