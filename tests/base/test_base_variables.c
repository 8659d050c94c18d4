/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_variables.c - misspelt variables of weft are warned about, once; and the version of the library. */
#include "children.h"
#include "rpc/must.h"
#include "unit.h"

#include <weft/job.h>
#include <weft/log.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct kept {
    int lines;
    char text[2048];
} kept;

static void keep(weft_log_level level, const char *line, void *arg)
{
    kept *to = arg;
    if (level != WEFT_LOG_WARN || !strstr(line, "is not a variable of weft"))
        return;
    to->lines++;
    size_t at = strlen(to->text);
    snprintf(to->text + at, sizeof(to->text) - at, "%s\n", line);
}

/* What a process with these settings warns about when it opens a job, twice. */
static kept warned(const char *const *settings)
{
    kept result = {.lines = 0};
    child one = child_fork(*settings);
    if (!one.pid) {
        for (size_t i = 0; settings[i]; i++)
            putenv((char *)settings[i]);
        weft_logging_set_level(WEFT_LOG_WARN);
        weft_logging_set_sink(keep, &result);
        for (int i = 0; i < 2; i++) {
            weft_job *job = NULL;
            if (!weft_job_open(NULL, &job, NULL))
                MUST_OK(weft_job_close(job, 1000, NULL));
        }
        child_tell(&result, sizeof(result));
        _exit(0);
    }
    child_receive(&one, &result, sizeof(result));
    child_must_end_well(&one, 1);
    return result;
}

static void test_misspelt(void **cmocka)
{
    static const struct {
        const char *setting, *says;
    } cases[] = {
        {"WEFT_FABRC=tcp", "WEFT_FABRC is not a variable of weft: did you mean WEFT_FABRIC? docs/environment.md lists"},
        {"WEFT_LOGG=info", "WEFT_LOGG is not a variable of weft: did you mean WEFT_LOG?"},
        {"WEFT_MEMROY_BUDGET=1G", "did you mean WEFT_MEMORY_BUDGET?"},
        {"WEFT_KEEP_DESCRIPTOR_LIMIT=1", "did you mean WEFT_RAISE_DESCRIPTOR_LIMIT?"},
        {"WEFT_ZZZZZZZZZZZZZZZZZ=", "WEFT_ZZZZZZZZZZZZZZZZZ is not a variable of weft: docs/environment.md lists them"},
    };
    (void)cmocka;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        kept got = warned((const char *const[]){cases[i].setting, NULL});
        if (got.lines != 1 || !strstr(got.text, cases[i].says))
            fprintf(stderr, "%s: %d lines, \"%s\"\n", cases[i].setting, got.lines, got.text);
        assert_int_equal(got.lines, 1);
        assert_non_null(strstr(got.text, cases[i].says));
    }
}

static void test_several_and_long(void **cmocka)
{
    static char much[5000];
    (void)cmocka;
    memset(much, 'A', sizeof(much) - 1);
    memcpy(much, "WEFT_", 5);
    much[4000] = '=';
    kept got = warned((const char *const[]){"WEFT_THRAEDS=3", much, "WEFT_TRACES=t", NULL});
    assert_int_equal(got.lines, 3);
    assert_non_null(strstr(got.text, "WEFT_THREADS"));
    assert_non_null(strstr(got.text, "did you mean WEFT_TRACE?"));
}

static void test_known_and_others(void **cmocka)
{
    (void)cmocka;
    kept got = warned((const char *const[]){"WEFT_LOG=warn", "WEFT_PORTS=2000-3000", "WEFTY=1", "MY_WEFT_X=1", NULL});
    assert_int_equal(got.lines, 0);
}

/* A child of weft_job_open leaves the warning to its parent. */
static void test_spawned(void **cmocka)
{
    (void)cmocka;
    assert_int_equal(warned((const char *const[]){"WEFT_SPAWNED=1", "WEFT_FABRC=tcp", NULL}).lines, 0);
}

static void test_version(void **cmocka)
{
    char text[32];
    (void)cmocka;
    snprintf(text, sizeof(text), "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    assert_string_equal(weft_version(), text);
    assert_int_equal(weft_version_number(), WEFT_VERSION_NUMBER);
    assert_int_equal(WEFT_VERSION_NUMBER, WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH);
}

UNIT_MAIN(test_misspelt, test_several_and_long, test_known_and_others, test_spawned, test_version)
