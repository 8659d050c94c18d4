/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_messages.c - messages on the simulation: order, exactly once, credits, coalescing, urgency, ends. */
#include "net/net_host.h"

#define MANY 300

/* Sends `count` numbered messages of many sizes to `to`, with pauses that follow from the seed. */
static void send_many(net_host *host, int to, int count)
{
    for (int i = 0; i < count; i++) {
        size_t size = (size_t)(i * 37) % (i % 10 ? 200 : WFI_MESSAGE_MAX - 8);
        assert_int_equal(host_send_free(host, to, (uint64_t)i, size), WEFT_OK);
        if (i % 7 == 0)
            host_pause(host, 20000);
    }
}

static void body_exchange(net_host *host)
{
    int other = 1 - host->rank;
    send_many(host, other, MANY);
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    assert_int_equal(host->arrived, MANY);
    assert_int_equal(host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(messages_arrive_once_and_in_order, body_exchange, 2, 1, false, .on_message = host_check_order)

static void messages_survive_resets_and_cuts(void **state)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        net_world world = {.on_message = host_check_order};
        world_sim(&world, seed, 2, body_exchange, world_trouble);
    }
}

/* ---- Flow ------------------------------------------------------------------------------------------------------ */

static void stats_of(net_host *host, weft_stats *out)
{
    memset(out, 0, sizeof(*out));
    wfi_net_lock(host->net);
    wfi_net_stats(host->net, out);
    wfi_net_unlock(host->net);
}

static void body_burst(net_host *host)
{
    weft_stats stats;
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        for (uint64_t i = 0; i < 1000; i++)
            assert_int_equal(host_send(host, 1, i, 0, false), WEFT_OK); /* more than 255 have room in a frame */
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, 1000);
        stats_of(host, &stats);
        assert_true(stats.frames_sent < 50);
    } else {
        host_until(host, &host->arrived, 1000);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_burst_shares_frames, body_burst, 2, 1, false, .on_message = host_check_order)

static void body_flood(net_host *host)
{
    int sent = 0;
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        weft_status status;
        while (!(status = host_send(host, 1, (uint64_t)sent, 3000, false)) && sent < 1000)
            sent++;
        assert_int_equal(status, WEFT_ERR_AGAIN);
        assert_in_range(sent, 340, 360); /* 1 MiB, and what left at once */
        assert_int_equal(host_send(host, 1, 0, WFI_MESSAGE_MAX, false), WEFT_ERR_TOO_LARGE);
        assert_int_equal(host_send_owed(host, 1, (uint64_t)sent++, 3000), WEFT_OK); /* and arrives in its turn */
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, sent);
        assert_int_equal(host_send_free(host, 1, (uint64_t)sent, 3000), WEFT_OK);
        host_until(host, &host->done_ok, sent + 1);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_full_queue_says_so_and_recovers, body_flood, 2, 1, false, .on_message = host_check_order)

static void answer_the_first(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    if (host->rank == 1 && atomic_load(&host->arrived) == 0)
        assert_int_equal(host_send(host, wfi_peer_rank(from), 0, 16, false), WEFT_OK);
}

static void body_answered_half_way(net_host *host)
{
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        for (uint64_t i = 0; i < 3; i++)
            assert_int_equal(host_send(host, 1, i, 16, false), WEFT_OK);
        wfi_net_unlock(host->net);
        host_until(host, &host->arrived, 1);
        host_pause(host, 20000000);
        assert_int_equal(atomic_load(&host->done_ok), 3);
    }
    host_meet(host, &host->world->finished);
}

/* An answer that leaves while the rest of the frame is still to be taken does not acknowledge that rest. */
NET_TEST(the_rest_of_a_frame_is_acknowledged, body_answered_half_way, 2, 10, false, .on_message = answer_the_first)

static void note_urgent(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    uint64_t number;
    assert_true(size >= sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    if (number == 1000)
        host->user = (void *)(uintptr_t)(atomic_load(&host->arrived) + 1);
}

static void body_urgent(net_host *host)
{
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        for (uint64_t i = 0; i < 200; i++)
            assert_int_equal(host_send(host, 1, i, 2000, false), WEFT_OK);
        assert_int_equal(host_send(host, 1, 1000, 2000, true), WEFT_OK);
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, 201);
    } else {
        host_until(host, &host->arrived, 201);
        assert_in_range((uintptr_t)host->user, 1, 20);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(urgent_messages_go_ahead, body_urgent, 2, 1, false, .on_message = note_urgent)

/* How many frames leave where so many credits are left: first for a message, then for an acknowledgement. [locked] */
static uint64_t frames_for(net_host *host, uint32_t credits, bool urgent)
{
    weft_stats before, after;
    static uint64_t number;
    wfi_net_stats(host->net, &before);
    inside_leave_credit(inside_up(host->net, 1, WFI_CONTROL), credits);
    assert_int_equal(host_send(host, 1, ++number, 10, urgent), WEFT_OK);
    wfi_net_stats(host->net, &after);
    return after.frames_sent - before.frames_sent;
}

/* The last but two are for urgent messages, the last one is for acknowledgements: else two who wait for credit wait
 * for ever. */
static void body_last_credits(net_host *host)
{
    weft_stats before, after;
    if (host->rank == 0) {
        assert_int_equal(host_send_free(host, 1, 0, 10), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        wfi_net_lock(host->net);
        assert_int_equal(frames_for(host, 3, false), 1);
        assert_int_equal(frames_for(host, 2, false), 0);
        assert_int_equal(frames_for(host, 2, true), 1);
        assert_int_equal(frames_for(host, 1, true), 0);
        for (uint32_t credits = 0; credits < 2; credits++) {
            wfi_net_stats(host->net, &before);
            inside_leave_credit(inside_up(host->net, 1, WFI_CONTROL), credits);
            wfi_peer_send_ack(host_peer(host, 1));
            wfi_net_stats(host->net, &after);
            assert_int_equal(after.frames_sent - before.frames_sent, credits);
        }
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, 5); /* all credits come back */
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(the_last_credits_are_for_what_must_not_wait, body_last_credits, 2, 1, false)

/* Both say more urgent things at once than there are credits: none waits for what only the other's acknowledgement
 * could bring. */
static void body_urgent_both_ways(net_host *host)
{
    assert_int_equal(host_send_free(host, 1 - host->rank, 0, 10), WEFT_OK);
    host_until(host, &host->done_ok, 1);
    host_until(host, &host->arrived, 1);
    uint64_t now = wfi_now(wfi_net_clock(host->net)), together = (now / 1000000000 + 1) * 1000000000;
    host_pause(host, together - now); /* the lane is up, both have all their credits, and begin in the same moment */
    wfi_net_lock(host->net);
    for (uint64_t i = 1; i <= 100; i++)
        assert_int_equal(host_send(host, 1 - host->rank, i, 3000, true), WEFT_OK);
    wfi_net_unlock(host->net);
    host_until(host, &host->done_ok, 101);
    host_until(host, &host->arrived, 101);
    assert_int_equal(inside_stats(host->net).connections_lost, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(urgent_messages_both_ways_do_not_stop_each_other, body_urgent_both_ways, 2, 20, false,
         .on_message = host_check_order)

typedef struct plain {
    wfi_message message;
    int done;
} plain;

static void plain_done(wfi_message *message, weft_status status)
{
    wfi_container_of(message, plain, message)->done++;
}

static void body_unsend(net_host *host)
{
    if (host->rank == 0) {
        static plain first, second, third;
        first = second = (plain){.message = {.type = 7, .head = "12345678", .head_size = 8, .done = plain_done}};
        wfi_net_lock(host->net);
        assert_int_equal(wfi_peer_send(host_peer(host, 1), &first.message), WEFT_OK);
        size_t kept = wfi_peer_kept_bytes(host_peer(host, 1));
        assert_int_equal(wfi_peer_send(host_peer(host, 1), &second.message), WEFT_OK);
        assert_true(wfi_peer_unsend(host_peer(host, 1), &second.message)); /* no lane yet */
        assert_int_equal(wfi_peer_kept_bytes(host_peer(host, 1)), kept);
        wfi_net_unlock(host->net);
        while (!first.done)
            host_pause(host, 100000);
        wfi_net_lock(host->net);
        assert_false(wfi_peer_unsend(host_peer(host, 1), &first.message));
        third = second;
        assert_int_equal(wfi_peer_send(host_peer(host, 1), &third.message), WEFT_OK);
        assert_false(wfi_peer_unsend(host_peer(host, 1), &third.message)); /* it has left, and may arrive */
        wfi_net_unlock(host->net);
        while (!third.done)
            host_pause(host, 100000);
        assert_int_equal(first.done, 1);
        assert_int_equal(second.done, 0);
    }
    host_meet(host, &host->world->finished);
    if (host->rank == 1)
        assert_int_equal(host->arrived, 2);
}

NET_TEST(what_has_not_left_can_be_taken_back, body_unsend, 2, 1, false)

/* ---- Connecting and ending ------------------------------------------------------------------------------------- */

static void body_at_once(net_host *host)
{
    for (int other = 0; other < host->world->size; other++) {
        if (other != host->rank)
            assert_int_equal(host_send_free(host, other, 0, 10), WEFT_OK);
    }
    host_until(host, &host->done_ok, host->world->size - 1);
    host_until(host, &host->arrived, host->world->size - 1);
    wfi_net_lock(host->net);
    for (int other = 0; other < host->world->size; other++)
        assert_true(other == host->rank || inside_up(host->net, other, WFI_CONTROL));
    wfi_net_unlock(host->net);
    host_meet(host, &host->world->finished);
}

NET_TEST(all_connect_at_once, body_at_once, 6, 50, false, .on_message = host_check_order)

static void body_killed(net_host *host)
{
    if (host->rank == 1) {
        host_pause(host, 10000000000); /* is killed meanwhile */
        return;
    }
    uint64_t sent = 0;
    wfi_storage *storage = NULL;
    wfi_exposure exposure;
    assert_int_equal(wfi_storage_create(WFI_MEMORY_HOST, 0, 100, &storage), WEFT_OK);
    wfi_net_lock(host->net);
    assert_int_equal(
        wfi_peer_expose(host_peer(host, 1), storage, wfi_storage_data(storage), 100, WFI_REMOTE_READ, &exposure),
        WEFT_OK);
    wfi_net_unlock(host->net);
    assert_false(wfi_storage_wait_unread(storage, 0));
    while (!atomic_load(&host->gone)) {
        (void)host_send_free(host, 1, sent++, 3000);
        host_pause(host, 300000);
    }
    assert_int_equal(host->why, WEFT_ERR_PEER_DEAD);
    host_pause(host, 1000000);
    wfi_net_lock(host->net);
    assert_int_equal(wfi_peer_status(host_peer(host, 1)), WEFT_ERR_PEER_DEAD);
    assert_int_equal(host_send(host, 1, 0, 8, false), WEFT_ERR_PEER_DEAD);
    wfi_net_unlock(host->net);
    assert_true(atomic_load(&host->done_failed) > 0);
    assert_true(wfi_storage_wait_unread(storage, 0)); /* the dead read nothing */
    wfi_net_lock(host->net);
    wfi_peer_withdraw(host_peer(host, 1), &exposure, 1, true);
    wfi_net_unlock(host->net);
    wfi_storage_unref(storage);
    host_meet(host, &host->world->finished);
}

static void kill_one(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    while (atomic_load(&world->ready) < world->size)
        weft_sim_sleep(sim, 10000);
    weft_sim_sleep(sim, 5000000);
    weft_sim_kill(sim, 1);
    atomic_fetch_add(&world->finished, 1);
}

static void a_death_fails_what_is_outstanding(void **state)
{
    net_world world = {0};
    world_sim(&world, 9, 3, body_killed, kill_one);
}

static void body_leaves(net_host *host)
{
    if (host->rank == 1)
        return;
    host_until(host, &host->gone, 1);
    assert_int_equal(host->why, WEFT_ERR_PEER_LEFT);
}

NET_TEST(a_departure_is_told, body_leaves, 2, 1, false)

static void body_closed(net_host *host)
{
    if (host->rank == 0) {
        for (uint64_t i = 0; i < 40; i++)
            assert_int_equal(host_send_free(host, 1, i, 3000), WEFT_OK);
        wfi_net_stop(host->net);
        assert_int_equal(host->done_ok + host->done_failed, 40);
        assert_int_equal(host->why, WEFT_ERR_CLOSED);
        assert_int_equal(host_send_free(host, 1, 0, 8), WEFT_ERR_CLOSED);
    } else {
        host_until(host, &host->gone, 1);
    }
}

NET_TEST(closing_fails_what_is_outstanding, body_closed, 2, 1, false)

/* ---- Timers ---------------------------------------------------------------------------------------------------- */

typedef struct alarm_clock {
    wfi_timer timer;
    net_host *host;
    uint64_t late_ns;
    int fired;
} alarm_clock;

static void ring(wfi_timer *timer)
{
    alarm_clock *alarm = wfi_container_of(timer, alarm_clock, timer);
    alarm->fired++;
    alarm->late_ns = wfi_now(wfi_net_clock(alarm->host->net)) - timer->deadline_ns;
}

static void body_timers(net_host *host)
{
    enum { COUNT = 200 };
    alarm_clock *alarms = calloc(COUNT, sizeof(*alarms));
    uint64_t now = wfi_now(wfi_net_clock(host->net));
    wfi_net_lock(host->net);
    for (int i = 0; i < COUNT; i++) {
        alarms[i].host = host;
        alarms[i].timer.fire = ring;
        assert_int_equal(wfi_net_timer_set(host->net, &alarms[i].timer, now + (uint64_t)(i * 7919 % COUNT) * 10000), 0);
    }
    for (int i = 0; i < COUNT; i += 3)
        wfi_net_timer_clear(host->net, &alarms[i].timer);
    for (int i = 1; i < COUNT; i += 3)
        assert_int_equal(wfi_net_timer_set(host->net, &alarms[i].timer, now + 5000000 + (uint64_t)i), 0);
    wfi_net_unlock(host->net);
    host_pause(host, 6000000);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(alarms[i].fired, i % 3 != 0);
        assert_int_equal(alarms[i].late_ns, 0);
    }
    free(alarms);
}

NET_TEST(timers_fire_once_and_in_time, body_timers, 1, 1, false)

UNIT_MAIN(messages_arrive_once_and_in_order, messages_survive_resets_and_cuts, a_burst_shares_frames,
          a_full_queue_says_so_and_recovers, the_rest_of_a_frame_is_acknowledged, urgent_messages_go_ahead,
          the_last_credits_are_for_what_must_not_wait, urgent_messages_both_ways_do_not_stop_each_other,
          what_has_not_left_can_be_taken_back, all_connect_at_once, a_death_fails_what_is_outstanding,
          a_departure_is_told, closing_fails_what_is_outstanding, timers_fire_once_and_in_time)
