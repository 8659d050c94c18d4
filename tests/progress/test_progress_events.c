/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress_events.c - one thread reads the rarer events of all sources. */
#include "progress/stand_in.h"

#include "unit.h"

static void one_thread_reads_the_events_of_all_sources(void **state)
{
    static stand s;
    stand_open(&s, STAND_INS, false);
    stand_start(&s);
    for (int round = 1; round <= 100; round++) {
        for (int i = 0; i < STAND_INS; i++)
            stand_event(&s.sources[i]);
        for (int i = 0; i < STAND_INS; i++)
            stand_await(&s.sources[i].events_taken, round);
    }
    stand_close(&s);
}

/* Only the source of an event is read, not all of them. */
static void a_silent_source_is_left_alone(void **state)
{
    static stand s;
    stand_open(&s, 2, false);
    stand_start(&s);
    for (int round = 1; round <= 100; round++) {
        stand_event(&s.sources[0]);
        stand_await(&s.sources[0].events_taken, round);
    }
    assert_int_equal(atomic_load(&s.sources[1].reads), 1); /* when the thread began */
    stand_close(&s);
}

static void a_source_is_read_when_its_time_comes(void **state)
{
    static stand s;
    stand_open(&s, 3, false);
    s.sources[1].due_after_ns = 2000000;
    stand_start(&s);
    stand_await(&s.sources[1].reads, 5);
    assert_int_equal(atomic_load(&s.sources[0].reads), 1);
    assert_int_equal(atomic_load(&s.sources[2].reads), 1);
    stand_close(&s);
}

/* An event of which no descriptor tells is found when the thread arms the source, before it sleeps. */
static void an_event_that_comes_before_the_sleep_is_read(void **state)
{
    static stand s;
    stand_open(&s, 2, false);
    stand_lacks_events_fd(&s.sources[1]);
    stand_start(&s);
    for (int round = 1; round <= 20; round++) {
        stand_event(&s.sources[1]);
        stand_event(&s.sources[0]); /* wakes the thread */
        stand_await(&s.sources[1].events_taken, round);
    }
    stand_close(&s);
}

static void without_threads_an_event_ends_the_wait(void **state)
{
    static stand s;
    stand_open(&s, STAND_INS, true);
    for (int i = 0; i < STAND_INS; i++) {
        stand_event(&s.sources[i]);
        assert_int_equal(wfi_progress_run(&s.progress, 20000), 1);
        assert_int_equal(atomic_load(&s.sources[i].events_taken), 1);
    }
    stand_close(&s);
}

static void without_threads_a_source_is_read_when_its_time_comes(void **state)
{
    static stand s;
    stand_open(&s, 2, true);
    s.sources[1].due_after_ns = 1000000;
    assert_int_equal(wfi_progress_run(&s.progress, 50), 0);
    assert_true(atomic_load(&s.sources[1].reads) > 1);
    stand_close(&s);
}

UNIT_MAIN(one_thread_reads_the_events_of_all_sources, a_silent_source_is_left_alone,
          a_source_is_read_when_its_time_comes, an_event_that_comes_before_the_sleep_is_read,
          without_threads_an_event_ends_the_wait, without_threads_a_source_is_read_when_its_time_comes)
