/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_end.c - termination detection: waves, follow-up calls, deaths between and within waves. */
#include "store_bench.h"

#include <string.h>

static bench *closing_job(int world_size)
{
    bench *at = bench_create(world_size, -1);
    bench_join_all(at, world_size);
    for (int rank = 0; rank < world_size; rank++)
        bench_say_type(at, (uint64_t)rank + 1, WFI_STORE_CLOSING);
    return at;
}

static void report(bench *at, uint64_t line, bool idle, uint64_t started, uint64_t finished, uint64_t served)
{
    wfi_store_message message = {.type = WFI_STORE_REPORT,
                                 .wave = bench_last(at, line, WFI_STORE_PROBE)->wave,
                                 .report = {idle, started, finished, served}};
    bench_say(at, line, &message);
}

static bool is_terminated(const bench *at, uint64_t line)
{
    return bench_heard(at, line, WFI_STORE_TERMINATED) == 1;
}

static void nobody_is_probed_before_all_close(void **state)
{
    bench *at = bench_create(2, -1);
    bench_join_all(at, 2);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 0);
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_PROBE), 1);
    bench_destroy(at);
}

static void two_equal_waves_end_the_job(void **state)
{
    bench *at = closing_job(2);
    report(at, 1, true, 5, 5, 1);
    report(at, 2, true, 1, 1, 5);
    assert_false(is_terminated(at, 1));
    report(at, 2, true, 1, 1, 5);
    report(at, 1, true, 5, 5, 1);
    assert_true(is_terminated(at, 1) && is_terminated(at, 2));
    bench_destroy(at);
}

static void a_wave_that_is_not_answered_is_waited_for_in_silence(void **state)
{
    bench *at = closing_job(2);
    report(at, 1, true, 0, 0, 0);
    bench_pass(at, 3600 * 1000);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_PROBE), 1);
    bench_destroy(at);
}

static void a_follow_up_call_between_the_waves_costs_another_wave(void **state)
{
    bench *at = closing_job(2);
    report(at, 1, true, 1, 1, 0);
    report(at, 2, true, 0, 0, 0);
    report(at, 1, true, 2, 2, 0); /* a handler called once more, unseen by the first wave */
    report(at, 2, true, 0, 0, 1);
    assert_false(is_terminated(at, 1));
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 3);
    report(at, 1, true, 2, 2, 0);
    report(at, 2, true, 0, 0, 1);
    assert_true(is_terminated(at, 1) && is_terminated(at, 2));
    bench_destroy(at);
}

static void equal_waves_with_an_open_call_do_not_end_it(void **state)
{
    bench *at = closing_job(2);
    for (int wave = 0; wave < 3; wave++) {
        report(at, 1, true, 3, 2, 0);
        report(at, 2, true, 0, 0, 0);
        bench_pass(at, 20);
    }
    assert_false(is_terminated(at, 1));
    bench_destroy(at);
}

static void answers_that_are_not_idle_pause_the_waves(void **state)
{
    bench *at = closing_job(2);
    report(at, 1, false, 0, 0, 0);
    report(at, 2, true, 0, 0, 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    bench_pass(at, 20);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 2);
    bench_destroy(at);
}

static void a_death_voids_the_waves_and_the_rest_ends(void **state)
{
    bench *at = closing_job(3);
    for (uint64_t line = 1; line <= 3; line++)
        report(at, line, true, 0, 0, 0);
    report(at, 1, true, 0, 0, 0);
    bench_end(at, 3); /* in the middle of the second wave */
    assert_int_equal(bench_heard(at, 2, WFI_STORE_PROBE), 3);
    report(at, 1, true, 0, 0, 0);
    report(at, 2, true, 0, 0, 0);
    assert_false(is_terminated(at, 1));
    report(at, 1, true, 0, 0, 0);
    report(at, 2, true, 0, 0, 0);
    assert_true(is_terminated(at, 1) && is_terminated(at, 2));
    bench_destroy(at);
}

static void a_death_of_the_last_one_who_does_not_close_begins_the_waves(void **state)
{
    bench *at = bench_create(3, -1);
    bench_join_all(at, 3);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    bench_end(at, 3);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    bench_destroy(at);
}

static void one_that_stops_without_closing_is_taken_out(void **state)
{
    bench *at = bench_create(2, -1);
    bench_join_all(at, 2);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    bench_say_type(at, 2, WFI_STORE_GOODBYE);
    report(at, 1, true, 0, 0, 0);
    report(at, 1, true, 0, 0, 0);
    assert_true(is_terminated(at, 1));
    bench_destroy(at);
}

static void an_answer_to_an_old_wave_does_not_complete_this_one(void **state)
{
    bench *at = closing_job(2);
    wfi_store_message old = {.type = WFI_STORE_REPORT, .wave = 99, .report = {.idle = true}};
    bench_say(at, 1, &old);
    report(at, 2, true, 0, 0, 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    report(at, 1, true, 0, 0, 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 2);
    bench_destroy(at);
}

static void answers_to_old_waves_and_double_answers_do_not_count(void **state)
{
    bench *at = closing_job(2);
    wfi_store_message old = {.type = WFI_STORE_REPORT, .wave = 99, .report = {.idle = true}};
    bench_say(at, 1, &old);
    report(at, 1, true, 0, 0, 0);
    report(at, 1, true, 0, 0, 0);
    report(at, 1, true, 0, 0, 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 1);
    assert_false(is_terminated(at, 1));
    bench_destroy(at);
}

static void the_last_word_is_said_once(void **state)
{
    bench *at = closing_job(2);
    for (int wave = 0; wave < 2; wave++)
        for (uint64_t line = 1; line <= 2; line++)
            report(at, line, true, 0, 0, 0);
    bench_say_type(at, 1, WFI_STORE_GOODBYE);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_TERMINATED), 1);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_PROBE), 2);
    bench_destroy(at);
}

/* ---- Rank 0 ends the job -------------------------------------------------------------------------------------- */

static void rank_0_ends_the_job_for_all(void **state)
{
    wfi_store_message end = {.type = WFI_STORE_END, .text = "enough"};
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    bench_say(at, 1, &end);
    bench_say(at, 1, &end);
    for (uint64_t line = 1; line <= 3; line++) {
        assert_int_equal(bench_heard(at, line, WFI_STORE_END), 1);
        assert_string_equal(bench_last(at, line, WFI_STORE_END)->text, "enough");
    }
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    bench_say_type(at, 3, WFI_STORE_CLOSING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_PROBE), 0);
    bench_end(at, 3);
    bench_join(at, 4, 2, 3, "worker2", 1000);
    assert_int_equal(bench_last(at, 4, WFI_STORE_REFUSE)->status, WEFT_ERR_JOB_ENDED);
    assert_string_equal(bench_last(at, 4, WFI_STORE_REFUSE)->text, "rank 0 ended the job: enough");
    bench_destroy(at);
}

static void no_other_worker_ends_the_job(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_say_type(at, 2, WFI_STORE_END);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_END), 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1); /* it made no sense */
    bench_destroy(at);
}

static const char *awaited(bench *at)
{
    bench_say_type(at, 1, WFI_STORE_AWAIT);
    return bench_last(at, 1, WFI_STORE_AWAIT)->text;
}

static void the_store_names_those_whom_the_end_waits_for(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    assert_string_equal(awaited(at), "workers that have not closed (2): rank 1 (worker1), rank 2 (worker2)");
    bench_say(at, 3, &(wfi_store_message){.type = WFI_STORE_SERVING, .wave = 1});
    assert_string_equal(awaited(at), "workers that have not closed (2): rank 1 (worker1), rank 2 (worker2, serves)");
    bench_say(at, 3, &(wfi_store_message){.type = WFI_STORE_SERVING});
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    assert_string_equal(awaited(at), "workers that have not closed (1): rank 2 (worker2)");
    bench_say_type(at, 3, WFI_STORE_CLOSING);
    report(at, 1, true, 0, 0, 0);
    assert_string_equal(awaited(at), "workers that close, but are not idle (2): rank 1 (worker1), rank 2 (worker2)");
    bench_destroy(at);
}

static void more_names_than_fit_end_in_dots(void **state)
{
    bench *at = bench_create(40, 2000);
    bench_join_all(at, 40);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    const char *text = awaited(at);
    assert_true(strlen(text) > 200 && strlen(text) < WFI_STORE_TEXT_MAX);
    assert_memory_equal(text, "workers that have not closed (39): rank 1 (worker1),", 52);
    assert_string_equal(text + strlen(text) - 5, ", ...");
    bench_destroy(at);
}

UNIT_MAIN(nobody_is_probed_before_all_close, two_equal_waves_end_the_job,
          a_wave_that_is_not_answered_is_waited_for_in_silence, a_follow_up_call_between_the_waves_costs_another_wave,
          equal_waves_with_an_open_call_do_not_end_it, answers_that_are_not_idle_pause_the_waves,
          a_death_voids_the_waves_and_the_rest_ends, a_death_of_the_last_one_who_does_not_close_begins_the_waves,
          one_that_stops_without_closing_is_taken_out, an_answer_to_an_old_wave_does_not_complete_this_one,
          answers_to_old_waves_and_double_answers_do_not_count, the_last_word_is_said_once, rank_0_ends_the_job_for_all,
          no_other_worker_ends_the_job, the_store_names_those_whom_the_end_waits_for, more_names_than_fit_end_in_dots)
