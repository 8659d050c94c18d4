/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_keeper.c - a store that accepts and says nothing: lost to the others after three bounds, never to
 * rank 0, whose own process it runs in. The link is driven by hand, over a shell that has no other end.
 */
#include "unit.h"

#include "job/link/link.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define BOUND_MS 1000

typedef struct bench {
    wfi_rendezvous link;
    wfi_clock clock;
    uint64_t now_ns;
    bool refuses;
    int dialled, lost;
} bench;

static bench *of(wfi_rendezvous *link)
{
    return wfi_container_of(link, bench, link);
}

static uint64_t bench_now(const wfi_clock *clock)
{
    return wfi_container_of(clock, const bench, clock)->now_ns;
}

static void say_nothing(wfi_rendezvous *link, wfi_which which, const uint8_t *frame, size_t size) {}

static void dial(wfi_rendezvous *link)
{
    of(link)->dialled++;
    if (of(link)->refuses)
        wfi_link_wire_lost(link, WFI_NEXT, true, "refused");
    else
        wfi_link_dialled(link);
}

static void hang_up(wfi_rendezvous *link, wfi_which which) {}

static void do_nothing(wfi_rendezvous *link) {}

static void zeroes(wfi_rendezvous *link, void *out, size_t size)
{
    memset(out, 0, size);
}

static void count_lost(void *arg, const char *why)
{
    assert_non_null(why);
    ((bench *)arg)->lost++;
}

static const wfi_link_shell shell = {
    .send = say_nothing, .dial = dial, .hang_up = hang_up, .adopt = do_nothing, .wake = do_nothing, .random = zeroes};

/* A member that has just joined, and on whom somebody depends. */
static bench *member(int rank)
{
    bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->clock.now_ns = bench_now;
    b->now_ns = 1000 * MS;
    const wfi_rendezvous_events events = {.store_lost = count_lost, .arg = b};
    const wfi_rendezvous_options options = {
        .rank = rank, .world_size = 4, .name = "me", .clock = &b->clock, .events = &events, .join_timeout_ms = 1000};
    assert_int_equal(wfi_link_init(&b->link, &options, &shell), WEFT_OK);
    b->link.world.death_timeout_ms = BOUND_MS;
    b->link.incarnation = 1;
    b->link.state = WFI_LINK_MEMBER;
    b->link.wires[WFI_CURRENT].stage = WFI_WIRE_LIVE;
    b->link.answered = b->link.joined = b->link.heartbeats_wanted = b->link.was_beating = true;
    b->link.received_ns = b->link.ticked_ns = b->link.beat_ns = b->now_ns;
    return b;
}

static void pass(bench *b, uint64_t ms)
{
    for (uint64_t until_ns = b->now_ns + ms * MS; b->now_ns < until_ns && !b->lost; b->now_ns += 10 * MS)
        (void)wfi_link_tick(&b->link);
}

static void drop(bench *b)
{
    wfi_link_fini(&b->link);
    free(b);
}

static void a_silent_store_is_lost_to_the_others(void **state)
{
    bench *b = member(1);
    pass(b, BOUND_MS);
    assert_true(b->dialled > 0);
    pass(b, 2 * BOUND_MS - 100);
    assert_int_equal(b->lost, 0); /* it may only stand still */
    pass(b, BOUND_MS);
    assert_int_equal(b->lost, 1);
    drop(b);
}

static void a_silent_store_is_not_lost_to_its_own_process(void **state)
{
    bench *b = member(0);
    pass(b, 20 * BOUND_MS);
    assert_int_equal(b->lost, 0);
    assert_true(b->dialled > 20); /* it goes on asking */
    b->refuses = true;
    pass(b, 20 * BOUND_MS);
    assert_int_equal(b->lost, 0);
    drop(b);
}

static void a_store_that_refuses_is_lost_to_the_others(void **state)
{
    bench *b = member(1);
    b->refuses = true;
    pass(b, BOUND_MS);
    assert_int_equal(b->lost, 1);
    drop(b);
}

UNIT_MAIN(a_silent_store_is_lost_to_the_others, a_silent_store_is_not_lost_to_its_own_process,
          a_store_that_refuses_is_lost_to_the_others)
