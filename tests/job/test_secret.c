/* SPDX-License-Identifier: Apache-2.0 */
/* test_secret.c - where the job's secret comes from, in which order, and that nothing of it stays behind. */
#include "unit.h"

#include "job/protocol/secret.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static weft_status found; /* the last find's outcome */
static wfi_secret secret;
static char message[256];

static void find(const void *given, size_t size)
{
    weft_error *error = NULL;
    found = wfi_secret_find(given, size, &secret, &error);
    snprintf(message, sizeof(message), "%s", weft_error_message(error));
    weft_error_unref(error);
}

static void expect_secret(const char *text)
{
    assert_int_equal(found, WEFT_OK);
    assert_int_equal(secret.size, strlen(text));
    assert_memory_equal(secret.bytes, text, strlen(text));
}

static int new_file(char *path, const char *content, mode_t mode)
{
    strcpy(path, "/tmp/weft-test-secret-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    assert_int_equal(fchmod(fd, mode), 0);
    return fd;
}

static void none_anywhere_is_none(void **state)
{
    find(NULL, 0);
    assert_int_equal(found, WEFT_OK);
    assert_int_equal(secret.size, 0);
}

static void sizes_outside_the_limits_are_refused(void **state)
{
    static uint8_t large[WFI_SECRET_MAX + 1];
    find("fifteen bytes..", 15);
    assert_int_equal(found, WEFT_ERR_INVALID);
    assert_null(strstr(message, "fifteen"));
    find(large, sizeof(large));
    assert_int_equal(found, WEFT_ERR_INVALID);
    find(large, WFI_SECRET_MAX);
    assert_int_equal(found, WEFT_OK);
    assert_int_equal(secret.size, WFI_SECRET_MAX);
}

static void a_files_content_is_read_each_time(void **state)
{
    char path[64];
    close(new_file(path, "a secret in a file\n", 0600));
    setenv("WEFT_SECRET_FILE", path, 1);
    find(NULL, 0);
    expect_secret("a secret in a file");
    find(NULL, 0);
    expect_secret("a secret in a file");
    find("given by the program", 20);
    expect_secret("given by the program");
    assert_int_equal(unlink(path), 0);
    find(NULL, 0);
    assert_int_equal(found, WEFT_ERR_IO);
    assert_non_null(strstr(message, path));
    assert_non_null(strstr(message, "\"): No such file or directory"));
    unsetenv("WEFT_SECRET_FILE");
}

static void a_file_without_an_end_is_refused(void **state)
{
    setenv("WEFT_SECRET_FILE", "/dev/zero", 1);
    find(NULL, 0);
    assert_int_equal(found, WEFT_ERR_INVALID);
    unsetenv("WEFT_SECRET_FILE");
}

static void expect_empty(const char *source)
{
    find(NULL, 0);
    if (found != WEFT_ERR_INVALID || !strstr(message, source) || !strstr(message, "empty") || !strstr(message, "unset"))
        fail_msg("%s, \"%s\": does not say that %s is empty", weft_status_name(found), message, source);
}

/* As where a launcher's own variable, which was to hold the secret, is not set: no job opens without one for that. */
static void an_empty_secret_is_refused(void **state)
{
    char path[64];
    static const char *const contents[] = {"", "\n"};
    setenv("WEFT_SECRET", "", 1);
    expect_empty("WEFT_SECRET)");
    wfi_secret_hide(); /* as after each opening */
    expect_empty("WEFT_SECRET)");
    setenv("WEFT_SECRET_FILE", "", 1);
    expect_empty("WEFT_SECRET_FILE)");
    unsetenv("WEFT_SECRET");
    expect_empty("WEFT_SECRET_FILE)");
    for (size_t i = 0; i < sizeof(contents) / sizeof(*contents); i++) {
        close(new_file(path, contents[i], 0600));
        setenv("WEFT_SECRET_FILE", path, 1);
        expect_empty("WEFT_SECRET_FILE");
        assert_non_null(strstr(message, path));
        assert_int_equal(unlink(path), 0);
    }
    unsetenv("WEFT_SECRET_FILE");
}

static void an_empty_variable_beside_a_secret_is_none(void **state)
{
    char path[64];
    close(new_file(path, "a secret in a file", 0600));
    setenv("WEFT_SECRET", "", 1);
    setenv("WEFT_SECRET_FILE", path, 1);
    find(NULL, 0);
    expect_secret("a secret in a file");
    assert_int_equal(unlink(path), 0);
    unsetenv("WEFT_SECRET_FILE");
    unsetenv("WEFT_SECRET");
}

static void a_descriptor_that_is_none_is_refused(void **state)
{
    static const char *const bad[] = {"", "1", "-7", "12x", "77777", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        setenv("WEFT_SECRET_FD", bad[i], 1);
        find(NULL, 0);
        assert_int_equal(found, WEFT_ERR_INVALID);
        assert_null(getenv("WEFT_SECRET_FD"));
    }
}

/* Keeps what it read, so the tests that want none run before. */
static void the_variable_is_wiped_where_it_lies(void **state)
{
    static char setting[] = "WEFT_SECRET=the secret of a variable";
    char *value = strchr(setting, '=') + 1;
    assert_int_equal(putenv(setting), 0);
    find(NULL, 0);
    expect_secret("the secret of a variable");
    assert_null(getenv("WEFT_SECRET"));
    for (size_t i = 0; i < sizeof(setting) - 1 - (size_t)(value - setting); i++)
        assert_int_equal(value[i], 0);
    find(NULL, 0);
    expect_secret("the secret of a variable"); /* for the next agent of this process */
}

static void a_variable_too_short_is_wiped_as_well(void **state)
{
    static char setting[] = "WEFT_SECRET=short";
    assert_int_equal(putenv(setting), 0);
    find(NULL, 0);
    assert_int_equal(found, WEFT_ERR_INVALID);
    assert_null(getenv("WEFT_SECRET"));
    assert_int_equal(setting[12], 0);
}

static void an_inherited_file_comes_first_and_is_closed(void **state)
{
    char number[16];
    wfi_secret made;
    assert_int_equal(wfi_secret_random(&made), WEFT_OK);
    int fd = wfi_secret_memory_file(&made);
    assert_true(fd > 2 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    assert_int_equal(write(fd, "x", 1), -1); /* sealed */
    snprintf(number, sizeof(number), "%d", fd);
    setenv("WEFT_SECRET_FD", number, 1);
    find(NULL, 0);
    assert_int_equal(found, WEFT_OK);
    assert_memory_equal(secret.bytes, made.bytes, made.size);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    wfi_secret_wipe(&made);
    assert_int_equal(made.size, 0);
}

UNIT_MAIN(none_anywhere_is_none, sizes_outside_the_limits_are_refused, a_files_content_is_read_each_time,
          a_file_without_an_end_is_refused, an_empty_secret_is_refused, an_empty_variable_beside_a_secret_is_none,
          a_descriptor_that_is_none_is_refused, a_variable_too_short_is_wiped_as_well,
          the_variable_is_wiped_where_it_lies, an_inherited_file_comes_first_and_is_closed)
