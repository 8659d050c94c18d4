/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_wire.c - the store's messages: round trips, limits, and nonsense in every shape. */
#include "store_bench.h"
#include "prng.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 6000

static wfi_store_message sample(wfi_store_type type)
{
    wfi_store_message message = {.type = type,
                                 .rank = 1,
                                 .world_size = 3,
                                 .incarnation = 2,
                                 .timeout_ms = 1234,
                                 .status = WEFT_ERR_EXISTS,
                                 .wave = 7,
                                 .report = {true, 8, 9, 10},
                                 .text = "a-text",
                                 .addresses_size = 5,
                                 .machine = 77,
                                 .cuda_devices = 2};
    memcpy(message.addresses, "12345", 5);
    return message;
}

static void every_message_survives_the_wire(void **state)
{
    for (int type = WFI_STORE_JOIN; type <= WFI_STORE_AWAIT; type++) {
        if (type == WFI_STORE_WORLD)
            continue;
        wfi_store_message in = sample((wfi_store_type)type), out;
        uint8_t frame[WFI_STORE_SMALL_MAX], again[WFI_STORE_SMALL_MAX];
        size_t size = wfi_store_encode(&in, frame), told;
        assert_int_equal(wfi_store_frame_size(frame, size, WFI_STORE_SMALL_MAX, &told), WEFT_OK);
        assert_int_equal(told, size);
        assert_int_equal(wfi_store_decode(frame, size, &out), WEFT_OK);
        assert_int_equal(wfi_store_encode(&out, again), size);
        assert_memory_equal(frame, again, size);
    }
}

static void every_shortened_or_lengthened_message_is_refused(void **state)
{
    for (int type = WFI_STORE_JOIN; type <= WFI_STORE_AWAIT; type++) {
        wfi_store_message in = sample((wfi_store_type)type), out;
        uint8_t frame[WFI_STORE_SMALL_MAX + 1] = {0};
        size_t size = wfi_store_encode(&in, frame);
        for (size_t cut = 0; cut <= size + 1; cut++) {
            if (cut == size)
                continue;
            assert_int_equal(wfi_store_decode(frame, cut, &out), WEFT_ERR_PROTOCOL);
        }
    }
}

static void the_longest_texts_fit_a_small_frame(void **state)
{
    wfi_store_message join = sample(WFI_STORE_JOIN), out;
    uint8_t frame[WFI_STORE_SMALL_MAX];
    memset(join.text, 'x', sizeof(join.text) - 1);
    join.addresses_size = WFI_STORE_ADDRESSES_MAX;
    size_t size = wfi_store_encode(&join, frame);
    assert_int_equal(wfi_store_decode(frame, size, &out), WEFT_OK);
    assert_string_equal(out.text, join.text);
    assert_int_equal(out.addresses_size, WFI_STORE_ADDRESSES_MAX);
}

static void texts_from_the_wire_are_printable(void **state)
{
    wfi_store_message in = sample(WFI_STORE_EVICTED), out;
    uint8_t frame[WFI_STORE_SMALL_MAX];
    strcpy(in.text, "\x1b[2J\nx\x80");
    size_t size = wfi_store_encode(&in, frame);
    assert_int_equal(wfi_store_decode(frame, size, &out), WEFT_OK);
    assert_string_equal(out.text, "?[2J?x?");
}

static void a_refusal_never_reads_as_success(void **state)
{
    wfi_store_message in = sample(WFI_STORE_REFUSE), out;
    uint8_t frame[WFI_STORE_SMALL_MAX];
    in.status = WEFT_OK;
    size_t size = wfi_store_encode(&in, frame);
    frame[2] = 200; /* of whatever version */
    assert_int_equal(wfi_store_decode(frame, size, &out), WEFT_OK);
    assert_int_equal(out.status, WEFT_ERR_PROTOCOL);
}

static void a_stranger_is_known_by_his_first_byte(void **state)
{
    size_t size;
    assert_int_equal(wfi_store_frame_size((const uint8_t *)"G", 1, 640, &size), WEFT_ERR_PROTOCOL);
    assert_int_equal(wfi_store_frame_size((const uint8_t *)"W", 1, 640, &size), WEFT_OK);
    assert_int_equal(wfi_store_frame_size((const uint8_t *)"WS\1\1\xff\xff\xff\xff", 8, 640, &size), WEFT_ERR_PROTOCOL);
}

static void encode_world(wfi_writer *writer, wfi_member *members, int count)
{
    wfi_store_world world = {.death_timeout_ms = 5, .world_size = count, .members = members};
    for (int i = 0; i < count; i++)
        members[i] = (wfi_member){.rank = i, .incarnation = (uint32_t)i + 1, .name = "n", .addresses_size = 2};
    wfi_writer_init_growing(writer);
    wfi_store_encode_world(writer, &world);
    assert_false(writer->failed);
}

static void a_table_that_promises_more_than_it_holds_is_refused(void **state)
{
    wfi_member members[2];
    wfi_store_world world;
    wfi_writer writer;
    encode_world(&writer, members, 2);
    for (size_t cut = 0; cut < writer.size; cut++)
        assert_int_equal(wfi_store_decode_world(writer.data, cut, &world), WEFT_ERR_PROTOCOL);
    writer.data[WFI_STORE_HEAD + 4 + WFI_STORE_TOKEN_BYTES + 16 + 8 + 2] = 0xff; /* the count's third byte */
    assert_int_equal(wfi_store_decode_world(writer.data, writer.size, &world), WEFT_ERR_PROTOCOL);
    wfi_writer_fini(&writer);
}

static void mutated_tables_never_break_the_reader(void **state)
{
    wfi_member members[4];
    wfi_writer writer;
    uint64_t seed = 42;
    encode_world(&writer, members, 4);
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t *copy = malloc(writer.size); /* exactly: a byte too far is seen by the sanitizer */
        wfi_store_world world;
        memcpy(copy, writer.data, writer.size);
        for (uint64_t n = prng_next(&seed) % 4 + 1; n > 0; n--)
            copy[prng_next(&seed) % writer.size] = (uint8_t)prng_next(&seed);
        if (wfi_store_decode_world(copy, writer.size, &world) == WEFT_OK)
            free(world.members);
        free(copy);
    }
    wfi_writer_fini(&writer);
}

/* Random bytes, or a real message with a few bytes changed, cut or not. */
static size_t nonsense(uint64_t *seed, uint8_t *out)
{
    size_t size = prng_next(seed) % WFI_STORE_SMALL_MAX;
    if (prng_next(seed) % 3 == 0) {
        for (size_t i = 0; i < size; i++)
            out[i] = (uint8_t)prng_next(seed);
        return size;
    }
    wfi_store_message message = sample((wfi_store_type)(prng_next(seed) % 16));
    message.rank = (int32_t)(prng_next(seed) % 5);
    size = wfi_store_encode(&message, out);
    for (uint64_t n = prng_next(seed) % 4; n > 0; n--)
        out[prng_next(seed) % size] = (uint8_t)prng_next(seed);
    return prng_next(seed) % 4 ? size : prng_next(seed) % (size + 1);
}

static void feed_nonsense(bench *at, uint64_t *seed, uint64_t line)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = nonsense(seed, frame);
    uint8_t *exact = malloc(size ? size : 1);
    memcpy(exact, frame, size);
    if (!at->lines[line].closed)
        wfi_store_received(at->store, line, at->now_ns, exact, size);
    free(exact);
}

static void strangers_nonsense_never_disturbs_the_job(void **state)
{
    uint64_t seed = 7;
    bench *at = bench_create(4, 2000);
    bench_join_all(at, 4);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t line = 5 + (uint64_t)i % 8;
        if (i < 8 || at->lines[line].closed) {
            memset(&at->lines[line], 0, sizeof(at->lines[line]));
            wfi_store_opened(at->store, line);
        }
        feed_nonsense(at, &seed, line);
    }
    assert_int_equal(wfi_store_alive(at->store), 4);
    for (uint64_t line = 1; line <= 4; line++)
        assert_int_equal(at->lines[line].frames, 1);
    bench_destroy(at);
}

static void members_nonsense_never_breaks_the_store(void **state)
{
    uint64_t seed = 99;
    for (int i = 0; i < ROUNDS / 20; i++) {
        bench *at = bench_create(4, 2000);
        bench_join_all(at, 4);
        for (int n = 0; n < 20; n++) {
            feed_nonsense(at, &seed, 1 + prng_next(&seed) % 4);
            bench_pass(at, prng_next(&seed) % 100);
        }
        bench_destroy(at);
    }
}

static void nonsense_while_gathering_leaves_room_for_the_true_ones(void **state)
{
    uint64_t seed = 3;
    bench *at = bench_create(4, 2000);
    for (uint64_t line = 10; line < 300; line++) {
        wfi_store_opened(at->store, line);
        feed_nonsense(at, &seed, line);
        if (!at->lines[line].closed)
            bench_end(at, line);
    }
    bench_join_all(at, 4);
    assert_int_equal(at->lines[1].world.world_size, 4);
    bench_destroy(at);
}

UNIT_MAIN(every_message_survives_the_wire, every_shortened_or_lengthened_message_is_refused,
          the_longest_texts_fit_a_small_frame, texts_from_the_wire_are_printable, a_refusal_never_reads_as_success,
          a_stranger_is_known_by_his_first_byte, a_table_that_promises_more_than_it_holds_is_refused,
          mutated_tables_never_break_the_reader, strangers_nonsense_never_disturbs_the_job,
          members_nonsense_never_breaks_the_store, nonsense_while_gathering_leaves_room_for_the_true_ones)
