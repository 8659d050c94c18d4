/* SPDX-License-Identifier: Apache-2.0 */
/* test_examples_idx.c - IDX files: good ones are read, each way to be wrong is an error that says what was expected. */
#include <stdint.h>
#include "unit.h"

#include <dataset.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static const uint8_t good[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const idx_shape wanted = {3, {0, 2, 3}};

static char path[] = "/tmp/weft-idx-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    return unlink(path);
}

static void put(const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static size_t gzip(const void *data, size_t size, uint8_t *out, size_t room)
{
    z_stream z = {
        .next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)size, .next_out = out, .avail_out = (uInt)room};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void check_good(void)
{
    idx_array array;
    weft_error *error = NULL;
    assert_int_equal(idx_read(path, wanted, &array, &error), WEFT_OK);
    assert_int_equal(array.dims[0], 2);
    assert_int_equal(array.size, 12);
    assert_memory_equal(array.data, good + 16, 12);
    idx_fini(&array);
}

/* The error is of that code, names the file and holds `words`; nothing was written to the output. */
static void check_bad(weft_status code, const char *words)
{
    idx_array array = {.ndim = 77};
    weft_error *error = NULL;
    assert_int_equal(idx_read(path, wanted, &array, &error), code);
    assert_int_equal(array.ndim, 77);
    assert_non_null(strstr(weft_error_message(error), path));
    if (!strstr(weft_error_message(error), words))
        fail_msg("expected '%s' in: %s", words, weft_error_message(error));
    weft_error_unref(error);
}

static void plain_is_read(void **state)
{
    put(good, sizeof(good));
    check_good();
}

static void gzip_is_read(void **state)
{
    uint8_t packed[128];
    put(packed, gzip(good, sizeof(good), packed, sizeof(packed)));
    check_good();
}

/* A file of several members, wherever they are cut, and with empty ones: gzip writes such, and `cat` of two files. */
static void several_gzip_members_are_read(void **state)
{
    for (size_t cut = 0; cut <= sizeof(good); cut++) {
        uint8_t packed[256];
        size_t size = gzip(good, cut, packed, sizeof(packed));
        size += gzip(NULL, 0, packed + size, sizeof(packed) - size);
        size += gzip(good + cut, sizeof(good) - cut, packed + size, sizeof(packed) - size);
        put(packed, size);
        check_good();
        put(packed, size - 1);
        check_bad(WEFT_ERR_FORMAT, "cut off");
        size += gzip("x", 1, packed + size, sizeof(packed) - size);
        put(packed, size);
        check_bad(WEFT_ERR_FORMAT, "found more behind them");
    }
}

static void every_truncation_is_an_error(void **state)
{
    uint8_t packed[128];
    size_t size = gzip(good, sizeof(good), packed, sizeof(packed));
    for (size_t length = 0; length < sizeof(good); length++) {
        put(good, length);
        check_bad(WEFT_ERR_FORMAT, "expected");
    }
    for (size_t length = 2; length < size; length++) {
        put(packed, length);
        check_bad(WEFT_ERR_FORMAT, "cut off");
    }
}

static void what_follows_is_an_error(void **state)
{
    uint8_t longer[sizeof(good) + 1] = {0}, packed[128];
    memcpy(longer, good, sizeof(good));
    put(longer, sizeof(longer));
    check_bad(WEFT_ERR_FORMAT, "expected 12 bytes of data, found more behind them");
    put(packed, gzip(longer, sizeof(longer), packed, sizeof(packed)));
    check_bad(WEFT_ERR_FORMAT, "found more behind them");
}

static void check_header(size_t at, uint8_t value, const char *words)
{
    uint8_t bad[sizeof(good)];
    memcpy(bad, good, sizeof(good));
    bad[at] = value;
    put(bad, sizeof(bad));
    check_bad(WEFT_ERR_FORMAT, words);
}

static void headers_are_checked(void **state)
{
    check_header(0, 1, "expected the magic number 00000803, found 01000803");
    check_header(2, 13, "found 00000d03");
    check_header(3, 1, "found 00000801");
    check_header(7, 0, "found dimension 0 of 0");
    check_header(11, 5, "expected dimension 1 to be 2, found 5");
    check_header(7, 9, "expected 54 bytes of data, found 12");
    check_header(4, 255, "expected at most 1073741824 bytes of data");
}

/* A small file that claims gigabytes is refused before memory is asked for. */
static void impossible_claims_are_refused(void **state)
{
    uint8_t bad[sizeof(good)], packed[128];
    memcpy(bad, good, sizeof(good));
    bad[4] = 0x70;
    put(packed, gzip(bad, sizeof(bad), packed, sizeof(packed)));
    check_bad(WEFT_ERR_FORMAT, "expected at most 1073741824 bytes of data");
}

/* Any byte changed: read or refused, never worse (the sanitizers look on); compressed, the checksum finds it. */
static void damage_is_survived(void **state)
{
    uint8_t packed[128];
    size_t size = gzip(good, sizeof(good), packed, sizeof(packed));
    for (size_t at = 0; at < size * 255; at++) {
        uint8_t damaged[128];
        idx_array array;
        weft_error *error = NULL;
        memcpy(damaged, packed, size);
        damaged[at / 255] ^= (uint8_t)(at % 255 + 1);
        put(damaged, size);
        if (idx_read(path, wanted, &array, &error) == WEFT_OK) {
            assert_memory_equal(array.data, good + 16, 12); /* a byte of the gzip header that means nothing */
            idx_fini(&array);
        }
        weft_error_unref(error);
    }
}

static void missing_and_odd_files(void **state)
{
    idx_array array;
    weft_error *error = NULL;
    assert_int_equal(idx_read("/nonexistent/file", wanted, &array, &error), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_error_message(error), "/nonexistent/file"));
    weft_error_unref(error);
    error = NULL;
    assert_int_equal(idx_read("/", wanted, &array, &error), WEFT_ERR_IO);
    weft_error_unref(error);
}

UNIT_MAIN_WITH(make_file, remove_file, plain_is_read, gzip_is_read, several_gzip_members_are_read,
               every_truncation_is_an_error, what_follows_is_an_error, headers_are_checked,
               impossible_claims_are_refused, damage_is_survived, missing_and_odd_files)
