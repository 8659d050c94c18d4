/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress_rounds.c - which sources a round polls. */
#include "progress/stand_in.h"

#include "unit.h"

/* The pauses of round.c, and a number of rounds of a microsecond that is longer than all of them need. */
enum { REST_US = 50, REST_SHARE = 16, ROUNDS = 2 * REST_US * REST_SHARE };

static uint64_t now_ns;

static uint64_t read_now(const wfi_clock *clock)
{
    (void)clock;
    return now_ns;
}

static const wfi_clock steered = {.now_ns = read_now};

/* Makes rounds of a microsecond, in which source 0 has a completion each time; returns how many polled source 1. */
static int polls_in(stand *s, wfi_role role, int rounds)
{
    int before = atomic_load(&s->sources[1].polls);
    for (int i = 0; i < rounds; i++) {
        now_ns += 1000;
        stand_completion(&s->sources[0]);
        assert_int_equal(wfi_progress_round(&s->progress, role, NULL), 1);
    }
    return atomic_load(&s->sources[1].polls) - before;
}

static void play(void (*body)(stand *s))
{
    static stand s;
    now_ns = 1000000000;
    stand_open(&s, 2, true);
    s.progress.clock = &steered;
    assert_true(wfi_token_take(&s.progress, WFI_POLLER));
    body(&s);
    (void)wfi_token_release(&s.progress, WFI_POLLER);
    stand_close(&s);
}

static void rest(stand *s)
{
    (void)polls_in(s, WFI_POLLER, ROUNDS);
    assert_in_range(polls_in(s, WFI_WAITER, 10 * REST_US), 10, 11);
    assert_int_equal(atomic_load(&s->sources[0].polls), ROUNDS + 10 * REST_US);
}

static void a_source_that_had_nothing_rests(void **state)
{
    play(rest);
}

/* It is found at last; then the source is polled in every round at first, and ever more rarely. */
static void come(stand *s)
{
    (void)polls_in(s, WFI_POLLER, ROUNDS);
    stand_completion(&s->sources[1]);
    for (int i = 0; i <= REST_US; i++) {
        now_ns += 1000;
        (void)wfi_progress_round(&s->progress, WFI_POLLER, NULL);
    }
    assert_int_equal(atomic_load(&s->sources[1].completions_taken), 1);
    stand_completion(&s->sources[0]);
    stand_completion(&s->sources[1]);
    assert_int_equal(wfi_progress_round(&s->progress, WFI_MANUAL, NULL), 2);
    for (int idle = 1; idle < REST_US * REST_SHARE / 2; idle *= 2)
        assert_in_range(polls_in(s, WFI_POLLER, idle), idle < REST_SHARE ? idle : REST_SHARE / 2, idle);
}

static void rest_at_once(stand *s)
{
    atomic_store(&s->sources[1].expects, WFI_EXPECTS_NOTHING);
    assert_in_range(polls_in(s, WFI_POLLER, 4 * REST_US), 4, 5);
}

static void a_source_without_connections_rests_at_once(void **state)
{
    play(rest_at_once);
}

static void a_completion_ends_the_rest(void **state)
{
    play(come);
}

static void work(stand *s)
{
    atomic_store(&s->sources[1].expects, WFI_EXPECTS_RESULTS);
    assert_int_equal(polls_in(s, WFI_POLLER, ROUNDS), ROUNDS);
    atomic_store(&s->sources[1].expects, WFI_EXPECTS_NOTHING);
    assert_in_range(polls_in(s, WFI_POLLER, 10 * REST_US), 9, 11);
    atomic_store(&s->sources[1].expects, WFI_EXPECTS_RESULTS);
    assert_int_equal(polls_in(s, WFI_POLLER, ROUNDS), ROUNDS);
}

static void a_source_with_work_does_not_rest(void **state)
{
    play(work);
}

static void by_hand(stand *s)
{
    assert_int_equal(polls_in(s, WFI_MANUAL, ROUNDS), ROUNDS);
}

static void rounds_that_the_program_makes_poll_all(void **state)
{
    play(by_hand);
}

/* The source may have ended the sleep; and a completion that came before it keeps the thread awake. */
static void sleep_between(stand *s)
{
    (void)polls_in(s, WFI_POLLER, ROUNDS);
    assert_true(wfi_token_sleep(&s->progress, WFI_SLEEPER_POLLER, -1, now_ns));
    assert_int_equal(polls_in(s, WFI_POLLER, 1), 1);
    (void)polls_in(s, WFI_POLLER, ROUNDS);
    stand_completion(&s->sources[1]);
    assert_true(wfi_token_sleep(&s->progress, WFI_SLEEPER_POLLER, -1, WFI_NEVER));
    assert_int_equal(wfi_progress_round(&s->progress, WFI_POLLER, NULL), 1);
}

static void after_a_sleep_all_are_polled(void **state)
{
    play(sleep_between);
}

static void alone(stand *s)
{
    wfi_progress_remove(&s->progress, &s->sources[1].source);
    int before = atomic_load(&s->sources[0].polls);
    for (int i = 0; i < ROUNDS; i++)
        assert_int_equal(wfi_progress_round(&s->progress, WFI_POLLER, NULL), 0);
    assert_int_equal(atomic_load(&s->sources[0].polls) - before, ROUNDS);
    wfi_progress_add(&s->progress, &s->sources[1].source);
}

static void the_only_source_never_rests(void **state)
{
    play(alone);
}

UNIT_MAIN(a_source_that_had_nothing_rests, a_source_without_connections_rests_at_once, a_completion_ends_the_rest,
          a_source_with_work_does_not_rest, rounds_that_the_program_makes_poll_all, after_a_sleep_all_are_polled,
          the_only_source_never_rests)
