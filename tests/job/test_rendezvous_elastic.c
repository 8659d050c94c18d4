/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_elastic.c - joining while the job runs: elastic jobs, seats of the dead, and what the others hear
 * of it. */
#include "store_bench.h"
#include "prng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const wfi_member *entry(const bench *at, uint64_t line, int rank)
{
    assert_non_null(at->lines[line].world.members);
    return &at->lines[line].world.members[rank];
}

static void an_elastic_job_runs_as_soon_as_rank_0_is_there(void **state)
{
    bench *at = bench_create_elastic(8, 2000);
    bench_join(at, 1, 0, 8, "a", 1000);
    assert_int_equal(at->lines[1].world.world_size, 8);
    assert_int_equal(at->lines[1].world.rank, 0);
    assert_int_equal(entry(at, 1, 0)->incarnation, 1);
    assert_int_equal(entry(at, 1, 1)->incarnation, 0);
    bench_destroy(at);
}

static void those_who_come_before_rank_0_wait_for_it(void **state)
{
    bench *at = bench_create_elastic(8, 2000);
    bench_join(at, 1, 5, 8, "five", 60000);
    bench_join(at, 2, -1, 8, "any", 1000);
    assert_int_equal(at->lines[1].frames, 0);
    bench_pass(at, 1001);
    assert_string_equal(bench_last(at, 2, WFI_STORE_REFUSE)->text, "rank 0 did not come within 1 s");
    bench_join(at, 3, 0, 8, "zero", 1000);
    assert_string_equal(entry(at, 1, 0)->name, "zero");
    assert_string_equal(entry(at, 3, 5)->name, "five");
    assert_int_equal(bench_heard(at, 3, WFI_STORE_JOINED), 0); /* it is in the table */
    bench_destroy(at);
}

static void a_late_one_gets_the_table_and_the_others_its_entry(void **state)
{
    bench *at = bench_create_elastic(4, 2000);
    bench_join(at, 1, 0, 4, "a", 1000);
    bench_join(at, 2, 3, 4, "b", 1000);
    bench_join(at, 3, 1, 4, "c", 1000);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_JOINED), 2);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_JOINED), 1);
    assert_int_equal(bench_heard(at, 3, WFI_STORE_JOINED), 0);
    const wfi_store_message *told = bench_last(at, 2, WFI_STORE_JOINED);
    assert_int_equal(told->rank, 1);
    assert_int_equal(told->incarnation, 3);
    assert_string_equal(told->text, "c");
    assert_memory_equal(told->addresses, "adr", 3);
    assert_int_equal(told->cuda_devices, 7);
    assert_int_equal(entry(at, 3, 3)->incarnation, 2);
    assert_int_equal(entry(at, 3, 2)->incarnation, 0);
    bench_destroy(at);
}

static void any_rank_is_the_lowest_free_one_and_never_0(void **state)
{
    bench *at = bench_create_elastic(3, 2000);
    bench_join(at, 1, -1, 3, "", 1000);
    bench_join(at, 2, 0, 3, "zero", 1000);
    bench_join(at, 3, -1, 3, "", 1000);
    assert_int_equal(at->lines[1].world.rank, 1);
    assert_int_equal(at->lines[3].world.rank, 2);
    assert_string_equal(entry(at, 3, 1)->name, "worker1");
    assert_string_equal(entry(at, 3, 2)->name, "worker2");
    bench_join(at, 4, -1, 3, "more", 1000);
    assert_int_equal(bench_last(at, 4, WFI_STORE_REFUSE)->status, WEFT_ERR_EXISTS);
    assert_string_equal(bench_last(at, 4, WFI_STORE_REFUSE)->text, "no rank is free: all 3 are taken");
    bench_destroy(at);
}

static void ranks_and_names_of_the_gone_are_free_again(void **state)
{
    bench *at = bench_create_elastic(3, 2000);
    bench_join(at, 1, 0, 3, "a", 1000);
    bench_join(at, 2, 1, 3, "b", 1000);
    bench_join(at, 3, 2, 3, "c", 1000);
    bench_say_type(at, 2, WFI_STORE_GOODBYE);
    bench_end(at, 3);
    bench_join(at, 4, 2, 3, "b", 1000);
    bench_join(at, 5, -1, 3, "c", 1000);
    assert_int_equal(at->lines[4].world.rank, 2);
    assert_int_equal(at->lines[5].world.rank, 1);
    assert_int_equal(entry(at, 4, 2)->incarnation, 4);
    assert_int_equal(entry(at, 4, 1)->incarnation, 0); /* it left: no entry */
    assert_int_equal(entry(at, 5, 1)->incarnation, 5);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_JOINED), 4);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_LEFT), 1);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

static void elastic_and_static_do_not_mix(void **state)
{
    bench *at = bench_create_elastic(2, 2000);
    at->elastic = false; /* what joins say */
    bench_join(at, 1, 1, 2, "a", 1000);
    assert_int_equal(bench_last(at, 1, WFI_STORE_REFUSE)->status, WEFT_ERR_INVALID);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text, "this worker's job is static, rank 0's is elastic");
    bench_destroy(at);
    at = bench_create(2, 2000);
    at->elastic = true;
    bench_join(at, 1, 1, 2, "a", 1000);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text, "this worker's job is elastic, rank 0's is static");
    bench_destroy(at);
}

static void the_seat_of_a_dead_worker_of_a_static_job_is_taken_again(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_end(at, 3);
    bench_join(at, 9, 2, 3, "worker2", 1000);
    assert_int_equal(entry(at, 9, 2)->incarnation, 4);
    assert_int_equal(entry(at, 9, 1)->incarnation, 2);
    for (uint64_t line = 1; line <= 2; line++)
        assert_int_equal(bench_last(at, line, WFI_STORE_JOINED)->incarnation, 4);
    wfi_store_message doubt = {.type = WFI_STORE_SUSPECT, .rank = 2, .incarnation = 3, .text = "of the former one"};
    bench_say(at, 1, &doubt);
    assert_int_equal(bench_heard(at, 9, WFI_STORE_SPEAK), 0);
    bench_destroy(at);
}

static void the_seat_of_one_who_left_a_static_job_stays_empty(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_say_type(at, 3, WFI_STORE_GOODBYE);
    bench_join(at, 9, 2, 3, "worker2", 1000);
    assert_string_equal(bench_last(at, 9, WFI_STORE_REFUSE)->text, "rank 2 has left the job, which is not elastic");
    bench_destroy(at);
}

static void rank_0_is_never_taken_again(void **state)
{
    bench *at = bench_create_elastic(3, 2000);
    bench_join(at, 1, 0, 3, "a", 1000);
    bench_join(at, 2, 1, 3, "b", 1000);
    bench_end(at, 1);
    bench_join(at, 3, 0, 3, "a", 1000);
    assert_string_equal(bench_last(at, 3, WFI_STORE_REFUSE)->text, "rank 0 keeps the store: it cannot be taken again");
    bench_destroy(at);
}

/* ---- Those who leave ------------------------------------------------------------------------------------------ */

static void a_leaver_is_told_once_to_all_others_and_to_those_who_come(void **state)
{
    bench *at = bench_create_elastic(4, 2000);
    bench_join(at, 1, 0, 4, "a", 1000);
    bench_join(at, 2, 1, 4, "b", 1000);
    bench_join(at, 3, 2, 4, "c", 1000);
    bench_say_type(at, 2, WFI_STORE_LEAVING);
    bench_say_type(at, 2, WFI_STORE_LEAVING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_LEAVING), 1);
    assert_int_equal(bench_heard(at, 3, WFI_STORE_LEAVING), 1);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_LEAVING), 0);
    assert_int_equal(bench_last(at, 3, WFI_STORE_LEAVING)->rank, 1);
    assert_int_equal(bench_last(at, 3, WFI_STORE_LEAVING)->incarnation, 2);
    bench_join(at, 4, 3, 4, "d", 1000);
    assert_int_equal(bench_last(at, 4, WFI_STORE_LEAVING)->incarnation, 2);
    bench_say_type(at, 2, WFI_STORE_GOODBYE);
    assert_int_equal(bench_heard(at, 4, WFI_STORE_LEFT), 1);
    bench_join(at, 5, 1, 4, "e", 1000); /* at its rank: no leaver */
    bench_end(at, 4);
    bench_join(at, 6, 3, 4, "f", 1000);
    assert_int_equal(bench_heard(at, 6, WFI_STORE_LEAVING), 0);
    bench_destroy(at);
}

/* Its rank and its name are not refused: who wants them tries again until they are free. */
static void a_leaver_is_waited_for(void **state)
{
    bench *at = bench_create_elastic(4, 2000);
    bench_join(at, 1, 0, 4, "a", 1000);
    bench_join(at, 2, 1, 4, "b", 1000);
    bench_say_type(at, 2, WFI_STORE_LEAVING);
    bench_join(at, 3, 1, 4, "c", 1000);
    bench_join(at, 4, 2, 4, "b", 1000);
    for (uint64_t line = 3; line <= 4; line++) {
        assert_true(at->lines[line].closed);
        assert_int_equal(bench_heard(at, line, WFI_STORE_REFUSE), 0);
    }
    bench_say_type(at, 2, WFI_STORE_GOODBYE);
    bench_join(at, 5, 1, 4, "b", 1000);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_JOINED), 2);
    bench_destroy(at);
}

static void a_leaver_may_die(void **state)
{
    bench *at = bench_create_elastic(3, 2000);
    bench_join(at, 1, 0, 3, "a", 1000);
    bench_join(at, 2, 1, 3, "b", 1000);
    bench_say_type(at, 2, WFI_STORE_LEAVING);
    bench_end(at, 2);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_join(at, 3, 2, 3, "c", 1000); /* while its rank is empty, */
    bench_join(at, 4, 1, 3, "b", 1000); /* and at its rank */
    assert_int_equal(bench_heard(at, 3, WFI_STORE_LEAVING), 0);
    assert_int_equal(bench_heard(at, 4, WFI_STORE_LEAVING), 0);
    bench_destroy(at);
}

static void rank_0_and_workers_of_a_static_job_are_no_leavers(void **state)
{
    bench *at = bench_create_elastic(2, 2000);
    bench_join(at, 1, 0, 2, "a", 1000);
    bench_join(at, 2, 1, 2, "b", 1000);
    bench_say_type(at, 1, WFI_STORE_LEAVING);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIED), 1); /* it makes no sense */
    bench_destroy(at);
    at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_say_type(at, 2, WFI_STORE_LEAVING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

/* ---- The end ---------------------------------------------------------------------------------------------------- */

static void answer(bench *at, uint64_t line)
{
    wfi_store_message message = {
        .type = WFI_STORE_REPORT, .wave = bench_last(at, line, WFI_STORE_PROBE)->wave, .report = {.idle = true}};
    bench_say(at, line, &message);
}

/* `after` answers have come of the two that the wave before last wants, then somebody joins: nothing ends before it
 * closes. */
static void join_among_the_closing(int after)
{
    bench *at = bench_create_elastic(3, -1);
    bench_join(at, 1, 0, 3, "a", 1000);
    bench_join(at, 2, 1, 3, "b", 1000);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    for (int i = 0; i < after; i++)
        answer(at, (uint64_t)(i % 2) + 1);
    bench_join(at, 3, 2, 3, "c", 1000);
    for (uint64_t line = 1; line <= 2; line++)
        answer(at, line); /* of the wave that is void */
    bench_pass(at, 1000);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_TERMINATED), 0);
    assert_int_equal(bench_heard(at, 3, WFI_STORE_PROBE), 0);
    bench_say_type(at, 3, WFI_STORE_CLOSING);
    for (int wave = 0; wave < 2; wave++)
        for (uint64_t line = 1; line <= 3; line++)
            answer(at, line);
    for (uint64_t line = 1; line <= 3; line++)
        assert_int_equal(bench_heard(at, line, WFI_STORE_TERMINATED), 1);
    bench_join(at, 4, -1, 3, "d", 1000);
    assert_true(at->lines[4].closed && at->lines[4].frames == 0); /* it may look for the next job on this port */
    bench_destroy(at);
}

static void one_who_joins_while_all_close_prolongs_the_job(void **state)
{
    for (int after = 0; after < 4; after++)
        join_among_the_closing(after);
}

static void nobody_joins_when_rank_0_has_closed(void **state)
{
    bench *at = bench_create_elastic(3, 2000);
    bench_join(at, 1, 0, 3, "a", 1000);
    bench_join(at, 2, 1, 3, "b", 1000);
    wfi_store_drain(at->store, at->now_ns, at->now_ns + 2000 * MS);
    bench_join(at, 3, 2, 3, "c", 1000);
    assert_true(at->lines[3].closed && at->lines[3].frames == 0);
    bench_destroy(at);
}

/* ---- Any history ------------------------------------------------------------------------------------------------ */

/* What a member believes: its table, with all that it heard since. */
static uint32_t believes(const bench *at, uint64_t line, int rank)
{
    uint32_t incarnation = entry(at, line, rank)->incarnation;
    for (size_t i = 0; i < at->lines[line].count; i++) {
        const wfi_store_message *mail = &at->lines[line].mail[i];
        if (mail->rank != rank)
            continue;
        if (mail->type == WFI_STORE_JOINED) {
            assert_int_equal(incarnation, 0); /* its former one was reported gone */
            incarnation = mail->incarnation;
        } else if (mail->type == WFI_STORE_DIED || mail->type == WFI_STORE_LEFT) {
            assert_int_equal(incarnation, mail->incarnation); /* once, and of whom it knew */
            incarnation = 0;
        }
    }
    return incarnation;
}

static void every_member_knows_of_every_member_whatever_happened(void **state)
{
    enum { SEATS = 6, STEPS = 40 };
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed, lines[SEATS] = {1}, next_line = 2;
        uint32_t incarnations[SEATS] = {1}, last = 1;
        bench *at = bench_create_elastic(SEATS, -1);
        bench_join(at, 1, 0, SEATS, "rank0", 1000);
        for (int step = 0; step < STEPS; step++) {
            int rank = 1 + (int)(prng_next(&random) % (SEATS - 1));
            char name[16];
            snprintf(name, sizeof(name), "n%d", rank);
            if (!lines[rank]) {
                lines[rank] = next_line++;
                bench_join(at, lines[rank], rank, SEATS, name, 1000);
                incarnations[rank] = ++last;
                continue;
            }
            if (prng_next(&random) % 2)
                bench_say_type(at, lines[rank], WFI_STORE_GOODBYE);
            else
                bench_end(at, lines[rank]);
            lines[rank] = incarnations[rank] = 0;
        }
        for (int one = 0; one < SEATS; one++)
            for (int other = 0; lines[one] && other < SEATS; other++)
                assert_int_equal(believes(at, lines[one], other), incarnations[other]);
        bench_destroy(at);
    }
}

UNIT_MAIN(an_elastic_job_runs_as_soon_as_rank_0_is_there, those_who_come_before_rank_0_wait_for_it,
          a_late_one_gets_the_table_and_the_others_its_entry, any_rank_is_the_lowest_free_one_and_never_0,
          ranks_and_names_of_the_gone_are_free_again, elastic_and_static_do_not_mix,
          the_seat_of_a_dead_worker_of_a_static_job_is_taken_again, the_seat_of_one_who_left_a_static_job_stays_empty,
          rank_0_is_never_taken_again, one_who_joins_while_all_close_prolongs_the_job,
          nobody_joins_when_rank_0_has_closed, every_member_knows_of_every_member_whatever_happened,
          a_leaver_is_told_once_to_all_others_and_to_those_who_come, a_leaver_is_waited_for, a_leaver_may_die,
          rank_0_and_workers_of_a_static_job_are_no_leavers)
