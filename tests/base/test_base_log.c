/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_log.c - levels, the sink and what becomes of the text. */
#include "base/text/log.h"
#include "unit.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct seen {
    int lines, level;
    char last[4096];
} seen;

static void sink(weft_log_level level, const char *line, void *arg)
{
    seen *mine = arg;
    mine->lines++;
    mine->level = (int)level;
    strncpy(mine->last, line, sizeof(mine->last) - 1);
    if (mine->lines == 1)
        wfi_log(WEFT_LOG_ERROR, "from inside"); /* a sink may cause a line itself */
}

static void the_environment_sets_the_first_level(void **state)
{
    assert_int_equal(weft_logging_get_level(), WEFT_LOG_INFO);
}

static void only_lines_up_to_the_level_arrive(void **state)
{
    seen mine = {.lines = 1};
    weft_logging_set_sink(sink, &mine);
    weft_logging_set_level(WEFT_LOG_WARN);
    wfi_log(WEFT_LOG_INFO, "not this");
    assert_int_equal(mine.lines, 1);
    wfi_log(WEFT_LOG_WARN, "peer %d", 4);
    assert_int_equal(mine.lines, 2);
    assert_int_equal(mine.level, WEFT_LOG_WARN);
    assert_string_equal(mine.last, "peer 4");
    weft_logging_set_sink(NULL, NULL);
}

static void a_sink_may_log(void **state)
{
    seen mine = {.lines = 0};
    weft_logging_set_sink(sink, &mine);
    wfi_log(WEFT_LOG_ERROR, "outer");
    assert_int_equal(mine.lines, 2);
    weft_logging_set_sink(NULL, NULL);
}

static void one_line_stays_one_line(void **state)
{
    seen mine = {.lines = 1};
    char text[5000];
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    weft_logging_set_sink(sink, &mine);
    wfi_log(WEFT_LOG_ERROR, "a\nb\033[2J");
    assert_string_equal(mine.last, "a b [2J");
    wfi_log(WEFT_LOG_ERROR, "%s", text);
    assert_true(strlen(mine.last) < sizeof(text) - 1);
    weft_logging_set_sink(NULL, NULL);
}

static void a_line_says_whose_it_is(void **state)
{
    seen mine = {.lines = 1};
    weft_logging_set_sink(sink, &mine);
    wfi_log_in(&(wfi_log_context){.rank = 3, .call_id = 17}, WEFT_LOG_ERROR, "it ended");
    assert_string_equal(mine.last, "rank 3 call 17: it ended");
    wfi_log_in(&(wfi_log_context){.rank = 0}, WEFT_LOG_ERROR, "%d", 5);
    assert_string_equal(mine.last, "rank 0: 5");
    wfi_log_in(&(wfi_log_context){.rank = -1}, WEFT_LOG_ERROR, "%s", "nobody's");
    assert_string_equal(mine.last, "nobody's");
    weft_logging_set_sink(NULL, NULL);
}

static uint64_t a_moment(const wfi_clock *clock)
{
    return 12345678901;
}

/* What stderr gets, by way of a file. */
static void a_line_has_its_time_and_level(void **state)
{
    static const wfi_clock sim = {.now_ns = a_moment};
    char line[128] = "", name[] = "/tmp/weft-log-XXXXXX";
    int year, month, day, hour, minute, second, micro, length = 0;
    int fd = mkstemp(name), before = dup(STDERR_FILENO);
    assert_true(fd >= 0 && before >= 0);
    dup2(fd, STDERR_FILENO);
    wfi_log_in(&(wfi_log_context){.rank = 2, .call_id = 9, .clock = &sim}, WEFT_LOG_WARN, "virtual");
    wfi_log_in(&(wfi_log_context){.rank = 2, .clock = &wfi_clock_real}, WEFT_LOG_WARN, "real");
    dup2(before, STDERR_FILENO);
    close(before);
    lseek(fd, 0, SEEK_SET);
    FILE *from = fdopen(fd, "r");
    assert_non_null(fgets(line, sizeof(line), from));
    assert_string_equal(line, "weft: 12.345678s warn rank 2 call 9: virtual\n");
    assert_non_null(fgets(line, sizeof(line), from));
    assert_int_equal(sscanf(line, "weft: %4d-%2d-%2dT%2d:%2d:%2d.%6dZ %n", &year, &month, &day, &hour, &minute, &second,
                            &micro, &length),
                     7);
    assert_true(year >= 2024 && month <= 12 && day <= 31 && hour < 24 && minute < 60 && second <= 60);
    assert_string_equal(line + length, "warn rank 2: real\n");
    fclose(from);
    unlink(name);
}

/* Here each write is a message of its own. */
static void a_line_is_written_at_once(void **state)
{
    char line[2048], text[1000];
    int ends[2], before = dup(STDERR_FILENO);
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    dup2(ends[0], STDERR_FILENO);
    wfi_log(WEFT_LOG_WARN, "%s", text);
    dup2(before, STDERR_FILENO);
    ssize_t size = recv(ends[1], line, sizeof(line), 0);
    assert_true(size > (ssize_t)sizeof(text) && line[size - 1] == '\n');
    close(before);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_sets_the_first_level),
        cmocka_unit_test(only_lines_up_to_the_level_arrive),
        cmocka_unit_test(a_sink_may_log),
        cmocka_unit_test(one_line_stays_one_line),
        cmocka_unit_test(a_line_says_whose_it_is),
        cmocka_unit_test(a_line_has_its_time_and_level),
        cmocka_unit_test(a_line_is_written_at_once),
    };
    setenv("WEFT_LOG", "info", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
