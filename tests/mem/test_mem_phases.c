/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mem_phases.c - loops whose tensors have many sizes, one loop after another: what the pool keeps of the former
 * one, and that a loop that goes on maps nothing. Random sizes against a model, from one thread and from several.
 */
#include "mem/mem.h"
#include "mem/slab.h"
#include "prng.h"
#include "unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static wfi_slab_stats stats_now(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats;
}

/* ---- Loops ---------------------------------------------------------------------------------------------------- */

typedef struct loop {
    bool trains; /* a backward pass frees what the forward pass has saved */
    size_t layers, mib, temporaries;
} loop;

static size_t most; /* bytes in use at once, in this step */
static uint64_t requests;

static wfi_storage *take(size_t size)
{
    wfi_storage *storage = NULL;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, size, &storage), WEFT_OK);
    size_t live = stats_now().bytes_live;
    requests++;
    most = live > most ? live : most;
    return storage;
}

static size_t saved_size(const loop *l, size_t layer)
{
    return l->mib * MIB / (1 + layer % 3);
}

static void train_step(const loop *l)
{
    wfi_storage *saved[64];
    for (size_t i = 0; i < l->layers; i++) {
        saved[i] = take(saved_size(l, i));
        for (size_t k = 0; k < l->temporaries; k++)
            wfi_storage_unref(take(l->mib * MIB / 2));
    }
    wfi_storage *gradient = take(saved_size(l, l->layers - 1));
    for (size_t i = l->layers; i-- > 0;) {
        wfi_storage *next = take(saved_size(l, i > 0 ? i - 1 : 0));
        wfi_storage_unref(gradient);
        wfi_storage_unref(saved[i]);
        gradient = next;
    }
    wfi_storage_unref(gradient);
}

/* Each layer is smaller than the one before. */
static void infer_step(const loop *l)
{
    wfi_storage *x = take(l->mib * MIB);
    for (size_t i = 0; i < l->layers; i++) {
        wfi_storage *y = take(l->mib * MIB / (1 + i / 4));
        wfi_storage_unref(x);
        x = y;
    }
    wfi_storage_unref(x);
}

static void run(const loop *l, int steps)
{
    for (int i = 0; i < steps; i++) {
        most = 0;
        if (l->trains)
            train_step(l);
        else
            infer_step(l);
    }
}

static size_t spare_of(size_t peak)
{
    return peak / 16 > 16 * MIB ? peak / 16 : 16 * MIB;
}

static const loop loops[] = {{true, 6, 64, 0},    {true, 6, 24, 0},  {true, 12, 10, 1}, {false, 60, 48, 0},
                             {false, 200, 12, 0}, {true, 30, 20, 2}, {true, 20, 6, 0},  {false, 400, 64, 0}};
#define LOOPS (sizeof(loops) / sizeof(*loops))

/* Idle are at most the bytes that a step uses at once, the spare, and a quarter for sizes that came back. */
static void sizes_of_a_former_loop_go_back(void **state)
{
    for (size_t i = 0; i < 2 * LOOPS; i++) {
        const loop *l = &loops[i % LOOPS];
        run(l, 40);
        size_t idle = stats_now().bytes_idle, bound = most + spare_of(most) + most / 4;
        if (idle > bound)
            print_error("after loop %zu %zu MiB are idle, and a step uses %zu\n", i, idle / MIB, most / MIB);
        assert_true(idle <= bound);
    }
}

/* What was kept for sizes that came back is given up slowly, so a mapping in 500 requests may follow. */
static void a_loop_that_goes_on_maps_nothing(void **state)
{
    for (size_t i = 0; i < LOOPS; i++) {
        wfi_slab_trim(0);
        run(&loops[i], 20);
        uint64_t before = stats_now().mapped, allowed = requests;
        run(&loops[i], 20);
        uint64_t mapped = stats_now().mapped - before;
        allowed = (requests - allowed) / 500;
        if (mapped > allowed)
            print_error("loop %zu: %zu mappings\n", i, (size_t)mapped);
        assert_true(mapped <= allowed);
    }
}

/* ---- Random sizes --------------------------------------------------------------------------------------------- */

typedef struct domain {
    int opened, closed;
} domain;

static weft_status open_region(void *arg, const wfi_memory *memory, unsigned access, void **region)
{
    wfi_memory *made = malloc(sizeof(*made));
    assert_non_null(made);
    *made = *memory;
    ((domain *)arg)->opened++;
    *region = made;
    return WEFT_OK;
}

static void close_region(void *arg, void *region)
{
    ((domain *)arg)->closed++;
    free(region);
}

static const wfi_reg_ops ops = {open_region, close_region};

/* The whole storage is registered, also if its slab is larger. */
static void must_be_registered(wfi_reg_cache *cache, wfi_storage *storage)
{
    void *region;
    char *data = wfi_storage_data(storage);
    assert_int_equal(wfi_reg_cache_get(cache, storage, 1, &region), WEFT_OK);
    const wfi_memory *memory = region;
    assert_true(data == memory->data && wfi_storage_size(storage) <= memory->size);
    wfi_reg_cache_put(cache, storage, region);
}

#define SLOTS 24

typedef struct slot {
    wfi_storage *storage;
    uint64_t tag;
} slot;

static bool is_intact(const slot *s)
{
    const char *data = wfi_storage_data(s->storage);
    uint64_t end = 0;
    memcpy(&end, data + wfi_storage_size(s->storage) - sizeof(end), sizeof(end));
    return memcmp(data, &s->tag, sizeof(s->tag)) == 0 && end == s->tag;
}

/* The sizes come in phases, so that slabs of former sizes are left over. */
static size_t draw_size(uint64_t *random, int turn)
{
    size_t scale = (size_t)1 << (17 + turn / 500 % 6);
    return scale + (size_t)prng_below(random, scale);
}

static bool fill(slot *s, size_t size, uint64_t tag)
{
    if (wfi_storage_create(WFI_MEMORY_HOST, 0, size, &s->storage) != WEFT_OK)
        return false;
    s->tag = tag;
    memcpy(wfi_storage_data(s->storage), &tag, sizeof(tag));
    memcpy((char *)wfi_storage_data(s->storage) + size - sizeof(tag), &tag, sizeof(tag));
    return true;
}

/* Requests enough for the pool to forget what the tests before have used. */
static void let_time_pass(void)
{
    for (int i = 0; i < 5000; i++)
        wfi_storage_unref(take(MIB));
    wfi_slab_trim(0);
}

static void random_sizes_fit_a_model(void **state)
{
    domain d = {0, 0};
    wfi_reg_cache *cache;
    slot slots[SLOTS] = {{NULL, 0}};
    uint64_t random = 7;
    size_t asked = 0, peak = 0;
    let_time_pass();
    size_t others = stats_now().bytes_live;
    assert_int_equal(wfi_reg_cache_create(&ops, &d, 16, &cache), WEFT_OK);
    for (int turn = 0; turn < 12000; turn++) {
        slot *s = &slots[prng_below(&random, SLOTS)];
        if (s->storage) {
            assert_true(is_intact(s));
            asked -= wfi_slab_class_bytes(wfi_slab_class(wfi_storage_size(s->storage)));
            wfi_storage_unref(s->storage);
            s->storage = NULL;
        } else {
            assert_true(fill(s, draw_size(&random, turn), prng_next(&random)));
            asked += wfi_slab_class_bytes(wfi_slab_class(wfi_storage_size(s->storage)));
            if (turn % 7 == 0)
                must_be_registered(cache, s->storage);
        }
        peak = asked > peak ? asked : peak;
        wfi_slab_stats now = stats_now();
        size_t live = now.bytes_live - others, left = peak > live ? peak - live : 0;
        assert_true(live >= asked && live <= 4 * asked);
        assert_true(now.bytes_idle <= left + peak / 4 + spare_of(peak));
    }
    for (size_t i = 0; i < SLOTS; i++)
        wfi_storage_unref(slots[i].storage);
    assert_int_equal(stats_now().bytes_live, others);
    wfi_slab_trim(0);
    assert_int_equal(d.opened, d.closed);
    wfi_reg_cache_destroy(cache);
}

static void *churn(void *arg)
{
    uint64_t random = (uintptr_t)arg;
    slot slots[SLOTS] = {{NULL, 0}};
    bool ok = true;
    for (int turn = 0; turn < 4000 && ok; turn++) {
        slot *s = &slots[prng_below(&random, SLOTS)];
        if (s->storage) {
            ok = is_intact(s);
            wfi_storage_unref(s->storage);
            s->storage = NULL;
        } else {
            ok = fill(s, draw_size(&random, turn), prng_next(&random));
        }
    }
    for (size_t i = 0; i < SLOTS; i++)
        wfi_storage_unref(slots[i].storage);
    return ok ? NULL : arg;
}

static void threads_share_what_is_left_over(void **state)
{
    pthread_t threads[4];
    size_t before = stats_now().bytes_live;
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(stats_now().bytes_live, before);
}

/* Threads come last: what they leave in the pool differs from run to run. */
UNIT_MAIN(a_loop_that_goes_on_maps_nothing, sizes_of_a_former_loop_go_back, random_sizes_fit_a_model,
          threads_share_what_is_left_over)
