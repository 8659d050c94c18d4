// SPDX-License-Identifier: Apache-2.0
// literals.cc - lists of values in C++: a literal lives as long as its variable, and what would dangle does not compile.
#include <weft/weft.h>

#include <cstdio>
#include <cstring>
#include <type_traits>

using numbers = weft_literal<weft_value, weft_value>;
using nested = weft_literal_list<weft_value, weft_value>;
static_assert(!std::is_convertible<numbers, weft_args>::value, "weft_args a = WEFT_VALUES(...) would dangle");
static_assert(!std::is_constructible<weft_args, numbers>::value, "so would weft_args a(WEFT_VALUES(...))");
static_assert(!std::is_convertible<nested, weft_value>::value, "weft_value v = weft_of_list(WEFT_VALUES(...)) would dangle");
static_assert(std::is_convertible<numbers, weft_args_in>::value && std::is_convertible<weft_args, weft_args_in>::value,
              "arguments");
// Passed to functions of C as a weft_args is.
static_assert(std::is_trivially_copyable<weft_args_in>::value && sizeof(weft_args_in) == sizeof(weft_args),
              "a parameter of C");

static int failures;

static void check(bool good, const char *what)
{
    if (!good)
        std::fprintf(stderr, "not so: %s\n", what);
    failures += !good;
}

static void overwrite_the_stack()
{
    volatile char bytes[4096];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)0xa5;
}

static bool is_number(const weft_values *values, size_t index, int64_t wanted)
{
    int64_t got = 0;
    return weft_values_get_i64(values, index, &got) == WEFT_OK && got == wanted;
}

static void check_list(const weft_values *values)
{
    weft_args list = {};
    check(weft_values_count(values) == 2 && is_number(values, 0, 1), "the list has two items, the first one is 1");
    check(weft_values_get_list(values, 1, &list) == WEFT_OK && list.count == 2, "its second one is a list of two");
    check(list.count == 2 && list.items[0].as.i64 == 2 && list.items[1].as.i64 == 3, "these are 2 and 3");
}

static void take(weft_args_in from, weft_values **out)
{
    check(weft_values_create(from, out, nullptr) == WEFT_OK, "a list can be made of the literal");
}

int main()
{
    weft_values *values = nullptr;
    auto flat = WEFT_VALUES(weft_of_i64(1), weft_of_string("two"));
    auto deep = WEFT_VALUES(weft_of_i64(1), weft_of_list(WEFT_VALUES(weft_of_i64(2), weft_of_i64(3))));
    auto copy = deep;
    deep = copy;
    overwrite_the_stack();
    take(flat, &values);
    check(weft_values_count(values) == 2 && is_number(values, 0, 1), "a named literal lives on");
    weft_values_unref(values);
    take(deep, &values);
    check_list(values);
    weft_values *again = nullptr;
    take(weft_values_args(values), &again);
    check_list(again);
    weft_values_unref(again);
    weft_values_unref(values);
    take(copy, &values);
    check_list(values);
    weft_values_unref(values);
    take(WEFT_VALUES(weft_of_i64(1), weft_of_list(WEFT_VALUES(weft_of_i64(2), weft_of_i64(3)))), &values);
    check_list(values);
    weft_values_unref(values);
    take(WEFT_VALUES(), &values);
    check(weft_values_count(values) == 0, "a literal may be empty");
    weft_values_unref(values);
    take(WEFT_NO_VALUES, &values);
    check(weft_values_count(values) == 0, "WEFT_NO_VALUES is empty");
    weft_values_unref(values);
    return failures ? 1 : 0;
}
