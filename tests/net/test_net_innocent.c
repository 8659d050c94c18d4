/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_innocent.c - a transfer goes on, whatever else is withdrawn loudly on the lane that it uses. */
#include "net/net_bulk.h"

#define MIB ((size_t)1 << 20)
#define WITHDRAWALS 50

typedef struct stage {
    size_t size;
    uint64_t pause_ns; /* between two withdrawals */
    bulk source, target;
    atomic_int exposed;
    atomic_int pull;   /* the number of the one under way; 0: none is */
    atomic_int enough; /* so many withdrawals fell into one */
    atomic_int over;
} stage;

static void withdraw_loudly(net_host *host)
{
    static const size_t small[] = {4096};
    bulk other;
    bulk_create(&other, host, 1, small, 1);
    bulk_expose(&other, WFI_REMOTE_WRITE);
    bulk_withdraw(&other, false);
    bulk_destroy(&other);
}

static void expose(net_host *host, stage *s)
{
    bulk_create(&s->source, host, 1, &s->size, 1);
    bulk_fill(&s->source, 3);
    bulk_expose(&s->source, WFI_REMOTE_READ);
    atomic_store(&s->exposed, 1);
    for (int hits = 0; hits < WITHDRAWALS;) {
        int pull = atomic_load(&s->pull);
        withdraw_loudly(host);
        hits += pull && atomic_load(&s->pull) == pull;
        host_pause(host, s->pause_ns);
    }
    atomic_store(&s->enough, 1);
    host_until(host, &s->over, 1);
    bulk_withdraw(&s->source, true);
    bulk_destroy(&s->source);
}

/* Again and again: however the two get the processor, enough withdrawals meet a pull. */
static void pull(net_host *host, stage *s)
{
    host_until(host, &s->exposed, 1);
    bulk_create(&s->target, host, 0, &s->size, 1);
    for (int number = 1; !atomic_load(&s->enough); number++) {
        bulk_fill(&s->target, 0);
        assert_int_equal(bulk_begin(&s->target, &s->source, WFI_PULL), WEFT_OK);
        atomic_store(&s->pull, number);
        assert_int_equal(bulk_await(&s->target), WEFT_OK);
        atomic_store(&s->pull, 0);
        assert_true(bulk_is(&s->target, 3));
    }
    atomic_store(&s->over, 1);
    bulk_destroy(&s->target);
}

static void body(net_host *host)
{
    if (host->rank == 0)
        expose(host, host->world->user);
    else
        pull(host, host->world->user);
    host_meet(host, &host->world->finished);
}

/* On the simulation no chunk has the time to get through between two withdrawals. */
static void without_progress_in_between(void **state)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        stage s = {.size = 32 * MIB, .pause_ns = 40000 + 20000 * seed};
        net_world world = {.user = &s};
        world_sim(&world, seed, 2, body, NULL);
    }
}

static void over_tcp(void **state)
{
    stage s = {.size = 64 * MIB, .pause_ns = 1000000};
    net_world world = {.user = &s};
    world_tcp(&world, 2, body);
}

UNIT_MAIN(without_progress_in_between, over_tcp)
