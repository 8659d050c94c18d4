/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_fiber.c - order, time, freezing and abandoning of fibers. */
#include "sim/fiber.h"
#include "base/parker.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK ((size_t)64 << 10)

typedef struct world {
    wfi_clock clock;
    uint64_t now;
    wfi_fibers *fibers;
    char log[64];
    wfi_parker *parker;
} world;

static uint64_t world_now(const wfi_clock *clock)
{
    return ((const world *)clock)->now;
}

static int open_world(void **state)
{
    world *w = calloc(1, sizeof(*w));
    w->clock.now_ns = world_now;
    w->fibers = wfi_fibers_create(&w->clock, STACK);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    world *w = *state;
    wfi_fibers_destroy(w->fibers);
    free(w);
    return 0;
}

typedef struct writer {
    world *w;
    char letter;
    uint64_t wait_ns;
    int times;
} writer;

static void write_letters(void *arg)
{
    writer *self = arg;
    int i;
    for (i = 0; i < self->times; i++) {
        strncat(self->w->log, &self->letter, 1);
        wfi_fiber_wait(wfi_fiber_current(), self->w->now + self->wait_ns);
    }
}

static void run_until_idle(world *w)
{
    for (;;) {
        uint64_t next;
        wfi_fibers_run(w->fibers);
        next = wfi_fibers_next_deadline(w->fibers);
        if (next == WFI_NEVER)
            return;
        if (next > w->now)
            w->now = next;
        wfi_fibers_expire(w->fibers);
    }
}

static void turns_follow_time_then_order(void **state)
{
    world *w = *state;
    writer writers[] = {{w, 'a', 20, 3}, {w, 'b', 10, 4}, {w, 'c', 20, 3}};
    int i;
    for (i = 0; i < 3; i++)
        assert_int_equal(wfi_fiber_spawn(w->fibers, 0, write_letters, &writers[i]), WEFT_OK);
    assert_int_equal(wfi_fibers_live(w->fibers, 0), 3);
    run_until_idle(w);
    assert_string_equal(w->log, "abcbacbbac");
    assert_int_equal(wfi_fibers_live(w->fibers, -1), 0);
    assert_int_equal(w->now, 60);
}

static void park_and_note(void *arg)
{
    world *w = arg;
    wfi_parker mine;
    wfi_parker_init(&mine);
    w->parker = &mine;
    strcat(w->log, wfi_park(&mine, w->now + 100) ? "unparked " : "late ");
}

static void a_parker_wakes_its_fiber_from_the_loop(void **state)
{
    world *w = *state;
    wfi_fiber_spawn(w->fibers, 0, park_and_note, w);
    wfi_fibers_run(w->fibers);
    wfi_unpark(w->parker);
    wfi_unpark(w->parker);
    run_until_idle(w);
    wfi_fiber_spawn(w->fibers, 0, park_and_note, w);
    run_until_idle(w);
    assert_string_equal(w->log, "unparked late ");
}

static void an_unpark_after_the_deadline_still_counts(void **state)
{
    world *w = *state;
    wfi_fiber_spawn(w->fibers, 0, park_and_note, w);
    wfi_fibers_run(w->fibers);
    w->now = 100;
    wfi_fibers_expire(w->fibers); /* runnable, has not run */
    wfi_unpark(w->parker);
    wfi_fibers_run(w->fibers);
    assert_string_equal(w->log, "unparked ");
}

static void a_frozen_group_gets_no_turns_until_it_thaws(void **state)
{
    world *w = *state;
    writer a = {w, 'a', 10, 2}, b = {w, 'b', 10, 2};
    assert_int_equal(wfi_fibers_freeze(w->fibers, 7), WEFT_OK);
    wfi_fiber_spawn(w->fibers, 7, write_letters, &a);
    wfi_fiber_spawn(w->fibers, 8, write_letters, &b);
    run_until_idle(w);
    assert_string_equal(w->log, "bb");
    assert_int_equal(wfi_fibers_live(w->fibers, 7), 1);
    wfi_fibers_thaw(w->fibers, 7);
    run_until_idle(w);
    assert_string_equal(w->log, "bbaa");
}

static void the_abandoned_never_run_again(void **state)
{
    world *w = *state;
    writer a = {w, 'a', 10, 9}, b = {w, 'b', 10, 3}, c = {w, 'c', 10, 1};
    wfi_fiber_spawn(w->fibers, 1, write_letters, &a);
    wfi_fiber_spawn(w->fibers, 2, write_letters, &b);
    wfi_fiber_spawn(w->fibers, 1, park_and_note, w);
    wfi_fibers_run(w->fibers);
    wfi_fibers_abandon(w->fibers, 1);
    wfi_unpark(w->parker);
    assert_int_equal(wfi_fibers_live(w->fibers, 1), 0);
    wfi_fiber_spawn(w->fibers, 1, write_letters, &c); /* the next incarnation */
    run_until_idle(w);
    assert_string_equal(w->log, "abcbb");
}

static void abandon_own_group(void *arg)
{
    world *w = arg;
    wfi_fibers_abandon(w->fibers, 3);
    strcat(w->log, "last words");
    wfi_fiber_wait(wfi_fiber_current(), w->now + 1);
    strcat(w->log, " and more");
}

static void a_fiber_may_abandon_its_own_group(void **state)
{
    world *w = *state;
    wfi_fiber_spawn(w->fibers, 3, abandon_own_group, w);
    run_until_idle(w);
    assert_string_equal(w->log, "last words");
    assert_int_equal(wfi_fibers_live(w->fibers, -1), 0);
}

typedef struct crowd {
    world *w;
    int ended;
    double sum;
} crowd;

static void one_of_the_crowd(void *arg)
{
    crowd *all = arg;
    double mine = 0.5;
    char text[64];
    int i;
    for (i = 0; i < 10; i++) {
        mine *= 2;
        snprintf(text, sizeof(text), "%g", mine); /* needs an aligned stack and the control words */
        wfi_fiber_wait(wfi_fiber_current(), all->w->now + 1 + (uint64_t)(all->ended % 3));
    }
    all->sum += strtod(text, NULL);
    all->ended++;
}

static void two_thousand_fibers_come_and_go_twice(void **state)
{
    crowd all = {.w = *state};
    int i, round;
    for (round = 0; round < 2; round++) { /* the second time on used stacks */
        for (i = 0; i < 2000; i++)
            assert_int_equal(wfi_fiber_spawn(all.w->fibers, i % 50, one_of_the_crowd, &all), WEFT_OK);
        run_until_idle(all.w);
    }
    assert_int_equal(all.ended, 4000);
    assert_true(all.sum == 4000 * 512.0);
}

static void spawn_more(void *arg)
{
    world *w = arg;
    static writer child;
    child = (writer){w, 'x', 1, 1};
    assert_int_equal(wfi_fiber_spawn(w->fibers, 0, write_letters, &child), WEFT_OK);
    wfi_fiber_current()->slot = w;
    wfi_fiber_wait(wfi_fiber_current(), w->now);
    assert_ptr_equal(wfi_fiber_current()->slot, w);
}

static void fibers_spawn_fibers_and_keep_their_slot(void **state)
{
    world *w = *state;
    wfi_fiber_spawn(w->fibers, 0, spawn_more, w);
    run_until_idle(w);
    assert_string_equal(w->log, "x");
    assert_null(wfi_fiber_current());
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_world, close_world)
    const struct CMUnitTest tests[] = {
        T(turns_follow_time_then_order),
        T(a_parker_wakes_its_fiber_from_the_loop),
        T(an_unpark_after_the_deadline_still_counts),
        T(a_frozen_group_gets_no_turns_until_it_thaws),
        T(the_abandoned_never_run_again),
        T(a_fiber_may_abandon_its_own_group),
        T(two_thousand_fibers_come_and_go_twice),
        T(fibers_spawn_fibers_and_keep_their_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
