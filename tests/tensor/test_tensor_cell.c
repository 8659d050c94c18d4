/* SPDX-License-Identifier: Apache-2.0 */
/* test_tensor_cell.c - cells: what readers see of each kind of write, which slabs are used again, and threads. */
#include <weft/weft.h>

#include "tensor/cell.h"
#include "tensors.h"
#include "unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A cell of `count` float32, all `value`. */
static weft_tensor *cell(int64_t count, double value)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, value);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    assert_non_null(x->cell);
    return x;
}

/* Writes `value` all over, in one of the ways. */
static void put(weft_tensor *x, wfi_write_how how, weft_tensor *slab, double value)
{
    wfi_write w;
    assert_int_equal(wfi_cell_write_begin(&w, x, how, slab), WEFT_OK);
    weft_tensor_fill(w.to, value);
    wfi_cell_write_end(&w, true);
}

static void assert_all(const weft_tensor *x, double value)
{
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        assert_true(weft_tensor_get_f64(x, i) == value);
}

static void readers_keep_the_value_that_they_took(void **state)
{
    weft_tensor *x = cell(6, 1);
    uint64_t id = x->id;
    weft_tensor *same = tensor_contiguous(x), *view = tensor_reshape(x, WEFT_SHAPE(2, 3));
    weft_tensor *copy = tensor_clone(x), *wide = tensor_to(x, WEFT_DTYPE_FLOAT64);
    put(x, WFI_WRITE_BESIDE, NULL, 2);
    weft_tensor *kept[] = {same, view, copy, wide};
    for (int i = 0; i < 4; i++) {
        assert_all(kept[i], 1);
        weft_tensor_unref(kept[i]);
    }
    assert_all(x, 2);
    assert_true(((float *)weft_tensor_data(x))[5] == 2);
    assert_true(x->id == id && weft_tensor_numel(x) == 6 && weft_tensor_is_contiguous(x));
    weft_tensor_unref(x);
}

static void print_and_single_elements_read_the_present_value(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    weft_tensor *x = cell(2, 1);
    put(x, WFI_WRITE_BESIDE, NULL, 3);
    weft_tensor_print(x, to);
    fclose(to);
    assert_string_equal(text, "float32 [2] [3, 3]\n");
    free(text);
    assert_int_equal(weft_tensor_get_i64(x, 1), 3);
    assert_int_equal(weft_tensor_get_i64(x, 2), 0);
    weft_tensor_unref(x);
}

static void views_begin_where_the_cell_does(void **state)
{
    weft_tensor *all = tensor_arange(10, WEFT_DTYPE_FLOAT32), *x = tensor_narrow(all, 0, 4, 6);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    assert_true(weft_tensor_get_f64(x, 0) == 4);
    weft_tensor *part = tensor_narrow(x, 0, 2, 2), *one = tensor_select(x, 0, 5);
    assert_true(weft_tensor_get_f64(part, 0) == 6 && weft_tensor_get_f64(one, 0) == 9);
    put(x, WFI_WRITE_BESIDE, NULL, -1);
    weft_tensor *later = tensor_narrow(x, 0, 5, 1);
    assert_all(later, -1);
    assert_true(weft_tensor_get_f64(all, 9) == 9);
    weft_tensor *made[] = {part, one, later, x, all};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(made[i]);
}

static weft_tensor *reserved(weft_tensor *x)
{
    weft_tensor *slab = NULL;
    assert_int_equal(wfi_cell_reserve(x, &slab), WEFT_OK);
    return slab;
}

static void steps_beside_take_turns_in_two_slabs(void **state)
{
    weft_tensor *x = cell(100, 0);
    void *first = weft_tensor_data(x);
    put(x, WFI_WRITE_BESIDE, reserved(x), 1);
    void *second = weft_tensor_data(x);
    assert_ptr_not_equal(first, second);
    for (int i = 2; i < 10; i++) {
        put(x, WFI_WRITE_BESIDE, reserved(x), i);
        assert_ptr_equal(weft_tensor_data(x), i % 2 ? second : first);
        assert_all(x, i);
    }
    weft_tensor_unref(x);
}

static void slab_that_somebody_has_is_not_used_again(void **state)
{
    weft_tensor *x = cell(100, 0), *old = wfi_tensor_read(x), *view = tensor_narrow(old, 0, 1, 2);
    put(x, WFI_WRITE_BESIDE, reserved(x), 1);
    put(x, WFI_WRITE_BESIDE, reserved(x), 2);
    assert_all(old, 0);
    weft_tensor_unref(old); /* the view has its storage still */
    weft_tensor *newer = wfi_tensor_read(x), *part = tensor_narrow(newer, 0, 0, 5);
    weft_tensor_unref(newer);
    put(x, WFI_WRITE_BESIDE, reserved(x), 3);
    put(x, WFI_WRITE_BESIDE, reserved(x), 4);
    put(x, WFI_WRITE_BESIDE, reserved(x), 5);
    assert_all(view, 0);
    assert_all(part, 2);
    weft_tensor_unref(view);
    weft_tensor_unref(part);
    weft_tensor_unref(x);
}

static void whole_and_part_are_in_place_unless_somebody_has_it(void **state)
{
    weft_tensor *x = cell(4, 1);
    void *address = weft_tensor_data(x);
    put(x, WFI_WRITE_WHOLE, NULL, 2);
    put(x, WFI_WRITE_PART, NULL, 3);
    assert_ptr_equal(weft_tensor_data(x), address);
    assert_false(wfi_cell_is_seen(x));
    weft_tensor *old = wfi_tensor_read(x);
    assert_true(wfi_cell_is_seen(x));
    wfi_write w;
    assert_int_equal(wfi_cell_write_begin(&w, x, WFI_WRITE_PART, NULL), WEFT_OK);
    ((float *)wfi_tensor_address(w.to))[1] = 9;
    wfi_cell_write_end(&w, true);
    assert_all(old, 3);
    assert_true(weft_tensor_get_f64(x, 0) == 3 && weft_tensor_get_f64(x, 1) == 9);
    weft_tensor *middle = wfi_tensor_read(x);
    put(x, WFI_WRITE_WHOLE, NULL, 4);
    assert_true(weft_tensor_get_f64(middle, 1) == 9);
    assert_all(x, 4);
    weft_tensor_unref(middle);
    weft_tensor_unref(old);
    weft_tensor_unref(x);
}

static void in_place_is_a_new_version_of_what_readers_have(void **state)
{
    weft_tensor *x = cell(4, 1), *now = wfi_tensor_read(x);
    uint64_t version = wfi_storage_version(now->storage);
    put(x, WFI_WRITE_IN_PLACE, NULL, 2);
    assert_all(now, 2);
    assert_true(wfi_storage_version(now->storage) > version);
    version = wfi_storage_version(now->storage);
    weft_tensor_wrote(x);
    assert_true(wfi_storage_version(now->storage) > version);
    weft_tensor_unref(now);
    weft_tensor_unref(x);
}

static void write_that_fails_is_not_published(void **state)
{
    weft_tensor *x = cell(4, 1);
    wfi_write w;
    assert_int_equal(wfi_cell_write_begin(&w, x, WFI_WRITE_BESIDE, reserved(x)), WEFT_OK);
    weft_tensor_fill(w.to, 7);
    wfi_cell_write_end(&w, false);
    assert_all(x, 1);
    weft_tensor_unref(x);
}

static void assign_and_fill_leave_what_readers_have(void **state)
{
    weft_tensor *x = cell(3, 1), *old = wfi_tensor_read(x), *more = tensor_arange(3, WEFT_DTYPE_FLOAT64);
    assert_int_equal(weft_tensor_assign(x, more), WEFT_OK);
    assert_all(old, 1);
    assert_true(weft_tensor_get_f64(x, 2) == 2);
    assert_int_equal(weft_tensor_assign(x, x), WEFT_OK);
    assert_true(weft_tensor_get_f64(x, 2) == 2);
    weft_tensor *pair = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    assert_int_equal(weft_tensor_assign(x, pair), WEFT_ERR_SHAPE);
    assert_true(weft_tensor_get_f64(x, 1) == 1);
    weft_tensor *later = wfi_tensor_read(x);
    weft_tensor_fill(x, 5);
    assert_true(weft_tensor_get_f64(later, 1) == 1);
    assert_all(x, 5);
    weft_tensor *fives = wfi_tensor_read(x);
    assert_int_equal(weft_tensor_fill_uniform(x, 1, 2, 3), WEFT_OK);
    assert_all(fives, 5);
    assert_true(weft_tensor_get_f64(x, 0) < 3);
    weft_tensor_unref(fives);
    weft_tensor *all[] = {later, pair, more, old, x};
    for (int i = 0; i < 5; i++)
        weft_tensor_unref(all[i]);
}

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

static void foreign_memory_is_dropped_when_nobody_has_it(void **state)
{
    float memory[4] = {1, 2, 3, 4};
    int drops = 0;
    weft_tensor *x = tensor_wrap(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, memory, NULL, count_drop, &drops);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK); /* nothing to do */
    assert_ptr_equal(weft_tensor_data(x), memory);
    put(x, WFI_WRITE_BESIDE, reserved(x), 0);
    assert_int_equal(drops, 0); /* the next step would write there */
    weft_tensor_unref(x);
    assert_int_equal(drops, 1);
    assert_true(memory[2] == 3);
}

static void strided_tensor_stays_an_ordinary_one(void **state)
{
    weft_tensor *all = tensor_zeros(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32), *x = tensor_transpose(all, 0, 1);
    assert_int_equal(wfi_tensor_make_cell(x), WEFT_OK);
    assert_null(x->cell);
    put(x, WFI_WRITE_WHOLE, NULL, 2);
    assert_all(all, 2);
    assert_ptr_equal(wfi_tensor_hold(x), x);
    wfi_tensor_release(x);
    weft_tensor_unref(x);
    weft_tensor_unref(all);
}

/* ---- Threads: all elements of a value are one number, so a torn one is seen ---- */

#define READERS 3
#define WRITERS 2
#define WRITES 300
#define ELEMENTS 512

typedef struct crowd {
    weft_tensor *x;
    atomic_bool ended;
} crowd;

static bool is_torn(const weft_tensor *x)
{
    const float *data = wfi_tensor_address(x);
    for (int i = 1; i < ELEMENTS; i++)
        if (data[i] != data[0])
            return true;
    return false;
}

static void *read_values(void *arg)
{
    crowd *c = arg;
    uintptr_t torn = 0;
    float last = 0;
    while (!atomic_load(&c->ended)) {
        weft_tensor *now = wfi_tensor_read(c->x);
        float first = *(float *)wfi_tensor_address(now);
        torn += is_torn(now) || first < last;
        last = first;
        weft_tensor_unref(now);
        torn += is_torn(wfi_tensor_hold(c->x));
        wfi_tensor_release(c->x);
    }
    return (void *)torn;
}

static void add_one(weft_tensor *x, wfi_write_how how)
{
    weft_tensor *slab = how == WFI_WRITE_BESIDE ? reserved(x) : NULL;
    wfi_write w;
    if (wfi_cell_write_begin(&w, x, how, slab) != WEFT_OK)
        return;
    const float *from = wfi_tensor_address(how == WFI_WRITE_PART ? w.to : w.from);
    float *to = wfi_tensor_address(w.to);
    for (int i = 0; i < ELEMENTS; i++)
        to[i] = from[i] + 1;
    wfi_cell_write_end(&w, true);
}

static void *write_values(void *arg)
{
    static const wfi_write_how ways[] = {WFI_WRITE_BESIDE, WFI_WRITE_WHOLE, WFI_WRITE_PART};
    for (int i = 0; i < WRITES; i++)
        add_one(((crowd *)arg)->x, ways[i % 3]);
    return NULL;
}

static void threads_see_whole_values_and_lose_no_write(void **state)
{
    crowd c = {.x = cell(ELEMENTS, 0)};
    pthread_t readers[READERS], writers[WRITERS];
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_values, &c), 0);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, write_values, &c), 0);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(writers[i], NULL), 0);
    atomic_store(&c.ended, true);
    for (int i = 0; i < READERS; i++) {
        void *torn;
        assert_int_equal(pthread_join(readers[i], &torn), 0);
        assert_null(torn);
    }
    assert_all(c.x, WRITERS * WRITES);
    weft_tensor_unref(c.x);
}

UNIT_MAIN(readers_keep_the_value_that_they_took, print_and_single_elements_read_the_present_value,
          views_begin_where_the_cell_does, steps_beside_take_turns_in_two_slabs,
          slab_that_somebody_has_is_not_used_again, whole_and_part_are_in_place_unless_somebody_has_it,
          in_place_is_a_new_version_of_what_readers_have, write_that_fails_is_not_published,
          assign_and_fill_leave_what_readers_have, foreign_memory_is_dropped_when_nobody_has_it,
          strided_tensor_stays_an_ordinary_one, threads_see_whole_values_and_lose_no_write)
