/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - a growing hash table from uint64 to non-NULL pointers, with open addressing. Not thread-safe.
 *
 * A worker that chooses the keys of another worker's table could choose keys that all collide, so that every lookup is
 * slow. So a table whose keys come from other workers has a random, secret hash key, which is used from 256 slots on.
 */
#ifndef WFI_MAP_H
#define WFI_MAP_H

#include <weft/status.h>

typedef struct wfi_hash_key {
    uint8_t bytes[16];
} wfi_hash_key;

typedef struct wfi_map {
    struct wfi_map_slot *slots;
    size_t capacity, count, used;
    const wfi_hash_key *hash_key; /* NULL: this worker chooses the keys */
} wfi_map;

void wfi_map_init(wfi_map *map); /* allocates nothing */
/* For keys that others choose. `hash_key` must outlive the map, and not change while the map has entries. */
void wfi_map_init_keyed(wfi_map *map, const wfi_hash_key *hash_key);
void wfi_map_fini(wfi_map *map);
size_t wfi_map_most_bytes(size_t count); /* the largest size of a table into which `count` keys were put */
weft_status wfi_map_put(wfi_map *map, uint64_t key, void *value); /* WEFT_ERR_EXISTS, WEFT_ERR_MEMORY */
void *wfi_map_get(const wfi_map *map, uint64_t key);              /* NULL if absent */
void *wfi_map_take(wfi_map *map, uint64_t key);                   /* removes; NULL if absent */
/* Returns the entries in an unspecified but deterministic order: start with *cursor = 0; NULL at the end. Meanwhile
 * entries may be taken, and none may be put. `key` may be NULL. */
void *wfi_map_next(const wfi_map *map, size_t *cursor, uint64_t *key);

/* The number of slots that a lookup of `key` visits. Exposed for tests. */
size_t wfi_map_probes(const wfi_map *map, uint64_t key);

uint64_t wfi_hash_bytes(const void *data, size_t size); /* FNV-1a, 64 bits; stable across machines */
/* SipHash-2-4: without the key it is infeasible to find two inputs that collide. */
uint64_t wfi_hash_keyed(const wfi_hash_key *hash_key, const void *data, size_t size);

#endif
