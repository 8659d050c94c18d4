/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_channels.c - the store's channels: order, closing, deaths, cuts, late callbacks. */
#include "sim_host.h"

typedef struct log_book {
    wfi_sim_channel *channel; /* the last one accepted */
    int accepted, closed, count;
    uint32_t values[64];
    bool reply, close_on_message;
} log_book;

static void on_message(void *arg, wfi_sim_channel *channel, const uint8_t *data, size_t size)
{
    log_book *book = arg;
    uint32_t value;
    assert_null(wfi_fiber_current());
    assert_int_equal(size, sizeof(value));
    memcpy(&value, data, sizeof(value));
    assert_in_range(book->count, 0, 63);
    book->values[book->count++] = value;
    if (book->reply)
        assert_int_equal(wfi_sim_channel_send(channel, data, size), WEFT_OK);
    if (book->close_on_message)
        wfi_sim_channel_close(channel);
}

static void on_closed(void *arg, wfi_sim_channel *channel)
{
    ((log_book *)arg)->closed++;
    wfi_sim_channel_close(channel);
}

static void on(wfi_sim_channel *channel, log_book *book)
{
    wfi_sim_channel_on(channel, &(wfi_sim_channel_events){on_message, on_closed, book});
}

static void accepted(void *arg, wfi_sim_channel *channel)
{
    log_book *book = arg;
    book->accepted++;
    book->channel = channel;
    on(channel, book);
}

static void accepted_silently(void *arg, wfi_sim_channel *channel)
{
    log_book *book = arg;
    book->accepted++;
    book->channel = channel;
}

static void say(wfi_sim_channel *channel, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(wfi_sim_channel_send(channel, &i, sizeof(i)), WEFT_OK);
}

static void expect_count(const log_book *book, int count)
{
    assert_int_equal(book->count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(book->values[i], i);
}

static void carries(weft_sim *sim)
{
    log_book server = {.reply = true}, client = {0};
    wfi_sim_channel *channel;
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_ERR_UNREACHABLE);
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK);
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_ERR_EXISTS);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    on(channel, &client);
    say(channel, 0, 50);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 50);
    expect_count(&client, 50);
    say(channel, 50, 51);
    wfi_sim_channel_close(channel); /* what was sent before still arrives, then the end is told */
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 51);
    assert_int_equal(server.closed, 1);
    expect_count(&client, 50);
    assert_int_equal(client.closed, 0);
    wfi_sim_unlisten(sim, 0);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_ERR_UNREACHABLE);
}

static void test_carries(void **state)
{
    for (uint64_t seed = 0; seed < 10; seed++)
        host_world(&(weft_sim_options){.seed = seed}, carries);
}

static void listener_leaves(weft_sim *sim)
{
    log_book server = {0}, client = {0};
    wfi_sim_channel *channel;
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    on(channel, &client);
    say(channel, 0, 3);
    wfi_sim_unlisten(sim, 0); /* before the dialling arrives */
    weft_sim_sleep(sim, SECOND_NS);
    assert_int_equal(server.accepted, 0);
    assert_int_equal(client.closed, 1);
}

static void test_listener_leaves(void **state)
{
    host_world(NULL, listener_leaves);
}

static void waits_for_callbacks(weft_sim *sim)
{
    log_book server = {0};
    wfi_sim_channel *channel;
    assert_int_equal(wfi_sim_listen(sim, 0, accepted_silently, &server), WEFT_OK);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    say(channel, 0, 3);
    wfi_sim_channel_close(channel);
    weft_sim_sleep(sim, SECOND_NS);
    assert_int_equal(server.accepted, 1);
    on(server.channel, &server);
    expect_count(&server, 0); /* never inside the call */
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 3);
    assert_int_equal(server.closed, 1);
}

static void test_waits_for_callbacks(void **state)
{
    host_world(NULL, waits_for_callbacks);
}

static void closes_in_callback(weft_sim *sim)
{
    log_book server = {.close_on_message = true}, client = {0};
    wfi_sim_channel *channel;
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    on(channel, &client);
    say(channel, 0, 5);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 1);
    assert_int_equal(server.closed, 0);
    assert_int_equal(client.closed, 1);
}

static void test_closes_in_callback(void **state)
{
    host_world(NULL, closes_in_callback);
}

static void survives_cut_and_pause(weft_sim *sim)
{
    log_book server = {0};
    wfi_sim_channel *channel;
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    say(channel, 0, 5);
    weft_sim_cut(sim, 0, 1);
    say(channel, 5, 10);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 0);
    weft_sim_pause(sim, 0);
    weft_sim_heal(sim, 1, 0);
    say(channel, 10, 15);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 0);
    weft_sim_resume(sim, 0);
    say(channel, 15, 20);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 20);
    weft_sim_reset_link(sim, 0, 1); /* not the store's channels */
    say(channel, 20, 21);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 21);
    assert_int_equal(server.closed, 0);
    wfi_sim_channel_close(channel);
}

static void test_survives_cut_and_pause(void **state)
{
    for (uint64_t seed = 0; seed < 20; seed++)
        host_world(&(weft_sim_options){.seed = seed}, survives_cut_and_pause);
}

static void notices_death(weft_sim *sim)
{
    log_book server = {0}, client = {0};
    wfi_sim_channel *channels[2];
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wfi_sim_dial(sim, 1 + i, 0, &channels[i]), WEFT_OK);
        on(channels[i], &client);
    }
    weft_sim_sleep(sim, SECOND_NS);
    say(channels[0], 0, 3);
    weft_sim_kill(sim, 1);
    weft_sim_sleep(sim, SECOND_NS);
    expect_count(&server, 3); /* sent before the death */
    assert_int_equal(server.closed, 1);
    weft_sim_kill(sim, 0);
    weft_sim_sleep(sim, SECOND_NS);
    assert_int_equal(client.closed, 1);
    assert_int_equal(wfi_sim_dial(sim, 2, 0, &channels[0]), WEFT_ERR_UNREACHABLE);
    assert_int_equal(wfi_sim_listen(sim, 0, accepted, &server), WEFT_OK); /* another life of that rank */
}

static void test_notices_death(void **state)
{
    host_world(NULL, notices_death);
}

static void sizes(weft_sim *sim)
{
    log_book server = {0};
    wfi_sim_channel *channel;
    static uint8_t big[(1 << 20) + 1];
    assert_int_equal(wfi_sim_listen(sim, 0, accepted_silently, &server), WEFT_OK);
    assert_int_equal(wfi_sim_dial(sim, 1, 0, &channel), WEFT_OK);
    assert_int_equal(wfi_sim_channel_send(channel, big, sizeof(big)), WEFT_ERR_TOO_LARGE);
    assert_int_equal(wfi_sim_channel_send(channel, big, sizeof(big) - 1), WEFT_OK);
    assert_int_equal(wfi_sim_channel_send(channel, NULL, 0), WEFT_OK);
    weft_sim_sleep(sim, SECOND_NS);
    wfi_sim_channel_close(server.channel); /* with messages that nobody took */
    wfi_sim_channel_close(channel);
}

static void test_sizes(void **state)
{
    host_world(NULL, sizes);
}

UNIT_MAIN(test_carries, test_listener_leaves, test_waits_for_callbacks, test_closes_in_callback,
          test_survives_cut_and_pause, test_notices_death, test_sizes)
