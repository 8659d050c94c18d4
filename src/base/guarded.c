/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guarded.c - blocks of powers of two, cut from mappings that are marked MADV_DONTDUMP.
 *
 * A freed block waits in the list of its size for reuse. Mappings are never unmapped: a worker has as many keys as
 * connections, and will have as many again.
 */
#include "base/guarded.h"

#include <assert.h>
#include <pthread.h>
#include <sodium.h>
#include <stdint.h>
#include <sys/mman.h>

#define SMALLEST 64 /* bytes of a block, including its head */
#define KINDS 32
#define MAPPING ((size_t)64 << 10) /* larger blocks have a mapping of their own */

typedef struct block {
    size_t kind; /* it has SMALLEST << kind bytes */
    struct block *next;
} block;

static_assert(sizeof(block) == 16, "what follows is aligned to 16");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *spare[KINDS];
static uint8_t *fresh; /* the part of the newest mapping that was never used */
static size_t fresh_size;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

/* Held during every fork, so that the lists are consistent in the child, which may open its own agent. */
static void take_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void leave_lock(void)
{
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(take_lock, leave_lock, leave_lock);
}

static uint8_t *map(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (madvise(memory, size, MADV_DONTDUMP) == 0)
        return memory;
    munmap(memory, size);
    return NULL;
}

/* [lock] */
static block *cut(size_t size)
{
    if (size > MAPPING)
        return (block *)map(size);
    if (size > fresh_size) { /* the rest of the mapping is too small, and is not used */
        uint8_t *mapping = map(MAPPING);
        if (!mapping)
            return NULL;
        fresh = mapping;
        fresh_size = MAPPING;
    }
    block *made = (block *)fresh;
    fresh += size;
    fresh_size -= size;
    return made;
}

void *wfi_guarded_calloc(size_t size)
{
    size_t kind = 0;
    while (kind < KINDS && ((size_t)SMALLEST << kind) - sizeof(block) < size)
        kind++;
    if (kind == KINDS)
        return NULL;
    pthread_once(&forks_once, watch_forks);
    take_lock();
    block *taken = spare[kind];
    if (taken)
        spare[kind] = taken->next;
    else
        taken = cut((size_t)SMALLEST << kind);
    leave_lock();
    if (!taken)
        return NULL;
    *taken = (block){.kind = kind};
    return taken + 1;
}

void wfi_guarded_free(void *memory)
{
    if (!memory)
        return;
    block *given = (block *)memory - 1;
    sodium_memzero(memory, ((size_t)SMALLEST << given->kind) - sizeof(block));
    take_lock();
    given->next = spare[given->kind];
    spare[given->kind] = given;
    leave_lock();
}
