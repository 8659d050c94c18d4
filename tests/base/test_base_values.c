/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_values.c - the parts of base without threads: status, error, codec, map, env, clock, list, mutex. */
#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/utf8.h"
#include "unit.h"
#include "prng.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void every_status_has_a_name(void **state)
{
    assert_string_equal(weft_status_name(WEFT_OK), "OK");
    assert_string_equal(weft_status_name(WEFT_ERR_PEER_DEAD), "PEER_DEAD");
    assert_string_equal(weft_status_name((weft_status)-9999), "UNLISTED");
    assert_non_null(weft_status_text((weft_status)-9999));
    assert_true(wfi_status_is_known(WEFT_ERR_SYSTEM));
    assert_false(wfi_status_is_known(-50));
}

static void report_gives_an_exit_code(void **state)
{
    assert_int_equal(weft_report(WEFT_OK), 0);
    assert_int_equal(weft_report(WEFT_DEFERRED), 0);
    assert_int_equal(weft_report(WEFT_ERR_TIMEOUT), 1);
}

static void no_error_answers_as_success(void **state)
{
    assert_int_equal(weft_error_code(NULL), WEFT_OK);
    assert_string_equal(weft_error_message(NULL), "");
    assert_int_equal(weft_error_worker(NULL), -1);
    assert_int_equal(weft_error_hops(NULL), 0);
    weft_error_unref(NULL);
    weft_error_print(NULL, stderr);
}

static void long_messages_are_cut(void **state)
{
    char text[3000];
    weft_error *error;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    error = weft_error_create(WEFT_ERR_IO, "%s", text);
    assert_int_equal(strlen(weft_error_message(error)), WFI_ERROR_MESSAGE_MAX - 1);
    weft_error_unref(error);
}

/* Every length of a text of characters of 1 to 4 bytes, cut at every place. */
static void texts_are_cut_between_characters(void **state)
{
    static const char text[] = "a\u00e9\u20ac\U0001f600z";
    static const size_t ends[] = {0, 1, 3, 6, 10, 11};
    for (size_t most = 0; most < sizeof(text) + 3; most++) {
        size_t wanted = 0;
        for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
            wanted = ends[i] <= most ? ends[i] : wanted;
        char out[32] = "";
        assert_int_equal(wfi_utf8_fit(text, (int)most), wanted);
        assert_int_equal(wfi_utf8_print(out, most + 1, "%s", text), sizeof(text) - 1);
        assert_int_equal(strlen(out), wanted);
        assert_memory_equal(out, text, wanted);
    }
    assert_int_equal(wfi_utf8_fit("\xe9", 1), 0); /* of another encoding: the beginning of a character */
    assert_int_equal(wfi_utf8_fit("\x80\x80\x80\x80", 3), 3);
}

/* With one byte more before them each time, every cut is met. */
static void errors_and_what_they_quote_are_cut_between_characters(void **state)
{
    char text[WFI_ERROR_MESSAGE_MAX * 2], shift[8] = "";
    for (size_t i = 0; i + 3 < sizeof(text); i += 3)
        memcpy(text + i, "\u20ac", 4);
    for (size_t i = 0; i < 3; i++, strcat(shift, "x")) {
        weft_error *error = weft_error_create(WEFT_ERR_IO, "%s%s", shift, text), *malformed = NULL;
        size_t length = strlen(weft_error_message(error));
        assert_int_equal((length - i) % 3, 0);
        assert_true(length > WFI_ERROR_MESSAGE_MAX - 4);
        weft_error_unref(error);
        char value[256];
        snprintf(value, sizeof(value), "%s%.180s", shift, text);
        setenv("WEFT_TEST", value, 1);
        int64_t number;
        assert_int_equal(wfi_env_i64("WEFT_TEST", 0, 1, &number, &malformed), WEFT_ERR_INVALID);
        assert_non_null(strstr(weft_error_message(malformed), "\u20ac\" is not a whole number"));
        weft_error_unref(malformed);
    }
    unsetenv("WEFT_TEST");
}

/* What weft_report prints, as bytes of stderr. */
static size_t reported(weft_status status)
{
    char text[256];
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    assert_int_equal(weft_report(status), 1);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(ends[1]);
    ssize_t size = read(ends[0], text, sizeof(text));
    close(ends[0]);
    close(before);
    return (size_t)size;
}

static void report_adds_nothing_to_what_the_log_has(void **state)
{
    assert_true(reported(WEFT_ERR_REMOTE) > 0);
    wfi_status_logged(WEFT_ERR_REMOTE);
    assert_true(reported(WEFT_ERR_TIMEOUT) > 0); /* of that the log has nothing */
    wfi_status_logged(WEFT_ERR_REMOTE);
    assert_int_equal(reported(WEFT_ERR_REMOTE), 0);
    assert_true(reported(WEFT_ERR_REMOTE) > 0); /* another failure */

    weft_error *printed = weft_error_create(WEFT_ERR_NOT_FOUND, "no function");
    weft_error_print(printed, stderr);
    weft_error_unref(printed);
    assert_int_equal(reported(WEFT_ERR_NOT_FOUND), 0);
    weft_error *error = NULL; /* a later failure whose detail the program got instead of the log */
    wfi_status_logged(WEFT_ERR_INVALID);
    assert_int_equal(wfi_error_fail(&error, WEFT_ERR_INVALID, "the path is NULL"), WEFT_ERR_INVALID);
    assert_true(reported(WEFT_ERR_INVALID) > 0);
    weft_error *given;
    wfi_status_logged(WEFT_ERR_INVALID);
    wfi_error_give(&given, error);
    assert_true(reported(WEFT_ERR_INVALID) > 0);
    weft_error_unref(given);
}

static weft_error *detailed(void)
{
    wfi_error_detail detail = {
        .code = WEFT_ERR_REMOTE, .remote_code = WEFT_ERR_SHAPE, .function = "ps.update", .worker = 3};
    return wfi_error_create(&detail, "rows %d\n", 7);
}

static void hops_are_added_to_copies_up_to_the_limit(void **state)
{
    weft_error *error = detailed(), *next;
    int i;
    for (i = 0; i < WFI_ERROR_HOPS_MAX + 3; i++) {
        next = wfi_error_with_hop(error, 10 + i);
        weft_error_unref(error);
        error = next;
    }
    assert_int_equal(weft_error_hops(error), WFI_ERROR_HOPS_MAX);
    assert_int_equal(weft_error_hop(error, 0), 10);
    assert_int_equal(weft_error_hop(error, 99), -1);
    assert_string_equal(weft_error_function(error), "ps.update");
    weft_error_unref(error);
}

static void an_error_prints_as_one_line(void **state)
{
    char line[256] = "";
    FILE *to = fmemopen(line, sizeof(line), "w");
    weft_error *error = detailed(), *hop = wfi_error_with_hop(error, 5);
    weft_error_print(hop, to);
    fclose(to);
    assert_string_equal(line, "weft: REMOTE (SHAPE) in ps.update at worker 3 via 5: rows 7 \n");
    weft_error_unref(error);
    weft_error_unref(hop);
}

/* Of several processes with one stderr the lines do not mix: here each write is a message of its own. */
static void an_error_is_written_at_once(void **state)
{
    char line[2048] = "", message[1500];
    int ends[2];
    weft_error *error;
    FILE *to;
    memset(message, 'x', sizeof(message) - 1);
    message[sizeof(message) - 1] = '\0';
    error = weft_error_create(WEFT_ERR_SHAPE, "%s", message);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    to = fdopen(ends[0], "w");
    assert_non_null(to);
    setvbuf(to, NULL, _IONBF, 0); /* as stderr is */
    weft_error_print(error, to);
    ssize_t size = recv(ends[1], line, sizeof(line), 0);
    assert_int_equal(size, (ssize_t)strlen("weft: SHAPE: \n") + WFI_ERROR_MESSAGE_MAX - 1);
    assert_int_equal(line[size - 1], '\n');
    fclose(to);
    close(ends[1]);
    weft_error_unref(error);
}

static void errors_survive_the_wire_and_truncation_does_not(void **state)
{
    weft_error *error = detailed(), *hop = wfi_error_with_hop(error, 5), *back;
    wfi_writer writer;
    wfi_reader reader;
    size_t size;
    wfi_writer_init_growing(&writer);
    wfi_error_write(&writer, hop);
    assert_false(writer.failed);
    for (size = 0; size < writer.size; size++) {
        wfi_reader_init(&reader, writer.data, size);
        assert_null(wfi_error_read(&reader));
    }
    wfi_reader_init(&reader, writer.data, writer.size);
    back = wfi_error_read(&reader);
    assert_int_equal(weft_error_code(back), WEFT_ERR_REMOTE);
    assert_int_equal(weft_error_handler_code(back), WEFT_ERR_SHAPE);
    assert_int_equal(weft_error_worker(back), 3);
    assert_int_equal(weft_error_hop(back, 0), 5);
    assert_string_equal(weft_error_message(back), "rows 7\n");
    weft_error_unref(back);
    writer.data[0] = 77; /* a code that nobody knows */
    wfi_reader_init(&reader, writer.data, writer.size);
    back = wfi_error_read(&reader);
    assert_int_equal(weft_error_code(back), WEFT_ERR_PROTOCOL);
    weft_error_unref(back);
    writer.data[12] = 200; /* more hops than an error can have */
    wfi_reader_init(&reader, writer.data, writer.size);
    assert_null(wfi_error_read(&reader));
    wfi_writer_fini(&writer);
    weft_error_unref(error);
    weft_error_unref(hop);
}

static void random_bytes_never_break_the_error_reader(void **state)
{
    uint8_t bytes[64];
    uint64_t random = 1;
    unsigned round;
    size_t i;
    for (round = 0; round < 20000; round++) {
        wfi_reader reader;
        for (i = 0; i < sizeof(bytes); i++)
            bytes[i] = prng_below(&random, 4) ? 0 : (uint8_t)prng_next(&random);
        wfi_reader_init(&reader, bytes, round % sizeof(bytes));
        weft_error_unref(wfi_error_read(&reader));
    }
}

static void numbers_are_little_endian_and_come_back(void **state)
{
    wfi_writer writer;
    wfi_reader reader;
    char text[4];
    wfi_writer_init_growing(&writer);
    wfi_write_u8(&writer, 0xab);
    wfi_write_u16(&writer, 0x1234);
    wfi_write_u32(&writer, 0xdeadbeef);
    wfi_write_u64(&writer, UINT64_MAX - 1);
    wfi_write_i64(&writer, INT64_MIN);
    wfi_write_f64(&writer, -0.5);
    wfi_write_string(&writer, "abc");
    wfi_write_blob(&writer, NULL, 0);
    assert_false(writer.failed);
    assert_int_equal(writer.data[1], 0x34);
    wfi_reader_init(&reader, writer.data, writer.size);
    assert_int_equal(wfi_read_u8(&reader), 0xab);
    assert_int_equal(wfi_read_u16(&reader), 0x1234);
    assert_int_equal(wfi_read_u32(&reader), 0xdeadbeef);
    assert_true(wfi_read_u64(&reader) == UINT64_MAX - 1);
    assert_true(wfi_read_i64(&reader) == INT64_MIN);
    assert_true(wfi_read_f64(&reader) == -0.5);
    wfi_read_string(&reader, text, sizeof(text));
    assert_string_equal(text, "abc");
    assert_int_equal(wfi_read_u32(&reader), 0);
    assert_int_equal(wfi_reader_left(&reader), 0);
    assert_false(reader.failed);
    wfi_writer_fini(&writer);
}

static void a_full_writer_keeps_its_failure(void **state)
{
    uint8_t room[5];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_write_u32(&writer, 1);
    wfi_write_u32(&writer, 2);
    assert_true(writer.failed);
    wfi_write_u8(&writer, 3);
    assert_int_equal(writer.size, 4);
    wfi_writer_fini(&writer);
}

static void a_reader_past_the_end_gives_zeros(void **state)
{
    static const uint8_t bytes[] = {1, 2, 3};
    wfi_reader reader;
    wfi_reader_init(&reader, bytes, sizeof(bytes));
    assert_int_equal(wfi_read_u32(&reader), 0);
    assert_true(reader.failed);
    assert_int_equal(wfi_read_u8(&reader), 0);
    assert_int_equal(wfi_reader_left(&reader), 0);
    wfi_reader_init(&reader, NULL, 0);
    assert_non_null(wfi_read_bytes(&reader, 0));
    assert_null(wfi_read_bytes(&reader, SIZE_MAX));
}

static void strings_must_fit_and_hold_no_nul(void **state)
{
    static const uint8_t with_nul[] = {2, 0, 0, 0, 'a', 0}, too_long[] = {4, 0, 0, 0, 'a', 'b', 'c', 'd'};
    char out[4];
    size_t size;
    wfi_reader reader;
    wfi_reader_init(&reader, with_nul, sizeof(with_nul));
    wfi_read_string(&reader, out, sizeof(out));
    assert_true(reader.failed);
    wfi_reader_init(&reader, too_long, sizeof(too_long));
    wfi_read_string(&reader, out, sizeof(out));
    assert_true(reader.failed && out[0] == '\0');
    wfi_reader_init(&reader, too_long, sizeof(too_long));
    assert_null(wfi_read_blob(&reader, 3, &size));
}

static void a_map_keeps_what_it_was_given(void **state)
{
    static int values[5000];
    wfi_map map;
    size_t cursor = 0, seen = 0, i;
    uint64_t key;
    int *value;
    wfi_map_init(&map);
    assert_null(wfi_map_get(&map, 0));
    assert_null(wfi_map_take(&map, 0));
    for (i = 0; i < 5000; i++)
        assert_int_equal(wfi_map_put(&map, i << 32, &values[i]), WEFT_OK);
    assert_int_equal(wfi_map_put(&map, 0, &values[0]), WEFT_ERR_EXISTS);
    for (i = 0; i < 5000; i += 2)
        assert_ptr_equal(wfi_map_take(&map, i << 32), &values[i]);
    for (i = 0; i < 5000; i++)
        assert_ptr_equal(wfi_map_get(&map, i << 32), i % 2 ? &values[i] : NULL);
    while ((value = wfi_map_next(&map, &cursor, &key))) {
        assert_ptr_equal(value, &values[key >> 32]);
        seen++;
    }
    assert_int_equal(seen, 2500);
    wfi_map_fini(&map);
}

static void a_map_in_steady_use_does_not_grow(void **state)
{
    wfi_map map;
    uint64_t i;
    int value;
    wfi_map_init(&map);
    for (i = 0; i < 100000; i++) {
        assert_int_equal(wfi_map_put(&map, i, &value), WEFT_OK);
        if (i >= 8)
            assert_non_null(wfi_map_take(&map, i - 8));
    }
    assert_true(map.capacity <= 64);
    wfi_map_fini(&map);
}

/* The inverse of the mixing in src/base/map.c, by the inverses of its factors. */
static uint64_t unmix(uint64_t key)
{
    key = (key ^ key >> 31 ^ key >> 62) * UINT64_C(0x319642b2d24d8ec3);
    key = (key ^ key >> 27 ^ key >> 54) * UINT64_C(0x96de1b173f119089);
    return key ^ key >> 30 ^ key >> 60;
}

static size_t most_probes(const wfi_hash_key *hash_key, uint64_t count)
{
    static int value;
    size_t most = 0;
    wfi_map map;
    wfi_map_init_keyed(&map, hash_key);
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(wfi_map_put(&map, unmix(i << 32), &value), WEFT_OK);
    for (uint64_t i = 0; i < count; i++) {
        size_t probes = wfi_map_probes(&map, unmix(i << 32));
        assert_true(probes >= 1 && wfi_map_get(&map, unmix(i << 32)) == &value);
        most = probes > most ? probes : most;
    }
    wfi_map_fini(&map);
    return most;
}

static void chosen_keys_do_not_meet_where_there_is_a_hash_key(void **state)
{
    const wfi_hash_key hash_key = {{1, 2, 3}};
    assert_int_equal(most_probes(NULL, 5000), 5000); /* they are chosen well: all in one place */
    assert_true(most_probes(&hash_key, 5000) < 100);
    for (uint64_t count = 0; count < 300; count++) /* a small table needs none */
        assert_true(most_probes(&hash_key, count) <= 96);
}

static void the_hash_is_the_published_one(void **state)
{
    assert_true(wfi_hash_bytes("", 0) == 0xcbf29ce484222325u);
    assert_true(wfi_hash_bytes("foobar", 6) == 0x85944171f73967e8u);
}

static void malformed_environment_is_named(void **state)
{
    weft_error *error = NULL;
    int64_t number = 5;
    bool flag = false;
    unsetenv("WEFT_TEST");
    assert_int_equal(wfi_env_i64("WEFT_TEST", 0, 9, &number, NULL), WEFT_OK);
    assert_int_equal(number, 5);
    setenv("WEFT_TEST", "12x", 1);
    assert_int_equal(wfi_env_i64("WEFT_TEST", 0, 99, &number, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "WEFT_TEST=\"12x\""));
    weft_error_unref(error);
    assert_int_equal(wfi_env_bool("WEFT_TEST", &flag, NULL), WEFT_ERR_INVALID);
    setenv("WEFT_TEST", "99999999999999999999", 1);
    assert_int_equal(wfi_env_i64("WEFT_TEST", INT64_MIN, INT64_MAX, &number, NULL), WEFT_ERR_INVALID);
    assert_int_equal(number, 5);
    setenv("WEFT_TEST", "-7", 1);
    assert_int_equal(wfi_env_i64("WEFT_TEST", -9, 9, &number, NULL), WEFT_OK);
    assert_int_equal(number, -7);
    unsetenv("WEFT_TEST");
}

static void yes_and_no_have_four_words_each(void **state)
{
    static const char *const words[][2] = {{"no", "Yes"}, {"off", "on"}, {"False", "true"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int yes = 0; yes < 2; yes++) {
            bool flag = !yes;
            setenv("WEFT_TEST", words[i][yes], 1);
            assert_int_equal(wfi_env_bool("WEFT_TEST", &flag, NULL), WEFT_OK);
            assert_int_equal(flag, yes);
        }
    }
    unsetenv("WEFT_TEST");
}

static void deadlines_saturate(void **state)
{
    assert_true(wfi_deadline(&wfi_clock_real, WEFT_FOREVER) == WFI_NEVER);
    assert_true(wfi_deadline(&wfi_clock_real, INT64_MAX) == WFI_NEVER);
    assert_true(wfi_deadline(&wfi_clock_real, 1000) > wfi_now(&wfi_clock_real));
    assert_true(wfi_deadline_after(5, 1) == 1000005);
    assert_true(wfi_deadline_after(UINT64_MAX - 5, 1) == WFI_NEVER);
}

static void durations_saturate(void **state)
{
    static const int64_t longest[] = {WEFT_FOREVER, INT64_MIN, INT64_MAX, INT64_MAX / 1000000 + 1};
    assert_int_equal(wfi_ns_of_ms(0), 0);
    assert_int_equal(wfi_ns_of_ms(3), 3000000);
    assert_int_equal(wfi_ns_of_us(7), 7000);
    assert_true(wfi_ns_of_us(INT64_MAX) == WFI_LONGEST_NS);
    for (size_t i = 0; i < sizeof(longest) / sizeof(*longest); i++) {
        assert_true(wfi_ns_of_ms(longest[i]) == WFI_LONGEST_NS);
        assert_true(wfi_deadline_after(0, longest[i]) == WFI_NEVER);
    }
}

typedef struct numbered {
    wfi_list link;
    int number;
} numbered;

static void lists_keep_order_over_a_splice(void **state)
{
    numbered items[4] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    wfi_list a, b;
    int i;
    wfi_list_init(&a);
    wfi_list_init(&b);
    wfi_list_push_back(&a, &items[1].link);
    wfi_list_push_front(&a, &items[0].link);
    wfi_list_push_back(&b, &items[2].link);
    wfi_list_push_back(&b, &items[3].link);
    wfi_list_splice(&a, &b);
    assert_true(wfi_list_empty(&b));
    for (i = 0; i < 4; i++)
        assert_int_equal(wfi_container_of(wfi_list_pop_front(&a), numbered, link)->number, i);
    assert_null(wfi_list_pop_front(&a));
}

static void a_mutex_knows_its_owner(void **state)
{
    wfi_mutex mutex;
    wfi_mutex_init(&mutex);
    assert_false(wfi_mutex_is_mine(&mutex));
    wfi_mutex_lock(&mutex);
    assert_int_equal(wfi_mutex_is_mine(&mutex), wfi_mutex_knows_owner);
    wfi_mutex_unlock(&mutex);
    assert_false(wfi_mutex_is_mine(&mutex));
    assert_true(wfi_mutex_trylock(&mutex));
    wfi_mutex_unlock(&mutex);
    wfi_mutex_fini(&mutex);
}

UNIT_MAIN(every_status_has_a_name, report_gives_an_exit_code, no_error_answers_as_success, long_messages_are_cut,
          texts_are_cut_between_characters, errors_and_what_they_quote_are_cut_between_characters,
          report_adds_nothing_to_what_the_log_has, hops_are_added_to_copies_up_to_the_limit,
          an_error_prints_as_one_line, an_error_is_written_at_once, errors_survive_the_wire_and_truncation_does_not,
          random_bytes_never_break_the_error_reader, numbers_are_little_endian_and_come_back,
          a_full_writer_keeps_its_failure, a_reader_past_the_end_gives_zeros, strings_must_fit_and_hold_no_nul,
          a_map_keeps_what_it_was_given, a_map_in_steady_use_does_not_grow,
          chosen_keys_do_not_meet_where_there_is_a_hash_key, the_hash_is_the_published_one,
          malformed_environment_is_named, yes_and_no_have_four_words_each, deadlines_saturate, durations_saturate,
          lists_keep_order_over_a_splice, a_mutex_knows_its_owner)
