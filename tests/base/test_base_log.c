/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_log.c - levels, the sink and what becomes of the text. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
    int lines, level;
    char last[4096];
} seen;

static void sink(weft_log_level level, const char *line, void *arg)
{
    seen *mine = arg;
    mine->lines++;
    mine->level = (int)level;
    strncpy(mine->last, line, sizeof mine->last - 1);
    if (mine->lines == 1)
        wfi_log(WEFT_LOG_ERROR, "from inside"); /* a sink may cause a line itself */
}

static void the_environment_sets_the_first_level(void **state)
{
    (void)state;
    assert_int_equal(weft_log_get_level(), WEFT_LOG_INFO);
}

static void only_lines_up_to_the_level_arrive(void **state)
{
    seen mine = {.lines = 1};
    (void)state;
    weft_log_set_sink(sink, &mine);
    weft_log_set_level(WEFT_LOG_WARN);
    wfi_log(WEFT_LOG_INFO, "not this");
    assert_int_equal(mine.lines, 1);
    wfi_log(WEFT_LOG_WARN, "peer %d", 4);
    assert_int_equal(mine.lines, 2);
    assert_int_equal(mine.level, WEFT_LOG_WARN);
    assert_string_equal(mine.last, "peer 4");
    weft_log_set_sink(NULL, NULL);
}

static void a_sink_may_log(void **state)
{
    seen mine = {.lines = 0};
    (void)state;
    weft_log_set_sink(sink, &mine);
    wfi_log(WEFT_LOG_ERROR, "outer");
    assert_int_equal(mine.lines, 2);
    weft_log_set_sink(NULL, NULL);
}

static void one_line_stays_one_line(void **state)
{
    seen mine = {.lines = 1};
    char text[5000];
    (void)state;
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    weft_log_set_sink(sink, &mine);
    wfi_log(WEFT_LOG_ERROR, "a\nb\033[2J");
    assert_string_equal(mine.last, "a b [2J");
    wfi_log(WEFT_LOG_ERROR, "%s", text);
    assert_true(strlen(mine.last) < sizeof text - 1);
    weft_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_sets_the_first_level),
        cmocka_unit_test(only_lines_up_to_the_level_arrive),
        cmocka_unit_test(a_sink_may_log),
        cmocka_unit_test(one_line_stays_one_line),
    };
    setenv("WEFT_LOG", "info", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
