/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmocka.h - the part of cmocka that the CUDA tests use, for machines where it is not installed (WEFT_GPU_ONLY).
 *
 * The same names and the same behaviour: an assertion that fails prints where and what, and ends its test function with
 * a longjmp; the group goes on with the next. Included by one file of a program, from one thread, as cmocka is.
 */
#ifndef WEFT_GPU_CMOCKA_H
#define WEFT_GPU_CMOCKA_H

#include <fnmatch.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
    int (*setup)(void **state);
    int (*teardown)(void **state);
    void *initial_state;
};

enum { CMOCKA_PASSED, CMOCKA_FAILED, CMOCKA_SKIPPED };

static jmp_buf cmocka_test_end;
static const char *cmocka_filter; /* only tests of such names */

static inline void cmocka_set_test_filter(const char *pattern)
{
    cmocka_filter = pattern;
}

static inline void cmocka_end_test(int verdict)
{
    longjmp(cmocka_test_end, verdict);
}

static inline void cmocka_check(int holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
    cmocka_end_test(CMOCKA_FAILED);
}

static inline void cmocka_check_equal(uintmax_t a, uintmax_t b, int equal, const char *what, const char *file, int line)
{
    if ((a == b) == equal)
        return;
    fprintf(stderr, "%s:%d: %s: %#jx and %#jx\n", file, line, what, a, b);
    cmocka_end_test(CMOCKA_FAILED);
}

static inline int cmocka_run_one(const struct CMUnitTest *test, void *state)
{
    volatile int verdict = CMOCKA_PASSED;
    void *own = test->initial_state ? test->initial_state : state;
    if (test->setup && test->setup(&own))
        return CMOCKA_FAILED;
    int ended = setjmp(cmocka_test_end);
    if (!ended)
        test->test(&own);
    else
        verdict = ended;
    if (test->teardown && test->teardown(&own))
        verdict = CMOCKA_FAILED;
    return verdict;
}

static inline int cmocka_run_all(const char *group, const struct CMUnitTest *tests, size_t count,
                                 int (*setup)(void **state), int (*teardown)(void **state))
{
    static const char *const verdicts[] = {"passed", "FAILED", "skipped"};
    void *state = NULL;
    int failed = 0;
    if (setup && setup(&state))
        return (int)count;
    for (size_t i = 0; i < count; i++) {
        if (cmocka_filter && fnmatch(cmocka_filter, tests[i].name, 0))
            continue;
        int verdict = cmocka_run_one(&tests[i], state);
        printf("%s.%s: %s\n", group, tests[i].name, verdicts[verdict]);
        failed += verdict == CMOCKA_FAILED;
    }
    if (teardown && teardown(&state))
        failed++;
    return failed;
}

#define cmocka_unit_test(f)                                                                                            \
    {                                                                                                                  \
#f, f, NULL, NULL, NULL                                                                                        \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                            \
    {                                                                                                                  \
#f, f, setup, teardown, NULL                                                                                   \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    cmocka_run_all(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#define assert_true(c) cmocka_check(!!(c), #c, __FILE__, __LINE__)
#define assert_false(c) cmocka_check(!(c), "!(" #c ")", __FILE__, __LINE__)
#define assert_non_null(p) cmocka_check((p) != NULL, #p " != NULL", __FILE__, __LINE__)
#define assert_null(p) cmocka_check((p) == NULL, #p " == NULL", __FILE__, __LINE__)
#define assert_int_equal(a, b) cmocka_check_equal((uintmax_t)(a), (uintmax_t)(b), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)                                                                                     \
    cmocka_check_equal((uintmax_t)(a), (uintmax_t)(b), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_ptr_equal(a, b) cmocka_check((const void *)(a) == (const void *)(b), #a " == " #b, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b)                                                                                     \
    cmocka_check((const void *)(a) != (const void *)(b), #a " != " #b, __FILE__, __LINE__)
#define assert_string_equal(a, b) cmocka_check(strcmp((a), (b)) == 0, #a " eq " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)                                                                                   \
    cmocka_check(memcmp((a), (b), (n)) == 0, #a " and " #b " hold the same bytes", __FILE__, __LINE__)
#define assert_in_range(v, low, high)                                                                                  \
    cmocka_check((uintmax_t)(v) >= (uintmax_t)(low) && (uintmax_t)(v) <= (uintmax_t)(high),                            \
                 #v " in " #low " .. " #high, __FILE__, __LINE__)
#define fail() cmocka_check(0, "fail()", __FILE__, __LINE__)
#define skip() cmocka_end_test(CMOCKA_SKIPPED)

#endif
