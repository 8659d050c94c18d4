/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.c - the memory that peers may read.
 *
 * A region has a record in a table of this process. Its key is random, and its low bits are the record's index. A peer
 * reads the record together with the data, and takes the data only if the record still has that key and includes the
 * range. So closing a region needs no agreement: it overwrites the key. The table does not move, and the first record
 * is for probes (read.c).
 */
#include "base/alloc.h"
#include "host/host.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RECORDS (1u << WFI_HOST_REGIONS_BITS)

typedef struct host_region {
    wfi_region base;
    uint32_t index;
} host_region;

static uint64_t random_key(uint32_t index)
{
    uint64_t key = 0;
    while (!(key >> WFI_HOST_REGIONS_BITS))
        randombytes_buf(&key, sizeof(key));
    return key << WFI_HOST_REGIONS_BITS | index;
}

int wfi_host_regions_open(wfi_host *host)
{
    size_t size = RECORDS * sizeof(*host->table);
    void *table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED)
        return errno;
    (void)madvise(table, size, MADV_NOHUGEPAGE); /* a huge page would be used for a few records */
    host->table = table;
    host->table_used = 1;
    atomic_store(&host->table[0].key, random_key(0));
    return 0;
}

void wfi_host_regions_close(wfi_host *host)
{
    if (host->table)
        munmap(host->table, RECORDS * sizeof(*host->table));
}

/* 0: all records are in use. */
static uint32_t take_record(wfi_host *host)
{
    uint32_t index = host->table_free;
    if (index)
        host->table_free = (uint32_t)atomic_load_explicit(&host->table[index].access, memory_order_relaxed);
    else if (host->table_used < RECORDS)
        index = host->table_used++;
    return index;
}

weft_status wfi_host_region_open(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    wfi_host *host = wfi_host_of(fabric);
    if (memory->kind != WFI_MEMORY_HOST)
        return WEFT_ERR_UNSUPPORTED;
    if (!memory->data || memory->size == 0 || !access)
        return WEFT_ERR_INVALID;
    host_region *region = wfi_calloc(1, sizeof(*region));
    if (!region)
        return WEFT_ERR_MEMORY;
    wfi_mutex_lock(&host->regions_lock);
    uint32_t index = take_record(host);
    if (index) {
        wfi_host_record *record = &host->table[index];
        region->index = index;
        region->base.base = (uintptr_t)memory->data;
        region->base.key = random_key(index);
        atomic_store_explicit(&record->start, region->base.base, memory_order_relaxed);
        atomic_store_explicit(&record->end, region->base.base + memory->size, memory_order_relaxed);
        atomic_store_explicit(&record->access, access & WFI_REMOTE_READ, memory_order_relaxed);
        atomic_store(&record->key, region->base.key);
    }
    wfi_mutex_unlock(&host->regions_lock);
    if (!index) {
        free(region);
        return WEFT_ERR_MEMORY;
    }
    *out = &region->base;
    return WEFT_OK;
}

void wfi_host_region_close(wfi_fabric *fabric, wfi_region *closing)
{
    wfi_host *host = wfi_host_of(fabric);
    if (!closing)
        return;
    host_region *region = wfi_container_of(closing, host_region, base);
    wfi_host_record *record = &host->table[region->index];
    wfi_mutex_lock(&host->regions_lock);
    atomic_store(&record->key, 0); /* before the owner changes the memory */
    atomic_store_explicit(&record->access, host->table_free, memory_order_relaxed);
    host->table_free = region->index;
    wfi_mutex_unlock(&host->regions_lock);
    free(region);
}
