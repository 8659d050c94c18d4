/* SPDX-License-Identifier: Apache-2.0 */
/* test_net_long.c - long messages: who may send them and when, order among others, connections that break, forged
 * ones. */
#include "net/net_host.h"

#define MANY 200
#ifdef __SANITIZE_THREAD__ /* there fibers cost a hundred times as much, and have no threads to race */
#define SEEDS 10
#else
#define SEEDS 200
#endif
#define NUMBER_BYTES 8 /* of a message of net_host.h, before what follows from it */

static wfi_peer *other(net_host *host)
{
    return host_peer(host, 1 - host->rank);
}

static size_t most(net_host *host)
{
    wfi_net_lock(host->net);
    size_t bytes = wfi_peer_message_max(other(host)) - NUMBER_BYTES;
    wfi_net_unlock(host->net);
    return bytes;
}

/* Short ones until the peer takes long ones, then of all sizes. */
static void body_mixed(net_host *host)
{
    wfi_net_lock(host->net);
    assert_int_equal(wfi_peer_message_max(other(host)), WFI_MESSAGE_MAX);
    assert_int_equal(host_send(host, 1 - host->rank, 0, WFI_MESSAGE_MAX, false), WEFT_ERR_TOO_LARGE);
    wfi_peer_ask_long(other(host), WFI_LONG_MESSAGE_MAX);
    wfi_peer_ask_long(other(host), WFI_LONG_MESSAGE_MAX);
    wfi_net_unlock(host->net);
    for (int i = 0; i < MANY; i++) {
        size_t limit = most(host), size = (size_t)(i * 37) % 200;
        size = i % 5 == 0 ? limit : i % 3 == 0 ? (size_t)(i * 1009) % limit : size;
        wfi_net_lock(host->net);
        assert_int_equal(host_send_owed(host, 1 - host->rank, (uint64_t)i, size), WEFT_OK);
        wfi_net_unlock(host->net);
        host_pause(host, 20000);
    }
    host_until(host, &host->done_ok, MANY);
    host_until(host, &host->arrived, MANY);
    assert_int_equal(most(host), WFI_LONG_MESSAGE_MAX - NUMBER_BYTES);
    wfi_net_lock(host->net);
    assert_int_equal(host_send(host, 1 - host->rank, 0, WFI_LONG_MESSAGE_MAX, false), WEFT_ERR_TOO_LARGE);
    assert_int_equal(host_send(host, 1 - host->rank, 0, WFI_MESSAGE_MAX, true), WEFT_ERR_TOO_LARGE); /* urgent */
    wfi_net_unlock(host->net);
    assert_int_equal(host->arrived, MANY);
    assert_int_equal(host->done_failed + host->gone, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(long_ones_go_among_others_in_order, body_mixed, 2, SEEDS / 10, true, .on_message = host_check_order)
NET_TEST(also_where_memory_is_registered, body_mixed, 2, SEEDS / 10, false, .on_message = host_check_order,
         .like_verbs = true)

static void they_survive_resets_and_cuts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        net_world world = {.on_message = host_check_order, .like_verbs = seed % 2};
        world_sim(&world, seed, 2, body_mixed, world_trouble);
    }
}

/* ---- Large ones -------------------------------------------------------------------------------------------------- */

#define KEPT_NS UINT64_C(5200000000) /* longer than a worker keeps large receives that it does not use */

static void ask_large(net_host *host)
{
    wfi_net_lock(host->net);
    wfi_peer_ask_long(other(host), WFI_LARGE_MESSAGE_MAX);
    wfi_net_unlock(host->net);
}

/* Short ones, each in a frame of its own. Both must send them. */
static int send_short(net_host *host, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        assert_int_equal(host_send_free(host, 1 - host->rank, (uint64_t)i, 50), WEFT_OK);
        host_until(host, &host->arrived, i + 1);
    }
    host_until(host, &host->done_ok, from + count);
    return from + count;
}

/* The longest, those about the limits between lengths, and any others; as many as fit at a time. */
static int send_large(net_host *host, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        size_t limit = most(host), size = (size_t)(i * 37) % 200;
        size = i % 5 == 0   ? limit
               : i % 3 == 0 ? (size_t)(i * 10007) % limit
               : i % 7 == 0 ? WFI_LONG_MESSAGE_MAX - 16 + (size_t)i % 16
                            : size;
        wfi_net_lock(host->net);
        assert_int_equal(host_send_owed(host, 1 - host->rank, (uint64_t)i, size < limit ? size : limit), WEFT_OK);
        wfi_net_unlock(host->net);
        host_pause(host, 20000);
    }
    host_until(host, &host->done_ok, from + count);
    host_until(host, &host->arrived, from + count);
    return from + count;
}

/* On other fabrics a worker asks for none. */
static bool large_pays(net_host *host)
{
    wfi_net_lock(host->net);
    const wfi_conn *conn = inside_up(host->net, 1 - host->rank, WFI_CONTROL);
    bool pays = host->world->sim || (conn && conn->fabric->limits->long_pays);
    wfi_net_unlock(host->net);
    return pays;
}

static void body_large(net_host *host)
{
    int sent = 0, to = 1 - host->rank;
    int turns = host->world->sim ? 2 : 1;
    for (int turn = 0; turn < turns; turn++) { /* they are asked for again after they were given back */
        sent = send_short(host, sent, 1);
        ask_large(host);
        ask_large(host);
        sent = send_short(host, sent, 40);
        if (!large_pays(host))
            break;
        assert_int_equal(most(host), WFI_LARGE_MESSAGE_MAX - NUMBER_BYTES);
        sent = send_large(host, sent, MANY);
        host_meet(host, &host->world->turns[3 * turn]);
        assert_int_equal(inside_receives(host->net, to, WFI_LARGE), WFI_RECEIVE_DEPTH);
        assert_int_equal(inside_receives(host->net, to, WFI_LONG), 0);
        assert_int_equal(inside_lend(host->net, 0), 1);
        host_meet(host, &host->world->turns[3 * turn + 1]);
        while (inside_receives(host->net, to, WFI_LARGE) || most(host) > WFI_LONG_MESSAGE_MAX)
            host_pause(host, 1000000);
        assert_int_equal(inside_receives(host->net, to, WFI_LONG), WFI_RECEIVE_DEPTH);
        assert_int_equal(inside_lend(host->net, 0), 0);
        assert_int_equal(most(host), WFI_LONG_MESSAGE_MAX - NUMBER_BYTES);
        host_meet(host, &host->world->turns[3 * turn + 2]);
    }
    assert_int_equal(host->done_failed + host->gone, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(large_receives_are_given_back, body_large, 2, SEEDS / 10, true, .on_message = host_check_order)

/* How long the messages are depends on the moment. */
static void body_large_in_trouble(net_host *host)
{
    ask_large(host);
    for (int turn = 0, sent = 0; turn < 3; turn++) {
        sent = send_large(host, sent, MANY / 4);
        ask_large(host);
        host_pause(host, turn ? KEPT_NS : 1000000);
    }
    assert_int_equal(host->done_failed + host->gone, 0);
    host_meet(host, &host->world->finished);
}

static void large_ones_survive_resets_and_cuts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        net_world world = {.on_message = host_check_order};
        world_sim(&world, seed, 2, body_large_in_trouble, world_trouble);
    }
}

/* While others have all the large receives that a worker lends, long ones are posted. They are asked for again
 * later. */
static void body_lent_out(net_host *host)
{
    const size_t others = 16;
    if (host->rank == 0)
        inside_lend(host->net, others);
    int sent = send_short(host, 0, 1);
    ask_large(host);
    sent = send_short(host, sent, 40);
    assert_int_equal(most(host), (host->rank == 0 ? WFI_LARGE_MESSAGE_MAX : WFI_LONG_MESSAGE_MAX) - NUMBER_BYTES);
    sent = send_large(host, sent, 20);
    host_meet(host, &host->world->turns[0]);
    if (host->rank == 0)
        inside_lend(host->net, -others);
    host_pause(host, KEPT_NS);
    host_pause(host, KEPT_NS);
    ask_large(host);
    (void)send_short(host, sent, 40);
    assert_int_equal(most(host), WFI_LARGE_MESSAGE_MAX - NUMBER_BYTES);
    assert_int_equal(host->done_failed + host->gone, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(large_receives_are_lent_to_few, body_lent_out, 2, 10, false, .on_message = host_check_order)

typedef struct question {
    wfi_message message;
    uint8_t bytes[5];
} question;

static void drop_question(wfi_message *message, weft_status status)
{
    (void)status;
    free(wfi_container_of(message, question, message));
}

/* Asks for long receives, at once and only once. */
static void give_back(net_host *host)
{
    question *q = calloc(1, sizeof(*q));
    const uint32_t number = 1000;
    memcpy(q->bytes, &number, sizeof(number));
    q->bytes[4] = WFI_LONG;
    q->message = (wfi_message){.type = WFI_CONTROL_LONG,
                               .urgent = true,
                               .head = q->bytes,
                               .head_size = sizeof(q->bytes),
                               .done = drop_question};
    wfi_net_lock(host->net);
    assert_int_equal(wfi_peer_send(other(host), &q->message), WEFT_OK);
    wfi_net_unlock(host->net);
}

/* Rank 1 gives its large receives back, and is silent: most of them are still there, so they count. */
static void body_silent(net_host *host)
{
    const size_t others = 15; /* of the 16 places */
    if (host->rank == 0)
        inside_lend(host->net, others);
    int sent = send_short(host, 0, 1);
    if (host->rank == 1)
        ask_large(host);
    (void)send_short(host, sent, 40);
    host_meet(host, &host->world->turns[0]);
    if (host->rank == 1)
        assert_int_equal(most(host), WFI_LARGE_MESSAGE_MAX - NUMBER_BYTES);
    else
        assert_int_equal(inside_lend(host->net, 0), others + 1);
    if (host->rank == 1)
        give_back(host);
    host_pause(host, 100000000);
    host_meet(host, &host->world->turns[1]);
    if (host->rank == 0)
        assert_true(inside_lend(host->net, 0) == others + (inside_receives(host->net, 1, WFI_LARGE) > 0));
    (void)send_short(host, sent + 40, 40);
    host_meet(host, &host->world->turns[2]);
    if (host->rank == 0)
        assert_true(inside_lend(host->net, 0) == others && inside_receives(host->net, 1, WFI_LARGE) == 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(large_receives_count_until_they_are_gone, body_silent, 2, 10, false, .on_message = host_check_order)

/* A large message takes 3.3 s, in which nothing is acknowledged. The connection breaks after 2 s at first. */
static void body_slow(net_host *host)
{
    int sent = send_short(host, 0, 1);
    if (host->rank == 1)
        ask_large(host);
    sent = send_short(host, sent, 40);
    if (host->rank == 1) {
        size_t size = most(host);
        assert_int_equal(size, WFI_LARGE_MESSAGE_MAX - NUMBER_BYTES);
        wfi_net_lock(host->net);
        assert_int_equal(host_send_owed(host, 0, (uint64_t)sent, size), WEFT_OK);
        wfi_net_unlock(host->net);
        host_until(host, &host->done_ok, sent + 1);
        assert_int_equal(most(host), WFI_LONG_MESSAGE_MAX - NUMBER_BYTES);
    }
    host_meet(host, &host->world->finished);
}

static void a_slow_link_carries_a_large_message(void **state)
{
    (void)state;
    net_world world = {.on_message = host_check_order, .bytes_per_second = 40000, .death_timeout_ms = 2000};
    world_sim(&world, 1, 2, body_slow, NULL);
}

/* ---- Forged ones ------------------------------------------------------------------------------------------------- */

/* A long frame of two messages: the second one's head would lie where no hash covers it. */
static void put_two(wfi_conn *conn)
{
    static uint8_t data[WFI_LONG_MESSAGE_MAX + WFI_FRAME_OTHER];
    size_t first = WFI_FRAME_BYTES + 100, second = 16, size = WFI_FRAME_HEAD + 2 * WFI_MESSAGE_HEAD + first + second;
    wfi_frame head = inside_next_frame(conn, size);
    head.count = 2;
    wfi_frame_message(data + WFI_FRAME_HEAD, 7, first);
    wfi_frame_message(data + WFI_FRAME_HEAD + WFI_MESSAGE_HEAD + first, 7, second);
    wfi_frame_write(&head, inside_frame_key(conn, false), data);
    assert_int_equal(inside_put(conn, data, size), WEFT_OK);
}

/* Without having been asked for: no receive is long enough for it, so that it breaks the connection, and nothing
 * else. */
static void put_unasked(wfi_conn *conn)
{
    static uint8_t data[WFI_LONG_MESSAGE_MAX + WFI_FRAME_OTHER];
    size_t bytes = WFI_FRAME_BYTES + 100, size = WFI_FRAME_HEAD + WFI_MESSAGE_HEAD + bytes;
    wfi_frame head = inside_next_frame(conn, size);
    wfi_frame_message(data + WFI_FRAME_HEAD, 7, bytes);
    wfi_frame_write(&head, inside_frame_key(conn, false), data);
    assert_int_equal(inside_put(conn, data, size), WEFT_OK);
}

static void forge(net_host *host, void (*put)(wfi_conn *conn), int turn)
{
    uint64_t before = inside_stats(host->net).connections_lost;
    host_pause(host, 10000000); /* what acknowledges has gone out */
    host_meet(host, &host->world->turns[turn]);
    wfi_net_lock(host->net);
    if (host->rank == 1)
        put(inside_up(host->net, 0, WFI_CONTROL));
    wfi_net_unlock(host->net);
    for (int i = 0; host->rank == 0 && inside_has_conn(host->net, 1, WFI_CONTROL) && i < 1000 &&
                    inside_stats(host->net).connections_lost == before;
         i++)
        host_pause(host, 1000000);
    host_meet(host, &host->world->turns[turn + 1]);
}

static void body_forged(net_host *host)
{
    (void)send_short(host, 0, 10);
    forge(host, put_unasked, 0);
    (void)send_short(host, 10, 10);
    wfi_net_lock(host->net);
    wfi_peer_ask_long(other(host), WFI_LONG_MESSAGE_MAX);
    wfi_net_unlock(host->net);
    (void)send_short(host, 20, 30);
    assert_int_equal(most(host), WFI_LONG_MESSAGE_MAX - NUMBER_BYTES);
    host_meet(host, &host->world->turns[2]);
    uint64_t refused = host_refused(host);
    forge(host, put_two, 3);
    (void)send_short(host, 50, 10);
    assert_int_equal(host_refused(host), refused + (host->rank == 0));
    assert_int_equal(host->arrived, 60);
    assert_int_equal(host->done_failed + host->gone, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(forged_ones_break_a_connection_alone, body_forged, 2, 10, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

UNIT_MAIN(long_ones_go_among_others_in_order, also_where_memory_is_registered, they_survive_resets_and_cuts,
          large_receives_are_given_back, large_ones_survive_resets_and_cuts, large_receives_are_lent_to_few,
          large_receives_count_until_they_are_gone, a_slow_link_carries_a_large_message,
          forged_ones_break_a_connection_alone)
