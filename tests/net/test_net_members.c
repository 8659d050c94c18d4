/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_members.c - seats and who sits in them: a seat that is taken again has a new peer, the old one stays what it
 * was while somebody holds it, and leaves nothing behind; words about an incarnation touch no other.
 */
#include "net/net_host.h"

#define SUCCESSORS 1000

static const wfi_member newer = {.rank = 1, .incarnation = 1000, .name = "again"};

static void say(net_host *host, weft_status what, uint32_t incarnation)
{
    wfi_rendezvous_events events = wfi_member_events;
    if (what == WEFT_OK)
        events.joined(host->net, &newer);
    else
        events.died(host->net, 1, incarnation, "said by the test");
}

/* What was under way on its connections is reported soon, and holds it until then. */
static void await_one_peer(net_host *host)
{
    for (int i = 0; i < 5000 && inside_peers(host->net) > 1; i++)
        host_pause(host, 1000000);
    assert_int_equal(inside_peers(host->net), 1);
}

static void replace(net_host *host)
{
    wfi_net_lock(host->net);
    wfi_peer *old = wfi_peer_ref(host_peer(host, 1));
    uint32_t first = wfi_peer_incarnation(old);
    wfi_net_unlock(host->net);
    say(host, WEFT_ERR_PEER_DEAD, first + 7); /* about nobody */
    assert_int_equal(host->gone, 0);
    assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
    say(host, WEFT_OK, 0); /* the old one ends by it, if the store did not say so before */
    assert_int_equal(host->gone, 1);
    assert_int_equal(host->joined, 1);
    assert_int_equal(host->done_failed + host->done_ok, 1);
    say(host, WEFT_OK, 0); /* told twice */
    say(host, WEFT_ERR_PEER_DEAD, first);
    assert_int_equal(host->joined, 1);
    assert_int_equal(host->gone, 1);
    wfi_net_lock(host->net);
    wfi_peer *now = host_peer(host, 1);
    assert_ptr_not_equal(now, old);
    assert_int_equal(wfi_peer_status(old), WEFT_ERR_PEER_DEAD);
    assert_int_equal(wfi_peer_status(now), WEFT_OK);
    assert_int_equal(wfi_peer_incarnation(old), first);
    assert_int_equal(wfi_peer_incarnation(now), newer.incarnation);
    assert_string_equal(wfi_peer_name(old), "w1");
    assert_string_equal(wfi_net_member(host->net, 1)->name, "again");
    wfi_net_unlock(host->net);
    assert_int_equal(inside_peers(host->net), 2);
    wfi_net_lock(host->net);
    wfi_peer_unref(old);
    wfi_net_unlock(host->net);
    await_one_peer(host);
    say(host, WEFT_ERR_PEER_DEAD, newer.incarnation);
    assert_int_equal(host->gone, 2);
    wfi_net_lock(host->net);
    assert_int_equal(wfi_peer_status(now), WEFT_ERR_PEER_DEAD);
    wfi_net_unlock(host->net);
}

static void replacing(net_host *host)
{
    if (host->rank == 0)
        replace(host);
    host_meet(host, &host->world->finished);
}

NET_TEST(a_seat_taken_again_has_a_new_peer, replacing, 2, 1, true)

/* The one who is spoken to believes that the asker's incarnation is over: it is refused, and counted. */
static void speaking(net_host *host)
{
    if (host->rank == 0) {
        say(host, WEFT_OK, 0);
        host_meet(host, &host->world->ready);
        host_until(host, &host->world->hosts[1].gone, 1);
        assert_true(host_refused(host) > 0);
        assert_int_equal(host->arrived, 0);
    } else {
        host_until(host, &host->world->ready, 3);
        assert_int_equal(host_send_free(host, 0, 0, 100), WEFT_OK);
        host_pause(host, 100000000);
        assert_int_equal(host->done_ok, 0);
        wfi_rendezvous_events events = wfi_member_events;
        events.died(host->net, 0, host_member(host, 0).incarnation, "enough");
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(an_incarnation_that_is_over_is_not_heard, speaking, 2, 1, true)

/* One incarnation after the other, each with a message that waits for it; every other one leaves, the others die. */
static void succeed(net_host *host)
{
    wfi_rendezvous_events events = wfi_member_events;
    wfi_member next = newer;
    size_t reserved = inside_timers_reserved(host->net);
    int told = host->gone;
    for (int i = 0; i < SUCCESSORS; i++, next.incarnation++) {
        next.addresses_size = 1; /* which leads nowhere */
        events.joined(host->net, &next);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        if (i % 2)
            events.left(host->net, 1, next.incarnation);
        else
            events.died(host->net, 1, next.incarnation, "said by the test");
    }
    assert_int_equal(host->joined, SUCCESSORS);
    assert_int_equal(host->gone, told + 1 + SUCCESSORS); /* the first one's end, too */
    assert_int_equal(host->done_failed, SUCCESSORS);
    await_one_peer(host);
    assert_int_equal(inside_timers_reserved(host->net), reserved);
    wfi_net_lock(host->net);
    for (uint32_t back = 2; back < 20; back++) {
        bool left = back % 2 == 0 ? false : back <= 2 * WFI_LEFT_MAX + 1;
        assert_int_equal(wfi_net_former_status(host->net, 1, next.incarnation - back),
                         left ? WEFT_ERR_PEER_LEFT : WEFT_ERR_PEER_DEAD);
    }
    wfi_net_unlock(host->net);
}

static void succeeding(net_host *host)
{
    if (host->rank == 0)
        succeed(host);
    host_meet(host, &host->world->finished);
}

NET_TEST(those_who_are_gone_leave_nothing, succeeding, 2, 1, true)

UNIT_MAIN(a_seat_taken_again_has_a_new_peer, an_incarnation_that_is_over_is_not_heard, those_who_are_gone_leave_nothing)
