/* SPDX-License-Identifier: Apache-2.0 */
/* test_mem_storage.c - storage, recycled slabs, read pins and the registration cache. */
#include "base/clock.h"
#include "mem/mem.h"
#include "mem/slab.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "unit.h"
#include "prng.h"

static wfi_storage *host(size_t size)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, size, &storage), WEFT_OK);
    return storage;
}

static void count(void *arg)
{
    ++*(int *)arg;
}

static void every_class_holds_its_sizes(void **state)
{
    for (size_t size = 1; size < (size_t)1 << 40; size += size / 7 + 1) {
        unsigned c = wfi_slab_class(size);
        assert_true(wfi_slab_class_bytes(c) >= size);
        assert_true(c == 0 || wfi_slab_class_bytes(c - 1) < size);
        assert_int_equal(wfi_slab_class(wfi_slab_class_bytes(c)), c);
    }
}

static void a_freed_slab_is_used_again(void **state)
{
    wfi_slab_stats before, after;
    wfi_storage *first = host((size_t)3 << 20);
    void *data = wfi_storage_data(first);
    wfi_storage_unref(first);
    wfi_slab_stats_read(&before);
    wfi_storage *second = host((size_t)3 << 20);
    wfi_slab_stats_read(&after);
    assert_ptr_equal(wfi_storage_data(second), data);
    assert_true(after.reused == before.reused + 1 && after.mapped == before.mapped);
    wfi_storage_unref(second);
}

static void trimming_gives_idle_slabs_back(void **state)
{
    wfi_slab_stats stats;
    wfi_storage_unref(host((size_t)8 << 20));
    wfi_slab_trim(0);
    wfi_slab_stats_read(&stats);
    assert_int_equal(stats.bytes_idle, 0);
}

static void what_was_given_back_is_not_mapped_any_more(void **state)
{
    wfi_slab_stats before, after;
    wfi_storage_unref(host((size_t)8 << 20));
    wfi_slab_trim(0);
    wfi_slab_stats_read(&before);
    for (int i = 0; i < 50; i++) {
        wfi_storage_unref(host((size_t)8 << 20));
        wfi_slab_trim(0);
    }
    wfi_slab_stats_read(&after);
    assert_int_equal(after.mapped, before.mapped + 50);
    assert_int_equal(after.bytes_peak, before.bytes_peak);
}

static void a_copy_stays_within_both(void **state)
{
    wfi_storage *small = host(100), *large = host(200);
    memset(wfi_storage_data(large), 7, 200);
    assert_int_equal(wfi_memory_copy(small, 0, large, 100, 100), WEFT_OK);
    assert_int_equal(wfi_memory_copy(small, 0, large, 0, 101), WEFT_ERR_INVALID);
    assert_int_equal(wfi_memory_copy(small, 101, large, 0, 0), WEFT_ERR_INVALID);
    assert_int_equal(wfi_memory_copy(small, 50, large, 0, SIZE_MAX), WEFT_ERR_INVALID);
    assert_int_equal(wfi_memory_copy(large, 0, small, 50, 51), WEFT_ERR_INVALID);
    assert_int_equal(wfi_memory_copy(large, 0, small, 101, 0), WEFT_ERR_INVALID);
    wfi_storage_unref(small);
    wfi_storage_unref(large);
}

static void small_storage_is_aligned_too(void **state)
{
    wfi_storage *many[64];
    for (size_t i = 0; i < 64; i++) {
        many[i] = host(1 + 37 * i);
        assert_int_equal((uintptr_t)wfi_storage_data(many[i]) % 64, 0);
    }
    for (size_t i = 0; i < 64; i++)
        wfi_storage_unref(many[i]);
}

static void absurd_sizes_are_out_of_memory(void **state)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, SIZE_MAX, &storage), WEFT_ERR_MEMORY);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)1 << 50, &storage), WEFT_ERR_MEMORY);
    assert_null(storage);
}

static void wrapped_memory_is_dropped_exactly_once(void **state)
{
    int drops = 0, bytes = 0;
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_wrap(WFI_MEMORY_HOST, 0, &bytes, 4, count, &drops, &storage), WEFT_OK);
    wfi_storage_ref(storage);
    wfi_storage_unref(storage);
    assert_int_equal(drops, 0);
    wfi_storage_unref(storage);
    assert_int_equal(drops, 1);
    assert_int_equal(wfi_storage_wrap(WFI_MEMORY_HOST, 0, NULL, 4, count, &drops, &storage), WEFT_ERR_INVALID);
    assert_int_equal(drops, 2);
}

static void *unpin_soon(void *arg)
{
    usleep(20000);
    wfi_storage_unpin_read(arg);
    return NULL;
}

static void a_writer_waits_for_readers(void **state)
{
    pthread_t thread;
    wfi_storage *storage = host(64);
    assert_true(wfi_storage_wait_unread(storage, wfi_deadline(&wfi_clock_real, 0)));
    wfi_storage_pin_read(storage);
    assert_false(wfi_storage_wait_unread(storage, wfi_deadline(&wfi_clock_real, 5)));
    assert_int_equal(pthread_create(&thread, NULL, unpin_soon, storage), 0);
    assert_true(wfi_storage_wait_unread(storage, wfi_deadline(&wfi_clock_real, 10000)));
    pthread_join(thread, NULL);
    wfi_storage_unref(storage);
}

static void *churn(void *arg)
{
    uint64_t random = (uintptr_t)arg;
    for (int i = 0; i < 300; i++) {
        size_t size = (size_t)prng_below(&random, 1 << 20) + 1;
        wfi_storage *storage = host(size);
        memset(wfi_storage_data(storage), i, size < 64 ? size : 64);
        wfi_storage_unref(storage);
    }
    return NULL;
}

static void many_threads_share_the_pool(void **state)
{
    pthread_t threads[4];
    wfi_slab_stats before, after;
    wfi_slab_stats_read(&before);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    wfi_slab_stats_read(&after);
    assert_int_equal(after.bytes_live, before.bytes_live);
}

typedef struct fake_domain {
    int opened, closed;
    int most; /* at a time; 0: any number */
} fake_domain;

typedef struct fake_region {
    unsigned access;
} fake_region;

static weft_status fake_open(void *domain, const wfi_memory *memory, unsigned access, void **region)
{
    fake_domain *fake = domain;
    if (fake->most && fake->opened - fake->closed == fake->most)
        return WEFT_ERR_MEMORY;
    fake_region *opened = malloc(sizeof(*opened));
    assert_non_null(opened);
    assert_int_equal(memory->kind, WFI_MEMORY_HOST);
    *opened = (fake_region){access};
    fake->opened++;
    *region = opened;
    return WEFT_OK;
}

static void fake_close(void *domain, void *region)
{
    ((fake_domain *)domain)->closed++;
    free(region);
}

static const wfi_reg_ops fake_ops = {fake_open, fake_close};

static void a_registration_is_made_once_and_dies_with_its_memory(void **state)
{
    fake_domain fake = {0};
    void *region;
    wfi_reg_cache *cache;
    wfi_storage *storage = host(64);
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wfi_reg_cache_get(cache, storage, 1, &region), WEFT_OK);
        wfi_reg_cache_put(cache, storage, region);
    }
    assert_true(fake.opened == 1 && fake.closed == 0);
    wfi_storage_unref(storage);
    assert_int_equal(fake.closed, 1);
    wfi_reg_cache_destroy(cache);
}

static void a_recycled_slab_keeps_its_registration(void **state)
{
    fake_domain fake = {0};
    void *region;
    wfi_reg_cache *cache;
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        wfi_storage *storage = host((size_t)5 << 20);
        assert_int_equal(wfi_reg_cache_get(cache, storage, 1, &region), WEFT_OK);
        wfi_reg_cache_put(cache, storage, region);
        wfi_storage_unref(storage);
    }
    assert_true(fake.opened == 1 && fake.closed == 0);
    wfi_slab_trim(0);
    assert_int_equal(fake.closed, 1);
    wfi_reg_cache_destroy(cache);
}

static void the_least_recently_used_registration_goes_first(void **state)
{
    fake_domain fake = {0};
    void *regions[4];
    wfi_reg_cache *cache;
    wfi_storage *storages[4];
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 2, &cache), WEFT_OK);
    for (int i = 0; i < 4; i++) {
        storages[i] = host(64);
        assert_int_equal(wfi_reg_cache_get(cache, storages[i], 1, &regions[i]), WEFT_OK);
    }
    assert_int_equal(fake.closed, 0); /* all in use */
    for (int i = 0; i < 4; i++)
        wfi_reg_cache_put(cache, storages[i], regions[i]);
    assert_int_equal(fake.closed, 2);
    assert_int_equal(wfi_reg_cache_get(cache, storages[3], 1, &regions[3]), WEFT_OK);
    wfi_reg_cache_put(cache, storages[3], regions[3]);
    assert_int_equal(fake.opened, 4);
    wfi_reg_cache_destroy(cache);
    assert_int_equal(fake.closed, 4);
    for (int i = 0; i < 4; i++)
        wfi_storage_unref(storages[i]);
}

/* Unused registrations are closed if there is no room for another one; those in use stay. */
static void an_unused_registration_makes_room(void **state)
{
    fake_domain fake = {.most = 2};
    void *regions[3];
    wfi_reg_cache *cache;
    wfi_storage *storages[3];
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    for (int i = 0; i < 3; i++)
        storages[i] = host(64);
    for (int i = 0; i < 2; i++)
        assert_int_equal(wfi_reg_cache_get(cache, storages[i], 1, &regions[i]), WEFT_OK);
    assert_int_equal(wfi_reg_cache_get(cache, storages[2], 1, &regions[2]), WEFT_ERR_MEMORY);
    assert_int_equal(fake.closed, 0);
    wfi_reg_cache_put(cache, storages[0], regions[0]);
    assert_int_equal(wfi_reg_cache_get(cache, storages[2], 1, &regions[2]), WEFT_OK);
    assert_int_equal(fake.closed, 1);
    for (int i = 1; i < 3; i++)
        wfi_reg_cache_put(cache, storages[i], regions[i]);
    assert_int_equal(fake.closed, 1);
    wfi_reg_cache_trim(cache);
    assert_int_equal(fake.closed, fake.opened);
    wfi_reg_cache_destroy(cache);
    assert_int_equal(fake.closed, fake.opened);
    for (int i = 0; i < 3; i++)
        wfi_storage_unref(storages[i]);
}

enum { READ = 1, WRITE = 2 };

static unsigned access_of(const void *region)
{
    return ((const fake_region *)region)->access;
}

/* Memory that may only be read could not be registered otherwise. */
static void a_region_has_the_access_that_was_asked_for(void **state)
{
    fake_domain fake = {0};
    void *region;
    wfi_reg_cache *cache;
    wfi_storage *storage = host(64);
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wfi_reg_cache_get(cache, storage, READ, &region), WEFT_OK);
        assert_int_equal(access_of(region), READ);
        wfi_reg_cache_put(cache, storage, region);
    }
    assert_true(fake.opened == 1 && fake.closed == 0);
    wfi_storage_unref(storage);
    wfi_reg_cache_destroy(cache);
    assert_int_equal(fake.closed, 1);
}

/* Its users keep the former region; the last of them closes it. */
static void more_access_replaces_the_region(void **state)
{
    fake_domain fake = {0};
    void *narrow, *again, *wide, *late;
    wfi_reg_cache *cache;
    wfi_storage *storage = host(64);
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    assert_int_equal(wfi_reg_cache_get(cache, storage, READ, &narrow), WEFT_OK);
    assert_int_equal(wfi_reg_cache_get(cache, storage, READ, &again), WEFT_OK);
    assert_ptr_equal(narrow, again);
    assert_int_equal(wfi_reg_cache_get(cache, storage, WRITE, &wide), WEFT_OK);
    assert_int_equal(access_of(wide), READ | WRITE);
    assert_int_equal(wfi_reg_cache_get(cache, storage, READ, &late), WEFT_OK);
    assert_ptr_equal(late, wide);
    wfi_reg_cache_put(cache, storage, narrow);
    assert_int_equal(fake.closed, 0);
    wfi_reg_cache_put(cache, storage, again);
    assert_int_equal(fake.closed, 1);
    wfi_reg_cache_put(cache, storage, wide);
    wfi_reg_cache_put(cache, storage, late);
    assert_true(fake.opened == 2 && fake.closed == 1);
    wfi_storage_unref(storage);
    assert_int_equal(fake.closed, 2);
    wfi_reg_cache_destroy(cache);
}

static void an_unused_region_with_less_access_is_closed_at_once(void **state)
{
    fake_domain fake = {0};
    void *region;
    wfi_reg_cache *cache;
    wfi_storage *storage = host((size_t)5 << 20); /* a slab */
    assert_int_equal(wfi_reg_cache_create(&fake_ops, &fake, 8, &cache), WEFT_OK);
    for (unsigned access = READ; access <= WRITE; access++) {
        assert_int_equal(wfi_reg_cache_get(cache, storage, access, &region), WEFT_OK);
        wfi_reg_cache_put(cache, storage, region);
    }
    assert_int_equal(access_of(region), READ | WRITE);
    assert_true(fake.opened == 2 && fake.closed == 1);
    wfi_storage_unref(storage);
    wfi_reg_cache_destroy(cache);
    assert_int_equal(fake.closed, 2);
}

UNIT_MAIN(a_region_has_the_access_that_was_asked_for, more_access_replaces_the_region,
          an_unused_region_with_less_access_is_closed_at_once, every_class_holds_its_sizes, a_freed_slab_is_used_again,
          trimming_gives_idle_slabs_back, what_was_given_back_is_not_mapped_any_more, a_copy_stays_within_both,
          small_storage_is_aligned_too, absurd_sizes_are_out_of_memory, wrapped_memory_is_dropped_exactly_once,
          a_writer_waits_for_readers, many_threads_share_the_pool, a_registration_is_made_once_and_dies_with_its_memory,
          a_recycled_slab_keeps_its_registration, the_least_recently_used_registration_goes_first,
          an_unused_registration_makes_room)
