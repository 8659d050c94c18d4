/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_no_memory.c - memory is out for a while, at the store or in a worker's link to it: nobody dies of
 * that, no news is lost, and what could not be said is said later. The linker puts malloc and wfi_calloc below in
 * the place of the library's.
 */
#include "store_bench.h"

#include "job/link/link.h"

#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

static bool malloc_fails, calloc_fails;

void *__wrap_malloc(size_t size)
{
    return malloc_fails ? NULL : __real_malloc(size);
}

void *__wrap_wfi_calloc(size_t count, size_t size)
{
    return calloc_fails ? NULL : __real_wfi_calloc(count, size);
}

/* ---- The store --------------------------------------------------------------------------------------------------- */

enum { WORKERS = 40 };

static void kill_line(bench *at, uint64_t line)
{
    at->lines[line].closed = true;
    bench_end(at, line);
}

static void acknowledge_all(bench *at, uint64_t news)
{
    wfi_store_message beat = {.type = WFI_STORE_HEARTBEAT, .received = news};
    for (uint64_t line = 1; line <= WORKERS; line++)
        if (!at->lines[line].closed)
            bench_say(at, line, &beat);
}

/* Death after death, while there is no memory at all: all others hear of each, and none of them pays for it. */
static void deaths_are_told_without_memory(void **state)
{
    bench *at = bench_create(WORKERS, 2000);
    bench_join_all(at, WORKERS);
    malloc_fails = true;
    for (uint64_t deaths = 1; deaths <= 20; deaths++) {
        kill_line(at, WORKERS + 1 - deaths);
        bench_pass(at, 10);
        for (uint64_t line = 1; line <= WORKERS - deaths; line++)
            assert_int_equal(bench_heard(at, line, WFI_STORE_DIED), deaths);
        acknowledge_all(at, deaths);
    }
    malloc_fails = false;
    bench_pass(at, 10000);
    assert_int_equal(wfi_store_alive(at->store), WORKERS - 20);
    bench_destroy(at);
}

/* What comes out of the reserve is said again like all that is kept. */
static void mail_from_the_reserve_comes_again(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    malloc_fails = true;
    kill_line(at, 3);
    malloc_fails = false;
    wfi_store_closed(at->store, 2, WFI_STORE_CUT, at->now_ns);
    bench_resume(at, 9, 2, 0);
    assert_int_equal(bench_heard(at, 9, WFI_STORE_DIED), 1);
    bench_destroy(at);
}

/* There is no room to note whom it depends on: it says it again, and then it counts. */
static void a_need_that_finds_no_memory_comes_again(void **state)
{
    bench *at = bench_create(3, 2000);
    bench_join_all(at, 3);
    calloc_fails = true;
    bench_need(at, 2, 2, true);
    calloc_fails = false;
    assert_true(at->lines[2].closed);
    assert_int_equal(bench_heard(at, 3, WFI_STORE_BEAT), 0);
    bench_resume(at, 9, 2, 0);
    const wfi_store_message *resumed = bench_last(at, 9, WFI_STORE_RESUMED);
    assert_int_equal(resumed->received, 0);
    at->lines[9].world = at->lines[2].world;
    at->lines[2].world.members = NULL;
    bench_need(at, 9, 2, true);
    assert_int_equal(bench_heard(at, 3, WFI_STORE_BEAT), 1);
    bench_pass(at, 1000);
    assert_int_equal(wfi_store_alive(at->store), 3);
    bench_destroy(at);
}

/* There is no room for the answer, which does without the reserve: the worker sends the sync again. */
static void a_sync_that_finds_no_memory_comes_again(void **state)
{
    bench *at = bench_create(3, 2000);
    const wfi_store_message sync = {.type = WFI_STORE_SYNC, .wave = 5};
    bench_join_all(at, 3);
    malloc_fails = true;
    bench_say(at, 2, &sync);
    malloc_fails = false;
    assert_true(at->lines[2].closed);
    assert_int_equal(bench_heard(at, 2, WFI_STORE_SYNCED), 0);
    bench_resume(at, 9, 2, 0);
    assert_int_equal(bench_last(at, 9, WFI_STORE_RESUMED)->received, 0);
    bench_say(at, 9, &sync);
    assert_int_equal(bench_last(at, 9, WFI_STORE_SYNCED)->wave, 5);
    bench_destroy(at);
}

/* ---- The link ---------------------------------------------------------------------------------------------------- */

typedef struct wire_tap {
    wfi_rendezvous link;
    wfi_clock clock;
    uint64_t now_ns;
    int said[64], lost; /* frames by type, in the clear */
} wire_tap;

static uint64_t tap_now(const wfi_clock *clock)
{
    return wfi_container_of(clock, const wire_tap, clock)->now_ns;
}

static void note_frame(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size)
{
    wfi_container_of(link, wire_tap, link)->said[wfi_store_frame_type(frame) % 64]++;
}

static void do_nothing(wfi_rendezvous *link) {}

static void count_lost(void *arg, const char *why)
{
    ((wire_tap *)arg)->lost++;
}

static wire_tap *member(void)
{
    static const wfi_link_shell shell = {.send = note_frame, .wake = do_nothing};
    wire_tap *tap = calloc(1, sizeof(*tap));
    assert_non_null(tap);
    tap->clock.now_ns = tap_now;
    tap->now_ns = 1000 * MS;
    const wfi_rendezvous_events events = {.store_lost = count_lost, .arg = tap};
    const wfi_rendezvous_options options = {
        .rank = 1, .world_size = 8, .name = "me", .clock = &tap->clock, .events = &events, .join_timeout_ms = 1000};
    assert_int_equal(wfi_link_init(&tap->link, &options, &shell), WEFT_OK);
    tap->link.world.death_timeout_ms = 1000;
    tap->link.incarnations = calloc(8, sizeof(*tap->link.incarnations));
    tap->link.interests = calloc(1, 1);
    assert_true(tap->link.incarnations && tap->link.interests);
    tap->link.incarnations[2] = 3;
    tap->link.state = WFI_LINK_MEMBER;
    tap->link.wires[WFI_CURRENT].stage = WFI_WIRE_LIVE;
    tap->link.answered = tap->link.joined = true;
    return tap;
}

static void a_link_without_memory_says_what_it_must_and_the_rest_later(void **state)
{
    static const wfi_idle_report idle = {.idle = true};
    wire_tap *tap = member();
    malloc_fails = true;
    assert_false(wfi_rendezvous_interest(&tap->link, 2, 3, true));
    assert_false(wfi_rendezvous_interest(&tap->link, 2, 3, true));
    wfi_rendezvous_suspect(&tap->link, 2, 3, "why");
    wfi_rendezvous_closing(&tap->link);
    for (uint64_t wave = 1; wave <= 20; wave++)
        wfi_rendezvous_report(&tap->link, wave, &idle);
    (void)wfi_link_tick(&tap->link);
    malloc_fails = false;
    assert_int_equal(tap->lost, 0);
    assert_int_equal(tap->said[WFI_STORE_NEED] + tap->said[WFI_STORE_SUSPECT], 0);
    assert_int_equal(tap->said[WFI_STORE_CLOSING], 1);
    assert_int_equal(tap->said[WFI_STORE_REPORT], 20);
    assert_true(tap->said[WFI_STORE_HEARTBEAT] > 0);
    assert_true(wfi_rendezvous_interest(&tap->link, 2, 3, true));
    assert_int_equal(tap->said[WFI_STORE_NEED], 1);
    assert_true(wfi_rendezvous_interest(&tap->link, 2, 3, true)); /* it has been said */
    assert_int_equal(tap->said[WFI_STORE_NEED], 1);
    wfi_link_fini(&tap->link);
    free(tap);
}

UNIT_MAIN(deaths_are_told_without_memory, mail_from_the_reserve_comes_again, a_need_that_finds_no_memory_comes_again,
          a_sync_that_finds_no_memory_comes_again, a_link_without_memory_says_what_it_must_and_the_rest_later)
