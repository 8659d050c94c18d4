/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_resume.c - connections that come and go, at the store: nothing lost, nothing doubled, the right
 * ones dead; and heartbeats only from those on whom somebody depends.
 */
#include "store_bench.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void kill_line(bench *at, uint64_t line, wfi_store_loss how)
{
    bench_pass(at, 5); /* it was a member for a while */
    wfi_store_closed(at->store, line, how, at->now_ns);
}

static void news_that_was_not_heard_comes_again(void **state)
{
    bench *at = bench_create_elastic(8, 2000);
    bench_join(at, 1, 0, 8, "a", 1000);
    bench_join(at, 2, 1, 8, "b", 1000);
    bench_join(at, 3, 2, 8, "c", 1000); /* lines 1 and 2 hear of it; line 2 of this only */
    bench_join(at, 4, 3, 8, "d", 1000);
    bench_resume(at, 5, 2, 1); /* `d` did not reach it */
    assert_true(at->lines[2].closed);
    assert_int_equal(bench_heard(at, 5, WFI_STORE_JOINED), 1);
    assert_string_equal(bench_last(at, 5, WFI_STORE_JOINED)->text, "d");
    assert_int_equal(bench_last(at, 5, WFI_STORE_RESUMED)->acknowledged, 1);
    bench_join(at, 6, 4, 8, "e", 1000);
    assert_string_equal(bench_last(at, 5, WFI_STORE_JOINED)->text, "e");
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_destroy(at);
}

static void the_store_says_how_much_it_has_heard(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_need(at, 1, 1, true);
    bench_need(at, 1, 2, true);
    bench_resume(at, 9, 1, 0);
    assert_int_equal(bench_last(at, 9, WFI_STORE_RESUMED)->received, 2);
    bench_destroy(at);
}

static void a_resume_without_the_token_is_refused(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    at->lines[2].world.token[0] ^= 1;
    bench_resume(at, 9, 2, 0);
    assert_int_equal(bench_last(at, 9, WFI_STORE_REFUSE)->status, WEFT_ERR_PROTOCOL);
    assert_false(at->lines[2].closed);
    at->lines[2].world.token[0] ^= 1;
    bench_resume(at, 10, 2, 99); /* it claims to have heard what was never said */
    assert_int_equal(bench_last(at, 10, WFI_STORE_REFUSE)->status, WEFT_ERR_PROTOCOL);
    assert_int_equal(bench_refused(at), 2);
    bench_destroy(at);
}

static void one_that_was_declared_dead_is_told_when_it_resumes(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    kill_line(at, 3, WFI_STORE_ENDED);
    bench_resume(at, 9, 3, 0);
    assert_non_null(strstr(bench_last(at, 9, WFI_STORE_EVICTED)->text, "its connection to the store broke"));
    bench_join(at, 10, 2, 3, "worker2", 1000);
    bench_resume(at, 11, 3, 0); /* its rank is another's by now */
    assert_int_equal(bench_heard(at, 11, WFI_STORE_EVICTED), 1);
    assert_false(at->lines[10].closed);
    bench_destroy(at);
}

/* How long after the loss the others hear of a death; -1: not within 10 s. */
static int64_t noticed_after(wfi_store_loss how, int64_t bound_ms)
{
    bench *at = bench_create(2, bound_ms);
    bench_join_all(at, 2);
    kill_line(at, 2, how);
    for (int64_t ms = 0; ms < 10000; ms++) {
        if (bench_heard(at, 1, WFI_STORE_DIED)) {
            bench_destroy(at);
            return ms;
        }
        bench_pass(at, 1);
    }
    bench_destroy(at);
    return -1;
}

static void how_a_connection_ends_says_how_long_it_is_waited_for(void **state)
{
    assert_int_equal(noticed_after(WFI_STORE_ENDED, 2000), 0);
    assert_in_range(noticed_after(WFI_STORE_RESET, 2000), 99, 101);
    assert_in_range(noticed_after(WFI_STORE_RESET, 200), 49, 51);
    assert_in_range(noticed_after(WFI_STORE_CUT, 2000), 1999, 2001);
    assert_in_range(noticed_after(WFI_STORE_CUT, -1), 1999, 2001);
    assert_int_equal(noticed_after(WFI_STORE_ENDED, -1), 0);
}

static void a_reset_or_cut_connection_that_resumes_in_time_is_no_death(void **state)
{
    for (wfi_store_loss how = WFI_STORE_RESET; how <= WFI_STORE_CUT; how++) {
        bench *at = bench_create(2, 2000);
        bench_join_all(at, 2);
        kill_line(at, 2, how);
        bench_pass(at, how == WFI_STORE_RESET ? 90 : 1990);
        bench_resume(at, 9, 2, 0);
        bench_pass(at, 10000);
        assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
        assert_int_equal(wfi_store_alive(at->store), 2);
        bench_destroy(at);
    }
}

static void say_resume(bench *at, uint64_t line, uint64_t former)
{
    const wfi_store_world *world = &at->lines[former].world;
    wfi_store_message resume = {.type = WFI_STORE_RESUME, .rank = world->rank};
    resume.incarnation = world->members[world->rank].incarnation;
    memcpy(resume.token, world->token, sizeof(resume.token));
    bench_say(at, line, &resume);
}

/* The cut has healed as its time ends, and its proof is under way. */
static void one_that_knocks_as_its_time_ends_is_heard_first(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_need(at, 1, 1, true);
    bench_pass(at, 1995);
    assert_int_equal(wfi_store_opened(at->store, 8), WEFT_OK); /* not even greeted: its hello is still in the socket */
    bench_pass(at, 100);
    bench_greet(at, 9);
    bench_pass(at, 200);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    say_resume(at, 9, 2);
    bench_say_type(at, 9, WFI_STORE_HEARTBEAT);
    bench_pass(at, 1900);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_pass(at, 110); /* and silent once more, with nobody at the door */
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

static void knocking_puts_a_death_off_for_a_quarter_of_the_bound(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_need(at, 1, 1, true);
    for (uint64_t line = 10; line < 34; line++) { /* 2,400 ms */
        bench_pass(at, 100);
        bench_greet(at, line);
    }
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_pass(at, 110);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

/* Attempts to resume that it gives up itself, while it is missed and after that. */
static void attempts_that_a_member_gives_up_are_not_refusals(void **state)
{
    bench *at = bench_create_with(&(wfi_store_options){
        .world_size = 2, .death_timeout_ms = 2000, .secret = (const uint8_t *)"a secret of a job", .secret_size = 17});
    at->secret = "a secret of a job";
    bench_join_all(at, 2);
    bench_need(at, 1, 1, true);
    bench_pass(at, 600);
    for (uint64_t line = 10; line < 13; line++) {
        bench_greet(at, line);
        kill_line(at, line, WFI_STORE_ENDED);
    }
    assert_int_equal(wfi_store_opened(at->store, 13), WEFT_OK);
    kill_line(at, 13, WFI_STORE_CUT);
    bench_greet(at, 14);
    say_resume(at, 14, 2);
    bench_greet(at, 15); /* sent before, arrived behind */
    kill_line(at, 15, WFI_STORE_ENDED);
    assert_int_equal(bench_refused(at), 0);
    for (int i = 0; i < 10; i++) {
        bench_say_type(at, 14, WFI_STORE_HEARTBEAT);
        bench_pass(at, 250);
    }
    bench_greet(at, 16);
    kill_line(at, 16, WFI_STORE_ENDED);
    assert_int_equal(bench_refused(at), 0);
    bench_destroy(at);
}

/* The answer to its resume was lost, and it tries once more: that the first attempt's connection ends is not its
 * death. */
static void an_attempt_that_is_given_up_is_no_death(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_resume(at, 9, 2, 0);
    kill_line(at, 9, WFI_STORE_ENDED);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_resume(at, 10, 2, 0);
    bench_say_type(at, 10, WFI_STORE_HEARTBEAT);
    bench_pass(at, 5000);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    kill_line(at, 10, WFI_STORE_ENDED); /* but of one that was confirmed it is */
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

static void a_new_process_need_not_wait_for_a_lost_one(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    kill_line(at, 2, WFI_STORE_RESET);
    bench_join(at, 9, 1, 2, "worker1", 1000);
    assert_int_equal(at->lines[9].world.members[1].incarnation, 3);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_JOINED), 1);
    bench_destroy(at);
}

static void join_with(bench *at, uint64_t line, int rank, const char *name, uint8_t token)
{
    wfi_store_message join = {.type = WFI_STORE_JOIN, .rank = rank, .world_size = 3, .timeout_ms = 60000};
    join.elastic = at->elastic;
    snprintf(join.text, sizeof(join.text), "%s", name);
    memset(join.token, token, sizeof(join.token));
    bench_greet(at, line);
    bench_say(at, line, &join);
}

/* The answer to its join was lost, and it asks once more, on another connection: it gets that answer, and what came
 * after it. */
static void a_joining_that_asks_again_gets_its_answer_again(void **state)
{
    for (int named = 0; named < 2; named++) {
        for (int lost = 0; lost < 2; lost++) { /* whether the store knows */
            bench *at = bench_create_elastic(3, 2000);
            const char *name = named ? "guest" : "";
            join_with(at, 1, 0, "worker0", 1);
            join_with(at, 2, -1, name, 2);
            join_with(at, 3, -1, "", 3);
            bench_say_type(at, 3, WFI_STORE_GOODBYE);
            if (lost)
                kill_line(at, 2, WFI_STORE_RESET);
            join_with(at, 9, -1, name, 2);
            assert_int_equal(at->lines[9].world.rank, 1);
            assert_int_equal(at->lines[9].world.members[1].incarnation, at->lines[2].world.members[1].incarnation);
            assert_memory_equal(at->lines[9].world.token, at->lines[2].world.token, WFI_STORE_TOKEN_BYTES);
            assert_int_equal(bench_heard(at, 9, WFI_STORE_LEFT), 1);
            assert_int_equal(bench_heard(at, 1, WFI_STORE_JOINED), 2);
            bench_say_type(at, 9, WFI_STORE_HEARTBEAT);
            bench_pass(at, 10000);
            assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
            assert_int_equal(wfi_store_alive(at->store), 2);
            bench_say_type(at, 9, WFI_STORE_HEARTBEAT);
            join_with(at, 10, 1, "another", 4); /* not the same joining */
            assert_int_equal(bench_last(at, 10, WFI_STORE_REFUSE)->status, WEFT_ERR_EXISTS);
            bench_destroy(at);
        }
    }
}

/* It had given its connection up before the table came, as the store stood still: that end is no death, if it comes
 * soon. */
static void a_joining_that_was_given_up_is_no_death(void **state)
{
    for (int soon = 0; soon < 2; soon++) {
        bench *at = bench_create(3, 2000);
        join_with(at, 1, 0, "worker0", 1);
        join_with(at, 2, 1, "worker1", 2);
        join_with(at, 3, 2, "worker2", 3);
        bench_pass(at, soon ? 4 : 5);
        wfi_store_closed(at->store, 2, WFI_STORE_ENDED, at->now_ns);
        assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), !soon);
        join_with(at, 9, 1, "worker1", 2);
        uint64_t again = at->lines[9].world.members[1].incarnation, before = at->lines[2].world.members[1].incarnation;
        assert_true(soon ? again == before : again > before);
        bench_destroy(at);
    }
}

/* One that lost the store, and that the store has not missed, joins again: its own former life holds the seat. */
static void the_holder_of_a_seat_is_asked_whether_it_lives(void **state)
{
    for (int lives = 0; lives < 2; lives++) {
        bench *at = bench_create_elastic(3, 2000);
        join_with(at, 1, 0, "worker0", 1);
        join_with(at, 2, 1, "guest", 2);
        bench_pass(at, 60000); /* nobody depends on it, so it says nothing */
        join_with(at, 3, lives ? -1 : 1, "guest", 3);
        assert_true(at->lines[3].closed);
        assert_int_equal(at->lines[3].count, 0); /* and tries again */
        assert_int_equal(bench_heard(at, 2, WFI_STORE_SPEAK), 1);
        if (lives) {
            bench_say_type(at, 2, WFI_STORE_HEARTBEAT);
            join_with(at, 4, -1, "guest", 3);
            assert_int_equal(bench_last(at, 4, WFI_STORE_REFUSE)->status, WEFT_ERR_EXISTS);
        } else {
            bench_pass(at, 1500);
            join_with(at, 4, 1, "guest", 3);
            assert_int_equal(at->lines[4].count, 0);
            bench_pass(at, 600);
            assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
            join_with(at, 5, 1, "guest", 3);
            assert_int_equal(at->lines[5].world.members[1].incarnation, 3);
        }
        bench_destroy(at);
    }
}

static void one_that_waits_may_ask_again(void **state)
{
    bench *at = bench_create(3, 2000);
    join_with(at, 1, 0, "worker0", 1);
    join_with(at, 2, 1, "worker1", 2);
    join_with(at, 9, 1, "worker1", 2);
    assert_true(at->lines[2].closed && !at->lines[9].closed);
    join_with(at, 3, 2, "worker2", 3);
    assert_int_equal(at->lines[9].world.rank, 1);
    assert_int_equal(wfi_store_alive(at->store), 3);
    bench_destroy(at);
}

static void what_nobody_acknowledges_is_bounded(void **state)
{
    bench *at = bench_create_elastic(4, -1);
    bench_join(at, 1, 0, 4, "a", 1000);
    bench_join(at, 2, 1, 4, "b", 1000);
    for (int i = 0; i < 40000 && !at->lines[2].closed; i++) {
        uint64_t line = 10 + (uint64_t)i % 2;
        memset(&at->lines[line], 0, sizeof(at->lines[line]));
        bench_join(at, line, 2, 4, "coming-and-going", 1000);
        bench_say_type(at, line, WFI_STORE_GOODBYE);
        free(at->lines[line].world.members);
        at->lines[line].world.members = NULL;
        wfi_store_message ack = {.type = WFI_STORE_ACK, .received = 2 * (uint64_t)i + 3};
        bench_say(at, 1, &ack); /* line 2 never does */
        at->lines[2].count = 0;
        bench_pass(at, 1);
    }
    assert_true(at->lines[2].closed);
    assert_false(at->lines[1].closed);
    assert_non_null(strstr(bench_last(at, 2, WFI_STORE_EVICTED)->text, "queue of unacknowledged messages"));
    bench_destroy(at);
}

/* ---- Syncs ------------------------------------------------------------------------------------------------------ */

static void say_sync(bench *at, uint64_t line, uint64_t number)
{
    bench_say(at, line, &(wfi_store_message){.type = WFI_STORE_SYNC, .wave = number});
}

/* Also on a new connection, if the answer or the news did not arrive on the former one. */
static void a_sync_is_answered_behind_all_earlier_news(void **state)
{
    bench *at = bench_create_elastic(4, 2000);
    bench_join(at, 1, 0, 4, "a", 1000);
    bench_join(at, 2, 1, 4, "b", 1000);
    bench_join(at, 3, 2, 4, "c", 1000);
    bench_say_type(at, 3, WFI_STORE_GOODBYE);
    bench_join(at, 4, 2, 4, "d", 1000);
    say_sync(at, 2, 77);
    assert_int_equal(bench_last(at, 2, WFI_STORE_SYNCED)->wave, 77);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_SYNCED), 0);
    bench_resume(at, 5, 2, 2); /* the joining of `d` and the answer did not reach it */
    const bench_line *line = &at->lines[5];
    assert_int_equal(line->count, 3);
    assert_int_equal(line->mail[0].type, WFI_STORE_RESUMED);
    assert_int_equal(line->mail[0].received, 1);
    assert_int_equal(line->mail[1].type, WFI_STORE_JOINED);
    assert_int_equal(line->mail[2].type, WFI_STORE_SYNCED);
    assert_int_equal(line->mail[2].wave, 77);
    bench_destroy(at);
}

/* The store keeps at most 1 MiB of answers for a worker that does not acknowledge them. */
static void a_flood_of_syncs_is_bounded(void **state)
{
    bench *at = bench_create(3, -1);
    int sent = 0;
    bench_join_all(at, 3);
    for (; sent < 100000 && !at->lines[2].closed; sent++) {
        say_sync(at, 2, (uint64_t)sent);
        at->lines[2].count = 0;
        if (wfi_store_due(at->store) <= at->now_ns)
            wfi_store_tick(at->store, at->now_ns);
    }
    assert_in_range(sent, 1000, 40000);
    assert_string_equal(bench_last(at, 1, WFI_STORE_DIED)->text, "its queue of unacknowledged messages is full");
    assert_false(at->lines[1].closed || at->lines[3].closed);
    bench_destroy(at);
}

/* ---- Needs ------------------------------------------------------------------------------------------------------ */

static void nobody_beats_and_nobody_dies_of_silence_unless_needed(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    assert_int_equal(wfi_store_due(at->store) <= at->now_ns, true); /* the first tick */
    bench_pass(at, 1);
    assert_true(wfi_store_due(at->store) == WFI_NEVER); /* nothing is awaited */
    bench_pass(at, 3600 * 1000);
    for (uint64_t line = 1; line <= 3; line++)
        assert_int_equal(at->lines[line].frames, 1);
    bench_need(at, 1, 1, true);
    assert_true(bench_last(at, 2, WFI_STORE_BEAT)->on);
    bench_need(at, 3, 1, true);
    bench_need(at, 1, 1, false);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_BEAT), 1);
    bench_pass(at, 1900);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 0);
    bench_pass(at, 110); /* counted from the first need */
    assert_int_equal(bench_heard(at, 1, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

static void a_need_ends_when_it_is_taken_back_or_its_worker_goes(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_need(at, 1, 1, true);
    bench_need(at, 1, 1, true); /* again: one need */
    bench_need(at, 1, 1, false);
    assert_false(bench_last(at, 2, WFI_STORE_BEAT)->on);
    bench_need(at, 3, 1, true);
    assert_true(bench_last(at, 2, WFI_STORE_BEAT)->on);
    kill_line(at, 3, WFI_STORE_ENDED);
    assert_false(bench_last(at, 2, WFI_STORE_BEAT)->on);
    bench_pass(at, 10000);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_destroy(at);
}

static void a_need_of_the_gone_of_oneself_or_of_nobody_is_nothing(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    static const wfi_store_message bad[] = {{.type = WFI_STORE_NEED, .rank = -1, .incarnation = 1, .on = true},
                                            {.type = WFI_STORE_NEED, .rank = 3, .incarnation = 1, .on = true},
                                            {.type = WFI_STORE_NEED, .rank = 0, .incarnation = 1, .on = true},
                                            {.type = WFI_STORE_NEED, .rank = 1, .incarnation = 9, .on = true}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        bench_say(at, 1, &bad[i]);
    bench_pass(at, 10000);
    assert_int_equal(wfi_store_alive(at->store), 3);
    bench_destroy(at);
}

static void who_closes_needs_all_the_others(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    bench_say_type(at, 1, WFI_STORE_CLOSING);
    assert_int_equal(bench_heard(at, 1, WFI_STORE_BEAT), 0);
    for (uint64_t line = 2; line <= 3; line++)
        assert_true(bench_last(at, line, WFI_STORE_BEAT)->on);
    bench_say_type(at, 2, WFI_STORE_CLOSING);
    assert_true(bench_last(at, 1, WFI_STORE_BEAT)->on);
    bench_say_type(at, 1, WFI_STORE_GOODBYE);
    assert_false(bench_last(at, 2, WFI_STORE_BEAT)->on);
    assert_true(bench_last(at, 3, WFI_STORE_BEAT)->on);
    bench_destroy(at);
}

static void one_that_does_not_beat_may_be_suspected(void **state)
{
    bench *at = bench_create(2, 2000);
    bench_join_all(at, 2);
    bench_pass(at, 60000);
    wfi_store_message doubt = {.type = WFI_STORE_SUSPECT, .rank = 1, .incarnation = 2, .text = "it is so quiet"};
    bench_say(at, 1, &doubt);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_SPEAK), 1);
    bench_pass(at, 1990);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_pass(at, 20);
    assert_int_equal(wfi_store_alive(at->store), 1);
    bench_destroy(at);
}

UNIT_MAIN(news_that_was_not_heard_comes_again, the_store_says_how_much_it_has_heard,
          a_resume_without_the_token_is_refused, one_that_was_declared_dead_is_told_when_it_resumes,
          a_joining_that_was_given_up_is_no_death, how_a_connection_ends_says_how_long_it_is_waited_for,
          a_reset_or_cut_connection_that_resumes_in_time_is_no_death, one_that_knocks_as_its_time_ends_is_heard_first,
          knocking_puts_a_death_off_for_a_quarter_of_the_bound, attempts_that_a_member_gives_up_are_not_refusals,
          an_attempt_that_is_given_up_is_no_death, a_new_process_need_not_wait_for_a_lost_one,
          a_joining_that_asks_again_gets_its_answer_again, the_holder_of_a_seat_is_asked_whether_it_lives,
          one_that_waits_may_ask_again, what_nobody_acknowledges_is_bounded, a_sync_is_answered_behind_all_earlier_news,
          a_flood_of_syncs_is_bounded, nobody_beats_and_nobody_dies_of_silence_unless_needed,
          a_need_ends_when_it_is_taken_back_or_its_worker_goes, a_need_of_the_gone_of_oneself_or_of_nobody_is_nothing,
          who_closes_needs_all_the_others, one_that_does_not_beat_may_be_suspected)
