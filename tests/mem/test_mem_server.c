/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mem_server.c - what the pool keeps mapped under a parameter server's load: the tensors of ResNet-50 held for
 * good three times (model, momentum, accumulated gradients), and taken and released twice in each iteration (two
 * trainers).
 */
#include "mem/mem.h"
#include "mem/slab.h"
#include "unit.h"

#define TENSORS_MAX 200
#define ITERATIONS 50
#define PLACES 3

typedef struct tensor_set {
    wfi_storage *storages[TENSORS_MAX];
} tensor_set;

static size_t sizes[TENSORS_MAX];
static int tensors;
static size_t bytes_in_all;

static void add_size(size_t elements)
{
    assert_true(tensors < TENSORS_MAX);
    sizes[tensors++] = elements * sizeof(float);
    bytes_in_all += elements * sizeof(float);
}

static void add_conv(size_t in, size_t out, size_t kernel)
{
    add_size(in * out * kernel * kernel);
    add_size(out); /* the normalisation's weight and bias */
    add_size(out);
}

static void list_resnet50(void)
{
    static const size_t blocks[] = {3, 4, 6, 3};
    size_t in = 64;
    add_conv(3, 64, 7);
    for (size_t stage = 0; stage < 4; stage++) {
        size_t width = (size_t)64 << stage;
        for (size_t block = 0; block < blocks[stage]; block++) {
            add_conv(in, width, 1);
            add_conv(width, width, 3);
            add_conv(width, 4 * width, 1);
            if (block == 0)
                add_conv(in, 4 * width, 1);
            in = 4 * width;
        }
    }
    add_size(2048 * 30);
    add_size(30);
}

/* Requests enough for the pool to forget what it had before. */
static void let_time_pass(void)
{
    for (int i = 0; i < 5000; i++) {
        wfi_storage *small;
        assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)1 << 20, &small), WEFT_OK);
        wfi_storage_unref(small);
    }
}

static int setup(void **state)
{
    if (tensors == 0)
        list_resnet50();
    let_time_pass();
    wfi_slab_trim(0);
    return 0;
}

static void take(tensor_set *set, int begin, int end)
{
    for (int i = begin; i < end; i++)
        assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, sizes[i], &set->storages[i]), WEFT_OK);
}

static void release(tensor_set *set, int begin, int end)
{
    for (int i = begin; i < end; i++)
        wfi_storage_unref(set->storages[i]);
}

static size_t mapped(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_live + stats.bytes_idle;
}

static void the_sizes_are_those_of_the_model(void **state)
{
    assert_int_equal(tensors, 161);
    assert_int_equal(bytes_in_all, (size_t)23569502 * sizeof(float));
}

static void rounding_adds_less_than_a_tenth(void **state)
{
    for (size_t size = WFI_SLAB_BYTES_MIN; size < (size_t)1 << 32; size += size / 97 + 1) {
        size_t rounded = wfi_slab_class_bytes(wfi_slab_class(size));
        assert_true(rounded >= size && rounded - size <= size / 16 + WFI_SLAB_BYTES_MIN / 32);
    }
}

/* Trainer `b` is `lag` tensors behind `a`: their landing sets overlap by less and less. */
static void iterate(tensor_set landing[2], int lag)
{
    take(&landing[0], 0, lag);
    for (int i = 0; i < tensors; i++) {
        if (i + lag < tensors)
            take(&landing[0], i + lag, i + lag + 1);
        take(&landing[1], i, i + 1);
    }
    release(&landing[lag % 2], 0, tensors); /* sometimes the one, sometimes the other answers first */
    release(&landing[1 - lag % 2], 0, tensors);
}

static void the_server_keeps_five_sets_and_little_more(void **state)
{
    static tensor_set held[PLACES], landing[2];
    size_t after_ten = 0, most = 0;
    for (int i = 0; i < PLACES; i++)
        take(&held[i], 0, tensors);
    for (int i = 0; i < ITERATIONS; i++) {
        iterate(landing, (i * 37) % tensors);
        most = mapped() > most ? mapped() : most;
        if (i == 10)
            after_ten = mapped();
    }
    assert_true(mapped() <= after_ten);
    assert_true(most <= (PLACES + 2) * bytes_in_all + ((size_t)40 << 20));
    for (int i = 0; i < PLACES; i++)
        release(&held[i], 0, tensors);
}

static void no_mappings_are_made_once_the_pattern_is_known(void **state)
{
    static tensor_set landing[2];
    wfi_slab_stats before, after;
    for (int i = 0; i < 3; i++)
        iterate(landing, i * 20);
    wfi_slab_stats_read(&before);
    for (int i = 0; i < ITERATIONS; i++)
        iterate(landing, i);
    wfi_slab_stats_read(&after);
    assert_int_equal(after.mapped, before.mapped);
}

/* Sizes that never come back must not stay beside those that do. */
static void sizes_that_change_do_not_pile_up(void **state)
{
    size_t size = (size_t)256 << 10, most = 0;
    for (int round = 0; round < 30; round++) {
        wfi_storage *storages[16];
        size += size / 8; /* further than one size class */
        for (size_t i = 0; i < 16; i++)
            assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, size, &storages[i]), WEFT_OK);
        most = mapped() > most ? mapped() : most;
        for (size_t i = 0; i < 16; i++)
            wfi_storage_unref(storages[i]);
    }
    /* Rounding, a quarter for what was remapped (in the tests before), the spare. */
    assert_true(most <= 16 * size * 17 / 16 * 5 / 4 + ((size_t)17 << 20));
}

/* Two sets of sizes by turns: the second time round, what was given back too soon is kept. */
static void what_is_wanted_again_soon_is_kept(void **state)
{
    wfi_slab_stats before, after;
    for (int round = 0; round < 20; round++) {
        wfi_storage *storages[24];
        wfi_slab_stats_read(&before);
        for (size_t i = 0; i < 24; i++) /* 24 MiB or 30 MiB: together more than the spare */
            assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0,
                                                ((size_t)1 << 20) + (size_t)(round % 2) * (256 << 10), &storages[i]),
                             WEFT_OK);
        wfi_slab_stats_read(&after);
        for (size_t i = 0; i < 24; i++)
            wfi_storage_unref(storages[i]);
    }
    assert_true(after.mapped - before.mapped < 12);
}

/* A single large moment is forgotten after two windows of requests. */
static void a_large_moment_is_forgotten(void **state)
{
    wfi_storage *large;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, (size_t)512 << 20, &large), WEFT_OK);
    wfi_storage_unref(large);
    assert_true(mapped() >= (size_t)512 << 20);
    let_time_pass();
    assert_true(mapped() <= (size_t)20 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_sizes_are_those_of_the_model, setup),
        cmocka_unit_test_setup(rounding_adds_less_than_a_tenth, setup),
        cmocka_unit_test_setup(the_server_keeps_five_sets_and_little_more, setup),
        cmocka_unit_test_setup(no_mappings_are_made_once_the_pattern_is_known, setup),
        cmocka_unit_test_setup(sizes_that_change_do_not_pile_up, setup),
        cmocka_unit_test_setup(what_is_wanted_again_soon_is_kept, setup),
        cmocka_unit_test_setup(a_large_moment_is_forgotten, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
