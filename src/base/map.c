/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - hash table from uint64 to pointer: linear probing with tombstones, at most 3/4 used.
 *
 * `count` slots hold a value, `used` slots hold a value or a tombstone. An insertion that would fill more than 3/4
 * rebuilds the table for twice `count`. This also drops the tombstones, and shrinks a table that was larger before.
 */
#include "base/map.h"

#include "base/alloc.h"

#include <assert.h>
#include <sodium.h>
#include <stdlib.h>

#define CAPACITY_MIN 16
#define KEYED_MIN 256 /* slots. If all keys of a smaller table collide, a lookup takes 96 probes: about 0.25 us */

struct wfi_map_slot {
    uint64_t key;
    void *value; /* NULL: never used; `tombstone`: removed */
};

static char tombstone_object;
static void *const tombstone = &tombstone_object;

/* The finalizer of the splitmix64 generator: ids that differ in few bits get very different hashes. */
static uint64_t mix(uint64_t key)
{
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}

/* The first slot of the search for `key` in a table of `mask` + 1 slots. */
static size_t home(const wfi_map *map, uint64_t key, size_t mask)
{
    return (map->hash_key && mask + 1 >= KEYED_MIN ? wfi_hash_keyed(map->hash_key, &key, sizeof(key)) : mix(key)) &
           mask;
}

/* The slot of `key`, or NULL. *probes: the number of slots that were visited. */
static struct wfi_map_slot *find(const wfi_map *map, uint64_t key, size_t *probes)
{
    size_t mask = map->capacity - 1, at;
    *probes = 0;
    if (map->count == 0)
        return NULL;
    at = home(map, key, mask);
    for (*probes = 1; map->slots[at].value; ++*probes, at = (at + 1) & mask) {
        if (map->slots[at].key == key && map->slots[at].value != tombstone)
            return &map->slots[at];
    }
    return NULL;
}

/* Inserts a new key into a table that has room. Returns true if the slot was never used before. */
static bool place(const wfi_map *map, struct wfi_map_slot *slots, size_t capacity, uint64_t key, void *value)
{
    size_t mask = capacity - 1, at = home(map, key, mask);
    bool fresh;
    while (slots[at].value && slots[at].value != tombstone)
        at = (at + 1) & mask;
    fresh = !slots[at].value;
    slots[at] = (struct wfi_map_slot){.key = key, .value = value};
    return fresh;
}

static weft_status rebuild(wfi_map *map)
{
    size_t capacity = CAPACITY_MIN, i;
    struct wfi_map_slot *slots;
    while (capacity < (map->count + 1) * 2)
        capacity *= 2;
    slots = wfi_calloc(capacity, sizeof(*slots));
    if (!slots)
        return WEFT_ERR_MEMORY;
    for (i = 0; i < map->capacity; i++) {
        if (map->slots[i].value && map->slots[i].value != tombstone)
            place(map, slots, capacity, map->slots[i].key, map->slots[i].value);
    }
    free(map->slots);
    map->slots = slots;
    map->capacity = capacity;
    map->used = map->count;
    return WEFT_OK;
}

void wfi_map_init(wfi_map *map)
{
    wfi_map_init_keyed(map, NULL);
}

void wfi_map_init_keyed(wfi_map *map, const wfi_hash_key *hash_key)
{
    *map = (wfi_map){.hash_key = hash_key};
}

void wfi_map_fini(wfi_map *map)
{
    free(map->slots);
    wfi_map_init_keyed(map, map->hash_key);
}

size_t wfi_map_most_bytes(size_t count)
{
    size_t capacity = CAPACITY_MIN;
    while (capacity * 3 < count * 4)
        capacity *= 2;
    return count ? capacity * 2 * sizeof(struct wfi_map_slot) : 0;
}

weft_status wfi_map_put(wfi_map *map, uint64_t key, void *value)
{
    size_t probes;
    assert(value);
    if (find(map, key, &probes))
        return WEFT_ERR_EXISTS;
    if ((map->used + 1) * 4 > map->capacity * 3) {
        weft_status status = rebuild(map);
        if (status != WEFT_OK)
            return status;
    }
    map->used += place(map, map->slots, map->capacity, key, value);
    map->count++;
    assert(map->count <= map->used && map->used < map->capacity);
    return WEFT_OK;
}

void *wfi_map_get(const wfi_map *map, uint64_t key)
{
    size_t probes;
    struct wfi_map_slot *slot = find(map, key, &probes);
    return slot ? slot->value : NULL;
}

void *wfi_map_take(wfi_map *map, uint64_t key)
{
    size_t probes;
    struct wfi_map_slot *slot = find(map, key, &probes);
    void *value;
    if (!slot)
        return NULL;
    value = slot->value;
    slot->value = tombstone;
    map->count--;
    return value;
}

void *wfi_map_next(const wfi_map *map, size_t *cursor, uint64_t *key)
{
    for (; *cursor < map->capacity; (*cursor)++) {
        struct wfi_map_slot *slot = &map->slots[*cursor];
        if (!slot->value || slot->value == tombstone)
            continue;
        (*cursor)++;
        if (key)
            *key = slot->key;
        return slot->value;
    }
    return NULL;
}

size_t wfi_map_probes(const wfi_map *map, uint64_t key)
{
    size_t probes;
    (void)find(map, key, &probes);
    return probes;
}

/* FNV-1a, 64 bits: offset basis and prime as published by Fowler, Noll and Vo. */
uint64_t wfi_hash_bytes(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;
    for (i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static_assert(sizeof(wfi_hash_key) == crypto_shorthash_KEYBYTES && crypto_shorthash_BYTES == sizeof(uint64_t),
              "what libsodium takes and gives");

uint64_t wfi_hash_keyed(const wfi_hash_key *hash_key, const void *data, size_t size)
{
    uint64_t hash;
    crypto_shorthash((uint8_t *)&hash, data, size, hash_key->bytes);
    return hash;
}
