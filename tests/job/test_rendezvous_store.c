/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_store.c - the store's state machine: joining, refusals, deaths, suspicion, eviction, farewells. */
#include "store_bench.h"

#include <weft/log.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void joins_in_any_order_are_answered_once_with_the_whole_table(void **state)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t o = 0; o < 6; o++) {
        bench *at = bench_create(3, 2000);
        for (size_t i = 0; i < 3; i++) {
            char name[16];
            int rank = orders[o][i];
            snprintf(name, sizeof(name), "w%d", rank);
            bench_join(at, (uint64_t)rank + 1, rank, 3, name, 1000);
        }
        for (uint64_t line = 1; line <= 3; line++) {
            const wfi_store_world *world = &at->lines[line].world;
            assert_int_equal(at->lines[line].frames, 1);
            assert_int_equal(world->world_size, 3);
            assert_int_equal(world->death_timeout_ms, 2000);
            assert_int_equal(world->job_key[3], 0x5a);
            assert_string_equal(world->members[2].name, "w2");
            assert_int_equal(world->members[1].addresses_size, 3);
            assert_int_equal(world->members[1].cuda_devices, 7);
            for (int rank = 0; rank < 3; rank++)
                assert_true(world->members[rank].incarnation > 0);
        }
        bench_destroy(at);
    }
}

static void a_large_job_takes_one_message_each_way(void **state)
{
    bench *at = bench_create(256, 2000);
    bench_join_all(at, 256);
    for (uint64_t line = 1; line <= 256; line++) {
        assert_int_equal(at->lines[line].frames, 1);
        assert_int_equal(at->lines[line].world.world_size, 256);
    }
    bench_destroy(at);
}

static void expect_refusal(int rank, int world_size, const char *name, weft_status status, const char *text)
{
    bench *at = bench_create(3, 2000);
    bench_join(at, 1, 0, 3, "worker0", 1000);
    bench_join(at, 2, rank, world_size, name, 1000);
    const wfi_store_message *refusal = bench_last(at, 2, WFI_STORE_REFUSE);
    assert_int_equal(refusal->status, status);
    assert_string_equal(refusal->text, text);
    assert_true(at->lines[2].closed);
    assert_false(at->lines[1].closed);
    bench_destroy(at);
}

static void joining_takes_four_messages_a_worker(void **state)
{
    bench *at = bench_create(9, 2000);
    bench_join_all(at, 9);
    assert_int_equal(bench_messages(at), 4 * 9);
    bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    assert_int_equal(bench_messages(at), 4 * 9);
    bench_destroy(at);
}

static void a_rank_out_of_range_is_refused(void **state)
{
    expect_refusal(3, 3, "a", WEFT_ERR_INVALID, "rank 3 is not within 0..2");
    expect_refusal(-1, 3, "a", WEFT_ERR_INVALID, "rank -1 is not within 0..2");
}

static void a_rank_twice_is_refused_and_names_the_other(void **state)
{
    expect_refusal(0, 3, "a", WEFT_ERR_EXISTS, "rank 0 is taken by \"worker0\"");
}

static void a_name_twice_is_refused(void **state)
{
    expect_refusal(1, 3, "worker0", WEFT_ERR_EXISTS, "the name \"worker0\" is taken by rank 0");
}

static void a_malformed_name_is_refused(void **state)
{
    expect_refusal(1, 3, "no name", WEFT_ERR_INVALID, "\"no name\" is no name: 1 to 127 of A-Z a-z 0-9 - _ :");
    expect_refusal(1, 3, "", WEFT_ERR_INVALID, "\"\" is no name: 1 to 127 of A-Z a-z 0-9 - _ :");
}

static void a_name_of_128_bytes_is_refused(void **state)
{
    char name[200];
    memset(name, 'a', sizeof(name));
    name[128] = 0;
    bench *at = bench_create(2, 2000);
    bench_join(at, 1, 0, 2, name, 1000);
    assert_int_equal(bench_last(at, 1, WFI_STORE_REFUSE)->status, WEFT_ERR_INVALID);
    name[127] = 0;
    bench_join(at, 2, 0, 2, name, 1000);
    assert_int_equal(at->lines[2].count, 0);
    bench_destroy(at);
}

static void world_sizes_that_differ_are_refused(void **state)
{
    expect_refusal(1, 4, "a", WEFT_ERR_INVALID, "rank 1 has world size 4, rank 0 has 3");
}

static void another_version_is_refused_in_words(void **state)
{
    bench *at = bench_create(2, 2000);
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_store_message join = {.type = WFI_STORE_JOIN, .rank = 1, .world_size = 2, .text = "a"};
    size_t size = wfi_store_encode(&join, frame);
    frame[2] = WFI_STORE_VERSION + 1;
    wfi_store_opened(at->store, 1);
    wfi_store_received(at->store, 1, at->now_ns, frame, size);
    assert_int_equal(bench_last(at, 1, WFI_STORE_REFUSE)->status, WEFT_ERR_PROTOCOL);
    assert_non_null(strstr(bench_last(at, 1, WFI_STORE_REFUSE)->text, "version"));
    assert_true(at->lines[1].closed);
    bench_destroy(at);
}

static void missing_ranks_are_named_to_all_who_wait(void **state)
{
    bench *at = bench_create(6, -1);
    static const int come[] = {0, 1, 3, 4};
    for (size_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%d", come[i]);
        bench_join(at, (uint64_t)come[i] + 1, come[i], 6, name, 60000);
    }
    bench_pass(at, 59999);
    assert_int_equal(at->lines[1].count, 0);
    bench_pass(at, 2);
    for (size_t i = 0; i < 4; i++) {
        const wfi_store_message *refusal = bench_last(at, (uint64_t)come[i] + 1, WFI_STORE_REFUSE);
        assert_int_equal(refusal->status, WEFT_ERR_RENDEZVOUS);
        assert_string_equal(refusal->text, "ranks 2 and 5 did not come within 60 s");
    }
    bench_join(at, 10, 2, 6, "late", 1000);
    assert_string_equal(bench_last(at, 10, WFI_STORE_REFUSE)->text, "ranks 2 and 5 did not come within 60 s");
    bench_destroy(at);
}

static struct awaited { /* the lines about those who do not come */
    size_t count;
    char last[256];
} awaited;

static void keep_awaited(weft_log_level level, const char *line, void *arg)
{
    if (level != WEFT_LOG_WARN || !strstr(line, "waiting for"))
        return;
    awaited.count++;
    snprintf(awaited.last, sizeof(awaited.last), "%s", line);
}

static void those_awaited_are_named_while_there_is_patience(void **state)
{
    awaited.count = 0;
    weft_logging_set_sink(keep_awaited, NULL);
    bench *at = bench_create(6, -1);
    bench_pass(at, 60000); /* nobody waits: no word */
    for (int rank = 0; rank < 6; rank++)
        if (rank != 2 && rank != 5)
            bench_join(at, (uint64_t)rank + 1, rank, 6, (const char *const[]){"a", "b", "c", "d", "e", "f"}[rank], -1);
    bench_pass(at, 4999);
    assert_int_equal(awaited.count, 0);
    bench_pass(at, 2);
    assert_int_equal(awaited.count, 1);
    assert_non_null(strstr(awaited.last, "waiting for ranks 2 and 5: 4 of 6 workers are here"));
    bench_join(at, 7, 2, 6, "c", -1);
    bench_pass(at, 9997);
    assert_int_equal(awaited.count, 1);
    bench_pass(at, 3);
    assert_int_equal(awaited.count, 2);
    assert_non_null(strstr(awaited.last, "waiting for rank 5: 5 of 6"));
    bench_pass(at, 3600u * 1000);
    assert_true(awaited.count >= 25 && awaited.count <= 40); /* every two minutes */
    size_t before = awaited.count;
    bench_join(at, 8, 5, 6, "f", -1);
    bench_pass(at, 3600u * 1000);
    assert_int_equal(awaited.count, before);
    bench_destroy(at);
    weft_logging_set_sink(NULL, NULL);
}

static void one_missing_rank_is_named(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join(at, 1, 0, 2, "a", 1500);
    bench_pass(at, 1501);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text, "rank 1 did not come within 1500 ms");
    bench_destroy(at);
}

static void many_missing_ranks_are_counted(void **state)
{
    bench *at = bench_create(100, 2000);
    bench_join(at, 1, 0, 100, "a", 1000);
    bench_pass(at, 1001);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text,
                        "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more did not come within 1 s");
    bench_destroy(at);
}

static void one_that_goes_while_waiting_frees_its_rank_and_name(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join(at, 1, 1, 2, "a", 1000);
    bench_end(at, 1);
    bench_join(at, 2, 1, 2, "a", 1000);
    bench_join(at, 3, 0, 2, "b", 1000);
    assert_int_equal(at->lines[2].world.world_size, 2);
    assert_int_equal(at->lines[3].world.world_size, 2);
    bench_destroy(at);
}

static void one_that_stops_while_waiting_loses_its_seat_after_the_bound(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join(at, 1, 0, 3, "a", 60000);
    bench_join(at, 2, 1, 3, "b", 60000);
    for (int i = 0; i < 4; i++) {
        bench_pass(at, 490);
        bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    }
    assert_int_equal(wfi_store_alive(at->store), 2);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_HEARTBEAT), 4);
    bench_pass(at, 600);
    assert_true(at->lines[2].closed);
    assert_int_equal(wfi_store_alive(at->store), 1);
    bench_join(at, 3, 1, 3, "b", 60000); /* it goes on, or another takes its place */
    bench_join(at, 4, 2, 3, "c", 60000);
    assert_int_equal(at->lines[1].world.world_size, 3);
    bench_destroy(at);
}

static void a_join_after_completion_is_refused(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_join(at, 9, 1, 2, "again", 1000);
    assert_int_equal(bench_last(at, 9, WFI_STORE_REFUSE)->status, WEFT_ERR_EXISTS);
    bench_destroy(at);
}

static void a_strangers_nonsense_closes_only_his_connection(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join(at, 1, 0, 2, "a", 1000);
    wfi_store_opened(at->store, 2);
    wfi_store_received(at->store, 2, at->now_ns, (const uint8_t *)"GET / HTTP/1.1\r\n", 16);
    assert_true(at->lines[2].closed);
    wfi_store_opened(at->store, 3);
    bench_say_type(at, 3, WFI_STORE_GOODBYE);
    assert_true(at->lines[3].closed);
    bench_join(at, 4, 1, 2, "b", 1000);
    assert_int_equal(at->lines[1].world.world_size, 2);
    bench_destroy(at);
}

static void a_link_that_breaks_is_a_death_told_to_the_others(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_end(at, 2);
    assert_int_equal(bench_last(at, 1, WFI_STORE_DIED)->rank, 1);
    assert_int_equal(bench_last(at, 3, WFI_STORE_DIED)->incarnation, at->lines[1].world.members[1].incarnation);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIED), 0);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_destroy(at);
}

static void silence_for_the_bound_is_a_death_and_the_dead_one_is_told(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_need(at, 1, 1, true);
    for (int i = 0; i < 4; i++) {
        bench_pass(at, 499);
        bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    }
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_pass(at, 10);
    assert_string_equal(bench_last(at, 1, WFI_STORE_DIED)->text, "silent for 2000 ms");
    assert_non_null(strstr(bench_last(at, 2, WFI_STORE_EVICTED)->text, "silent for 2000 ms"));
    assert_true(at->lines[2].closed && at->lines[2].keep_ms > 0);
    bench_destroy(at);
}

static void heartbeats_are_answered_and_keep_alive(void **state)
{
    bench *at = bench_create(1, 2000);
    bench_join_all(at, 1);
    for (int i = 0; i < 20; i++) {
        bench_pass(at, 500);
        bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    }
    assert_int_equal(bench_heard(at, 1, WFI_STORE_HEARTBEAT), 20);
    assert_int_equal(wfi_store_alive(at->store), 1);
    bench_destroy(at);
}

static void nobody_dies_of_silence_if_the_bound_is_off(void **state)
{
    bench *at = bench_create(2, -1);
    bench_join_all(at, 2);
    wfi_store_message suspect = {.type = WFI_STORE_SUSPECT, .rank = 1, .incarnation = 2, .text = "x"};
    bench_say(at, 1, &suspect);
    bench_pass(at, 3600 * 1000);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_destroy(at);
}

/* It is in the store's own process: its silence says no more than the store's. */
static void rank_0_is_not_judged_by_its_silence(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_need(at, 2, 0, true); /* somebody waits for it, so that any other would have to beat */
    wfi_store_message suspect = {.type = WFI_STORE_SUSPECT,
                                 .rank = 0,
                                 .incarnation = at->lines[2].world.members[0].incarnation,
                                 .text = "it says nothing"};
    bench_say(at, 2, &suspect);
    for (int i = 0; i < 20; i++) {
        bench_pass(at, 500);
        bench_say_type(at, 2, WFI_STORE_HEARTBEAT);
    }
    assert_int_equal(wfi_store_alive(at->store), 2);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIED), 0);
    bench_destroy(at);
}

static void suspect_rank_1(bench *at)
{
    wfi_store_message suspect = {.type = WFI_STORE_SUSPECT,
                                 .rank = 1,
                                 .incarnation = at->lines[1].world.members[1].incarnation,
                                 .text = "refused"};
    bench_say(at, 1, &suspect);
}

static void a_suspicion_asks_but_does_not_shorten_the_bound(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    suspect_rank_1(at);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_SPEAK), 1);
    assert_int_equal(bench_last(at, 2, WFI_STORE_DIAL)->rank, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(wfi_store_alive(at->store), 2);
        bench_pass(at, 499);
        bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    }
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_pass(at, 10);
    assert_string_equal(bench_last(at, 1, WFI_STORE_DIED)->text, "did not answer after rank 0 suspected it: refused");
    bench_destroy(at);
}

static void a_suspect_that_answers_lives(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    suspect_rank_1(at);
    bench_pass(at, 500);
    bench_say_type(at, 1, WFI_STORE_HEARTBEAT);
    bench_say_type(at, 2, WFI_STORE_HEARTBEAT);
    bench_pass(at, 1500);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_destroy(at);
}

static void a_flood_of_suspicions_does_not_reach_the_suspect(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    for (int i = 0; i < 1000; i++)
        suspect_rank_1(at);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIAL), 2);
    bench_say_type(at, 2, WFI_STORE_HEARTBEAT);
    bench_pass(at, 1001);
    suspect_rank_1(at);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIAL), 3);
    bench_destroy(at);
}

static void a_suspicion_of_another_incarnation_or_nobody_is_ignored(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    static const wfi_store_message reports[] = {
        {.type = WFI_STORE_SUSPECT, .rank = 1, .incarnation = 77},
        {.type = WFI_STORE_SUSPECT, .rank = 9, .incarnation = 1},
        {.type = WFI_STORE_SUSPECT, .rank = -1, .incarnation = 1},
        {.type = WFI_STORE_SUSPECT, .rank = 0, .incarnation = 1},
    };
    for (size_t i = 0; i < 4; i++)
        bench_say(at, 1, &reports[i]);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_SPEAK) + bench_heard(at, 2, WFI_STORE_SPEAK), 0);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIAL) + bench_heard(at, 2, WFI_STORE_DIAL), 0);
    bench_destroy(at);
}

static void a_store_that_was_stopped_itself_accuses_nobody(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_need(at, 1, 1, true);
    bench_pass(at, 100);
    at->now_ns += 60000 * MS; /* no tick came */
    wfi_store_tick(at->store, at->now_ns);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_pass(at, 1999);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_pass(at, 2);
    assert_int_equal(wfi_store_alive(at->store), 1); /* nobody asks for rank 0 */
    bench_destroy(at);
}

static void a_goodbye_is_told_as_left_not_as_death(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_say_type(at, 3, WFI_STORE_GOODBYE);
    assert_int_equal(bench_last(at, 1, WFI_STORE_LEFT)->rank, 2);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_DIED), 0);
    assert_true(at->lines[3].closed);
    bench_destroy(at);
}

static void a_members_nonsense_is_its_death(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    wfi_store_received(at->store, 2, at->now_ns, (const uint8_t *)"rubbish rubbish", 15);
    assert_int_equal(bench_last(at, 1, WFI_STORE_DIED)->rank, 1);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_EVICTED), 1);
    bench_destroy(at);
}

static void draining_ends_when_the_last_one_left(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_say_type(at, 1, WFI_STORE_GOODBYE);
    wfi_store_drain(at->store, at->now_ns, at->now_ns + 2000 * MS);
    assert_false(wfi_store_is_finished(at->store, at->now_ns));
    bench_say_type(at, 2, WFI_STORE_GOODBYE);
    assert_true(wfi_store_is_finished(at->store, at->now_ns));
    bench_destroy(at);
}

static void draining_ends_at_its_deadline(void **state)
{
    bench *at = bench_create(2, -1);
    bench_join_all(at, 2);
    wfi_store_drain(at->store, at->now_ns, at->now_ns + 2000 * MS);
    bench_pass(at, 1999);
    assert_false(wfi_store_is_finished(at->store, at->now_ns));
    bench_pass(at, 1);
    assert_true(wfi_store_is_finished(at->store, at->now_ns));
    bench_destroy(at);
}

static void rank_0_going_early_tells_those_who_wait(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join(at, 1, 1, 3, "a", 60000);
    wfi_store_drain(at->store, at->now_ns, at->now_ns);
    assert_int_equal(bench_last(at, 1, WFI_STORE_REFUSE)->status, WEFT_ERR_RENDEZVOUS);
    assert_true(wfi_store_is_finished(at->store, at->now_ns));
    bench_destroy(at);
}

static void an_impossible_world_size_makes_no_store(void **state)
{
    wfi_store *store;
    wfi_store_options options = {.world_size = 0};
    assert_int_equal(wfi_store_create(&options, &store), WEFT_ERR_INVALID);
    options.world_size = WFI_STORE_WORKERS_MAX + 1;
    assert_int_equal(wfi_store_create(&options, &store), WEFT_ERR_INVALID);
}

UNIT_MAIN(joins_in_any_order_are_answered_once_with_the_whole_table, a_large_job_takes_one_message_each_way,
          joining_takes_four_messages_a_worker, a_rank_out_of_range_is_refused,
          a_rank_twice_is_refused_and_names_the_other, a_name_twice_is_refused, a_malformed_name_is_refused,
          a_name_of_128_bytes_is_refused, world_sizes_that_differ_are_refused, another_version_is_refused_in_words,
          missing_ranks_are_named_to_all_who_wait, those_awaited_are_named_while_there_is_patience,
          one_missing_rank_is_named, many_missing_ranks_are_counted,
          one_that_goes_while_waiting_frees_its_rank_and_name,
          one_that_stops_while_waiting_loses_its_seat_after_the_bound, a_join_after_completion_is_refused,
          a_strangers_nonsense_closes_only_his_connection, a_link_that_breaks_is_a_death_told_to_the_others,
          silence_for_the_bound_is_a_death_and_the_dead_one_is_told, heartbeats_are_answered_and_keep_alive,
          nobody_dies_of_silence_if_the_bound_is_off, rank_0_is_not_judged_by_its_silence,
          a_suspicion_asks_but_does_not_shorten_the_bound, a_suspect_that_answers_lives,
          a_flood_of_suspicions_does_not_reach_the_suspect, a_suspicion_of_another_incarnation_or_nobody_is_ignored,
          a_store_that_was_stopped_itself_accuses_nobody, a_goodbye_is_told_as_left_not_as_death,
          a_members_nonsense_is_its_death, draining_ends_when_the_last_one_left, draining_ends_at_its_deadline,
          rank_0_going_early_tells_those_who_wait, an_impossible_world_size_makes_no_store)
