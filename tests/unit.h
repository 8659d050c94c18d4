/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - cmocka, what it wants to have been included before it, and the main function of a file of tests. */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* UNIT_MAIN(this, that) at the end of a file: a program that runs these tests, or those that its argument names
 * ("item_14*"). The other: between `begin` and `end`, once. */
#define UNIT_MAIN(...) UNIT_MAIN_WITH(NULL, NULL, __VA_ARGS__)
#define UNIT_MAIN_WITH(begin, end, ...)                                                                                \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        const struct CMUnitTest tests[] = {UNIT_4(UNIT_EACH(__VA_ARGS__))};                                            \
        if (argc > 1)                                                                                                  \
            cmocka_set_test_filter(argv[1]);                                                                           \
        return cmocka_run_group_tests(tests, begin, end);                                                              \
    }

/* cmocka_unit_test of each argument; a macro is expanded within itself once for each time that its result is looked
 * at again. */
#define UNIT_EACH(test, ...) cmocka_unit_test(test), __VA_OPT__(UNIT_EACH_AGAIN UNIT_NONE(__VA_ARGS__))
#define UNIT_EACH_AGAIN() UNIT_EACH
#define UNIT_NONE ()
#define UNIT_4(...) UNIT_3(UNIT_3(UNIT_3(UNIT_3(__VA_ARGS__))))
#define UNIT_3(...) UNIT_2(UNIT_2(UNIT_2(UNIT_2(__VA_ARGS__))))
#define UNIT_2(...) UNIT_1(UNIT_1(UNIT_1(UNIT_1(__VA_ARGS__))))
#define UNIT_1(...) __VA_ARGS__

#endif
