/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_forged.c - frames and requests that are not what they should be, one kind at a time: each is refused and
 * counted, and what the two workers say to each other before and after is neither lost nor doubled.
 *
 * Rank 1 forges, rank 0 has to refuse. A forged frame goes out over rank 1's own lane, so that all else about it is
 * right. On a private lane (TEST_FABRIC=host) there is no MAC: forgeries that only a MAC reveals are skipped there.
 */
#include "net/net_host.h"

#define BATCH 20

typedef struct forgery {
    wfi_frame head;
    const uint8_t *key; /* NULL: the lane is private */
    uint8_t data[WFI_FRAME_BYTES];
} forgery;

typedef struct forging {
    const char *what;
    bool mac;                                             /* only a MAC reveals it */
    void (*head)(forgery *forged, const wfi_conn *conn);  /* before the hash */
    void (*bytes)(forgery *forged, const wfi_conn *conn); /* after it */
} forging;

/* ---- The kinds ------------------------------------------------------------------------------------------------- */

static void flip_payload(forgery *forged, const wfi_conn *conn)
{
    forged->data[forged->head.size - 1] ^= 1;
}

static void flip_head(forgery *forged, const wfi_conn *conn)
{
    forged->data[33] ^= 1;
}

static void flip_hash(forgery *forged, const wfi_conn *conn)
{
    forged->data[7] ^= 0x80;
}

static void no_key(forgery *forged, const wfi_conn *conn)
{
    static const uint8_t zeros[crypto_shorthash_KEYBYTES];
    forged->key = zeros;
}

static void other_direction(forgery *forged, const wfi_conn *conn)
{
    forged->key = inside_frame_key(conn, true);
}

static void skip_number(forgery *forged, const wfi_conn *conn)
{
    forged->head.number++;
}

static void repeat_number(forgery *forged, const wfi_conn *conn)
{
    forged->head.number--;
}

static void skip_message(forgery *forged, const wfi_conn *conn)
{
    forged->head.first++;
}

static void repeat_message(forgery *forged, const wfi_conn *conn)
{
    forged->head.first--;
}

static void first_message(forgery *forged, const wfi_conn *conn)
{
    forged->head.first = 0;
}

static void wild_message(forgery *forged, const wfi_conn *conn)
{
    forged->head.first = UINT64_MAX;
}

static void acknowledge_too_much(forgery *forged, const wfi_conn *conn)
{
    forged->head.ack++;
}

static void acknowledge_all(forgery *forged, const wfi_conn *conn)
{
    forged->head.ack = UINT64_MAX;
}

static void take_back_acknowledgement(forgery *forged, const wfi_conn *conn)
{
    forged->head.ack--;
}

static void return_too_many_credits(forgery *forged, const wfi_conn *conn)
{
    forged->head.consumed++;
}

static void take_back_credits(forgery *forged, const wfi_conn *conn)
{
    forged->head.consumed = inside_announced(conn) - 1;
}

static void count_too_many(forgery *forged, const wfi_conn *conn)
{
    forged->head.count = 2;
}

static void count_too_few(forgery *forged, const wfi_conn *conn)
{
    forged->head.count = 0;
}

static void run_over(forgery *forged, const wfi_conn *conn)
{
    wfi_frame_message(forged->data + WFI_FRAME_HEAD, 7, 5000);
}

/* A type that is not even one of net's own. */
static void speak_as_net(forgery *forged, const wfi_conn *conn)
{
    wfi_frame_message(forged->data + WFI_FRAME_HEAD, WFI_NET_MESSAGES_END, 100);
}

/* All else about it is right, the hash too. */
static void other_version(forgery *forged, const wfi_conn *conn)
{
    forged->data[10]++; /* behind the hash and the magic */
    if (forged->key)
        crypto_shorthash(forged->data, forged->data + 8, forged->head.size - 8, forged->key);
}

static const forging kinds[] = {
    {"payload changed", true, NULL, flip_payload},
    {"head changed", false, NULL, flip_head},
    {"hash changed", false, NULL, flip_hash},
    {"another version", false, NULL, other_version},
    {"no key", true, no_key, NULL},
    {"turned round", true, other_direction, NULL},
    {"number skipped", false, skip_number, NULL},
    {"number repeated", false, repeat_number, NULL},
    {"message skipped", false, skip_message, NULL},
    {"message repeated", false, repeat_message, NULL},
    {"message 0", false, first_message, NULL},
    {"wild message", false, wild_message, NULL},
    {"acknowledges too much", false, acknowledge_too_much, NULL},
    {"acknowledges all", false, acknowledge_all, NULL},
    {"takes back an acknowledgement", false, take_back_acknowledgement, NULL},
    {"returns too many credits", false, return_too_many_credits, NULL},
    {"takes back credits", false, take_back_credits, NULL},
    {"counts too many", false, count_too_many, NULL},
    {"counts too few", false, count_too_few, NULL},
    {"runs over", false, run_over, NULL},
    {"speaks as net", false, speak_as_net, NULL},
};
#define KINDS (sizeof(kinds) / sizeof(*kinds))

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

/* A frame with one message that rank 0 would take, were it not for what `kind` does to it. */
static void forge(wfi_conn *conn, const forging *kind)
{
    size_t size = WFI_FRAME_HEAD + WFI_MESSAGE_HEAD + 100;
    forgery forged = {.head = inside_next_frame(conn, size)};
    forged.key = inside_frame_key(conn, false);
    wfi_frame_message(forged.data + WFI_FRAME_HEAD, 7, 100);
    if (kind->head)
        kind->head(&forged, conn);
    wfi_frame_write(&forged.head, forged.key, forged.data);
    if (kind->bytes)
        kind->bytes(&forged, conn);
    assert_int_equal(inside_put(conn, forged.data, size), WEFT_OK);
}

static wfi_conn *control(net_host *host)
{
    return inside_up(host->net, 1 - host->rank, WFI_CONTROL);
}

/* Both say something, and all of it arrives once, in order, and is acknowledged. */
static void talk(net_host *host, int round)
{
    for (int i = 0; i < BATCH; i++)
        assert_int_equal(host_send_free(host, 1 - host->rank, (uint64_t)(round * BATCH + i), 100 + (size_t)i), WEFT_OK);
    host_until(host, &host->arrived, (round + 1) * BATCH);
    host_until(host, &host->done_ok, (round + 1) * BATCH);
    host_meet(host, &host->world->turns[3 * round]);
}

static void refuse_each(net_host *host)
{
    uint64_t forged = 0;
    for (int round = 0; round < (int)KINDS; round++) {
        talk(host, round);
        wfi_net_lock(host->net);
        bool shows = !kinds[round].mac || inside_frame_key(control(host), false);
        wfi_net_unlock(host->net);
        forged += shows;
        uint64_t before = host_refused(host);
        host_pause(host, 10000000); /* what acknowledges has gone out */
        host_meet(host, &host->world->turns[3 * round + 1]);
        wfi_net_lock(host->net);
        if (host->rank == 1 && shows)
            forge(control(host), &kinds[round]);
        wfi_net_unlock(host->net);
        for (int i = 0; host->rank == 0 && shows && host_refused(host) == before; i++) {
            if (i == 1000)
                fail_msg("%s: not refused", kinds[round].what);
            host_pause(host, 1000000);
        }
        host_meet(host, &host->world->turns[3 * round + 2]);
    }
    talk(host, KINDS);
    if (host->rank == 0) {
        assert_int_equal(host_refused(host), forged);
        assert_int_equal(inside_stats(host->net).connections_lost, forged);
    }
    assert_int_equal(host->gone + host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(every_kind_of_forged_frame_is_refused, refuse_each, 2, 10, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* ---- Recordings ------------------------------------------------------------------------------------------------ */

/* The last frame that left this worker. */
static size_t record(net_host *host, uint8_t *out)
{
    wfi_net_lock(host->net);
    size_t size = inside_last_frame(host->net, out);
    wfi_net_unlock(host->net);
    return size;
}

static void replay_frame(net_host *host, const uint8_t *data, size_t size)
{
    wfi_net_lock(host->net);
    assert_int_equal(inside_put(control(host), data, size), WEFT_OK);
    wfi_net_unlock(host->net);
}

/* Once on the connection that it was recorded from, once on the next. */
static void replay_frames(net_host *host)
{
    uint8_t data[WFI_FRAME_BYTES];
    for (int round = 0; round < 3; round++) {
        talk(host, round);
        size_t size = host->rank == 1 && round == 0 ? record(host, data) : 0;
        if (size)
            host->user = (void *)(uintptr_t)size;
        if (host->rank == 1 && round < 2)
            replay_frame(host, data, (size_t)(uintptr_t)host->user);
        for (int i = 0; host->rank == 0 && round < 2 && host_refused(host) == (uint64_t)round && i < 1000; i++)
            host_pause(host, 1000000);
        host_meet(host, &host->world->turns[3 * round + 1]);
    }
    if (host->rank == 0)
        assert_int_equal(host_refused(host), 2);
    assert_int_equal(host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(a_recorded_frame_is_refused, replay_frames, 2, 20, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* The lane stays until rank 0 has refused, and counted, so many: a request whose asker hangs up sooner need not be
 * looked at. */
static void ask_again(net_host *host, const uint8_t *data, size_t size, uint64_t refused)
{
    wfi_net_lock(host->net);
    wfi_lane *lane = inside_ask(host->net, 0, data, size);
    wfi_net_unlock(host->net);
    while (host_refused(&host->world->hosts[0]) < refused)
        host_pause(host, 1000000);
    wfi_net_lock(host->net);
    inside_hang_up(host->net, lane);
    wfi_net_unlock(host->net);
}

/* While its connection is up, and after that was lost: a recorded request takes nothing away and gets nothing. */
static void replay_requests(net_host *host)
{
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t size = 0;
    if (host->rank == 1) {
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        wfi_net_lock(host->net);
        wfi_hello hello; /* the very bytes with which it asked for the one that is up */
        assert_true(inside_hello_of(control(host), &hello));
        size = inside_write_hello(host->net, &hello, NULL, wfi_net_member(host->net, 0), data);
        wfi_net_unlock(host->net);
        for (uint64_t refused = 1; refused <= 3; refused++)
            ask_again(host, data, size, refused);
        inside_break(host->net, 0);
        host_pause(host, 50000000);
        ask_again(host, data, size, 4);
        assert_int_equal(host_send_free(host, 0, 1, 50), WEFT_OK);
        host_until(host, &host->done_ok, 2);
    } else {
        host_until(host, &host->arrived, 2);
        assert_int_equal(host_refused(host), 4);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_recorded_request_is_refused, replay_requests, 2, 20, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* A slow member's request comes behind its next one: it is ignored. When it comes again, it is a replay. */
static void overtake_a_request(net_host *host)
{
    static const uint32_t generations[] = {3, 2, 2};
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_lane *lanes[3];
    if (host->rank == 1) {
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        inside_count_up(host->net, 0, 10); /* its own further requests have others */
        for (int i = 0; i < 3; i++) {
            wfi_net_lock(host->net);
            wfi_hello hello = {.kind = WFI_CONTROL, .rank = 1, .nonce = 7};
            hello.incarnation = wfi_net_member(host->net, 1)->incarnation;
            hello.generation = generations[i];
            size_t size = inside_write_hello(host->net, &hello, NULL, wfi_net_member(host->net, 0), data);
            lanes[i] = inside_ask(host->net, 0, data, size);
            wfi_net_unlock(host->net);
            host_pause(host, 20000000);
        }
        while (host_refused(&host->world->hosts[0]) < 1)
            host_pause(host, 1000000);
        wfi_net_lock(host->net);
        for (int i = 0; i < 3; i++)
            inside_hang_up(host->net, lanes[i]);
        wfi_net_unlock(host->net);
        assert_int_equal(host_send_free(host, 0, 1, 50), WEFT_OK);
        host_until(host, &host->done_ok, 2);
    } else {
        host_until(host, &host->arrived, 2);
        assert_int_equal(host_refused(host), 1);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(a_request_that_was_overtaken_is_not_refused, overtake_a_request, 2, 20, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

UNIT_MAIN(every_kind_of_forged_frame_is_refused, a_recorded_frame_is_refused, a_recorded_request_is_refused,
          a_request_that_was_overtaken_is_not_refused)
