/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_alloc.c - zeroed memory is zero though the blocks were used before, and small blocks do not come from
 * calloc; an array grows. The linker puts malloc and calloc below in the place of the library's.
 */
#include "base/alloc.h"
#include "unit.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);

static int mallocs, callocs;
static bool fails;

void *__wrap_malloc(size_t size)
{
    mallocs++;
    return fails ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    callocs++;
    return fails ? NULL : __real_calloc(count, size);
}

static void every_byte_is_zero(void **state)
{
    for (size_t size = 1; size <= 4096; size++) {
        unsigned char *used = malloc(size), *block;
        assert_non_null(used);
        memset(used, 0xff, size);
        free(used);
        block = wfi_calloc(size, 1);
        assert_non_null(block);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(block[i], 0);
        free(block);
    }
}

static void small_blocks_come_from_malloc_and_large_ones_from_calloc(void **state)
{
    mallocs = callocs = 0;
    free(wfi_calloc(10, 100));
    assert_int_equal(mallocs, 1);
    assert_int_equal(callocs, 0);
    free(wfi_calloc(1000, 100));
    assert_int_equal(mallocs, 1);
    assert_int_equal(callocs, 1);
}

static void what_cannot_be_had_is_null(void **state)
{
    volatile size_t half = SIZE_MAX / 2 + 1; /* or the compiler sees it coming */
    assert_null(wfi_calloc(half, 2));
    assert_null(wfi_calloc(2, half));
    fails = true;
    void *small = wfi_calloc(1, 8), *large = wfi_calloc(1, 8192);
    fails = false;
    assert_null(small);
    assert_null(large);
}

static void an_empty_list_is_not_null(void **state)
{
    void *none = wfi_calloc(0, 16), *nothing = wfi_calloc(16, 0);
    assert_non_null(none);
    assert_non_null(nothing);
    free(none);
    free(nothing);
}

static void an_array_grows_when_it_is_full_and_keeps_what_it_has(void **state)
{
    int *items = NULL;
    size_t capacity = 0;
    for (int count = 0; count < 100; count++) {
        bool is_full = (size_t)count == capacity;
        size_t before = capacity;
        int *grown = wfi_grow(items, (size_t)count, &capacity, sizeof(*items));
        assert_non_null(grown);
        assert_true(is_full ? capacity > before : grown == items && capacity == before);
        items = grown;
        items[count] = count;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(items[i], i);
    size_t full = capacity;
    volatile size_t too_large = SIZE_MAX / 64;
    assert_null(wfi_grow(items, full, &capacity, too_large));
    assert_int_equal(capacity, full);
    assert_int_equal(items[99], 99);
    free(items);
}

UNIT_MAIN(every_byte_is_zero, small_blocks_come_from_malloc_and_large_ones_from_calloc, what_cannot_be_had_is_null,
          an_empty_list_is_not_null, an_array_grows_when_it_is_full_and_keeps_what_it_has)
