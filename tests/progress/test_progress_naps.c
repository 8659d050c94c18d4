/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress_naps.c - sources without a descriptor for completions. */
#include "progress/stand_in.h"

#include "unit.h"

#include <unistd.h>

enum { NAP_MIN_NS = 20000, NAP_MAX_NS = 1000000 };

/* No descriptor tells of these completions, and no event comes before them. */
static void naps_find_what_no_descriptor_tells_of(void **state)
{
    static stand s;
    stand_open(&s, 2, false);
    stand_lacks_wait_fd(&s.sources[1]);
    stand_start(&s);
    for (int round = 1; round <= 100; round++) {
        stand_completion(&s.sources[1]);
        stand_await(&s.sources[1].completions_taken, round);
    }
    stand_close(&s);
}

static bool everyone_sleeps(stand *s)
{
    return atomic_load(&s->progress.token.state) == WFI_TOKEN_POLLER_ASLEEP &&
           atomic_load(&s->progress.token.asleep[WFI_SLEEPER_POLLER]);
}

static void await_sleep(stand *s)
{
    for (uint64_t until = wfi_deadline(&wfi_clock_real, 20000); !everyone_sleeps(s); usleep(100))
        assert_true(wfi_now(&wfi_clock_real) < until);
}

/* Until nobody has polled it for the time of several naps. */
static void await_silence(stand_in *source)
{
    uint64_t until = wfi_deadline(&wfi_clock_real, 20000);
    for (int polls = -1; polls != atomic_load(&source->polls); usleep(5000)) {
        polls = atomic_load(&source->polls);
        assert_true(wfi_now(&wfi_clock_real) < until);
    }
}

/* It sleeps until an event, which comes before a connection's first completion. */
static void nobody_naps_for_a_source_without_connections(void **state)
{
    static stand s;
    stand_open(&s, 1, false);
    stand_in *source = &s.sources[0];
    stand_lacks_wait_fd(source);
    atomic_store(&source->expects, WFI_EXPECTS_NOTHING);
    stand_start(&s);
    for (int round = 1; round <= 20; round++) {
        await_silence(source);
        atomic_store(&source->expects, WFI_EXPECTS_MESSAGES);
        atomic_fetch_add(&source->completions, 1); /* the poller does not see it yet */
        stand_event(source);
        stand_await(&source->completions_taken, round);
        atomic_store(&source->expects, WFI_EXPECTS_NOTHING);
    }
    stand_close(&s);
}

static void naps_double_until_something_comes(void **state)
{
    static stand s;
    wfi_progress *progress = &s.progress;
    stand_open(&s, 2, true);
    stand_in *source = &s.sources[1];
    stand_lacks_wait_fd(source);
    assert_true(wfi_token_take(progress, WFI_POLLER));
    for (int turn = 0; turn < 3; turn++) {
        for (uint32_t nap = NAP_MIN_NS; nap < 4 * NAP_MAX_NS; nap *= 2) {
            uint64_t before = wfi_now(&wfi_clock_real);
            assert_true(wfi_token_sleep(progress, WFI_SLEEPER_POLLER, -1, WFI_NEVER));
            assert_true(progress->token.napped);
            assert_int_equal(source->source.nap_ns, nap < NAP_MAX_NS ? nap : NAP_MAX_NS);
            assert_true(wfi_now(&wfi_clock_real) - before >= source->source.nap_ns);
            assert_int_equal(wfi_progress_round(progress, WFI_POLLER, NULL), 0);
        }
        stand_completion(source);
        assert_int_equal(wfi_progress_round(progress, WFI_POLLER, NULL), 1);
    }
    /* The other source's completions do not shorten the naps; they end the sleep. */
    assert_true(wfi_token_sleep(progress, WFI_SLEEPER_POLLER, -1, WFI_NEVER));
    stand_completion(&s.sources[0]);
    assert_int_equal(wfi_progress_round(progress, WFI_POLLER, NULL), 1);
    assert_int_equal(source->source.nap_ns, NAP_MIN_NS);
    (void)wfi_token_release(progress, WFI_POLLER);
    stand_close(&s);
}

static void an_earlier_end_of_the_sleep_is_no_nap(void **state)
{
    static stand s;
    stand_open(&s, 1, true);
    stand_lacks_wait_fd(&s.sources[0]);
    assert_true(wfi_token_take(&s.progress, WFI_POLLER));
    assert_true(wfi_token_sleep(&s.progress, WFI_SLEEPER_POLLER, -1, wfi_now(&wfi_clock_real) + 1000));
    assert_false(s.progress.token.napped);
    (void)wfi_token_release(&s.progress, WFI_POLLER);
    stand_close(&s);
}

/* The events of all sources are read seldom: a nap is not taken for a sleep that they may have ended. */
static void naps_read_no_events(void **state)
{
    static stand s;
    stand_open(&s, 1, true);
    stand_in *source = &s.sources[0];
    stand_lacks_wait_fd(source);
    assert_int_equal(wfi_progress_run(&s.progress, 30), 0);
    assert_true(atomic_load(&source->polls) > 2 * atomic_load(&source->reads));
    stand_completion(source);
    assert_int_equal(wfi_progress_run(&s.progress, 20000), 1);
    stand_close(&s);
}

/* A fabric's call of `ready` finds a sleeper that naps for nobody. */
static void ready_wakes_the_sleeper(void **state)
{
    static stand s;
    stand_open(&s, 1, false);
    stand_in *source = &s.sources[0];
    stand_lacks_wait_fd(source);
    atomic_store(&source->expects, WFI_EXPECTS_NOTHING);
    stand_start(&s);
    for (int round = 1; round <= 100; round++) {
        if (round % 10 == 0)
            await_sleep(&s);
        stand_completion(source);
        wfi_progress_ready(&s.progress);
        stand_await(&source->completions_taken, round);
    }
    stand_close(&s);
}

UNIT_MAIN(naps_find_what_no_descriptor_tells_of, nobody_naps_for_a_source_without_connections,
          naps_double_until_something_comes, an_earlier_end_of_the_sleep_is_no_nap, naps_read_no_events,
          ready_wakes_the_sleeper)
