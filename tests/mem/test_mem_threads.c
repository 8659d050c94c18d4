/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mem_threads.c - registrations, pins and waiters from several threads, and a waiter that is a fiber. The fake
 * domain counts: a region is closed once, and never while somebody uses it.
 */
#include "base/clock.h"
#include "sim/fiber.h"
#include "mem/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "unit.h"
#include "prng.h"

#define THREADS 4
#define STORAGES 8
#define ROUNDS 400

typedef struct domain {
    _Atomic int opened, closed, wrong;
} domain;

typedef struct region {
    _Atomic int users;
    void *data;
    size_t size;
    unsigned access;
} region;

static weft_status domain_open(void *arg, const wfi_memory *memory, unsigned access, void **out)
{
    region *made = calloc(1, sizeof(*made));
    if (!made)
        return WEFT_ERR_MEMORY;
    made->data = memory->data;
    made->size = memory->size;
    made->access = access;
    atomic_fetch_add(&((domain *)arg)->opened, 1);
    *out = made;
    return WEFT_OK;
}

static void domain_close(void *arg, void *closed)
{
    domain *d = arg;
    region *r = closed;
    if (atomic_load(&r->users) != 0)
        atomic_fetch_add(&d->wrong, 1);
    atomic_fetch_add(&d->closed, 1);
    free(r);
}

static const wfi_reg_ops domain_ops = {domain_open, domain_close};

typedef struct job {
    domain *domain;
    wfi_reg_cache *cache;
    wfi_storage *const *shared; /* NULL: storages of its own, which come and go */
    uint64_t seed;
} job;

static void use_region(job *j, wfi_storage *storage)
{
    void *got;
    const unsigned access = 1 + (unsigned)prng_below(&j->seed, 7);
    if (wfi_reg_cache_get(j->cache, storage, access, &got) != WEFT_OK) {
        atomic_fetch_add(&j->domain->wrong, 1);
        return;
    }
    region *r = got;
    char *data = wfi_storage_data(storage), *base = r->data;
    atomic_fetch_add(&r->users, 1);
    if ((r->access & access) != access || data < base || data + wfi_storage_size(storage) > base + r->size)
        atomic_fetch_add(&j->domain->wrong, 1);
    atomic_fetch_sub(&r->users, 1);
    wfi_reg_cache_put(j->cache, storage, got);
}

static void *register_often(void *arg)
{
    job *j = arg;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t random = prng_next(&j->seed);
        wfi_storage *storage = NULL;
        if (j->shared)
            storage = wfi_storage_ref(j->shared[random % STORAGES]);
        else if (wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)1 << (10 + random % 11), &storage) != WEFT_OK)
            continue;
        use_region(j, storage);
        wfi_storage_unref(storage);
        if (random % 64 == 0)
            wfi_slab_trim(0);
    }
    return NULL;
}

static void run_jobs(domain *d, wfi_reg_cache *cache, wfi_storage *const *shared)
{
    pthread_t threads[THREADS];
    job jobs[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        jobs[i] = (job){d, cache, shared, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, register_often, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void threads_share_registrations(void **state)
{
    domain d = {0};
    wfi_reg_cache *cache;
    wfi_storage *shared[STORAGES];
    assert_int_equal(wfi_reg_cache_create(&domain_ops, &d, 3, &cache), WEFT_OK);
    for (size_t i = 0; i < STORAGES; i++)
        assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)1000 << i, &shared[i]), WEFT_OK);
    run_jobs(&d, cache, shared);
    wfi_reg_cache_destroy(cache);
    for (int i = 0; i < STORAGES; i++)
        wfi_storage_unref(shared[i]);
    assert_int_equal(d.wrong, 0);
    assert_int_equal(d.opened, d.closed);
}

static void memory_that_comes_and_goes_takes_its_registrations_along(void **state)
{
    domain d = {0};
    wfi_reg_cache *cache;
    assert_int_equal(wfi_reg_cache_create(&domain_ops, &d, 5, &cache), WEFT_OK);
    run_jobs(&d, cache, NULL);
    wfi_slab_trim(0);
    assert_int_equal(d.wrong, 0);
    assert_int_equal(d.opened, d.closed);
    wfi_reg_cache_destroy(cache);
    assert_int_equal(d.opened, d.closed);
}

/* One thread destroys its cache while others free memory that is registered in it. */
static void *open_and_destroy(void *arg)
{
    job *j = arg;
    for (int i = 0; i < ROUNDS / 4; i++) {
        wfi_reg_cache *cache;
        if (wfi_reg_cache_create(&domain_ops, j->domain, 4, &cache) != WEFT_OK)
            continue;
        job own = {j->domain, cache, j->shared, j->seed};
        use_region(&own, j->shared[prng_below(&j->seed, STORAGES)]);
        wfi_reg_cache_destroy(cache);
    }
    return NULL;
}

static void caches_end_while_others_use_the_same_memory(void **state)
{
    domain d = {0};
    pthread_t threads[THREADS];
    job jobs[THREADS];
    wfi_storage *shared[STORAGES];
    for (size_t i = 0; i < STORAGES; i++)
        assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)1 << 18, &shared[i]), WEFT_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        jobs[i] = (job){&d, NULL, shared, i};
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_destroy, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < STORAGES; i++)
        wfi_storage_unref(shared[i]);
    wfi_slab_trim(0);
    assert_int_equal(d.wrong, 0);
    assert_int_equal(d.opened, d.closed);
}

static void *read_often(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        wfi_storage_pin_read(arg);
        wfi_storage_unpin_read(arg);
    }
    return NULL;
}

static void *write_often(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        if (!wfi_storage_wait_unread(arg, wfi_deadline(&wfi_clock_real, 20000)))
            return arg;
        wfi_storage_wrote(arg);
    }
    return NULL;
}

static void writers_pass_between_readers(void **state)
{
    pthread_t threads[THREADS];
    wfi_storage *storage;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 64, &storage), WEFT_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i % 2 ? read_often : write_often, storage), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(wfi_storage_version(storage), THREADS / 2 * ROUNDS);
    wfi_storage_unref(storage);
}

typedef struct world {
    wfi_clock clock;
    uint64_t now;
    wfi_storage *storage;
    int unread, late;
} world;

static uint64_t world_now(const wfi_clock *clock)
{
    return ((const world *)clock)->now;
}

static void wait_on_a_fiber(void *arg)
{
    world *w = arg;
    if (wfi_storage_wait_unread(w->storage, w->now + 1000))
        w->unread++;
    else
        w->late++;
}

static void a_fiber_waits_without_stopping_its_thread(void **state)
{
    world w = {{world_now}, 5, NULL, 0, 0};
    wfi_fibers *fibers = wfi_fibers_create(&w.clock, (size_t)64 << 10);
    assert_non_null(fibers);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 64, &w.storage), WEFT_OK);
    wfi_storage_pin_read(w.storage);
    for (int i = 0; i < 3; i++)
        assert_int_equal(wfi_fiber_spawn(fibers, i, wait_on_a_fiber, &w), WEFT_OK);
    wfi_fibers_run(fibers); /* comes back although nobody is done */
    assert_int_equal(wfi_fibers_live(fibers, -1), 3);
    wfi_storage_unpin_read(w.storage);
    wfi_fibers_run(fibers);
    assert_int_equal(w.unread, 3);
    wfi_fibers_destroy(fibers);
    wfi_storage_unref(w.storage);
}

static void a_fiber_gives_up_by_its_own_clock(void **state)
{
    world w = {{world_now}, 5, NULL, 0, 0};
    wfi_fibers *fibers = wfi_fibers_create(&w.clock, (size_t)64 << 10);
    assert_non_null(fibers);
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 64, &w.storage), WEFT_OK);
    wfi_storage_pin_read(w.storage);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, wait_on_a_fiber, &w), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(wfi_fibers_next_deadline(fibers), 1005);
    w.now = 1005;
    wfi_fibers_expire(fibers);
    wfi_fibers_run(fibers);
    assert_int_equal(w.late, 1);
    wfi_fibers_destroy(fibers);
    wfi_storage_unpin_read(w.storage);
    wfi_storage_unref(w.storage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_registrations),
        cmocka_unit_test(memory_that_comes_and_goes_takes_its_registrations_along),
        cmocka_unit_test(caches_end_while_others_use_the_same_memory),
        cmocka_unit_test(writers_pass_between_readers),
        cmocka_unit_test(a_fiber_waits_without_stopping_its_thread),
        cmocka_unit_test(a_fiber_gives_up_by_its_own_clock),
    };
    alarm(120); /* a waiter that is never woken ends the test */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
