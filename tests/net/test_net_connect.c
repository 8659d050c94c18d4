/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_connect.c - the making of connections, with a network that changes what they say of themselves, or loses
 * how it went on.
 *
 * Two simulated nets with operations of the fabric put before the true ones.
 */
#include "net/net_host.h"

/* What the network does. Both nets run on one thread. */
static struct meddling {
    const wfi_fabric_ops *fabric; /* the true operations */
    wfi_fabric_ops ops;
    net_world *world;
    int flipper;         /* the rank of whose requests and answers one bit is turned, each time another; -1: nobody's */
    size_t flips, bytes; /* so far; of one such text */
    bool deaf[2];        /* by rank: it does not hear what becomes of its connections */
    atomic_int asked[2]; /* by rank: how often it asked for one */
    bool second_is_lost; /* of rank 1's requests all but the first go nowhere */
} meddling;

static int rank_of(const wfi_fabric *fabric)
{
    return inside_is_fabric(meddling.world->hosts[1].net, fabric);
}

static const void *flipped(int rank, const void *data, size_t size, uint8_t out[WFI_CONNECT_DATA_MAX])
{
    memcpy(out, data, size);
    meddling.bytes = size;
    if (rank == meddling.flipper && meddling.flips < size) {
        out[meddling.flips] ^= (uint8_t)(1u << meddling.flips % 8);
        meddling.flips++;
    }
    return out;
}

/* Of lane_open and lane_take, for connect, which follows each of them. */
static wfi_fabric *last;

static weft_status lane_open_so(wfi_fabric *fabric, const uint8_t *address, size_t address_size, void *lane_user,
                                wfi_lane **out)
{
    int rank = rank_of(fabric);
    if (meddling.asked[rank]++ && rank == 1 && meddling.second_is_lost)
        return WEFT_ERR_UNREACHABLE;
    if (rank == 0 && !meddling.second_is_lost) /* though the store passes on that rank 1 gets no connection */
        return WEFT_ERR_UNREACHABLE;
    last = fabric;
    return meddling.fabric->lane_open(fabric, address, address_size, lane_user, out);
}

static weft_status lane_take_so(wfi_fabric *fabric, wfi_connect_request *request, void *lane_user, wfi_lane **out)
{
    last = fabric;
    return meddling.fabric->lane_take(fabric, request, lane_user, out);
}

static weft_status connect_so(wfi_lane *lane, const void *data, size_t size)
{
    uint8_t room[WFI_CONNECT_DATA_MAX];
    return meddling.fabric->connect(lane, flipped(rank_of(last), data, size, room), size);
}

static size_t poll_events_so(wfi_fabric *fabric, wfi_event *out, size_t room)
{
    size_t count = meddling.fabric->poll_events(fabric, out, room), heard = 0;
    for (size_t i = 0; i < count; i++)
        if (out[i].kind == WFI_EVENT_REQUEST || !meddling.deaf[rank_of(fabric)])
            out[heard++] = out[i];
    return heard;
}

static size_t poll_so(wfi_fabric *fabric, wfi_completion *out, size_t room)
{
    return meddling.deaf[rank_of(fabric)] ? 0 : meddling.fabric->poll(fabric, out, room); /* it hears of them later */
}

/* Before anything was said. */
static void meddle(net_host *host)
{
    wfi_net_lock(host->net);
    meddling.fabric = inside_fabric_ops(host->net, NULL);
    meddling.ops = *meddling.fabric;
    meddling.ops.lane_open = lane_open_so;
    meddling.ops.lane_take = lane_take_so;
    meddling.ops.connect = connect_so;
    meddling.ops.poll_events = poll_events_so;
    meddling.ops.poll = poll_so;
    (void)inside_fabric_ops(host->net, &meddling.ops);
    wfi_net_unlock(host->net);
    host_meet(host, &host->world->turns[0]);
}

static void play(struct meddling how, void (*body)(net_host *host))
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        net_world world = {.on_message = host_check_order, .death_timeout_ms = 20000};
        meddling = how;
        meddling.world = &world;
        world_sim(&world, seed, 2, body, NULL);
    }
}

/* ---- Proofs ---------------------------------------------------------------------------------------------------- */

/* Rank 1 asks until it is let in: of each text that was changed somebody said that it proves nothing. */
static void ask_until_let_in(net_host *host)
{
    meddle(host);
    if (host->rank == 1)
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
    while (atomic_load(host->rank ? &host->done_ok : &host->arrived) == 0)
        host_pause(host, 1000000);
    assert_true(meddling.bytes > 0);
    assert_int_equal(meddling.flips, meddling.bytes);
    assert_int_equal(host_refused(host), host->rank == meddling.flipper ? 0 : meddling.bytes);
    host_meet(host, &host->world->finished);
}

static void a_request_with_one_bit_changed_is_refused(void **state)
{
    play((struct meddling){.flipper = 1}, ask_until_let_in);
}

static void an_answer_with_one_bit_changed_is_refused(void **state)
{
    play((struct meddling){.flipper = 0}, ask_until_let_in);
}

static bool is_taken(net_host *host, const uint8_t *text, size_t size, uint64_t asked, bool whole)
{
    return inside_takes_hello(host->net, text, size, asked) &&
           (!whole || inside_is_proven(host->net, 1 - host->rank, text, asked));
}

/* What rank 1 says of itself is good for the one it says it to, as the answer to the one request. */
static void read_hellos(net_host *host)
{
    wfi_hello hello = {.kind = WFI_BULK, .answer = true, .rank = 1, .generation = 3, .asked = 77};
    uint8_t text[WFI_CONNECT_DATA_MAX];
    wfi_net_lock(host->net);
    if (host->rank == 0) {
        const wfi_member *self = inside_self(host->net), *other = inside_self(host->world->hosts[1].net);
        const uint8_t *pair_key = wfi_peer_pair_key(host_peer(host, 1));
        size_t size = inside_write_hello(host->net, &hello, pair_key, self, text);
        assert_true(is_taken(host, text, size, 77, true));
        assert_false(is_taken(host, text, size, 78, false));
        assert_false(inside_is_proven(host->net, 1, text, 78));
        assert_false(is_taken(host, text, size - 1, 77, false));
        size = inside_write_hello(host->net, &hello, pair_key, other, text);
        assert_false(is_taken(host, text, size, 77, false)); /* meant for another */
        hello.rank = 0;
        size = inside_write_hello(host->net, &hello, pair_key, self, text);
        assert_false(is_taken(host, text, size, 77, false)); /* in our own name */
        hello.rank = host->world->size;
        size = inside_write_hello(host->net, &hello, pair_key, self, text);
        assert_false(is_taken(host, text, size, 77, false));
    }
    wfi_net_unlock(host->net);
    host_meet(host, &host->world->finished);
}

NET_TEST(a_hello_is_good_for_one_reader_and_one_request, read_hellos, 2, 1, false)

/* ---- No way ------------------------------------------------------------------------------------------------------ */

/* No request of rank 1's gets through. It asks the store for help at the second, long before silence says anything. */
static void ask_in_vain(net_host *host)
{
    meddle(host);
    if (host->rank == 1) {
        meddling.asked[1] = 1; /* the first that is let through lies behind it */
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
        uint64_t began = wfi_now(wfi_net_clock(host->net));
        while (!inside_suspected_ns(host->net, 0))
            host_pause(host, 1000000);
        assert_true(inside_suspected_ns(host->net, 0) - began < 1000000000);
        meddling.second_is_lost = false;
    }
    host_until(host, host->rank ? &host->done_ok : &host->arrived, 1);
    host_meet(host, &host->world->finished);
}

static void who_gets_no_connection_asks_for_help(void **state)
{
    play((struct meddling){.flipper = -1, .second_is_lost = true}, ask_in_vain);
}

/* ---- Half open --------------------------------------------------------------------------------------------------- */

/* Rank 1 asks, is answered, and never heard of again: rank 0 does not wait for that connection for ever. Once it has
 * given it up it asks itself, and hears again. */
static void ask_and_fall_silent(net_host *host)
{
    meddle(host);
    meddling.deaf[host->rank] = true;
    host_meet(host, &host->world->turns[1]);
    if (host->rank == 1)
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
    while (meddling.asked[1] < 2) /* it has given its own end up */
        host_pause(host, 1000000);
    meddling.deaf[1] = false;
    if (host->rank == 0) {
        assert_int_equal(host_send_free(host, 1, 0, 50), WEFT_OK);
        host_until(host, &meddling.asked[0], 1);
        meddling.deaf[0] = false;
    }
    host_until(host, &host->arrived, 1);
    host_until(host, &host->done_ok, 1);
    host_meet(host, &host->world->finished);
}

static void a_connection_that_stays_half_open_is_given_up(void **state)
{
    play((struct meddling){.flipper = -1, .second_is_lost = true}, ask_and_fall_silent);
}

UNIT_MAIN(a_request_with_one_bit_changed_is_refused, an_answer_with_one_bit_changed_is_refused,
          a_hello_is_good_for_one_reader_and_one_request, a_connection_that_stays_half_open_is_given_up,
          who_gets_no_connection_asks_for_help)
